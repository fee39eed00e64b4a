"""A Computer's authority and what its programs trust: on the host alone, renewed in time, in no layer and no disk [X1]."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from helmr.host.hostd.bundlelayer import BUNDLE_BYTES
from helmr.host.hostd.trust import KEY_FILE, Trust
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.egress.authority import DAYS, RENEW_DAYS, Authority
from helmr.protocol.egress import AUTHORITY, BUNDLE

MARK = b"-----BEGIN CERTIFICATE-----\nof the image\n-----END CERTIFICATE-----\n"


class Clock:
    def __init__(self) -> None:
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


def days(certificate: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    found = x509.load_pem_x509_certificate(certificate)
    return found.not_valid_before_utc, found.not_valid_after_utc


def test_the_key_is_for_hostd_alone_and_outlives_it(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    first = Authority(path, "c")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and b"PRIVATE KEY" in path.read_bytes()
    assert b"PRIVATE KEY" not in first.certificate
    assert Authority(path, "c").certificate == first.certificate
    assert [entry.name for entry in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("left", [b"", b"-----BEGIN PRIVATE KEY-----\n", b"garbage"])
def test_a_file_that_a_crash_has_left_broken_is_made_anew(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / KEY_FILE
    path.write_bytes(left)
    made = Authority(path, "c")
    assert Authority(path, "c").certificate == made.certificate


def test_the_certificate_is_bounded_and_renewed_under_the_same_key_before_it_ends(tmp_path: Path) -> None:
    clock, renewed = Clock(), list[bytes]()
    made = Authority(tmp_path / KEY_FILE, "c", clock=clock)
    made.on_renewed = lambda: renewed.append(made.certificate)
    first = made.certificate
    assert days(first)[1] - clock.now == datetime.timedelta(days=DAYS) and days(first)[0] < clock.now
    clock.now += datetime.timedelta(days=DAYS - RENEW_DAYS - 1)
    made.context("api.test")
    assert not renewed
    clock.now += datetime.timedelta(days=2)
    made.context("api.test")
    assert renewed == [made.certificate] and made.certificate != first
    keys = [x509.load_pem_x509_certificate(found).public_key() for found in (first, made.certificate)]
    assert keys[0] == keys[1]
    assert Authority(tmp_path / KEY_FILE, "c", clock=clock).certificate == made.certificate


def test_certificates_of_hosts_are_kept_and_follow_each_other(tmp_path: Path) -> None:
    clock = Clock()
    made = Authority(tmp_path / KEY_FILE, "c", clock=clock)
    first = made.context("api.test")
    assert made.context("api.test") is first and made.context("other.test") is not first
    clock.now += datetime.timedelta(days=8)
    assert made.context("api.test") is not first
    for number in range(200):
        made.context(f"h{number}.test")
    assert len(made._contexts) <= 64


def computer(folder: Path, *, layers: tuple[str, ...] = (), **variables: str) -> ComputerSpec:
    (folder / "disk/upper").mkdir(parents=True)
    return ComputerSpec(
        computer="c", environment="e", folder=str(folder), host_base=False, layers=layers, variables=variables, protected_origins=("x",)
    )


def layer(folder: Path, path: str, text: bytes) -> str:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(text)
    return str(folder)


@pytest.mark.parametrize("path", ["etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem", "etc/pki/tls/certs/ca-bundle.crt"])
def test_the_bundle_is_the_authority_and_what_the_image_trusts(tmp_path: Path, path: str) -> None:
    below = layer(tmp_path / "layer", path, MARK)
    spec = computer(tmp_path / "c", layers=(below,))
    found = Trust(tmp_path / "c", "c", None)
    found.prepare(spec)
    assert (spec.trust / BUNDLE).read_bytes() == found.authority.certificate + MARK
    assert (spec.trust / AUTHORITY).read_bytes() == found.authority.certificate
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o644 for entry in spec.trust.iterdir()) and KEY_FILE not in os.listdir(spec.trust)
    assert list((tmp_path / "c/disk/upper").rglob("*")) == [] and Path(below, path).read_bytes() == MARK


def test_what_a_computer_changed_in_its_bundle_counts_from_its_next_start(tmp_path: Path) -> None:
    spec = computer(tmp_path / "c", layers=(layer(tmp_path / "layer", "etc/ssl/certs/ca-certificates.crt", b"old " + MARK),))
    layer(tmp_path / "c/disk/upper", "etc/ssl/certs/ca-certificates.crt", b"new " + MARK)
    found = Trust(tmp_path / "c", "c", None)
    found.prepare(spec)
    assert (spec.trust / BUNDLE).read_bytes() == found.authority.certificate + b"new " + MARK


def test_a_bundle_that_the_image_names_is_taken_first(tmp_path: Path) -> None:
    below = layer(tmp_path / "layer", "etc/ssl/certs/ca-certificates.crt", MARK)
    layer(tmp_path / "layer", "opt/own.pem", b"own " + MARK)
    spec = computer(tmp_path / "c", layers=(below,), SSL_CERT_FILE="/opt/own.pem")
    Trust(tmp_path / "c", "c", None).prepare(spec)
    assert b"own " in (spec.trust / BUNDLE).read_bytes()


@pytest.mark.parametrize("trick", ["link out", "pipe", "ring", "huge", "folder", "text"])
def test_nothing_that_a_guest_leaves_there_leads_the_host_astray(tmp_path: Path, trick: str) -> None:
    """The operator's store stands in for a bundle that is none."""
    store = tmp_path / "store.pem"
    store.write_bytes(MARK)
    (tmp_path / "secret").write_bytes(b"-----BEGIN CERTIFICATE-----\nof the host\n")
    spec = computer(tmp_path / "c")
    place = tmp_path / "c/disk/upper/etc/ssl/certs/ca-certificates.crt"
    place.parent.mkdir(parents=True)
    if trick == "link out":
        place.symlink_to(tmp_path / "secret")
        (tmp_path / "c/disk/upper/etc/pki").symlink_to("../../../../../../" + str(tmp_path))
    elif trick == "pipe":
        os.mkfifo(place)
    elif trick == "ring":
        place.symlink_to(place.name)
    elif trick == "huge":
        place.write_bytes(MARK)
        os.truncate(place, BUNDLE_BYTES + 1)
    elif trick == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"hello")
    found = Trust(tmp_path / "c", "c", store)
    found.prepare(spec)
    assert (spec.trust / BUNDLE).read_bytes() == found.authority.certificate + MARK


