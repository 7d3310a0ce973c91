"""Technical documentation after Annex IV of the EU AI Act, Regulation (EU) 2024/1689, point by point."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.analysis.dossier.document import Document, Item, Section, make_item, note
from grandrounds.analysis.dossier.documents.model_items import make_model_item
from grandrounds.analysis.dossier.documents.pccp import (
    state_recalibration,
    state_removal,
    state_retraining,
    tabulate_fixed,
)
from grandrounds.analysis.dossier.evidence import PLAN, SUMMARY
from grandrounds.analysis.dossier.facts import Facts
from grandrounds.analysis.dossier.statement import Statement, say
from grandrounds.analysis.dossier.statements import (
    acceptance,
    attacks,
    data,
    monitoring,
    predictors,
    privacy,
    record,
    risks,
    system,
)

ACT = "Regulation (EU) 2024/1689 (AI Act), Annex IV"
DATES = "Digital Omnibus on AI, approved 29 June 2026, as secondary pages give it"


def build(facts: Facts) -> Document:
    """Build the technical documentation of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *record.note_withdrawal(facts),
        note("This text is not legal advice. A provider completes and signs it.", ACT),
        note("Points follow the annex in our words. Whoever relies on them reads the original.", ACT),
        note("Point 3 is one paragraph in the annex; its parts are numbered here.", ACT),
        note(
            "High-risk systems of Annex III: from 2 December 2027. Systems in medical devices: from 2 August 2028. "
            "The dates are from secondary pages and must be checked.",
            DATES,
        ),
        note("The provider keeps this documentation for ten years (Article 18). Logs are kept by design (Article 12).", ACT),
    )
    sections = (
        Section("1 General description", tuple(_describe(facts))),
        Section("2 Elements and development", tuple(_develop(facts))),
        Section("3 Monitoring, functioning and control", tuple(_control(facts))),
        Section("4-9 Metrics, risks, changes, conformity, monitoring after release", tuple(_maintain(facts))),
    )
    return Document("annex-iv", "Technical documentation (EU AI Act, Annex IV)", ACT, notes, sections)


def _describe(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "1(a)", "Purpose, provider, version", "intended purpose, provider, version and its relation to earlier ones",
        data.state_outcome, system.state_version, record.state_earlier_run,
        questions=("intended-purpose", "provider", "system-version"),
    )  # fmt: skip
    yield make_item(
        facts, "1(b)", "Interaction with other systems", "hardware and software with which the system works",
        system.state_interfaces, questions=("other-systems",),
    )  # fmt: skip
    yield make_item(
        facts, "1(c)", "Software versions", "versions of software and firmware, and rules for updates",
        system.state_software, questions=("update-requirements",),
    )  # fmt: skip
    yield make_item(
        facts, "1(d)", "Forms of delivery", "packages, downloads, services in which the system is provided",
        system.state_forms, questions=("delivery-forms",),
    )  # fmt: skip
    yield make_item(
        facts, "1(e)", "Hardware", "hardware on which the system is intended to run",
        system.state_training_hardware, system.state_size, questions=("intended-hardware",),
    )  # fmt: skip
    yield make_item(
        facts, "1(f)", "Product", "images and layout of the product that the system is part of", questions=("product-images",)
    )
    yield make_item(
        facts, "1(g)", "User interface", "interface that users are given",
        system.state_user_interface, questions=("user-interface",),
    )  # fmt: skip
    yield make_item(
        facts, "1(h)", "Instructions for use", "instructions, with the interface",
        system.state_output, predictors.state_poor_inputs, questions=("instructions-for-use",),
    )  # fmt: skip


def _develop(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "2(a)", "Methods and steps", "how the system was developed, with pre-trained or third-party parts",
        system.state_components, state_training, system.state_pretrained, record.state_plan,
    )  # fmt: skip
    yield make_item(
        facts, "2(b)", "Design", "logic, choices and their grounds, what is optimised, output, trade-offs",
        state_objective, system.state_size, system.state_output, tabulate_fixed, questions=("design-rationale",),
    )  # fmt: skip
    yield make_item(
        facts, "2(c)", "Architecture and compute", "how components work together, and the resources used",
        system.state_components, system.state_compute, privacy.state_traffic, system.state_training_hardware,
    )  # fmt: skip
    yield make_item(
        facts, "2(d)", "Data", "data sets, provenance, scope, selection, labelling, cleaning",
        data.state_data_set, data.state_sites, data.state_site_origin, data.state_rows, data.state_unit, data.tabulate_sites,
        predictors.state_columns, predictors.state_missing, predictors.state_encoding, predictors.state_quality,
        questions=("reference-standard", "data-subjects"),
    )  # fmt: skip
    yield make_item(
        facts, "2(e)", "Human oversight: assessment", "measures needed, with help to interpret outputs",
        system.state_attribution_tools, system.state_user_interface, questions=("human-oversight",),
    )  # fmt: skip
    yield make_model_item(
        facts, "2(f)", "Pre-determined changes", "planned changes and how compliance is kept",
        state_retraining, record.state_plan, state_recalibration, state_removal, acceptance.state_bars,
        questions=("pccp-modifications",),
    )  # fmt: skip
    yield make_item(
        facts, "2(g)", "Validation and testing", "procedures, data, metrics, discrimination, logs dated and signed",
        data.state_partition, data.tabulate_events, acceptance.tabulate_bars,
        record.state_ledger, record.state_keys, record.state_proofs, record.state_verification, record.state_dates,
        questions=("test-signature",),
    )  # fmt: skip
    yield make_item(
        facts, "2(h)", "Cybersecurity", "measures against attacks",
        system.tabulate_security, privacy.state_secure, privacy.state_guarantee, attacks.state_membership,
        questions=("security-measures",),
    )  # fmt: skip


