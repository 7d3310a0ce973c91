"""Statements on planned changes of a model: re-training by the same plan, recalibration, removal of a hospital."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from grandrounds.audit.canonical import canonical
from grandrounds.capabilities.dossier.building.evidence import PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import (
    GUIDELINE,
    MissingFact,
    Source,
    Statement,
    Table,
    Value,
    cite_page,
    say,
)
from grandrounds.capabilities.dossier.building.statements import acceptance
from grandrounds.capabilities.dossier.building.statements.run_kind import classifies, task_of, task_source, trains_model
from grandrounds.core.errors import GrandRoundsError

GUIDANCE = "FDA, Predetermined Change Control Plan for AI-Enabled Device Software Functions, final guidance of 4 December 2024"

_FIXED = (
    ("data", "label"), ("data", "event"), ("data", "patient"), ("data", "encoding"), ("data", "impute"), ("data", "scale"),
    ("split", "by"), ("split", "scheme"), ("model", "name"), ("method", "name"), ("method", "rounds"), ("train", "epochs"),
    ("train", "lr"), ("evaluation", "threshold"), ("evaluation", "calibrate"), ("privacy", "mechanism"),
    ("privacy", "epsilon"), ("privacy", "secure"),
)  # fmt: skip
"""Settings of the plan that a re-training keeps."""

_OPEN = {"data": ("name", "table", "query", "sha256"), "split": ("seed", "without")}
"""Settings that a re-training may change, besides name and seed: they name the rows and the sites."""

_FREE = (
    ("rows of the sites", "new patients under the same columns, units and eligibility"),
    ("parameters of the model", "fitted again"),
    ("preparation of columns", "summaries, categories and ranges, agreed again by the same rules"),
    ("decision threshold", "chosen again by the same rule"),
    ("sites", "a hospital may join or withdraw"),
    ("seed", "recorded with each run"),
)


def state_retraining(facts: Facts) -> Statement:
    """State the modification: the same plan on new rows."""
    return say(
        "The modification repeats method '{method}' with model '{model}' on rows of later patients.",
        method=facts.value(SUMMARY, "method"),
        model=facts.value(SUMMARY, "model"),
    )


def state_settings_digest(facts: Facts) -> Iterator[Statement]:
    """State the digest of the settings that a re-training keeps, by which two plans are compared."""
    plan = dict(facts.raw(PLAN))
    for section, names in _OPEN.items():
        if section in plan:
            plan[section] = {name: value for name, value in dict(plan[section]).items() if name not in names}
    kept = {name: value for name, value in plan.items() if name not in ("name", "seed")}
    try:
        digest = sha256(canonical(kept)).hexdigest()
    except (TypeError, ValueError, GrandRoundsError):
        raise MissingFact(f"{PLAN} has values that are not JSON, so its settings have no digest") from None
    rule = "SHA-256 of the plan without name, seed, source of the rows and sites that withdrew"
    yield say(
        "Without name, seed and source of its rows, the plan has the SHA-256 {digest}.",
        digest=facts.derive(digest, rule, facts.source(PLAN)),
    )
    yield say(
        "A re-training by the same plan has the same digest. That of the whole plan differs, because it names the rows.",
        facts.source(PLAN, "data", "sha256"),
    )


def tabulate_fixed(facts: Facts) -> Table:
    """List the settings that a re-training keeps, with their values in this plan."""
    rows: list[tuple[str | Value, ...]] = []
    for path in _FIXED:
        shown = facts.value(PLAN, *path) if facts.has(PLAN, *path) else None
        if shown is not None:
            rows.append((".".join(path), shown))
    if not rows:
        raise MissingFact(f"{PLAN} has none of the settings that a re-training keeps")
    return Table("Settings that stay as they are", ("setting", "value"), tuple(rows), (facts.source(PLAN),))


def tabulate_free(facts: Facts) -> Table:
    """List what a re-training may change."""
    return Table("Parts that may change (proposal)", ("part", "how"), _FREE, (Source(GUIDELINE, GUIDANCE),))


def state_recalibration(facts: Facts) -> Iterator[Statement]:
    """State the recalibration of one hospital."""
    yield say(
        "`rounds recalibrate` updates the intercept, or slope and intercept, at one hospital; a closed test chooses.",
        cite_page("recalibration.md"),
    )
    yield say(
        "The order of risks stays. The hospital signs the recalibration in a ledger and can undo it.",
        cite_page("recalibration.md"),
    )
    if facts.has(SUMMARY, "final", "calibration_slope"):
        yield say(
            "In this run the calibration slope on test rows is {slope}, calibration in the large {intercept}.",
            slope=facts.value(SUMMARY, "final", "calibration_slope", show=".2f"),
            intercept=facts.value(SUMMARY, "final", "calibration_in_the_large", show=".2f"),
        )


def state_removal(facts: Facts) -> Statement:
    """State the removal of a hospital."""
    return say(
        "`rounds withdraw` repeats the run without the hospital. Both ledgers name the other run.",
        cite_page("withdrawal.md"),
    )


def state_scope(facts: Facts) -> Iterator[Statement]:
    """State that modifications are started by hand, and which of them are local."""
    yield say(
        "No command starts a modification by itself: a person starts each one.", cite_page("cli.md")
    )
    yield say(
        "Re-training and removal change the model at all {sites} sites. Recalibration changes one site.",
        sites=facts.value(SUMMARY, "sites", "all"),
    )


def state_procedure(facts: Facts) -> Iterator[Statement]:
    """State the command that repeats the plan, and the record that it leaves."""
    yield say(
        "`rounds run experiment.toml` repeats the plan. For new rows, remove data.sha256 and name the new table.",
        cite_page("run-folder.md"),
    )
    yield say("The opening entry of the new ledger names the digest of the new plan.", cite_page("audit.md"))


def state_failure(facts: Facts) -> Statement:
    """State what happens if a bar is missed."""
    return say(
        "A model that misses a confirmed bar is not released; the earlier model stays in use.", Source(GUIDELINE, GUIDANCE)
    )


def state_refusal(facts: Facts) -> Statement:
    """State that a replaced model is refused by commands."""
    return say(
        "Commands refuse the model of a run from which a hospital withdrew.",
        cite_page("withdrawal.md"),
    )


def tabulate_traceability(facts: Facts) -> Table:
    """List the parts of the protocol that support each modification."""
    rows = [
        ("1 re-training", "2.1, 2.2", "2.3: all bars", "2.4: new run folder and ledger"),
        ("2 recalibration", "2.1: labelled patients of the site", "2.3: slope at the site", "2.4: entry in the site's record"),
        ("3 removal of a hospital", "2.1 without the hospital", "2.3: all bars", "2.4: both ledgers name the other run"),
    ]
    if not can_recalibrate(facts):
        del rows[1]
    columns = ("modification", "data and training", "evaluation", "update")
    return Table("Modifications and protocol", columns, tuple(rows), (Source(GUIDELINE, GUIDANCE),))


def state_comparison(facts: Facts) -> Statement:
    """State the command that compares the runs before and after a modification."""
    return say(
        "`rounds compare` sets the runs before and after a modification side by side, with intervals.",
        cite_page("cli.md"),
    )


def state_bars_guard(facts: Facts) -> Statement:
    """State the number of proposed bars that guard a release."""
    bars = [bar for bar in acceptance.list_bars(facts) if bar.is_proposed]
    count = facts.derive(len(bars), "figures with a proposed bar", facts.source(SUMMARY, "final"))
    return say("Proposed bars on {bars} figures guard the release of a modified model.", bars=count)


def state_order(facts: Facts) -> Statement:
    """State that re-training ends earlier recalibrations."""
    return say(
        "A re-trained model is another model: recalibrations of the earlier one do not apply to it.", Source(GUIDELINE, GUIDANCE)
    )


def state_information(facts: Facts) -> Statement:
    """State that the dossier has a model card and the report."""
    return say(
        "The model card and the data sheet of this dossier are for users.", cite_page("dossier.md")
    )


def can_recalibrate(facts: Facts) -> bool:
    """Tell whether `rounds recalibrate` can update the model: it has risks of classes, and is no card of points."""
    return trains_model(facts) and classifies(facts) and facts.get(SUMMARY, "model") != "card"


def exclude_recalibration(facts: Facts) -> Statement | None:
    """State why the model cannot be recalibrated; None where it can."""
    if can_recalibrate(facts):
        return None
    return say(
        "`rounds recalibrate` is for risks of classes. This run has model '{model}' and the task {task}.",
        model=facts.value(SUMMARY, "model"),
        task=facts.derive(task_of(facts), "task of the run", task_source(facts)),
    )
