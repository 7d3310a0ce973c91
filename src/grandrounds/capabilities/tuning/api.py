"""`gr.tune`: search for good settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import make_bar
from grandrounds.api.sources import Settings, build_experiment

if TYPE_CHECKING:
    from grandrounds.capabilities.tuning.trial import TuningResult


def tune(
    experiment: Any = None,
    *,
    trials: int | None = None,
    space: Mapping[str, object] | None = None,
    metric: str | None = None,
    direction: str | None = None,
    share: float | None = None,
    data: str | None = None,
    label: str | None = None,
    event: str | int | float | None = None,
    task: str | None = None,
    time: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    method: Any = None,
    rounds: int | None = None,
    model: Any = None,
    seed: int | None = None,
    settings: Settings = (),
    table: Any = None,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> TuningResult:
    """Search for the settings that do best on validation rows; test rows are not used.

    Args:
        experiment: The source of the experiment, as `gr.run` takes it.
        trials: The number of settings to try; by default 50, or as the experiment's [tune] section states.
        space: Setting -> values to try: `{"train.lr": {"low": 1e-3, "high": 1.0, "log": True}, "train.batch": [16, 32]}`.
            By default the usual settings of the method.
        metric: The validation metric; by default AUROC for two classes, else accuracy.
        direction: "maximize" or "minimize"; by default as the metric requires.
        share: The share of the training and validation rows to tune on.
        data: Another data set to tune on.
        label: `data.label`, as in `gr.run`.
        event: `data.event`.
        task: `data.task`.
        time: `data.duration`, the follow-up time.
        site: `data.site`.
        patient: `data.patient`.
        drop: `data.drop`.
        method: The method's name or section.
        rounds: `method.rounds`.
        model: The model's name or section.
        seed: `seed`.
        settings: Further settings by their names in the experiment file.
        table: Rows in memory that replace those that an Experiment names.
        jobs: Trials at a time, each in a process of its own.
        out: The folder of the search; by default `runs/tune/NAME`. The same folder continues an interrupted search.
        progress: True shows a bar, False none; by default a terminal or notebook shows one.

    Returns:
        The result: `best`, `frame` with one line per trial, and `experiment` with the best settings, ready for `gr.run`.

    Raises:
        BadInput: A setting, metric or option is wrong, or Optuna is not installed.
        RunFailed: All trials failed.
    """
    from grandrounds.capabilities.tuning.tune import tune as search

    built, rows = build_experiment(
        experiment,
        label=label,
        event=event,
        task=task,
        time=time,
        site=site,
        patient=patient,
        drop=drop,
        method=method,
        rounds=rounds,
        model=model,
        seed=seed,
        settings=settings,
    )
    bar = make_bar("trial", progress)
    try:
        return search(
            built,
            trials=trials,
            space=space,
            out=out,
            metric=metric,
            direction=direction,
            share=share,
            data=data,
            table=table if rows is None else rows,
            jobs=jobs,
            progress=bar.update,
        )
    finally:
        bar.close()
