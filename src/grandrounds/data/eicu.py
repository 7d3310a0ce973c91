"""The eICU demo, one row a stay: death in hospital from the first 24 hours.

The demo has 2 to 17 such stays a hospital, too few to train on, so hospitals are gathered into
silos by region; a hospital whose region is not known goes to the silo "unknown". For methods that
ask many small sites there are the hospitals themselves, those with at least `FEWEST` stays.
The table is derived (vitals and laboratory values by the hour, summed up over the first day): `eicu_demo.py` makes
it from public files.
"""

from __future__ import annotations

import numpy as np

from grandrounds.data import eicu_demo, sources
from grandrounds.data.formats import PLAIN
from grandrounds.data.readers import read_table
from grandrounds.data.store import DataFile, locate
from grandrounds.data.table import Table

NAME = "eicu-demo"
HOSPITALS = "eicu-demo-hospitals"
FILE = DataFile(
    "eicu_demo/eicu_24h.csv.gz",
    "88519975956d50c54612440c90f118d5afee5ca7b6a3e2b14b13b09195542e4a",
    408_883,
    also=(DataFile(eicu_demo.KNOWN, eicu_demo.SHA256, 1_320_851), DataFile(eicu_demo.OTHER, None, 1_320_851)),
    build=sources.EICU_DEMO,
)
LATER = ("apache_iva_score", "apache_iva_predicted_mortality", "unit_los_hours", "hours_observed",
         "in_hourly", "cohort24", "died_in_unit")  # fmt: skip
"""Known only after the first day, or a prediction itself: not in the table at all."""
FEWEST = 8
"""Stays of the smallest hospital in `load_hospitals`."""


def load() -> Table:
    """1,571 stays of at least 24 hours with a known outcome; `died_in_hospital` 1 in 138 of them."""
    table = read_table(locate(FILE, name=NAME), form=PLAIN)
    table = table.take(table.column("cohort24") == 1).without(LATER)
    region = table.column("region")
    silo = np.array(["unknown" if r is None else r for r in region], dtype=object)
    return Table({"silo": silo, **table.columns}, NAME)


def load_hospitals() -> Table:
    """1,170 of those stays, at the 117 hospitals that have eight or more; 101 died."""
    table = load().without(("silo",))
    _, at, stays = np.unique(table.column("hospitalid"), return_inverse=True, return_counts=True)
    return Table(table.take(stays[at] >= FEWEST).columns, HOSPITALS)
