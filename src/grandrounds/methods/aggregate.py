"""Aggregation: weigh the answers of a round, group them into cohorts, apply a robust rule, and average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.records import Decision, Stage
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.cohorts import WEIGHTS as COHORT_WEIGHTS
from grandrounds.methods.cohorts import CohortAssignment, assign_cohorts, cohort_consistency, cohort_shares
from grandrounds.methods.robust import RobustResult, RobustRule, aggregate_robust
from grandrounds.methods.robust_kernels import model_updates, update_norms
from grandrounds.methods.select import Selection
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Method, Server


@dataclass(frozen=True)
class Aggregation:
    """The aggregate of a round's answers, with the weight of each site and its justification."""

    assignment: ModelAssignment
    sites: tuple[str, ...]
    weights: Array
    signals: Mapping[str, Mapping[str, float]]
    stages: tuple[Stage, ...]
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    cohorts: Mapping[str, object] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attributions: Mapping[str, float] = field(default_factory=dict)

    @property
    def model(self) -> Array:
        return self.assignment.model

    def decision(self, selection: Selection, regularizer: str = "") -> Decision:
        """Build the Decision of the round.

        Args:
            selection: The selected sites and the reason.
            regularizer: Description of the local regularizer; empty for none.
        """
        first = [Stage("select", selection.why)] if selection.why else []
        last = [Stage("stability", regularizer)] if regularizer else []
        words = [s.why for s in self.stages if s.part != "weigh" or len(self.stages) == 1 or self.shares]
        return Decision(
            signals={**self.signals, **selection.signals},
            weights=dict(zip(self.sites, self.weights.tolist(), strict=True)),
            why="; ".join(w for w in (*words, selection.why) if w),
            shares=self.shares,
            stages=(*first, *self.stages, *last),
            cohorts=self.cohorts,
            reasons=self.attributions,
            notes=self.notes,
        )


def aggregate(
    server: Server, answers: Answers, method: Method, weighting: WeightingResult | None = None
) -> Aggregation:
    """Aggregate the answers of a round into one model, or one for each cohort.

    Args:
        server: The state of the round.
        answers: Answers to a training Ask, with `model` and `count`.
        method: The method, whose settings name the rules of weighting, cohorts and robustness.
        weighting: Weights of the answers, if already known.

    Returns:
        The aggregate, with the weights of sites and the text for the Decision.

    Raises:
        RunFailed: The robust rule cannot be applied, for instance to too few answers.
    """
    settings = method.settings
    cut = shorten_updates(answers, _starting_models(server, answers), settings.robust.guard)
    groups = assign_cohorts(settings.cohorts, server, answers)
    within = groups.labels if groups is not None and settings.cohorts.consensus == "cohort" else None
    weighting = weigh(settings.weigh, server, answers, within) if weighting is None else weighting
    case = _RoundAggregator(server, answers, method, weighting, _starting_models(server, answers))
    served, weights, stages, signals, notes = case.aggregate_all() if groups is None else case.aggregate_cohorts(groups)
    cohorts, remembered = ({}, {}) if groups is None else _describe_cohorts(server, answers, groups)
    count = {"data_size": answers.by_site("count")}
    return Aggregation(
        served,
        answers.sites,
        weights,
        weighting.merge_signals({**count, **_name_signals(answers, {**weighting.signals, **signals})}),
        (Stage("weigh", weighting.why, _name_weights(answers, weighting.weights)), *stages),
        _name_signals(answers, _rescale_shares(weighting, weights)),
        cohorts,
        {**weighting.memory, **case.memory, **remembered},
        (*weighting.notes, *notes, *cut),
        weighting.attributions,
    )


