"""All ways to sign in, put together. SPEC 14."""

from __future__ import annotations

from argon2 import Parameters

from helmr.control.service.signin.attempts import Attempts
from helmr.control.service.signin.browser_codes import BrowserCodes
from helmr.control.service.signin.devices import Devices
from helmr.control.service.signin.hashing import RFC_9106_LOW_MEMORY, PasswordHashes
from helmr.control.service.signin.passwords import Passwords
from helmr.control.service.signin.provider import ProviderConfig
from helmr.control.service.signin.provider_sign_ins import ProviderSignIns
from helmr.control.service.signin.setup import SetUp
from helmr.control.service.signin.sign_ins import SignIns
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin

LOG_DAYS = 180


class Ways:
    """What the API asks of signing in. `cost` is that of a password's hash; only tests have another one."""

    def __init__(self, database: Database, *, cost: Parameters = RFC_9106_LOW_MEMORY, provider: ProviderConfig | None = None) -> None:
        hashes, attempts = PasswordHashes(cost), Attempts(database)
        self._database = database
        self.sign_ins = SignIns(database)
        self.passwords = Passwords(database, hashes, attempts)
        self.set_up = SetUp(database, hashes, attempts)
        self.devices = Devices(database, attempts)
        self.provider = ProviderSignIns(database, attempts, provider)
        self.browser_codes = BrowserCodes(database, attempts)

    async def collect(self) -> None:
        """Forget what has ended, and what was written down of signing in half a year ago."""

        async def work(connection: Connection) -> None:
            await signin.collect(connection, log_days=LOG_DAYS)

        await self._database.run(work)
