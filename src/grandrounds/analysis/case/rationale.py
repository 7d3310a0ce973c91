"""Images scored one by one by a finished model: the predicted class, the heat, and the share of heat on the object.

XFed's Fig. 1 lists the images that are right for the wrong reason; its Fig. 2 shows their heat inside and outside the mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.case.image_page import Panel, Strip, coloured, draw, masked, shown
from grandrounds.analysis.case.rows import RunRows
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name, watched_rows
from grandrounds.data.images import ImageSet, usable_masks
from grandrounds.data.sets.images import SCORING_SETS
from grandrounds.explain.rationale import ImageScores, RationaleRule, baselines, score_images
from grandrounds.methods.xfed.checks import selects_by_explanations
from grandrounds.models.dense import class_probabilities

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

ANSWERS = {True: "right answer", False: "wrong answer"}
REASONS = {True: "right reason", False: "wrong reason"}


@dataclass(frozen=True, eq=False)
class ScoredPicture:
    """One picture with what the net says of it and where it looks."""

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
    def in_words(self) -> str:
        """What it is, what it is called, and why."""
        why = "" if self.reason is None else f", {REASONS[self.reason]}"
        return f"{self.called}: {ANSWERS[self.right]}{why}"

    @property
    def called(self) -> str:
        """What it is, what it is called, and its r."""
        ratio = "its mask is empty or full" if self.ratio is None else f"r = {self.ratio:.2f}"
        return f"{self.truth}, called {self.predicted} ({self.probability:.2f}), {ratio}"

    def to_dict(self) -> dict[str, Any]:
        """All but the pictures, as plain JSON; an infinite r is null."""
        arrays = ("pixels", "mask", "heat")
        return dict(plain({name: value for name, value in vars(self).items() if name not in arrays}))


@dataclass(frozen=True, eq=False)
class Reasoned:
    """All pictures of a set as a finished net sees them, and what its scores are to be held against."""

    run: str
    on: str
    rule: RationaleRule
    pictures: tuple[ScoredPicture, ...]
    figures: Mapping[str, float | int]
    baselines: Mapping[str, Mapping[str, float]]

    def of(self, *, right: bool, reason: bool) -> list[ScoredPicture]:
        """The pictures with this answer and this reason, the clearest first: of wrong reasons those with the smallest r."""
        found = [p for p in self.pictures if p.right is right and p.reason is reason]
        return sorted(found, key=lambda p: p.ratio or 0.0, reverse=reason)

    @property
    def table(self) -> dict[str, dict[str, int]]:
        """How many have which answer and which reason; pictures whose mask is of no use are in none."""
        return {
            said: {why: len(self.of(right=right, reason=reason)) for reason, why in REASONS.items()}
            for right, said in ANSWERS.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as plain JSON."""
        return dict(
            plain(
                {
                    "run": self.run,
                    "on": self.on,
                    "rule": vars(self.rule),
                    "reasons": self.figures,
                    "baselines": self.baselines,
                    "table": self.table,
                    "right_for_the_wrong_reason": [p.number for p in self.of(right=True, reason=False)],
                    "wrong_for_the_right_reason": [p.number for p in self.of(right=False, reason=True)],
                    "pictures": [p.to_dict() for p in self.pictures],
                }
            )
        )


def scored_pictures(run: Run, *, on: str | None = None, data: Any = None) -> list[ScoredPicture]:
    """The pictures of a set as the model of a finished run sees them; see `reasoned`."""
    held = _held(run, on, data)
    return list(_records(held, held.scored()))


def reasoned(run: Run, *, on: str | None = None, data: Any = None) -> Reasoned:
    """The same with their means and baselines, by the rule of the run's [method.xfed].

    `on`: a reference set of the run, or a scoring set of the catalog; not said: the one that the run was scored on.
    `data`: the run's rows, where they came from memory.
    """
    held = _held(run, on, data)
    found = held.scored()
    compared = baselines(held.net, held.theta, held.x, held.y, held.pictures.masks, held.rule)
    records = tuple(_records(held, found))
    return Reasoned(run.folder.resolve().name, held.name, held.rule, records, found.figures(), compared)


@dataclass(frozen=True, eq=False)
class _Held:
    """A net and the pictures it is to be scored on."""

    name: str
    pictures: ImageSet
    net: Any
    theta: Array
    x: Array
    y: Array
    classes: tuple[str, ...]
    rule: RationaleRule

    def scored(self) -> ImageScores:
        return score_images(self.rule, self.net, self.theta, self.x, self.y, self.pictures.masks)


