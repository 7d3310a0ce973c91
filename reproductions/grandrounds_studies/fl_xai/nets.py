"""Secs. 4.10 and 4.11: a small and a deeper net, and 2 to 20 sites: what becomes of accuracy and of heat maps."""

from __future__ import annotations

from functools import partial

from grandrounds_studies.claims import better, worse
from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import along, apart, at_each
from grandrounds_studies.fl_xai.maps import CALLED, SHARP, WORDS, alike, name_of, numbers, of_map
from grandrounds_studies.fl_xai.measures import LOCAL, courses
from grandrounds_studies.fl_xai.setting import (
    ACCURACY_IS,
    AT_SITES,
    BASE,
    EPOCHS,
    KINDS,
    LENGTHS,
    LONG,
    LOOK,
    MANY_INTERVALS,
    MANY_SEEDS,
    MAPPED,
    MAPS,
    MEASURED,
    OURS,
    OWN,
    QUICK,
    SETTLED_BY_LENGTH,
    SHORT,
    source,
    training_lengths,
)
from grandrounds_studies.measures import ACCURACY, LOG_LOSS, PARAMETERS
from grandrounds_studies.study import Arm, Claim, Headline, Quick, Study, merged

_BASE = merged(merged(BASE, MAPPED), OWN)
_NUMBERS = (
    *numbers("concentration", "gini", "deletion", "insertion"),
    of_map("grad_cam", "dark"),
    *(alike(m) for m in MAPS),
)
_LOCALS = tuple(of_map(m, "concentration", of="local") for m in MAPS)

SIMPLE = Arm("simple CNN", {"model": {"name": "small-cnn"}})
COMPLEX = Arm("complex CNN", {"model": {"name": "deep-cnn"}})

NETS = Study(
    name="fl-xai/4.10",
    title="A simple and a complex net",
    source=source("4.10", "Figs. 4.40 to 4.43 and Table 4.8"),
    headline=Headline(LONG, COMPLEX.label, ACCURACY.name, "the simple CNN is more accurate"),
    base=_BASE,
    points=training_lengths(),
    arms=(SIMPLE, COMPLEX),
    measures=(ACCURACY, LOG_LOSS, LOCAL, *_NUMBERS, *_LOCALS, PARAMETERS),
    published={
        (at, arm): {ACCURACY.name: printed}
        for at in LENGTHS
        for arm, printed in ((SIMPLE.label, 0.65), (COMPLEX.label, 0.57))
    },
    claims=(
        Claim(
            "the simple CNN is more accurate than the complex one (.65 against .57)",
            "Table 4.8",
            (COMPLEX.label,),
            at_each(LENGTHS, lambda at: worse(ACCURACY.name, at)),
        ),
        *(
            Claim(
                f"the complex CNN's maps are sharper and better focused (read as: {WORDS[figure][0]} of {CALLED[map]} is above)",
                "Table 4.8",
                (COMPLEX.label,),
                at_each(LENGTHS, partial(better, name_of(map, figure))),
            )
            for map in MAPS
            for figure in SHARP
        ),
        *(
            Claim(
                f"the complex CNN's maps find what the class hangs on better: insertion of {CALLED[map]} is above",
                OURS,
                (COMPLEX.label,),
                at_each(LENGTHS, partial(better, name_of(map, "insertion"))),
            )
            for map in MAPS
        ),
    ),
    settled=(
        *SETTLED_BY_LENGTH,
        "The thesis does not describe its complex net. Ours has six convolutions of 3 x 3 in three blocks with group norm, 32 to "
        "128 wide, and two dense layers: a short VGG of 814,570 parameters.",
        ACCURACY_IS,
        MEASURED,
        AT_SITES,
        KINDS,
        LOOK,
        MANY_INTERVALS,
    ),
    remarks=(
        "A net that is more sure of a class has a higher insertion whatever its maps are, so insertions of two nets are to be "
        "read beside their accuracies. Grad-CAM and NormGrad of the simple net are maps of 10 x 10, of the complex net of 8 x "
        "8.",
    ),
    draws=lambda results: [
        *drawing.accuracy(results, "Figs. 4.40 and 4.41"),
        *drawing.side_by_side(results, (ACCURACY, *numbers("concentration")), "Table 4.8"),
    ],
    keeps=courses,
    quick=Quick(QUICK, points=(SHORT,)),
    seeds=MANY_SEEDS,
)

