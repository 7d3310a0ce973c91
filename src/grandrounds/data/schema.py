"""Meaning of each column: a measurement, ordered levels, a category, or nothing a model may see.

Guessed from names and content by rules that err on the side of leaving a column out when it looks
like an identifier, and of refusing when a typing slip would turn a measurement into categories.
Every guess carries its reason, and the user can overrule it (`data.kinds`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, TASKS
from grandrounds.data.formats import date_format, find_unreadable, is_iso_date
from grandrounds.data.table import Table, format_number, is_number, missing_mask, to_text

Kind = Literal["numeric", "ordinal", "categorical", "id", "constant", "drop"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MANY = 50  # fewer distinct texts than this are categories however few rows there are
MOSTLY = 0.9  # a share of cells that shows what a column was meant to be

_FEATURES = ("numeric", "ordinal", "categorical")
_ID_NAME = re.compile(
    r"id|index|row|nbr|mrn|uid|oid|pid|unnamed: 0"
    r"|.*[ _.-](?:id|nbr|no|number|key|mrn|uid|uuid)|.*id"
    r"|(?:patient|encounter|subject|person|visit|admission)s?(?:nbr|no|num|number|key|code)?"
)
_NOT_ID = re.compile(r".*(?:acid|.oid|fluid|lipid|covid|solid|rapid|carotid|parotid|valid|hybrid|eyelid)")
_LEADING_ZERO = re.compile(r"[+-]?0\d+")
_FIRST_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Column:
    """One column's meaning, and why it was given it; `order` lists ordinal levels, low to high."""

    name: str
    kind: Kind
    why: str
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """Every column of a table in its order, and those that play a part other than feature.

    `task` is the type of the outcome (`core.outcome`); `duration` is the column with the follow-up time of survival data.
    """

    columns: tuple[Column, ...]
    label: str
    site: str | None
    patient: str | None
    time: str | None
    task: str = CLASSIFICATION
    duration: str | None = None

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns a model may see, in table order."""
        return tuple(c for c in self.columns if c.kind in _FEATURES)

    @property
    def numeric_like(self) -> tuple[Column, ...]:
        """Numbers and ordered levels, in table order."""
        return tuple(c for c in self.columns if c.kind in ("numeric", "ordinal"))

    @property
    def categorical(self) -> tuple[Column, ...]:
        """Categories without an order, in table order."""
        return tuple(c for c in self.columns if c.kind == "categorical")

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for JSON; `from_dict` gives the same schema back."""
        plain = asdict(self)
        plain["columns"] = [{**column, "order": list(column["order"])} for column in plain["columns"]]
        if self.task == CLASSIFICATION:
            del plain["task"], plain["duration"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Schema:
        """Read the schema that `to_dict` wrote; anything else is refused."""
        try:
            columns = tuple(_column_from(c) for c in plain["columns"])
            roles = {role: plain[role] for role in ("label", "site", "patient", "time")}
            if roles["label"] is None or not all(isinstance(r, str | None) for r in roles.values()):
                raise TypeError("label, site, patient and time must be column names")
            task, duration = plain.get("task", CLASSIFICATION), plain.get("duration")
            if task not in TASKS or not isinstance(duration, str | None):
                raise TypeError("task must be a type of outcome, and duration a column name")
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"the schema is damaged ({error}); use the one that the run wrote", code="damaged-schema"
            ) from None
        return cls(columns=columns, **roles, task=task, duration=duration)


