"""A manifest or pack that isn't what it should be makes no file, and nothing outside the target is ever touched [C5]."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.objects.saved_trees import HERE, KEYS, ROOT, save

from helmr.objects.saves import IdRange, Pack, SaveKeys, SaveReport, Spool, referenced, restore_tree
from helmr.objects.saves.keys import Sealer
from helmr.objects.saves.manifest import FOLDER, LINK, REGULAR, Entry, Folder, Location, Manifest, Tree, read_manifest, write_manifest
from helmr.protocol.errors import BaseMismatch, SaveDamaged, SpoolUnsafe

SEALER = Sealer(KEYS)
MANY = examples(60)
WORKER = 64123


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[SaveReport, Path]:
    home = tmp_path_factory.mktemp("saved")
    for name in ("tree", "spool", "tree/folder"):
        (home / name).mkdir()
    (home / "tree/folder/file").write_bytes(b"some bytes " * 1000)
    (home / "tree/other").write_bytes(os.urandom(5000))
    (home / "tree/link").symlink_to("folder/file")
    return save(home / "tree", home / "spool"), home / "spool"


def make(manifest: bytes, spool: Path, target: Path, keys: SaveKeys = KEYS, **more: str) -> None:
    restore_tree(manifest, fetch=lambda name: (spool / name).open("rb"), keys=keys, target=target, ids=HERE, **more)


def manifest_of(saved: tuple[SaveReport, Path]) -> bytes:
    return (saved[1] / saved[0].manifest.name).read_bytes()


@MANY
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_manifest_is_refused(saved: tuple[SaveReport, Path], tmp_path: Path, place: float, bit: int) -> None:
    data = bytearray(manifest_of(saved))
    data[int(place * len(data))] ^= 1 << bit
    with pytest.raises(SaveDamaged):
        make(bytes(data), saved[1], tmp_path / "back")
    assert list(tmp_path.iterdir()) == []


@MANY
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_pack_is_refused(saved: tuple[SaveReport, Path], tmp_path: Path, place: float, bit: int) -> None:
    report, spool = saved
    data = bytearray((spool / report.packs[0].name).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (tmp_path / report.packs[0].name).write_bytes(data)
    with pytest.raises(SaveDamaged, match="chunk"):
        make(manifest_of(saved), tmp_path, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == [report.packs[0].name]


@MANY
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_manifest_or_pack_that_is_cut_off_is_refused(saved: tuple[SaveReport, Path], tmp_path: Path, share: float) -> None:
    report, spool = saved
    whole = manifest_of(saved)
    with pytest.raises(SaveDamaged):
        make(whole[: int(share * len(whole))], spool, tmp_path / "back")
    pack = (spool / report.packs[0].name).read_bytes()
    (tmp_path / report.packs[0].name).write_bytes(pack[: int(share * len(pack))])
    with pytest.raises(SaveDamaged):
        make(whole, tmp_path, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_other_keys_open_nothing(saved: tuple[SaveReport, Path], tmp_path: Path) -> None:
    for keys in (SaveKeys(data=bytes(32), names=KEYS.names), SaveKeys(data=KEYS.data, names=bytes(32))):
        with pytest.raises(SaveDamaged):
            make(manifest_of(saved), saved[1], tmp_path / "back", keys)
    assert list(tmp_path.iterdir()) == []


def test_keys_are_in_no_text_that_is_made_of_them() -> None:
    secret = bytes(range(100, 132))
    assert not any(text in repr(SaveKeys(data=secret, names=secret)) for text in (repr(secret), secret.hex(), "100, 101"))


def test_a_save_of_another_name_or_layout_is_refused(saved: tuple[SaveReport, Path], tmp_path: Path) -> None:
    with pytest.raises(SaveDamaged, match="0000"):
        make(manifest_of(saved), saved[1], tmp_path / "back", name="0" * 64)
    with pytest.raises(BaseMismatch):
        make(manifest_of(saved), saved[1], tmp_path / "back", layout="overlay/another")


def test_a_folder_that_is_there_is_left_as_it_is(saved: tuple[SaveReport, Path], tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    with pytest.raises(FileExistsError):
        make(manifest_of(saved), saved[1], tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


def entry(name: bytes, kind: int = FOLDER, **more: object) -> Entry:
    return Entry(**{"name": name, "kind": kind, "mode": 0o755, "uid": 0, "gid": 0, "mtime": 0, **more})  # type: ignore[arg-type]


def tree(*entries: Entry, below: tuple[Folder, ...] = (), chunks: dict[bytes, Location] | None = None) -> Tree:
    folders = [Folder(parent=-1, name=b"", entries=list(entries)), *below]
    return Tree(root=entry(b""), folders=folders, chunks=chunks or {})


CHUNK = bytes(32)
ONE = {CHUNK: Location(0, 0, 10, 5)}
IN = Folder(parent=0, name=b"way", entries=[entry(b"in", REGULAR)])
HOSTILE: dict[str, Tree] = {
    **{f"name {name[:10]!r}": tree(entry(name)) for name in (b"", b".", b"..", b"a/b", b"/etc", b"../out", b"a\0b", b"n" * 256)},
    "folder through a link": tree(entry(b"way", LINK, target=b"/tmp"), below=(IN,)),
    "folder through a file": tree(entry(b"way", REGULAR), below=(IN,)),
    "folder that no folder has": tree(below=(Folder(parent=0, name=b"..", entries=[entry(b"in", REGULAR)]),)),
    "folder twice": tree(entry(b"a"), below=(Folder(parent=0, name=b"a", entries=[]), Folder(parent=0, name=b"a", entries=[]))),
    "folder in itself": tree(entry(b"a"), below=(Folder(parent=1, name=b"a", entries=[entry(b"a")]),)),
    "second root": tree(entry(b"a"), below=(Folder(parent=-1, name=b"a", entries=[]),)),
    "name twice": tree(entry(b"a"), entry(b"a", LINK, target=b"/tmp")),
    "device": tree(entry(b"null", 0o06)),
    "socket": tree(entry(b"socket", 0o14)),
    "mode beyond modes": tree(entry(b"a", REGULAR, mode=0o20644)),
    "link to nothing": tree(entry(b"a", LINK)),
    "chunk that is not there": tree(entry(b"a", REGULAR, size=1, chunks=(CHUNK,))),
    "more than its size": tree(entry(b"a", REGULAR, size=1, chunks=(CHUNK,)), chunks=ONE),
    "data outside itself": tree(entry(b"a", REGULAR, size=1, extents=((0, 5),), chunks=(CHUNK,)), chunks=ONE),
    "extents that overlap": tree(entry(b"a", REGULAR, size=20, extents=((0, 5), (3, 5)), chunks=(CHUNK, CHUNK)), chunks=ONE),
    "no such pack": tree(chunks={CHUNK: Location(7, 0, 1, 1)}),
    "beyond its pack": tree(chunks={CHUNK: Location(0, 1 << 40, 1, 1)}),
    "before its pack": tree(chunks={CHUNK: Location(0, -1, 1, 1)}),
    "negative size": tree(entry(b"a", REGULAR, size=-5)),
    "another kind of root": Tree(root=entry(b"", LINK, target=b"/"), folders=[Folder(parent=-1, name=b"", entries=[])], chunks={}),
    "no root": Tree(root=entry(b""), folders=[], chunks={}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_manifest_that_was_made_to_harm_is_refused_although_it_opens(saved: tuple[SaveReport, Path], tmp_path: Path, what: str) -> None:
    packs = read_manifest(manifest_of(saved), SEALER).packs
    data = write_manifest(Manifest(packs=packs, tree=HOSTILE[what]), SEALER)
    (tmp_path / "home").mkdir()
    with pytest.raises(SaveDamaged):
        make(data, saved[1], tmp_path / "home/back")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert list((tmp_path / "home").iterdir()) == []


def test_a_chunk_that_decompresses_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    """The bomb is sealed with the right keys; it is never unpacked."""
    bomb = bytes(64 << 20)
    name = SEALER.name(bomb)
    sealed = SEALER.seal(bomb, name)
    spool = tmp_path / "spool"
    spool.mkdir()
    with Spool(spool) as opened:
        pack = opened.put(sealed)
    made = tree(entry(b"a", REGULAR, size=10, chunks=(name,)), chunks={name: Location(0, 0, len(sealed), 10)})
    with pytest.raises(SaveDamaged, match="length"):
        make(write_manifest(Manifest(packs=(Pack(name=pack, size=len(sealed)),), tree=made), SEALER), spool, tmp_path / "back")


def test_attributes_that_a_save_never_has_are_never_set(tmp_path: Path) -> None:
    wanted = (("user.fine", b"1"), ("trusted.overlay.origin", b"2"), ("trusted.other", b"3"), ("security.evil", b"4"))
    data = write_manifest(Manifest(packs=(), tree=tree(entry(b"a", REGULAR, attributes=wanted))), SEALER)
    make(data, tmp_path, tmp_path / "back")
    assert set(os.listxattr(tmp_path / "back/a")) - {"security.selinux"} == {"user.fine"}


def test_who_has_no_key_reads_the_packs_and_nothing_else(saved: tuple[SaveReport, Path]) -> None:
    report, spool = saved
    data = manifest_of(saved)
    assert referenced(data) == {pack.name for pack in report.packs}
    for file in (data, *((spool / pack.name).read_bytes() for pack in report.packs)):
        assert not any(word in file for word in (b"folder", b"other", b"some bytes"))


def test_two_environments_have_no_chunk_name_in_common(tmp_path: Path) -> None:
    """Nor do two Computers of one Environment have a pack in common: each has its own data key."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"the same in both")
    names: list[set[bytes]] = []
    packs: list[frozenset[str]] = []
    for data, chunk_names in ((b"1", b"a"), (b"2", b"a"), (b"3", b"b")):
        keys = SaveKeys(data=data * 32, names=chunk_names * 32)
        spool = tmp_path / f"spool{data.decode()}"
        spool.mkdir()
        manifest = (spool / save(tmp_path / "tree", spool, keys=keys).manifest.name).read_bytes()
        names.append(set(read_manifest(manifest, Sealer(keys)).tree.chunks))
        packs.append(referenced(manifest))
    assert names[0] == names[1]
    assert not names[0] & names[2]
    assert not packs[0] & packs[1]


