"""Scoring models on sites' own rows: the tasks `evaluate`, `score` and `calibrate`.

Sites report a tally (sums and histograms) and figures computed from it, never a score of a patient. A model (P,) is common to
all sites, and all rows go through it at once; models (m, P) are one per site.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.outcome import Outcome
from grandrounds.metrics import LOSS, OutcomeTally, ScoredRows, Tally, scores, tally_outcome
from grandrounds.metrics.within_hospitals import score_sites
from grandrounds.models import Model, losses
from grandrounds.models.losses import CROSS_ENTROPY
from grandrounds.site.attacks import boast, falsify
from grandrounds.site.plugin import Columns, SitePlugin, TrainRequest
from grandrounds.site.stack import Part, Stack

_ROWS = 8192

BY_COLUMN = "_groups"
"""Ending of the reports with tallies by the groups of several columns: `test_groups`."""


def score(model: Model, theta: Array, x: Array) -> Array:
    """Compute logits (n, C) of one model, in blocks of rows that keep memory small. A model that diverged gives infinities."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(x) <= _ROWS or model.kernel == "torch":  # torch uses its own blocks
            return model.logits(theta, x)
        return np.concatenate([model.logits(theta, x[i : i + _ROWS]) for i in range(0, len(x), _ROWS)])


def member_rows(part: Part, members: Array) -> tuple[slice | Array, Array]:
    """Gather the rows of the member sites, in their order, and the position of each row's site among the members."""
    counts = part.counts[members]
    owner = np.repeat(np.arange(len(members)), counts)
    first = int(members[0]) if len(members) else 0
    if np.array_equal(members, np.arange(first, first + len(members))):
        return slice(int(part.offsets[first]), int(part.offsets[first + len(members)])), owner
    ranges = [np.arange(part.offsets[k], part.offsets[k + 1]) for k in members]
    return np.concatenate(ranges), owner


def member_logits(model: Model, stack: Stack, members: Array, theta: Array, part: Part) -> Array:
    """Compute logits of the members' rows, by each site's own model and task if it has them."""
    rows, owner = member_rows(part, members)
    if isinstance(theta, np.ndarray) and theta.ndim == 1:
        logits = score(model, theta, part.x if _all(rows, part) else part.x[rows])
    else:
        cuts = [slice(part.offsets[k], part.offsets[k + 1]) for k in members]
        logits = np.concatenate([score(model, local, part.x[cut]) for local, cut in zip(theta, cuts, strict=True)])
    return logits if stack.penalty is None else logits + stack.penalty[members][owner]


def _all(rows: slice | Array, part: Part) -> bool:
    """Check whether these are all rows: then the part's array is used, which is already on the GPU."""
    return isinstance(rows, slice) and rows.start == 0 and rows.stop == len(part.x)


def evaluate(
    model: Model,
    stack: Stack,
    members: Array,
    theta: Array,
    *,
    parts: Sequence[str],
    groups: int,
    figures: Sequence[str],
    threshold: float,
    boasting: Collection[int] = (),
    apart: Collection[str] = (),
    by_column: Sequence[str] = (),
    sizes: Sequence[int] = (),
    without_model: Collection[int] = (),
) -> Columns:
    """Answer task `evaluate`: the Tally of all members for each part, by subgroup, with a leading axis of one; and the named
    figures of each member's own test rows, (m,). `apart`: reports with a Tally for each member, (m, groups).

    `by_column`: parts that are also tallied by the groups of each column of evaluation.subgroups, `sizes` of which there are.

    Sites numbered in `boasting` inflate their accuracy on validation rows, to simulate attacks. Those in `without_model` deploy
    their most common class, and decide for it at any threshold.
    """
    columns: Columns = {}
    for name in parts:
        part = stack.parts[name]
        rows, owner = member_rows(part, members)
        logits = member_logits(model, stack, members, theta, part)
        if boasting and name == "val":
            logits = boast(logits, part.y[rows], owner=members[owner], liars=boasting)
        scored = _score_rows(stack, part, rows, logits, model, owner)
        if without_model and isinstance(scored, ScoredRows):
            scored = scored.decide_by_half(np.isin(members[owner], list(without_model)), threshold)
        group = np.minimum(part.group[rows], groups - 1)
        total = _tally_members(scored, owner, group, len(members), groups, apart=name in apart)
        columns |= {f"{name}.{field}": array for field, array in total.arrays().items()}
        if name in by_column and part.subgroups is not None:
            for j, size in enumerate(sizes):
                number = part.subgroups[rows, j]
                by_member = f"{name}{BY_COLUMN}" in apart
                total = _tally_members(scored, owner, number, len(members), size, apart=by_member)
                columns |= {f"{name}{BY_COLUMN}.{j}.{field}": array for field, array in total.arrays().items()}
        if figures and name == "test":
            site_scores = score_sites(scored.exact_tally(owner, (len(members),)), threshold=threshold, only=figures)
            columns |= {f"figures.{name}.{figure}": values for figure, values in site_scores.items()}
    return columns


