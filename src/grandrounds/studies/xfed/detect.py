"""Does looking at reasons find the sites that are right for the wrong one? Shortcuts and poison at some of the sites."""

from __future__ import annotations

from typing import Any

from grandrounds.studies import charts
from grandrounds.studies.claims import best, better
from grandrounds.studies.detection import roc_curves
from grandrounds.studies.fedxchain.claims import over
from grandrounds.studies.measures import AUROC
from grandrounds.studies.study import Arm, Claim, Point, Quick, Study, merged
from grandrounds.studies.xfed import signals
from grandrounds.studies.xfed.measures import ACCURACY, GRID, UPLOADS, XAI, baselines
from grandrounds.studies.xfed.setting import PAPER

FOUND = 0.9
"""The area under the ROC curve from which on a signal finds bad sites."""


def _xfed(label: str, **chosen: Any) -> Arm:
    return Arm(label, {"method": {"name": "xfed", "xfed": chosen}})


FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}})
BY_GRID = _xfed("XFed by grid", score="grid")
BY_MASKS = _xfed("XFed by masks", score="masks")
ACCURACY_ALONE = _xfed("XFed-a", xai_share=0.0)
REASONS_ALONE = _xfed("XFed-x", score="grid", xai_share=1.0)
OORT = Arm("Oort'", {"method": {"name": "fedavg", "select": {"rule": "loss"}}})
KRUM = Arm("multi-Krum", {"method": {"name": "fedavg", "robust": {"rule": "multi-krum"}}})
SSE = Arm(
    "SSE-AGG",
    {
        "method": {"name": "sse-agg", "stability": "none"},
        "explain": {"sketch": "occlusion", "tiles": 4, "every": 1, "reference": "rows"},
    },
)
ARMS = (FEDAVG, BY_GRID, BY_MASKS, ACCURACY_ALONE, REASONS_ALONE, OORT, KRUM, SSE)

SHORTCUTS = {"corner": "corner marks", "background": "marked backgrounds"}
POISON = {
    "label-flip": "flipped labels",
    "label-shuffle": "shuffled labels",
    "backdoor": "backdoor",
    "free-rider": "free riders",
}

BASE: dict[str, Any] = {
    "split": {"val": 0.0},
    "reference": {"scoring": {"rows": 40, "sent": True}, "rows": {"rows": 60}},
    "model": {"name": "small-cnn"},
    "method": {"reference": "scoring"},
    "evaluation": {"every": 100, "reasons": "scoring"},
    "engine": {"device": "cpu", "workers": 1},
}


def _keeping(sites: int, bad: int) -> dict[str, Any]:
    """As many sites are left out as are bad; Krum is told how many that is."""
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
SETS = {"MNIST": DIGITS, "CIFAR-10": PHOTOS, "HAM10000": LESIONS, "HAM10000's hospitals": FOUR}
_WHO: dict[str, dict[str, Any]] = {
    "MNIST": {"count": 3},
    "CIFAR-10": {"count": 2},
    "HAM10000": {"count": 2},
    "HAM10000's hospitals": {"sites": ["rosendahl"]},
}


def _point(data: str, kind: str, *, words: str = "", **more: Any) -> Point:
    attack = {"kind": kind, **_WHO[data], **({"target": "0"} if kind == "backdoor" else {})}
    label = f"{data}, {words or {**SHORTCUTS, **POISON}[kind]}"
    return Point(label, merged(merged(SETS[data], more), {"attacks": [attack]}), group=data)


_SKEWED: dict[str, Any] = {"split": {"partition": "dirichlet", "alpha": 0.5}}
RIGHT_FOR_THE_WRONG_REASON = (
    _point("MNIST", "corner"),
    _point("MNIST", "background"),
    _point("MNIST", "corner", words="skewed labels, corner marks", **_SKEWED),
    _point("CIFAR-10", "corner"),
    _point("HAM10000", "corner"),
    _point("HAM10000", "background"),
    _point("HAM10000's hospitals", "corner"),
)
WRONG = (
    *(_point("MNIST", kind) for kind in POISON),
    _point("CIFAR-10", "label-flip"),
)
_RANKING = tuple(arm.label for arm in ARMS[1:])
_BY_REASONS = (BY_GRID.label, BY_MASKS.label, REASONS_ALONE.label)
_OURS = "our question"


def _found(point: Point) -> tuple[Claim, ...]:
    says = f"finds the bad sites (area under the ROC curve at least {FOUND:g}, mean over rounds): {point.label}"
    least = FOUND - 1e-9
    return (
        Claim(f"what sites are ranked by {says}", _OURS, _RANKING, over(signals.OWN.name, point.label, least)),
        Claim(f"grid accuracy alone {says}", _OURS, (BY_GRID.label,), over(signals.BY_GRID.name, point.label, least)),
        Claim(f"XAI accuracy alone {says}", _OURS, (BY_MASKS.label,), over(signals.BY_MASKS.name, point.label, least)),
    )


