"""Search loop: each trial is a run in its own process, scored on validation rows."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.capabilities.tuning.privacy_cost import read_releases
from grandrounds.capabilities.tuning.rows import PlanTable, TrialRows
from grandrounds.capabilities.tuning.space import Space, Value, with_values
from grandrounds.capabilities.tuning.study import Study
from grandrounds.capabilities.tuning.trial import Goal, Outcome, Trial
from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.metrics.names import metric_label
from grandrounds.runs.batch import run_all
from grandrounds.runs.run import Run

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

RUNS = "trials"

ProgressCallback = Callable[[str, int, int], None]
"""Called with a sentence, the number of ended trials and the total."""


def search(
    study: Study,
    experiment: Experiment,
    rows: TrialRows,
    folder: Path,
    *,
    goal: Goal,
    trials: int,
    jobs: int,
    progress: ProgressCallback,
) -> tuple[Trial, ...]:
    """Try settings until so many trials have ended, `jobs` at a time; trials of an earlier process count.

    The study receives a batch in the order of its trials, so the next proposals do not depend on their speed.
    """
    _clean_trials(folder, study.begun())
    ended = study.ended()
    progress("", len(ended), trials)
    while len(ended) < trials:
        batch = study.begun()
        while len(batch) < min(jobs, trials - len(ended)):
            number, settings = study.ask()
            batch[number] = settings
        trial_by_settings = {_settings_key(t.settings): t for t in reversed(ended) if t.same_as is None}
        repeated = {n: trial_by_settings[_settings_key(s)] for n, s in batch.items() if _settings_key(s) in trial_by_settings}
        fresh = {n: s for n, s in batch.items() if n not in repeated}
        batch_run = _Batch(experiment, rows, folder, goal=goal, tell=_report_trials(progress, ended, trials, goal))
        outcomes = batch_run.run(fresh, jobs=jobs, strict=all(t.failed for t in ended))
        for n in sorted(batch):
            if n in repeated:
                study.tell(n, repeated[n].outcome, same_as=repeated[n].number)
            else:
                study.tell(n, outcomes[n])
                shutil.rmtree(folder / RUNS / _trial_name(n), ignore_errors=True)
        ended = study.ended()
        progress("", len(ended), trials)
    return tuple(ended)


def trial_plan(experiment: Experiment, settings: Mapping[str, Value], rows: TrialRows) -> PlanTable:
    """Return the plan of one trial."""
    plan = rows.plan(with_values(experiment, settings).plan())
    for key in ("table", "pictures", "masks"):  # a trial runs in another folder
        path = plan["data"][key]
        if path is not None and "://" not in path and path != "strokes":
            plan["data"][key] = str(Path(path).resolve())
    return plan


def search_digest(experiment: Experiment, rows: Mapping[str, float], space: Space, goal: Goal) -> str:
    """Hash the identity of a search: another experiment, share of rows, space or metric is another search."""
    sought = {name: s.to_dict() for name, s in space.items()}
    content = {"plan": experiment.plan(), "rows": dict(rows), "space": sought, "goal": [goal.metric, goal.direction]}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class _Batch:
    """Trials that run at once. A failed or refused trial is an outcome too."""

    def __init__(
        self, experiment: Experiment, rows: TrialRows, folder: Path, *, goal: Goal, tell: Callable[[int, Outcome], None]
    ) -> None:
        self._experiment, self._rows, self._folder, self._goal, self._tell = experiment, rows, folder, goal, tell
        self._numbers: dict[str, int] = {}
        self._outcomes: dict[int, Outcome] = {}

    def run(self, settings: Mapping[int, Mapping[str, Value]], *, jobs: int, strict: bool) -> dict[int, Outcome]:
        """Return the outcome of each trial. `strict`: no trial has succeeded yet, so a refusal is an error of the experiment."""
        self._numbers = {_trial_name(n): n for n in settings}
        plans: dict[str, PlanTable] = {}
        for name, n in self._numbers.items():
            try:
                plans[name] = trial_plan(self._experiment, settings[n], self._rows)
            except BadInput as e:  # values that are valid alone and not together
                self._failed(name, e)
        while plans:
            try:
                run_all(plans, self._folder / RUNS, jobs=jobs, progress=self._ended, failed=self._failed)
                break
            except BadInput as e:
                name = str(e).partition(":")[0]
                if name not in plans or strict:
                    raise BadInput(str(e).removeprefix(f"{name}: "), code=e.code) from None
                self._failed(name, e)
                del plans[name]  # the others continue; ended ones are read again
        return self._outcomes

    def _ended(self, name: str, run: Run) -> None:
        self._over(name, _read(run, self._goal, self._rows.part))

    def _failed(self, name: str, error: GrandRoundsError) -> None:
        """Record a failed trial, with its releases before the failure."""
        folder = self._folder / RUNS / name
        privacy = read_releases(Run(folder)) if (folder / "checkpoint" / "plan.json").exists() else {}
        self._over(name, Outcome(None, str(error).removeprefix(f"{name}: "), privacy=privacy))

    def _over(self, name: str, outcome: Outcome) -> None:
        number = self._numbers[name]
        if number not in self._outcomes:
            self._outcomes[number] = outcome
            self._tell(number, outcome)


def _read(run: Run, goal: Goal, part: str) -> Outcome:
    """Return the score of a finished run on rows that are not test rows of the experiment (`TrialRows`)."""
    summary = run.summary
    value = summary[part].get(goal.metric)
    seconds, privacy = float(summary["cost"]["seconds"]), read_releases(run)
    if value is None or not math.isfinite(value):
        rows = int(summary[part].get("count") or 0)
        why = f"{metric_label(goal.metric)} of {rows} validation rows is not a number"
        return Outcome(None, why, seconds, privacy)
    return Outcome(float(value), "", seconds, privacy)


def _clean_trials(folder: Path, numbers: Collection[int]) -> None:
    """Keep runs of started trials, and remove those of an abandoned search.

    A killed search may leave a trial that still runs in its own process.
    """
    for n in numbers:
        if Checkpoint(folder / RUNS / _trial_name(n) / "checkpoint").is_locked():
            raise BadInput(
                f"trial {n} in {folder} is still being run by a process of its own: wait for it",
                code="folder-in-use",
            )
    for path in (folder / RUNS).glob("trial-*"):
        if path.name not in {_trial_name(n) for n in numbers}:
            shutil.rmtree(path, ignore_errors=True)


def _report_trials(progress: ProgressCallback, ended: Sequence[Trial], trials: int, goal: Goal) -> Callable[[int, Outcome], None]:
    """Return a function that reports how each trial ended, and the best so far."""
    values = [t.value for t in ended if t.value is not None]
    count = len(ended)

    def tell(number: int, outcome: Outcome) -> None:
        nonlocal count
        count += 1
        if outcome.value is None:
            progress(f"trial {number} failed: {outcome.failed}", count, trials)
            return
        values.append(outcome.value)
        best = min(values, key=goal.rank)
        progress(f"trial {number}: {metric_label(goal.metric)} {outcome.value:.4f} (best {best:.4f})", count, trials)

    return tell


def _settings_key(settings: Mapping[str, Value]) -> str:
    return json.dumps(settings, sort_keys=True)


def _trial_name(number: int) -> str:
    return f"trial-{number:04d}"
