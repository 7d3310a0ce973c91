"""Run a search from its experiment to its folder: check, try settings, report the best and its privacy cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grandrounds.capabilities.tuning.defaults import default_space
from grandrounds.capabilities.tuning.privacy_cost import privacy_cost
from grandrounds.capabilities.tuning.results import build_results, write
from grandrounds.capabilities.tuning.rows import prepare_rows
from grandrounds.capabilities.tuning.search import RUNS, ProgressCallback, search, search_digest
from grandrounds.capabilities.tuning.space import Dimension, Space, current_values, read_space, with_values
from grandrounds.capabilities.tuning.study import FILE, Study, require_optuna
from grandrounds.capabilities.tuning.trial import TuningResult, check_metric, make_goal
from grandrounds.core import plugins
from grandrounds.core.errors import BadInput, RunFailed, nearest
from grandrounds.core.sources import DATA_FRAME
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.experiment.experiment import Experiment
from grandrounds.experiment.tune_section import Tune

_PREPARATION = ("scale", "impute", "clip", "max_categories", "encoding")
_EARLY_STOP = "train.early_stop"


def run_search(
    experiment: Experiment,
    overrides: Mapping[str, object],
    folder: Path,
    *,
    data: str | None,
    table: Any,
    jobs: int,
    progress: ProgressCallback | None,
) -> TuningResult:
    """Search as [tune] states, with `overrides` in its place; write results.json and best.toml."""
    require_optuna()
    settings = _merge_settings(experiment.tune, overrides)
    tuned_experiment = _first_fold(
        _name_memory_rows(experiment, table) if data is None else _on_other_data(experiment, data)
    )
    space = resolve_space(tuned_experiment, settings)
    tuned_experiment = _skip_reports(tuned_experiment, space)
    check_metric(settings.metric, settings.direction, experiment.evaluation.metrics)
    plan = tuned_experiment.plan()
    secret = tuned_experiment.data.table if tuned_experiment.data.table != plan["data"]["table"] else None
    lock = _lock(folder)
    try:
        rows = prepare_rows(plan, folder, share=settings.share, secret=secret, table=table)
        try:
            aim = make_goal(settings.metric, settings.direction, classes=rows.classes, task=rows.task)
            initial = current_values(space, tuned_experiment)
            study = Study.open(
                folder,
                space,
                initial,
                goal=aim,
                seed=experiment.seed,
                parallel=jobs > 1,
                digest=search_digest(tuned_experiment, {"share": settings.share}, space, aim),
            )
            report = progress or (lambda text, ended, total: None)
            trials = search(
                study, tuned_experiment, rows, folder, goal=aim, trials=settings.trials, jobs=jobs, progress=report
            )
            importance = study.importance()
        finally:
            rows.remove()
        ended = [t for t in trials if t.value is not None]
        if not ended:
            raise RunFailed(f"all {len(trials)} trials failed; the first: {trials[0].failed}", code="all-trials-failed")
        best = min(ended, key=lambda t: (aim.rank(t.value), t.number))
        privacy = privacy_cost(trials, best, validation=rows.validation, elsewhere=data or "")
        tuned = TuningResult(
            best, trials, with_values(experiment, best.settings), aim, importance, privacy, folder, rows.validation
        )
        write(tuned, build_results(tuned, space, share=settings.share, data=data))
    finally:
        _release(lock, folder)
    return tuned


def resolve_space(experiment: Experiment, settings: Tune) -> dict[str, Dimension]:
    """Return the given space, else the default space of the method."""
    if settings.space:
        return read_space(settings.space, experiment)
    return read_space(default_space(experiment), experiment)


def _merge_settings(section: Tune, overrides: Mapping[str, object]) -> Tune:
    """Merge [tune] with the overrides, checked by the same rules."""
    try:
        return Tune.model_validate({**section.model_dump(), **overrides})
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        raise BadInput(
            f"tune.{key} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}",
            code="bad-setting",
        ) from None


def _on_other_data(experiment: Experiment, data: str) -> Experiment:
    """Return the experiment on another data set. A file keeps the experiment's columns; a set of the catalog has its own."""
    values = experiment.model_dump(mode="json", exclude_unset=True)
    if data in CATALOG:
        preparation = experiment.data.model_dump(mode="json", include=set(_PREPARATION))
        values["data"] = {**preparation, "name": data}
    elif plugins.is_path(data) or Path(data).is_file():
        full = experiment.resolved()
        preparation = full.data.model_dump(mode="json", exclude={"name", "table", "query", "sha256"})
        is_loader = plugins.is_path(data)
        values["data"] = {
            **preparation,
            "name": data if is_loader else None,
            "table": None if is_loader else str(Path(data).resolve()),
        }
        values["split"] = full.split.model_dump(mode="json")
    else:
        hint = nearest(data, CATALOG)
        raise BadInput(f"--data {data}: no such set, file or module:function; {hint}", code="unknown-data-set")
    return Experiment.parse(values, where=f"--data {data}")


def _name_memory_rows(experiment: Experiment, table: Any) -> Experiment:
    """Return the experiment with data.table set for rows in memory, where it names no data."""
    unnamed = experiment.data.name is None and experiment.data.table is None
    return experiment.with_settings([f"data.table='{DATA_FRAME}'"]) if unnamed and table is not None else experiment


def _first_fold(experiment: Experiment) -> Experiment:
    """Set the first fold where whole hospitals are held out in turn."""
    folds = experiment.split.scheme in ("group-kfold", "leave-one-site-out")
    return experiment.with_settings(["split.fold=0"]) if folds and experiment.split.fold else experiment


def _skip_reports(experiment: Experiment, space: Space) -> Experiment:
    """Switch off what does not change a trial's model: metrics and explanations of rounds."""
    out = ["explain.every=0"]
    if experiment.resolved().method.weigh.rule != "explanations":
        out.append("explain.sketch=none")
    if not experiment.train.early_stop and _EARLY_STOP not in space:
        out.append("evaluation.every=1000000")
    return experiment.with_settings(out)


def _release(lock: Checkpoint, folder: Path) -> None:
    """Unlock the folder; remove it where no search was started."""
    if not (folder / FILE).exists():
        (lock.folder / "lock").unlink(missing_ok=True)
        for path in (lock.folder, folder):
            if not any(path.iterdir()):
                path.rmdir()
    lock.unlock()


def _lock(folder: Path) -> Checkpoint:
    """Lock the folder, so that two searches do not mix."""
    lock = Checkpoint(folder / RUNS)
    try:
        lock.folder.mkdir(parents=True, exist_ok=True)
        lock.lock()
    except OSError as e:
        raise BadInput(
            f"cannot use {folder}: {e.strerror or e}; choose another --out", code="folder-not-writable"
        ) from None
    return lock
