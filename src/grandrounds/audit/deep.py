"""Whether a run's other files are what its ledger speaks of: journal, models, explanations, and weights by their signals."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds import toml
from grandrounds.arrays import Array
from grandrounds.audit.book import Book
from grandrounds.audit.canonical import canonical
from grandrounds.audit.digest import arrays_digest, model_digest, value_digest
from grandrounds.audit.entry import CLOSE, OPEN, ROUND, plan_hash, timeless
from grandrounds.audit.merkle import Tree
from grandrounds.audit.reweigh import reweigh
from grandrounds.audit.verify import FORKED, TRUNCATED, Finding
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.errors import BadInput
from grandrounds.explaining import written
from grandrounds.folder import RunFolder
from grandrounds.settings import Settings

JOURNAL = "journal differs"
PLAN = "plan differs"
MODEL = "model differs"
EXPLANATION = "explanation differs"
ROUNDS = "round log differs"
WEIGHTS = "weights do not follow"


@dataclass
class Deep:
    """What was found, and what could not be checked, each said once."""

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def wrong(self, name: str, where: str, what: str) -> None:
        self.findings.append(Finding(name, where, what))

    def open_question(self, what: str) -> None:
        if what not in self.unchecked:
            self.unchecked.append(what)


def deep(book: Book, folder: Path) -> Deep:
    """Compare a ledger that verifies with the run folder it lies in."""
    out, checkpoint = Deep(), Checkpoint(folder / "checkpoint")
    said = [entry.said for entry in book.entries]
    rounds = [s for s in said if s["kind"] == ROUND]
    try:
        plan, records = checkpoint.plan(), {r["round"]: r for r in checkpoint.records()}
        snapshot = checkpoint.read()
    except (BadInput, ValueError, KeyError) as e:
        out.wrong(JOURNAL, "checkpoint", str(e))
        return out
    _plan(out, plan, said)
    _journal(out, rounds, records, going_on=checkpoint.is_held())
    _readable(out, folder, plan, list(records.values()))
    if snapshot is not None and rounds:
        _state(out, rounds, int(snapshot.facts["round"]), snapshot.part("served"))
        _sites(out, Tree(entry.leaf for entry in book.entries), snapshot.part("sites"))
    _files(out, folder, said)
    _weights(out, Settings(plan).method, rounds, records)
    return out


def _plan(out: Deep, plan: Mapping[str, Any], said: Sequence[Mapping[str, Any]]) -> None:
    newest = next(s["plan"] for s in reversed(said) if s["kind"] in (OPEN, ROUND))
    if plan_hash(plan) != newest:
        out.wrong(PLAN, "checkpoint/plan.json", "it is not the experiment that the last round was run by")


def _journal(
    out: Deep, rounds: Sequence[Mapping[str, Any]], records: Mapping[int, Mapping[str, Any]], *, going_on: bool
) -> None:
    """Each round's line in the journal against its entry. Of a run that is going on the newest may be on its way."""
    for entry in rounds:
        r, where = entry["round"], f"round {entry['round']}"
        record = records.get(r)
        if record is None:
            out.wrong(JOURNAL, where, "it is in the ledger and not in the journal")
            continue
        if canonical(timeless(record["decision"])) != canonical(entry["decision"]):
            out.wrong(JOURNAL, where, "its Decision is not the one in the ledger")
        told = record.get("explanation")
        if (None if told is None else value_digest(told)) != entry["explanation"]:
            out.wrong(EXPLANATION, where, "its explanations are not those whose hash is in the ledger")
    begun = rounds[0]["round"] if rounds else 1
    there = {entry["round"] for entry in rounds}
    for r in sorted(set(records) - there):
        if r >= begun and "ledger" in records[r]:
            if going_on and r == max(records):
                out.open_question(f"round {r}: the run is going on, and its entry is on its way")
                continue
            out.wrong(
                JOURNAL, f"round {r}", "it is in the journal and not in the ledger; `rounds resume` mends a crash"
            )


