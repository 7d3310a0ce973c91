"""`gr.compare`: compare runs, methods or models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import make_bar
from grandrounds.api.sources import Settings, build_experiment

if TYPE_CHECKING:
    from grandrounds.analysis.compare import Comparison
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run


def compare(
    *runs: Any,
    methods: Sequence[Any] | None = None,
    models: Sequence[Any] | None = None,
    seeds: int = 5,
    vary: Mapping[str, Sequence[Any]] | None = None,
    metrics: Sequence[str] | None = None,
    references: bool = True,
    virtual_seconds: float | None = None,
    label: str | None = None,
    event: str | int | float | None = None,
    task: str | None = None,
    time: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    settings: Settings = (),
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare finished runs; or run methods or models over seeds and compare them.

    Args:
        runs: At least two runs or run folders; with `methods` or `models` one source of an experiment, as `gr.run` takes it.
        methods: Methods to run: names, import paths or classes.
        models: Models to run across the hospitals, each by the method that fits it: names, import paths or classes; "all" for
            the usual ones.
        seeds: With `methods` or `models`: the number of seeds of each.
        vary: With `methods` or `models`: further settings of which every value is run: `{"split.fold": [0, 1, 2]}`.
        metrics: The metrics to compare; by default those of `rounds compare`.
        references: With `methods`: also run each site alone ("local") and all rows in one place ("pooled"). With `models`: also
            LightGBM and an EBM on pooled rows.
        virtual_seconds: Compare the runs after so many simulated seconds; None compares at the end.
        label: `data.label`, as in `gr.run`.
        event: `data.event`.
        task: `data.task`.
        time: `data.duration`, the follow-up time.
        site: `data.site`.
        patient: `data.patient`.
        drop: `data.drop`.
        settings: Further settings by their names in the experiment file.
        jobs: Runs at a time, each in a process of its own; by default one per core.
        out: The folder of the comparison; by default `runs/compare-NAME` with `methods` or `models`, else nothing is written.
            Finished runs in it are not run again.
        progress: True shows a bar, False none; by default a terminal or notebook shows one.

    Returns:
        The comparison: `frame` has mean, deviation, interval and paired difference of each arm and metric; `price(arm)` has
        exchanges, bytes and CPU time of an arm.

    Raises:
        BadInput: There is nothing to compare, or a method, metric or setting is wrong.
        RunFailed: A run stopped.
    """
    from grandrounds.analysis.compare import check_metrics
    from grandrounds.analysis.compare import compare as join
    from grandrounds.analysis.comparison_plans import comparison_plans, model_plans, write_comparison
    from grandrounds.core.errors import BadInput
    from grandrounds.core.plugins import named
    from grandrounds.metrics.names import with_auroc

    chosen = None if metrics is None else with_auroc([metrics] if isinstance(metrics, str) else list(metrics))
    folder = None if out is None else Path(out)
    if methods is not None and models is not None:
        raise BadInput("give methods= or models=, not both: one comparison has one question", code="conflicting-options")
    arms = methods if models is None else models
    if arms is None:
        result = join(_open_runs(runs), metrics=chosen, virtual_seconds=virtual_seconds)
    else:
        if len(runs) > 1:
            raise BadInput("with methods= or models= give one recipe, file or data frame", code="conflicting-options")
        base, rows = build_experiment(
            runs[0] if runs else None,
            label=label,
            event=event,
            task=task,
            time=time,
            site=site,
            patient=patient,
            drop=drop,
            settings=settings,
        )
        check_metrics(chosen or (), base.evaluation.metrics)
        names = [str(named(m)) for m in ([arms] if isinstance(arms, str) else arms)]
        folder = folder or Path("runs") / f"compare-{base.name}"
        file = None if rows is None else _write_rows(rows, folder)
        try:
            base = base if file is None else _on_file(base, file)
            axes = [f"{key}={','.join(str(v) for v in values)}" for key, values in (vary or {}).items()]
            make = comparison_plans if models is None else model_plans
            plans, labels = make(base, names, seeds=seeds, vary=axes, references=references)
            done = _run_plans(plans, folder, jobs=jobs, progress=progress)
        finally:
            if file is not None:
                file.unlink(missing_ok=True)
                file.parent.rmdir()
        result = join(done, metrics=chosen, named=labels, virtual_seconds=virtual_seconds)
    if folder is not None:
        write_comparison(result, folder, virtual_seconds=virtual_seconds)
    return result


def _open_runs(runs: Sequence[Any]) -> list[Run]:
    """Open the runs to compare, given as runs, as folders, or as one list of them."""
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    listed = list(runs[0]) if len(runs) == 1 and isinstance(runs[0], list | tuple) else list(runs)
    if len(listed) < 2:
        raise BadInput(
            "give at least two runs or run folders, or methods to run: gr.compare('heart', methods=['fedavg', 'fedprox'])",
            code="too-few-runs",
        )
    for run in listed:
        if not isinstance(run, Run | str | Path):
            raise BadInput(
                f"cannot compare an object of type {type(run).__name__}: give runs or run folders",
                code="not-a-run-folder",
            )
    return [run if isinstance(run, Run) else Run(Path(run)) for run in listed]


def _write_rows(rows: Any, folder: Path) -> Path:
    """Write rows in memory beside the runs of a comparison, readable by the owner alone; the caller removes the file."""
    from grandrounds.core.errors import BadInput
    from grandrounds.data.images import ImageSet
    from grandrounds.data.row_files import write_bundle
    from grandrounds.data.table import Table

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".rows").mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        raise BadInput(f"cannot make {folder}: {e.strerror or e}; choose another out=", code="cannot-write") from None
    table = rows if isinstance(rows, Table | ImageSet) else Table.from_pandas(rows)
    return write_bundle(table, folder / ".rows" / "comparison.json").resolve()


def _on_file(base: Experiment, file: Path) -> Experiment:
    return base.model_copy(update={"data": base.data.model_copy(update={"table": str(file)})})


def _run_plans(
    plans: Mapping[str, dict[str, Any]], folder: Path, *, jobs: int | None, progress: bool | None
) -> list[Run]:
    """Run the plans of a comparison, with a bar over the runs."""
    from grandrounds.runs.batch import run_all

    bar, ended = make_bar("run", progress), 0
    bar.update("", 0, len(plans))

    def show(name: str, run: Run) -> None:
        nonlocal ended
        ended += 1
        bar.update(name, ended, len(plans))

    try:
        return run_all(plans, folder, jobs=jobs or os.cpu_count() or 1, progress=show)
    finally:
        bar.close()
