"""Sec. 4.8: one task at all sites, and two tasks in one net: ten classes at half of the sites, two at the others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from grandrounds_studies.claims import better, worse
from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import apart, at_each
from grandrounds_studies.fl_xai.looked import final_numbers, of_final
from grandrounds_studies.fl_xai.maps import CALLED, SHARP, WORDS, name_of
from grandrounds_studies.fl_xai.measures import number
from grandrounds_studies.fl_xai.setting import (
    BASE,
    KINDS,
    LENGTHS,
    LONG,
    LOOK,
    MANY_INTERVALS,
    MANY_SEEDS,
    MAPS,
    MEASURED,
    OURS,
    QUICK,
    SETTLED_BY_LENGTH,
    SHORT,
    source,
    training_lengths,
)
from grandrounds_studies.study import Arm, Claim, Headline, Measure, Quick, Study
from grandrounds_studies.xfed.claims import close
from grandrounds_studies.xfed.photos import TESTED

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

OTHERS = tuple(f"site-{k:02}" for k in range(2, 11, 2))
"""Every other site tells animals from vehicles; the others name the object."""

KIND: dict[str, Any] = {
    "classes": {
        "animal": ["bird", "cat", "deer", "dog", "frog", "horse"],
        "vehicle": ["airplane", "automobile", "ship", "truck"],
    }
}
SINGLE = Arm("single task", {})
MULTI = Arm("two tasks", {"tasks": {"kind": KIND}})
ALONE = Arm("single task, five sites alone", {"engine": {"absences": {site: [1, 999] for site in OTHERS}}})


def _main(run: Run) -> float:
    """Accuracy of the ten classes on the test images of those sites that name objects where there are two tasks."""
    if run.summary["tasks"]:
        return number(run.summary["tasks"]["main"]["accuracy"])
    held: Mapping[str, Mapping[str, float]] = {s: v for s, v in run.summary["per_site"].items() if s not in OTHERS}
    return sum(v["accuracy"] * v["count"] for v in held.values()) / sum(v["count"] for v in held.values())


def _kind(run: Run) -> float:
    return number(run.summary["tasks"].get("kind", {}).get("accuracy"))


TEN = Measure("ten_classes", "accuracy of the ten classes", _main, lower=False)
TWO = Measure("two_classes", "accuracy of animal or vehicle", _kind, lower=False)

TASKS = Study(
    name="fl-xai/4.8",
    title="One task and two in one net",
    source=source("4.8", "Figs. 4.36 to 4.38 and Table 4.6"),
    headline=Headline(LONG, MULTI.label, TEN.name, "accuracy is slightly lower"),
    base=BASE,
    points=training_lengths(),
    arms=(SINGLE, MULTI, ALONE),
    measures=(
        *(TEN, TWO),
        *final_numbers("concentration", "gini", without=OTHERS),
        of_final("grad_cam", "dark", without=OTHERS),
    ),
    published={
        (at, arm): {TEN.name: printed}
        for at in LENGTHS
        for arm, printed in ((SINGLE.label, 0.707), (MULTI.label, 0.697))
    },
    claims=(
        Claim(
            "accuracy is slightly lower with several tasks (69.7% against 70.7%; read as: clearly lower)",
            "Table 4.6",
            (MULTI.label,),
            at_each(LENGTHS, lambda at: worse(TEN.name, at)),
        ),
        Claim(
            "... by about a point (read as: by three at most)",
            "Table 4.6",
            (MULTI.label,),
            at_each(LENGTHS, lambda at: close(at, TEN.name, {MULTI.label: SINGLE.label}, within=0.03)),
        ),
        *(
            Claim(
                f"a stronger and more precise focus with several tasks (read as: {WORDS[figure][0]} of {CALLED[map]} is above)",
                "Table 4.6",
                (MULTI.label,),
                at_each(LENGTHS, partial(better, name_of(map, figure))),
            )
            for map in MAPS
            for figure in SHARP
        ),
        Claim(
            "the other task helps: clearly more accurate than the five sites alone",
            OURS,
            (MULTI.label,),
            at_each(LENGTHS, lambda at: apart(TEN.name, at, to=ALONE.label, by=-1e-9)),
        ),
    ),
    settled=(
        *SETTLED_BY_LENGTH,
        "The thesis does not name its tasks. Here sites 1, 3, 5, 7 and 9 name one of ten objects; the others tell animals from "
        "vehicles. One net with a shared body and a head for each task. 'Single task' has all ten sites name objects. In all "
        f"arms accuracy is on the test images of sites 1, 3, 5, 7 and 9, about {TESTED // 2:,}; the majority class alone is "
        "right on a tenth of ten classes, and on 60% of two.",
        "'Five sites alone' are the sites of the first task without the others: what the second task adds is to be compared with "
        "them, since with two tasks only half of the images have a name.",
        "Heat maps are of the final common model, on 80 test images of sites 1, 3, 5, 7 and 9, worked out from the finished "
        "runs; each is of one of the ten classes.",
        MEASURED,
        KINDS,
        LOOK,
        MANY_INTERVALS,
    ),
    remarks=(
        "Table 4.6 calls Grad-CAM of the single task 'localized in few regions' and of several tasks 'broader', and the latter "
        "also a 'more precise focus': both cannot be the better map.",
    ),
    draws=lambda results: drawing.side_by_side(results, (TEN, *final_numbers("concentration")), "Table 4.6"),
    quick=Quick({**QUICK, "split": {k: v for k, v in QUICK["split"].items() if k != "sites"}}, points=(SHORT,)),
    seeds=MANY_SEEDS,
)
