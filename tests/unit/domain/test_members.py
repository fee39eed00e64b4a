"""Who manages whom. SPEC 14: an admin has `members.manage`, and an owner owners."""

from __future__ import annotations

import itertools

import pytest

from helmr.control.domain.members import refusal

ROLES = ("viewer", "developer", "admin", "owner")


@pytest.mark.parametrize(("manager", "now", "then"), list(itertools.product(ROLES, repeat=3)))
def test_an_admin_manages_all_but_owners_and_an_owner_everybody(manager, now, then) -> None:
    allowed = manager == "owner" or (manager == "admin" and "owner" not in (now, then))
    assert (refusal(manager, now, then) is None) == allowed
