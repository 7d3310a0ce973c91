"""Five folds of real cohorts, split by patient with seed 0, encoded by the product: the rows of `bench/glass_boxes.py`.

    python bench/folds.py        # lists the cohorts; needs GRANDROUNDS_DATA for all but heart

    fold = make_fold("eicu-demo", 0)
    fold.sites["South"].x, fold.sites["South"].y        # training rows of a site, coding "columns"
    fold.test.x, fold.test.y                            # test rows of all sites together

Folds are those of scikit-learn's `StratifiedGroupKFold(5, shuffle=True, random_state=0)`, with the patient as group; in heart
every row is a patient. On these folds LightGBM with its defaults has the AUROC of 0.778 +- 0.033 that
the specification states for the eICU demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from grandrounds.capabilities.statistics.models.columns import Column, find_columns, read_columns
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.arrays import Array
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.encoding import Encoding, EncodingRules, agree_ranges, make_encoding
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.split import assign_roles
from grandrounds.data.summary import Moments, Summary
from grandrounds.data.table import Table
from smoke import pick

FOLDS = 5
COHORTS = ("heart", "eicu-demo", "diabetes-130")

_EICU_ENDS = ("_mean", "_min", "_max", "_std")
"""The eICU cohort of the specification: age, teaching status, and vitals and laboratory values of the first day (70 columns)."""


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold of a cohort.

    Attributes:
        sites: Training rows of each site; x (n, d) with coding "columns", y 0 or 1.
        test: Test rows of all sites.
        encoding: Made from the training rows alone.
        columns: Its clinical columns.
    """

    sites: dict[str, Rows]
    test: Rows
    encoding: Encoding
    columns: tuple[Column, ...]

    @property
    def train(self) -> Rows:
        """The training rows of all sites below each other."""
        return join_rows(list(self.sites.values()))

    @property
    def categories(self) -> list[int]:
        """The places of the categories among the columns."""
        return [c for c, column in enumerate(self.columns) if column.is_category]

    def values(self, rows: Rows) -> Array:
        """Return the columns of rows, (n, C): numbers, numbers of levels, NaN where missing; as LightGBM and EBM read them."""
        return read_columns(rows.x, self.columns)


def make_fold(cohort: str, fold: int) -> Fold:
    """Make one fold of a cohort.

    Args:
        cohort: One of `COHORTS`.
        fold: 0 to 4.
    """
    data, site = load_cohort(cohort)
    number = fold_numbers(cohort)
    patient = np.arange(len(data)) if data.patient is None else np.unique(data.patient.astype(str), return_inverse=True)[1]
    trained = np.flatnonzero(number != fold)
    encoding = agree_encoding(data.take(trained))
    x, y = encoding.encode(data, np.float64), encoding.labels(data).astype(np.float64)

    def rows(chosen: Array) -> Rows:
        return Rows(x[chosen], y[chosen], patient=patient[chosen])

    sites = {str(s): rows(trained[site[trained] == s]) for s in np.unique(site[trained])}
    return Fold(sites, rows(np.flatnonzero(number == fold)), encoding, find_columns(encoding))


@cache
def load_cohort(cohort: str) -> tuple[Dataset, Array]:
    """Load a cohort, and the site of each row: the four hospitals of heart, five regions of eICU, 18 payers of diabetes-130."""
    entry = find_entry(cohort)
    table = entry.load()
    assert isinstance(table, Table)
    site = table.column(entry.site or "payer_code").copy()
    site[[s is None for s in site]] = "unknown"
    drop = {*entry.drop, *([entry.site] if entry.site else [])}
    if cohort == "eicu-demo":
        roles = (entry.label, entry.patient)
        keep = ("age", "teachingstatus", *(n for n in table.names if n.endswith(_EICU_ENDS)))
        drop |= {n for n in table.names if n not in keep and n not in roles}
    schema = infer_schema(
        table,
        label=entry.label,
        patient=entry.patient,
        drop=sorted(drop),
        overrides={name: kind for name, kind in entry.schema.items() if name not in drop},
    )
    return build_dataset(table, schema, name=cohort), site.astype(str)


