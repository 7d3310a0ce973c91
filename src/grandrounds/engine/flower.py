"""Letters over Flower: a `Post` on the grid of a Flower ServerApp.

Flower's own `send_and_receive` asks every three seconds, and its `pull_messages` carries answers over one after another, with
a second's wait for each part that is not there yet. Here headers are asked for at an interval of our own, and every announced
answer is carried over by a thread of its own: a site that is cut off in the middle of an upload holds up nobody else.

A letter's bytes differ from site to site in header and signature, so Flower's store, which keeps equal objects once, keeps
every letter: K sites cost K bodies, from the ServerApp to the SuperLink on the same host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as first
from typing import TYPE_CHECKING, Any, Protocol

from grandrounds.core.errors import RunFailed
from grandrounds.engine.post import FAILED, GONE, UNAVAILABLE, Reply
from grandrounds.protocol.flower_message import MESSAGE_TYPE, NotALetter, pack, require_flower, unpack

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid
    from flwr.superlink.grid import HttpGrid

LOST, REPLY_LOST, NODE_UNAVAILABLE = 3, 4, 5
"""Flower's error codes: the message, its reply, or its node is not there (`flwr.common.constant.ErrorCode`)."""

BATCH = 4 * 2**20
"""Bytes of letters that are announced together."""

UPLOAD = 200.0
"""Seconds that an announced answer may take to arrive; the SuperLink itself gives an upload up after 180 s."""

_HANDS = 8
"""Answers that are carried over or wait to be fetched at a time: what the server holds does not grow with the sites."""

STOPPED = "the run was stopped at the SuperLink"

Carry = Callable[[], Reply]


class FlowerPost:
    """A `Post` whose addresses are Flower's node ids."""

    def __init__(
        self, grid: Grid, *, interval: float = 0.1, lifetime: float = 12 * 3600.0, largest: int = 8 * 2**30
    ) -> None:
        """`lifetime`: seconds after which the SuperLink gives up a letter without an answer. `largest`: bytes of an answer from
        which on it counts as failed and is not carried over."""
        require_flower()
        self._grid, self._interval, self._lifetime = grid, interval, lifetime
        self._mail = _mail(grid, largest)
        self._sent = 0
        self._hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="post")
        self._announced: dict[str, Carry] = {}
        self._carried: dict[str, Future[Reply]] = {}

    def addresses(self) -> tuple[str, ...]:
        """Nodes that are there now."""
        return tuple(str(node) for node in sorted(_running(self._grid.get_node_ids)))

    def send(self, letters: Sequence[tuple[str, bytes]]) -> list[str]:
        """Put letters on their way; what Flower does not take comes back as gone."""
        from flwr.app import Message

        tickets: list[str] = []
        for batch in _batches(letters):
            messages = []
            for address, letter in batch:
                self._sent += 1  # part of a message's identity: equal letters, sent again, have tickets of their own
                messages.append(
                    Message(pack(letter), int(address), MESSAGE_TYPE, ttl=self._lifetime, group_id=str(self._sent))
                )
            taken = list(_running(self._grid.push_messages, messages))
            if len(taken) != len(batch):
                raise RunFailed(f"the SuperLink took {len(taken)} letters of {len(batch)}", code="superlink-refused")
            tickets += [str(ticket) if ticket else f"refused-{len(tickets)}-{self._sent}" for ticket in taken]
        for ticket in tickets:
            if ticket.startswith("refused-"):
                self._carried[ticket] = _done(Reply(ticket, None, GONE))
        return tickets

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        """What has come, as soon as there is anything; nothing after `wait` seconds."""
        end = time.monotonic() + wait
        while tickets:
            asked = [ticket for ticket in tickets if ticket not in self._carried and ticket not in self._announced]
            self._announced |= dict(_running(self._mail.arrived, asked)) if asked else {}
            free = _HANDS - sum(
                ticket in self._carried for ticket in tickets
            )  # what is here and not fetched yet counts
            for ticket in [ticket for ticket in tickets if ticket in self._announced][: max(0, free)]:
                self._carried[ticket] = self._hands.submit(self._announced.pop(ticket))
            under_way = [self._carried[ticket] for ticket in tickets if ticket in self._carried]
            left = end - time.monotonic()
            if under_way:
                first(under_way, timeout=max(0.0, min(self._interval, left)), return_when=FIRST_COMPLETED)
            here = [t for t in tickets if t in self._carried and self._carried[t].done()]
            if here or left <= 0:
                return [_running(self._carried.pop(ticket).result) for ticket in here]
            if not under_way:
                time.sleep(min(self._interval, left))
        return []


class _Mail(Protocol):
    """Where replies are looked for."""

    def arrived(self, tickets: Sequence[str]) -> Iterable[tuple[str, Carry]]:
        """Tickets whose reply is announced, each with how it is carried over."""


