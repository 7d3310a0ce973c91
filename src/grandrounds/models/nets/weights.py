"""Load weights from a file into a net: what fits is loaded, what does not is reported. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.core.arrays import Array, load
from grandrounds.core.errors import BadInput

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def load_weights(net: nn.Module, path: Path | str, *, strict_head: bool = False) -> list[str]:
    """Load a .safetensors file into `net`; return one sentence for each array that was not loaded unchanged.

    Arrays are matched by name and shape. The classifier (the last dense layer) of another size keeps its
    starting weights, unless `strict_head` refuses it. A first convolution of three channels is summed over
    them for one-channel images: the same as feeding the grey image three times. Nothing is written unless
    the whole file is sound.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise BadInput(
            f"{path} is not a .safetensors file, and other weight files can run code when read; where you trust it, "
            "convert it once: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')",
            code="not-safetensors",
        )
    arrays, _ = load(path, links=True)
    state = net.state_dict()
    first, head = _first_conv(net), _head(net)
    fitting: dict[str, Array] = {}
    notes: list[str] = []
    differ: list[str] = []
    missing: list[str] = []
    for name, tensor in state.items():
        if name.rpartition(".")[0] == head:
            continue
        array = arrays.get(name)
        if array is None:
            missing += [] if name.endswith("num_batches_tracked") else [name]
        elif _fits(array, tensor):
            fitting[name] = array
        elif name == f"{first}.weight" and array.ndim == 4 and array.shape[1] == 3 and _fits(array[:, :1], tensor):
            fitting[name] = array.sum(axis=1, keepdims=True, dtype=np.float64)
            notes.append(f"{name}: the 3 input channels of the file were summed into 1")
        else:
            differ.append(f"{name} ({_shape(array)} in the file, {_shape(tensor)} here)")
    heads = {f"{head}.{n}": state[f"{head}.{n}"] for n in ("weight", "bias") if f"{head}.{n}" in state}
    if all(name in arrays and _fits(arrays[name], tensor) for name, tensor in heads.items()):
        fitting |= {name: arrays[name] for name in heads}
    elif heads:
        notes.append(_describe_head(head, heads, arrays, path, strict_head))
    ready = _check_values(fitting, state, path)
    notes += _notes_on_rest(differ, missing, [n for n in arrays if n not in state], state)
    with torch.no_grad():
        for name, values in ready.items():
            state[name].copy_(values)
    return notes


def _fits(array: Array, tensor: Tensor) -> bool:
    return tuple(array.shape) == tuple(tensor.shape) and (array.dtype.kind == "f") == tensor.is_floating_point()


def _first_conv(net: nn.Module) -> str:
    return next((name for name, m in net.named_modules() if isinstance(m, nn.Conv2d)), "")


def _head(net: nn.Module) -> str:
    return next((name for name, m in reversed(list(net.named_modules())) if isinstance(m, nn.Linear)), "")


def _describe_head(head: str, state: dict[str, Tensor], arrays: dict[str, Array], path: Path, strict: bool) -> str:
    needed = _shape(state[f"{head}.weight"])
    array = arrays.get(f"{head}.weight")
    present = "none" if array is None else _shape(array)
    if strict:
        raise BadInput(
            f"the classifier {head} in {path} does not fit: {present} in the file, {needed} here; "
            "build the net for as many classes, or let the classifier start fresh",
            code="mismatched-weights",
        )
    return f"the classifier {head} starts fresh: {present} in the file, {needed} here"


def _check_values(fitting: dict[str, Array], state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    if not any(array.ndim > 1 for array in fitting.values()):
        weights = [name for name, tensor in state.items() if tensor.dim() > 1]
        raise BadInput(
            f"no array in {path} fits this net by name and shape; it looks for {_shorten(weights)}: "
            "is the file of another net?",
            code="mismatched-weights",
        )
    ready = {name: torch.from_numpy(np.array(array)).to(state[name].dtype) for name, array in fitting.items()}
    for name, values in ready.items():
        if not bool(torch.isfinite(values).all()):
            raise BadInput(
                f"{name} in {path} holds values that are not finite; the file cannot be used", code="not-finite"
            )
    return ready


def _notes_on_rest(differ: list[str], missing: list[str], unused: list[str], state: Mapping[str, Tensor]) -> list[str]:
    notes = []
    if differ:
        notes.append(f"fresh, because the file has another shape or type: {_shorten(differ)}")
    if missing:
        notes.append(f"fresh, because the file does not have it: {_shorten(missing)}")
    owners = {name: name.rpartition(".")[0] for name in unused if name.rpartition(".")[2] in _RUNNING}
    running = {name: owner for name, owner in owners.items() if f"{owner}.weight" in state}
    if running:
        notes.append(
            f"the running statistics of {len(set(running.values()))} batch norms in the file are not used: this net "
            "has group norm there, so it needs some training before it scores as the file's net did"
        )
    other = [name for name in unused if name not in running]
    if other:
        notes.append(f"in the file, but with no place in this net: {_shorten(other)}")
    return notes


def _shape(array: Array | Tensor) -> str:
    return "x".join(str(n) for n in array.shape) or "one number"


def _shorten(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