def _tally_members(
    scored: ScoredRows | ScoredOutcomes, owner: Array, group: Array, members: int, groups: int, *, apart: bool
) -> Tally | OutcomeTally:
    """Tally rows by group: one tally of all members with a leading axis of one, or one of each member."""
    return scored.tally(owner * groups + group, (members, groups)) if apart else scored.tally(group, (1, groups))


@dataclass(frozen=True)
class ScoredOutcomes:
    """Rows of an outcome that is not a class, scored once, to be tallied by one grouping or by several."""

    outcome: Outcome
    scores: Array
    y: Array
    time: Array | None
    owner: Array | None = None

    def tally(self, group: Array, lead: tuple[int, ...]) -> OutcomeTally:
        """Return the rows added up by group (n,), numbered over `lead`. Pairs and risk sets are formed within a site."""
        if self.outcome.task != SURVIVAL or self.owner is None:
            return self._tally(group, lead)
        size = int(np.prod(lead, dtype=np.int64))
        cells, cell = np.unique(self.owner * size + group, return_inverse=True)  # a cell is a group of one site
        each = self._tally(cell.reshape(-1), (len(cells),))
        count, sums = np.zeros(size, np.int64), np.zeros((size, each.sums.shape[1]))
        np.add.at(count, cells % size, each.count)
        np.add.at(sums, cells % size, each.sums)
        return replace(each, count=count.reshape(lead), sums=sums.reshape(*lead, sums.shape[1]))

    def exact_tally(self, group: Array, lead: tuple[int, ...]) -> OutcomeTally:
        """Return the same: sums of outcomes are exact."""
        return self.tally(group, lead)

    def _tally(self, group: Array, lead: tuple[int, ...]) -> OutcomeTally:
        o = self.outcome
        y = self.y if o.task == SURVIVAL else o.standardise(self.y)
        return tally_outcome(o.task, self.scores, y, group, lead, time=self.time, scale=o.scale)


def _score_rows(
    stack: Stack, part: Part, rows: slice | Array, logits: Array, model: Model, owner: Array | None = None
) -> ScoredRows | ScoredOutcomes:
    """Score rows of a part by their outcome; `owner` is the site of each row."""
    if stack.outcome is None:
        return ScoredRows.from_logits(logits, part.y[rows], classes=max(2, model.outputs), event=stack.event)
    time = None if part.time is None else part.time[rows]
    return ScoredOutcomes(stack.outcome, logits[:, 0], part.y[rows], time, owner)


def local_figures(model: Model, stack: Stack, members: Array, theta: Any) -> dict[str, Array]:
    """Compute reports `val_loss` and `ece` of a training Ask: each member's own model on its validation rows, (m,); NaN without
    any.

    SSE-AGG's worst-site and calibration signals (eq. 6-7).
    """
    loss = LOSS[CLASSIFICATION if stack.outcome is None else stack.outcome.task]
    site_scores = _apart(model, stack, members, theta, part="val", only=(loss, "ece"))
    return {"val_loss": site_scores[loss], "ece": site_scores.get("ece", np.full(len(members), np.nan))}


def own_figures(model: Model, stack: Stack, members: Array, theta: Any) -> dict[str, Array]:
    """Compute report `local` of a training Ask: accuracy of each member's own model on its own rows, (m,); NaN without any.

    FL-XAI sec. 4.3: the accuracy of each client's model on its training rows, and on its own test rows.
    """
    train, test = (
        _apart(model, stack, members, theta, part=p, only=("accuracy", "log_loss")) for p in ("train", "test")
    )
    return {
        "local.train_accuracy": train["accuracy"],
        "local.train_loss": train["log_loss"],
        "local.test_accuracy": test["accuracy"],
    }


class LocalScores(SitePlugin):
    """Report the accuracy of the models that sites answer with (`evaluation.local_models`), on rows whose scores may be
    disclosed."""

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        if "local" not in request.ask.report:
            return {}
        stack, members = self.site.stack, request.members
        scores = own_figures(
            self.site.prepared_model(), stack.without(self.site.withheld_splits), members, columns["model"]
        )
        return falsify(scores, attacks=stack.attacks_of(members), round=request.config.round)


