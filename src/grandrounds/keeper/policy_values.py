"""A section of a policy file as its class: types are as by default, and a key or word that is not known is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from grandrounds.core.errors import BadInput, nearest

Section = TypeVar("Section")
_ONE_OF = {"listed": ("listed", "told")}
"""By a key's default: all that it may be."""


def section(kind: type[Section], given: Any, where: str) -> Section:
    """A section from what the file says."""
    if not isinstance(given, Mapping):
        raise BadInput(f"{where} is no section")
    usual = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in usual:
            raise BadInput(f"unknown key '{name}' in {where}; {nearest(name, usual)}")
        values[name] = _value(value, usual[name], f"{where} {name}")
    return kind(**values)


def _value(value: Any, usual: Any, where: str) -> Any:
    """One value of the default's kind."""
    if isinstance(usual, bool):
        right, said = isinstance(value, bool), "true or false"
    elif isinstance(usual, int):
        right, said = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number from 0 on"
    elif isinstance(usual, float):
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        said = "a number above 0"
    elif usual == (0, 24):
        right = isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 <= v <= 24 for v in value)
        said = "two whole hours, such as [20, 6]"
    elif usual in _ONE_OF:
        right, said = value in _ONE_OF[usual], " or ".join(f'"{word}"' for word in _ONE_OF[usual])
    else:
        right = value == usual or (isinstance(value, list) and all(isinstance(v, str) for v in value))
        said = f'"{usual}" or a list of words' if isinstance(usual, str) else "a list of words"
    if not right:
        raise BadInput(f"{where} is {value!r}; give {said}")
    return tuple(value) if isinstance(value, list) else float(value) if isinstance(usual, float) else value
