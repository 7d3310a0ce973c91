"""Activations and gradients of torch nets for explanations: the layer a heat map is read from, and many models in a pass.

On a CPU models are processed one after another. On a GPU a whole stack of sites is vmapped if training vmaps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainer import split_rows
from grandrounds.models.nets.products import as_products
from grandrounds.models.torch_model import TorchModel

_BYTES = {"cpu": 2**28, "cuda": 2**34}
"""Bytes of activations per pass. Larger passes are faster on a GPU only."""

Score = Callable[[Tensor, Tensor], Tensor]
"""Function of logits (n, C) and classes (n,) that returns the explained score of each row, (n,)."""

Rule = Callable[["Pass", Tensor, Tensor], Tensor]
"""Function of a bound model, images (b, C, H, W) and their classes (b,) that returns values of each: (b, ...)."""

_Slope = Callable[[Callable[[Tensor], tuple[Tensor, Tensor]], Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class MapLayer:
    """The layer whose output a class activation map is made of: call `call` of module `layer` gives (C, h, w)."""

    layer: str
    call: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NetTrace:
    """Trace of one image through a net: its last map, if it has one, and the bytes that an image takes up in it."""

    map: MapLayer | None
    row_bytes: int


def trace_net(model: TorchModel, theta: Array, image: Array) -> NetTrace:
    """Trace one image (C, H, W) through a model; once for each shape of image, since the net stays the same.

    The map is the last one of the size of the last convolution's: after its norm, activation and shortcut, where these
    are modules (ResNet's last block; the layers NormGrad's authors take), and before any pooling. Convolutions that
    give a single pixel (squeeze-and-excitation, a 1x1 classifier) have no spatial map and are skipped.
    """
    traces: dict[tuple[int, ...], NetTrace] = model.cache.setdefault("traces", {})
    if image.shape not in traces:
        traces[image.shape] = _trace_image(model, theta, image)
    return traces[image.shape]


def _trace_image(model: TorchModel, theta: Array, image: Array) -> NetTrace:
    params = _set_parameters(model, theta)
    outputs: list[tuple[str, nn.Module, tuple[int, ...]]] = []
    hooks = [m.register_forward_hook(_record_outputs(outputs, name)) for name, m in model.net.named_modules()]
    try:
        with torch.no_grad():
            model.forward(params, model.tensor(image[None]))
    finally:
        for hook in hooks:
            hook.remove()
    floats = image.size + sum(int(np.prod(shape)) for _, m, shape in outputs if not any(m.children()))
    convolved = [shape[2:] for _, m, shape in outputs if isinstance(m, nn.Conv2d) and len(shape) == 4]
    size = next((s for s in reversed(convolved) if s[0] * s[1] > 1), None)
    place = max((i for i, (_, _, shape) in enumerate(outputs) if len(shape) == 4 and shape[2:] == size), default=None)
    layer = None
    if place is not None:
        name, _, shape = outputs[place]
        layer = MapLayer(name, sum(n == name for n, _, _ in outputs[: place + 1]), shape[1:])
    return NetTrace(layer, 2 * floats * (8 if model.dtype == torch.float64 else 4))


def _record_outputs(outputs: list[tuple[str, nn.Module, tuple[int, ...]]], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, _: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            outputs.append((name, module, tuple(out.shape)))

    return hook


@dataclass(frozen=True)
class Pass:
    """One model with its parameters (under vmap: one of the stack). `rows` is how many images it should be fed at once."""

    model: TorchModel
    trace: NetTrace
    params: Mapping[str, Tensor]
    rows: int
    slope: _Slope

    def logits(self, x: Tensor) -> Tensor:
        return self.model.forward(self.params, x)

    def at_input(self, score_rule: Score, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each row's score with respect to its image, (b, C, H, W)."""

        def score(point: Tensor) -> tuple[Tensor, Tensor]:
            out = self.logits(point)
            return score_rule(out, y).sum(), out

        return self.slope(score, x)[0]

    def at_map(self, score_rule: Score, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last map (b, C, h, w) and the gradient of each row's score with respect to it.

        A probe of zeros is added to the layer's output and the gradient taken at the probe: that is the same under
        autograd and under vmap, and what the net then does with its output in place does not touch the map.
        """
        place = self.trace.map
        if place is None:
            raise BadInput(
                "this net has no convolution with a spatial map for grad_cam and normgrad; use saliency, gradient, "
                "gradient_norm or integrated_gradients",
                code="no-convolution",
            )

        def score(probe: Tensor) -> tuple[Tensor, Tensor]:
            with _probe_layer(self.model.net, place, probe) as taken:
                out = self.logits(x)
            return score_rule(out, y).sum(), taken[0].to(self.model.dtype)

        gradient, activations = self.slope(score, x.new_zeros(len(x), *place.shape))
        return activations, gradient


@contextmanager
def _probe_layer(net: nn.Module, place: MapLayer, probe: Tensor) -> Iterator[list[Tensor]]:
    """Add `probe` to the layer's output; yield a list that receives the output without it."""
    taken: list[Tensor] = []
    calls = 0

    def hook(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls != place.call:
            return out
        taken.append(out)
        return out + probe.to(out.dtype)

    handle = net.get_submodule(place.layer).register_forward_hook(hook)
    try:
        yield taken
    finally:
        handle.remove()


def _autograd_slope(function: Callable[[Tensor], tuple[Tensor, Tensor]], point: Tensor) -> tuple[Tensor, Tensor]:
    point = point.detach().requires_grad_()
    value, further = function(point)
    return torch.autograd.grad(value, point)[0], further.detach()


def _func_slope(function: Callable[[Tensor], tuple[Tensor, Tensor]], point: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = grad(function, has_aux=True)(point)
    return result


def side_by_side(model: TorchModel, shape: Sequence[int]) -> str | None:
    """Choose how a stack of this net's models goes through one vmapped pass; None: one after another."""
    return model.side_by_side(shape) if model.device.type == "cuda" else None


def passes(
    model: TorchModel,
    theta: Array,
    x: Array,
    y: Array,
    rule: Rule,
    *,
    width: int = 1,
    rows: int | None = None,
    offsets: Array | None = None,
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield (models, images, values (k, b, ...)): `rule` applied to models (K, P) on images (n, C, H, W) of classes (n,).

    `width` is the number of images that a rule makes of one; `rows` the number per pass, if not as many as fit. On a CPU no pass
    spans two sites (`offsets`), so a site's numbers are the same to the bit in any stack.
    """
    if not len(x) or not len(theta):
        return
    trace = trace_net(model, theta[0], x[0])
    how = side_by_side(model, x.shape[1:]) if len(theta) > 1 else None
    most = rows or max(1, _pass_bytes(model.device) // trace.row_bytes)
    images, classes = model.tensor(x), torch.as_tensor(y, dtype=torch.int64, device=model.device)
    context = Pass(model, trace, {}, most, _autograd_slope)
    if how is not None:
        together = min(len(theta), max(1, most // width))
        context = replace(context, rows=max(1, most // together), slope=_func_slope)
        models = [slice(k, min(k + together, len(theta))) for k in range(0, len(theta), together)]
    else:
        models = [slice(k, k + 1) for k in range(len(theta))]
    edges = np.array([0, len(x)]) if offsets is None or model.device.type == "cuda" else offsets
    blocks = list(split_rows(edges, max(1, context.rows // width)))
    for chosen in models:
        explain = _bind_models(context, theta[chosen], rule)
        for cut in blocks:
            with as_products(how == "products"):
                block = explain(images[cut], classes[cut])
            yield chosen, cut, block.cpu().numpy()


def _pass_bytes(device: torch.device) -> int:
    """Return the bytes for one pass; on a GPU at most a quarter of the free memory, because others may use it too."""
    most = _BYTES[device.type]
    return most if device.type == "cpu" else min(most, torch.cuda.mem_get_info(device)[0] // 4)


def _bind_models(context: Pass, theta: Array, rule: Rule) -> Callable[[Tensor, Tensor], Tensor]:
    """Bind `rule` to these models: a function from images and classes to values (k, b, ...)."""
    model = context.model
    if context.slope is _autograd_slope:
        one = replace(context, params=_set_parameters(model, theta[0]))
        return lambda x, y: rule(one, x, y)[None].detach()
    model.net.eval()
    moved = model.tensor(theta)
    stack = {name: moved[:, span].reshape(len(theta), *shape) for name, span, shape in model.layout.slices}

    def of_one(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return rule(replace(context, params=params), x, y)

    each = vmap(of_one, in_dims=(0, None, None))
    return lambda x, y: each(stack, x, y)


def _set_parameters(model: TorchModel, theta: Array) -> dict[str, Tensor]:
    """Put the net in evaluation mode with these parameters (P,) in place."""
    model.net.eval()
    return dict(zip(model.trainable, model.point_at(model.tensor(theta)), strict=True))
