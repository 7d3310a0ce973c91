"""A study: what a paper says it found, the runs that would show it, and how each of its claims is put to the test.

Arms are ways of doing it, points are the worlds they are tried in (a data set, a skew of labels); every arm is run at
every point with every seed or fold. A new system is one file that makes some `Study` values, and one line in `studies.SYSTEMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.names import slug

if TYPE_CHECKING:
    from grandrounds.report.figure import Figure
    from grandrounds.runs.run import Run
    from grandrounds_studies.results import Results

Settings = Mapping[str, Any]
"""Sections of an experiment, as its TOML file would have them."""

HOLDS, FAILS, INCONCLUSIVE, UNTESTED = "reproduced", "refuted", "inconclusive", "cannot be tested"
"""The four verdicts. Inconclusive: the interval neither confirms nor refutes the claim. Cannot be tested: data are missing, or
no run could fail the claim; the explanation has the cause."""

MOST_SEEDS = 1000
"""Most seeds that an inconclusive verdict asks for; one more stands for "more than"."""


@dataclass(frozen=True)
class Repeats:
    """Repetition of a run: `number` i is `settings(i)`, `word` is what i is called, and people count from `first`."""

    word: str
    settings: Callable[[int], Settings]
    first: int = 0


SEEDS = Repeats("seed", lambda i: {"seed": i})
FOLDS = Repeats("fold", lambda i: {"seed": 0, "split": {"fold": i}})


@dataclass(frozen=True)
class Measure:
    """A figure of a study: its name, what people call it, and how it is read off a finished run."""

    name: str
    words: str
    read: Callable[[Run], float]
    lower: bool | None = None  # whether less is better; None: neither
    digits: int = 3
    shown: bool = True  # in tables; others are for claims and figures alone


@dataclass(frozen=True)
class Arm:
    """One way of doing it; `over` lies over what the point says, for a way that changes the world itself.

    `repeated` gives further settings of this arm's i-th repeat, for a way that depends on the seed.
    """

    label: str
    settings: Settings
    over: Settings = field(default_factory=dict)
    repeated: Callable[[int], Settings] = lambda i: {}


@dataclass(frozen=True)
class Point:
    """One world to do it in; `x` and `group` give its place in a figure, `arms` which are run here (none: all).

    `of` holds what is so for single arms here: a budget that each of them keeps in its own way.
    """

    label: str
    settings: Settings
    x: float = 0.0
    group: str = ""
    arms: tuple[str, ...] = ()
    of: Mapping[str, Settings] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim in our runs, and the numbers behind it.

    `seeds`: of an inconclusive verdict, the number of seeds (or folds) which would decide it at the present mean and standard
    deviation; `MOST_SEEDS` + 1 if more than that are needed.
    """

    word: str
    why: str
    seeds: int | None = None

    def __str__(self) -> str:
        return f"{self.word}: {self.why}"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its place, and its test on our numbers, made once of each of these arms."""

    says: str
    where: str
    of: tuple[str, ...]
    test: Callable[[Results, str], Verdict]

    @property
    def ours(self) -> bool:
        """True for our own question, goal or threshold, which is no claim of a paper."""
        return self.where.startswith("our ")


@dataclass(frozen=True)
class Quick:
    """Differences of the quick version: settings laid over all others, and fewer points, arms and seeds."""

    settings: Settings = field(default_factory=dict)
    points: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: int = 2


@dataclass(frozen=True)
class Headline:
    """The one figure that stands for a study in a list, and the claim whose verdict does: how it begins; "": the first."""

    point: str
    arm: str
    measure: str
    claim: str = ""


@dataclass(frozen=True)
class Cell:
    """One run of a study; `seed` is the repeat's number, which `repeat` names."""

    point: str
    arm: str
    seed: int
    repeat: str = field(default=SEEDS.word, compare=False)

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{slug(self.point)}-{slug(self.arm)}-{self.repeat}{self.seed}"


