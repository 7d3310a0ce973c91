"""Carry sealed messages to sites and back: the `Transport` that a `RemoteEngine` needs, and one on Flower's grid.

Flower's own `send_and_receive` asks every three seconds, and its `pull_messages` fetches answers one after another, with a
second's wait for each part that is not there yet. `FlowerTransport` waits at the SuperLink until an answer is there
(`protocol/flower_wait.py`), or asks at an interval of its own where the SuperLink is a stock one, and fetches every announced
answer in a thread of its own: a site that is cut off in the middle of an upload delays no other.

The bytes of a message differ from site to site in header and signature, so Flower's store, which keeps equal objects once,
keeps every message: K sites cost K bodies, from the ServerApp to the SuperLink on the same host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grandrounds.core.errors import RunFailed
from grandrounds.protocol.flower_message import MESSAGE_TYPE, NotAMessage, pack, rebuild_parts, require_flower, unpack
from grandrounds.protocol.flower_wait import WaitInterceptor

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid
    from flwr.superlink.grid import HttpGrid

UNAVAILABLE, FAILED, GONE = "unavailable", "failed", "gone"
"""Why no answer came: the node was not there just now (ask again), could not do it, or is no longer known."""

RECEIVING = "receiving"
"""No outcome: a part of a large answer has arrived, and the rest is on its way."""


@dataclass(frozen=True)
class Reply:
    """The outcome of one message: a sealed Answer, or why there is none."""

    ticket: str
    data: bytes | None
    error: str = ""


class Transport(Protocol):
    """Carries sealed Asks to addresses and sealed Answers back. It reads neither."""

    def addresses(self) -> tuple[str, ...]:
        """List the nodes that are connected now."""
        ...

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        """Send messages, each to an address, and return their tickets, in order."""
        ...

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        """Return replies to these messages as soon as there are any; none after `wait` seconds."""
        ...


LOST, REPLY_LOST, NODE_UNAVAILABLE = 3, 4, 5
"""Flower's error codes: the message, its reply, or its node is not there (`flwr.common.constant.ErrorCode`)."""

BATCH = 4 * 2**20
"""Bytes of messages that are announced together."""

UPLOAD = 200.0
"""Seconds without a further object after which an announced answer is given up; the SuperLink itself waits 180 s for each."""

_DOWNLOADS = 8
"""Answers that are downloaded or wait to be collected at a time: the server's memory does not grow with the sites."""

ENDED = "the SuperLink ended the run: an operator stopped it, or heartbeats of the server were missing"

Download = Callable[[], Reply]


class FlowerTransport:
    """A `Transport` whose addresses are Flower's node ids.

    Args:
        grid: The grid of a Flower ServerApp.
        interval: Seconds between two looks for answers at a SuperLink that does not know waits.
        lifetime: Seconds after which the SuperLink gives up a message without an answer.
        largest: Bytes of an answer from which on it counts as failed and is not downloaded.
    """

    def __init__(
        self, grid: Grid, *, interval: float = 0.1, lifetime: float = 12 * 3600.0, largest: int = 8 * 2**30
    ) -> None:
        require_flower()
        self._grid, self._interval, self._lifetime = grid, interval, lifetime
        self._inbox = _make_inbox(grid, largest)
        self._sent = 0
        self._pool = ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="transport")
        self._announced: dict[str, Download] = {}
        self._downloads: dict[str, Future[Reply]] = {}

    def addresses(self) -> tuple[str, ...]:
        """List the nodes that are connected now."""
        return tuple(str(node) for node in sorted(_call(self._grid.get_node_ids)))

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        """Send messages; one that Flower does not take comes back as gone."""
        from flwr.app import Message

        tickets: list[str] = []
        for batch in _batches(messages):
            outgoing = []
            for address, data in batch:
                self._sent += 1  # part of a message's identity: equal messages, sent again, have tickets of their own
                message = Message(pack(data), int(address), MESSAGE_TYPE, ttl=self._lifetime, group_id=str(self._sent))
                message.metadata.src_task_id = None  # the SuperLink announces none, and `rebuild_parts` needs all metadata
                outgoing.append(message)
            accepted = list(_call(self._grid.push_messages, outgoing))
            if len(accepted) != len(batch):
                raise RunFailed(
                    f"the SuperLink took {len(accepted)} messages of {len(batch)}", code="superlink-refused"
                )
            tickets += [str(ticket) if ticket else f"refused-{len(tickets)}-{self._sent}" for ticket in accepted]
        for ticket in tickets:
            if ticket.startswith("refused-"):
                self._downloads[ticket] = _completed(Reply(ticket, None, GONE))
        return tickets

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        """Return replies to these messages as soon as there are any; none after `wait` seconds."""
        end = time.monotonic() + wait
        while tickets:
            open_tickets = [t for t in tickets if t not in self._downloads and t not in self._announced]
            self._announced |= dict(_call(self._inbox.announced, open_tickets)) if open_tickets else {}
            free = _DOWNLOADS - sum(ticket in self._downloads for ticket in tickets)  # uncollected ones count too
            for ticket in [ticket for ticket in tickets if ticket in self._announced][: max(0, free)]:
                self._downloads[ticket] = self._pool.submit(self._announced.pop(ticket))
            under_way = [self._downloads[ticket] for ticket in tickets if ticket in self._downloads]
            remaining = end - time.monotonic()
            if under_way:
                wait_for(under_way, timeout=max(0.0, min(self._interval, remaining)), return_when=FIRST_COMPLETED)
            finished = [t for t in tickets if t in self._downloads and self._downloads[t].done()]
            if finished or remaining <= 0:
                return [_call(self._downloads.pop(ticket).result) for ticket in finished]
            if not under_way and not self._inbox.wait(remaining):
                time.sleep(min(self._interval, remaining))
        return []


