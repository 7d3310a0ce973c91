"""Does looking at explanations find the sites that are right for the wrong one? Shortcuts and poison at some of the sites."""

from __future__ import annotations

from typing import Any

from grandrounds_studies import charts
from grandrounds_studies.claims import best, better
from grandrounds_studies.detection import roc_curves
from grandrounds_studies.fedxchain.claims import over
from grandrounds_studies.measures import AUROC
from grandrounds_studies.study import Arm, Claim, Headline, Point, Quick, Study, merged
from grandrounds_studies.xfed import signals
from grandrounds_studies.xfed.claims import tells_more
from grandrounds_studies.xfed.measures import ACCURACY, GRID, UPLOADS, XAI, baselines
from grandrounds_studies.xfed.setting import PAPER

FOUND = 0.9
"""The area under the ROC curve from which on a signal finds bad sites."""


def _xfed(label: str, **chosen: Any) -> Arm:
    return Arm(label, {"method": {"name": "xfed", "xfed": chosen}})


FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}})
BY_GRID = _xfed("XFed by grid", score="grid")
BY_MASKS = _xfed("XFed by masks", score="masks")
ACCURACY_ALONE = _xfed("XFed-a", score="grid", xai_share=0.0)
REASONS_ALONE = _xfed("XFed-x", score="grid", xai_share=1.0)
MASKS_ALONE = _xfed("XFed-x by masks", score="masks", xai_share=1.0)
OORT = Arm("Oort'", {"method": {"name": "fedavg", "select": {"rule": "loss"}}})
KRUM = Arm("multi-Krum", {"method": {"name": "fedavg", "robust": {"rule": "multi-krum"}}})
SSE = Arm(
    "SSE-AGG",
    {
        "method": {"name": "sse-agg", "stability": "none"},
        "explain": {"sketch": "occlusion", "tiles": 4, "every": 1, "reference": "rows"},
    },
)
ARMS = (FEDAVG, BY_GRID, BY_MASKS, ACCURACY_ALONE, REASONS_ALONE, MASKS_ALONE, OORT, KRUM, SSE)
ON_CLEAN = tuple(arm.label for arm in (FEDAVG, BY_GRID, BY_MASKS, ACCURACY_ALONE, KRUM, SSE))
ON_MARKED = tuple(arm.label for arm in ARMS if arm is not OORT)

SHORTCUTS = {"corner": "corner marks", "background": "marked backgrounds"}
POISON = {"label-flip": "flipped labels", "backdoor": "backdoor"}
ALSO = "also in the scoring pictures"  # language: ok (the name of stored runs)

BASE: dict[str, Any] = {
    "split": {"val": 0.0},
    "reference": {"scoring": {"rows": 40, "sent": True}, "rows": {"rows": 60}},
    "model": {"name": "small-cnn"},
    "method": {"reference": "scoring"},
    "evaluation": {"every": 100, "rationale_set": "scoring"},
    "engine": {"device": "cpu", "workers": 1},
}


def _keeping(sites: int, bad: int) -> dict[str, Any]:
    """As many sites are left out as are bad; Krum is given how many that is."""
    keep = (sites - bad) / sites
    krum = {"attackers": bad, "keep": sites - bad}
    return {"method": {"xfed": {"keep": keep}, "select": {"fraction": keep}, "robust": krum}}


DIGITS = merged(
    {
        "data": {"name": "mnist", "masks": "strokes"},
        "split": {"partition": "equal", "sites": 10},
        "method": {"rounds": 4},
        "train": {"steps": 150, "batch": 32, "lr": 0.05},
    },
    _keeping(10, 3),
)
PHOTOS = merged(
    {
        "data": {"name": "cifar-10"},
        "split": {"partition": "equal", "sites": 8},
        "reference": {"scoring": {"source": "xfed-cifar-30"}},
        "method": {"rounds": 6},
        "train": {"epochs": 1, "batch": 32, "lr": 0.05},
    },
    _keeping(8, 2),
)
LESIONS = merged(
    {
        "data": {"name": "ham10000-malignant"},
        "split": {"partition": "equal", "sites": 8},
        "method": {"rounds": 6},
        "train": {"epochs": 1, "batch": 32, "lr": 0.05, "class_weights": "balanced"},
    },
    _keeping(8, 2),
)
FOUR = merged(LESIONS, merged({"split": {"partition": "column"}}, _keeping(4, 1)))
SETS = {"MNIST": DIGITS, "CIFAR-10": PHOTOS, "HAM10000": LESIONS}
_BAD = {"MNIST": 3, "CIFAR-10": 2, "HAM10000": 2}


def _point(data: str, kind: str, *, words: str = "", arms: tuple[str, ...] = ON_CLEAN, **more: Any) -> Point:
    attack = {"kind": kind, "count": _BAD[data], **({"target": "0"} if kind == "backdoor" else {})}
    label = f"{data}, {words or {**SHORTCUTS, **POISON}[kind]}"
    return Point(label, merged(merged(SETS[data], more), {"attacks": [attack]}), group=data, arms=arms)


