"""What a site is asked to do in a round, and what comes of it; the same for every kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class Work:
    """Local training in one round; travels as plain numbers and words in the Ask."""

    seed: int
    round: int
    lr: float
    epochs: int = 1
    steps: int = 0
    batch: int = 32
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    l2: float = 0.0
    proximal: float = 0.0
    contrast: float = 0.0  # MOON's mu
    contrast_temperature: float = 0.5
    anchor: float = 0.0  # weight of the lent rows' cross-entropy to the start
    anchor_rows: str = ""  # the lent rows that are meant; "": the usual ones, or the only ones
    permuted: bool = False  # whether the anchor's rows have a feature out of place
    alignment: float = 0.0  # weight of the distance between sketches
    keep_optimizer: bool = False
    augment: str = "none"
    clip: float = 0.0  # DP-SGD: longest gradient of one row
    noise: float = 0.0  # DP-SGD: deviation of the noise in units of clip
    rate: float = 0.0  # DP-SGD: chance of a row to be in a step; 0: no DP-SGD
    fewest: int = 0  # DP-SGD: a site with fewer rows refuses
    gradient_noise: float = 0.0  # deviation of noise on every entry of a step's gradient; promises nothing
    longest: float = 0.0  # the longest update that a site answers with; 0: any

    def to_values(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Work:
        """What a message says of the work; what it does not say is as by default."""
        kinds = {"int": int, "float": float, "str": str, "bool": bool}
        return cls(**{f.name: kinds[str(f.type)](values[f.name]) for f in fields(cls) if f.name in values})


@dataclass(frozen=True)
class Trained:
    """The local models of m sites, and the optimiser's slots for those who keep them."""

    theta: Array | list[Array]  # (m, P), or m forests of different sizes
    steps: Array  # (m,)
    slots: tuple[Array, ...]  # each (m, P)
    clock: Array  # (m, 1) optimiser steps taken so far
    reasons: Array | None = None  # (m, F) sketches of the local models, where they are aligned