def infer_schema(
    table: Table,
    *,
    label: str,
    site: str | None = None,
    patient: str | None = None,
    time: str | None = None,
    drop: Sequence[str] = (),
    overrides: Mapping[str, str | Sequence[str]] | None = None,
    features: Sequence[str] = (),
    task: str = CLASSIFICATION,
    duration: str | None = None,
) -> Schema:
    """Infer the meaning of each column.

    A column with a role (label, site, patient, time, duration) or that is dropped keeps that role whatever the overrides say,
    so that one recipe serves for several labels.

    Args:
        table: The raw table.
        label: The column to predict.
        site: The column that names the hospital.
        patient: The column that names the patient.
        time: The column to order rows by.
        drop: Columns to leave out.
        overrides: Column -> its kind, or its levels from low to high.
        features: The only columns that may be features; empty: all.
        task: The type of the outcome (`data.outcome.settle_task`).
        duration: The column with the follow-up time, for survival.

    Raises:
        BadInput: A column is absent, has two roles or contradicts its kind, or no feature is left.
    """
    overrides = overrides or {}
    roles: dict[str, Column] = {}
    parts: tuple[tuple[str, str | None, Kind], ...] = (
        ("label", label, "drop"), ("site", site, "drop"), ("patient", patient, "id"), ("time", time, "drop"),
        ("follow-up time", duration, "drop"),
    )  # fmt: skip
    for part, name, kind in parts:
        if name is None:
            continue
        flag = {"time": "data.time", "follow-up time": "--time"}.get(part, f"--{part}")
        table.column(name, flag=flag)
        if name in roles:
            raise BadInput(
                f"column '{name}' of {table.source} is both {roles[name].why} and the {part}; "
                f"choose another column for one of them (use {flag})",
                code="conflicting-roles",
            )
        roles[name] = Column(name, kind, f"the {part}")
    for name in drop:
        table.column(name, flag="--drop")
        roles.setdefault(name, Column(name, "drop", "listed in data.drop"))
    for name in overrides:
        table.column(name, flag="data.kinds")
    for name in features:
        table.column(name, flag="--features")
        if name in roles:
            raise BadInput(
                f"column '{name}' of {table.source} is listed in data.features, but it is {roles[name].why}; "
                "list other features, or give that part to another column",
                code="conflicting-roles",
            )
    columns = []
    for name in table.names:
        if features and name not in roles and name not in features:
            columns.append(Column(name, "drop", "not listed in data.features"))
        elif name in roles:
            columns.append(roles[name])
        elif name in overrides:
            columns.append(_override(table, name=name, wanted=overrides[name]))
        else:
            columns.append(_infer(table, name=name))
    refused = next((c for c in columns if c.name in features and c.kind in ("id", "drop")), None)
    if refused is not None:
        raise BadInput(
            f"column '{refused.name}' of {table.source} is listed in data.features, but it is no feature ({refused.why}); "
            f'leave it out, or set data.kinds.{_toml_key(refused.name)} = "numeric" or "categorical"',
            code="not-a-feature",
        )
    schema = Schema(tuple(columns), label=label, site=site, patient=patient, time=time, task=task, duration=duration)
    if not schema.features:
        left_out = "; ".join(f"'{c.name}': {c.why}" for c in schema.columns[:8])
        raise BadInput(
            f"no column of {table.source} is left as a feature ({left_out}); "
            "drop fewer columns or say what they are in data.kinds",
            code="no-features",
        )
    return schema


def infer_column(table: Table, name: str) -> Column:
    """Infer the meaning of one column of a table by its name and content."""
    return _infer(table, name=name)


def _infer(table: Table, *, name: str) -> Column:
    """Infer one column by the rules."""
    values = table.columns[name]
    present = values[~missing_mask(values)]
    check_unambiguous(table, name)
    if len(present) == 0:
        return Column(name, "constant", "no value in any row")
    if values.dtype == np.float64:
        return _infer_number(present, name=name)
    return _infer_text(table, Counter(present.tolist()), name=name, rows=len(values))


def _infer_number(present: Array, *, name: str) -> Column:
    """Infer a column of numbers: measurements, unless there is one only, or they are row or patient numbers."""
    if (present == present[0]).all():
        return Column(name, "constant", f"one value only ({format_number(float(present[0]))})")
    with np.errstate(invalid="ignore"):
        integers = bool((present == np.floor(present)).all())
    if integers and _looks_like_id(name) and _mostly_distinct(distinct := len(np.unique(present)), len(present)):
        return Column(name, "id", f"{distinct} distinct numbers in {len(present)} rows, named like an id")
    return Column(name, "numeric", "numbers")


