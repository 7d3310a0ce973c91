"""Questions that only people can answer, and the file answers.toml in which they answer them."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.core import toml
from grandrounds.core.errors import BadInput, nearest

FILE = "answers.toml"

CONTROLLER = "controller"
INVESTIGATOR = "principal investigator"
MANUFACTURER = "manufacturer"
STATISTICIAN = "statistician"
CLINICIAN = "clinical lead"
OFFICER = "data protection officer"
OPERATOR = "server operator"
"""Roles of people who answer."""


@dataclass(frozen=True)
class Question:
    """A question to a person.

    Attributes:
        id: Key in answers.toml, in lower case with hyphens.
        text: The question.
        role: Who answers it.
    """

    id: str
    text: str
    role: str

    @property
    def line(self) -> str:
        """The question as documents show it while it is open."""
        return f"{self.text} To be answered by the {self.role}."

    def to_dict(self) -> dict[str, str]:
        return {"id": self.id, "text": self.text, "role": self.role}


@dataclass(frozen=True)
class Answer:
    """An answer with the person who gave it and the date."""

    answer: str
    by: str
    date: str = ""


def _questions(role: str, **texts: str) -> list[Question]:
    return [Question(name.replace("_", "-"), text, role) for name, text in texts.items()]


QUESTIONS: dict[str, Question] = {
    question.id: question
    for question in (
        *_questions(
            MANUFACTURER,
            intended_purpose="What is the model intended for: which patients, which decision, which users?",
            out_of_scope_use="For which patients, decisions or places must the model not be used?",
            model_access="Who may use the model, under which licence or restrictions?",
            maintenance="Who maintains the model and its data, how often are they reviewed, and how are errors reported?",
        ),
        *_questions(
            MANUFACTURER,
            provider="Who is the provider of the system: name, address, contact?",
            system_version="Which version does this model have, and how does it relate to earlier versions on the market?",
            other_systems="With which other systems does the model work: record system, laboratory, devices, other models?",
            update_requirements="Which versions of other software does the model need, and who decides on updates?",
            delivery_forms="In which form do users receive the model: package, service, part of another product?",
            intended_hardware="On which hardware is the model intended to run at the users' place?",
            product_images="Is the model part of a product? If so, where are its photographs and markings?",
            user_interface="Which screens do users see, and where are they described?",
            instructions_for_use="Where are the instructions for use?",
            design_rationale="Why were this model and method chosen, and which alternatives were rejected?",
            foreseeable_misuse="Which misuse and which unintended outcomes are foreseeable, and who is harmed by them?",
            metric_suitability="Why do these metrics suit the intended purpose, and which errors are worse?",
            risk_management="Where is the risk management file (Article 9), and who accepted the residual risks?",
            test_signature="Who signs the test reports, on which date?",
            security_measures="Which further security measures protect the system in use: access, backups, updates?",
            standards="Which harmonised standards or common specifications were applied, and in which parts?",
            declaration="Where is the EU declaration of conformity?",
            monitoring_plan="Who watches the model in use, how often, and who acts on an alarm?",
            serious_incidents="Who reports serious incidents to the authority, and within which time?",
            pccp_modifications="Are these modifications the ones to be authorised? Which others are planned?",
            pccp_frequency="How often may each modification be made, and at all hospitals or at single ones?",
            pccp_settings="Are the fixed and the free settings in this plan right?",
            pccp_data="Which new data may be used: sources, dates, eligibility, sample size, reference standard?",
            pccp_bars="Which acceptance bars apply? The proposals need a decision by a named person.",
            pccp_update="How are users told of a change, and how is the new version labelled and released?",
            pccp_rollback="Who decides on a roll-back, and within which time?",
            pccp_benefit="Which benefits and risks does each modification have for patients?",
            pccp_collective="Which effect do all modifications together have, and one on another?",
            team="Which clinical, statistical and technical experts took part, and when?",
        ),
        *_questions(
            CLINICIAN,
            human_oversight="Who checks an output before it is acted on, and how can that person overrule it?",
            reference_standard="How was the outcome assessed, and by whom?",
            clinical_conditions="Under which clinical conditions was the model tested beyond this run?",
            human_team="How does the user perform with the model, compared with working alone?",
        ),
        *_questions(CONTROLLER, legal_basis="What is the legal basis of the processing at each hospital?"),
        *_questions(
            CONTROLLER,
            processing_purpose="What is the purpose of the processing, and which legitimate interest, if any, is pursued?",
            controllers="Who are the controllers and processors, and which agreement binds them?",
            data_subjects="Which persons are concerned, over which period, and are vulnerable groups among them?",
            special_categories="Which condition of Article 9(2) allows the use of health data?",
            necessity="Why is the processing necessary, and why would less data not do?",
            data_subject_rights="How are patients informed, and how can they object, have access and have data erased?",
            retention="How long are rows, models, run folders, site logs and the ledger kept, and who deletes them?",
            risk_rating="How likely and how severe is each risk for the persons concerned?",
            residual_risk="Which risks remain after the measures, and who accepts them?",
            subjects_views="Were views of patients or their representatives sought? If not, why?",
            dpia_review="When is this assessment reviewed, and which change triggers a review?",
            prior_consultation="Is a consultation of the supervisory authority needed (Article 36)?",
            anonymity_claim="Is the model claimed to be anonymous, and on which grounds?",
            output_measures="Which measures limit what users can learn from outputs: access, rate, logging?",
            site_policies="Which policy does each hospital apply: allowed plans, small cells, budget?",
            deployer_information="What are users of the model told about the risk of identification?",
            minimum_necessary="How was the minimum necessary standard applied (45 CFR 164.502(b))?",
            business_associates="Which business associate agreements exist (45 CFR 164.504(e))?",
            audit_review="Which person reviews records of activity, and how often (45 CFR 164.312(b))?",
            hipaa_retention="Is the documentation kept for six years, where, and who can get at it?",
        ),
        *_questions(
            OFFICER,
            officer_advice="What is the advice of the data protection officer?",
        ),
        *_questions(
            OPERATOR,
            server_country="In which country is the server, who operates it, and are data transferred to third countries?",
        ),
        *_questions(
            INVESTIGATOR,
            study_title="What is the title of the study, with the target population and the outcome?",
            abstract="What is the abstract, written by TRIPOD+AI for Abstracts?",
            healthcare_context="What is the clinical problem, is the model diagnostic or prognostic, and which models exist?",
            objectives="What are the objectives of the study?",
            data_source="Where do the data come from (trial, registry, routine care), why these, and whom do they represent?",
            study_dates="When did inclusion of patients and follow-up begin and end?",
            setting="In which setting and at which places were patients treated (primary care, ward, intensive care)?",
            eligibility="Which patients were eligible, and which were excluded?",
            treatments="Which treatments did patients receive, and how were they handled in the analysis?",
            data_cleaning="How were the tables cleaned and checked before the run, and was this the same for all groups?",
            predictor_choice="Why were these columns considered as predictors?",
            evaluation_differences="Do patients, outcome or predictors differ between development and evaluation data, and why?",
            excluded_patients="How many patients were screened and excluded before the table was made, and why?",
            funding="Who funded the study, and which role did the funders have?",
            conflicts="Which conflicts of interest do the authors declare?",
            protocol="Where is the study protocol, or was none written?",
            registration="Where is the study registered, and under which number?",
            ethics_approval="Which ethics committee approved the study, and was informed consent given or waived?",
            data_availability="Are the data available to others, where and under which conditions?",
            code_availability="Where is the analysis code available, including any code that made the tables?",
            patient_involvement="How were patients and the public involved in the study, or were they not?",
            interpretation="How are the results interpreted, in view of the objectives, fairness and earlier studies?",
            limitations="Which limitations does the study have, and which bias can follow from them?",
            next_steps="Which research is needed next, before the model is used elsewhere?",
            data_purpose="For which purpose were the data collected at first, and by whom?",
            data_uses="For which other tasks were the data used, and for which should they not be used?",
        ),
        *_questions(
            CLINICIAN,
            health_inequalities="Which inequalities between groups of patients are known for this disease or care?",
            outcome_definition="How and when was the outcome assessed, over which horizon, and why was it chosen?",
            outcome_assessors="If the outcome needs judgement: who assessed it, with which qualification?",
            outcome_blinding="Was the assessment of the outcome blinded to the predictors?",
            predictor_measurement="How and when was each predictor measured, relative to the time of prediction?",
            predictor_assessors="If a predictor needs judgement: who assessed it, with which qualification?",
            fairness_rationale="Which groups must the model serve equally well, and why these?",
            threshold_rationale="Why does this threshold suit the decision: what does a missed event cost, and a false alarm?",
            user_interaction="What must users do to enter data and read the output, and which expertise do they need?",
            data_collection="How were the values collected (devices, staff, coding), and who was involved?",
        ),
        *_questions(
            STATISTICIAN,
            sample_size="How was the sample size determined, and why does it suffice for development and for evaluation?",
            tuning="How were the settings of the model tuned, and on which rows?",
        ),
    )
}
"""All questions by id. A document asks for one by its id; two documents that ask for the same share it."""


def read_answers(text: str, *, where: str, known: Mapping[str, Question] = QUESTIONS) -> dict[str, Answer]:
    """Read answers.toml; a question without an answer is left out.

    Args:
        text: Content of the file.
        where: Name of the file, for errors.
        known: The questions.

    Returns:
        The answers by question.

    Raises:
        BadInput: The file is not TOML, or an answer has no name, a wrong date or an unknown question.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{where} is not valid TOML ({e}): put each answer in quotes", code="bad-answers") from None
    answers: dict[str, Answer] = {}
    for name, table in tables.items():
        answer = _read_answer(name, table, where)
        if answer is None:
            continue
        if name not in known:
            raise BadInput(
                f"{where} answers '{name}', which no document asks: {nearest(name, known)}", code="unknown-question"
            )
        answers[name] = answer
    return answers


