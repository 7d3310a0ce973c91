"""Files of SAS (.sas7bdat, .xpt), Stata (.dta) and SPSS (.sav, .zsav, .por), read through pyreadstat with their types.

Codes become the words of their value labels where every code in the column has a label of its own ("1" with the label "male" is
read as male). User-defined missing values, and the special missing values .A to .Z, are missing. Dates become ISO text. The
labels of columns are kept as descriptions (`Reading.labels`). Every assumption is a note.
"""

from __future__ import annotations

import hashlib
import io
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, largest_unpacked, refuse_bomb
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.data.formats import AUTO, Format, Reading, list_columns
from grandrounds.data.limits import OBJECT_CELL, check_table
from grandrounds.data.table import Table, check_names, format_number, is_number, to_column

SAS = (".sas7bdat", ".xpt")
STATA = (".dta",)
SPSS = (".sav", ".zsav", ".por")

_READERS = {
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
}
_WITH_USER_MISSING = (".sas7bdat", ".dta", ".sav", ".zsav")
_WITHOUT_ENCODING = (".por",)
_PERIODS = {"%tw": "weeks since 1960", "%tm": "months since 1960", "%tq": "quarters since 1960", "%th": "half-years since 1960"}
_CRASHING = (".sav", ".zsav")
_NO_PACKAGE = 3
_TRIAL = f"""
import io, sys
try:
    import pyreadstat
except ImportError:
    sys.exit({_NO_PACKAGE})
options = {{"encoding": sys.argv[1]}} if len(sys.argv) > 1 else {{}}
try:
    pyreadstat.read_sav(io.BytesIO(sys.stdin.buffer.read()), metadataonly=True, output_format="dict", **options)
except Exception:
    pass
"""
"""Program of a trial in a process of its own; errors are raised again outside of it."""

_TRIED: set[bytes] = set()  # SHA-256 of files that were parsed in a process of their own without a crash
_SHOWN = 3  # values that a note quotes


def read_statistics(
    raw: bytes, *, source: str, marks: frozenset[str], form: Format, kinds: Mapping[str, object] | None = None
) -> Table:
    """Read a file of SAS, Stata or SPSS as a table.

    Args:
        raw: The file's content.
        source: The file, for messages; its ending tells the format.
        marks: Texts that mean "no value" (numbers such as "-999" match by value).
        form: The format that the user states; only `text_encoding` is used.
        kinds: Kinds of columns that are known: a "numeric" one, and one whose levels are codes, keeps its codes.

    Returns:
        The table; `reading` of it states the assumptions.

    Raises:
        BadInput: The file is damaged or empty, or pyreadstat is not installed.
    """
    values, facts = _parse(raw, source=source, encoding=form.text_encoding)
    check_names([str(name) for name in values], source=source)
    if not len(next(iter(values.values()))):
        raise BadInput(f"{source} has no rows; give a table with at least one row", code="empty-table")
    columns, notes = {}, _Notes()
    for name, column in values.items():
        cells = _without_user_missing(name, list(column), facts, notes)
        cells = _without_marks(cells, marks)
        labels = (getattr(facts, "variable_value_labels", None) or {}).get(name, {})
        if labels:
            cells = _apply_labels(name, cells, labels, kind=(kinds or {}).get(name), notes=notes)
        period = _PERIODS.get(str(facts.original_variable_types.get(name, ""))[:3])
        if period is not None:
            notes.periods[name] = period
        columns[str(name)] = _to_values(cells, name=str(name), source=source)
    described = {name: text.strip() for name, text in facts.column_names_to_labels.items() if text and text.strip()}
    return Table(columns, source, reading=Reading(tuple(notes.lines()), labels=described))


