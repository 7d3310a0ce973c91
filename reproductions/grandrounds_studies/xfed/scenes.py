"""Validity of the scores: a trained net against heat that looks at nothing, and against itself with shuffled weights."""

from __future__ import annotations

from typing import Any

from grandrounds_studies.claims import Test, all_within, better, left_out, those
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Arm, Claim, Headline, Point, Quick, Study, Verdict, merged
from grandrounds_studies.xfed.claims import beats
from grandrounds_studies.xfed.detect import BASE, DIGITS, LESIONS, PHOTOS
from grandrounds_studies.xfed.measures import ACCURACY, GRID, IN_MASK, IOU, MASKED, XAI, baselines
from grandrounds_studies.xfed.setting import PAPER

_AT_REST: dict[str, Any] = {"method": {"rounds": 1}, "train": {"steps": 1, "lr": 1e-12}}
UNTRAINED = Arm("untrained", {}, over=_AT_REST)
TRAINED = Arm("small CNN", {})
NINE = Arm("small CNN, scenes of 3 x 3", {"method": {"xfed": {"grid": 3}}})
DEEP = Arm("deep CNN", {"model": {"name": "deep-cnn"}, "engine": {"device": "auto"}})
CHANCE = {UNTRAINED.label: 25.0, TRAINED.label: 25.0, NINE.label: 100 / 9, DEEP.label: 25.0}
"""Grid accuracy of whoever always points at the same cell, in %."""

_MANY: dict[str, Any] = {"reference": {"scoring": {"rows": 200}}}
MARKED = (
    Point("MNIST, strokes", merged(DIGITS, _MANY)),
    Point("CIFAR-10, XFed's 30", PHOTOS),
    Point("HAM10000, lesions", merged(LESIONS, _MANY)),
)
PLAIN = Point("CIFAR-10, 200 without masks", merged(PHOTOS, {"reference": {"scoring": {"source": None, "rows": 200}}}))
POINTS = (*MARKED, PLAIN)
_TRAINED = (TRAINED.label, NINE.label, DEEP.label)
_OURS = "our question"


def scores(measure: str, points: tuple[Point, ...], expected: dict[str, float], *, within: float) -> Test:
    """At each point the figure is within so much of what is expected of this arm, its interval included."""
    labels = [point.label for point in points]

    def test(found: Results, arm: str) -> Verdict:
        held = {p: found.summary(p, arm, measure) for p in those(found, labels) if arm in found.arms_at(p)}
        if not held or any(s.mean != s.mean for s in held.values()):
            raise NotRun(f"{found.study.measure(measure).words} of {arm} is not known")
        words = "; ".join(f"{p} {s.mean:.1f} (95% CI {s.low:.1f} to {s.high:.1f})" for p, s in held.items())
        why = f"{found.study.measure(measure).words}: {words}{left_out(found, labels)}"
        low, high = expected[arm] - within, expected[arm] + within
        return all_within(held.values(), why, low=low, high=high)

    return test


SCENES = Study(
    name="xfed/scenes",
    title="Validity of XAI accuracy and grid accuracy: trained nets against blobs and shuffled weights",
    headline=Headline("MNIST, strokes", "small CNN", "xai"),
    source=f"our own: {PAPER} holds its scores against nothing",
    unpublished="nothing to compare with: the paper has no baseline",
    base=BASE,
    points=POINTS,
    arms=(UNTRAINED, TRAINED, NINE, DEEP),
    measures=(ACCURACY, XAI, *baselines("xai"), GRID, *baselines("grid"), IN_MASK, *baselines("in_mask"), IOU, MASKED),
    claims=(
        *(
            Claim(
                f"XAI accuracy tells a trained net from the same with shuffled weights: {point.label}",
                _OURS,
                _TRAINED,
                beats(point.label, XAI.name, "shuffled_xai"),
            )
            for point in MARKED
        ),
        *(
            Claim(
                f"grid accuracy tells a trained net from the same with shuffled weights: {point.label}",
                _OURS,
                _TRAINED,
                beats(point.label, GRID.name, "shuffled_grid"),
            )
            for point in POINTS
        ),
        *(
            Claim(
                f"XAI accuracy rises with training: {point.label}",
                _OURS,
                (TRAINED.label,),
                better(XAI.name, point.label),
            )
            for point in MARKED
        ),
        *(
            Claim(
                f"grid accuracy rises with training: {point.label}",
                _OURS,
                (TRAINED.label,),
                better(GRID.name, point.label),
            )
            for point in POINTS
        ),
        Claim(
            "a blob in the middle solves plain images: XAI accuracy of at least 98%",
            _OURS,
            (TRAINED.label,),
            scores("blob_xai", MARKED, {TRAINED.label: 100.0}, within=2.0),
        ),
        *(
            Claim(
                f"{words} solves no scenes: grid accuracy is chance (1 in 4; 1 in 9)",
                _OURS,
                (TRAINED.label, NINE.label),
                scores(f"{short}_grid", POINTS, CHANCE, within=3.0),
            )
            for short, words in (("blob", "a blob in the middle"), ("cells", "a blob in every cell"))
        ),
    ),
    settled=(
        "Nets of FedAvg at 10 (MNIST) and 8 sites (CIFAR-10; HAM10000: malignant or benign), IID, nobody bad. Scored are 200 "
        "images of the set itself, which no site has (MNIST's masks: strokes; HAM10000's: lesions), or the paper's 30.",
        "'Shuffled weights' is the mean of three nets whose weights are shuffled within each parameter block. 'Untrained' is "
        "the net as it starts. A small CNN is LeNet-5, a deep one has six convolutions. Batches of 32, learning rate 0.05; 4 "
        "rounds of 150 steps (MNIST), 6 rounds of an epoch (the others).",
        "The majority class alone is right on 11.4% of MNIST's test images, 10.0% of CIFAR-10's and 80 to 81% of HAM10000's.",
        "In a scene the image is shrunken into one of four cells (or nine) among images of other classes. Nets were "
        "trained on images of full size: that a score is chance may be due to that.",
    ),
    quick=Quick(
        {
            "split": {"sites": 4},
            "reference": {"scoring": {"rows": 20}},
            "method": {"rounds": 2, "xfed": {"steps": 2, "samples": 2}},
            "train": {"steps": 40},
        },
        points=(MARKED[0].label,),
        arms=(UNTRAINED.label, TRAINED.label, NINE.label),
    ),
    seeds=3,
)
