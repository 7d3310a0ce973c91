"""UCI Diabetes 130-US hospitals, 1999-2008: will a diabetic inpatient be back within 30 days?

The publisher's file does not tell its 130 hospitals apart, so sites are made by a partition. Stays
that ended in death or hospice care are left out: those patients cannot come back.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.store import DataFile, locate_file
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
HEAD = 22  # columns up to number_diagnoses; what follows takes few distinct forms
NUMBERS = ("encounter_id", "patient_nbr", "time_in_hospital", "num_lab_procedures", "num_procedures",
           "num_medications", "number_outpatient", "number_emergency", "number_inpatient",
           "number_diagnoses")  # fmt: skip
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
CHAPTERS = tuple(name for name, _ in _CHAPTERS)
"""Groups of diagnoses; codes of no group are "other"."""

_CODE = re.compile(r"\d+")


def icd9_chapter(icd9: str) -> str:
    """Find the group of a code, one of the nine of Strack et al. (2014, table 2); E and V codes are "other"."""
    match = _CODE.match(icd9)
    if match:
        number = int(match[0])
        for name, ranges in _CHAPTERS:
            if any(low <= number <= high for low, high in ranges):
                return name
    return "other"


def load() -> Table:
    """Load 99,343 stays; `readmitted_30` "yes" (11,314) or "no"."""
    return Table(_columns("readmitted_30", lambda word: "yes" if word == "<30" else "no"), NAME)


def load_3class() -> Table:
    """Load 99,343 stays; `readmitted` "NO" (52,527), ">30" (35,502) or "<30" (11,314)."""
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
    """Read every column, without the rows of those who died, the diagnoses in groups, the outcome as `label`."""
    words: dict[str, Callable[[str], str]] = {"readmitted": outcome}
    words |= dict.fromkeys(DIAGNOSES, icd9_chapter)
    words |= dict.fromkeys(TESTS, lambda word: "not measured" if word == "None" else word)

    def column(name: str, cells: Sequence[str]) -> Array:
        if name in NUMBERS:
            return np.array(cells, dtype=np.float64)
        translated = _Words(words.get(name, str))
        return np.fromiter(map(translated.__getitem__, cells), dtype=object, count=len(cells))

    names, heads, forms, form = _cells(locate_file(FILE, name=NAME))
    columns = {name: column(name, cells) for name, cells in zip(names, heads, strict=False)}
    stays = ~np.isin(columns["discharge_disposition_id"].astype(str), GONE)
    columns = {name: values[stays] for name, values in columns.items()}
    columns |= {n: column(n, cells)[form[stays]] for n, cells in zip(names[HEAD:], forms, strict=True)}
    columns[label] = columns.pop("readmitted")
    return columns


def _cells(path: Path) -> tuple[list[str], list[tuple[str, ...]], list[tuple[str, ...]], Array]:
    """Names; the cells of the first HEAD columns; the distinct forms of the others, and each row's form.

    The digest says which file this is, and that file quotes nothing, so lines split at commas. All
    but the first columns (tests, drugs, outcome) take 4,492 forms in 101,766 rows: each is split
    once. Together this is twice as fast as a CSV reader on the whole.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header, *lines = raw.decode("ascii").rstrip().split("\r\n")
    *heads, tails = zip(*(line.split(",", HEAD) for line in lines), strict=True)
    number: dict[str, int] = {}
    form = np.array([number.setdefault(tail, len(number)) for tail in tails])
    return header.split(","), heads, list(zip(*(tail.split(",") for tail in number), strict=True)), form
