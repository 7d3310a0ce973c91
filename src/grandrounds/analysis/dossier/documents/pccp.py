"""Predetermined change control plan after the FDA's guidance of December 2024, with the ten principles of good practice."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.analysis.dossier.document import Document, Item, Section, exclude_item, make_item, note
from grandrounds.analysis.dossier.documents.model_items import make_model_item, only
from grandrounds.analysis.dossier.evidence import PLAN, SUMMARY
from grandrounds.analysis.dossier.facts import Facts
from grandrounds.analysis.dossier.statement import (
    GUIDELINE,
    MissingFact,
    Source,
    Statement,
    Table,
    Value,
    cite_page,
    say,
)
from grandrounds.analysis.dossier.statements import (
    acceptance,
    data,
    groups,
    heterogeneity,
    model,
    monitoring,
    performance,
    predictors,
    privacy,
    record,
    risks,
    system,
)
from grandrounds.analysis.dossier.statements.run_kind import classifies, has_event, task_of, task_source, trains_model

GUIDANCE = "FDA, Predetermined Change Control Plan for AI-Enabled Device Software Functions, final guidance of 4 December 2024"
PRINCIPLES = "Good Machine Learning Practice, guiding principles (FDA, Health Canada, MHRA, 2021)"

_FIXED = (
    ("data", "label"), ("data", "event"), ("data", "patient"), ("data", "encoding"), ("data", "impute"), ("data", "scale"),
    ("split", "by"), ("split", "scheme"), ("model", "name"), ("method", "name"), ("method", "rounds"), ("train", "epochs"),
    ("train", "lr"), ("evaluation", "threshold"), ("evaluation", "calibrate"), ("privacy", "mechanism"),
    ("privacy", "epsilon"), ("privacy", "secure"),
)  # fmt: skip
"""Settings of the plan that a re-training keeps."""

_FREE = (
    ("rows of the sites", "new patients under the same columns, units and eligibility"),
    ("parameters of the model", "fitted again"),
    ("preparation of columns", "summaries, categories and ranges, agreed again by the same rules"),
    ("decision threshold", "chosen again by the same rule"),
    ("sites", "a hospital may join or withdraw"),
    ("seed", "recorded with each run"),
)


def build(facts: Facts) -> Document:
    """Build the change control plan of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *record.note_withdrawal(facts),
        note("This text is not legal advice. It is a draft that a manufacturer completes and submits.", GUIDANCE),
        note("Items follow the guidance in our words. Whoever relies on them reads the original.", GUIDANCE),
        note("Dates and titles are from secondary pages and must be checked.", GUIDANCE),
    )
    sections = (
        Section("Description of modifications", tuple(_describe(facts))),
        Section("Modification protocol", tuple(_set_protocol(facts))),
        Section("Impact assessment", tuple(_assess(facts))),
        Section("Good machine learning practice: ten principles", tuple(_map_principles(facts))),
    )
    return Document("pccp", "Predetermined change control plan", f"{GUIDANCE}; {PRINCIPLES}", notes, sections)


def _describe(facts: Facts) -> Iterator[Item]:
    yield make_model_item(
        facts, "1.1", "Modification 1: re-training by the same plan", "the planned change and its specification",
        record.state_plan, state_retraining, tabulate_fixed, tabulate_free, questions=("pccp-modifications", "pccp-settings"),
    )  # fmt: skip
    yield _make_recalibration(facts)
    yield make_item(
        facts, "1.3", "Modification 3: removal of a hospital", "the planned change and its specification",
        state_removal, record.state_earlier_run, questions=("pccp-modifications",),
    )  # fmt: skip
    yield make_item(
        facts, "1.4", "Scope", "automatic or by hand, at all users or at single ones, how often",
        state_scope, questions=("pccp-frequency",),
    )  # fmt: skip


def _make_recalibration(facts: Facts) -> Item:
    """Make the item of recalibration, which only risks of classes have; points of a card are not changed by it."""
    title, asks = "Modification 2: recalibration at one hospital", "the planned change and its specification"
    if trains_model(facts) and (not classifies(facts) or facts.get(SUMMARY, "model") == "card"):
        reason = "`rounds recalibrate` is for risks of classes. This run has model '{model}' and the task {task}."
        task = facts.derive(task_of(facts), "task of the run", task_source(facts))
        return exclude_item("1.2", title, asks, say(reason, model=facts.value(SUMMARY, "model"), task=task))
    return make_model_item(facts, "1.2", title, asks, state_recalibration, questions=("pccp-modifications",))


