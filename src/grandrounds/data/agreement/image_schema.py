"""What the consortium agreed that a patient's picture looks like: `[data]` with `pictures = true`.

The counterpart of `schema.DataSchema`, with the same few methods. A site holds its pictures as an .npz file, or as a folder
with a table `labels.csv` in it (`own_pictures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.image_shape import shape_text, told
from grandrounds.data.agreement.schema_fields import (
    LEVELS,
    check_classes,
    check_version,
    known,
    numbers,
    whole,
    word,
    words,
)
from grandrounds.data.loading import AT_SITES
from grandrounds.data.readers import DEFAULT_MISSING

SCHEMA = 1
LEAST = 4
"""Pixels that a side must have, as data.size of an experiment."""

WHITE = 255.0
_CHANNELS = (1, 3)
_KEYS = (
    "pictures", "size", "channels", "label", "classes", "event", "positive", "patient", "file", "masks", "missing", "brightness",
    "fewest_rows",
)  # fmt: skip
_WAY = "pictures = true, size = [height, width] and channels = 1 or 3"


@dataclass(frozen=True)
class PictureSchema:
    """The size and channels of all pictures, and what is told of each."""

    size: tuple[int, int]  # height, width
    channels: int
    label: str = "label"
    classes: tuple[str, ...] = ()  # of the label; none: not said
    event: str | None = None  # the class of two whose probability is the risk
    positive: str | None = None
    patient: str | None = None
    file: str = "file"  # the column of labels.csv that names a picture's file
    masks: bool = False  # whether every picture has a truth mask
    missing: tuple[str, ...] = field(default=DEFAULT_MISSING)
    brightness: tuple[float, ...] = ()  # quantiles, at LEVELS, of pictures' mean brightness from 0 to 255
    fewest_rows: int = 8  # as split.min_rows of an experiment

    @property
    def names(self) -> tuple[str, ...]:
        """What is told of each picture, by name."""
        return (self.label, *([] if self.patient is None else [self.patient]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """One picture as a net sees it: channels, height, width."""
        return (self.channels, *self.size)

    def settings(self) -> dict[str, Any]:
        """What `[data]` of a plan says where the consortium has these pictures."""
        parts = {"label": self.label, "positive": self.positive, "patient": self.patient, "time": None}
        levels = {"levels": {self.label: list(self.classes)}} if self.classes else {}
        held = {"pictures": told(self.size, self.channels), "masks": AT_SITES if self.masks else None}
        stated = {} if self.event is None else {"event": self.event}
        return {**parts, **stated, **held, **levels, "missing": list(self.missing), "kinds": {}}

    @property
    def unit(self) -> str:
        """What a site has many of."""
        return "pictures"

    def described(self, rows: int) -> str:
        """So many pictures of this schema, in words."""
        return f"{rows} pictures, agreed as {shape_text(self.size, self.channels)}"

    def to_dict(self) -> dict[str, Any]:
        """For schema.json; `from_dict` gives the same back."""
        held = {
            "pictures": True, "size": list(self.size), "channels": self.channels, "label": self.label,
            "classes": list(self.classes), "event": self.event, "positive": self.positive, "patient": self.patient,
            "file": None if self.file == PictureSchema.file else self.file, "masks": self.masks,
            "missing": None if self.missing == DEFAULT_MISSING else list(self.missing),
            "brightness": list(self.brightness), "fewest_rows": self.fewest_rows,
        }  # fmt: skip
        said = {name: value for name, value in held.items() if value or (name == "missing" and value is not None)}
        return {"schema": SCHEMA, **said}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], *, where: str = "[data]") -> PictureSchema:
        """The schema that `[data]` says; what it cannot mean is refused in one sentence, with the key."""
        check_version(plain, SCHEMA, where, way=_WAY)
        if plain.get("pictures") is not True:
            raise BadInput(f"{where}: pictures is {plain.get('pictures')!r}; write true, or leave it out for a table")
        if "columns" in plain:
            raise BadInput(f"{where}: pictures have no columns; leave [data.columns] out, or pictures = true")
        known({name: v for name, v in plain.items() if name != "schema"}, _KEYS, where)
        found = cls(
            size=_size(plain, where),
            channels=_channels(plain, where),
            label=word(plain, "label", where) or cls.label,
            classes=words(plain, "classes", where),
            event=word(plain, "event", where),
            positive=word(plain, "positive", where),
            patient=word(plain, "patient", where),
            file=word(plain, "file", where) or cls.file,
            masks=_yes(plain, "masks", where),
            missing=words(plain, "missing", where) if "missing" in plain else DEFAULT_MISSING,
            brightness=_brightness(plain, where),
            fewest_rows=whole(plain, "fewest_rows", where, cls.fewest_rows),
        )
        parts = [found.label, found.file, *([] if found.patient is None else [found.patient])]
        twice = next((name for name in parts if parts.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"{where}: '{twice}' has two parts; label, patient and file are different columns")
        check_classes(found.classes, found.positive, label=found.label, where=where, event=found.event)
        return found


def _size(plain: Mapping[str, Any], where: str) -> tuple[int, int]:
    value = plain.get("size")
    if type(value) is int:
        value = [value, value]
    right = isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n >= LEAST for n in value)
    if value is None or not right:
        said = "no size is agreed on" if value is None else f"size is {value!r}"
        raise BadInput(f"{where}: {said}; write size = [height, width] in pixels, {LEAST} or more each")
    return int(value[0]), int(value[1])


def _channels(plain: Mapping[str, Any], where: str) -> int:
    value = plain.get("channels")
    if type(value) is not int or value not in _CHANNELS:
        said = "no channels are agreed on" if value is None else f"channels is {value!r}"
        raise BadInput(f"{where}: {said}; write channels = 1 for grey pictures, 3 for colour")
    return value


def _yes(plain: Mapping[str, Any], key: str, where: str) -> bool:
    value = plain.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(f"{where}: {key} is {value!r}; write true if every picture has one, or leave it out")
    return value


def _brightness(plain: Mapping[str, Any], where: str) -> tuple[float, ...]:
    found = numbers(plain, "brightness", where, len(LEVELS))
    if list(found) != sorted(found) or any(not 0 <= b <= WHITE for b in found):
        raise BadInput(f"{where}: brightness goes from low to high, between 0 (black) and {WHITE:g} (white)")
    return found
