"""Master keys: which file is one, that they wrap, and what is refused. SPEC [X1]."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from helmr.control.service.keyfile import add_key, keep_keyring, read_keyring, remove_key
from helmr.control.service.keyring import Keyring
from helmr.protocol.errors import MasterKeyMismatch, MasterKeyUnusable

ONE, TWO = b"1" * 32, b"2" * 32


def test_a_data_key_opens_with_the_master_key_of_its_version_and_for_its_owner_alone() -> None:
    """A later version wraps, an earlier one still unwraps."""
    old, both = Keyring({1: ONE}), Keyring({1: ONE, 2: TWO})
    wrapped = old.wrap(b"d" * 32, 1, "computer:a")
    assert both.unwrap(wrapped, 1, "computer:a") == b"d" * 32 and both.versions == (1, 2)
    assert b"d" * 32 not in wrapped
    with pytest.raises(MasterKeyMismatch):
        both.unwrap(wrapped, 1, "computer:b")
    with pytest.raises(MasterKeyMismatch):
        old.unwrap(both.wrap(b"d" * 32, 2, "x"), 2, "x")
    with pytest.raises(MasterKeyMismatch):
        Keyring({1: TWO}).unwrap(wrapped, 1, "computer:a")


def test_a_file_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """Starts at the same time agree on one."""
    file = tmp_path / "folder" / "master.key"
    made: list[Keyring] = []
    starts = [threading.Thread(target=lambda: made.append(keep_keyring(file))) for _ in range(8)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    wrapped = made[0].wrap(b"k" * 32, 1, "x")
    assert all(keyring.unwrap(wrapped, 1, "x") == b"k" * 32 for keyring in [*made, read_keyring(file)])
    assert file.stat().st_mode & 0o777 == 0o600 and [path.name for path in file.parent.iterdir()] == ["master.key"]


def test_a_version_is_added_to_the_file_and_removed_from_it_whole(tmp_path: Path) -> None:
    file = tmp_path / "key"
    first = keep_keyring(file)
    assert add_key(file) == 2 and add_key(file) == 3
    assert read_keyring(file).versions == (1, 2, 3)
    assert read_keyring(file).unwrap(first.wrap(b"k" * 32, 1, "x"), 1, "x") == b"k" * 32
    assert remove_key(file, 1) and not remove_key(file, 1)
    assert read_keyring(file).versions == (2, 3)
    assert file.stat().st_mode & 0o777 == 0o600 and [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("text", ["", "1", "1 short", "one " + "A" * 44, "1 " + "A" * 44 + "\n2 " + "A" * 8])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(MasterKeyUnusable):
        read_keyring(file)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    keep_keyring(file)
    file.chmod(0o640)
    with pytest.raises(MasterKeyUnusable, match="may read"):
        read_keyring(file)
    with pytest.raises(MasterKeyUnusable):
        read_keyring(tmp_path / "none")


def test_no_key_is_in_what_a_keyring_looks_like() -> None:
    """[X2]."""
    assert "1111" not in repr(Keyring({1: ONE})) + str(Keyring({1: ONE}))
