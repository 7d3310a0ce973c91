"""XFed as a Flower strategy: nodes report accuracy and rationale scores; only selected nodes send a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from grandrounds.capabilities.integrations.flower.client import KEEP, ROUND, UPLOAD
from grandrounds.capabilities.integrations.flower.replies import Replies, ReplyContent, UsableReplies
from grandrounds.capabilities.integrations.flower.strategy import MethodStrategy, TrainingRound
from grandrounds.core.errors import BadInput
from grandrounds.methods.base import Round
from grandrounds.protocol.messages import Ask

_NEEDS = {"grid": "rationale.grid", "masks": "rationale.xai"}


@dataclass
class _Selection:
    """A round between its exchanges: nodes have reported scores, and the selected ones were asked for their models."""

    round: int
    work: Round
    scored: UsableReplies
    nodes: tuple[str, ...]
    early: Mapping[str, RecordDict]  # replies of nodes that sent their models with their scores


class XFed(MethodStrategy):
    """Flower's FedAvg over the nodes with the best accuracy and rationale scores.

    A round has two exchanges. `configure_train` makes nodes train and report scores; the returned messages ask the selected
    nodes for their models, which saves the others' uploads. Clients store their model meanwhile (`answer_with` and
    `send_kept_model` of this package). If a client sends its model with its scores, it is used and no upload is saved; the
    record says so.

    Args:
        xfed: Section [method.xfed] of an experiment: keep, xai_share, score, measure, until, weights. Heat maps are scored
            against truth masks, as `grandrounds.capabilities.integrations.flower.client.xfed_report` computes them, or in
            scenes with score = "grid".
        score_timeout: Seconds to wait for scores.
        fedavg: Arguments of Flower's FedAvg.

    Raises:
        BadInput: A setting is not available in a Flower app.
    """

    method_name, section = "xfed", "xfed"

    def __init__(self, xfed: Mapping[str, object] | None = None, *, score_timeout: float = 3600, **fedavg: Any) -> None:
        super().__init__(xfed or {}, explain=None, **fedavg)
        settings = self.method.settings.xfed
        if settings.score_at != "site":
            raise BadInput(
                "XFed: xfed.score_at must be 'site' in a Flower app, because the server has no scoring images",
                code="unsupported-setting",
            )
        self.until = int(settings.until)
        self.score_timeout = score_timeout
        self._chosen: _Selection | None = None
        self._notes: tuple[str, ...] = ()

    def expected_content(self, ask: Ask) -> ReplyContent:
        """Require the scores by which nodes are ranked."""
        content = super().expected_content(ask)
        needs = frozenset({"rationale.accuracy", "rationale.loss", _NEEDS[self.method.settings.xfed.score]})
        return replace(content, required=needs if content.reports else frozenset())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make nodes train and report scores, and ask the selected nodes for their models."""
        choosing = not (self.until and server_round > self.until)
        config[KEEP] = choosing
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._chosen = None
        if not choosing or not messages:
            return messages
        training = self.current_round(server_round)
        usable = self.read_replies(training, grid.send_and_receive(messages=messages, timeout=self.score_timeout))
        if not len(usable.answers):
            self.abandon_round(training, usable)
            self._training = replace(training, nodes=())
            return []
        return self._choose(training, usable)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the models of the selected nodes."""
        chosen = self._chosen
        if chosen is None or chosen.round != server_round:
            return super().aggregate_train(server_round, replies)
        training, self._chosen = self.current_round(server_round), None
        uploads = Replies.from_messages(replies)
        contents = {n: c for n, c in {**chosen.early, **uploads.contents}.items() if n in chosen.nodes}
        models = training.reader.read(
            replace(uploads, contents=contents), chosen.nodes, ReplyContent((), rows=False)
        ).answers
        trained = chosen.scored.answers
        usable = replace(chosen.scored, answers=trained.only(range(len(trained)), models.missing))
        if not len(models):
            return self.abandon_round(training, usable)
        ordered = models.only([models.sites.index(n) for n in chosen.nodes if n in models.sites], {})
        return self.finish_round(training, usable, self.finish(chosen.work, ordered, trained))

    def notes(self) -> Sequence[str]:
        """Note in the record which uploads were not saved."""
        return self._notes

    def _choose(self, training: TrainingRound, usable: UsableReplies) -> list[Message]:
        """Continue the method's round up to its second Ask, and create its messages."""
        work = self.method.round(self.server(training, usable.answers))
        next(work)
        ask = work.send(usable.answers)
        assert isinstance(ask, Ask)
        nodes = ask.to or ()
        early = {n: c for n, c in usable.contents.items() if training.reader.arrays(c) is not None}
        count = f"{len(early)} of {len(usable.contents)} nodes"
        self._notes = (
            (f"{count} sent their models with their scores, so those uploads were not saved",) if early else ()
        )
        self._chosen = _Selection(training.round, work, usable, nodes, early)
        config = ConfigRecord({"server-round": training.round, ROUND: training.round})
        content = RecordDict({self.configrecord_key: config})
        rest = [int(n) for n in nodes if n not in early]
        return list(self._construct_messages(content, rest, f"{MessageType.TRAIN}.{UPLOAD}"))
