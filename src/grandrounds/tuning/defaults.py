"""What is usually worth tuning of each method: the space of an experiment that names none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

_Given = dict[str, Any]

_SERVER_ADAPTIVE = ("fedopt", "fedadam", "fedyogi", "fedadagrad", "fedrmsprop")


def usual_space(experiment: Experiment) -> _Given:
    """Setting -> range, for the experiment's method, model, optimiser and privacy."""
    resolved = experiment.resolved()
    model = resolved.model.name
    trees: _Given = {"model.trees": _span(20, 200, log=True)}
    if model == "forest":
        return trees | {"model.depth": _span(3, 16)}
    if model == "lightgbm":
        return trees | {"train.lr": _span(0.01, 0.3, log=True)}
    if _is(resolved, "veil"):
        return _veil(resolved)
    return _training(resolved) | _privacy(resolved) | _holding(resolved) | _server(resolved)


def _span(low: float, high: float, *, log: bool = False) -> _Given:
    return {"low": low, "high": high, "log": log}


def _is(experiment: Experiment, *names: str) -> bool:
    """Whether the experiment's method is one of these, or made from one."""
    from grandrounds.methods import METHODS, is_variant_of

    return any(name in METHODS and is_variant_of(experiment.method.name, name) for name in names)


def _training(e: Experiment) -> _Given:
    """A site's own training. Adaptive optimisers take steps of their own length, so their rates are smaller."""
    adaptive = e.train.optimizer in ("adam", "adamw")
    out: _Given = {"train.lr": _span(1e-4, 0.03, log=True) if adaptive else _span(1e-3, 1.0, log=True)}
    if e.train.steps:
        out["train.steps"] = _span(max(1, e.train.steps // 4), e.train.steps * 4, log=True)
    else:
        out["train.epochs"] = _span(1, 8)
    if e.privacy.mechanism != "dp-sgd":
        out["train.batch"] = {"choices": [16, 32, 64, 128]}
    return out | {"train.l2": {"choices": [0.0, 1e-4, 1e-3, 1e-2]}}


def _privacy(e: Experiment) -> _Given:
    """What trades noise for bias at the same promise."""
    if e.privacy.mechanism == "none":
        return {}
    clip: _Given = {"privacy.clip": _span(0.05, 4.0, log=True)}
    return clip | ({"privacy.sampling_rate": _span(0.02, 0.5, log=True)} if e.privacy.mechanism == "dp-sgd" else {})


def _holding(e: Experiment) -> _Given:
    """What keeps sites together, and what their explanations are worth."""
    from grandrounds.methods import regularizer_class

    strengths: _Given = {
        "proximal": {"method.mu": _span(1e-3, 1.0, log=True)},
        "moon": {"method.moon_mu": _span(0.1, 10.0, log=True), "method.temperature": {"choices": [0.1, 0.5, 1.0]}},
        "anchor": {"method.anchor": _span(0.3, 40.0, log=True)},
        "permuted_anchor": {"method.anchor": _span(0.3, 40.0, log=True)},
        "anchored_scaffold": {"method.anchor_gain": _span(1.0, 60.0, log=True)},
        "alignment": {"method.alignment": _span(0.03, 3.0, log=True)},
    }
    out: _Given = dict(strengths.get(regularizer_class(e.method).name, {}))
    if e.method.weigh.rule == "explanations" and not e.method.weigh.lambdas:
        out["method.weigh.explanation_weight"] = _span(0.0, 1.0)
    return out


def _server(e: Experiment) -> _Given:
    """The server's own step, and what methods of several models or no common clock have."""
    if _is(e, *_SERVER_ADAPTIVE):
        return {"method.server.lr": _span(1e-3, 1.0, log=True), "method.server.tau": _span(1e-4, 0.1, log=True)}
    if _is(e, "fedavgm"):
        return {"method.server.lr": _span(0.1, 2.0, log=True), "method.server.momentum": _span(0.0, 0.99)}
    if _is(e, "fedasync"):
        return {"method.mixing": _span(0.1, 1.0)}
    if _is(e, "fedbuff"):
        return {"method.server.lr": _span(0.1, 2.0, log=True), "method.buffer": _span(1, 8)}
    return {"method.clusters": _span(1, 4)} if _is(e, "clustered") else {}


def _veil(e: Experiment) -> _Given:
    """VEIL trains no model at its sites round by round: what counts is what is proposed, clipped and stepped."""
    veil = e.method.veil
    how = ("select_then_fit" if e.privacy.secure else "score") if veil.selection == "auto" else veil.selection
    least = {"select_then_fit": veil.stages or 1, "moments": 1}.get(how, 2)
    out: _Given = {"method.rounds": _span(least, least + 18), "method.veil.value": _span(0.25, 3.0, log=True)}
    if how in ("select_then_fit", "moments"):
        out |= {
            "method.veil.norm": _span(1.0, 8.0, log=True),
            "method.veil.lr": _span(0.2, 8.0, log=True),
            "method.veil.features": _span(5, 40),
        }
        return out | ({"method.veil.outcome": _span(0.5, 4.0, log=True)} if how == "moments" else {})
    out |= {"method.veil.k": _span(1, 8), "method.veil.step": _span(0.2, 8.0, log=True)}
    if how != "score":
        out |= {"train.lr": _span(1e-3, 1.0, log=True)}
    return out | ({"method.veil.quorum": _span(0.01, 0.3)} if veil.votes == "quorum" or how == "paper" else {})
