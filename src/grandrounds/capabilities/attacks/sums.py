"""Attacks on sums of exact methods: the fit is repeated on the run's rows, and every answer is looked at.

Counts that a question declares as cells are searched for cells of one patient. Weighted products of columns (regressions) are
searched for lines of one patient. Histograms of boosted trees are linked across columns by the gradient of a cell of one.
Under secure aggregation the attacker has the sum of all sites; without it every site's own answer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from grandrounds.capabilities.attacks.findings import AttackedRun, StatisticAttack
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.boosting_answers import LEVEL
from grandrounds.capabilities.statistics.methods.site import build_rows
from grandrounds.capabilities.statistics.newton import count_upper, unpack_upper
from grandrounds.capabilities.statistics.question import Blocks, Question, Rows, Total, check_blocks
from grandrounds.core.arrays import Array
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.privacy.attacks.reconstruction import (
    REBUILT,
    link_equal,
    rebuild_from_centred,
    rebuild_from_products,
    rebuild_from_risk_sets,
    relative_errors,
)
from grandrounds.protocol.messages import Ask
from grandrounds.site.prepare import prepare

FEWEST = 5
"""Columns that are linked for a patient to count as exposed."""

MOST_EXCHANGES = 400
"""Exchanges of a fit that are repeated, so that an attack on many trees ends soon."""

_PRODUCTS = {"glm.start": "information", "glm": "information"}
"""Questions whose answers have products of columns X'WX, and the block that has them."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """One question with the answers of all sites, by site."""

    question: Question
    answers: Mapping[str, Blocks]

    def seen(self, *, secure: bool) -> dict[str, Blocks]:
        """Return the answers that the server sees: the sum of all sites (under the name ""), or each site's."""
        if not secure:
            return dict(self.answers)
        return {"": {n: np.sum([a[n] for a in self.answers.values()], axis=0) for n in self.question.blocks}}


@dataclass
class SumsAttack:
    """Results of attacks on the sums of a fit.

    Attributes:
        exchanges: Exchanges that were repeated.
        ended: The fit came to its end.
        filled: Cells of counts with a patient, over all answers that the server sees.
        single: Of these, cells with one patient.
        rebuilt: (n,) training patients whose whole row was read from products of columns; None where there are none.
        by_time: The same, read from sums over risk sets and events by time.
        linked: Trees: patients with several columns linked, mean columns of each, share of right links.
    """

    exchanges: int = 0
    ended: bool = False
    filled: int = 0
    single: int = 0
    rebuilt: Array | None = None
    by_time: Array | None = None
    linked: tuple[int, float, float] | None = None
    patients: int = 0


def repeat_fit(attacked: AttackedRun) -> tuple[dict[str, Rows], Iterator[Exchange]]:
    """Repeat the fit of a run of an exact method on its own rows.

    Args:
        attacked: The run, with rows.

    Returns:
        Each site's rows, and the exchanges one after another.
    """
    run, plan = attacked.run, attacked.plan
    assert attacked.run_rows is not None
    model = run.model
    encoding: Any = model.encoding
    setup = Ask("prepare", shared={"encoding": json.dumps(encoding.to_dict()), "spec": json.dumps(dict(model.spec))})
    stack, _ = prepare(attacked.run_rows.consortium.stack, setup, np.float64)
    from grandrounds.privacy.secagg import Secret

    host = SimpleNamespace(stack=stack, encoding=encoding, secret=lambda name: Secret.simulated(int(plan.seed), name))
    sites = {name: build_rows(host, k) for k, name in enumerate(stack.names) if len(stack.rows[k].train)}
    counts = {name: len(rows) for name, rows in sites.items()}
    method: Any = build_method(plan.method, plan.train)
    server = Server(
        1, np.asarray(model.theta), tuple(sites), int(plan.seed), rows=counts, features=encoding.features, encoding=encoding
    )
    return sites, _exchanges(method.fit(server), sites)


def _exchanges(fit: Any, sites: Mapping[str, Rows]) -> Iterator[Exchange]:
    question = next(fit)
    for _ in range(MOST_EXCHANGES):
        answers = {s: check_blocks(question, ANSWERS[question.kind](question, rows)) for s, rows in sites.items()}
        yield Exchange(question, answers)
        total = {name: np.sum([a[name] for a in answers.values()], axis=0) for name in question.blocks}
        try:
            question = fit.send(Total(total, tuple(sites), by_site=answers if question.by_site else {}))
        except StopIteration:
            return


