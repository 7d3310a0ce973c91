"""From a plan to the sites that will take part: read the rows, give them to hospitals, set reference rows aside.

Only a simulation does this in one place. A deployed hospital reads its own file through the same
schema and splits its own rows by the same rule.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.bundle import is_bundle, read_bundle
from grandrounds.data.catalog import entry
from grandrounds.data.checks import check_sites, check_unique
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.partition import by_column, partition
from grandrounds.data.readers import read_table
from grandrounds.data.schema import infer_schema
from grandrounds.data.split import Rows, roles, split_rows
from grandrounds.data.table import Table
from grandrounds.errors import BadInput
from grandrounds.rng import generator
from grandrounds.settings import Settings
from grandrounds.site.stack import Stack

DATA_FRAME = "data frame"
"""What data.table says when the rows came from memory and cannot be read again."""


@dataclass(frozen=True)
class Reference:
    """Rows of a reference set and the hash that stands for them in the record."""

    rows: Array
    sha256: str


@dataclass(frozen=True)
class Consortium:
    """The data, the sites that hold it, which of them train, and the reference sets."""

    data: Dataset
    stack: Stack
    training: tuple[str, ...]
    reference: dict[str, Reference]
    sha256: str


def read_data(settings: Any) -> Table:
    """The raw table that [data] names."""
    if settings.name is not None:
        try:
            return entry(settings.name).load()
        except ImportError as e:
            raise BadInput(
                f"data set '{settings.name}' needs a package that is not on this machine ({e}): install it, "
                "or bring the rows with the plan (rounds plan --with-data)"
            ) from None
    if settings.table == DATA_FRAME:
        raise BadInput(
            f"this run was made from a {DATA_FRAME} in Python: go on there, with resume(folder, table=frame)"
        )
    if is_bundle(settings.table):
        return read_bundle(settings.table)
    return read_table(settings.table, query=settings.query, missing=settings.missing)


def load_dataset(settings: Any, table: Table | None = None) -> tuple[Dataset, str]:
    """The table read through its schema, and its hash; another hash than the plan's is refused."""
    table = read_data(settings) if table is None else table
    digest = table.sha256()
    if settings.sha256 is not None and digest != settings.sha256:
        raise BadInput(
            f"{table.source} is not the data this experiment was run on (sha256 {digest[:12]}..., "
            f"expected {settings.sha256[:12]}...): bring the old file back or remove data.sha256"
        )
    kinds = dict(settings.kinds.plain())
    if settings.id is not None:
        kinds[settings.id] = "id"
    schema = infer_schema(
        table,
        label=settings.label,
        site=settings.site,
        patient=settings.patient,
        time=settings.time,
        drop=settings.drop,
        overrides=kinds,
    )
    data = build_dataset(table, schema, name=settings.name or table.source, drop_unlabelled=settings.drop_unlabelled)
    if settings.id is not None:
        check_unique(data, settings.id)
    return data, digest


def assemble(plan: Settings, table: Table | None = None) -> Consortium:
    """Everything the plan says about data, done."""
    data, digest = load_dataset(plan.data, table)
    subgroup = plan.evaluation.subgroup
    if subgroup is not None:
        data.table.column(subgroup, flag="evaluation.subgroup")
    reference = _reference(plan, data)
    held = np.concatenate([r.rows for r in reference.values()]) if reference else np.empty(0, np.int64)
    pool = np.setdiff1d(np.arange(len(data)), held)
    sites = _sites(plan.split, data, pool, seed=plan.seed)
    check_sites(sites, min_rows=plan.split.min_rows)
    role = roles(
        tuple(sites),
        scheme=plan.split.scheme,
        seed=plan.seed,
        fold=plan.split.fold,
        folds=plan.split.folds,
        holdout=tuple(plan.split.holdout),
    )
    rows = tuple(_rows(plan, data, name, mine, role[name]) for name, mine in sites.items())
    stack = Stack(tuple(sites), data, rows, subgroup)
    training = tuple(name for name, r in zip(stack.names, rows, strict=True) if len(r.train))
    if len({label for r in rows for label in data.label[r.train].tolist()}) < 2:
        raise BadInput("the training rows of all sites hold one class only: nothing can be learnt")
    return Consortium(data, stack, training, reference, digest)


def _sites(split: Any, data: Dataset, pool: Array, *, seed: int) -> dict[str, Array]:
    """Site name -> rows of `data`."""
    if split.partition == "column":
        assert data.site is not None
        local = by_column(data.site[pool])
    else:
        _, y = np.unique(data.label[pool].astype(str), return_inverse=True)
        local = partition(
            split.partition,
            y,
            sites=split.sites,
            seed=seed,
            alpha=split.alpha,
            min_rows=split.min_rows,
            groups=None if data.patient is None else data.patient[pool],
        )
    return {name: pool[rows] for name, rows in local.items()}


def _rows(plan: Settings, data: Dataset, name: str, mine: Array, role: str) -> Rows:
    nothing = np.empty(0, np.int64)
    if role == "test":
        return Rows(train=nothing, val=nothing, test=mine)
    return split_rows(
        mine,
        val=plan.split.val,
        test=plan.split.test if plan.split.scheme == "within" else 0.0,
        seed=plan.seed,
        site=name,
        y=data.label,
        patient=data.patient,
        time=data.time,
        by=plan.split.by,
    )


def _reference(plan: Settings, data: Dataset) -> dict[str, Reference]:
    """Draw each reference set from the rows (whole patients, where patients are known); no row is in two."""
    sets = plan.reference.plain()
    wanted = sum(s["rows"] for s in sets.values())
    if wanted and wanted > len(data) // 2:
        raise BadInput(f"the reference sets ask for {wanted} of {len(data)} rows: ask for at most half")
    unit = np.arange(len(data)) if data.patient is None else np.unique(data.patient.astype(str), return_inverse=True)[1]
    free = np.unique(unit)
    out = {}
    for name, settings in sets.items():
        rng = generator(plan.seed, purpose=f"reference {name}")
        order = rng.permutation(free)
        size = np.cumsum(np.bincount(unit, minlength=unit.max() + 1)[order])
        taken = order[: int(np.searchsorted(size, settings["rows"])) + 1]
        free = np.setdiff1d(free, taken)
        rows = np.flatnonzero(np.isin(unit, taken))
        digest = hashlib.sha256(data.table.take(rows).sha256().encode()).hexdigest()
        out[name] = Reference(rows, digest)
    return out
