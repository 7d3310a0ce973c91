"""Applicability: fields and statements that have no meaning for some kinds of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

from grandrounds.capabilities.dossier.building.document import Content, Saying
from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import Statement, Table, say
from grandrounds.capabilities.dossier.building.statements.run_kind import reads_images, trains_model


def only(applies: Callable[[Facts], bool], saying: Saying) -> Saying:
    """Restrict statements to runs for which they have a meaning; other runs say nothing, and have no gap.

    Args:
        applies: Tells whether the statements have a meaning for a run.
        saying: The function that states facts.

    Returns:
        The restricted function.
    """

    @wraps(saying)
    def state(facts: Facts) -> Iterator[Content]:
        if applies(facts):
            made = saying(facts)
            yield from [made] if isinstance(made, Statement | Table) else made

    return state


def reads_table(facts: Facts) -> bool:
    """Tell whether the model reads columns of a table, not images."""
    return not reads_images(facts)


def exclude_statistics(facts: Facts) -> Statement | None:
    """State that a run computes statistics and has no model; None for a run with a model."""
    if trains_model(facts):
        return None
    return say(
        "Method '{method}' computes statistics and fits no model.",
        facts.source(SUMMARY, "statistic"),
        method=facts.value(SUMMARY, "method"),
    )
