"""SSE-AGG in its recommended private form: DP-SGD at the sites, and signals that the server works out on rows of its own."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds_studies import charts
from grandrounds_studies.claims import best
from grandrounds_studies.measures import ACCURACY, AUROC, DRIFT, JACCARD, LOG_LOSS, MAJORITY
from grandrounds_studies.privacy.claims import GOAL, costs, nothing_more
from grandrounds_studies.privacy.measures import EPSILON, promise
from grandrounds_studies.privacy.setting import (
    ARMS,
    BASE,
    DELTA,
    DIABETES,
    FEDAVG,
    HEART,
    ICU,
    LABELS,
    POINTS,
    PRIVATE,
    QUICK,
    ROUNDS,
)
from grandrounds_studies.privacy.setting import SSE_AGG as OPEN
from grandrounds_studies.results import Results
from grandrounds_studies.study import Claim, Headline, Quick, Study

_LARGE = (DIABETES.label, ICU.label)
_MOST = {1.0: 0.05, 3.0: 0.03, 8.0: 0.02}
"""Epsilon -> how much of AUROC the guarantee may cost where sites have hundreds of rows or thousands."""


def _by_epsilon(results: Results, point: str, measure: str) -> list[Figure]:
    """A measure over epsilon, a line for each method; what guarantees nothing is the same at every epsilon."""
    run = results.arms_at(point)
    drawn: dict[str, dict[float, charts.Triple]] = {}
    for k, free in enumerate((FEDAVG, OPEN)):
        held = {e: pair[k].label for e, pair in PRIVATE.items() if pair[k].label in run}
        drawn[f"{free.label}, DP-SGD"] = {e: charts.triple(results, point, arm, measure) for e, arm in held.items()}
        drawn[f"{free.label}, no guarantee"] = dict.fromkeys(held, charts.triple(results, point, free.label, measure))
    return [figures.setting_curves(drawn, measure, x="epsilon", title=point)]


def _draws(results: Results) -> Sequence[tuple[str, Sequence[Figure]]]:
    return [
        (f"{results.study.measure(m).words} over epsilon: {p}", _by_epsilon(results, p, m))
        for p in results.points
        for m in (AUROC.name, DRIFT.name)
    ]


SSE_AGG = Study(
    name="privacy/sse-agg",
    title="SSE-AGG with a guarantee for patients: what is charged, what it costs, and what is left of steadier explanations",
    headline=Headline("diabetes-130", "SSE-AGG, epsilon 1", "auroc"),
    source="our own: the paper has no formal guarantee",
    unpublished="nothing to compare with",
    base=BASE,
    points=POINTS,
    arms=ARMS,
    measures=(AUROC, ACCURACY, MAJORITY, LOG_LOSS, DRIFT, JACCARD, EPSILON),
    claims=(
        *nothing_more(PRIVATE.values(), LABELS),
        *(
            Claim(
                "training drift is clearly below that of FedAvg with DP-SGD at the same epsilon, everywhere",
                GOAL,
                (ours.label,),
                best((DRIFT.name,), LABELS, (theirs.label,)),
            )
            for theirs, ours in PRIVATE.values()
        ),
        *(
            Claim(
                "AUROC is nowhere more than 0.005 below that of FedAvg with DP-SGD at the same epsilon",
                GOAL,
                (ours.label,),
                costs(AUROC.name, LABELS, to=theirs.label, by=0.005),
            )
            for theirs, ours in PRIVATE.values()
        ),
        *(
            Claim(
                f"at epsilon = {e:g} the guarantee costs at most {_MOST[e]:g} of AUROC: {point}",
                GOAL,
                (ours.label,),
                costs(AUROC.name, (point,), to=OPEN.label, by=_MOST[e]),
            )
            for e, (_, ours) in PRIVATE.items()
            for point in (*_LARGE, HEART.label)
        ),
    ),
    settled=(
        "Data: diabetes-130 (99,343 real stays) at ten sites with Dirichlet 0.5 over labels; icu-cohort, 152 generated hospitals "
        "with 79,694 stays, a fifth of the hospitals kept for the test; heart, four real hospitals with 920 patients, to show "
        "where the limit is. Logistic regression.",
        f"{ROUNDS} rounds of one epoch. Under DP-SGD each row is in a step with chance 0.1, so a round has ten steps; delta is "
        f"{DELTA:g}, per patient (row), add/remove, noise at the sites, nobody is trusted. Sites with fewer than 50 training "
        "rows take no part then. Without a guarantee batches are of 64.",
        "200 rows (heart: 60) are set aside to compare local models on, as many others to anchor sites to; they are of no site "
        "in any arm, and their patients are not protected. Sketches are taken by the server on its own rows.",
        "SSE-AGG has its defaults: without a guarantee SCAFFOLD's variates with an anchor, under DP-SGD the anchor alone, of "
        "strength 3. That default was settled on seeds 101 to 103. Variates raised drift (diabetes-130, heart), a proximal pull "
        "cost AUROC (heart), and an anchor of 10 lowered drift more but cost 0.009 of AUROC on icu-cohort.",
        "Clip and learning rate under DP-SGD are the pair with the best AUROC of FedAvg at epsilon = 3 on other seeds than those "
        "that are reported (101; heart: 101 and 102), of five for diabetes-130 (clip 8, 0.1), three for icu-cohort (clip 8, "
        "0.03), three for heart (clip 1, 0.1); both methods and all epsilons share it, and no epsilon pays for the choice. "
        "Without a guarantee the learning rates are those of the recipes, not tuned.",
        "Inputs are scaled by usual clinical ranges, so that preparing them asks no patient anything; for diabetes-130 there are "
        "none, and the summaries by which its rows are prepared are not covered.",
    ),
    draws=_draws,
    keeps=promise,
    quick=Quick(
        QUICK,
        points=(HEART.label,),
        arms=(FEDAVG.label, OPEN.label, *(arm.label for arm in PRIVATE[3.0])),
    ),
)
