"""What the server asks of sites and what sites answer: values, never behaviour.

An `Ask` carries named arrays, numbers and short strings: a part for all (`shared`) and a part for
each (`each`). `Answers` are the sites' answers side by side. A method yields Asks and is sent
Answers; it never sees a network. `Send` and `Receive` are the two halves of an Ask, for methods
that do not wait for everyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array

PROTOCOL = 1
"""Version of the message format; sites and server refuse to talk across versions."""

KEEP, UPLOAD = "keep", "upload"
"""What a training Ask says where a site is to keep its model until it is asked for, and the task that asks for it."""

OWN_HALF = "own_half"
"""What a training Ask says where a site is to train on one half of its own patients: 1 or 2."""

Value = Array | int | float | str | bool
Payload = Mapping[str, Value]
Columns = dict[str, Any]
"""Reports of m sites by name, each with m entries: an array, or a list."""


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
    """One question to sites: do `task`, and answer with no more than the reports named.

    What is named in `summed` is added up on its way, so the server's memory does not grow with the sites. What is named in
    `withheld` does not leave: the site keeps it until a secure sum asks for it, and answers with its shape alone.
    """

    task: str
    shared: Payload = field(default_factory=dict)
    each: Mapping[str, Payload] = field(default_factory=dict)
    to: tuple[str, ...] | None = None
    report: tuple[str, ...] = ()
    deadline: float | None = None
    id: AskId | None = None
    summed: tuple[str, ...] = ()  # reports of which the sum over sites is all that is needed
    withheld: tuple[str, ...] = ()  # reports that stay at the site
    protocol: int = PROTOCOL

    @property
    def round(self) -> int:
        """The round it is asked in; 0 where nobody has numbered it."""
        return 0 if self.id is None else self.id.round

    def for_site(self, site: str) -> dict[str, Value]:
        """What one site is told: the shared part and its own."""
        return {**self.shared, **self.each.get(site, {})}

    def with_reports(self, *more: str) -> Ask:
        """The same, answered with these reports too."""
        return replace(self, report=(*self.report, *more)) if more else self

    def withholding(self, *names: str) -> Ask:
        """The same, but these reports stay at the sites."""
        return replace(self, withheld=(*self.withheld, *names))

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
    """What `Receive` gives: an answer, when it came (virtual seconds), and the round its Ask was sent in.

    An answer that will never come, or that is no use, arrives too: its `error` says why.
    """

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
        totals: Mapping[str, Array] | None = None,
        id: AskId | None = None,
    ) -> None:
        self.id = id  # of the Ask that was answered, where an engine gave it one
        self.sites = sites
        self.columns = dict(columns)
        self.missing = dict(missing or {})
        self.totals = dict(totals or {})

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
        run = bool(rows) and rows == list(range(rows[0], rows[0] + len(rows)))  # then a view does, of any size
        index = slice(rows[0], rows[0] + len(rows)) if run else rows
        columns = {
            name: column[index] if isinstance(column, np.ndarray) else [column[k] for k in rows]
            for name, column in self.columns.items()
        }
        sites = tuple(self.sites[k] for k in rows)
        return Answers(sites, columns, missing={**self.missing, **missing}, totals=self.totals, id=self.id)

    @classmethod
    def join(cls, blocks: Sequence[Answers]) -> Answers:
        """The answers of several blocks of sites, in their order."""
        if len(blocks) == 1:
            return blocks[0]
        named = [b for b in blocks if len(b)]
        names = dict.fromkeys(name for b in named for name in b.columns)
        columns = {name: _joined([b.columns[name] for b in named]) for name in names}
        missing = {site: why for b in blocks for site, why in b.missing.items()}
        totals: dict[str, Array] = {}
        for block in named:
            for name, part in block.totals.items():
                totals[name] = totals[name] + part if name in totals else part
        return cls(tuple(s for b in blocks for s in b.sites), columns, missing=missing, totals=totals)

    def summed(self, reports: Iterable[str]) -> Answers:
        """These answers with the named reports (`test` means test.count, test.confusion ...) added up over sites."""
        add = {name for name in self.columns if name in reports or name.split(".")[0] in reports}
        totals = {name: np.asarray(self.columns[name]).sum(axis=0) for name in add}
        rest = {name: column for name, column in self.columns.items() if name not in add}
        return Answers(self.sites, rest, missing=self.missing, totals={**self.totals, **totals})

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


def _joined(parts: Sequence[Array | list[Any]]) -> Array | list[Any]:
    """Columns of several blocks as one: an array where all rows have one shape, else a list."""
    arrays = [p for p in parts if isinstance(p, np.ndarray)]
    if len(arrays) == len(parts) and len({a.shape[1:] for a in arrays}) == 1:
        return np.concatenate(arrays)
    return [item for part in parts for item in part]
