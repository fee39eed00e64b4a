"""Who signs in: a person of this installation, and what is written down of it. SPEC 14."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from helmr.control.domain.signin import email_fault, name_fault, normal_email, password_fault
from helmr.control.store.pool import Connection
from helmr.control.store.queries import signin
from helmr.protocol.errors import InvalidValue
from helmr.protocol.ids import new_id
from helmr.protocol.signin_shapes import Role

ABOUT_BYTES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who is signed in, with the role of now. `sign_in_id` is the sign-in by which this request came."""

    id: str
    email: str
    name: str
    role: Role
    sign_in_id: str = ""
    signed_in_by: str = ""
    ends_at: Any = None


def person_of(row: Any) -> Person:
    return Person(id=str(row["id"]), email=row["email"], name=row["name"], role=row["role"])


async def person_now(connection: Connection, user_id: Any) -> Person | None:
    """With the role of now; None for who is gone or shut out."""
    row = await signin.user_by_id(connection, id=user_id)
    return None if row is None or row["disabled_at"] is not None else person_of(row)


def checked_email(text: str) -> str:
    """The normal form. Raises `InvalidValue`."""
    email = normal_email(text)
    if (fault := email_fault(email)) is not None:
        raise InvalidValue(fault)
    return email


def check_name(name: str) -> None:
    if (fault := name_fault(name)) is not None:
        raise InvalidValue(fault)


def check_password(password: str, *, email: str) -> None:
    """Raises `InvalidValue`, which never has the password in it."""
    if (fault := password_fault(password, email=email)) is not None:
        raise InvalidValue(fault)


async def add_person(connection: Connection, *, email: str, name: str, role: Role) -> Person:
    """A new person and its principal, in the caller's transaction. What is given was checked."""
    user_id = new_id()
    await signin.insert_user(connection, id=user_id, email=email, name=name, role=role)
    await signin.insert_principal(connection, id=user_id, name=name)
    return Person(id=user_id, email=email, name=name, role=role)


async def note(connection: Connection, what: str, *, user_id: str | None, address: str, about: str = "") -> None:
    """Write down what happened, in the transaction in which it did. `about` never has a secret in it."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in about)
    await signin.note(
        connection,
        id=new_id(),
        what=what,
        user_id=user_id,
        address=address,
        about=clean.encode("utf-8", "replace")[:ABOUT_BYTES].decode("utf-8", "ignore"),
    )
