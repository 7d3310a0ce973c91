"""Compare the files of a run folder with the closing entry that names them, and name the changed values.

Nothing of a file is believed: a closing entry has its hash, and of JSON files a hash of each value, so that an altered figure is
named. Round logs and explanations are also in the journal, which says where they differ.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from grandrounds.audit.canonical import loads
from grandrounds.audit.digest import model_digest
from grandrounds.audit.entry import CLOSE, ROUND
from grandrounds.audit.files import (
    ENVIRONMENT,
    EXPLANATIONS,
    READ,
    REPORT,
    ROUND_LOGS,
    SUMMARY,
    hash_file,
    hash_values,
    read_file,
)
from grandrounds.audit.verify import Finding
from grandrounds.core import toml
from grandrounds.core.arrays import decode
from grandrounds.core.errors import BadInput
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.explanations import written

MODEL = "model differs"
FILE = "file differs"
PLAN, ROUNDS, EXPLANATION, FIGURE = "plan differs", "round log differs", "explanation differs", "figure differs"
_KINDS = {"experiment.toml": PLAN, ROUND_LOGS: ROUNDS, EXPLANATIONS: EXPLANATION, SUMMARY: FIGURE}
Entry = Mapping[str, Any]
"""The text of one entry of a ledger, as parsed: a JSON object whose fields depend on its kind."""

SHOWN = 5
"""Largest number of altered values that are named per file."""
DAMAGE = (BadInput, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, EOFError,
          StopIteration, AssertionError, MemoryError, zlib.error)  # fmt: skip
"""Errors that reading a damaged file can raise."""


@dataclass
class AuditFindings:
    """The result of comparing files: findings, checks that passed and checks that were not possible, each named once."""

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_finding(self, name: str, where: str, sentence: str) -> None:
        """Add a difference: its kind, its place and a sentence."""
        self.findings.append(Finding(name, where, sentence))

    def add_unchecked(self, sentence: str) -> None:
        """Add a check that was not possible, once."""
        if sentence not in self.unchecked:
            self.unchecked.append(sentence)


@dataclass(frozen=True)
class ClosingEntry:
    """A closing entry: its number in the ledger and its content; `rounds`: the entries of rounds before it."""

    number: int
    content: Entry
    rounds: tuple[Entry, ...]

    @classmethod
    def find_last(cls, entries: Sequence[Entry]) -> ClosingEntry | None:
        """Find the last closing entry of a ledger; None where there is none."""
        position = next((n for n in range(len(entries) - 1, -1, -1) if entries[n]["kind"] == CLOSE), None)
        return (
            None
            if position is None
            else cls(position, entries[position], tuple(s for s in entries[:position] if s["kind"] == ROUND))
        )

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file that the entry names."""
        files: Mapping[str, str] = self.content["files"]
        return files

    @property
    def line(self) -> str:
        """A description of the valid closing entry and its model."""
        model = self.files.get("model.safetensors", "")
        if not model:
            return f"entry {self.number} closes the run after round {self.content['round']}; it has no model"
        subject = f"model.safetensors {model[:16]}... is the model of round {self.content['round']}"
        calibrated = self.content["temperature"] is not None or self.content.get("platt")
        return f"entry {self.number} closes the run: {subject}{', calibrated' if calibrated else ''}"


def compare_files(out: AuditFindings, folder: Path, close: ClosingEntry) -> None:
    """Compare every file that a closing entry names, and name files that it should name and does not."""
    same = []
    for name, digest in sorted(close.files.items()):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            out.add_finding(FILE, name[:200], f"entry {close.number} names a file outside of the run folder")
            continue
        if name == REPORT:
            continue  # a page may be written again: it is checked by its provenance
        kind = MODEL if name.endswith(".safetensors") else _KINDS.get(name, FILE)
        try:
            actual = hash_file(folder / name)
        except BadInput as e:
            out.add_finding(kind, name, f"the ledger names it and it {e}")
            continue
        if actual == digest:
            same.append(name)
        elif kind == MODEL:
            out.add_finding(MODEL, name, "it is not the file that the run ended with")
        else:
            out.add_finding(kind, name, _describe_change(folder, name, close))
    if same:
        out.checked.append(f"{', '.join(same)}: by the SHA-256 in entry {close.number}")
    _compare_model(out, close)
    for name in _unnamed_files(folder, close.files):
        out.add_finding(FILE, name, f"it is there, and entry {close.number}, which closes the run, does not name it")


def _unnamed_files(folder: Path, files: Mapping[str, str]) -> Iterator[str]:
    """List files that people read, or models, which a closing entry does not name."""
    models = folder / "models"
    model_files = (
        sorted(f"models/{p.name}" for p in models.iterdir()) if models.is_dir() and not models.is_symlink() else []
    )
    for name in (SUMMARY, *READ, *model_files):
        if name not in files and name != REPORT and (folder / name).exists():
            yield name


