"""Choice of the ridge penalty by cross-validation over all sites.

Each site deals its rows to folds. For each fold and penalty a Cox regression stratified by hospital is fitted to the rows of the
other folds; all of these fits go side by side through the same exchanges. The penalty with the highest cross-validated partial
log-likelihood (Verweij and van Houwelingen 1993) is chosen: the sum over folds of l(all rows) - l(rows of the other folds), at
the coefficients fitted without the fold.

The first exchange asks for the information matrix of each fold. Later ones ask for gradients and values alone, and the server
updates its matrices from them (BFGS): that takes a twentieth of the numbers of Newton's method with 40 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from grandrounds.capabilities.statistics.cox_terms import CoxTerms, check_events, note_roster
from grandrounds.capabilities.statistics.newton import count_upper, invert, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.partial_likelihood import (
    compute_gradients,
    compute_score,
    place_by_own_times,
    read_outcome,
)
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows
from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Value

FOLDS = "cox.folds"

_CLOSE = 1e-3
"""Newton decrement at which a fold's fit is good enough to compare penalties: 0.03 standard errors."""
_FAR_BEHIND = 3.0
"""A penalty whose value is so much below the best needs no further steps."""
_MOST_STEPS = 10
_LONGEST_STEP = 2.0


def deal_folds(rows: Rows, folds: int) -> Array:
    """Deal a site's rows to folds, the same way every time and for every order of the rows.

    Rows are sorted by event and time and dealt in turn, so that folds have like numbers of events. The fold of the first row
    follows from the rows themselves, so that not every site begins with the same one. Rows of one patient go to one fold.

    Args:
        rows: The rows.
        folds: Number of folds.

    Returns:
        (n,) the fold of each row.
    """
    time, event = read_outcome(rows)
    marks = np.array([crc32(row.tobytes()) for row in np.ascontiguousarray(rows.x, np.float64)], np.int64)
    order = np.lexsort((marks, time, event))
    if rows.patient is None:
        unit, count = np.argsort(order), len(rows)
    else:
        patients, of = np.unique(rows.patient[order], return_inverse=True)
        last = np.full(len(patients), -1)
        np.maximum.at(last, of, np.arange(len(order)))  # a patient comes where the last of its rows does
        unit, count = np.empty(len(rows), int), len(patients)
        unit[order] = np.argsort(np.argsort(last))[of]
    first = crc32(np.sort(marks).tobytes()) % folds if count else 0
    return np.asarray((unit + first) % folds)


def answer_folds(question: Question, rows: Rows) -> Blocks:
    """Answer with the partial likelihood of the rows outside a fold, for several folds and coefficients.

    Args:
        question: `betas` (j, p), `left_out` (j,) the fold that each leaves out, `folds`, and `ties`.
        rows: The site's rows.

    Returns:
        U (j, p) and l (j,) of the rows outside the fold, `whole` (j,) the value of all rows, events; H where it is asked for.
    """
    values, ties = question.values, str(question.values["ties"])
    betas, left_out = np.asarray(values["betas"]), np.asarray(values["left_out"], int)
    fold = deal_folds(rows, int(str(values["folds"])))
    everyone = place_by_own_times(rows)
    _, whole = compute_gradients(everyone, betas, ties)
    u, value, matrices = np.zeros_like(betas), np.zeros(len(betas)), np.zeros((len(betas), count_upper(betas.shape[1])))
    for k in np.unique(left_out):
        placed, at = place_by_own_times(_select(rows, fold != k)), left_out == k
        u[at], value[at] = compute_gradients(placed, betas[at], ties)
        if "H" in question.blocks:
            matrices[at] = [pack_upper(compute_score(placed, beta, ties).h) for beta in betas[at]]
    blocks = {"U": u, "l": value, "whole": whole, "events": np.array(float(everyone.event.sum()))}
    return blocks | ({"H": matrices} if "H" in question.blocks else {})


@dataclass(frozen=True, eq=False)
class Choice:
    """The penalty that cross-validation chose.

    Attributes:
        ridge: The penalty.
        values: Cross-validated partial log-likelihood of each penalty.
        start: (p,) mean of the folds' coefficients at the penalty: a start for the fit of all rows.
        exchanges: Exchanges that it took.
        notes: Sentences for people.
    """

    ridge: float
    values: tuple[float, ...]
    start: Array
    exchanges: int
    notes: list[str] = field(default_factory=list)


