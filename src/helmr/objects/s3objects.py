"""An object store in a bucket of S3, or of what speaks its protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from obstore.exceptions import BaseError
from obstore.store import S3Store

from helmr.objects.objectstore import StoredObject, check_name
from helmr.protocol.errors import InvalidValue, ObjectNotFound, ObjectStoreUnusable
from helmr.protocol.limits import MIB

if TYPE_CHECKING:
    from obstore.store import ClientConfig

PART_BYTES: Final = 8 * MIB
"""Larger files go up in parts of this; S3 shows the object only when all are there, and nothing of an upload that was broken off."""
CONCURRENT_PARTS: Final = 4


class S3Objects:
    """Objects below `prefix` of a bucket. Region, credentials and endpoint come from the usual `AWS_*` variables."""

    def __init__(self, bucket: str, prefix: str = "", *, variables: Mapping[str, str] | None = None) -> None:
        """`variables` in place of this process's own. Raises `ObjectStoreUnusable`."""
        given = os.environ if variables is None else variables
        config: dict[str, Any] = {name.lower(): given[name] for name in _VARIABLES if given.get(name)}
        options: ClientConfig = {"allow_http": config.get("aws_endpoint_url", "").startswith("http://")}
        try:
            self._store = S3Store(bucket, prefix=prefix.strip("/") or None, client_options=options, **config)
        except BaseError as error:
            raise ObjectStoreUnusable(f"The bucket {bucket} can't be used: {_reason(error)}") from error

    async def put(self, name: str, data: Path | bytes) -> None:
        check_name(name)
        try:
            await self._store.put_async(name, data, use_multipart=None, chunk_size=PART_BYTES, max_concurrency=CONCURRENT_PARTS)
        except BaseError as error:
            raise OSError(f"The object {name} could not be stored: {_reason(error)}") from error

    async def get(self, name: str) -> BinaryIO:
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
        try:
            await self._copy(name, file)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    async def fetch(self, name: str, target: Path) -> int:
        draft = target.with_name(f".draft-{secrets.token_hex(16)}")
        try:
            with draft.open("xb") as file:
                size = await self._copy(name, file)
            draft.replace(target)
            return size
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    async def delete(self, name: str) -> None:
        check_name(name)
        try:
            await self._store.delete_async(name)
        except FileNotFoundError:
            return
        except BaseError as error:
            raise OSError(f"The object {name} could not be deleted: {_reason(error)}") from error

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        if prefix and not prefix.endswith("/"):
            raise InvalidValue("A prefix of objects ends with a slash.")
        try:
            async for page in self._store.list(prefix or None):  # pyright: ignore[reportUnknownMemberType] - of arrow, which is not asked for
                for found in page:
                    yield StoredObject(name=found["path"], size=found["size"], stored_at=found["last_modified"])
        except BaseError as error:
            raise OSError(f"The objects below {prefix or '/'} could not be listed: {_reason(error)}") from error

    async def _copy(self, name: str, file: BinaryIO) -> int:
        check_name(name)
        size = 0
        try:
            found = await self._store.get_async(name)
            async for part in found.stream(min_chunk_size=MIB):
                size += await asyncio.to_thread(file.write, bytes(part))
        except FileNotFoundError:
            raise ObjectNotFound(object=name) from None
        except BaseError as error:
            raise OSError(f"The object {name} could not be read: {_reason(error)}") from error
        if size != found.meta["size"]:
            raise OSError(f"The object {name} came with {size} bytes of {found.meta['size']}.")
        return size


def _reason(error: BaseError) -> str:
    """What went wrong, without the library's own view of it; and what to do if the bucket is somewhere else."""
    text = str(error).partition("\n\nDebug source")[0]
    if "redirect" in text.lower():
        # It can't be followed: what is signed is signed for one host.
        text += ". The bucket is in another region, or at another endpoint: set AWS_REGION or AWS_ENDPOINT_URL to its own"
    return text


_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)
