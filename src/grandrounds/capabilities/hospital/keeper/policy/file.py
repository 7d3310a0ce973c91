"""Sections of a policy file and their parsing.

A value has the type of its default. An unknown key or word is refused, because it may have been meant to forbid something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from grandrounds.core.errors import BadInput, nearest

Section = TypeVar("Section")
_ONE_OF = {"peers": ("listed", "told"), "approve": ("any", "digest")}
"""Words that a key may have."""

def parse_section(kind: type[Section], values: Any, where: str) -> Section:
    """Check one section of the file and build it.

    Raises:
        BadInput: A key is unknown, or a value has another type.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"{where} is not a section", code="not-a-section")
    usual = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    checked = {}
    for name, value in values.items():
        if name not in usual:
            raise BadInput(f"unknown key '{name}' in {where}; {nearest(name, usual)}", code="unknown-key")
        checked[name] = _check_value(value, usual[name], _ONE_OF.get(name, ()), f"{where} {name}")
    return kind(**checked)


def parse_objectives(values: Any, where: str) -> dict[str, str]:
    """Check the modules of local objectives and their hashes.

    Args:
        values: The section [objectives] of the file.
        where: Its place, for errors.

    Returns:
        SHA-256 by module.

    Raises:
        BadInput: A name is no module, or a value is no SHA-256.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"{where} is no section", code="not-a-section")
    for module, digest in values.items():
        if not all(word.isidentifier() for word in module.split(".")):
            raise BadInput(f"{where} lists '{module}', which is no name of a module", code="bad-policy-value")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise BadInput(
                f"{where} {module} is {digest!r}; give the SHA-256 of its source file, 64 hex digits in quotes",
                code="bad-policy-value",
            )
    return dict(values)


def _check_value(value: Any, usual: Any, words: tuple[str, ...], where: str) -> Any:
    """Check that a value is one of these words, or without them has the type of its default."""
    if words:
        right, expected = value in words, " or ".join(f'"{word}"' for word in words)
    elif isinstance(usual, bool):
        right, expected = isinstance(value, bool), "true or false"
    elif isinstance(usual, int):
        right, expected = (
            isinstance(value, int) and not isinstance(value, bool) and value >= 0,
            "an integer of 0 or more",
        )
    elif isinstance(usual, float):
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        expected = "a number above 0"
    elif usual == (0, 24):
        right = isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 <= v <= 24 for v in value)
        expected = "two whole hours, such as [20, 6]"
    else:
        right = value == usual or (isinstance(value, list) and all(isinstance(v, str) for v in value))
        expected = f'"{usual}" or a list of words' if isinstance(usual, str) else "a list of words"
    if not right:
        raise BadInput(f"{where} is {value!r}; give {expected}", code="bad-policy-value")
    return tuple(value) if isinstance(value, list) else float(value) if isinstance(usual, float) else value
