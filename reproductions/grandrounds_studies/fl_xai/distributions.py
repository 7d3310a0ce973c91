"""Sec. 4.4: FedAvg where images are dealt equally, by random sizes, unequally; and by class shards, which the thesis lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds_studies.claims import worse
from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import along, apart, tops
from grandrounds_studies.fl_xai.measures import FIRST, LOCAL, OF_A_RUN, SPREAD, courses
from grandrounds_studies.fl_xai.setting import (
    ACCURACY_IS,
    AT,
    BASE,
    FEW_STEPS,
    HERE,
    INTERVALS,
    OURS,
    OWN,
    SEEDS,
    SETTLED,
    source,
)
from grandrounds_studies.measures import ACCURACY, LOG_LOSS, WORST_SITE
from grandrounds_studies.study import Arm, Claim, Headline, Quick, Study, merged


def dealt(label: str, kind: str, **more: Any) -> Arm:
    """An arm is a way of dealing images to sites: it lies over whatever a quick version changes."""
    return Arm(label, {}, over={"split": {"partition": kind, **more}})


EQUAL, RANDOM = dealt("equal", "equal"), dealt("random", "random")
UNEQUAL = dealt("unequal", "unequal", alpha=0.5)
SHARDS, SEMI = dealt("two class shards a site", "shards"), dealt("80% of one class", "semi-iid")

CLIENTS = {
    EQUAL.label: (0.7467, 0.7443, 0.7517, 0.7587, 0.7402, 0.7545, 0.7546, 0.7473, 0.7417, 0.7374),
    RANDOM.label: (0.7459, 0.7413, 0.7423, 0.7425, 0.746, 0.7446, 0.7461, 0.7418, 0.7341, 0.7341),
    UNEQUAL.label: (0.7288, 0.7317, 0.7107, 0.7271, 0.7019, 0.7081, 0.7103, 0.7222, 0.7226, 0.7217),
}
"""Figs. 4.15, 4.17 and 4.19: the training accuracy of each client."""

GLOBAL = {EQUAL.label: 0.6288, RANDOM.label: 0.6171, UNEQUAL.label: 0.5633}
PUBLISHED = {
    (AT, arm): {
        ACCURACY.name: GLOBAL[arm],
        LOCAL.name: round(float(np.mean(clients)), 4),
        SPREAD.name: round(float(np.std(clients)), 4),
    }
    for arm, clients in CLIENTS.items()
}

DISTRIBUTIONS = Study(
    name="fl-xai/4.4",
    title="How images are dealt to sites",
    source=source("4.4", "Figs. 4.14 to 4.20 and Table 4.2"),
    headline=Headline(AT, UNEQUAL.label, ACCURACY.name, "equal yields the best"),
    base=merged(BASE, OWN),
    points=(HERE,),
    arms=(EQUAL, RANDOM, UNEQUAL, SHARDS, SEMI),
    measures=(*OF_A_RUN, WORST_SITE, FIRST),
    published=PUBLISHED,
    claims=(
        Claim(
            "equal yields the best results, random is moderate, unequal is the most problematic (.6288, .6171, .5633)",
            "Table 4.2, Figs. 4.15 to 4.19",
            (UNEQUAL.label,),
            along(ACCURACY.name, AT, (EQUAL.label, RANDOM.label, UNEQUAL.label), falling=True),
        ),
        Claim(
            "random is clearly less accurate than equal",
            "sec. 4.4, conclusion",
            (RANDOM.label,),
            worse(ACCURACY.name, AT),
        ),
        Claim(
            "unequal: the gaps between clients are larger (training accuracy)",
            "Table 4.2",
            (UNEQUAL.label,),
            worse(SPREAD.name, AT),
        ),
        Claim(
            "clients achieve .73 to .75 where the central model has .54 (read as: the former is on training images, and above)",
            "Table 4.2",
            (EQUAL.label, RANDOM.label, UNEQUAL.label),
            tops(LOCAL.name, AT, than=ACCURACY.name),
        ),
        Claim(
            "skewed classes cost more than skewed sizes: clearly less accurate than random sizes",
            OURS,
            (SHARDS.label, SEMI.label),
            apart(ACCURACY.name, AT, to=RANDOM.label, by=1e-9),
        ),
        Claim(
            "training accuracy, which the thesis watches, shows the harm too: clearly below equal's",
            OURS,
            (UNEQUAL.label, SHARDS.label, SEMI.label),
            worse(LOCAL.name, AT),
        ),
    ),
    settled=(
        *SETTLED,
        ACCURACY_IS,
        "Equal: equal sizes, classes at random. Random: sizes are Dirichlet(1), classes at random. Unequal: sizes go as 1, 2, "
        "... 10, the classes of each site are Dirichlet(0.5). The thesis says 'randomly, without ensuring balance' and 'unequal "
        "quantities, possibly skewed towards specific classes'. Two class shards a site and 80% of one class are ours. Test "
        "images are dealt in the same way.",
        INTERVALS,
    ),
    remarks=(
        "The thesis has two numbers for one thing: the central model has .54, .52 and .46 in Table 4.2, and .6288, .6171 and "
        ".5633 in the tables of clients. The latter are set beside ours.",
    ),
    draws=lambda results: [
        *drawing.accuracy(results, "Fig. 4.14"),
        *drawing.side_by_side(results, (ACCURACY, LOG_LOSS, LOCAL), "Table 4.2"),
        *drawing.sites(results, "Figs. 4.16 to 4.20"),
    ],
    keeps=courses,
    quick=Quick(FEW_STEPS, arms=(EQUAL.label, UNEQUAL.label, SHARDS.label), seeds=2),
    seeds=SEEDS,
)
