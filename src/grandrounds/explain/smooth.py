"""Integrated gradients (Sundararajan et al. 2017) averaged over noisy copies of a picture (SmoothGrad, Smilkov et al. 2017).

XFed's heat map. All points of several pictures (copies x steps) go through the net together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grandrounds.core.rng import generator
from grandrounds.explain.layers import Pass, Score
from grandrounds.explain.smoothing import Smoothing
from grandrounds.models.torch_model import TorchModel


@dataclass(frozen=True)
class Smooth:
    """Noise (T, C, H, W), place on the path (T,) and weight (T,) of each of T = samples * steps points."""

    noise: Tensor
    place: Tensor
    weight: Tensor

    @classmethod
    def of(cls, model: TorchModel, picture: tuple[int, ...], how: Smoothing) -> Smooth:
        """The points, with steps at the nodes of Gauss-Legendre quadrature, as in Captum.

        The noise is the same for every picture, model and round: a picture's heat map then does not depend on which
        others are explained beside it, and two models' maps differ by the models alone.
        """
        samples = how.samples if how.sigma else 1
        nodes, weights = np.polynomial.legendre.leggauss(how.steps)
        drawn = how.sigma * generator(how.seed, purpose="smoothgrad").standard_normal((samples, *picture))
        return cls(
            model.tensor(drawn).repeat_interleave(how.steps, 0),
            model.tensor((1 + nodes) / 2).repeat(samples),
            model.tensor(weights / 2 / samples).repeat(samples),
        )

    def integrated(self, held: Pass, of: Score, x: Tensor, y: Tensor) -> Tensor:
        """The mean over noisy copies of (x - baseline) * the mean gradient on the way from it: signed, (b, C, H, W).

        The baseline is zero, which in encoded pictures is the consortium's mean colour.
        """
        total = torch.zeros_like(x)
        size = max(1, held.rows // len(x))
        for start in range(0, len(self.place), size):
            cut = slice(start, start + size)
            noisy = x[:, None] + self.noise[cut]
            points = noisy * _along(self.place[cut])
            classes = y.repeat_interleave(points.shape[1])
            slope = held.at_input(of, points.flatten(0, 1), classes).reshape(points.shape)
            total = total + (noisy * slope * _along(self.weight[cut])).sum(1)
        return total

    def __len__(self) -> int:
        return len(self.place)


def _along(values: Tensor) -> Tensor:
    """(T,) as (T, 1, 1, 1)."""
    return values[:, None, None, None]
