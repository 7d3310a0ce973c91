"""Explanations of one image or of a site's images: heat maps of the predicted class, and the share of heat inside the mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet, mask_area, usable_masks
from grandrounds.explain.agreement import Share, centre_blob, iou_ratio, mass_in_mask, uniform_noise
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.quality import concentration
from grandrounds.runs.run_rows import CaseRow, RunRows

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel

MAPS = {name: spec.title for name, spec in explainers_for(Use.HEAT_MAP).items() if spec.drawn}
"""Heat maps that are drawn, and their labels."""

BASELINES = {"centre_blob": "a blob in the middle", "noise": "noise"}
"""Baselines that ignore the image; objects are centred, so XAI accuracy needs them for comparison."""

NAMES = MAPS | BASELINES

SHOWN = 6
SCORED = 30
"""Images of a site that are drawn, and images that means are taken over; XFed scores 30."""
_PREDICTED = 500  # images scored to find correct and wrong ones


SAME_ANSWER = "every image has the same answer here, whatever it shows: there is no model, and no heat map to draw"


@dataclass(frozen=True)
class HeatNumbers:
    """Concentration of a heat map (0 even, 1 one pixel) and, where there is a truth mask, its agreement with it."""

    concentration: float
    inside: float | None = None  # share of the heat inside the mask
    iou_ratio: float | None = None  # mean heat inside over mean heat outside


@dataclass(frozen=True, eq=False)
class ImageExplanation:
    """Explanation of one image: the prediction, the label, and the heat maps of the predicted class."""

    number: int
    source: str
    site: str | None
    part: str | None
    model_owner: str  # "the common model", or the name of its owner
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    predicted: str
    outcome: str | None
    pixels: Array  # (H, W, C)
    mask: Array | None  # (H, W)
    covered: float | None  # share of the image that the mask covers: the heat inside expected by chance
    heats: Mapping[str, Array]  # (H, W) each, of the predicted class
    numbers: Mapping[str, HeatNumbers]
    notes: tuple[str, ...]

    @property
    def probability(self) -> float:
        """The probability of the predicted class."""
        return self.probabilities[self.classes.index(self.predicted)]

    def to_dict(self) -> dict[str, object]:
        """Return all but the images, as plain JSON; a ratio without any heat outside is null."""
        return dict(
            plain(
                {
                    "kind": "picture",
                    "case": self.number,
                    "data": self.source,
                    "site": self.site,
                    "part": self.part,
                    "by": self.model_owner,
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
    """Means over a site's images; `xai_accuracy` is the share of images with more heat inside the mask than outside."""

    concentration: float
    inside: float | None = None
    xai_accuracy: Share | None = None


