"""Search for the steps and whole-number points of a risk card, and the risks of its totals, from sums alone.

The loss of a card is a quadratic of its points, so the server needs no rows: b'A b - 2 u'b, with A the weighted products of
steps about their means and u their weighted products with the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.metrics.statistics import share_interval
from grandrounds.models.risk_card import RiskRange, print_risk

BEAM, SCALES, RIDGE = 8, 16, 3.0
"""Sets of steps that the search keeps, scales that are tried, and the ridge penalty of a step."""

SIMPLER = 0.01
"""Share of the explained loss that smaller points may cost: a card that is easier to add up is taken."""

_DIGITS = 9  # of a relative loss: smaller differences come from the order of sums
_SAME = 1e-9
_ALIKE = 0.01
_MOST_PRIOR = 10_000.0  # patients: the largest weight of the line through all totals


@dataclass(frozen=True)
class Points:
    """Whole-number points of steps.

    Attributes:
        steps: Numbers of the steps, (k,).
        points: Their points, (k,), none of them 0.
        scale: Points of one unit of the target (log-odds).
        loss: The loss at the best scale, relative to that of a card without points: 0 to -1.
    """

    steps: tuple[int, ...]
    points: tuple[int, ...]
    scale: float
    loss: float


def drop_repeats(product: Array, weight: Array, total: float) -> Array:
    """Find steps that divide the rows as an earlier one does, or as its opposite, but for 1% of the weight.

    Args:
        product: Z'wZ of the steps, (m, m).
        weight: Z'w, (m,).
        total: Sum of w.

    Returns:
        Numbers of the steps that are left, in order.
    """
    kept: list[int] = []
    for j in range(len(weight)):
        equal = [weight[i] + weight[j] - 2 * product[i, j] for i in kept]  # weight of the rows that meet one of the two
        opposite = [total - gap for gap in equal]
        if not any(gap <= _ALIKE * total for gap in (*equal, *opposite)):
            kept.append(j)
    return np.array(kept, int)


def search_steps(a: Array, u: Array, *, terms: int) -> list[tuple[int, ...]]:
    """Choose steps by beam search on the least-squares loss.

    Args:
        a: Products of steps about their means, (m, m), with the ridge on its diagonal.
        u: Products with the target, (m,).
        terms: Number of steps.

    Returns:
        The best sets of so many steps, best first.
    """
    beams: list[tuple[int, ...]] = [()]
    scale = float((u**2 / np.diag(a)).sum()) or 1.0
    for _ in range(terms):
        grown = sorted({tuple(sorted((*chosen, j))) for chosen in beams for j in range(len(u)) if j not in chosen})
        places = np.array(grown)
        inner = a[places[:, :, None], places[:, None, :]]
        gain = np.einsum("sk,sk->s", np.linalg.solve(inner, u[places][..., None])[..., 0], u[places])
        order = np.lexsort((np.arange(len(grown)), -np.round(gain / scale, _DIGITS)))
        beams = [grown[i] for i in order[:BEAM]]
    return beams


def round_points(a: Array, u: Array, steps: Sequence[int], *, most: int) -> Points:
    """Give steps whole-number points from -most to most, none of them 0.

    For each of 16 scales the coefficient nearest to a whole number is rounded and the others are solved again, until all are
    whole; single points are then moved by one while that lowers the loss. The loss lets one common factor free, which is the
    scale of the card.

    Args:
        a: As in `search_steps`.
        u: As in `search_steps`.
        steps: The steps.
        most: Most points of a step.

    Returns:
        The points of least loss.
    """
    chosen = np.asarray(steps, int)
    a, u = a[np.ix_(chosen, chosen)], u[chosen]
    best = np.linalg.solve(a, u)
    most_gain = float(best @ u) or 1.0
    largest = float(np.abs(best).max()) or 1.0
    found: dict[tuple[int, ...], float] = {}
    for target in np.geomspace(min(1.0, 0.3 * most), 1.5 * most, SCALES):
        whole = _improve(a, u, _round_one_by_one(a, u * (target / largest), most), most)
        found[tuple(int(p) for p in whole)] = _gain(a, u, whole)
    enough = max(found.values()) * (1 - SIMPLER)
    points = min((p for p, gain in found.items() if gain >= enough), key=lambda p: (sum(map(abs, p)), -found[p], p))
    p = np.array(points, float)
    factor = float(u @ p) / float(p @ a @ p)  # log-odds of a point
    return Points(tuple(steps), points, 1.0 / factor if factor else 1.0, -found[points] / most_gain)


def _gain(a: Array, u: Array, p: Array) -> float:
    """Return by how much points lower the loss, at their best common factor."""
    return float(u @ p) ** 2 / float(p @ a @ p) if u @ p > 0 else 0.0


def _round_one_by_one(a: Array, u: Array, most: int) -> Array:
    """Round the coefficient nearest to a whole number and solve the others again, until all are whole."""
    k = len(u)
    out, free = np.zeros(k), np.ones(k, bool)
    while free.any():
        rest = np.flatnonzero(free)
        b = np.linalg.solve(a[np.ix_(rest, rest)], u[rest] - a[np.ix_(rest, np.flatnonzero(~free))] @ out[~free])
        whole = np.clip(np.rint(b), -most, most)
        whole = np.where(whole == 0, np.where(b < 0, -1.0, 1.0), whole)
        nearest = int(np.argmin(np.round(np.abs(b - whole), _DIGITS)))
        out[rest[nearest]] = whole[nearest]
        free[rest[nearest]] = False
    return out


def _improve(a: Array, u: Array, p: Array, most: int) -> Array:
    """Move single points by one, over 0, as long as that lowers the loss."""
    p = p.copy()
    now = _gain(a, u, p)
    while True:
        options = []
        for j in range(len(p)):
            for step in (-1.0, 1.0):
                value = p[j] + step if p[j] + step != 0 else p[j] + 2 * step
                if abs(value) <= most:
                    q = p.copy()
                    q[j] = value
                    options.append((_gain(a, u, q), j, q))
        gain, _, q = max(options, key=lambda o: (o[0], -o[1]), default=(now, 0, p))
        if gain <= now * (1 + _SAME):
            return p
        now, p = gain, q


def find_risks(rows: Array, events: Array, *, first: int, least: int) -> tuple[tuple[RiskRange, ...], tuple[str, ...]]:
    """Print the risk of every total of points, from the rows and events that have it.

    The printed risk is the observed share, drawn towards the logistic line through all totals as far as the counts do not
    contradict it (beta-binomial, by moments): (events + m L) / (rows + m). It does not fall as the total rises. Its interval is
    Wilson's for that risk among the patients of that total.

    Args:
        rows: Rows of each total, (T,).
        events: Events of each total, (T,).
        first: The lowest total.
        least: Fewest rows of a range; smaller ones are printed together with a neighbour.

    Returns:
        The ranges in order, and notes.
    """
    line = _logistic_line(rows, events)
    groups = [
        _Range(t, int(n), int(e), float(n * line[t]))
        for t, (n, e) in enumerate(zip(rows, events, strict=True))
        if n > 0
    ]
    merged = _merge_small(groups, least)
    weight = _prior_rows(merged)
    risks = _pool_falls(merged, weight)
    out = []
    for k, group in enumerate(risks):
        last = len(rows) - 1 if k == len(risks) - 1 else risks[k + 1].start - 1
        risk = print_risk(group.risk(weight))
        digits = 4 if risk < 0.02 else 3
        low, high = (round(v, digits) for v in share_interval(risk, group.rows))
        start = group.start if k else 0
        out.append(
            RiskRange(first + start, first + last, group.rows, group.events, risk, min(low, risk), max(high, risk))
        )
    notes = (
        "A printed risk is the share of patients with the event at that total, drawn towards the line through all totals "
        f"with the weight of {weight:,.0f} patients.",
        *(
            [f"Totals with fewer than {least} patients are printed together with a neighbour."]
            if len(merged) < len(groups)
            else []
        ),
        *(["Totals between which the risk would fall are printed together."] if len(risks) < len(merged) else []),
    )
    return tuple(out), notes


@dataclass(frozen=True)
class _Range:
    """Neighbouring totals: the place of the first, rows, events, and the events that the line expects."""

    start: int
    rows: int
    events: int
    expected: float

    def risk(self, weight: float) -> float:
        line = self.expected / self.rows
        return (self.events + weight * line) / (self.rows + weight)

    def join(self, other: _Range) -> _Range:
        return _Range(self.start, self.rows + other.rows, self.events + other.events, self.expected + other.expected)


def _logistic_line(rows: Array, events: Array) -> Array:
    """Fit log-odds = a + b total to counts, b >= 0, with a slight ridge on b; return the risk of each total."""
    n, e = float(rows.sum()), float(events.sum())
    total = np.arange(len(rows), dtype=float)
    mean = float(rows @ total) / n
    spread = float(np.sqrt(rows @ (total - mean) ** 2 / n)) or 1.0
    z = np.column_stack([np.ones(len(rows)), (total - mean) / spread])
    beta, penalty = np.array([np.log(e / (n - e)), 0.0]), np.diag([0.0, 1.0])
    for _ in range(50):
        mu = 0.5 * (1 + np.tanh(0.5 * (z @ beta)))
        h = z.T @ (z * (rows * mu * (1 - mu))[:, None]) + penalty
        step = np.linalg.solve(h, z.T @ (events - rows * mu) - penalty @ beta)
        beta = beta + step
        if np.abs(step).max() < 1e-10:
            break
    beta[1] = max(beta[1], 0.0)
    out: Array = np.clip(0.5 * (1 + np.tanh(0.5 * (z @ beta))), 0.5 / n, 1 - 0.5 / n)
    return out


def _merge_small(groups: list[_Range], least: int) -> list[_Range]:
    """Merge a range of few rows with the smaller of its neighbours, until none is left."""
    out = list(groups)
    while len(out) > 1 and (small := next((k for k, g in enumerate(out) if g.rows < least), None)) is not None:
        sides = [k for k in (small - 1, small + 1) if 0 <= k < len(out)]
        a, b = sorted((small, min(sides, key=lambda k: out[k].rows)))
        out[a : b + 1] = [out[a].join(out[b])]
    return out


def _prior_rows(groups: Sequence[_Range]) -> float:
    """Return the weight of the line in patients: large if the shares differ from it no more than by chance."""
    n = np.array([g.rows for g in groups], float)
    share = np.array([g.expected for g in groups]) / n
    chi2 = float((((np.array([g.events for g in groups]) - n * share) ** 2) / (n * share * (1 - share))).sum())
    beyond = max(0.0, chi2 - max(1, len(groups) - 2)) / max(1.0, float(n.sum()) - len(groups))
    return min(_MOST_PRIOR, 1 / beyond - 1) if beyond > 0 else _MOST_PRIOR


def _pool_falls(groups: Sequence[_Range], weight: float) -> list[_Range]:
    """Merge neighbours whose printed risk falls or is the same (pool adjacent violators)."""
    out: list[_Range] = []
    for group in groups:
        out.append(group)
        while len(out) > 1 and print_risk(out[-2].risk(weight)) >= print_risk(out[-1].risk(weight)):
            last = out.pop()
            out[-1] = out[-1].join(last)
    return out
