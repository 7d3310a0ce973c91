"""Flower without a network: a Grid whose nodes are functions in this process. Messages are Flower's own, and travel as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Node = Callable[[Message], Message]
Spoil = Callable[[Message], Message | None]


class NearGrid(Grid):
    """Answers a message when its reply is asked for; what a node raises becomes Flower's error reply."""

    def __init__(self, nodes: Mapping[int, Node], *, spoil: Spoil | None = None) -> None:
        """`spoil`: what happens to a reply on its way; None of it is a reply that never comes."""
        # a process of Flower's would be told
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self._nodes, self._spoil = dict(nodes), spoil
        self._run = Run.create_empty(1)
        self._waiting: dict[str, bytes] = {}
        self.sent: list[Message] = []

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = []
        for message in messages:
            self.sent.append(message)
            id = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = id
            self._waiting[id] = message_to_proto(message).SerializeToString()
            pushed.append(id)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to whichever was sent first: sites that take equally long answer one after another, in that order."""
        asked = set(message_ids)
        first = next((m for m in self._waiting if m in asked), None)
        return [] if first is None else self._came(self._waiting.pop(first))

    def _came(self, data: bytes) -> list[Message]:
        reply = self._answered(_parsed(data))
        kept = reply if self._spoil is None else self._spoil(reply)
        return [] if kept is None else [_parsed(message_to_proto(kept).SerializeToString())]

    def _answered(self, message: Message) -> Message:
        try:
            return self._nodes[message.metadata.dst_node_id](message)
        except Exception as e:
            return Message(Error(code=2, reason=str(e)), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        ids = list(self.push_messages(messages))
        return [reply for _ in ids for reply in self.pull_messages(ids)]


def _parsed(data: bytes) -> Message:
    return message_from_proto(MessageProto.FromString(data))