def _compare_model(out: AuditFindings, close: ClosingEntry) -> None:
    """Compare the model that a run ended with and the round that it is said to be of."""
    end = close.content
    entry = next((s for s in reversed(close.rounds) if s["round"] == end["round"]), None)
    if entry is None:
        out.add_unchecked(f"the final model against round {end['round']}, which is not in the ledger")
    elif end["temperature"] is not None or end.get("platt"):
        out.add_unchecked("the final model against its round: it was calibrated since")
    elif end["model"] != entry["model"]:
        out.add_finding(MODEL, "ledger", f"the model that the run ended with is not that of round {end['round']}")
    else:
        out.checked.append(f"the final model: it is that of round {end['round']}")


def compare_open_model(out: AuditFindings, folder: Path, rounds: Sequence[Entry]) -> None:
    """Compare the model file of a run without a valid end with its ledger; a calibrated model cannot be identified."""
    name = "model.safetensors"
    if not (folder / name).exists() or not rounds or rounds[0]["round"] != 1:
        return
    try:
        arrays, meta = decode(read_file(folder / name), where=name)
        calibrated = meta["temperature"] is not None or meta.get("platt") is not None
        actual = model_digest(np.concatenate([a.ravel() for a in arrays.values()]))
    except DAMAGE:
        out.add_finding(MODEL, name, "it is damaged")
        return
    round = next((r["round"] for r in reversed(rounds) if r["model"] == actual), None)
    if round is not None:
        out.notes.append(f"{name} is the model of round {round}, which no closing entry confirms")
    elif not calibrated:
        out.add_finding(MODEL, name, "it is the model of no round in the ledger")


def _describe_change(folder: Path, name: str, close: ClosingEntry) -> str:
    """Name the changed values of a file, as far as ledger and journal show them."""
    try:
        places = [*_changed_values(folder, name, close)]
    except DAMAGE:
        return "it is damaged, and not the file that the run ended with"
    if not places:
        return "it is not the file that the run ended with"
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"it is not the file that the run ended with: {'; '.join(places[:SHOWN])}{more}"


def _changed_values(folder: Path, name: str, close: ClosingEntry) -> Iterator[str]:
    data = read_file(folder / name)
    if name == "experiment.toml":
        plan = tomllib.loads(toml.dumps(Checkpoint(folder / "checkpoint").plan()))
        yield from differences(tomllib.loads(data.decode()), plan, other="the plan")
        return
    content = loads(data)
    hashes = close.content["contents"].get(name)
    if hashes is not None:
        yield from _changed_hashes(content, hashes, close)
    elif name in (ROUND_LOGS, EXPLANATIONS):
        records = Checkpoint(folder / "checkpoint").records()
        expected = written(records) if name == ROUND_LOGS else _explanations(records)
        yield from differences(content["rounds"], expected, where="rounds", other="the journal")
    if name == ENVIRONMENT:
        expected = loads(read_file(folder / SUMMARY))["environment"]
        yield from differences(content, expected, other=SUMMARY)


def _changed_hashes(content: Any, recorded: Mapping[str, str], close: ClosingEntry) -> Iterator[str]:
    """Name the values of a JSON object whose hashes are others; of final figures also what the ledger has."""
    actual = hash_values(content)
    for key in [*recorded, *(k for k in actual if k not in recorded)]:
        if actual.get(key) == recorded.get(key):
            continue
        figures = close.content["figures"] if key == "final" else {}
        values = content.get(key, {})
        altered = [f for f in figures if isinstance(values, dict) and values.get(f) != figures[f]]
        yield from (f"final.{f} is {_value(values.get(f))}, the ledger has {_value(figures[f])}" for f in altered)
        if not altered:
            change = "was changed" if key in actual and key in recorded else "was added" if key in actual else "is gone"
            yield f"'{key[:80]}' {change}"


def differences(actual: Any, expected: Any, *, where: str = "", other: str = "the ledger") -> Iterator[str]:
    """Name the places in which two JSON values differ, one after the other."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in [*expected, *(k for k in actual if k not in expected)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in actual:
                yield f"{place[:200]} is gone"
            elif key not in expected:
                yield f"{place[:200]} was added"
            elif actual[key] != expected[key]:
                yield from differences(actual[key], expected[key], where=place, other=other)
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
            if a != b:
                yield from differences(a, b, where=f"{where}[{index}]", other=other)
    elif isinstance(actual, list) and isinstance(expected, list):
        yield f"{where[:200]} has {len(actual)} values, {other} has {len(expected)}"
    elif actual != expected:
        yield f"{where[:200]} is {_value(actual)}, {other} has {_value(expected)}"


def _explanations(records: Sequence[Entry]) -> list[dict[str, object]]:
    return [{"round": r["round"], **r["explanation"]} for r in records if "explanation" in r]


def _value(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."
