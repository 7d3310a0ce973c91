"""Why FedAdam looked broken (sec. 4.3): how long the server's step is, and what it divides by; a sweep that the thesis lacks."""

from __future__ import annotations

from typing import Any

from grandrounds_studies.claims import no_worse
from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import apart
from grandrounds_studies.fl_xai.measures import FIRST, OF_A_RUN, courses
from grandrounds_studies.fl_xai.setting import (
    ACCURACY_IS,
    AT,
    BASE,
    FEDAVG,
    HERE,
    INTERVALS,
    OURS,
    OWN,
    QUICK,
    SEEDS,
    SETTLED,
    THESIS,
)
from grandrounds_studies.fl_xai.strategies import FAR, OF_FLOWER
from grandrounds_studies.measures import ACCURACY
from grandrounds_studies.study import Arm, Claim, Headline, Quick, Study, merged

RATES = (0.001, 0.01, 0.1)
TAUS = (0.001, 0.01, 0.1)
NEAR = 0.02
"""Two points: "as accurate as FedAvg" is no more than this below."""


def _adam(label: str, **server: Any) -> Arm:
    return Arm(label, {"method": {"name": "fedadam", "server": server}})


OF_FLOWERS = _adam("as Flower has it", **OF_FLOWER["fedadam"])
SWEEP = tuple(_adam(f"eta {eta:g}, tau {tau:g}", lr=eta, tau=tau) for tau in TAUS for eta in RATES)
NO_MOMENTUM = tuple(_adam(f"eta {2 * tau:g}, tau {tau:g}, no momentum", lr=2 * tau, tau=tau, beta1=0.0) for tau in TAUS)
ADAMS = (OF_FLOWERS, *SWEEP, *NO_MOMENTUM)

STEPS = Study(
    name="fl-xai/steps",
    title="Why FedAdam looked broken: the length of the server's step, and what it is divided by",
    source=f"our own: {THESIS} has one FedAdam, Table 4.1",
    unpublished="nothing to compare with but .3229 for FedAdam and .6305 for FedAvg (Table 4.1)",
    headline=Headline(AT, SWEEP[-1].label, ACCURACY.name, "FedAdam is as accurate as FedAvg"),
    base=merged(BASE, OWN),
    points=(HERE,),
    arms=(FEDAVG, *ADAMS),
    measures=(*OF_A_RUN, FIRST),
    claims=(
        Claim(
            "FedAdam is as accurate as FedAvg (read as: at most two points below)",
            OURS,
            tuple(arm.label for arm in ADAMS),
            no_worse(ACCURACY.name, [AT], by=NEAR),
        ),
        Claim(
            "FedAdam is far below FedAvg, by ten points or more",
            OURS,
            tuple(arm.label for arm in ADAMS),
            apart(ACCURACY.name, AT, to=FEDAVG.label, by=FAR),
        ),
    ),
    settled=(
        *SETTLED,
        ACCURACY_IS,
        "The step for one weight is eta m / (sqrt(v) + tau), where m and v follow the mean update D and its square, and v begins "
        "at tau squared. Where D is small beside tau, it is eta / (2 tau) x m: with eta = 2 tau and no momentum it is D itself: "
        "FedAvg. Where D is large beside tau, its length is of the order of eta, whatever D is.",
        "Betas are 0.9 and 0.99; 'no momentum' has beta_1 = 0.",
        INTERVALS,
    ),
    remarks=("Settings are compared on the test images that they are judged by: the best of many is flattered.",),
    draws=lambda results: drawing.accuracy(results, "Accuracy by round"),
    keeps=courses,
    quick=Quick(QUICK, arms=tuple(a.label for a in (FEDAVG, OF_FLOWERS, SWEEP[-1]))),
    seeds=SEEDS,
)
