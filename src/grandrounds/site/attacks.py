"""What an attacking site answers in place of the truth: a tampered model, or a lie about itself.

Attacks are named by an experiment to see how a method stands them; `data/corruption/attacks.py` says what there is, and poisons
training rows. Everything here is done to answers of honest work, so honest sites are the same to the bit with or
without attackers beside them.
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

FREE_RIDER_NOISE = 1e-3  # of the model's own size: enough that no two free-riders send the same numbers
BOAST = 20.0  # log-odds of a liar's claim: wrong twice in a thousand million

_LIES: dict[str, Callable[[Array, float], Any]] = {
    "count": lambda true, force: np.maximum(np.rint(true * force), 1),
    "loss": lambda true, force: true / force,
    "losses": lambda true, force: true / force,
    "accuracy": lambda true, force: 1.0,
    "val_loss": lambda true, force: true * force,  # the worst site and the worst calibrated are those that count more
    "ece": lambda true, force: min(true * force, 1.0),
    "local.train_accuracy": lambda true, force: 1.0,
    "local.train_loss": lambda true, force: true / force,
    "lent.train": lambda true, force: 1.0,
    "rationale.accuracy": lambda true, force: 1.0,
    "rationale.loss": lambda true, force: true / force,
    "rationale.xai": lambda true, force: true if np.isnan(true) else 1.0,  # no masks: nobody has it
    "rationale.grid": lambda true, force: true if np.isnan(true) else 1.0,
    "trust.accuracy": lambda true, force: 1.0,
    "trust.steadiness": lambda true, force: 1.0,
    "trust.nsds": lambda true, force: 0.0,
    "trust.alignment": lambda true, force: 1.0,
    "trust.contribution": lambda true, force: abs(true) * max(force, 1.0),
}
"""What becomes of a column of an Answer at a liar."""


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
    """The models (m, P) that m sites send, given what they trained to and the start (P,) or (m, P) they were given.

    `attacks` and `names` have one entry for each of them. The last `statistics` numbers, BatchNorm's, are not
    weights: they are sent as measured (a free-rider sends the start's), since a variance turned negative would be a
    crash and no attack. Where nobody attacks this round, `theta` itself comes back; it is never written to.
    """
    acting = {k: a for k, a in _acting(attacks, round).items() if a.kind in MODEL_KINDS}
    if not acting:
        return theta
    out = theta.copy()
    weights = theta.shape[1] - statistics
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged, or is made to
        for k, attack in acting.items():
            base = start if start.ndim == 1 else start[k]
            rng = generator(seed, purpose="attack", round=round, site=names[k])
            out[k, :weights] = _sent(attack, theta[k, :weights], base[:weights], rng)
            if attack.kind == "free-rider":
                out[k, weights:] = base[weights:]
    return out


def liars(attacks: Sequence[Attack | None], *, round: int) -> set[int]:
    """The places in `attacks` of those who lie in this round."""
    return {k for k, attack in _acting(attacks, round).items() if attack.kind == LIE or attack.lies}


def falsify(columns: Columns, *, attacks: Sequence[Attack | None], round: int) -> Columns:
    """The columns of an answer by m sites as the liars among them give it: more rows, less loss, always right.

    `count`, `loss`, `losses` and `accuracy` are lied about where they are there, and so are `val_loss` and `ece`, of which
    SSE-AGG rewards more, whatever trust is made of, and how right models are on training rows; each with m entries. All other
    columns pass as they are: test rows are what a study measures by. Nothing given is written to.
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
    """Logits (n, 1) or (n, C) as liars claim them: on their own rows right, and sure of it.

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
    """Attacks that have begun by this round, by their place."""
    return {k: a for k, a in enumerate(attacks) if a is not None and round >= a.start_round}


def _sent(attack: Attack, trained: Array, start: Array, rng: np.random.Generator) -> Array:
    """What one site sends (P,), in double precision."""
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
    """The size of one number among these, as a root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
