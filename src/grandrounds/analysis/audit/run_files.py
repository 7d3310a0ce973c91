"""Compare a run's checkpoint with its ledger: plan, journal, explanations, models; and recompute weights from signals."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.file_check import (
    DAMAGE,
    EXPLANATION,
    MODEL,
    PLAN,
    ROUNDS,
    AuditFindings,
    ClosingEntry,
    Entry,
    differences,
)
from grandrounds.analysis.audit.weights import recompute_weights
from grandrounds.audit.book import Book
from grandrounds.audit.canonical import canonical, loads
from grandrounds.audit.digest import arrays_digest, model_digest, value_digest
from grandrounds.audit.entry import ROUND, plan_hash, without_seconds
from grandrounds.audit.files import hash_file, read_file
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verify import FORKED, TRUNCATED
from grandrounds.core import toml
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import MethodSettings, Plan
from grandrounds.core.records import RoundRecord
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.explanations import written
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.privacy_recompute import refuse_altered_budget

JOURNAL = "journal differs"
WEIGHTS = "weights do not follow"
BUDGET = "budget differs"


def compare_checkpoint(
    out: AuditFindings, book: Book, folder: Path, close: ClosingEntry | None, *, open_end: bool
) -> None:
    """Compare a ledger that verifies with the checkpoint of its run folder.

    Args:
        out: Takes the findings.
        book: The ledger.
        folder: The run folder.
        close: The closing entry that is valid, if there is one.
        open_end: The run is going on, or was resumed and did not end: its plan may be newer than its ledger.
    """
    checkpoint = Checkpoint(folder / "checkpoint")
    entries = [entry.content for entry in book.entries]
    rounds = [s for s in entries if s["kind"] == ROUND]
    try:
        plan, records = checkpoint.plan(), {r["round"]: r for r in checkpoint.records()}
        snapshot = checkpoint.read()
        _compare_plan(out, folder, plan, entries, close, open_end=open_end)
        _compare_journal(out, rounds, records, going_on=checkpoint.is_locked(), open_end=open_end)
        _compare_logs(out, folder, list(records.values()), close)
        if snapshot is not None and not checkpoint.is_locked():
            _compare_budget(out, folder, Plan(plan), snapshot.facts.get("privacy"), list(records.values()))
        if snapshot is not None and rounds:
            _compare_models(out, rounds, int(snapshot.facts["round"]), snapshot.part("served"))
            _compare_site_heads(out, Tree(entry.leaf for entry in book.entries), snapshot.part("sites"))
        _compare_weights(out, Plan(plan).method, rounds, records)
    except DAMAGE as e:
        out.add_finding(
            JOURNAL, "checkpoint", str(e) if isinstance(e, BadInput) else f"it is damaged ({type(e).__name__}: {e})"
        )


def _compare_plan(
    out: AuditFindings,
    folder: Path,
    plan: Mapping[str, Any],
    entries: Sequence[Entry],
    close: ClosingEntry | None,
    *,
    open_end: bool,
) -> None:
    """Compare the plan with the hash in the newest entry that has one, and experiment.toml with the plan."""
    newest = next(s["plan"] for s in reversed(entries) if "plan" in s)
    path = RunFolder(folder).experiment
    if plan_hash(plan) != newest:
        if open_end:
            out.add_unchecked("checkpoint/plan.json: the run was resumed by another plan, which no entry names yet")
        else:
            out.add_finding(PLAN, "checkpoint/plan.json", "it is not the experiment that the last round was run by")
    if not open_end and close is not None and path.name in close.files:
        return  # compared already, by its hash
    try:
        actual, expected = tomllib.loads(read_file(path).decode()), tomllib.loads(toml.dumps(plan))
    except (BadInput, ValueError):
        out.add_finding(PLAN, path.name, "it is not there, or no TOML")
    else:
        difference = next(differences(actual, expected, other="the plan"), None)
        if difference is not None and open_end:
            out.add_unchecked(
                f"{path.name}: it is not the plan, which may have been changed for a resume: {difference}"
            )
        elif difference is not None:
            out.add_finding(PLAN, path.name, f"it is not the experiment that the last round was run by: {difference}")


def _compare_journal(
    out: AuditFindings,
    rounds: Sequence[Entry],
    records: Mapping[int, Entry],
    *,
    going_on: bool,
    open_end: bool,
) -> None:
    """Compare each round's line in the journal with its entry; of a run without an end the newest may have none yet."""
    for entry in rounds:
        r, where = entry["round"], f"round {entry['round']}"
        record = records.get(r)
        if record is None:
            out.add_finding(JOURNAL, where, "it is in the ledger and not in the journal")
            continue
        if canonical(without_seconds(record["decision"])) != canonical(entry["decision"]):
            out.add_finding(JOURNAL, where, "its Decision is not the one in the ledger")
        explanation = record.get("explanation")
        if (None if explanation is None else value_digest(explanation)) != entry["explanation"]:
            out.add_finding(EXPLANATION, where, "its explanations are not those whose hash is in the ledger")
    begun = rounds[0]["round"] if rounds else 1
    recorded = {entry["round"] for entry in rounds}
    for r in sorted(set(records) - recorded):
        if r >= begun and "ledger" in records[r]:
            if r == max(records) and (going_on or open_end):
                why = "the run is going on" if going_on else "the run was stopped in between; `rounds resume` writes it"
                out.add_unchecked(f"round {r}: it is in the journal, and its entry is still to come: {why}")
                continue
            out.add_finding(
                JOURNAL,
                f"round {r}",
                "it is in the journal and not in the ledger; `rounds resume` repairs it after a crash",
            )


