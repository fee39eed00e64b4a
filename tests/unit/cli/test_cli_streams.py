"""`helmr computer shell`, `cp` and `forward`: what is asked wrongly, and what files become. SPEC 13, [C8]."""

from __future__ import annotations

import os
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import COMPUTER
from tests.unit.client.scripted_http import Reply, Request, problem, scripted

from helmr.protocol.archive import Copied, packed

pytestmark = pytest.mark.anyio

OCTETS = {"Content-Type": "application/octet-stream"}
DONE = {"bytes": 2, "entries": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["shell", COMPUTER], "exec --stdin"),
        (["shell", COMPUTER, "--json"], "exec --stdin"),
        (["cp", "a", "b"], "COMPUTER:PATH"),
        (["cp", "c:a", "d:b"], "COMPUTER:PATH"),
        (["cp", "--json", f"{COMPUTER}:a", "-"], "--json"),
        (["forward", COMPUTER, "x"], "numbers"),
        (["forward", COMPUTER, "0"], "numbers"),
        (["forward", COMPUTER, "80:70000"], "numbers"),
    ],
)
async def test_what_can_not_be_meant_is_a_usage_error(helmr: Helmr, arguments: list[str], told: str) -> None:
    async with scripted([]) as server:
        done = await helmr("computer", *arguments, server=server)
    assert done.code == 2 and told in done.err and server.requests == []


async def test_a_tree_comes_and_what_is_left_out_is_told(helmr: Helmr, tmp_path: Path) -> None:
    """Exit code 1: the copy isn't whole. A path of this machine may hold a colon after a slash."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").write_bytes(b"hi")
    (tmp_path / "t" / "out").symlink_to("/etc/\x1b[2Jpasswd")
    tree = b"".join(packed(str(tmp_path / "t"), Copied()))
    async with scripted([Reply(tree, headers=OCTETS)] * 2) as server:
        plain = await helmr("computer", "cp", f"{COMPUTER}:t", "./a:b", server=server)
        as_json = await helmr("computer", "cp", "--json", f"{COMPUTER}:t", "c", server=server)
    assert plain.code == as_json.code == 1 and "./out -> /etc/" in plain.err
    assert as_json.json == {"bytes": 2, "entries": 2, "left_out": ["./out -> /etc/\x1b[2Jpasswd"], "more_left_out": 0}
    assert os.listdir(tmp_path / "a:b") == ["f"] and (tmp_path / "c" / "f").read_bytes() == b"hi"
    assert server.requests[0].target == f"/v1/computers/{COMPUTER}/files?path=t&form=tree"


async def test_a_file_goes_through_standard_input_and_output(helmr: Helmr) -> None:
    async with scripted([Reply(DONE), Reply(b"text", headers=OCTETS), problem("path_not_found", 404)]) as server:
        there = await helmr("computer", "cp", "-", f"{COMPUTER}:/x y", server=server, stdin=b"hi")
        back = await helmr("computer", "cp", f"{COMPUTER}:/x", "-", server=server)
        missing = await helmr("computer", "cp", f"{COMPUTER}:/x", "-", server=server)
    assert there.code == 0 and back.out == "text" and missing.code == 3
    assert server.requests[0].body == b"hi" and server.requests[0].target == f"/v1/computers/{COMPUTER}/files?path=%2Fx+y&form=file"


async def test_a_folder_is_sent_as_it_is_and_again_when_the_server_was_away(helmr: Helmr, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").write_bytes(b"hi")
    (tmp_path / "t" / "l").symlink_to("f")
    seen: list[Any] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return problem("computer_unreachable", 503, retryable=True) if len(seen) == 1 else Reply(DONE)

    async with scripted(answer) as server:
        done = await helmr("computer", "cp", "t", f"{COMPUTER}:/w", server=server)
        gone = await helmr("computer", "cp", "missing", f"{COMPUTER}:/w", server=server)
    assert done.code == 0 and gone.code == 1 and "missing" in gone.err and len(seen) == 2
    assert seen[0].body == seen[1].body and seen[1].target.endswith("/files?path=%2Fw&form=tree&name=t")
    with tarfile.open(fileobj=BytesIO(seen[1].body)) as archive:
        assert {member.name: member.linkname for member in archive} == {".": "", "./f": "", "./l": "f"}


async def test_a_copy_that_breaks_off_is_told_and_leaves_the_old_file(helmr: Helmr, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 50_000)
    tree = b"".join(packed(str(tmp_path / "f"), Copied()))
    (tmp_path / "g").write_bytes(b"old")
    async with scripted([Reply(tree, headers=OCTETS, cut=20_000)]) as server:
        done = await helmr("computer", "cp", f"{COMPUTER}:f", "g", server=server)
    assert done.code == 4 and (tmp_path / "g").read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["f", "g"]