class _Inbox(Protocol):
    """Looks for replies."""

    def announced(self, tickets: Sequence[str]) -> Iterable[tuple[str, Download]]:
        """Yield tickets whose reply is announced, each with the function that downloads it."""

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for a reply that came after the last look; False if that is not possible here."""


def _make_inbox(grid: Grid, largest: int) -> _Inbox:
    from flwr.superlink.grid import HttpGrid

    return _HttpInbox(grid, largest) if isinstance(grid, HttpGrid) else _GridInbox(grid)


class _GridInbox:
    """Any grid, by its public methods: a reply arrives in one piece."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def announced(self, tickets: Sequence[str]) -> Iterable[tuple[str, Download]]:
        for message in self._grid.pull_messages(tickets):
            yield message.metadata.reply_to_message_id, lambda message=message: _reply(message)  # type: ignore[misc]

    def wait(self, seconds: float) -> bool:
        return False


class _HttpInbox:
    """Flower's own grid over HTTP: headers first, then the parts of each reply."""

    def __init__(self, grid: HttpGrid, largest: int) -> None:
        self._grid, self._largest = grid, largest
        self._waits = WaitInterceptor("/flwr.proto.Runtime/PullMessages")
        client = grid._runtime_client
        client._interceptors = (*client._interceptors, self._waits)

    def wait(self, seconds: float) -> bool:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        if not self._waits.supported or seconds <= 0:
            return False
        client = self._grid._runtime_client
        self._waits.wait(lambda: client.PullMessages(PullAppMessagesRequest()), seconds)  # no ids: it takes nothing
        return not self._waits.failed

    def announced(self, tickets: Sequence[str]) -> Iterable[tuple[str, Download]]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        response = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=tickets))
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            ticket = head.metadata.reply_to_message_id
            known = rebuild_parts(head, tree)
            yield ticket, lambda t=ticket, tree=tree, known=known: self._download(t, tree, known)  # type: ignore[misc]

    def _download(self, ticket: str, tree: Any, known: Mapping[str, bytes]) -> Reply:
        from flwr.app import Message
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectPullError,
            ObjectUnavailableError,
            inflate_object_from_contents,
            pull_objects,
        )

        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        pull, size, last = make_pull_object_fn_protobuf(client.PullObject, node, run), 0, time.monotonic()

        def pull_counted(part: str) -> bytes:
            nonlocal size, last
            try:
                data = pull(part)
            except ObjectUnavailableError:
                if time.monotonic() - last > UPLOAD:
                    raise ObjectPullError(part, "no object arrived for too long") from None
                raise
            last = time.monotonic()
            size += len(data)
            if size > self._largest:
                raise _TooLarge
            return data

        parts = [branch.object_id for branch in iterate_object_tree(tree) if branch.object_id not in known]
        try:
            contents = pull_objects(
                parts, pull_counted, max_time=None, max_tries_per_object=None, initial_backoff=0.05, backoff_cap=1.0
            )
        except _TooLarge:
            return Reply(ticket, None, FAILED)
        except ObjectPullError:
            return Reply(ticket, None, UNAVAILABLE)  # its site went away in the middle of the upload
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        )
        message = inflate_object_from_contents(tree.object_id, {**contents, **known})
        return _reply(message, ticket) if isinstance(message, Message) else Reply(ticket, None, FAILED)


class _TooLarge(Exception):
    """An answer is larger than any may be."""


def _batches(messages: Sequence[tuple[str, bytes]]) -> Iterable[list[tuple[str, bytes]]]:
    """Group messages that are sent together.

    Flower announces all of a batch and then uploads it, and a node waits for the parts of what was announced: so small ones go
    together and each large one alone.
    """
    batch: list[tuple[str, bytes]] = []
    size = 0
    for address, data in messages:
        if batch and size + len(data) > BATCH:
            yield batch
            batch, size = [], 0
        batch.append((address, data))
        size += len(data)
    if batch:
        yield batch


def _reply(message: Message, ticket: str = "") -> Reply:
    """Make the Reply of a Flower message. The reason of a Flower error is dropped: it may carry anything."""
    ticket = ticket or message.metadata.reply_to_message_id
    if message.has_error():
        code = message.error.code
        return Reply(ticket, None, UNAVAILABLE if code in (LOST, REPLY_LOST, NODE_UNAVAILABLE) else FAILED)
    try:
        return Reply(ticket, unpack(message.content))
    except NotAMessage:
        return Reply(ticket, None, FAILED)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the grid; raise RunFailed where the run was stopped meanwhile or the SuperLink is gone."""
    import httpx
    from flwr.supercore.run import RunNotRunningException

    try:
        result = function(*arguments)
        return list(result) if isinstance(result, Iterable) else result
    except RunNotRunningException:
        raise RunFailed(ENDED, code="ended-by-flower") from None
    except httpx.HTTPStatusError as e:
        status = e.response.status_code
        raise RunFailed(
            ENDED if status in (401, 403) else f"the SuperLink refused a message (HTTP {status})",
            code="ended-by-flower" if status in (401, 403) else "superlink-refused",
        ) from None
    except httpx.TransportError as e:
        raise RunFailed(
            f"the SuperLink is away for too long ({type(e).__name__})", code="superlink-unreachable"
        ) from None


def limit_retries(grid: HttpGrid, *, seconds: float = 600.0) -> HttpGrid:
    """Have a grid wait so long for a SuperLink that cannot be reached.

    Flower's own waits for ever, and ends the whole process by a signal when a run was stopped.
    """
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


def _completed(reply: Reply) -> Future[Reply]:
    future: Future[Reply] = Future()
    future.set_result(reply)
    return future