def _set_protocol(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "2.1", "Data management", "sources, quality, reference standard, separation of training and test data",
        data.state_partition, data.state_rows, predictors.state_missing, predictors.state_encoding,
        questions=("pccp-data", "reference-standard"),
    )  # fmt: skip
    yield make_model_item(
        facts, "2.2", "Re-training", "what is trained, by which procedure, and what stays as it is",
        state_procedure, model.state_training, record.state_plan, privacy.state_guarantee, questions=("pccp-settings",),
    )  # fmt: skip
    yield make_model_item(
        facts, "2.3", "Performance evaluation", "tests, metrics and acceptance bars; what happens if one is missed",
        acceptance.state_bars, acceptance.tabulate_bars, state_failure, questions=("pccp-bars",),
    )  # fmt: skip
    yield make_item(
        facts, "2.4", "Update procedure", "verification, release, labelling, communication, roll-back",
        record.state_verification, record.state_rollback, state_refusal, questions=("pccp-update", "pccp-rollback"),
    )  # fmt: skip
    yield make_item(
        facts, "2.5", "Traceability", "which part of the protocol supports which modification",
        tabulate_traceability,
    )  # fmt: skip
    yield make_model_item(
        facts, "2.6", "Monitoring", "how the device is watched after a modification",
        monitoring.state_watch, monitoring.tabulate_plan, monitoring.tabulate_watches, questions=("monitoring-plan",),
    )  # fmt: skip


def _assess(facts: Facts) -> Iterator[Item]:
    yield make_model_item(
        facts, "3.1", "Comparison", "the device with each modification against the device without any",
        record.state_model_hash, state_comparison,
    )  # fmt: skip
    yield make_model_item(
        facts, "3.2", "Benefits and risks", "benefit, risk of harm and unintended bias of each modification",
        risks.tabulate_hazards, risks.state_small_sites, questions=("pccp-benefit",),
    )  # fmt: skip
    yield make_model_item(
        facts, "3.3", "Mitigation", "how verification and validation keep the device safe and effective",
        state_bars_guard, record.state_ledger, questions=("risk-management",),
    )  # fmt: skip
    yield make_item(
        facts, "3.4", "One modification on another", "effect of implementing one modification on the others",
        state_order, questions=("pccp-collective",),
    )  # fmt: skip
    yield make_item(
        facts, "3.5", "Collective impact", "effect of all modifications together", questions=("pccp-collective",)
    )


def _map_principles(facts: Facts) -> Iterator[Item]:
    yield make_item(facts, "G1", "Expertise of several disciplines", "experts over the whole life cycle", questions=("team",))
    yield make_item(
        facts, "G2", "Software engineering and security", "good practice in software, data quality and security",
        system.state_software, record.state_verification, system.tabulate_security, questions=("security-measures",),
    )  # fmt: skip
    yield make_item(
        facts, "G3", "Representative data", "participants and data that represent the intended patients",
        data.state_sites, data.state_rows, risks.state_small_sites, questions=("data-subjects",),
    )  # fmt: skip
    yield make_item(
        facts, "G4", "Independent training and test data", "no patient in both", data.state_partition, data.state_unit
    )
    yield make_item(
        facts, "G5", "Reference datasets", "the best available way to establish the outcome",
        data.state_outcome, questions=("reference-standard",),
    )  # fmt: skip
    yield make_model_item(
        facts, "G6", "Design that fits data and use", "measures against overfitting and known risks",
        privacy.state_ratio, only(has_event, model.state_events_per_parameter), performance.state_overfitting,
        questions=("intended-purpose",),
    )  # fmt: skip
    yield make_model_item(
        facts, "G7", "The human and the model as a team", "performance of the user with the model",
        system.state_attribution_tools, questions=("human-oversight", "human-team"),
    )  # fmt: skip
    yield make_model_item(
        facts, "G8", "Clinically relevant tests", "performance under conditions of use, by site and subgroup",
        performance.state_headline, heterogeneity.tabulate_per_site, groups.tabulate_subgroups,
        questions=("clinical-conditions",),
    )  # fmt: skip
    yield make_item(
        facts, "G9", "Clear information for users", "intended use, performance, data, limits",
        state_information, questions=("instructions-for-use",),
    )  # fmt: skip
    yield make_model_item(
        facts, "G10", "Monitored models", "deployed models are watched, and risks of re-training managed",
        monitoring.state_watch, monitoring.tabulate_watches, questions=("monitoring-plan",),
    )  # fmt: skip


def state_retraining(facts: Facts) -> Statement:
    """State the modification: the same plan on new rows."""
    return say(
        "The modification repeats method '{method}' with model '{model}' on rows of later patients.",
        method=facts.value(SUMMARY, "method"),
        model=facts.value(SUMMARY, "model"),
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
            "In this run the calibration slope on test rows is {slope}, the intercept {intercept}.",
            slope=facts.value(SUMMARY, "final", "calibration_slope", show=".2f"),
            intercept=facts.value(SUMMARY, "final", "calibration_intercept", show=".2f"),
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
        "`rounds run experiment.toml` repeats the plan. Its opening ledger entry names the digest of the plan.",
        cite_page("audit.md"),
    )
    yield say(
        "This run had {rounds} rounds at {sites} sites.",
        rounds=facts.value(SUMMARY, "rounds"),
        sites=facts.value(SUMMARY, "sites", "training"),
    )


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
    rows = (
        ("1 re-training", "2.1, 2.2", "2.3: all bars", "2.4: new run folder and ledger"),
        ("2 recalibration", "2.1: labelled patients of the site", "2.3: slope at the site", "2.4: entry in the site's record"),
        ("3 removal of a hospital", "2.1 without the hospital", "2.3: all bars", "2.4: both ledgers name the other run"),
    )
    columns = ("modification", "data and training", "evaluation", "update")
    return Table("Modifications and protocol", columns, rows, (Source(GUIDELINE, GUIDANCE),))


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
