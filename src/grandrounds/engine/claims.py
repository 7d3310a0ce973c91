"""Check claims of sites before they are used: summaries, row counts, tallies, shapes of arrays.

A site may be wrong, broken or dishonest. Impossible numbers, text that is not JSON, or a row count that differs from set-up
exclude that site from the exchange, with a reason, and never stop the run. A false claim that is possible passes: robust
aggregation (`method.robust`) limits its effect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.image_encoding import KIND, ImageSummary
from grandrounds.data.summary import Moments, Summary
from grandrounds.metrics.names import metric_range
from grandrounds.protocol.messages import Answers, Ask, Payload
from grandrounds.protocol.tasks import EVALUATE, PREPARE, SUMMARISE, named_like, spec_of
from grandrounds.site.stack import CLEAN, PARTS

SHAPE = "sent values of another shape"
MOST_ROWS = 2**31
"""Largest accepted number of rows of one site, above any hospital's."""

BAD_SUMMARY = "sent an impossible summary of its columns"
BAD_ROWS = "sent impossible row counts or notes"
OTHER_ROWS = "reported another number of rows than at set-up"
BAD_TALLY = "sent an impossible tally"

_CELLS = 2**23
"""Largest absolute number of a quantile cell."""

_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""Raised where an answer is not of the agreed form; broken JSON is a ValueError."""

Rows = Mapping[str, Mapping[str, int]]
Shapes = dict[str, tuple[int, ...]]


def doubt(ask: Ask, block: Answers, agreed: Rows) -> dict[int, str]:
    """Find the sites of a block with impossible answers.

    Args:
        ask: The Ask that was answered.
        block: Answers of some sites, as received.
        agreed: By site, the rows of each part that it reported at set-up; a site that is not named may report any number.

    Returns:
        The position of each such site in the block, with the reason.
    """
    if not len(block):
        return {}
    if ask.task == SUMMARISE:
        return _each(block, lambda _, values: _is_summary(values, ask), BAD_SUMMARY)
    if ask.task == PREPARE:
        return _each(block, lambda _, values: _is_prepared(values), BAD_ROWS)
    if spec_of(ask.task).is_training and "count" in block:
        counts = zip(block.sites, block["count"], strict=True)
        return {k: OTHER_ROWS for k, (site, count) in enumerate(counts) if not _is_count(count, agreed.get(site))}
    if ask.task == EVALUATE:
        return dict.fromkeys(np.flatnonzero(~_possible_tallies(block, agreed)).tolist(), BAD_TALLY)
    return {}


def _each(block: Answers, check: Callable[[str, Payload], bool], why: str) -> dict[int, str]:
    """Find the positions of sites whose values fail a check, or cannot be read by it."""

    def passes(site: str, values: Payload) -> bool:
        try:
            return check(site, values)
        except _UNREADABLE:
            return False

    return {k: why for k, (site, values) in enumerate(block) if not passes(site, values)}


def inconsistent_shapes(shapes: Mapping[str, Shapes], *, ragged: Collection[str] = ()) -> dict[str, str]:
    """Find sites that sent an array of another shape than most, so that one faulty site does not stop a round.

    Args:
        shapes: By site, the shape of each array that it sent.
        ragged: Arrays whose shape differs between honest sites in this run, besides those that are ragged in every run.

    Returns:
        The reason for each such site; none where there are two sites or fewer, or no majority.
    """
    reasons: dict[str, str] = {}
    names = {n for sent in shapes.values() for n in sent if n.split(".")[0] not in ragged}
    for name in (n for n in names if not any(r.is_ragged for r in named_like(n))):
        usual, count = Counter(sent.get(name) for sent in shapes.values()).most_common(1)[0]
        if len(shapes) > 2 and count > len(shapes) / 2:
            reasons |= {site: SHAPE for site, sent in shapes.items() if sent.get(name) != usual}
    return reasons


def _are_counts(values: Any, largest: float = MOST_ROWS) -> bool:
    """Check that all are whole numbers from 0 to `largest`."""
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iuf":
        return False
    return bool(((numbers >= 0) & (numbers <= largest) & (numbers == np.rint(numbers))).all())


def _is_summary(values: Payload, ask: Ask) -> bool:
    payload = {name.removeprefix("summary."): value for name, value in values.items()}
    if payload.get("kind") == KIND:
        images = ImageSummary.from_payload(payload)
        sizes = _are_counts([images.rows, *images.shape]) and _are_counts(images.pixels, 2**53)
        sums = np.concatenate([np.ravel(images.sums), np.ravel(images.squares)]).astype(float)
        return sizes and bool((np.isfinite(sums) & (sums >= 0)).all()) and _are_words(images.classes, images.groups)
    if "m2" in payload:
        return _are_moments(Moments.from_payload(payload), ask)
    summary = Summary.from_payload(payload)
    columns = len(summary.count)
    if not (_are_counts(summary.rows) and _are_counts(summary.count, summary.rows) and np.ndim(summary.count) == 1):
        return False
    column, cell, count = (np.asarray(part) for part in (summary.cells.column, summary.cells.cell, summary.cells.count))
    if not (column.shape == cell.shape == count.shape and column.ndim == 1):
        return False
    if not (
        _are_counts(column, columns - 1) and _are_counts(count, summary.rows) and bool((np.abs(cell) < _CELLS).all())
    ):
        return False
    if summary.outcome is not None:
        told = np.asarray(summary.outcome, float)
        if told.shape != (3,) or not (np.isfinite(told).all() and _are_counts(told[0], summary.rows) and told[2] >= 0):
            return False
    in_cells = np.bincount(column.astype(np.int64), weights=count, minlength=columns)
    scores, weight = summary.leaks[0]
    right = np.shape(scores)[-1] == columns + len(summary.levels) and np.isfinite(weight) and weight >= 0
    return (
        right
        and bool((in_cells <= summary.count).all())
        and _are_words(*summary.levels, summary.classes, summary.groups)
    )


def _are_words(*tables: Mapping[str, int]) -> bool:
    """Check that these are counts by word."""
    return all(isinstance(w, str) for t in tables for w in t) and all(
        _are_counts(list(t.values()) or [0]) for t in tables
    )


def _are_moments(moments: Moments, ask: Ask) -> bool:
    low, high = (np.asarray(ask.shared[name], float) for name in ("low", "high"))
    count, mean, m2 = (np.asarray(part, float) for part in (moments.count, moments.mean, moments.m2))
    if not (count.shape == mean.shape == m2.shape == low.shape and _are_counts(count)):
        return False
    slack = 1e-9 * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    inside = (mean >= low - slack) & (mean <= high + slack)
    with np.errstate(over="ignore", invalid="ignore"):  # a range may span all numbers, and a column have no value here
        widest = count * (high - low + slack) ** 2  # no column deviates by more than its whole range
    return bool(((count == 0) | (inside & (m2 >= 0) & (m2 <= widest * (1 + 1e-9)))).all())


def _is_prepared(values: Payload) -> bool:
    if not all(np.ndim(values[f"{part}_rows"]) == 0 and _are_counts(values[f"{part}_rows"]) for part in PARTS):
        return False
    text = values.get("notes", "[]")
    notes = json.loads(text) if isinstance(text, str) else None
    return isinstance(notes, list) and all(isinstance(note, str) for note in notes)


def _is_count(count: Any, agreed: Mapping[str, int] | None) -> bool:
    try:
        return agreed is None or (np.ndim(count) == 0 and float(count) == agreed["train"])
    except _UNREADABLE:
        return False


def _possible_tallies(block: Answers, agreed: Rows) -> Array:
    """Find sites with possible tallies, (K,): whole, none below zero, and adding up to one number of rows."""
    good = np.ones(len(block), bool)
    for part in (*PARTS, CLEAN, *_parts_by_column(block)):
        told = {n.partition(".")[2]: c for n, c in block.columns.items() if n.startswith(f"{part}.")}
        if "count" not in told or len(told["count"]) != len(block):  # a simulation has summed them already
            continue
        fields = {name: column for name, column in told.items() if isinstance(column, np.ndarray)}
        if len(fields) < len(told):
            return np.zeros(len(block), bool)
        good &= _is_tally(fields, len(block))
        rows = "test" if part == CLEAN else part.partition("_groups")[0]
        most = [agreed.get(site, {}).get(rows, MOST_ROWS) for site in block.sites]
        good &= fields["count"].reshape(len(block), -1).sum(axis=1) <= np.array(most)
    for name, column in block.columns.items():
        limits = metric_range(name.rpartition(".")[2]) if name.startswith("figures.") else None
        if limits is not None and isinstance(column, np.ndarray) and column.ndim == 1:
            good &= np.isnan(column) | ((column >= limits[0] - 1e-9) & (column <= limits[1] + 1e-9))
    return good


def _parts_by_column(block: Answers) -> list[str]:
    """Return the tallies by the groups of a column in these answers: `test_groups.0`."""
    names = (n.rpartition(".")[0] for n in block.columns)
    return list(dict.fromkeys(n for n in names if n.split(".")[0] in ("test_groups", "val_groups")))


def _is_tally(fields: Mapping[str, Array], sites: int) -> Array:
    """Find the consistent tallies among these (K, ...), (K,)."""
    count = fields["count"].reshape(sites, -1)
    good = np.ones(sites, bool)
    for name, column in fields.items():
        flat = column.reshape(sites, -1)
        good &= np.isfinite(flat).all(axis=1)
        if name != "sums":  # errors of predicted numbers have a sign
            good &= flat.min(axis=1, initial=0) >= -1e-9
        if name in ("count", "confusion", "histogram"):
            good &= (flat == np.rint(flat)).all(axis=1)
    if "confusion" in fields:
        rows = fields["confusion"].reshape(sites, count.shape[1], -1).sum(axis=2)
        good &= (rows == count).all(axis=1)
    if "reliability" in fields:
        binned = fields["reliability"].reshape(sites, count.shape[1], -1, 3)
        good &= (binned[..., 0].sum(axis=2) == count).all(axis=1)
        good &= (binned[..., 1:] <= binned[..., :1] * (1 + 1e-6) + 1e-6).reshape(sites, -1).all(axis=1)
    if "histogram" in fields and "confusion" in fields:
        classes = fields["confusion"].shape[-1]
        heads = 1 if classes == 2 else classes
        scored = fields["histogram"].reshape(sites, count.shape[1], heads, -1).sum(axis=3)
        good &= (scored == count[:, :, None]).reshape(sites, -1).all(axis=1)
    return good
