"""Reproduction report: results of every study that was run in full, read from docs/results/*.md.

book.json is made from these pages by docs/book.py; a study that is on no page is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from grandrounds_studies.lines import Figure, Line, line
from grandrounds_studies.study import Study
from grandrounds_studies.tally import Answer, Tally, Told, answers

BOOK = "book.json"
SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """A study that was run in full: how, the figure that stands for it, and every verdict."""

    study: str
    command: str
    runs: int | None  # None: the runs are those of another study
    repeats: str  # "seeds 0 to 4"; "" likewise
    ran: str  # machine and date, as the page has them; "" where it says nothing
    section: str  # "sse-agg.md#table-i": its place in docs/results
    figure: Figure | None
    told: tuple[Told, ...]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Entry:
        """From its part of book.json."""
        figure = values.pop("figure")
        told = tuple(Told.of(one) for one in values.pop("told"))
        return cls(figure=None if figure is None else Figure(**figure), told=told, **values)

    def line(self, study: Study) -> Line:
        return line(study, self.figure, self.told)

    @property
    def system(self) -> str:
        return self.study.split("/")[0]


@cache
def load_book() -> dict[str, Entry]:
    """Every entry by its study's name."""
    held = json.loads(files(__package__).joinpath(BOOK).read_text(encoding="utf-8"))
    return {one["study"]: Entry.of(one) for one in held["studies"]}


def dumps(entries: Iterable[Entry]) -> str:
    """The text of book.json."""
    values = {"schema": SCHEMA, "studies": [asdict(one) for one in entries]}
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def claims(entries: Iterable[Entry]) -> list[Answer]:
    """Every claim once for each system, with its verdict."""
    by: dict[str, list[Told]] = {}
    for one in entries:
        by.setdefault(one.system, []).extend(one.told)
    return [answer for told in by.values() for answer in answers(told)]


def tallies(entries: Iterable[Entry]) -> tuple[Tally, Tally]:
    """Return the tallies of papers' claims, and of our own questions."""
    found = claims(entries)
    return Tally.of(a for a in found if not a.ours), Tally.of(a for a in found if a.ours)
