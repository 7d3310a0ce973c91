"""Compare a run's checkpoint with its ledger: plan, journal, explanations, models; and compute weights again from signals."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.file_check import DAMAGE, EXPLANATION, MODEL, PLAN, ROUNDS, Close, Compared, differences
from grandrounds.analysis.audit.weights import recompute_weights
from grandrounds.audit.book import Book
from grandrounds.audit.canonical import canonical, loads
from grandrounds.audit.digest import arrays_digest, model_digest, value_digest
from grandrounds.audit.entry import ROUND, plan_hash, timeless
from grandrounds.audit.files import hash_file, read_file
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verify import FORKED, TRUNCATED
from grandrounds.core import toml
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.explanations import written
from grandrounds.runs.folder import RunFolder

JOURNAL = "journal differs"
WEIGHTS = "weights do not follow"


def deep(out: Compared, book: Book, folder: Path, close: Close | None, *, open_end: bool) -> None:
    """Compare a ledger that verifies with the checkpoint of the run folder it lies in.

    `open_end`: the run is going on, or was resumed and did not end: its plan may be newer than its ledger.
    """
    checkpoint = Checkpoint(folder / "checkpoint")
    said = [entry.said for entry in book.entries]
    rounds = [s for s in said if s["kind"] == ROUND]
    try:
        plan, records = checkpoint.plan(), {r["round"]: r for r in checkpoint.records()}
        snapshot = checkpoint.read()
        _plan(out, folder, plan, said, close, open_end=open_end)
        _journal(out, rounds, records, going_on=checkpoint.is_locked(), open_end=open_end)
        _logs(out, folder, list(records.values()), close)
        if snapshot is not None and rounds:
            _state(out, rounds, int(snapshot.facts["round"]), snapshot.part("served"))
            _sites(out, Tree(entry.leaf for entry in book.entries), snapshot.part("sites"))
        _weights(out, Plan(plan).method, rounds, records)
    except DAMAGE as e:
        out.wrong(
            JOURNAL, "checkpoint", str(e) if isinstance(e, BadInput) else f"it is damaged ({type(e).__name__}: {e})"
        )


def _plan(
    out: Compared,
    folder: Path,
    plan: Mapping[str, Any],
    said: Sequence[Mapping[str, Any]],
    close: Close | None,
    *,
    open_end: bool,
) -> None:
    """Compare the plan with the hash in the newest entry that has one, and experiment.toml with the plan."""
    newest = next(s["plan"] for s in reversed(said) if "plan" in s)
    path = RunFolder(folder).experiment
    if plan_hash(plan) != newest:
        if open_end:
            out.open_question("checkpoint/plan.json: the run was resumed by another plan, which no entry names yet")
        else:
            out.wrong(PLAN, "checkpoint/plan.json", "it is not the experiment that the last round was run by")
    if not open_end and close is not None and path.name in close.files:
        return  # compared already, by its hash
    try:
        told, expected = tomllib.loads(read_file(path).decode()), tomllib.loads(toml.dumps(plan))
    except (BadInput, ValueError):
        out.wrong(PLAN, path.name, "it is not there, or no TOML")
    else:
        found = next(differences(told, expected, other="the plan"), None)
        if found is not None and open_end:
            out.open_question(f"{path.name}: it is not the plan, which may have been changed for a resume: {found}")
        elif found is not None:
            out.wrong(PLAN, path.name, f"it is not the experiment that the last round was run by: {found}")


def _journal(
    out: Compared,
    rounds: Sequence[Mapping[str, Any]],
    records: Mapping[int, Mapping[str, Any]],
    *,
    going_on: bool,
    open_end: bool,
) -> None:
    """Compare each round's line in the journal with its entry; of a run without an end the newest may have none yet."""
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
            if r == max(records) and (going_on or open_end):
                why = "the run is going on" if going_on else "the run was stopped in between; `rounds resume` writes it"
                out.open_question(f"round {r}: it is in the journal, and its entry is still to come: {why}")
                continue
            out.wrong(
                JOURNAL, f"round {r}", "it is in the journal and not in the ledger; `rounds resume` mends a crash"
            )


def _logs(out: Compared, folder: Path, records: Sequence[RoundRecord], close: Close | None) -> None:
    """Compare the round log of a run that ended with its journal; the one that the ledger vouches for is right."""
    files = RunFolder(folder)
    if not files.summary.exists():
        return
    name = files.rounds.name
    try:
        logged = loads(read_file(files.rounds))["rounds"]
        vouched = close is not None and hash_file(files.rounds) == close.files.get(name)
    except DAMAGE:
        if close is None or name not in close.files:  # else it is found by its hash
            out.wrong(ROUNDS, name, "it is not there, or damaged")
        return
    if logged == written(records):
        out.checked.append("figures of rounds in the journal: as in round_logs.json")
    elif vouched:
        found = next(differences(written(records), logged, where="rounds", other=name), "")
        out.wrong(JOURNAL, "checkpoint/rounds.jsonl", f"it does not say what round_logs.json says: {found}")
    elif close is None or name not in close.files:
        found = next(differences(logged, written(records), where="rounds", other="the journal"), "")
        out.wrong(ROUNDS, name, f"it does not say what the journal says: {found}")


def _state(out: Compared, rounds: Sequence[Mapping[str, Any]], round: int, served: Mapping[str, Array]) -> None:
    """The models of the last checkpoint against the entry of that round."""
    entry = next((e for e in rounds if e["round"] == round), None)
    if entry is None:
        out.open_question(f"checkpoint/state.safetensors: round {round} is not in the ledger")
    elif arrays_digest(served) != entry["served"] or model_digest(served["model"]) != entry["model"]:
        out.wrong(MODEL, "checkpoint/state.safetensors", f"it does not hold the models of round {round}")


def _sites(out: Compared, tree: Tree, states: Mapping[str, Array]) -> None:
    """The heads that sites remember having signed, which a simulation keeps in its checkpoint: each a beginning of these."""
    for name in (n for n in states if n.endswith("witness/size")):
        roots = states[name.removesuffix("size") + "root"]
        for size, root in {(int(n), r.tobytes()) for n, r in zip(states[name], roots, strict=True) if n}:
            if size > len(tree):
                out.wrong(TRUNCATED, "checkpoint/state.safetensors", f"a site remembers a head over {size} entries")
            elif tree.root(size) != root:
                out.wrong(FORKED, "checkpoint/state.safetensors", f"a site remembers another root over {size} entries")


def _weights(
    out: Compared, method: Any, rounds: Sequence[Mapping[str, Any]], records: Mapping[int, Mapping[str, Any]]
) -> None:
    """Each round's weights again; what a rule remembers of rounds without a ledger is in the journal."""
    said = {**{r: record["decision"] for r, record in records.items()}, **{e["round"]: e["decision"] for e in rounds}}
    for entry in rounds:
        before = [said[r] for r in sorted(said) if r < entry["round"]]
        try:
            found = recompute_weights(method, entry["decision"], before)
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError) as e:
            out.wrong(WEIGHTS, f"round {entry['round']}", f"its Decision lacks what its weights follow from ({e})")
            continue
        for wrong in found.wrong:
            out.wrong(WEIGHTS, f"round {entry['round']}", wrong)
        for what in found.unchecked:
            out.open_question(what)
    if rounds and not any(f.name == WEIGHTS for f in out.findings):
        out.checked.append(f"weights of {len(rounds)} rounds: as computed again from their signals")
