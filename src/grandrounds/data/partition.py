"""One set of rows dealt out to sites, in the ways the literature simulates hospitals.

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
from grandrounds.core.rng import generator
from grandrounds.data.table import format_number, missing_mask

DRAWS = 2000  # of proportions, for `dirichlet`: cheap, a few numbers each
DEALS = 20  # of whole partitions, for any kind: only patients of many rows can make a deal fail
MAIN_SHARE = 0.8  # semi-iid: the share of a site's rows that comes from its own class


@dataclass(frozen=True)
class Units:
    """What is dealt: `cls` (U,) class code, `size` (U,) rows of each unit; `n_classes`, `n_rows`."""

    cls: np.ndarray
    size: np.ndarray
    n_classes: int
    n_rows: int

    def of_class(self, c: int, rng: np.random.Generator) -> np.ndarray:
        """The units of one class, shuffled."""
        return rng.permutation(np.flatnonzero(self.cls == c))

    def class_rows(self) -> np.ndarray:
        """Rows by class (n_classes,), a unit's rows counting as its class."""
        return np.bincount(self.cls, weights=self.size, minlength=self.n_classes).astype(np.int64)


@dataclass(frozen=True)
class Wish:
    """What the caller asked for, beside the kind."""

    sites: int
    alpha: float
    min_rows: int


Dealer = Callable[[Units, Wish, np.random.Generator], np.ndarray | None]


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
    """Site name ("site-01" on) -> its row numbers, sorted: disjoint, covering every row of `y`.

    Kinds: `equal` (IID, equal sizes), `random` (sizes ~ Dirichlet(1), IID), `unequal` (sizes
    proportional to 1..K, class mix Dirichlet(alpha)), `dirichlet` (each class spread over the sites
    by Dirichlet(alpha)), `shards` (two class shards a site), `semi-iid` (80% from one class).
    Every site holds at least `min_rows` rows, or BadInput says what to change. Rows of one value of
    `groups` (patient ids) stay at one site; the class of a group is that of most of its rows.
    """
    if kind not in KINDS:
        raise BadInput(f"partition '{kind}' is unknown; {nearest(kind, KINDS)}", code="unknown-partition")
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise BadInput(
            f"a partition needs one label a row, not an array of shape {labels.shape}", code="length-mismatch"
        )
    wish = _checked(kind, Wish(sites, alpha, min_rows), n=len(labels))
    if groups is not None and len(groups) != len(labels):
        raise BadInput(
            f"groups has {len(groups)} values for {len(labels)} rows; give one a row", code="length-mismatch"
        )
    unit_of_row = np.arange(len(labels)) if groups is None else codes(np.asarray(groups))
    units = _units(codes(labels), unit_of_row)
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
        held = np.bincount(owner, weights=units.size, minlength=sites)
        if held.min() >= min_rows:
            return _named(owner[unit_of_row], sites)
    raise BadInput(_too_thin(kind, wish, n=len(labels), grouped=groups is not None), code="too-few-rows")


def by_column(values: np.ndarray, *, column: str = "site") -> dict[str, np.ndarray]:
    """One site for each value of a column (a hospital's name or number), in sorted order.

    A whole number loses its ".0". Rows without a value belong to no site: BadInput.
    """
    values = np.asarray(values)
    gaps = missing_mask(values)
    if gaps.any():
        raise BadInput(
            f"column '{column}' has no value in {int(gaps.sum())} of {len(values)} rows; "
            "fill it in or drop those rows, since each row belongs to a site",
            code="missing-values",
        )
    known, code = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    names = (str(v) if values.dtype == object else format_number(float(v)) for v in known)
    return dict(zip(names, _rows_of(code, len(known)), strict=True))


