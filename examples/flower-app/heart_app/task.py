"""The hospitals' patients and the model: logistic regression in NumPy."""

import numpy as np
from flwr.app import Array, ArrayRecord

from grandrounds.data.sets.heart import HOSPITALS, LEVELS, load

NAMES = tuple(HOSPITALS)

# Centre and spread of numbers are public guesses, so hospitals disclose none of their own.
NUMBERS = {
    "age": (54, 10),
    "resting_bp": (132, 18),
    "cholesterol": (240, 55),
    "max_heart_rate": (138, 25),
    "st_depression": (0.9, 1.1),
    "vessels": (0.7, 0.9),
}
CATEGORIES = {name: tuple(words.values()) for name, words in LEVELS.items() if name != "disease"}
COLUMNS = (*NUMBERS, *(name for name, words in CATEGORIES.items() for _ in words))
REFERENCE = 60  # reference rows for the sketches; nobody trains or tests on them


def rows():
    """Return all patients: x (n, d) with 0 for missing values, y (n,), and the hospital of each."""
    table = load()
    parts = [(np.nan_to_num((table.column(name) - mid) / spread)) for name, (mid, spread) in NUMBERS.items()]
    parts += [table.column(name) == word for name, words in CATEGORIES.items() for word in words]
    return (
        np.stack(parts, axis=1).astype(float),
        (table.column("disease") == "yes").astype(int),
        table.column("hospital"),
    )


def split(hospital: str, flipped: str = ""):
    """Return one hospital's training and test rows and the common reference rows, (x, y) each."""
    x, y, where = rows()
    order = np.random.default_rng(7).permutation(len(x))
    reference, rest = order[:REFERENCE], order[REFERENCE:]
    mine = rest[where[rest] == hospital]
    train, test = mine[len(mine) // 4 :], mine[: len(mine) // 4]
    seen = 1 - y[train] if hospital == flipped else y[train]
    return (x[train], seen), (x[test], y[test]), (x[reference], y[reference])


def start():
    """Return the initial model."""
    return {"weight": np.zeros(len(COLUMNS)), "bias": np.zeros(1)}


def record(model):
    """Convert a model to a Flower record."""
    return ArrayRecord({name: Array(values) for name, values in model.items()})


def predict(model, x):
    """Return P(disease) of rows (n, d) as (n,)."""
    return 1 / (1 + np.exp(-(x @ model["weight"] + model["bias"])))


def fit(model, x, y, steps: int, lr: float):
    """Train by gradient descent on all rows."""
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(steps):
        wrong = predict({"weight": weight, "bias": bias}, x) - y
        weight -= lr * (x.T @ wrong / len(y) + 0.01 * weight)
        bias -= lr * wrong.mean()
    return {"weight": weight, "bias": bias}