def _infer_text(table: Table, counts: Counter[str], *, name: str, rows: int) -> Column:
    """Infer a column of texts: categories, unless they are dates, identifiers or numbers gone wrong."""
    total = sum(counts.values())
    if len(counts) == 1:
        gaps = f", {rows - total} rows without" if rows > total else ""
        return Column(name, "constant", f"one value only ('{_shorten(next(iter(counts)))}'{gaps})")
    if sum(n for word, n in counts.items() if is_iso_date(word)) >= MOSTLY * total:
        return Column(name, "drop", "dates: name it as data.time, or turn it into a duration to use it")
    written = date_format(counts)
    if written:
        return Column(name, "drop", f"dates ({written}): name it as data.time, or turn it into a duration to use it")
    _refuse_almost_numbers(table, counts, name=name)
    if len(counts) > MANY and len(counts) > MOSTLY * total:
        return Column(name, "id", f"{len(counts)} distinct texts in {total} rows: identifier or free text")
    if _looks_like_id(name) and _mostly_distinct(len(counts), total):
        return Column(name, "id", f"{len(counts)} distinct texts in {total} rows, named like an id")
    return Column(name, "categorical", f"text with {len(counts)} distinct values")


def _refuse_almost_numbers(table: Table, counts: Counter[str], *, name: str) -> None:
    """Refuse text in a numeric column; codes with leading zeros show that text was meant."""
    total = sum(counts.values())
    if any(_LEADING_ZERO.fullmatch(word) for word in counts):
        return
    strange = {word for word in counts if not is_number(word)}
    formatted = strange - find_unreadable(strange)
    commas = {word for word in formatted if "," in word} if table.reading is None else set()
    bad = strange - (commas if table.reading is None else formatted)
    numbers = total - sum(counts[word] for word in bad)
    alternative = f'or set data.kinds.{_toml_key(name)} = "categorical"'
    if formatted and not bad and _mixes_percent(counts):
        signs = {word for word in formatted if word.endswith("%")}
        raise BadInput(
            f"column '{name}' of {table.source} has numbers with and without a percent sign, "
            f"first {_locate_first(table, signs, name=name)}; write all of them one way, {alternative}",
            code="mixed-percent",
        )
    if commas and numbers >= MOSTLY * total:
        raise BadInput(
            f"column '{name}' of {table.source} writes numbers with a comma, "
            f"first {_locate_first(table, commas, name=name)}; write 1.5 instead of 1,5, {alternative}",
            code="decimal-comma",
        )
    if bad and numbers >= MOSTLY * total:
        count = sum(counts[word] for word in bad)
        raise BadInput(
            f"text in a numeric column: {count} of {total} cells of '{name}' in {table.source} "
            f"{'is' if count == 1 else 'are'} not a number, first {_locate_first(table, bad, name=name)}; "
            f"fix the file, list it in data.missing (--missing WORD), {alternative}",
            code="text-in-numbers",
        )


def check_unambiguous(table: Table, name: str) -> None:
    """Refuse a column whose cells can be read in two ways, with the flag that settles it."""
    word = None if table.reading is None else table.reading.unclear.get(name)
    if word is not None:
        mark, other = (",", ".") if "," in word else (".", ",")
        as_thousands, as_decimal = word.replace(mark, ""), word.replace(",", ".")
        raise BadInput(
            f"column '{name}' of {table.source}: '{word}' can mean {as_thousands} or {as_decimal}, and the file does not "
            f"show which; say --decimal {other} for {as_thousands} or --decimal {mark} for {as_decimal}, "
            "or leave the column out with --drop",
            code="ambiguous-number",
        )


def _mixes_percent(counts: Mapping[str, int]) -> bool:
    """Tell whether some numbers have a percent sign and others have not; a bare zero is the same either way."""
    signs = [word.endswith("%") for word in counts if word.strip("0.,%")]
    return any(signs) and not all(signs)


