"""CIFAR-10 for studies of images: all 60,000 images where they are on this machine, else two fifths of them."""

from __future__ import annotations

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.images import CIFAR_FULL_FILE
from grandrounds.data.store import search_folders

FULL, PART = "cifar-10-full", "cifar-10"


def find_photos() -> str:
    """Return the set of the catalog to use; a run checks the file's content."""
    try:
        held = any((folder / CIFAR_FULL_FILE.path).is_file() for folder in search_folders())
    except BadInput:  # GRANDROUNDS_DATA names no folder: a run says so
        return PART
    return FULL if held else PART


CIFAR = find_photos()
TRAINED, TESTED = (50_000, 10_000) if CIFAR == FULL else (20_000, 4_000)
"""Images to train on and to test on."""
