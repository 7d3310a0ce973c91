"""Data protection impact assessment after GDPR Art. 35(7), with the evidence of EDPB Opinion 28/2024 and a part on HIPAA."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.analysis.dossier.document import Document, Item, Section, make_item, note
from grandrounds.analysis.dossier.documents.model_items import make_model_item
from grandrounds.analysis.dossier.evidence import LEDGER, PLAN, SUMMARY
from grandrounds.analysis.dossier.facts import Facts
from grandrounds.analysis.dossier.statement import GUIDELINE, MissingFact, Source, Statement, cite_page, say
from grandrounds.analysis.dossier.statements import attacks, data, predictors, privacy, record, risks, system
from grandrounds.analysis.dossier.statements.run_kind import is_deployed

GDPR = "Regulation (EU) 2016/679 (GDPR), Article 35(7)"
OPINION = "EDPB Opinion 28/2024 of 17 December 2024"
HIPAA = "45 CFR 164.312(b), 164.316(b)(2)"


def build(facts: Facts) -> Document:
    """Build the data protection impact assessment of a run.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The document.
    """
    notes = (
        *record.note_withdrawal(facts),
        note("This text is not legal advice. A controller completes and signs it.", GDPR),
        note("Items follow the law and the opinion in our words. Whoever relies on them reads the originals.", OPINION),
        note("Grand Rounds writes what the run recorded. It does not judge whether processing is lawful.", GDPR),
    )
    sections = (
        Section("(a) Description of the processing", tuple(_describe(facts))),
        Section("(b) Necessity and proportionality", tuple(_justify(facts))),
        Section("(c) Risks to persons", tuple(_list_risks(facts))),
        Section("(d) Measures and residual risk", tuple(_list_measures(facts))),
        Section("Evidence on anonymity (EDPB Opinion 28/2024)", tuple(_show_evidence(facts))),
        Section("HIPAA: audit controls and retention", tuple(_list_hipaa(facts))),
    )
    reference = f"{GDPR}; {OPINION}; {HIPAA}"
    return Document("dpia", "Data protection impact assessment", reference, notes, sections)


def _describe(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "a.1", "Purposes", "purposes of the processing, with the legitimate interest where there is one",
        data.state_outcome, questions=("processing-purpose", "intended-purpose"),
    )  # fmt: skip
    yield make_item(
        facts, "a.2", "Controllers and processors", "the parties, their roles and their agreement",
        system.state_components, questions=("controllers",),
    )  # fmt: skip
    yield make_item(
        facts, "a.3", "Persons and categories of data", "whose data, which data, how many",
        data.state_sites, data.state_rows, data.state_unit, predictors.state_columns, questions=("data-subjects",),
    )  # fmt: skip
    yield make_item(
        facts, "a.4", "Data that leave each site", "operations: what each site sends, by task, with sizes",
        privacy.state_rows_stay, privacy.tabulate_requests, privacy.state_traffic, privacy.state_sums_sent,
    )  # fmt: skip
    yield make_item(
        facts, "a.5", "Recipients", "who receives the data",
        privacy.state_recipients, questions=("deployer-information",),
    )  # fmt: skip
    yield make_item(facts, "a.6", "Transfers", "countries and transfers", questions=("server-country",))
    yield make_item(
        facts, "a.7", "Retention", "how long data are kept",
        state_stored, questions=("retention",),
    )  # fmt: skip


def _justify(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "b.1", "Legal basis", "basis of the processing, and the condition for health data",
        questions=("legal-basis", "special-categories"),
    )  # fmt: skip
    yield make_item(
        facts, "b.2", "Necessity", "why the purpose needs this processing", questions=("necessity",)
    )
    yield make_item(
        facts, "b.3", "Data minimisation", "why no more data than needed are used and sent",
        privacy.state_rows_stay, predictors.state_columns, state_minimisation, privacy.state_secure, privacy.state_sums_sent,
    )  # fmt: skip
    yield make_item(
        facts, "b.4", "Rights of patients", "information, access, objection, erasure",
        state_withdrawal_path, questions=("data-subject-rights",),
    )  # fmt: skip


def _list_risks(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "c.1", "Identification from disclosed data", "what disclosed data can tell about one person",
        privacy.state_guarantee, privacy.tabulate_disclosures, privacy.state_simulated_noise, questions=("risk-rating",),
    )  # fmt: skip
    yield make_item(
        facts, "c.2", "Attacks that were run", "how well known attacks do against this run",
        attacks.tabulate_tests, attacks.tabulate_not_tried,
    )  # fmt: skip
    yield make_model_item(
        facts, "c.3", "Wrong or unfair outputs", "harm from errors, by site and by group of persons",
        risks.tabulate_hazards, risks.state_small_sites, questions=("risk-rating",),
    )  # fmt: skip
    yield make_item(
        facts, "c.4", "Parties that misbehave", "server, sites or outsiders that do not follow the protocol",
        system.tabulate_security, questions=("risk-rating",),
    )  # fmt: skip


def _list_measures(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "d.1", "Differential privacy", "epsilon, delta, unit, and what they do not cover",
        privacy.state_guarantee, privacy.state_mechanism, privacy.state_recomputed, privacy.tabulate_disclosures,
    )  # fmt: skip
    yield make_item(
        facts, "d.2", "Secure aggregation", "single answers hidden from the server",
        privacy.state_secure,
    )  # fmt: skip
    yield make_item(
        facts, "d.3", "Policies of sites", "rules that each hospital applies by itself",
        questions=("site-policies",),
    )  # fmt: skip
    yield make_item(
        facts, "d.4", "Record", "a record that shows later changes",
        record.state_ledger, record.state_keys, record.state_verification,
    )  # fmt: skip
    yield make_item(
        facts, "d.5", "Residual risk", "risk that remains, and who accepts it", questions=("residual-risk",)
    )
    yield make_item(
        facts, "d.6", "Advice, views and review", "Article 35(2), (9) and (11), and Article 36",
        questions=("officer-advice", "subjects-views", "dpia-review", "prior-consultation"),
    )  # fmt: skip


def _show_evidence(facts: Facts) -> Iterator[Item]:
    yield make_model_item(
        facts, "e.1", "Claim", "whether the model is claimed to be anonymous",
        state_test, questions=("anonymity-claim",),
    )  # fmt: skip
    yield make_item(
        facts, "e.2", "Design: data", "choice of sources, preparation, minimisation",
        data.state_data_set, data.state_rows, data.state_unit, predictors.state_columns, state_minimisation,
    )  # fmt: skip
    yield make_model_item(
        facts, "e.3", "Design: training", "methods that reduce identification: penalties, noise, few parameters",
        privacy.state_guarantee, state_penalty, privacy.state_ratio,
    )  # fmt: skip
    yield make_model_item(
        facts, "e.4", "Design: outputs", "measures that limit what outputs reveal",
        system.state_output, questions=("output-measures",),
    )  # fmt: skip
    yield make_item(
        facts, "e.5", "Analysis", "review of the documents and the record",
        record.state_verification, record.state_proofs, questions=("officer-advice",),
    )  # fmt: skip
    yield make_model_item(
        facts, "e.6", "Test: membership inference", "whether a person was in the training rows",
        attacks.state_membership, attacks.tabulate_membership,
    )  # fmt: skip
    yield make_model_item(
        facts, "e.7", "Test: attribute inference", "whether an unknown value of a person can be guessed",
        attacks.state_attribute, attacks.tabulate_attribute,
    )  # fmt: skip
    yield make_model_item(
        facts, "e.8", "Test: inversion", "whether typical or single patients can be rebuilt from the model",
        attacks.state_inversion,
    )  # fmt: skip
    yield make_item(
        facts, "e.9", "Test: reconstruction", "whether rows can be rebuilt from what leaves sites",
        attacks.state_reconstruction, attacks.tabulate_reconstruction,
    )  # fmt: skip
    yield make_model_item(
        facts, "e.10", "Test: exfiltration and regurgitation", "whether the model puts out rows of the training data",
        system.state_output, state_model_file, miss_exfiltration,
    )  # fmt: skip
    yield make_item(
        facts, "e.11", "Overview of tests", "each test with its result, or the command that runs it",
        attacks.tabulate_tests,
    )  # fmt: skip
    yield make_item(
        facts, "e.12", "Documentation", "this assessment, the officer's advice, measures in all phases, information for users",
        system.tabulate_security, questions=("officer-advice", "deployer-information", "residual-risk"),
    )  # fmt: skip


def _list_hipaa(facts: Facts) -> Iterator[Item]:
    yield make_item(
        facts, "164.312(b)", "Audit controls", "mechanisms that record and examine activity in systems with health data",
        record.state_ledger, record.state_verification, state_site_log, questions=("audit-review",),
    )  # fmt: skip
    yield make_item(
        facts, "164.316(b)(2)(i)", "Retention", "documentation kept for six years",
        record.tabulate_files, questions=("hipaa-retention",),
    )  # fmt: skip
    yield make_item(
        facts, "164.316(b)(2)(ii)-(iii)", "Availability and updates", "documentation available to those in charge, and reviewed",
        system.state_software, questions=("hipaa-retention", "dpia-review"),
    )  # fmt: skip
    yield make_item(
        facts, "164.502(b)", "Minimum necessary", "no more health information than needed",
        privacy.state_rows_stay, predictors.state_columns, state_minimisation, questions=("minimum-necessary",),
    )  # fmt: skip
    yield make_item(
        facts, "164.504(e)", "Business associates", "agreements with those who process for the hospital",
        questions=("business-associates",),
    )  # fmt: skip


def state_minimisation(facts: Facts) -> Iterator[Statement]:
    """State the way in which the preparation of columns is agreed on."""
    encoding = facts.value(PLAN, "data", "encoding")
    if encoding.value == "public":
        yield say("Columns are prepared by published ranges (data.encoding = '{encoding}'): no summary left.", encoding=encoding)
    else:
        yield say(
            "Columns are prepared by summaries of training rows, which left the sites (data.encoding = '{encoding}').",
            encoding=encoding,
        )


def state_penalty(facts: Facts) -> Iterator[Statement]:
    """State the settings that keep a model from learning single rows by heart; nothing where the plan has none."""
    for name, text in (("l2", "L2 penalty"), ("weight_decay", "weight decay")):
        if facts.get(PLAN, "train", name):
            yield say(f"The plan sets train.{name} ({text}) to {{value}}.", value=facts.value(PLAN, "train", name, show="g"))


def state_stored(facts: Facts) -> Iterator[Statement]:
    """State which files of the run hold statistics of patients, and which stay at sites."""
    yield say("The run folder holds figures of each site, however small it is.", facts.source(SUMMARY, "per_site"))
    if facts.has(LEDGER):
        yield say("The ledger is only added to. A head that somebody kept shows if it was cut.", facts.source(LEDGER, "head"))


def state_withdrawal_path(facts: Facts) -> Iterator[Statement]:
    """State how the influence of a hospital is removed, and withdrawals of this run."""
    yield say(
        "A hospital that withdraws is removed by repeating the run without it (`rounds withdraw`).",
        cite_page("withdrawal.md"),
    )
    yield from record.state_changes(facts)


def state_test(facts: Facts) -> Statement:
    """State the test of the opinion, in our words."""
    return say(
        "A model is anonymous only if extracting personal data and obtaining them by queries are both insignificant.",
        Source(GUIDELINE, OPINION),
    )


def state_model_file(facts: Facts) -> Statement:
    """State what of patients is in the model file."""
    return say(
        "The model file has names of categories and ranges of columns, besides its parameters.",
        cite_page("threat-model.md"),
    )


def miss_exfiltration(facts: Facts) -> Statement:
    """Leave a gap: there is no test of exfiltration.

    Raises:
        MissingFact: Always.
    """
    raise MissingFact("Grand Rounds has no test of exfiltration or regurgitation")


def state_site_log(facts: Facts) -> Statement:
    """State where requests are logged at a hospital."""
    if not is_deployed(facts):
        return say("This run is a simulation: there are no logs of sites.", facts.source(PLAN, "data", "table"))
    return say(
        "Each hospital has a log of requests, replies and bytes (state/log.jsonl), which stays there.",
        cite_page("hospitals.md"),
    )
