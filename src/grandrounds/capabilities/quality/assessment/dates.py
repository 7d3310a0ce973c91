"""Dates: impossible ones, and columns that were shifted or misread.

Impossible are days in the future, before 1900, and before a day that must be earlier (`after` of the agreed dates). A column was
shifted where more than `OUTSIDE` of its days are outside the agreed time range; a shift that brings them back is named:
whole years, centuries of two-digit years, the 1,462 days between the two calendars of Excel. Day and month were exchanged where
no day is above 12.

False alarms are controlled by the agreed range, which a clean site shares, by `OUTSIDE`, and by the chance of no day above 12
among n days, 0.39 to the power of n.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import Finding, format_count
from grandrounds.data.agreement.dates import AgreedDates, read_days
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.agreement.units import distance
from grandrounds.data.table import Table

SHIFTED = "shifted-dates"
IMPOSSIBLE = "impossible-date"

OUTSIDE = 0.05
"""Share of days outside the agreed range that hospitals have anyway."""

GAP_FAR = 1.5
"""Deviations from which the days between two columns are not those agreed on."""

FEWEST = 20
"""Days below which a shift is not looked for."""

_FIRST = datetime.date(1900, 1, 1)
_EXCEL = 1462
_LAST_MONTH = 12
_ENOUGH = 60  # days without one above 12 that are no chance
_EPOCH = datetime.date(1970, 1, 1)


def check_dates(table: Table, schema: DataSchema, *, today: datetime.date | None = None) -> Iterator[Finding]:
    """Find impossible and shifted dates in the agreed date columns, and in the column that orders rows.

    Args:
        table: The site's table.
        schema: The agreed schema.
        today: The last possible day (default: now).
    """
    agreed = list(schema.dates)
    if schema.time is not None and schema.time not in schema.date_names:
        agreed.append(AgreedDates(schema.time))
    days = {
        entry.name: read
        for entry in agreed
        if entry.name in table.columns and (read := read_days(table.columns[entry.name])) is not None
    }
    last = (today or datetime.date.today()) + datetime.timedelta(days=1)  # a site may be east of this clock
    for entry in agreed:
        mine = days.get(entry.name)
        if mine is None:
            if entry.name in table.columns and table.columns[entry.name].dtype == np.object_ and entry in schema.dates:
                yield Finding("warning", IMPOSSIBLE, entry.name, "most cells are no dates: write them as 2024-05-31")
            continue
        yield from _check_column(table, entry, mine, last)
        for earlier in entry.after:
            if earlier in days:
                yield from _check_order(table, entry.name, earlier, mine, days[earlier])
        for other, quantiles in entry.gaps:
            if other in days:
                yield from _check_gap(entry.name, other, mine - days[other], quantiles)


def _check_column(table: Table, entry: AgreedDates, days: Array, last: datetime.date) -> Iterator[Finding]:
    present = ~np.isnan(days)
    for wrong, when in (
        (present & (days > _number(last)), "in the future"),
        (present & (days < _number(_FIRST)), "before 1900"),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            text = (
                f"{format_count(int(wrong.sum()), 'day')} {when}, first {_write(days[first])} in {table.where(first)}"
            )
            yield Finding("error", IMPOSSIBLE, entry.name, text)
    if present.sum() >= FEWEST:
        yield from _check_shift(entry, days[present])


def _check_shift(entry: AgreedDates, days: Array) -> Iterator[Finding]:
    if len(days) >= _ENOUGH:
        calendar = days.astype("datetime64[D]")
        of_month = (calendar - calendar.astype("datetime64[M]")).astype(int) + 1
        months = np.unique(calendar.astype("datetime64[M]").astype(int) % 12)
        if of_month.max() <= _LAST_MONTH and len(np.unique(of_month)) > 2 and len(months) > 2:
            text = "no day is above the 12th: were day and month exchanged, and days above 12 lost?"
            yield Finding("warning", SHIFTED, entry.name, text)
    if entry.days is None:
        return
    low, high = (_number(day) for day in entry.days)
    outside = (days < low) | (days > high)
    if outside.mean() <= OUTSIDE:
        return
    first, final = entry.days
    shift = _guess_shift(days[outside], low, high)
    guess = f"; {shift} would bring them back" if shift else ""
    text = (
        f"{outside.mean():.0%} of the days are outside the agreed time, {first} to {final} (here {_write(days.min())} to "
        f"{_write(days.max())}){guess}"
    )
    yield Finding("error" if outside.mean() > 0.5 else "warning", SHIFTED, entry.name, text)


def _guess_shift(days: Array, low: float, high: float) -> str:
    """Guess the shift after which the days are inside the range."""
    shifts = {365.2425 * years: _write_years(years) for years in (*_both(range(1, 31)), 100, -100)}
    shifts |= {_EXCEL: "1,462 days more (Excel's 1904 calendar)", -_EXCEL: "1,462 days less (Excel's 1904 calendar)"}
    inside = {shift: float(((days + shift >= low) & (days + shift <= high)).mean()) for shift in shifts}
    best = max(inside, key=lambda shift: (round(inside[shift], 2), -abs(shift)))
    return shifts[best] if inside[best] >= 0.9 else ""


def _both(numbers: Sequence[int]) -> list[int]:
    return [sign * n for n in numbers for sign in (1, -1)]


def _write_years(years: int) -> str:
    more = "more" if years > 0 else "less"
    return f"{format_count(abs(years), 'year')} {more}{' (two-digit years?)' if abs(years) == 100 else ''}"


def _check_order(table: Table, name: str, earlier: str, days: Array, before: Array) -> Iterator[Finding]:
    both = ~np.isnan(days) & ~np.isnan(before)
    wrong = both & (days < before)
    if not wrong.any():
        return
    first = int(wrong.argmax())
    share = float(wrong.sum() / both.sum())
    text = (
        f"{format_count(int(wrong.sum()), 'row')} ({share:.0%}) with a day before '{earlier}', first {_write(days[first])} "
        f"in {table.where(first)}"
    )
    yield Finding("error" if share > 0.5 else "warning", IMPOSSIBLE, name, text)


def _check_gap(name: str, other: str, gap: Array, quantiles: tuple[float, ...]) -> Iterator[Finding]:
    """Find two date columns that were shifted against each other."""
    gap = gap[~np.isnan(gap)]
    if len(gap) < FEWEST or distance(quantiles, gap) < GAP_FAR + 1 / np.sqrt(len(gap)):
        return
    median = f"the median is {np.median(gap):.0f} days after '{other}', elsewhere {quantiles[2]:.0f}"
    text = f"{median}: was one of the two columns shifted?"
    yield Finding("warning", SHIFTED, name, text)


def _number(day: datetime.date) -> float:
    return float((day - _EPOCH).days)


def _write(day: float) -> str:
    return str(np.datetime64(int(day), "D"))
