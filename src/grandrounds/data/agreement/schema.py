"""Data schema that a consortium agreed on, for tables and for images: `[data]` of consortium.toml, `schema.json` at a site.

Every column has its kind, so nothing is guessed from a site's own rows: two hospitals read the same column the same way,
and as a simulation over all of them would. Further columns of a site's table are left out. `ImageSchema`, for `[data]`
with `pictures = true`, has the same few methods as `DataSchema`; a plan states the shape of images in `data.pictures`, so the
server knows a model's inputs before any site has answered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL, TASKS
from grandrounds.core.plan_types import DataSettings
from grandrounds.core.sources import AT_SITES
from grandrounds.data.agreement.dates import AgreedDates, read_dates_section
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.formats import DEFAULT_MISSING
from grandrounds.data.images import size_text
from grandrounds.data.outcome import settle_task
from grandrounds.data.scan_options import ScanOptions, parse_options
from grandrounds.data.schema import infer_schema
from grandrounds.data.table import Table, format_number, is_number

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the agreed `quantiles`."""


def check_keys(section: Mapping[str, object], keys: Sequence[str], where: str) -> None:
    """Refuse a key that is none of these."""
    odd = next((name for name in section if name not in keys), None)
    if odd is not None:
        raise BadInput(f"unknown key '{odd}' in {where}; {nearest(str(odd), keys)}", code="unknown-key")


def read_word(plain: Mapping[str, object], key: str, where: str) -> str | None:
    """Read a word, or a number as a word; None where the key is absent."""
    value = plain.get(key)
    if value is None:
        return None
    text = _as_word(value)
    if not text:
        raise BadInput(f"{where}: {key} is {value!r}; give a word", code="wrong-type")
    return text


