"""Figures 7 and 8 of FedXChain: what sites are trusted and paid, and its three models side by side."""

from __future__ import annotations

from grandrounds_studies.fedxchain import drawing
from grandrounds_studies.fedxchain.claims import correlated, ordered
from grandrounds_studies.fedxchain.measures import (
    CONTRIBUTION_R,
    FIDELITY,
    NSDS,
    REWARD_R,
    RUN,
    TRUST,
    rewards,
)
from grandrounds_studies.fedxchain.setting import (
    BASE,
    BOTH,
    ERRATA,
    FOREST,
    LOGISTIC,
    MLP,
    OURS,
    PAPER,
    PRINTED,
    QUICK,
    ROBUST,
    SETTLED,
)
from grandrounds_studies.fedxchain.tables import PUBLISHED
from grandrounds_studies.measures import ACCURACY, MAJORITY
from grandrounds_studies.study import Claim, Headline, Point, Quick, Study, merged

_HONEST = Point("all sites honest", {})
_FLIPPED = Point("3 largest of 10 flip labels", {"attacks": [{"kind": "label-flip", "count": 3, "validation": True}]})
_THREE = (OURS.label, PRINTED.label, ROBUST.label)
PRINTED_R = 0.918

FIGURE_7 = Study(
    name="fedxchain/fig-7",
    title="Do trusted sites earn more?",
    source=f"{PAPER}, Fig. 7 and sec. V-D",
    base=merged(BASE, {"train": {"lr": 0.1}}),
    points=(_HONEST, _FLIPPED),
    arms=(OURS, PRINTED, ROBUST),
    measures=(REWARD_R, CONTRIBUTION_R, ACCURACY, MAJORITY, TRUST),
    published={(_HONEST.label, PRINTED.label): {REWARD_R.name: PRINTED_R}},
    claims=tuple(
        Claim(
            f"strong positive correlation of trust and reward, r = 0.918 (read as: at least 0.9): {point.label}",
            "Fig. 7",
            _THREE,
            correlated(point.label, least=0.9),
        )
        for point in (_HONEST, _FLIPPED)
    ),
    settled=(
        *SETTLED,
        "Rewards are not defined in the paper. Here: trust x contribution, which is how much lower the log loss on the reference "
        "rows is with the site, at the share of its rows, than without it; means over rounds. Learning rate 0.1.",
    ),
    remarks=(
        "The paper does not define rewards. One set by trust alone would have r = 1 whatever a site did, so the contribution, in "
        "which trust has no part, is reported beside it.",
    ),
    draws=drawing.rewards,
    keeps=rewards,
    quick=Quick(QUICK, arms=(OURS.label, ROBUST.label)),
)

_MODELS = tuple(Point(p.label, p.settings) for p in (LOGISTIC, MLP, FOREST))
_LOWEST_FIRST = (FOREST.label, MLP.label, LOGISTIC.label)

FIGURE_8 = Study(
    name="fedxchain/fig-8",
    title="Three models side by side",
    headline=Headline("forest, 1 round", "FedXChain as printed", "nsds"),
    source=f"{PAPER}, Fig. 8 and sec. V-E, G",
    base=BASE,
    points=_MODELS,
    arms=(OURS, PRINTED),
    measures=RUN,
    published={k: v for k, v in PUBLISHED.items() if k[0] in _LOWEST_FIRST},
    claims=(
        Claim(
            "NSDS varies by model type: random forest lowest, MLP moderate, logistic highest",
            "Fig. 8",
            BOTH,
            ordered(NSDS.name, _LOWEST_FIRST),
        ),
        Claim(
            "linear models achieve the highest accuracy, ensembles slightly lower (read as: forest < MLP < logistic)",
            "sec. V-G",
            BOTH,
            ordered(ACCURACY.name, _LOWEST_FIRST),
        ),
    ),
    settled=(*SETTLED, "Forests are fitted once: they take no model from the round before."),
    remarks=ERRATA[:2],
    draws=lambda results: [
        part
        for arm in (a.label for a in results.study.arms)
        for part in drawing.by_point(results, (ACCURACY.name, NSDS.name, TRUST.name, FIDELITY.name), arm, "Fig. 8")
    ],
    quick=Quick(QUICK, points=(LOGISTIC.label, MLP.label), arms=(OURS.label,)),
)
