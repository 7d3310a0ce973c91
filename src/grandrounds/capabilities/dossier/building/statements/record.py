"""Statements on the record of a run: the ledger, its keys and proofs, and the changes that it lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grandrounds.audit.entry import CLOSE, OPEN, RESUME, SIMULATED, WITHDRAW, plan_hash
from grandrounds.capabilities.dossier.building.evidence import AUDIT, LEDGER, PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.core.errors import GrandRoundsError
from grandrounds.privacy.in_words import is_simulation

_CHANGES = {
    OPEN: "the run was opened with its plan",
    RESUME: "the run was resumed with another plan",
    CLOSE: "the run was closed with its model",
    WITHDRAW: "a site withdrew, and the model is no longer valid",
}


def is_simulated(facts: Facts) -> bool:
    """Tell whether the keys of the ledger follow from the seed of a simulation; without a ledger, those of the run."""
    opening = facts.entries(OPEN)
    if not opening:
        return is_simulation(facts.get(SUMMARY, "privacy", default={}))
    return all(entry.value.get("keys", {}).get("made", SIMULATED) == SIMULATED for entry in opening)


def state_ledger(facts: Facts) -> Statement:
    """State the size of the ledger, and that entries are linked and signed."""
    return say(
        "The ledger has {entries} entries, {rounds} of them for rounds. Entries are linked by hashes and signed by the server.",
        entries=facts.value(AUDIT, "entries"),
        rounds=facts.value(AUDIT, "rounds"),
    )


def state_verification(facts: Facts) -> Statement:
    """State the result of the audit of the ledger."""
    if facts.raw(AUDIT, "verifies"):
        return say(
            "The audit found no change: ledger, model and files agree (root {root}).",
            facts.source(AUDIT, "verifies"),
            root=shorten(facts.value(AUDIT, "root")),
        )
    findings = facts.raw(AUDIT, "findings")
    found = facts.derive(len(findings), "number of findings", facts.source(AUDIT, "findings"))
    return say("The audit did not verify the run: {found} findings.", facts.source(AUDIT, "verifies"), found=found)


def state_keys(facts: Facts) -> Statement:
    """State who could sign the ledger."""
    opening = facts.entries(OPEN)
    if not opening:
        raise MissingFact(f"the run has no {LEDGER}, so no keys are recorded")
    made = facts.entry_value(opening[0], "keys", "made")
    if made.value == SIMULATED:
        return say("Keys are simulated: they follow from the seed, so whoever knows it can sign as anybody.", made)
    return say("The server and every site signed with a key of their own.", made)


def state_proofs(facts: Facts) -> Statement:
    """State the signed head against which each entry has its inclusion proof."""
    return say(
        "Each entry cited here has an inclusion proof. The head over {size} entries was countersigned by {witnesses} sites.",
        size=facts.value(LEDGER, "size"),
        witnesses=facts.derive(
            len(facts.raw(LEDGER, "head", "witnesses")), "number of countersignatures", facts.source(LEDGER, "head", "witnesses")
        ),
    )


def state_dates(facts: Facts) -> Statement:
    """State that the ledger orders entries without times."""
    return say(
        "The ledger fixes the order of its entries and records no clock time, except for withdrawals.",
        facts.source(LEDGER, "entries"),
    )


def state_plan(facts: Facts) -> Statement:
    """State the digest of the plan, as the ledger names it or as it follows from plan.json."""
    closing = facts.entries(CLOSE)
    if closing:
        digest = facts.entry_value(closing[-1], "plan")
    else:
        try:
            computed = plan_hash(facts.raw(PLAN))
        except (KeyError, TypeError, ValueError, GrandRoundsError):
            raise MissingFact(f"{PLAN} has no digest: it lacks a seed or has values that are not JSON") from None
        digest = facts.derive(computed, "SHA-256 of the resolved plan", facts.source(PLAN))
    return say("The plan has the SHA-256 {digest}.", digest=digest)


def state_model_hash(facts: Facts) -> Statement:
    """State the hash of the final model and the round it is from."""
    closing = facts.entries(CLOSE)
    if not closing:
        raise MissingFact("no closing entry of a ledger names the hash of the final model")
    return say(
        "The final model is that of round {round}; its parameters have the SHA-256 {model}.",
        round=facts.entry_value(closing[-1], "round"),
        model=facts.entry_value(closing[-1], "model"),
    )


def tabulate_files(facts: Facts) -> Table:
    """List the files that the closing entry names, with their hashes."""
    closing = facts.entries(CLOSE)
    if not closing:
        raise MissingFact("no closing entry of a ledger names files of the run")
    names = facts.entry_value(closing[-1], "files").value
    rows = tuple((name, facts.entry_value(closing[-1], "files", name)) for name in sorted(names))
    return Table("Files that the closing entry names", ("file", "SHA-256"), rows, closing[-1].sources)


def tabulate_changes(facts: Facts) -> Table:
    """List the entries that change a run: opened, resumed, closed, withdrawn."""
    entries = sorted((e for kind in _CHANGES for e in facts.entries(kind)), key=lambda e: int(e.value["number"]))
    if not entries:
        raise MissingFact(f"the run has no {LEDGER} with entries")
    rows = tuple(_describe_change(facts, entry) for entry in entries)
    return Table("Changes in the ledger", ("entry", "change", "round", "plan", "model", "date"), rows)


def _describe_change(facts: Facts, entry: Value) -> tuple[str | Value, ...]:
    content = entry.value
    kind = facts.entry_value(entry, "kind")
    cells: list[str | Value] = [entry, replace(kind, text=_CHANGES[content["kind"]])]
    for name in ("round", "plan", "model"):
        path = ("valid", name) if content["kind"] == WITHDRAW and name == "model" else (name,)
        has_value = content.get("valid", {}).get(name) if len(path) == 2 else content.get(name)
        cells.append("" if has_value is None else shorten(facts.entry_value(entry, *path)))
    cells.append(facts.entry_value(entry, "date") if "date" in content else "")
    return tuple(cells)


def state_changes(facts: Facts) -> Iterator[Statement]:
    """State resumptions, withdrawals, and the earlier run that this one repeats."""
    resumed, withdrawn = facts.entries(RESUME), facts.entries(WITHDRAW)
    ledger = facts.source(LEDGER, "entries")
    for entry in resumed:
        yield say(
            "After round {round} the run was resumed with the plan {plan}.",
            round=facts.entry_value(entry, "round"),
            plan=shorten(facts.entry_value(entry, "plan")),
        )
    yield from note_withdrawal(facts)
    if not resumed and not withdrawn:
        yield say("The ledger lists no resumption with another plan and no withdrawal.", ledger)
    yield from state_earlier_run(facts)


def state_earlier_run(facts: Facts) -> Iterator[Statement]:
    """State the earlier run that this one repeats without a site; nothing where it repeats none."""
    if facts.has(SUMMARY, "withdrawal", "site"):
        yield say(
            "This run repeats run '{run}' without site {site}, whose model had the SHA-256 {model}.",
            run=facts.value(SUMMARY, "withdrawal", "repeats", "run"),
            site=facts.value(SUMMARY, "withdrawal", "site"),
            model=shorten(facts.value(SUMMARY, "withdrawal", "repeats", "model")),
        )
    elif not facts.entries(WITHDRAW):
        yield say("The run repeats no earlier run.", facts.source(SUMMARY, "withdrawal"))


def note_withdrawal(facts: Facts) -> tuple[Statement, ...]:
    """Make the note at the start of a document that the model is no longer valid; none where no site withdrew."""
    return tuple(
        say(
            "WITHDRAWN: site {site} withdrew on {date}. Do not use the model; the run in folder '{valid}' replaces it.",
            site=facts.entry_value(entry, "site"),
            date=show_day(facts.entry_value(entry, "date")),
            valid=facts.entry_value(entry, "valid", "folder"),
        )
        for entry in facts.entries(WITHDRAW)
    )


def state_rollback(facts: Facts) -> Statement:
    """State how the model of this run is identified when a later one is taken back."""
    closing = facts.entries(CLOSE)
    if not closing:
        raise MissingFact("without a closing entry no hash identifies the model to return to")
    return say(
        "Roll-back returns to the model whose parameters have the SHA-256 {model}; the ledger's entry {entry} names it.",
        model=shorten(facts.entry_value(closing[-1], "model")),
        entry=closing[-1],
    )


def show_day(value: Value) -> Value:
    """Show the day of a date with a time; the value stays whole."""
    return replace(value, text=str(value.value)[:10])


def shorten(value: Value) -> Value:
    """Show the first sixteen characters of a hash; the value stays whole."""
    text = str(value.value)
    return replace(value, text=f"{text[:16]}..." if len(text) > 20 else text)
