"""Files of a search: results.json with every trial, best.toml with the experiment to run."""

from __future__ import annotations

import json
from collections.abc import Mapping

from grandrounds.capabilities.tuning.space import Space
from grandrounds.capabilities.tuning.trial import TuningResult
from grandrounds.core import redact, toml
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import RunFailed
from grandrounds.metrics.names import metric_label

SCHEMA = 1
RESULTS, BEST = "results.json", "best.toml"


def build_results(tuned: TuningResult, space: Space, *, share: float, data: str | None) -> dict[str, object]:
    """Describe a search as plain values."""
    return {
        "schema": SCHEMA,
        "experiment": tuned.experiment.name,
        "method": tuned.experiment.method.name,
        "metric": tuned.goal.metric,
        "direction": tuned.goal.direction,
        "of": "validation",
        "rows": tuned.rows,
        "share": share,
        "data": data,
        "seed": tuned.experiment.seed,
        "space": {name: sought.to_dict() for name, sought in space.items()},
        "best": tuned.best.to_dict(),
        "importance": dict(tuned.importance),
        "privacy": dict(tuned.privacy),
        "trials": [t.to_dict() for t in tuned.trials],
        "best_experiment": str(tuned.folder / BEST),
    }


def write(tuned: TuningResult, values: Mapping[str, object]) -> None:
    """Write both files atomically."""
    try:
        write_atomic(tuned.folder / RESULTS, json.dumps(values, indent=1, allow_nan=False).encode())
        write_atomic(tuned.folder / BEST, best_toml(tuned).encode())
    except OSError as e:
        raise RunFailed(f"cannot write to {tuned.folder}: {e.strerror or e}", code="folder-not-writable") from None


def best_toml(tuned: TuningResult) -> str:
    """Return the experiment with the best settings; a password in a database's URL is not written."""
    values = tuned.experiment.model_dump(mode="json", exclude_unset=True)
    if values.get("data", {}).get("table"):
        values["data"]["table"] = redact.hide(values["data"]["table"])
    best, goal = tuned.best, tuned.goal
    head = (
        f"# The best of {len(tuned.trials)} trials (number {best.number}): {metric_label(goal.metric)} {best.value:.4f} of "
        f"{tuned.rows} validation rows.\n# Test rows were not used: `rounds run best.toml` gives their scores."
    )
    return toml.dumps(values, head=head)