def _control(facts: Facts) -> Iterator[Item]:
    yield make_model_item(
        facts, "3.1", "Capabilities and limits", "accuracy overall and for specific persons or groups",
        acceptance.tabulate_bars, risks.state_small_sites, risks.state_warnings,
    )  # fmt: skip
    yield make_model_item(
        facts, "3.2", "Unintended outcomes", "foreseeable harm and sources of risk to health, safety and rights",
        risks.tabulate_hazards, questions=("foreseeable-misuse",),
    )  # fmt: skip
    yield make_item(
        facts, "3.3", "Human oversight: measures", "oversight in place, with technical help to interpret outputs",
        system.state_attribution_tools, questions=("human-oversight",),
    )  # fmt: skip
    yield make_item(
        facts, "3.4", "Input data", "specification of inputs",
        predictors.state_columns, predictors.tabulate_columns, predictors.state_poor_inputs,
    )  # fmt: skip


def _maintain(facts: Facts) -> Iterator[Item]:
    yield make_model_item(
        facts, "4", "Suitability of metrics", "why the metrics suit this system",
        state_majority, state_calibration, questions=("metric-suitability",),
    )  # fmt: skip
    yield make_item(
        facts, "5", "Risk management", "risk management system of Article 9",
        system.tabulate_security, risks.tabulate_hazards, questions=("risk-management",),
    )  # fmt: skip
    yield make_item(
        facts, "6", "Changes over the life cycle", "changes that the provider made",
        record.tabulate_changes, record.state_changes, monitoring.state_actions, monitoring.tabulate_actions,
    )  # fmt: skip
    yield make_item(facts, "7", "Standards", "harmonised standards, or the solutions used instead", questions=("standards",))
    yield make_item(facts, "8", "Declaration of conformity", "copy of the EU declaration", questions=("declaration",))
    yield make_item(
        facts, "9", "Monitoring after release", "system and plan to evaluate performance in use (Article 72)",
        monitoring.state_watch, monitoring.tabulate_rates, monitoring.tabulate_watches,
        questions=("monitoring-plan", "serious-incidents"),
    )  # fmt: skip


def state_training(facts: Facts) -> Statement:
    """State method, model, rounds and sites."""
    return say(
        "Model '{model}' was fitted by method '{method}' in {rounds} rounds at {sites} sites.",
        model=facts.value(SUMMARY, "model"),
        method=facts.value(SUMMARY, "method"),
        rounds=facts.value(SUMMARY, "rounds"),
        sites=data.count_training_sites(facts),
    )


def state_objective(facts: Facts) -> Iterator[Statement]:
    """State what training optimises and how sites are weighted."""
    if facts.has(PLAN, "train", "objective"):
        yield say("Training minimises the objective '{objective}'.", objective=facts.value(PLAN, "train", "objective"))
    elif facts.has(SUMMARY, "task"):
        yield say("Training fits the outcome as a task of {task}.", task=facts.value(SUMMARY, "task"))
    yield say(
        "The server weighs sites by the rule '{rule}'; class weights are '{classes}'.",
        rule=facts.value(PLAN, "method", "weigh", "rule"),
        classes=facts.value(PLAN, "train", "class_weights"),
    )


def state_majority(facts: Facts) -> Iterator[Statement]:
    """State the accuracy of always naming the commoner class, against which accuracy is read."""
    if facts.has(SUMMARY, "final", "majority"):
        yield say(
            "Always naming the commoner class is right for {majority} of test rows; the model's decisions for {accuracy}.",
            majority=facts.value(SUMMARY, "final", "majority", show=".1%"),
            accuracy=facts.value(SUMMARY, "final", "decision_accuracy", show=".1%"),
        )
        yield say(
            "Accuracy alone tells little where one class is rare; AUROC and calibration are reported as well.",
            facts.source(SUMMARY, "final"),
        )
    else:
        names = facts.value(SUMMARY, "final")
        shown = facts.derive(sorted(names.value), "names of metrics in final", names)
        yield say("The run reports these metrics: {names}.", names=shown)


def state_calibration(facts: Facts) -> Iterator[Statement]:
    """State the calibration of risks, where the model has risks."""
    if facts.has(SUMMARY, "final", "calibration_slope"):
        yield say(
            "The calibration slope on test rows is {slope} (1 is right), and the expected calibration error {ece}.",
            slope=facts.value(SUMMARY, "final", "calibration_slope", show=".2f"),
            ece=facts.value(SUMMARY, "final", "ece", show=".3f"),
        )
