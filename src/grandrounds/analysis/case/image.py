"""Explanations of one image or of a site's images: heat maps of the predicted class, and the share of heat inside the mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.case.rows import Found, RunRows
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet, mask_area, usable_masks
from grandrounds.explain.agreement import Share, centre_blob, iou_ratio, mass_in_mask, uniform_noise
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.quality import concentration

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel

MAPS = {name: spec.title for name, spec in explainers_for(Use.HEAT_MAP).items() if spec.drawn}
"""The heat maps that are drawn, and what they are called."""

BASELINES = {"centre_blob": "a blob in the middle", "noise": "noise"}
"""What heat without a look at the picture scores: XAI accuracy says nothing without them, since objects are centred."""

NAMES = MAPS | BASELINES

SHOWN = 6
SCORED = 30
"""Pictures of a site that are drawn, and that the means are taken over; XFed scores 30."""
_LOOKED_AT = 500  # pictures scored to find some right and some wrong ones


@dataclass(frozen=True)
class HeatNumbers:
    """How concentrated a heat map is (0 even, 1 one pixel), and, where a mask says where the truth is, how it fits."""

    concentration: float
    inside: float | None = None  # share of the heat inside the mask
    iou_ratio: float | None = None  # mean heat inside over mean heat outside


@dataclass(frozen=True, eq=False)
class PictureCase:
    """One picture: what the net says, what is true, where the net looked."""

    number: int
    source: str
    site: str | None
    part: str | None
    by: str  # whose model it is that speaks
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    predicted: str
    outcome: str | None
    pixels: Array  # (H, W, C)
    mask: Array | None  # (H, W)
    covered: float | None  # share of the picture that the mask covers: what heat without a clue would have inside
    heats: Mapping[str, Array]  # (H, W) each, of the predicted class
    numbers: Mapping[str, HeatNumbers]
    notes: tuple[str, ...]

    @property
    def probability(self) -> float:
        """Of the predicted class."""
        return self.probabilities[self.classes.index(self.predicted)]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as plain JSON; a ratio without any heat outside is null."""
        return dict(
            plain(
                {
                    "kind": "picture",
                    "case": self.number,
                    "data": self.source,
                    "site": self.site,
                    "part": self.part,
                    "by": self.by,
                    "predicted": self.predicted,
                    "probability": self.probability,
                    "probabilities": dict(zip(self.classes, self.probabilities, strict=True)),
                    "outcome": self.outcome,
                    "mask_covers": self.covered,
                    "heat": {name: vars(n) for name, n in self.numbers.items()},
                    "notes": self.notes,
                }
            )
        )


@dataclass(frozen=True)
class HeatMeans:
    """Means over a site's pictures; `drawn` is the share of pictures whose heat is drawn to the mask (XAI accuracy)."""

    concentration: float
    inside: float | None = None
    drawn: Share | None = None


