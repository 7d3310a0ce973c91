"""Sec. 4.5: all sites in every round, the thesis's "asynchronous" run of five sites, and methods that do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import arm_colour
from grandrounds.report.style import layout, safe
from grandrounds_studies.claims import falls, worse
from grandrounds_studies.fedxchain.drawing import Drawn
from grandrounds_studies.fl_xai.measures import FIRST_LOCAL, LOCAL, SPREAD, number
from grandrounds_studies.fl_xai.setting import ACCURACY_IS, AT, BASE, HERE, INTERVALS, OURS, OWN, SEEDS, SETTLED, source
from grandrounds_studies.measures import ACCURACY, LOG_LOSS
from grandrounds_studies.results import Results
from grandrounds_studies.study import Arm, Cell, Claim, Headline, Measure, Quick, Study, merged

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

HALF = 5
BEHIND = {f"site-{k:02}": [1, 999] for k in range(HALF + 1, 2 * HALF + 1)}
"""Sites that never take part in the thesis's run: five clients with an accuracy of 0.0000."""


def _arm(label: str, name: str, *, rounds: int, every: int = 1, **more: Any) -> Arm:
    method = {"name": name, "rounds": rounds, **more}
    return Arm(label, {"method": method, "evaluation": {"every": every}})


SYNC = _arm("sync", "fedavg", rounds=10)
THEIRS = Arm("async as the thesis ran it", merged(SYNC.settings, {"engine": {"absences": BEHIND}}))
_DRAWN: dict[str, Any] = {"select": {"rule": "random", "fraction": 0.5}}
FIVE = _arm("5 of 10, drawn anew", "fedavg", rounds=10, **_DRAWN)
FIVE_LONGER = _arm("5 of 10, 20 rounds", "fedavg", rounds=20, every=2, **_DRAWN)
FEDASYNC = _arm("FedAsync", "fedasync", rounds=100, every=10)
FEDBUFF = _arm("FedBuff", "fedbuff", rounds=20, every=2, buffer=HALF)
_REAL = (FEDASYNC.label, FEDBUFF.label)


def updates(run: Run, *, until: int | None = None) -> int:
    """Local models that went into the common one, up to a round."""
    return sum(len(r["decision"]["weights"]) for r in run.rounds if until is None or r["round"] <= until)


UPDATES = Measure("updates", "local updates", lambda run: float(updates(run)), digits=0)
CLOCK = Measure(
    "virtual_seconds",
    "virtual seconds",
    lambda run: float(run.summary["cost"]["virtual_seconds"]),
    lower=True,
    digits=1,
)


def course(run: Run) -> dict[str, Any]:
    """Local updates, virtual seconds and accuracy in rounds that were judged."""
    judged = [r for r in run.rounds if "test" in r]
    told = [
        [updates(run, until=r["round"]), number(r["virtual_seconds"]), number(r["test"]["accuracy"])] for r in judged
    ]
    return {"course": told}


def _over(results: Results, column: int, x: str) -> Figure | None:
    """Accuracy of seed 0 over the work done or over the time taken, one line an arm."""
    traces = []
    for k, arm in enumerate(results.arms_at(AT)):
        reading = results.readings.get(Cell(AT, arm, 0))
        if reading is not None and reading.kept.get("course"):
            told = reading.kept["course"]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": safe(arm),
                    "x": [row[column] for row in told],
                    "y": [row[2] for row in told],
                    "line": {"color": arm_colour(k), "width": 2},
                    "marker": {"size": 5},
                    "hovertemplate": f"{x} %{{x:.1f}}: %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
                }
            )
    shape = layout(f"Accuracy over {x}", note="seed 0", x=x, y="accuracy, test images", height=400)
    return Figure(traces, shape) if traces else None


def _draws(results: Results) -> list[Drawn]:
    drawn = [_over(results, 0, "local updates"), _over(results, 1, "virtual seconds")]
    return [("Fig. 4.21: accuracy, by work and by time", [f for f in drawn if f is not None])]


PUBLISHED = {
    (AT, SYNC.label): {LOCAL.name: 0.74, FIRST_LOCAL.name: 0.37},
    (AT, THEIRS.label): {LOCAL.name: 0.70, FIRST_LOCAL.name: 0.40},
}

ASYNCHRONY = Study(
    name="fl-xai/4.5",
    title="Waiting for all sites, for some, and for none",
    source=source("4.5", "Figs. 4.21 to 4.24 and Table 4.3"),
    headline=Headline(AT, THEIRS.label, ACCURACY.name, "sync achieves"),
    base=merged(merged(BASE, OWN), {"engine": {"speed_spread": 0.5}}),
    points=(HERE,),
    arms=(SYNC, THEIRS, FIVE, FIVE_LONGER, FEDASYNC, FEDBUFF),
    measures=(ACCURACY, LOG_LOSS, LOCAL, FIRST_LOCAL, SPREAD, UPDATES, CLOCK),
    published=PUBLISHED,
    claims=(
        Claim(
            "sync achieves a higher final accuracy than async (.74 against .70; read as: clearly)",
            "sec. 4.5",
            (THEIRS.label,),
            worse(ACCURACY.name, AT),
        ),
        Claim(
            "... also where sites really answer when they are done, with as many local updates",
            OURS,
            _REAL,
            worse(ACCURACY.name, AT),
        ),
        Claim(
            "... and where five of ten sites are drawn anew in each round, with as many local updates",
            OURS,
            (FIVE_LONGER.label,),
            worse(ACCURACY.name, AT),
        ),
        Claim(
            "in sync the accuracy of clients is uniform, in async it varies much (read as: a clearly larger deviation)",
            "Table 4.3",
            (THEIRS.label,),
            worse(SPREAD.name, AT),
        ),
        Claim(
            "async is preferable when faster training is required (read as: clearly less time for as many local updates)",
            "sec. 4.5, conclusion",
            _REAL,
            falls(CLOCK.name, AT),
        ),
    ),
    settled=(
        *SETTLED,
        ACCURACY_IS,
        "'Async as the thesis ran it': its Fig. 4.24 has an accuracy of 0.0000 for clients 5 to 9 and .7370 to .7527 for the "
        "others, so five of ten sites take part in every round and five never do; nothing is stale. FedAsync (Xie et al. 2019) "
        "mixes in each answer as it arrives, with a share of 0.6 that falls with the root of its age; FedBuff (Nguyen et al. "
        "2022) takes a step for every five answers.",
        "A virtual clock: a site's training takes log-normal seconds, with a deviation of 0.5, drawn once for each site. All but "
        "the first two arms of five sites get 100 local updates, as ten rounds of ten sites have; those two get 50. Training "
        "accuracy is each site's newest that is known, and FedAsync's is looked at after every tenth answer only.",
        INTERVALS,
    ),
    remarks=(
        "The text of sec. 4.5 says that clients' accuracies in async ranged from .68 to .72; its Fig. 4.24 has .7370 to .7527 "
        "for the five that took part. Sync's are .7431 to .7566.",
    ),
    draws=_draws,
    keeps=course,
    quick=Quick(
        {
            "split": {"partition": "grandrounds_studies.xfed.cost:a_few", "official": False},
            "method": {"rounds": 4},
            "train": {"steps": 3},
            "evaluation": {"every": 2},
        },
        arms=(SYNC.label, THEIRS.label, FEDASYNC.label, FEDBUFF.label),
    ),
    seeds=SEEDS,
)
