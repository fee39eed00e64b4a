"""What a worker was enrolled as: kept in its state folder, for its own user alone. SPEC 13.

The credential is made here; the control plane is told its hash. It lies in the folder before anybody is told, so that no answer that is
lost, and no crash, leaves the worker without one that is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import aiohttp

from helmr.protocol.errors import ConnectionFailed, EnrolmentRefused, Forbidden, InvalidValue, SetupError, WorkerExists, by_code

PREFIX: Final = "hlmr_wk_"
PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """`since` is when the credential was made, in seconds of the host's clock; `offered` one that is to take its place."""

    url: str
    worker: str
    name: str
    credential: str
    since: float
    offered: str | None = None


def load(state: Path) -> Enrolment | None:
    """What is kept in the folder; None for a worker that was not enrolled. Raises `SetupError` when it can't be read."""
    try:
        return Enrolment(**json.loads(_place(state).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SetupError(f"{_place(state)} can't be read: {error}", hint="Enrol the worker again, with a token that names it.") from error


def store(state: Path, enrolment: Enrolment) -> None:
    """Keep it in the folder, whole or not at all, whatever happens meanwhile."""
    _write(_place(state), asdict(enrolment))


def new_credential() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(credential: str) -> str:
    """By which the control plane knows it."""
    return hashlib.sha256(credential.encode()).hexdigest()


async def enrol(state: Path, url: str, token: str, *, name: str | None, driver: str | None) -> Enrolment:
    """Exchange a token for a credential of this host's worker, and keep it. May be repeated with the same token after a failure.

    Raises `EnrolmentRefused`, `Forbidden`, `WorkerExists`, `InvalidValue` as the control plane answers, `ConnectionFailed`, `SetupError`.
    """
    credential = _begun(state, token)
    body = {"token": token, "credential_hash": hash_of(credential)}
    body |= {key: value for key, value in (("name", name), ("driver", driver)) if value is not None}
    try:
        patience = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=patience) as session,
            session.post(f"{url.rstrip('/')}/v1/workers/enrol", json=body) as response,
        ):
            answer = await response.json(content_type=None)
            if response.status != 200:
                kind = by_code().get(str(answer.get("code")))
                if kind is not None and issubclass(kind, (EnrolmentRefused, Forbidden, InvalidValue, WorkerExists)):
                    raise kind(str(answer.get("detail")), hint=str(answer.get("hint") or ""))
                raise ConnectionFailed(f"{url} answered {response.status}: {answer.get('detail')}")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError) as error:
        raise ConnectionFailed(f"No control plane answers at {url}: {error or type(error).__name__}.") from error
    made = Enrolment(url=url, worker=answer["worker_id"], name=answer["name"], credential=credential, since=time.time())
    store(state, made)
    _pending(state).unlink(missing_ok=True)
    return made


def _begun(state: Path, token: str) -> str:
    """The credential that is enrolled with this token: the same again when an earlier attempt got no answer."""
    of = hash_of(token)
    try:
        begun = json.loads(_pending(state).read_text())
        if begun["token_hash"] == of:
            return str(begun["credential"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        pass  # there was none, or a broken one: this is the first attempt
    credential = new_credential()
    _write(_pending(state), {"token_hash": of, "credential": credential})
    return credential


def _place(state: Path) -> Path:
    return state / "enrolment.json"


def _pending(state: Path) -> Path:
    return state / "enrolment.begun.json"


def _write(place: Path, members: dict[str, object]) -> None:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = place.with_name(f".{place.name}.{os.getpid()}")
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as writing:
            json.dump(members, writing)
            writing.flush()
            os.fsync(writing.fileno())
        aside.rename(place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SetupError(f"{place} can't be written: {error.strerror}.") from error