def _held(run: Run, on: str | None, data: Any) -> _Held:
    plan, model = Plan(run.plan), run.model
    if model.schema is not None:
        raise BadInput(
            f"{run.folder} has a table's model: only nets for pictures look at places", code="model-of-table"
        )
    if plan.tasks.plain():
        raise BadInput(
            f"{run.folder} has several tasks, and scoring pictures are of one: nothing to show", code="several-tasks"
        )
    name = _named(plan, on)
    pictures = _pictures(run, plan, name, data)
    if pictures.masks is None or not usable_masks(pictures.masks).any():
        known = ", ".join(SCORING_SETS)
        raise BadInput(
            f"the pictures of '{name}' have no truth masks: name a set that has some with --on (such as {known}), "
            "or set data.masks",
            code="no-truth-masks",
        )
    encoding: Any = model.encoding
    strange = sorted(set(pictures.label.tolist()) - set(encoding.classes))
    if strange:
        raise BadInput(
            f"the pictures of '{name}' show '{strange[0]}', which the model does not know: name another set",
            code="unknown-class",
        )
    x = encoding.encode(pictures, model.theta.dtype)
    y = np.array([encoding.classes.index(word) for word in pictures.label], np.int64)
    rule = RationaleRule.from_settings(plan.seed, plan.method.xfed)
    return _Held(name, pictures, model.net, model.theta, x, y, encoding.classes, rule)


def _named(plan: Plan, on: str | None) -> str:
    """The set that is meant: the one said, or the one that the run was scored on."""
    known = (*plan.reference.plain(), *SCORING_SETS)
    if on is not None and on not in known:
        raise BadInput(f"no scoring pictures '{on}'; {nearest(on, known)}", code="unknown-scoring-set")
    chosen = reference_name(plan) if selects_by_explanations(plan) else None
    name = on or watched_rows(plan) or chosen
    if name is None:
        raise BadInput(
            f"this run was scored on no pictures: name a set with --on ({', '.join(known)})", code="no-scoring-set"
        )
    return name


def _pictures(run: Run, plan: Plan, name: str, data: Any) -> ImageSet:
    """A set of the catalog is read alone; rows of the consortium's own need all of its data, and so do marks in either."""
    settings = plan.reference.plain().get(name, {"source": name})
    source = settings.get("source")
    marked = name in plan.reference.plain() and any(a.get("reference") for a in plan.plain()["attacks"])
    if source is not None and not marked:
        found: ImageSet = SCORING_SETS[source]["load"]()
        return found
    consortium = RunRows.read(run, data).consortium
    drawn = consortium.reference[name].select_from(consortium.data)
    assert isinstance(drawn, ImageSet)
    return drawn


def _records(held: _Held, found: ImageScores) -> list[ScoredPicture]:
    if found.heated is None or not np.isfinite(found.logits).all():
        raise BadInput(
            "the model's answers are no numbers: its training diverged, so there is nothing to show",
            code="training-diverged",
        )
    assert held.pictures.masks is not None and found.masked_right is not None
    p = class_probabilities(found.logits)
    called = p.argmax(axis=1)
    h = found.heated
    return [
        ScoredPicture(
            number=i,
            truth=str(held.pictures.label[i]),
            predicted=held.classes[called[i]],
            probability=float(p[i, called[i]]),
            right=bool(found.right[i]),
            ratio=_known(h.ratio[i]),
            reason=None if np.isnan(h.reason[i]) else bool(h.reason[i]),
            in_mask=_known(h.in_mask[i]),
            iou=_known(h.iou[i]),
            masked_right=None if np.isnan(found.masked_right[i]) else bool(found.masked_right[i]),
            grid=None if found.grid is None else _known(found.grid[i]),
            pixels=held.pictures.pixels[i],
            mask=held.pictures.masks[i],
            heat=h.heat[i],
        )
        for i in range(len(found))
    ]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


COLUMNS = 5


def reasons_png(found: Reasoned, *, most: int = 12) -> bytes:
    """The sheet: pictures that are right for the wrong reason first, then wrong for the right one, then the others."""
    chosen = _chosen(found, most)
    title = f"{found.run} on {found.on}: {len(chosen)} of {len(found.pictures)} pictures (numbers from 0)"
    return draw(title, [strip(p) for p in chosen], columns=COLUMNS)


def strip(picture: ScoredPicture) -> Strip:
    """One row of the sheet."""
    hot, mask = heat_colours(picture.heat), np.asarray(picture.mask, bool)
    panels = (
        Panel("picture", shown(picture.pixels)),
        Panel("truth mask", shown(mask[..., None].astype(np.uint8) * 255)),
        Panel("heat map", shown(hot)),
        Panel("heat inside", masked(hot, mask)),
        Panel("heat outside", masked(hot, ~mask)),
    )
    return Strip(f"picture {picture.number}: {picture.in_words}", panels)


def heat_colours(heat: Array) -> Array:
    """Heat (H, W) as colours (H, W, 3) of bytes; the hottest pixel of the picture is the brightest."""
    size = np.abs(np.asarray(heat, float))
    top = size.max(initial=0)
    out: Array = np.rint(coloured(size / top if top > 0 else size)).astype(np.uint8)
    return out


def _chosen(found: Reasoned, most: int) -> Sequence[ScoredPicture]:
    """Some of each kind, as many as there is room for: what is of interest first, and of the rest what comes first."""
    kinds = [found.of(right=r, reason=w) for r, w in ((True, False), (False, True), (False, False), (True, True))]
    rest = [p for p in found.pictures if p.reason is None]
    room = max(1, most // len(kinds))
    first = [p for kind in kinds for p in kind[:room]]
    more = [p for kind in [*kinds, rest] for p in kind if p not in first]
    kept = {p.number for p in [*first, *more][:most]}
    return [p for kind in [*kinds, rest] for p in kind if p.number in kept]
