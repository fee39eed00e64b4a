"""Saves of Computers' files: trees as encrypted, content-addressed packs and manifests [C5]. How they are made and kept: ADR 7."""

from helmr.objects.saves.collection import StoredPack, Writing, plan_collection
from helmr.objects.saves.keys import SaveKeys
from helmr.objects.saves.manifest import Pack, PackedManifest, header_length, packs_in, packs_of, referenced
from helmr.objects.saves.owners import IdRange
from helmr.objects.saves.restoring import RestoreReport, restore_tree
from helmr.objects.saves.saving import Previous, SaveReport, Saving, save_tree
from helmr.objects.saves.spool import Spool

__all__ = [
    "IdRange",
    "Pack",
    "PackedManifest",
    "Previous",
    "RestoreReport",
    "SaveKeys",
    "SaveReport",
    "Saving",
    "Spool",
    "StoredPack",
    "Writing",
    "header_length",
    "packs_in",
    "packs_of",
    "plan_collection",
    "referenced",
    "restore_tree",
    "save_tree",
]