def _in_all_pictures(data: str, kind: str) -> Point:
    """The same with the mark in the scoring images: a site that relies on it is right on them, too."""
    attack = {"kind": kind, "count": _BAD[data], "reference": True}
    settings = merged(SETS[data], {"attacks": [attack]})
    return Point(f"{data}, {SHORTCUTS[kind]}, {ALSO}", settings, group=data, arms=ON_MARKED)


_SKEWED: dict[str, Any] = {"split": {"partition": "dirichlet", "alpha": 0.5}}
_WITH_OORT = (*ON_CLEAN, OORT.label)
IN_THEIR_PICTURES = (
    _point("MNIST", "corner", arms=_WITH_OORT),
    _point("MNIST", "background"),
    _point("MNIST", "corner", words="skewed labels, corner marks", **_SKEWED),
    _point("CIFAR-10", "corner"),
    _point("HAM10000", "corner"),
    _point("HAM10000", "background", arms=(FEDAVG.label, BY_MASKS.label)),  # for its twin below: is it learnt?
)
IN_ALL_PICTURES = (
    _in_all_pictures("MNIST", "corner"),
    _in_all_pictures("MNIST", "background"),
    _in_all_pictures("CIFAR-10", "corner"),
    _in_all_pictures("HAM10000", "corner"),
    _in_all_pictures("HAM10000", "background"),
)
WRONG = (_point("MNIST", "label-flip", arms=_WITH_OORT), _point("MNIST", "backdoor"))
POINTS = (*IN_THEIR_PICTURES, *IN_ALL_PICTURES, *WRONG)
_BY_BOTH = (BY_GRID.label, BY_MASKS.label)
_BY_REASONS = (*_BY_BOTH, REASONS_ALONE.label, MASKS_ALONE.label)
_OURS = "our question"


def _found(point: Point) -> tuple[Claim, ...]:
    says = f"finds the bad sites (area under the ROC curve at least {FOUND:g}, mean over rounds): {point.label}"
    least = FOUND - 1e-9
    ranking = tuple(arm for arm in point.arms if arm != FEDAVG.label)
    alone = ((BY_GRID.label, "grid accuracy", signals.BY_GRID), (BY_MASKS.label, "XAI accuracy", signals.BY_MASKS))
    return (
        Claim(f"what sites are ranked by {says}", _OURS, ranking, over(signals.OWN.name, point.label, least)),
        *(
            Claim(f"{words} alone {says}", _OURS, (arm,), over(signal.name, point.label, least))
            for arm, words, signal in alone
            if arm in point.arms
        ),
    )


def _tells(point: Point) -> tuple[Claim, ...]:
    """Explanations against accuracy of the very same models."""
    says = f"tells what accuracy cannot (its area is clearly above that of accuracy): {point.label}"
    right = signals.BY_ACCURACY.name
    return (
        Claim(f"XAI accuracy {says}", _OURS, _BY_BOTH, tells_more(point.label, signals.BY_MASKS.name, than=right)),
        Claim(f"grid accuracy {says}", _OURS, _BY_BOTH, tells_more(point.label, signals.BY_GRID.name, than=right)),
    )


def _beats(points: tuple[Point, ...], what: str, by: tuple[str, ...] = _BY_BOTH) -> tuple[Claim, ...]:
    """One claim against each other way that is run at one of these points, on those where it is."""
    others = ((ACCURACY_ALONE, "accuracy alone"), (OORT, "ranking by loss"), (KRUM, "Krum"), (SSE, "SSE-AGG"))
    at = {arm.label: [point.label for point in points if arm.label in point.arms] for arm, _ in others}
    return tuple(
        Claim(
            f"explanations find {what} better than {words}", _OURS, by, best([signals.OWN.name], at[arm.label], [arm.label])
        )
        for arm, words in others
        if at[arm.label]
    )


_MEASURES = (
    *(ACCURACY, AUROC),
    *(signals.OWN, signals.CAUGHT),
    *(signals.BY_ACCURACY, signals.BY_LOSS, signals.BY_MASKS, signals.BY_GRID),
    *(signals.GAP, signals.MASKS_GAP, signals.GRID_GAP),
    *(XAI, GRID, *baselines("xai"), *baselines("grid"), UPLOADS),
    *(signals.LAST_OWN, signals.LAST_ACCURACY, signals.LAST_LOSS, signals.LAST_MASKS, signals.LAST_GRID),
)

