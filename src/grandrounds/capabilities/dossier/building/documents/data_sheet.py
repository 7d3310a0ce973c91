"""Data sheet of a run's data.

Gebru T, Morgenstern J, Vecchione B, et al. Datasheets for datasets. Communications of the ACM 2021;64(12). What each section asks
for is in our words.
"""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document, note
from grandrounds.capabilities.dossier.building.documents.form import Field, fill_form, warn_reader
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statements import data, description, groups, model, predictors, privacy
from grandrounds.capabilities.dossier.building.statements.run_kind import trains_model

NAME, TITLE = "data-sheet", "Data sheet"
REFERENCE = "Datasheets for datasets, Gebru et al., Communications of the ACM 2021;64(12), in our words"

MOTIVATION = (
    Field("", "Purpose", "Say for which purpose the data were created.", (), ("data-purpose",)),
    Field("", "Funding", "Name who funded the creation of the data.", (), ("funding",)),
)
COMPOSITION = (
    Field(
        "",
        "Instances",
        "Describe what the rows are and how many there are.",
        (data.state_rows, data.state_unit, data.state_sites, data.state_site_origin, data.tabulate_sites),
    ),
    Field(
        "",
        "Sample",
        "Say whether the data are a sample, and whom they represent.",
        (),
        ("data-source", "eligibility", "excluded-patients"),
    ),
    Field(
        "",
        "Columns",
        "Describe the values of each row.",
        (
            predictors.state_columns,
            predictors.define_predictors,
            description.tabulate_table_one,
            description.state_survival_curve,
        ),
        ("predictor-measurement",),
    ),
    Field(
        "", "Label", "Describe the label of each row.", (data.state_outcome, data.state_events), ("outcome-definition",)
    ),
    Field(
        "",
        "Missing information",
        "Say which information is missing, and why.",
        (predictors.require_characteristics, predictors.state_gaps),
    ),
    Field("", "Splits", "Describe recommended or used splits.", (data.state_partition, data.tabulate_analyses)),
    Field(
        "",
        "Errors and noise",
        "Describe errors, noise and redundancies.",
        (predictors.state_quality, predictors.tabulate_notes),
    ),
    Field(
        "",
        "Groups",
        "Name the groups of patients that the data identify.",
        (groups.state_fairness_approach,),
        ("health-inequalities",),
    ),
    Field(
        "",
        "Confidentiality",
        "Say whether data are confidential, and whether persons can be identified.",
        (privacy.state_rows_stay, privacy.tabulate_disclosures),
        ("legal-basis",),
    ),
)
COLLECTION = (
    Field("", "How values were collected", "Describe instruments, staff and procedures.", (), ("data-collection",)),
    Field("", "Time", "Give the period of collection.", (data.state_dates,), ("study-dates",)),
    Field(
        "",
        "Ethical review and consent",
        "Describe ethical review, information and consent.",
        (),
        ("ethics-approval", "data-subject-rights"),
    ),
)
PREPARATION = (
    Field(
        "",
        "Preparation in the run",
        "Describe preparation, cleaning and labelling.",
        (predictors.state_encoding, predictors.state_missing),
        ("data-cleaning",),
    ),
    Field("", "Identity of the data", "Say how the exact data can be recognised.", (data.state_data_set,)),
    Field("", "Software", "Name the software of the preparation.", (model.state_code,)),
)
USES = (Field("", "Uses", "Name other uses, and uses that should be avoided.", (), ("data-uses",)),)
DISTRIBUTION = (
    Field(
        "",
        "Distribution",
        "Say whether and how the data are given to others.",
        (privacy.state_recipients,),
        ("data-availability",),
    ),
)
MAINTENANCE = (
    Field("", "Maintenance", "Say who maintains the data and how errors are reported.", (), ("maintenance",)),
    Field("", "Retention", "Say how long the data are kept.", (), ("retention",)),
)
FORM = (
    ("Motivation", MOTIVATION),
    ("Composition", COMPOSITION),
    ("Collection", COLLECTION),
    ("Preparation", PREPARATION),
    ("Uses", USES),
    ("Distribution", DISTRIBUTION),
    ("Maintenance", MAINTENANCE),
)
"""Sections of the data sheet with their fields."""


def build(facts: Facts) -> Document:
    """Build the data sheet.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    text = "The sheet describes the rows as this run read them. The tables themselves stay where they are."
    described = (
        () if trains_model(facts) else (note("The run describes patients; it has no prediction model.", REFERENCE),)
    )
    return Document(
        NAME, TITLE, REFERENCE, (*warn_reader(facts), note(text, REFERENCE), *described), fill_form(facts, FORM)
    )