def _override(table: Table, *, name: str, wanted: str | Sequence[str]) -> Column:
    """Take one column as the user says it is, if the data allow it."""
    values = table.columns[name]
    if not isinstance(wanted, str):
        return _order_levels(table, name=name, order=tuple(_format_level(level) for level in wanted))
    if wanted == "ordinal":
        return _order_levels(table, name=name, order=_natural_order(table, name=name))
    allowed = [kind for kind in KINDS if kind != "constant"]
    if wanted not in allowed:
        hint = nearest(wanted, allowed)
        raise BadInput(
            f"data.kinds.{_toml_key(name)} = '{wanted}' is not a kind of column; {hint}", code="unknown-kind"
        )
    if wanted == "numeric":
        check_unambiguous(table, name)
    if wanted == "numeric" and values.dtype == np.object_:
        bad = {v for v in values if v is not None and not (is_number(v) or _LEADING_ZERO.fullmatch(v))}
        if bad:
            raise BadInput(
                f"column '{name}' of {table.source} cannot be numeric: it holds text, "
                f"first {_locate_first(table, bad, name=name)}; list that in data.missing (--missing WORD), "
                f'or set data.kinds.{_toml_key(name)} = "categorical"',
                code="text-in-numbers",
            )
    return Column(name, cast(Kind, wanted), "set in data.kinds")


def _order_levels(table: Table, *, name: str, order: tuple[str, ...]) -> Column:
    """Order levels; every level in the data must have its place."""
    if len(order) < 2 or len(set(order)) < len(order):
        raise BadInput(
            f"data.kinds.{_toml_key(name)} must list two or more levels, each once, from low to high",
            code="invalid-levels",
        )
    absent = set(to_text(table.columns[name]).tolist()) - {None, *order}
    if absent:
        raise BadInput(
            f"column '{name}' of {table.source} holds a level that data.kinds.{_toml_key(name)} does not list, "
            f"first {_locate_first(table, absent, name=name)}; add it to the list in its place, low to high",
            code="unknown-level",
        )
    return Column(name, "ordinal", "levels set in data.kinds", order)


def _natural_order(table: Table, *, name: str) -> tuple[str, ...]:
    """Order numbers by size, or texts by the first number in each where that decides ("[10-20)")."""
    values = table.columns[name]
    if values.dtype == np.float64:
        return tuple(format_number(float(v)) for v in np.unique(values[~np.isnan(values)]))
    levels = sorted({v for v in values if v is not None})
    matches = [_FIRST_NUMBER.search(level) for level in levels]
    keys = [float(match.group()) for match in matches if match]
    if len(set(keys)) < len(levels):
        raise BadInput(
            f"the order of column '{name}' of {table.source} is not clear; "
            f"list its levels, low to high: data.kinds.{_toml_key(name)} = [{', '.join(map(repr, levels))[:80]}]",
            code="unclear-order",
        )
    return tuple(level for _, level in sorted(zip(keys, levels, strict=True)))


def _mostly_distinct(distinct: int, total: int) -> bool:
    """Tell whether no two are alike, or so few that only patients who come back can explain it."""
    return distinct == total or distinct > max(MANY, total / 4)


def _looks_like_id(name: str) -> bool:
    word = name.strip().lower()
    return _ID_NAME.fullmatch(word) is not None and _NOT_ID.fullmatch(word) is None


def _locate_first(table: Table, words: set[str], *, name: str) -> str:
    """Find the first row with one of the words, as "'x' in row 7 (the header is row 1)"."""
    words_here = to_text(table.columns[name])
    index = next(i for i, word in enumerate(words_here) if word in words)
    return f"'{_shorten(words_here[index])}' in {table.where(index)}"


def _format_level(value: object) -> str:
    """Write a level that the user gave in TOML: text, or a number."""
    return format_number(value) if isinstance(value, float) else str(value)


def _shorten(word: str) -> str:
    return word if len(word) <= 20 else word[:20] + "..."


def _toml_key(name: str) -> str:
    """Write a column name as a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else '"' + name.replace('"', '\\"') + '"'


def _column_from(plain: Mapping[str, Any]) -> Column:
    if plain["kind"] not in KINDS:
        raise ValueError(f"unknown kind {plain['kind']!r}")
    order = tuple(str(level) for level in plain["order"])
    return Column(str(plain["name"]), plain["kind"], str(plain["why"]), order)