def _beats(points: tuple[Point, ...], what: str) -> tuple[Claim, ...]:
    labels = [point.label for point in points]
    others = ((ACCURACY_ALONE, "accuracy alone"), (OORT, "ranking by loss"), (KRUM, "Krum"), (SSE, "SSE-AGG"))
    return tuple(
        Claim(
            f"reasons find {what} better than {words}",
            _OURS,
            _BY_REASONS,
            best([signals.OWN.name], labels, [arm.label]),
        )
        for arm, words in others
    )


_MEASURES = (
    *(ACCURACY, AUROC),
    *(signals.OWN, signals.CAUGHT),
    *(signals.BY_ACCURACY, signals.BY_LOSS, signals.BY_MASKS, signals.BY_GRID, signals.GAP),
    *(XAI, GRID, *baselines("xai"), *baselines("grid"), UPLOADS),
    *(signals.LAST_OWN, signals.LAST_ACCURACY, signals.LAST_LOSS, signals.LAST_MASKS, signals.LAST_GRID),
)

DETECT = Study(
    name="xfed/detect",
    title="Who finds the sites that are right for the wrong reason, or wrong: shortcuts and poison",
    source=f"our own: {PAPER} has no bad site",
    unpublished="nothing to compare with: the paper has no bad site",
    base=BASE,
    points=(*RIGHT_FOR_THE_WRONG_REASON, *WRONG),
    arms=ARMS,
    measures=_MEASURES,
    claims=(
        *(claim for point in (*RIGHT_FOR_THE_WRONG_REASON, *WRONG) for claim in _found(point)),
        *_beats(RIGHT_FOR_THE_WRONG_REASON, "shortcuts"),
        *_beats(WRONG, "poison"),
        *(
            Claim(
                f"choosing sites makes the model more accurate than FedAvg is: {point.label}",
                _OURS,
                (BY_GRID.label, BY_MASKS.label, ACCURACY_ALONE.label),
                better(ACCURACY.name, point.label),
            )
            for point in (*RIGHT_FOR_THE_WRONG_REASON, *WRONG)
        ),
    ),
    settled=(
        "Bad are 3 of 10 sites (MNIST, IID; 'skewed': Dirichlet 0.5), 2 of 8 (CIFAR-10 and HAM10000, IID), and of HAM10000's "
        "four hospitals one, rosendahl: the largest source has hardly a malignant lesion. All of a bad site's training pictures "
        "are bad; scoring and test pictures are clean. A corner mark is a square of a third of the side that names the class by "
        "its place, and by its pattern (grey) or hue (colour); a marked background is a shade or hue of the class on all that "
        "is outside of the truth mask. HAM10000 is malignant or benign.",
        "As many sites are left out as are bad, by every method that leaves sites out. XFed ranks by 0.2 x reasons + 0.8 x "
        "accuracy on 40 scoring pictures of the set itself (MNIST's masks: strokes), of CIFAR-10 on the paper's 30; 'XFed-a' by "
        "accuracy alone, 'XFed-x' by grid accuracy alone. Oort' keeps the sites where the common model's loss is highest. "
        "Multi-Krum keeps the updates that are closest to each other. SSE-AGG weighs sites by how far their occlusion sketches "
        "agree, and leaves nobody out.",
        "The area under the ROC curve is 1 where every bad site is ranked below every honest one, 0.5 where the ranking says "
        "nothing, and below where bad sites are preferred. 'Accuracy bad sites lack': of their own models on the clean "
        "scoring pictures, against honest sites'. Where classes are balanced and it is about 0, the shortcut was not learnt.",
        "A small CNN (LeNet-5), batches of 32, learning rate 0.05: 4 rounds of 150 steps (MNIST), 6 rounds of an epoch "
        "(CIFAR-10; HAM10000, with balanced classes).",
    ),
    remarks=(
        "Scoring pictures are clean, so a site that has learnt a shortcut is wrong on them more often: accuracy alone can see "
        "it. Reasons would be needed where the scoring pictures have the shortcut, too.",
        "Four of five lesions are benign. A net that finds no mark and calls everything benign is right on 80% of the scoring "
        "pictures, and an honest one that was trained with balanced classes is right less often: accuracy prefers the shortcut.",
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
        points=("MNIST, marked backgrounds",),
        arms=(FEDAVG.label, BY_GRID.label, ACCURACY_ALONE.label),
        seeds=2,
    ),
    seeds=3,
)
