"""Our own goals for VEIL: valid guarantees that cost little, sparse and in few bytes. The paper does not reach it."""

from __future__ import annotations

from grandrounds_studies.claims import all_of
from grandrounds_studies.study import FOLDS, Claim, Headline, Quick, Study
from grandrounds_studies.veil import drawing
from grandrounds_studies.veil.claims import few, formal, under, within
from grandrounds_studies.veil.measures import ALL, promise
from grandrounds_studies.veil.setting import (
    BASE,
    FEDAVG,
    ONE_SHOT,
    QUICK,
    SCORE,
    SCORE_DENSE,
    SECURE_DENSE,
    SECURE_FIT,
    SECURE_MOMENTS,
    SETTLED,
    STEPS,
    at,
    changed,
    label,
)

SECURE_STEPS = changed(SECURE_FIT, "VEIL dense steps (patient, secure)", features=0, rounds=20)
"""DP gradient descent on all features: what sparse ones are compared with where sums are secure."""
LOCAL_FIT = changed(STEPS, "VEIL select 20, then fit (patient, local)", features=20)
LOCAL_MOMENTS = changed(
    STEPS, "VEIL moments, 20 features (patient, local)", selection="moments", features=20, norm=4.0, rounds=1
)

_ONE, _FIVE = label(1), label(5)
_AT_ONE = (FEDAVG, SECURE_FIT, SECURE_MOMENTS, SECURE_STEPS)
_AT_FIVE = (FEDAVG, SECURE_DENSE, SECURE_STEPS, SCORE, SCORE_DENSE, ONE_SHOT, STEPS, LOCAL_FIT, LOCAL_MOMENTS)
_GOAL = "our goal"

GOALS = Study(
    name="veil/goals",
    title="How little a valid guarantee costs: AUROC below FedAvg on the same folds",
    headline=Headline("epsilon 1", "VEIL moments, 20 features (patient, secure)", "auroc"),
    source="our own goals: the paper's mechanism guarantees nothing (veil/table-1)",
    unpublished="nothing to compare with",
    base=BASE,
    points=(at(1, _AT_ONE), at(5, _AT_FIVE)),
    arms=(FEDAVG, *_AT_ONE[1:], *(a for a in _AT_FIVE[1:] if a not in _AT_ONE)),
    measures=ALL,
    claims=(
        Claim(
            "with secure aggregation, epsilon = 1 and at most 20 features: AUROC at most 0.03 below non-private FedAvg",
            _GOAL,
            (SECURE_MOMENTS.label, SECURE_FIT.label),
            all_of(within(_ONE, (_ONE, FEDAVG.label), by=0.03), few(_ONE, 20), formal(_ONE, 1.0)),
        ),
        Claim(
            "with secure aggregation, epsilon = 5, dense: AUROC at most 0.01 below non-private FedAvg",
            _GOAL,
            (SECURE_DENSE.label, SECURE_STEPS.label),
            all_of(within(_FIVE, (_FIVE, FEDAVG.label), by=0.01), formal(_FIVE, 5.0)),
        ),
        Claim(
            "with no trusted party, epsilon = 5: AUROC at most 0.03 below non-private FedAvg",
            _GOAL,
            (SCORE.label, SCORE_DENSE.label, STEPS.label),
            all_of(within(_FIVE, (_FIVE, FEDAVG.label), by=0.03), formal(_FIVE, 5.0)),
        ),
        Claim(
            "with no trusted party, epsilon = 5 and under 2 kB in all: AUROC at most 0.055 below non-private FedAvg",
            _GOAL,
            (ONE_SHOT.label,),
            all_of(within(_FIVE, (_FIVE, FEDAVG.label), by=0.055), under(_FIVE, 2.0), formal(_FIVE, 5.0)),
        ),
        Claim(
            "sparse, 20 features: AUROC at most 0.025 below dense DP gradient descent, both with secure aggregation at epsilon "
            "= 1",
            _GOAL,
            (SECURE_MOMENTS.label, SECURE_FIT.label),
            all_of(within(_ONE, (_ONE, SECURE_STEPS.label), by=0.025), few(_ONE, 20)),
        ),
        Claim(
            "sparse, 20 features: AUROC at most 0.025 below dense DP gradient descent, both with no trusted party at epsilon = 5",
            _GOAL,
            (SCORE.label, LOCAL_FIT.label, LOCAL_MOMENTS.label),
            all_of(within(_FIVE, (_FIVE, STEPS.label), by=0.025), few(_FIVE, 20)),
        ),
    ),
    settled=(
        *SETTLED,
        "A goal is met where the mean over folds is within it; the 95% interval of the paired difference is reported, and so is "
        "where it goes beyond. Dense DP gradient descent is 20 noisy clipped steps on all features.",
    ),
    draws=drawing.fronts,
    keeps=promise,
    quick=Quick(
        QUICK, points=(_FIVE,), arms=tuple(a.label for a in (FEDAVG, SECURE_DENSE, SCORE, ONE_SHOT, STEPS, LOCAL_FIT))
    ),
    repeats=FOLDS,
)