def _parse(raw: bytes, *, source: str, encoding: str) -> tuple[Mapping[str, Sequence[Any]], Any]:
    """Parse the file: cells by column, and pyreadstat's description of the file."""
    try:
        import pyreadstat
    except ImportError:
        raise BadInput(
            f"reading {source} needs pyreadstat; {install_extra('statistics')}, or save it as CSV UTF-8",
            code="missing-package",
        ) from None
    ending = next(e for e in _READERS if source.lower().endswith(e))
    read = getattr(pyreadstat, _READERS[ending])
    options: dict[str, Any] = {"output_format": "dict"}
    if encoding != AUTO and ending not in _WITHOUT_ENCODING:
        options["encoding"] = encoding
    _check_end(raw, ending, source=source)
    if ending in _CRASHING and raw.startswith(b"$FL"):
        _try_in_process(raw, options.get("encoding"), source=source)
    try:
        _, facts = read(io.BytesIO(raw), metadataonly=True, **options)
        columns, width = facts.number_columns or 0, sum((facts.variable_storage_width or {}).values())
        _check_rows(facts.number_rows or 0, columns, width, source=source)
        options["row_limit"] = largest_unpacked() // max(width, OBJECT_CELL * columns, 1) + 1  # some files state no rows
        if ending in _WITH_USER_MISSING:
            options["user_missing"] = True
        values, facts = read(io.BytesIO(raw), **options)
        _check_rows(len(next(iter(values.values()), ())), columns, width, source=source)
    except UnicodeError:
        raise BadInput(
            f"{source} has text in another encoding than it states; say which with --text-encoding (cp1252, latin-1, utf-8)",
            code="undecodable-text",
        ) from None
    except OverflowError:
        raise BadInput(
            f"{source} has a date outside of the years 1 to 9999; correct it, or save the table as CSV UTF-8",
            code="damaged-file",
        ) from None
    except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, ValueError, MemoryError, OSError) as error:
        if "encod" in str(error).lower() or "convert" in str(error).lower():
            raise BadInput(
                f"text of {source} cannot be decoded; say its encoding with --text-encoding (cp1252, latin-1, utf-8)",
                code="undecodable-text",
            ) from None
        raise BadInput(
            f"{source} is not a complete {_program(ending)} file; write or copy it again, or save it as CSV UTF-8",
            code="damaged-file",
        ) from None
    return values, facts


def _check_rows(rows: int, columns: int, width: int, *, source: str) -> None:
    """Refuse a table that needs too much memory; a row has `width` bytes in the file."""
    check_table(rows, columns, where=source, cell=OBJECT_CELL)
    refuse_bomb(rows * width, where=source)


def _check_end(raw: bytes, ending: str, *, source: str) -> None:
    """Refuse a file that was cut off where the parser would not notice: Stata's last mark, SAS records of 80 bytes."""
    cut = ending == ".dta" and raw.startswith(b"<stata_dta>") and not raw.rstrip().endswith(b"</stata_dta>")
    if cut or (ending == ".xpt" and len(raw) % 80):
        raise BadInput(
            f"{source} is not a complete {_program(ending)} file: its end is missing; write or copy it again", code="damaged-file"
        )


def _try_in_process(raw: bytes, encoding: str | None, *, source: str) -> None:
    """Parse the description of an SPSS file in a process of its own: the C parser crashes on some damaged ones."""
    digest = hashlib.sha256(raw).digest()
    if digest in _TRIED:
        return
    command = [sys.executable, "-c", _TRIAL, *([] if encoding is None else [encoding])]
    try:
        code = subprocess.run(command, input=raw, capture_output=True, check=False).returncode
    except OSError:  # no process can be started here
        return
    if code not in (0, _NO_PACKAGE):
        raise BadInput(
            f"{source} is damaged, or has value labels in another encoding than it states; save it in SPSS again, or as CSV",
            code="damaged-file",
        )
    _TRIED.add(digest)


def _program(ending: str) -> str:
    return "SAS" if ending in SAS else "Stata" if ending in STATA else "SPSS"


def _without_user_missing(name: str, cells: list[Any], facts: Any, notes: _Notes) -> list[Any]:
    """Replace values that the file itself declares missing by None: SPSS ranges, .A to .Z of SAS and Stata."""
    ranges = (getattr(facts, "missing_ranges", None) or {}).get(name, ())
    letters = set((getattr(facts, "missing_user_values", None) or {}).get(name, ()))
    is_text = facts.readstat_variable_types.get(name) == "string"
    if not ranges and not letters:
        return cells
    codes: dict[str, None] = {}
    out = []
    for cell in cells:
        special = not is_text and isinstance(cell, str)
        if special or (cell is not None and any(_in_range(cell, r) for r in ranges)):
            codes[f".{cell}" if special else _code(cell)] = None
            cell = None
        out.append(cell)
    if codes:
        notes.missing[name] = sorted(codes)
    return out


