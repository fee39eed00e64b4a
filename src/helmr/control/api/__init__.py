"""The HTTP API of the control plane: routes, credentials, problem documents, event streams, the worker link's end."""

from helmr.control.api.app import Api, build_app
from helmr.control.api.services import Services
from helmr.control.api.streams import StreamTiming

__all__ = ["Api", "Services", "StreamTiming", "build_app"]
