"""Statements of a dossier: sentences made of a template and values, each value with its source."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grandrounds.core.errors import GrandRoundsError

FILE, LEDGER, COMMAND, ANSWER, GUIDELINE = "file", "ledger", "command", "answer", "guideline"
"""Kinds of source."""


class MissingFact(GrandRoundsError):
    """A run lacks a fact that a statement needs; the item stays open with this reason."""


@dataclass(frozen=True, order=True)
class Source:
    """Origin of a fact.

    Attributes:
        kind: FILE (a file of the run), LEDGER (an entry), COMMAND (an output that is kept), ANSWER (a person) or GUIDELINE (the
            text that a note quotes or rests on).
        name: File in the evidence, number and kind of the entry, the command, the question, or the reference.
        place: Path of the value in a JSON file, such as "final.auroc"; empty for the whole.
        digest: SHA-256 of the file or of the entry; empty where there is none.
    """

    kind: str
    name: str
    place: str = ""
    digest: str = ""

    @property
    def text(self) -> str:
        """Name the source for readers."""
        place = f", {self.place}" if self.place else ""
        digest = f" (SHA-256 {self.digest[:16]})" if self.digest else ""
        prefix = {LEDGER: "ledger, ", ANSWER: "answers.toml, ", COMMAND: "command, "}.get(self.kind, "")
        return f"{prefix}{self.name}{place}{digest}"

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "place": self.place, "digest": self.digest}


@dataclass(frozen=True)
class Value:
    """A fact with its sources.

    Attributes:
        value: The value itself, plain JSON.
        text: The value as a sentence shows it.
        sources: One or more sources.
        rule: How the value was computed from the sources; empty where it was read.
    """

    value: Any
    text: str
    sources: tuple[Source, ...]
    rule: str = ""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError(f"the value {self.text!r} has no source")

    def show(self, form: str) -> Value:
        """Return the same value in another form, such as ".1%" or ",.0f"."""
        return Value(self.value, show_value(self.value, form), self.sources, self.rule)


@dataclass(frozen=True)
class Statement:
    """One or more sentences with their values.

    Attributes:
        template: Text with the names of values in braces.
        values: The values by name; the order is that of the template.
        sources: Sources of the whole statement, besides those of its values.
    """

    template: str
    values: Mapping[str, Value] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        if not self.all_sources:
            raise ValueError(f"the statement {self.template!r} has no source")

    @property
    def text(self) -> str:
        """The sentences as readers see them."""
        return self.write(str, str)

    def write(self, template: Callable[[str], str], value: Callable[[str], str]) -> str:
        """Write the sentences as markup.

        Args:
            template: Converts the words of the template, in which `code` is between backticks.
            value: Converts a value, which may be a name from data: nothing in it is markup.

        Returns:
            The markup.
        """
        return template(self.template).format(**{name: value(v.text) for name, v in self.values.items()})

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """Every source once, in the order of the values."""
        sources = [source for value in self.values.values() for source in value.sources]
        return tuple(dict.fromkeys([*sources, *self.sources]))

    def to_dict(self) -> dict[str, Any]:
        values = {
            name: {"value": v.value, "text": v.text, "sources": [s.to_dict() for s in v.sources], "rule": v.rule}
            for name, v in self.values.items()
        }
        return {"text": self.text, "values": values, "sources": [s.to_dict() for s in self.all_sources]}


@dataclass(frozen=True)
class Table:
    """A table of values: every cell is a text or a value, and every value has its source.

    Attributes:
        title: Subject of the table.
        columns: Headings.
        rows: Cells.
        sources: Sources of the whole table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        if not self.all_sources:
            raise ValueError(f"the table {self.title!r} has no source")

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """Every source once; those of cells in the same file are one, by the file."""
        cells = (cell for row in self.rows for cell in row if isinstance(cell, Value))
        files = (Source(s.kind, s.name, "", s.digest) for cell in cells for s in cell.sources)
        return tuple(dict.fromkeys([*self.sources, *files]))

    def texts(self) -> list[list[str]]:
        """Return the cells as readers see them."""
        return [[cell.text if isinstance(cell, Value) else cell for cell in row] for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": self.texts(),
            "sources": [s.to_dict() for s in self.all_sources],
        }


def say(template: str, *sources: Source | Value, **values: Value) -> Statement:
    """Make a statement.

    Args:
        template: One or more sentences with names of values in braces: "The model was trained at {sites} hospitals."
        sources: Sources of the whole statement (a value stands for its sources), where it shows no value of theirs.
        values: The values.

    Returns:
        The statement.

    Raises:
        ValueError: A value is missing or not used, or the statement has no source.
    """
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    if set(names) != set(values):
        raise ValueError(f"{template!r} has values {sorted(set(names))}, but {sorted(values)} were given")
    whole: list[Source] = []
    for source in sources:
        whole += [source] if isinstance(source, Source) else source.sources
    return Statement(template, {name: values[name] for name in dict.fromkeys(names)}, tuple(dict.fromkeys(whole)))


def cite_page(name: str) -> Source:
    """Name a page of the documentation as a source, for a statement about the product."""
    return Source(GUIDELINE, f"docs/{name} of Grand Rounds")


def show_value(value: Any, form: str = "") -> str:
    """Show a value in a sentence.

    Args:
        value: Plain JSON.
        form: A format specification, such as ".3f" or ".1%"; empty: whole numbers with thousands separators, other numbers with
            three digits after the point, lists joined by commas.

    Returns:
        The text.
    """
    if form and isinstance(value, int | float) and not isinstance(value, bool):
        return format(value, form)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.2g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show_value(v)}" for name, v in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(show_value(v) for v in value)
    return str(value)
