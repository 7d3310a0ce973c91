"""The values of a [data] section, each read by its kind; what it cannot mean is refused in one sentence with its key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.table import format_number

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles agreed `quantiles` are."""


def known(given: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Refuse a key that is none of these."""
    odd = next((name for name in given if name not in keys), None)
    if odd is not None:
        raise BadInput(f"unknown key '{odd}' in {where}; {nearest(str(odd), keys)}")


def word(plain: Mapping[str, Any], key: str, where: str) -> str | None:
    """A word or a number as a word; None where the key is not there."""
    value = plain.get(key)
    if value is None:
        return None
    found = _as_word(value)
    if not found:
        raise BadInput(f"{where}: {key} is {value!r}; give a word")
    return found


def _as_word(value: object) -> str:
    """Text as it is written, or a number as a table's cell would be."""
    if isinstance(value, float):
        return format_number(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def words(plain: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of words; only marks for missing values may be empty ones."""
    value = plain.get(key, ())
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadInput(f"{where}: {key} is {value!r}; give a list of words")
    found = tuple(_as_word(v) for v in value)
    if key != "missing" and not all(found):
        raise BadInput(f"{where}: {key} holds something that is no word or number; list words")
    return found


def numbers(plain: Mapping[str, Any], key: str, where: str, count: int) -> tuple[float, ...]:
    """So many finite numbers, or none."""
    value = plain.get(key)
    if value is None:
        return ()
    right = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count
    if not right or not all(isinstance(v, int | float) and math.isfinite(v) for v in value):
        raise BadInput(f"{where}: {key} is {value!r}; give {count} numbers")
    return tuple(float(v) for v in value)


def whole(plain: Mapping[str, Any], key: str, where: str, usual: int) -> int:
    """A whole number from 1 on."""
    value = plain.get(key, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{where}: {key} is {value!r}; give a whole number from 1 on")
    return value


def check_version(plain: Any, version: int, where: str, *, way: str) -> None:
    """Refuse what is no section, and a file of another version; `way`: what to write."""
    if not isinstance(plain, Mapping):
        raise BadInput(f"{where} is no section: write {way}")
    if plain.get("schema", version) != version:
        raise BadInput(f"{where} has schema {plain['schema']}, this version reads {version}: update the older side")


def check_classes(
    classes: Sequence[str], positive: str | None, *, label: str, where: str, event: str | None = None
) -> None:
    """Refuse classes that are fewer than two or told twice, and an event that is none of them."""
    if classes and (len(set(classes)) < 2 or len(set(classes)) < len(classes)):
        raise BadInput(f"{where}: classes must list two or more classes of '{label}', each once")
    if positive is not None and classes and positive not in classes:
        raise BadInput(f"{where}: positive is '{positive}'; {nearest(positive, classes)}")
    if event is not None and classes and event not in classes:
        raise BadInput(f"{where}: event is '{event}'; {nearest(event, classes)}")
    if event is not None and positive not in (None, event):
        raise BadInput(f"{where}: event is '{event}' and positive '{positive}'; leave one of them out")
