"""Figures 4 to 7 of XFed: accuracy and explanations over the rounds, on photographs and on digits, and the ablation.

Figures 4, 5 and 7 are of Table 1's runs, whose plans theirs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grandrounds_studies.results import Results
from grandrounds_studies.study import Arm, Claim, Headline, Measure, Quick, Study
from grandrounds_studies.xfed import drawing
from grandrounds_studies.xfed.claims import above, beats, below, close, gains, together
from grandrounds_studies.xfed.measures import (
    ACCURACY,
    CHANGED,
    EARLY_ACCURACY,
    EARLY_IN_MASK,
    GRID,
    IN_MASK,
    MEAN_XAI,
    SAVED,
    SWING,
    TESTED,
    XAI,
    XAI_SWING,
    baselines,
    courses,
)
from grandrounds_studies.xfed.setting import (
    ARMS,
    BASE,
    BY_ACCURACY,
    BY_GRID,
    DIGITS,
    ERRATA,
    FEDAVG,
    FEDPROX,
    INTERVALS,
    OORT,
    PAPER,
    PHOTOS,
    PLAIN,
    QUICK,
    SCORES,
    SETTLED,
    XFEDAVG,
    XFEDPROX,
    figure_of_photos,
)
from grandrounds_studies.xfed.table import LAST, PRINTED, ROUNDS

_AT = PHOTOS.label
_CHOSEN = (XFEDAVG.label, XFEDPROX.label)
_CHOOSING = tuple(PLAIN)
_NO_OORT = "a drawing; of the four methods of Table 1 the numbers are there, of Oort' nowhere"
_SHARED = "The runs are those of Table 1: the two do not confirm each other."


def _study(
    number: int,
    title: str,
    arms: tuple[Arm, ...],
    measures: tuple[Measure, ...],
    claims: tuple[Claim, ...],
    draws: Callable[[Results], list[drawing.Drawn]],
    *,
    shown: Measure,
    unpublished: str,
    quick: tuple[Arm, ...],
) -> Study:
    return figure_of_photos(
        number,
        title=title,
        headline=Headline(PHOTOS.label, XFEDAVG.label, shown.name),
        arms=arms,
        measures=measures,
        claims=claims,
        published={
            (point, arm): _named(row, measures) for (point, arm), row in LAST.items() if arm in {a.label for a in arms}
        },
        unpublished=unpublished,
        settled=(*SETTLED, _SHARED),
        remarks=ERRATA,
        draws=draws,
        keeps=courses,
        quick=Quick(QUICK, arms=tuple(a.label for a in quick)),
    )


def _named(row: Mapping[str, float], measures: tuple[Measure, ...]) -> dict[str, float]:
    """Return the part of a row that belongs to these measures."""
    return {m.name: row[m.name] for m in measures if m.name in row}


def _printed(name: str) -> dict[str, dict[int, float]]:
    """Arm -> round -> what Table 1 prints."""
    return {arm: dict(zip(ROUNDS, values[name], strict=True)) for arm, values in PRINTED.items()}


FIGURE_4 = _study(
    4,
    "Accuracy and how much of the masks is hot, round by round",
    ARMS,
    (ACCURACY, IN_MASK, EARLY_ACCURACY, EARLY_IN_MASK, SWING),
    (
        Claim(
            "significantly better in the early stage in terms of the accuracy",
            "sec. 5.2",
            _CHOOSING,
            above(_AT, EARLY_ACCURACY.name, PLAIN),
        ),
        Claim(
            "significantly better in the early stage in terms of in_mask_percentage",
            "sec. 5.2",
            _CHOOSING,
            above(_AT, EARLY_IN_MASK.name, PLAIN),
        ),
        Claim(
            "the accuracy of XFedAVG is close to that of FedProx (the gap is less than 1%)",
            "sec. 5.2",
            (XFEDAVG.label,),
            close(_AT, ACCURACY.name, {XFEDAVG.label: FEDPROX.label}, within=1.0),
        ),
        Claim(
            "the convergence of XFedAVG's accuracy is more stable (read as: it changes less from round to round)",
            "sec. 5.2",
            (XFEDAVG.label,),
            below(_AT, SWING.name, PLAIN),
        ),
    ),
    lambda results: [
        ("Accuracy", drawing.over_rounds(results, "accuracy", printed=_printed(ACCURACY.name))),
        ("In the mask", drawing.over_rounds(results, "in_mask")),
    ],
    shown=ACCURACY,
    unpublished=_NO_OORT,
    quick=(FEDAVG, FEDPROX, XFEDAVG, OORT),
)

_TO_OORT = dict.fromkeys((*_CHOSEN, BY_GRID.label), OORT.label)

FIGURE_5 = _study(
    5,
    "XAI accuracy, round by round",
    ARMS,
    (XAI, MEAN_XAI, XAI_SWING, GRID),
    (
        Claim(
            "XFed's XAI accuracy is better than Oort's (in the last round)",
            "sec. 5.2",
            tuple(_TO_OORT),
            above(_AT, XAI.name, _TO_OORT),
        ),
        Claim(
            "XFed's XAI accuracy is better than Oort's (mean over rounds)",
            "sec. 5.2",
            tuple(_TO_OORT),
            above(_AT, MEAN_XAI.name, _TO_OORT),
        ),
        Claim(
            "XFed's XAI accuracy is better than without a choice (mean over rounds)",
            "Table 1",
            _CHOOSING,
            above(_AT, MEAN_XAI.name, PLAIN),
        ),
        Claim(
            "the interpretation rationality has been improved by 30% (XFedAVG against FedProx)",
            "sec. 5.2",
            (XFEDAVG.label,),
            gains(_AT, XAI.name, {XFEDAVG.label: FEDPROX.label}, least=0.30),
        ),
        Claim(
            "the rationality of the explanation is also relatively stable (read as: it changes less from round to round)",
            "sec. 5.2",
            (XFEDAVG.label,),
            below(_AT, XAI_SWING.name, PLAIN),
        ),
    ),
    lambda results: [
        ("XAI accuracy", drawing.columns(results, "xai", ROUNDS)),
        ("XAI accuracy, printed beside", drawing.over_rounds(results, "xai", printed=_printed(XAI.name))),
        ("Grid accuracy", drawing.over_rounds(results, "grid")),
    ],
    shown=XAI,
    unpublished=_NO_OORT,
    quick=(FEDAVG, FEDPROX, XFEDAVG, OORT),
)

_TO_A = dict.fromkeys((XFEDAVG.label, BY_GRID.label), BY_ACCURACY.label)
_TO_FEDAVG = dict.fromkeys((XFEDAVG.label, BY_GRID.label, BY_ACCURACY.label), FEDAVG.label)

FIGURE_7 = _study(
    7,
    "Ablation: sites chosen by accuracy and explanations (XFed-x), or by accuracy alone (XFed-a)",
    (FEDAVG, XFEDAVG, BY_GRID, BY_ACCURACY),
    (ACCURACY, XAI, MEAN_XAI, GRID, CHANGED),
    (
        Claim(
            "choosing by XAI accuracy too shows a little improvement of XAI accuracy (against XFed-a, last round)",
            "sec. 5.3",
            tuple(_TO_A),
            above(_AT, XAI.name, _TO_A),
        ),
        Claim(
            "choosing by XAI accuracy too shows a little improvement of XAI accuracy (against XFed-a, mean over rounds)",
            "sec. 5.3",
            tuple(_TO_A),
            above(_AT, MEAN_XAI.name, _TO_A),
        ),
        Claim(
            "XFed-x and XFed-a are above FedAvg in XAI accuracy (mean over rounds)",
            "Fig. 7",
            tuple(_TO_FEDAVG),
            above(_AT, MEAN_XAI.name, _TO_FEDAVG),
        ),
        Claim(
            "explanations do not cost accuracy (read as: within a point of XFed-a)",
            "sec. 5.3",
            tuple(_TO_A),
            close(_AT, ACCURACY.name, _TO_A, within=1.0),
        ),
    ),
    lambda results: [
        ("Accuracy", drawing.columns(results, "accuracy", ROUNDS)),
        ("XAI accuracy", drawing.columns(results, "xai", ROUNDS)),
    ],
    shown=XAI,
    unpublished="a drawing without numbers; FedAvg's and XFed-x's accuracies and XAI accuracies are those of Table 1",
    quick=(FEDAVG, XFEDAVG, BY_ACCURACY),
)

_ON_DIGITS = {XFEDAVG.label: FEDAVG.label}
_BLIND = (*baselines(XAI.name), *baselines(GRID.name))

FIGURE_6 = Study(
    name="xfed/fig-6",
    title="Digits at ten sites, of which nine send their model",
    headline=Headline("MNIST, 10 sites", "XFedAvg", "accuracy"),
    source=f"{PAPER}, Fig. 6",
    base=BASE,
    points=(DIGITS,),
    arms=(FEDAVG, XFEDAVG),
    measures=(ACCURACY, XAI, MEAN_XAI, GRID, IN_MASK, SAVED, TESTED, *_BLIND, CHANGED),
    claims=(
        Claim(
            "the accuracy of the two methods is very close throughout the experiment (read as: within a point in every round)",
            "sec. 5.2",
            tuple(_ON_DIGITS),
            together(DIGITS.label, "accuracy", _ON_DIGITS, within=1.0),
        ),
        Claim(
            "the XAI accuracy results of XFedAVG are more reliable (read as: clearly higher, mean over rounds)",
            "sec. 5.2",
            tuple(_ON_DIGITS),
            above(DIGITS.label, MEAN_XAI.name, _ON_DIGITS),
        ),
        Claim(
            "XAI accuracy of the trained net is above that of the same net with its weights shuffled",
            "our question",
            (FEDAVG.label, XFEDAVG.label),
            beats(DIGITS.label, XAI.name, "shuffled_xai"),
        ),
        Claim(
            "grid accuracy of the trained net is above that of the same net with its weights shuffled",
            "our question",
            (FEDAVG.label, XFEDAVG.label),
            beats(DIGITS.label, GRID.name, "shuffled_grid"),
        ),
    ),
    unpublished="a drawing without numbers",
    settled=(
        "MNIST at ten sites, Dirichlet 0.5, of which nine send their model; ResNet-18 with the stem for ImageNet and group norm, "
        "SGD with momentum from 0.01 along half a cosine, batches of 128, as on CIFAR-10. How many rounds and epochs the figure "
        "has is not told: ten rounds of one epoch here, in which digits are learnt.",
        "Scored on XFed's 102 digits with truth masks, of which three labels are mended. 101 of them are in the official test "
        "set and left out of it: the test is on 9,899 digits, of which the majority class alone is right on 11.4%.",
        SCORES,
        INTERVALS,
    ),
    remarks=(
        "On digits integrated gradients lie on the ink whatever a net has learnt, since they multiply by how far a pixel is "
        "from the mean: see what shuffled weights score.",
    ),
    draws=lambda results: [
        ("Accuracy", drawing.over_rounds(results, "accuracy")),
        ("Reasons", [*drawing.over_rounds(results, "xai"), *drawing.over_rounds(results, "grid")]),
    ],
    keeps=courses,
    quick=Quick(QUICK),
    seeds=3,
)
