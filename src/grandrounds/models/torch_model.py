"""Torch networks behind the `Model` protocol: parameters are flat NumPy vectors outside.

The network object is an architecture only. Its parameters are set to views of the given vector before each use, so one network
serves all sites. BatchNorm's running statistics, if any, follow the learnt parameters in the vector and are averaged like them.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average
from grandrounds.models.losses import CROSS_ENTROPY
from grandrounds.models.nets.layers import patch_numbers
from grandrounds.models.nets.products import MAX_PATCH_NUMBERS, as_products, is_using_products
from grandrounds.protocol.layout import Layout

VMAP_PARAMETERS = 1_000_000
"""Nets up to this size are vmapped over sites as they are: grouped convolutions with many channels are slow."""

_CPU_ROOM = 256 * 2**20
_ROWS = 1024
_KEPT = 3  # parts kept on a GPU for scoring: train, validation, test


def settle_torch() -> None:
    """Set torch to one thread; on ARM without oneDNN, whose convolutions of small nets took 1.5 times as long as torch's own."""
    torch.set_num_threads(1)
    if platform.machine() in ("aarch64", "arm64"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a TF32 setting that is not touched
            torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]


class TorchModel:
    """One architecture on one device. `precision`: float32, float64, tf32 or bf16 (weights stay float32)."""

    kernel = "torch"
    draws = False  # the network may draw random numbers in training
    stacks = True  # copies of it can be vmapped on a GPU
    ends_linear = True  # its last layer is dense and gives the logits
    loss = CROSS_ENTROPY  # what training minimises (`models.losses`)

    def __init__(
        self,
        net: nn.Module,
        *,
        outputs: int,
        initial: Callable[[int], Mapping[str, Array]],
        device: str,
        precision: str,
    ) -> None:
        """Wrap a network; `initial(seed)` gives the starting parameters (and statistics) by name."""
        self.outputs = outputs
        self.device = torch.device(device)
        self.precision = precision
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        self.net = net.to(self.device, self.dtype)
        self._initial = initial
        self.notes: list[str] = []  # notes on loaded weights
        self.cache: dict[str, Any] = {}  # tensors and graphs on the device, kept between rounds
        self.trainable = tuple(name for name, _ in net.named_parameters())
        self.statistics = tuple(n for n, b in net.named_buffers() if b.is_floating_point())
        named = self._named_tensors()
        self.layout = Layout(tuple((n, tuple(named[n].shape)) for n in (*self.trainable, *self.statistics)))
        if precision == "tf32" and self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True

    @property
    def last_layer(self) -> str:
        """The name of the layer whose outputs are the logits."""
        return self.trainable[-1].rpartition(".")[0]

    def _named_tensors(self) -> dict[str, Tensor]:
        return {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}

    @cached_property
    def learnt(self) -> int:
        """Number of entries of the vector that gradients change; the statistics follow them."""
        ends = {n: span.stop for n, span, _ in self.layout.slices}
        return int(ends[self.trainable[-1]])

    @property
    def statistics_size(self) -> int:
        """Number of entries of the vector that are BatchNorm statistics."""
        return self.layout.size - self.learnt

    def site_entries(self, kind: str) -> Array:
        """Return the entries of the vector that stay at a site.

        Args:
            kind: BatchNorm's "statistics", all of its "norm" layers, or the "head", which is the last layer.

        Returns:
            Their places in the vector; none for other kinds, and no head where the last layer is the only one.
        """
        names = set(self.statistics) if kind in ("statistics", "norm") else set()
        if kind == "head":
            last = {name for name in self.trainable if name.rpartition(".")[0] == self.last_layer}
            names = last if len(last) < len(self.trainable) else set()
        if kind == "norm":
            layers = [n for n, m in self.net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            names |= {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        entries = [np.arange(span.start, span.stop) for name, span, _ in self.layout.slices if name in names]
        return np.concatenate(entries) if entries else np.empty(0, np.int64)

    @property
    def site_bytes(self) -> int:
        """Parameters, gradient, two slots and a few working copies."""
        return 8 * self.layout.size * (8 if self.dtype == torch.float64 else 4)

    @property
    def room(self) -> int:
        """Bytes for the sites trained at once, by `site_bytes`: on a GPU a quarter of the free memory."""
        return _CPU_ROOM if self.device.type == "cpu" else max(_CPU_ROOM, torch.cuda.mem_get_info(self.device)[0] // 4)

    def init(self, seed: int, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """Return the starting vector."""
        return self.layout.pack(self._initial(seed), dtype=dtype)

    def decay_mask(self) -> Array:
        """Return 1 where weight decay applies: weights with two dimensions or more, never biases or norms. (learnt,)"""
        out = np.zeros(self.layout.size, np.float32)
        for _, span, shape in self.layout.slices:
            out[span] = len(shape) > 1
        return out[: self.learnt]

    def side_by_side(self, shape: Sequence[int]) -> str | None:
        """Choose how a GPU takes copies of this net through one pass on rows or images of `shape`.

        Returns:
            "groups": vmapped, with grouped convolutions; "products": convolutions as products, where channels are many and
            maps small; None: one copy after another.
        """
        if not self.stacks or self.statistics:  # padded rows would spoil BatchNorm's statistics
            return None
        if self.learnt <= VMAP_PARAMETERS:
            return "groups"
        if len(shape) != 3:
            return None
        sizes: dict[tuple[int, ...], int | None] = self.cache.setdefault("patches", {})
        if tuple(shape) not in sizes:
            sizes[tuple(shape)] = patch_numbers(self.net, (shape[0], shape[1], shape[2]))
        numbers = sizes[tuple(shape)]
        return "products" if numbers is not None and numbers <= MAX_PATCH_NUMBERS else None

    def tensor(self, array: Array) -> Tensor:
        """Move an array to this model's device in its precision."""
        source = np.ascontiguousarray(array)
        return torch.as_tensor(source if source.flags.writeable else source.copy()).to(self.device, self.dtype)

    def point_at(self, theta: Tensor) -> list[Tensor]:
        """Make the network's parameters and statistics views of theta (P,); return the trainable ones."""
        named = self._named_tensors()
        for name, span, shape in self.layout.slices:
            named[name].data = theta[span].view(shape)
        return [named[n] for n in self.trainable]

    def forward(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Compute logits in full precision from given parameters; in bf16 the arithmetic between is done in it.

        Parameters that the network already uses are not swapped in, which is slow on a CPU.
        """
        first = self.net.get_parameter(self.trainable[0])
        if self.precision != "bf16" and params[self.trainable[0]] is first:
            return cast("Tensor", self.net(x))
        if self.precision != "bf16":
            return cast("Tensor", functional_call(self.net, dict(params), (x,)))
        low = {n: _to_bf16(p) for n, p in params.items()}
        return cast("Tensor", functional_call(self.net, low, (_to_bf16(x),))).to(self.dtype)

    def with_features(self, params: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits, and the inputs of the last layer (n, width)."""
        fed: list[Tensor] = []
        hook = self.net.get_submodule(self.last_layer).register_forward_pre_hook(
            lambda _, inputs: fed.append(inputs[0])
        )
        try:
            out = self.forward(params, x)
        finally:
            hook.remove()
        return out, fed[0].to(self.dtype)

    def logits(self, theta: Array, x: Array) -> Array:
        """Compute scores (n, C) of one model on images or rows."""
        params = dict(zip(self.trainable, self.point_at(self.tensor(theta)), strict=True))
        self.net.eval()
        rows = self._cached_rows(x)
        with torch.no_grad():
            out = [self.forward(params, self.tensor(b) if isinstance(b, np.ndarray) else b) for b in rows]
        return torch.cat(out).cpu().numpy() if out else np.empty((0, self.outputs), np.float32)

    def stack_logits(self, models: Array, x: Array) -> Array:
        """Compute scores (K, n, C) of models (K, P) on the same images; on a GPU all of them in one pass where they stack."""
        how = self.side_by_side(x.shape[1:]) if self.device.type == "cuda" and len(models) > 1 else None
        if how is None:
            return np.stack([self.logits(theta, x) for theta in models])
        moved = self.tensor(models)
        stack = {name: moved[:, span].reshape(len(models), *shape) for name, span, shape in self.layout.slices}
        self.net.eval()
        each = vmap(self.forward, in_dims=(0, None))
        size = max(1, _ROWS // len(models))
        with torch.no_grad(), as_products(how == "products"):
            blocks = [each(stack, self.tensor(x[i : i + size])) for i in range(0, len(x), size)]
        return torch.cat(blocks, dim=1).cpu().numpy()

    def features(self, theta: Array, x: Array) -> Array:
        """Return the inputs of the last layer for each row, (n, width)."""
        params = dict(zip(self.trainable, self.point_at(self.tensor(theta)), strict=True))
        self.net.eval()
        with torch.no_grad():
            blocks = [self.with_features(params, self.tensor(x[i : i + _ROWS]))[1] for i in range(0, len(x), _ROWS)]
        return torch.cat(blocks).cpu().numpy() if blocks else np.empty((0, 0), np.float32)

    def _cached_rows(self, x: Array) -> list[Array] | list[Tensor]:
        """Return blocks of rows; on a GPU the rows of the last few parts are cached."""
        cuts = range(0, len(x), _ROWS)
        if self.device.type != "cuda":
            return [x[i : i + _ROWS] for i in cuts]
        cached: list[tuple[Array, Tensor]] = self.cache.setdefault("scored", [])
        if not any(mine is x for mine, _ in cached):
            cached.append((x, self.tensor(x)))
            del cached[:-_KEPT]
        moved = next(t for mine, t in cached if mine is x)
        return [moved[i : i + _ROWS] for i in cuts]

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array:
        return average(np.asarray(models), weights)

    def with_temperature(self, theta: Array, temperature: float) -> Array:
        """Return the model whose logits are divided by T: its last layer divided by T."""
        out = theta.copy()
        last = self.last_layer
        for name, view in self.layout.views(out).items():
            if name.rpartition(".")[0] == last:
                view /= temperature
        return out

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        """Return the model whose one logit s is slope * s + intercept: its last layer scaled and shifted."""
        out = theta.copy()
        views = self.layout.views(out)
        weight, bias = (views[f"{self.last_layer}.{part}"] for part in ("weight", "bias"))
        weight *= slope
        bias[...] = slope * bias + intercept
        return out


@contextmanager
def torch_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators for code that draws from them; restore their state afterwards."""
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            torch.cuda.manual_seed(seed)
        yield


def _to_bf16(x: Tensor) -> Tensor:
    """Convert to bf16, with images and convolutions in channels-last order, which is fastest on a GPU. Inside vmap there is no
    such order, and matrix products do not need it.
    """
    if x.dim() == 4 and not is_using_products() and not torch._C._functorch.is_batchedtensor(x):
        return x.to(torch.bfloat16, memory_format=torch.channels_last)
    return x.to(torch.bfloat16)
