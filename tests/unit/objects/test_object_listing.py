"""Listings: canonical, checked, and never writing outside their folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmr.objects import File, FolderStore, Link, Listing, lay_out, listing_of, read_listing, write_listing
from helmr.protocol.errors import BlobNotFound, ContentInvalid, DigestMismatch, ListingInvalid

pytestmark = pytest.mark.anyio

EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def empty(mode: int = 0o644) -> dict[str, object]:
    return {"blob": EMPTY, "size": 0, "mode": mode}


def encoded(files: object) -> bytes:
    return json.dumps({"files": files}).encode()


def test_the_encoding_is_the_documented_one_and_round_trips() -> None:
    listing: Listing = {"b/run.sh": File(blob=EMPTY, size=0, mode=0o755), "a": Link(target="b/run.sh")}
    data = write_listing(listing)
    assert data == b'{"files":{"a":{"link":"b/run.sh"},"b/run.sh":{"blob":"%s","mode":493,"size":0}}}' % EMPTY.encode()
    assert read_listing(data) == listing


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "../x", "a/../x", "a/..", "./a", "a//b", "a/", "a/./b", "x\0y", "n" * 256, "d/" * 2100 + "f"],
)
def test_a_path_that_is_not_plainly_below_the_folder_is_refused(path: str) -> None:
    with pytest.raises(ListingInvalid):
        read_listing(encoded({path: empty()}))


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "../..", "../../x", "", "a/../../x", "x/..", "x//y", "./x", "x/", "x\0"])
def test_a_link_that_could_lead_out_is_refused(target: str) -> None:
    with pytest.raises(ListingInvalid):
        read_listing(encoded({"link": {"link": target}}))


@pytest.mark.parametrize("target", ["x", "x/y", "../x", "../../x", ".", ".."])
def test_a_link_inside_is_kept(target: str) -> None:
    assert read_listing(encoded({"a/b/link": {"link": target}})) == {"a/b/link": Link(target=target)}


@pytest.mark.parametrize("above", [empty(), {"link": "elsewhere"}])
def test_nothing_may_lie_below_a_file_or_a_link(above: object) -> None:
    with pytest.raises(ListingInvalid):
        read_listing(encoded({"a": above, "a/b": empty()}))
    with pytest.raises(ListingInvalid):
        read_listing(encoded({"a/b/c": empty(), "a": above}))


@pytest.mark.parametrize(
    "entry",
    [{"blob": EMPTY, "size": 0}, {"blob": "../x", "size": 0, "mode": 420}, {"blob": EMPTY, "size": -1, "mode": 420}, empty(0o4755),
     {"blob": EMPTY, "size": True, "mode": 420}, {"link": 3}, {"link": "x", "mode": 420}, 7, None, []],
)  # fmt: skip
def test_a_malformed_entry_is_refused(entry: object) -> None:
    with pytest.raises(ListingInvalid):
        read_listing(encoded({"a": entry}))


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"files": []}', b'{"files": {}, "more": 1}'])
def test_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(ListingInvalid):
        read_listing(data)


def test_a_path_named_twice_is_refused() -> None:
    with pytest.raises(ContentInvalid):
        read_listing(b'{"files": {"a": {"link": "b"}, "a": {"link": "c"}}}')


names = st.text(alphabet="ab.", min_size=0, max_size=3)
paths = st.lists(names, min_size=0, max_size=4).map("/".join)


@given(st.dictionaries(paths, paths | st.none(), max_size=6))
async def test_whatever_is_accepted_stays_inside_even_through_its_links(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, str | None]
) -> None:
    folder = tmp_path_factory.mktemp("property")
    listing = {path: File(blob=EMPTY, size=0) if target is None else Link(target=target) for path, target in tree.items()}
    (folder / "empty").write_bytes(b"")

    async def fetch(_: str) -> Path:
        return folder / "empty"

    try:
        await lay_out(listing, fetch, folder / "inside" / "out")
    except ListingInvalid:
        return
    root = (folder / "inside" / "out").resolve()
    assert {entry.name for entry in folder.iterdir()} == {"empty", "inside"}
    assert [entry.name for entry in (folder / "inside").iterdir()] == ["out"]
    for path in listing:
        try:
            resolved = (root / path).resolve(strict=False)
        except (RuntimeError, OSError):
            continue  # links in a ring lead nowhere
        assert resolved.is_relative_to(root)
    assert listing_of(root) == listing


async def test_a_bundle_is_laid_out_with_modes_links_and_shared_bytes(store: FolderStore, tmp_path: Path) -> None:
    script, text = await store.put(b"#!/bin/sh\n"), await store.put(b"words")
    listing: Listing = {
        "bin/go": File(blob=script, size=10, mode=0o755),
        "deep/er/text": File(blob=text, size=5),
        "deep/link": Link(target="er/text"),
    }
    old = os.umask(0o077)
    try:
        assert await lay_out(listing, store.path, tmp_path / "out")
    finally:
        os.umask(old)
    out = tmp_path / "out"
    assert (out / "bin/go").stat().st_mode & 0o7777 == 0o755
    assert (out / "deep/link").read_bytes() == b"words"
    assert (out / "deep/er/text").samefile(await store.path(text))
    assert not (out / "bin/go").samefile(await store.path(script))
    assert {folder.stat().st_mode & 0o7777 for folder in (out, out / "bin", out / "deep/er")} == {0o755}
    assert listing_of(out) == listing
    assert not await lay_out(listing, store.path, out), "a second time there is nothing to do"


async def test_without_links_every_file_is_a_copy(store: FolderStore, tmp_path: Path) -> None:
    text = await store.put(b"words")
    await lay_out({"a": File(blob=text, size=5)}, store.path, tmp_path / "out", link=False)
    assert not (tmp_path / "out/a").samefile(await store.path(text))
    assert (tmp_path / "out/a").read_bytes() == b"words"


async def test_a_missing_blob_leaves_nothing(store: FolderStore, tmp_path: Path) -> None:
    text = await store.put(b"words")
    listing: Listing = {"a": File(blob=text, size=5), "b": File(blob="0" * 64, size=5)}
    with pytest.raises(BlobNotFound):
        await lay_out(listing, store.path, tmp_path / "place" / "out")
    assert list((tmp_path / "place").iterdir()) == []


async def test_bytes_that_changed_are_refused(tmp_path: Path) -> None:
    lie = tmp_path / "lie"
    lie.write_bytes(b"other")

    async def fetch(_: str) -> Path:
        return lie

    for size in (5, 4, 6):
        with pytest.raises(DigestMismatch):
            await lay_out({"a": File(blob=EMPTY, size=size)}, fetch, tmp_path / "out", link=False)


async def test_a_blob_is_never_read_through_a_link_that_someone_put_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"")
    (tmp_path / "blob").symlink_to("secret")

    async def fetch(_: str) -> Path:
        return tmp_path / "blob"

    with pytest.raises(OSError, match="symbolic links"):
        await lay_out({"a": File(blob=EMPTY, size=0)}, fetch, tmp_path / "out", link=False)
    assert not (tmp_path / "out").exists()


async def test_concurrent_callers_make_one_folder(store: FolderStore, tmp_path: Path) -> None:
    text = await store.put(b"words")
    listing: Listing = {f"d{number}/f": File(blob=text, size=5) for number in range(30)}
    made = await asyncio.gather(*(lay_out(listing, store.path, tmp_path / "place" / "out") for _ in range(5)))
    assert sum(made) == 1
    assert [entry.name for entry in (tmp_path / "place").iterdir()] == ["out"]
    assert listing_of(tmp_path / "place" / "out") == listing


def test_a_folder_with_a_pipe_or_a_link_that_leads_out_has_no_listing(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(ListingInvalid):
        listing_of(tmp_path)
    (tmp_path / "out").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ListingInvalid):
        listing_of(tmp_path)