def lent_scores(
    model: Model, stack: Stack, members: Array, models: Sequence[Any], *, parts: Sequence[str]
) -> dict[str, Array]:
    """Compute report `lent` of task `score`: accuracy of each of M models on each member's rows of a part, (m, M); NaN without
    any.

    FL-XAI sec. 4.9: accuracy on other clients' training data, which are not moved.
    """
    accuracies = {
        part: [_apart(model, stack, members, theta, part=part, only=("accuracy",))["accuracy"] for theta in models]
        for part in parts
    }
    return {f"lent.{part}": np.stack(columns, axis=1) for part, columns in accuracies.items()}


def _apart(
    model: Model, stack: Stack, members: Array, theta: Any, *, part: str, only: Sequence[str]
) -> dict[str, Array]:
    """Compute figures of each member's own rows, (m,), by one model or by its own; NaN without any row."""
    rows_of_part = stack.parts[part]
    rows, owner = member_rows(rows_of_part, members)
    logits = member_logits(model, stack, members, theta, rows_of_part)
    scored = _score_rows(replace(stack, event=1), rows_of_part, rows, logits, model, owner)
    site_scores = scores(scored.exact_tally(owner, (len(members),)), threshold=0.5, only=only)
    return {n: np.where(rows_of_part.counts[members] > 0, site_scores[n], np.nan) for n in only if n in site_scores}


def row_losses(logits: Array, y: Array, outputs: int) -> Array:
    """Compute the log loss of each row: (n,)."""
    if outputs == 1:
        loss: Array = np.logaddexp(0, -logits[:, 0] * (2 * y - 1))
        return loss
    top = logits.max(axis=1)
    spread: Array = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(y)), y]
    return spread


def part_losses(model: Any, logits: Array, part: Part, rows: slice | Array) -> Array:
    """Compute the loss of training of each of these rows of a part, (n,); rows of the Cox loss are those of one site."""
    loss = getattr(model, "loss", CROSS_ENTROPY)
    if loss == CROSS_ENTROPY:
        return row_losses(logits, part.y[rows], model.outputs)
    return losses.row_losses(loss, logits, part.target[rows])


def training_scores(model: Model, stack: Stack, members: Array, models: Array | Sequence[Array]) -> dict[str, Array]:
    """Answer task `score`: mean loss and accuracy of each of M models on the members' training rows, (m, M).

    A model is one for all (P,), or has a form for each member (m, P). Tasks other than classification have no accuracy: 0.
    """
    if stack.outcome is not None:
        return _outcome_losses(model, stack, members, models)
    part = stack.parts["train"]
    rows, owner = member_rows(part, members)
    y, counts = part.y[rows], np.maximum(part.counts[members], 1)
    out = {name: np.zeros((len(members), len(models))) for name in ("losses", "accuracies")}
    for j, theta in enumerate(models):
        logits = member_logits(model, stack, members, theta, part).astype(float)
        right = (logits[:, 0] > 0) == y if model.outputs == 1 else logits.argmax(axis=1) == y
        for name, values in (("losses", row_losses(logits, y, model.outputs)), ("accuracies", right)):
            out[name][:, j] = np.bincount(owner, weights=values, minlength=len(members)) / counts
    return out


def _outcome_losses(
    model: Model, stack: Stack, members: Array, models: Array | Sequence[Array]
) -> dict[str, Array]:
    """Compute mean losses of models on the members' training rows, site by site."""
    part = stack.parts["train"]
    out = np.zeros((len(members), len(models)))
    for j, theta in enumerate(models):
        logits = member_logits(model, stack, members, theta, part)
        ends = np.concatenate([[0], np.cumsum(part.counts[members])])
        for i, k in enumerate(members.tolist()):
            rows = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
            each = part_losses(model, logits[ends[i] : ends[i + 1]], part, rows)
            out[i, j] = each.mean() if len(each) else 0.0
    return {"losses": out, "accuracies": np.zeros_like(out)}


def temperature_losses(model: Model, stack: Stack, members: Array, theta: Array, grid: Array) -> Array:
    """Answer task `calibrate`: each site's summed log loss of logits / T for each T of the grid, (m, len(grid)).

    SSE-AGG eq. 12: the temperature that minimises the total is found without disclosing a logit.
    """
    part = stack.parts["val"]
    rows, owner = member_rows(part, members)
    logits = member_logits(model, stack, members, theta, part).astype(float)
    at_grid = [row_losses(logits / t, part.y[rows], model.outputs) for t in grid]
    return np.stack([np.bincount(owner, weights=loss, minlength=len(members)) for loss in at_grid], axis=1)
