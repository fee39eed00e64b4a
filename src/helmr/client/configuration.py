"""Which server to talk to, and as whom: arguments, then the process environment, then what the CLI saved, then a running `helmr dev`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

from helmr.protocol.errors import ConfigurationMissing

Origin = Literal["arguments", "environment", "login", "dev"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server's base URL without a final slash, and the key to send. `origin` says where the URL came from."""

    url: str
    api_key: str = field(repr=False)
    origin: Origin
    environment: str | None = None
    """`project/environment`, which a person's token needs; an API key implies its own."""


class Saved(NamedTuple):
    """What a file says of a server."""

    url: str
    api_key: str
    environment: str | None = None


def login_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `helmr login` keeps URL and key."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config") / "helmr" / "login.json"


def dev_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a running `helmr dev` says its URL and key."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state") / "helmr" / "dev.json"


def resolve(
    url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ, *, environment: str | None = None
) -> Target:
    """The server, the key and the Environment to use. Raises `ConfigurationMissing`.

    A saved key is only ever sent to the URL that it was saved with: another URL given as an argument or by HELMR_API_URL needs its own key.
    `environment` (else HELMR_ENVIRONMENT) goes before the one that was saved with a key.
    """
    named = _environment(environment or environ.get("HELMR_ENVIRONMENT") or None)
    origin: Origin = "arguments" if url else "environment"
    wanted = url or environ.get("HELMR_API_URL") or None
    key = api_key or environ.get("HELMR_API_KEY") or None
    if wanted is not None and key is not None:
        return Target(url=checked_url(wanted), api_key=_sendable(key), origin=origin, environment=named)
    for kind, path in _saved_files(environ):
        found = read_saved(path)
        if found is None or (wanted is not None and found.url != checked_url(wanted)):
            continue
        saved = found.environment if key is None else None
        return Target(url=found.url, api_key=_sendable(key or found.api_key), origin=kind, environment=named or saved)
    if wanted is not None:
        raise ConfigurationMissing(f"There is no API key for {checked_url(wanted)}.", hint="Pass api_key, or set HELMR_API_KEY.")
    if key is not None:
        raise ConfigurationMissing("There is an API key, but no server URL.", hint="Pass url, or set HELMR_API_URL.")
    raise ConfigurationMissing(hint="Run `helmr dev`, or set HELMR_API_URL and HELMR_API_KEY.")


def read_saved(path: Path) -> Saved | None:
    """What a saved file says; None when there is none. Raises `ConfigurationMissing` if others could read or have written it."""
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationMissing(f"{path} can't be read: {error.strerror}.") from None
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationMissing(f"{path} holds a key, and others than you can reach it.", hint=f"chmod 600 {path}, or remove it.")
    try:
        saved = json.loads(data)
    except ValueError:
        raise ConfigurationMissing(f"{path} is no JSON.", hint="Remove it.") from None
    members = cast("dict[str, Any]", saved) if isinstance(saved, dict) else {}
    url, key, environment = members.get("url"), members.get("api_key"), members.get("environment")
    if not isinstance(url, str) or not isinstance(key, str):
        raise ConfigurationMissing(f'{path} lacks "url" or "api_key".', hint="Remove it.")
    return Saved(checked_url(url), key, environment if isinstance(environment, str) else None)


def save(path: Path, url: str, api_key: str, environment: str | None = None) -> None:
    """Write URL, key and default Environment so that only this user can read them; the file is whole at every instant."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        members = {"url": checked_url(url), "api_key": _sendable(api_key)}
        json.dump(members if environment is None else members | {"environment": environment}, file)
    draft.replace(path)


def environment_path(project: str | None, environment: str | None, default: str | None) -> str | None:
    """`project/environment` of what was named, with the rest from `default`, else of `default/main`. None when nothing was named."""
    if project is None and environment is None:
        return None
    known_project, _, known_environment = (default or "default/main").partition("/")
    return f"{project or known_project}/{environment or known_environment}"


def default_environment(environ: Mapping[str, str] = os.environ) -> str | None:
    """The Environment that HELMR_ENVIRONMENT or the saved login names."""
    saved = read_saved(login_file(environ))
    return environ.get("HELMR_ENVIRONMENT") or (None if saved is None else saved.environment)


def _environment(text: str | None) -> str | None:
    if text is None:
        return None
    project, slash, name = text.partition("/")
    if not slash or not project or not name or "/" in name or not text.isascii() or not text.isprintable():
        raise ConfigurationMissing(f"{text!r} names no Environment.", hint="It is named project/environment, such as default/main.")
    return text


def _saved_files(environ: Mapping[str, str]) -> tuple[tuple[Origin, Path], ...]:
    return (("login", login_file(environ)), ("dev", dev_file(environ)))


def _folder(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    chosen = environ.get(variable, "")
    return Path(chosen) if chosen.startswith("/") else Path(environ.get("HOME") or Path.home()) / fallback


def checked_url(url: str) -> str:
    """A server's base URL without a final slash. Raises `ConfigurationMissing`."""
    try:
        parts = urlsplit(url.strip())
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigurationMissing(f"{url!r} is no URL.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise ConfigurationMissing(f"{url!r} is no http or https URL.", hint='A server\'s URL looks like "https://helmr.example.com".')
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigurationMissing("A server's URL has no user, query or fragment.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _sendable(api_key: str) -> str:
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationMissing("The API key is no key: it is empty, or has spaces or control characters in it.")
    return key
