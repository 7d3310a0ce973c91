"""Values that a case leaves behind, as JSON by name: files of its folder, and what its commands printed.

Values that differ between two runs of one commit are masked by name: durations, memory, dates, and ids that are drawn.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
import sqlite3
import stat
import struct
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

MASKED_KEYS = frozenset({
    "seconds", "cpu_seconds", "round_seconds", "peak_memory", "children_peak_memory", "memory_share", "cpu_share", "journal",
    "root", "signature", "witnesses", "digest",
})  # fmt: skip
IN_A_WATCH = frozenset({"previous", "state", "time", "since_time", "timeline", "seen", "timeline.time"})
"""Keys of a watch's ledger and state that follow from the time of a check."""
QUOTES_HASHES = ("dossier", "ledger.jsonl", "proof.json")
"""Folders and files that quote hashes of files with times in them."""
IN_THESE = frozenset({"cpu", "peak", "cost", "path", "hashes"})
"""Keys of such files that follow from the seconds and the memory of a run."""
HASH = re.compile(r"\b[0-9a-f]{16,}\b")
"""Keys of JSON whose value differs between two runs of one commit: times, memory, and what signs a file with times in it."""

MASKED_TEXT = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\b20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z| UTC|[+-]\d\d:?\d\d)?)?", "DATE"),
        (r"\b\d\d? (?:January|February|March|April|May|June|July|August|September|October|November|December) 20\d\d\b", "DATE"),
        (r"\b\d\d:\d\d:\d\d\b", "CLOCK"),
        (r"\b\d[\d,.]*\s?(?:ms|s|seconds?|min|minutes?|CPU s|CPU seconds)\b", "TIME"),
        (r"\b\d[\d,.]* (?:MB|GB|MiB|GiB) of memory\b", "MEMORY"),
        (r"\(\d+% of the cores\); at most \d+ [KMG]B in memory \([\d.]+% of the machine's\)", "MEMORY"),
        (r"\b1[78]\d{8}\b", "EPOCH"),
        (r"\broot [0-9a-f]{8,}", "root #"),
        (r"(SHA-256|signatures: sha256) [0-9a-f]{8,}", r"\1 #"),
        (r"\b(summary\.json|round_logs\.json|report\.html|attacks\.json) [0-9a-f]{8,}", r"\1 #"),
    )
)  # fmt: skip
TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
BINARY = frozenset(
    {".png", ".pdf", ".pptx", ".onnx", ".parquet", ".npz", ".db", ".pub", ".key", ".gz", ".zip", ".lock"}
)
"""Files of which only the name is kept, like locks and the stamps of runs that were made here."""


def read_folder(folder: Path, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Read every file below a folder, masked.

    Args:
        folder: The folder of a case.
        without: Files that the case was given, by their path.

    Returns:
        Values by path; files of sites are one value, and `files` lists all of them with their modes.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and str(p.relative_to(folder)) not in without)
    out: dict[str, Any] = {"files": [f"{_mode(p)} {p.relative_to(folder)}" for p in files]}
    for path in files:
        name = str(path.relative_to(folder))
        value = read_file(path)
        if value is None or (path.suffix == ".html" and (path.parent / "comparison.json").exists()):
            continue  # a comparison's page has seconds in its tables
        if "at_sites" in path.relative_to(folder).parts:
            before, _, within = name.partition("at_sites/")
            out.setdefault(f"{before}at_sites", {})[within] = value
        else:
            out[name] = value
    return out


def read_file(path: Path) -> Any:
    """Read a file as a masked JSON value; None for one of which the name is all that is kept."""
    further = IN_A_WATCH if "watch" in path.parts[:-1] else frozenset()
    if path.suffix == ".safetensors":
        return without_keys(_read_arrays(path), further)
    if path.name == "ledger.db":
        return without_keys(_read_ledger(path), further)
    if path.suffix in BINARY or path.name in ("lock", "made-here"):
        return None
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return None
    if path.name == "environment.json":
        return sorted(json.loads(text))
    quotes = any(name in path.parts for name in QUOTES_HASHES)
    if path.suffix in (".json", ".jsonl"):
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        values = [masked(json.loads(line)) for line in lines]
        values = [without_keys(value, IN_THESE, hashes=True) for value in values] if quotes else values
        return values if path.suffix == ".jsonl" else values[0]
    text = HASH.sub("#", text) if quotes else text
    return masked_text(page_text(text) if path.suffix in (".html", ".svg") else text)


def page_text(page: str) -> str:
    """The words of a page: no tags, scripts and styles; white space is folded."""
    return " ".join(html.unescape(TAGS.sub(" ", page)).split())


def masked(value: Any, key: str = "") -> Any:
    """Mask what differs between two runs of one commit."""
    if key in MASKED_KEYS:
        return "~"
    if isinstance(value, Mapping):
        return {str(k): masked(v, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [masked(v, key) for v in value]
    if isinstance(value, str):
        return masked_string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def without_keys(value: Any, keys: frozenset[str], *, hashes: bool = False) -> Any:
    """The value without some keys, at every depth; with `hashes`, hashes in its texts are masked too."""
    if isinstance(value, Mapping):
        return {k: without_keys(v, keys, hashes=hashes) for k, v in value.items() if k not in keys}
    if isinstance(value, list):
        return [without_keys(v, keys, hashes=hashes) for v in value]
    return HASH.sub("#", value) if hashes and isinstance(value, str) else value


def masked_string(text: str) -> Any:
    """Mask a text, or the values in it where it is JSON."""
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return masked(json.loads(text))
    return masked_text(text)


def masked_text(text: str) -> str:
    """Mask dates, clocks, durations and memory in a text."""
    for pattern, mask in MASKED_TEXT:
        text = pattern.sub(mask, text)
    return text


def _mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.lstat().st_mode))[2:]


def _read_arrays(path: Path) -> dict[str, Any]:
    """Arrays of a safetensors file as lists of numbers, with its metadata."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    out: dict[str, Any] = {"__metadata__": masked(header.pop("__metadata__", {}))}
    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1", "BOOL": "?"}
    for name, entry in header.items():
        if name.endswith(("witness/root", ".time")):  # a root of hashes of files with times in them, or a time
            continue
        start, end = entry["data_offsets"]
        raw = data[8 + size + start : 8 + size + end]
        numpy_type = types.get(entry["dtype"])
        values = list(raw) if numpy_type is None else np.frombuffer(raw, numpy_type).tolist()
        out[name] = {"type": entry["dtype"], "shape": entry["shape"], "values": masked(values)}
    return out


def _read_ledger(path: Path) -> list[Any]:
    """Entries of a ledger. The last one holds hashes of files with times in them: its list of files is left out."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        bodies = [json.loads(body) for (body,) in database.execute("SELECT body FROM entries ORDER BY number")]
    for before, body in zip([{}, *bodies], bodies, strict=False):
        if body.get("kind") == "close":
            body.pop("files", None)
            body.pop("contents", None)
        if (
            before.get("kind") == "close" or "repeats" in bodies[0]
        ):  # it follows from hashes of files with times in them
            body.pop("previous")
    return [masked(body) for body in bodies]
