"""Small consortia for tests, made from a seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.encoding import Encoding, EncodingRules
from grandrounds.data.schema import infer_schema
from grandrounds.data.split import Rows
from grandrounds.data.table import Table
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.methods.exchanges import agree, prepare
from grandrounds.models import model_spec
from grandrounds.rng import generator
from grandrounds.settings import Settings
from grandrounds.site.stack import Stack

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def patients(sizes: list[int], *, classes: int = 2, seed: int = 0, gaps: float = 0.05) -> Table:
    """A table of patients at sites a, b, c ...: three measurements, a category, a label that follows from them."""
    rng = generator(seed, purpose="patients")
    n = sum(sizes)
    age, lactate, pressure = rng.normal(60, 12, n), rng.lognormal(0.5, 0.6, n), rng.normal(75, 15, n)
    ward = rng.choice(["medical", "surgical", "cardiac"], n)
    score = 0.04 * (age - 60) + 0.9 * (lactate - 1.9) - 0.03 * (pressure - 75) + 0.5 * (ward == "cardiac")
    noisy = score + rng.logistic(size=n)
    cuts = np.quantile(noisy, np.arange(1, classes) / classes)
    label = np.searchsorted(cuts, noisy).astype(float)
    for column in (age, lactate, pressure):
        column[rng.random(n) < gaps] = np.nan
    site = np.repeat([chr(ord("a") + k % 26) + (str(k // 26) if k >= 26 else "") for k in range(len(sizes))], sizes)
    columns = {"age": age, "lactate": lactate, "pressure": pressure, "ward": ward, "hospital": site, "died": label}
    return Table.from_mapping(columns, source="patients.csv")


def dataset(table: Table) -> Dataset:
    schema = infer_schema(table, label="died", site="hospital")
    return build_dataset(table, schema, name="patients")


def stack(sizes: list[int], *, classes: int = 2, seed: int = 0) -> Stack:
    """Sites with all rows but two of each in training, one in validation, one in test."""
    data = dataset(patients(sizes, classes=classes, seed=seed))
    edges = np.cumsum([0, *sizes])
    rows = tuple(
        Rows(train=np.arange(a, b - 2), val=np.arange(b - 2, b - 1), test=np.arange(b - 1, b))
        for a, b in pairwise(edges)
    )
    names = tuple(dict.fromkeys(data.site.tolist()))
    return Stack(names, data, rows)


def ready(
    held: Stack, *, model: str = "logistic", hidden: tuple[int, ...] = (5,), **settings
) -> tuple[LocalEngine, Encoding]:
    """An engine whose sites have prepared their data."""
    engine = LocalEngine(held, EngineSettings(run="test", seed=0, **settings))
    encoding, _ = engine.drive(
        agree(
            numeric=held.data.numeric_names,
            categorical=held.data.categorical_names,
            rules=EncodingRules(),
            to=held.names,
        ),
        round=0,
    )
    options = {
        "name": model,
        "hidden": hidden,
        "trees": 5,
        "depth": 4,
        "norm": "group",
        "stem": "small",
        "weights": None,
        "statistics": "averaged",
    }
    spec = model_spec(Settings(options), inputs=encoding.inputs, classes=len(encoding.classes))
    engine.drive(prepare(encoding, spec), round=0)
    return engine, encoding
