"""A Docker engine of this host, by its HTTP interface over a unix socket.

A client of our own: a dozen calls, on aiohttp, which is installed anyway. Each call has a connection of its own and a time-out, so that
nothing has to be closed and an engine that was restarted is simply asked again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from helmr.host.sandbox.spawn import LaunchFailed

VARIABLE: Final = "HELMR_DOCKER"
"""The engine's unix socket. Else DOCKER_HOST where it is one, else the usual place."""
USUAL: Final = Path("/var/run/docker.sock")
SECONDS: Final = 30.0
OLDEST: Final = (1, 41)
"""Docker 20.10: cgroup namespaces."""
NEWEST: Final = (1, 44)
"""What is asked of a later engine: all of them know it."""

_SCHEME: Final = "unix://"


class EngineFailed(LaunchFailed):
    """The engine refused a call, or could not be reached (`status` None)."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def find_socket() -> Path:
    """Where the engine is said to listen; nothing need be there."""
    named = os.environ.get(VARIABLE) or ""
    if not named and os.environ.get("DOCKER_HOST", "").startswith(_SCHEME):
        named = os.environ["DOCKER_HOST"]
    return Path(named.removeprefix(_SCHEME)) if named else USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What matters of how an engine is set up."""

    version: str
    storage: str
    """Name of its storage driver."""
    cgroup_names: str
    """`cgroupfs`, or `systemd`, where the names of groups are slices."""
    first_id: int | None
    """The host's id of root in its containers: 0, or the first of the range that it maps for all of them. None: one that can't be told."""
    rootless: bool

    def require(self, storage: str) -> None:
        """Raise `EngineFailed` where Computers can't be its containers."""
        if self.rootless:
            raise EngineFailed("The Docker engine runs without root; the docker driver needs one that runs as root.")
        if self.storage != storage:
            raise EngineFailed(f"The Docker engine keeps containers in {self.storage}; the docker driver needs {storage}.")
        if self.first_id is None:
            raise EngineFailed("The Docker engine maps users and groups to different ids; the docker driver needs one range for both.")


class Engine:
    """Calls to the engine that listens on `socket`. Each raises `EngineFailed`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._version: tuple[int, int] | None = None

    async def ping(self) -> tuple[int, int]:
        """The version of the interface that the engine has at most."""
        headers, _ = await self._exchange("GET", "/_ping", None, SECONDS)
        words = headers.get("Api-Version", "").split(".")
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise EngineFailed(f"What answers on {self.socket} is no Docker engine.")
        return int(words[0]), int(words[1])

    async def facts(self) -> EngineFacts:
        found = await self._call("GET", "/info")
        options = " ".join(found.get("SecurityOptions") or ())
        return EngineFacts(
            version=str(found.get("ServerVersion")),
            storage=str(found.get("Driver")),
            cgroup_names=str(found.get("CgroupDriver")),
            first_id=_first_id(str(found.get("DockerRootDir"))) if "name=userns" in options else 0,
            rootless="name=rootless" in options,
        )

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """A new container's id."""
        return str((await self._call("POST", f"/containers/create?name={name}", config))["Id"])

    async def start(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/start")

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """All that the engine knows of a container; None for one that it hasn't."""
        try:
            return await self._call("GET", f"/containers/{container}/json")
        except EngineFailed as error:
            if error.status == 404:
                return None
            raise

    async def wait(self, container: str, seconds: float) -> int | None:
        """The exit code of a container that has ended or is about to; None for one that the engine hasn't."""
        try:
            return int((await self._call("POST", f"/containers/{container}/wait", seconds=seconds))["StatusCode"])
        except EngineFailed as error:
            if error.status == 404:
                return None
            raise

    async def remove(self, container: str) -> None:
        """End and remove a container with all that is the engine's. A no-op for one that isn't there."""
        try:
            await self._call("DELETE", f"/containers/{container}?force=1&v=1")
        except EngineFailed as error:
            if error.status == 409:  # it is being removed already: done when it isn't there any more
                await self._gone(container)
            elif error.status != 404:
                raise

    async def labelled(self, *labels: str) -> list[dict[str, Any]]:
        """The containers, ended ones too, that bear all of these labels (`name=value`)."""
        filters = quote(json.dumps({"label": list(labels)}))
        return await self._call("GET", f"/containers/json?all=1&filters={filters}")

    async def import_image(self, repository: str, tag: str, archive: bytes) -> None:
        """Make an image of a single layer from an uncompressed tar."""
        await self._call("POST", f"/images/create?fromSrc=-&repo={quote(repository)}&tag={tag}", archive)

    async def remove_image(self, name: str) -> bool:
        """Whether it is gone: one that containers use stays."""
        try:
            await self._call("DELETE", f"/images/{name}")
        except EngineFailed as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    async def execute(self, container: str, argv: list[str], seconds: float) -> int:
        """Run a program in a container to its end; its exit code."""
        made = await self._call("POST", f"/containers/{container}/exec", {"Cmd": argv, "AttachStdout": True, "AttachStderr": True})
        # The answer's body is what the program prints: it ends with the program.
        await self._call("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}, seconds=seconds)
        return int((await self._call("GET", f"/exec/{made['Id']}/json"))["ExitCode"])

    # --- details ---

    async def _gone(self, container: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                while await self.inspect(container) is not None:  # noqa: ASYNC110 - another one's call to the engine
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise EngineFailed(f"The engine did not remove {container} within {SECONDS:g} s.") from None

    async def _call(self, method: str, path: str, body: object = None, seconds: float = SECONDS) -> Any:
        if self._version is None:
            self._version = min(await self.ping(), NEWEST)
            if self._version < OLDEST:
                self._version = None
                raise EngineFailed("The Docker engine is too old: 20.10 or a later one is needed.")
        try:
            _, data = await self._exchange(method, f"/v{self._version[0]}.{self._version[1]}{path}", body, seconds)
        except EngineFailed as error:
            if error.status in (None, 400):
                self._version = None  # another engine may be there the next time
            raise
        try:
            return json.loads(data)
        except ValueError:
            return None  # an answer without a body, or the output of a program

    async def _exchange(self, method: str, path: str, body: object, seconds: float) -> tuple[Mapping[str, str], bytes]:
        import aiohttp  # a third of a hostd's start, and the others' need none of it

        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        connector = aiohttp.UnixConnector(path=str(self.socket), force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds)) as session,
                session.request(method, f"http://engine{path}", data=raw, headers={"Content-Type": kind}) as answer,
            ):
                data = await answer.read()
                if answer.status >= 400:
                    raise EngineFailed(f"The Docker engine refused {method} {path.partition('?')[0]}: {_told(data)}", answer.status)
                return answer.headers, data
        except TimeoutError:
            raise EngineFailed(f"The Docker engine did not answer {method} {path.partition('?')[0]} within {seconds:g} s.") from None
        except (OSError, aiohttp.ClientError) as error:
            raise EngineFailed(f"No Docker engine answers on {self.socket}: {error}") from error


def _first_id(root: str) -> int | None:
    """From the folder of an engine that maps ids: it keeps each mapping's containers in a folder of its own, `UID.GID`."""
    uid, dot, gid = os.path.basename(root).partition(".")
    return int(uid) if dot and uid == gid and uid.isdecimal() else None


def _told(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:300].decode("utf-8", "replace").strip() or "it said nothing"
