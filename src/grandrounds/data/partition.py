"""Partition of rows into simulated sites: IID, Dirichlet label skew, shards and others.

Whole units are dealt: single rows, or all rows of a patient when `groups` is given. Every kind says
how many rows each site should hold (of each class, where classes matter) and `_cut` gives out
shuffled units to match; with units of one row the match is exact, with larger ones it is as near as
whole patients allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature

import numpy as np

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.names import check_site_names
from grandrounds.core.rng import generator
from grandrounds.data.table import format_number, missing_mask

DRAWS = 2000  # of proportions, for `dirichlet`: cheap, a few numbers each
DEALS = 20  # of whole partitions, for any kind: only patients of many rows can make a deal fail
MAIN_SHARE = 0.8  # semi-iid: the share of a site's rows that comes from its own class


@dataclass(frozen=True)
class Units:
    """Rows or patients to deal: `cls` (U,) class code, `size` (U,) rows of each unit; `n_classes`, `n_rows`."""

    cls: np.ndarray
    size: np.ndarray
    n_classes: int
    n_rows: int

    def of_class(self, c: int, rng: np.random.Generator) -> np.ndarray:
        """Shuffle the units of one class."""
        return rng.permutation(np.flatnonzero(self.cls == c))

    def class_rows(self) -> np.ndarray:
        """Count rows by class (n_classes,), a unit's rows counting as its class."""
        return np.bincount(self.cls, weights=self.size, minlength=self.n_classes).astype(np.int64)


@dataclass(frozen=True)
class PartitionRequest:
    """The numbers a caller asks for, beside the kind of partition."""

    sites: int
    alpha: float
    min_rows: int


Dealer = Callable[[Units, PartitionRequest, np.random.Generator], np.ndarray | None]