def choose_penalty(terms: CoxTerms) -> Fit[Choice]:
    """Choose the ridge penalty by cross-validation.

    Args:
        terms: The terms, with `penalties` and `folds`.

    Returns:
        The choice.

    Raises:
        BadInput: There are fewer than 5 events.
    """
    p, k = len(terms.names), terms.folds
    ridge = np.repeat(np.array(sorted(terms.penalties)), k)
    left_out = np.tile(np.arange(k), len(terms.penalties))
    centre = np.tile(np.array(terms.start, float) if terms.start else np.zeros(p), (k, 1))
    notes: list[str] = []
    exchange, steps, climbs = 0, 0, list[_Climb]()
    while True:
        exchange, steps = exchange + 1, steps + 1
        if not climbs:  # the first exchange, and the first after a site left
            total = yield _ask(terms, centre, np.arange(k), exchange, has_matrix=True)
            notes += note_roster(total)
            matrices = [unpack_upper(h, p) for h in total["H"]]
            climbs = [
                _Climb(centre[f], float(r), invert(matrices[f] + r * np.eye(p)))
                for r, f in zip(ridge, left_out, strict=True)
            ]
            place = left_out
        else:
            total = yield _ask(terms, np.array([c.beta for c in climbs]), left_out, exchange, has_matrix=False)
            place = np.arange(len(climbs))
            if total.is_new_roster:
                notes += note_roster(total)
                centre = np.array([np.mean([c.beta for c in climbs[f::k]], axis=0) for f in range(k)])
                steps, climbs = 0, []
                continue
        check_events(total)
        is_close = [climb.read(total["U"][j], float(total["l"][j])) for climb, j in zip(climbs, place, strict=True)]
        held_out = (total["whole"] - total["l"])[place].reshape(-1, k).sum(1)
        may_win = held_out > held_out.max() - _FAR_BEHIND
        is_settled = np.reshape(is_close, (-1, k))[may_win].all()
        if steps > 1 and (is_settled or steps >= _MOST_STEPS):  # the first has the same coefficients for all penalties
            break
    best = int(np.argmax(held_out))
    chosen = float(ridge[best * k])
    if len(terms.penalties) > 1 and best in (0, len(terms.penalties) - 1):
        end = "smallest" if best == 0 else "largest"
        notes.append(f"The chosen penalty, {chosen:g}, is the {end} that was compared.")
    start = np.mean([c.asked for c in climbs[best * k : (best + 1) * k]], axis=0)
    return Choice(chosen, tuple(held_out.tolist()), start, exchange, notes)


def _ask(terms: CoxTerms, betas: Array, left_out: Array, exchange: int, *, has_matrix: bool) -> Question:
    j, p = betas.shape
    values: dict[str, Value] = {"betas": betas, "left_out": left_out, "folds": terms.folds, "ties": terms.ties}
    blocks: dict[str, tuple[int, ...]] = {"U": (j, p), "l": (j,), "whole": (j,), "events": ()}
    if has_matrix:
        blocks["H"] = (j, count_upper(p))
    return Question(FOLDS, values, blocks, f"cross-validation, step {exchange}")


class _Climb:
    """One fold's way to the maximum at one penalty, by BFGS.

    Attributes:
        beta: (p,) coefficients at which the next answer is needed.
        asked: (p,) coefficients of the last answer.
    """

    def __init__(self, beta: Array, ridge: float, inverse: Array) -> None:
        self.beta = self.asked = beta
        self._ridge, self._inverse = ridge, inverse
        self._best: tuple[Array, Array, float] | None = None  # coefficients, gradient, penalised value
        self._step: Array = np.zeros(len(beta))

    def read(self, u: Array, value: float) -> bool:
        """Read gradient and value at `beta`, move it on, and return True if it was close to the maximum."""
        self.asked = self.beta
        gradient = u - self._ridge * self.beta
        value -= 0.5 * self._ridge * float(self.beta @ self.beta)
        if self._best is not None:
            before, gradient_before, value_before = self._best
            moved, turned = self.beta - before, gradient_before - gradient
            product = float(moved @ turned)
            if product > 1e-12:
                left = np.eye(len(moved)) - np.outer(moved, turned) / product
                self._inverse = left @ self._inverse @ left.T + np.outer(moved, moved) / product
            if value < value_before - 1e-9 * (1 + abs(value_before)):
                self.beta = before + moved / 2
                return False
        self._best = (self.beta, gradient, value)
        step = self._inverse @ gradient
        self.beta = self.beta + step * min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-300))
        return float(gradient @ step) < _CLOSE


def _select(rows: Rows, mask: Array) -> Rows:
    """Return the rows of a mask, as far as a partial likelihood needs them."""
    assert rows.time is not None
    return Rows(rows.x[mask], rows.y[mask], rows.time[mask], offset=None if rows.offset is None else rows.offset[mask])
