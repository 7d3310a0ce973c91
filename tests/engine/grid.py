"""Flower's Grid in this process: keepers are its nodes, and every message is bytes on its way, there and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from grandrounds.keeper.flower_letters import pack, unpack
from grandrounds.keeper.keeper import Keeper


class InProcessGrid(Grid):
    """Node ids count from 1 in the order of the keepers. `carried`: bytes of messages, there and back."""

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self._nodes = dict(enumerate(keepers, start=1))
        self._run = Run.create_empty(1)
        self._sent = 0
        self._waiting: dict[str, bytes] = {}
        self.carried = [0, 0]

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
        return tuple(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        out = []
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = f"m{self._sent}"
            data = message_to_proto(message).SerializeToString()
            self.carried[0] += len(data)
            self._waiting[message.metadata.message_id] = data
            out.append(message.metadata.message_id)
        return out

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to whichever was sent first: sites that take equally long answer one after another, in that order."""
        asked = set(message_ids)
        first = next((m for m in self._waiting if m in asked), None)
        return [] if first is None else [_parsed(self._answered(self._waiting.pop(first)))]

    def _answered(self, data: bytes) -> bytes:
        message = _parsed(data)
        letter = self._nodes[message.metadata.dst_node_id].handle(unpack(message.content))
        reply = message_to_proto(Message(pack(letter), reply_to=message)).SerializeToString()
        self.carried[1] += len(reply)
        return bytes(reply)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        ids = list(self.push_messages(messages))
        return [reply for _ in ids for reply in self.pull_messages(ids)]


def _parsed(data: bytes) -> Message:
    return message_from_proto(MessageProto.FromString(data))
