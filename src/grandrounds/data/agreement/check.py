"""Checks of a site's data against the agreed schema, as a list of findings for the site's own people before it joins.

The text of a finding may name values, so it stays at the site. Only `codes` may leave: fixed words, and names of columns that
the consortium's own schema has. For images, brightness takes the place of units: the mean brightness of each image is compared
with the agreed quantiles, in deviations of the consortium (`units.distance`), as it is and as it would be of the negative.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.images import MASKS, USUAL, Held, held, is_pictures, read_own
from grandrounds.data.agreement.schema import WHITE, Agreed, AgreedColumn, DataSchema, PictureSchema
from grandrounds.data.agreement.units import CERTAIN, CLOSE, FAR, FEWEST, SAMPLING, distance, suspect_unit
from grandrounds.data.formats import Format
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import DARK, ImageSet, mask_notes, size_text
from grandrounds.data.readers import read_table
from grandrounds.data.schema import refuse_unclear
from grandrounds.data.table import Table, is_number, missing_mask, text_of

Level = Literal["error", "warning"]
Where = Callable[[int], str]

MISSING_COLUMN, EXTRA_COLUMN, NOT_A_NUMBER = "missing-column", "extra-column", "not-a-number"
UNKNOWN_VALUE, LABEL_VALUES, ONE_CLASS = "unknown-value", "label-values", "one-class"
NO_LABEL, NO_PATIENT = "no-label", "no-patient"
ALL_MISSING, MOSTLY_MISSING, OUT_OF_RANGE = "all-missing", "mostly-missing", "out-of-range"
REPEATED_ROWS, REPEATED_PATIENTS, TOO_FEW_ROWS = "repeated-rows", "repeated-patients", "too-few-rows"
UNITS, UNREADABLE = "units", "unreadable"

MOSTLY = 0.5
"""Share of missing values that is told."""

_SHOWN = 5  # values named in a finding


@dataclass(frozen=True)
class Finding:
    """One thing that differs. `column` is empty where it concerns the table."""

    level: Level
    code: str
    column: str
    what: str

    def __str__(self) -> str:
        return f"{self.level}: {self.column + ': ' if self.column else ''}{self.what}"


def check_table(table: Table, schema: DataSchema) -> list[Finding]:
    """Everything that differs, errors first. No error means that the table is read as a run will read it."""
    found = [*_names(table, schema), *_rows(table, schema)]
    for column in schema.columns:
        if column.name in table.columns:
            found += _column(table, column)
    found += label_findings(table, schema)
    if not fits(found):
        return ordered(found)
    try:
        schema.dataset(table, name=table.source)
    except BadInput as e:  # a rule of the readers that is not told above
        found.append(Finding("error", UNREADABLE, "", str(e)))
    return ordered(found)


def fits(findings: Iterable[Finding]) -> bool:
    """Whether there is no error among them."""
    return all(f.level != "error" for f in findings)


def codes(findings: Iterable[Finding], schema: Agreed) -> list[dict[str, str]]:
    """What may leave the site: level, code and the agreed column's name; nothing that stands in the table."""
    known = set(schema.names)
    told = {(f.level, f.code, f.column if f.column in known else "") for f in findings}
    return [{"level": level, "code": code, "column": column} for level, code, column in sorted(told)]


def ordered(found: Sequence[Finding]) -> list[Finding]:
    """Errors first."""
    return sorted(found, key=lambda f: f.level != "error")


def _names(table: Table, schema: DataSchema) -> Iterator[Finding]:
    lost = [name for name in schema.names if name not in table.columns]
    extra = [name for name in table.names if name not in schema.names]
    lower = {name.lower(): name for name in reversed(extra)}
    for name in lost:
        close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
        hint = f"; is it '{lower[close[0]]}'? rename it" if close else f"; the table has {listed(table.names)}"
        yield Finding("error", MISSING_COLUMN, name, f"the table has no such column{hint}")
    if extra:
        yield Finding(
            "warning", EXTRA_COLUMN, "", f"{counted(len(extra), 'column')} not agreed on, left out: {listed(extra)}"
        )


