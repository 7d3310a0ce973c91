"""UCI Diabetes 130-US hospitals, 1999-2008: will a diabetic inpatient be back within 30 days?

The publisher's file does not tell its 130 hospitals apart, so sites are made by a partition. Stays
that ended in death or hospice care are left out: those patients cannot come back.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable

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
WIDTH = 50  # columns
NUMBERS = ("encounter_id", "patient_nbr", "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient",
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
    return Table(_columns("readmitted_30", lambda word: "yes" if word == "<30" else "no"), NAME)


def load_3class() -> Table:
    """99,343 stays; `readmitted` "NO" (52,527), ">30" (35,502) or "<30" (11,314)."""
    return Table(_columns("readmitted", str), f"{NAME}-3class")


class _Words(dict[str, str | None]):
    """Cell -> what it becomes, asked once for each distinct cell; "?" is no value."""

    def __init__(self, word_of: Callable[[str], str]) -> None:
        super().__init__({"?": None})
        self.word_of = word_of

    def __missing__(self, cell: str) -> str:
        self[cell] = word = self.word_of(cell)
        return word


def _columns(label: str, outcome: Callable[[str], str]) -> dict[str, Array]:
    """Every column, without the rows of those who died, the diagnoses in groups, the outcome as `label`.

    The digest says which file this is, and that file quotes nothing: one split of the whole text
    into cells, every 50th of which is a column, is several times as fast as a CSV reader.
    """
    path = locate(FILE, name=NAME)
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("ascii").replace("\r\n", ",")
    cells = text.rstrip(",").split(",")
    names = cells[:WIDTH]
    words: dict[str, Callable[[str], str]] = {"readmitted": outcome}
    words |= dict.fromkeys(DIAGNOSES, chapter)
    words |= dict.fromkeys(TESTS, lambda word: "not measured" if word == "None" else word)
    columns: dict[str, Array] = {}
    for i, name in enumerate(names):
        column = cells[WIDTH + i :: WIDTH]
        if name in NUMBERS:
            columns[name] = np.array(column, dtype=np.float64)
        else:
            known = _Words(words.get(name, str))
            columns[name] = np.fromiter(map(known.__getitem__, column), dtype=object, count=len(column))
    columns[label] = columns.pop("readmitted")
    stays = ~np.isin(columns["discharge_disposition_id"].astype(str), GONE)
    return {name: values[stays] for name, values in columns.items()}