def _as_word(value: object) -> str:
    """Convert text as it is written, or a number as a table's cell would be."""
    if isinstance(value, float):
        return format_number(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def read_words(plain: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    """Read a list of words; only marks for missing values may be empty ones."""
    value = plain.get(key, ())
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadInput(f"{where}: {key} is {value!r}; give a list of words", code="wrong-type")
    texts = tuple(_as_word(v) for v in value)
    if key != "missing" and not all(texts):
        raise BadInput(f"{where}: {key} holds something that is no word or number; list words", code="wrong-type")
    return texts


def read_numbers(plain: Mapping[str, object], key: str, where: str, count: int) -> tuple[float, ...]:
    """Read a fixed count of finite numbers, or none."""
    value = plain.get(key)
    if value is None:
        return ()
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(numbers) != count or not all(isinstance(v, int | float) and math.isfinite(v) for v in numbers):
        raise BadInput(f"{where}: {key} is {value!r}; give {count} numbers", code="wrong-type")
    return tuple(float(v) for v in numbers)


def read_share(plain: Mapping[str, object], key: str, where: str) -> float | None:
    """Read a number from 0 to 1; None where the key is absent."""
    value = plain.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadInput(f"{where}: {key} is {value!r}; give a number from 0 to 1", code="wrong-type")
    return float(value)


def read_shares(plain: Mapping[str, object], key: str, where: str, listed: str) -> tuple[float, ...]:
    """Read one share for each word of the list `listed`, or none; together they are at most 1, apart from rounding."""
    names = plain.get(listed, ())
    count, given = len(names) if isinstance(names, Sequence) else 0, plain.get(key)
    if isinstance(given, Sequence) and len(given) != count:
        raise BadInput(
            f"{where}: {key} has {len(given)} numbers and {listed} {count} words; give one for each, or leave {key} out",
            code="invalid-shares",
        )
    shares = read_numbers(plain, key, where, count)
    if any(not 0 <= share <= 1 for share in shares) or sum(shares) > 1.1 + 0.01 * len(shares):
        raise BadInput(f"{where}: {key} has one share from 0 to 1 for each of {listed}; correct them", code="wrong-type")
    return shares


def read_whole_number(plain: Mapping[str, object], key: str, where: str, usual: int) -> int:
    """Read a whole number from 1 on."""
    value = plain.get(key, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{where}: {key} is {value!r}; give a whole number from 1 on", code="wrong-type")
    return value


def check_version(plain: object, version: int, where: str, *, way: str) -> None:
    """Refuse what is not a section, and a file of another version; `way`: what to write."""
    if not isinstance(plain, Mapping):
        raise BadInput(f"{where} is not a section: write {way}", code="not-a-section")
    if plain.get("schema", version) != version:
        raise BadInput(
            f"{where} has schema {plain['schema']}, this version reads {version}: update the older side",
            code="schema-version",
        )


def check_classes(
    classes: Sequence[str], positive: str | None, *, label: str, where: str, event: str | None = None
) -> None:
    """Refuse classes that are fewer than two or repeated, and an event that is none of them."""
    if classes and (len(set(classes)) < 2 or len(set(classes)) < len(classes)):
        raise BadInput(
            f"{where}: classes must list two or more classes of '{label}', each once", code="invalid-classes"
        )
    if positive is not None and classes and positive not in classes:
        raise BadInput(f"{where}: positive is '{positive}'; {nearest(positive, classes)}", code="unknown-class")
    if event is not None and classes and event not in classes:
        raise BadInput(f"{where}: event is '{event}'; {nearest(event, classes)}", code="unknown-class")
    if event is not None and positive not in (None, event):
        raise BadInput(
            f"{where}: event is '{event}' and positive '{positive}'; leave one of them out", code="conflicting-settings"
        )


_SHAPE_PATTERN = re.compile(rf"{AT_SITES}: (\d{{1,5}})x(\d{{1,5}}), (\d) channels?")


def format_image_shape(size: Sequence[int], channels: int) -> str:
    """Format data.pictures for images that each hospital holds: "at the sites: 28x28, 1 channel"."""
    return f"{AT_SITES}: {shape_text(size, channels)}"


def parse_image_shape(data: DataSettings) -> tuple[int, int, int] | None:
    """Parse (channels, height, width) from data.pictures; None for a table, or where no shape is stated."""
    match = _SHAPE_PATTERN.fullmatch(data.pictures or "")
    if match is None:
        return None
    height, width, channels = (int(n) for n in match.groups())
    return channels, height, width


def shape_text(size: Sequence[int], channels: int) -> str:
    """Format a size and channels, such as 28x28, 1 channel."""
    return f"{size_text(size)}, {channels} {'channel' if channels == 1 else 'channels'}"


IMAGE_SCHEMA = 1
LEAST = 4
"""Pixels that a side must have, as data.size of an experiment."""

WHITE = 255.0
_CHANNELS = (1, 3)
_KEYS = (
    "pictures", "size", "channels", "label", "classes", "event", "positive", "patient", "file", "masks", "missing", "brightness",
    "fewest_rows", "scan",
)  # fmt: skip
_WAY = "`pictures = true`, size = [height, width] and channels = 1 or 3"


@dataclass(frozen=True)
class ImageSchema:
    """The size and channels of all images, and the columns that describe each."""

    size: tuple[int, int]  # height, width
    channels: int
    label: str = "label"
    classes: tuple[str, ...] = ()  # of the label; none: not said
    event: str | None = None  # the class of two whose probability is the risk
    positive: str | None = None
    patient: str | None = None
    file: str = "file"  # the column of labels.csv that names an image's file
    masks: bool = False  # whether every image has a truth mask
    missing: tuple[str, ...] = field(default=DEFAULT_MISSING)
    brightness: tuple[float, ...] = ()  # quantiles, at LEVELS, of images' mean brightness from 0 to 255
    fewest_rows: int = 8  # as split.min_rows of an experiment
    scan: ScanOptions | None = None  # window, spacing and slices of DICOM and NIfTI files

    @property
    def names(self) -> tuple[str, ...]:
        """The agreed columns of each image."""
        return (self.label, *([] if self.patient is None else [self.patient]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """One image as a net sees it: channels, height, width."""
        return (self.channels, *self.size)

    def settings(self) -> dict[str, Any]:
        """The settings of `[data]` in a plan for a consortium with these images."""
        parts = {"label": self.label, "positive": self.positive, "patient": self.patient, "time": None}
        levels = {"levels": {self.label: list(self.classes)}} if self.classes else {}
        settings = {"pictures": format_image_shape(self.size, self.channels), "masks": AT_SITES if self.masks else None}
        stated: dict[str, object] = {} if self.event is None else {"event": self.event}
        stated |= {} if self.scan is None else {"scan": self.scan.to_dict(whole=True)}
        return {**parts, **stated, **settings, **levels, "missing": list(self.missing), "kinds": {}}

    @property
    def unit(self) -> str:
        """The noun for one row."""
        return "pictures"

    def describe(self, rows: int) -> str:
        """Describe a number of images of this schema."""
        return f"{rows} images, agreed as {shape_text(self.size, self.channels)}"

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for schema.json; `from_dict` gives the same back."""
        fields = {
            "pictures": True, "size": list(self.size), "channels": self.channels, "label": self.label,
            "classes": list(self.classes), "event": self.event, "positive": self.positive, "patient": self.patient,
            "file": None if self.file == ImageSchema.file else self.file, "masks": self.masks,
            "missing": None if self.missing == DEFAULT_MISSING else list(self.missing),
            "brightness": list(self.brightness), "fewest_rows": self.fewest_rows,
            "scan": None if self.scan is None else self.scan.to_dict(),
        }  # fmt: skip
        present = {name: value for name, value in fields.items() if value or (name in ("missing", "scan") and value is not None)}
        return {"schema": IMAGE_SCHEMA, **present}

    @classmethod
    def from_dict(cls, plain: Mapping[str, object], *, where: str = "[data]") -> ImageSchema:
        """Parse the schema of images in `[data]`.

        Raises:
            BadInput: A value cannot be meant; the sentence names the key.
        """
        check_version(plain, IMAGE_SCHEMA, where, way=_WAY)
        if plain.get("pictures") is not True:
            raise BadInput(
                f"{where}: `pictures` is {plain.get('pictures')!r}; write true, or remove it for a table",
                code="wrong-type",
            )
        if "columns" in plain:
            raise BadInput(
                f"{where}: images have no columns; remove [data.columns], or `pictures = true`",
                code="conflicting-settings",
            )
        check_keys({name: v for name, v in plain.items() if name != "schema"}, _KEYS, where)
        schema = cls(
            size=_read_size(plain, where),
            channels=_read_channels(plain, where),
            label=read_word(plain, "label", where) or cls.label,
            classes=read_words(plain, "classes", where),
            event=read_word(plain, "event", where),
            positive=read_word(plain, "positive", where),
            patient=read_word(plain, "patient", where),
            file=read_word(plain, "file", where) or cls.file,
            masks=_read_flag(plain, "masks", where),
            missing=read_words(plain, "missing", where) if "missing" in plain else DEFAULT_MISSING,
            brightness=_read_brightness(plain, where),
            fewest_rows=read_whole_number(plain, "fewest_rows", where, cls.fewest_rows),
            scan=_read_scan(plain, where),
        )
        parts = [schema.label, schema.file, *([] if schema.patient is None else [schema.patient])]
        twice = next((name for name in parts if parts.count(name) > 1), None)
        if twice is not None:
            raise BadInput(
                f"{where}: '{twice}' has two roles; label, patient and file are different columns",
                code="conflicting-roles",
            )
        check_classes(schema.classes, schema.positive, label=schema.label, where=where, event=schema.event)
        return schema


def _read_size(plain: Mapping[str, object], where: str) -> tuple[int, int]:
    value = plain.get("size")
    sides = [value, value] if type(value) is int else list(value) if isinstance(value, list | tuple) else []
    if len(sides) != 2 or not all(type(n) is int and n >= LEAST for n in sides):
        problem = "no size is agreed on" if value is None else f"size is {value!r}"
        raise BadInput(
            f"{where}: {problem}; write size = [height, width] in pixels, {LEAST} or more each",
            code="invalid-image-shape",
        )
    return int(sides[0]), int(sides[1])


def _read_channels(plain: Mapping[str, object], where: str) -> int:
    value = plain.get("channels")
    if type(value) is not int or value not in _CHANNELS:
        problem = "no channels are agreed on" if value is None else f"channels is {value!r}"
        raise BadInput(
            f"{where}: {problem}; write channels = 1 for grey images, 3 for colour", code="invalid-image-shape"
        )
    return value


def _read_flag(plain: Mapping[str, object], key: str, where: str) -> bool:
    value = plain.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(
            f"{where}: {key} is {value!r}; write true, or leave it out", code="wrong-type"
        )
    return value


def _read_scan(plain: Mapping[str, object], where: str) -> ScanOptions | None:
    value = plain.get("scan")
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadInput(f"{where}: scan is {value!r}; write a section [data.scan]", code="wrong-type")
    return parse_options(value, where="data.scan")


def _read_brightness(plain: Mapping[str, object], where: str) -> tuple[float, ...]:
    quantiles = read_numbers(plain, "brightness", where, len(LEVELS))
    if list(quantiles) != sorted(quantiles) or any(not 0 <= b <= WHITE for b in quantiles):
        raise BadInput(
            f"{where}: brightness goes from low to high, between 0 (black) and {WHITE:g} (white)",
            code="unordered-range",
        )
    return quantiles


SCHEMA = 1
KINDS = ("number", "category", "binary", "ordinal")
_ALIASES = {"numeric": "number", "categorical": "category"}
_COLUMN = (
    "kind", "unit", "range", "quantiles", "values", "shares", "missing_share", "auroc", "whole", "relations",
    "profiles", "about",
)
_DATA = (
    "label", "task", "duration", "event", "positive", "classes", "class_shares", "patient", "repeated_share", "fixed", "time",
    "missing", "fewest_rows", "dates", "columns",
)  # fmt: skip
_YES_NO = ("0", "1")


@dataclass(frozen=True)
class AgreedColumn:
    """One column: its kind, and what is known of it beforehand.

    All from `shares` on describes the consortium's patients; checks of a site's table compare with it.
    """

    name: str
    kind: str
    unit: str = ""
    range: tuple[float, float] | None = None  # what is possible
    quantiles: tuple[float, ...] = ()  # of the consortium, at LEVELS
    values: tuple[str, ...] = ()  # of categories; of ordinals from low to high
    about: str = ""
    shares: tuple[float, ...] = ()  # of `values` among the cells with a value
    missing_share: float | None = None
    auroc: float | None = None  # of the column alone for the label, 0.5 to 1
    relations: tuple[tuple[str, float], ...] = ()  # rank correlations with other columns
    profiles: tuple[tuple[str, tuple[float, ...]], ...] = ()  # mean ranks of other columns among rows of each of `values`
    whole: bool = False  # all numbers are whole

    @property
    def numeric(self) -> bool:
        """True where its cells are measurements; a binary written as numbers is one, as in a simulation."""
        return self.kind == "number" or (self.kind == "binary" and all(is_number(v) for v in self.values))

    @property
    def plan_kind(self) -> str | tuple[str, ...]:
        """Its entry in `data.kinds` of a plan."""
        if self.kind == "ordinal":
            return self.values
        return "numeric" if self.numeric else "categorical"

    def to_dict(self) -> dict[str, object]:
        """Convert to the entry of consortium.toml, without what is not set."""
        plain: dict[str, object] = {"kind": self.kind, "unit": self.unit, "about": self.about}
        plain |= {"range": None if self.range is None else list(self.range)}
        plain |= {"quantiles": list(self.quantiles), "values": list(self.values), "shares": list(self.shares)}
        plain |= {"missing_share": self.missing_share, "auroc": self.auroc}
        plain |= {"relations": dict(self.relations), "whole": self.whole}
        plain |= {"profiles": {name: list(ranks) for name, ranks in self.profiles}}
        return {name: plain[name] for name in _COLUMN if plain[name] or isinstance(plain[name], float)}


class AgreedCohort(Protocol):
    """The definition of a cohort, which the capability that reads clinical records parses."""

    def digest(self) -> str:
        """Hash the definition."""


@dataclass(frozen=True)
class DataSchema:
    """The agreed columns in their order, which is the order of a model's inputs, and the columns with a role of their own."""

    label: str
    columns: tuple[AgreedColumn, ...]
    event: str | None = None  # the class of two whose probability is the risk
    positive: str | None = None
    classes: tuple[str, ...] = ()  # of the label; none: not said
    patient: str | None = None
    time: str | None = None
    missing: tuple[str, ...] = field(default=DEFAULT_MISSING)
    fewest_rows: int = 8  # as split.min_rows of an experiment
    task: str = CLASSIFICATION  # type of the outcome, as data.task
    duration: str | None = None  # column with the follow-up time, for survival
    class_shares: tuple[float, ...] = ()  # of `classes` among the consortium's rows
    repeated_share: float | None = None  # share of rows of a patient with an earlier row
    fixed: tuple[str, ...] = ()  # columns that are the same in all rows of a patient, such as sex
    dates: tuple[AgreedDates, ...] = ()  # for checks alone: no inputs of a model, and a table may lack them
    cohort: AgreedCohort | None = None  # by which the table is made from clinical records

    def __getitem__(self, name: str) -> AgreedColumn:
        return next(c for c in self.columns if c.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that a site's table must have."""
        parts = (self.label, self.duration, self.patient, self.time)
        return (*(p for p in parts if p is not None), *(c.name for c in self.columns))

    @property
    def date_names(self) -> tuple[str, ...]:
        """Date columns that are checked where a table has them."""
        return tuple(d.name for d in self.dates)

    def kinds(self) -> dict[str, str | list[str]]:
        """Build `data.kinds` of a plan: the kind of every feature, so that none is guessed."""
        kinds = {c.name: c.plan_kind for c in self.columns}
        return {name: kind if isinstance(kind, str) else list(kind) for name, kind in kinds.items()}

    def settings(self) -> dict[str, Any]:
        """The settings of `[data]` in a plan for a consortium with this schema."""
        parts = {"label": self.label, "positive": self.positive, "patient": self.patient, "time": self.time}
        stated: dict[str, Any] = {} if self.event is None else {"event": self.event}
        if self.task != CLASSIFICATION:
            stated |= {"task": self.task, "duration": self.duration}
        if units := {c.name: c.unit for c in self.columns if c.unit}:
            stated["units"] = units
        return {**parts, **stated, "missing": list(self.missing), "kinds": self.kinds()}

    def ranges(self) -> dict[str, list[float]]:
        """The agreed ranges of numbers, for an encoding that asks sites for none; those of a binary follow from its values."""
        ranges = {c.name: sorted(map(float, c.values)) for c in self.columns if c.kind == "binary" and c.numeric}
        return ranges | {c.name: list(c.range) for c in self.columns if c.range is not None}

    def levels(self) -> dict[str, list[str]]:
        """The agreed values of categories and classes of the label, for an encoding that asks sites for none."""
        classes = {self.label: list(self.classes)} if self.classes else {}
        return {c.name: list(c.values) for c in self.columns if c.plan_kind == "categorical" and c.values} | classes

    def select_columns(self, table: Table) -> Table:
        """Select the agreed columns of a table, in the agreed order."""
        return Table({name: table.column(name) for name in self.names}, table.source, table.origin, table.reading)

    def dataset(self, table: Table, *, name: str) -> Dataset:
        """Read a site's rows as a model will see them; the first fault is refused."""
        chosen = self.select_columns(table)
        schema = infer_schema(
            chosen,
            label=self.label,
            patient=self.patient,
            time=self.time,
            overrides={**self.kinds()},
            task=self.task,
            duration=self.duration,
        )
        if self.task == CLASSIFICATION:
            settle_task(chosen, self.label)  # refuses whole numbers that may be a count
        return build_dataset(chosen, schema, name=name)

    @property
    def numeric_names(self) -> tuple[str, ...]:
        """Measurements and ordered levels, in order: what a server needs to merge sites' summaries."""
        return tuple(c.name for c in self.columns if c.numeric or c.kind == "ordinal")

    @property
    def categorical_names(self) -> tuple[str, ...]:
        """Categories, in order."""
        return tuple(c.name for c in self.columns if c.plan_kind == "categorical")

    @property
    def unit(self) -> str:
        """The noun for one row."""
        return "rows"

    def describe(self, rows: int) -> str:
        """Describe a number of rows of this schema."""
        return f"{rows} rows, {len(self.columns)} agreed columns"

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for schema.json; `from_dict` gives the same back."""
        fields = {
            "label": self.label, "event": self.event, "positive": self.positive, "classes": list(self.classes),
            "patient": self.patient, "time": self.time,
            "task": None if self.task == CLASSIFICATION else self.task, "duration": self.duration,
            "missing": None if self.missing == DEFAULT_MISSING else list(self.missing),
            "fewest_rows": self.fewest_rows, "class_shares": list(self.class_shares), "repeated_share": self.repeated_share,
            "fixed": list(self.fixed),
            "dates": {d.name: d.to_dict() for d in self.dates}, "columns": {c.name: c.to_dict() for c in self.columns},
        }  # fmt: skip
        always = ("missing", "repeated_share")
        present = {name: value for name, value in fields.items() if value or (name in always and value is not None)}
        return {"schema": SCHEMA, **present}

    @classmethod
    def from_dict(cls, plain: Mapping[str, object], *, where: str = "[data]") -> DataSchema:
        """Parse the schema of a table in `[data]`.

        Raises:
            BadInput: A value cannot be meant; the sentence names the key.
        """
        check_version(plain, SCHEMA, where, way="label = ... and [data.columns.NAME]")
        check_keys({name: v for name, v in plain.items() if name != "schema"}, _DATA, where)
        label = read_word(plain, "label", where)
        if label is None:
            raise BadInput(f"{where} names no label: which column is to be predicted? set label", code="label-not-set")
        listed = plain.get("columns")
        if not isinstance(listed, Mapping) or not listed:
            raise BadInput(f"{where} has no columns: add [data.columns.NAME] with a kind for each", code="no-columns")
        columns = tuple(_read_column(str(name), entry, where) for name, entry in listed.items())
        schema = cls(
            label=label,
            columns=columns,
            event=read_word(plain, "event", where),
            positive=read_word(plain, "positive", where),
            classes=read_words(plain, "classes", where),
            patient=read_word(plain, "patient", where),
            time=read_word(plain, "time", where),
            task=_read_task(plain, where),
            duration=read_word(plain, "duration", where),
            missing=read_words(plain, "missing", where) if "missing" in plain else DEFAULT_MISSING,
            fewest_rows=read_whole_number(plain, "fewest_rows", where, cls.fewest_rows),
            class_shares=read_shares(plain, "class_shares", where, "classes"),
            repeated_share=read_share(plain, "repeated_share", where),
            fixed=read_words(plain, "fixed", where),
            dates=read_dates_section(plain, where),
        )
        schema._check(where)
        return schema

    def _check(self, where: str) -> None:
        """Refuse columns with two roles, and an event that is none of the classes."""
        if len(set(self.names)) < len(self.names):
            twice = next(n for n in self.names if self.names.count(n) > 1)
            raise BadInput(
                f"{where}: column '{twice}' has two roles; a label, patient or time is no feature as well",
                code="conflicting-roles",
            )
        check_classes(self.classes, self.positive, label=self.label, where=where, event=self.event)
        if (self.task == SURVIVAL) != (self.duration is not None):
            raise BadInput(
                f"{where}: task is '{self.task}' and duration {self.duration!r}; survival needs a duration, the column with the "
                "follow-up time, and other tasks have none",
                code="no-duration",
            )
        if self.task in (REGRESSION, COUNT) and (self.classes or self.positive or self.event):
            raise BadInput(
                f"{where}: task is '{self.task}', which predicts a number; leave classes, event and positive out",
                code="conflicting-settings",
            )


def _read_task(plain: Mapping[str, object], where: str) -> str:
    task = read_word(plain, "task", where) or (SURVIVAL if plain.get("duration") is not None else CLASSIFICATION)
    if task not in TASKS:
        raise BadInput(f"{where}: task is '{task}'; {nearest(task, TASKS)}", code="unknown-task")
    return task


AgreedSchema = DataSchema | ImageSchema
"""Schema that a consortium agreed on: the columns of a table, or images."""


def _read_column(name: str, entry: object, where: str) -> AgreedColumn:
    where = f"{where} columns.{name}"
    if not isinstance(entry, Mapping):
        raise BadInput(
            f'{where} is not a section: write kind = "number", or another of {", ".join(KINDS)}', code="not-a-section"
        )
    check_keys(entry, _COLUMN, where)
    kind = _ALIASES.get(str(entry.get("kind")), str(entry.get("kind")))
    if kind not in KINDS:
        problem = f"kind is '{entry['kind']}'" if "kind" in entry else "no kind is given"
        raise BadInput(f"{where}: {problem}; {nearest(kind, KINDS)}", code="unknown-kind")
    values = read_words(entry, "values", where)
    if kind == "binary":
        values = values or _YES_NO
        if len(values) != 2:
            raise BadInput(
                f"{where}: a binary column has two values, not {len(values)}; use category for more",
                code="invalid-levels",
            )
    if kind == "ordinal" and len(values) < 2:
        raise BadInput(f"{where}: an ordinal column needs its values, from low to high", code="invalid-levels")
    if len(set(values)) < len(values):
        raise BadInput(f"{where}: values has one word twice; list each once", code="invalid-levels")
    limits, quantiles = read_numbers(entry, "range", where, 2), read_numbers(entry, "quantiles", where, len(LEVELS))
    if kind != "number" and (limits or quantiles or entry.get("unit")):
        raise BadInput(
            f"{where}: unit, range and quantiles are of numbers; this column's kind is '{kind}'",
            code="conflicting-settings",
        )
    if kind == "number" and values:
        raise BadInput(f"{where}: values are of categories; for a number give its range", code="conflicting-settings")
    if list(limits) != sorted(set(limits)) or list(quantiles) != sorted(quantiles):
        raise BadInput(f"{where}: range and quantiles go from low to high", code="unordered-range")
    unit, about = (read_word(entry, name, where) or "" for name in ("unit", "about"))
    span = (limits[0], limits[1]) if limits else None
    shares = read_shares({"values": values, **entry}, "shares", where, "values")
    missing, auroc = read_share(entry, "missing_share", where), read_share(entry, "auroc", where)
    relations = _read_relations(entry, where)
    profiles = _read_profiles(entry, where, len(values))
    return AgreedColumn(
        name, kind, unit, span, quantiles, values, about, shares, missing, auroc, relations, profiles,
        _read_flag(entry, "whole", where),
    )  # fmt: skip


def _read_profiles(entry: Mapping[str, object], where: str, levels: int) -> tuple[tuple[str, tuple[float, ...]], ...]:
    value = entry.get("profiles", {})
    if not isinstance(value, Mapping):
        raise BadInput(f"{where}: profiles is {value!r}; give mean ranks by column", code="wrong-type")
    return tuple((str(name), read_numbers(value, name, f"{where} profiles", levels)) for name in value)


def _read_relations(entry: Mapping[str, object], where: str) -> tuple[tuple[str, float], ...]:
    value = entry.get("relations", {})
    pairs: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, Mapping) else [("", None)]
    if not all(isinstance(rho, int | float) and not isinstance(rho, bool) and -1 <= rho <= 1 for _, rho in pairs):
        raise BadInput(
            f"{where}: relations is {value!r}; give a correlation from -1 to 1 for each column", code="wrong-type"
        )
    return tuple((str(name), float(rho)) for name, rho in pairs)
