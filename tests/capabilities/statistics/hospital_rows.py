"""Rows of real hospitals, as sites and pooled, for tests of regressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.data.sets import heart

HEART = (
    "age", "sex=male", "resting_bp", "cholesterol", "high_fasting_sugar=yes", "max_heart_rate", "exercise_angina=yes",
    "st_depression", "cp=typical", "cp=atypical", "cp=non-anginal", "ecg=ST-T", "ecg=hypertrophy",
)  # fmt: skip
"""The 13 columns of FLamby's Fed-Heart-Disease, numbers in standard deviations."""


def standardise(x: np.ndarray) -> np.ndarray:
    """Return columns in standard deviations; columns of two values stay."""
    numbers = np.array([len(np.unique(column)) > 2 for column in x.T])
    mean, sd = np.where(numbers, x.mean(0), 0), np.where(numbers, x.std(0), 1)
    return (x - mean) / sd


def by_site(x: np.ndarray, y: np.ndarray, site: np.ndarray, **more: np.ndarray) -> dict[str, Rows]:
    """Deal pooled rows to their sites."""
    return {
        str(s): Rows(x[site == s], y[site == s], **{k: v[site == s] for k, v in more.items()}) for s in np.unique(site)
    }


def pool(sites: Mapping[str, Rows], get: Callable[[Rows], np.ndarray]) -> np.ndarray:
    """Put rows of all sites below each other."""
    return np.concatenate([get(rows) for rows in sites.values()])


@cache
def heart_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (740, 13), y and the number of the hospital: the rows of FLamby's Fed-Heart-Disease."""
    sites, x, y = [], [], []
    for k, file in enumerate(heart.FILES):
        lines = heart.locate_file(file).read_text().splitlines()
        rows = np.array([[np.nan if v == "?" else float(v) for v in line.split(",")] for line in lines if line])
        rows = rows[np.isfinite(rows[:, :10]).all(1)]
        cp, ecg = rows[:, 2], rows[:, 6]
        columns = [*rows[:, [0, 1, 3, 4, 5, 7, 8, 9]].T, cp == 1, cp == 2, cp == 3, ecg == 1, ecg == 2]
        x.append(np.column_stack(columns).astype(float))
        y.append((rows[:, 13] > 0).astype(float))
        sites.append(np.full(len(rows), k))
    return standardise(np.concatenate(x)), np.concatenate(y), np.concatenate(sites)


EICU = (
    "age", "hr_mean", "map_mean", "resp_mean", "o2sat_mean", "temp_mean", "sbp_std", "gender",
)  # fmt: skip


def eicu_rows(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X (1571, 8), death in hospital, the hospital (185) and the patient of eICU stays; gaps have the mean."""
    import pandas as pd

    table = pd.read_csv(folder / "eicu_demo/eicu_24h.csv.gz")
    table = table[table.cohort24 == 1]
    table["gender"] = (table.gender == "Male").astype(float)
    x = table[list(EICU)].astype(float)
    patient = pd.factorize(table.uniquepid)[0]
    x = standardise(x.fillna(x.mean()).to_numpy())
    return x, table.died_in_hospital.to_numpy(float), table.hospitalid.to_numpy(), patient


NUMBERS = (
    "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient", "number_emergency",
    "number_inpatient", "number_diagnoses",
)  # fmt: skip
LEVELS = ("race", "gender", "max_glu_serum", "A1Cresult", "insulin", "change", "diabetesMed", "age")


def diabetes_rows(folder: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns by name, the names of 28 inputs, readmission, the payer (18) and the patient: 99,340 stays."""
    import pandas as pd

    table = pd.read_csv(
        folder / "diabetes130/diabetic_data.csv.gz", na_values="?", keep_default_na=False, low_memory=False
    )
    table = table[~table.discharge_disposition_id.isin([11, 13, 14, 19, 20, 21])]
    table = table[table.gender != "Unknown/Invalid"]
    columns = {name: standardise(table[[name]].to_numpy(float))[:, 0] for name in NUMBERS}
    for name in LEVELS:
        cells = table[name].fillna("missing")
        cells = cells.replace({f"[{a}-{a + 10})": "below 50" for a in (0, 10, 20, 30, 40)}) if name == "age" else cells
        counts = cells.value_counts()
        for level in sorted(counts.index.drop(counts.index[0])):
            columns[f"{name}={level}"] = (cells == level).to_numpy(float)
    raw = {f"raw {name}": table[name].to_numpy(float) for name in NUMBERS}
    payer = table.payer_code.fillna("missing").to_numpy(str)
    return columns | raw, tuple(columns), (table.readmitted == "<30").to_numpy(float), payer, table.patient_nbr.to_numpy()
