"""`HelmrClient`: the way into one Environment of a Helmr installation. SPEC 12."""

from __future__ import annotations

from typing import Self

from helmr.client.agents import Agents
from helmr.client.api_keys import ApiKeys
from helmr.client.audit import Audit
from helmr.client.commands import Commands
from helmr.client.computers import Computers
from helmr.client.configuration import resolve
from helmr.client.deployments import Deployments
from helmr.client.environments import Environments, Projects
from helmr.client.members import Members
from helmr.client.questions import Questions
from helmr.client.reading import read
from helmr.client.retry import RetryPolicy
from helmr.client.secrets import Secrets
from helmr.client.sessions import Sessions
from helmr.client.transport import Transport
from helmr.client.triggers import Triggers
from helmr.client.workers import Workers
from helmr.protocol.shapes import Capabilities
from helmr.protocol.signin_shapes import Myself

DEFAULT_RETRY = RetryPolicy()


class HelmrClient:
    """An asynchronous client; use it with `async with`, or call `close()`.

    Server and key come from the arguments, from HELMR_API_URL and HELMR_API_KEY, from what `helmr login` saved, or from a running
    `helmr dev`, in this order. The token of a person needs an `environment` ("project/environment"), from the argument, HELMR_ENVIRONMENT
    or the login; an API key implies its own, and is refused where another one is named. `timeout` bounds one attempt of a call, in
    seconds; `retry` says how often and how long it is repeated.
    Each write carries an idempotency key that its repetitions keep, so that a lost reply never makes two of it.

    Raises `ConfigurationMissing` when there is no server or no key. One client belongs to one event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        environment: str | None = None,
        timeout: float = 30.0,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._transport = Transport(resolve(url, api_key, environment=environment), retry=retry, timeout=timeout)
        self.sessions = Sessions(self._transport)
        self.questions = Questions(self._transport)
        self.computers = Computers(self._transport)
        self.commands = Commands(self._transport)
        self.agents = Agents(self._transport)
        self.deployments = Deployments(self._transport)
        self.secrets = Secrets(self._transport)
        self.api_keys = ApiKeys(self._transport)
        self.members = Members(self._transport)
        self.audit = Audit(self._transport)
        self.projects = Projects(self._transport)
        self.environments = Environments(self._transport)
        self.triggers = Triggers(self._transport)
        self.workers = Workers(self._transport)

    def __repr__(self) -> str:
        return f"HelmrClient({self.url!r})"

    @property
    def url(self) -> str:
        """The server's base URL."""
        return self._transport.target.url

    async def capabilities(self) -> Capabilities:
        """What this installation can do."""
        return read(Capabilities, await self._transport.call("GET", "/v1/capabilities"))

    async def myself(self) -> Myself:
        """Who one is signed in as. Raises `Unauthenticated` for an API key, which is no person."""
        return read(Myself, await self._transport.call("GET", "/auth/me"))

    async def sign_out(self) -> None:
        """End the sign-in of the token that this client has. Raises `Unauthenticated` if it has ended, or is an API key."""
        await self._transport.call("POST", "/auth/sign-out", json={})

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