def _in_range(cell: Any, bounds: Any) -> bool:
    low, high = (bounds["lo"], bounds["hi"]) if isinstance(bounds, Mapping) else (bounds, bounds)
    if isinstance(cell, str) or isinstance(low, str):
        return str(cell).rstrip() == str(low).rstrip()
    return isinstance(cell, int | float) and float(low) <= cell <= float(high)


def _without_marks(cells: list[Any], marks: frozenset[str]) -> list[Any]:
    """Replace texts and numbers that mean "no value" by None, and strip texts."""
    codes = {float(mark) for mark in marks if is_number(mark)}
    out: list[Any] = []
    for cell in cells:
        if isinstance(cell, str):
            cell = cell.strip()
            out.append(None if cell in marks else cell)
        elif isinstance(cell, float) and math.isnan(cell):
            out.append(None)
        else:
            out.append(None if codes and isinstance(cell, int | float) and cell in codes else cell)
    return out


def _apply_labels(name: str, cells: list[Any], labels: Mapping[Any, str], *, kind: object, notes: _Notes) -> list[Any]:
    """Replace codes by their labels if every code in the column has one of its own; else the codes are kept."""
    words = {_code(code): str(label).strip() for code, label in labels.items()}
    present = {_code(cell) for cell in cells if cell is not None}
    if not present or kind == "numeric":
        return cells
    if isinstance(kind, list | tuple) and present & set(kind) and not set(words.values()) & set(kind):
        return cells  # levels that are given as codes
    unnamed = sorted(present - words.keys())
    used = [words[code] for code in present if code in words]
    if unnamed or len(set(used)) < len(used) or not all(used):
        known = sorted(present & words.keys())
        if known and len(set(used)) == len(used):
            notes.partial[name] = (known[0], words[known[0]])
        elif known:
            notes.shared.append(name)
        return cells
    notes.labelled[name] = tuple((code, words[code]) for code in sorted(present, key=_code_order)[:_SHOWN])
    return [None if cell is None else words[_code(cell)] for cell in cells]


def _code(value: Any) -> str:
    """Write a code as a word: 1.0 and 1 are "1"."""
    return format_number(float(value)) if isinstance(value, int | float) else str(value).strip()


def _code_order(code: str) -> tuple[float, str]:
    return (float(code), "") if is_number(code) else (math.inf, code)


def _to_values(cells: list[Any], *, name: str, source: str) -> Array:
    """Convert cells to a column; one without any value is a column of missing numbers."""
    if all(cell is None for cell in cells):
        return np.full(len(cells), np.nan)
    return to_column(cells, name=name, source=source)


@dataclass
class _Notes:
    """Columns by what was assumed of them."""

    labelled: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    partial: dict[str, tuple[str, str]] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    periods: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        lines = []
        if self.labelled:
            name, pairs = next(iter(self.labelled.items()))
            shown = ", ".join(f"{code} is '{word}'" for code, word in pairs)
            lines.append(f"value labels in place of codes in {list_columns(list(self.labelled))} ({name}: {shown})")
        for name, (code, word) in self.partial.items():
            lines.append(
                f"column {name} has labels for some of its values only ({code} is '{word}'), so they are read as they are; "
                f"if '{word}' means missing, add --missing {code}"
            )
        if self.shared:
            lines.append(f"{list_columns(self.shared)}: several codes have the same label, so the codes are kept")
        for name, codes in self.missing.items():
            more = f" and {len(codes) - _SHOWN} more" if len(codes) > _SHOWN else ""
            lines.append(f"{', '.join(codes[:_SHOWN])}{more} of column {name} read as missing, as the file declares")
        for name, period in self.periods.items():
            lines.append(f"column {name} is read as a number ({period})")
        return lines
