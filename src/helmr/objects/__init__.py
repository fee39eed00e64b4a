"""Blobs: bytes named by their SHA-256, and the listings that make folders of them. Imports `protocol` only."""

from helmr.objects.folder import FolderStore
from helmr.objects.listing import File, Link, Listing, lay_out, listing_of, read_listing, write_listing
from helmr.objects.store import BlobStore, is_digest

__all__ = ["BlobStore", "File", "FolderStore", "Link", "Listing", "is_digest", "lay_out", "listing_of", "read_listing", "write_listing"]
