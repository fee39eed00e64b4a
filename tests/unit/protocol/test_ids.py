"""Ids: their form, and that no two are the same."""

from __future__ import annotations

import subprocess
import sys

from helmr.protocol.ids import is_id, new_id

FORKING = """
import os
from helmr.protocol.ids import new_id
new_id()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, "".join(new_id()[14:] for _ in range(8)).encode())
    os._exit(0)
os.waitpid(child, 0)
theirs = os.read(read, 4096).decode()
assert len(theirs) == 8 * 22, theirs
print(sum(new_id()[14:] in theirs for _ in range(8)))
"""
"""Prints how many random parts a process shares with one that was forked from it."""


def test_ids_are_uuids_of_version_7_and_differ():
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert len({id[14:] for id in ids}) == 1000
    assert all(is_id(id) and id[14] == "7" and id[19] in "89ab" for id in ids)


def test_a_forked_process_draws_ids_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