@pytest.mark.parametrize("value", ["text", {"packs": 1}, {"packs": [["../x", 1]]}, {"packs": [["0" * 64, -1]]}, {}])
def test_a_header_that_is_none_is_refused(value: object) -> None:
    header = msgspec.json.encode(value)
    with pytest.raises(SaveDamaged):
        referenced(b"HLMRSAVE" + (1).to_bytes(2, "little") + len(header).to_bytes(4, "little") + header)


# --- the spool ---


def swapped(spool: Path, name: str, outside: Path) -> None:
    (spool / name).symlink_to(outside)


def linked(spool: Path, name: str, outside: Path) -> None:
    os.link(outside, spool / name)


def piped(spool: Path, name: str, outside: Path) -> None:
    os.mkfifo(spool / name)


@pytest.mark.skipif(not ROOT, reason="needs root")
@pytest.mark.parametrize("trick", [swapped, linked, piped])
def test_a_worker_can_not_have_hostd_read_what_is_not_its_own(tmp_path: Path, trick: Callable[[Path, str, Path], None]) -> None:
    spool, outside = tmp_path / "spool", tmp_path / "outside"
    spool.mkdir(0o700)
    os.chown(spool, WORKER, WORKER)
    outside.write_bytes(b"of root alone")
    trick(spool, "0" * 64, outside)
    with Spool(spool, owner=WORKER) as opened, pytest.raises(SaveDamaged):
        opened.open("0" * 64)


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_a_spool_of_somebody_else_or_behind_a_link_or_open_to_all_is_refused(tmp_path: Path) -> None:
    for name, owner, mode in (("others", 12345, 0o700), ("open", WORKER, 0o777), ("own", WORKER, 0o700)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, owner, owner)
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("own")
    for name in ("others", "open", "link", "missing"):
        with pytest.raises(SpoolUnsafe):
            Spool(tmp_path / name, owner=WORKER)
    with Spool(tmp_path / "own", owner=WORKER) as spool:
        assert (tmp_path / "own" / spool.put(b"x")).stat().st_uid == WORKER


def test_ids_outside_the_range_become_nobody_and_never_wrap() -> None:
    ids = IdRange.mapped(100_000)
    assert ids.inside(0, 99_999) == (65534, 65534)
    assert ids.inside(165_536, 165_535) == (65534, 65535)
    assert ids.outside(1 << 40, 65_536) == (100_000, 100_000)
