"""Convolutions as matrix products, so that many sites' nets with many channels go through a GPU side by side.

Under vmap each site's convolution has weights of its own, which is a grouped convolution to the GPU's library, and a slow one
where channels are many. As a product of patches and weights it is one batched matrix product for all sites. Patches
repeat each pixel once for every tap that sees it, so this is for small maps: a 7x7 stem leaves 8x8 of a 32x32 image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

MAX_PATCH_NUMBERS = 2**20
"""Numbers that the patches of one image may take up in a whole net; above that one site goes after another."""

_ALIGNED = 8
_FEW = 16
"""Channels below which adding up patches tap by tap moves too little at once: a stem's, of three colours."""

Pair = tuple[int, int]
Size = tuple[int, int, int]
_Batched = tuple[int | None, ...]

_inside: ContextVar[bool] = ContextVar("as_products", default=False)


@contextmanager
def as_products(wanted: bool = True) -> Iterator[None]:
    """Compute the package's own convolutions as products within this context."""
    token = _inside.set(wanted)
    try:
        yield
    finally:
        _inside.reset(token)


def is_using_products() -> bool:
    """Tell whether convolutions are computed as products in this context."""
    return _inside.get()


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Pair, padding: Pair) -> Tensor:
    """Convolve images (n, C, H, W) with weights (O, C, h, w), without groups or dilation: (n, O, H', W').

    In memory channels come last from here on: each patch is then copied in runs of whole pixels.
    """
    size = [(x.shape[2 + d] + 2 * padding[d] - weight.shape[2 + d]) // stride[d] + 1 for d in (0, 1)]
    taps = [_visible_taps(x.shape[2 + d], size[d], weight.shape[2 + d], stride[d], padding[d]) for d in (0, 1)]
    before = [padding[d] - taps[d].start for d in (0, 1)]
    reach = [(size[d] - 1) * stride[d] + taps[d].stop - taps[d].start for d in (0, 1)]
    after = [reach[d] - x.shape[2 + d] - before[d] for d in (0, 1)]  # below 0: pixels that no tap sees
    weight = weight[:, :, taps[0], taps[1]].permute(0, 2, 3, 1)
    last, pads = x.permute(0, 2, 3, 1), (0, 0, before[1], after[1], before[0], after[0])
    kernel = (weight.shape[1], weight.shape[2])
    if stride == (1, 1) and kernel != (1, 1):
        out = cast("Tensor", _Dense.apply(last, weight, pads))  # type: ignore[no-untyped-call]
    else:
        out = _product(last, weight, stride, pads)
    if bias is not None:
        out = out + bias
    return out.permute(0, 3, 1, 2)


def _product(x: Tensor, weight: Tensor, stride: Pair, pads: tuple[int, ...]) -> Tensor:
    """Multiply images (n, H, W, C) and weights (O, h, w, C) to (n, H', W', O)."""
    patches = _patches(x, weight, stride, pads)
    kernels = weight.flatten(1)
    out = patches.flatten(0, 2) @ F.pad(kernels, (0, patches.shape[-1] - kernels.shape[1])).T
    return out.reshape(*patches.shape[:3], len(weight))


def _patches(x: Tensor, weight: Tensor, stride: Pair, pads: tuple[int, ...]) -> Tensor:
    return cast("Tensor", _Patches.apply(x, (weight.shape[1], weight.shape[2]), stride, pads))  # type: ignore[no-untyped-call]


class _Dense(torch.autograd.Function):
    """A product with stride 1, whose slope at the images is a product again, of the weights turned round.

    To add up the slopes of patches takes a pass for each tap. Patches are made anew for the slope at the weights: keeping
    them takes nine times the memory of the images.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, pads: tuple[int, ...]) -> Tensor:
        return _product(x, weight, (1, 1), pads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.pads = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        at_images = at_weights = None
        if ctx.needs_input_grad[0]:
            down, across = weight.shape[1] - 1, weight.shape[2] - 1
            left, right, above, below = ctx.pads[2:]
            pads = (0, 0, across - left, across - right, down - above, down - below)
            at_images = _product(slope, weight.flip(1, 2).permute(3, 1, 2, 0), (1, 1), pads)
        if ctx.needs_input_grad[1]:
            slopes = slope.flatten(0, 2).T @ _patches(x, weight, (1, 1), ctx.pads).flatten(0, 2)
            at_weights = slopes[:, : weight[0].numel()].reshape(weight.shape)
        return at_images, at_weights, None


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply group norm to (n, C, H, W) where channels come last in memory: torch's own would copy to and fro.

    As one multiplication and one addition for each entry; the mean and the spread are few.
    """
    n, channels, height, width = x.shape
    last = x.permute(0, 2, 3, 1)
    grouped = last.reshape(n, height * width, groups, channels // groups)
    spread, mean = torch.var_mean(grouped, (1, 3), correction=0, keepdim=True)  # (n, 1, G, 1)
    full = torch.promote_types(x.dtype, torch.float32)
    steep = (spread.to(full) + eps).rsqrt() * weight.to(full).view(groups, -1)  # (n, 1, G, C / G)
    level = bias.to(full).view(groups, -1) - mean.to(full) * steep
    factor, shift = (t.to(x.dtype).reshape(n, 1, 1, channels) for t in (steep, level))
    return torch.addcmul(shift, last, factor).permute(0, 3, 1, 2)


def _visible_taps(pixels: int, size: int, taps: int, stride: int, padding: int) -> slice:
    """Return the taps along a side that see a pixel at all: of 3 over a single pixel the middle one alone."""
    visible = [t for t in range(taps) if any(0 <= o * stride + t - padding < pixels for o in range(size))]
    return slice(visible[0], visible[-1] + 1)


class _Patches(torch.autograd.Function):
    """Images (n, H, W, C) to what each place sees of them, padded: (n, H', W', h w C). One copy, whatever n is.

    Zeros fill up the last axis to a multiple of 8: a GPU's products of other widths are several times slower.
    """

    @staticmethod
    def forward(x: Tensor, kernel: Pair, stride: Pair, pads: tuple[int, ...]) -> Tensor:
        windows = F.pad(x, pads).unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
        windows = windows.permute(0, 1, 2, 4, 5, 3)
        width = kernel[0] * kernel[1] * x.shape[3]
        if width % _ALIGNED == 0:
            return windows.flatten(3)
        out = x.new_zeros(*windows.shape[:3], -(-width // _ALIGNED) * _ALIGNED)
        out[..., :width] = windows.flatten(3)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.kernel, ctx.stride, ctx.pads = inputs
        ctx.size = tuple(x.shape[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        folded = _Folded.apply(slope, ctx.size, ctx.kernel, ctx.stride, ctx.pads)  # type: ignore[no-untyped-call]
        return folded, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: _Batched, x: Tensor, *how: Any) -> tuple[Tensor, int]:
        return _merge_sites(_Patches, info.batch_size, in_dims[0], x, how)


class _Folded(torch.autograd.Function):
    """Patches (n, H', W', h w C) added up where they came from: (n, H, W, C)."""

    @staticmethod
    def forward(patches: Tensor, size: Size, kernel: Pair, stride: Pair, pads: tuple[int, ...]) -> Tensor:
        n, down, across, _ = patches.shape
        height, wide, channels = size
        width = kernel[0] * kernel[1] * channels
        taps = patches[..., :width].reshape(n, down, across, *kernel, channels)
        size_padded = (height + pads[4] + pads[5], wide + pads[2] + pads[3])
        if channels < _FEW:
            columns = taps.permute(0, 5, 3, 4, 1, 2).reshape(n, width, down * across)
            added = F.fold(columns, size_padded, kernel, stride=stride).permute(0, 2, 3, 1)
            return F.pad(added, [-p for p in pads])
        out = patches.new_zeros(n, *size_padded, channels)
        for i in range(kernel[0]):
            rows = slice(i, i + (down - 1) * stride[0] + 1, stride[0])
            for j in range(kernel[1]):
                out[:, rows, slice(j, j + (across - 1) * stride[1] + 1, stride[1])] += taps[:, :, :, i, j]
        return F.pad(out, [-p for p in pads])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.kernel, ctx.stride, ctx.pads = inputs

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        patches = _Patches.apply(slope, ctx.kernel, ctx.stride, ctx.pads)  # type: ignore[no-untyped-call]
        return patches, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: _Batched, patches: Tensor, *how: Any) -> tuple[Tensor, int]:
        return _merge_sites(_Folded, info.batch_size, in_dims[0], patches, how)


def _merge_sites(kind: Any, sites: int, axis: int | None, x: Tensor, how: tuple[Any, ...]) -> tuple[Tensor, int]:
    """Merge the sites' images into one batch: neither function looks at more than one image."""
    assert axis is not None
    out: Tensor = kind.apply(x.movedim(axis, 0).flatten(0, 1), *how)
    return out.reshape(sites, -1, *out.shape[1:]), 0
