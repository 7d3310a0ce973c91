"""Technical documentation after Annex IV of the EU AI Act, Regulation (EU) 2024/1689, point by point."""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document, note
from grandrounds.capabilities.dossier.building.documents.applicability import exclude_statistics, only, reads_table
from grandrounds.capabilities.dossier.building.documents.form import Field, fill_form, warn_reader
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statements import (
    acceptance,
    attacks,
    data,
    explanations,
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
from grandrounds.capabilities.dossier.building.statements.run_kind import classifies, has_event, trains_model

ACT = "Regulation (EU) 2024/1689 (AI Act), Annex IV"
DATES = "Digital Omnibus on AI, approved 29 June 2026, as secondary pages give it"

_GENERAL = (
    Field(
        "1(a)", "Purpose, provider, version", "intended purpose, provider, version and its relation to earlier ones",
        (data.state_outcome, system.state_version, record.state_earlier_run),
        questions=("intended-purpose", "provider", "system-version"),
    ),
    Field(
        "1(b)", "Interaction with other systems", "hardware and software with which the system works",
        (system.state_interfaces,),
        questions=("other-systems",), exclude=exclude_statistics,
    ),
    Field(
        "1(c)", "Software versions", "versions of software and firmware, and rules for updates",
        (system.state_software,),
        questions=("update-requirements",),
    ),
    Field(
        "1(d)", "Forms of delivery", "packages, downloads, services in which the system is provided",
        (system.state_forms, model.state_specification),
        questions=("delivery-forms",),
    ),
    Field(
        "1(e)", "Hardware", "hardware on which the system is intended to run",
        (system.state_training_hardware, only(trains_model, system.state_size)),
        questions=("intended-hardware",),
    ),
    Field(
        "1(f)", "Product", "images and layout of the product that the system is part of",
        questions=("product-images",),
    ),
    Field(
        "1(g)", "User interface", "interface that users are given",
        (system.state_user_interface,),
        questions=("user-interface",),
    ),
    Field(
        "1(h)", "Instructions for use", "instructions, with the interface",
        (system.state_output, predictors.state_poor_inputs),
        questions=("instructions-for-use",), exclude=exclude_statistics,
    ),
)  # fmt: skip

_DEVELOPMENT = (
    Field(
        "2(a)", "Methods and steps", "how the system was developed, with pre-trained or third-party parts",
        (system.state_components, model.state_model, model.state_training, system.state_pretrained, record.state_plan),
    ),
    Field(
        "2(b)", "Design", "logic, choices and their grounds, what is optimised, output, trade-offs",
        (model.state_model, model.tabulate_settings, only(classifies, model.state_imbalance), model.state_calibration,
         only(classifies, model.state_threshold_choice), heterogeneity.state_heterogeneity_methods, system.state_output),
        questions=("design-rationale",), exclude=exclude_statistics,
    ),
    Field(
        "2(c)", "Architecture and compute", "how components work together, and the resources used",
        (system.state_components, system.state_compute, privacy.state_traffic, system.state_training_hardware),
    ),
    Field(
        "2(d)", "Data", "data sets, provenance, scope, selection, labelling, cleaning",
        (data.state_data_set, data.state_sites, data.state_site_origin, data.state_rows, data.state_unit, data.tabulate_sites,
         predictors.state_columns, only(reads_table, predictors.state_missing), predictors.state_encoding,
         predictors.state_quality),
        questions=("reference-standard", "data-subjects"),
    ),
    Field(
        "2(e)", "Human oversight: assessment", "measures needed, with help to interpret outputs",
        (system.state_attribution_tools, explanations.state_agreement, explanations.state_meaning,
         system.state_user_interface),
        questions=("human-oversight",), exclude=exclude_statistics,
    ),
    Field(
        "2(f)", "Pre-determined changes", "planned changes and how compliance is kept",
        (modifications.state_retraining, record.state_plan,
         only(modifications.can_recalibrate, modifications.state_recalibration), modifications.state_removal,
         acceptance.state_bars),
        questions=("pccp-modifications",), exclude=exclude_statistics,
    ),
    Field(
        "2(g)", "Validation and testing", "procedures, data, metrics, discrimination, logs dated and signed",
        (data.state_partition, only(has_event, data.tabulate_events), performance.tabulate_measures,
         performance.tabulate_metrics, heterogeneity.tabulate_per_site, groups.tabulate_subgroups, groups.state_group_gaps,
         record.state_ledger, record.state_keys, record.state_proofs, record.state_verification, record.state_dates),
        questions=("test-signature",), exclude=exclude_statistics,
    ),
    Field(
        "2(h)", "Cybersecurity", "measures against attacks",
        (system.tabulate_security, privacy.state_secure, privacy.state_guarantee,
         only(trains_model, attacks.state_membership)),
        questions=("security-measures",),
    ),
)  # fmt: skip

_CONTROL = (
    Field(
        "3.1", "Capabilities and limits", "accuracy overall and for specific persons or groups",
        (performance.state_headline, performance.state_calibration_figures, performance.state_decisions,
         heterogeneity.tabulate_per_site, only(classifies, heterogeneity.state_heterogeneity), heterogeneity.state_worst_site,
         groups.tabulate_subgroups, risks.state_small_sites, performance.state_limits),
        exclude=exclude_statistics,
    ),
    Field(
        "3.2", "Unintended outcomes", "foreseeable harm and sources of risk to health, safety and rights",
        (risks.tabulate_hazards,),
        questions=("foreseeable-misuse",), exclude=exclude_statistics,
    ),
    Field(
        "3.3", "Human oversight: measures", "oversight in place, with technical help to interpret outputs",
        (system.state_attribution_tools, explanations.tabulate_features),
        questions=("human-oversight",), exclude=exclude_statistics,
    ),
    Field(
        "3.4", "Input data", "specification of inputs",
        (predictors.state_columns, only(reads_table, predictors.tabulate_columns), predictors.state_poor_inputs),
        exclude=exclude_statistics,
    ),
)  # fmt: skip

_LIFE_CYCLE = (
    Field(
        "4", "Suitability of metrics", "why the metrics suit this system",
        (performance.tabulate_measures, performance.state_decisions, performance.state_calibration_figures,
         performance.state_net_benefit),
        questions=("metric-suitability",), exclude=exclude_statistics,
    ),
    Field(
        "5", "Risk management", "risk management system of Article 9",
        (system.tabulate_security, only(trains_model, risks.tabulate_hazards)),
        questions=("risk-management",),
    ),
    Field(
        "6", "Changes over the life cycle", "changes that the provider made",
        (record.tabulate_changes, record.state_changes, monitoring.state_actions, monitoring.tabulate_actions),
    ),
    Field(
        "7", "Standards", "harmonised standards, or the solutions used instead",
        questions=("standards",),
    ),
    Field(
        "8", "Declaration of conformity", "copy of the EU declaration",
        questions=("declaration",),
    ),
    Field(
        "9", "Monitoring after release", "system and plan to evaluate performance in use (Article 72)",
        (monitoring.state_watch, monitoring.tabulate_plan, monitoring.tabulate_rates, monitoring.tabulate_watches),
        questions=("monitoring-plan", "serious-incidents"), exclude=exclude_statistics,
    ),
)  # fmt: skip

FORM = (
    ("1 General description", _GENERAL),
    ("2 Elements and development", _DEVELOPMENT),
    ("3 Monitoring, functioning and control", _CONTROL),
    ("4-9 Metrics, risks, changes, conformity, monitoring after release", _LIFE_CYCLE),
)


def build(facts: Facts) -> Document:
    """Build the technical documentation of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *warn_reader(facts),
        note("A provider completes and signs this document.", ACT),
        note("Points follow the annex in our words. Whoever relies on them reads the original.", ACT),
        note("Point 3 is one paragraph in the annex; its parts are numbered here.", ACT),
        note(
            "High-risk systems of Annex III: from 2 December 2027. Systems in medical devices: from 2 August 2028. "
            "The dates are from secondary pages and must be checked.",
            DATES,
        ),
        note("The provider keeps this documentation for ten years (Article 18). Logs are kept by design (Article 12).", ACT),
    )
    return Document("annex-iv", "Technical documentation (EU AI Act, Annex IV)", ACT, notes, fill_form(facts, FORM))
