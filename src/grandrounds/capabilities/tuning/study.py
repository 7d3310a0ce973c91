"""The study on disk, with all trials. Optuna stores it in study.db, and its TPE sampler proposes trials.

The random numbers of a proposal follow from the seed and the number of the trial. So an interrupted search continues with the
same proposals, and the same seed and number of jobs repeat a search.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.capabilities.tuning.space import Space, Value
from grandrounds.capabilities.tuning.trial import Goal, Outcome, Trial
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.core.rng import generator

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

FILE = "study.db"
_NAME = "tuning"
_MIN_TRIALS = 8  # least trials for the importance of settings


def require_optuna() -> None:
    """Raise with the install command where Optuna is missing."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise BadInput(
            f"tuning needs Optuna, which is not installed; {install_extra('baselines')}",
            code="missing-package",
        )


class Study:
    """The trials of one folder."""

    def __init__(
        self, study: optuna.Study, space: Space, initial: Mapping[str, Value], *, goal: Goal, seed: int, parallel: bool
    ) -> None:
        self._study, self._space, self._own, self._goal = study, space, initial, goal
        self._seed, self._parallel = seed, parallel

    @classmethod
    def open(
        cls,
        folder: Path,
        space: Space,
        initial: Mapping[str, Value],
        *,
        goal: Goal,
        seed: int,
        parallel: bool,
        digest: str,
    ) -> Study:
        """Return the folder's study, or a new one whose first trial is the experiment as it is: its `initial` values.

        A study of another search (`digest`) is refused, unless none of its trials has ended: then a new one replaces it.
        """
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        file = folder / FILE

        def load() -> optuna.Study:
            return optuna.create_study(
                storage=f"sqlite:///{file}", study_name=_NAME, direction=goal.direction, load_if_exists=True
            )

        try:
            stored = load()
            before = stored.user_attrs.get("digest", digest)
            if before != digest and not _ended_trials(stored):
                optuna.delete_study(study_name=_NAME, storage=f"sqlite:///{file}")
                stored, before = load(), digest
            if before == digest and not stored.trials:
                stored.set_user_attr("digest", digest)
                stored.enqueue_trial({name: space[name].stored(initial[name]) for name in _names_within(space, initial)})
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as e:
            reason = str(getattr(e, "orig", e) or e)
            raise BadInput(f"cannot use {file} ({reason}): remove it, or choose another --out", code="damaged-file") from None
        if before != digest:
            raise BadInput(
                f"{folder} holds the search of another experiment, space or metric: choose another --out",
                code="another-search",
            )
        return cls(stored, space, initial, goal=goal, seed=seed, parallel=parallel)

    def ended(self) -> list[Trial]:
        """Return the trials that have ended, in their order."""
        return [_read_trial(t) for t in _ended_trials(self._study)]

    def begun(self) -> dict[int, dict[str, Value]]:
        """Return the trials that an earlier, interrupted process started and did not end."""
        from optuna.trial import Trial as Ongoing
        from optuna.trial import TrialState

        out = {}
        for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            out[t.number] = t.user_attrs.get("settings") or self._suggest(Ongoing(self._study, t._trial_id))
        return out

    def ask(self) -> tuple[int, dict[str, Value]]:
        """Return the next trial: its number and its settings."""
        trial = self._study.ask()
        return trial.number, self._suggest(trial)

    def tell(self, number: int, outcome: Outcome, *, same_as: int | None = None) -> None:
        """Store the outcome of a trial; one without a value counts as the worst."""
        from optuna.trial import Trial as Ongoing

        [stored] = [t for t in self._study.get_trials(deepcopy=False) if t.number == number]
        trial = Ongoing(self._study, stored._trial_id)
        facts = {"failed": outcome.failed, "seconds": outcome.seconds, "privacy": dict(outcome.privacy)}
        for key, fact in {**facts, "same_as": same_as}.items():
            trial.set_user_attr(key, fact)
        self._study.tell(trial, self._goal.worst if outcome.value is None else outcome.value)

    def importance(self) -> dict[str, float]:
        """Compute the share of the variation between trials that each setting accounts for; empty where it is unknown."""
        import optuna

        if len(self._space) < 2 or sum(not t.failed for t in self.ended()) < _MIN_TRIALS:
            return {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importances = optuna.importance.get_param_importances(self._study, params=list(self._space))
        except (ValueError, RuntimeError, ZeroDivisionError):  # all trials have the same value
            return {}
        return {name: float(v) for name, v in sorted(importances.items(), key=lambda item: -item[1]) if v == v}

    def _suggest(self, trial: optuna.Trial) -> dict[str, Value]:
        self._study.sampler = self._sampler(trial.number)
        names = self._space if trial.number else _names_within(self._space, self._own)
        settings = {name: self._space[name].suggest(trial, name) for name in names}
        if trial.number == 0:
            settings = dict(self._own)  # exact values, also those outside the space
        trial.set_user_attr("settings", settings)
        return settings

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        import optuna

        seed = int(generator(self._seed, purpose="tuning", round=number).integers(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, constant_liar=self._parallel)


def _names_within(space: Space, values: Mapping[str, Value]) -> list[str]:
    """Return the settings whose current value is in the space."""
    return [name for name, value in values.items() if space[name].stored(value) is not None]


def _ended_trials(study: optuna.Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _read_trial(t: FrozenTrial) -> Trial:
    facts = t.user_attrs
    value = None if facts["failed"] else t.value
    outcome = Outcome(value, facts["failed"], facts["seconds"], facts["privacy"])
    return Trial(t.number, facts["settings"], outcome, facts["same_as"])
