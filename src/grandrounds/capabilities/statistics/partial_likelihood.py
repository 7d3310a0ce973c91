"""The partial likelihood of Cox regression: sums over risk sets, and what follows from them.

The rows of one site, or sums over sites on a common grid of times, lead to the same quantities. With w = exp(x'beta) and event
times t_1 < ... < t_m:

    S0(t), S1(t)    sums of w and w x over the rows at risk at t
    D0(t), D1(t)    the same over the d(t) events at t

Efron's method for ties gives the l-th of d events at one time the denominator phi_l = S0 - (l/d) D0; Breslow's gives S0 to all.
With E_l = (S1 - (l/d) D1) / phi_l:

    U = sum of x over events - sum of E_l
    H = sum_i w_i (cumA(T_i) - event_i B(T_i)) x_i x_i' - sum of E_l E_l'
    A(t) = sum of 1/phi_l,  B(t) = sum of (l/d)/phi_l,  cumA(t) = sum of A up to t

so that the matrix needs one product over rows, not one for each risk set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.capabilities.statistics.time_counts import survival_outcome
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

TIES = ("efron", "breslow")


@dataclass(frozen=True, eq=False)
class RiskSums:
    """Sums over risk sets at m event times.

    Attributes:
        s0: (m,) sum of w over the rows at risk.
        s1: (m, p) sum of w x over the rows at risk.
        d0: (m,) sum of w over the events.
        d1: (m, p) sum of w x over the events.
        events: (m,) number of events.
    """

    s0: Array
    s1: Array
    d0: Array
    d1: Array
    events: Array


@dataclass(frozen=True, eq=False)
class Hazard:
    """Increments of the hazard at m event times, with the sums over events that follow from them.

    Attributes:
        a: (m,) A, the increments of the cumulative baseline hazard.
        b: (m,) B, the part of A that rows are spared that leave among the ties of the time (Efron).
        e: (p,) sum of E_l over all events.
        ee: (p, p) sum of E_l E_l' over all events.
        log: Sum of log phi_l over all events.
        means: (d, p) E_l of each event.
        share: (d,) 1 / phi_l of each event.
        fraction: (d,) l / d of each event.
        events: (m,) number of events.
    """

    a: Array
    b: Array
    e: Array
    ee: Array
    log: float
    means: Array
    share: Array
    fraction: Array
    events: Array

    def compute_moments(self) -> HazardMoments:
        """Compute the moments that score residuals need."""
        weighted = self.share[:, None] * self.means
        return HazardMoments(
            self.a,
            self.b,
            _add_ties(weighted, self.events),
            _add_ties(self.fraction[:, None] * weighted, self.events),
            _add_ties(self.means, self.events) / np.maximum(self.events, 1)[:, None],
        )


@dataclass(frozen=True, eq=False)
class HazardMoments:
    """Hazard and means of the inputs at m event times, for score residuals.

    Attributes:
        a: (m,) A.
        b: (m,) B.
        ae: (m, p) sum of E_l / phi_l.
        be: (m, p) sum of (l/d) E_l / phi_l.
        mean: (m, p) mean of E_l over the events of each time.
    """

    a: Array
    b: Array
    ae: Array
    be: Array
    mean: Array


def compute_hazard(sums: RiskSums, ties: str) -> Hazard:
    """Compute the hazard's increments and the sums over events from sums over risk sets.

    Args:
        sums: The sums at m event times; times without events are allowed.
        ties: "efron" or "breslow".

    Returns:
        The hazard.
    """
    events = np.rint(sums.events).astype(int)
    place, fraction = _list_ties(events, ties)
    phi = sums.s0[place] - fraction * sums.d0[place]
    with np.errstate(divide="ignore", invalid="ignore"):
        share, log = 1 / phi, float(np.log(phi).sum())
        means = sums.s1[place] - fraction[:, None] * sums.d1[place] if ties == "efron" else sums.s1[place]
        means = means * share[:, None]
    a, b = _add_ties(share, events), _add_ties(fraction * share, events)
    return Hazard(a, b, means.sum(0), means.T @ means, log, means, share, fraction, events)


def _list_ties(events: Array, ties: str) -> tuple[Array, Array]:
    """Return the time of each event, and l/d: its number among the events of the time (0 with Breslow's ties)."""
    place = np.repeat(np.arange(len(events)), events)
    if ties != "efron":
        return place, np.zeros(len(place))
    first = np.cumsum(events) - events
    return place, (np.arange(len(place)) - first[place]) / events[place]


def _add_ties(values: Array, events: Array) -> Array:
    """Add the values of the events of each time."""
    starts = np.cumsum(events) - events
    if len(events) and events.min() > 0:
        return np.asarray(np.add.reduceat(values, starts))
    out = np.zeros((len(events), *values.shape[1:]))
    if len(values):
        at = np.flatnonzero(events)
        out[at] = np.add.reduceat(values, starts[at])
    return out


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Rows in order of time, with their place among event times.

    Attributes:
        x: (n, p) inputs.
        offset: (n,) offset of the linear predictor.
        event: (n,) True where the event was observed.
        last: (n,) number of event times at which the row is at risk; the event of a row is at time last - 1.
        spared: (n,) True where the row leaves the risk set step by step among the ties of its last time (Efron): events, and
            on a grid of intervals every row.
        order: (n,) the rows' positions in the site's table.
        times: Number of event times, m.
    """

    x: Array
    offset: Array
    event: Array
    last: Array
    spared: Array
    order: Array
    times: int

    def weigh(self, beta: Array) -> tuple[Array, Array]:
        """Return eta = x'beta + offset and exp(eta)."""
        eta = self.x @ beta + self.offset
        with np.errstate(over="ignore"):
            return eta, np.exp(eta)

    def add_up(self, weight: Array) -> RiskSums:
        """Add up the rows' weights over risk sets and over events."""
        wx = weight[:, None] * self.x
        first = np.searchsorted(self.last, np.arange(1, self.times + 1))
        of = np.flatnonzero(self.event)
        place = self.last[of] - 1
        events = np.bincount(place, minlength=self.times)
        return RiskSums(
            _add_from(weight, first),
            _add_from(wx, first),
            _add_ties(weight[of], events),
            _add_ties(wx[of], events),
            events.astype(float),
        )

    def spread(self, weight: Array, a: Array, b: Array) -> Array:
        """Return w_i (cumA(T_i) - spared_i B(T_i)): each row's expected number of events."""
        cumulative = np.concatenate([[0.0], np.cumsum(a)])[self.last]
        less = np.where(self.spared, b[np.maximum(self.last - 1, 0)], 0.0) if len(b) else 0.0
        return np.asarray(weight * (cumulative - less))

    def score_rows(self, weight: Array, hazard: HazardMoments) -> Array:
        """Compute each row's score residual (Lin and Wei 1989; with Efron's ties as in R's coxph).

        Args:
            weight: (n,) exp(eta).
            hazard: Moments of the hazard, of these rows or of all sites' rows.

        Returns:
            (n, p) residuals in the order of these rows; they add up to U.
        """
        if not self.times:
            return np.zeros_like(self.x)
        own = np.maximum(self.last - 1, 0)
        cumulative = np.vstack([np.zeros(self.x.shape[1]), np.cumsum(hazard.ae, axis=0)])[self.last]
        means = cumulative - np.where(self.spared[:, None], hazard.be[own], 0.0)
        expected = self.x * self.spread(weight, hazard.a, hazard.b)[:, None] - weight[:, None] * means
        return np.asarray(np.where(self.event[:, None], self.x - hazard.mean[own], 0.0) - expected)


def read_outcome(rows: Rows) -> tuple[Array, Array]:
    """Return times and events (True where observed) of a site's rows.

    Args:
        rows: The rows.

    Returns:
        (n,) times and (n,) events.

    Raises:
        BadInput: A time is missing or negative, an event is neither 0 nor 1, or rows carry weights.
    """
    time, event = survival_outcome(rows)
    if rows.weight is not None:
        raise BadInput("Cox regression does not take weights of rows: leave the weight column out", code="no-weights")
    return time, event > 0


def place_by_own_times(rows: Rows) -> PlacedRows:
    """Place the rows of one site among its own event times."""
    time, event = read_outcome(rows)
    order = np.argsort(time, kind="stable")
    times = np.unique(time[event])
    return _place(rows, order, np.searchsorted(times, time[order], "right"), len(times))


def place_on_grid(rows: Rows, edges: Array, *, is_exact: bool) -> PlacedRows:
    """Place the rows of one site on a common grid of intervals.

    Args:
        rows: The rows.
        edges: (m,) starts of the intervals, rising; rows that leave before the first are in no risk set.
        is_exact: True for intervals of one day: rows without event stay at risk through the day. False for longer ones: all
            rows of an interval leave its risk set evenly between its events.

    Returns:
        The placed rows.
    """
    time, event = read_outcome(rows)
    last = np.maximum(np.searchsorted(edges, time, "right"), event)
    order = np.argsort(last, kind="stable")
    return _place(rows, order, last[order], len(edges), is_exact=is_exact)


def _place(rows: Rows, order: Array, last: Array, times: int, *, is_exact: bool = True) -> PlacedRows:
    offset = np.zeros(len(rows)) if rows.offset is None else rows.offset[order]
    event = rows.y[order] > 0
    return PlacedRows(rows.x[order], offset, event, last, event if is_exact else last > 0, order, times)


def _add_from(values: Array, first: Array) -> Array:
    """Add the values from each given row to the last."""
    out = np.zeros((len(values) + 1, *values.shape[1:]))
    out[:-1] = np.cumsum(values[::-1], axis=0)[::-1]
    return out[first]


@dataclass(frozen=True, eq=False)
class Score:
    """Gradient, information matrix and value of a partial log-likelihood.

    Attributes:
        u: (p,) gradient.
        h: (p, p) information: minus the second derivatives.
        value: The log-likelihood.
    """

    u: Array
    h: Array
    value: float


def compute_score(placed: PlacedRows, beta: Array, ties: str) -> Score:
    """Compute a site's own partial likelihood at given coefficients; zeros without events.

    Args:
        placed: The rows, placed among their own event times.
        beta: (p,) coefficients.
        ties: "efron" or "breslow".

    Returns:
        Gradient, information and value.
    """
    p = placed.x.shape[1]
    if not placed.event.any():
        return Score(np.zeros(p), np.zeros((p, p)), 0.0)
    eta, _ = placed.weigh(beta)
    eta = eta - eta.max()  # a constant cancels within a site, and exp cannot overflow
    weight = np.exp(eta)
    hazard = compute_hazard(placed.add_up(weight), ties)
    spread = placed.spread(weight, hazard.a, hazard.b)
    return Score(
        placed.x[placed.event].sum(0) - hazard.e,
        (placed.x * spread[:, None]).T @ placed.x - hazard.ee,
        float(eta[placed.event].sum()) - hazard.log,
    )


def compute_gradients(placed: PlacedRows, betas: Array, ties: str) -> tuple[Array, Array]:
    """Compute gradients and values of a site's own partial likelihood at several coefficients at once.

    The gradient is the sum of (event - w (cumA - B)) x over rows, so that no sum of inputs over risk sets is needed.

    Args:
        placed: The rows, placed among their own event times.
        betas: (j, p) coefficients.
        ties: "efron" or "breslow".

    Returns:
        (j, p) gradients and (j,) values; zeros without events.
    """
    if not placed.event.any():
        return np.zeros_like(betas), np.zeros(len(betas))
    eta = placed.x @ betas.T + placed.offset[:, None]
    eta -= eta.max(0)
    weight = np.exp(eta)
    of = np.flatnonzero(placed.event)
    events = np.bincount(placed.last[of] - 1)
    place, fraction = _list_ties(events, ties)
    s0 = _add_from(weight, np.searchsorted(placed.last, np.arange(1, placed.times + 1)))
    phi = s0[place] - fraction[:, None] * _add_ties(weight[of], events)[place]
    a, b = _add_ties(1 / phi, events), _add_ties(fraction[:, None] / phi, events)
    expected = np.vstack([np.zeros(len(betas)), np.cumsum(a, axis=0)])[placed.last]
    expected[of] -= b[place]
    residual = placed.event[:, None] - weight * expected
    return residual.T @ placed.x, eta[of].sum(0) - np.log(phi).sum(0)
