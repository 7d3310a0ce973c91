"""An index of comparisons and studies: `rounds compare` leaves comparison.json, `rounds reproduce` results.json.

They are found by looking, as runs are: a request names one by its place below the root, and no path that somebody sent is
opened. The runs that a comparison names are looked up in the run index in the same way.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from grandrounds.capabilities.console.cache import read_checked
from grandrounds.capabilities.console.run_index import DEEPEST, LOOK_SECONDS, NotFound, RunIndex, refuse_file
from grandrounds.core.arrays import plain

COMPARISON, RESULTS = "comparison.json", "results.json"
LARGEST = 32 * 2**20
"""Bytes of such a file that are read."""
Content = dict[str, Any]
"""The JSON of comparison.json or results.json."""


@dataclass(frozen=True)
class ComparisonIndex:
    """Folders by name, at the time of a scan."""

    run_index: RunIndex
    comparisons: dict[str, Path]
    studies: dict[str, Path]

    def comparison(self, name: str) -> Path:
        return _look_up(self.comparisons, name, "comparison")

    def study(self, name: str) -> Path:
        return _look_up(self.studies, name, "study")

    def study_of(self, run: str) -> str | None:
        """Return the study that a run belongs to, by its place: STUDY/runs/NAME; None for another run."""
        parts = run.split("/")
        study = "/".join(parts[:-2])
        return study if len(parts) > 2 and parts[-2] == "runs" and study in self.studies else None

    def read(self, file: Path) -> Content:
        """Read the file of a comparison or study."""
        return read_checked(self.run_index, file.relative_to(self.run_index.root).as_posix(), lambda: _read(file))


_INDEXES: WeakKeyDictionary[RunIndex, tuple[float, ComparisonIndex]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def find_comparisons(run_index: RunIndex) -> ComparisonIndex:
    """Find the comparisons and studies below the root of a run index; a look holds for as long as one at runs does."""
    with _LOCK:
        looked, comparison_index = _INDEXES.get(run_index, (0.0, None))
        if comparison_index is None or time.monotonic() - looked > LOOK_SECONDS:
            comparison_index = ComparisonIndex(run_index, {}, {})
            for name, folder, files in _look(run_index.root, run_index.root, 0):
                if COMPARISON in files:
                    comparison_index.comparisons[name] = folder / COMPARISON
                if RESULTS in files:
                    comparison_index.studies[name] = folder / RESULTS
            _INDEXES[run_index] = (time.monotonic(), comparison_index)
        return comparison_index


def _look(root: Path, folder: Path, depth: int) -> Iterator[tuple[str, Path, set[str]]]:
    """List folders with the names of their files. Links are not followed, and run folders are skipped."""
    try:
        with os.scandir(folder) as entries:
            is_folder_by_name = {e.name: e.is_dir(follow_symlinks=False) for e in entries if not e.is_symlink()}
    except OSError:
        return
    if is_folder_by_name.get("checkpoint"):
        return
    yield (
        folder.relative_to(root).as_posix(),
        folder,
        {name for name, is_folder in is_folder_by_name.items() if not is_folder},
    )
    if depth < DEEPEST:
        for name in sorted(n for n, is_folder in is_folder_by_name.items() if is_folder and n[:1] != "."):
            yield from _look(root, folder / name, depth + 1)


def _look_up(places: dict[str, Path], name: str, kind: str) -> Path:
    if name not in places:
        raise NotFound(f"there is no {kind} '{name[:200]}'", code="unknown-name")
    return places[name]


def _read(file: Path) -> Content:
    refuse_file(file, f"{file.parent.name}/{file.name}", largest=LARGEST)
    content = plain(json.loads(file.read_text()))
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content
