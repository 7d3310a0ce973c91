"""Heat maps of images: the pixels that a net relies on, by one model or by the models of many sites.

A heat map is of one class: the score that is explained is that class's logit, before the softmax. A net of two classes
has one logit; it speaks for class 1, and its negative for class 0.

Integrated gradients (Sundararajan et al. 2017) are averaged over noisy copies of an image (SmoothGrad, Smilkov et al.
2017): XFed's heat map. All points of several images (copies x steps) go through the net together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.explain.explainers.registry import Use, explainers_for

if TYPE_CHECKING:
    from torch import Tensor

    from grandrounds.explain.explainers.layers import Pass, Score
    from grandrounds.models.torch_model import TorchModel


@dataclass(frozen=True)
class Smoothing:
    """Settings of SmoothGrad (`heat`)."""

    steps: int
    samples: int
    sigma: float
    seed: int


HEATS = {name: spec.words for name, spec in explainers_for(Use.HEAT_MAP).items()}
"""Name and one line for each heat map."""

_EPS = 1e-12


def heat(
    name: str,
    model: Any,
    theta: Array,
    x: Array,
    y: Array,
    *,
    steps: int = 5,
    samples: int = 5,
    sigma: float = 0.5,
    seed: int = 0,
    rows_per_batch: int | None = None,
) -> Array:
    """Compute heat maps (n, H, W) of images x (n, C, H, W) for classes y (n,) by one model (P,); (K, n, H, W) by models (K, P).

    `steps`, `samples`, `sigma` and `seed` are of integrated gradients: XFed's counts, and noise in encoded units, where 1
    is a pixel's standard deviation and 0.5 about the 15% of the range that SmoothGrad advises. `rows_per_batch` bounds
    the images in one pass; by default as many as fit.
    """
    smoothing = Smoothing(steps=steps, samples=samples, sigma=sigma, seed=seed)
    stack = theta if theta.ndim == 2 else theta[None]
    blocks = heats(name, model, stack, x, y, smoothing, rows=rows_per_batch)
    out = np.empty((len(stack), len(x), *x.shape[2:]), np.float64 if model.precision == "float64" else np.float32)
    for models, images, block in blocks:
        out[models, images] = block
    return out if theta.ndim == 2 else out[0]


def heats(
    name: str,
    model: Any,
    theta: Array,
    x: Array,
    y: Array,
    smoothing: Smoothing,
    *,
    rows: int | None = None,
    offsets: Array | None = None,
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield (models, images, heat (k, b, H, W)) block by block."""
    _check(name, model, x, y, smoothing, rows)
    from grandrounds.explain.explainers.layers import passes

    if name != "integrated_gradients":
        return passes(model, theta, x, y, _RULES[name], rows=rows, offsets=offsets)
    smooth = Smooth.build(model, x.shape[1:], smoothing)
    return passes(model, theta, x, y, partial(_integrated, smooth), width=len(smooth), rows=rows, offsets=offsets)


def _check(name: str, model: Any, x: Array, y: Array, smoothing: Smoothing, rows: int | None) -> None:
    if name not in HEATS:
        raise BadInput(f"no heat map '{name}'; {nearest(str(name), HEATS)}", code="unknown-explainer")
    if getattr(model, "kernel", "") != "torch" or x.ndim != 4:
        raise BadInput(
            f"heat map '{name}' needs images (n, channels, height, width) and a net for them; "
            f"this is a {type(model).__name__} and data of shape {x.shape}: explain tables by permutation or SHAP",
            code="needs-images",
        )
    classes = max(2, model.outputs)
    if np.shape(y) != (len(x),) or (len(x) and not (np.min(y) >= 0 and np.max(y) < classes)):
        raise BadInput(
            f"heat map '{name}' needs for each of {len(x)} images the class to explain, from 0 to {classes - 1}",
            code="class-out-of-range",
        )
    if smoothing.steps < 1 or smoothing.samples < 1 or not 0 <= smoothing.sigma < np.inf:
        raise BadInput(
            f"integrated gradients need steps and samples of at least 1 and a sigma of at least 0; "
            f"these are {smoothing.steps}, {smoothing.samples} and {smoothing.sigma}",
            code="bad-smoothing",
        )
    if rows is not None and rows < 1:
        raise BadInput(f"rows_per_batch is {rows}: give at least 1, or leave it out", code="bad-batch-size")