def test_a_renewed_certificate_reaches_what_runs(tmp_path: Path) -> None:
    spec = computer(tmp_path / "c", layers=(layer(tmp_path / "layer", "etc/ssl/cert.pem", MARK),))
    found = Trust(tmp_path / "c", "c", None)
    found.prepare(spec)
    before = found.authority.certificate
    later = Clock()
    later.now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=DAYS - 1)
    found.authority._clock = later
    found.authority.context("api.test")
    assert (spec.trust / BUNDLE).read_bytes() == found.authority.certificate + MARK != before + MARK
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=found.authority.certificate.decode())


def own_layer(folder: Path, **changes: Any) -> ComputerSpec:
    spec = replace(computer(folder), own_bundle=True, **changes)
    spec.bundle_layer.mkdir()
    return spec


def test_the_images_bundle_gets_the_authority_in_a_layer_that_looks_like_the_image(tmp_path: Path) -> None:
    below = layer(tmp_path / "layer", "etc/ssl/certs/ca-certificates.crt", MARK)
    layer(tmp_path / "layer", "usr/local/share/ca-certificates/.keep", b"")
    (tmp_path / "layer/etc/ssl").chmod(0o751)
    spec = own_layer(tmp_path / "c", layers=(below,))
    found = Trust(tmp_path / "c", "c", None)
    found.prepare(spec)
    shown = spec.bundle_layer / "etc/ssl/certs/ca-certificates.crt"
    assert shown.read_bytes() == found.authority.certificate + MARK
    assert (spec.bundle_layer / "usr/local/share/ca-certificates/helmr-egress.crt").read_bytes() == found.authority.certificate
    assert (spec.bundle_layer / "etc/ssl").stat().st_mode & 0o777 == 0o751
    assert Path(below, "etc/ssl/certs/ca-certificates.crt").read_bytes() == MARK and spec.lowers == (below, str(spec.bundle_layer))


def test_a_run_without_the_secret_shows_the_bundle_as_it_was_in_the_same_files(tmp_path: Path) -> None:
    """An overlay remembers the files of its layers."""
    spec = own_layer(tmp_path / "c", layers=(layer(tmp_path / "layer", "etc/ssl/certs/ca-certificates.crt", MARK),))
    found = Trust(tmp_path / "c", "c", None)
    found.prepare(spec)
    shown = spec.bundle_layer / "etc/ssl/certs/ca-certificates.crt"
    before = [entry.stat().st_ino for entry in sorted(spec.bundle_layer.rglob("*"))]
    found.settle(replace(spec, protected_origins=()))
    assert shown.read_bytes() == MARK
    assert [entry.stat().st_ino for entry in sorted(spec.bundle_layer.rglob("*"))] == before


def test_links_of_the_image_stay_links(tmp_path: Path) -> None:
    """As Alpine's and Fedora's: the layer holds the file that they lead to."""
    below = layer(tmp_path / "layer", "etc/pki/real/bundle.pem", MARK)
    (tmp_path / "layer/etc/ssl").mkdir()
    (tmp_path / "layer/etc/ssl/certs").symlink_to("../pki/real")
    (tmp_path / "layer/etc/pki/real/ca-certificates.crt").symlink_to("/etc/pki/real/bundle.pem")
    spec = own_layer(tmp_path / "c", layers=(below,))
    Trust(tmp_path / "c", "c", None).prepare(spec)
    files = [str(path.relative_to(spec.bundle_layer)) for path in spec.bundle_layer.rglob("*") if not path.is_dir()]
    assert files == ["etc/pki/real/bundle.pem"]


def test_an_image_without_certificates_gets_none_of_its_own(tmp_path: Path) -> None:
    spec = own_layer(tmp_path / "c", layers=(layer(tmp_path / "layer", "etc/hosts", b""),))
    Trust(tmp_path / "c", "c", None).prepare(spec)
    assert list(spec.bundle_layer.iterdir()) == []
