"""Flags that say how a table's text is written, the same in every command that takes a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

Decimal = Annotated[
    str | None,
    typer.Option("--decimal", help="Decimal mark where a cell such as 1,234 can be read in two ways: , or ."),
]
TextEncoding = Annotated[
    str | None, typer.Option("--text-encoding", help="Encoding of a text file: utf-8, cp1252, latin-1, utf-16 ...")
]
Separator = Annotated[str | None, typer.Option("--separator", help="Separator of a text file: , ; | or tab.")]
Missing = Annotated[
    list[str] | None,
    typer.Option("--missing", help="One more word that means 'no value' (repeatable): --missing -999."),
]
Censored = Annotated[
    str | None, typer.Option("--censored", help="What '<5' and '>200' stand for: value (default), half or missing.")
]


def reading_settings(
    decimal: str | None,
    text_encoding: str | None,
    separator: str | None,
    missing: list[str] | None,
    censored: str | None,
) -> dict[str, Any]:
    """The keys of [data] that the flags set; `missing` has the words to add."""
    given = {"decimal": decimal, "text_encoding": text_encoding, "separator": separator, "censored": censored}
    return {key: value for key, value in given.items() if value is not None} | ({"missing": missing} if missing else {})


def merge_reading(reading: Mapping[str, Any], missing: Iterable[str]) -> dict[str, Any]:
    """The flags as values of [data]: words for missing are added to those that are known."""
    out = dict(reading)
    if "missing" in out:
        out["missing"] = list(dict.fromkeys([*missing, *out["missing"]]))
    return out


def show_reading(rows: Any) -> None:
    """Print on standard error what was assumed to read a table."""
    for note in () if getattr(rows, "reading", None) is None else rows.reading.notes:
        typer.echo(f"assumed: {note}", err=True)
