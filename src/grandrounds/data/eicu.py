"""The eICU demo, one row a stay: death in hospital from the first 24 hours.

The demo has 2 to 17 such stays a hospital, too few to train on, so hospitals are gathered into
silos by region; a hospital whose region is not known goes to the silo "unknown".
The table is derived (vitals and laboratory values by the hour, summed up over the first day), so
there is no publisher to fetch it from.
"""

from __future__ import annotations

import numpy as np

from grandrounds.data.readers import read_table
from grandrounds.data.store import DataFile, locate
from grandrounds.data.table import Table

NAME = "eicu-demo"
FILE = DataFile(
    "eicu_demo/eicu_24h.csv.gz", "88519975956d50c54612440c90f118d5afee5ca7b6a3e2b14b13b09195542e4a", 408_883
)
LATER = ("apache_iva_score", "apache_iva_predicted_mortality", "unit_los_hours", "hours_observed",
         "in_hourly", "cohort24", "died_in_unit")  # fmt: skip
"""Known only after the first day, or a prediction itself: not in the table at all."""


def load() -> Table:
    """1,571 stays of at least 24 hours with a known outcome; `died_in_hospital` 1 in 138 of them."""
    table = read_table(locate(FILE, name=NAME))
    table = table.take(table.column("cohort24") == 1).without(LATER)
    region = table.column("region")
    silo = np.array(["unknown" if r is None else r for r in region], dtype=object)
    return Table({"silo": silo, **table.columns}, NAME)
