"""VEIL on real patients: the open eICU demo, by region and by hospital. It has 1,571 stays where the paper has 811,088."""

from __future__ import annotations

from dataclasses import replace

from grandrounds_studies.measures import AUROC
from grandrounds_studies.study import FOLDS, Claim, Headline, Point, Quick, Study, merged
from grandrounds_studies.veil.claims import above, formal, within
from grandrounds_studies.veil.measures import ALL, promise
from grandrounds_studies.veil.setting import (
    BASE,
    CLIENT,
    FEDAVG,
    NO_DP,
    PAPER,
    PRINTED,
    SCORE,
    SECURE_MOMENTS,
    SETTLED,
    STEPS,
    at,
    label,
)

PLACES = {"5 regions": "eicu-demo", "117 hospitals": "eicu-demo-hospitals"}
_PRIVATE = (PRINTED, SCORE, STEPS, SECURE_MOMENTS, CLIENT)
_ARMS = (FEDAVG, *_PRIVATE, NO_DP)
_VEIL = (PRINTED.label, SCORE.label, STEPS.label, SECURE_MOMENTS.label)
_EPSILONS = (1, 5)


def _point(place: str, epsilon: float) -> Point:
    here = at(epsilon, _ARMS)
    return replace(here, label=f"{place}, {label(epsilon)}", settings={"data": {"name": PLACES[place]}}, group=place)


POINTS = tuple(_point(place, epsilon) for place in PLACES for epsilon in _EPSILONS)
_FIVE = {place: f"{place}, {label(5)}" for place in PLACES}


def _claims(place: str) -> tuple[Claim, ...]:
    five = _FIVE[place]
    asked = f"asked of the eICU demo, {place}"
    return (
        Claim(
            f"at epsilon = 5 VEIL matches a non-private model (read as: AUROC at most 0.01 below FedAvg; {asked})",
            "Results",
            _VEIL,
            within(five, (five, FEDAVG.label), by=0.01),
        ),
        Claim(
            f"at epsilon = 5 VEIL outperforms DP-FedAvg ({asked})",
            "Fig. 2",
            _VEIL,
            above(five, (five, CLIENT.label)),
        ),
        Claim(
            f"differential privacy acts as a regularizer: VEIL is above its non-private variant ({asked})",
            "Results",
            (PRINTED.label,),
            above(five, (five, NO_DP.label)),
        ),
        Claim(
            f"strong patient privacy is formally guaranteed: epsilon = 5 ({asked})",
            "Introduction, Algorithm 1",
            (*_VEIL, CLIENT.label),
            formal(five, 5.0),
        ),
    )


EICU_DEMO = Study(
    name="veil/eicu-demo",
    title="Death in hospital in the open eICU demo: unseen regions, and unseen hospitals",
    headline=Headline(_FIVE["5 regions"], SECURE_MOMENTS.label, AUROC.name),
    source=f"{PAPER}, Table 1, on the open part of its database",
    unpublished="nothing to compare with: the paper's figures are of 811,088 stays (veil/table-1)",
    base=merged(BASE, {"split": {"val": 0.15}}),
    points=POINTS,
    arms=_ARMS,
    measures=ALL,
    claims=tuple(claim for place in PLACES for claim in _claims(place)),
    settled=(
        "Data: the eICU demo, stays of 24 hours or more with a known outcome, the first 24 hours of each. '5 regions': 1,571 "
        "stays of hospitals in four regions and of those without one; each fold tests on one. '117 hospitals': 1,170 stays "
        "of the hospitals with eight or more, a fold tests on a fifth of them.",
        *SETTLED[1:3],
        "Settings are those of veil/table-1, which were chosen on generated hospitals: no setting was chosen on the demo.",
        SETTLED[4],
    ),
    remarks=(
        "About 90% of the stays train, of which 9% died: intervals over five folds are wide, and most claims cannot be settled "
        "by so few patients.",
    ),
    keeps=promise,
    quick=Quick(
        {"method": {"rounds": 4}},
        points=(_FIVE["5 regions"],),
        arms=tuple(a.label for a in (FEDAVG, PRINTED, SCORE, CLIENT, NO_DP)),
    ),
    repeats=FOLDS,
)