def _compare_logs(out: AuditFindings, folder: Path, records: Sequence[RoundRecord], close: ClosingEntry | None) -> None:
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
            out.add_finding(ROUNDS, name, "it is not there, or damaged")
        return
    if logged == written(records):
        out.checked.append("figures of rounds in the journal: as in round_logs.json")
    elif vouched:
        difference = next(differences(written(records), logged, where="rounds", other=name), "")
        out.add_finding(JOURNAL, "checkpoint/rounds.jsonl", f"it differs from round_logs.json: {difference}")
    elif close is None or name not in close.files:
        difference = next(differences(logged, written(records), where="rounds", other="the journal"), "")
        out.add_finding(ROUNDS, name, f"it differs from the journal: {difference}")


def _compare_budget(
    out: AuditFindings, folder: Path, plan: Plan, stored: Mapping[str, Any] | None, records: Sequence[RoundRecord]
) -> None:
    """Compare the budget in the checkpoint, and the releases outside rounds, with the rounds and the ledger."""
    try:
        refuse_altered_budget(folder, plan, stored, records, Checkpoint(folder / "checkpoint").charges())
    except BadInput as e:
        out.add_finding(BUDGET, "checkpoint", str(e))
        return
    if stored is not None:
        out.checked.append("privacy budget in the checkpoint: as rounds and ledger have it")


def _compare_models(out: AuditFindings, rounds: Sequence[Entry], round: int, served: Mapping[str, Array]) -> None:
    """Compare the models of the last checkpoint with the entry of that round."""
    entry = next((e for e in rounds if e["round"] == round), None)
    if entry is None:
        out.add_unchecked(f"checkpoint/state.safetensors: round {round} is not in the ledger")
    elif arrays_digest(served) != entry["served"] or model_digest(served["model"]) != entry["model"]:
        out.add_finding(MODEL, "checkpoint/state.safetensors", f"it does not hold the models of round {round}")


def _compare_site_heads(out: AuditFindings, tree: Tree, states: Mapping[str, Array]) -> None:
    """Compare the heads that simulated sites remember, kept in the checkpoint: each must be a beginning of this ledger."""
    for name in (n for n in states if n.endswith("witness/size")):
        roots = states[name.removesuffix("size") + "root"]
        for size, root in {(int(n), r.tobytes()) for n, r in zip(states[name], roots, strict=True) if n}:
            if size > len(tree):
                out.add_finding(
                    TRUNCATED, "checkpoint/state.safetensors", f"a site remembers a head over {size} entries"
                )
            elif tree.root(size) != root:
                out.add_finding(
                    FORKED, "checkpoint/state.safetensors", f"a site remembers another root over {size} entries"
                )


def _compare_weights(
    out: AuditFindings, method: MethodSettings, rounds: Sequence[Entry], records: Mapping[int, Entry]
) -> None:
    """Recompute each round's weights; what a rule remembers of rounds without a ledger is in the journal."""
    decisions = {
        **{r: record["decision"] for r, record in records.items()},
        **{e["round"]: e["decision"] for e in rounds},
    }
    for entry in rounds:
        before = [decisions[r] for r in sorted(decisions) if r < entry["round"]]
        try:
            result = recompute_weights(method, entry["decision"], before)
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError) as e:
            out.add_finding(
                WEIGHTS, f"round {entry['round']}", f"its Decision lacks what its weights follow from ({e})"
            )
            continue
        for wrong in result.wrong:
            out.add_finding(WEIGHTS, f"round {entry['round']}", wrong)
        for sentence in result.unchecked:
            out.add_unchecked(sentence)
    if rounds and not any(f.name == WEIGHTS for f in out.findings):
        out.checked.append(f"weights of {len(rounds)} rounds: recomputed from their signals")
