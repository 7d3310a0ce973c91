"""How integrated gradients of pictures are smoothed: over how many noisy copies, how noisy, and in how many steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Smoothing:
    """SmoothGrad's settings; see `heat.heat`."""

    steps: int
    samples: int
    sigma: float
    seed: int
