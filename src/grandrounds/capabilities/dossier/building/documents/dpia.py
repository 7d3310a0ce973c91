"""Data protection impact assessment after GDPR Art. 35(7), with the evidence of EDPB Opinion 28/2024 and a part on HIPAA."""

from __future__ import annotations

from grandrounds.capabilities.dossier.building.document import Document, note
from grandrounds.capabilities.dossier.building.documents.applicability import exclude_statistics
from grandrounds.capabilities.dossier.building.documents.form import Field, fill_form, warn_reader
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statements import (
    attacks,
    data,
    predictors,
    privacy,
    processing,
    record,
    risks,
    system,
)
from grandrounds.capabilities.dossier.building.statements.processing import OPINION

GDPR = "Regulation (EU) 2016/679 (GDPR), Article 35(7)"
HIPAA = "45 CFR 164.312(b), 164.316(b)(2)"

_DESCRIPTION = (
    Field(
        "a.1", "Purposes", "purposes of the processing, with the legitimate interest where there is one",
        (data.state_outcome,),
        questions=("processing-purpose", "intended-purpose"),
    ),
    Field(
        "a.2", "Controllers and processors", "the parties, their roles and their agreement",
        (system.state_components,),
        questions=("controllers",),
    ),
    Field(
        "a.3", "Persons and categories of data", "whose data, which data, how many",
        (data.state_sites, data.state_rows, data.state_unit, predictors.state_columns),
        questions=("data-subjects",),
    ),
    Field(
        "a.4", "Data that leave each site", "operations: what each site sends, by task, with sizes",
        (privacy.state_rows_stay, privacy.tabulate_requests, privacy.state_traffic, privacy.state_sums_sent),
    ),
    Field(
        "a.5", "Recipients", "who receives the data",
        (privacy.state_recipients,),
        questions=("deployer-information",),
    ),
    Field(
        "a.6", "Transfers", "countries and transfers",
        questions=("server-country",),
    ),
    Field(
        "a.7", "Retention", "how long data are kept",
        (processing.state_stored,),
        questions=("retention",),
    ),
)  # fmt: skip

_NECESSITY = (
    Field(
        "b.1", "Legal basis", "basis of the processing, and the condition for health data",
        questions=("legal-basis", "special-categories"),
    ),
    Field(
        "b.2", "Necessity", "why the purpose needs this processing",
        questions=("necessity",),
    ),
    Field(
        "b.3", "Data minimisation", "why no more data than needed are used and sent",
        (privacy.state_rows_stay, predictors.state_columns, processing.state_minimisation, privacy.state_secure,
         privacy.state_sums_sent),
    ),
    Field(
        "b.4", "Rights of patients", "information, access, objection, erasure",
        (processing.state_withdrawal_path,),
        questions=("data-subject-rights",),
    ),
)  # fmt: skip

_RISKS = (
    Field(
        "c.1", "Identification from disclosed data", "what disclosed data can tell about one person",
        (privacy.state_guarantee, privacy.tabulate_disclosures, privacy.state_simulated_noise),
        questions=("risk-rating",),
    ),
    Field(
        "c.2", "Attacks that were run", "how well known attacks do against this run",
        (attacks.tabulate_tests, attacks.tabulate_not_tried, attacks.require_attacks),
    ),
    Field(
        "c.3", "Wrong or unfair outputs", "harm from errors, by site and by group of persons",
        (risks.tabulate_hazards, risks.state_small_sites),
        questions=("risk-rating",), exclude=exclude_statistics,
    ),
    Field(
        "c.4", "Parties that misbehave", "server, sites or outsiders that do not follow the protocol",
        (system.tabulate_security,),
        questions=("risk-rating",),
    ),
)  # fmt: skip

_MEASURES = (
    Field(
        "d.1", "Differential privacy", "epsilon, delta, unit, and what they do not cover",
        (privacy.state_guarantee, privacy.state_mechanism, privacy.state_recomputed, privacy.tabulate_disclosures),
    ),
    Field(
        "d.2", "Secure aggregation", "single answers hidden from the server",
        (privacy.state_secure,),
    ),
    Field(
        "d.3", "Policies of sites", "rules that each hospital applies by itself",
        questions=("site-policies",),
    ),
    Field(
        "d.4", "Record", "a record that shows later changes",
        (record.state_ledger, record.state_keys, record.state_verification),
    ),
    Field(
        "d.5", "Residual risk", "risk that remains, and who accepts it",
        questions=("residual-risk",),
    ),
    Field(
        "d.6", "Advice, views and review", "Article 35(2), (9) and (11), and Article 36",
        questions=("officer-advice", "subjects-views", "dpia-review", "prior-consultation"),
    ),
)  # fmt: skip

