"""Attacks that trust detects or misses: three of ten sites attack, each in one way, with and without secure aggregation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grandrounds_studies.fedxchain.claims import over
from grandrounds_studies.fedxchain.detection import CONTRIBUTED, DETECTED, roc_curves, trust_of_sites
from grandrounds_studies.fedxchain.measures import FLIPPED_TRUST, FLIPPED_WEIGHT, HONEST_TRUST
from grandrounds_studies.fedxchain.robust import AS_WRITTEN, FLIPPED, REFERENCE
from grandrounds_studies.fedxchain.setting import BASE, FEDAVG, PAPER, QUICK, SETTLED, UNIFORM
from grandrounds_studies.fedxchain.setting import ROBUST as PRESET
from grandrounds_studies.measures import ACCURACY, MAJORITY
from grandrounds_studies.study import Claim, Headline, Point, Quick, Study, merged

BAD_TRUST = replace(FLIPPED_TRUST, words="trust of attackers")
BAD_WEIGHT = replace(FLIPPED_WEIGHT, words="weight of attackers")

SEEN, MASKED = "the server sees models", "with secure aggregation"
CAUGHT = 0.9

_UNDER_MASKS = {"reference": {"root": {"sent": True}}, "privacy": {"secure": True}, "explain": {"at": "site"}}


def _point(label: str, *, masked: bool = False, **attack: Any) -> Point:
    attacks = {"attacks": [{"count": FLIPPED, **attack}]}
    settings = merged(_UNDER_MASKS, attacks) if masked else attacks
    return Point(label, settings, group=MASKED if masked else SEEN)


FLIP: dict[str, Any] = {"kind": "label-flip", "validation": True}
RIDER = _point("free rider", kind="free-rider")
PLAIN = (
    _point("flipped labels", **FLIP),
    _point("shuffled labels", kind="label-shuffle", validation=True),
    _point("update turned round", kind="sign-flip"),
    _point("update times 10", kind="scale"),
    RIDER,
    _point("boasts, trains honestly", kind="lie"),  # language: ok (the name of stored runs)
    _point("flipped labels, and lies", **FLIP, lies=True),
)
HIDDEN = (
    _point("masked: flipped labels", masked=True, **FLIP),
    _point("masked: update turned round", masked=True, kind="sign-flip"),
    _point("masked: flipped labels, and lies", masked=True, **FLIP, lies=True),
)
_TRUSTING = tuple(a.label for a in (AS_WRITTEN, REFERENCE, PRESET))


def _caught(point: Point) -> Claim:
    says = f"trust tells who attacks (area under the ROC curve at least {CAUGHT:g}): {point.label}"
    return Claim(says, "our question", _TRUSTING, over(DETECTED.name, point.label, CAUGHT - 1e-9))


ATTACKS = Study(
    name="fedxchain/attacks",
    title="Detection by trust: ways to attack, with the three largest of ten sites",
    headline=Headline("flipped labels", "FedXChain robust", "detected"),
    source=f"our own: {PAPER}, sec. VI-B, names attacks and tries none",
    unpublished="nothing to compare with: the paper has no attack",
    base=merged(BASE, {"train": {"lr": 0.1}}),
    points=(*PLAIN, *HIDDEN),
    arms=(FEDAVG, UNIFORM, AS_WRITTEN, REFERENCE, PRESET),
    measures=(ACCURACY, MAJORITY, DETECTED, CONTRIBUTED, BAD_TRUST, HONEST_TRUST, BAD_WEIGHT),
    claims=(
        *(_caught(point) for point in (*PLAIN, *HIDDEN)),
        Claim(
            f"what a site contributed tells a free rider (area at least {CAUGHT:g})",
            "our question",
            _TRUSTING,
            over(CONTRIBUTED.name, RIDER.label, CAUGHT - 1e-9),
        ),
    ),
    settled=(
        *SETTLED,
        "Learning rate 0.1. The three sites with the most training rows attack from the first round; test rows are as they are. "
        "The area under the ROC curve is that of the last round's trust as a detector: 1 where every attacker is trusted less "
        "than every honest site, 0.5 where trust says nothing, below where attackers are trusted more. 'Lies': the site says "
        "that it is always right, as steady as can be, and at one with the consortium's explanations.",
        "With secure aggregation the server sees no model: every site evaluates itself on the reference rows and reports its "
        "divergence.",
    ),
    remarks=(
        "A free rider sends back the consortium's own model: it is as accurate as that, and explains itself like it. Trust has "
        "nothing against it. Its contribution is another matter: the round would have gone further without it.",
    ),
    draws=roc_curves,
    keeps=trust_of_sites,
    quick=Quick(
        QUICK,
        points=("flipped labels", "masked: flipped labels, and lies"),
        arms=(FEDAVG.label, AS_WRITTEN.label, PRESET.label),
    ),
    seeds=10,
)
