"""What the audit log calls each write, and what it means. SPEC 14."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

KEPT_DAYS: Final = 180
"""How long an entry is kept."""

OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sessions.create": "a Session was made",
        "sessions.spawn": "a Session made a child",
        "sessions.start": "a Session made an independent one",
        "sessions.interrupt": "a Session was interrupted",
        "sessions.resume": "a hold was released",
        "sessions.close": "a Session was closed",
        "sessions.cancel": "a Session was cancelled",
        "sessions.delete_data": "what was said in a Session was deleted",
        "turns.enqueue": "a Turn was admitted; the target is its Session, and the entry has the Turn's id",
        "turns.send": "a message was sent to a Turn",
        "turns.interrupt": "a Turn was interrupted",
        "questions.respond": "a question was answered",
        "computers.create": "a Computer was made",
        "computers.hibernate": "a Computer was put to sleep",
        "computers.wake": "a Computer was woken",
        "computers.recover": "a Computer was recovered",
        "computers.save": "a save was asked for",
        "computers.delete": "a Computer was deleted",
        "computers.exec": "a Command was started; the target is its Computer",
        "commands.cancel": "a Command was cancelled",
        "computers.shell": "a shell was opened",
        "computers.forward": "a port was reached",
        "computers.read_files": "files were copied from a Computer",
        "computers.write_files": "files were copied to a Computer",
        "deployments.publish": "a project was published",
        "deployments.promote": "a Deployment was made the current one",
        "secrets.create": "a Secret was made",
        "secrets.rotate": "a Secret got a new value",
        "secrets.revoke": "a Secret was revoked",
        "api_keys.create": "an API key was made",
        "api_keys.rotate": "an API key was replaced",
        "api_keys.revoke": "an API key was revoked",
        "workers.enrolments.create": "an enrolment token was made",
        "workers.enrolments.revoke": "an enrolment token was revoked",
        "workers.drain": "a worker was drained",
        "workers.undrain": "a worker takes work again",
        "workers.rotate": "a worker was told to renew its credential",
        "workers.remove": "a worker was removed",
    }
)
