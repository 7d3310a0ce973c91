"""The files of a run folder that a closing entry names: those that people read, and the models."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput

MODEL, SUMMARY, REPORT = "model.safetensors", "summary.json", "report.html"
ROUND_LOGS, EXPLANATIONS, ENVIRONMENT = "round_logs.json", "explanations.json", "environment.json"
READ = (ROUND_LOGS, EXPLANATIONS, "schema.json", ENVIRONMENT, "percentiles.json", "experiment.toml", REPORT)
"""Files besides models and summary.json that a closing entry names, where the run has them."""
LOCATED = (SUMMARY, "schema.json", ENVIRONMENT, "percentiles.json")
"""JSON files of which a closing entry also has a hash of each top-level value."""
_SHORT, _KEYS = 16, 200
LARGEST = 2**28
"""Bytes of a file that is read to say what was changed in it; any file is hashed."""


@dataclass(frozen=True)
class FinalFiles:
    """The files that a run ends with, for its closing entry.

    Attributes:
        files: SHA-256 of each file's bytes, by its path in the run folder.
        contents: Of JSON files that people read, a short hash of each top-level value, which names what was changed.
        figures: The final figures of all sites together, as summary.json has them.
    """

    files: Mapping[str, str]
    contents: Mapping[str, Mapping[str, str]]
    figures: Mapping[str, float | None]


def hash_final_files(folder: Path, *, models: Iterable[str], summary: bytes) -> FinalFiles:
    """Hash all files that a run ends with, and see to it that they are on the disk.

    Args:
        folder: The run folder, in which everything but summary.json is written.
        models: The model files, by their path in the folder.
        summary: The bytes that summary.json will have.
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
    """Hash each top-level value of a JSON object, in short; nothing of anything else."""
    if not isinstance(content, Mapping) or len(content) > _KEYS:
        return {}
    return {str(name): _short(value) for name, value in content.items()}


def hash_file(path: Path) -> str:
    """Hash a plain file's bytes.

    Raises:
        BadInput: It is not there, is a link, a pipe or a folder, or cannot be read.
    """
    hasher = hashlib.sha256()
    with os.fdopen(_opened(path), "rb") as f:
        try:
            while block := f.read(2**20):
                hasher.update(block)
        except OSError as e:
            raise BadInput(f"cannot be read: {e.strerror or e}", code="cannot-read") from None
    return hasher.hexdigest()


def read_file(path: Path) -> bytes:
    """Read a plain file of at most LARGEST bytes.

    Raises:
        BadInput: It is not there, no plain file, too large, or cannot be read.
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
        raise BadInput("is not there", code="file-not-found") from None
    except OSError as e:
        raise BadInput(f"cannot be read: {e.strerror or e}", code="cannot-read") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput("is no plain file", code="not-a-plain-file")
    return handle


def _synced(path: Path) -> bytes:
    with path.open("rb") as f:
        data = f.read()
        os.fsync(f.fileno())
    return data


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
