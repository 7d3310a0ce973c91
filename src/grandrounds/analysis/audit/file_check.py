"""Compare the files of a run folder with the closing entry that names them, and say what was changed in one.

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
from grandrounds.audit.entry import CLOSE, ROUND, covers_files
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
SHOWN = 5
"""Altered values of one file that are named."""
DAMAGE = (BadInput, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, EOFError,
          StopIteration, AssertionError, MemoryError, zlib.error)  # fmt: skip
"""Errors that reading a damaged file can raise."""


@dataclass
class Compared:
    """The result of comparing files: what was found, what was checked and what could not be, each said once."""

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def wrong(self, name: str, where: str, what: str) -> None:
        self.findings.append(Finding(name, where, what))

    def open_question(self, what: str) -> None:
        if what not in self.unchecked:
            self.unchecked.append(what)


@dataclass(frozen=True)
class Close:
    """A closing entry: its number in the ledger and its text; `rounds`: the entries of rounds before it."""

    number: int
    said: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]

    @classmethod
    def last_of(cls, said: Sequence[Mapping[str, Any]]) -> Close | None:
        """The last closing entry of a ledger; None where there is none."""
        at = next((n for n in range(len(said) - 1, -1, -1) if said[n]["kind"] == CLOSE), None)
        return None if at is None else cls(at, said[at], tuple(s for s in said[:at] if s["kind"] == ROUND))

    @property
    def files(self) -> Mapping[str, str]:
        files: Mapping[str, str] = self.said["files"]
        return files

    @property
    def line(self) -> str:
        """The close that is valid and its model, in words."""
        model = self.files.get("model.safetensors", "")
        which = f"model.safetensors {model[:16]}... is the model of round {self.said['round']}"
        calibrated = self.said["temperature"] is not None or self.said.get("platt")
        return f"entry {self.number} closes the run: {which}{', calibrated' if calibrated else ''}"


def compare_files(out: Compared, folder: Path, close: Close) -> None:
    """Compare every file that a closing entry names, and name files that it should name and does not."""
    same = []
    for name, digest in sorted(close.files.items()):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            out.wrong(FILE, name[:200], f"entry {close.number} names a file outside of the run folder")
            continue
        if name == REPORT:
            continue  # a page may be drawn anew: it is checked by what it carries
        kind = MODEL if name.endswith(".safetensors") else _KINDS.get(name, FILE)
        try:
            found = hash_file(folder / name)
        except BadInput as e:
            out.wrong(kind, name, f"the ledger names it and it {e}")
            continue
        if found == digest:
            same.append(name)
        elif kind == MODEL:
            out.wrong(MODEL, name, "it is not the file that the run ended with")
        else:
            out.wrong(kind, name, _changed(folder, name, close))
    if same:
        out.checked.append(f"{', '.join(same)}: by the SHA-256 in entry {close.number}")
    _compare_model(out, close)
    if covers_files(close.said):
        for name in _unnamed(folder, close.files):
            out.wrong(FILE, name, f"it is there, and entry {close.number}, which closes the run, does not name it")
    else:
        names = ", ".join(name for name in (SUMMARY, *READ) if (folder / name).exists())
        out.open_question(f"{names}: this ledger is of version 0.1, whose closing entry names model files alone")


def _unnamed(folder: Path, files: Mapping[str, str]) -> Iterator[str]:
    """Files that people read, or models, which a closing entry does not name."""
    models = folder / "models"
    there = sorted(f"models/{p.name}" for p in models.iterdir()) if models.is_dir() and not models.is_symlink() else []
    for name in (SUMMARY, *READ, *there):
        if name not in files and name != REPORT and (folder / name).exists():
            yield name


def _compare_model(out: Compared, close: Close) -> None:
    """Compare the model that a run ended with and the round that it is said to be of."""
    end = close.said
    entry = next((s for s in reversed(close.rounds) if s["round"] == end["round"]), None)
    if entry is None:
        out.open_question(f"the final model against round {end['round']}, which is not in the ledger")
    elif end["temperature"] is not None or end.get("platt"):
        out.open_question("the final model against its round: it was calibrated since")
    elif end["model"] != entry["model"]:
        out.wrong(MODEL, "ledger", f"the model that the run ended with is not that of round {end['round']}")
    else:
        out.checked.append(f"the final model: it is that of round {end['round']}")


def compare_open_model(out: Compared, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Compare the model file of a run without a valid end with the rounds of its ledger; a calibrated one cannot be told."""
    name = "model.safetensors"
    if not (folder / name).exists() or not rounds or rounds[0]["round"] != 1:
        return
    try:
        arrays, meta = decode(read_file(folder / name), where=name)
        calibrated = meta["temperature"] is not None or meta.get("platt") is not None
        found = model_digest(np.concatenate([a.ravel() for a in arrays.values()]))
    except DAMAGE:
        out.wrong(MODEL, name, "it is damaged")
        return
    of = next((r["round"] for r in reversed(rounds) if r["model"] == found), None)
    if of is not None:
        out.notes.append(f"{name} is the model of round {of}, which no closing entry confirms")
    elif not calibrated:
        out.wrong(MODEL, name, "it is the model of no round in the ledger")


