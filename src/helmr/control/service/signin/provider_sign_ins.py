"""Signing in at a provider: the way there, the way back, and which member somebody is. SPEC 14.

All that must be kept of a sign-in under way comes from one secret in the browser's cookie: state, nonce and PKCE verifier are made from it.
The database has its hash only, so that it is used once, and in that browser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Final

from helmr.control.domain.signin import FLOW_SECONDS, OF_PROVIDER_FLOWS, email_fault, name_fault, normal_email
from helmr.control.service.signin.attempts import Attempts
from helmr.control.service.signin.id_tokens import Identity
from helmr.control.service.signin.people import Person, add_person, note, person_of
from helmr.control.service.signin.provider import Provider, ProviderConfig
from helmr.control.service.signin.sign_ins import SignedIn, make_sign_in
from helmr.control.service.signin.tokens import digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import CodeInvalid, ProviderRefused, SignInNotOffered

_NOT_A_MEMBER: Final = "You are no member of this installation under that email address."


@dataclass(frozen=True, slots=True)
class Begun:
    """`secret` goes to the browser's cookie, `address` is where the browser goes."""

    secret: str
    address: str


class ProviderSignIns:
    def __init__(self, database: Database, attempts: Attempts, config: ProviderConfig | None) -> None:
        self._database = database
        self._attempts = attempts
        self._provider = None if config is None else Provider(config)

    @property
    def name(self) -> str | None:
        """What people are shown of the provider; None when there is none."""
        return None if self._provider is None else self._provider.config.name

    async def begin(self, *, redirect_uri: str, address: str) -> Begun:
        """Raises `SignInNotOffered`, `ProviderUnavailable`, `TooManyAttempts`."""
        provider = self._offered()
        await self._attempts.take_of("provider", address, OF_PROVIDER_FLOWS)
        secret = new_token()
        verifier = _made(secret, "verifier")
        where = await provider.address(
            redirect_uri=redirect_uri,
            state=_made(secret, "state"),
            nonce=_made(secret, "nonce"),
            challenge=_text(hashlib.sha256(verifier.encode()).digest()),
        )

        async def work(connection: Connection) -> None:
            await signin.insert_code(connection, code_hash=digest(secret), purpose="provider", user_id=None, lives_seconds=FLOW_SECONDS)

        await self._database.run(work)
        return Begun(secret, where)

    async def finish(
        self, secret: str, *, state: str, code: str, told_issuer: str | None, redirect_uri: str, label: str, address: str
    ) -> SignedIn:
        """Sign in who came back with a code. Of two with one secret one does.

        Raises `SignInNotOffered`, `CodeInvalid`, `ProviderRefused`, `ProviderUnavailable`.
        """
        provider = self._offered()
        if not hmac.compare_digest(state.encode("utf-8", "replace"), _made(secret, "state").encode()):
            raise CodeInvalid("This sign-in was begun in another browser, or is too old.")

        async def use(connection: Connection) -> bool:
            return await signin.use_code(connection, code_hash=digest(secret), purpose="provider") is not None

        if not await self._database.run(use):
            raise CodeInvalid("This sign-in was used already, or is too old.")
        identity = await provider.identity(
            code, redirect_uri=redirect_uri, verifier=_made(secret, "verifier"), nonce=_made(secret, "nonce"), told_issuer=told_issuer
        )
        email = _usable_email(identity, provider.config)

        async def work(connection: Connection) -> SignedIn | ProviderRefused:
            try:
                person = await _member(connection, identity, email, provider.config)
            except ProviderRefused as refusal:
                await note(connection, "sign_in_failed", user_id=None, address=address, about=f"provider: {email}")
                return refusal
            return await make_sign_in(connection, person, "browser", label=label, address=address, by="provider")

        made = await self._database.run(work)
        if isinstance(made, ProviderRefused):
            raise made
        return made

    def _offered(self) -> Provider:
        if self._provider is None:
            raise SignInNotOffered()
        return self._provider


async def _member(connection: Connection, identity: Identity, email: str, config: ProviderConfig) -> Person:
    """The member that an identity is, linked by the verified address at first. Raises `ProviderRefused` before it changes anything."""
    await signin.lock_setup(connection)
    row: Any = await signin.user_of_identity(connection, issuer=identity.issuer, subject=identity.subject)
    if row is None:
        row = await signin.user_by_email(connection, email=email)
        if row is None:
            return await _newcomer(connection, identity, email, config)
        if await signin.has_identity_of(connection, issuer=identity.issuer, user_id=row["id"]):
            # The address was given to somebody else there: they are not whom we know.
            raise ProviderRefused("That email address belongs to another account of the provider.")
        if row["disabled_at"] is None:
            await signin.link_identity(connection, issuer=identity.issuer, subject=identity.subject, user_id=row["id"])
    if row["disabled_at"] is not None:
        raise ProviderRefused(_NOT_A_MEMBER)
    return person_of(row)


async def _newcomer(connection: Connection, identity: Identity, email: str, config: ProviderConfig) -> Person:
    # Without anybody there is no owner yet, and a viewer would make the set-up token void.
    if config.unknown != "viewer" or not await signin.anybody(connection):
        raise ProviderRefused(_NOT_A_MEMBER)
    name = identity.name if name_fault(identity.name) is None else email
    person = await add_person(connection, email=email, name=name, role="viewer")
    await signin.link_identity(connection, issuer=identity.issuer, subject=identity.subject, user_id=person.id)
    return person


def _usable_email(identity: Identity, config: ProviderConfig) -> str:
    if identity.email is None or email_fault(email := normal_email(identity.email)) is not None:
        raise ProviderRefused("The provider has not verified your email address.")
    if config.domains and email.rpartition("@")[2] not in config.domains:
        raise ProviderRefused("People with an email address of that domain can't sign in here.")
    return email


def _made(secret: str, what: str) -> str:
    return _text(hmac.digest(secret.encode("utf-8", "surrogatepass"), what.encode(), "sha256"))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
