"""Files of a run folder that a closing entry names: those that people read, and the models."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.core import arrays
from grandrounds.core.errors import BadInput

MODEL, SUMMARY, REPORT = "model.safetensors", "summary.json", "report.html"
ROUND_LOGS, EXPLANATIONS, ENVIRONMENT = "round_logs.json", "explanations.json", "environment.json"
READ = (ROUND_LOGS, EXPLANATIONS, "schema.json", ENVIRONMENT, "percentiles.json", "experiment.toml", REPORT)
"""Files besides models and summary.json that a closing entry names, if the run has them."""
LOCATED = (SUMMARY, "schema.json", ENVIRONMENT, "percentiles.json")
"""JSON files for which a closing entry also has a hash of each top-level value."""
_SHORT, _KEYS = 16, 200
LARGEST = 2**28
"""Largest file, in bytes, that is parsed to find a change; files that a run can read (`core.arrays.LARGEST`) are hashed."""


@dataclass(frozen=True)
class FinalFiles:
    """Files at the end of a run, for its closing entry.

    Attributes:
        files: SHA-256 of each file, by its path in the run folder.
        contents: For JSON files that people read, a short hash of each top-level value, to name a change.
        figures: Final metrics of all sites together, as in summary.json.
    """

    files: Mapping[str, str]
    contents: Mapping[str, Mapping[str, str]]
    figures: Mapping[str, float | None]


def hash_final_files(folder: Path, *, models: Iterable[str], summary: bytes) -> FinalFiles:
    """Hash all files at the end of a run, and flush them to disk.

    Args:
        folder: The run folder, in which everything except summary.json is written.
        models: Model files, by their path in the folder.
        summary: The future content of summary.json.

    Returns:
        The hashes.
    """
    files, contents = {SUMMARY: hashlib.sha256(summary).hexdigest()}, {SUMMARY: hash_values(json.loads(summary))}
    for name in (*models, *READ):
        path = folder / name
        if path.is_file():
            data = _synced(path)
            files[name] = hashlib.sha256(data).hexdigest()
            if name in LOCATED:
                contents[name] = hash_values(json.loads(data))
    final = json.loads(summary)["final"]
    figures = {name: value for name, value in final.items() if value is None or type(value) in (int, float)}
    return FinalFiles(files, contents, figures)


def hash_values(content: Any) -> dict[str, str]:
    """Compute a short hash of each top-level value of a JSON object; empty for any other value."""
    if not isinstance(content, Mapping) or len(content) > _KEYS:
        return {}
    return {str(name): _short(value) for name, value in content.items()}


def hash_file(path: Path) -> str:
    """Hash a plain file.

    Raises:
        BadInput: It does not exist, is a link, a pipe or a folder, is too large, or cannot be read.
    """
    hasher = hashlib.sha256()
    with os.fdopen(_opened(path), "rb") as f:
        if os.fstat(f.fileno()).st_size > arrays.LARGEST:
            raise BadInput(f"is larger than {arrays.LARGEST // 2**30} GB", code="file-too-large")
        try:
            while block := f.read(2**20):
                hasher.update(block)
        except OSError as e:
            raise BadInput(f"cannot be read: {e.strerror or e}", code="cannot-read") from None
    return hasher.hexdigest()


def read_file(path: Path) -> bytes:
    """Read a plain file of at most LARGEST bytes.

    Raises:
        BadInput: It does not exist, is not a plain file, is too large, or cannot be read.
    """
    with os.fdopen(_opened(path), "rb") as f:
        try:
            data = f.read(LARGEST + 1)
        except OSError as e:
            raise BadInput(f"cannot be read: {e.strerror or e}", code="cannot-read") from None
    if len(data) > LARGEST:
        raise BadInput(f"is larger than {LARGEST // 2**20} MB", code="file-too-large")
    return data


def _opened(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadInput("does not exist", code="file-not-found") from None
    except OSError as e:
        raise BadInput(f"cannot be read: {e.strerror or e}", code="cannot-read") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput("is not a plain file", code="not-a-plain-file")
    return handle


def _synced(path: Path) -> bytes:
    with path.open("rb") as f:
        data = f.read()
        os.fsync(f.fileno())
    return data


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
