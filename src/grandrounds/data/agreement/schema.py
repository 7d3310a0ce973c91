"""What the consortium agreed that a patient's row looks like: `[data]` of consortium.toml, `schema.json` at a site.

`agreed` reads it, be it of a table (here) or of pictures (`picture_schema`).

Every column has its kind, so nothing is guessed from a site's own rows: two hospitals read the same column the same way,
and as a simulation over all of them would. What a site's table has besides is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.agreement import schema_fields as schema_words
from grandrounds.data.agreement.image_schema import PictureSchema
from grandrounds.data.agreement.schema_fields import check_classes, check_version, known, numbers, whole, word, words
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.readers import DEFAULT_MISSING
from grandrounds.data.schema import infer_schema
from grandrounds.data.table import Table, is_number

SCHEMA = 1
KINDS = ("number", "category", "binary", "ordinal")
LEVELS = schema_words.LEVELS
"""Which quantiles a column's `quantiles` are."""

_ALIASES = {"numeric": "number", "categorical": "category"}
_COLUMN = ("kind", "unit", "range", "quantiles", "values", "about")
_DATA = ("label", "event", "positive", "classes", "patient", "time", "missing", "fewest_rows", "columns")
_YES_NO = ("0", "1")


@dataclass(frozen=True)
class AgreedColumn:
    """One column: its kind, and what is known of it beforehand."""

    name: str
    kind: str
    unit: str = ""
    range: tuple[float, float] | None = None  # what is possible
    quantiles: tuple[float, ...] = ()  # of the consortium, at LEVELS
    values: tuple[str, ...] = ()  # of categories; of ordinals from low to high
    about: str = ""

    @property
    def numeric(self) -> bool:
        """Whether its cells are measurements; a binary written as numbers is one, as in a simulation."""
        return self.kind == "number" or (self.kind == "binary" and all(is_number(v) for v in self.values))

    @property
    def read_as(self) -> str | tuple[str, ...]:
        """What `data.kinds` of a plan says of it."""
        if self.kind == "ordinal":
            return self.values
        return "numeric" if self.numeric else "categorical"

    def to_dict(self) -> dict[str, Any]:
        """The entry of consortium.toml, without what is not set."""
        held: dict[str, Any] = {"kind": self.kind, "unit": self.unit, "about": self.about}
        held |= {"range": None if self.range is None else list(self.range)}
        held |= {"quantiles": list(self.quantiles), "values": list(self.values)}
        return {name: held[name] for name in _COLUMN if held[name]}


@dataclass(frozen=True)
class DataSchema:
    """The agreed columns in their order, which is the order of a model's inputs, and the columns with a part of their own."""

    label: str
    columns: tuple[AgreedColumn, ...]
    event: str | None = None  # the class of two whose probability is the risk
    positive: str | None = None
    classes: tuple[str, ...] = ()  # of the label; none: not said
    patient: str | None = None
    time: str | None = None
    missing: tuple[str, ...] = field(default=DEFAULT_MISSING)
    fewest_rows: int = 8  # as split.min_rows of an experiment

    def __getitem__(self, name: str) -> AgreedColumn:
        return next(c for c in self.columns if c.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that a site's table must have."""
        parts = (self.label, self.patient, self.time)
        return (*(p for p in parts if p is not None), *(c.name for c in self.columns))

    def kinds(self) -> dict[str, str | list[str]]:
        """`data.kinds` of a plan: the kind of every feature, so that none is guessed."""
        said = {c.name: c.read_as for c in self.columns}
        return {name: kind if isinstance(kind, str) else list(kind) for name, kind in said.items()}

    def settings(self) -> dict[str, Any]:
        """What `[data]` of a plan says where the consortium has this schema."""
        parts = {"label": self.label, "positive": self.positive, "patient": self.patient, "time": self.time}
        stated = {} if self.event is None else {"event": self.event}
        return {**parts, **stated, "missing": list(self.missing), "kinds": self.kinds()}

    def chosen(self, table: Table) -> Table:
        """The agreed columns of a table, in the agreed order."""
        return Table({name: table.column(name) for name in self.names}, table.source, table.origin, table.reading)

    def dataset(self, table: Table, *, name: str) -> Dataset:
        """A site's rows as a model will see them; the first fault is refused in words."""
        chosen = self.chosen(table)
        schema = infer_schema(
            chosen, label=self.label, patient=self.patient, time=self.time, overrides={**self.kinds()}
        )
        return build_dataset(chosen, schema, name=name)

    @property
    def numeric_names(self) -> tuple[str, ...]:
        """Measurements and ordered levels, in order: what a server needs to merge sites' summaries."""
        return tuple(c.name for c in self.columns if c.numeric or c.kind == "ordinal")

    @property
    def categorical_names(self) -> tuple[str, ...]:
        """Categories, in order."""
        return tuple(c.name for c in self.columns if c.read_as == "categorical")

    @property
    def unit(self) -> str:
        """What a site has many of."""
        return "rows"

    def described(self, rows: int) -> str:
        """So many rows of this schema, in words."""
        return f"{rows} rows, {len(self.columns)} agreed columns"

    def to_dict(self) -> dict[str, Any]:
        """For schema.json; `from_dict` gives the same back."""
        held = {
            "label": self.label, "event": self.event, "positive": self.positive, "classes": list(self.classes),
            "patient": self.patient, "time": self.time,
            "missing": None if self.missing == DEFAULT_MISSING else list(self.missing),
            "fewest_rows": self.fewest_rows, "columns": {c.name: c.to_dict() for c in self.columns},
        }  # fmt: skip
        said = {name: value for name, value in held.items() if value or (name == "missing" and value is not None)}
        return {"schema": SCHEMA, **said}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], *, where: str = "[data]") -> DataSchema:
        """The schema that `[data]` says; what it cannot mean is refused in one sentence, with the key."""
        check_version(plain, SCHEMA, where, way="label = ... and [data.columns.NAME]")
        known({name: v for name, v in plain.items() if name != "schema"}, _DATA, where)
        label = word(plain, "label", where)
        if label is None:
            raise BadInput(f"{where} names no label: which column is to be predicted? set label")
        listed = plain.get("columns")
        if not isinstance(listed, Mapping) or not listed:
            raise BadInput(f"{where} has no columns: add [data.columns.NAME] with a kind for each")
        columns = tuple(_column(str(name), entry, where) for name, entry in listed.items())
        found = cls(
            label=label,
            columns=columns,
            event=word(plain, "event", where),
            positive=word(plain, "positive", where),
            classes=words(plain, "classes", where),
            patient=word(plain, "patient", where),
            time=word(plain, "time", where),
            missing=words(plain, "missing", where) if "missing" in plain else DEFAULT_MISSING,
            fewest_rows=whole(plain, "fewest_rows", where, cls.fewest_rows),
        )
        found._check(where)
        return found

    def _check(self, where: str) -> None:
        """Refuse columns with two parts, and an event that is none of the classes."""
        if len(set(self.names)) < len(self.names):
            twice = next(n for n in self.names if self.names.count(n) > 1)
            raise BadInput(f"{where}: column '{twice}' has two parts; a label, patient or time is no feature as well")
        check_classes(self.classes, self.positive, label=self.label, where=where, event=self.event)


