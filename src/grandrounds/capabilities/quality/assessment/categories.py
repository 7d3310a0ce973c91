"""Categories: words that nobody agreed on in place of the agreed ones, and agreed words that changed their meaning.

New words are a recoding where they are few and have a good part of the cells, as 1 and 2 for F and M. Agreed words changed
their meaning where their shares and profiles (`agreement.profiles`) fit in another order, or where two levels have the opposite
of their agreed correlations with other columns.

False alarms are controlled by the size of the change: hospitals differ in the shares of their patients' levels, so another
order must explain at least `GAIN` squared standard errors, which include the differences between hospitals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import Finding, quote_names
from grandrounds.data.agreement.profiles import NEUTRAL, mean_ranks
from grandrounds.data.agreement.relations import as_numbers, correlation_score, rank_correlation
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.table import Table, missing_mask, to_text

RECODED = "recoded-category"

FEWEST = 30
"""Cells below which shares say nothing."""

GAIN = 25.0
"""Squared standard errors that another order of the words must explain."""

EXPLAINED = 0.62
"""Share of all differences that it must explain: departments with other patients differ in ways that no order explains."""

NEW = 0.1
"""Share of cells with new words, above the agreed share, from which they are a recoding."""

_MAIN = 0.03  # share from which a level is compared
_SHARE_SPREAD = 0.7  # standard deviation of log odds of a level between hospitals
_RANK_SPREAD = 0.05  # of mean ranks
_MOST_COST = 25.0  # of one comparison, so that no single level decides
_FEW = 8  # rows of a level from which its mean rank counts
_UNKNOWN = 1.0  # cost of a level without an agreed profile
_TAIL = 0.002  # share of new words for each agreed one: a column of many levels has a long tail

_MOST_NEW = 12  # new words of a recoding, or twice the agreed ones
_FLIPPED = 6.0  # standard errors between the agreed correlation and one of the opposite sign
_STRONG = 0.25


def check_categories(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find categories and yes-or-no columns that a site codes in another way.

    Args:
        table: The site's table.
        schema: The agreed schema, with the shares of levels.
    """
    numbers: dict[str, Array] = {}
    for column in schema.columns:
        if column.name in table.columns and (not column.values or column.shares):
            ordered = () if column.kind == "ordinal" else column.shares
            as_number = as_numbers(table.columns[column.name], column.values, ordered)
            if as_number is not None:
                numbers[column.name] = as_number
    flipped = _find_flipped(schema, numbers)
    for column in schema.columns:
        if not column.values or column.name not in table.columns:
            continue
        values = table.columns[column.name]
        counts = Counter(to_text(values)[~missing_mask(values)].tolist())
        finding = _find_new_words(column, counts) or _find_new_order(column, to_text(values), numbers)
        if finding is None and column.name in flipped:
            text = (
                f"its correlation with '{flipped[column.name]}' is the opposite of the agreed one: is "
                f"{quote_names(column.values)} coded the other way round?"
            )
            finding = Finding("warning", RECODED, column.name, text)
        if finding is not None:
            yield finding


def _find_new_words(column: AgreedColumn, counts: Counter[str]) -> Finding | None:
    total = sum(counts.values())
    new = Counter({word: n for word, n in counts.items() if word not in column.values})
    if total < FEWEST or not new:
        return None
    usual = max(0.0, 1 - sum(column.shares)) if column.shares else 0.0
    share = sum(new.values()) / total
    frequent = [word for word, n in new.items() if n >= 0.01 * total]
    if (
        share < usual + NEW + _TAIL * len(column.values)
        or len(frequent) > max(_MOST_NEW, 2 * len(column.values))
        or not frequent
    ):
        return None
    guess = _guess_meaning(column, counts)
    text = f"{share:.0%} of the cells have words that nobody agreed on, {quote_names(sorted(frequent))}{guess}"
    return Finding("error" if share > 0.5 or column.kind != "category" else "warning", RECODED, column.name, text)


def _guess_meaning(column: AgreedColumn, counts: Counter[str]) -> str:
    """Guess which agreed word each new one means, by the order of their shares."""
    left = [word for word in column.values if word not in counts]
    new = [word for word, _ in counts.most_common() if word not in column.values]
    if not column.shares or not left or len(new) > len(left) + 1:
        return ""
    share = dict(zip(column.values, column.shares, strict=True))
    by_share = sorted(left, key=lambda word: -share[word])
    pairs = [f"'{a}' for '{b}'" for a, b in zip(new, by_share, strict=False)]
    return f"; by their shares perhaps {', '.join(pairs[:5])}: write the agreed words"