@dataclass(frozen=True)
class Study:
    """One table or figure of a paper."""

    name: str  # "sse-agg/table-1"
    title: str
    source: str  # paper, section, table or figure
    base: Settings
    points: tuple[Point, ...]
    arms: tuple[Arm, ...]  # the first is what the others are compared with
    measures: tuple[Measure, ...]
    claims: tuple[Claim, ...]
    quick: Quick
    published: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """(point, arm) -> measure -> what the paper prints."""
    unpublished: str = ""  # where the paper prints no numbers: what it has instead
    settled: tuple[str, ...] = ()  # what the paper leaves open, and what was chosen
    remarks: tuple[str, ...] = ()  # what is to be known of the published figures
    draws: Callable[[Results], Sequence[tuple[str, Sequence[Figure]]]] = lambda results: ()
    """The study's figures, under headings."""
    keeps: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    """Data of a run that its figures need besides the measures, as plain values."""
    seeds: int = 5
    repeats: Repeats = SEEDS
    withheld: str = ""  # why readings of its runs are passed on without what `keeps` gives; "": they are passed on whole
    brief: bool = False  # its runs take less than a second: they are made one after another, in one process
    timed: bool = False  # it measures seconds or memory: its runs are its own, and no other study's are read for it
    headline: Headline | None = None  # None: the first published figure of an arm that is not the first

    @property
    def system(self) -> str:
        return self.name.split("/")[0]

    @property
    def of_paper(self) -> bool:
        """True for a study of a paper's figures or claims; False for one of our own questions alone."""
        return bool(self.published) or any(not c.ours for c in self.claims)

    def small(self) -> Study:
        """The quick version: for tests and a first look, not for a verdict on the paper."""
        q = self.quick
        points = tuple(p for p in self.points if p.label in (q.points or self._labels(self.points)))
        arms = tuple(a for a in self.arms if a.label in (q.arms or self._labels(self.arms)))
        points = tuple(replace(p, settings=merged(p.settings, q.settings)) for p in points)
        return replace(self, points=points, arms=arms, seeds=q.seeds)

    def without(self, left_out: Sequence[str]) -> Study:
        """The study without these points."""
        return replace(self, points=tuple(p for p in self.points if p.label not in left_out))

    def only(self, places: Sequence[tuple[str, str]]) -> Study:
        """The study with these arms at these points, (point, arm), and no others."""
        arms = {point: tuple(arm for p, arm in places if p == point) for point, _ in places}
        return replace(self, points=tuple(replace(p, arms=arms[p.label]) for p in self.points if p.label in arms))

    def cells(self, seeds: int) -> Iterator[Cell]:
        """Every run it takes."""
        for point in self.points:
            for arm in self.arms_at(point.label):
                yield from (Cell(point.label, arm.label, i, self.repeats.word) for i in range(seeds))

    def arms_at(self, point: str) -> tuple[Arm, ...]:
        """The arms that are run at a point."""
        chosen = self.point(point).arms
        return tuple(a for a in self.arms if not chosen or a.label in chosen)

    def point(self, label: str) -> Point:
        return next(p for p in self.points if p.label == label)

    def measure(self, name: str) -> Measure:
        return next(m for m in self.measures if m.name == name)

    def plan(self, cell: Cell) -> dict[str, Any]:
        """The resolved experiment of one run; the point lies over the arm, so that a quick version reaches everything."""
        from grandrounds.experiment.experiment import Experiment

        arm = next(a for a in self.arms if a.label == cell.arm)
        point = self.point(cell.point)
        values = self.base
        for above in (arm.settings, arm.repeated(cell.seed), point.settings, point.of.get(cell.arm, {}), arm.over):
            values = merged(values, above)
        named = {"name": f"{self.name}: {cell.arm}", **self.repeats.settings(cell.seed)}
        return Experiment.parse(merged(values, named), where=f"study {self.name}, {cell.name}").plan()

    def data(self, cell: Cell) -> str:
        """The set of the catalog that a run reads."""
        return str(merged(self.base, self.point(cell.point).settings)["data"]["name"])

    @staticmethod
    def _labels(things: Sequence[Point] | Sequence[Arm]) -> tuple[str, ...]:
        return tuple(t.label for t in things)


def merged(below: Settings, above: Settings) -> dict[str, Any]:
    """Settings laid over others, section by section."""
    out = dict(below)
    for key, value in above.items():
        held = out.get(key)
        out[key] = merged(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return out


def named(name: str, known: Mapping[str, Study]) -> Study:
    """The study of this name."""
    if name not in known:
        raise BadInput(f"no study '{name}'; {nearest(name, known)}")
    return known[name]
