"""Table 1 of XFed: accuracy and XAI accuracy with and without a choice of sites, and what the printed figures can say."""

from __future__ import annotations

from grandrounds_studies.study import Claim, Headline, Quick, Study
from grandrounds_studies.xfed import drawing
from grandrounds_studies.xfed.claims import (
    above,
    beats,
    below,
    close,
    fewer,
    gains,
    printed_above_chance,
    printed_apart,
)
from grandrounds_studies.xfed.measures import ACCURACY, CHANGED, GRID, IN_MASK, RUN, UPLOADS, XAI, baselines, courses
from grandrounds_studies.xfed.setting import (
    ARMS,
    BASE,
    BY_ACCURACY,
    BY_GRID,
    ERRATA,
    FEDAVG,
    FEDPROX,
    OORT,
    PAPER,
    PHOTOS,
    PLAIN,
    QUICK,
    SETTLED,
    XFEDAVG,
    XFEDPROX,
)

ROUNDS = (4, 6, 8, 10, 12, 14, 15, 16, 17)
"""That the table prints."""

PRINTED = {
    FEDAVG.label: {
        ACCURACY.name: (69.51, 74.09, 68.19, 59.91, 72.31, 77.55, 79.73, 80.08, 80.39),
        XAI.name: (70.00, 66.67, 60.00, 66.67, 63.33, 70.00, 63.33, 63.33, 66.67),
    },
    FEDPROX.label: {
        ACCURACY.name: (67.18, 75.74, 73.48, 56.15, 70.58, 78.96, 80.99, 82.41, 82.68),
        XAI.name: (53.33, 50.00, 53.33, 46.67, 46.67, 43.33, 53.33, 43.33, 50.00),
    },
    XFEDAVG.label: {
        ACCURACY.name: (72.53, 74.96, 72.98, 69.06, 69.69, 76.05, 80.19, 80.88, 81.11),
        XAI.name: (73.33, 80.00, 76.67, 70.00, 80.00, 80.00, 76.67, 76.67, 80.00),
    },
    XFEDPROX.label: {
        ACCURACY.name: (77.58, 78.04, 75.35, 70.39, 75.18, 81.69, 82.86, 83.12, 83.33),
        XAI.name: (53.33, 43.33, 43.33, 43.33, 53.33, 46.67, 50.00, 46.67, 53.33),
    },
}
"""Arm -> measure -> what is printed, round by round."""

LAST = {(PHOTOS.label, arm): {name: rounds[-1] for name, rounds in printed.items()} for arm, printed in PRINTED.items()}
_XAI = {arm: printed[XAI.name][-1] for arm, printed in PRINTED.items()}
_XAIS = {arm: printed[XAI.name] for arm, printed in PRINTED.items()}

_AT = PHOTOS.label
_CHOOSING = tuple(PLAIN)
_CHOSEN = (XFEDAVG.label, XFEDPROX.label)
"""The paper's own two."""
_TRAINED = (FEDAVG.label, FEDPROX.label, *_CHOSEN)

TABLE_1 = Study(
    name="xfed/table-1",
    title="Choosing sites by their explanations, on FedAvg and on FedProx",
    headline=Headline("CIFAR-10, 16 sites", "XFedAvg", "xai"),
    source=f"{PAPER}, Table 1 and sec. 5.2",
    base=BASE,
    points=(PHOTOS,),
    arms=ARMS,
    measures=(*RUN, *baselines(XAI.name), *baselines(GRID.name), CHANGED),
    published=LAST,
    claims=(
        Claim(
            "XFed improves the XAI-accuracy 14%-35% (read as: clearly above the same without a choice, by 14% or more)",
            "abstract, sec. 5.2",
            _CHOOSING,
            gains(_AT, XAI.name, PLAIN, least=0.14),
        ),
        Claim(
            "with similar accuracy (read as: within a point of the same without a choice)",
            "abstract, sec. 5.2",
            _CHOOSING,
            close(_AT, ACCURACY.name, PLAIN, within=1.0),
        ),
        Claim(
            "both XFedAVG and XFedProx can achieve higher precision (81.11 against 80.39, 83.33 against 82.68)",
            "sec. 5.2",
            _CHOOSING,
            above(_AT, ACCURACY.name, PLAIN),
        ),
        Claim(
            "5%-10% communication saving (read as: of the models that sites upload)",
            "abstract, sec. 5.2",
            (*_CHOOSING, BY_ACCURACY.label, OORT.label),
            fewer(_AT, UPLOADS.name, FEDAVG.label, low=0.05, high=0.10),
        ),
        Claim(
            "FedProx's explanations are worse than FedAvg's",
            "sec. 5.2",
            (FEDPROX.label,),
            below(_AT, XAI.name, {FEDPROX.label: FEDAVG.label}),
        ),
        Claim(
            "choosing by explanations gives better explanations than choosing by accuracy alone (XFed-a): XAI accuracy",
            "sec. 5.3",
            (XFEDAVG.label, BY_GRID.label),
            above(_AT, XAI.name, dict.fromkeys((XFEDAVG.label, BY_GRID.label), BY_ACCURACY.label)),
        ),
        Claim(
            "the printed differences of XAI accuracy are more than chance on 30 images",
            "our question to Table 1",
            _CHOSEN,
            printed_apart(_XAI, PLAIN),
        ),
        Claim(
            "the printed XAI accuracies differ from what a coin gives",
            "our question to Table 1",
            _TRAINED,
            printed_above_chance(_XAI, others=_XAIS),
        ),
        Claim(
            "XAI accuracy of the trained net is above that of the same net with its weights shuffled",
            "our question",
            _TRAINED,
            beats(_AT, XAI.name, "shuffled_xai"),
        ),
        Claim(
            "XAI accuracy of the trained net is above that of a blob in the middle",
            "our question",
            _TRAINED,
            beats(_AT, XAI.name, "blob_xai"),
        ),
        Claim(
            "grid accuracy of the trained net is above that of the same net with its weights shuffled",
            "our question",
            (*_TRAINED, BY_GRID.label),
            beats(_AT, GRID.name, "shuffled_grid"),
        ),
    ),
    settled=SETTLED,
    remarks=ERRATA,
    draws=lambda results: drawing.bars(results, (ACCURACY, XAI, GRID, IN_MASK), printed=LAST),
    keeps=courses,
    quick=Quick(QUICK, arms=tuple(a.label for a in (FEDAVG, FEDPROX, XFEDAVG, XFEDPROX))),
    seeds=3,
)