Agreed = DataSchema | PictureSchema
"""What a consortium agreed on: the columns of a table, or pictures."""


def agreed(plain: Mapping[str, Any], *, where: str = "[data]") -> Agreed:
    """What `[data]` says, of a table or of pictures: the one place where it is told which."""
    kind = PictureSchema if isinstance(plain, Mapping) and "pictures" in plain else DataSchema
    return kind.from_dict(plain, where=where)


def read_schema(path: Path) -> Agreed:
    """The schema in a file: schema.json, or the [data] section of consortium.toml."""
    import tomllib

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise BadInput(f"the schema {path} cannot be read: {reason}; give schema.json of the site's folder") from None
    try:
        found: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as e:
        raise BadInput(f"the schema {path} is damaged ({e}); take it from the site's folder again") from None
    if path.suffix == ".toml":
        found = found.get("data", {})
    return agreed(found, where=f"[data] of {path}")


def _column(name: str, entry: Any, where: str) -> AgreedColumn:
    where = f"{where} columns.{name}"
    if not isinstance(entry, Mapping):
        raise BadInput(f'{where} is no section: write kind = "number", or another of {", ".join(KINDS)}')
    known(entry, _COLUMN, where)
    kind = _ALIASES.get(str(entry.get("kind")), str(entry.get("kind")))
    if kind not in KINDS:
        said = f"kind is '{entry['kind']}'" if "kind" in entry else "no kind is given"
        raise BadInput(f"{where}: {said}; {nearest(kind, KINDS)}")
    values = words(entry, "values", where)
    if kind == "binary":
        values = values or _YES_NO
        if len(values) != 2:
            raise BadInput(f"{where}: a binary column has two values, not {len(values)}; use category for more")
    if kind == "ordinal" and len(values) < 2:
        raise BadInput(f"{where}: an ordinal column needs its values, from low to high")
    if len(set(values)) < len(values):
        raise BadInput(f"{where}: values has one word twice; list each once")
    limits, quantiles = numbers(entry, "range", where, 2), numbers(entry, "quantiles", where, len(LEVELS))
    if kind != "number" and (limits or quantiles or entry.get("unit")):
        raise BadInput(f"{where}: unit, range and quantiles are of numbers; this column's kind is '{kind}'")
    if kind == "number" and values:
        raise BadInput(f"{where}: values are of categories; for a number give its range")
    if list(limits) != sorted(set(limits)) or list(quantiles) != sorted(quantiles):
        raise BadInput(f"{where}: range and quantiles go from low to high")
    unit, about = (word(entry, name, where) or "" for name in ("unit", "about"))
    span = (limits[0], limits[1]) if limits else None
    return AgreedColumn(name, kind, unit, span, quantiles, values, about)
