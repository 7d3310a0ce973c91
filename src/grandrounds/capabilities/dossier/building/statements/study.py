"""Statements about the study: its aim, its recorded plan, and development beside evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.capabilities.dossier.building.evidence import PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, say
from grandrounds.capabilities.dossier.building.statements import data, model, performance, record
from grandrounds.capabilities.dossier.building.statements.run_kind import has_test_rows


def draft_title(facts: Facts) -> Statement:
    """Name the model and the outcome, for a title."""
    return say(
        "The study develops and evaluates a {model} for the outcome {outcome}.",
        model=model.name_model(facts),
        outcome=data.name_outcome(facts),
    )


def state_aim(facts: Facts) -> Statement:
    """State whether the run develops a model, and where it evaluates it."""
    if not has_test_rows(facts):
        return say("The run develops a model; it has no test rows to evaluate it.", facts.source(SUMMARY, "final"))
    if facts.get(PLAN, "split", "scheme", default="within") == "within":
        return say(
            "The run develops a model and evaluates it on test rows of the same sites.",
            facts.source(PLAN, "split", "scheme"),
        )
    return say(
        "The run develops a model and evaluates it at sites that took no part in training.",
        facts.source(PLAN, "split", "scheme"),
    )


def state_recorded_plan(facts: Facts) -> Iterator[Statement]:
    """State that the ledger names the plan of the analysis before round 1."""
    opening = facts.entries("open")
    if not opening:
        raise MissingFact("the run has no ledger that names its plan before round 1")
    yield say("The ledger's entry {entry} names the plan of the analysis before round 1.", entry=opening[0])
    yield record.state_plan(facts)


def state_same_sites(facts: Facts) -> Iterator[Statement]:
    """State whether development and evaluation have the same sites and columns."""
    if not has_test_rows(facts):
        raise MissingFact(performance.NO_TEST)
    if facts.get(PLAN, "split", "scheme", default="within") == "within":
        yield say(
            "Outcome and predictors have the same columns in development and evaluation, and the sites are the same.",
            facts.source(PLAN, "split", "scheme"),
        )
    else:
        yield say(
            "Outcome and predictors have the same columns in development and evaluation; the sites differ.",
            facts.source(PLAN, "split", "scheme"),
        )


def require_test_distribution(facts: Facts) -> Statement:
    """Ask for the distribution of predictors of test rows, which no site sends."""
    raise MissingFact("sites sent no distribution of predictors of test rows")
