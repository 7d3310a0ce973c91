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
        ),
        *_questions(CONTROLLER, legal_basis="What is the legal basis of the processing at each hospital?"),
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
            raise BadInput(f"{where} answers '{name}', which no document asks: {nearest(name, known)}", code="unknown-question")
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
        raise BadInput(f"{where}: the answer to '{name}' has no name: write who answered it in `by`", code="answer-without-name")
    if date:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            raise BadInput(f"{where}: the date of '{name}' is '{date[:40]}': write it as 2026-01-31", code="bad-date") from None
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
