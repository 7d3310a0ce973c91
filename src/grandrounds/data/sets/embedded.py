"""Sets that come with scikit-learn: breast cancer, digits, and a synthetic table that it generates.

The files of the first two are read directly, because importing scikit-learn costs more than a second and a small
run takes less. Where a release has moved them, its own loaders are asked instead.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.table import Table

_CELL = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points",
         "symmetry", "fractal_dimension")  # fmt: skip
BREAST_FEATURES = (
    *(f"mean_{c}" for c in _CELL),
    *(f"{c}_error" for c in _CELL),
    *(f"worst_{c}" for c in _CELL),
)
DIGIT_FEATURES = tuple(f"pixel_{r}_{c}" for r in range(8) for c in range(8))
SYNTHETIC_FEATURES = tuple(f"x{j}" for j in range(30))


def breast_cancer() -> Table:
    """Load 569 tumours, 30 measurements of cell nuclei, `diagnosis` malignant (212) or benign (357)."""
    values = breast_cancer_values(_packaged("breast_cancer.csv"))
    diagnosis = np.array(["malignant", "benign"], dtype=object)[values[:, -1].astype(np.int64)]
    return Table(_columns(values, BREAST_FEATURES) | {"diagnosis": diagnosis}, "breast-cancer")


def digits() -> Table:
    """Load 1,797 handwritten digits, 8 x 8 pixels from 0 to 16, `digit` "0" to "9"."""
    values = digit_values(_packaged("digits.csv.gz"))
    digit = np.array([str(d) for d in range(10)], dtype=object)[values[:, -1].astype(np.int64)]
    return Table(_columns(values, DIGIT_FEATURES) | {"digit": digit}, "digits")


def synthetic() -> Table:
    """Make 3,000 rows of 30 numbers (10 that tell, 5 that repeat them, 15 of noise), `label` "class 0" to "class 2"."""
    from sklearn.datasets import make_classification

    values, number = make_classification(3000, 30, n_informative=10, n_redundant=5, n_classes=3, random_state=0)
    label = np.array(["class 0", "class 1", "class 2"], dtype=object)[number]
    return Table(_columns(values, SYNTHETIC_FEATURES) | {"label": label}, "synthetic")


def synthetic_binary() -> Table:
    """Make 1,000 rows of 20 numbers (2 that tell, 2 that repeat them, 16 of noise), `label` "class 0" or "class 1"."""
    from sklearn.datasets import make_classification

    values, number = make_classification(1000, 20, random_state=0)
    label = np.array(["class 0", "class 1"], dtype=object)[number]
    return Table(_columns(values, SYNTHETIC_FEATURES[:20]) | {"label": label}, "synthetic-binary")


def breast_cancer_values(path: Path | None) -> Array:
    """Features and, last, the class (569, 31), from the packaged file or else from scikit-learn."""
    if path is not None:
        return np.loadtxt(path, delimiter=",", skiprows=1)
    from sklearn.datasets import load_breast_cancer

    return np.column_stack(load_breast_cancer(return_X_y=True))


def digit_values(path: Path | None) -> Array:
    """Pixels and, last, the digit (1797, 65), from the packaged file or else from scikit-learn."""
    if path is not None:
        with gzip.open(path, "rt") as f:
            return np.loadtxt(f, delimiter=",")
    from sklearn.datasets import load_digits

    return np.column_stack(load_digits(return_X_y=True))


def _packaged(name: str) -> Path | None:
    """Find the file inside the installed scikit-learn without importing it; None if it moved."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "datasets" / "data" / name
    return path if path.is_file() else None


def _columns(values: Array, names: tuple[str, ...]) -> dict[str, Array]:
    return {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(names)}
