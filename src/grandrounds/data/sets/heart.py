"""UCI Heart Disease: 920 patients of four hospitals, with the gaps real hospitals have.

All rows and all 13 features are kept (FLamby's Fed-Heart-Disease, `fed_heart.py`, drops three features
and then 180 rows with a gap). Codes become words, because these columns are shown to clinicians.
"""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.formats import PLAIN
from grandrounds.data.readers import read_table
from grandrounds.data.store import DataFile, locate_file
from grandrounds.data.table import Table

NAME = "heart"
URL = "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
HOSPITALS = {
    "cleveland": (18_461, "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
    "hungarian": (10_263, "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
    "switzerland": (4_109, "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
    "va": (6_737, "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
}
FILES = tuple(
    DataFile(f"heart/processed.{h}.data", digest, size, url=URL, member=f"processed.{h}.data")
    for h, (size, digest) in HOSPITALS.items()
)

# Published name -> ours, in the files' order (they have no header).
_NAMES = {
    "age": "age",
    "sex": "sex",
    "cp": "chest_pain",
    "trestbps": "resting_bp",
    "chol": "cholesterol",
    "fbs": "high_fasting_sugar",
    "restecg": "resting_ecg",
    "thalach": "max_heart_rate",
    "exang": "exercise_angina",
    "oldpeak": "st_depression",
    "slope": "st_slope",
    "ca": "vessels",
    "thal": "thallium_scan",
    "num": "disease",
}
_YES = {0: "no", 1: "yes"}
LEVELS: dict[str, dict[int, str]] = {
    "sex": {0: "female", 1: "male"},
    "chest_pain": {1: "typical angina", 2: "atypical angina", 3: "non-anginal", 4: "asymptomatic"},
    "high_fasting_sugar": _YES,
    "resting_ecg": {0: "normal", 1: "ST-T abnormality", 2: "left ventricular hypertrophy"},
    "exercise_angina": _YES,
    "st_slope": {1: "up", 2: "flat", 3: "down"},
    "thallium_scan": {3: "normal", 6: "fixed defect", 7: "reversible defect"},
    "disease": {0: "no", 1: "yes", 2: "yes", 3: "yes", 4: "yes"},  # 0-4 in three files, 0/1 in one
}


def load() -> Table:
    """Load `hospital`, 13 features, `disease` (more than half of a coronary artery narrowed)."""
    parts = [read_codes(file) for file in FILES]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in _NAMES.values()}
    for name in ("cholesterol", "resting_bp"):
        columns[name][columns[name] == 0] = np.nan  # nobody lives with either at zero: not measured
    for name, words in LEVELS.items():
        columns[name] = _translate(columns[name], words)
    hospital = np.repeat(np.array(list(HOSPITALS), dtype=object), [len(part["disease"]) for part in parts])
    return Table({"hospital": hospital, **columns}, NAME)


def read_codes(file: DataFile) -> dict[str, Array]:
    """Read a hospital's columns as published: numbers and codes, NaN where a value is missing.

    Args:
        file: One of `FILES`.

    Returns:
        Our name of each column -> its values.
    """
    table = read_table(locate_file(file, name=NAME), missing=("?",), names=tuple(_NAMES.values()), form=PLAIN)
    return {name: table.column(name) for name in _NAMES.values()}


def _translate(codes: Array, words: dict[int, str]) -> Array:
    out = np.full(len(codes), None, dtype=object)
    for code, word in words.items():
        out[codes == code] = word
    return out
