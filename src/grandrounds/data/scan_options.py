"""Options of reading scans (`[data.scan]`): window, spacing, slices, plane, and the tags that choose a series.

A consortium agrees on them, so that each hospital turns its own DICOM or NIfTI files into the same kind of image. `ScanFinding`
is what a person should know about one of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grandrounds.core.errors import BadInput, nearest

WINDOWS: Mapping[str, tuple[float, float]] = {
    "lung": (-600.0, 1500.0),
    "mediastinum": (50.0, 350.0),
    "soft tissue": (40.0, 400.0),
    "liver": (60.0, 160.0),
    "bone": (400.0, 1800.0),
    "brain": (40.0, 80.0),
    "subdural": (75.0, 215.0),
    "stroke": (40.0, 40.0),
}
"""Usual CT windows by name: centre and width in Hounsfield units."""

TAGS, PERCENTILES, RANGE = "tags", "percentiles", "range"
COMPUTED = {
    TAGS: "the window that each file states",
    PERCENTILES: "from the 0.5th to the 99.5th percentile of each scan",
    RANGE: "from the lowest to the highest value of each scan",
}
"""Windows that depend on the scan."""

PLANES = ("acquired", "axial", "coronal", "sagittal")
FITS = ("auto", "resize", "crop")
MIDDLE, ALL, MASKED = "middle", "all", "mask"

_EVERY = re.compile(r"every (\d{1,4})")
_RANGE = re.compile(r"(\d{1,5}) ?(?:-|to) ?(\d{1,5})")
_KEYS = ("window", "spacing", "slices", "plane", "fit", "volume", "series")


Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class ScanFinding:
    """One thing that a person should know about a scan."""

    level: Level
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.text}"


@dataclass(frozen=True)
class ScanOptions:
    """Options of reading scans; the defaults take the middle slice in the window that the file states."""

    window: str | tuple[float, float] = TAGS  # a name, or centre and width
    spacing: tuple[float, ...] = ()  # mm between rows and columns, and slices if there are three
    slices: str = MIDDLE
    plane: str = "acquired"
    fit: str = "auto"
    volume: int = 1  # of a file with several, such as one in 4D, counted from 1
    series: Mapping[str, str] = field(default_factory=dict)  # tag keyword: pattern

    @property
    def levels(self) -> tuple[float, float] | None:
        """Centre and width of the window; None if it depends on the scan."""
        return WINDOWS.get(self.window) if isinstance(self.window, str) else self.window

    @property
    def crops(self) -> bool:
        """True where images are cropped or padded to their size, which keeps millimetres; otherwise they are resized."""
        return self.fit == "crop" or (self.fit == "auto" and bool(self.spacing))

    def to_dict(self, *, whole: bool = False) -> dict[str, object]:
        """Convert to plain values; `parse_options` gives the same back.

        Args:
            whole: Also give values that are at their default.
        """
        usual = ScanOptions()
        plain = {name: getattr(self, name) for name in _KEYS if whole or getattr(self, name) != getattr(usual, name)}
        return {
            name: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v for name, v in plain.items()
        }


def parse_options(plain: Mapping[str, Any], *, where: str = "data.scan") -> ScanOptions:
    """Parse `[data.scan]`.

    Args:
        plain: Its plain values.
        where: The name of the section, for messages.

    Returns:
        The options.

    Raises:
        BadInput: A key is unknown, or a value cannot be meant.
    """
    odd = next((key for key in plain if key not in _KEYS), None)
    if odd is not None:
        raise BadInput(f"unknown key '{odd}' in {where}; {nearest(str(odd), _KEYS)}", code="unknown-key")
    usual = ScanOptions()
    slices = plain.get("slices", usual.slices)
    return ScanOptions(
        window=_parse_window(plain.get("window", usual.window), where),
        spacing=_parse_spacing(plain.get("spacing", usual.spacing), where),
        slices=_parse_slices(str(slices), where),
        plane=_parse_choice(plain, "plane", PLANES, usual.plane, where),
        fit=_parse_choice(plain, "fit", FITS, usual.fit, where),
        volume=_parse_volume(plain.get("volume", usual.volume), where),
        series=_parse_series(plain.get("series", usual.series), where),
    )


def slice_range(text: str) -> tuple[int, int] | None:
    """Parse "10-20" or "10 to 20": the first and the last slice, counted from 1; None for another choice."""
    match = _RANGE.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))


def slice_step(text: str) -> int | None:
    """Parse "every 5"; None for another choice."""
    match = _EVERY.fullmatch(text)
    return None if match is None else int(match[1])


def _parse_window(value: object, where: str) -> str | tuple[float, float]:
    if isinstance(value, str):
        if value in WINDOWS or value in COMPUTED:
            return value
        raise BadInput(
            f"{where}.window is '{value}'; {nearest(value, [*WINDOWS, *COMPUTED])}, or [centre, width]", code="unknown-window"
        )
    numbers = _numbers(value)
    if len(numbers) != 2 or not numbers[1] > 0:
        raise BadInput(
            f"{where}.window is {value!r}; write [centre, width] with a width above 0, such as [40, 400], or a name such as "
            "'lung'",
            code="unknown-window",
        )
    return numbers[0], numbers[1]


def _parse_spacing(value: object, where: str) -> tuple[float, ...]:
    if isinstance(value, Sequence) and not value:
        return ()
    numbers = _numbers([value, value] if isinstance(value, int | float) else value)
    numbers = numbers * 2 if len(numbers) == 1 else numbers
    if len(numbers) not in (2, 3) or min(numbers) <= 0:
        raise BadInput(
            f"{where}.spacing is {value!r}; write mm above 0: one number, [rows, columns] or [rows, columns, slices]",
            code="out-of-range",
        )
    return numbers


def _parse_slices(text: str, where: str) -> str:
    span, step = slice_range(text), slice_step(text)
    if text in (MIDDLE, ALL, MASKED) or (span and 1 <= span[0] <= span[1]) or (step or 0) >= 1:
        return text
    raise BadInput(
        f"{where}.slices is '{text}'; write 'middle', 'all', 'every 5', '10-20' (counted from 1) or 'mask'",
        code="unknown-slices",
    )


def _parse_choice(plain: Mapping[str, Any], key: str, choices: Sequence[str], usual: str, where: str) -> str:
    value = str(plain.get(key, usual))
    if value not in choices:
        raise BadInput(f"{where}.{key} is '{value}'; {nearest(value, choices)}", code="unknown-choice")
    return value


def _parse_volume(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise BadInput(f"{where}.volume is {value!r}; give a whole number from 1 on", code="out-of-range")
    return value


def _parse_series(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise BadInput(
            f"{where}.series is {value!r}; write tags with patterns: {{ Modality = 'CT', SeriesDescription = '*axial*' }}",
            code="wrong-type",
        )
    for tag, pattern in value.items():
        if isinstance(pattern, bool) or not isinstance(pattern, str | int | float):
            raise BadInput(f"{where}.series.{tag} is {pattern!r}; write a word or a pattern with *", code="wrong-type")
    return {str(tag): str(pattern) for tag, pattern in value.items()}


def _numbers(value: object) -> tuple[float, ...]:
    """Convert a list of finite numbers; anything else gives none."""
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in items):
        return ()
    return tuple(float(v) for v in items)
