"""Tokens and codes that are shown once: 32 random bytes, of which the database has a SHA-256."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from helmr.control.domain.signin import BROWSER_CODE_SECONDS, LINK_SECONDS

__all__ = ["BROWSER_CODE_SECONDS", "CLI_PREFIX", "LINK_SECONDS", "digest", "new_token"]

CLI_PREFIX: Final = "hlmr_ut_"


def new_token(prefix: str = "") -> str:
    return prefix + secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    """What is stored of it, and looked up."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
