"""FLamby's model of Fed-TCGA-BRCA: one linear layer, with the initial weights that FLamby draws for a seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Baseline(nn.Module):
    """One linear layer that gives a risk score.

    FLamby seeds torch's generator and draws the layer first of all, so its initial weights are known for each seed.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int, *, seed: int) -> None:
        """Draw the initial weights.

        Args:
            inputs: Shape of a row, (39,).
            outputs: 1.
            seed: FLamby's seed, 42 to 46.
        """
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.fc = nn.Linear(inputs[0], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, (n, 1)."""
        scores: Tensor = self.fc(x)
        return scores
