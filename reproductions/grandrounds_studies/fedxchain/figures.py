"""Figures 1 to 6 of FedXChain: accuracy, NSDS and trust of three methods, over the rounds and in the last.

The paper gives each method a split of its own; so does the second point. On the first all have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grandrounds_studies.claims import all_of, best
from grandrounds_studies.fedxchain import drawing
from grandrounds_studies.fedxchain.claims import ahead, by_then, in_seeds, over
from grandrounds_studies.fedxchain.measures import AFTER_SEVEN, CONVERGED, COURSE, NSDS, RISES, STEADY, TRUST, courses
from grandrounds_studies.fedxchain.setting import (
    BASE,
    BASELINES,
    BOTH,
    ERRATA,
    FEDAVG,
    FEDPROX,
    OURS,
    PAPER,
    PRINTED,
    QUICK,
    SETTLED,
)
from grandrounds_studies.measures import ACCURACY, MACRO_F1, MAJORITY
from grandrounds_studies.results import Results
from grandrounds_studies.study import Claim, Headline, Measure, Point, Quick, Settings, Study

_SAME = Point("the same split for all, alpha 0.5", {})


def _dirichlet(alpha: float) -> Settings:
    return {"split": {"partition": "dirichlet", "alpha": alpha}}


_OWN = Point(
    "a split for each, as in the paper",
    {},
    of={FEDAVG.label: {"split": {"partition": "equal"}}, FEDPROX.label: _dirichlet(0.5)}
    | {label: _dirichlet(0.3) for label in BOTH},
)
_POINTS = (_SAME, _OWN)
_LABELS = [p.label for p in _POINTS]
_PUBLISHED = {
    (_OWN.label, PRINTED.label): {ACCURACY.name: 0.965},
    (_OWN.label, FEDAVG.label): {ACCURACY.name: 0.960},
    (_OWN.label, FEDPROX.label): {ACCURACY.name: 0.895},
}
_SETTLED = (
    *SETTLED,
    "The model of these figures is not stated: the logistic one, learning rate 0.01. 'A split for each': FedXChain Dirichlet "
    "0.3, FedAvg equal shares of shuffled rows, FedProx Dirichlet 0.5 (sec. V-B); differences between these arms are between "
    "splits too.",
)


def _study(
    number: int,
    title: str,
    measures: tuple[Measure, ...],
    claims: tuple[Claim, ...],
    draws: Callable[[Results], list[drawing.Drawn]],
    *,
    shown: Measure | None = None,
    published: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
    unpublished: str = "",
) -> Study:
    return Study(
        name=f"fedxchain/fig-{number}",
        title=title,
        headline=None if shown is None else Headline(_SAME.label, PRINTED.label, shown.name),
        source=f"{PAPER}, Fig. {number}",
        base=BASE,
        points=_POINTS,
        arms=(FEDAVG, FEDPROX, OURS, PRINTED),
        measures=measures,
        claims=claims,
        published=published or {},
        unpublished=unpublished,
        settled=_SETTLED,
        remarks=ERRATA[-1:],
        draws=draws,
        keeps=courses,
        quick=Quick(QUICK, points=(_SAME.label,), arms=tuple(a.label for a in (FEDAVG, FEDPROX, OURS))),
    )


_CURVE = "a curve without numbers"
_MEASURES = (ACCURACY, MAJORITY, MACRO_F1, NSDS, TRUST)

FIGURE_1 = _study(
    1,
    "Accuracy over the rounds",
    (ACCURACY, MAJORITY, AFTER_SEVEN, CONVERGED),
    (
        Claim(
            "the convergence is smooth and stable, reaching > 96% accuracy within 6-7 rounds: the same split",
            "sec. V-B",
            BOTH,
            over(AFTER_SEVEN.name, _SAME.label, 0.96),
        ),
        Claim(
            "the convergence is smooth and stable, reaching > 96% accuracy within 6-7 rounds: a split for each",
            "sec. V-B",
            BOTH,
            over(AFTER_SEVEN.name, _OWN.label, 0.96),
        ),
        Claim("accuracy converges within 6-7 rounds", "sec. V-H", BOTH, by_then(CONVERGED.name, _LABELS, most=7)),
    ),
    lambda results: drawing.over_rounds(results, "accuracy", "Fig. 1"),
    shown=AFTER_SEVEN,
    unpublished=_CURVE,
)

FIGURE_2 = _study(
    2,
    "NSDS over the rounds",
    (NSDS, STEADY),
    (
        Claim(
            "FedXChain exhibits lower and more stable NSDS compared to baselines (read as: clearly lower in the last round)",
            "sec. V-B",
            BOTH,
            best([NSDS.name], _LABELS, BASELINES),
        ),
        Claim("NSDS stabilizes after initial 3-4 rounds", "sec. V-H", BOTH, by_then(STEADY.name, _LABELS, most=4)),
    ),
    lambda results: drawing.over_rounds(results, "nsds", "Fig. 2"),
    shown=NSDS,
    unpublished=_CURVE,
)

FIGURE_3 = _study(
    3,
    "Trust over the rounds",
    (TRUST, RISES),
    (Claim("trust scores increase monotonically", "sec. V-B, V-H", BOTH, in_seeds(RISES.name, _LABELS)),),
    lambda results: drawing.over_rounds(results, "trust", "Fig. 3"),
    shown=TRUST,
    unpublished=_CURVE,
)

FIGURE_4 = _study(
    4,
    "Accuracy in the last round",
    (*_MEASURES, *COURSE),
    tuple(
        Claim(
            "FedXChain achieves the highest accuracy (96.5%), outperforming FedProx (89.5%) and approaching FedAvg's IID "
            f"performance (96.0%) (read as: 7 points above FedProx, and above FedAvg): {words}",
            "Fig. 4",
            BOTH,
            all_of(ahead(label, FEDPROX.label, by=0.07), ahead(label, FEDAVG.label, by=0.0)),
        )
        for words, label in (("the same split", _SAME.label), ("a split for each", _OWN.label))
    ),
    lambda results: drawing.bars(results, (ACCURACY.name,), "Fig. 4"),
    published=_PUBLISHED,
)

FIGURE_5 = _study(
    5,
    "NSDS in the last round",
    (*_MEASURES, *COURSE),
    tuple(
        Claim(
            f"NSDS is lower than FedProx's, indicating better heterogeneity handling: {words}",
            "Fig. 5",
            BOTH,
            best([NSDS.name], [label], [FEDPROX.label]),
        )
        for words, label in (("the same split", _SAME.label), ("a split for each", _OWN.label))
    ),
    lambda results: drawing.bars(results, (NSDS.name,), "Fig. 5"),
    shown=NSDS,
    unpublished="bars without numbers",
)

FIGURE_6 = _study(
    6,
    "Trust in the last round",
    (*_MEASURES, *COURSE),
    tuple(
        Claim(
            f"adaptive trust assigns higher scores, outperforming FedAvg and FedProx: {words}",
            "Fig. 6",
            BOTH,
            best([TRUST.name], [label], BASELINES),
        )
        for words, label in (("the same split", _SAME.label), ("a split for each", _OWN.label))
    ),
    lambda results: drawing.bars(results, (TRUST.name,), "Fig. 6"),
    shown=TRUST,
    unpublished="bars without numbers",
)