def _find_new_order(column: AgreedColumn, words: Array, numbers: dict[str, Array]) -> Finding | None:
    """Find agreed words that have the shares and profiles of other agreed words."""
    from scipy.optimize import linear_sum_assignment

    here, cost = compare_levels(column, words, numbers)
    if cost is None:
        return None
    rows, columns = linear_sum_assignment(cost)
    gain = float(np.trace(cost) - cost[rows, columns].sum())
    if gain < max(GAIN, EXPLAINED * float(np.trace(cost))):
        return None
    levels = [w for w, keep in zip(column.values, _main_levels(column, here), strict=True) if keep]
    moved = [f"'{levels[i]}' for '{levels[j]}'" for i, j in zip(rows, columns, strict=True) if i != j]
    agreed = np.array(column.shares)
    text = (
        f"words have the shares and the kind of patients of other agreed words ({_write_shares(column.values, here)}; agreed "
        f"{_write_shares(column.values, agreed)}): are they coded in another order, {', '.join(moved[:4])}?"
    )
    return Finding("warning", RECODED, column.name, text)


def _main_levels(column: AgreedColumn, here: Array) -> Array:
    return np.asarray(np.maximum(np.array(column.shares), here) >= _MAIN)


def compare_levels(
    column: AgreedColumn, words: Array, numbers: Mapping[str, Array], *, leave_out: Sequence[str] = ()
) -> tuple[Array, Array | None]:
    """Compute the cost of reading one main level as another: squared differences in standard deviations between hospitals.

    Args:
        column: The agreed column, with shares and profiles.
        words: The site's words (n,), None where missing.
        numbers: Numbers (n,) of the columns that profiles refer to.
        leave_out: Columns whose profiles do not count.

    Returns:
        The share (k,) of each level here, and the cost (m, m) of the main levels; None where there are too few cells.
    """
    counts = Counter(words.tolist())
    total = sum(counts[word] for word in column.values)
    here = np.array([counts[word] / max(total, 1) for word in column.values])
    if total < FEWEST or not column.shares:
        return here, None
    keep = _main_levels(column, here)
    agreed = np.array(column.shares) / max(sum(column.shares), 1e-9)
    mine, theirs = (np.log((s[keep] + 0.01) / (1.01 - s[keep])) for s in (here, agreed))
    cost = np.minimum(((mine[:, None] - theirs[None, :]) / _SHARE_SPREAD) ** 2, _MOST_COST)
    for other, ranks in column.profiles:
        if other not in numbers or other in leave_out:
            continue
        means, rows = mean_ranks(words, column.values, numbers[other])
        known = np.array(ranks) != NEUTRAL
        error = _RANK_SPREAD**2 + 0.083 / np.maximum(rows[keep], 1)
        part = (means[keep][:, None] - np.array(ranks)[keep][None, :]) ** 2 / error[:, None]
        usable = (rows[keep] >= _FEW)[:, None] & known[keep][None, :]
        cost = cost + np.where(
            usable, np.minimum(part, _MOST_COST), np.where(rows[keep] >= _FEW, _UNKNOWN, 0.0)[:, None]
        )
    return here, cost


def _write_shares(words: Sequence[str], shares: Array) -> str:
    top = np.argsort(-shares, kind="stable")[:3]
    return ", ".join(f"'{words[i][:20]}' {shares[i]:.0%}" for i in top)


def _find_flipped(schema: DataSchema, numbers: dict[str, Array]) -> dict[str, str]:
    """Find columns of two levels whose agreed correlations all have the opposite sign, with the strongest partner."""
    wrong: dict[str, list[str]] = {}
    checked: dict[str, int] = {}
    for column in schema.columns:
        if column.name not in numbers:
            continue
        for other, rho in column.relations:
            if other not in numbers or abs(rho) < _STRONG:
                continue
            here, n = rank_correlation(numbers[column.name], numbers[other])
            checked[column.name] = checked.get(column.name, 0) + 1
            if here * rho < 0 and abs(here) > abs(rho) / 3 and correlation_score(here, rho, n) > _FLIPPED:
                wrong.setdefault(column.name, []).append(other)
    two_levels = {c.name for c in schema.columns if c.values}
    out = {}
    for name, others in wrong.items():
        if name in two_levels and 2 * len(others) >= checked[name]:
            rival = [o for o in others if o in two_levels and len(wrong.get(o, ())) > len(others)]
            if not rival:
                out[name] = others[0]
    return out
