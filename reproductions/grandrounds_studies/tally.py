"""Verdicts counted: a claim that several studies, or several arms, put to the test counts once.

A paper's claim is counted of the paper's own form: of arms "as printed" where there are some, and never of what was
built here. A question of our own is counted of all arms it was asked of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds_studies.study import FAILS, HOLDS, NOT_CLEAR, OPEN, UNCOUNTED

PARTLY = "holds in part"
_PRINTED = "as printed"
_BUILT = ("as built here", "by grid")
"""What labels say of arms that are no paper's."""


@dataclass(frozen=True)
class Told:
    """A claim, the arm it was tested of, and what our numbers say of it."""

    claim: str
    where: str
    arm: str
    verdict: str
    why: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Told:
        """From the entry of a results.json."""
        return cls(*(str(values[key]) for key in ("claim", "where", "arm", "verdict", "why")))


@dataclass(frozen=True)
class Answer:
    """A claim with one verdict, and the arms that it rests on."""

    claim: str
    where: str
    verdict: str
    told: tuple[Told, ...]

    @property
    def ours(self) -> bool:
        """Whether it is a question, a goal or a bar of our own, and no paper's claim."""
        return self.where.startswith("our ")

    @property
    def unclear(self) -> bool:
        """Intervals neither show nor refute it: they take in zero, or the end of the claimed margin."""
        return self.verdict == FAILS and all(t.why.startswith(NOT_CLEAR) for t in self.told if t.verdict == FAILS)


@dataclass(frozen=True)
class Tally:
    """How many claims were tested, and what became of them; `unclear` are among those that fail, `open` were not tested, and
    `uncounted` could not have failed."""

    tested: int
    holds: int
    partly: int
    fails: int
    unclear: int
    open: int
    uncounted: int = 0

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> Tally:
        found = list(answers)
        words = [a.verdict for a in found]
        holds, partly, fails, left = (words.count(w) for w in (HOLDS, PARTLY, FAILS, OPEN))
        sure = words.count(UNCOUNTED)
        return cls(len(words) - left - sure, holds, partly, fails, sum(a.unclear for a in found), left, sure)

    def __str__(self) -> str:
        near = f" ({self.unclear} of these not clear)" if self.unclear else ""
        later = f"; {self.open} not tested" if self.open else ""
        later += f"; {self.uncounted} not counted, which could not fail" if self.uncounted else ""
        return f"{self.tested} tested: {self.holds} hold, {self.partly} hold in part, {self.fails} do not{near}{later}"


def answers(told: Iterable[Told]) -> list[Answer]:
    """Every claim once, in the order of its first mention."""
    by: dict[str, list[Told]] = {}
    for one in told:
        by.setdefault(one.claim, []).append(one)
    return [_answer(held) for held in by.values()]


def _answer(told: Sequence[Told]) -> Answer:
    first = told[0]
    rest = tuple(told) if first.where.startswith("our ") else papers(told)
    words = {t.verdict for t in rest} - {OPEN, UNCOUNTED}
    none = UNCOUNTED if any(t.verdict == UNCOUNTED for t in rest) else OPEN
    verdict = none if not words else words.pop() if len(words) == 1 else PARTLY
    return Answer(first.claim, first.where, verdict, rest)


def papers(told: Sequence[Told]) -> tuple[Told, ...]:
    """Those of them that are of the paper's own form; all where there is no telling."""
    printed = [t for t in told if _PRINTED in t.arm]
    theirs = printed or [t for t in told if not any(word in t.arm for word in _BUILT)]
    return tuple(theirs or told)
