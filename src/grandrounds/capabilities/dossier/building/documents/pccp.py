"""Predetermined change control plan after the FDA's guidance of December 2024, with the ten principles of good practice."""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document, note
from grandrounds.capabilities.dossier.building.documents.applicability import exclude_statistics, only, reads_table
from grandrounds.capabilities.dossier.building.documents.form import Field, fill_form, warn_reader
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statements import (
    acceptance,
    data,
    groups,
    heterogeneity,
    model,
    modifications,
    monitoring,
    performance,
    predictors,
    privacy,
    record,
    risks,
    system,
)
from grandrounds.capabilities.dossier.building.statements.modifications import GUIDANCE
from grandrounds.capabilities.dossier.building.statements.run_kind import has_event

PRINCIPLES = "Good Machine Learning Practice, guiding principles (FDA, Health Canada, MHRA, 2021)"

_MODIFICATIONS = (
    Field(
        "1.1", "Modification 1: re-training by the same plan", "the planned change and its specification",
        (modifications.state_retraining, record.state_plan, modifications.state_settings_digest, modifications.tabulate_fixed,
         modifications.tabulate_free),
        questions=("pccp-modifications", "pccp-settings"), exclude=exclude_statistics,
    ),
    Field(
        "1.2", "Modification 2: recalibration at one hospital", "the planned change and its specification",
        (modifications.state_recalibration,),
        questions=("pccp-modifications",), exclude=modifications.exclude_recalibration,
    ),
    Field(
        "1.3", "Modification 3: removal of a hospital", "the planned change and its specification",
        (modifications.state_removal, record.state_earlier_run),
        questions=("pccp-modifications",),
    ),
    Field(
        "1.4", "Scope", "automatic or by hand, at all users or at single ones, how often",
        (modifications.state_scope,),
        questions=("pccp-frequency",),
    ),
)  # fmt: skip

_PROTOCOL = (
    Field(
        "2.1", "Data management", "sources, quality, reference standard, separation of training and test data",
        (data.state_partition, data.state_rows, only(reads_table, predictors.state_missing), predictors.state_encoding),
        questions=("pccp-data", "reference-standard"),
    ),
    Field(
        "2.2", "Re-training", "what is trained, by which procedure, and what stays as it is",
        (model.state_model, model.state_training, modifications.state_procedure, record.state_plan, privacy.state_guarantee),
        questions=("pccp-settings",), exclude=exclude_statistics,
    ),
    Field(
        "2.3", "Performance evaluation", "tests, metrics and acceptance bars; what happens if one is missed",
        (acceptance.state_bars, acceptance.tabulate_bars, modifications.state_failure),
        questions=("pccp-bars",), exclude=exclude_statistics,
    ),
    Field(
        "2.4", "Update procedure", "verification, release, labelling, communication, roll-back",
        (record.state_verification, record.state_rollback, modifications.state_refusal),
        questions=("pccp-update", "pccp-rollback"),
    ),
    Field(
        "2.5", "Traceability", "which part of the protocol supports which modification",
        (modifications.tabulate_traceability,),
    ),
    Field(
        "2.6", "Monitoring", "how the device is watched after a modification",
        (monitoring.state_watch, monitoring.tabulate_plan, monitoring.tabulate_watches),
        questions=("monitoring-plan",), exclude=exclude_statistics,
    ),
)  # fmt: skip

_IMPACT = (
    Field(
        "3.1", "Comparison", "the device with each modification against the device without any",
        (record.state_model_hash, modifications.state_comparison),
        exclude=exclude_statistics,
    ),
    Field(
        "3.2", "Benefits and risks", "benefit, risk of harm and unintended bias of each modification",
        (risks.tabulate_hazards, risks.state_small_sites),
        questions=("pccp-benefit",), exclude=exclude_statistics,
    ),
    Field(
        "3.3", "Mitigation", "how verification and validation keep the device safe and effective",
        (modifications.state_bars_guard, record.state_ledger),
        questions=("risk-management",), exclude=exclude_statistics,
    ),
    Field(
        "3.4", "One modification on another", "effect of implementing one modification on the others",
        (modifications.state_order,),
        questions=("pccp-collective",),
    ),
    Field(
        "3.5", "Collective impact", "effect of all modifications together",
        questions=("pccp-collective",),
    ),
)  # fmt: skip

_PRINCIPLES = (
    Field(
        "G1", "Expertise of several disciplines", "experts over the whole life cycle",
        questions=("team",),
    ),
    Field(
        "G2", "Software engineering and security", "good practice in software, data quality and security",
        (system.state_software, record.state_verification, system.tabulate_security),
        questions=("security-measures",),
    ),
    Field(
        "G3", "Representative data", "participants and data that represent the intended patients",
        (data.state_sites, data.state_rows, risks.state_small_sites),
        questions=("data-subjects",),
    ),
    Field(
        "G4", "Independent training and test data", "no patient in both",
        (data.state_partition, data.state_unit),
    ),
    Field(
        "G5", "Reference datasets", "the best available way to establish the outcome",
        (data.state_outcome,),
        questions=("reference-standard",),
    ),
    Field(
        "G6", "Design that fits data and use", "measures against overfitting and known risks",
        (privacy.state_ratio, only(has_event, model.state_events_per_parameter), performance.state_overfitting),
        questions=("intended-purpose",), exclude=exclude_statistics,
    ),
    Field(
        "G7", "The human and the model as a team", "performance of the user with the model",
        (system.state_attribution_tools,),
        questions=("human-oversight", "human-team"), exclude=exclude_statistics,
    ),
    Field(
        "G8", "Clinically relevant tests", "performance under conditions of use, by site and subgroup",
        (performance.state_headline, heterogeneity.tabulate_per_site, groups.tabulate_subgroups),
        questions=("clinical-conditions",), exclude=exclude_statistics,
    ),
    Field(
        "G9", "Clear information for users", "intended use, performance, data, limits",
        (modifications.state_information,),
        questions=("instructions-for-use",),
    ),
    Field(
        "G10", "Monitored models", "deployed models are watched, and risks of re-training managed",
        (monitoring.state_watch, monitoring.tabulate_watches),
        questions=("monitoring-plan",), exclude=exclude_statistics,
    ),
)  # fmt: skip

FORM = (
    ("Description of modifications", _MODIFICATIONS),
    ("Modification protocol", _PROTOCOL),
    ("Impact assessment", _IMPACT),
    ("Good machine learning practice: ten principles", _PRINCIPLES),
)


def build(facts: Facts) -> Document:
    """Build the change control plan of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *warn_reader(facts),
        note("This document is a draft that a manufacturer completes and submits.", GUIDANCE),
        note("Items follow the guidance in our words. Whoever relies on them reads the original.", GUIDANCE),
        note("Dates and titles are from secondary pages and must be checked.", GUIDANCE),
    )
    reference = f"{GUIDANCE}; {PRINCIPLES}"
    return Document("pccp", "Predetermined change control plan", reference, notes, fill_form(facts, FORM))
