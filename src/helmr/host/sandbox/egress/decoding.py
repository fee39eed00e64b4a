"""Bodies that an origin compressed though it was asked not to: opened piece by piece, so that what is in them can be seen [X1]."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

PIECE_BYTES: Final = 1 << 16
"""The most that one piece brings out at once, however small it was."""


class UnknownCoding(Exception):
    """A coding that can't be opened here; the text is its name."""


class Decoder(Protocol):
    """Raises `ValueError` for what is not in its coding."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...
    def finish(self) -> Iterator[bytes]: ...


class Identity:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> Iterator[bytes]:
        return iter(())


class Inflate:
    """gzip (several members, too) and deflate, with the frame of zlib or, as some write it, without."""

    def __init__(self, *, gzip: bool) -> None:
        self._bits = 31 if gzip else 15
        self._gzip = gzip
        self._inflate = zlib.decompressobj(self._bits)
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self._begun and data:
            self._begun = True
            if not self._gzip and data[0] & 0x0F != 8:
                self._inflate = zlib.decompressobj(-15)
        while data:
            if self._inflate.eof:
                if not self._gzip:
                    raise ValueError("Something follows the compressed body.")
                self._inflate = zlib.decompressobj(self._bits)
            try:
                out = self._inflate.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise ValueError("The compressed body is broken.") from error
            if out:
                yield out
            data = self._inflate.unconsumed_tail or self._inflate.unused_data

    def finish(self) -> Iterator[bytes]:
        if self._begun and not self._inflate.eof:
            raise ValueError("The compressed body ends too early.")
        return iter(())


def decoder(codings: bytes) -> Decoder:
    """For the value of Content-Encoding. Raises `UnknownCoding`."""
    named = [coding.strip().lower() for coding in codings.split(b",") if coding.strip()]
    named = [coding for coding in named if coding != b"identity"]
    if not named:
        return Identity()
    if len(named) == 1 and named[0] in (b"gzip", b"x-gzip", b"deflate"):
        return Inflate(gzip=named[0] != b"deflate")
    raise UnknownCoding(", ".join(coding.decode("latin-1") for coding in named)[:100])
