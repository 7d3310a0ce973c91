"""Privacy budget of VEIL: the releases of each round and their noise, computed beforehand from public settings.

Draws: the largest epsilon per draw with which all draws and the row count keep the budget. Sums: the budget's zCDP is divided
between selection and steps. Every round is charged to every patient, also if some sites do not take part. Percentiles, if
requested, take their share of the budget's zCDP first, and are part of the last round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from grandrounds.core.plan_types import VeilSettings
from grandrounds.explain.noised_percentiles import ColumnCells, max_cell_count
from grandrounds.protocol.messages import Value

if TYPE_CHECKING:
    from grandrounds.methods.dp import PrivacyTerms
    from grandrounds.privacy.accounting import Event


LOCAL, SECURE = "local", "secure aggregation"
VOTING = ("score", "paper", "strongly_convex", "non_expansive")
"""Selections by proposals of each site; all others use sums."""

MAX_SUM_ENTRY = 2.0**30
"""Upper bound of an entry of one site's sum."""

_RHO_MARGIN = 1 - 1e-3
"""Share of the budget's zCDP for secure sums: discrete noise costs a little more."""

DEFAULT_NORM, MOMENTS_NORM = 3.0, 6.0
"""Default norm bound of one patient's vector in a sum: of scores, and of values."""

DEFAULT_STAGES = 5
"""Default number of selections, if there are enough rounds."""

CENTRE_NORM = 6.0
"""Norm bound of one patient's values in the sum for the centre."""

SCORES, MOMENTS, ROWS = "sums of clipped scores", "sums of second moments", "rows and events"
PERCENTILES = "counts of patients in agreed cells, for percentiles"


