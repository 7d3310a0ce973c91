"""From the replies of Flower nodes to Answers: what a method asked for is read, and what cannot be used is left out and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.engine.faults import IMPOSSIBLE, NOT_FINITE, finite_rows, possible_rows
from grandrounds.integrations.flower.parameters import Parameters
from grandrounds.integrations.flower.reports import PREFIX, REPORTS, key_of
from grandrounds.protocol.messages import Answers

Explain = Callable[[ArrayRecord], Mapping[str, Any]]
"""Explains a node's model at the server: what a helper of `grandrounds.flower.client` gives for it."""

SILENT = "did not answer"
STRANGE = "answered without having been asked"


@dataclass(frozen=True)
class Wanted:
    """What is read of a reply: the reports, the columns of them that must be there, and the model where it has come along."""

    reports: tuple[str, ...]
    must: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    model: bool = True
    rows: bool = True


@dataclass(frozen=True)
class Mail:
    """Replies by node, in the order of their ids, and the nodes that failed with the reason."""

    contents: Mapping[str, RecordDict]
    failed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, replies: Iterable[Message]) -> Mail:
        contents: dict[str, RecordDict] = {}
        failed: dict[str, str] = {}
        for message in sorted(replies, key=lambda m: m.metadata.src_node_id):
            node = str(message.metadata.src_node_id)
            if message.has_error():  # the code alone: a reason can carry values of patients
                failed[node] = f"failed (Flower's error code {message.error.code})"
            else:
                contents[node] = message.content
        return cls(contents, failed)


@dataclass(frozen=True)
class Heard:
    """The replies of one exchange that can be used, side by side; the others' nodes are `answers.missing`, with the reason."""

    answers: Answers
    contents: Mapping[str, RecordDict] = field(default_factory=dict)


class _Unusable(Exception):
    """Why one reply is left out."""


class _NotSent(_Unusable):
    """A key is not in a reply: the client does not make it yet."""


@dataclass(frozen=True)
class Reader:
    """Reads replies of nodes that were sent a model with these parameters."""

    parameters: Parameters
    rows_key: str
    arrays_key: str
    explain: Explain | None = None

    def read(self, mail: Mail, asked: Sequence[str], wanted: Wanted) -> Heard:
        """What was heard of the nodes that were asked; a key that no node sends is the app's mistake, and said so."""
        rows: dict[str, dict[str, Any]] = {}
        missing = dict(mail.failed)
        not_sent: list[str] = []
        for node, content in mail.contents.items():
            if node not in asked:
                missing[node] = STRANGE
                continue
            try:
                rows[node] = self._row(content, wanted)
            except _Unusable as e:
                missing[node] = str(e)
                not_sent += [f"node {node} {e}"] if isinstance(e, _NotSent) else []
        if not_sent and not rows:
            raise BadInput(not_sent[0], code="missing-report")
        missing |= _of_other_lengths(rows)
        answers = _usable(Answers.from_rows([(n, row) for n, row in rows.items() if n not in missing], missing=missing))
        answers.missing |= {n: SILENT for n in asked if n not in answers.sites and n not in answers.missing}
        return Heard(answers, {n: mail.contents[n] for n in answers.sites})

    def _row(self, content: RecordDict, wanted: Wanted) -> dict[str, Any]:
        """The columns of one reply; the model first, since one that is no numbers cannot be explained."""
        row: dict[str, Any] = {}
        if wanted.model:
            row["model"] = self.model(content)
        metrics: dict[str, Any] = {}
        for record in content.metric_records.values():
            metrics |= dict(record)
        arrays = self.arrays(content)
        if self.explain is not None and wanted.reports and arrays is not None:
            metrics |= self.explain(arrays)
        if wanted.rows:
            row["count"] = _rows(metrics, self.rows_key)
        for report in wanted.reports:
            row |= _columns(report, metrics, wanted)
        return row

    def arrays(self, content: RecordDict) -> ArrayRecord | None:
        """The model of a reply: under the strategy's key, or the only ArrayRecord there is."""
        records = content.array_records
        only = next(iter(records.values())) if len(records) == 1 else None
        return records.get(self.arrays_key, only)

    def model(self, content: RecordDict) -> Array:
        """The model of a reply as a vector."""
        arrays = self.arrays(content)
        if arrays is None:
            raise _NotSent(f"sent no model: put an ArrayRecord under '{self.arrays_key}' into the reply")
        if not self.parameters.fits(arrays):
            raise _Unusable("sent a model whose arrays have other names or shapes than those it was sent")
        vector = self.parameters.pack(arrays)
        if not np.isfinite(vector).all():
            raise _Unusable(NOT_FINITE)
        return vector


def without_ours(content: RecordDict) -> RecordDict:
    """A reply for Flower's own averaging of metrics: without our keys, of which a mean says nothing."""
    out = RecordDict()
    for name, record in content.metric_records.items():
        out[name] = MetricRecord({k: v for k, v in record.items() if not k.startswith(PREFIX)})
    return out


def _rows(metrics: Mapping[str, Any], key: str) -> float:
    if key not in metrics:
        raise _NotSent(f"sent no '{key}' in its MetricRecord: say there how many rows it trained on")
    rows = metrics[key]
    if isinstance(rows, list) or not (np.isfinite(rows) and rows > 0):
        raise _Unusable(f"sent a '{key}' that is no number of rows above 0")
    return float(rows)


def _columns(name: str, metrics: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """One report's columns from a MetricRecord. What may be left out is not a number where it is."""
    report = REPORTS[name]
    row: dict[str, Any] = {}
    for column in report.columns:
        key = key_of(column)
        if column in wanted.never:
            continue
        if key not in metrics:
            if column in wanted.must or column not in report.optional:
                add = f"add what grandrounds.flower.client.{report.helper} gives to the reply's metrics"
                raise _NotSent(f"sent no '{key}' in its MetricRecord: {add}")
            if column not in report.lists:
                row[column] = float("nan")
            continue
        value = metrics[key]
        if isinstance(value, list) != (column in report.lists):
            raise _Unusable(f"sent a '{key}' that is {'no list' if column in report.lists else 'a list'}")
        row[column] = np.asarray(value, float)
    return row


def _of_other_lengths(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Nodes whose lists have another length than most nodes' have, each with the reason."""
    out: dict[str, str] = {}
    for column in dict.fromkeys(c for row in rows.values() for c, v in row.items() if np.ndim(v) == 1 and c != "model"):
        sizes = {node: len(row[column]) if column in row else 0 for node, row in rows.items()}
        usual = Counter(sizes.values()).most_common(1)[0][0]
        for node, size in sizes.items():
            if size != usual:
                out[node] = f"sent {size} numbers in '{key_of(column)}', where most nodes sent {usual}"
    return out


def _usable(answers: Answers) -> Answers:
    """Without nodes that sent what is no number, or cannot be: by the local engine's own rules."""
    for look, why in ((finite_rows, NOT_FINITE), (possible_rows, IMPOSSIBLE)):
        good = look(answers)
        if not good.all():
            lost = {answers.sites[k]: why for k in np.flatnonzero(~good)}
            answers = answers.only(np.flatnonzero(good), lost)
    return answers
