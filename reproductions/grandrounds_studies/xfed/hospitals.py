"""Choosing sites by their explanations where sites are hospitals: HAM10000's four sources with their lesion masks, nobody bad."""

from __future__ import annotations

from typing import Any

from grandrounds_studies import charts
from grandrounds_studies.claims import no_worse
from grandrounds_studies.fedxchain.claims import under
from grandrounds_studies.measures import AUROC, MAJORITY, WORST_SITE, of_model
from grandrounds_studies.study import Claim, Headline, Point, Quick, Study, merged
from grandrounds_studies.xfed.claims import above, beats
from grandrounds_studies.xfed.detect import ACCURACY_ALONE, BASE, BY_GRID, BY_MASKS, FEDAVG, FOUR, OORT, SSE
from grandrounds_studies.xfed.measures import ACCURACY, GRID, IN_MASK, UPLOADS, XAI, baselines
from grandrounds_studies.xfed.setting import FEDPROX, PAPER
from grandrounds_studies.xfed.signals import left_out_share

SOURCES = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
LEFT_OUT = tuple(left_out_share(site) for site in SOURCES)
BALANCED = of_model("balanced_accuracy")
HERE = Point("four hospitals", {})

_CHOOSING = (BY_GRID.label, BY_MASKS.label, ACCURACY_ALONE.label)
_REASONS = (BY_GRID.label, BY_MASKS.label)
_ALL = (FEDAVG, FEDPROX, BY_GRID, BY_MASKS, ACCURACY_ALONE, OORT, SSE)
_PLAIN = {arm.label: FEDAVG.label for arm in _ALL[1:]}
_OURS = "our question"


def _as_often(site: str) -> Claim:
    """One of four is left out in a round: a quarter of the rounds would be each one's turn."""
    measure = left_out_share(site)
    return Claim(
        f"{site} is left out in less than half of the rounds", _OURS, _CHOOSING, under(measure.name, HERE.label, 50.0)
    )


_SETTINGS: dict[str, Any] = merged(BASE, merged(FOUR, {"reference": {"scoring": {"rows": 60}}}))

HOSPITALS = Study(
    name="xfed/hospitals",
    title="Choosing among four real hospitals by their explanations: skin lesions, nobody bad",
    headline=Headline("four hospitals", "XFed by grid", "balanced_accuracy"),
    source=f"our own: {PAPER} has parts of CIFAR-10 and MNIST as sites",
    unpublished="nothing to compare with: the paper has no hospitals",
    base=_SETTINGS,
    points=(HERE,),
    arms=_ALL,
    measures=(
        *(AUROC, BALANCED, ACCURACY, MAJORITY, WORST_SITE),
        *(XAI, GRID, IN_MASK, *baselines("xai"), *baselines("grid")),
        *(UPLOADS, *LEFT_OUT),
    ),
    claims=(
        Claim("XAI accuracy rises against FedAvg", _OURS, _CHOOSING, above(HERE.label, XAI.name, _PLAIN)),
        Claim("grid accuracy rises against FedAvg", _OURS, _CHOOSING, above(HERE.label, GRID.name, _PLAIN)),
        Claim(
            "AUROC is not more than 1 point below FedAvg's",
            _OURS,
            _CHOOSING,
            no_worse(AUROC.name, [HERE.label], by=0.01),
        ),
        Claim("balanced accuracy rises against FedAvg", _OURS, _CHOOSING, above(HERE.label, BALANCED.name, _PLAIN)),
        *(_as_often(site) for site in SOURCES),
        Claim(
            "XAI accuracy is above that of the same net with shuffled weights",
            _OURS,
            (FEDAVG.label, *_REASONS),
            beats(HERE.label, XAI.name, "shuffled_xai"),
        ),
        Claim(
            "grid accuracy is above that of the same net with shuffled weights",
            _OURS,
            (FEDAVG.label, *_REASONS),
            beats(HERE.label, GRID.name, "shuffled_grid"),
        ),
    ),
    settled=(
        "HAM10000 at 28 x 28 pixels, malignant or benign, split by lesion; its four sources, of 2,259, 3,363, 3,954 and 439 "
        "images, are the sites. 60 images of all sources with their lesion masks are the scoring set, of which about 12 are "
        "malignant. One of four sites is left out in a round, by every method that chooses.",
        "A small CNN (LeNet-5), 6 rounds of an epoch, batches of 32, learning rate 0.05, balanced classes. FedProx has mu = "
        "0.01. SSE-AGG weighs sites by how far their occlusion sketches agree, and leaves nobody out.",
    ),
    remarks=(
        "Four of five scoring images are benign. A site that calls every lesion benign is right on 80% of them, and one that "
        "has learnt to look for melanoma may be right less often: accuracy on the scoring images prefers the former.",
    ),
    draws=lambda results: [
        ("AUROC against XAI accuracy", charts.fronts(results, results.points, x=XAI.name, y=AUROC.name)),
    ],
    quick=Quick(
        {
            "reference": {"scoring": {"rows": 20}},
            "method": {"rounds": 2, "xfed": {"steps": 2, "samples": 2}},
            "train": {"steps": 20},
        },
        arms=(FEDAVG.label, BY_GRID.label, BY_MASKS.label),
    ),
    seeds=3,
)
