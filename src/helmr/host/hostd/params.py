"""Reading the parameters of a request. Each raises `InvalidRequest` naming what is wrong."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from helmr.host.hostd import failure
from helmr.host.hostd.records import Fence
from helmr.host.sandbox.egress.protected import read_protected
from helmr.protocol.handing import ProtectedSecret, SecretFile
from helmr.protocol.limits import SECRET_BINDINGS
from helmr.protocol.wire import WireError, from_wire

T = TypeVar("T")
KEY_BYTES: Final = 32
Params: TypeAlias = Mapping[str, Any]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Of a Computer: nothing that leads out of a folder."""


def text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise failure.InvalidRequest(f'"{name}" must be a text.')
    return value


def channel(params: Params) -> int:
    value = params.get("channel")
    if type(value) is not int or not 0 < value < 1 << 32:
        raise failure.InvalidRequest('"channel" must be a number from 1 to 4294967295.')
    return value


def fence(params: Params) -> Fence:
    found: Any = params.get("fence")
    if type(found) is not int and not isinstance(found, list):
        raise failure.InvalidRequest('"fence" must be a number, or a list of incarnation and number.')
    return found  # pyright: ignore[reportUnknownVariableType]


def key(params: Params) -> bytes | None:
    """32 bytes in Base64, if there is one."""
    written = params.get("key")
    if written is None:
        return None
    try:
        found = base64.b64decode(written, validate=True)
    except (ValueError, TypeError):
        found = b""
    if len(found) != KEY_BYTES:
        raise failure.InvalidRequest(f'"key" must be {KEY_BYTES} bytes in Base64.')
    return found


def protected(params: Params) -> Sequence[ProtectedSecret] | None:
    """`protected_secrets`, if it is there: what the proxy exchanges [X1]."""
    written: Any = params.get("protected_secrets")
    if written is None:
        return None
    if not isinstance(written, list):
        raise failure.InvalidRequest('"protected_secrets" must be a list.')
    try:
        return read_protected(cast("list[Any]", written))
    except ValueError as error:
        raise failure.InvalidRequest(str(error)) from None


def secret_files(params: Params) -> Sequence[SecretFile]:
    """`secret_files`: what is shown to a Computer and is on no disk [X1]. A refusal repeats nothing of it."""
    written: Any = params.get("secret_files") or []
    if not isinstance(written, list) or len(cast("list[Any]", written)) > SECRET_BINDINGS:
        raise failure.InvalidRequest(f'"secret_files" must be a list of at most {SECRET_BINDINGS}.')
    try:
        return from_wire(tuple[SecretFile, ...], written, "secret_files")
    except WireError:
        raise failure.InvalidRequest('"secret_files" is of another form.') from None


def value(kind: type[T], params: Params, name: str) -> T:
    try:
        return from_wire(kind, params.get(name), name)
    except WireError as error:
        raise failure.InvalidRequest(str(error)) from error
