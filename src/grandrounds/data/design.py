"""Design of a regression: complete rows, products of columns, reference levels, and the way back to original units.

The fit itself works on scaled inputs. A product of columns is the product of their scaled inputs, so its coefficient in original
units mixes with those of its factors: (x - a)(z - b) = xz - bx - az + ab. `original_units` writes out that linear map.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import Dataset
from grandrounds.data.schema import Schema

INTERCEPT = "(intercept)"

SMALL = 5
"""Counts of left-out rows below this are not told; levels with fewer rows over all sites become "other" (`exact.least`)."""

OTHER = "other"


def keep_complete(data: Dataset) -> Dataset:
    """Leave out the rows in which a feature has no value, and remember the site of each.

    Args:
        data: Rows of one or several sites.

    Returns:
        The complete rows.

    Raises:
        BadInput: No row is complete.
    """
    gaps = np.concatenate([np.isnan(data.numeric), data.codes < 0], axis=1)
    complete = np.flatnonzero(~gaps.any(axis=1))
    if not len(complete):
        raise BadInput(
            f"no row of {data.name} has a value in every feature ({_emptiest(data)}); leave that column out, "
            "list fewer columns (--features), or set data.complete = false",
            code="no-complete-rows",
        )
    site = np.full(len(data), "", object) if data.site is None else data.site
    return replace(data.take(complete), incomplete=np.delete(site, complete))


def _emptiest(data: Dataset) -> str:
    """Describe the column with the most missing values."""
    gaps = [*np.isnan(data.numeric).sum(axis=0), *(data.codes < 0).sum(axis=0)]
    names = [*data.numeric_names, *data.categorical_names]
    worst = int(np.argmax(gaps))
    return f"'{names[worst]}' is missing most often"


def describe_incomplete(count: int) -> list[str]:
    """State the number of rows that were left out for a missing value; a small number is not told."""
    if not count:
        return []
    rows = f"fewer than {SMALL} rows" if count < SMALL else f"{count:,} rows"
    return [f"{rows} with a missing value {'were' if count else 'was'} left out (data.complete)"]


def check_products(products: Sequence[Sequence[str]], schema: Schema) -> None:
    """Check interactions: their columns are features, and every part of a product is in the model as well.

    Args:
        products: Lists of column names.
        schema: The meaning of the columns.

    Raises:
        BadInput: A product has one column, an unknown one, a category twice, is listed twice, or lacks a part of it.
    """
    features = [c.name for c in schema.features]
    categories = {c.name for c in schema.categorical}
    listed = {tuple(sorted(p)) for p in products}
    if len(listed) < len(products):
        twice = next(p for p, n in Counter(tuple(sorted(p)) for p in products).items() if n > 1)
        raise BadInput(f"data.products lists {_spell(twice)} twice", code="bad-product")
    for product in products:
        unknown = next((name for name in product if name not in features), None)
        if unknown is not None:
            raise BadInput(
                f"data.products names '{unknown}', which is not a feature; {nearest(unknown, features)}",
                code="bad-product",
            )
        if len(product) < 2:
            raise BadInput(f"data.products lists '{product[0]}' alone: a product has two columns", code="bad-product")
        repeated = next((n for n, times in Counter(product).items() if times > 1 and n in categories), None)
        if repeated is not None:
            raise BadInput(f"data.products multiplies the category '{repeated}' with itself", code="bad-product")
        for part in itertools.combinations(sorted(product), len(product) - 1):
            if len(part) > 1 and part not in listed:
                raise BadInput(
                    f"data.products lists {_spell(product)} without {_spell(part)}: add it, so that estimates do not "
                    "depend on the zero of each column",
                    code="bad-product",
                )


def _spell(product: Sequence[str]) -> str:
    return " * ".join(product)


def product_places(products: Sequence[Sequence[str]], places: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    """List the inputs that are multiplied for each input of each product.

    Args:
        products: Lists of column names.
        places: The inputs of each column; a category has one for each level.

    Returns:
        For each input of a product the places of its factors.
    """
    return [
        factors for product in products for factors in itertools.product(*(places.get(name, ()) for name in product))
    ]


def product_name(names: Sequence[str]) -> str:
    """Name a product: "age:sex=male"; a number times itself is "age^2"."""
    return ":".join(n if times == 1 else f"{n}^{times}" for n, times in Counter(names).items())


def multiply(x: Array, places: Sequence[tuple[int, ...]]) -> Array:
    """Compute products of inputs.

    Args:
        x: Inputs (n, d).
        places: The factors of each product.

    Returns:
        The products (n, len(places)).
    """
    return np.stack([x[:, list(p)].prod(axis=1) for p in places], axis=1) if places else np.empty((len(x), 0))


def original_units(centre: Sequence[float], scale: Sequence[float], products: Sequence[tuple[int, ...]]) -> Array:
    """Compute the matrix A with b_original = A b_fitted, the intercept first (rule 0.2 of the specification).

    Args:
        centre: Value subtracted from each input that is no product, (d,).
        scale: Value each is divided by, (d,).
        products: The factors of each product.

    Returns:
        A (1 + d + len(products), same).
    """
    d = len(centre)
    factors = [(), *((j,) for j in range(d)), *(tuple(sorted(p)) for p in products)]
    row = {key: i for i, key in enumerate(factors)}
    out = np.zeros((len(factors), len(factors)))
    for column, key in enumerate(factors):
        size = float(np.prod([scale[j] for j in key])) if key else 1.0
        for chosen in itertools.product((True, False), repeat=len(key)):
            part = tuple(j for j, take in zip(key, chosen, strict=True) if take)
            value = float(np.prod([-centre[j] for j, take in zip(key, chosen, strict=True) if not take])) / size
            if value:
                out[row[part], column] += value
    return out


def reference_levels(counts: Mapping[str, int], *, most: int, least: int) -> tuple[str, tuple[str, ...], bool]:
    """Choose the reference level, the levels with an input each, and whether the rest becomes "other".

    The reference is the most frequent level, ties by alphabet; of two levels it is the first by alphabet. Levels with fewer
    than `least` rows over all sites, and those beyond `most`, become "other". While "other" has fewer than `least` rows, the
    rarest level joins it; if none is left to join it, its rows count as the reference.

    Args:
        counts: Rows of each level over all sites.
        most: Largest number of levels with a name of their own.
        least: Smallest number of rows of a level.

    Returns:
        The reference, the other levels by alphabet, and True if there is an "other".
    """
    order = sorted(counts, key=lambda w: (-counts[w], w))
    named = [w for w in order[:most] if counts[w] >= least or w == order[0]]
    rest = sum(counts[w] for w in order if w not in named)
    while 0 < rest < least and len(named) > 1:
        rest += counts[named.pop()]
    if not named:
        return "", (), False
    reference = min(named) if len(named) == 2 and not rest else named[0]
    return reference, tuple(sorted(w for w in named if w != reference)), rest >= max(least, 1)


def describe_levels(
    name: str, counts: Mapping[str, int], named: Sequence[str], *, other: bool, least: int
) -> list[str]:
    """State which levels of a column have too few rows for an input of their own, or were joined to these.

    Args:
        name: The column.
        counts: Rows of each level over all sites.
        named: Levels with an input of their own, and the reference.
        other: True if the rest has the input "other"; otherwise it counts as the reference.
        least: Smallest number of rows of a level. Those with fewer are counted and not named.

    Returns:
        A sentence, or none.
    """
    merged = sorted((w for w in counts if w not in named), key=lambda w: (-counts[w], w))
    rare = sum(counts[w] < least for w in merged)
    if not rare:
        return []
    few = f"{'a level' if rare == 1 else f'{rare} levels'} with fewer than {least} rows"
    if not other:
        return [f"column '{name}': {few} {'is' if rare == 1 else 'are'} counted as the reference (exact.least)"]
    joined = [f"{w} ({counts[w]:,} rows)" for w in merged if counts[w] >= least]
    shown = joined if len(joined) <= 4 else [*joined[:3], f"{len(joined) - 3} more levels"]
    which = f"{', '.join(shown)} and {few}" if shown else few
    return [f"column '{name}': {OTHER} = {which} (exact.least)"]


def describe_filled(name: str, missing: int, what: str) -> list[str]:
    """State how many missing values of a column were filled in; a small number is not told, and none is no sentence.

    Args:
        name: The column.
        missing: Rows without a value.
        what: What became of them, such as "were filled with the median".
    """
    if not missing:
        return []
    values = f"fewer than {SMALL} missing values" if missing < SMALL else f"{missing:,} missing values"
    return [f"column '{name}': {values} {what}; standard errors take them as observed (data.complete = false)"]
