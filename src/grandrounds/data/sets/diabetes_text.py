"""Diabetes-130 as text: 12,000 stays, each told in plain English and turned into 384 numbers by a sentence encoder.

SSE-AGG's first experiment embeds this set with an "NBERT" that its paper does not define. This reproduction uses
all-MiniLM-L6-v2, mean-pooled as there. All 99,343 stays would take two cores most of an hour, so 12,000 are drawn.

The text omits what was not measured, is not known or did not happen, and all that came after the discharge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.sets import diabetes, sentence_encoder
from grandrounds.data.sets.sentence_encoder import EmbeddingProgress
from grandrounds.data.table import Table

RACES = {"Caucasian": "Caucasian", "AfricanAmerican": "African American", "Hispanic": "Hispanic", "Asian": "Asian"}
SEXES = {"Female": "woman", "Male": "man"}
CHILDREN = {"Female": "girl", "Male": "boy"}
GROWN = 20  # age bands from here on are of women and men
ADMISSIONS = {
    "1": "as an emergency",
    "2": "urgently",
    "3": "electively",
    "4": "as a newborn",
    "7": "to the trauma centre",
}
SOURCES = {
    **dict.fromkeys(("1", "2", "3"), "on referral"),
    **dict.fromkeys(("4", "10", "22"), "from another hospital"),
    "5": "from a nursing facility",
    **dict.fromkeys(("6", "18", "19", "25", "26"), "from other care"),
    "7": "through the emergency room",
    "8": "by law enforcement",
}
DISCHARGES = {
    "1": "home",
    **dict.fromkeys(("6", "8"), "home with nursing care"),
    **dict.fromkeys(("2", "10", "29"), "to another hospital"),
    **dict.fromkeys(("3", "4", "15", "24"), "to a nursing facility"),
    "7": "home against medical advice",
    **dict.fromkeys(("12", "16", "17"), "home with outpatient care"),
    "22": "to rehabilitation",
    **dict.fromkeys(("5", "23", "27", "30"), "to other inpatient care"),
    "28": "to psychiatry",
}
ILLNESSES = {
    **{c: f"{c} disease" for c in ("circulatory", "respiratory", "digestive", "musculoskeletal", "genitourinary")},
    **{"diabetes": "diabetes", "injury": "injury", "neoplasms": "a neoplasm", "other": "other illness"},
}
A1C = {">8": "above 8%", ">7": "above 7%", "Norm": "normal"}
GLUCOSE = {">300": "above 300", ">200": "above 200", "Norm": "normal"}
DRUGS = ("metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide",
         "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone",
         "tolazamide", "insulin", "glyburide-metformin", "glipizide-metformin", "glimepiride-pioglitazone",
         "metformin-rosiglitazone", "metformin-pioglitazone")  # fmt: skip
DOSES = {"Up": "increased", "Down": "reduced", "Steady": "unchanged"}
EARLIER = {
    "number_inpatient": "hospital stay",
    "number_emergency": "emergency visit",
    "number_outpatient": "clinic visit",
}

Stay = Mapping[str, str | float | None]


def describe_stay(stay: Stay) -> str:
    """Describe one stay, by the names and values of the columns of `diabetes.load_3class`."""
    parts = (_who_and_why(stay), _procedures(stay), _drugs(stay), _earlier(stay), _after(stay))
    return " ".join(part for part in parts if part)


def describe_stays(table: Table) -> list[str]:
    """Describe every row of a table."""
    columns = [values.tolist() for values in table.columns.values()]
    return [describe_stay(dict(zip(table.names, row, strict=True))) for row in zip(*columns, strict=True)]


def _who_and_why(stay: Stay) -> str:
    low, high = map(int, str(stay["age"]).strip("[)").split("-"))
    sexes = SEXES if low >= GROWN else CHILDREN
    who = _words((RACES, stay["race"]), (sexes, stay["gender"])) or "patient"
    how = _words((ADMISSIONS, stay["admission_type_id"]), (SOURCES, stay["admission_source_id"]))
    ill = [illness for k in (1, 2, 3) if (illness := ILLNESSES.get(str(stay[f"diag_{k}"])))]
    came = " ".join(filter(None, ("admitted", how, f"for {_join_words(list(dict.fromkeys(ill)))}" if ill else "")))
    diagnoses = _count(stay["number_diagnoses"], "diagnosis", "diagnoses")
    article = "An" if who.startswith("A") else "A"
    stayed = _count(stay["time_in_hospital"], "day")
    return f"{article} {who} aged {low} to {high - 1}, {came} ({diagnoses}), stayed {stayed}."


def _procedures(stay: Stay) -> str:
    procedures = [_count(stay["num_lab_procedures"], "lab test")]
    procedures += [_count(stay["num_procedures"], "procedure")] if stay["num_procedures"] else []
    procedures += [_count(stay["num_medications"], "medicine")]
    a1c, glucose = A1C.get(str(stay["A1Cresult"])), GLUCOSE.get(str(stay["max_glu_serum"]))
    measured = [f"{name} {value}" for name, value in (("HbA1c", a1c), ("glucose", glucose)) if value]
    return "; ".join([_join_words(procedures), *measured]) + "."


def _drugs(stay: Stay) -> str:
    by_dose = {dose: [drug for drug in DRUGS if stay[drug] == code] for code, dose in DOSES.items()}
    phrases = [f"{_join_words(drugs)} {dose}" for dose, drugs in by_dose.items() if drugs]
    text = ", ".join(phrases) or "no diabetes medicine"
    return f"{text[0].upper()}{text[1:]}."


def _earlier(stay: Stay) -> str:
    visits = [_count(stay[column], noun) for column, noun in EARLIER.items() if stay[column]]
    return f"Past year: {_join_words(visits)}." if visits else ""


def _after(stay: Stay) -> str:
    where = DISCHARGES.get(str(stay["discharge_disposition_id"]))
    return f"Discharged {where}." if where else ""


def _words(*lookups: tuple[Mapping[str, str], str | float | None]) -> str:
    """Look up the words for some codes side by side; a code without one is unknown, and is left out."""
    return " ".join(words[str(code)] for words, code in lookups if str(code) in words)


def _count(number: str | float | None, one: str, many: str | None = None) -> str:
    n = int(number or 0)
    return f"{n} {one if n == 1 else many or one + 's'}"


def _join_words(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


NAME = "diabetes-130-text"
ROWS = 12_000
FILES = (diabetes.FILE, *sentence_encoder.FILES)
FOLDER = "diabetes130"


def load() -> Table:
    """Load `patient_nbr`, `gender`, e0 to e383, and `readmitted`: "NO", ">30" or "<30"."""
    stays = sample_stays()
    _, values = _embeddings(stays)
    columns = {f"e{j}": np.ascontiguousarray(values[:, j], np.float64) for j in range(values.shape[1])}
    first = {name: stays.column(name) for name in ("patient_nbr", "gender")}
    return Table({**first, **columns, "readmitted": stays.column("readmitted")}, NAME)


def prepare(progress: EmbeddingProgress | None = None) -> Path:
    """Compute the embeddings where they are not on this machine, and give their file; `progress` counts stays."""
    return _embeddings(sample_stays(), progress)[0]


def is_ready() -> bool:
    """Tell whether the embeddings are on this machine, so that `load` need not compute them."""
    stays = sample_stays()
    return sentence_encoder.find_embeddings(_path(describe_stays(stays)), rows=len(stays)) is not None


def sample_stays() -> Table:
    """Sample 12,000 stays of as many patients, in the order of the table.

    Stays are drawn one after another, and one of a patient who was drawn before is passed over.
    """
    table = diabetes.load_3class()
    order = generator(0, purpose=NAME).permutation(len(table))
    first = np.unique(table.column("patient_nbr")[order], return_index=True)[1]
    return table.take(np.sort(order[np.sort(first)[:ROWS]]))


def _embeddings(stays: Table, progress: EmbeddingProgress | None = None) -> tuple[Path, Array]:
    texts = describe_stays(stays)
    return sentence_encoder.load_or_compute(
        _path(texts),
        rows=len(texts),
        compute=lambda: sentence_encoder.embed(texts, name=NAME, progress=progress),
    )


def _path(texts: list[str]) -> str:
    encoder = " ".join(str(file.sha256) for file in sentence_encoder.FILES)
    return sentence_encoder.cache_path(texts, encoder=encoder, folder=FOLDER)
