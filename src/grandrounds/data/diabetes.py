"""UCI Diabetes 130-US hospitals, 1999-2008: will a diabetic inpatient be back within 30 days?

The publisher's file does not tell its 130 hospitals apart, so sites are made by a partition. Stays
that ended in death or hospice care are left out: those patients cannot come back.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.store import DataFile, locate
from grandrounds.data.table import Table

NAME = "diabetes-130"
FILE = DataFile(
    "diabetes130/diabetic_data.csv",
    "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97",
    19_159_383,
    url="https://archive.ics.uci.edu/static/public/296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
    member="diabetic_data.csv",
    also=(
        DataFile(
            "diabetes130/diabetic_data.csv.gz",
            "356486d63457b04802fd827134ba7234a8d58d96b2bf0c1448f2b52221b4d0a1",
            3_031_652,
        ),
    ),
)

GONE = ("11", "13", "14", "19", "20", "21")  # discharge_disposition_id: died, or to a hospice
AGES = [f"[{a}-{a + 10})" for a in range(0, 100, 10)]
NUMBERS = ("time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient",
           "number_emergency", "number_inpatient", "number_diagnoses")  # fmt: skip
CODES = ("admission_type_id", "discharge_disposition_id", "admission_source_id")
DIAGNOSES = ("diag_1", "diag_2", "diag_3")
TESTS = ("max_glu_serum", "A1Cresult")

_CHAPTERS = (
    ("circulatory", ((390, 459), (785, 785))),
    ("respiratory", ((460, 519), (786, 786))),
    ("digestive", ((520, 579), (787, 787))),
    ("diabetes", ((250, 250),)),
    ("injury", ((800, 999),)),
    ("musculoskeletal", ((710, 739),)),
    ("genitourinary", ((580, 629), (788, 788))),
    ("neoplasms", ((140, 239),)),
)
_CODE = re.compile(r"\d+")


def chapter(icd9: str) -> str:
    """One of the nine groups of Strack et al. (2014, table 2); E and V codes are "other"."""
    whole = _CODE.match(icd9)
    if whole:
        number = int(whole[0])
        for name, ranges in _CHAPTERS:
            if any(low <= number <= high for low, high in ranges):
                return name
    return "other"


def load() -> Table:
    """99,343 stays; `readmitted_30` "yes" (11,314) or "no"."""
    return _load(lambda outcome: {"readmitted_30": _mapped(outcome, lambda word: "yes" if word == "<30" else "no")})


def load_3class() -> Table:
    """99,343 stays; `readmitted` "NO" (52,527), ">30" (35,502) or "<30" (11,314)."""
    return _load(lambda outcome: {"readmitted": outcome})
