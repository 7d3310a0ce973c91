"""Fed-Heart-Disease of FLamby: 740 patients of the four heart hospitals, with FLamby's 13 inputs and training and test rows.

FLamby leaves out three columns that most hospitals lack (slope of the ST segment, vessels, thallium scan), then every row with a
gap. Zeros of cholesterol and blood pressure stay. Chest pain and resting ECG become indicators of all levels but the first.

`load` gives columns as recorded. `load_scaled` gives them as FLamby's loader does: each hospital subtracts the mean of its own
training rows and divides by their standard deviation (n - 1, plus 1e-9), indicators included.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.sets.heart import FILES, HOSPITALS, read_codes
from grandrounds.data.table import Table

NAME, SCALED = "fed-heart-disease", "fed-heart-disease-scaled"
TINY = 1e-9

FEATURES = (
    "age", "male", "resting_bp", "cholesterol", "high_fasting_sugar", "max_heart_rate", "exercise_angina", "st_depression",
    "chest_pain_atypical", "chest_pain_non_anginal", "chest_pain_asymptomatic", "ecg_st_t_abnormality", "ecg_hypertrophy",
)  # fmt: skip
"""The 13 inputs in FLamby's order."""

_COLUMNS = {"male": "sex"}
_LEVELS = {
    "chest_pain_atypical": ("chest_pain", 2),
    "chest_pain_non_anginal": ("chest_pain", 3),
    "chest_pain_asymptomatic": ("chest_pain", 4),
    "ecg_st_t_abnormality": ("resting_ecg", 1),
    "ecg_hypertrophy": ("resting_ecg", 2),
}
_LEFT_OUT = ("st_slope", "vessels", "thallium_scan")

_TEST = {
    "cleveland": "040480a020b3c59dc48a03b505c0481087c001ac9430180a847015a598491260f8e2001cebe4",
    "hungarian": "1100847cb841d42c88700d510093869198d144134848122f693a0411802910ba30",
    "switzerland": "07863a8c80c0",
    "va": "464800245b65020eb85b04886003a74580",
}
"""Test rows of each hospital, one bit for each complete row in the file's order.

They are those of scikit-learn's train_test_split(train_size=.66, test_size=.34, random_state=43), stratified by the label where
each class has more than two rows, which Switzerland's healthy patients have not.
"""


def load() -> Table:
    """Load `hospital`, `part` ("train" or "test"), 13 features as recorded, and `disease` ("yes" or "no")."""
    hospitals, parts, rows, labels = [], [], [], []
    for hospital, file in zip(HOSPITALS, FILES, strict=True):
        codes = {name: values for name, values in read_codes(file).items() if name not in _LEFT_OUT}
        complete = ~np.isnan(np.stack(list(codes.values()))).any(axis=0)
        codes = {name: values[complete] for name, values in codes.items()}
        rows.append(np.stack([_column(name, codes) for name in FEATURES], axis=1))
        labels.append(np.where(codes["disease"] > 0, "yes", "no"))
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(_TEST[hospital]), np.uint8))[: len(labels[-1])]
        parts.append(np.where(bits == 1, "test", "train"))
        hospitals.append(np.full(len(bits), hospital))
    return _table(np.concatenate(rows), *(np.concatenate(words) for words in (hospitals, parts, labels)), name=NAME)


def load_scaled() -> Table:
    """Load the same columns, each hospital's in standard deviations of its own training rows."""
    table = load()
    x = np.stack([table.column(name) for name in FEATURES], axis=1)
    hospital, part = table.column("hospital"), table.column("part")
    for name in HOSPITALS:
        mine = hospital == name
        train = x[mine & (part == "train")]
        x[mine] = (x[mine] - train.mean(axis=0)) / (train.std(axis=0, ddof=1) + TINY)
    return _table(x, hospital, part, table.column("disease"), name=SCALED)


def _column(name: str, codes: dict[str, Array]) -> Array:
    if name in _LEVELS:
        column, level = _LEVELS[name]
        return np.asarray(codes[column] == level, float)
    return codes[_COLUMNS.get(name, name)]


def _table(x: Array, hospital: Array, part: Array, disease: Array, *, name: str) -> Table:
    columns = {"hospital": hospital.astype(object), "part": part.astype(object)}
    columns |= {feature: np.ascontiguousarray(x[:, j]) for j, feature in enumerate(FEATURES)}
    return Table({**columns, "disease": disease.astype(object)}, name)
