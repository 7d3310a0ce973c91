"""Statements on the processing of personal data: minimisation, storage, withdrawal, logs, and the test of anonymity."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.capabilities.dossier.building.evidence import LEDGER, PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import (
    GUIDELINE,
    MissingFact,
    Source,
    Statement,
    cite_page,
    say,
)
from grandrounds.capabilities.dossier.building.statements import record
from grandrounds.capabilities.dossier.building.statements.run_kind import is_deployed, reads_images

OPINION = "EDPB Opinion 28/2024 of 17 December 2024"



def state_minimisation(facts: Facts) -> Iterator[Statement]:
    """State the way in which the preparation of columns is agreed on."""
    encoding = facts.value(PLAN, "data", "encoding")
    if reads_images(facts):
        yield say("Images are prepared by counts of pixel values of training images, which left the sites.", encoding)
        return
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
