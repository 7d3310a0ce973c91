"""Uses of agreement weights: a site that has gone wrong, and sites that learn a shortcut."""

from __future__ import annotations

from typing import Any

from grandrounds_studies import charts
from grandrounds_studies.attack_measures import BAD_WEIGHT, CLEAN_DRIFT
from grandrounds_studies.claims import Test, all_hold, differs, inside, verdict
from grandrounds_studies.measures import ACCURACY, AUROC, DEPLOYED_SAM, DRIFT, MAJORITY, SAM, of_model
from grandrounds_studies.results import Results
from grandrounds_studies.sse_agg.setting import BASE, DIGITS, FEDAVG, OURS, PRINTED, QUICK, SYNTHETIC
from grandrounds_studies.sse_agg.skin import LESIONS
from grandrounds_studies.study import Arm, Claim, Headline, Point, Quick, Study, Verdict, merged

_WITHOUT = Arm("FedAvg of the others alone", {}, over={"attacks": [{"kind": "absent", "count": 1}]})
_DEFENCE = Arm("SSE-AGG as defence", {"method": {"name": "sse-agg", "preset": "defence"}})
"""Variates would hide a bad site, so the local regularization is the anchor alone."""

_SHARP = Arm(
    "SSE-AGG as printed, e=1, sharpness 4",
    {"method": {"name": "sse-agg", "stability": "none", "weigh": {"form": "inverse", "sharpness": 4.0}}},
)


def _robust(label: str, rule: str, **more: Any) -> Arm:
    settings: dict[str, Any] = {"rule": rule, "attackers": 1, **more}
    return Arm(label, {"method": {"name": "fedavg", "robust": settings, "reference": "rows"}})


_ROBUST = (
    _robust("Krum", "krum"),
    _robust("trimmed mean", "trimmed-mean", trim=0.2),
    _robust("median", "median"),
    _robust("FLTrust", "fltrust"),
)
_ATTACKS = ("label-shuffle", "label-flip", "sign-flip", "scale", "gaussian", "free-rider", "lie")


def _attacked(data: str, kind: str) -> Point:
    return Point(f"{data}, {kind}", {"data": {"name": data}, "attacks": [{"kind": kind, "count": 1}]}, group=data)


_POINTS = (
    *(_attacked(DIGITS, kind) for kind in _ATTACKS),
    *(_attacked(SYNTHETIC, kind) for kind in _ATTACKS[:2]),
)


def shut_out(point: str, *, weight: float, within: float) -> Test:
    """The bad site has less than this weight, and accuracy is within so much of FedAvg without it, interval included."""

    def test(found: Results, arm: str) -> Verdict:
        held = found.summary(point, arm, BAD_WEIGHT.name).mean
        pair = found.difference(point, arm, ACCURACY.name, _WITHOUT.label)
        why = f"weight {held:.2%}; {differs(found, point, arm, ACCURACY.name, pair, to=_WITHOUT.label)}"
        return all_hold([verdict(held < weight, why), inside(pair, why, low=-within)])

    return test


_ALL = (FEDAVG.label, *(a.label for a in _ROBUST), _SHARP.label, _DEFENCE.label, OURS.label)

OUTLIERS = Study(
    name="sse-agg/outliers",
    title="One bad site of five: the weight it gets, and what becomes of the others",
    headline=Headline("digits, label-shuffle", "SSE-AGG as defence", "bad_weight"),
    source="our own: the paper's related work names these rules and compares with none",
    unpublished="nothing to compare with: the paper has no attack",
    base=merged(BASE, {"split": {"alpha": 1.0}, "train": {"steps": 40}}),
    points=_POINTS,
    arms=(_WITHOUT, FEDAVG, *_ROBUST, _SHARP, _DEFENCE, OURS),
    measures=(BAD_WEIGHT, ACCURACY, MAJORITY, CLEAN_DRIFT),
    claims=(
        Claim(
            "shuffled labels at the largest of five near-IID sites: under 2% of the weight, and accuracy within 1 point of "
            "FedAvg without it, digits",
            "our goal",
            _ALL,
            shut_out(_attacked(DIGITS, "label-shuffle").label, weight=0.02, within=0.01),
        ),
        Claim(
            "the same on the synthetic table: under 5%, within 2 points",
            "our goal",
            _ALL,
            shut_out(_attacked(SYNTHETIC, "label-shuffle").label, weight=0.05, within=0.02),
        ),
        *(
            Claim(
                f"{kind}, {data}: under 5% of the weight and within 2 points",
                "our question",
                (_DEFENCE.label, OURS.label),
                shut_out(_attacked(data, kind).label, weight=0.05, within=0.02),
            )
            for data, kinds in ((DIGITS, _ATTACKS[1:]), (SYNTHETIC, _ATTACKS[1:2]))
            for kind in kinds
        ),
    ),
    settled=(
        "Five sites, Dirichlet 1.0, the largest attacks from the first round; one hidden layer of 64, 50 rounds of 40 local "
        "steps of SGD, learning rate 0.05. Weights are means of the last ten rounds; drift is between the other sites' models.",
        "Krum and trimmed mean are given one attacker; FLTrust's root set is the 200 labelled reference rows.",
        "'as defence' is SSE-AGG with preset 'defence': SCAFFOLD's variates, part of preset 'drift', take a bad site's "
        "gradients into everybody's steps and make its model look like the others', so no weight on models can keep it out.",
    ),
    draws=lambda results: [
        (f"Accuracy against weight: {p}", charts.fronts(results, [p], x=BAD_WEIGHT.name, y=ACCURACY.name))
        for p in results.points
    ],
    quick=Quick(
        QUICK,
        points=(_attacked(DIGITS, "label-shuffle").label,),
        arms=(_WITHOUT.label, FEDAVG.label, _DEFENCE.label),
    ),
)

_GAP = of_model("spurious_gap")
_HERE = Point("six sites, patch p 0.9", {}, group="ham10000-six")

SHORTCUTS = Study(
    name="sse-agg/shortcuts",
    title="Sites that learn a shortcut: robust rules against agreement, small CNN",
    headline=Headline("six sites, patch p 0.9", "SSE-AGG as defence", "spurious_gap"),
    source="our own: the paper's Experiment II with the rules that its related work names",
    unpublished="nothing to compare with: the paper reports no result of Experiment II",
    base=merged(
        LESIONS,
        {
            "model": {"name": "small-cnn"},
            "method": {"rounds": 15, "weigh": {"every": 1}},
            "train": {"lr": 1e-3},
            "engine": {"device": "cpu", "workers": 1},
        },
    ),
    points=(_HERE,),
    arms=(FEDAVG, *_ROBUST, PRINTED, _DEFENCE),
    measures=(AUROC, of_model("ood_auroc"), _GAP, ACCURACY, MAJORITY, SAM, DEPLOYED_SAM, DRIFT),
    claims=(),
    settled=(
        "As sse-agg/skin-lesions, but a small CNN with AdamW at 1e-3 for 15 rounds, so that it runs without a GPU. All six sites "
        "have the patch, at every third it means the opposite: there is no honest majority for a rule to find.",
    ),
    draws=lambda results: [
        ("ID against OOD", charts.fronts(results, results.points, x=_GAP.name, y="ood_auroc")),
    ],
    quick=Quick({"method": {"rounds": 1}, "explain": {"every": 1}}, arms=(FEDAVG.label, _DEFENCE.label)),
    seeds=3,
)
