"""Results of a study's runs: the same figures over seeds, beside what the paper prints, and a verdict on each claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from grandrounds.metrics import PairedTest, Summary, describe, paired_t
from grandrounds.metrics.names import metric_range
from grandrounds.metrics.statistics import clip_pair, describe_bounded
from grandrounds_studies.machine import machines
from grandrounds_studies.margins import Change, Difference, margin_of, with_margin
from grandrounds_studies.study import UNTESTED, Cell, Claim, Study, Verdict

if TYPE_CHECKING:
    from grandrounds.report.figure import Figure

SCHEMA = 2


class NotRun(Exception):
    """A test asks for something that these runs do not have."""


@dataclass(frozen=True)
class Reading:
    """Stored reading of one run; an undefined figure is NaN."""

    figures: Mapping[str, float]
    kept: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)  # what it ran on; empty: not recorded


@dataclass(frozen=True)
class Compared:
    """One figure of one arm at one point: what is published, what we found, and the paired difference to the first arm."""

    point: str
    arm: str
    measure: str
    published: float | None
    values: Mapping[int, float]  # seed -> figure
    ours: Summary
    to_first: PairedTest | None


@dataclass(frozen=True)
class Judged:
    """A claim, the arm it was tested of, and the verdict."""

    claim: Claim
    arm: str
    verdict: Verdict


@dataclass(frozen=True)
class Results:
    """A study with its numbers."""

    study: Study
    readings: Mapping[Cell, Reading]
    seeds: int
    quick: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)  # point -> why it was not run
    failed: Mapping[str, str] = field(default_factory=dict)  # run -> what went wrong

    def values(self, point: str, arm: str, measure: str) -> list[float]:
        """A figure by seed; NaN where the run failed, so that no seed is dropped in silence."""
        if arm not in self.arms_at(point):
            raise NotRun(f"{arm} was not run at {point}")
        found = [self.readings.get(Cell(point, arm, seed)) for seed in range(self.seeds)]
        return [float("nan") if r is None else r.figures[measure] for r in found]

    def arms_at(self, point: str) -> tuple[str, ...]:
        """The arms that were run at a point."""
        if point not in self.points:
            raise NotRun(f"it was not run at {point}")
        return tuple(a.label for a in self.study.arms_at(point))

    def summary(self, point: str, arm: str, measure: str) -> Summary:
        return describe(self.values(point, arm, measure))

    def difference(self, point: str, arm: str, measure: str, to: str | None = None) -> Difference:
        """The paired difference to another arm, by default the first."""
        baseline = self.values(point, to or self.first, measure)
        pair = self.paired(measure, self.values(point, arm, measure), baseline)
        self._must_be_known(pair.difference, f"{measure} of {arm} at {point}")
        return pair

    def paired(self, measure: str, values: Sequence[float], baseline: Sequence[float]) -> Difference:
        """The paired difference of a measure's values to others, with the smallest difference that matters."""
        pair = paired_t(values, baseline)
        return with_margin(pair, margin_of(self.study.measure(measure), describe(baseline).mean))

    def change(self, point: str, arm: str, measure: str) -> Change:
        """The relative change against the first arm, seed by seed: mean and 95% interval."""
        baseline = describe(self.values(point, self.first, measure)).mean
        found = describe(self._changes(point, arm, measure))
        self._must_be_known(found.mean, f"{measure} of {arm} at {point}")
        return Change(**asdict(found), margin=margin_of(self.study.measure(measure), baseline) / abs(baseline))

    def change_apart(self, point: str, other: str, arm: str, measure: str) -> Summary:
        """The relative change at one point less that at another, seed by seed."""
        pairs = zip(self._changes(point, arm, measure), self._changes(other, arm, measure), strict=True)
        return describe([a - b for a, b in pairs])

    def _changes(self, point: str, arm: str, measure: str) -> list[float]:
        pairs = zip(self.values(point, arm, measure), self.values(point, self.first, measure), strict=True)
        return [a / b - 1 if b else float("nan") for a, b in pairs]

    @property
    def first(self) -> str:
        """The arm that the others are compared with."""
        return self.study.arms[0].label

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(p.label for p in self.study.points)

    @property
    def figures(self) -> tuple[Compared, ...]:
        """Every figure, beside what is published."""
        out = []
        for point in self.points:
            for arm in self.arms_at(point):
                out += [self._compared(point, arm, m.name) for m in self.study.measures]
        return tuple(out)

    @property
    def claims(self) -> tuple[Judged, ...]:
        """A verdict on every claim."""
        return tuple(Judged(c, arm, self._verdict(c, arm)) for c in self.study.claims for arm in c.of)

    def charts(self) -> Sequence[tuple[str, Sequence[Figure]]]:
        """The study's figures, under headings."""
        return self.study.draws(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for results.json."""
        from grandrounds import __version__
        from grandrounds.core.arrays import plain

        s = self.study
        figures = [
            {"point": f.point, "arm": f.arm, "measure": f.measure, "published": f.published, "values": f.values,
             **asdict(f.ours), "paired_to_first": None if f.to_first is None else asdict(f.to_first)}
            for f in self.figures
        ]  # fmt: skip
        claims = [
            {
                "claim": j.claim.says,
                "where": j.claim.where,
                "arm": j.arm,
                "verdict": j.verdict.word,
                "why": j.verdict.why,
                "seeds_to_decide": j.verdict.seeds,
            }
            for j in self.claims
        ]
        about = {"schema": SCHEMA, "study": s.name, "title": s.title, "source": s.source, "version": __version__}
        how = {
            "quick": self.quick,
            "seeds": self.seeds,
            "repeats": s.repeats.word,
            "first_repeat": s.repeats.first,
            "first": self.first,
            "of_paper": s.of_paper,
            "left_out": self.left_out,
        }
        named = {m.name: {"words": m.words, "lower": m.lower, "digits": m.digits, "shown": m.shown} for m in s.measures}
        words = {
            "measures": named,
            "unpublished": s.unpublished,
            "remarks": s.remarks,
            "settled": s.settled,
            "failed": self.failed,
            "machines": machines(reading.machine for reading in self.readings.values()),
        }
        return dict(plain({**about, **how, "figures": figures, "claims": claims, **words}))

    def _compared(self, point: str, arm: str, measure: str) -> Compared:
        values = self.values(point, arm, measure)
        pair = None
        if arm != self.first and self.first in self.arms_at(point) and self.seeds > 1:
            pair = clip_pair(paired_t(values, self.values(point, self.first, measure)), metric_range(measure))
        published = self.study.published.get((point, arm), {}).get(measure)
        summary = describe_bounded(values, metric_range(measure))
        return Compared(point, arm, measure, published, dict(enumerate(values)), summary, pair)

    def _verdict(self, claim: Claim, arm: str) -> Verdict:
        try:
            return claim.test(self, arm)
        except NotRun as e:
            return Verdict(UNTESTED, str(e))

    def _must_be_known(self, value: float, what: str) -> None:
        """A verdict rests on nothing undefined, and not on one seed."""
        if self.seeds < 2:
            raise NotRun(f"one {self.study.repeats.word} has no interval; give --seeds 2 or more")
        if value != value:
            raise NotRun(f"{what} is undefined in a run")
