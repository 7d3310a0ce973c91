"""The facts of boosted trees: the record of summary.json as typed values, and its table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.estimates import disclosure_sentence


@dataclass(frozen=True)
class TreesRecord:
    """The facts of a run of boosted trees.

    Attributes:
        trees: Number of trees.
        rounds: Rounds of boosting.
        depth: Depth of a tree.
        parallel: Trees grown at once.
        bins: Bins of a column.
        asked: Cells of summed histograms that were asked for.
        filled: Cells that hold a patient.
        single: Cells that hold one patient.
        share_single: Share of the filled cells that hold one patient; None where it was not counted.
        validation: Validation loss after each round of boosting; empty without validation rows.
        exchanges: Cost of the fit: count, numbers_sent, numbers_held, ratio, bytes_up, bytes_down.
        rows: Rows of the fit.
        sites: Hospitals in the fit.
        notes: Sentences for people.
    """

    trees: int
    rounds: int
    depth: int
    parallel: int
    bins: int
    asked: int | None = None
    filled: int | None = None
    single: int | None = None
    share_single: float | None = None
    validation: tuple[float, ...] = ()
    exchanges: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_trees(summary: Mapping[str, Any]) -> TreesRecord | None:
    """Read the facts of boosted trees from a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        The record; None for a run without trees.

    Raises:
        BadInput: The record is damaged.
    """
    values = summary.get("trees")
    if not values:
        return None
    try:
        cells = values.get("cells") or {}
        asked, filled, single = (None if cells.get(k) is None else int(cells[k]) for k in ("asked", "filled", "single"))
        share = cells.get("share_single")
        return TreesRecord(
            trees=int(values["trees"]),
            rounds=int(values["rounds"]),
            depth=int(values["depth"]),
            parallel=int(values["parallel"]),
            bins=int(values["bins"]),
            asked=asked,
            filled=filled,
            single=single,
            share_single=None if share is None else float(share),
            validation=tuple(float(v) for v in values.get("validation") or ()),
            exchanges=dict(values.get("exchanges") or {}),
            rows=int(values.get("rows") or 0),
            sites=tuple(map(str, values.get("sites") or ())),
            notes=tuple(map(str, values.get("notes") or ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its facts of trees cannot be read; run the experiment again", code="damaged-record"
        ) from None


def trees_facts(record: TreesRecord) -> list[tuple[str, str]]:
    """Return the facts of a fit as pairs of a label and a text.

    Args:
        record: The facts of a run.
    """
    rows = [
        ("trees", f"{record.trees:,} of depth {record.depth} at most"),
        ("rounds of boosting", f"{record.rounds}, {record.parallel} trees at once"),
        ("bins of a column", f"{record.bins} at most"),
    ]
    rows += [("rows", f"{record.rows:,}")] if record.rows else []
    rows += [("hospitals", str(len(record.sites)))] if record.sites else []
    rows += exchange_facts(record.exchanges)
    if record.share_single is not None:
        counts = "" if record.single is None or record.filled is None else f" ({record.single:,} of {record.filled:,})"
        rows.append(("histogram cells with one patient", f"{record.share_single:.1%}{counts}"))
    if record.validation:
        best = min(range(len(record.validation)), key=lambda k: record.validation[k])
        lowest = f"lowest {record.validation[best]:.4f} in round {best + 1}"
        rows.append(("validation loss", f"{record.validation[-1]:.4f} at the end; {lowest}"))
    return rows


def exchange_facts(sent: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the cost of a fit: exchanges, bytes of one hospital, numbers sent and held.

    Args:
        sent: The record `exchanges` of a fit.
    """
    rows = [("exchanges", f"{int(sent['count'])}")] if sent.get("count") else []
    if sent.get("bytes_up") is not None:
        up, down = int(sent["bytes_up"]), int(sent.get("bytes_down") or 0)
        rows.append(("bytes of one hospital", f"{up:,} sent, {down:,} received"))
    if sent.get("numbers_sent") is not None and sent.get("numbers_held"):
        rows.append(("numbers sent / numbers held", f"{sent['numbers_sent']:,.0f} / {sent['numbers_held']:,.0f}"))
    return rows


def trees_sentences(record: TreesRecord) -> list[str]:
    """Explain the fit and its disclosure.

    Args:
        record: The facts of a run.
    """
    lines = [
        "The trees were grown from sums over the patients of all hospitals. A tree asks for sums by column, bin and node; the "
        "next split follows from the sums alone."
    ]
    if record.depth == 1:
        lines.append("Every tree has one split, so that the model is a sum of one shape for each column (see Shapes).")
    if record.share_single is not None:
        lines.append(
            f"{record.share_single:.1%} of the histogram cells that hold a patient hold only one: such a sum is a number of "
            "that patient, with or without secure aggregation. Fewer bins, shallower trees and larger leaves lower this share."
        )
    told = disclosure_sentence(record.exchanges)
    return [*lines, *([told] if told else [])]
