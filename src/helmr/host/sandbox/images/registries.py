"""The operator's package registries: read from the settings of the package clients on this host, for build steps to reach [A7].

No registry is named in this program. What the host's pip, npm and apt would use is asked of them and of the environment.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shutil
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import structlog

from helmr.host.sandbox.egress import HostRule
from helmr.host.sandbox.programs import ask
from helmr.host.sandbox.runner import STEP_FILES

_logger = structlog.get_logger("helmr.images")

CLIENT_SECONDS: Final = 30.0

_CA_NAMES: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
)  # fmt: skip
_PIP_PLAIN: Final = (
    "timeout",
    "default-timeout",
    "retries",
    "trusted-host",
    "prefer-binary",
    "only-binary",
    "no-binary",
    "pre",
    "no-index",
)
_PIP_SECTIONS: Final = ("global", "install", ":env:")
"""Weakest first, as pip itself ranks them."""

_DEFAULTS: Final = "from pip._internal.models.index import PyPI; print(PyPI.simple_url); print(PyPI.file_storage_domain)"
"""pip's own default index, and the host that its files come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """What build steps get. `files` lie under `STEP_FILES` during the step only.

    `with_credentials` replaces members of `environment` in steps whose program is ours; `secrets` are taken out of every log line.
    """

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    with_credentials: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    registries: tuple[HostRule, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


async def read_settings(environment: Mapping[str, str], python: str | None = None) -> PackageSettings:
    """Ask the package clients that `environment` would start; `python` is the one whose pip is asked (the worker's)."""
    interpreter = python or f"{sys.base_prefix}/bin/python3"
    listed, defaults, npm = await asyncio.gather(
        _ask([interpreter, "-m", "pip", "config", "list"], environment),
        _ask([interpreter, "-I", "-c", _DEFAULTS], environment),
        _ask_npm(environment),
    )
    return await asyncio.to_thread(settings_from, environment, listed or "", (defaults or "").split(), npm)


def settings_from(environment: Mapping[str, str], listed: str, defaults: Sequence[str], npm: Mapping[str, Any]) -> PackageSettings:
    """Put together what the clients said: `listed` by `pip config list`, `defaults` index and file host, `npm` its configuration."""
    pip = _pip_options(listed)
    found, secret, files = dict[str, str](), dict[str, str](), dict[str, bytes]()
    urls: list[str] = []

    def take(name: str, values: Iterable[str]) -> None:
        reachable = [value for value in values if urlsplit(value).scheme in ("http", "https")]
        if reachable:
            urls.extend(reachable)
            found[name] = " ".join(map(without_credential, reachable))
            secret[name] = " ".join(reachable)

    found["PIP_CONFIG_FILE"] = os.devnull  # so that the image's own settings don't speak of other registries
    for option in _PIP_PLAIN:
        if option in pip:
            found[_pip_variable(option)] = pip[option]
    take("PIP_INDEX_URL", pip.get("index-url", defaults[0] if defaults else "").split()[:1])
    for option in ("extra-index-url", "find-links"):
        take(_pip_variable(option), pip.get(option, "").split())
    constraints = [path for path in pip.get("constraint", "").split() if os.path.isfile(path)]
    for number, path in enumerate(constraints):
        files[f"constraints-{number}.txt"] = Path(path).read_bytes()
    if constraints:
        found["PIP_CONSTRAINT"] = " ".join(f"{STEP_FILES}/{name}" for name in files)
    if "PIP_INDEX_URL" in found:
        found["UV_DEFAULT_INDEX"], secret["UV_DEFAULT_INDEX"] = found["PIP_INDEX_URL"], secret["PIP_INDEX_URL"]
    if isinstance(registry := npm.get("registry"), str):
        take("NPM_CONFIG_REGISTRY", [registry])
    authority = _authority(environment, pip, npm)
    if authority is not None:
        files["ca.pem"] = authority.read_bytes()
        found |= dict.fromkeys(_CA_NAMES, f"{STEP_FILES}/ca.pem")
    hosts = [rule for url in urls if (rule := rule_of(url)) is not None]
    if defaults[1:] and (not pip.get("index-url") or rule_of(pip["index-url"]) == rule_of(defaults[0])):
        hosts.append(HostRule(host=defaults[1], port=443))
    hosts += [rule for url in _apt_sources(Path("/etc/apt")) if (rule := rule_of(url)) is not None]
    return PackageSettings(
        environment=found,
        with_credentials={name: value for name, value in secret.items() if value != found[name]},
        files=files,
        registries=tuple(dict.fromkeys(hosts)),
        secrets=tuple(sorted({word for url in urls for word in _secrets_of(url)}, key=len, reverse=True)),
    )


def without_credential(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def rule_of(url: str) -> HostRule | None:
    """The host and port of a registry's URL; None for one without a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return HostRule(host=parts.hostname.lower().removesuffix("."), port=parts.port or (80 if parts.scheme == "http" else 443))


def _secrets_of(url: str) -> Iterable[str]:
    netloc = urlsplit(url).netloc
    pair, at, _ = netloc.rpartition("@")
    if not at:
        return
    _, _, password = pair.partition(":")
    for secret in (pair, password or pair):
        yield from (form for form in (secret, unquote(secret), quote(unquote(secret), safe="")) if len(form) > 3)


def _pip_options(listed: str) -> dict[str, str]:
    sections: dict[str, dict[str, str]] = {name: {} for name in _PIP_SECTIONS}
    for line in listed.splitlines():
        name, equals, text = line.partition("=")
        section, _, option = name.rpartition(".")
        if equals and section in sections:
            try:
                value = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                continue  # a warning among the lines, not a setting
            sections[section][option.replace("_", "-")] = str(value)
    return {option: value for name in _PIP_SECTIONS for option, value in sections[name].items()}


def _pip_variable(option: str) -> str:
    return f"PIP_{option.replace('-', '_').upper()}"


def _authority(environment: Mapping[str, str], pip: Mapping[str, str], npm: Mapping[str, Any]) -> Path | None:
    """The certificate bundle that the host's clients trust: the operator's choice first, then the system's."""
    named = [pip.get("cert"), *(environment.get(name) for name in _CA_NAMES), npm.get("cafile"), ssl.get_default_verify_paths().cafile]
    usual = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
    for path in (*named, *usual):
        if isinstance(path, str) and path and os.path.isfile(path):
            return Path(path)
    return None


def _apt_sources(folder: Path) -> list[str]:
    found: list[str] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.suffix in (".list", ".sources") and path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                if re.match(r"\s*(deb|deb-src|URIs:)\s", line):
                    found += re.findall(r"https?://[^\s\]]+", line)
    return found


async def _ask_npm(environment: Mapping[str, str]) -> Mapping[str, Any]:
    if shutil.which("npm", path=environment.get("PATH")) is None:
        return {}
    said = await _ask(["npm", "config", "list", "--json"], environment)
    try:
        value = json.loads(said or "{}")
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


async def _ask(argv: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What a client says, or None when it is not here, fails or hangs: builds then do without its settings, and the log says so."""
    try:
        done = await ask(*argv, seconds=CLIENT_SECONDS, environment=environment, folder="/")
    except TimeoutError:
        _logger.warning("images.client_hangs", argv=argv[:3], seconds=CLIENT_SECONDS)
        return None
    except OSError as error:
        _logger.warning("images.client_missing", argv=argv[:3], error=str(error))
        return None
    if done.code != 0:
        _logger.warning("images.client_failed", argv=argv[:3], code=done.code)
        return None
    return done.out.decode(errors="replace")