def _read_answer(name: str, table: Any, where: str) -> Answer | None:
    parts = {key: table.get(key, "") for key in ("answer", "by", "date")} if isinstance(table, dict) else {}
    if isinstance(parts.get("date"), datetime.date):
        parts["date"] = parts["date"].isoformat()
    if not parts or not all(isinstance(part, str) for part in parts.values()):
        raise BadInput(f"{where}: [{name}] must have answer, by and date as text in quotes", code="bad-answers")
    answer, by, date = (" ".join(part.split()) for part in parts.values())
    if not answer:
        return None
    if not by:
        raise BadInput(
            f"{where}: the answer to '{name}' has no name: write who answered it in `by`", code="answer-without-name"
        )
    if date:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            raise BadInput(
                f"{where}: the date of '{name}' is '{date[:40]}': write it as 2026-01-31", code="bad-date"
            ) from None
    return Answer(answer, by, date)


def write_answers(questions: Iterable[Question], answers: Mapping[str, Answer]) -> str:
    """Write answers.toml with every question, answered or not.

    Args:
        questions: The questions that the documents ask, in order.
        answers: The answers so far.

    Returns:
        Content of the file.
    """
    lines = [
        "# Questions that only people can answer. Fill in `answer`, `by` (your name) and `date` (such as 2026-01-31),",
        "# then run `rounds dossier` again. Lines that begin with # are ignored.",
    ]
    for question in {q.id: q for q in questions}.values():
        given = answers.get(question.id, Answer("", "", ""))
        lines += ["", f"# {question.line}", f"[{toml.key(question.id)}]"]
        lines += [f"{name} = {toml.literal(getattr(given, name))}" for name in ("answer", "by", "date")]
    return "\n".join(lines) + "\n"