COUNTS = (2, 5, 10, 20)
SITES = tuple(Arm(f"{n} sites", {"split": {"sites": n}}) for n in COUNTS)
TENFOLD = COUNTS[-1] // COUNTS[0]
AS_LONG = Arm("20 sites, as many steps as 2", {"split": {"sites": 20}})
_LABELS = tuple(a.label for a in SITES)
_POINTS = training_lengths(lambda n: {AS_LONG.label: {"train": {"epochs": TENFOLD * n}}})
_X = dict(zip(_LABELS, map(float, COUNTS), strict=True))
_QUICK_SITES = {k: v for k, v in QUICK["split"].items() if k != "sites"}

NUMBER_OF_SITES = Study(
    name="fl-xai/4.11",
    title="2, 5, 10 and 20 sites",
    source=source("4.11", "Figs. 4.44 to 4.48 and Table 4.9"),
    headline=Headline(LONG, _LABELS[-1], ACCURACY.name, "accuracy falls"),
    base=_BASE,
    points=_POINTS,
    arms=(*SITES, AS_LONG),
    measures=(ACCURACY, LOG_LOSS, LOCAL, *_NUMBERS, *_LOCALS),
    published={
        (at, arm): {ACCURACY.name: printed}
        for at in LENGTHS
        for arm, printed in zip(_LABELS, (0.74, 0.70, 0.65, 0.58), strict=True)
    },
    claims=(
        Claim(
            "accuracy falls with the number of clients (.74, .70, .65, .58)",
            "Table 4.9",
            (_LABELS[-1],),
            at_each(LENGTHS, lambda at: along(ACCURACY.name, at, _LABELS, falling=True)),
        ),
        *(
            Claim(
                "with 10 and 20 clients heat maps are much more focused than with 2 (read as: concentration of "
                f"{CALLED[map]} rises with the number of clients)",
                "Table 4.9",
                (_LABELS[-1],),
                at_each(LENGTHS, partial(along, name_of(map, "concentration"), arms=_LABELS, falling=False)),
            )
            for map in MAPS
        ),
        Claim(
            "it is the small share of images that costs accuracy (read as: 20 sites that take as many steps a round as 2 do "
            "are still clearly below those)",
            "sec. 4.11",
            (AS_LONG.label,),
            at_each(LENGTHS, lambda at: apart(ACCURACY.name, at, to=_LABELS[0], by=1e-9)),
        ),
        Claim(
            "more steps a round make up for more sites: clearly above 20 sites with fewer",
            OURS,
            (AS_LONG.label,),
            at_each(LENGTHS, lambda at: apart(ACCURACY.name, at, to=_LABELS[-1], by=-1e-9)),
        ),
    ),
    settled=(
        *SETTLED_BY_LENGTH,
        ACCURACY_IS,
        "As many epochs a round for any number of sites, so that 20 sites take a tenth of the steps that 2 take in a round. '20 "
        f"sites, as many steps as 2' has {TENFOLD} times as many: {', '.join(str(TENFOLD * n) for n in EPOCHS)}.",
        MEASURED,
        AT_SITES,
        KINDS,
        LOOK,
        MANY_INTERVALS,
    ),
    remarks=(
        "The thesis has .65 with ten sites here, .63 in sec. 4.3 and 4.4, .74 in Tables 4.1 and 4.3, .707 in sec. 4.8 and .7181 "
        "in sec. 4.12, of what is said to be the same run.",
    ),
    draws=lambda results: [
        *drawing.accuracy(results, "Fig. 4.44"),
        (
            "Accuracy and concentration over the number of sites",
            [
                figure
                for at in results.points
                for m in (ACCURACY, *numbers("concentration"))
                for figure in drawing.over(results, at, m, _X, x="sites")
            ],
        ),
    ],
    keeps=courses,
    quick=Quick(
        merged({k: v for k, v in QUICK.items() if k != "split"}, {"split": _QUICK_SITES}),
        points=(SHORT,),
        arms=_LABELS[:3],
    ),
    seeds=MANY_SEEDS,
)
