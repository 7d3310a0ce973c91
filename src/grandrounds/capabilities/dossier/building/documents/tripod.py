"""Checklist of TRIPOD+AI with the items of the report that a run can fill.

Collins GS, Moons KGM, Dhiman P, et al. TRIPOD+AI statement: updated guidance for reporting clinical prediction models that use
regression or machine learning methods. BMJ 2024;385:e078378. 27 items, 52 sub-items; what each asks for is in our words.
"""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document, note
from grandrounds.capabilities.dossier.building.documents.form import (
    Field,
    exclude_without_model,
    fill_form,
    warn_reader,
)
from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import Statement, say
from grandrounds.capabilities.dossier.building.statements import (
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
    study,
    system,
    updates,
)
from grandrounds.capabilities.dossier.building.statements.run_kind import classifies, trains_model

NAME, TITLE = "tripod-ai", "TRIPOD+AI checklist"
REFERENCE = "TRIPOD+AI, Collins et al., BMJ 2024;385:e078378, 27 items with 52 sub-items, in our words"


def _exclude_imbalance(facts: Facts) -> Statement | None:
    if classifies(facts):
        return None
    return say("The outcome has no classes, so classes cannot be imbalanced.", facts.source(SUMMARY, "task"))


def _exclude_updates(facts: Facts) -> Statement | None:
    if updates.has_updates(facts) or any(monitoring.state_actions(facts)):
        return None
    return say("The model was not updated after its evaluation.", facts.source(SUMMARY, "personal"))


