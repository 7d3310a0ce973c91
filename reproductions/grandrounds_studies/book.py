"""Reproduction report: results of every study that is measured, computed from the readings that are kept beside the pages.

book.json is written by docs/results_page.py, with docs/results; a study without kept readings is in it without results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from grandrounds_studies.lines import Figure, Line, line, line_figure
from grandrounds_studies.machine import machine_words
from grandrounds_studies.study import Study
from grandrounds_studies.tally import Answer, Tally, Told, answers
from grandrounds_studies.wording import repeats_range

BOOK = "book.json"
SCHEMA = 2


@dataclass(frozen=True)
class Entry:
    """A study that is measured: how, the figure that stands for it, and every verdict."""

    study: str
    runs: int
    repeats: str  # "seeds 0 to 4"
    ran: str  # machines, versions and dates
    figure: Figure | None
    told: tuple[Told, ...]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Entry:
        """From its part of book.json."""
        figure = values.pop("figure")
        told = tuple(Told(**one) for one in values.pop("told"))
        return cls(figure=None if figure is None else Figure(**figure), told=told, **values)

    @classmethod
    def of_results(cls, study: Study, values: Mapping[str, Any]) -> Entry:
        """From the values of its results.json."""
        return cls(
            study=study.name,
            runs=sum(one["runs"] for one in values["machines"]) + len(values["failed"]),
            repeats=repeats_range(values),
            ran=machine_words(values["machines"]),
            figure=line_figure(study, values),
            told=tuple(Told.of(c) for c in values["claims"]),
        )

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


def waiting(studies: Iterable[Study], book: Mapping[str, Entry]) -> int:
    """Count the papers' claims that wait for a study to be measured; a claim of another, measured study does not wait."""
    every = list(studies)
    tested = {(e.system, t.claim) for e in book.values() for t in e.told}
    claimed = {(s.system, c.says) for s in every if s.name not in book for c in s.claims if not c.ours}
    return len(claimed - tested)
