"""Flower without a network: a Grid whose nodes are ClientApps in this process. Messages are Flower's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Spoil = Callable[[Message], Message | None]


class NearGrid(Grid):
    """Answers every message at once; a node's state stays with it, and what it raises becomes Flower's error reply."""

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        *,
        run_config: Mapping[str, Any] | None = None,
        spoil: Spoil | None = None,
    ) -> None:
        """`spoil`: what happens to a reply on its way; None of it is a reply that never comes."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # a process of Flower's would be told
        self.apps, self.spoil = dict(apps), spoil
        self.sent: list[Message] = []
        self.contexts = {
            node: Context(
                1, node, {"partition-id": k, "num-partitions": len(apps)}, RecordDict(), dict(run_config or {})
            )
            for k, node in enumerate(apps)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self._answer(m) for m in messages]
        kept = replies if self.spoil is None else [self.spoil(r) for r in replies]
        return [r for r in kept if r is not None]

    def _answer(self, message: Message) -> Message:
        self.sent.append(message)
        node = message.metadata.dst_node_id
        try:
            return self.apps[node](message, self.contexts[node])
        except Exception as e:
            return Message(Error(code=2, reason=str(e)), reply_to=message)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
