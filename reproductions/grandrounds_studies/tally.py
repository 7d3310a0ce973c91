"""Count verdicts. A claim that several reproductions or arms test counts once.

A paper's claim is judged by the arms in the paper's own form ("as printed", if there are any), never by our variants.
Our own question is judged by all arms that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds_studies.study import FAILS, HOLDS, NOT_CLEAR, OPEN, UNCOUNTED

PARTLY = "partly reproduced"
_PRINTED = "as printed"
_BUILT = ("as built here", "by grid")
"""Labels of arms that are our variants, not the paper's."""


@dataclass(frozen=True)
class Told:
    """A claim, the tested arm, and the verdict of our numbers."""

    claim: str
    where: str
    arm: str
    verdict: str
    why: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Told:
        """Read an entry of a results.json."""
        return cls(*(str(values[key]) for key in ("claim", "where", "arm", "verdict", "why")))


@dataclass(frozen=True)
class Answer:
    """A claim with one verdict, and the arms behind it."""

    claim: str
    where: str
    verdict: str
    told: tuple[Told, ...]

    @property
    def ours(self) -> bool:
        """True for our own question, goal or threshold, which is no claim of a paper."""
        return self.where.startswith("our ")

    @property
    def unclear(self) -> bool:
        """True if intervals neither confirm nor refute it: they include zero, or the end of the claimed margin."""
        return self.verdict == FAILS and all(t.why.startswith(NOT_CLEAR) for t in self.told if t.verdict == FAILS)


@dataclass(frozen=True)
class Tally:
    """Counts of claims by verdict. `unclear` are among `fails`, `open` were not tested, `uncounted` could not have failed."""

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
        near = f" ({self.unclear} of these inconclusive)" if self.unclear else ""
        later = f"; {self.open} not tested" if self.open else ""
        later += f"; {self.uncounted} not counted, which could not fail" if self.uncounted else ""
        return (
            f"{self.tested} tested: {self.holds} reproduced, {self.partly} partly reproduced, {self.fails} not "
            f"reproduced{near}{later}"
        )


def answers(told: Iterable[Told]) -> list[Answer]:
    """Return every claim once, in the order of its first mention."""
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
    """Return the arms in the paper's own form; all arms if that is not known."""
    printed = [t for t in told if _PRINTED in t.arm]
    theirs = printed or [t for t in told if not any(word in t.arm for word in _BUILT)]
    return tuple(theirs or told)
