"""Bindings of Secrets to a Computer: their rules, for Templates and for explicit creation alike. SPEC [X1], [X2]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from helmr.protocol.hosts import check_origin

SecretMode = Literal["raw", "protected"]

DEFAULT_HEADERS: Final = ("Authorization", "X-Api-Key", "Private-Token")
ORIGINS: Final = 16
RESERVED_PREFIXES: Final = ("HELMR_", "LD_")
RESERVED_NAMES: Final = frozenset(
    {
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONINSPECT",
        "PYTHONEXECUTABLE",
        "PYTHONUSERBASE",
        "PYTHONPLATLIBDIR",
        "PYTHONBREAKPOINT",
        "PYTHONWARNINGS",
        "PYTHONPYCACHEPREFIX",
        "PYTHONSAFEPATH",
        "PYTHONNOUSERSITE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "GIT_SSL_CAINFO",
        "PIP_CERT",
        "AWS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
        "DENO_CERT",
    }
)
"""Startup and certificate variables, which the runtime sets itself."""

RESERVED_FOLDERS: Final = ("/dev", "/opt/helmr", "/proc", "/run/helmr", "/sys")
"""What the runtime itself shows there."""
PLACEHOLDER_PREFIX: Final = "hlmr_ph_"

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME: Final = re.compile(NAME_PATTERN)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretBinding:
    """A Secret as an environment variable (`env`) or a file (`file`, absolute), raw or as a placeholder exchanged on its way out."""

    name: str
    env: str = ""
    file: str = ""
    mode: SecretMode = "raw"
    allowed_origins: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where a Computer has it: env:NAME or file:/path."""
        return f"env:{self.env}" if self.env else f"file:{self.file}"


def is_secret_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_variable(name: object) -> str:
    """A variable that a Secret may take. Raises `ValueError` for a malformed or reserved name [X2]."""
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an environment variable.")
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        raise ValueError(f"The variable {name} is reserved.")
    return name


def check_binding(binding: SecretBinding) -> SecretBinding:
    """The binding with origins normalized and default headers filled in. Raises `ValueError` naming the rule."""
    where = f"The secret {binding.name!r}"
    if not _NAME.fullmatch(binding.name):
        raise ValueError(f"{where} has a malformed name.")
    if bool(binding.env) == bool(binding.file):
        raise ValueError(f"{where} needs exactly one of env and file.")
    if binding.env:
        check_variable(binding.env)
    elif not binding.file.startswith("/") or binding.file.endswith("/") or {".", ".."} & set(binding.file.split("/")):
        raise ValueError(f"{where} needs an absolute path of a file, without dots.")
    else:
        _check_path(binding.file, where)
    if binding.mode == "raw":
        if binding.allowed_origins or binding.headers:
            raise ValueError(f"{where} is raw; allowed_origins and headers belong to protected ones.")
        return binding
    origins = tuple(dict.fromkeys(check_origin(origin) for origin in binding.allowed_origins))
    if not 1 <= len(origins) <= ORIGINS:
        raise ValueError(f"{where} is protected and needs 1 to {ORIGINS} allowed_origins.")
    return SecretBinding(
        name=binding.name,
        env=binding.env,
        file=binding.file,
        mode="protected",
        allowed_origins=origins,
        headers=_headers(binding.headers or DEFAULT_HEADERS, where),
    )


def _check_path(path: str, where: str) -> None:
    if "//" in path or not path.isprintable() or len(path.encode()) > 1000:
        raise ValueError(f"{where} has a malformed path.")
    for folder in RESERVED_FOLDERS:
        if path == folder or path.startswith(f"{folder}/"):
            raise ValueError(f"{where} can't lie in {folder}, which is the runtime's.")


def _headers(headers: Sequence[str], where: str) -> tuple[str, ...]:
    for header in headers:
        if not _HEADER.fullmatch(header):
            raise ValueError(f"{where} names {header!r}, which is no header.")
    return tuple({header.lower(): header for header in headers}.values())
