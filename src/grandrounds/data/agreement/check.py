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
from pathlib import Path
from typing import Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.agreement.images import (
    MASKS,
    USUAL,
    SiteImages,
    inspect_images,
    is_image_source,
    read_site_images,
)
from grandrounds.data.agreement.schema import WHITE, AgreedColumn, AgreedSchema, DataSchema, ImageSchema
from grandrounds.data.agreement.units import CERTAIN, CLOSE, FAR, FEWEST, SAMPLING, distance, suspect_unit
from grandrounds.data.formats import Format
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import DARK, ImageSet, mask_notes, size_text
from grandrounds.data.readers import find_reader, read_table
from grandrounds.data.schema import check_unambiguous
from grandrounds.data.table import Table, is_number, missing_mask, to_text

Level = Literal["error", "warning"]
Where = Callable[[int], str]

MISSING_COLUMN, EXTRA_COLUMN, NOT_A_NUMBER = "missing-column", "extra-column", "not-a-number"
UNKNOWN_VALUE, LABEL_VALUES, ONE_CLASS = "unknown-value", "label-values", "one-class"
NO_LABEL, NO_PATIENT = "no-label", "no-patient"
ALL_MISSING, MOSTLY_MISSING, OUT_OF_RANGE = "all-missing", "mostly-missing", "out-of-range"
REPEATED_ROWS, REPEATED_PATIENTS, TOO_FEW_ROWS = "repeated-rows", "repeated-patients", "too-few-rows"
UNITS, UNREADABLE = "units", "unreadable"

MOSTLY = 0.5
"""Share of missing values from which a column is reported."""

BEYOND = 0.3
"""Share of missing values above the agreed one that hospitals have anyway: not all of them order every test."""

_NEW = 0.05  # share of cells with a level nobody agreed on, above the agreed share, that hospitals have anyway
_MANY = 0.002  # the same for each agreed level: a column of many levels has a long tail
_SHOWN = 5  # values named in a finding


@dataclass(frozen=True)
class Finding:
    """One thing that differs. `column` is empty where it concerns the table."""

    level: Level
    code: str
    column: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.column + ': ' if self.column else ''}{self.text}"


def check_table(table: Table, schema: DataSchema) -> list[Finding]:
    """List everything in a table that differs from the agreed schema, errors first.

    Args:
        table: The site's table.
        schema: The agreed schema.

    Returns:
        The findings; no error among them means that the table is read as a run will read it.
    """
    findings = [*_check_names(table, schema), *_check_rows(table, schema)]
    for column in schema.columns:
        if column.name in table.columns:
            findings += _check_column(table, column)
    findings += check_labels(table, schema)
    if not has_no_errors(findings):
        return put_errors_first(findings)
    try:
        schema.dataset(table, name=table.source)
    except BadInput as e:  # a rule of the readers that is not told above
        findings.append(Finding("error", UNREADABLE, "", str(e)))
    return put_errors_first(findings)


def has_no_errors(findings: Iterable[Finding]) -> bool:
    """Tell whether no finding is an error."""
    return all(f.level != "error" for f in findings)


def shareable_codes(findings: Iterable[Finding], schema: AgreedSchema) -> list[dict[str, str]]:
    """Reduce findings to what may leave the site: level, code and the agreed column's name, no cell of the table."""
    agreed_names = {*schema.names, *(schema.date_names if isinstance(schema, DataSchema) else ())}
    triples = {(f.level, f.code, f.column if f.column in agreed_names else "") for f in findings}
    return [{"level": level, "code": code, "column": column} for level, code, column in sorted(triples)]


