"""Figures 1 and 2 of VEIL: methods on six axes at once, and what a budget costs."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds_studies.claims import Test, all_hold, all_of, down, in_settings, up, verdict
from grandrounds_studies.measures import AUROC, ECE
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FOLDS, Claim, Headline, Quick, Study, Verdict
from grandrounds_studies.veil import drawing
from grandrounds_studies.veil.claims import Place, above, apart, run_among, said
from grandrounds_studies.veil.measures import ALL, PAYLOAD, promise
from grandrounds_studies.veil.setting import (
    BASE,
    CLIENT,
    CLIENT_SCAFFOLD,
    EPSILONS,
    FEDAVG,
    MOON,
    NO_EPSILON,
    PAPER,
    PRINTED,
    QUICK,
    SCAFFOLD,
    SCORE,
    SECURE_MOMENTS,
    SETTLED,
    STEPS,
    at,
    label,
    without,
)
from grandrounds_studies.veil.table import PUBLISHED, REMARKS

_ONE, _FIVE = label(1), label(5)
_BOTH = (PRINTED.label, SCORE.label)


def dominates(point: str, others: Sequence[Place]) -> Test:
    """Clearly smaller ECE and a smaller payload than each of these; AUROC is reported beside them."""

    def test(found: Results, arm: str) -> Verdict:
        held = run_among(found, others)
        if not held:
            raise NotRun("none of those to beat was run")
        mine = [found.summary(point, arm, m.name).mean for m in (ECE, PAYLOAD, AUROC)]
        theirs = {a: [found.summary(p, a, m.name).mean for m in (ECE, PAYLOAD, AUROC)] for p, a in held}
        words = "; ".join(f"{a}: ECE {e:.4f}, {k:.0f} kB, AUROC {u:.3f}" for a, (e, k, u) in theirs.items())
        why = f"ECE {mine[0]:.4f}, {mine[1]:.1f} kB, AUROC {mine[2]:.3f}; {words}"
        pairs = [apart(found, (point, arm), place, ECE.name) for place in held]
        heavier = any(mine[1] > k for _, k, _ in theirs.values())
        return all_hold([verdict(not heavier, why), *(down(pair, why) for pair in pairs)])

    return test


_RADAR = (at(1, (PRINTED, SCORE, SECURE_MOMENTS, CLIENT)), at(5, (PRINTED, SCORE, SECURE_MOMENTS, CLIENT)))
_PLACES = [(p, a) for p in (_ONE, _FIVE) for a in (*_BOTH, SECURE_MOMENTS.label, CLIENT.label)]

FIGURE_1 = Study(
    name="veil/fig-1",
    title="Discrimination, calibration, traffic and privacy at once",
    headline=Headline("epsilon 5", "VEIL as printed (claims: patient, local)", "ece"),
    source=f"{PAPER}, Fig. 1",
    base=BASE,
    points=(*_RADAR, without((FEDAVG, MOON))),
    arms=(FEDAVG, PRINTED, SCORE, SECURE_MOMENTS, CLIENT, MOON),
    measures=ALL,
    published={k: v for k, v in PUBLISHED.items() if k in {*_PLACES, (NO_EPSILON, MOON.label)}},
    claims=(
        Claim(
            "VEIL (at both epsilon = 1 and epsilon = 5) excels on the axes of trustworthiness and efficiency: epsilon = 1",
            "Fig. 1",
            (*_BOTH, SECURE_MOMENTS.label),
            dominates(_ONE, [(_ONE, CLIENT.label), (NO_EPSILON, MOON.label)]),
        ),
        Claim(
            "VEIL (at both epsilon = 1 and epsilon = 5) excels on the axes of trustworthiness and efficiency: epsilon = 5",
            "Fig. 1",
            (*_BOTH, SECURE_MOMENTS.label),
            dominates(_FIVE, [(_FIVE, CLIENT.label), (NO_EPSILON, MOON.label)]),
        ),
    ),
    settled=(
        *SETTLED,
        "Axes as in the paper, each scaled from the worst to the best of the methods shown: 1 - ECE, log(1 / MB) of the "
        "payload both ways, 1 / epsilon (0 without). The second figure has the epsilon that holds, which for VEIL as printed "
        "is infinity.",
    ),
    remarks=REMARKS,
    draws=lambda results: drawing.radars(results, [*_PLACES, (NO_EPSILON, MOON.label)]),
    keeps=promise,
    quick=Quick(QUICK, points=(_FIVE, NO_EPSILON), arms=tuple(a.label for a in (FEDAVG, PRINTED, SCORE, CLIENT, MOON))),
    repeats=FOLDS,
)


def outperforms(points: Sequence[str], other: str) -> Test:
    """At each of the points AUROC is clearly above the other's."""

    def test(found: Results, arm: str) -> Verdict:
        pairs = {p: apart(found, (p, arm), (p, other)) for p in points if p in found.points}
        if not pairs:
            raise NotRun(f"it was not run at {' or '.join(points)}")
        worst = min(pairs, key=lambda p: pairs[p].difference)
        why = f"at {worst}: {said(found, (worst, arm), (worst, other), pairs[worst])}"
        return in_settings([up(pair, why) for pair in pairs.values()])

    return test


_CURVE = (PRINTED, SCORE, STEPS, CLIENT, SCAFFOLD, CLIENT_SCAFFOLD)
_LABELS = [label(e) for e in EPSILONS]

FIGURE_2 = Study(
    name="veil/fig-2",
    title="Cost of a budget: AUROC and AUPRC over epsilon",
    headline=Headline("epsilon 1", "VEIL as printed (claims: patient, local)", "auroc"),
    source=f"{PAPER}, Fig. 2",
    base=BASE,
    points=(*(at(e, _CURVE) for e in EPSILONS), without((FEDAVG,))),
    arms=(FEDAVG, *_CURVE),
    measures=ALL,
    published={k: v for k, v in PUBLISHED.items() if k[1] in {a.label for a in _CURVE}},
    claims=(
        Claim(
            "VEIL maintains high performance even at strict privacy levels (epsilon = 1) and outperforms DP-FedAvg",
            "Fig. 2",
            (*_BOTH, STEPS.label),
            outperforms(_LABELS, CLIENT.label),
        ),
        Claim(
            "the performance of DP-SCAFFOLD is significantly inferior (VEIL is clearly above it at epsilon = 5)",
            "Fig. 2",
            (*_BOTH, STEPS.label),
            all_of(above(_FIVE, (_FIVE, SCAFFOLD.label)), above(_FIVE, (_FIVE, CLIENT_SCAFFOLD.label))),
        ),
    ),
    settled=SETTLED,
    remarks=(
        "An epsilon of DP-FedAvg protects a whole hospital, but needs a server that sees every update; the others protect one "
        "stay and trust nobody. Lines of different units do not compare at equal epsilon.",
        *REMARKS,
    ),
    draws=drawing.curves,
    keeps=promise,
    quick=Quick(
        QUICK, points=(_ONE, _FIVE, NO_EPSILON), arms=tuple(a.label for a in (FEDAVG, PRINTED, SCORE, CLIENT, SCAFFOLD))
    ),
    repeats=FOLDS,
)