def _rows(table: Table, schema: DataSchema) -> Iterator[Finding]:
    yield from few_findings(len(table), schema.fewest_rows, "row")
    held = [table.columns[name] for name in schema.names if name in table.columns]
    if len(held) == len(schema.names):
        again = len(table) - _distinct(held)
        if again:
            what = f"{counted(again, 'row')} the same as another in every agreed column: remove copies"
            yield Finding("warning", REPEATED_ROWS, "", what)
    if schema.patient is not None and schema.patient in table.columns:
        yield from patient_findings(table, schema.patient)
        yield from _returning(table, schema.patient)


def _distinct(columns: Sequence[Array]) -> int:
    """How many rows differ: the rows are numbered anew with each column, so memory is one column's."""
    key = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        if values.dtype == np.object_:
            number = {word: i for i, word in enumerate(dict.fromkeys(values.tolist()))}
            own = np.fromiter(map(number.__getitem__, values), np.int64, len(values))
        else:
            own = np.unique(values, return_inverse=True)[1]
        key = np.unique(key * (own.max(initial=0) + 1) + own, return_inverse=True)[1]
    return int(key.max(initial=-1)) + 1


def few_findings(count: int, fewest: int, what: str) -> Iterator[Finding]:
    """Whether there are enough of them to take part."""
    if count < fewest:
        yield Finding("error", TOO_FEW_ROWS, "", f"{counted(count, what)}; a site needs {fewest} to take part")


def patient_findings(table: Table, name: str, *, unit: str = "row", where: Where | None = None) -> Iterator[Finding]:
    """Rows that name no patient: they could be on both sides of a split."""
    gaps = missing_mask(table.columns[name])
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        what = f"{counted(int(gaps.sum()), unit)} without a patient, first {first}: fill it in"
        yield Finding("error", NO_PATIENT, name, what)


def _returning(table: Table, name: str) -> Iterator[Finding]:
    values = table.columns[name]
    often = [n for n in Counter(text_of(values)[~missing_mask(values)].tolist()).values() if n > 1]
    if often:
        what = f"{counted(len(often), 'patient')} with more than one row ({max(often)} at most): right only if patients return"
        yield Finding("warning", REPEATED_PATIENTS, name, what)


def label_findings(table: Table, schema: Agreed, *, unit: str = "row", where: Where | None = None) -> Iterator[Finding]:
    """Labels that are missing, none of the agreed classes, or all the same. `where`: names a row to people."""
    if schema.label not in table.columns:
        return
    values = table.columns[schema.label]
    gaps = missing_mask(values)
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        what = f"{counted(int(gaps.sum()), unit)} without a label, first {first}: leave them out"
        yield Finding("error", NO_LABEL, schema.label, what)
    counts = Counter(text_of(values)[~gaps].tolist())
    classes = schema.classes or ()
    odd = {word: n for word, n in counts.items() if classes and word not in classes}
    if odd:
        what = f"{_cells(odd)} not among the agreed classes {listed(classes)}"
        yield Finding("error", LABEL_VALUES, schema.label, what)
    elif schema.positive is not None and not classes and schema.positive not in counts and len(counts) > 1:
        what = f"no {unit} says '{schema.positive}', the agreed event; it says {listed(sorted(counts))}"
        yield Finding("error", LABEL_VALUES, schema.label, what)
    elif len(counts) == 1:
        what = f"every {unit} says '{next(iter(counts))}': a site needs patients of two classes to take part"
        yield Finding("error", ONE_CLASS, schema.label, what)


def _column(table: Table, column: AgreedColumn) -> Iterator[Finding]:
    values = table.columns[column.name]
    gaps = missing_mask(values)
    share = float(gaps.mean()) if len(values) else 0.0
    if share == 1:
        yield Finding("warning", ALL_MISSING, column.name, "no value in any row")
        return
    if share > MOSTLY:
        yield Finding("warning", MOSTLY_MISSING, column.name, f"{share:.0%} of the rows have no value")
    if column.numeric:
        try:
            refuse_unclear(table, column.name)
        except BadInput as e:
            yield Finding("error", NOT_A_NUMBER, column.name, str(e))
            return
        yield from _number(table, column, values[~gaps])
    elif column.values:
        yield from _category(column, text_of(values)[~gaps])


