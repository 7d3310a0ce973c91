"""Platt scaling at a site: sums over its validation rows, or counts of their scores.

A score is the log-odds of the second class of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models import Model
from grandrounds.privacy.discrete import discrete_laplace, laplace_scale
from grandrounds.protocol.messages import Ask
from grandrounds.site.evaluate import member_logits, member_rows
from grandrounds.site.stack import Part, Stack

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret

LIMIT = 100.0
"""Bound of scores, as in a tally's histogram: a model that diverged must not break a sum."""


def answer(
    ask: Ask, scored: tuple[Array, Array, Array], *, names: Sequence[str], secret: Callable[[str], Secret]
) -> dict[str, Array]:
    """Compute sums at each line, or counts of scores in cells; counts get noise, or are withheld for a secure sum.

    `scored`: the `scores` of the sites of these names; `secret`: the source of each site's noise.
    """
    s, y, owner = scored
    sites = len(names)
    if "lines" in ask.shared:
        lines = np.asarray(ask.shared["lines"])
        return {
            "sums.outcomes": outcome_sums(s, y, 1 - y, owner, sites=sites),
            "sums.lines": line_sums(s, np.ones(len(s)), owner, lines, sites=sites),
        }
    edges, by_outcome = np.asarray(ask.shared["edges"]), bool(ask.shared["by_outcome"])
    counted = counts(s, y, owner, edges, by_outcome=by_outcome, sites=sites)
    if "counts" in ask.withheld:
        return {"counts": counted}
    epsilon = float(ask.shared.get("epsilon", 0.0))
    if not epsilon > 0:
        raise BadInput(
            "counts of scores need noise or a secure sum, but this Ask requests neither",
            code="raw-release",
        )
    purpose = f"{ask.id}: counts of scores"
    noisy = [
        add_laplace_noise(site_counts, epsilon, secret=secret(name), purpose=purpose)
        for site_counts, name in zip(counted, names, strict=True)
    ]
    return {"counts": np.stack(noisy)}


def scores(model: Model, stack: Stack, members: Array, theta: Array) -> tuple[Array, Array, Array]:
    """Score the members' validation rows: score, outcome (0 or 1), and the position of the row's site among the members."""
    part = stack.parts["val"]
    rows, owner = member_rows(part, members)
    logits = member_logits(model, stack, members, theta, part)[:, 0].astype(float)
    return np.clip(np.nan_to_num(logits), -LIMIT, LIMIT), np.asarray(part.y[rows]), owner


def one_each(scored: tuple[Array, Array, Array], part: Part, members: Array) -> tuple[Array, Array, Array]:
    """Select the scores of one row of each patient, so that a patient changes one count by one; all rows if each is a patient."""
    if part.patients is None:
        return scored
    firsts = np.concatenate([[0], np.cumsum(part.counts[members])])
    chosen = np.concatenate([a + part.patients[k].chosen for a, k in zip(firsts[:-1], members.tolist(), strict=True)])
    s, y, owner = scored
    return s[chosen], y[chosen], owner[chosen]


def outcome_sums(s: Array, positive: Array, negative: Array, owner: Array, *, sites: int) -> Array:
    """(sites, 4): positives, negatives, and the sums of their scores. `positive` and `negative` are the multiplicities of
    rows."""
    columns = (positive, negative, positive * s, negative * s)
    return np.stack([np.bincount(owner, c, minlength=sites) for c in columns], axis=1)


def line_sums(s: Array, rows: Array, owner: Array, lines: Array, *, sites: int) -> Array:
    """For each line (slope, intercept) of (M, 2), with p = sigma(slope * s + intercept) and v = p * (1 - p), the sums of
    log(1 + e^z), p, p s, v, v s and v s^2: (sites, M, 6). Loss, gradient and Hessian follow whatever the targets are.
    """
    out = []
    for slope, intercept in lines:
        z = slope * s + intercept
        p = 0.5 + 0.5 * np.tanh(0.5 * z)
        v = p * (1 - p)
        columns = (np.logaddexp(0, z), p, p * s, v, v * s, v * s * s)
        out.append(np.stack([np.bincount(owner, rows * c, minlength=sites) for c in columns], axis=1))
    return np.stack(out, axis=1)


def counts(s: Array, y: Array, owner: Array, edges: Array, *, by_outcome: bool, sites: int) -> Array:
    """Count rows in each cell between the edges, with those beyond in the outermost: (sites, cells), or (sites, 2, cells). A row
    is in one cell, so adding or removing a row changes one count by one.
    """
    cells = len(edges) - 1
    cell = np.clip(np.searchsorted(edges, s, side="right") - 1, 0, cells - 1)
    kinds = 2 if by_outcome else 1
    flat = (owner * kinds + (y if by_outcome else 0)) * cells + cell
    counted = np.bincount(flat, minlength=sites * kinds * cells)
    return counted.reshape((sites, 2, cells) if by_outcome else (sites, cells))


def add_laplace_noise(counted: Array, epsilon: float, *, secret: Secret, purpose: str) -> Array:
    """Add discrete Laplace noise, P(n) ~ e^(-epsilon |n|), from the site's own secret to its counts.

    Epsilon-DP for adding or removing a row, which changes one count by one. Counts and noise are integers, and the sampler is
    exact, so floating-point rounding discloses nothing (Ghosh, Roughgarden and Sundararajan 2012).

    Args:
        counted: Counts of any shape.
        epsilon: Privacy cost of the release.
        secret: The site's secret.
        purpose: A label that no other release shares.
    """
    from grandrounds.privacy.mechanisms import noise_generator

    noise = discrete_laplace(laplace_scale(epsilon), counted.size, rng=noise_generator(secret, purpose))
    noisy: Array = counted + noise.reshape(counted.shape)
    return noisy