def shorten_updates(answers: Answers, start: Array, guard: float) -> list[str]:
    """Clip updates longer than `guard` times the median norm of the round, in place, with their control variates.

    Otherwise one update that is a million times too long would dominate the model. The lower median is used, so that with two
    sites it is the honest one's. Trees have no norm; in secure sums `privacy.secure_range` is the bound.

    Args:
        answers: Answers to a training Ask.
        start: The model that sites started from, (P,), or one per site, (K, P).
        guard: `method.robust.guard`; 0 clips nothing.

    Returns:
        A note for each site whose update was clipped.
    """
    models = answers["model"] if guard else None
    if not isinstance(models, np.ndarray) or models.ndim != 2 or len(models) < 2:
        return []
    length = update_norms(model_updates(models, np.arange(len(models)), start))
    longest = guard * float(np.sort(length)[(len(length) - 1) // 2])
    long = np.flatnonzero(length > longest) if longest > 0 else np.empty(0, int)
    columns = answers.columns
    scale = longest / length[long]
    begun = start if start.ndim == 1 else start[long]
    if len(long):
        columns["model"] = np.array(models)
        columns["model"][long] = begun + (scale[:, None] * (models[long] - begun)).astype(models.dtype)
    if len(long) and "variate" in columns:
        variates = np.array(columns["variate"])
        variates[long] *= scale[:, None].astype(variates.dtype)
        columns["variate"] = variates
    return [
        f"{answers.sites[k]}: its update was {length[k] / longest * guard:.3g} times as long as the median of the round and "
        f"was cut to {guard:g} times (method.robust.guard)"
        for k in long.tolist()
    ]


@dataclass
class _RoundAggregator:
    """Aggregate one round's answers, given their weights."""

    server: Server
    answers: Answers
    method: Method
    weighting: WeightingResult
    start: Array  # the model that sites started from, (P,), or one per site, (K, P)
    memory: dict[str, Array] = field(default_factory=dict)

    Result = tuple[ModelAssignment, Array, list[Stage], dict[str, Array], tuple[str, ...]]

    def aggregate_all(self) -> Result:
        """Aggregate all answers into one model."""
        rule = self.method.settings.robust.rule
        if rule == "none":
            return ModelAssignment(self.server.combine(self.answers, self.weighting.weights)), self.weighting.weights, [], {}, ()
        try:
            verdict = self._apply_robust_rule(np.arange(len(self.answers)), self.server.model)
        except BadInput as e:  # too few answers, or a reference update that diverged
            raise RunFailed(f"round {self.server.round}: {e}", code=e.code) from None
        stage = Stage("robust", verdict.why, _name_weights(self.answers, verdict.weights))
        model = self.server.model + verdict.update
        return ModelAssignment(model), verdict.weights, [stage], dict(verdict.signals), ()

    def aggregate_cohorts(self, groups: CohortAssignment) -> Result:
        """Aggregate each cohort into one model (eq. 10), then the cohorts into one (eq. 11) unless they keep their own."""
        settings, answers = self.method.settings, self.answers
        each = cohort_shares(settings.cohorts.weight, groups.labels, self.weighting.weights, np.asarray(answers["count"]))
        before = self.server.assignment.models if self.server.assignment is not None else None
        models = [self.server.model] * groups.count if before is None else list(before)
        first, weights = np.zeros(len(answers)), np.zeros(len(answers))
        signals: dict[str, Array] = {}
        notes: list[str] = []
        for c in range(groups.count):
            members = np.flatnonzero(groups.labels == c)
            if len(members):
                inner = self._cohort_weights(members)
                first[members] = each[c] * inner
                models[c], inner, cohort_signals, cohort_notes = self._aggregate_cohort(members, c, models[c], inner)
                weights[members] = each[c] * inner
                notes += cohort_notes
                for name, values in cohort_signals.items():
                    signals.setdefault(name, np.full(len(answers), np.nan))[members] = values
        weights = weights / weights.sum() if weights.any() else weights
        why = f"{groups.why}; a cohort's weight is {COHORT_WEIGHTS[settings.cohorts.weight]}"
        stages = [Stage("cohorts", why, _name_weights(answers, first))]
        if settings.robust.rule != "none":
            stages.append(
                Stage("robust", f"'{settings.robust.rule}' was applied to each cohort separately", _name_weights(answers,
                weights))
            )
        if settings.robust.rule == "none":
            mean = self.server.combine(answers, weights)
        else:
            mean = average(np.stack([models[c] for c in range(groups.count)]), _present_shares(each, groups))
        if settings.cohorts.models == "combined":
            return ModelAssignment(mean), weights, stages, signals, tuple(notes)
        previous = dict(self.server.assignment.index_by_site) if self.server.assignment is not None else {}
        index = {**previous, **dict(zip(answers.sites, groups.labels.tolist(), strict=True))}
        return ModelAssignment(mean, np.stack(models), index), weights, stages, signals, tuple(notes)

    def _cohort_weights(self, members: Array) -> Array:
        """Normalise the weights of one cohort's sites to sum to 1."""
        weights = self.weighting.weights[members]
        out: Array = weights / weights.sum() if weights.any() else np.full(len(members), 1 / len(members))
        return out

    def _aggregate_cohort(
        self, members: Array, c: int, start: Array, inner: Array
    ) -> tuple[Array, Array, dict[str, Array], list[str]]:
        """Aggregate one cohort: its model, its sites' weights, the signals of the robust rule, and notes.

        `start`: the cohort's model before; `inner`: its sites' weights before the robust rule.
        """
        rule, answers = self.method.settings.robust.rule, self.answers.only(members, {})
        if rule == "none":
            return self.server.combine(answers, inner), inner, {}, []
        try:
            verdict = self._apply_robust_rule(members, start)
        except BadInput as e:  # too few answers, or a reference update that diverged
            note = f"cohort {c + 1} is the weighted mean of its answers, not '{rule}': {e}"
            return self.server.combine(answers, inner), inner, {}, [note]
        model = with_batchnorm_statistics(self.server, start + verdict.update, answers, verdict.weights)
        return model, verdict.weights, dict(verdict.signals), []

    def _apply_robust_rule(self, members: Array, begun: Array) -> RobustResult:
        """Apply the robust rule to the updates of some answers; `begun` is the model to update."""
        r = self.method.settings.robust
        start = self.start if self.start.ndim == 1 else self.start[members]
        updates = model_updates(self.answers["model"], members, start)
        history = self._update_history(members, updates) if r.rule == "foolsgold" else None
        rule = RobustRule(r.rule, attackers=r.attackers, keep=r.keep, trim=r.trim, norm=r.norm)
        root = self._reference_update(begun) if r.rule == "fltrust" else None
        weights = self.weighting.weights[members]
        weights = weights if len(members) == len(self.answers) else weights / max(weights.sum(), 1e-300)
        return aggregate_robust(updates, weights, rule, root=root, history=history)

    def _reference_update(self, start: Array) -> Array:
        """Train the model on the server's reference rows for FLTrust, without local regularisation, and return the update."""
        assert self.server.reference is not None
        work = self.method.train_config(replace(self.server, private=None))  # reference rows are not protected patients
        return self.server.reference.train(start, work) - start

    def _update_history(self, members: Array, updates: Array) -> Array:
        """Return the sum of these sites' updates so far, (m, P), and store that of all sites."""
        server = self.server
        place = {s: k for k, s in enumerate(server.sites)}
        nothing = np.zeros((len(server.sites), len(server.model)), server.model.dtype)
        history = self.memory.get("history", server.state.get("history", nothing)).copy()
        rows = [place[self.answers.sites[k]] for k in members]
        history[rows] += updates[:, :]
        self.memory["history"] = history
        out: Array = history[rows]
        return out


def with_batchnorm_statistics(server: Server, model: Array, answers: Answers, weights: Array) -> Array:
    """Set BatchNorm's statistics to the mean of the answers': a server step beyond it could make a variance negative."""
    if not server.statistics or not weights.any():
        return model
    out, statistics = model.copy(), slice(-server.statistics, None)
    if "model" in answers.totals:  # the server knows only their mean
        out[statistics] = answers.totals["model"][statistics]
    else:
        out[statistics] = average(np.asarray(answers["model"])[:, statistics], weights / weights.sum())
    return out


def _starting_models(server: Server, answers: Answers) -> Array:
    """Return the model that sites started from, (P,); one row per site, (K, P), if cohorts keep their own models."""
    if server.assignment is None or server.assignment.models is None:
        return server.model
    return np.stack([server.assignment.for_site(s) for s in answers.sites])


def _present_shares(each: Array, groups: CohortAssignment) -> Array:
    present = np.bincount(groups.labels, minlength=len(each)) > 0
    out: Array = np.where(present, each, 0.0) / each[present].sum()
    return out


def _describe_cohorts(server: Server, answers: Answers, groups: CohortAssignment) -> tuple[dict[str, object], dict[str, Array]]:
    """Describe the cohorts for the Decision, and return the labels to remember.

    Only the previous round is stored: cohorts are numbered anew each round, so numbers of two rounds do not match.
    """
    now = dict(zip(answers.sites, groups.labels.tolist(), strict=True))
    previous = server.state.get("cohorts", np.full(len(server.sites), -1))
    before = {s: int(c) for s, c in zip(server.sites, previous, strict=True) if c >= 0}
    labels = np.array([now.get(s, -1) for s in server.sites], np.int64)
    stored_models = 0 if server.assignment is None or server.assignment.models is None else len(server.assignment.models)
    cohorts = {
        "of": {s: c + 1 for s, c in now.items()},
        "count": max(groups.count, stored_models),
        "silhouette": groups.silhouette,
        "consistency": cohort_consistency(before, now),
    }
    return cohorts, {"cohorts": labels}


def _rescale_shares(weighting: WeightingResult, weights: Array) -> dict[str, Array]:
    """Rescale each signal's contribution to the final weights, in the proportions of the blend."""
    total = np.maximum(weighting.weights, 1e-300)
    return {name: np.where(weighting.weights > 0, part / total, 0.0) * weights for name, part in weighting.shares.items()}


def _name_weights(answers: Answers, weights: Array) -> dict[str, float]:
    return dict(zip(answers.sites, weights.tolist(), strict=True))


def _name_signals(answers: Answers, signals: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    return {name: _name_weights(answers, values) for name, values in signals.items()}