@dataclass(frozen=True, eq=False)
class PictureSite:
    """A site's pictures: some right and some wrong ones to look at, and mean numbers over a sample of all."""

    site: str
    source: str
    part: str
    by: str  # whose model it is that speaks
    rows: int  # pictures the site has in this part
    scored: int  # pictures the means are over
    masked: int  # of these, with a mask that has an inside and an outside
    covered: float | None
    cases: tuple[PictureCase, ...]
    means: Mapping[str, HeatMeans]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as plain JSON."""
        heat = {
            name: {
                "concentration": m.concentration,
                "inside": m.inside,
                "xai_accuracy": None if m.drawn is None else m.drawn.value,
                "xai_accuracy_error": None if m.drawn is None else m.drawn.error,
            }
            for name, m in self.means.items()
        }
        return dict(
            plain(
                {
                    "kind": "pictures",
                    "site": self.site,
                    "data": self.source,
                    "part": self.part,
                    "by": self.by,
                    "rows": self.rows,
                    "scored": self.scored,
                    "masked": self.masked,
                    "mask_covers": self.covered,
                    "heat": heat,
                    "cases": [c.to_dict() for c in self.cases],
                    "notes": self.notes,
                }
            )
        )


def picture_case(model: TrainedModel, found: Found, *, by: str, task: str, seed: int) -> PictureCase:
    """One picture explained by one model."""
    assert isinstance(found.rows, ImageSet)
    made, lacks = _explained(model, found.rows, task=task, seed=seed)
    case = made.case(0, found.number, found.source, found.site, found.part, by=by)
    encoding: Any = model.encoding
    notes = (*lacks, *made.empty(), *found.notes, *encoding.notes(found.rows))
    return replace(case, outcome=found.outcome, notes=notes)


def picture_site(model: TrainedModel, rows: RunRows, site: str, *, by: str) -> PictureSite:
    """A site's pictures explained by the model it uses."""
    data = rows.consortium.data
    assert isinstance(data, ImageSet)
    mine, part = rows.own_rows(site)
    if not len(mine):
        raise BadInput(f"{site} has no pictures of its own to explain", code="no-images")
    seed, task = rows.plan.seed, rows.task(site)
    order = generator(seed, purpose="pictures to explain", site=site).permutation(mine)
    looked = order[:_LOOKED_AT]
    right = model.predict(data.take(looked), task=task).decisions == data.label[looked]
    wrong_first = [*looked[~right][: SHOWN // 2], *looked[right][:SHOWN], *looked[~right][SHOWN // 2 :]]
    chosen = np.array(wrong_first[:SHOWN], np.int64)
    sample = order[:SCORED]
    both = np.concatenate([chosen, np.setdiff1d(sample, chosen)])
    made, lacks = _explained(model, data.take(both), task=task, seed=seed)
    scored = made.take(np.flatnonzero(np.isin(both, sample)))
    cases = tuple(made.case(i, int(row) + 1, data.name, site, part, by=by) for i, row in enumerate(chosen))
    masks = scored.pictures.masks
    usable = None if masks is None else masks[usable_masks(masks)]
    return PictureSite(
        site=site,
        source=data.name,
        part=part,
        by=by,
        rows=len(mine),
        scored=len(sample),
        masked=0 if usable is None else len(usable),
        covered=None if usable is None or not len(usable) else float(mask_area(usable).mean()),
        cases=cases,
        means=scored.means(),
        notes=(*lacks, *scored.empty()),
    )


@dataclass(frozen=True, eq=False)
class _Explained:
    """Pictures with what the net says of them and their heat maps (n, H, W) by name."""

    pictures: ImageSet
    classes: tuple[str, ...]
    probabilities: Array
    decisions: Array
    heats: Mapping[str, Array]

    def take(self, rows: Array) -> _Explained:
        heats = {name: h[rows] for name, h in self.heats.items()}
        return _Explained(self.pictures.take(rows), self.classes, self.probabilities[rows], self.decisions[rows], heats)

    def case(self, i: int, number: int, source: str, site: str | None, part: str | None, *, by: str) -> PictureCase:
        mask = None if self.pictures.masks is None else self.pictures.masks[i]
        return PictureCase(
            number=number,
            source=source,
            site=site,
            part=part,
            by=by,
            classes=self.classes,
            probabilities=tuple(self.probabilities[i].tolist()),
            predicted=str(self.decisions[i]),
            outcome=str(self.pictures.label[i]),
            pixels=self.pictures.pixels[i],
            mask=mask,
            covered=None if mask is None else float(mask.mean()),
            heats={name: h[i] for name, h in self.heats.items()},
            numbers={name: _numbers(h[i], mask) for name, h in self.heats.items()},
            notes=(),
        )

    def empty(self) -> list[str]:
        """Maps without any heat, such as a Grad-CAM in which nothing speaks for the class."""
        out = []
        for name, heats in self.heats.items():
            count = int((~heats.reshape(len(heats), -1).any(axis=1)).sum())
            where = "" if len(heats) == 1 else f" in {count} of {len(heats)} pictures"
            if count:
                out.append(f"{MAPS[name]} finds no heat{where}: nothing at its layer speaks for the class")
        return out

    def means(self) -> dict[str, HeatMeans]:
        masks = self.pictures.masks
        out = {}
        shown = dict(self.heats)
        if masks is not None and usable_masks(masks).any():
            rng = generator(0, purpose="noise to compare with")
            shown |= {"centre_blob": centre_blob(masks.shape), "noise": uniform_noise(masks.shape, rng)}
        for name, heats in shown.items():
            inside, drawn = None, None
            if masks is not None and usable_masks(masks).any():
                ratios = np.atleast_1d(iou_ratio(heats, masks))
                inside = float(np.nanmean(mass_in_mask(heats, masks)))
                drawn = Share.from_credit(np.where(np.isnan(ratios), np.nan, ratios > 1))
            out[name] = HeatMeans(float(concentration(heats).mean()), inside, drawn)
        return out


def _explained(model: TrainedModel, pictures: ImageSet, *, task: str, seed: int) -> tuple[_Explained, list[str]]:
    """The pictures with all heat maps that this net has; those it does not have are said."""
    from grandrounds.explain.explainers.heat import heat

    said = model.predict(pictures, task=task)
    encoding: Any = model.encoding
    x = encoding.encode(pictures, model.theta.dtype)
    y = np.array([encoding.classes.index(word) for word in said.decisions], np.int64)
    heats, lacks = {}, []
    for name in MAPS:
        try:
            heats[name] = heat(name, model.net, model.theta, x, y, seed=seed)
        except BadInput as e:  # a net without a convolution has no Grad-CAM
            lacks.append(f"no {MAPS[name]}: {e}")
    if not heats:
        raise BadInput(f"this net's pictures cannot be explained; {lacks[0]}", code="no-heat-maps")
    return _Explained(pictures, said.classes, said.probabilities, said.decisions, heats), lacks


def _numbers(heat: Array, mask: Array | None) -> HeatNumbers:
    focus = float(concentration(heat[None])[0])
    if mask is None or not usable_masks(mask[None])[0]:
        return HeatNumbers(focus)
    return HeatNumbers(focus, float(mass_in_mask(heat, mask)), float(iou_ratio(heat, mask)))
