"""Sec. 4.9: do sites gain by sharing weights, as test images say it and as other sites' training images do?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grandrounds.report import figures
from grandrounds.report.style import heading, safe
from grandrounds_studies.claims import worse
from grandrounds_studies.fedxchain.claims import under
from grandrounds_studies.fedxchain.drawing import Drawn
from grandrounds_studies.fl_xai.claims import agree, at_each, beyond
from grandrounds_studies.fl_xai.distributions import dealt
from grandrounds_studies.fl_xai.drawing import round_record
from grandrounds_studies.fl_xai.measures import FIRST, accuracies, number
from grandrounds_studies.fl_xai.setting import (
    BASE,
    FEW_STEPS,
    LENGTHS,
    LONG,
    MANY_INTERVALS,
    MANY_SEEDS,
    OURS,
    SETTLED_BY_LENGTH,
    SHORT,
    source,
    training_lengths,
)
from grandrounds_studies.measures import ACCURACY
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell, Claim, Headline, Measure, Quick, Study, merged

if TYPE_CHECKING:
    from typing import Any

    from grandrounds.runs.run import Run

IID, NONIID, SEMI = dealt("IID", "equal"), dealt("NONIID", "shards"), dealt("SEMIID", "semi-iid")
_EVERY = (IID.label, NONIID.label, SEMI.label)
STATIC = 0.03
"""Points of accuracy over three rounds that count as "almost static"."""

NO_GAIN = 0.02


def _lent(name: str) -> Callable[[Run], float]:
    return lambda run: number(run.summary.get("local", {}).get(name))


def _rise(run: Run) -> float:
    held = accuracies(run)
    return held[-1] - held[0]


EXTERNAL = Measure("external", "local models on all test images", _lent("external"), lower=False)
OTHERS = Measure("others_train", "local models on other sites' training images", _lent("others_train"), lower=False)
OWN_ROWS = Measure("own_train", "local models on their own training images", _lent("train_accuracy"), lower=False)
GAIN = Measure(
    "gain", "common model above local ones", lambda run: ACCURACY.read(run) - _lent("external")(run), lower=False
)
RISE = Measure("rise", "accuracy's rise from round 1 to 3", _rise, lower=False)


def lent(run: Run) -> dict[str, Any]:
    """Return the data of the curves of local models: every round's scores, and how many rows sites have."""
    told = [
        {"round": r["round"], "local": r["local"], "test": {"accuracy": r["test"]["accuracy"]}}
        for r in run.rounds
        if r.get("local") and "test" in r
    ]
    return {"lent": told, "rows": run.summary["rows"]}


def _draws(results: Results) -> list[Drawn]:
    drawn = []
    for point, arm in ((p, a) for p in results.points for a in results.arms_at(p)):
        reading = results.readings.get(Cell(point, arm, 0))
        if reading is not None and reading.kept.get("lent"):
            figure = figures.crossed_curves([round_record(r) for r in reading.kept["lent"]], reading.kept["rows"])
            figure["layout"]["title"] = heading(safe(arm), f"{point}; seed 0; means over sites")
            figure["layout"]["yaxis"]["range"] = [0, 1]
            drawn.append(figure)
    return [("Fig. 4.39: local models, on whose images", drawn)] if drawn else []


SHARING = Study(
    name="fl-xai/4.9",
    title="Do sites gain by sharing weights? Test images and other sites' training images",
    source=source("4.9", "Fig. 4.39 and Table 4.7"),
    headline=Headline(LONG, NONIID.label, GAIN.name, "NONIID: no effective use"),
    unpublished="words and a plot only: Table 4.7 has 'excellent', 'very low, almost static' and 'moderate'",
    base=merged(BASE, {"method": {"rounds": 3}, "evaluation": {"local_models": "crossed"}}),
    points=training_lengths(),
    arms=(IID, NONIID, SEMI),
    measures=(ACCURACY, FIRST, RISE, EXTERNAL, OTHERS, OWN_ROWS, GAIN),
    claims=(
        Claim(
            "IID: accuracy increases steadily; SEMIID: gradual improvement (read as: clearly up over three rounds)",
            "Table 4.7",
            (IID.label, SEMI.label),
            at_each(LENGTHS, lambda at: beyond(RISE.name, at, 0.0)),
        ),
        Claim(
            f"NONIID: very low, almost static (read as: up by less than {100 * STATIC:.0f} points over three rounds)",
            "Table 4.7",
            (NONIID.label,),
            at_each(LENGTHS, lambda at: under(RISE.name, at, STATIC)),
        ),
        Claim(
            "NONIID: no effective use of shared weights, clients learn independently (read as: the common model is less than "
            f"{100 * NO_GAIN:.0f} points above local ones on test images)",
            "Table 4.7",
            (NONIID.label,),
            at_each(LENGTHS, lambda at: under(GAIN.name, at, NO_GAIN)),
        ),
        Claim(
            "SEMIID and NONIID are not as effective as IID (read as: clearly less accurate)",
            "sec. 4.9",
            (NONIID.label, SEMI.label),
            at_each(LENGTHS, lambda at: worse(ACCURACY.name, at)),
        ),
        Claim(
            "the two ways of evaluating say the same of local models (read as: within two points)",
            OURS,
            _EVERY,
            at_each(LENGTHS, lambda at: agree(EXTERNAL.name, at, with_=OTHERS.name, within=0.02)),
        ),
        Claim(
            "sharing weights pays: the common model is clearly above local ones on test images",
            OURS,
            _EVERY,
            at_each(LENGTHS, lambda at: beyond(GAIN.name, at, 0.0)),
        ),
    ),
    settled=(
        *SETTLED_BY_LENGTH,
        "Three rounds, as in the thesis. IID: equal sizes, classes at random. NONIID: two class shards a site ('only one or two "
        "specific classes'). SEMIID: 80% of a site's images are of one class. Test images are dealt in the same way.",
        "A local model is what a site has trained in the last round, before models are joined; it starts from the common one. "
        "'On all test images' and 'on other sites' training images' are worked out by the sites that hold these: sites share "
        "scores and never images (evaluation.local_models = 'crossed'), but every local model goes to every other site.",
        MANY_INTERVALS,
    ),
    remarks=(
        "Other sites' training images are images that the common model, which a local model starts from, has been trained "
        "on. From round 2 on they are no test of what is new to it; test images are.",
        "If sites share no class, a local model is right on none of the others' images, and all test images have some of "
        "its own classes among them: the two ways differ by how images are dealt, not by how good a model is.",
    ),
    draws=_draws,
    keeps=lent,
    quick=Quick(FEW_STEPS, points=(SHORT,), arms=(IID.label, NONIID.label)),
    seeds=MANY_SEEDS,
)
