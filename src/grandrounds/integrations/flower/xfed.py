"""XFed as a Flower strategy: nodes say how right they are, and for which reasons; only those that are chosen send a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from grandrounds.core.errors import BadInput
from grandrounds.integrations.flower.reading import Heard, Mail, Wanted
from grandrounds.integrations.flower.reports import KEEP, ROUND, UPLOAD
from grandrounds.integrations.flower.strategy import Begun, ByMethod
from grandrounds.methods.base import Round
from grandrounds.protocol.messages import Ask

_NEEDS = {"grid": "rationale.grid", "masks": "rationale.xai"}


@dataclass
class _Chosen:
    """A round in the middle: nodes have said their scores, and those that are chosen have been asked for their models."""

    round: int
    work: Round
    heard: Heard
    nodes: tuple[str, ...]
    early: Mapping[str, RecordDict]  # replies of nodes that sent their models with their scores


class XFed(ByMethod):
    """Flower's FedAvg of the nodes that are right for the right reasons.

    `xfed` is the section [method.xfed] of an experiment: keep, xai_share, score, measure, until, weights. Unlike there `score`
    is "masks" where it is not said: heat maps against truth masks, which `grandrounds.flower.client.xfed_report` does.

    A round has two exchanges. `configure_train` has nodes train and say their scores, for which it waits at most
    `score_timeout` seconds; the messages it returns ask the chosen for their models, and the others' uploads are saved.
    Clients keep their model meanwhile (`grandrounds.flower.answer_with` and `kept`). From a client that sends its model with its
    scores it is taken as it is, and nothing is saved; the record says so.
    """

    method_name, section = "xfed", "xfed"

    def __init__(self, xfed: Mapping[str, Any] | None = None, *, score_timeout: float = 3600, **fedavg: Any) -> None:
        super().__init__({"score": "masks", **(xfed or {})}, explain=None, **fedavg)
        told = self.method.settings.xfed
        if told.score_at != "site":
            raise BadInput(
                "XFed: xfed.score_at can be 'site' alone in a Flower app: the server holds no scoring pictures",
                code="unsupported-setting",
            )
        self.until = int(told.until)
        self.score_timeout = score_timeout
        self._chosen: _Chosen | None = None
        self._notes: tuple[str, ...] = ()

    def wanted(self, ask: Ask) -> Wanted:
        """The scores that sites are ranked by must be there."""
        wanted = super().wanted(ask)
        needs = frozenset({"rationale.accuracy", "rationale.loss", _NEEDS[self.method.settings.xfed.score]})
        return replace(wanted, must=needs if wanted.reports else frozenset())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have nodes train and say their scores, and ask the chosen for their models."""
        choosing = not (self.until and server_round > self.until)
        config[KEEP] = choosing
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._chosen = None
        if not choosing or not messages:
            return messages
        begun = self.begun(server_round)
        heard = self.heard(begun, grid.send_and_receive(messages=messages, timeout=self.score_timeout))
        if not len(heard.answers):
            self.lost(begun, heard)
            self._begun = replace(begun, asked=())
            return []
        return self._choose(begun, heard)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of the models of the chosen."""
        chosen = self._chosen
        if chosen is None or chosen.round != server_round:
            return super().aggregate_train(server_round, replies)
        begun, self._chosen = self.begun(server_round), None
        mail = Mail.of(replies)
        mail = replace(mail, contents={n: c for n, c in {**chosen.early, **mail.contents}.items() if n in chosen.nodes})
        models = begun.reader.read(mail, chosen.nodes, Wanted((), rows=False)).answers
        trained = chosen.heard.answers
        heard = replace(chosen.heard, answers=trained.only(range(len(trained)), models.missing))
        if not len(models):
            return self.lost(begun, heard)
        ordered = models.only([models.sites.index(n) for n in chosen.nodes if n in models.sites], {})
        return self.ended(begun, heard, self.finish(chosen.work, ordered, trained))

    def notes(self) -> Sequence[str]:
        return self._notes

    def _choose(self, begun: Begun, heard: Heard) -> list[Message]:
        """Go on with the method's round up to its second Ask, and word that for the nodes it is to."""
        work = self.method.round(self.server(begun, heard.answers))
        next(work)
        ask = work.send(heard.answers)
        assert isinstance(ask, Ask)
        nodes = ask.to or ()
        early = {n: c for n, c in heard.contents.items() if begun.reader.arrays(c) is not None}
        count = f"{len(early)} of {len(heard.contents)} nodes"
        self._notes = (
            (f"{count} sent their models with their scores, so those uploads were not saved",) if early else ()
        )
        self._chosen = _Chosen(begun.round, work, heard, nodes, early)
        told = ConfigRecord({"server-round": begun.round, ROUND: begun.round})
        content = RecordDict({self.configrecord_key: told})
        rest = [int(n) for n in nodes if n not in early]
        return list(self._construct_messages(content, rest, f"{MessageType.TRAIN}.{UPLOAD}"))
