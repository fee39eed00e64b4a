"""A project that can't be deployed."""

from __future__ import annotations

from helmr.protocol.errors.root import HelmrError


class PublishError(HelmrError):
    """The project can't be deployed."""

    code = "publish_failed"


class DefinitionInvalid(PublishError):
    """A definition of the project breaks a rule."""

    code = "definition_invalid"


class ImportFailed(PublishError):
    """An agent file does not import."""

    code = "import_failed"


class ImageFailed(PublishError):
    """An image could not be built."""

    code = "image_failed"


class ImageUnsupported(PublishError):
    """The image can run no Python 3.11 or newer."""

    code = "image_unsupported"
    hint = 'Add a step that installs one, or start from "python:3.12-slim".'
