"""Images scored one by one by a finished model: the predicted class, the heat, and the share of heat on the object.

XFed's Fig. 1 lists the images that are right for the wrong reason; its Fig. 2 shows their heat inside and outside the mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.cases.image_page import Panel, Strip, colour_map, cover_outside, draw, to_display
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name, watched_rows
from grandrounds.data.images import ImageSet, usable_masks
from grandrounds.data.sets.images import SCORING_SETS
from grandrounds.explain.rationale import ImageScores, RationaleRule, baselines, score_images
from grandrounds.methods.xfed.checks import selects_by_explanations
from grandrounds.models.dense import class_probabilities
from grandrounds.runs.run_rows import RunRows

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

ANSWERS = {True: "right answer", False: "wrong answer"}
REASONS = {True: "right reason", False: "wrong reason"}


@dataclass(frozen=True, eq=False)
class ScoredImage:
    """One image with its prediction and its heat map."""

    number: int  # in its set, from 0
    truth: str
    predicted: str
    probability: float  # of the predicted class
    right: bool  # called what it is
    ratio: float | None  # IoU-ratio r, infinite without any heat outside; None where the mask is empty or full
    reason: bool | None  # whether r says that heat is drawn to the mask
    in_mask: float | None
    iou: float | None
    masked_right: bool | None  # still called right from the inside of the mask alone
    grid: float | None  # 1 where the net finds it in a scene among others; None without scenes
    pixels: Array  # (H, W, C) bytes
    mask: Array  # (H, W)
    heat: Array  # (H, W), of the true class, at least 0

    @property
    def description(self) -> str:
        """The label, the prediction, and whether answer and reason are right."""
        why = "" if self.reason is None else f", {REASONS[self.reason]}"
        return f"{self.headline}: {ANSWERS[self.right]}{why}"

    @property
    def headline(self) -> str:
        """The label, the prediction and the IoU-ratio."""
        ratio = "its mask is empty or full" if self.ratio is None else f"r = {self.ratio:.2f}"
        return f"{self.truth}, called {self.predicted} ({self.probability:.2f}), {ratio}"

    def to_dict(self) -> dict[str, object]:
        """Return all but the images, as plain JSON; an infinite r is null."""
        arrays = ("pixels", "mask", "heat")
        return dict(plain({name: value for name, value in vars(self).items() if name not in arrays}))


@dataclass(frozen=True, eq=False)
class RationaleReport:
    """All images of a scoring set as a finished net sees them, and the baselines of its scores."""

    run: str
    scoring_set: str
    rule: RationaleRule
    images: tuple[ScoredImage, ...]
    figures: Mapping[str, float | int]
    baselines: Mapping[str, Mapping[str, float]]

    def select(self, *, right: bool, reason: bool) -> list[ScoredImage]:
        """Select the images by answer and rationale, the clearest first: for wrong rationales the smallest r."""
        images = [p for p in self.images if p.right is right and p.reason is reason]
        return sorted(images, key=lambda p: p.ratio or 0.0, reverse=reason)

    @property
    def table(self) -> dict[str, dict[str, int]]:
        """Counts by answer and reason; images with an unusable mask are in none."""
        return {
            answer: {why: len(self.select(right=right, reason=reason)) for reason, why in REASONS.items()}
            for right, answer in ANSWERS.items()
        }

    def to_dict(self) -> dict[str, object]:
        """Return all but the images, as plain JSON."""
        return dict(
            plain(
                {
                    "run": self.run,
                    "on": self.scoring_set,
                    "rule": vars(self.rule),
                    "reasons": self.figures,
                    "baselines": self.baselines,
                    "table": self.table,
                    "right_for_the_wrong_reason": [p.number for p in self.select(right=True, reason=False)],
                    "wrong_for_the_right_reason": [p.number for p in self.select(right=False, reason=True)],
                    "pictures": [p.to_dict() for p in self.images],
                }
            )
        )


def score_run_images(run: Run, *, scoring_set: str | None = None, data: Any = None) -> list[ScoredImage]:
    """Score the images of a set with the model of a finished run; see `evaluate_rationale`."""
    data_set = _load_scoring_set(run, scoring_set, data)
    return list(_score_each(data_set, data_set.scored()))


def evaluate_rationale(run: Run, *, scoring_set: str | None = None, data: Any = None) -> RationaleReport:
    """Score images with a run's model, with means and baselines, by the rule of its [method.xfed].

    Args:
        run: A finished run of images.
        scoring_set: A reference set of the run or a scoring set of the catalog; by default the one that the run was scored on.
        data: The run's own rows, where they came from memory.

    Raises:
        BadInput: The model is a table's, or the set has no usable masks or other classes.
    """
    data_set = _load_scoring_set(run, scoring_set, data)
    result = data_set.scored()
    compared = baselines(data_set.net, data_set.theta, data_set.x, data_set.y, data_set.images.masks, data_set.rule)
    records = tuple(_score_each(data_set, result))
    return RationaleReport(run.folder.resolve().name, data_set.name, data_set.rule, records, result.figures(), compared)


@dataclass(frozen=True, eq=False)
class _ScoringSet:
    """A net and the images that it is scored on."""

    name: str
    images: ImageSet
    net: Any
    theta: Array
    x: Array
    y: Array
    classes: tuple[str, ...]
    rule: RationaleRule

    def scored(self) -> ImageScores:
        return score_images(self.rule, self.net, self.theta, self.x, self.y, self.images.masks)


def _load_scoring_set(run: Run, scoring_set: str | None, data: Any) -> _ScoringSet:
    plan, model = Plan(run.plan), run.model
    if model.schema is not None:
        raise BadInput(f"{run.folder} has a table's model: only image networks have heat maps", code="model-of-table")
    if plan.tasks.plain():
        raise BadInput(
            f"{run.folder} has several tasks, and scoring images are of one: nothing to show", code="several-tasks"
        )
    name = _choose_set(plan, scoring_set)
    images = _read_images(run, plan, name, data)
    if images.masks is None or not usable_masks(images.masks).any():
        examples = ", ".join(SCORING_SETS)
        raise BadInput(
            f"the images of '{name}' have no truth masks: name a set that has some with --on (such as {examples}), "
            "or set data.masks",
            code="no-truth-masks",
        )
    encoding: Any = model.encoding
    unknown = sorted(set(images.label.tolist()) - set(encoding.classes))
    if unknown:
        raise BadInput(
            f"the images of '{name}' show '{unknown[0]}', which the model does not know: name another set",
            code="unknown-class",
        )
    x = encoding.encode(images, model.theta.dtype)
    y = np.array([encoding.classes.index(word) for word in images.label], np.int64)
    rule = RationaleRule.from_settings(plan.seed, plan.method.xfed)
    return _ScoringSet(name, images, model.net, model.theta, x, y, encoding.classes, rule)


def _choose_set(plan: Plan, scoring_set: str | None) -> str:
    """Choose the scoring set: the one named, else the one that the run was scored on."""
    names = (*plan.reference.plain(), *SCORING_SETS)
    if scoring_set is not None and scoring_set not in names:
        raise BadInput(f"no scoring images '{scoring_set}'; {nearest(scoring_set, names)}", code="unknown-scoring-set")
    chosen = reference_name(plan) if selects_by_explanations(plan) else None
    name = scoring_set or watched_rows(plan) or chosen
    if name is None:
        raise BadInput(
            f"this run was not scored on images: name a set with --on ({', '.join(names)})", code="no-scoring-set"
        )
    return name


def _read_images(run: Run, plan: Plan, name: str, data: Any) -> ImageSet:
    """Read the images: a catalog set alone; the consortium's own rows, or marks in either, need all of its data."""
    settings = plan.reference.plain().get(name, {"source": name})
    source = settings.get("source")
    marked = name in plan.reference.plain() and any(a.get("reference") for a in plan.plain()["attacks"])
    if source is not None and not marked:
        images: ImageSet = SCORING_SETS[source]["load"]()
        return images
    consortium = RunRows.read(run, data).consortium
    drawn = consortium.reference[name].select_from(consortium.data)
    assert isinstance(drawn, ImageSet)
    return drawn


