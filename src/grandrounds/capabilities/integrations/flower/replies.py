"""Convert replies of Flower nodes to Answers; unusable replies are left out and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from grandrounds.capabilities.integrations.flower.client import PREFIX, REPORTS, metric_key
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.engine.faults import IMPOSSIBLE, NOT_FINITE, finite_rows, possible_rows
from grandrounds.protocol.messages import Answers

Metrics = Mapping[str, int | float | list[int] | list[float]]
"""Metrics of a reply by key."""

Row = dict[str, Array | float]
"""Columns of one node's answer."""

Explain = Callable[[ArrayRecord], Metrics]
"""Explains a node's model at the server; returns the metrics of a helper of `client` in this package."""

SILENT = "did not answer"
STRANGE = "answered without having been asked"


@dataclass(frozen=True)
class Parameters:
    """Names, types and shapes of a model's arrays, in order; packs an ArrayRecord into the vector that methods average."""

    shapes: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]

    @classmethod
    def from_record(cls, arrays: ArrayRecord) -> Parameters:
        """Read the headers of a record without decoding arrays."""
        return cls(tuple((name, np.dtype(a.dtype), tuple(a.shape)) for name, a in arrays.items()))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Return one type for all arrays: float32 if that suffices, else float64."""
        small = all(kind in (np.float16, np.float32) for _, kind, _ in self.shapes)
        return np.dtype(np.float32 if small else np.float64)

    def fits(self, arrays: ArrayRecord) -> bool:
        """Tell whether a record has these arrays in these shapes, in any order."""
        theirs = {name: tuple(a.shape) for name, a in arrays.items()}
        return theirs == {name: shape for name, _, shape in self.shapes}

    def pack(self, arrays: ArrayRecord) -> Array:
        """Pack all entries into one vector (P,)."""
        parts = [arrays[name].numpy().astype(self.dtype, copy=False).ravel() for name, _, _ in self.shapes]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def unpack(self, vector: Array) -> ArrayRecord:
        """Unpack a vector (P,) into a record; integers (BatchNorm's counter of batches) are rounded to their type."""
        out, start = ArrayRecord(), 0
        for name, kind, shape in self.shapes:
            size = prod(shape)
            piece = vector[start : start + size].reshape(shape)
            values = np.rint(piece) if kind.kind in "iub" else piece
            out[name] = FlowerArray(np.asarray(values).astype(kind))
            start += size
        return out


@dataclass(frozen=True)
class ReplyContent:
    """Content to read from a reply.

    Attributes:
        reports: The reports.
        required: Columns that are required although their report makes them optional.
        ignored: Columns that are not read.
        model: Read the model.
        rows: Read the number of rows.
    """

    reports: tuple[str, ...]
    required: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    model: bool = True
    rows: bool = True


@dataclass(frozen=True)
class Replies:
    """Replies by node, in the order of their ids, and failed nodes with the cause."""

    contents: Mapping[str, RecordDict]
    failed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_messages(cls, replies: Iterable[Message]) -> Replies:
        """Sort messages into replies and failures."""
        contents: dict[str, RecordDict] = {}
        failed: dict[str, str] = {}
        for message in sorted(replies, key=lambda m: m.metadata.src_node_id):
            node = str(message.metadata.src_node_id)
            if message.has_error():  # only the code: a text may contain patients' values
                failed[node] = f"failed (Flower's error code {message.error.code})"
            else:
                contents[node] = message.content
        return cls(contents, failed)


@dataclass(frozen=True)
class UsableReplies:
    """Usable replies of one exchange as Answers; the other nodes are in `answers.missing`, with the cause."""

    answers: Answers
    contents: Mapping[str, RecordDict] = field(default_factory=dict)


class _Unusable(Exception):
    """A reply that is left out, with the cause."""


class _NotSent(_Unusable):
    """A reply without a required key: the client does not compute it yet."""


@dataclass(frozen=True)
class Reader:
    """Reads replies of nodes that received a model with these parameters.

    Attributes:
        parameters: Parameters of the model.
        rows_key: Key of the number of rows in a MetricRecord.
        arrays_key: Key of the model's ArrayRecord.
        explain: Explains nodes' models at the server.
    """

    parameters: Parameters
    rows_key: str
    arrays_key: str
    explain: Explain | None = None

    def read(self, replies: Replies, nodes: Sequence[str], expected: ReplyContent) -> UsableReplies:
        """Read the replies of one exchange.

        Args:
            replies: The replies.
            nodes: The nodes that were asked.
            expected: The content to read.

        Returns:
            The usable replies.

        Raises:
            BadInput: No node sends a required key, which is a mistake in the app.
        """
        rows: dict[str, Row] = {}
        missing = dict(replies.failed)
        not_sent: list[str] = []
        for node, content in replies.contents.items():
            if node not in nodes:
                missing[node] = STRANGE
                continue
            try:
                rows[node] = self._row(content, expected)
            except _Unusable as e:
                missing[node] = str(e)
                not_sent += [f"node {node} {e}"] if isinstance(e, _NotSent) else []
        if not_sent and not rows:
            raise BadInput(not_sent[0], code="missing-report")
        missing |= _mismatched_lengths(rows)
        answers = _drop_unusable(
            Answers.from_rows([(n, row) for n, row in rows.items() if n not in missing], missing=missing)
        )
        answers.missing |= {n: SILENT for n in nodes if n not in answers.sites and n not in answers.missing}
        return UsableReplies(answers, {n: replies.contents[n] for n in answers.sites})

    def _row(self, content: RecordDict, expected: ReplyContent) -> Row:
        """Read the columns of one reply; the model first, since a model that is not finite cannot be explained."""
        row: Row = {}
        if expected.model:
            row["model"] = self.model(content)
        metrics: dict[str, int | float | list[int] | list[float]] = {}
        for record in content.metric_records.values():
            metrics |= dict(record)
        arrays = self.arrays(content)
        if self.explain is not None and expected.reports and arrays is not None:
            metrics |= self.explain(arrays)
        if expected.rows:
            row["count"] = _row_count(metrics, self.rows_key)
        for report in expected.reports:
            row |= _report_columns(report, metrics, expected)
        return row

    def arrays(self, content: RecordDict) -> ArrayRecord | None:
        """Return the model of a reply: under the strategy's key, or the only ArrayRecord."""
        records = content.array_records
        only = next(iter(records.values())) if len(records) == 1 else None
        return records.get(self.arrays_key, only)

    def model(self, content: RecordDict) -> Array:
        """Return the model of a reply as a vector."""
        arrays = self.arrays(content)
        if arrays is None:
            raise _NotSent(f"sent no model: put an ArrayRecord under '{self.arrays_key}' into the reply")
        if not self.parameters.fits(arrays):
            raise _Unusable("sent a model whose arrays have other names or shapes than the one it received")
        vector = self.parameters.pack(arrays)
        if not np.isfinite(vector).all():
            raise _Unusable(NOT_FINITE)
        return vector


def without_own_metrics(content: RecordDict) -> RecordDict:
    """Remove our keys from a reply before Flower averages its metrics: their mean is meaningless."""
    out = RecordDict()
    for name, record in content.metric_records.items():
        out[name] = MetricRecord({k: v for k, v in record.items() if not k.startswith(PREFIX)})
    return out


def _row_count(metrics: Metrics, key: str) -> float:
    if key not in metrics:
        raise _NotSent(f"sent no '{key}' in its MetricRecord: put the number of training rows there")
    rows = metrics[key]
    if isinstance(rows, list) or not (np.isfinite(rows) and rows > 0):
        raise _Unusable(f"sent a '{key}' that is not a number of rows above 0")
    return float(rows)


def _report_columns(name: str, metrics: Metrics, expected: ReplyContent) -> Row:
    """Read one report's columns from a MetricRecord; an omitted optional column is NaN."""
    report = REPORTS[name]
    row: Row = {}
    for column in report.columns:
        key = metric_key(column)
        if column in expected.ignored:
            continue
        if key not in metrics:
            if column in expected.required or column not in report.optional:
                helper = f"grandrounds.capabilities.integrations.flower.client.{report.helper}"
                add = f"add the result of {helper} to the reply's metrics"
                raise _NotSent(f"sent no '{key}' in its MetricRecord: {add}")
            if column not in report.lists:
                row[column] = float("nan")
            continue
        value = metrics[key]
        if isinstance(value, list) != (column in report.lists):
            raise _Unusable(f"sent a '{key}' that is {'not a list' if column in report.lists else 'a list'}")
        row[column] = np.asarray(value, float)
    return row


def _mismatched_lengths(rows: Mapping[str, Row]) -> dict[str, str]:
    """Find nodes whose lists differ in length from those of most nodes, with the cause."""
    out: dict[str, str] = {}
    for column in dict.fromkeys(c for row in rows.values() for c, v in row.items() if np.ndim(v) == 1 and c != "model"):
        sizes = {node: np.size(row[column]) if column in row else 0 for node, row in rows.items()}
        usual = Counter(sizes.values()).most_common(1)[0][0]
        for node, size in sizes.items():
            if size != usual:
                out[node] = f"sent {size} numbers in '{metric_key(column)}', but most nodes sent {usual}"
    return out


def _drop_unusable(answers: Answers) -> Answers:
    """Drop nodes with values that are not finite or impossible, by the local engine's rules."""
    for look, why in ((finite_rows, NOT_FINITE), (possible_rows, IMPOSSIBLE)):
        good = look(answers)
        if not good.all():
            lost = {answers.sites[k]: why for k in np.flatnonzero(~good)}
            answers = answers.only(np.flatnonzero(good), lost)
    return answers