def _mail(grid: Grid, largest: int) -> _Mail:
    from flwr.superlink.grid import HttpGrid

    return _Parts(grid, largest) if isinstance(grid, HttpGrid) else _Whole(grid)


class _Whole:
    """Any grid, by its public methods: what has arrived is there as a whole."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def arrived(self, tickets: Sequence[str]) -> Iterable[tuple[str, Carry]]:
        for message in self._grid.pull_messages(tickets):
            yield message.metadata.reply_to_message_id, lambda message=message: _reply(message)  # type: ignore[misc]


class _Parts:
    """Flower's own grid over HTTP: headers first, then the parts of each reply."""

    def __init__(self, grid: HttpGrid, largest: int) -> None:
        self._grid, self._largest = grid, largest

    def arrived(self, tickets: Sequence[str]) -> Iterable[tuple[str, Carry]]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        found = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=tickets))
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            ticket = head.metadata.reply_to_message_id
            yield ticket, lambda ticket=ticket, tree=tree: self._carry(ticket, tree)  # type: ignore[misc]

    def _carry(self, ticket: str, tree: Any) -> Reply:
        from flwr.app import Message
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectPullError,
            inflate_object_from_contents,
            pull_objects,
        )

        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        pull, size = make_pull_object_fn_protobuf(client.PullObject, node, run), 0

        def counted(part: str) -> bytes:
            nonlocal size
            data = pull(part)
            size += len(data)
            if size > self._largest:
                raise _TooLarge
            return data

        parts = [branch.object_id for branch in iterate_object_tree(tree)]
        try:
            contents = pull_objects(parts, counted, max_time=UPLOAD, initial_backoff=0.05, backoff_cap=1.0)
        except _TooLarge:
            return Reply(ticket, None, FAILED)
        except ObjectPullError:
            return Reply(ticket, None, UNAVAILABLE)  # its site went away in the middle of the upload
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        )
        message = inflate_object_from_contents(tree.object_id, contents)
        return _reply(message, ticket) if isinstance(message, Message) else Reply(ticket, None, FAILED)


class _TooLarge(Exception):
    """An answer larger than any that is waited for."""


def _batches(letters: Sequence[tuple[str, bytes]]) -> Iterable[list[tuple[str, bytes]]]:
    """Letters that are put on their way together. Flower announces all of a batch and then uploads it, and a node waits for the
    parts of what was announced: so small ones go together and each large one alone."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for address, letter in letters:
        if batch and size + len(letter) > BATCH:
            yield batch
            batch, size = [], 0
        batch.append((address, letter))
        size += len(letter)
    if batch:
        yield batch


def _reply(message: Message, ticket: str = "") -> Reply:
    """What came of a letter. A Flower error's reason is dropped: it may carry anything."""
    ticket = ticket or message.metadata.reply_to_message_id
    if message.has_error():
        code = message.error.code
        return Reply(ticket, None, UNAVAILABLE if code in (LOST, REPLY_LOST, NODE_UNAVAILABLE) else FAILED)
    try:
        return Reply(ticket, unpack(message.content))
    except NotALetter:
        return Reply(ticket, None, FAILED)


def _running(call: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the grid; that the run was stopped meanwhile, or the SuperLink is gone, is said in words."""
    import httpx
    from flwr.supercore.run import RunNotRunningException

    try:
        found = call(*arguments)
        return list(found) if isinstance(found, Iterable) else found
    except RunNotRunningException:
        raise RunFailed(STOPPED, code="run-stopped") from None
    except httpx.HTTPStatusError as e:
        status = e.response.status_code
        raise RunFailed(
            STOPPED if status in (401, 403) else f"the SuperLink refused a letter (HTTP {status})",
            code="run-stopped" if status in (401, 403) else "superlink-refused",
        ) from None
    except httpx.TransportError as e:
        raise RunFailed(
            f"the SuperLink is away for too long ({type(e).__name__})", code="superlink-unreachable"
        ) from None


def patient(grid: HttpGrid, *, seconds: float = 600.0) -> HttpGrid:
    """The grid, waiting so long for a SuperLink that is away. Flower's own waits for ever, and ends the whole process by a signal
    when a run was stopped."""
    import httpx
    from flwr.supercore.retry import RetryInvoker, exponential

    grid._retry_invoker = RetryInvoker(
        lambda: exponential(base_delay=0.1, max_delay=5),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=seconds,
        should_giveup=lambda e: isinstance(e, httpx.HTTPStatusError) and e.response.status_code not in (502, 503, 504),
    )
    return grid


def _done(reply: Reply) -> Future[Reply]:
    future: Future[Reply] = Future()
    future.set_result(reply)
    return future
