"""What a Computer is handed of Secrets, on its way from the control plane to its host. SPEC [X1], [X2]; `protocol/link.py`.

None of it is ever written to a disk of a host, nor to a log: the values say nothing of themselves when they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from helmr.protocol.limits import SECRET_BINDINGS
from helmr.protocol.secrets import SecretBinding, check_binding
from helmr.protocol.wire import WireError, from_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedSecret:
    """What the egress proxy exchanges: `placeholder` for `value`, towards `allowed_origins`, in `headers`."""

    name: str
    placeholder: str
    value: str = field(repr=False)
    allowed_origins: tuple[str, ...]
    headers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFile:
    """A file of a Computer that is never on a disk: `value` at `path`, readable by root inside, or by all there."""

    path: str
    value: str = field(repr=False)
    shared: bool = False


def read_bindings(data: Sequence[Any], where: str) -> tuple[SecretBinding, ...]:
    """The bindings of a manifest or a request, checked. Raises `ValueError` naming the rule [X2]."""
    if len(data) > SECRET_BINDINGS:
        raise ValueError(f"{where} binds more than {SECRET_BINDINGS} Secrets.")
    try:
        found = tuple(check_binding(from_wire(SecretBinding, item, f"{where}.secrets[{number}]")) for number, item in enumerate(data))
    except WireError as error:
        raise ValueError(str(error)) from None
    places = [binding.place for binding in found]
    if len(set(places)) != len(places):
        raise ValueError(f"{where} binds two Secrets at one place.")
    return found
