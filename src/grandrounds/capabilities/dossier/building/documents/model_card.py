"""Model card of a run.

Mitchell M, Wu S, Zaldivar A, et al. Model cards for model reporting. FAT* 2019. What each section asks for is in our words.
"""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document
from grandrounds.capabilities.dossier.building.documents.form import (
    Field,
    exclude_without_model,
    fill_form,
    warn_reader,
)
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import cite_page, say
from grandrounds.capabilities.dossier.building.statements import (
    attacks,
    data,
    explanations,
    groups,
    heterogeneity,
    model,
    performance,
    predictors,
    privacy,
    record,
    risks,
    system,
)
from grandrounds.capabilities.dossier.building.statements.run_kind import trains_model

NAME, TITLE = "model-card", "Model card"
REFERENCE = "Model cards for model reporting, Mitchell et al., FAT* 2019, in our words"

DETAILS = (
    Field("", "Developer and contact", "Name the people or organisation behind the model.", (), ("provider",)),
    Field(
        "",
        "Version and type",
        "Give version, type of model and how it was trained.",
        (
            system.state_version,
            model.state_model,
            model.state_training,
            model.tabulate_settings,
            record.state_model_hash,
        ),
    ),
    Field("", "Licence and access", "Say who may use the model and how.", (system.state_forms,), ("model-access",)),
)
USE = (
    Field(
        "",
        "Intended use and users",
        "Describe the intended use and the users.",
        (system.state_output,),
        ("intended-purpose",),
    ),
    Field("", "Uses out of scope", "Name uses that the model is not made for.", (), ("out-of-scope-use",)),
    Field(
        "",
        "Inputs",
        "Describe the input, and what happens with inputs of poor quality.",
        (predictors.state_columns, predictors.state_poor_inputs),
    ),
)
FACTORS = (
    Field(
        "",
        "Groups",
        "Name the groups and conditions over which performance can vary.",
        (groups.state_fairness_approach,),
        ("fairness-rationale",),
    ),
    Field("", "Sites", "Name the places over which performance can vary.", (data.state_sites, data.state_site_origin)),
)
METRICS = (
    Field(
        "",
        "Measures",
        "Name the measures and why they were chosen.",
        (performance.tabulate_measures, performance.state_plots),
        ("metric-suitability",),
    ),
    Field(
        "",
        "Decision threshold",
        "Give the threshold and how it was found.",
        (model.state_threshold_choice,),
        ("threshold-rationale",),
    ),
)
DATA = (
    Field(
        "",
        "Evaluation data",
        "Describe the data of the evaluation.",
        (data.state_partition, data.tabulate_analyses, data.require_known_events),
        ("data-source",),
    ),
    Field(
        "",
        "Training data",
        "Describe the data of training.",
        (data.state_data_set, data.state_rows, data.state_unit, predictors.state_missing, predictors.state_encoding),
    ),
)
ANALYSES = (
    Field(
        "",
        "Overall results",
        "Report performance with intervals.",
        (
            performance.state_headline,
            performance.state_calibration_figures,
            performance.state_decisions,
            performance.state_net_benefit,
            performance.tabulate_metrics,
            performance.require_intervals,
        ),
    ),
    Field(
        "",
        "Results by group",
        "Report performance by group, and gaps between groups.",
        (groups.tabulate_subgroups, groups.state_group_gaps),
    ),
    Field(
        "",
        "Results by site",
        "Report performance by site, and its heterogeneity.",
        (heterogeneity.tabulate_per_site, heterogeneity.state_heterogeneity, heterogeneity.state_worst_site),
    ),
    Field(
        "",
        "Feature attributions",
        "Describe the features that the model relies on.",
        (explanations.tabulate_features, explanations.state_agreement, explanations.state_meaning),
    ),
)
ETHICS = (
    Field(
        "",
        "Privacy",
        "Describe sensitive data, and what the model can reveal about patients.",
        (
            privacy.state_rows_stay,
            privacy.state_guarantee,
            privacy.state_secure,
            attacks.state_membership,
        ),
    ),
    Field(
        "",
        "Risks and inequalities",
        "Describe risks, and inequalities that the model can increase.",
        (),
        ("health-inequalities",),
    ),
)
CAVEATS = (
    Field(
        "",
        "Limits and recommendations",
        "Name limits of the evaluation, and recommendations for use.",
        (
            risks.state_warnings,
            performance.state_simulated_faults,
            performance.state_limits,
            performance.state_overfitting,
        ),
        ("limitations",),
    ),
    Field(
        "",
        "Record",
        "Say how figures and model are verified.",
        (record.state_ledger, record.state_verification, record.state_keys),
    ),
)
FORM = (
    ("Model details", DETAILS),
    ("Intended use", USE),
    ("Factors", FACTORS),
    ("Metrics", METRICS),
    ("Data", DATA),
    ("Quantitative analyses", ANALYSES),
    ("Ethical considerations", ETHICS),
    ("Caveats and recommendations", CAVEATS),
)
"""Sections of the model card with their fields."""


def build(facts: Facts) -> Document:
    """Build the model card.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document; one item that is not applicable for a run without a prediction model.
    """
    text = "The model is for research until the intended purpose is answered. It is not a medical device."
    scope = say(text, cite_page("own-data.md"))
    sections = fill_form(facts, FORM) if trains_model(facts) else exclude_without_model(facts, "A model card")
    return Document(NAME, TITLE, REFERENCE, (*warn_reader(facts), scope), sections)