@dataclass(frozen=True)
class Spending:
    """The releases of one run. `draw` is the epsilon of one proposal; `rhos` the zCDP of one sum, by its task."""

    selection: str
    rounds: int
    stages: int
    k: int
    features: int
    counts: bool  # rows and events are requested before the first round
    secure: bool
    limited: bool  # there is a budget; without one there is no noise and no privacy guarantee
    norm: float
    outcome: float
    inputs: int
    sites: int
    draw: float = 0.0
    asking: float = 0.0  # epsilon of the count of rows, for draws
    rhos: tuple[tuple[str, float], ...] = ()
    columns: int = 0  # columns counted for percentiles in the last round; 0: none
    cells: int = 0  # the most cells that these columns have together

    @property
    def centres(self) -> bool:
        """Check whether sums of values are requested with rows and events."""
        return self.selection == "select_then_fit"

    @property
    def census(self) -> dict[str, Value]:
        """Return the settings of the census of rows and events."""
        if self.asking:
            return {"epsilon": self.asking}
        config: dict[str, Value] = {"norm": CENTRE_NORM} if self.centres else {}
        return config if self.secure or not self.limited else {**config, "noise": self.noise("census")}

    @property
    def census_noise(self) -> float:
        return self.noise("census") if self.limited else 0.0

    def task(self, round: int) -> str:
        """propose; moments, select or fit."""
        if self.selection == "moments":
            return "moments" if round == 1 else "fit"
        if self.selection == "select_then_fit":
            return (
                "select"
                if self.features and (round - 1) % self._stage == 0 and self._at(round) < self.stages
                else "fit"
            )
        return "propose"

    def wanted(self, round: int, inputs: int, *, selected: int) -> int:
        """Return the number of features that this round selects: equal parts by stage, all by the last."""
        by_now = -(-min(self.features, inputs) * (self._at(round) + 1) // self.stages)
        return max(0, by_now - selected)

    def site_config(self, round: int) -> dict[str, Value]:
        """Return the noise that sites add in this round."""
        if self.task(round) == "propose":
            return {"epsilon": self.draw} if self.draw else {}
        if not self.limited:
            return {}
        return {} if self.secure else {"noise": self.noise(self.task(round))}

    def noise(self, task: str) -> float:
        """Return the standard deviation of the noise in a sum: of each site, or of all together under secure aggregation."""
        if not self.limited:
            return 0.0
        rho = dict(self.rhos)[task]
        reach = self._sensitivity(task) + (math.sqrt(self._size(task)) * self._step(task) if self.secure else 0.0)
        return reach / math.sqrt(2 * rho)

    def deviation(self, task: str, sites: int) -> float:
        """Return the standard deviation of the noise in one entry of a sum over this many sites."""
        if not self.limited or task not in dict(self.rhos):
            return 0.0
        return self.noise(task) * (1.0 if self.secure else math.sqrt(sites))

    def events(self, round: int) -> Sequence[Event]:
        """Return the privacy events of this round for each training patient."""
        from grandrounds.privacy.accounting import Event

        events = []
        if round == 1 and self.counts:
            events.append(self._event("census", ROWS))
        task = self.task(round)
        if task != "propose":
            events.append(self._event(task, MOMENTS if task == "moments" else SCORES))
        elif self.selection == "paper" or not self.limited:
            events.append(Event("raw", "proposals whose signs are sent as they are", count=self.k))
        else:
            events.append(Event("exponential", "proposals of features with a sign", count=self.k, epsilon=self.draw))
        return [*events, *self.percentiles()] if round == self.rounds else events

    def percentiles(self) -> Sequence[Event]:
        """Return the privacy events of counting patients for percentiles."""
        return [self._event("percentiles", PERCENTILES)] if self.columns else []

    def _event(self, task: str, release: str) -> Event:
        from grandrounds.privacy.accounting import Event, skellam_rho

        trust = SECURE if self.secure else LOCAL
        if not self.limited:
            return Event("raw", release, trust=trust)
        if task == "census" and self.asking:
            return Event("laplace", release, epsilon=self.asking)
        if not self.secure:
            return Event("gaussian", release, sigma=self.noise(task) / self._sensitivity(task))
        rho = skellam_rho(
            self.noise(task),
            sensitivity=self._sensitivity(task),
            step=self._step(task),
            dimension=self._size(task),
        )
        return Event("skellam", release, rho=rho, trust=trust)

    def _sensitivity(self, task: str) -> float:
        """Compute the L2 sensitivity of a sum: (1, event), with values over R; a vector of scores; (z z', a z (y - prior)).

        For percentiles a patient is in one cell of each column.
        """
        if task == "percentiles":
            return math.sqrt(self.columns)
        if task == "census":
            return math.sqrt(3 if self.centres else 2)
        return self.norm * math.sqrt(self.norm**2 + self.outcome**2) if task == "moments" else self.norm

    def _size(self, task: str) -> int:
        m = self.inputs + 1
        if task == "percentiles":
            return self.cells
        return {"census": 2 + self.inputs * self.centres, "moments": m * (m + 1) // 2 + m}.get(task, m)

    def _step(self, task: str) -> float:
        """Compute the rounding step of sums, with room for the noise."""
        from grandrounds.methods.secure import STATISTIC_BITS
        from grandrounds.privacy.secagg import Scale, Skellam, fewest_honest

        roughly = 2 * self._sensitivity(task) / math.sqrt(2 * dict(self.rhos)[task])
        spare = Skellam(roughly, fewest_honest(self.sites)).room(self.sites)
        return Scale(STATISTIC_BITS, MAX_SUM_ENTRY, self.sites, spare=spare).step

    @property
    def _stage(self) -> int:
        return max(2, self.rounds // self.stages)

    def _at(self, round: int) -> int:
        return (round - 1) // self._stage


@dataclass(frozen=True)
class SpendingTerms:
    """The terms that determine a run's releases: settings, and the size of the consortium."""

    selection: str
    rounds: int
    stages: int
    k: int
    features: int
    weight: str
    prior: float | None
    claims: float | None
    asking: float
    selecting: float
    norm: float
    outcome: float
    inputs: int
    sites: int
    epsilon: float | None
    delta: float
    secure: bool
    percentiles: float = 0.0
    columns: int = 0
    cells: int = 0


def resolve_selection(selection: str, *, secure: bool) -> str:
    """Resolve selection 'auto'."""
    if selection != "auto":
        return selection
    return "select_then_fit" if secure else "score"


def plan_spending(
    settings: VeilSettings,
    *,
    rounds: int,
    inputs: int,
    sites: int,
    budget: PrivacyTerms | None,
    secure: bool,
    columns: Sequence[ColumnCells] = (),
) -> Spending:
    """Plan the releases of [method.veil]; `budget` has epsilon and delta, where set; `columns`: those with agreed cells."""
    v = settings
    counted = len(columns) if v.percentiles and budget is not None and budget.epsilon is not None else 0
    counted = min(counted, v.features) if v.features else counted
    selection = resolve_selection(v.selection, secure=secure)
    norm = (MOMENTS_NORM if selection == "moments" else DEFAULT_NORM) if v.norm is None else v.norm
    terms = SpendingTerms(
        selection=selection,
        rounds=rounds,
        stages=max(1, min(DEFAULT_STAGES, rounds // 3)) if v.stages is None else v.stages,
        k=v.k,
        features=v.features,
        weight=v.weight,
        prior=v.prior,
        claims=v.claimed_epsilon,
        asking=v.census_share,
        selecting=v.selecting,
        norm=norm,
        outcome=v.outcome * norm,
        inputs=inputs,
        sites=sites,
        epsilon=None if budget is None else budget.epsilon,
        delta=0.0 if budget is None else budget.delta,
        secure=secure,
        percentiles=v.percentiles if counted else 0.0,
        columns=counted,
        cells=max_cell_count(columns, counted),
    )
    return _plan(terms)


@lru_cache(maxsize=64)
def _plan(t: SpendingTerms) -> Spending:
    votes = t.selection not in ("select_then_fit", "moments")
    by_rows = t.weight == "root" and t.selection != "paper"
    by_sum = t.selection == "select_then_fit" or t.prior is None  # Newton's steps use second moments, not rows
    plain = Spending(
        selection=t.selection,
        rounds=t.rounds,
        stages=t.stages,
        k=t.k,
        features=t.features,
        counts=by_rows or (t.prior is None and t.selection == "score") if votes else by_sum,
        secure=t.secure,
        limited=t.epsilon is not None,
        norm=t.norm,
        outcome=t.outcome,
        inputs=t.inputs,
        sites=t.sites,
        columns=t.columns,
        cells=t.cells,
    )
    if t.selection == "paper" and t.claims is not None:
        return replace(plain, draw=t.claims / (t.rounds * t.k))  # basic composition, as printed
    if t.epsilon is None:
        return plain
    if votes:
        census_epsilon = t.asking * t.epsilon if plain.counts else 0.0
        if t.columns:
            from grandrounds.privacy.accounting import total_rho

            plain = replace(plain, rhos=(("percentiles", t.percentiles * total_rho(t.epsilon, t.delta)),))
        drawn = _epsilon_per_draw(
            t.epsilon,
            t.delta,
            draws=t.rounds * t.k,
            census_epsilon=census_epsilon,
            other_events=tuple(plain.percentiles()),
        )
        return replace(plain, draw=drawn, asking=census_epsilon)
    return replace(plain, rhos=_allocate_rho(plain, t))


def _epsilon_per_draw(
    epsilon: float, delta: float, *, draws: int, census_epsilon: float, other_events: Sequence[Event] = ()
) -> float:
    """Find the largest epsilon of a draw, by bisection on the accountant's total."""
    from grandrounds.privacy.accounting import Event, epsilon_of

    def spent(draw: float) -> float:
        census = [Event("laplace", ROWS, epsilon=census_epsilon)] if census_epsilon else []
        return epsilon_of([*census, *other_events, Event("exponential", "proposals", count=draws, epsilon=draw)], delta)

    low, high = 0.0 if other_events else (epsilon - census_epsilon) / draws, epsilon
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= epsilon else (low, middle)
    return low


def _allocate_rho(plan: Spending, t: SpendingTerms) -> tuple[tuple[str, float], ...]:
    """Allocate zCDP to one sum of each task."""
    from grandrounds.privacy.accounting import noise_for, total_rho

    assert t.epsilon is not None
    if t.secure:
        total = _RHO_MARGIN * total_rho(t.epsilon, t.delta)
    else:  # Gaussian releases compose to one Gaussian exactly, which is tighter than their zCDP
        total = 1 / (2 * noise_for(t.epsilon, t.delta, steps=1) ** 2)
    counting = t.percentiles * total
    total -= counting
    tasks = [plan.task(r) for r in range(1, plan.rounds + 1)]
    first = "moments" if plan.selection == "moments" else "select"
    census = t.asking * total if plan.counts else 0.0
    chosen, steps = tasks.count(first), tasks.count("fit")
    part = 0.0 if not chosen else 1.0 if not steps else t.selecting
    rhos = {"census": census} if census else {}
    rhos |= {first: part * (total - census) / chosen} if chosen else {}
    rhos |= {"fit": (1 - part) * (total - census) / steps} if steps else {}
    rhos |= {"percentiles": counting} if t.columns else {}
    return tuple(rhos.items())