def attack_sums(attacked: AttackedRun) -> SumsAttack:
    """Look for single patients in all sums of a fit.

    Args:
        attacked: A run of an exact method with a model, with rows.

    Returns:
        The results.
    """
    sites, exchanges = repeat_fit(attacked)
    x = np.concatenate([rows.x for rows in sites.values()])
    owner = np.repeat(np.array(list(sites), object), [len(rows) for rows in sites.values()])
    out = SumsAttack(patients=len(x))
    trees: dict[int, SeenRound] = {}
    known: dict[tuple[int, int], Array] = {}
    edges: Any = None
    for exchange in exchanges:
        question, out.exchanges = exchange.question, out.exchanges + 1
        for site, blocks in exchange.seen(secure=attacked.is_secure).items():
            for name in question.cells:
                counts = np.asarray(blocks[name])
                out.filled += int((counts > 0).sum())
                out.single += int((counts == 1).sum())
            if question.kind in _PRODUCTS:
                mine = np.ones(len(x), bool) if not site else owner == site
                out.rebuilt = np.zeros(len(x), bool) if out.rebuilt is None else out.rebuilt
                out.rebuilt[mine] |= _read_products(question, blocks, x[mine])
            if question.kind == "cox.grid":
                mine = np.ones(len(x), bool) if not site else owner == site
                out.by_time = np.zeros(len(x), bool) if out.by_time is None else out.by_time
                out.by_time[mine] |= _read_times(blocks, x[mine])
        if question.kind == LEVEL:
            number = len(np.asarray(question.values["output"]))
            if number not in trees:
                trees[number], known = SeenRound(), {}
            read_level(question, exchange.seen(secure=True)[""], trees[number], known)
            edges = edges or (question.values["edges"], question.values["edge_counts"])
    out.ended = out.exchanges < MOST_EXCHANGES
    if trees:
        out.linked = _link_trees(attacked, trees, edges, x, np.concatenate([r.y for r in sites.values()]))
    return out


def describe_sums(attacked: AttackedRun, result: SumsAttack, kind: str, statistic: str) -> StatisticAttack:
    """State the result of attacks on sums."""
    whose = "sums of all sites" if attacked.is_secure else "sums of single sites"
    part = "" if result.ended else f" The first {result.exchanges} exchanges were repeated; later ones were not attacked."
    if result.rebuilt is not None:
        exposed = int(result.rebuilt.sum())
        finding = (
            f"In products of columns, the whole row of {exposed:,} of {result.patients:,} training patients was read: each is "
            f"the only one {_where(attacked)} with some category.{part}"
        )
        return StatisticAttack(kind, statistic, True, "lines of products of columns", finding).count(exposed, result.patients)
    if result.by_time is not None:
        exposed = int(result.by_time.sum())
        finding = (
            f"In sums over risk sets and events, the whole row of {exposed:,} of {result.patients:,} training patients was read: "
            f"each is the only one {_where(attacked)} who dies or leaves in some interval of time.{part}"
        )
        return StatisticAttack(kind, statistic, True, "differences of risk sets", finding).count(exposed, result.patients)
    if not result.filled:
        return StatisticAttack.skip(kind, statistic, f"The {whose} have no counts, and no attack on these sums is offered.{part}")
    finding = (
        f"Of the counts in {whose}, {result.single:,} of {result.filled:,} cells with a patient hold one alone. "
        f"Sums that are no counts (scores, information) were not inverted.{part}"
    )
    return StatisticAttack(kind, statistic, True, "cells of one patient", finding).count(result.single, result.filled, "cells")


def describe_links(result: SumsAttack, kind: str, statistic: str) -> StatisticAttack:
    """State the result of linking cells of one patient across the columns of boosted trees."""
    if result.linked is None:
        return StatisticAttack.skip(kind, statistic, "No histogram was repeated.")
    exposed, columns, right = result.linked
    tail = f" with {columns:.1f} columns each; {right:.0%} of the links are right" if exposed else ""
    finding = (
        f"Cells of one patient with the same gradient, in sums of all sites, link {FEWEST} or more columns of {exposed:,} of "
        f"{result.patients:,} training patients{tail}. This is the worst round; the histograms of single sites, where a server "
        "has them, tell more."
    )
    attack = "linking cells of one patient by their gradient"
    return StatisticAttack(kind, statistic, True, attack, finding).count(exposed, result.patients)


def _where(attacked: AttackedRun) -> str:
    return "of all sites" if attacked.is_secure else "of their site"


def _read_products(question: Question, blocks: Blocks, x: Array) -> Array:
    """Tell which patients (n,) are rebuilt from the products in one answer about these rows."""
    columns = np.asarray(question.values["columns"], int)
    rows = x[:, columns]
    binary: Array = np.asarray(np.isin(rows, (0.0, 1.0)).all(axis=0))
    packed = np.asarray(blocks[_PRODUCTS[question.kind]])[0]
    if question.values["intercept"] == "common":
        found, _ = rebuild_from_products(unpack_upper(packed, 1 + len(columns)), binary)
        return link_equal(found, rows)
    if len(packed) != count_upper(len(columns)):  # random intercepts have a column of ones as well
        products = unpack_upper(packed, 1 + len(columns))[1:, 1:]
    else:
        products = unpack_upper(packed, len(columns))
    mean = rows.mean(axis=0)
    found = rebuild_from_centred(products, mean, binary & (rows.sum(axis=0) == 1))
    rebuilt: Array = relative_errors(found, rows, mean) <= REBUILT
    return rebuilt


