"""Tables I and II of SSE-AGG, the only numbers its paper prints."""

from __future__ import annotations

from grandrounds_studies import charts
from grandrounds_studies.claims import alike, all_of, best, better, worse
from grandrounds_studies.measures import ACCURACY, AUPRC, AUROC, BRIER, DRIFT, ECE, JACCARD, MACRO_F1, MAJORITY
from grandrounds_studies.sse_agg.setting import (
    BASE,
    BASELINES,
    BOTH,
    BY_ACCURACY,
    DISTANCE,
    EMBEDDED,
    FEDAVG,
    FEW,
    OURS,
    PAPER,
    PRINTED,
    QUICK,
    SETTLED,
    TEXT,
    at,
)
from grandrounds_studies.study import Claim, Headline, Measure, Quick, Study, merged

_ONE = at(TEXT, 0.2)
_REPORTED = (ACCURACY, MACRO_F1, DRIFT, JACCARD)


def _row(measures: tuple[Measure, ...], *figures: float) -> dict[str, float]:
    return dict(zip((m.name for m in measures), figures, strict=True))


TABLE_1 = Study(
    name="sse-agg/table-1",
    title="Diabetes with embeddings: three classes of readmission at five clients",
    headline=Headline(
        "diabetes-130-text, alpha 0.2",
        "SSE-AGG as printed, e=0.5",
        "training_drift",
        claim="SSE-AGG at lambda = 0.5 achieves the best result on every reported metric: training drift",
    ),
    source=f"{PAPER}, sec. VII.E, Table I",
    base=BASE,
    points=(_ONE,),
    arms=(FEDAVG, DISTANCE, BY_ACCURACY, PRINTED, OURS),
    measures=(ACCURACY, MAJORITY, MACRO_F1, DRIFT, JACCARD),
    published={
        (_ONE.label, FEDAVG.label): _row(_REPORTED, 0.514, 0.501, 0.78, 0.41),
        (_ONE.label, DISTANCE.label): _row(_REPORTED, 0.511, 0.498, 0.74, 0.43),
        (_ONE.label, BY_ACCURACY.label): _row(_REPORTED, 0.516, 0.503, 0.71, 0.45),
        (_ONE.label, PRINTED.label): _row(_REPORTED, 0.523, 0.511, 0.54, 0.61),
    },
    claims=(
        *(
            Claim(
                f"SSE-AGG at lambda = 0.5 achieves the best result on every reported metric: {m.words}",
                "sec. VII.E",
                BOTH,
                best([m.name], [_ONE.label], BASELINES),
            )
            for m in _REPORTED
        ),
        Claim(
            "the parameter-distance and reference-accuracy baselines reduce drift modestly relative to FedAvg",
            "sec. VII.E",
            (DISTANCE.label, BY_ACCURACY.label),
            better(DRIFT.name, _ONE.label),
        ),
    ),
    settled=(*SETTLED, EMBEDDED),
    remarks=(
        "The published accuracies are below the share of the most common class, which is 0.539 of all 101,766 encounters: "
        "answering NO to everyone would be right more often.",
    ),
    draws=lambda results: [
        ("Table I as points", charts.fronts(results, results.points, x=DRIFT.name, y=ACCURACY.name))
    ],
    quick=Quick(QUICK, arms=FEW),
)

_BINARY = at("diabetes-130", 0.1)
_FINAL = (ACCURACY, AUROC, AUPRC, BRIER, ECE, DRIFT, JACCARD)

TABLE_2 = Study(
    name="sse-agg/table-2",
    title="Diabetes-130: readmission within 30 days at ten clients",
    headline=Headline("diabetes-130, alpha 0.1", "SSE-AGG as printed, e=0.5", "auroc"),
    source=f"{PAPER}, sec. VII.F, Table II",
    base=merged(
        BASE,
        {"split": {"sites": 10}, "method": {"rounds": 100, "weigh": {"every": 10}}, "explain": {"every": 10}},
    ),
    points=(_BINARY,),
    arms=(FEDAVG, PRINTED, OURS),
    measures=(ACCURACY, MAJORITY, AUROC, AUPRC, BRIER, ECE, DRIFT, JACCARD),
    published={
        (_BINARY.label, FEDAVG.label): _row(_FINAL, 0.8884, 0.4808, 0.1100, 0.1098, 0.0940, 1.7802, 0.1388),
        (_BINARY.label, PRINTED.label): _row(_FINAL, 0.8389, 0.5154, 0.1270, 0.1463, 0.1788, 1.7871, 0.1063),
    },
    claims=(
        Claim(
            "SSE-AGG improves discrimination under class imbalance: AUROC and AUPRC rise",
            "sec. VII.F",
            BOTH,
            all_of(better(AUROC.name, _BINARY.label), better(AUPRC.name, _BINARY.label)),
        ),
        Claim(
            "at the default threshold of 0.5, accuracy drops, and ECE worsens",
            "sec. VII.F",
            BOTH,
            all_of(worse(ACCURACY.name, _BINARY.label), worse(ECE.name, _BINARY.label)),
        ),
        Claim(
            "cross-client drift at convergence is similar for both methods (read as: within 10%)",
            "sec. VII.F",
            BOTH,
            alike(DRIFT.name, _BINARY.label, within=0.1),
        ),
    ),
    settled=(
        "The paper gives 10 clients, alpha = 0.1, 100 rounds, two local epochs and sketches every ten rounds. It does not give "
        "the rest: here as in its other experiment, an MLP with 64 hidden units, SGD with learning rate 0.05, batches of 32, "
        "200 reference rows, permutation sketches by log loss.",
        "Stays that end in death or in hospice care are left out, as nobody is readmitted after them: 99,343 of 101,766.",
        "Figures are of the final model; drift and Jaccard@5 are those of the last round.",
    ),
    remarks=(
        "The published FedAvg accuracy, 0.8884, is exactly the share of encounters without readmission: its model says no to "
        "everyone. Its AUROC of 0.4808 is below chance and its AUPRC of 0.1100 is the share of readmissions: a failed run.",
    ),
    draws=lambda results: [("Table II as points", charts.fronts(results, results.points, x=DRIFT.name, y=AUROC.name))],
    quick=Quick({"method": {"rounds": 2, "weigh": {"every": 1}}, "explain": {"every": 1}}),
)
