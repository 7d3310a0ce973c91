"""Uses of trust: the three largest of ten sites flip their labels, on their validation rows too."""

from __future__ import annotations

from typing import Any

from grandrounds_studies import charts
from grandrounds_studies.claims import best
from grandrounds_studies.fedxchain.claims import in_seeds, over, under
from grandrounds_studies.fedxchain.measures import FLIPPED_TRUST, FLIPPED_WEIGHT, HONEST_TRUST, NSDS, TESTED, TOLD_APART
from grandrounds_studies.fedxchain.setting import BASE, FEDAVG, PAPER, QUICK, SETTLED, UNIFORM
from grandrounds_studies.fedxchain.setting import ROBUST as PRESET
from grandrounds_studies.measures import ACCURACY, MACRO_F1, MAJORITY
from grandrounds_studies.study import Arm, Claim, Headline, Point, Quick, Study, merged

FLIPPED = 3


def _trusting(label: str, **trust: Any) -> Arm:
    return Arm(label, {"method": {"name": "fedxchain", "trust": trust}})


def _rule(label: str, rule: str) -> Arm:
    robust = {"rule": rule, "attackers": FLIPPED}
    return Arm(label, {"method": {"name": "fedavg", "robust": robust, "reference": "root"}})


WITHOUT = Arm("FedAvg of the others alone", FEDAVG.settings, over={"attacks": [{"kind": "absent", "count": FLIPPED}]})
AS_WRITTEN = _trusting("FedXChain, own accuracy", accuracy_at="site")
REFERENCE = _trusting("FedXChain, 40 reference rows", accuracy_at="reference")
BY_ROWS = _trusting("FedXChain, kappa 1", accuracy_at="reference", kappa=1.0)
ROBUST_BY_ROWS = _trusting("FedXChain robust, kappa 1", preset="robust", kappa=1.0)
KRUM, MEDIAN, FLTRUST = _rule("Krum", "krum"), _rule("median", "median"), _rule("FLTrust", "fltrust")

_TRUSTING = (AS_WRITTEN, REFERENCE, PRESET, BY_ROWS, ROBUST_BY_ROWS)
_HERE = Point(
    "3 largest of 10 flip labels",
    {"attacks": [{"kind": "label-flip", "count": FLIPPED, "validation": True}]},
    group="attacked",
)
_GOAL = "our goal"

ROBUST = Study(
    name="fedxchain/robust",
    title="The three largest of ten sites flip their labels: does trust catch them?",
    headline=Headline("3 largest of 10 flip labels", "FedXChain robust", "accuracy"),
    source=f"our own: {PAPER}, sec. III-G and VI-B, claims it and has no attack",
    unpublished="nothing to compare with: the paper has no attack",
    base=merged(BASE, {"train": {"lr": 0.1}}),
    points=(_HERE,),
    arms=(FEDAVG, WITHOUT, UNIFORM, *_TRUSTING, KRUM, MEDIAN, FLTRUST),
    measures=(ACCURACY, MAJORITY, MACRO_F1, FLIPPED_WEIGHT, FLIPPED_TRUST, HONEST_TRUST, TOLD_APART, NSDS, TESTED),
    claims=(
        Claim(
            "accuracy is above 95% (mean of ten seeds) ...",
            _GOAL,
            (PRESET.label, REFERENCE.label, AS_WRITTEN.label),
            over(ACCURACY.name, _HERE.label, 0.95),
        ),
        Claim("... where that of FedAvg is below 30%", _GOAL, (FEDAVG.label,), under(ACCURACY.name, _HERE.label, 0.3)),
        Claim(
            "every flipped site is trusted less than every honest one, in at least nine of ten seeds",
            _GOAL,
            (PRESET.label, REFERENCE.label, AS_WRITTEN.label),
            in_seeds(TOLD_APART.name, [_HERE.label], share=0.9),
        ),
        Claim(
            "the flipped sites have less than a tenth of the weight",
            _GOAL,
            tuple(a.label for a in _TRUSTING),
            under(FLIPPED_WEIGHT.name, _HERE.label, 0.1),
        ),
        Claim(
            "trust scores provide basic robustness (read as: clearly more accurate than a uniform mean, which ignores rows too)",
            "sec. VI-B",
            (AS_WRITTEN.label, REFERENCE.label, PRESET.label),
            best([ACCURACY.name], [_HERE.label], [UNIFORM.label]),
        ),
        Claim(
            "clearly more accurate than rules made against attackers",
            "our question",
            (PRESET.label,),
            best([ACCURACY.name], [_HERE.label], [KRUM.label, MEDIAN.label, FLTRUST.label]),
        ),
    ),
    settled=(
        *SETTLED,
        "Learning rate 0.1. The three sites with the most training rows flip all labels of training and validation rows from the "
        "first round; test rows are as they are. Weights are means over all rounds, trust is that of the last.",
        "'Own accuracy' is the default with accuracy on a site's own validation rows, as eq. 7 is written. Krum is given three "
        "attackers; FLTrust's root set is the 40 reference rows. kappa is the power of a site's rows in its weight.",
    ),
    remarks=(
        "By its own flipped rows a site looks right, and absolute SHAP values do not tell a model from its mirror image: as "
        "written, trust has nothing to see the attack by.",
        "Reference accuracy is the server's to measure here. With secure aggregation (privacy.secure) sites report it "
        "themselves: bad data are detected, false reports are not.",
    ),
    draws=lambda results: [
        ("Accuracy against weight", charts.fronts(results, results.points, x=FLIPPED_WEIGHT.name, y=ACCURACY.name)),
    ],
    quick=Quick(QUICK, arms=tuple(a.label for a in (FEDAVG, UNIFORM, AS_WRITTEN, PRESET))),
    seeds=10,
)