def split_cohort(cohort: str, *, fold: int = 0, rows: int | None = None, columns: int | None = None) -> Fold:
    """Split the generated ICU cohort into hospitals to train at and unseen hospitals, as its recipe does (five groups, seed 0).

    Args:
        cohort: "icu-cohort".
        fold: The group of hospitals to test, 0 to 4.
        rows: Take the first so many training rows only.
        columns: Take the first so many columns only.
    """
    data, site = load_cohort(cohort)
    roles = assign_roles(np.unique(site).tolist(), scheme="group-kfold", seed=0, fold=fold, folds=FOLDS)
    tested = np.array([roles[s] == "test" for s in site])
    trained = np.flatnonzero(~tested)[:rows]
    encoding = agree_encoding(data.take(trained))
    x, y = encoding.encode(data, np.float64), encoding.labels(data).astype(np.float64)
    sites = {str(s): trained[site[trained] == s] for s in np.unique(site[trained])}
    return Fold(
        {name: Rows(x[mine], y[mine]) for name, mine in sites.items()},
        Rows(x[tested], y[tested]),
        encoding,
        find_columns(encoding)[:columns],
    )


@cache
def fold_numbers(cohort: str) -> Array:
    """Return the fold of each row (n,), in which it is tested."""
    from sklearn.model_selection import StratifiedGroupKFold

    data, _ = load_cohort(cohort)
    patient = np.arange(len(data)) if data.patient is None else data.patient.astype(str)
    out = np.empty(len(data), np.int64)
    splits = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0).split(out, data.label.astype(str), patient)
    for number, (_, test) in enumerate(splits):
        out[test] = number
    return out


def agree_encoding(data: Dataset) -> Encoding:
    """Make the encoding of rows with data.coding = "columns", as a run does from its training rows."""
    rules = EncodingRules(scale="none", clip=0.0, coding="columns")
    total = Summary.merge([Summary.from_dataset(data)])
    moments = Moments.from_dataset(data, *agree_ranges(total, clip=rules.clip))
    return make_encoding(total, moments, numeric=data.numeric_names, categorical=data.categorical_names, rules=rules)


def deal_rows(rows: Rows, sites: int, *, seed: int = 0) -> dict[str, Rows]:
    """Deal rows to so many sites at random.

    Args:
        rows: All rows.
        sites: The number of sites.
        seed: The seed.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    return {f"site{k}": take_rows(rows, part) for k, part in enumerate(np.array_split(order, sites))}


def take_rows(rows: Rows, chosen: Array) -> Rows:
    """Select rows."""
    return Rows(rows.x[chosen], rows.y[chosen], patient=None if rows.patient is None else rows.patient[chosen])


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Put rows below each other."""
    patients = [part.patient for part in parts if part.patient is not None]
    return Rows(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        patient=np.concatenate(patients) if len(patients) == len(parts) else None,
    )


def auroc(y: Array, score: Array) -> float:
    """Return the area under the ROC curve; ties count half."""
    order = np.argsort(score, kind="stable")
    _, group, count = np.unique(score[order], return_inverse=True, return_counts=True)
    rank = np.empty(len(y))
    rank[order] = (np.cumsum(count) - (count - 1) / 2)[group]
    events = y == 1
    n1, n0 = int(events.sum()), int((~events).sum())
    return float((rank[events].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def main() -> None:
    """List rows, events, columns and sites of each cohort, and the rows of its folds."""
    print("| cohort | rows | events | columns | categories | sites | test rows of the folds |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for cohort in pick(COHORTS, COHORTS[:1]):
        fold = make_fold(cohort, 0)
        rows = join_rows([fold.train, fold.test])
        sizes = ", ".join(f"{n:,}" for n in np.bincount(fold_numbers(cohort)))
        print(
            f"| {cohort} | {len(rows):,} | {int(rows.y.sum()):,} | {len(fold.columns)} | {len(fold.categories)} | "
            f"{len(fold.sites)} | {sizes} |"
        )


if __name__ == "__main__":
    main()
