"""What `rounds data check` shows of a set: its columns or pictures, its classes, and what would spoil a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from grandrounds.cli.terminal import warn
from grandrounds.core.plan import Settings
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import EncodingRules, agree_ranges, find_artefacts, ordered_classes
from grandrounds.data.event import event_line, state_event
from grandrounds.data.images import ImageSet, dark_pictures
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.data.summary import Summary
from grandrounds.data.warnings import few_events, own_table_warnings
from grandrounds.runs.federation import Consortium


def show_data(console: Console, consortium: Consortium, plan: Settings) -> None:
    """The set as it was read, and the event last: where it is in doubt that is the error to end with."""
    if isinstance(consortium.data, ImageSet):
        _show_pictures(console, consortium, consortium.data)
    else:
        _show_columns(console, consortium, consortium.data)
    for warning in own_table_warnings(consortium.data, consortium.stack.names, consortium.stack.rows, plan=plan):
        console.print(warn(warning), soft_wrap=True)
    counts = ordered_classes(Counter(consortium.data.label.tolist()), plan.data.positive)
    known = CATALOG.get(plan.data.name)
    stated = known.event if known else None
    event = state_event(counts["classes"], counts["class_counts"], plan.data.plain(), catalog=stated)
    console.print(event_line(event, counts["classes"]), soft_wrap=True)
    if event is None:
        return
    tested = np.concatenate([r.test for r in consortium.stack.rows])
    few = few_events(Counter(consortium.data.label[tested].tolist()), (event.other, event.word))
    for warning in (*few, *([event.warning] if event.warning else ())):
        console.print(warn(warning), soft_wrap=True)


def _show_pictures(console: Console, consortium: Consortium, data: ImageSet) -> None:
    channels, height, width = data.shape
    size = f"{height} x {width}, {channels} {'channel' if channels == 1 else 'channels'}"
    console.print(f"{data.name}: {len(data):,} pictures of {size}, {len(consortium.stack.names)} sites")
    console.print("classes: " + _classes(Counter(data.label.tolist()), len(data)))
    dark = dark_pictures(data)
    if dark:
        text = f"{len(dark)} of {len(data)} pictures are black, the first is number {dark[0]}"
        console.print(warn(text), highlight=False)


def _show_columns(console: Console, consortium: Consortium, data: Dataset) -> None:
    summary = Summary.of(data)
    table = Table(title=f"{data.name}: {len(data):,} rows, {len(consortium.stack.names)} sites")
    for column in ("column", "kind", "missing", "why"):
        table.add_column(column)
    gaps = {n: 1 - c / len(data) for n, c in zip(data.numeric_names, summary.count, strict=True)}
    gaps |= {n: float((data.codes[:, j] < 0).mean()) for j, n in enumerate(data.categorical_names)}
    for c in data.schema.columns:
        gap = gaps.get(c.name)
        table.add_row(c.name, c.kind, "" if gap is None else f"{gap:.1%}", c.why)
    console.print(table)
    for note in () if data.table.reading is None else data.table.reading.notes:
        console.print(f"assumed: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print("classes: " + _classes(summary.classes, len(data)))
    parts = Summary.merge([Summary.of(data.take(r.train)) for r in consortium.stack.rows if len(r.train)])
    leaks = parts.give_aways([*data.numeric_names, *data.categorical_names])
    artefacts = find_artefacts(parts, *agree_ranges(parts, clip=EncodingRules().clip), names=data.numeric_names)
    for warning in (*leaks, *artefacts):
        console.print(warn(warning), soft_wrap=True)


def _classes(counts: Mapping[str, int], rows: int) -> str:
    return ", ".join(f"{k} {v} ({v / rows:.1%})" for k, v in sorted(counts.items()))