def _changed(folder: Path, name: str, close: Close) -> str:
    """Say what was changed in a file, as far as ledger and journal can tell."""
    try:
        places = [*_places(folder, name, close)]
    except DAMAGE:
        return "it is damaged, and not the file that the run ended with"
    if not places:
        return "it is not the file that the run ended with"
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"it is not the file that the run ended with: {'; '.join(places[:SHOWN])}{more}"


def _places(folder: Path, name: str, close: Close) -> Iterator[str]:
    data = read_file(folder / name)
    if name == "experiment.toml":
        plan = tomllib.loads(toml.dumps(Checkpoint(folder / "checkpoint").plan()))
        yield from differences(tomllib.loads(data.decode()), plan, other="the plan")
        return
    content = loads(data)
    known = close.said.get("contents", {}).get(name)
    if known is not None:
        yield from _by_value(content, known, close)
    elif name in (ROUND_LOGS, EXPLANATIONS):
        records = Checkpoint(folder / "checkpoint").records()
        told = written(records) if name == ROUND_LOGS else _explained(records)
        yield from differences(content["rounds"], told, where="rounds", other="the journal")
    if name == ENVIRONMENT:
        told = loads(read_file(folder / SUMMARY))["environment"]
        yield from differences(content, told, other=SUMMARY)


def _by_value(content: Any, known: Mapping[str, str], close: Close) -> Iterator[str]:
    """Name the values of a JSON object whose hashes are others; of final figures also what the ledger has."""
    found = hash_values(content)
    for key in [*known, *(k for k in found if k not in known)]:
        if found.get(key) == known.get(key):
            continue
        figures = close.said.get("figures", {}) if key == "final" else {}
        held = content.get(key, {})
        told = [f for f in figures if isinstance(held, dict) and held.get(f) != figures[f]]
        yield from (f"final.{f} is {_value(held.get(f))}, the ledger has {_value(figures[f])}" for f in told)
        if not told:
            yield f"'{key[:80]}' {'was changed' if key in found and key in known else 'was added' if key in found else 'is gone'}"


def differences(found: Any, told: Any, *, where: str = "", other: str = "the ledger") -> Iterator[str]:
    """Name the places in which two JSON values differ, one after the other."""
    if isinstance(found, dict) and isinstance(told, dict):
        for key in [*told, *(k for k in found if k not in told)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"{place[:200]} is gone"
            elif key not in told:
                yield f"{place[:200]} was added"
            elif found[key] != told[key]:
                yield from differences(found[key], told[key], where=place, other=other)
    elif isinstance(found, list) and isinstance(told, list) and len(found) == len(told):
        for at, (a, b) in enumerate(zip(found, told, strict=True)):
            if a != b:
                yield from differences(a, b, where=f"{where}[{at}]", other=other)
    elif isinstance(found, list) and isinstance(told, list):
        yield f"{where[:200]} has {len(found)} values, {other} has {len(told)}"
    elif found != told:
        yield f"{where[:200]} is {_value(found)}, {other} has {_value(told)}"


def _explained(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"round": r["round"], **r["explanation"]} for r in records if "explanation" in r]


def _value(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."
