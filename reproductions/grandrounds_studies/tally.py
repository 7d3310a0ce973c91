"""Count verdicts. A claim that several reproductions or arms test counts once.

A paper's claim is judged by the arms in the paper's own form ("as printed", if there are any), never by our variants.
Our own question is judged by all arms that it concerns. It is reproduced only if it is in all of them, refuted if it is in
any, else inconclusive if it is in any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds_studies.study import FAILS, HOLDS, INCONCLUSIVE, UNTESTED

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
    seeds: int | None = None  # that would decide it, of an inconclusive one

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Told:
        """Read an entry of a results.json."""
        claim, where, arm, verdict, why = (str(values[key]) for key in ("claim", "where", "arm", "verdict", "why"))
        return cls(claim, where, arm, verdict, why, values["seeds_to_decide"])


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
    def deciding(self) -> Told:
        """The arm whose verdict is the claim's: the first with that word."""
        return next(t for t in self.told if t.verdict == self.verdict)

    @property
    def seeds(self) -> int | None:
        """The number of seeds that would decide an inconclusive claim: that of its most demanding arm."""
        needs = [t.seeds for t in self.told if t.verdict == INCONCLUSIVE and t.seeds is not None]
        return max(needs, default=None) if self.verdict == INCONCLUSIVE else None

    @property
    def why(self) -> str:
        """The numbers of the deciding arm, and in how many of the tested arms the claim is reproduced where they differ."""
        first, tested = self.deciding, [t for t in self.told if t.verdict != UNTESTED]
        words = first.why if len(self.told) == 1 else f"{first.arm}: {first.why}"
        if len({t.verdict for t in tested}) < 2:
            return words
        return f"{words}; in {sum(t.verdict == HOLDS for t in tested)} of {len(tested)} settings reproduced"


@dataclass(frozen=True)
class Tally:
    """Counts of claims by verdict."""

    reproduced: int = 0
    refuted: int = 0
    inconclusive: int = 0
    untested: int = 0

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> Tally:
        words = [a.verdict for a in answers]
        return cls(*(words.count(w) for w in (HOLDS, FAILS, INCONCLUSIVE, UNTESTED)))

    @property
    def all(self) -> int:
        return self.reproduced + self.refuted + self.inconclusive + self.untested

    @property
    def tested(self) -> int:
        return self.all - self.untested

    def __str__(self) -> str:
        return (
            f"{self.reproduced} reproduced, {self.refuted} refuted, {self.inconclusive} inconclusive, "
            f"{self.untested} cannot be tested"
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
    words = {t.verdict for t in rest}
    verdict = next((w for w in (FAILS, INCONCLUSIVE, HOLDS) if w in words), UNTESTED)
    return Answer(first.claim, first.where, verdict, rest)


def papers(told: Sequence[Told]) -> tuple[Told, ...]:
    """Return the arms in the paper's own form; all arms if that is not known."""
    printed = [t for t in told if _PRINTED in t.arm]
    theirs = printed or [t for t in told if not any(word in t.arm for word in _BUILT)]
    return tuple(theirs or told)
