"""CIFAR-10 for studies of images: all 60,000 images where they are on this machine, else two fifths of them.

The set is part of a run's plan, so readings of one set are never taken for those of the other. The variable
GRANDROUNDS_CIFAR = "cifar-10" or "cifar-10-full" chooses the set; pages are built from readings of two fifths.
"""

from __future__ import annotations

import os

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.images import CIFAR_FULL_FILE
from grandrounds.data.store import search_folders

FULL, PART = "cifar-10-full", "cifar-10"
VARIABLE = "GRANDROUNDS_CIFAR"


def find_photos() -> str:
    """Return the set of the catalog to use; a run checks the file's content."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        if chosen not in (FULL, PART):
            raise BadInput(f"{VARIABLE} is '{chosen}': set it to '{PART}' or '{FULL}'")
        return chosen
    try:
        held = any((folder / CIFAR_FULL_FILE.path).is_file() for folder in search_folders())
    except BadInput:  # GRANDROUNDS_DATA names no folder: a run says so
        return PART
    return FULL if held else PART


CIFAR = find_photos()
TRAINED, TESTED = (50_000, 10_000) if CIFAR == FULL else (20_000, 4_000)
"""Images to train on and to test on."""
