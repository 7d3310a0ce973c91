"""Items about a model, which have no meaning for a run that computes statistics only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from grandrounds.analysis.dossier.document import Content, Item, Saying, exclude_item, make_item
from grandrounds.analysis.dossier.evidence import SUMMARY
from grandrounds.analysis.dossier.facts import Facts
from grandrounds.analysis.dossier.statement import Statement, Table, say
from grandrounds.analysis.dossier.statements.run_kind import trains_model


def only(applies: Callable[[Facts], bool], saying: Saying) -> Saying:
    """Restrict statements to runs for which they have a meaning; other runs say nothing, and have no gap.

    Args:
        applies: Tells whether the statements have a meaning for a run.
        saying: The function that states facts.

    Returns:
        The restricted function.
    """

    def state(facts: Facts) -> Iterator[Content]:
        if applies(facts):
            made = saying(facts)
            yield from [made] if isinstance(made, Statement | Table) else made

    return state


def make_model_item(
    facts: Facts, id: str, title: str, asks: str, *sayings: Saying, questions: Sequence[str] = ()
) -> Item:
    """Make an item about the model; without a model it has no meaning, and says so.

    Args:
        facts: The facts of the run.
        id: Number in the guideline.
        title: Subject.
        asks: What the guideline asks for, in our words.
        sayings: Functions that state facts.
        questions: Ids of questions to people.

    Returns:
        The item.
    """
    if not trains_model(facts):
        method, statistic = facts.value(SUMMARY, "method"), facts.source(SUMMARY, "statistic")
        reason = say("Method '{method}' computes statistics and fits no model.", statistic, method=method)
        return exclude_item(id, title, asks, reason)
    return make_item(facts, id, title, asks, *sayings, questions=questions)