def partition(
    kind: str,
    y: np.ndarray,
    *,
    sites: int,
    seed: int,
    alpha: float = 0.5,
    min_rows: int = 8,
    groups: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Deal rows to sites.

    Args:
        kind: `equal` (IID, equal sizes), `random` (sizes ~ Dirichlet(1), IID), `unequal` (sizes proportional to 1..K, class
            mix Dirichlet(alpha)), `dirichlet` (each class spread over the sites by Dirichlet(alpha)), `shards` (two class
            shards a site) or `semi-iid` (80% from one class).
        y: The label of each row.
        sites: The number of sites.
        seed: The seed of the draw.
        alpha: The concentration of the Dirichlet kinds.
        min_rows: The fewest rows of a site.
        groups: Patient ids: rows of one value stay at one site; the class of a group is that of most of its rows.

    Returns:
        Site name ("site-01" on) -> its row numbers, sorted: disjoint, covering every row of `y`.

    Raises:
        BadInput: No draw gives every site `min_rows` rows; the sentence says what to change.
    """
    if kind not in KINDS:
        raise BadInput(f"partition '{kind}' is unknown; {nearest(kind, KINDS)}", code="unknown-partition")
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise BadInput(
            f"a partition needs one label a row, not an array of shape {labels.shape}", code="length-mismatch"
        )
    wish = _check_request(kind, PartitionRequest(sites, alpha, min_rows), n=len(labels))
    if groups is not None and len(groups) != len(labels):
        raise BadInput(
            f"groups has {len(groups)} values for {len(labels)} rows; give one a row", code="length-mismatch"
        )
    unit_of_row = np.arange(len(labels)) if groups is None else encode_values(np.asarray(groups))
    units = _units(encode_values(labels), unit_of_row)
    if len(units.cls) < sites:
        raise BadInput(
            f"{len(units.cls)} groups cannot fill {sites} sites without splitting one; ask for fewer sites",
            code="too-few-groups",
        )
    rng = generator(seed, purpose=f"partition/{kind}")
    for _ in range(DEALS):
        owner = KINDS[kind](units, wish, rng)
        if owner is None:
            break
        rows_per_site = np.bincount(owner, weights=units.size, minlength=sites)
        if rows_per_site.min() >= min_rows:
            return _name_sites(owner[unit_of_row], sites)
    raise BadInput(_too_thin(kind, wish, n=len(labels), grouped=groups is not None), code="too-few-rows")


def partition_by_column(values: np.ndarray, *, column: str = "site") -> dict[str, np.ndarray]:
    """Make one site for each value of a column (a hospital's name or number), in sorted order.

    A whole number loses its ".0". Rows without a value belong to no site, and names that look the same are refused: BadInput.
    """
    values = np.asarray(values)
    gaps = missing_mask(values)
    if gaps.any():
        raise BadInput(
            f"column '{column}' has no value in {int(gaps.sum())} of {len(values)} rows; "
            "fill it in or drop those rows, since each row belongs to a site",
            code="missing-values",
        )
    distinct, code = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    names = [str(v) if values.dtype == object else format_number(float(v)) for v in distinct]
    check_site_names(names, where="the column of the site")
    return dict(zip(names, _rows_of(code, len(distinct)), strict=True))


def plugin_partition(
    path: str, y: np.ndarray, *, sites: int, seed: int, groups: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Deal rows by a function of the user's own.

    It is called with `y` (n,), `sites` and `rng`, and with `groups` (n,) where it has such an argument; it gives a list of
    as many arrays of row numbers, or a dict by site name. Rows in none of them are left out of the study.

    Args:
        path: The import path of the function.
        y: The label of each row.
        sites: The number of sites.
        seed: The seed of its generator.
        groups: The patient of each row.

    Returns:
        Site name -> its row numbers, sorted and disjoint.

    Raises:
        BadInput: The result is no partition, or parts the rows of a patient.
    """
    where = f"split.partition is '{path}'"
    arguments = {"sites": sites, "rng": generator(seed, purpose="partition/own")}
    work = plugins.resolve(path, key="split.partition")
    if callable(work) and "groups" in signature(work).parameters:
        arguments["groups"] = groups
    dealt = plugins.call(path, y, key="split.partition", **arguments)
    if not isinstance(dealt, Mapping):
        if not isinstance(dealt, (list, tuple)):
            raise BadInput(
                f"{where}: it gives a {type(dealt).__name__}, not a list of arrays of row numbers",
                code="invalid-partition",
            )
        if len(dealt) != sites:
            raise BadInput(
                f"{where}: it gives {len(dealt)} sites, but split.sites is {sites}", code="invalid-partition"
            )
        width = max(2, len(str(sites)))
        dealt = {f"site-{k + 1:0{width}d}": rows for k, rows in enumerate(dealt)}
    out = {str(name): _check_plugin_rows(rows, f"{where}: '{name}'", n=len(y)) for name, rows in dealt.items()}
    if not out:
        raise BadInput(f"{where}: it gives no sites", code="invalid-partition")
    rows, times = np.unique(np.concatenate(list(out.values())), return_counts=True)
    if times.max() > 1:
        raise BadInput(
            f"{where}: row {rows[times > 1][0]} is given out {times.max()} times; a row belongs to one site",
            code="invalid-partition",
        )
    if groups is not None:
        _check_whole(out, np.asarray(groups), where)
    return out


def _check_plugin_rows(rows: object, where: str, *, n: int) -> np.ndarray:
    numbers = np.asarray(rows)
    if numbers.size == 0:
        raise BadInput(f"{where} has no rows; give every site some, or ask for fewer sites", code="invalid-partition")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise BadInput(
            f"{where} is {numbers.dtype} of shape {numbers.shape}; give whole row numbers, one after another",
            code="invalid-partition",
        )
    if numbers.min() < 0 or numbers.max() >= n:
        raise BadInput(
            f"{where} has row numbers from {numbers.min()} to {numbers.max()}; they go from 0 to {n - 1}",
            code="invalid-partition",
        )
    return np.sort(numbers.astype(np.int64))


def _check_whole(sites: Mapping[str, np.ndarray], groups: np.ndarray, where: str) -> None:
    """Refuse a patient with rows at two sites: one could train on what the other tests."""
    patient = encode_values(groups)
    owner = np.full(len(patient), -1)
    for k, rows in enumerate(sites.values()):
        owner[rows] = k
    pairs = np.unique(np.stack([patient, owner])[:, owner >= 0], axis=1)
    if len(np.unique(pairs[0])) < pairs.shape[1]:
        raise BadInput(
            f"{where}: it puts rows of one patient at two sites; take an argument `groups` (the patient of each row) and "
            "keep its rows together",
            code="patient-at-two-sites",
        )


def encode_values(values: np.ndarray) -> np.ndarray:
    """Number the distinct values from 0, in sorted order; a missing value is a value of its own."""
    if values.dtype == object:
        values = np.array(["" if v is None else str(v) for v in values])
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def majority_class(cls: np.ndarray, unit_of_row: np.ndarray) -> np.ndarray:
    """Find the class that most rows of each unit (patient) have; the lower class where even."""
    n_classes = int(cls.max()) + 1
    pair, rows = np.unique(unit_of_row * n_classes + cls, return_counts=True)
    unit, one = np.divmod(pair, n_classes)
    best = np.lexsort((one, -rows, unit))
    first = np.unique(unit[best], return_index=True)[1]
    return np.take(one, best[first])


# --- kinds ------------------------------------------------------------------------------------------


def _equal(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray:
    """Deal IID: shuffled units, sites of n/K rows, give or take one."""
    return _cut(rng.permutation(len(units.cls)), units, _even(units.n_rows, wish.sites))


def _random(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray:
    """Deal IID with sizes ~ Dirichlet(1), given that every site has `min_rows`.

    Dirichlet(1) is uniform on the simplex, so that condition only shrinks the simplex: the floor
    first, the rest in Dirichlet(1) shares. No redraw is needed, however many sites there are.
    """
    spare = units.n_rows - wish.sites * wish.min_rows
    sizes = wish.min_rows + _round_to_total(rng.dirichlet(np.ones(wish.sites)) * spare, spare)
    return _cut(rng.permutation(len(units.cls)), units, sizes)


def _unequal(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray:
    """Deal sizes proportional to 1..K as stated; each site's class mix starts as Dirichlet(alpha).

    Drawn mixes do not add up to the classes there are, so the table (site, class) is scaled to both
    margins (iterative proportional fitting): it keeps the odds ratios of the draw, changes every
    site alike, and leaves no "last site" with whatever was left over.
    """
    sizes = _stairs(units.n_rows, wish.sites)
    mix = rng.dirichlet(np.full(units.n_classes, wish.alpha), size=wish.sites)
    table = _fit((mix + 1e-9) * sizes[:, None], rows=sizes, columns=units.class_rows())
    return _deal(table, units, rng)


def _dirichlet(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray | None:
    """Deal with label skew: every class is spread over the sites by its own Dirichlet(alpha) shares."""
    class_rows = units.class_rows()
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(wish.sites, wish.alpha), size=units.n_classes)
        marks = np.rint(np.cumsum(shares, axis=1) * class_rows[:, None])
        marks[:, -1] = class_rows
        table = np.diff(marks, axis=1, prepend=0).T.astype(np.int64)
        if table.sum(axis=1).min() >= wish.min_rows:
            return _deal(table, units, rng)
    return None


def _shards(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray:
    """McMahan et al.: rows sorted by class, cut into 2K equal shards, two drawn for each site.

    A shard on the border of two classes holds both, so a site may see a third or fourth class.
    """
    order = np.concatenate([units.of_class(c, rng) for c in range(units.n_classes)])
    shard = _cut(order, units, _even(units.n_rows, 2 * wish.sites))
    return np.take(rng.permutation(2 * wish.sites) // 2, shard)


def _semi_iid(units: Units, wish: PartitionRequest, rng: np.random.Generator) -> np.ndarray:
    """Deal equal sizes; 80% of a site's rows from its own class, 20% drawn from all the rest.

    Sites are given to classes in proportion to the classes' rows. Where a class has fewer rows than
    its sites want (fewer sites than classes, say), those sites share all of it evenly and fill up
    from the rest: the 80% is then a smaller share.
    """
    sizes = _even(units.n_rows, wish.sites)
    class_rows = units.class_rows()
    shuffled = rng.permutation(units.n_classes)  # so that ties between classes fall by lot
    n_sites = np.empty(units.n_classes, dtype=np.int64)
    n_sites[shuffled] = _round_to_total(class_rows[shuffled] / units.n_rows * wish.sites, wish.sites)
    site_classes = rng.permutation(np.repeat(np.arange(units.n_classes), n_sites))
    owner = np.full(len(units.cls), wish.sites)
    for c in range(units.n_classes):
        mine = np.flatnonzero(site_classes == c)
        wanted = np.rint(MAIN_SHARE * sizes[mine]).astype(np.int64)
        if wanted.sum() > class_rows[c]:
            wanted = _even(int(class_rows[c]), len(mine))
        order = units.of_class(c, rng)
        owner[order] = np.append(mine, wish.sites)[_cut(order, units, wanted)[order]]
    rest = rng.permutation(np.flatnonzero(owner == wish.sites))
    rows_per_site = np.bincount(owner, weights=units.size, minlength=wish.sites + 1)[: wish.sites].astype(np.int64)
    spare = int(units.size[rest].sum())
    owner[rest] = _cut(rest, units, _fill(np.maximum(sizes - rows_per_site, 0), spare))[rest]
    return owner


KINDS: dict[str, Dealer] = {
    "equal": _equal,
    "random": _random,
    "unequal": _unequal,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "semi-iid": _semi_iid,
}


# --- dealing ----------------------------------------------------------------------------------------


def _cut(order: np.ndarray, units: Units, targets: np.ndarray) -> np.ndarray:
    """Find the owner of each unit (U,): the units in `order` laid end to end and cut at the targets.

    A unit goes where its middle row falls. Units beyond the last target belong to len(targets).
    """
    size = units.size[order]
    middle = np.cumsum(size) - size / 2
    owner = np.full(len(units.cls), len(targets))
    owner[order] = np.searchsorted(np.cumsum(targets), middle, side="right")
    return owner


def _deal(table: np.ndarray, units: Units, rng: np.random.Generator) -> np.ndarray:
    """Find the owner of each unit for a table (K, n_classes) of rows wanted, whose columns add up."""
    owner = np.empty(len(units.cls), dtype=np.int64)
    for c in range(units.n_classes):
        order = units.of_class(c, rng)
        owner[order] = _cut(order, units, table[:, c])[order]
    return owner


def _fit(table: np.ndarray, *, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Scale `table` to the given margins, then make whole numbers that keep both exactly."""
    for _ in range(200):
        table = table * (rows / table.sum(axis=1))[:, None]
        table = table * (columns / table.sum(axis=0))
    counts = np.stack([_round_to_total(table[:, c], int(n)) for c, n in enumerate(columns)], axis=1)
    while (gap := rows - counts.sum(axis=1)).any():  # a row or so a site: rounding was by column
        over, under = int(np.argmin(gap)), int(np.argmax(gap))
        c = int(np.argmax(counts[over]))
        moved = min(-gap[over], gap[under], counts[over, c])
        counts[over, c] -= moved
        counts[under, c] += moved
    return counts


def _round_to_total(parts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers nearest to `parts` that sum to `total` (largest remainders)."""
    counts: np.ndarray = np.floor(parts).astype(np.int64)
    most = np.argsort(-(parts - counts), kind="stable")
    counts[most[: total - int(counts.sum())]] += 1
    return counts


def _even(total: int, k: int) -> np.ndarray:
    """Cut `total` into k parts that differ by one at most."""
    return np.diff(total * np.arange(k + 1) // k)[::-1]


def _stairs(total: int, k: int) -> np.ndarray:
    """Cut `total` into k parts proportional to 1..k."""
    steps = np.arange(1, k + 1)
    return _round_to_total(steps / steps.sum() * total, total)


def _fill(gaps: np.ndarray, total: int) -> np.ndarray:
    """Deal `total` rows to sites in proportion to their gaps (whole patients make gaps inexact)."""
    return _round_to_total(gaps / max(int(gaps.sum()), 1) * total, total)


# --- checks and names -------------------------------------------------------------------------------


def _check_request(kind: str, wish: PartitionRequest, *, n: int) -> PartitionRequest:
    """Return the request unchanged, once it can be met at all."""
    if wish.sites < 1:
        raise BadInput(f"sites = {wish.sites}: a partition needs one site at least", code="out-of-range")
    if wish.min_rows < 1:
        raise BadInput(
            f"min_rows = {wish.min_rows}: a site without rows is no site; give 1 or more", code="out-of-range"
        )
    if not (np.isfinite(wish.alpha) and wish.alpha > 0):
        raise BadInput(
            f"alpha = {wish.alpha}: give a positive number (0.1 very skewed, 100 nearly even)", code="out-of-range"
        )
    smallest = int(_stairs(n, wish.sites)[0]) if kind == "unequal" else n // wish.sites
    if smallest < wish.min_rows:
        raise BadInput(
            f"partition '{kind}' of {n} rows over {wish.sites} sites leaves a site with {smallest} rows, "
            f"fewer than min_rows = {wish.min_rows}; ask for fewer sites or lower min_rows",
            code="too-few-rows",
        )
    return wish


def _too_thin(kind: str, wish: PartitionRequest, *, n: int, grouped: bool) -> str:
    if kind == "dirichlet":
        failure = f"no draw of '{kind}' with alpha = {wish.alpha:g} out of {DRAWS}"
        ways = "raise alpha, ask for fewer sites or lower min_rows"
    else:
        failure, ways = f"no draw of '{kind}'", "ask for fewer sites or lower min_rows"
    note = " (rows of a patient stay together)" if grouped else ""
    return f"{failure} gave each of {wish.sites} sites {wish.min_rows} of the {n} rows{note}; {ways}"


def _units(cls: np.ndarray, unit_of_row: np.ndarray) -> Units:
    """Gather rows into units."""
    used, code = np.unique(majority_class(cls, unit_of_row), return_inverse=True)  # a class may win no unit
    return Units(code.astype(np.int64), np.bincount(unit_of_row), len(used), len(cls))


def _name_sites(owner: np.ndarray, sites: int) -> dict[str, np.ndarray]:
    width = max(2, len(str(sites)))
    return {f"site-{k + 1:0{width}d}": rows for k, rows in enumerate(_rows_of(owner, sites))}


def _rows_of(owner: np.ndarray, k: int) -> list[np.ndarray]:
    """List the sorted row numbers of each of the k owners, in one pass over the rows."""
    ends = np.cumsum(np.bincount(owner, minlength=k))[:-1]
    return np.split(np.argsort(owner, kind="stable"), ends)
