"""Default search spaces of each method, for experiments that name none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grandrounds.capabilities.tuning.space import Value
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

_SpaceTable = dict[str, Value]

_SERVER_ADAPTIVE = ("fedopt", "fedadam", "fedyogi", "fedadagrad", "fedrmsprop")


NOTHING_TO_TUNE = {
    "gam": "it chooses the smoothness of each column from the same sums",
    "card": "the number of terms is a choice of its readers (method.card.terms)",
    "ebm": "it is run with InterpretML's defaults, as a baseline",
}
"""Models without a default search space, with the reason."""


def default_space(experiment: Experiment) -> _SpaceTable:
    """Return setting -> range, for the experiment's method, model, optimiser and privacy.

    Raises:
        BadInput: The model has nothing to tune.
    """
    resolved = experiment.resolved()
    model = resolved.model.name
    trees: _SpaceTable = {"model.trees": _range(20, 200, log=True)}
    if model == "forest":
        return trees | {"model.depth": _range(3, 16)}
    if model == "lightgbm":
        return trees | {"train.lr": _range(0.01, 0.3, log=True)}
    if model in NOTHING_TO_TUNE:
        raise BadInput(
            f"model '{model}' has nothing to tune: {NOTHING_TO_TUNE[model]}. Run it as it is, or name settings to try with "
            "--space",
            code="nothing-to-tune",
        )
    if model == "trees":
        return {
            "method.trees.rounds": _range(5, 40, log=True),
            "method.trees.depth": _range(2, 6),
            "method.trees.rate": _range(0.1, 0.8, log=True),
        }
    if _is_method(resolved, "veil"):
        return _veil(resolved)
    return _training(resolved) | _privacy(resolved) | _regularizer(resolved) | _server(resolved)


def _range(low: float, high: float, *, log: bool = False) -> _SpaceTable:
    return {"low": low, "high": high, "log": log}


def _is_method(experiment: Experiment, *names: str) -> bool:
    """Tell whether the experiment's method is one of these, or a variant of one."""
    from grandrounds.methods import METHODS, is_variant_of

    return any(name in METHODS and is_variant_of(experiment.method.name, name) for name in names)


def _training(e: Experiment) -> _SpaceTable:
    """Return settings of local training. Adaptive optimisers need smaller learning rates."""
    adaptive = e.train.optimizer in ("adam", "adamw")
    out: _SpaceTable = {"train.lr": _range(1e-4, 0.03, log=True) if adaptive else _range(1e-3, 1.0, log=True)}
    if e.train.steps:
        out["train.steps"] = _range(max(1, e.train.steps // 4), e.train.steps * 4, log=True)
    else:
        out["train.epochs"] = _range(1, 8)
    if e.privacy.mechanism != "dp-sgd":
        out["train.batch"] = {"choices": [16, 32, 64, 128]}
    return out | {"train.l2": {"choices": [0.0, 1e-4, 1e-3, 1e-2]}}


def _privacy(e: Experiment) -> _SpaceTable:
    """Return the settings that trade noise for bias at the same privacy guarantee."""
    if e.privacy.mechanism == "none":
        return {}
    clip: _SpaceTable = {"privacy.clip": _range(0.05, 4.0, log=True)}
    return clip | ({"privacy.sampling_rate": _range(0.02, 0.5, log=True)} if e.privacy.mechanism == "dp-sgd" else {})


def _regularizer(e: Experiment) -> _SpaceTable:
    """Return the strength of local regularisation, and the weight of explanations."""
    from grandrounds.methods import regularizer_class

    strengths: _SpaceTable = {
        "proximal": {"method.mu": _range(1e-3, 1.0, log=True)},
        "moon": {"method.moon_mu": _range(0.1, 10.0, log=True), "method.temperature": {"choices": [0.1, 0.5, 1.0]}},
        "anchor": {"method.anchor": _range(0.3, 40.0, log=True)},
        "permuted_anchor": {"method.anchor": _range(0.3, 40.0, log=True)},
        "anchored_scaffold": {"method.anchor_gain": _range(1.0, 60.0, log=True)},
        "alignment": {"method.alignment": _range(0.03, 3.0, log=True)},
    }
    out: _SpaceTable = dict(strengths.get(regularizer_class(e.method).name, {}))
    if e.method.weigh.rule == "explanations" and not e.method.weigh.lambdas:
        out["method.weigh.explanation_weight"] = _range(0.0, 1.0)
    return out


def _server(e: Experiment) -> _SpaceTable:
    """Return settings of the server step, of clustered methods and of asynchronous methods."""
    if _is_method(e, *_SERVER_ADAPTIVE):
        return {"method.server.lr": _range(1e-3, 1.0, log=True), "method.server.tau": _range(1e-4, 0.1, log=True)}
    if _is_method(e, "fedavgm"):
        return {"method.server.lr": _range(0.1, 2.0, log=True), "method.server.momentum": _range(0.0, 0.99)}
    if _is_method(e, "fedasync"):
        return {"method.mixing": _range(0.1, 1.0)}
    if _is_method(e, "fedbuff"):
        return {"method.server.lr": _range(0.1, 2.0, log=True), "method.buffer": _range(1, 8)}
    return {"method.clusters": _range(1, 4)} if _is_method(e, "clustered") else {}


def _veil(e: Experiment) -> _SpaceTable:
    """Return the settings of VEIL, whose sites train no model round by round."""
    veil = e.method.veil
    how = ("select_then_fit" if e.privacy.secure else "score") if veil.selection == "auto" else veil.selection
    least = {"select_then_fit": veil.stages or 1, "moments": 1}.get(how, 2)
    out: _SpaceTable = {"method.rounds": _range(least, least + 18), "method.veil.value": _range(0.25, 3.0, log=True)}
    if how in ("select_then_fit", "moments"):
        out |= {
            "method.veil.norm": _range(1.0, 8.0, log=True),
            "method.veil.lr": _range(0.2, 8.0, log=True),
            "method.veil.features": _range(5, 40),
        }
        return out | ({"method.veil.outcome": _range(0.5, 4.0, log=True)} if how == "moments" else {})
    out |= {"method.veil.k": _range(1, 8), "method.veil.step": _range(0.2, 8.0, log=True)}
    if how != "score":
        out |= {"train.lr": _range(1e-3, 1.0, log=True)}
    return out | ({"method.veil.quorum": _range(0.01, 0.3)} if veil.votes == "quorum" or how == "paper" else {})