_EVIDENCE = (
    Field(
        "e.1", "Claim", "whether the model is claimed to be anonymous",
        (processing.state_test,),
        questions=("anonymity-claim",), exclude=exclude_statistics,
    ),
    Field(
        "e.2", "Design: data", "choice of sources, preparation, minimisation",
        (data.state_data_set, data.state_rows, data.state_unit, predictors.state_columns, processing.state_minimisation),
    ),
    Field(
        "e.3", "Design: training", "methods that reduce identification: penalties, noise, few parameters",
        (privacy.state_guarantee, processing.state_penalty, privacy.state_ratio),
        exclude=exclude_statistics,
    ),
    Field(
        "e.4", "Design: outputs", "measures that limit what outputs reveal",
        (system.state_output,),
        questions=("output-measures",), exclude=exclude_statistics,
    ),
    Field(
        "e.5", "Analysis", "review of the documents and the record",
        (record.state_verification, record.state_proofs),
        questions=("officer-advice",),
    ),
    Field(
        "e.6", "Test: membership inference", "whether a person was in the training rows",
        (attacks.state_membership, attacks.tabulate_membership),
        exclude=exclude_statistics,
    ),
    Field(
        "e.7", "Test: attribute inference", "whether an unknown value of a person can be guessed",
        (attacks.state_attribute, attacks.tabulate_attribute),
        exclude=exclude_statistics,
    ),
    Field(
        "e.8", "Test: inversion", "whether typical or single patients can be rebuilt from the model",
        (attacks.state_inversion,),
        exclude=exclude_statistics,
    ),
    Field(
        "e.9", "Test: reconstruction", "whether rows can be rebuilt from what leaves sites",
        (attacks.state_reconstruction, attacks.tabulate_reconstruction),
    ),
    Field(
        "e.10", "Test: exfiltration and regurgitation", "whether the model puts out rows of the training data",
        (system.state_output, processing.state_model_file, processing.miss_exfiltration),
        exclude=exclude_statistics,
    ),
    Field(
        "e.11", "Overview of tests", "each test with its result, or the command that runs it",
        (attacks.tabulate_tests, attacks.require_attacks),
    ),
    Field(
        "e.12", "Documentation", "this assessment, the officer's advice, measures in all phases, information for users",
        (system.tabulate_security,),
        questions=("officer-advice", "deployer-information", "residual-risk"),
    ),
)  # fmt: skip

_HIPAA = (
    Field(
        "164.312(b)", "Audit controls", "mechanisms that record and examine activity in systems with health data",
        (record.state_ledger, record.state_verification, processing.state_site_log),
        questions=("audit-review",),
    ),
    Field(
        "164.316(b)(2)(i)", "Retention", "documentation kept for six years",
        (record.tabulate_files,),
        questions=("hipaa-retention",),
    ),
    Field(
        "164.316(b)(2)(ii)-(iii)", "Availability and updates", "documentation available to those in charge, and reviewed",
        (system.state_software,),
        questions=("hipaa-retention", "dpia-review"),
    ),
    Field(
        "164.502(b)", "Minimum necessary", "no more health information than needed",
        (privacy.state_rows_stay, predictors.state_columns, processing.state_minimisation),
        questions=("minimum-necessary",),
    ),
    Field(
        "164.504(e)", "Business associates", "agreements with those who process for the hospital",
        questions=("business-associates",),
    ),
)  # fmt: skip

FORM = (
    ("(a) Description of the processing", _DESCRIPTION),
    ("(b) Necessity and proportionality", _NECESSITY),
    ("(c) Risks to persons", _RISKS),
    ("(d) Measures and residual risk", _MEASURES),
    ("Evidence on anonymity (EDPB Opinion 28/2024)", _EVIDENCE),
    ("HIPAA: audit controls and retention", _HIPAA),
)


def build(facts: Facts) -> Document:
    """Build the data protection impact assessment of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *warn_reader(facts),
        note("A controller completes and signs this document.", GDPR),
        note("Items follow the law and the opinion in our words. Whoever relies on them reads the originals.", OPINION),
        note("Grand Rounds writes what the run recorded. It does not judge whether processing is lawful.", GDPR),
    )
    reference = f"{GDPR}; {OPINION}; {HIPAA}"
    return Document("dpia", "Data protection impact assessment", reference, notes, fill_form(facts, FORM))