TITLE_ABSTRACT = (
    Field(
        "1",
        "Title",
        "Name the study as development or evaluation of a prediction model, with population and outcome.",
        (study.draft_title,),
        ("study-title",),
    ),
    Field(
        "2",
        "Abstract",
        "Summarise the study by the 13 items for abstracts.",
        (study.state_aim, data.state_rows, performance.state_headline),
        ("abstract",),
    ),
)
INTRODUCTION = (
    Field(
        "3a",
        "Background: context",
        "Explain the clinical context, the rationale and existing models.",
        (),
        ("healthcare-context",),
    ),
    Field(
        "3b",
        "Background: purpose",
        "Describe target population, place in the care pathway, and users.",
        (),
        ("intended-purpose",),
    ),
    Field(
        "3c",
        "Background: inequalities",
        "Describe known health inequalities between groups.",
        (),
        ("health-inequalities",),
    ),
    Field(
        "4", "Objectives", "State the objectives: development, evaluation or both.", (study.state_aim,), ("objectives",)
    ),
)
METHODS = (
    Field(
        "5a",
        "Data: sources",
        "Describe the sources of development and evaluation data, why they were used, and whom they represent.",
        (data.state_data_set, data.state_site_origin, data.state_unit),
        ("data-source",),
    ),
    Field(
        "5b", "Data: dates", "Give start and end of inclusion and of follow-up.", (data.state_dates,), ("study-dates",)
    ),
    Field(
        "6a",
        "Participants: setting",
        "Describe the setting, with number and location of centres.",
        (data.state_sites, data.state_site_origin),
        ("setting",),
    ),
    Field("6b", "Participants: eligibility", "Describe the criteria of eligibility.", (), ("eligibility",)),
    Field("6c", "Participants: treatments", "Describe treatments and how they were handled.", (), ("treatments",)),
    Field(
        "7",
        "Data preparation",
        "Describe preparation and quality checks of the data, and whether they were similar across groups.",
        (predictors.state_encoding, predictors.state_quality, predictors.tabulate_notes),
        ("data-cleaning",),
    ),
    Field(
        "8a",
        "Outcome: definition",
        "Define outcome and horizon, how and when it was assessed, why it was chosen, and consistency across groups.",
        (data.state_outcome,),
        ("outcome-definition",),
    ),
    Field(
        "8b", "Outcome: assessors", "If assessment needs judgement, describe the assessors.", (), ("outcome-assessors",)
    ),
    Field(
        "8c", "Outcome: blinding", "Report measures to blind the assessment of the outcome.", (), ("outcome-blinding",)
    ),
    Field(
        "9a",
        "Predictors: choice",
        "Describe the choice of initial predictors and any selection before the model was built.",
        (predictors.state_columns, predictors.state_choice),
        ("predictor-choice",),
    ),
    Field(
        "9b",
        "Predictors: definition",
        "Define all predictors, with how and when they were measured.",
        (predictors.define_predictors,),
        ("predictor-measurement",),
    ),
    Field(
        "9c",
        "Predictors: assessors",
        "If measurement needs judgement, describe the assessors.",
        (),
        ("predictor-assessors",),
    ),
    Field(
        "10",
        "Sample size",
        "Explain the size of the study, for development and evaluation, and why it suffices.",
        (data.state_rows, data.tabulate_sites, model.state_events_per_parameter),
        ("sample-size",),
    ),
    Field(
        "11",
        "Missing data",
        "Describe how missing data were handled, and why data were left out.",
        (predictors.state_missing, predictors.state_gaps),
    ),
    Field(
        "12a",
        "Analysis: use of the data",
        "Describe how the data were used and divided for development and evaluation.",
        (data.state_partition, data.state_rows),
    ),
    Field(
        "12b",
        "Analysis: predictors",
        "Describe functional form, rescaling, transformation and standardisation of predictors.",
        (predictors.state_encoding,),
    ),
    Field(
        "12c",
        "Analysis: model building",
        "Give the type of model with its rationale, all steps of building and tuning, and the internal validation.",
        (model.state_model, model.state_training, model.tabulate_settings, data.state_partition),
        ("design-rationale", "tuning"),
    ),
    Field(
        "12d",
        "Analysis: heterogeneity across sites",
        "Describe how differences of parameters and performance between clusters were handled and quantified.",
        (heterogeneity.state_heterogeneity_methods,),
    ),
    Field(
        "12e",
        "Analysis: measures of performance",
        "Name all measures and plots, and why they were chosen.",
        (performance.tabulate_measures, performance.state_plots),
        ("metric-suitability",),
    ),
    Field(
        "12f",
        "Analysis: model updating",
        "Describe updates of the model that arose from the evaluation.",
        (updates.state_updating, monitoring.state_actions),
    ),
    Field(
        "12g",
        "Analysis: predictions",
        "Describe how predictions were calculated in the evaluation.",
        (model.state_prediction, record.state_model_hash),
    ),
    Field(
        "13",
        "Class imbalance",
        "State methods against class imbalance, why they were used, and recalibration after them.",
        (model.state_imbalance,),
        exclude=_exclude_imbalance,
    ),
    Field(
        "14",
        "Fairness",
        "Describe approaches to fairness of the model, and why they were used.",
        (groups.state_fairness_approach,),
        ("fairness-rationale",),
    ),
    Field(
        "15",
        "Model output",
        "Specify the output, any classification, and how thresholds were found.",
        (system.state_output, model.state_threshold_choice),
        ("threshold-rationale",),
    ),
    Field(
        "16",
        "Development versus evaluation",
        "Name differences between development and evaluation data in setting, eligibility, outcome and predictors.",
        (study.state_same_sites, data.tabulate_events, data.require_known_events),
        ("evaluation-differences",),
    ),
    Field(
        "17",
        "Ethical approval",
        "Name the ethics committee, and describe consent or its waiver.",
        (),
        ("ethics-approval",),
    ),
)
OPEN_SCIENCE = (
    Field("18a", "Funding", "Name the funders and their role.", (), ("funding",)),
    Field("18b", "Conflicts of interest", "Declare conflicts of interest of all authors.", (), ("conflicts",)),
    Field(
        "18c",
        "Protocol",
        "Say where the protocol is, or that there is none.",
        (study.state_recorded_plan,),
        ("protocol",),
    ),
    Field(
        "18d",
        "Registration",
        "Give register and number, or say that the study is not registered.",
        (),
        ("registration",),
    ),
    Field(
        "18e",
        "Data sharing",
        "Describe the availability of the data.",
        (privacy.state_rows_stay,),
        ("data-availability",),
    ),
    Field(
        "18f",
        "Code sharing",
        "Describe the availability of the analysis code.",
        (model.state_code,),
        ("code-availability",),
    ),
)
INVOLVEMENT = (
    Field(
        "19",
        "Patient and public involvement",
        "Describe involvement, or state that there was none.",
        (),
        ("patient-involvement",),
    ),
)
RESULTS = (
    Field(
        "20a",
        "Participants: flow",
        "Describe the flow of participants, with and without the outcome, and follow-up time.",
        (data.state_rows, data.state_events, data.require_follow_up),
        ("excluded-patients",),
    ),
    Field(
        "20b",
        "Participants: characteristics",
        "Report characteristics overall and by source: dates, predictors, sample size, events, missing data.",
        (data.tabulate_sites, predictors.require_characteristics, predictors.tabulate_columns),
        ("treatments", "study-dates"),
    ),
    Field(
        "20c",
        "Participants: comparison",
        "Compare development and evaluation data in predictors and outcome.",
        (data.tabulate_events, data.require_known_events, study.require_test_distribution),
    ),
    Field(
        "21",
        "Model development",
        "Give participants and events in each analysis.",
        (data.tabulate_analyses, data.require_known_events, data.tabulate_sites, data.state_unit),
    ),
    Field(
        "22",
        "Model specification",
        "Give the full model so that others can predict, with restrictions of access.",
        (model.state_specification, record.state_model_hash, model.tabulate_coefficients),
        ("model-access",),
    ),
    Field(
        "23a",
        "Performance",
        "Report performance with confidence intervals, also for key subgroups.",
        (
            performance.state_headline,
            performance.state_calibration_figures,
            performance.state_decisions,
            performance.state_net_benefit,
            performance.tabulate_metrics,
            performance.require_intervals,
            groups.tabulate_subgroups,
            groups.state_group_gaps,
        ),
    ),
    Field(
        "23b",
        "Performance: heterogeneity across sites",
        "Report heterogeneity of performance across clusters.",
        (
            heterogeneity.tabulate_per_site,
            heterogeneity.state_heterogeneity,
            heterogeneity.state_worst_site,
            heterogeneity.tabulate_heterogeneity,
        ),
    ),
    Field(
        "24",
        "Model updating",
        "Report the updated model and its performance.",
        (updates.state_updating, updates.state_update_results, updates.tabulate_updates, monitoring.tabulate_actions),
        exclude=_exclude_updates,
    ),
)
DISCUSSION = (
    Field(
        "25",
        "Interpretation",
        "Interpret the main results, with fairness, objectives and earlier studies.",
        (performance.state_headline, heterogeneity.state_worst_site, groups.state_group_gaps),
        ("interpretation",),
    ),
    Field(
        "26",
        "Limitations",
        "Discuss limitations and their effect on bias, uncertainty and generalisability.",
        (
            risks.state_warnings,
            performance.state_simulated_faults,
            performance.state_limits,
            performance.state_overfitting,
        ),
        ("limitations",),
    ),
    Field(
        "27a",
        "Usability: poor input data",
        "Describe how poor or missing input data are assessed and handled in use.",
        (predictors.state_poor_inputs, monitoring.state_watch),
    ),
    Field(
        "27b",
        "Usability: users",
        "Say whether users must interact with inputs or model, and which expertise they need.",
        (),
        ("user-interaction",),
    ),
    Field("27c", "Next steps", "Discuss further research, for use at other places.", (), ("next-steps",)),
)
FORM = (
    ("Title and abstract", TITLE_ABSTRACT),
    ("Introduction", INTRODUCTION),
    ("Methods", METHODS),
    ("Open science", OPEN_SCIENCE),
    ("Patient and public involvement", INVOLVEMENT),
    ("Results", RESULTS),
    ("Discussion", DISCUSSION),
)
"""Sections of the checklist with their sub-items."""


def build(facts: Facts) -> Document:
    """Build the checklist.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document; one item that is not applicable for a run without a prediction model.
    """
    scope = note(
        "The checklist reports a study; it does not judge its quality. Questions are for people who know the study.",
        REFERENCE,
    )
    sections = fill_form(facts, FORM) if trains_model(facts) else exclude_without_model(facts, "TRIPOD+AI")
    return Document(NAME, TITLE, REFERENCE, (*warn_reader(facts), scope), sections)
