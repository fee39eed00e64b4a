"""`helmr hostd`: users and groups by name, the rest handed on. SPEC 13."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest
from tests.unit.cli.cli_runs import Helmr

pytestmark = pytest.mark.anyio


async def test_users_and_groups_are_named_and_everything_is_handed_to_the_daemon(
    helmr: Helmr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr("helmr.host.hostd.program.main", lambda arguments: told.append(arguments) or 3)
    user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(os.getegid())
    options = ("--socket", "/run/x.sock", "--driver", "process", "--egress-allow", "db.internal:5432")
    done = await helmr("hostd", "--state", str(tmp_path), *options, "--worker-user", user.pw_name, "--worker-group", group.gr_name)
    assert done.code == 3, "its exit code is the command's"
    expected = ["--state", str(tmp_path), "--driver", "process", "--worker-uid", str(user.pw_uid), "--worker-gid", str(group.gr_gid)]
    assert told == [[*expected, "--socket", "/run/x.sock", "--egress-allow", "db.internal:5432"]]
    assert (await helmr("hostd", "--state", str(tmp_path), "--worker-user", "1234", "--clean")).code == 3
    assert told[1][-3:] == ["--worker-uid", "1234", "--clean"]
    unknown = await helmr("hostd", "--worker-group", "no-such-group")
    assert unknown.code == 2 and "no-such-group" in unknown.err and len(told) == 2
