"""Object stores by their address."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from helmr.objects.folderobjects import FolderObjects
from helmr.objects.objectstore import ObjectStore
from helmr.protocol.errors import ObjectStoreUnusable


def open_objects(address: str) -> ObjectStore:
    """The store of `file:///folder` or `s3://bucket/prefix`; the latter with the usual `AWS_*` variables. Raises `ObjectStoreUnusable`."""
    parts = urlsplit(address)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        try:
            return FolderObjects(Path(unquote(parts.path)))
        except OSError as error:
            raise ObjectStoreUnusable(f"The folder {parts.path} can't be used: {error.strerror}.") from error
    if parts.scheme == "s3" and parts.netloc:
        from helmr.objects.s3objects import S3Objects

        return S3Objects(parts.netloc, unquote(parts.path))
    raise ObjectStoreUnusable(f"{address[:200]!r} is no address of an object store.")