def put_errors_first(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings so that errors come first."""
    return sorted(findings, key=lambda f: f.level != "error")


def _check_names(table: Table, schema: DataSchema) -> Iterator[Finding]:
    lost = [name for name in schema.names if name not in table.columns]
    extra = [name for name in table.names if name not in schema.names and name not in schema.date_names]
    lower = {name.lower(): name for name in reversed(extra)}
    for name in lost:
        close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
        hint = f"; is it '{lower[close[0]]}'? rename it" if close else f"; the table has {quote_names(table.names)}"
        yield Finding("error", MISSING_COLUMN, name, f"the table has no such column{hint}")
    if extra:
        yield Finding(
            "warning",
            EXTRA_COLUMN,
            "",
            f"{format_count(len(extra), 'column')} not agreed on, left out: {quote_names(extra)}",
        )


def _check_rows(table: Table, schema: DataSchema) -> Iterator[Finding]:
    yield from check_count(len(table), schema.fewest_rows, "row")
    again = count_copies(table, schema)
    if again:
        text = f"{format_count(again, 'row')} the same as another in every agreed column: remove copies"
        yield Finding("warning", REPEATED_ROWS, "", text)
    if schema.patient is not None and schema.patient in table.columns:
        yield from check_patients(table, schema.patient)
        if schema.repeated_share is None:  # `quality` compares with the agreed share
            yield from _check_returning_patients(table, schema.patient)


def count_copies(table: Table, schema: DataSchema) -> int:
    """Count rows that are the same as an earlier one in every agreed column; 0 where the table lacks one of them."""
    agreed_columns = [table.columns[name] for name in schema.names if name in table.columns]
    return len(table) - _count_distinct(agreed_columns) if len(agreed_columns) == len(schema.names) else 0


def _count_distinct(columns: Sequence[Array]) -> int:
    """Count the rows that differ; rows are numbered anew with each column, so memory is one column's."""
    key = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        if values.dtype == np.object_:
            number = {word: i for i, word in enumerate(dict.fromkeys(values.tolist()))}
            column_key = np.fromiter(map(number.__getitem__, values), np.int64, len(values))
        else:
            column_key = np.unique(values, return_inverse=True)[1]
        key = np.unique(key * (column_key.max(initial=0) + 1) + column_key, return_inverse=True)[1]
    return int(key.max(initial=-1)) + 1


def check_count(count: int, fewest: int, noun: str) -> Iterator[Finding]:
    """Find a site with too few rows or images to take part."""
    if count < fewest:
        yield Finding("error", TOO_FEW_ROWS, "", f"{format_count(count, noun)}; a site needs {fewest} to take part")


def check_patients(table: Table, name: str, *, unit: str = "row", where: Where | None = None) -> Iterator[Finding]:
    """Find rows that name no patient: they could be on both sides of a split."""
    gaps = missing_mask(table.columns[name])
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        text = f"{format_count(int(gaps.sum()), unit)} without a patient, first {first}: fill it in"
        yield Finding("error", NO_PATIENT, name, text)


def _check_returning_patients(table: Table, name: str) -> Iterator[Finding]:
    values = table.columns[name]
    often = [n for n in Counter(to_text(values)[~missing_mask(values)].tolist()).values() if n > 1]
    if often:
        patients = format_count(len(often), "patient")
        text = f"{patients} with more than one row ({max(often)} at most): right only if patients return"
        yield Finding("warning", REPEATED_PATIENTS, name, text)


def check_labels(
    table: Table, schema: AgreedSchema, *, unit: str = "row", where: Where | None = None
) -> Iterator[Finding]:
    """Find labels that are missing, none of the agreed classes, or all the same; `where` names a row to people."""
    if schema.label not in table.columns:
        return
    values = table.columns[schema.label]
    gaps = missing_mask(values)
    if gaps.any():
        first = (where or table.where)(int(gaps.argmax()))
        text = f"{format_count(int(gaps.sum()), unit)} without a label, first {first}: leave them out"
        yield Finding("error", NO_LABEL, schema.label, text)
    counts = Counter(to_text(values)[~gaps].tolist())
    classes = schema.classes or ()
    if getattr(schema, "task", CLASSIFICATION) != CLASSIFICATION:  # numbers and times are checked as they are read
        return
    odd = {word: n for word, n in counts.items() if classes and word not in classes}
    if odd:
        text = f"{_describe_cells(odd)} not among the agreed classes {quote_names(classes)}"
        yield Finding("error", LABEL_VALUES, schema.label, text)
    elif schema.positive is not None and not classes and schema.positive not in counts and len(counts) > 1:
        text = f"no {unit} says '{schema.positive}', the agreed event; it says {quote_names(sorted(counts))}"
        yield Finding("error", LABEL_VALUES, schema.label, text)
    elif len(counts) == 1:
        text = f"every {unit} says '{next(iter(counts))}': a site needs patients of two classes to take part"
        yield Finding("error", ONE_CLASS, schema.label, text)


def _check_column(table: Table, column: AgreedColumn) -> Iterator[Finding]:
    values = table.columns[column.name]
    gaps = missing_mask(values)
    share = float(gaps.mean()) if len(values) else 0.0
    usual = column.missing_share or 0.0
    if share == 1:
        if usual < MOSTLY:
            yield Finding("warning", ALL_MISSING, column.name, "no value in any row")
        return
    if share > MOSTLY and share > usual + BEYOND:
        yield Finding("warning", MOSTLY_MISSING, column.name, f"{share:.0%} of the rows have no value")
    if column.numeric:
        try:
            check_unambiguous(table, column.name)
        except BadInput as e:
            yield Finding("error", NOT_A_NUMBER, column.name, str(e))
            return
        yield from _check_number(table, column, values[~gaps])
    elif column.values:
        yield from _check_category(column, to_text(values)[~gaps])


def _check_number(table: Table, column: AgreedColumn, present: Array) -> Iterator[Finding]:
    if present.dtype == np.object_:
        words = Counter(w for w in present.tolist() if not _is_readable_number(w))
        if words:
            text = f"{_describe_cells(words)} no number: write one, or list the word in the agreed marks for missing"
            yield Finding("error", NOT_A_NUMBER, column.name, text)
            return
        present = np.array([float(w) for w in present])
    if column.kind == "binary":
        yield from _check_category(column, to_text(present))
        return
    suspicion = suspect_unit(column, present)
    if suspicion is not None:
        c = suspicion.conversion
        site_unit, agreed = c.units
        text = (
            f"looks like {site_unit} where {column.unit or agreed} is agreed ({c.measure}; its median is {suspicion.median:.4g}, "
            f"the consortium's {suspicion.agreed:.4g}): {c}"
        )
        yield Finding("error" if suspicion.certain else "warning", UNITS, column.name, text)
    if column.range is not None and (suspicion is None or not suspicion.certain):
        low, high = column.range
        out = (present < low) | (present > high)
        if out.any():
            first = f"{float(present[out][0]):.6g}"
            counts = f"{int(out.sum())} of {format_count(len(present), 'value')} outside what is possible"
            text = f"{counts}, {low:g} to {high:g}, first {first}"
            yield Finding("error" if out.mean() > MOSTLY else "warning", OUT_OF_RANGE, column.name, text)


def _check_category(column: AgreedColumn, words: Array) -> Iterator[Finding]:
    """Find values nobody agreed on; an ordinal level without a place is an error, a category reads as `other`."""
    odd = Counter(w for w in words.tolist() if w not in column.values)
    if not odd:
        return
    if column.kind == "category" and column.shares:  # rare levels are left out of a draft
        usual = max(0.0, 1 - sum(column.shares))
        if sum(odd.values()) <= (usual + _NEW + _MANY * len(column.values)) * len(words):
            return
    text = f"{_describe_cells(odd)} not among the agreed values {quote_names(column.values)}"
    lower = {v.lower().strip(): v for v in column.values}
    alike = [(w, lower[w.lower().strip()]) for w in odd if w.lower().strip() in lower]
    if alike:
        text += f"; write '{alike[0][1]}' for '{alike[0][0]}'"
    wrong = column.kind in ("ordinal", "binary") or 2 * sum(odd.values()) > len(words)
    yield Finding("error" if wrong else "warning", UNKNOWN_VALUE, column.name, text)


def _is_readable_number(word: str) -> bool:
    """Tell whether the readers take a cell as a number: "007" is one where a number is agreed."""
    return is_number(word) or is_number(word.lstrip("+-0") or "0")


def _describe_cells(counts: Counter[str] | dict[str, int]) -> str:
    """Describe cells as "3 cells ('x' 2, 'y' 1) are"."""
    total = sum(counts.values())
    first = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    named = ", ".join(f"'{word[:20]}' {n}" for word, n in first)
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return f"{format_count(total, 'cell')} ({named}{more}) {'is' if total == 1 else 'are'}"


def quote_names(names: Sequence[str]) -> str:
    """List the first ten names in quotes, and how many there are."""
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return ", ".join(f"'{n}'" for n in names[:10]) + more


def format_count(n: int, word: str) -> str:
    """Format a count with its noun: "1 row", "3 rows"."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def findings_to_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Convert findings to plain values, for the site's own tools."""
    return [{"level": f.level, "code": f.code, "column": f.column, "what": f.text} for f in findings]


NO_PICTURES, SIZE, CHANNELS, PIXEL_VALUES = "no-pictures", "size", "channels", "pixel-values"
NO_MASKS, MASK_VALUES, BRIGHTNESS, BLACK = "no-masks", "masks", "brightness", "black"

_BLOCK = 1 << 24  # values at a time, to bound memory


def check_images(content: SiteImages, agreed: ImageSchema) -> list[Finding]:
    """List everything in a site's images that differs from the agreed schema, errors first.

    Args:
        content: The site's images.
        agreed: The agreed schema.

    Returns:
        The findings; no error among them means that the images are read as a run will read them.
    """
    findings = [*check_count(content.count, agreed.fewest_rows, "image"), *_check_image_columns(content, agreed)]
    findings += [Finding("error" if f.level == "error" else "warning", f.code, "", f.text) for f in content.scans or ()]
    if content.fault:
        findings += [Finding("error", UNREADABLE, "", content.fault)] if has_no_errors(findings) else []
        return put_errors_first(findings)
    findings += _check_image_array(content, agreed)
    if content.scans is not None:  # every one was read already
        return put_errors_first(findings)
    if has_no_errors(findings):
        try:
            read_site_images(content.source, agreed)
        except BadInput as e:  # a rule of the readers that is not told above
            findings.append(Finding("error", UNREADABLE, "", str(e)))
    return put_errors_first(findings)


def _check_image_columns(content: SiteImages, agreed: ImageSchema) -> Iterator[Finding]:
    """Check the label and the patient of each image."""
    for name in agreed.names:
        if name not in content.columns.columns:
            yield Finding("error", MISSING_COLUMN, name, f"{content.source} has no such array or column; add it")
    yield from check_labels(content.columns, agreed, unit="image", where=content.where)
    if agreed.patient is not None and agreed.patient in content.columns.columns:
        yield from check_patients(content.columns, agreed.patient, unit="image", where=content.where)
        if content.scans is not None:
            yield from _check_returning_patients(content.columns, agreed.patient)
    elif content.scans is not None and agreed.patient is None:
        text = "no column of patients is agreed on, which scans need: add patient = \"patient\" to [data]"
        yield Finding("error", NO_PATIENT, "", text)
    if content.unagreed_patient:
        text = (
            f"'{content.unagreed_patient}' names patients, which is not agreed on: "
            "images of one patient may be on both sides of a split"
        )
        yield Finding("warning", EXTRA_COLUMN, "", text)


def _check_image_array(content: SiteImages, agreed: ImageSchema) -> Iterator[Finding]:
    images = content.images
    if images is None and content.scans is not None:
        return
    if images is None:
        yield Finding("error", NO_PICTURES, "", f"no array is called {' or '.join(USUAL['images'])}; name it so")
        return
    if images.ndim not in (3, 4) or images.dtype.kind not in "iuf" or not images.size:
        return  # the reader reports the error
    yield from _check_image_shape(images, agreed)
    wrong = list(_check_pixels(content, images))
    yield from wrong
    yield from _check_masks(content, agreed)
    if not wrong:
        yield from _check_appearance(images, agreed)


def _check_image_shape(images: Array, agreed: ImageSchema) -> Iterator[Finding]:
    """Check the size and the channels; RGBA is read as RGB."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    channels = 3 if channels == 4 else channels
    if images.ndim == 4 and images.shape[1:] == agreed.shape:
        text = f"the channels come first (shape {images.shape}): move them last, (n, height, width, channels)"
        yield Finding("error", SIZE, "", text)
        return
    if tuple(images.shape[1:3]) != agreed.size:
        text = (
            f"images are {size_text(images.shape[1:3])} (height x width) where {size_text(agreed.size)} is agreed: "
            "bring them to that size"
        )
        yield Finding("error", SIZE, "", text)
    if channels != agreed.channels:
        way = "make them grey" if agreed.channels == 1 else "save them in colour"
        verb = "is" if agreed.channels == 1 else "are"
        text = f"{format_count(channels, 'channel')} where {agreed.channels} {verb} agreed: {way}"
        yield Finding("error", CHANNELS, "", text)


def _check_pixels(content: SiteImages, images: Array) -> Iterator[Finding]:
    """Check that pixels are whole numbers from 0 to 255 or floats from 0 to 1; a CT or a 12-bit export has neither."""
    most = 1 if images.dtype.kind == "f" else 255
    broken = np.zeros(len(images), bool)
    low, high = np.inf, -np.inf
    for rows in _blocks(images):
        part = images[rows]
        broken[rows] = ~np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    if broken.any():
        first = content.where(int(broken.argmax()))
        text = f"{format_count(int(broken.sum()), 'image')} with NaN or infinite values, first {first}"
        yield Finding("error", PIXEL_VALUES, "", f"{text}: mend them or leave them out")
    elif low < 0 or high > most:
        way = "scale them to whole numbers from 0 to 255, or floats from 0 to 1"
        yield Finding("error", PIXEL_VALUES, "", f"values run from {low:g} to {high:g}: {way}")


def _check_masks(content: SiteImages, agreed: ImageSchema) -> Iterator[Finding]:
    if content.masks is None:
        if agreed.masks:
            text = f"no truth masks, and every image is to have one: add an array or a folder '{MASKS}'"
            yield Finding("error", NO_MASKS, "", text)
        return
    if content.masks.dtype == np.bool_ and content.masks.ndim == 3:
        yield from (
            Finding("warning", MASK_VALUES, "", f"{note}: left out of every score")
            for note in mask_notes(content.masks)
        )


def _check_appearance(images: Array, agreed: ImageSchema) -> Iterator[Finding]:
    """Black images, copies, and brightness unlike the consortium's."""
    light, highest = mean_brightness(images)
    black = int((highest < DARK).sum())
    if 0 < black < len(images):
        yield Finding("warning", BLACK, "", f"{black} of {format_count(len(images), 'image')} black: they show nothing")
    again = len(images) - len({hashlib.blake2b(np.ascontiguousarray(one).tobytes()).digest() for one in images})
    if again:
        yield Finding(
            "warning", REPEATED_ROWS, "", f"{format_count(again, 'image')} the same as another: remove copies"
        )
    if agreed.brightness and len(light) >= FEWEST and black < len(images):
        yield from check_brightness(light, agreed.brightness)


def check_brightness(light: Array, quantiles: tuple[float, ...]) -> Iterator[Finding]:
    """Compare the brightness with the agreed quantiles, with the thresholds of units: far from 1 deviation, refused from 2.5."""
    spare = SAMPLING / np.sqrt(len(light))
    before, negative = distance(quantiles, light), distance(quantiles, WHITE - light)
    if before < FAR + spare:
        return
    middle = float(np.median(light))
    text = (
        f"images are much {'darker' if middle < quantiles[2] else 'brighter'} than agreed (the median of their brightness is "
        f"{middle:.4g}, the consortium's {quantiles[2]:.4g})"
    )
    fitting = negative <= min(max(CLOSE + spare, before / 5), before / 2)
    way = (
        "; their negatives would fit: were black and white exchanged?"
        if fitting
        else ": look at how they were exported"
    )
    yield Finding("error" if before >= CERTAIN + spare else "warning", BRIGHTNESS, "", f"{text}{way}")


def mean_brightness(images: Array) -> tuple[Array, Array]:
    """Mean and highest value (n,) of each image, from 0 to 255."""
    scale = WHITE if images.dtype.kind == "f" else 1.0
    mean, high = np.empty(len(images)), np.empty(len(images))
    axes = tuple(range(1, images.ndim))
    for rows in _blocks(images):
        mean[rows] = images[rows].mean(axis=axes, dtype=np.float64) * scale
        high[rows] = images[rows].max(axis=axes) * scale
    return mean, high


def _blocks(images: Array) -> list[slice]:
    step = max(1, _BLOCK // max(1, int(np.prod(images.shape[1:]))))
    return [slice(start, start + step) for start in range(0, len(images), step)]


AUTOMATIC = Format()
"""A file shows by itself how it is written."""


@dataclass(frozen=True)
class DataCheck:
    """The rows or images that a site has, and how they differ from the agreed schema."""

    rows: int
    findings: list[Finding]
    assumptions: tuple[str, ...] = ()  # to read the file: one sentence each


def examine_data(agreed: AgreedSchema, data: str, *, query: str | None = None, form: Format = AUTOMATIC) -> DataCheck:
    """List how a site's data differ from the agreed schema; only data that cannot be read at all are refused."""
    if isinstance(agreed, ImageSchema):
        images = inspect_images(data, agreed)
        return DataCheck(images.count, check_images(images, agreed))
    table = read_site_table(data, query, agreed, form)
    assumed = () if table.reading is None else table.reading.notes
    return DataCheck(len(table), check_table(table, agreed), assumed)


def read_rows(
    agreed: AgreedSchema | None,
    data: str,
    *,
    query: str | None = None,
    form: Format = AUTOMATIC,
    pending: bool = False,
    vocabulary: Path | None = None,
) -> Table | ImageSet:
    """Read a site's rows or images, raw; the first fault is refused.

    Args:
        agreed: The schema.
        data: A table, images, or clinical records where the schema has a cohort.
        query: A SELECT or a table name; of clinical records the schema of their tables.
        form: The format of a text file.
        pending: Of clinical records: also take visits whose outcome is not known yet.
        vocabulary: Of clinical records: a folder or zip with CONCEPT.csv.
    """
    if isinstance(agreed, ImageSchema):
        if not is_image_source(data):
            raise BadInput(f"{data} holds no images, which the consortium agreed on", code="no-images")
        return read_site_images(data, agreed)
    if agreed is None:
        return read_npz(data) if is_image_source(data) else read_table(data, query=query, form=form)
    return read_site_table(data, query, agreed, form, pending=pending, vocabulary=vocabulary)


def read_site_table(
    data: str,
    query: str | None,
    agreed: DataSchema,
    form: Format,
    *,
    pending: bool = False,
    vocabulary: Path | None = None,
) -> Table:
    """Read a site's table with the kinds and marks for missing that are agreed, or make it from records by the agreed cohort."""
    if agreed.cohort is not None:
        read = find_reader("data.cohort site")
        table: Table | None = read(agreed.cohort, data, query=query, vocabulary=vocabulary, pending=pending)
        if table is not None:
            return table
    if is_image_source(data):
        raise BadInput(
            f"{data} holds images, and the consortium agreed on a table: give a .csv, .parquet or .xlsx file",
            code="expected-table",
        )
    keep = [name for name in (agreed.label, agreed.patient) if name is not None]
    # values tell a file of a statistics package whether codes or their labels are meant
    values = {c.name: c.values for c in agreed.columns if c.values and not c.numeric} | {agreed.label: agreed.classes}
    kinds = {**agreed.kinds(), **{name: list(levels) for name, levels in values.items() if levels}}
    return read_table(data, query=query, missing=agreed.missing, form=form, kinds=kinds, keep=keep)