def _number(table: Table, column: AgreedColumn, present: Array) -> Iterator[Finding]:
    if present.dtype == np.object_:
        words = Counter(w for w in present.tolist() if not _readable(w))
        if words:
            what = f"{_cells(words)} no number: write one, or list the word in the agreed marks for missing"
            yield Finding("error", NOT_A_NUMBER, column.name, what)
            return
        present = np.array([float(w) for w in present])
    if column.kind == "binary":
        yield from _category(column, text_of(present))
        return
    found = suspect_unit(column, present)
    if found is not None:
        c = found.conversion
        here, agreed = c.of
        what = (
            f"looks like {here} where {column.unit or agreed} is agreed ({c.measure}; its median is {found.median:.4g}, "
            f"the consortium's {found.agreed:.4g}): {c}"
        )
        yield Finding("error" if found.certain else "warning", UNITS, column.name, what)
    if column.range is not None and (found is None or not found.certain):
        low, high = column.range
        out = (present < low) | (present > high)
        if out.any():
            first = f"{float(present[out][0]):.6g}"
            told = f"{int(out.sum())} of {counted(len(present), 'value')} outside what is possible"
            what = f"{told}, {low:g} to {high:g}, first {first}"
            yield Finding("error" if out.mean() > MOSTLY else "warning", OUT_OF_RANGE, column.name, what)


def _category(column: AgreedColumn, words: Array) -> Iterator[Finding]:
    """An ordinal level without a place cannot be read; a category that nobody agreed on is `other` to the model."""
    odd = Counter(w for w in words.tolist() if w not in column.values)
    if not odd:
        return
    what = f"{_cells(odd)} not among the agreed values {listed(column.values)}"
    lower = {v.lower().strip(): v for v in column.values}
    alike = [(w, lower[w.lower().strip()]) for w in odd if w.lower().strip() in lower]
    if alike:
        what += f"; write '{alike[0][1]}' for '{alike[0][0]}'"
    wrong = column.kind in ("ordinal", "binary") or 2 * sum(odd.values()) > len(words)
    yield Finding("error" if wrong else "warning", UNKNOWN_VALUE, column.name, what)


def _readable(word: str) -> bool:
    """As the readers take a number: "007" is one where a number is agreed."""
    return is_number(word) or is_number(word.lstrip("+-0") or "0")


def _cells(counts: Counter[str] | dict[str, int]) -> str:
    """ "3 cells ('x' 2, 'y' 1) are" """
    total = sum(counts.values())
    first = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    named = ", ".join(f"'{word[:20]}' {n}" for word, n in first)
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return f"{counted(total, 'cell')} ({named}{more}) {'is' if total == 1 else 'are'}"


def listed(names: Sequence[str]) -> str:
    """The first ten names in quotes, and how many there are."""
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return ", ".join(f"'{n}'" for n in names[:10]) + more


def counted(n: int, word: str) -> str:
    """So many of them, in words."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """All of it, for the site's own tools."""
    return [{"level": f.level, "code": f.code, "column": f.column, "what": f.what} for f in findings]


NO_PICTURES, SIZE, CHANNELS, PIXEL_VALUES = "no-pictures", "size", "channels", "pixel-values"
NO_MASKS, MASK_VALUES, BRIGHTNESS, BLACK = "no-masks", "masks", "brightness", "black"

_BLOCK = 1 << 24  # values at a time, to bound memory


def check_images(held: Held, agreed: PictureSchema) -> list[Finding]:
    """Everything that differs, errors first. No error means that the pictures are read as a run will read them."""
    found = [*few_findings(held.count, agreed.fewest_rows, "picture"), *_told(held, agreed)]
    if held.fault:
        found += [Finding("error", UNREADABLE, "", held.fault)] if fits(found) else []
        return ordered(found)
    found += _pictures(held, agreed)
    if fits(found):
        try:
            read_own(held.source, agreed)
        except BadInput as e:  # a rule of the readers that is not told above
            found.append(Finding("error", UNREADABLE, "", str(e)))
    return ordered(found)


