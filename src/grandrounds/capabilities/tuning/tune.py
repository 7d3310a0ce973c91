"""Search for good settings of an experiment: `tune(experiment)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.capabilities.tuning.search import ProgressCallback
    from grandrounds.capabilities.tuning.trial import TuningResult
    from grandrounds.experiment.experiment import Experiment

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
    """Search for the settings that do best on validation rows. The same `out` continues an interrupted search.

    Args:
        experiment: The experiment. Its [tune] section has the defaults of the following arguments.
        trials: The number of settings to try.
        space: Setting -> {"low", "high", "log"} or a list of values; None is the usual space of the method.
        out: The folder of the search; None is runs/tune/NAME.
        metric: The validation metric.
        direction: "maximize" or "minimize".
        share: The share of the training and validation rows to tune on.
        data: Another data set to tune on: a name of the catalog, a loader, or a file with the same columns.
        table: A data frame or Table that replaces the rows of data.table.
        jobs: Trials at a time, each in its own process.
        progress: Called with a sentence, the number of ended trials, and the total.

    Returns:
        The best trial, all trials, and the experiment with the best settings.

    Raises:
        BadInput: A setting, metric or option is wrong, or Optuna is not installed.
        RunFailed: All trials failed.
    """
    from grandrounds.capabilities.tuning.tuner import run_search

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