def _read_times(blocks: Blocks, x: Array) -> Array:
    """Tell which patients (n,) are rebuilt from sums by time: the only event of an interval, or the only one who leaves."""
    found = rebuild_from_risk_sets(np.asarray(blocks["S0"]), np.asarray(blocks["S1"]))
    if "D0" in blocks:
        single = np.asarray(blocks["d"]) == 1
        found = np.concatenate([found, np.asarray(blocks["D1"])[single] / np.asarray(blocks["D0"])[single, None]])
    return link_equal(found, x)


def _link_trees(
    attacked: AttackedRun, trees: Mapping[int, SeenRound], edges: Any, x: Array, y: Array
) -> tuple[int, float, float]:
    from grandrounds.capabilities.statistics.boosting_question import unpack_edges
    from grandrounds.capabilities.statistics.models.column_trees import bin_values
    from grandrounds.capabilities.statistics.models.columns import find_columns, read_columns

    encoding: Any = attacked.run.model.encoding
    bins = bin_values(read_columns(x, find_columns(encoding)), *unpack_edges(*edges))
    return max((judge_round(seen, bins, y) for seen in trees.values()), key=lambda one: one[0])


@dataclass
class SeenRound:
    """Cells of one row that the server saw in one round: (column, bin) by (gradient, curvature); and counts of cells."""

    cells: dict[tuple[int, ...], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    filled: int = 0
    single: int = 0

    def add(self, columns: Array, sums: Array) -> None:
        """Record the histogram of one node, (columns, bins, 3): gradients, curvatures and rows."""
        rows = sums[..., 2]
        self.filled += int((rows > 0).sum())
        self.single += int((rows == 1).sum())
        for place, bin in zip(*np.nonzero(rows == 1), strict=True):
            self.cells[tuple(sums[place, bin, :2].tolist())].add((int(columns[place]), int(bin)))

    def links(self) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
        """Yield gradient and bins by column of what looks like one patient; columns that contradict themselves are left out."""
        for gradient, cells in self.cells.items():
            bins: dict[int, set[int]] = defaultdict(set)
            for column, bin in cells:
                bins[column].add(bin)
            yield gradient, {column: min(found) for column, found in bins.items() if len(found) == 1}


def read_level(question: Question, total: Blocks, seen: SeenRound, known: dict[tuple[int, int], Array]) -> None:
    """Read the histograms of one level: of the asked nodes, and of their siblings by subtraction. All trees share one root.

    Args:
        question: The question of the level.
        total: Its summed answer.
        seen: Receives the cells of one row.
        known: Histograms by tree and node, which this call adds to.
    """
    v: Any = question.values
    widths, first = np.asarray(v["edge_counts"], int) + 2, 0
    curved = total.get("h", np.zeros_like(total["g"]))
    for tree, node in zip(
        np.asarray(v["asked_tree"], int).tolist(), np.asarray(v["asked_node"], int).tolist(), strict=True
    ):
        columns = np.asarray(v["tree_columns"], int)[tree]
        sums = np.zeros((len(widths), int(widths.max()), 3))
        for column in columns.tolist():
            part = slice(first, first + int(widths[column]))
            sums[column, : widths[column]] = np.column_stack([total["g"][part], curved[part], total["rows"][part]])
            first += int(widths[column])
        nodes = {node: sums}
        if node:
            parent = (node - 1) // 2
            rest = np.zeros_like(sums)
            rest[columns] = known[tree if parent else 0, parent][columns] - sums[columns]
            nodes[node + 1 if node % 2 else node - 1] = rest
        for number, histogram in nodes.items():
            known[tree, number] = histogram
            seen.add(columns, histogram[columns])


def judge_round(seen: SeenRound, bins: Array, y: Array) -> tuple[int, float, float]:
    """Compare links with the truth.

    Args:
        seen: Cells of one round.
        bins: The bin of each row and column, (n, columns).
        y: (n,) outcome, 1 for the event.

    Returns:
        Patients with at least `FEWEST` columns linked, their mean number of columns, and the share of right links.
    """
    exposed: dict[int, int] = {}
    links = right = 0
    for gradient, linked in seen.links():
        if len(linked) < FEWEST:
            continue
        links += 1
        places, found = np.array(list(linked)), np.array(list(linked.values()))
        matches = np.flatnonzero((bins[:, places] == found).all(axis=1) & ((y == 1) == (gradient[0] < 0)))
        if len(matches) == 1:
            right += 1
            exposed[int(matches[0])] = max(exposed.get(int(matches[0]), 0), len(linked))
    return (
        len(exposed),
        float(np.mean(list(exposed.values()))) if exposed else 0.0,
        right / links if links else float("nan"),
    )