def _told(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    """What is told of each picture: its label and its patient."""
    for name in agreed.names:
        if name not in held.told.columns:
            yield Finding("error", MISSING_COLUMN, name, f"{held.source} has no such array or column; add it")
    yield from label_findings(held.told, agreed, unit="picture", where=held.where)
    if agreed.patient is not None and agreed.patient in held.told.columns:
        yield from patient_findings(held.told, agreed.patient, unit="picture", where=held.where)
    if held.unasked:
        what = (
            f"'{held.unasked}' names patients, which is not agreed on: pictures of one may be on both sides of a split"
        )
        yield Finding("warning", EXTRA_COLUMN, "", what)


def _pictures(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    images = held.images
    if images is None:
        yield Finding("error", NO_PICTURES, "", f"no array is called {' or '.join(USUAL['images'])}; name it so")
        return
    if images.ndim not in (3, 4) or images.dtype.kind not in "iuf" or not images.size:
        return  # what the reader says of it is told
    yield from _form(images, agreed)
    wrong = list(_values(held, images))
    yield from wrong
    yield from _masks(held, agreed)
    if not wrong:
        yield from _looks(images, agreed)


def _form(images: Array, agreed: PictureSchema) -> Iterator[Finding]:
    """Another size, or other channels; RGBA is read as RGB."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    channels = 3 if channels == 4 else channels
    if images.ndim == 4 and images.shape[1:] == agreed.shape:
        what = f"the channels come first (shape {images.shape}): move them last, (n, height, width, channels)"
        yield Finding("error", SIZE, "", what)
        return
    if tuple(images.shape[1:3]) != agreed.size:
        what = (
            f"pictures are {size_text(images.shape[1:3])} (height x width) where {size_text(agreed.size)} is agreed: "
            "bring them to that size"
        )
        yield Finding("error", SIZE, "", what)
    if channels != agreed.channels:
        way = "make them grey" if agreed.channels == 1 else "save them in colour"
        what = f"{counted(channels, 'channel')} where {agreed.channels} {'is' if agreed.channels == 1 else 'are'} agreed: {way}"
        yield Finding("error", CHANNELS, "", what)


def _values(held: Held, images: Array) -> Iterator[Finding]:
    """Whole numbers from 0 to 255, or floats from 0 to 1; a CT's or a 12-bit export's are neither."""
    most = 1 if images.dtype.kind == "f" else 255
    broken = np.zeros(len(images), bool)
    low, high = np.inf, -np.inf
    for rows in _blocks(images):
        part = images[rows]
        broken[rows] = ~np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    if broken.any():
        what = f"{counted(int(broken.sum()), 'picture')} with NaN or infinite values, first {held.where(int(broken.argmax()))}"
        yield Finding("error", PIXEL_VALUES, "", f"{what}: mend them or leave them out")
    elif low < 0 or high > most:
        way = "scale them to whole numbers from 0 to 255, or floats from 0 to 1"
        yield Finding("error", PIXEL_VALUES, "", f"values run from {low:g} to {high:g}: {way}")


def _masks(held: Held, agreed: PictureSchema) -> Iterator[Finding]:
    if held.masks is None:
        if agreed.masks:
            what = f"no truth masks, and every picture is to have one: add an array or a folder '{MASKS}'"
            yield Finding("error", NO_MASKS, "", what)
        return
    if held.masks.dtype == np.bool_ and held.masks.ndim == 3:
        yield from (
            Finding("warning", MASK_VALUES, "", f"{note}: left out of every score") for note in mask_notes(held.masks)
        )


def _looks(images: Array, agreed: PictureSchema) -> Iterator[Finding]:
    """Black pictures, copies, and brightness unlike the consortium's."""
    light, highest = brightness(images)
    black = int((highest < DARK).sum())
    if 0 < black < len(images):
        yield Finding("warning", BLACK, "", f"{black} of {counted(len(images), 'picture')} black: they show nothing")
    again = len(images) - len({hashlib.blake2b(np.ascontiguousarray(one).tobytes()).digest() for one in images})
    if again:
        yield Finding("warning", REPEATED_ROWS, "", f"{counted(again, 'picture')} the same as another: remove copies")
    if agreed.brightness and len(light) >= FEWEST and black < len(images):
        yield from brightness_findings(light, agreed.brightness)


def brightness_findings(light: Array, quantiles: tuple[float, ...]) -> Iterator[Finding]:
    """The thresholds are those of units: far from 1 deviation on, refused from 2.5 on."""
    spare = SAMPLING / np.sqrt(len(light))
    before, negative = distance(quantiles, light), distance(quantiles, WHITE - light)
    if before < FAR + spare:
        return
    middle = float(np.median(light))
    what = (
        f"pictures are much {'darker' if middle < quantiles[2] else 'brighter'} than agreed (the median of their brightness is "
        f"{middle:.4g}, the consortium's {quantiles[2]:.4g})"
    )
    fitting = negative <= min(max(CLOSE + spare, before / 5), before / 2)
    way = (
        "; their negatives would fit: were black and white exchanged?"
        if fitting
        else ": look at how they were exported"
    )
    yield Finding("error" if before >= CERTAIN + spare else "warning", BRIGHTNESS, "", f"{what}{way}")


def brightness(images: Array) -> tuple[Array, Array]:
    """Mean and highest value (n,) of each picture, from 0 to 255."""
    scale = WHITE if images.dtype.kind == "f" else 1.0
    mean, high = np.empty(len(images)), np.empty(len(images))
    axes = tuple(range(1, images.ndim))
    for rows in _blocks(images):
        mean[rows] = images[rows].mean(axis=axes, dtype=np.float64) * scale
        high[rows] = images[rows].max(axis=axes) * scale
    return mean, high


def _blocks(images: Array) -> list[slice]:
    step = max(1, _BLOCK // max(1, int(np.prod(images.shape[1:]))))
    return [slice(at, at + step) for at in range(0, len(images), step)]


AUTOMATIC = Format()
"""A file shows by itself how it is written."""


@dataclass(frozen=True)
class Examined:
    """How many rows or pictures a site has, and what of them differs from what was agreed."""

    rows: int
    findings: list[Finding]
    assumed: tuple[str, ...] = ()  # to read the file: one sentence each


def examine_data(agreed: Agreed, data: str, *, query: str | None = None, form: Format = AUTOMATIC) -> Examined:
    """What differs, as a list; only what cannot be read at all is refused."""
    if isinstance(agreed, PictureSchema):
        pictures = held(data, agreed)
        return Examined(pictures.count, check_images(pictures, agreed))
    table = _table(data, query, agreed, form)
    assumed = () if table.reading is None else table.reading.notes
    return Examined(len(table), check_table(table, agreed), assumed)


def read_rows(
    agreed: Agreed | None, data: str, *, query: str | None = None, form: Format = AUTOMATIC
) -> Table | ImageSet:
    """The rows or pictures themselves, raw; the first fault is refused."""
    if isinstance(agreed, PictureSchema):
        if not is_pictures(data):
            raise BadInput(f"{data} holds no pictures, which the consortium agreed on", code="no-images")
        return read_own(data, agreed)
    if agreed is None:
        return read_npz(data) if is_pictures(data) else read_table(data, query=query, form=form)
    return _table(data, query, agreed, form)


def _table(data: str, query: str | None, agreed: DataSchema, form: Format) -> Table:
    if is_pictures(data):
        raise BadInput(
            f"{data} holds pictures, and the consortium agreed on a table: give a .csv or .parquet file",
            code="expected-table",
        )
    keep = [name for name in (agreed.label, agreed.patient) if name is not None]
    return read_table(data, query=query, missing=agreed.missing, form=form, kinds=agreed.kinds(), keep=keep)
