"""Blobs: bytes named by their SHA-256, and the listings that make folders of them; objects by name; saves (`objects.saves`).
Imports `protocol` only."""

from helmr.objects.addresses import open_objects
from helmr.objects.folder import FolderStore
from helmr.objects.folderobjects import FolderObjects
from helmr.objects.listing import File, Link, Listing, lay_out, listing_of, read_listing, write_listing
from helmr.objects.objectstore import ObjectStore, StoredObject
from helmr.objects.store import BlobStore, is_digest

__all__ = [
    "BlobStore",
    "File",
    "FolderObjects",
    "FolderStore",
    "Link",
    "Listing",
    "ObjectStore",
    "StoredObject",
    "is_digest",
    "lay_out",
    "listing_of",
    "open_objects",
    "read_listing",
    "write_listing",
]
