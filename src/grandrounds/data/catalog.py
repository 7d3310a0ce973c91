"""The sets Grand Rounds knows by name: what they are, where they come from, what their columns mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.data import cohort, diabetes, eicu, embedded, heart
from grandrounds.data.images import ImageSet
from grandrounds.data.pictures import PICTURE_SETS, SCORING_SETS
from grandrounds.data.store import DataFile, Progress, get
from grandrounds.data.table import Table
from grandrounds.errors import BadInput, nearest


@dataclass(frozen=True)
class Entry:
    """One set: facts for people, defaults for an experiment, and how to load it.

    `schema` overrides guesses about columns: "categorical", or a list of levels from low to high.
    `partition` holds the `[split]` settings that make sites where the set tells none apart.
    """

    name: str
    title: str
    rows: int
    licence: str
    source_url: str
    label: str
    load: Callable[[], Table | ImageSet]
    files: tuple[DataFile, ...] = ()
    site: str | None = None
    patient: str | None = None
    drop: tuple[str, ...] = ()
    schema: Mapping[str, str | list[str]] = field(default_factory=dict)
    subgroup: str | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)


def entry(name: str) -> Entry:
    """The set called `name`."""
    if name not in CATALOG:
        raise BadInput(f"data set '{name}' is unknown; {nearest(name, CATALOG)}")
    return CATALOG[name]


def download(name: str, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """The set's files, fetched where they are not on this machine (`rounds data get NAME`)."""
    return get(entry(name).files, name=name, progress=progress)


_SKEWED = {"partition": "dirichlet", "sites": 10, "alpha": 0.5}

_DIABETES_KINDS: dict[str, str | list[str]] = {
    "age": diabetes.AGES,
    **dict.fromkeys((*diabetes.CODES, *diabetes.DIAGNOSES, *diabetes.TESTS), "categorical"),
}
_DIABETES_DROP = ("encounter_id", "weight", "examide", "citoglipton")  # 97% missing; two the same everywhere

_ALL = (
    Entry(
        name="breast-cancer",
        title="Wisconsin diagnostic breast cancer: malignant or benign from 30 measurements of cell nuclei",
        rows=569,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/17/breast+cancer+wisconsin+diagnostic",
        label="diagnosis",
        load=embedded.breast_cancer,
        partition=_SKEWED,
    ),
    Entry(
        name="digits",
        title="Handwritten digits, 8 x 8 pixels: ten classes, quick to train",
        rows=1797,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        label="digit",
        load=embedded.digits,
        schema=dict.fromkeys(embedded.DIGIT_FEATURES, "numeric"),
        partition=_SKEWED,
    ),
    Entry(
        name="heart",
        title="UCI Heart Disease: coronary disease at four hospitals in three countries",
        rows=920,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/45/heart+disease",
        label="disease",
        load=heart.load,
        files=heart.FILES,
        site="hospital",
        schema={**{name: "categorical" for name in heart.LEVELS if name != "disease"}, "vessels": "numeric"},
        subgroup="sex",
    ),
    Entry(
        name="diabetes-130",
        title="Diabetes 130-US hospitals: readmission within 30 days",
        rows=99_343,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/296/diabetes+130-us+hospitals+for+years+1999-2008",
        label="readmitted_30",
        load=diabetes.load,
        files=(diabetes.FILE,),
        patient="patient_nbr",
        drop=_DIABETES_DROP,
        schema=_DIABETES_KINDS,
        subgroup="gender",
        partition=_SKEWED,
    ),
    Entry(
        name="diabetes-130-3class",
        title="Diabetes 130-US hospitals: readmission never, later, or within 30 days",
        rows=99_343,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/296/diabetes+130-us+hospitals+for+years+1999-2008",
        label="readmitted",
        load=diabetes.load_3class,
        files=(diabetes.FILE,),
        patient="patient_nbr",
        drop=_DIABETES_DROP,
        schema=_DIABETES_KINDS,
        subgroup="gender",
        partition=_SKEWED,
    ),
    Entry(
        name="eicu-demo",
        title="eICU demo: death in hospital from the first 24 hours in the ICU, five regions",
        rows=1571,
        licence="ODbL 1.0 (credit PhysioNet; share alike)",
        source_url="https://physionet.org/content/eicu-crd-demo/2.0.1/",
        label="died_in_hospital",
        load=eicu.load,
        files=(eicu.FILE,),
        site="silo",
        patient="uniquepid",
        drop=("patientunitstayid", "hospitalid", "region", "apacheadmissiondx"),
        schema={"numbedscategory": ["<100", "100 - 249", "250 - 499", ">= 500"]},
        subgroup="gender",
    ),
    Entry(
        name="icu-cohort",
        title="Made-up ICU cohort: death in hospital from the first day, 152 hospitals, 90 features",
        rows=79_694,
        licence="Apache-2.0 (generated by this package)",
        source_url="https://grandrounds.readthedocs.io",
        label="died",
        load=cohort.generate,
        site="hospital",
        patient="patient_id",
        drop=("stay_id",),
        schema={"hospital_beds": list(cohort.BEDS)},
        subgroup="sex",
    ),
)

CATALOG: dict[str, Entry] = {one.name: one for one in _ALL} | {
    name: Entry(**facts) for name, facts in (PICTURE_SETS | SCORING_SETS).items()
}
