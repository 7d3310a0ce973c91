"""What the server asks of sites and what sites answer: values, never behaviour.

An `Ask` carries named arrays, numbers and short strings: a part for all (`shared`) and a part for
each (`each`). `Answers` are the sites' answers side by side. A method yields Asks and is sent
Answers; it never sees a network. `Send` and `Receive` are the two halves of an Ask, for methods
that do not wait for everyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.arrays import Array

PROTOCOL = 1
"""Version of the message format; sites and server refuse to talk across versions."""

Value = Array | int | float | str | bool
Payload = Mapping[str, Value]


@dataclass(frozen=True)
class AskId:
    """Which question of which run this is: the key of a site's Answer cache."""

    run: str
    round: int
    step: int

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.step}"


@dataclass(frozen=True)
class Ask:
    """One question to sites: do `task`, and answer with no more than the reports named."""

    task: str
    shared: Payload = field(default_factory=dict)
    each: Mapping[str, Payload] = field(default_factory=dict)
    to: tuple[str, ...] | None = None
    report: tuple[str, ...] = ()
    deadline: float | None = None
    id: AskId | None = None
    protocol: int = PROTOCOL

    def for_site(self, site: str) -> dict[str, Value]:
        """What one site is told: the shared part and its own."""
        return {**self.shared, **self.each.get(site, {})}

    def numbered(self, id: AskId, to: tuple[str, ...]) -> Ask:
        return replace(self, id=id, to=to)


@dataclass(frozen=True)
class Answer:
    """One site's answer to one Ask. `error` is a fixed code, never exception text: that can carry patients' values."""

    site: str
    id: AskId
    values: Payload = field(default_factory=dict)
    error: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Send:
    """Ask without waiting: the answers come later, one by one, through `Receive`."""

    ask: Ask


@dataclass(frozen=True)
class Receive:
    """Wait for the next answer to arrive, from whichever site."""


@dataclass(frozen=True)
class Arrival:
    """What `Receive` gives: an answer, when it came (virtual seconds), and the round its Ask was sent in."""

    answer: Answer
    time: float
    sent_round: int


class Answers:
    """The answers of several sites to one Ask, as columns: `answers["count"]` is a (K,) array.

    A report with one array shape for all sites is stacked along a leading site axis; one whose
    shape differs between sites, or a string, is a list of K items.
    """

    def __init__(
        self,
        sites: tuple[str, ...],
        columns: Mapping[str, Array | list[Any]],
        *,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self.sites = sites
        self.columns = dict(columns)
        self.missing = dict(missing or {})

    def __len__(self) -> int:
        return len(self.sites)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for k, site in enumerate(self.sites):
            yield site, {name: column[k] for name, column in self.columns.items()}

    def by_site(self, name: str) -> dict[str, float]:
        """One number a site, as a plain dict for a Decision."""
        return {s: float(v) for s, v in zip(self.sites, self.columns[name], strict=True)}

    def only(self, keep: Iterable[int], missing: Mapping[str, str]) -> Answers:
        """These answers without some sites, which are named as missing with a reason."""
        rows = list(keep)
        columns = {
            name: column[rows] if isinstance(column, np.ndarray) else [column[k] for k in rows]
            for name, column in self.columns.items()
        }
        return Answers(tuple(self.sites[k] for k in rows), columns, missing={**self.missing, **missing})

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, Payload]], *, missing: Mapping[str, str] | None = None) -> Answers:
        """Columns from single answers, as they come off a wire."""
        pairs = list(rows)
        names = dict.fromkeys(name for _, values in pairs for name in values)
        columns: dict[str, Array | list[Any]] = {}
        for name in names:
            items = [values[name] for _, values in pairs]
            shapes = {np.shape(v) for v in items} if not any(isinstance(v, str) for v in items) else set()
            columns[name] = np.stack([np.asarray(v) for v in items]) if len(shapes) == 1 else items
        return cls(tuple(site for site, _ in pairs), columns, missing=missing)
