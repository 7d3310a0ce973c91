"""Firth's correction of logistic regression: finite estimates where outcomes are separated.

The corrected score is U* = X'(a (y - mu) + h (1/2 - mu)) with the leverage h = a v x' H^-1 x of each row. H^-1 at the same
beta is not known when the question is asked, so sites receive that of the exchange before (one exchange a step). Its fixed
point is Firth's estimate. If this does not settle, each step takes two exchanges: H at beta, then U* at the same beta.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grandrounds.capabilities.statistics.newton import CONVERGED, Path, count_upper, invert, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.question import Fit, Total
from grandrounds.core.arrays import Array

Ask = Callable[..., Fit[Total]]

_SLOW = 0.8  # a fall of the decrement that counts as none
_PATIENCE = 3  # exchanges without a fall before each step takes two
_LONGEST = 5.0  # largest step of a coefficient


def climb_firth(ask: Ask, path: Path, information: Array) -> Fit[Total]:
    """Find the maximum of l + 1/2 log det H.

    Args:
        ask: Asks all sites (kind, step, blocks, **values) and returns the total.
        path: The path, at the first beta. Ends at the estimate; its value is the log-likelihood there, without log det H,
            which depends on the units of the columns.
        information: (q, q) information at the start.

    Returns:
        A generator of questions that returns the last total.
    """
    size = len(path.beta)
    blocks: dict[str, tuple[int, ...]] = {
        "score": (1, size),
        "information": (1, count_upper(size)),
        "log_likelihood": (1,),
        "n": (),
    }
    path.is_linear, path.longest = True, _LONGEST
    inverse, before, slow, value_before, step = invert(information), np.inf, 0, -np.inf, 0
    while slow < _PATIENCE:
        step += 1
        total = yield from ask("glm", f"Firth step {step}", blocks, beta=path.beta[None], inverse=pack_upper(inverse))
        if total.is_new_roster:
            before, value_before, slow = np.inf, -np.inf, 0
        information = unpack_upper(total["information"], size)[0]
        value = _penalise(total, information)
        path.forget()  # a lagged step may lower the value a little; it is not halved
        path.advance(total["score"][0], information, value)
        inverse = invert(information)
        if path.decrement < CONVERGED:
            path.value = float(total["log_likelihood"][0])
            return total
        falls = value < value_before - 1e-6 * (1 + abs(value_before))
        slow = slow + 1 if falls or path.decrement > _SLOW * before else 0
        before, value_before = path.decrement, value
    return (yield from _alternate(ask, path, blocks, size))


def _alternate(ask: Ask, path: Path, blocks: dict[str, tuple[int, ...]], size: int) -> Fit[Total]:
    """Take steps of two exchanges each: H at beta, then U* with its inverse."""
    first = {name: shape for name, shape in blocks.items() if name != "score"}
    path.forget()
    step = 0
    while True:
        step += 1
        total = yield from ask("glm", f"Firth information {step}", first, beta=path.beta[None])
        inverse = invert(unpack_upper(total["information"], size)[0])
        total = yield from ask("glm", f"Firth score {step}", blocks, beta=path.beta[None], inverse=pack_upper(inverse))
        information = unpack_upper(total["information"], size)[0]
        path.advance(total["score"][0], information, _penalise(total, information))
        if path.has_converged and not total.is_new_roster:
            path.value = float(total["log_likelihood"][0])
            return total


def _penalise(total: Total, information: Array) -> float:
    """Return l + 1/2 log det H."""
    return float(total["log_likelihood"][0]) + 0.5 * float(np.linalg.slogdet(information)[1])