def own_partition(
    path: str, y: np.ndarray, *, sites: int, seed: int, groups: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The partition that a function of the user's own makes: site name -> its row numbers, sorted and disjoint.

    It is called with `y` (n,), `sites` and `rng`, and with `groups` (n,) where it has such an argument; it gives a list of
    as many arrays of row numbers, or a dict by site name. Rows in none of them are left out of the study.
    """
    where = f"split.partition is '{path}'"
    given = {"sites": sites, "rng": generator(seed, purpose="partition/own")}
    work = plugins.resolve(path, key="split.partition")
    if callable(work) and "groups" in signature(work).parameters:
        given["groups"] = groups
    dealt = plugins.call(path, y, key="split.partition", **given)
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
    out = {str(name): _own_rows(rows, f"{where}: '{name}'", n=len(y)) for name, rows in dealt.items()}
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


def _own_rows(rows: object, where: str, *, n: int) -> np.ndarray:
    found = np.asarray(rows)
    if found.size == 0:
        raise BadInput(f"{where} has no rows; give every site some, or ask for fewer sites", code="invalid-partition")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise BadInput(
            f"{where} is {found.dtype} of shape {found.shape}; give whole row numbers, one after another",
            code="invalid-partition",
        )
    if found.min() < 0 or found.max() >= n:
        raise BadInput(
            f"{where} has row numbers from {found.min()} to {found.max()}; they go from 0 to {n - 1}",
            code="invalid-partition",
        )
    return np.sort(found.astype(np.int64))


def _check_whole(sites: Mapping[str, np.ndarray], groups: np.ndarray, where: str) -> None:
    """Refuse a patient with rows at two sites: one could train on what the other tests."""
    patient = codes(groups)
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


def codes(values: np.ndarray) -> np.ndarray:
    """0.. for each distinct value, in sorted order; a missing value is a value of its own."""
    if values.dtype == object:
        values = np.array(["" if v is None else str(v) for v in values])
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def majority(cls: np.ndarray, unit_of_row: np.ndarray) -> np.ndarray:
    """For each unit (patient), the class that most of its rows have; the lower class where even."""
    n_classes = int(cls.max()) + 1
    pair, rows = np.unique(unit_of_row * n_classes + cls, return_counts=True)
    unit, one = np.divmod(pair, n_classes)
    best = np.lexsort((one, -rows, unit))
    first = np.unique(unit[best], return_index=True)[1]
    return np.take(one, best[first])


# --- kinds ------------------------------------------------------------------------------------------


def _equal(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray:
    """IID: shuffled units, sites of n/K rows, give or take one."""
    return _cut(rng.permutation(len(units.cls)), units, _even(units.n_rows, wish.sites))


def _random(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray:
    """IID with sizes ~ Dirichlet(1), given that every site has `min_rows`.

    Dirichlet(1) is uniform on the simplex, so that condition only shrinks the simplex: the floor
    first, the rest in Dirichlet(1) shares. No redraw is needed, however many sites there are.
    """
    spare = units.n_rows - wish.sites * wish.min_rows
    sizes = wish.min_rows + _whole(rng.dirichlet(np.ones(wish.sites)) * spare, spare)
    return _cut(rng.permutation(len(units.cls)), units, sizes)


def _unequal(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray:
    """Sizes proportional to 1..K as stated; each site's class mix starts as Dirichlet(alpha).

    Drawn mixes do not add up to the classes there are, so the table (site, class) is scaled to both
    margins (iterative proportional fitting): it keeps the odds ratios of the draw, changes every
    site alike, and leaves no "last site" with whatever was left over.
    """
    sizes = _stairs(units.n_rows, wish.sites)
    mix = rng.dirichlet(np.full(units.n_classes, wish.alpha), size=wish.sites)
    table = _fit((mix + 1e-9) * sizes[:, None], rows=sizes, columns=units.class_rows())
    return _deal(table, units, rng)


def _dirichlet(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray | None:
    """Label skew: every class is spread over the sites by its own Dirichlet(alpha) shares."""
    class_rows = units.class_rows()
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(wish.sites, wish.alpha), size=units.n_classes)
        marks = np.rint(np.cumsum(shares, axis=1) * class_rows[:, None])
        marks[:, -1] = class_rows
        table = np.diff(marks, axis=1, prepend=0).T.astype(np.int64)
        if table.sum(axis=1).min() >= wish.min_rows:
            return _deal(table, units, rng)
    return None


def _shards(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray:
    """McMahan et al.: rows sorted by class, cut into 2K equal shards, two drawn for each site.

    A shard on the border of two classes holds both, so a site may see a third or fourth class.
    """
    order = np.concatenate([units.of_class(c, rng) for c in range(units.n_classes)])
    shard = _cut(order, units, _even(units.n_rows, 2 * wish.sites))
    return np.take(rng.permutation(2 * wish.sites) // 2, shard)


def _semi_iid(units: Units, wish: Wish, rng: np.random.Generator) -> np.ndarray:
    """Equal sizes; 80% of a site's rows from its own class, 20% drawn from all the rest.

    Sites are given to classes in proportion to the classes' rows. Where a class has fewer rows than
    its sites want (fewer sites than classes, say), those sites share all of it evenly and fill up
    from the rest: the 80% is then a smaller share.
    """
    sizes = _even(units.n_rows, wish.sites)
    class_rows = units.class_rows()
    shuffled = rng.permutation(units.n_classes)  # so that ties between classes fall by lot
    n_sites = np.empty(units.n_classes, dtype=np.int64)
    n_sites[shuffled] = _whole(class_rows[shuffled] / units.n_rows * wish.sites, wish.sites)
    own = rng.permutation(np.repeat(np.arange(units.n_classes), n_sites))
    owner = np.full(len(units.cls), wish.sites)
    for c in range(units.n_classes):
        mine = np.flatnonzero(own == c)
        wanted = np.rint(MAIN_SHARE * sizes[mine]).astype(np.int64)
        if wanted.sum() > class_rows[c]:
            wanted = _even(int(class_rows[c]), len(mine))
        order = units.of_class(c, rng)
        owner[order] = np.append(mine, wish.sites)[_cut(order, units, wanted)[order]]
    rest = rng.permutation(np.flatnonzero(owner == wish.sites))
    held = np.bincount(owner, weights=units.size, minlength=wish.sites + 1)[: wish.sites].astype(np.int64)
    spare = int(units.size[rest].sum())
    owner[rest] = _cut(rest, units, _fill(np.maximum(sizes - held, 0), spare))[rest]
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
    """Owner of each unit (U,): the units in `order` laid end to end and cut at the targets.

    A unit goes where its middle row falls. Units beyond the last target belong to len(targets).
    """
    size = units.size[order]
    middle = np.cumsum(size) - size / 2
    owner = np.full(len(units.cls), len(targets))
    owner[order] = np.searchsorted(np.cumsum(targets), middle, side="right")
    return owner


def _deal(table: np.ndarray, units: Units, rng: np.random.Generator) -> np.ndarray:
    """Owner of each unit for a table (K, n_classes) of rows wanted, whose columns add up."""
    owner = np.empty(len(units.cls), dtype=np.int64)
    for c in range(units.n_classes):
        order = units.of_class(c, rng)
        owner[order] = _cut(order, units, table[:, c])[order]
    return owner


def _fit(table: np.ndarray, *, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """`table` scaled to the given margins, then made whole numbers that keep both exactly."""
    for _ in range(200):
        table = table * (rows / table.sum(axis=1))[:, None]
        table = table * (columns / table.sum(axis=0))
    whole = np.stack([_whole(table[:, c], int(n)) for c, n in enumerate(columns)], axis=1)
    while (gap := rows - whole.sum(axis=1)).any():  # a row or so a site: rounding was by column
        over, under = int(np.argmin(gap)), int(np.argmax(gap))
        c = int(np.argmax(whole[over]))
        moved = min(-gap[over], gap[under], whole[over, c])
        whole[over, c] -= moved
        whole[under, c] += moved
    return whole


def _whole(parts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers nearest to `parts` that sum to `total` (largest remainders)."""
    whole: np.ndarray = np.floor(parts).astype(np.int64)
    most = np.argsort(-(parts - whole), kind="stable")
    whole[most[: total - int(whole.sum())]] += 1
    return whole


def _even(total: int, k: int) -> np.ndarray:
    """`total` in k parts that differ by one at most."""
    return np.diff(total * np.arange(k + 1) // k)[::-1]


def _stairs(total: int, k: int) -> np.ndarray:
    """`total` in k parts proportional to 1..k."""
    steps = np.arange(1, k + 1)
    return _whole(steps / steps.sum() * total, total)


def _fill(gaps: np.ndarray, total: int) -> np.ndarray:
    """`total` rows into sites in proportion to their gaps (whole patients make gaps inexact)."""
    return _whole(gaps / max(int(gaps.sum()), 1) * total, total)


# --- checks and names -------------------------------------------------------------------------------


def _checked(kind: str, wish: Wish, *, n: int) -> Wish:
    """`wish` unchanged, once it can be met at all."""
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


def _too_thin(kind: str, wish: Wish, *, n: int, grouped: bool) -> str:
    if kind == "dirichlet":
        what = f"no draw of '{kind}' with alpha = {wish.alpha:g} out of {DRAWS}"
        ways = "raise alpha, ask for fewer sites or lower min_rows"
    else:
        what, ways = f"no draw of '{kind}'", "ask for fewer sites or lower min_rows"
    whole = " (rows of a patient stay together)" if grouped else ""
    return f"{what} gave each of {wish.sites} sites {wish.min_rows} of the {n} rows{whole}; {ways}"


def _units(cls: np.ndarray, unit_of_row: np.ndarray) -> Units:
    """Rows gathered into units."""
    used, code = np.unique(majority(cls, unit_of_row), return_inverse=True)  # a class may win no unit
    return Units(code.astype(np.int64), np.bincount(unit_of_row), len(used), len(cls))


def _named(owner: np.ndarray, sites: int) -> dict[str, np.ndarray]:
    width = max(2, len(str(sites)))
    return {f"site-{k + 1:0{width}d}": rows for k, rows in enumerate(_rows_of(owner, sites))}


def _rows_of(owner: np.ndarray, k: int) -> list[np.ndarray]:
    """Sorted row numbers of each of the k owners, in one pass over the rows."""
    ends = np.cumsum(np.bincount(owner, minlength=k))[:-1]
    return np.split(np.argsort(owner, kind="stable"), ends)
