"""The two tasks before training: summarise the columns, then encode the rows as agreed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import SURVIVAL
from grandrounds.data.design import describe_incomplete
from grandrounds.data.event import event_place
from grandrounds.data.kinds import encoding_from, summary_payload
from grandrounds.data.subgroups import count_words, number_groups
from grandrounds.models.dense import targets
from grandrounds.models.losses import rank_times
from grandrounds.protocol.messages import Ask, Columns
from grandrounds.site.stack import CLEAN, PARTS, Part, Stack
from grandrounds.site.tasks import open_classes, penalty


def summarise(stack: Stack, ask: Ask, members: Array, *, smallest: int = 0) -> dict[str, list[Any]]:
    """Answer task `summarise`: each site's summary of its training rows, as columns of an Answer.

    An Ask with `low` and `high` gets mean and deviation of each numeric column, clipped to that range. A column with fewer than
    `smallest` values inside the range is reported as empty, because its mean would disclose the counts outside.
    """
    answers = []
    ranges = (np.asarray(ask.shared["low"]), np.asarray(ask.shared["high"])) if "low" in ask.shared else None
    for k in members:
        rows = stack.rows[k].train
        mine = [] if stack.groups is None else stack.groups[rows].tolist()
        words = count_words(stack.data.take(rows), stack.subgroups, stack.bands) if stack.subgroups and ranges is None else {}
        bare = _bare(stack.data).take(rows)
        answers.append(summary_payload(bare, groups=mine, subgroups=words, ranges=ranges, smallest=smallest))
    return {f"summary.{name}": [a[name] for a in answers] for name in answers[0]}


def prepare(stack: Stack, ask: Ask, dtype: np.typing.DTypeLike) -> tuple[Stack, Columns]:
    """Answer task `prepare`: encode every site's rows, and report row counts and notes on imputed values."""
    encoding: Any = encoding_from(json.loads(str(ask.shared["encoding"])))
    parts = {}
    x = encoding.encode(stack.data, dtype)
    y = encoding.labels(stack.data)
    target, time = encode_targets(encoding, stack.data, y, dtype)
    g = np.zeros(len(y), np.int64) if stack.groups is None else encoding.group_numbers(stack.groups.tolist())
    numbers = number_groups(encoding.subgroups, stack.data) if encoding.subgroups else None
    for name in PARTS:
        per_site = [getattr(r, name) for r in stack.rows]
        rows = np.concatenate(per_site) if per_site else np.empty(0, np.int64)
        parts[name] = Part(
            x=x[rows],
            y=y[rows],
            target=target[rows],
            group=g[rows],
            offsets=np.cumsum([0, *(len(r) for r in per_site)]),
            patient=stack.data.patient[rows] if stack.by_patient and stack.data.patient is not None else None,
            time=None if time is None else time[rows],
            subgroups=None if numbers is None else numbers[rows],
        )
    if stack.clean is not None:
        parts[CLEAN] = replace(parts["test"], x=encoding.encode(stack.clean, dtype))
    notes = [_site_notes(stack, k, encoding) for k in range(len(stack.names))]
    answer: Columns = {f"{name}_rows": parts[name].counts for name in PARTS}
    answer["notes"] = [json.dumps(n) for n in notes]
    if x.ndim == 2:
        answer["centre"] = _centres(parts["train"])
    tasks = json.loads(str(ask.shared["spec"])).get("tasks", [])
    open_at_sites = open_classes(encoding.classes, stack.tasks, tasks)
    event = event_place(encoding.classes, encoding.event)
    closed = None if open_at_sites is None else penalty(open_at_sites, dtype)
    outcome = getattr(encoding, "outcome", None)
    return replace(stack, parts=parts, penalty=closed, event=event, outcome=outcome), answer


def encode_targets(encoding: Any, data: Any, y: Array, dtype: np.typing.DTypeLike) -> tuple[Array, Array | None]:
    """Compute the targets (N, ...) of training, and the follow-up times (N,) of survival data."""
    outcome = getattr(encoding, "outcome", None)
    if outcome is None:
        return targets(y, 1 if len(encoding.classes) == 2 else len(encoding.classes), dtype), None
    if outcome.task == SURVIVAL:
        return np.stack([y, rank_times(data.duration)], axis=1).astype(dtype), data.duration
    return outcome.standardise(y)[:, None].astype(dtype), None


def _centres(train: Part) -> Any:
    """Compute the mean input of each site's training rows, (K, d), for the consortium's mean patient."""
    ends = np.concatenate([np.zeros((1, train.x.shape[1])), np.cumsum(train.x, axis=0, dtype=float)])[train.offsets]
    return np.diff(ends, axis=0) / np.maximum(train.counts, 1)[:, None]


def _site_notes(stack: Stack, k: int, encoding: Any) -> list[str]:
    rows = stack.rows[k]
    notes = encoding.notes(_bare(stack.data).take(np.concatenate([rows.train, rows.val, rows.test])))
    return [*notes, *describe_incomplete(_count_incomplete(stack, k))]


def _count_incomplete(stack: Stack, k: int) -> int:
    """Count the rows of a site that were left out for a missing value; 0 for simulated sites, which never had them."""
    sites = getattr(stack.data, "incomplete", None)
    if sites is None:
        return 0
    mine = stack.names[k] if stack.data.site is not None else "" if len(stack.names) == 1 else None
    return int((sites == mine).sum())


def _bare(data: Any) -> Any:
    """Return the rows without their raw table, which is not needed here."""
    from grandrounds.data.table import Table

    return replace(data, table=Table({}, data.table.source)) if hasattr(data, "table") else data