def _score(logits: Tensor, y: Tensor) -> Tensor:
    """The logit of each row's class, (n,)."""
    if logits.shape[-1] == 1:
        return logits[:, 0] * (2 * y - 1)
    return logits.gather(1, y[:, None])[:, 0]


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row, (n,)."""
    if logits.shape[-1] == 1:
        from torch.nn.functional import softplus

        return softplus(-_score(logits, y))
    return logits.logsumexp(1) - _score(logits, y)


def _saliency(context: Pass, x: Tensor, y: Tensor) -> Tensor:
    """Simonyan et al. (2014), who take the largest channel; the sum keeps a pixel's mass, as for the other maps."""
    return context.at_input(_score, x, y).abs().sum(1)


def _gradient(context: Pass, x: Tensor, y: Tensor) -> Tensor:
    return (x * context.at_input(_loss, x, y)).abs().sum(1)


def _gradient_norm(context: Pass, x: Tensor, y: Tensor) -> Tensor:
    """FL-XAI eq. 3.6 (there called NormGrad), with the L2 norm; an image without any gradient is dark."""
    norm = _channel_norm(context.at_input(_score, x, y))
    least, most = norm.amin((1, 2), keepdim=True), norm.amax((1, 2), keepdim=True)
    return (norm - least) / (most - least + _EPS)


def _grad_cam(context: Pass, x: Tensor, y: Tensor) -> Tensor:
    """FL-XAI eq. 3.4-3.5 (Selvaraju et al. 2017)."""
    activations, gradients = context.at_map(_score, x, y)
    weights = gradients.mean((2, 3), keepdim=True)
    return _enlarge((weights * activations).sum(1).clamp(min=0), x)


def _normgrad(context: Pass, x: Tensor, y: Tensor) -> Tensor:
    """Rebuffi et al. (2020) with a virtual identity layer: ||x_u|| ||g_u||, the norm of the outer product at place u."""
    activations, gradients = context.at_map(_score, x, y)
    return _enlarge(_channel_norm(activations) * _channel_norm(gradients), x)


def _integrated(smooth: Smooth, context: Pass, x: Tensor, y: Tensor) -> Tensor:
    return smooth.integrated(context, _score, x, y).abs().sum(1)


def _channel_norm(vectors: Tensor) -> Tensor:
    """L2 norm over channels: (b, C, h, w) to (b, h, w)."""
    return vectors.square().sum(1).sqrt()


def _enlarge(maps: Tensor, x: Tensor) -> Tensor:
    """Maps (b, h, w) at the size of the images, bilinear."""
    from torch.nn.functional import interpolate

    return interpolate(maps[:, None], x.shape[2:], mode="bilinear", align_corners=False)[:, 0]


_RULES = {
    "saliency": _saliency,
    "gradient": _gradient,
    "gradient_norm": _gradient_norm,
    "grad_cam": _grad_cam,
    "normgrad": _normgrad,
}


@dataclass(frozen=True)
class Smooth:
    """Points of SmoothGrad: noise (T, C, H, W), place on the path (T,) and weight (T,) of T = samples * steps points."""

    noise: Tensor
    place: Tensor
    weight: Tensor

    @classmethod
    def build(cls, model: TorchModel, image: tuple[int, ...], how: Smoothing) -> Smooth:
        """Place the points, with steps at the nodes of Gauss-Legendre quadrature, as in Captum.

        The noise is the same for every image, model and round: an image's heat map then does not depend on which
        others are explained beside it, and two models' maps differ by the models alone.
        """
        samples = how.samples if how.sigma else 1
        nodes, weights = np.polynomial.legendre.leggauss(how.steps)
        drawn = how.sigma * generator(how.seed, purpose="smoothgrad").standard_normal((samples, *image))
        return cls(
            model.tensor(drawn).repeat_interleave(how.steps, 0),
            model.tensor((1 + nodes) / 2).repeat(samples),
            model.tensor(weights / 2 / samples).repeat(samples),
        )

    def integrated(self, context: Pass, score_rule: Score, x: Tensor, y: Tensor) -> Tensor:
        """Average (x - baseline) * the mean gradient on the way from it over noisy copies: signed, (b, C, H, W).

        The baseline is zero, which in encoded images is the consortium's mean colour.
        """
        import torch

        total = torch.zeros_like(x)
        size = max(1, context.rows // len(x))
        for start in range(0, len(self.place), size):
            cut = slice(start, start + size)
            noisy = x[:, None] + self.noise[cut]
            points = noisy * _as_column(self.place[cut])
            classes = y.repeat_interleave(points.shape[1])
            slope = context.at_input(score_rule, points.flatten(0, 1), classes).reshape(points.shape)
            total = total + (noisy * slope * _as_column(self.weight[cut])).sum(1)
        return total

    def __len__(self) -> int:
        return len(self.place)


def _as_column(values: Tensor) -> Tensor:
    """(T,) as (T, 1, 1, 1)."""
    return values[:, None, None, None]
