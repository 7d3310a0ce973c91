"""Documents of a dossier: sections of items, each with statements, questions to people, and the reasons for gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import QUESTIONS, Answer, Question
from grandrounds.capabilities.dossier.building.statement import (
    ANSWER,
    GUIDELINE,
    MissingFact,
    Source,
    Statement,
    Table,
    Value,
    say,
)

FILLED, BEGUN, ANSWERED, OPEN, NOT_APPLICABLE = "filled", "begun", "answered", "open", "not applicable"
"""States of an item: filled by the run; begun by the run, with questions or gaps left; answered by people alone; open; or
without meaning for this run, with the reason."""

Content = Statement | Table
Saying = Callable[[Facts], Content | Iterable[Content]]
"""A function that states facts; it raises MissingFact where the run lacks them."""


@dataclass(frozen=True)
class Item:
    """One field of a form.

    Attributes:
        id: Number in the guideline, such as "12d"; empty where it has none.
        title: Subject.
        asks: What the guideline asks for, in our words.
        contents: Statements and tables.
        questions: Questions to people.
        answers: Their answers, by question.
        gaps: Reasons for facts that are missing.
        excluded: The statement that says why the item has no meaning for this run.
    """

    id: str
    title: str
    asks: str
    contents: tuple[Content, ...] = ()
    questions: tuple[Question, ...] = ()
    answers: tuple[tuple[Question, Answer], ...] = ()
    gaps: tuple[str, ...] = ()
    excluded: Statement | None = None

    @property
    def open_questions(self) -> tuple[Question, ...]:
        """Questions without an answer."""
        answered = {question.id for question, _ in self.answers}
        return tuple(q for q in self.questions if q.id not in answered)

    @property
    def state(self) -> str:
        """One of FILLED, BEGUN, ANSWERED, OPEN and NOT_APPLICABLE."""
        if self.excluded is not None:
            return NOT_APPLICABLE
        complete = not self.open_questions and not self.gaps
        if self.contents:
            return FILLED if complete else BEGUN
        if self.answers:
            return ANSWERED if complete else BEGUN
        return OPEN

    def all_contents(self) -> tuple[Content, ...]:
        """Statements and tables, those of answers included."""
        excluded = () if self.excluded is None else (self.excluded,)
        return (*excluded, *self.contents, *(_state_answer(q, a) for q, a in self.answers))

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "asks": self.asks,
            "state": self.state,
            "contents": [c.to_dict() for c in self.all_contents()],
            "open_questions": [q.to_dict() for q in self.open_questions],
            "gaps": list(self.gaps),
        }


def _state_answer(question: Question, answer: Answer) -> Statement:
    source = Source(ANSWER, question.id)
    by = f"{answer.by}, {answer.date}" if answer.date else answer.by
    return say("{answer} ({by})", answer=Value(answer.answer, answer.answer, (source,)), by=Value(by, by, (source,)))


@dataclass(frozen=True)
class Section:
    """Items under one heading."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Document:
    """One document of a dossier.

    Attributes:
        name: Name of its files, such as "tripod-ai".
        title: Heading.
        reference: The guideline or law that it follows, with its date.
        notes: Statements at the start: scope, what it is not, warnings.
        sections: The content.
    """

    name: str
    title: str
    reference: str
    notes: tuple[Statement, ...]
    sections: tuple[Section, ...]

    @property
    def items(self) -> tuple[Item, ...]:
        """All items in order."""
        return tuple(item for section in self.sections for item in section.items)

    def count_states(self) -> dict[str, int]:
        """Count the items by state, in the order FILLED, BEGUN, ANSWERED, OPEN, NOT_APPLICABLE."""
        states = [item.state for item in self.items]
        return {state: states.count(state) for state in (FILLED, BEGUN, ANSWERED, OPEN, NOT_APPLICABLE)}

    def to_dict(self) -> dict[str, Any]:
        sections = [{"title": s.title, "items": [item.to_dict() for item in s.items]} for s in self.sections]
        return {
            "name": self.name,
            "title": self.title,
            "reference": self.reference,
            "states": self.count_states(),
            "notes": [note.to_dict() for note in self.notes],
            "sections": sections,
        }


def make_item(facts: Facts, id: str, title: str, asks: str, *sayings: Saying, questions: Sequence[str] = ()) -> Item:
    """Make an item from functions that state facts.

    Args:
        facts: The facts of the run, with people's answers.
        id: Number in the guideline.
        title: Subject.
        asks: What the guideline asks for, in our words.
        sayings: Functions that state facts. Where one raises MissingFact, the item keeps the reason as a gap.
        questions: Ids of questions to people, from `questions.py`.

    Returns:
        The item.

    Raises:
        KeyError: A question is unknown.
    """
    contents: list[Content] = []
    gaps: list[str] = []
    for saying in sayings:
        try:
            made = saying(facts)
            contents += [made] if isinstance(made, Statement | Table) else list(made)
        except MissingFact as e:
            gaps.append(str(e))
    asked = tuple(QUESTIONS[name] for name in questions)
    answers = tuple((q, facts.answers[q.id]) for q in asked if q.id in facts.answers)
    return Item(id, title, asks, tuple(contents), asked, answers, tuple(dict.fromkeys(gaps)))


def exclude_item(id: str, title: str, asks: str, reason: Statement) -> Item:
    """Make an item that has no meaning for this run.

    Args:
        id: Number in the guideline.
        title: Subject.
        asks: What the guideline asks for, in our words.
        reason: Why it has no meaning, with a source.

    Returns:
        The item.
    """
    return replace(Item(id, title, asks), excluded=reason)


def note(text: str, reference: str) -> Statement:
    """Make a note at the start of a document.

    Args:
        text: One or more sentences without values.
        reference: The text that it rests on.

    Returns:
        The statement.
    """
    return say(text.replace("{", "{{").replace("}", "}}"), Source(GUIDELINE, reference))
