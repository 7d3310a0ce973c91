"""Forms: the fields of a guideline, with the statements that fill them and the questions to people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grandrounds.capabilities.dossier.building.document import Item, Saying, Section, exclude_item, make_item
from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import Statement, say
from grandrounds.capabilities.dossier.building.statements.record import is_simulated, note_withdrawal


@dataclass(frozen=True)
class Field:
    """One field of a form.

    Attributes:
        id: Number in the guideline; empty where it has none.
        title: Subject.
        asks: What the guideline asks for, in our words.
        sayings: Functions that state facts.
        questions: Ids of questions to people.
        exclude: Returns why the field has no meaning for a run, or None.
    """

    id: str
    title: str
    asks: str
    sayings: tuple[Saying, ...] = ()
    questions: tuple[str, ...] = ()
    exclude: Callable[[Facts], Statement | None] | None = None

    def fill(self, facts: Facts) -> Item:
        """Fill the field from the facts of a run."""
        reason = None if self.exclude is None else self.exclude(facts)
        if reason is not None:
            return exclude_item(self.id, self.title, self.asks, reason)
        return make_item(facts, self.id, self.title, self.asks, *self.sayings, questions=self.questions)


def fill_form(facts: Facts, form: Sequence[tuple[str, Sequence[Field]]]) -> tuple[Section, ...]:
    """Fill a form.

    Args:
        facts: The facts of a run.
        form: Title and fields of each section.

    Returns:
        The sections.
    """
    return tuple(Section(title, tuple(field.fill(facts) for field in fields)) for title, fields in form)


def warn_reader(facts: Facts) -> tuple[Statement, ...]:
    """Make the warnings at the start of a document: a withdrawn run, a run without a ledger, a simulation."""
    notes = [*note_withdrawal(facts)]
    opening = facts.entries("open")
    if not opening:
        notes.append(
            say("The run has no ledger: its figures cannot be checked against a signed record.", facts.source(SUMMARY))
        )
    elif is_simulated(facts):
        notes.append(say("The run is a simulation on one machine. No hospital signed its record.", *opening[0].sources))
    return tuple(notes)


def exclude_without_model(facts: Facts, what: str) -> tuple[Section, ...]:
    """Make the only section of a document on models, of a run that has none.

    Args:
        facts: The facts of a run of Table 1 or Kaplan-Meier curves.
        what: The document, such as "TRIPOD+AI".

    Returns:
        One item that is not applicable.
    """
    reason = say(
        "Method '{method}' describes patients and fits no prediction model, so this document does not apply.",
        method=facts.value(SUMMARY, "method"),
    )
    return (Section("Scope", (exclude_item("", "Prediction model", f"{what} is about a prediction model.", reason),)),)
