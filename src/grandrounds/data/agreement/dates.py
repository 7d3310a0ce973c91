"""Date columns that a consortium agreed on: `[data.dates.NAME]`, for checks alone; a model never sees them.

A site's table may lack them. `range` is the time that the cohort covers, `after` names date columns that cannot be later,
such as admission for discharge.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.formats import AUTO, MOSTLY, date_format, is_iso_date, read_dates

_KEYS = ("range", "after", "gaps")
_DAY = 86_400.0
_QUANTILES = 5  # at schema.LEVELS


@dataclass(frozen=True)
class AgreedDates:
    """One date column: the first and last day of the cohort, and columns with earlier dates."""

    name: str
    range: tuple[str, str] | None = None  # ISO days, both included
    after: tuple[str, ...] = ()
    gaps: tuple[tuple[str, tuple[float, ...]], ...] = ()  # quantiles of the days after each of these columns

    @property
    def days(self) -> tuple[datetime.date, datetime.date] | None:
        """First and last day."""
        if self.range is None:
            return None
        return datetime.date.fromisoformat(self.range[0]), datetime.date.fromisoformat(self.range[1])

    def to_dict(self) -> dict[str, object]:
        """Convert to the entry of consortium.toml, without what is not set."""
        plain: dict[str, object] = {"range": list(self.range or ()), "after": list(self.after)}
        plain["gaps"] = {name: list(quantiles) for name, quantiles in self.gaps}
        return {name: value for name, value in plain.items() if value}


def read_dates_section(plain: Mapping[str, object], where: str) -> tuple[AgreedDates, ...]:
    """Parse `[data.dates]`.

    Args:
        plain: The section `[data]`.
        where: Its place, for messages.

    Returns:
        The agreed date columns in their order; none where there is no such section.

    Raises:
        BadInput: An entry is no section, has an unknown key, or a day that is none.
    """
    listed = plain.get("dates", {})
    if not isinstance(listed, Mapping):
        raise BadInput(
            f'{where}: dates is no section; write [data.dates.NAME] with range = ["2014-01-01", "2015-12-31"]',
            code="not-a-section",
        )
    return tuple(_read_entry(str(name), entry, f"{where} dates.{name}") for name, entry in listed.items())


def _read_entry(name: str, entry: object, where: str) -> AgreedDates:
    if not isinstance(entry, Mapping):
        raise BadInput(f'{where} is no section: write range = ["2014-01-01", "2015-12-31"]', code="not-a-section")
    odd = next((key for key in entry if key not in _KEYS), None)
    if odd is not None:
        raise BadInput(f"unknown key '{odd}' in {where}; {nearest(str(odd), _KEYS)}", code="unknown-key")
    after = entry.get("after", ())
    names = (after,) if isinstance(after, str) else tuple(after) if isinstance(after, Sequence) else (None,)
    if not all(isinstance(word, str) and word for word in names):
        raise BadInput(f"{where}: after is {after!r}; name date columns", code="wrong-type")
    span, gaps = _read_range(entry.get("range"), where), _read_gaps(entry.get("gaps", {}), where)
    return AgreedDates(name, span, tuple(str(word) for word in names), gaps)


def _read_gaps(value: object, where: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    out = []
    for name, numbers in value.items() if isinstance(value, Mapping) else [("", None)]:
        listed = list(numbers) if isinstance(numbers, Sequence) and not isinstance(numbers, str) else []
        if len(listed) != _QUANTILES or not all(isinstance(n, int | float) for n in listed) or listed != sorted(listed):
            raise BadInput(
                f"{where}: gaps is {value!r}; give {_QUANTILES} quantiles of days for each column, from low to high",
                code="wrong-type",
            )
        out.append((str(name), tuple(float(n) for n in listed)))
    return tuple(out)


def _read_range(value: object, where: str) -> tuple[str, str] | None:
    if value is None:
        return None
    days = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    try:
        first, last = (datetime.date.fromisoformat(str(day)[:10]) for day in days)
    except ValueError:
        raise BadInput(
            f'{where}: range is {value!r}; give the first and last day, as in ["2014-01-01", "2015-12-31"]',
            code="wrong-type",
        ) from None
    if last < first:
        raise BadInput(f"{where}: range goes from the first to the last day", code="unordered-range")
    return first.isoformat(), last.isoformat()


def read_days(values: Array, order: str = AUTO) -> Array | None:
    """Read a column of dates as days since 1970 (n,), NaN where a cell is none.

    Args:
        values: The column.
        order: "day-first" or "month-first" for dates that show neither; "auto": the day first.

    Returns:
        The days; None where most cells are no dates.
    """
    if values.dtype != np.object_:
        return None
    counts = Counter(word for word in values.tolist() if word is not None)
    dated = sum(n for word, n in counts.items() if is_iso_date(word))
    if not counts or (dated < MOSTLY * sum(counts.values()) and not date_format(counts)):
        return None
    seconds = read_dates(values.tolist(), order)
    if seconds is None:
        seconds = read_dates(values.tolist(), "day-first")
    return None if seconds is None else np.floor(seconds / _DAY)
