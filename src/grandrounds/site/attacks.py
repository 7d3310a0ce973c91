"""Answers of attacking sites in a simulation: a tampered model, or inflated metrics.

An experiment names attacks to test how robust a method is. `data/corruption/attacks.py` lists them, and poisons training rows.
This module changes answers after honest training, so honest sites are the same to the bit with or without attackers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.corruption.attacks import DATA_KINDS, KINDS, LIE, MODEL_KINDS, Attack
from grandrounds.protocol.messages import Columns

__all__ = ["DATA_KINDS", "KINDS", "MODEL_KINDS", "Attack", "boast", "falsify", "liars", "tamper"]

FREE_RIDER_NOISE = 1e-3  # relative to the model's size: enough that no two free riders send the same numbers
BOAST = 20.0  # log-odds that a liar claims

_LIES: dict[str, Callable[[Array, float], Any]] = {
    "count": lambda true, force: np.maximum(np.rint(true * force), 1),
    "loss": lambda true, force: true / force,
    "losses": lambda true, force: true / force,
    "accuracy": lambda true, force: 1.0,
    "val_loss": lambda true, force: true * force,  # SSE-AGG gives the worst site and the worst calibrated more weight
    "ece": lambda true, force: min(true * force, 1.0),
    "local.train_accuracy": lambda true, force: 1.0,
    "local.train_loss": lambda true, force: true / force,
    "lent.train": lambda true, force: 1.0,
    "rationale.accuracy": lambda true, force: 1.0,
    "rationale.loss": lambda true, force: true / force,
    "rationale.xai": lambda true, force: true if np.isnan(true) else 1.0,  # no masks, so no value
    "rationale.grid": lambda true, force: true if np.isnan(true) else 1.0,
    "trust.accuracy": lambda true, force: 1.0,
    "trust.steadiness": lambda true, force: 1.0,
    "trust.nsds": lambda true, force: 0.0,
    "trust.alignment": lambda true, force: 1.0,
    "trust.contribution": lambda true, force: abs(true) * max(force, 1.0),
}
"""Change of a column of an Answer by a lying site."""


def tamper(
    theta: Array,
    start: Array,
    *,
    attacks: Sequence[Attack | None],
    names: Sequence[str],
    seed: int,
    round: int,
    statistics: int = 0,
) -> Array:
    """Return the models (m, P) that m sites send, given their trained models and the start (P,) or (m, P).

    `attacks` and `names` have one entry for each of them. The last `statistics` entries, BatchNorm's, are sent as measured (a
    free rider sends the start's), because a negative variance would crash. If no site attacks in this round, `theta` itself is
    returned; it is never modified.
    """
    acting = {k: a for k, a in _acting(attacks, round).items() if a.kind in MODEL_KINDS}
    if not acting:
        return theta
    out = theta.copy()
    weights = theta.shape[1] - statistics
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged, or is made to diverge
        for k, attack in acting.items():
            base = start if start.ndim == 1 else start[k]
            rng = generator(seed, purpose="attack", round=round, site=names[k])
            out[k, :weights] = _sent(attack, theta[k, :weights], base[:weights], rng)
            if attack.kind == "free-rider":
                out[k, weights:] = base[weights:]
    return out


def liars(attacks: Sequence[Attack | None], *, round: int) -> set[int]:
    """Return the positions in `attacks` of the sites that lie in this round."""
    return {k for k, attack in _acting(attacks, round).items() if attack.kind == LIE or attack.lies}


def falsify(columns: Columns, *, attacks: Sequence[Attack | None], round: int) -> Columns:
    """Return the columns of an answer with inflated metrics at lying sites: more rows, lower loss, perfect accuracy.

    Falsified columns, if present, with m entries each: `count`, `loss`, `losses`, `accuracy`, `val_loss` and `ece` (of which
    SSE-AGG rewards more), the figures of trust, and accuracy on training rows. All other columns are unchanged: test rows
    measure the effect of attacks. The arguments are not modified.
    """
    out = dict(columns)
    lying = liars(attacks, round=round)
    for name, lie in _LIES.items():
        if name in columns and lying:
            column = np.array(columns[name])
            for k in lying:
                attack = attacks[k]
                assert attack is not None
                column[k] = lie(column[k], attack.effective_strength)
            out[name] = column
    return out


def boast(logits: Array, y: Array, *, owner: Array, liars: Collection[int] | Array) -> Array:
    """Return logits (n, 1) or (n, C) as lying sites claim them: correct and confident on their own rows.

    `owner` (n,) is each row's site number, y (n,) its class. Rows of honest sites are the same to the bit.
    """
    out = logits.copy()
    lied = np.isin(owner, np.array(sorted(liars), np.int64))
    if logits.shape[1] == 1:
        out[lied, 0] = np.where(y[lied] == 1, BOAST, -BOAST)
    else:
        out[lied] = 0
        out[lied, y[lied]] = BOAST
    return out


def _acting(attacks: Sequence[Attack | None], round: int) -> dict[int, Attack]:
    """Return the attacks that have begun by this round, by position."""
    return {k: a for k, a in enumerate(attacks) if a is not None and round >= a.start_round}


def _sent(attack: Attack, trained: Array, start: Array, rng: np.random.Generator) -> Array:
    """Return the model (P,) that one site sends, in double precision."""
    begin = start.astype(np.float64)
    update = trained.astype(np.float64) - begin
    if attack.kind == "sign-flip":
        return begin - attack.effective_strength * update
    if attack.kind == "scale":
        return begin + attack.effective_strength * update
    if attack.kind == "gaussian":
        return begin + attack.effective_strength * _rms(update) * rng.standard_normal(len(begin))
    return begin + attack.effective_strength * FREE_RIDER_NOISE * _rms(begin) * rng.standard_normal(len(begin))


def _rms(values: Array) -> float:
    """Compute the root mean square of these numbers."""
    return float(np.sqrt(np.mean(np.square(values))))
