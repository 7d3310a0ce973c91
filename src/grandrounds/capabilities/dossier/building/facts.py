"""Facts of a run: values read from the evidence, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from grandrounds.audit.canonical import canonical
from grandrounds.audit.merkle import leaf_hash
from grandrounds.capabilities.dossier.building.evidence import COMMANDS, LEDGER, Evidence
from grandrounds.capabilities.dossier.building.questions import Answer
from grandrounds.capabilities.dossier.building.statement import COMMAND, FILE, MissingFact, Source, Value, show_value
from grandrounds.capabilities.dossier.building.statement import LEDGER as LEDGER_KIND


class Facts:
    """Values of a run's evidence with their sources, and people's answers."""

    def __init__(
        self, evidence: Evidence, answers: Mapping[str, Answer] | None = None, *, digests: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the facts.

        Args:
            evidence: The files.
            answers: People's answers by question.
            digests: SHA-256 of files as sources name them, where it is not to be computed.
        """
        self.evidence, self.answers = evidence, dict(answers or {})
        self._parsed: dict[str, Any] = {}
        self._digests: dict[str, str] = dict(digests or {})

    def has(self, file: str, *path: str | int) -> bool:
        """Tell whether a file of the evidence has a value at a path that is not null."""
        try:
            self.raw(file, *path)
        except MissingFact:
            return False
        return True

    def raw(self, file: str, *path: str | int) -> Any:
        """Read a value without its source, to compute with; `derive` adds the source to the result.

        Args:
            file: Name in the evidence, such as "summary.json".
            path: Keys and positions.

        Returns:
            Plain JSON.

        Raises:
            MissingFact: There is no such file or value, or it is null.
        """
        if file not in self.evidence.files:
            raise MissingFact(f"the run has no {file}")
        if file not in self._parsed:
            self._parsed[file] = self.evidence.json(file)
        value = self._parsed[file]
        for step in path:
            try:
                value = value[step]
            except (LookupError, TypeError):
                raise MissingFact(f"{file} has no {_place(path)}") from None
        if value is None:
            raise MissingFact(f"{file} has no value of {_place(path)}")
        return value

    def get(self, file: str, *path: str | int, default: Any = None) -> Any:
        """Read a value without its source, or a default."""
        try:
            return self.raw(file, *path)
        except MissingFact:
            return default

    def source(self, file: str, *path: str | int) -> Source:
        """Name a value of the evidence as a source, also where it is absent or empty.

        Raises:
            MissingFact: There is no such file.
        """
        if file not in self.evidence.files:
            raise MissingFact(f"the run has no {file}")
        if file not in self._digests:
            self._digests[file] = self.evidence.digest(file)
        kind, name = (COMMAND, COMMANDS[file]) if file in COMMANDS else (FILE, file)
        return Source(kind, name, _place(path), self._digests[file])

    def value(self, file: str, *path: str | int, show: str = "") -> Value:
        """Read a value with its source.

        Args:
            file: Name in the evidence, such as "summary.json".
            path: Keys and positions.
            show: Form of the value in sentences, such as ".1%"; empty: see `show_value`.

        Returns:
            The value.

        Raises:
            MissingFact: There is no such file or value, or it is null.
        """
        value = self.raw(file, *path)
        return Value(value, show_value(value, show), (self.source(file, *path),))

    def derive(self, value: Any, rule: str, *sources: Source | Value, show: str = "", text: str | None = None) -> Value:
        """Make a value that is computed from others.

        Args:
            value: The result, plain JSON.
            rule: How it was computed, for readers: "number of hospitals in per_site".
            sources: What it was computed from; a value stands for its sources.
            show: Form of the value in sentences.
            text: The value in sentences, where a form does not suffice.

        Returns:
            The value.
        """
        found: list[Source] = []
        for source in sources:
            found += [source] if isinstance(source, Source) else source.sources
        return Value(value, show_value(value, show) if text is None else text, tuple(dict.fromkeys(found)), rule)

    @cached_property
    def _entries(self) -> list[dict[str, Any]]:
        return [dict(item["entry"]) for item in self.get(LEDGER, "entries", default=[])]

    def entries(self, kind: str) -> list[Value]:
        """Return the ledger's entries of a kind (open, resume, close, withdraw) in order; empty without a ledger."""
        chosen = (entry for entry in self._entries if entry["kind"] == kind)
        return [Value(entry, str(entry["number"]), (self._entry_source(entry),)) for entry in chosen]

    def entry_value(self, entry: Value, *path: str | int, show: str = "") -> Value:
        """Read a value of a ledger entry.

        Args:
            entry: From `entries`.
            path: Keys and positions.
            show: Form of the value in sentences.

        Raises:
            MissingFact: The entry has no such value.
        """
        value = entry.value
        for step in path:
            try:
                value = value[step]
            except (LookupError, TypeError):
                raise MissingFact(f"the ledger's entry {entry.text} has no {_place(path)}") from None
        (source,) = entry.sources
        return Value(value, show_value(value, show), (Source(source.kind, source.name, _place(path), source.digest),))

    def _entry_source(self, entry: Mapping[str, Any]) -> Source:
        return Source(LEDGER_KIND, f"entry {entry['number']} ({entry['kind']})", "", leaf_hash(canonical(entry)).hex())


def _place(path: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in path)
