"""Values of Secrets: sealed for the database, and opened for the Computers that are handed them. SPEC [X1], [X2].

Each version has a data key of its own, which a master key wraps. A Computer is handed the current versions when it is started, and keeps
those until it is started again, whatever is rotated meanwhile; which they are is a fact of the database, so that every control plane can
open them again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from helmr.control.domain.explain import MISSING
from helmr.control.domain.redaction import Redactor
from helmr.control.service.keyring import KEY_BYTES, Keyring
from helmr.control.store.pool import Connection
from helmr.control.store.queries import secrets as statements
from helmr.protocol import jsontext
from helmr.protocol.errors import MasterKeyMismatch, SecretsUnavailable
from helmr.protocol.handing import ProtectedSecret, SecretFile, read_bindings
from helmr.protocol.limits import SECRET_FILE_BYTES, SECRET_VARIABLE_BYTES
from helmr.protocol.secrets import PLACEHOLDER_PREFIX, SecretBinding
from helmr.protocol.wire import from_wire, to_wire

_NONCE_BYTES: Final = 12

log = structlog.get_logger("helmr.secrets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Why a Computer can't be started: the Secret, and what is wrong with it, as the end of a sentence."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a Computer has: as its processes get it, and as its proxy exchanges it. Shows nothing of it."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    files: tuple[SecretFile, ...] = field(default=(), repr=False)
    protected: tuple[ProtectedSecret, ...] = field(default=(), repr=False)
    """Without revoked ones."""
    redactor: Redactor = field(default_factory=lambda: Redactor(()), repr=False)
    revoked: tuple[str, ...] = ()
    """Names of those that were revoked since."""

    def to_start(self) -> dict[str, Any]:
        """The members of an order that makes its files."""
        return {"secret_files": [to_wire(file) for file in self.files], **self.to_attach()} if self.files else self.to_attach()

    def to_attach(self) -> dict[str, Any]:
        """The member of an order that tells its proxy what to exchange."""
        return {"protected_secrets": [to_wire(secret) for secret in self.protected]} if self.protected else {}


NOTHING: Final = Handed()


class Vault:
    """Without a keyring there are no Secrets."""

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring

    def require(self) -> Keyring:
        """Raise `SecretsUnavailable` without a master key."""
        if self._keyring is None:
            raise SecretsUnavailable()
        return self._keyring

    async def store(self, connection: Connection, secret_id: str, version: int, value: str, by: bytes) -> None:
        """Store a new version's value, sealed."""
        keyring = self.require()
        context = context_of(secret_id, version)
        key = secrets.token_bytes(KEY_BYTES)
        nonce = os.urandom(_NONCE_BYTES)
        master = await keyring.wrapping(connection)
        await statements.insert_version(
            connection,
            secret_id=secret_id,
            version=version,
            wrapped=keyring.wrap(key, master, context),
            master_version=master,
            sealed=nonce + AESGCM(key).encrypt(nonce, value.encode(), context.encode()),
            created_by=by,
        )

    async def print_of(self, connection: Connection, environment_id: str, value: str) -> str:
        """What stands for a value in a request's fingerprint: equal for equal ones of this Environment, and good for nothing else [S4]."""
        key = await self.require().print_key(connection, environment_id)
        return hmac.digest(key, value.encode(), hashlib.sha256).hex()

    async def hand(self, connection: Connection, computer: Any) -> Lack | None:
        """Note which versions a locked Computer is handed with the start that this transaction begins; or why it can't be started."""
        bindings = bindings_of(computer)
        await statements.clear_handed(connection, computer_id=computer["id"])
        if not bindings:
            return None
        names = sorted({binding.name for binding in bindings})
        rows = await statements.to_hand(connection, environment_id=computer["environment_id"], names=names)
        found = {row["name"]: row for row in rows}
        for name in names:
            if name not in found:
                return Lack(name=name, reason=MISSING)
        try:
            values = {name: self._open(row) for name, row in found.items()}
        except MasterKeyMismatch as error:
            log.error("a Secret can't be opened", error=error.detail)
            return Lack(name=names[0], reason="whose value can't be opened: the operator's master keys don't fit")
        lack = unfit(bindings, values)
        if lack is not None:
            return lack
        for binding in bindings:
            await statements.hand(
                connection,
                computer_id=computer["id"],
                place=binding.place,
                secret_id=found[binding.name]["id"],
                version=found[binding.name]["version"],
                binding=jsontext.dumps(to_wire(binding)),
                placeholder=PLACEHOLDER_PREFIX + secrets.token_urlsafe(24) if binding.mode == "protected" else None,
            )
        return None

    async def handed(self, connection: Connection, computer: Any) -> Handed:
        """What a Computer was handed at its last start. Raises `MasterKeyMismatch` when that can't be opened any more."""
        rows = await statements.handed(connection, computer_id=computer["id"])
        if not rows:
            return NOTHING
        variables: dict[str, str] = {}
        files: list[SecretFile] = []
        protected: list[ProtectedSecret] = []
        values: list[str] = []
        shared = _has_user(computer)
        for row in rows:
            if row["sealed"] is None:
                continue  # revoked or replaced, and nothing runs that has it
            binding, value = from_wire(SecretBinding, jsontext.loads(row["binding"])), self._open(row)
            values.append(value)
            shown = value if row["placeholder"] is None else row["placeholder"]
            if binding.env:
                variables[binding.env] = shown
            else:
                files.append(SecretFile(path=binding.file, value=shown, shared=shared))
            if row["placeholder"] is not None and not row["revoked"]:
                protected.append(
                    ProtectedSecret(
                        name=binding.name,
                        placeholder=row["placeholder"],
                        value=value,
                        allowed_origins=binding.allowed_origins,
                        headers=binding.headers,
                    )
                )
        return Handed(
            variables=variables,
            files=tuple(files),
            protected=tuple(protected),
            redactor=Redactor(values),
            revoked=tuple(sorted({row["name"] for row in rows if row["revoked"]})),
        )

    async def redactor(self, connection: Connection, environment_id: str, names: Iterable[str]) -> Redactor:
        """What takes the present values of these Secrets out of logs."""
        wanted = sorted(set(names))
        if not wanted or self._keyring is None:
            return Redactor(())
        rows = await statements.current_values(connection, environment_id=environment_id, names=wanted)
        return Redactor([self._open(row) for row in rows])

    def _open(self, row: Any) -> str:
        context = context_of(str(row["id"]), row["version"])
        key = self.require().unwrap(row["wrapped"], row["master_version"], context)
        sealed: bytes = row["sealed"]
        try:
            return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context.encode()).decode()
        except InvalidTag as error:
            raise MasterKeyMismatch("The value of a Secret does not open with its data key.") from error


