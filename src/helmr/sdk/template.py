"""`template()`: what Computers are made of: an image, resources, secrets, and where they may connect to. SPEC [A1], [C4]."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from helmr.protocol.hosts import check_host_rule
from helmr.protocol.ids import is_definition_id
from helmr.protocol.secrets import SecretBinding
from helmr.sdk.definition import Definition, caller
from helmr.sdk.image import Image

_SIZE: Final = re.compile(r"([1-9][0-9]{0,9})(KiB|MiB|GiB|TiB)")
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_LEAST_MEMORY: Final = 32 << 20
_KNOWN: Final = ("cpu", "memory", "pids")


class Resources(TypedDict, total=False):
    """`cpu` in cores (1, 0.5), `memory` in bytes or as a text ("1GiB"), `pids` processes at most."""

    cpu: float
    memory: int | str
    pids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a Computer is made of. `memory` in bytes."""

    id: str
    image: Image
    cpu: float = 1.0
    memory: int = 1 << 30
    pids: int = 1024
    secrets: tuple[SecretBinding, ...] = ()
    egress: tuple[str, ...] = ()
    kind: Literal["template"] = "template"
    defined: Definition = field(default=Definition("", 0), repr=False, compare=False)


def template(
    *,
    id: str,
    image: Image,
    resources: Resources | None = None,
    secrets: Sequence[SecretBinding] = (),
    egress: Sequence[str] = (),
) -> Template:
    """A Template. Default: one core, 1 GiB, 1024 processes, no network.

    Raises `TypeError` for a blank id or an image that is none, `ValueError` for values outside what is allowed.
    """
    if not isinstance(id, str) or not id.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("A template needs an id.")
    if not is_definition_id(id):
        raise ValueError(f"The template id {id!r} is malformed: letters, digits, dots, dashes and underscores, at most 128.")
    if not isinstance(image, Image):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The template {id!r} needs an image: image(name).from_host(), for one.")
    if isinstance(egress, str) or not all(isinstance(item, SecretBinding) for item in secrets):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The template {id!r} takes secrets=[secret(...)] and egress=[host, ...].")
    given: Mapping[str, object] = dict(resources or {})
    for name in given:
        if name not in _KNOWN:
            raise ValueError(f"The template {id!r} has the unknown resource {name!r}; known are {', '.join(_KNOWN)}.")
    _require_distinct(id, secrets)
    return Template(
        id=id,
        image=image.checked(),
        cpu=_cpu(given.get("cpu", 1)),
        memory=memory_bytes(given.get("memory", 1 << 30)),
        pids=_pids(given.get("pids", 1024)),
        secrets=tuple(secrets),
        egress=tuple(dict.fromkeys(map(check_host_rule, egress))),
        defined=caller(inspect.currentframe()),
    )


def memory_bytes(value: object) -> int:
    """Bytes of "512MiB", "1GiB", or of an int. Raises `ValueError`; less than 32 MiB runs no Python."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        size = int(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise ValueError(f'memory {value!r} must be bytes, or a text such as "512MiB" or "1GiB".')
    if not _LEAST_MEMORY <= size <= 1 << 50:
        raise ValueError(f"memory {value!r} must be at least 32MiB.")
    return size


def _cpu(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.01 <= value <= 1024:
        raise ValueError(f"cpu {value!r} must be a number of cores from 0.01 to 1024.")
    return float(value)


def _pids(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 16 <= value <= 1 << 22:
        raise ValueError(f"pids {value!r} must be a number of processes, at least 16.")
    return value


def _require_distinct(id: str, secrets: Sequence[SecretBinding]) -> None:
    seen: set[str] = set()
    for binding in secrets:
        place = binding.env or binding.file
        if place in seen:
            raise ValueError(f"The template {id!r} binds {place} twice.")
        seen.add(place)
