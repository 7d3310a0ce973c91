"""Catalog of data sets: title, source, licence, columns, and how each is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.download import Progress
from grandrounds.data.images import ImageSet
from grandrounds.data.sets import cohort, diabetes, diabetes_text, eicu, embedded, fed_heart, heart, public_ranges, tcga
from grandrounds.data.sets.images import IMAGE_SETS, SCORING_SETS
from grandrounds.data.sets.sentence_encoder import EmbeddingProgress
from grandrounds.data.store import VARIABLE, DataFile, cache_folder, get_files, locate_file
from grandrounds.data.table import Table


@dataclass(frozen=True)
class Entry:
    """One set: facts for people, defaults for an experiment, and how to load it.

    `schema` overrides guesses about columns: "categorical", or a list of levels from low to high.
    `partition` holds the `[split]` settings that make sites where the set tells none apart. `prepare`
    computes what takes long and keeps it in the cache: loading does so too, but cannot say how far it is.
    `event` is the class of two whose probability is the risk.
    `ranges` and `levels` are what is known of columns and of the label beforehand (data.encoding = "public").
    `part` is the column of the publisher's own training and test rows, `duration` that of the follow-up time.
    """

    name: str
    title: str
    rows: int
    licence: str
    source_url: str
    label: str
    load: Callable[[], Table | ImageSet]
    event: str | None = None
    files: tuple[DataFile, ...] = ()
    site: str | None = None
    patient: str | None = None
    drop: tuple[str, ...] = ()
    schema: Mapping[str, str | list[str]] = field(default_factory=dict)
    subgroup: str | None = None
    partition: Mapping[str, str | int | float] = field(default_factory=dict)
    prepare: Callable[[EmbeddingProgress | None], Path] | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    part: str | None = None
    duration: str | None = None


def find_entry(name: str) -> Entry:
    """Find the set called `name`."""
    if name in ELSEWHERE:
        raise BadInput(f"{name} is not in the catalog: {ELSEWHERE[name]}", code="not-in-catalog")
    if name not in CATALOG:
        raise BadInput(f"data set '{name}' is unknown; {nearest(name, CATALOG)}", code="unknown-data-set")
    return CATALOG[name]


def download(name: str, *, progress: Progress | None = None, keep: bool = False) -> tuple[Path, ...]:
    """Fetch and convert the set's files where they are not on this machine (`rounds data get NAME`)."""
    return get_files(find_entry(name).files, name=name, progress=progress, keep=keep)


def file_status(one: Entry) -> str:
    """Find where the set's files are: included, in GRANDROUNDS_DATA, cached, not here, or damaged."""
    own_folder = os.environ.get(VARIABLE)
    places = {"in GRANDROUNDS_DATA": Path(own_folder)} if own_folder else {}
    places["cached"] = cache_folder()
    origins: list[str] = []
    for file in one.files:
        try:
            path = locate_file(file, name=one.name)
        except BadInput as e:
            return "damaged" if e.code == "checksum-mismatch" else "not here"
        origins.append(next((word for word, folder in places.items() if path.is_relative_to(folder)), "included"))
    return next((word for word in places if word in origins), "included")


def prepare(name: str, *, progress: EmbeddingProgress | None = None) -> Path | None:
    """Compute what the set needs computed once, and give its file; None where it computes nothing."""
    make = find_entry(name).prepare
    return None if make is None else make(progress)


ELSEWHERE = {
    "eicu": "the whole eICU database needs a PhysioNet account and a signed agreement; ask at "
    "https://physionet.org/content/eicu-crd/2.0/, then run `rounds data build-eicu FOLDER` (`eicu-demo` is open to all)",
    "mimic-iv": "MIMIC-IV needs a PhysioNet account and a signed agreement; ask at "
    "https://physionet.org/content/mimiciv/, then give your table with `rounds run --table`",
    "fed-isic2019": "ISIC 2019 is at https://challenge.isic-archive.com/data/#2019 (CC BY-NC 4.0); download it by hand, then "
    "give its folder and table (rounds run --table; `ham10000` is the part that this command fetches)",
}
"""Sets that people ask for and that need an account, or work by hand; with the place to ask."""

