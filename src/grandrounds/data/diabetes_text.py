"""A stay of Diabetes-130 told in plain clinical English, as a doctor would to a colleague who takes over.

What was not measured, is not known or did not happen is left out: it would only make the text longer.
Nothing is told of what came after the discharge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def tell(stay: Stay) -> str:
    """One stay, by the names and values of the columns of `diabetes.load_3class`."""
    parts = (_who_and_why(stay), _done(stay), _drugs(stay), _earlier(stay), _after(stay))
    return " ".join(part for part in parts if part)


def tell_all(table: Table) -> list[str]:
    """Every row of a table, told."""
    columns = [values.tolist() for values in table.columns.values()]
    return [tell(dict(zip(table.names, row, strict=True))) for row in zip(*columns, strict=True)]


def _who_and_why(stay: Stay) -> str:
    low, high = map(int, str(stay["age"]).strip("[)").split("-"))
    sexes = SEXES if low >= GROWN else CHILDREN
    who = _words((RACES, stay["race"]), (sexes, stay["gender"])) or "patient"
    how = _words((ADMISSIONS, stay["admission_type_id"]), (SOURCES, stay["admission_source_id"]))
    ill = [illness for k in (1, 2, 3) if (illness := ILLNESSES.get(str(stay[f"diag_{k}"])))]
    came = " ".join(filter(None, ("admitted", how, f"for {_listed(list(dict.fromkeys(ill)))}" if ill else "")))
    diagnoses = _count(stay["number_diagnoses"], "diagnosis", "diagnoses")
    article = "An" if who.startswith("A") else "A"
    stayed = _count(stay["time_in_hospital"], "day")
    return f"{article} {who} aged {low} to {high - 1}, {came} ({diagnoses}), stayed {stayed}."


def _done(stay: Stay) -> str:
    done = [_count(stay["num_lab_procedures"], "lab test")]
    done += [_count(stay["num_procedures"], "procedure")] if stay["num_procedures"] else []
    done += [_count(stay["num_medications"], "medicine")]
    a1c, glucose = A1C.get(str(stay["A1Cresult"])), GLUCOSE.get(str(stay["max_glu_serum"]))
    measured = [f"{name} {value}" for name, value in (("HbA1c", a1c), ("glucose", glucose)) if value]
    return "; ".join([_listed(done), *measured]) + "."


def _drugs(stay: Stay) -> str:
    by_dose = {dose: [drug for drug in DRUGS if stay[drug] == code] for code, dose in DOSES.items()}
    said = [f"{_listed(drugs)} {dose}" for dose, drugs in by_dose.items() if drugs]
    text = ", ".join(said) or "no diabetes medicine"
    return f"{text[0].upper()}{text[1:]}."


def _earlier(stay: Stay) -> str:
    visits = [_count(stay[column], noun) for column, noun in EARLIER.items() if stay[column]]
    return f"Past year: {_listed(visits)}." if visits else ""


def _after(stay: Stay) -> str:
    where = DISCHARGES.get(str(stay["discharge_disposition_id"]))
    return f"Discharged {where}." if where else ""


def _words(*said: tuple[Mapping[str, str], str | float | None]) -> str:
    """The words for some codes side by side; a code without one is not known, and is not told."""
    return " ".join(words[str(code)] for words, code in said if str(code) in words)


def _count(number: str | float | None, one: str, many: str | None = None) -> str:
    n = int(number or 0)
    return f"{n} {one if n == 1 else many or one + 's'}"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
