"""The certificate authority of one Computer: its programs trust it, and its proxy answers by it for the origins of protected Secrets [X1].

The key never leaves the host: it lies in one file of the Computer's folder beside its disk, readable for hostd's user alone, and is in no
save, layer or mount. It stays the same for a Computer's life on a host; the certificate is renewed before it ends.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from helmr.host.sandbox.egress.tls import one_protocol

DAYS: Final = 90
"""How long a certificate of the authority is valid."""
RENEW_DAYS: Final = 30
"""When so much is left of it, another follows."""
LEAF_DAYS: Final = 7
LEAF_RENEW_DAYS: Final = 1
EARLIER: Final = datetime.timedelta(days=1)
"""Certificates begin in the past: the clock of a guest that was asleep may be behind for a moment."""
CONTEXTS: Final = 64
"""Hosts whose certificates are kept ready."""

Clock = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Authority:
    """Made with its key when `path` holds none that can be used. Raises `OSError` when it can't be written."""

    def __init__(self, path: Path, name: str, *, clock: Clock = utc_now) -> None:
        self._path, self._name, self._clock = path, name, clock
        self.on_renewed: Callable[[], None] = lambda: None
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[datetime.datetime, ssl.SSLContext]] = OrderedDict()
        found = _read(path)
        self._key = ec.generate_private_key(ec.SECP256R1()) if found is None else found[0]
        if found is None:
            self._certificate = self._issue()
        else:
            self._certificate = found[1]
            self.renew()

    @property
    def certificate(self) -> bytes:
        """In PEM: what programs inside are to trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def renew(self) -> bool:
        """Issue the next certificate if it is time to; whether it was. What trusts the last one trusts this one's leaves till it ends."""
        if self._clock() < self._certificate.not_valid_after_utc - datetime.timedelta(days=RENEW_DAYS):
            return False
        self._certificate = self._issue()
        self._contexts.clear()
        self.on_renewed()
        return True

    def context(self, host: str) -> ssl.SSLContext:
        """How to answer in the place of `host`: with a certificate for it, to clients that ask for it by that name alone."""
        self.renew()
        now = self._clock()
        known = self._contexts.get(host)
        if known is None or now >= known[0]:
            until, context = self._context(host, now)
            self._contexts[host] = known = (until - datetime.timedelta(days=LEAF_RENEW_DAYS), context)
            while len(self._contexts) > CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(host)
        return known[1]

    def _issue(self) -> x509.Certificate:
        now, public = self._clock(), self._key.public_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Helmr egress of {self._name}"[:64])])
        key_usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            _builder(name, name, public, now - EARLIER, now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(self._path, _pem(self._key) + made.public_bytes(serialization.Encoding.PEM))
        return made

    def _context(self, host: str, now: datetime.datetime) -> tuple[datetime.datetime, ssl.SSLContext]:
        until = min(now + datetime.timedelta(days=LEAF_DAYS), self._certificate.not_valid_after_utc)
        text = self._leaf(host, now, until).public_bytes(serialization.Encoding.PEM) + _pem(self._leaf_key)
        context = one_protocol(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        # Python reads keys from files only; this one is in memory, and nobody else's.
        descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        context.sni_callback = _asks_for(host)
        return until, context

    def _leaf(self, host: str, now: datetime.datetime, until: datetime.datetime) -> x509.Certificate:
        public = self._leaf_key.public_key()
        address = _address(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        name = x509.DNSName(host) if address is None else x509.IPAddress(address)
        return (
            _builder(subject, self._certificate.subject, public, now - EARLIER, until)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: datetime.datetime, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _asks_for(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    address = _address(host)

    def check(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
        # Addresses aren't sent as names: a client that connects to one says none.
        fits = (name is None and address is not None) or (name is not None and name.lower().removesuffix(".") == host)
        return None if fits else ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    return check


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _read(path: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None:
    """What is there; None for nothing, and for what a crash or a disk has left of it."""
    try:
        text = path.read_bytes()
        key, certificate = serialization.load_pem_private_key(text, None), x509.load_pem_x509_certificate(text)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return key, certificate


def _write(path: Path, text: bytes) -> None:
    """Whole or not at all, and for hostd's user alone from its first byte on."""
    draft = path.with_name(f".{path.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
