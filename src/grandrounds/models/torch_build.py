"""Build torch models from a spec: the dense models of the NumPy kernel, and the nets for images."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.core import sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.dense import Dense
from grandrounds.models.protocol import ModelSpec
from grandrounds.models.torch_model import TorchModel, settle_torch


def pick_device(wish: str) -> str:
    """Return the device of an experiment: the requested one, or a GPU if there is one."""
    available = torch.cuda.is_available()
    if wish == "cuda" and not available:
        raise BadInput(
            "engine.device is 'cuda' but this machine has no GPU that torch can use: set it to 'auto' or 'cpu'",
            code="no-gpu",
        )
    return "cuda" if available and wish != "cpu" else "cpu"


class _Layer(nn.Module):
    """A dense layer, x @ weight + bias, with the weight as in the NumPy kernel: (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class DenseNet(nn.Module):
    """The dense model of `models/dense.py`, parameter by parameter."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.depth = len(widths) - 1
        for i, (a, b) in enumerate(pairwise(widths)):
            setattr(self, f"layer{i}", _Layer(a, b))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.depth):
            x = getattr(self, f"layer{i}")(x)
            if i < self.depth - 1:
                x = torch.relu(x)
        return x


def torch_dense(dense: Dense, *, device: str, precision: str) -> TorchModel:
    """Build a dense model on the torch kernel, with the same start as on NumPy."""
    settle_torch()

    def initial(seed: int) -> Mapping[str, Array]:
        return dense.layout.views(dense.init(seed, np.float64))

    where = pick_device(device)
    net = DenseNet(dense.widths)
    model = TorchModel(net, outputs=dense.outputs, initial=initial, device=where, precision=precision)
    model.loss = dense.loss
    return model


def torch_net(spec: ModelSpec, *, outputs: int, device: str, precision: str) -> TorchModel:
    """Build a net for images, with seeded or loaded starting weights."""
    from grandrounds.models.nets import build_net, load_weights

    settle_torch()
    channels, height, width = spec["inputs"]
    net = build_net(
        spec["name"], shape=(channels, height, width), outputs=outputs, norm=spec["norm"], stem=spec["stem"]
    )

    notes: list[str] = []

    def initial(seed: int) -> Mapping[str, Array]:
        fresh = build_net(
            spec["name"],
            shape=(channels, height, width),
            outputs=outputs,
            norm=spec["norm"],
            stem=spec["stem"],
            seed=seed,
        )
        if spec["weights"]:
            sources.check(sources.WEIGHTS, spec["weights"])
            notes[:] = load_weights(fresh, Path(spec["weights"]))
        named = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        return {n: p.detach().numpy() for n, p in named.items() if p.is_floating_point()}

    model = TorchModel(net, outputs=outputs, initial=initial, device=pick_device(device), precision=precision)
    model.notes = notes
    return model
