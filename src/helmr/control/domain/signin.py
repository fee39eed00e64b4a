"""Rules of signing in: what a password must be, how often may be tried, how long what lasts. SPEC 14.

Attempts fill leaking buckets: one of the address, and one of the account. An account that strangers fill stays open to the addresses from
which its person signed in before: those have a bucket of their own for it. So nobody can be locked out for ever from outside.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

PASSWORD_LEAST: Final = 12
"""Characters. There is no other rule of composition."""
PASSWORD_BYTES: Final = 1024
EMAIL_BYTES: Final = 254
NAME_BYTES: Final = 128

SETUP_SECONDS: Final = 24 * 3600
LINK_SECONDS: Final = 24 * 3600
BROWSER_CODE_SECONDS: Final = 60
FLOW_SECONDS: Final = 600
DEVICE_SECONDS: Final = 15 * 60
DEVICE_INTERVAL: Final = 5
SLOW_DOWN_SECONDS: Final = 5
DEVICES_WAITING: Final = 1000
USER_CODE_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""Of what codes that people type are made: no vowels, so no words; no digits that look like letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """In seconds: without use, and at all."""

    idle: int
    whole: int


BROWSER: Final = Lifetime(idle=7 * 86400, whole=30 * 86400)
CLI: Final = Lifetime(idle=30 * 86400, whole=90 * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """So many attempts at once, and then so many in an hour."""

    burst: int
    per_hour: int

    @property
    def per_second(self) -> float:
        return self.per_hour / 3600

    def wait(self, level: float) -> float:
        """How many seconds an attempt is too early that made the level what it is; 0 when it isn't."""
        return max(0.0, level - self.burst) / self.per_second


OF_ACCOUNT: Final = Bucket(burst=10, per_hour=60)
OF_ADDRESS: Final = Bucket(burst=30, per_hour=180)
OF_DEVICE_REQUESTS: Final = Bucket(burst=20, per_hour=120)
OF_PROVIDER_FLOWS: Final = Bucket(burst=30, per_hour=180)
OF_USER_CODES: Final = Bucket(burst=10, per_hour=60)


def password_fault(password: str, *, email: str) -> str | None:
    """What is wrong with a new password, in words; None when nothing is."""
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        return "A password is text; this one holds half a character."
    if len(password) < PASSWORD_LEAST:
        return f"A password has at least {PASSWORD_LEAST} characters."
    if size > PASSWORD_BYTES:
        return f"A password has at most {PASSWORD_BYTES} bytes."
    if password.strip().lower() == email:
        return "The password is the email address."
    return None


def email_fault(email: str) -> str | None:
    """What is wrong with a normal address (`normal_email`), in words; None when nothing is."""
    local, at, domain = email.rpartition("@")
    if not at or not local or not domain or not email.isprintable() or " " in email or len(email.encode("utf-8", "replace")) > EMAIL_BYTES:
        return "This is no email address."
    return None


def name_fault(name: str) -> str | None:
    if not name.strip() or not name.isprintable() or len(name.encode("utf-8", "replace")) > NAME_BYTES:
        return f"A name is 1 to {NAME_BYTES} bytes of printable text."
    return None


def normal_email(text: str) -> str:
    """As it is stored and compared: without space around it, in lower case, composed. What no database can hold is replaced: it is no
    address then, and of nobody."""
    storable = text.encode("utf-8", "replace").decode().replace("\0", " ")
    return unicodedata.normalize("NFC", storable.strip()).lower()


def normal_user_code(text: str) -> str:
    """A code as it was typed, in the form that is stored: `WDJB-MJHT`. What can't be one comes out as it is compared with none."""
    letters = "".join(letter for letter in text.upper() if letter.isascii() and letter.isalpha())
    return f"{letters[:4]}-{letters[4:]}"
