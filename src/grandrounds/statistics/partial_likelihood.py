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

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.statistics.question import Rows

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
        b: (m,) B, the part of A that the events of the time are spared (Efron).
        ae: (m, p) sum of E_l / phi_l.
        be: (m, p) sum of (l/d) E_l / phi_l.
        mean: (m, p) mean of E_l over the events of each time.
        e: (p,) sum of E_l over all events.
        ee: (p, p) sum of E_l E_l' over all events.
        log: Sum of log phi_l over all events.
    """

    a: Array
    b: Array
    ae: Array
    be: Array
    mean: Array
    e: Array
    ee: Array
    log: float


def compute_hazard(sums: RiskSums, ties: str) -> Hazard:
    """Compute the hazard's increments and the sums over events from sums over risk sets.

    Args:
        sums: The sums at m event times; times without events are allowed.
        ties: "efron" or "breslow".

    Returns:
        The hazard.
    """
    events = np.rint(sums.events).astype(int)
    m, total = len(events), int(events.sum())
    place = np.repeat(np.arange(m), events)
    fraction = np.zeros(total)
    if ties == "efron":
        first = np.cumsum(events) - events
        fraction = (np.arange(total) - first[place]) / events[place]
    phi = sums.s0[place] - fraction * sums.d0[place]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (sums.s1[place] - fraction[:, None] * sums.d1[place]) / phi[:, None]
        share, log = 1 / phi, float(np.log(phi).sum())

    def add(values: Array) -> Array:
        """Add the values of the events of each time."""
        out = np.zeros((m, *values.shape[1:]))
        if total:
            at = np.flatnonzero(events)
            out[at] = np.add.reduceat(values, (np.cumsum(events) - events)[at])
        return out

    return Hazard(
        add(share),
        add(fraction * share),
        add(share[:, None] * mean),
        add((fraction * share)[:, None] * mean),
        add(mean) / np.maximum(events, 1)[:, None],
        mean.sum(0),
        mean.T @ mean,
        log,
    )


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Rows in order of time, with their place among event times.

    Attributes:
        x: (n, p) inputs.
        offset: (n,) offset of the linear predictor.
        event: (n,) True where the event was observed.
        last: (n,) number of event times at which the row is at risk; the event of a row is at time last - 1.
        order: (n,) the rows' positions in the site's table.
        times: Number of event times, m.
    """

    x: Array
    offset: Array
    event: Array
    last: Array
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
        d1 = np.zeros((self.times, self.x.shape[1]))
        if len(of):
            at = np.flatnonzero(events)
            d1[at] = np.add.reduceat(wx[of], (np.cumsum(events) - events)[at])
        return RiskSums(
            _add_from(weight, first),
            _add_from(wx, first),
            np.bincount(place, weight[of], minlength=self.times).astype(float),
            d1,
            events.astype(float),
        )

    def spread(self, weight: Array, a: Array, b: Array) -> Array:
        """Return w_i (cumA(T_i) - event_i B(T_i)): each row's expected number of events."""
        cumulative = np.concatenate([[0.0], np.cumsum(a)])[self.last]
        spared = np.where(self.event, b[np.maximum(self.last - 1, 0)], 0.0) if len(b) else 0.0
        return np.asarray(weight * (cumulative - spared))

    def score_rows(self, weight: Array, hazard: Hazard) -> Array:
        """Compute each row's score residual (Lin and Wei 1989; with Efron's ties as in R's coxph).

        Args:
            weight: (n,) exp(eta).
            hazard: The hazard, of these rows or of all sites' rows.

        Returns:
            (n, p) residuals in the order of these rows; they add up to U.
        """
        if not self.times:
            return np.zeros_like(self.x)
        own = np.maximum(self.last - 1, 0)
        event = self.event[:, None]
        cumulative = np.vstack([np.zeros(self.x.shape[1]), np.cumsum(hazard.ae, axis=0)])[self.last]
        means = cumulative - np.where(event, hazard.be[own], 0.0)
        expected = self.x * self.spread(weight, hazard.a, hazard.b)[:, None] - weight[:, None] * means
        return np.asarray(np.where(event, self.x - hazard.mean[own], 0.0) - expected)


def check_survival(rows: Rows) -> None:
    """Check that rows have follow-up times and events that are 0 or 1.

    Args:
        rows: The rows of one site.

    Raises:
        BadInput: A time is missing, an event is neither 0 nor 1, or rows carry weights.
    """
    if rows.time is None:
        raise BadInput(
            "Cox regression needs the follow-up time of each row; name its column (data.duration)", code="no-time"
        )
    if not np.isfinite(rows.time).all():
        count = int((~np.isfinite(rows.time)).sum())
        raise BadInput(f"{count} rows have no finite follow-up time; leave them out or complete them", code="no-time")
    if not np.isin(rows.y, (0, 1)).all():
        raise BadInput(
            "the event column has values other than 0 and 1; code observed events as 1, others as 0", code="not-0-1"
        )
    if rows.weight is not None:
        raise BadInput("Cox regression does not take weights of rows; leave the weight column out", code="no-weights")


def place_by_own_times(rows: Rows) -> PlacedRows:
    """Place the rows of one site among its own event times."""
    check_survival(rows)
    assert rows.time is not None
    order = np.argsort(rows.time, kind="stable")
    time, event = rows.time[order], rows.y[order] > 0
    times = np.unique(time[event])
    return _place(rows, order, np.searchsorted(times, time, "right"), len(times))


def place_on_grid(rows: Rows, edges: Array, leave: Array) -> PlacedRows:
    """Place the rows of one site on a common grid of intervals.

    Events move to the start of their interval. A row without event stays at risk to the start of the interval `leave[j]`, j
    its own interval.

    Args:
        rows: The rows.
        edges: (m,) starts of the intervals, rising; rows before the first belong to it.
        leave: (m,) for each interval the last interval in whose risk set its rows without event are.

    Returns:
        The placed rows.
    """
    check_survival(rows)
    assert rows.time is not None
    interval = np.maximum(np.searchsorted(edges, rows.time, "right") - 1, 0)
    last = np.where(rows.y > 0, interval, leave[interval]).astype(int) + 1
    order = np.argsort(last, kind="stable")
    return _place(rows, order, last[order], len(edges))


def _place(rows: Rows, order: Array, last: Array, times: int) -> PlacedRows:
    offset = np.zeros(len(rows)) if rows.offset is None else rows.offset[order]
    return PlacedRows(rows.x[order], offset, rows.y[order] > 0, last, order, times)


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


def pack_upper(matrix: Array) -> Array:
    """Return the upper triangle of a symmetric matrix by rows, (p (p + 1) / 2,)."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def unpack_upper(values: Array, size: int) -> Array:
    """Return the symmetric matrix of an upper triangle by rows."""
    out = np.zeros((size, size))
    out[np.triu_indices(size)] = values
    return np.asarray(out + np.triu(out, 1).T)