def _score_each(data_set: _ScoringSet, result: ImageScores) -> list[ScoredImage]:
    if result.heated is None or not np.isfinite(result.logits).all():
        raise BadInput(
            "the model's outputs are not finite: its training diverged, so there is nothing to show",
            code="training-diverged",
        )
    assert data_set.images.masks is not None and result.masked_right is not None
    p = class_probabilities(result.logits)
    called = p.argmax(axis=1)
    h = result.heated
    return [
        ScoredImage(
            number=i,
            truth=str(data_set.images.label[i]),
            predicted=data_set.classes[called[i]],
            probability=float(p[i, called[i]]),
            right=bool(result.right[i]),
            ratio=_finite(h.ratio[i]),
            reason=None if np.isnan(h.reason[i]) else bool(h.reason[i]),
            in_mask=_finite(h.in_mask[i]),
            iou=_finite(h.iou[i]),
            masked_right=None if np.isnan(result.masked_right[i]) else bool(result.masked_right[i]),
            grid=None if result.grid is None else _finite(result.grid[i]),
            pixels=data_set.images.pixels[i],
            mask=data_set.images.masks[i],
            heat=h.heat[i],
        )
        for i in range(len(result))
    ]


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


COLUMNS = 5


def rationale_png(report: RationaleReport, *, most: int = 12) -> bytes:
    """Draw the sheet: images that are right for the wrong reason first, then wrong for the right one, then the others."""
    chosen = _choose_images(report, most)
    title = f"{report.run} on {report.scoring_set}: {len(chosen)} of {len(report.images)} images (numbers from 0)"
    return draw(title, [strip(p) for p in chosen], columns=COLUMNS)


def strip(image: ScoredImage) -> Strip:
    """Draw one row of the sheet."""
    hot, mask = heat_colours(image.heat), np.asarray(image.mask, bool)
    panels = (
        Panel("image", to_display(image.pixels)),
        Panel("truth mask", to_display(mask[..., None].astype(np.uint8) * 255)),
        Panel("heat map", to_display(hot)),
        Panel("heat inside", cover_outside(hot, mask)),
        Panel("heat outside", cover_outside(hot, ~mask)),
    )
    return Strip(f"image {image.number}: {image.description}", panels)


def heat_colours(heat: Array) -> Array:
    """Draw heat (H, W) as colours (H, W, 3) of bytes; the hottest pixel of the image is the brightest."""
    size = np.abs(np.asarray(heat, float))
    top = size.max(initial=0)
    out: Array = np.rint(colour_map(size / top if top > 0 else size)).astype(np.uint8)
    return out


def _choose_images(report: RationaleReport, most: int) -> Sequence[ScoredImage]:
    """Choose some images of each kind, as many as there is room for, in the order of the sheet."""
    kinds = [report.select(right=r, reason=w) for r, w in ((True, False), (False, True), (False, False), (True, True))]
    rest = [p for p in report.images if p.reason is None]
    room = max(1, most // len(kinds))
    first = [p for kind in kinds for p in kind[:room]]
    more = [p for kind in [*kinds, rest] for p in kind if p not in first]
    numbers = {p.number for p in [*first, *more][:most]}
    return [p for kind in [*kinds, rest] for p in kind if p.number in numbers]
