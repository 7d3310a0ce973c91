"""Messages between server and sites: Asks, Answers and their asynchronous halves.

An `Ask` carries named arrays, numbers and short strings: a part for all sites (`shared`) and a part for each (`each`).
`Answers` are the answers of several sites as columns. A method yields Asks and receives Answers; it never sees a network.
`Send` and `Receive` are the two halves of an Ask, for asynchronous methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array

PROTOCOL = 1
"""Version of the message format. Sites and server of different versions refuse each other."""

KEEP, UPLOAD = "keep", "upload"
"""Setting of a training Ask that makes a site keep its model, and the task that later requests that model."""

OWN_HALF = "own_half"
"""Setting of a training Ask that makes a site train on one half of its own patients: 1 or 2."""

USE_PERSONAL = "personal"
"""Setting of an Ask that makes sites use the models that they deploy, which never leave them."""

Value = Array | int | float | str | bool
Payload = Mapping[str, Value]
Columns = dict[str, Any]
"""Reports of m sites by name, each with m entries: an array or a list."""


@dataclass(frozen=True)
class AskId:
    """Identifies an Ask by run, round and step; the key of a site's Answer cache."""

    run: str
    round: int
    step: int

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.step}"


@dataclass(frozen=True)
class Ask:
    """One request to sites: perform `task` and answer with the named reports only.

    Reports in `summed` are added up while they arrive, so the server's memory does not grow with the number of sites.
    Reports in `withheld` do not leave: the site keeps them for a secure sum and answers with their shape.
    """

    task: str
    shared: Payload = field(default_factory=dict)
    each: Mapping[str, Payload] = field(default_factory=dict)
    to: tuple[str, ...] | None = None
    report: tuple[str, ...] = ()
    deadline: float | None = None
    id: AskId | None = None
    summed: tuple[str, ...] = ()  # reports of which only the sum over sites is needed
    withheld: tuple[str, ...] = ()  # reports that stay at the site
    protocol: int = PROTOCOL

    @property
    def round(self) -> int:
        """Round of the Ask; 0 without an id."""
        return 0 if self.id is None else self.id.round

    @property
    def names_of_one_site(self) -> set[str]:
        """Names of the settings that single sites get."""
        return {name for values in self.each.values() for name in values}

    def for_site(self, site: str) -> dict[str, Value]:
        """Return the payload of one site: the shared part and its own.

        Args:
            site: The site's name.
        """
        return {**self.shared, **self.each.get(site, {})}

    def with_reports(self, *more: str) -> Ask:
        """Return a copy that requests these reports too.

        Args:
            *more: Names of reports.
        """
        return replace(self, report=(*self.report, *more)) if more else self

    def withholding(self, *names: str) -> Ask:
        """Return a copy in which these reports stay at the sites.

        Args:
            *names: Names of reports that a secure sum asks for later.
        """
        return replace(self, withheld=(*self.withheld, *names))

    def numbered(self, id: AskId, to: tuple[str, ...]) -> Ask:
        """Return a copy with its number in the run and the sites that it is sent to.

        Args:
            id: The number, which an answer repeats.
            to: The sites.
        """
        return replace(self, id=id, to=to)


@dataclass(frozen=True)
class Answer:
    """One site's answer to one Ask. `error` is a fixed code, never an exception's text, which may contain patients' values.
    """

    site: str
    id: AskId
    values: Payload = field(default_factory=dict)
    error: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Send:
    """Ask without waiting: the answers arrive later, one by one, through `Receive`."""

    ask: Ask


@dataclass(frozen=True)
class Receive:
    """Wait for the next answer, from any site."""


@dataclass(frozen=True)
class Arrival:
    """Result of `Receive`: an answer, its arrival time (virtual seconds), and the round in which its Ask was sent.

    An answer that will never come, or that is unusable, arrives too; its `error` gives the cause.
    """

    answer: Answer
    time: float
    sent_round: int


class Answers:
    """Answers of several sites to one Ask, as columns: `answers["count"]` is a (K,) array.

    A report with the same shape at all sites is stacked along a leading site axis. A report with differing shapes, or of
    strings, is a list of K items.
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
        self.id = id  # id of the Ask, if an engine assigned one
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
        """Return one number for each site, as a plain dict for a Decision.

        Args:
            name: A report with one number for each site.
        """
        return {s: float(v) for s, v in zip(self.sites, self.columns[name], strict=True)}

    def only(self, keep: Iterable[int], missing: Mapping[str, str]) -> Answers:
        """Select the answers of some sites and record the others as missing.

        Args:
            keep: Positions of the sites to keep.
            missing: Cause by site, for the sites that are left out.

        Returns:
            The selected answers.
        """
        rows = list(keep)
        run = bool(rows) and rows == list(range(rows[0], rows[0] + len(rows)))  # then a view suffices, of any size
        index = slice(rows[0], rows[0] + len(rows)) if run else rows
        columns = {
            name: column[index] if isinstance(column, np.ndarray) else [column[k] for k in rows]
            for name, column in self.columns.items()
        }
        sites = tuple(self.sites[k] for k in rows)
        return Answers(sites, columns, missing={**self.missing, **missing}, totals=self.totals, id=self.id)

    @classmethod
    def join(cls, blocks: Sequence[Answers]) -> Answers:
        """Concatenate the answers of several blocks of sites, in order.

        Args:
            blocks: Answers to the same Ask.

        Returns:
            The answers of all sites; totals are added up.
        """
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
        """Sum the named reports over sites and keep the others.

        Args:
            reports: Names of reports; `test` means test.count, test.confusion ...

        Returns:
            Answers with the sums in `totals`.
        """
        add = {name for name in self.columns if name in reports or name.split(".")[0] in reports}
        totals = {name: np.asarray(self.columns[name]).sum(axis=0) for name in add}
        rest = {name: column for name, column in self.columns.items() if name not in add}
        return Answers(self.sites, rest, missing=self.missing, totals={**self.totals, **totals})

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, Payload]], *, missing: Mapping[str, str] | None = None) -> Answers:
        """Build columns from single answers, as they arrive from the network.

        Args:
            rows: Site and payload of each answer.
            missing: Sites without an answer, with the reason.

        Returns:
            The answers as columns.
        """
        pairs = list(rows)
        names = dict.fromkeys(name for _, values in pairs for name in values)
        columns: dict[str, Array | list[Any]] = {}
        for name in names:
            items = [values[name] for _, values in pairs]
            shapes = {np.shape(v) for v in items} if not any(isinstance(v, str) for v in items) else set()
            columns[name] = np.stack([np.asarray(v) for v in items]) if len(shapes) == 1 else items
        return cls(tuple(site for site, _ in pairs), columns, missing=missing)


def _joined(parts: Sequence[Array | list[Any]]) -> Array | list[Any]:
    """Concatenate columns of several blocks: an array if all rows have one shape, else a list."""
    arrays = [p for p in parts if isinstance(p, np.ndarray)]
    if len(arrays) == len(parts) and len({a.shape[1:] for a in arrays}) == 1:
        return np.concatenate(arrays)
    return [item for part in parts for item in part]
