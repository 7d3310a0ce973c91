"""Custom torch modules behind the `Model` protocol: built from an import path, checked before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from grandrounds.core import plugins
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.models.protocol import ModelSpec
from grandrounds.models.torch_build import pick_device
from grandrounds.models.torch_model import TorchModel, settle_torch, torch_seed

_CPU = torch.device("cpu")


def build_custom_net(spec: ModelSpec, *, outputs: int, device: str, precision: str) -> TorchModel:
    """Build the module that `spec["name"]` names, called with `inputs`, `outputs` and the spec's options.

    It starts from its own initialisation, drawn with the experiment's seed; torch's global generator is not changed.
    """
    settle_torch()
    name, inputs = str(spec["name"]), tuple(int(n) for n in spec["inputs"])
    options = dict(spec.get("options", {}))
    notes: list[str] = []

    def made(seed: int) -> nn.Module:
        draw = int(generator(seed, purpose="init").integers(2**63))
        with torch.device("cpu"), torch_seed(draw, _CPU):
            net = plugins.call(name, key="model.name", inputs=inputs, outputs=outputs, **options)
        if not isinstance(net, nn.Module):
            raise BadInput(
                f"model.name is '{name}': it returns a {type(net).__name__}, not a torch.nn.Module", code="not-a-module"
            )
        return net

    def initial(seed: int) -> Mapping[str, Array]:
        fresh = made(seed)
        if spec["weights"]:
            from grandrounds.models.nets import load_weights

            notes[:] = load_weights(fresh, Path(spec["weights"]))
        named = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        return {n: p.detach().numpy() for n, p in named.items() if p.is_floating_point()}

    net = made(0)
    rows = torch.from_numpy(generator(0, purpose="probe").standard_normal((2, *inputs), np.float32))
    with torch_seed(0, _CPU):
        _check(name, net, rows, outputs=outputs)
        ends_linear = _ends_linear(net, rows)
    where = pick_device(device)
    stacks = where != "cpu" and _stacks(net, rows)
    model = TorchModel(net, outputs=outputs, initial=initial, device=where, precision=precision)
    model.notes, model.draws, model.stacks, model.ends_linear = notes, True, stacks, ends_linear
    return model


def _check(name: str, net: nn.Module, rows: Tensor, *, outputs: int) -> None:
    """Refuse a module that cannot be trained: no parameters, other outputs than logits (n, outputs), unused parameters."""
    params = dict(net.named_parameters())
    if not params:
        raise BadInput(
            f"model.name is '{name}': the module has no parameters, so there is nothing to train", code="no-parameters"
        )
    frozen = next((n for n, p in params.items() if not p.requires_grad), None)
    if frozen is not None:
        raise BadInput(
            f"model.name is '{name}': parameter '{frozen}' is frozen; register it as a buffer",
            code="frozen-parameter",
        )
    net.eval()
    try:
        out = net(torch.zeros_like(rows))
    except Exception as e:
        problem = f"its forward of rows {tuple(rows.shape)} failed with {plugins.said(e, name)}"
        raise BadInput(f"model.name is '{name}': {problem}", code="forward-failed") from e
    if not isinstance(out, Tensor) or tuple(out.shape) != (len(rows), outputs):
        output = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
        raise BadInput(
            f"model.name is '{name}': for {len(rows)} rows it returns an output of {output}, "
            f"not logits of shape ({len(rows)}, {outputs})",
            code="bad-output-shape",
        )
    used = torch.autograd.grad(out.sum(), list(params.values()), allow_unused=True) if out.requires_grad else ()
    idle = next((n for n, g in zip(params, used or [None] * len(params), strict=True) if g is None), None)
    if idle is not None:
        raise BadInput(
            f"model.name is '{name}': parameter '{idle}' has no effect on its output; remove it",
            code="unused-parameter",
        )


@torch.no_grad()
def _ends_linear(net: nn.Module, rows: Tensor) -> bool:
    """Check that the last layer is dense and gives the logits: halving its parameters halves the logits.

    Temperature scaling divides that layer, MOON uses its inputs, and tasks share all other layers.
    """
    last = net.get_submodule(list(dict(net.named_parameters()))[-1].rpartition(".")[0])
    if not isinstance(last, nn.Linear):
        return False
    full = net(rows)
    for p in last.parameters():
        p.mul_(0.5)
    half = net(rows)
    for p in last.parameters():
        p.mul_(2.0)
    return bool(torch.allclose(full, 2 * half, rtol=1e-4, atol=1e-6))


def _stacks(net: nn.Module, rows: Tensor) -> bool:
    """Check that torch can vmap the module: not if it draws random numbers or branches on values."""
    params = {n: p.detach() for n, p in net.named_parameters()}

    def loss(one: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(net, one, (x,))
        return out.sum()

    net.train()
    try:
        vmap(grad(loss))({n: torch.stack([p, p]) for n, p in params.items()}, torch.stack([rows, rows]))
    except Exception:
        return False
    return True
