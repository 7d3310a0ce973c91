"""Hyperparameter search: `rounds tune EXPERIMENT`, `grandrounds.tuning.tune(experiment)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.tuning.search import ProgressCallback
    from grandrounds.tuning.trial import Trial, TuningResult

FOLDER = Path("runs") / "tune"


def tune(
    experiment: Experiment,
    *,
    trials: int | None = None,
    space: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    metric: str | None = None,
    direction: str | None = None,
    share: float | None = None,
    data: str | None = None,
    table: Any = None,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> TuningResult:
    """Search for settings that do well on validation rows; run again with the same `out`, it goes on.

    What is not given the experiment's [tune] section says. `space`: setting -> {"low", "high", "log"} or a list of
    values; none anywhere: what is usual for the method. `data`: tune on another set (of the catalog, a loader of your
    own, or a file with the same columns). `table`: a data frame or Table in place of what data.table names.
    """
    from grandrounds.tuning.tuner import run_search

    overrides = {"trials": trials, "metric": metric, "direction": direction, "share": share, "space": space}
    folder = FOLDER / experiment.name.replace("/", "_") if out is None else Path(out)
    return run_search(
        experiment,
        {k: v for k, v in overrides.items() if v is not None},
        folder,
        data=data,
        table=table,
        jobs=jobs,
        progress=progress,
    )


def __getattr__(name: str) -> Any:
    if name not in ("Trial", "TuningResult"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from grandrounds.tuning import trial

    return getattr(trial, name)


__all__ = ["FOLDER", "Trial", "TuningResult", "tune"]