@dataclass(frozen=True, eq=False)
class SiteImageExplanation:
    """Explanation of a site's images: some right and some wrong ones, and means over a sample of all."""

    site: str
    source: str
    part: str
    model_owner: str  # "the common model", or the name of its owner
    rows: int  # images of the site in this split
    scored: int  # images that means are taken over
    masked: int  # of these, with a mask that has an inside and an outside
    covered: float | None
    cases: tuple[ImageExplanation, ...]
    means: Mapping[str, HeatMeans]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return all but the images, as plain JSON."""
        heat = {
            name: {
                "concentration": m.concentration,
                "inside": m.inside,
                "xai_accuracy": None if m.xai_accuracy is None else m.xai_accuracy.value,
                "xai_accuracy_error": None if m.xai_accuracy is None else m.xai_accuracy.error,
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
                    "by": self.model_owner,
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


def explain_image(
    model: TrainedModel, row: CaseRow, *, model_owner: str, task: str, seed: int, is_constant: bool = False
) -> ImageExplanation:
    """Explain one image with one model; one that gives every image the same answer has no heat maps."""
    assert isinstance(row.rows, ImageSet)
    batch, lacks = _explain_batch(model, row.rows, task=task, seed=seed)
    case = batch.case(0, row.number, row.source, row.site, row.part, model_owner=model_owner)
    encoding: Any = model.encoding
    case = replace(case, outcome=row.outcome, notes=(*lacks, *batch.empty(), *row.notes, *encoding.notes(row.rows)))
    if is_constant:
        case = replace(case, heats={}, numbers={}, notes=(SAME_ANSWER, *row.notes, *encoding.notes(row.rows)))
    return case


def explain_site_images(model: TrainedModel, rows: RunRows, site: str, *, model_owner: str) -> SiteImageExplanation:
    """Explain a site's images with the model that it uses.

    Raises:
        BadInput: The site has no images.
    """
    data = rows.consortium.data
    assert isinstance(data, ImageSet)
    site_rows, part = rows.evaluation_rows(site)
    if not len(site_rows):
        raise BadInput(f"{site} has no images to explain", code="no-images")
    seed, task = rows.plan.seed, rows.task(site)
    order = generator(seed, purpose="pictures to explain", site=site).permutation(site_rows)  # language: ok (a stream)
    predicted = order[:_PREDICTED]
    right = model.predict(data.take(predicted), task=task).decisions == data.label[predicted]
    wrong_first = [*predicted[~right][: SHOWN // 2], *predicted[right][:SHOWN], *predicted[~right][SHOWN // 2 :]]
    chosen = np.array(wrong_first[:SHOWN], np.int64)
    sample = order[:SCORED]
    both = np.concatenate([chosen, np.setdiff1d(sample, chosen)])
    batch, lacks = _explain_batch(model, data.take(both), task=task, seed=seed)
    scored = batch.take(np.flatnonzero(np.isin(both, sample)))
    cases = tuple(
        batch.case(i, int(row) + 1, data.name, site, part, model_owner=model_owner) for i, row in enumerate(chosen)
    )
    masks = scored.images.masks
    usable = None if masks is None else masks[usable_masks(masks)]
    return SiteImageExplanation(
        site=site,
        source=data.name,
        part=part,
        model_owner=model_owner,
        rows=len(site_rows),
        scored=len(sample),
        masked=0 if usable is None else len(usable),
        covered=None if usable is None or not len(usable) else float(mask_area(usable).mean()),
        cases=cases,
        means=scored.means(),
        notes=(*lacks, *scored.empty()),
    )


@dataclass(frozen=True, eq=False)
class _ImageBatch:
    """Images with their predictions and their heat maps (n, H, W) by name."""

    images: ImageSet
    classes: tuple[str, ...]
    probabilities: Array
    decisions: Array
    heats: Mapping[str, Array]

    def take(self, rows: Array) -> _ImageBatch:
        heats = {name: h[rows] for name, h in self.heats.items()}
        return _ImageBatch(self.images.take(rows), self.classes, self.probabilities[rows], self.decisions[rows], heats)

    def case(
        self, i: int, number: int, source: str, site: str | None, part: str | None, *, model_owner: str
    ) -> ImageExplanation:
        mask = None if self.images.masks is None else self.images.masks[i]
        return ImageExplanation(
            number=number,
            source=source,
            site=site,
            part=part,
            model_owner=model_owner,
            classes=self.classes,
            probabilities=tuple(self.probabilities[i].tolist()),
            predicted=str(self.decisions[i]),
            outcome=str(self.images.label[i]),
            pixels=self.images.pixels[i],
            mask=mask,
            covered=None if mask is None else float(mask.mean()),
            heats={name: h[i] for name, h in self.heats.items()},
            numbers={name: _heat_numbers(h[i], mask) for name, h in self.heats.items()},
            notes=(),
        )

    def empty(self) -> list[str]:
        """Name the maps without any heat, such as a Grad-CAM without supporting activations."""
        out = []
        for name, heats in self.heats.items():
            count = int((~heats.reshape(len(heats), -1).any(axis=1)).sum())
            where = "" if len(heats) == 1 else f" in {count} of {len(heats)} images"
            if count:
                out.append(f"{MAPS[name]} finds no heat{where}: no activation at its layer supports the class")
        return out

    def means(self) -> dict[str, HeatMeans]:
        masks = self.images.masks
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


def _explain_batch(model: TrainedModel, images: ImageSet, *, task: str, seed: int) -> tuple[_ImageBatch, list[str]]:
    """Compute all heat maps that this net has; returns a note for each that it does not have."""
    from grandrounds.explain.explainers.heat import heat

    prediction = model.predict(images, task=task)
    encoding: Any = model.encoding
    x = encoding.encode(images, model.theta.dtype)
    y = np.array([encoding.classes.index(word) for word in prediction.decisions], np.int64)
    heats, lacks = {}, []
    for name in MAPS:
        try:
            heats[name] = heat(name, model.net, model.theta, x, y, seed=seed)
        except BadInput as e:  # a net without a convolution has no Grad-CAM
            lacks.append(f"no {MAPS[name]}: {e}")
    if not heats:
        raise BadInput(f"this network's images cannot be explained; {lacks[0]}", code="no-heat-maps")
    return _ImageBatch(images, prediction.classes, prediction.probabilities, prediction.decisions, heats), lacks


def _heat_numbers(heat: Array, mask: Array | None) -> HeatNumbers:
    focus = float(concentration(heat[None])[0])
    if mask is None or not usable_masks(mask[None])[0]:
        return HeatNumbers(focus)
    return HeatNumbers(focus, float(mass_in_mask(heat, mask)), float(iou_ratio(heat, mask)))