DETECT = Study(
    name="xfed/detect",
    title="Detection of sites that are right for the wrong reason, or wrong: shortcuts and poison",
    headline=Headline("MNIST, marked backgrounds, also in the scoring pictures", "XFed by grid", "roc"),  # language: ok
    source=f"our own: {PAPER} has no bad site",
    unpublished="nothing to compare with: the paper has no bad site",
    base=BASE,
    points=POINTS,
    arms=ARMS,
    measures=_MEASURES,
    claims=(
        *(claim for point in POINTS for claim in _found(point)),
        *(claim for point in IN_ALL_PICTURES for claim in _tells(point)),
        *_beats(IN_THEIR_PICTURES, "shortcuts that clean scoring images lack"),
        *_beats(IN_ALL_PICTURES, "shortcuts that the scoring images have, too,", _BY_REASONS),
        *_beats(WRONG, "poison"),
        *(
            Claim(
                f"choosing sites makes the model more accurate than FedAvg is: {point.label}",
                _OURS,
                tuple(arm for arm in (*_BY_BOTH, ACCURACY_ALONE.label) if arm in point.arms),
                better(ACCURACY.name, point.label),
            )
            for point in POINTS
        ),
    ),
    settled=(
        "Bad are 3 of 10 sites (MNIST, IID; 'skewed': Dirichlet 0.5), 2 of 8 (CIFAR-10 and HAM10000, IID). All of a bad site's "
        "training images are bad; test images are clean, and so are scoring images unless the point says that they have "
        "marks, too. A corner mark is a square of a third of the side that names the class by its place, and by its pattern "
        "(grey) or hue (colour); a marked background is a shade or hue of the class on all that is outside of the truth mask. "
        "HAM10000 is malignant or benign.",
        f"'{ALSO.capitalize()}': each has the mark of its own class, as rulers and ink are in everybody's images. A site that "
        "relies on the mark is then right on them, for the wrong reason. SSE-AGG's reference images have the marks, too. "
        "Labels, masks and all else are as at the point without, and so are all models until sites are first chosen.",
        "As many sites are left out as are bad, by every method that leaves sites out. XFed ranks by 0.2 x explanations + 0.8 x "
        "accuracy on 40 scoring images of the set itself (MNIST's masks: strokes), of CIFAR-10 on the paper's 30; 'XFed-a' by "
        "accuracy alone, 'XFed-x' by grid accuracy alone, 'XFed-x by masks' by XAI accuracy alone. Oort' keeps the sites where "
        "the common model's loss is highest. Multi-Krum keeps the updates that are closest to each other. SSE-AGG weighs sites "
        "by how far their occlusion sketches agree, and leaves nobody out.",
        "The area under the ROC curve is 1 where every bad site is ranked below every honest one, 0.5 where the ranking says "
        "nothing, and below where bad sites are preferred. 'Accuracy bad sites lack': of their own models on the scoring "
        "images, against honest sites'; so of XAI and grid accuracy. Where scoring images are clean and classes balanced, "
        "about 0 says that the shortcut was not learnt. Where they have the marks, below 0 says that bad sites are preferred.",
        "The two XFed-x are run only where scoring images have marks: elsewhere what they would rely on is read off the runs of "
        "'XFed by grid' and 'by masks'. HAM10000's marked backgrounds with clean scoring images are run by two methods, to "
        "see whether the shortcut is learnt. Oort' is run at one shortcut and one poison: it keeps who is least like the common "
        "model, whatever the reason.",
        "The majority class alone is right on 11.4% of MNIST's test images, 10.0% of CIFAR-10's and 80 to 81% of HAM10000's.",
        "A small CNN (LeNet-5), batches of 32, learning rate 0.05: 4 rounds of 150 steps (MNIST), 6 rounds of an epoch "
        "(CIFAR-10; HAM10000, with balanced classes).",
    ),
    remarks=(
        "If scoring images are clean, a site that has learnt a shortcut is wrong on them more often: accuracy alone can see "
        "it. Where they have the marks, it is right on them without knowing what they show: accuracy cannot tell it from an "
        "honest one, or prefers it, and explanations have to tell. XFed's score gives accuracy four parts of five.",
        "XAI accuracy counts the images with IoU-ratio r above 1, not how far above: where all sites' heat is mostly inside of "
        "the mask, it does not say who looks at the mark besides. Heat is |IG|, which grows with how far a pixel is from the "
        "mean: a bright mark draws heat in an honest net, too.",
        "Scenes of the grid are made of the scoring images: where these have marks, each cell has one that names its class, "
        "and a net that relies on marks can find the right cell.",
        "Four of five lesions are benign. On clean scoring images a net that finds no mark and calls everything benign is "
        "right on 80% of them, and an honest one that was trained with balanced classes is right less often: accuracy prefers "
        "the shortcut.",
    ),
    draws=lambda results: [
        *roc_curves(results, "Ranking"),
        *(
            (f"Accuracy against detection: {p}", charts.fronts(results, [p], x=signals.OWN.name, y=ACCURACY.name))
            for p in results.points
        ),
    ],
    keeps=signals.of_last_round,
    quick=Quick(
        {
            "split": {"sites": 5},
            "reference": {"scoring": {"rows": 20}, "rows": {"rows": 20}},
            "method": {"rounds": 2, "xfed": {"keep": 0.8, "steps": 2, "samples": 2}},
            "train": {"steps": 40},
        },
        points=(f"MNIST, marked backgrounds, {ALSO}",),
        arms=(FEDAVG.label, BY_GRID.label, ACCURACY_ALONE.label),
        seeds=2,
    ),
    seeds=3,
)