def _readable(out: Deep, folder: Path, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
    """What people read of a run: its experiment and its rounds against what the ledger vouches for.

    Figures are no part of an entry, which holds decisions, models and explanations.
    """
    files = RunFolder(folder)
    try:
        said = tomllib.loads(files.experiment.read_text())
    except (OSError, ValueError):
        out.wrong(PLAN, files.experiment.name, "it is not there, or no TOML")
    else:
        if said != tomllib.loads(toml.dumps(plan)):
            out.wrong(PLAN, files.experiment.name, "it is not the experiment that the last round was run by")
    if not files.summary.exists():
        return
    try:
        logged = files.read(files.rounds)["rounds"]
    except (BadInput, KeyError, TypeError):
        out.wrong(ROUNDS, files.rounds.name, "it is not there, or damaged")
    else:
        if logged != written(records):
            out.wrong(ROUNDS, files.rounds.name, "it does not say what the journal says")
    out.open_question("figures of summary.json and of rounds, and report.html: the ledger holds decisions, not figures")


def _state(out: Deep, rounds: Sequence[Mapping[str, Any]], round: int, served: Mapping[str, Array]) -> None:
    """The models of the last checkpoint against the entry of that round."""
    entry = next((e for e in rounds if e["round"] == round), None)
    if entry is None:
        out.open_question(f"checkpoint/state.safetensors: round {round} is not in the ledger")
    elif arrays_digest(served) != entry["served"] or model_digest(served["model"]) != entry["model"]:
        out.wrong(MODEL, "checkpoint/state.safetensors", f"it does not hold the models of round {round}")


def _sites(out: Deep, tree: Tree, states: Mapping[str, Array]) -> None:
    """The heads that sites remember having signed, which a simulation keeps in its checkpoint: each a beginning of these."""
    for name in (n for n in states if n.endswith("witness/size")):
        roots = states[name.removesuffix("size") + "root"]
        for size, root in {(int(n), r.tobytes()) for n, r in zip(states[name], roots, strict=True) if n}:
            if size > len(tree):
                out.wrong(TRUNCATED, "checkpoint/state.safetensors", f"a site remembers a head over {size} entries")
            elif tree.root(size) != root:
                out.wrong(FORKED, "checkpoint/state.safetensors", f"a site remembers another root over {size} entries")


def _files(out: Deep, folder: Path, said: Sequence[Mapping[str, Any]]) -> None:
    """The model files against the last word of the ledger, and that against the round it speaks of."""
    end = said[-1] if said[-1]["kind"] == CLOSE else None
    if end is None:
        out.open_question("model files: the run has not ended, so the ledger names none")
        return
    for name, hash in sorted(end["files"].items()):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            out.wrong(MODEL, name, "the ledger names it and it is not there")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != hash:
            out.wrong(MODEL, name, "it is not the file that the run ended with")
    entry = next((s for s in said if s["kind"] == ROUND and s["round"] == end["round"]), None)
    if entry is None:
        out.open_question(f"the final model against round {end['round']}, which is not in the ledger")
    elif end["temperature"] is not None or end.get("platt"):
        out.open_question("the final model against its round: it was calibrated since")
    elif end["model"] != entry["model"]:
        out.wrong(MODEL, "ledger", f"the model that the run ended with is not that of round {end['round']}")


def _weights(
    out: Deep, method: Any, rounds: Sequence[Mapping[str, Any]], records: Mapping[int, Mapping[str, Any]]
) -> None:
    """Each round's weights again; what a rule remembers of rounds without a ledger is in the journal."""
    said = {**{r: record["decision"] for r, record in records.items()}, **{e["round"]: e["decision"] for e in rounds}}
    for entry in rounds:
        before = [said[r] for r in sorted(said) if r < entry["round"]]
        try:
            found = reweigh(method, entry["decision"], before)
        except (KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError) as e:
            out.wrong(WEIGHTS, f"round {entry['round']}", f"its Decision lacks what its weights follow from ({e})")
            continue
        for wrong in found.wrong:
            out.wrong(WEIGHTS, f"round {entry['round']}", wrong)
        for what in found.unchecked:
            out.open_question(what)