_SKEWED: dict[str, str | int | float] = {"partition": "dirichlet", "sites": 10, "alpha": 0.5}

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
        event="malignant",
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
        name="synthetic",
        title="Made-up table of 30 numbers, 10 of which tell: three classes, as make_classification draws them",
        rows=3000,
        licence="generated by scikit-learn",
        source_url="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.make_classification.html",
        label="label",
        load=embedded.synthetic,
        partition=_SKEWED,
    ),
    Entry(
        name="synthetic-binary",
        title="Made-up table of 20 numbers, 2 of which tell: two classes, as make_classification draws them",
        rows=1000,
        licence="generated by scikit-learn",
        source_url="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.make_classification.html",
        label="label",
        event="class 1",
        load=embedded.synthetic_binary,
        partition=_SKEWED,
    ),
    Entry(
        name="heart",
        title="UCI Heart Disease: coronary disease at four hospitals in three countries",
        rows=920,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/45/heart+disease",
        label="disease",
        event="yes",
        load=heart.load,
        files=heart.FILES,
        site="hospital",
        schema={**{name: "categorical" for name in heart.LEVELS if name != "disease"}, "vessels": "numeric"},
        subgroup="sex",
        ranges=public_ranges.HEART,
        levels=public_ranges.HEART_LEVELS,
    ),
    *(
        Entry(
            name=name,
            title=f"Fed-Heart-Disease (FLamby): four hospitals, 13 inputs {units}, FLamby's own test rows",
            rows=740,
            licence="CC BY 4.0",
            source_url="https://archive.ics.uci.edu/dataset/45/heart+disease",
            label="disease",
            event="yes",
            load=load,
            files=heart.FILES,
            site="hospital",
            part="part",
            schema=dict.fromkeys(fed_heart.FEATURES, "numeric"),
        )
        for name, load, units in (
            (fed_heart.NAME, fed_heart.load, "as recorded"),
            (fed_heart.SCALED, fed_heart.load_scaled, "in each hospital's standard deviations"),
        )
    ),
    Entry(
        name="diabetes-130",
        title="Diabetes 130-US hospitals: readmission within 30 days",
        rows=99_343,
        licence="CC BY 4.0",
        source_url="https://archive.ics.uci.edu/dataset/296/diabetes+130-us+hospitals+for+years+1999-2008",
        label="readmitted_30",
        event="yes",
        load=diabetes.load,
        files=(diabetes.FILE,),
        patient="patient_nbr",
        drop=_DIABETES_DROP,
        schema=_DIABETES_KINDS,
        subgroup="gender",
        partition=_SKEWED,
        ranges=public_ranges.DIABETES,
        levels=public_ranges.DIABETES_LEVELS,
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
        ranges=public_ranges.DIABETES,
        levels=public_ranges.DIABETES_LEVELS,
    ),
    Entry(
        name="diabetes-130-text",
        title="Diabetes 130-US hospitals told as text and embedded (12,000 stays; all would take too long): readmission "
        "never, later, or within 30 days",
        rows=diabetes_text.ROWS,
        licence="CC BY 4.0 (the encoder's weights: Apache-2.0)",
        source_url="https://archive.ics.uci.edu/dataset/296/diabetes+130-us+hospitals+for+years+1999-2008",
        label="readmitted",
        load=diabetes_text.load,
        files=diabetes_text.FILES,
        patient="patient_nbr",
        drop=("gender",),
        subgroup="gender",
        partition=_SKEWED,
        prepare=diabetes_text.prepare,
    ),
    Entry(
        name="eicu-demo",
        title="eICU demo: death in hospital from the first 24 hours in the ICU, five regions",
        rows=1571,
        licence="ODbL 1.0 (credit PhysioNet; share alike)",
        source_url="https://physionet.org/content/eicu-crd-demo/2.0.1/",
        label="died_in_hospital",
        event="1",
        load=eicu.load,
        files=(eicu.FILE,),
        site="silo",
        patient="uniquepid",
        drop=("patientunitstayid", "hospitalid", "region", "apacheadmissiondx"),
        schema={"numbedscategory": list(public_ranges.EICU_BEDS)},
        subgroup="gender",
        ranges=public_ranges.EICU,
        levels=public_ranges.EICU_LEVELS,
    ),
    Entry(
        name=eicu.HOSPITALS,
        title="eICU demo: death in hospital from the first 24 hours in the ICU, 117 hospitals of 8 to 17 stays",
        rows=1170,
        licence="ODbL 1.0 (credit PhysioNet; share alike)",
        source_url="https://physionet.org/content/eicu-crd-demo/2.0.1/",
        label="died_in_hospital",
        event="1",
        load=eicu.load_hospitals,
        files=(eicu.FILE,),
        site="hospitalid",
        patient="uniquepid",
        drop=("patientunitstayid", "apacheadmissiondx"),
        schema={"numbedscategory": list(public_ranges.EICU_BEDS)},
        subgroup="gender",
        ranges=public_ranges.EICU,
        levels=public_ranges.EICU_LEVELS,
    ),
    Entry(
        name=tcga.NAME,
        title="TCGA breast cancer (FLamby's Fed-TCGA-BRCA): survival, 39 columns, six regions, FLamby's own test rows",
        rows=1088,
        licence="GDC open access (nobody may try to identify a person)",
        source_url="https://portal.gdc.cancer.gov/projects/TCGA-BRCA",
        label="event",
        event="1",
        load=tcga.load,
        files=tcga.FILES,
        site="region",
        patient="patient",
        part="part",
        duration="days",
        schema=dict.fromkeys(tcga.FEATURES, "numeric"),
    ),
    Entry(
        name="icu-cohort",
        title="Made-up ICU cohort: death in hospital from the first day, 152 hospitals, 90 features",
        rows=79_694,
        licence="Apache-2.0 (generated by this package)",
        source_url="https://grandrounds.readthedocs.io",
        label="died",
        event="1",
        load=cohort.generate,
        site="hospital",
        patient="patient_id",
        drop=("stay_id",),
        schema={"hospital_beds": list(cohort.BEDS)},
        subgroup="sex",
        ranges=public_ranges.COHORT,
        levels=public_ranges.COHORT_LEVELS,
    ),
)

CATALOG: dict[str, Entry] = {one.name: one for one in _ALL} | {
    name: Entry(**facts) for name, facts in (IMAGE_SETS | SCORING_SETS).items()
}