def bindings_of(computer: Any) -> tuple[SecretBinding, ...]:
    """The bindings that a Computer's row says."""
    template = jsontext.loads(computer["template"])
    return read_bindings(template.get("secrets") or (), "The Template") if template.get("secrets") else ()


def unfit(bindings: Sequence[SecretBinding], values: Mapping[str, str]) -> Lack | None:
    """Which value can't be handed as it is bound, if any."""
    variables = files = 0
    for binding in bindings:
        value = values[binding.name]
        size = len(jsontext.dumps(value))
        if binding.mode == "protected" and not value.strip().isprintable():
            return Lack(name=binding.name, reason="whose value holds line breaks or control characters, which no header can carry")
        if binding.env:
            variables += size
        else:
            files += size
        if variables > SECRET_VARIABLE_BYTES or files > SECRET_FILE_BYTES:
            return Lack(name=binding.name, reason="with which its Secrets are too large together")
    return None


def context_of(secret_id: str, version: int) -> str:
    """What the wrapped key and the sealed value of a version are bound to."""
    return f"secret:{secret_id}:{version}"


def _has_user(computer: Any) -> bool:
    """Whether its image has a user of its own, who would else not be able to read its files."""
    steps: Sequence[Mapping[str, Any]] = jsontext.loads(computer["template"])["image"].get("steps") or ()
    users = [step["user"] for step in steps if step["kind"] == "user"]
    return bool(users) and users[-1].partition(":")[0] not in ("root", "0")
