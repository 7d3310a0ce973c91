"""Small experiments that between them ask for nearly every task and report a site can answer with, for tests of policies."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "data": {"label": "died", "site": "hospital"},
    "split": {"val": 0.2, "test": 0.2},
    "method": {"rounds": 2},
    "train": {"steps": 4, "batch": 16, "lr": 0.1},
    "explain": {"sketch": "none"},
}
PUBLIC = {
    "encoding": "public",
    "ranges": {"age": [30, 90], "lactate": [0.5, 6], "pressure": [45, 105]},
    "levels": {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]},
}
LENT = {"reference": {"root": {"rows": 30, "sent": True}}}
TWO = {"reference": {"root": {"rows": 30, "sent": True}, "anchor": {"rows": 20, "sent": True}}}
DP = {"privacy": {"mechanism": "dp-sgd", "epsilon": 5.0, "noise": 2.0, "sampling_rate": 0.2, "min_rows": 10}}
SECURE = {"privacy": {"secure": True}}


def plan(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The base with these sections on top."""
    out = {key: dict(section) for key, section in BASE.items()}
    for part in (*parts, more):
        for key, section in part.items():
            out[key] = {**out.get(key, {}), **section}
    return out


PLANS: dict[str, dict[str, Any]] = {
    "fedavg": plan(method={"name": "fedavg"}),
    "fedavg by groups": plan(
        method={"name": "fedavg"},
        evaluation={"subgroup": "ward", "subgroups": ["age", "lactate"], "mitigation": "thresholds", "threshold": "youden"},
    ),
    "fedavg all told": plan(
        LENT, method={"name": "fedavg"}, train={"finetune": 1}, evaluation={"calibrate": "platt", "local_models": "crossed"},
        explain={"sketch": "permutation", "at": "site"},
    ),
    "fedavg temperature": plan(method={"name": "fedavg"}, evaluation={"calibrate": "temperature"}),
    "fedavg explained": plan(method={"name": "fedavg"}, explain={"sketch": "shap"}),
    "fedavg lossy": plan(method={"name": "fedavg", "select": {"rule": "loss", "fraction": 0.6}}),
    "fedavg public": plan(method={"name": "fedavg"}, data=PUBLIC),
    "fedavg secure": plan(
        SECURE, method={"name": "fedavg"}, evaluation={"subgroups": ["ward", "age"], "mitigation": "recalibration"}
    ),
    "fedavg dp-sgd": plan(DP, method={"name": "fedavg"}, data=PUBLIC, evaluation={"subgroups": ["ward", "age"]}),
    "fedavg dp-sgd fitted": plan(DP, method={"name": "fedavg"}),
    "fedavg dp-sgd secure": plan(
        DP, {"privacy": {"secure": True}}, method={"name": "fedavg"}, data=PUBLIC, evaluation={"calibrate": "platt"}
    ),
    "fedavg client": plan(
        method={"name": "fedavg"}, data=PUBLIC, privacy={"mechanism": "client", "epsilon": 5.0, "secure": False}
    ),
    "fedavg client secure": plan(
        method={"name": "fedavg"}, data=PUBLIC, privacy={"mechanism": "client", "epsilon": 5.0, "secure": True}
    ),
    "sse-agg": plan(TWO, method={"name": "sse-agg"}, explain={"sketch": "auto"}),
    "sse-agg at sites": plan(TWO, method={"name": "sse-agg"}, explain={"sketch": "permutation", "at": "site"}),
    "fedxchain": plan(LENT, method={"name": "fedxchain"}),
    "fedxchain masked": plan(LENT, SECURE, method={"name": "fedxchain"}),
    "guarded": plan(method={"name": "fedavg"}, personal={"guard": True, "part": "intercept"}),
    "guarded secure": plan(SECURE, method={"name": "fedavg"}, personal={"guard": True}),
    "guarded dp-sgd": plan(DP, method={"name": "fedavg"}, data=PUBLIC, personal={"guard": True}),
    "fedprox": plan(method={"name": "fedprox"}),
    "scaffold": plan(method={"name": "scaffold"}),
    "scaffold secure": plan(SECURE, method={"name": "scaffold"}),
    "fedadam": plan(method={"name": "fedadam"}),
    "fedasync": plan(method={"name": "fedasync"}),
    "fedbuff": plan(method={"name": "fedbuff"}),
    "clustered": plan(method={"name": "clustered"}),
    "local": plan(method={"name": "local"}),
    "veil votes": plan(method={"name": "veil", "veil": {"selection": "score"}}, data=PUBLIC, privacy={"epsilon": 5.0}),
    "veil percentiles": plan(
        method={"name": "veil", "veil": {"selection": "score", "percentiles": 0.1}}, data=PUBLIC, privacy={"epsilon": 5.0}
    ),
    "veil paper": plan(method={"name": "veil", "veil": {"selection": "paper", "k": 2}}, data=PUBLIC),
    "veil sums": plan(
        method={"name": "veil", "veil": {"selection": "select_then_fit", "features": 3}}, data=PUBLIC,
        privacy={"epsilon": 5.0, "secure": True},
    ),
    "private-gam": plan(model={"name": "gam"}, data=PUBLIC, privacy={"epsilon": 5.0}),
    "private-gam secure": plan(
        model={"name": "gam"}, data=PUBLIC, privacy={"epsilon": 5.0, "secure": True}, evaluation={"calibrate": "platt"}
    ),
    "veil moments": plan(
        method={"name": "veil", "veil": {"selection": "moments", "features": 3}}, data=PUBLIC, privacy={"epsilon": 5.0}
    ),
}  # fmt: skip
