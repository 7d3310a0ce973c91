"""Elements of FHIR R4 resources: times, references, codings and status.

Times are the hospital's wall clock as written; the offset from UTC is dropped.
"""

from __future__ import annotations

import datetime
import re
from calendar import monthrange
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

Precision = Literal["time", "day", "month", "year"]
Coding = tuple[str, str]  # system as written, code

NO_TIME = -(2**63)  # NaT as an integer
DAY = 86400

ABSENT = ("entered-in-error", "cancelled")
_TIME = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?)?)?", re.ASCII
)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


@lru_cache(maxsize=65536)
def _read_day(year: str, month: str, day: str) -> int:
    return (datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH) * DAY


def parse_time(text: object) -> tuple[int, Precision]:
    """Parse a dateTime, date or instant.

    Args:
        text: The element.

    Returns:
        Seconds since 1970 of the wall clock, at the start of the day, month or year where only that is written; and the
        precision.

    Raises:
        ValueError: It is no time.
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = match.groups()
    start = _read_day(year, month or "01", day or "01")
    if hour is None:
        return start, "day" if day else "month" if month else "year"
    h, m, s = int(hour), int(minute), int(second or 0)
    if h > 23 or m > 59 or s > 60:
        raise ValueError(text)
    return start + 3600 * h + 60 * m + min(s, 59), "time"


def parse_record_time(text: object) -> int:
    """Parse the time of a record: a day alone is its start; a month or year alone its last day, when it was known for sure."""
    seconds, precision = parse_time(text)
    return seconds if precision in ("time", "day") else last_day(seconds, precision)


def parse_end(text: object) -> int:
    """Parse the end of a visit or a death: a day alone is its last second; a month or year alone is not known."""
    seconds, precision = parse_time(text)
    return seconds if precision == "time" else seconds + DAY - 1 if precision == "day" else NO_TIME


def last_day(seconds: int, precision: Precision) -> int:
    """Return the start of the last day of a month or year that begins at `seconds`."""
    first = datetime.date.fromordinal(seconds // DAY + _EPOCH)
    month = 12 if precision == "year" else first.month
    return (first.replace(month=month, day=monthrange(first.year, month)[1]).toordinal() - _EPOCH) * DAY


def read_reference(element: object) -> str | None:
    """Read the id that a reference has: "Patient/1", "urn:uuid:1" and "https://host/fhir/Patient/1/_history/2" are all 1."""
    reference = element.get("reference") if isinstance(element, dict) else None
    if not isinstance(reference, str) or not reference or "?" in reference:
        return None
    if reference.startswith("urn:"):
        return reference.rpartition(":")[2]
    return reference.partition("/_history/")[0].rpartition("/")[2] or None


def read_reference_type(element: object) -> str:
    """Read the type that a reference names, "" where it names none."""
    if not isinstance(element, dict):
        return ""
    reference = element.get("reference")
    if isinstance(reference, str) and "/" in reference and not reference.startswith("urn:"):
        return reference.partition("/_history/")[0].rpartition("/")[0].rpartition("/")[2]
    kind = element.get("type")
    return kind if isinstance(kind, str) else ""


def read_codings(concept: object) -> tuple[Coding, ...]:
    """Read the codings of a CodeableConcept, or of a list of them."""
    parts = concept if isinstance(concept, list) else [concept]
    codings = (part.get("coding") for part in parts if isinstance(part, dict))
    return tuple(
        (system if isinstance(system := c.get("system"), str) else "", c["code"])
        for several in codings
        if isinstance(several, list)
        for c in several
        if isinstance(c, dict) and isinstance(c.get("code"), str)
    )


def read_display(concept: object) -> str:
    """Read the words of a concept's first code, "" where it has none; its free text may name a patient and is not read."""
    codings = concept.get("coding") if isinstance(concept, dict) else None
    words = (c.get("display") for c in codings or () if isinstance(c, dict))
    return next((w for w in words if isinstance(w, str)), "")


def has_code(concept: object, *codes: str) -> bool:
    """Return True where a CodeableConcept has one of these codes, in any system."""
    return any(code in codes for _, code in read_codings(concept))


def read_status(resource: Mapping[str, Any]) -> str:
    """Read the status of a resource, "" where it has none."""
    status = resource.get("status")
    return status if isinstance(status, str) else ""
