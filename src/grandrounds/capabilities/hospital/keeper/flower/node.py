"""The keeper's side of a SuperNode: take messages from its runtime API, answer them, and return the answers.

A SuperNode with `--isolation process` starts nothing by itself. This worker replaces Flower's process per message: one
loop, nothing imported per message, no app code installed or run (the app bundle of a task is not opened). Failures leave as
a bare Flower error code, because an exception's text may contain patients' values.

The second half of the file contains the calls of the runtime API, over Flower's own client: internals of flwr 1.41 and
1.42.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.protocol.flower_message import NotAMessage, pack, require_flower, unpack
from grandrounds.protocol.flower_wait import WaitInterceptor

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.runtime import RuntimeHttpClient

Handler = Callable[[bytes], bytes]
Note = Callable[[str], None]
"""Callback with one of a few fixed words: `connected`, `away`; `taken`, followed by the outcome `answered`, `failed`,
`late`, `busy` or `lost`.
"""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
STOP = 0.5
"""Seconds within which a stop is noticed during a wait."""
BEAT = 10.0
"""Seconds between heartbeats of a running task; a SuperNode abandons a task after 60 s without one."""


@dataclass(frozen=True)
class Pace:
    """Polling intervals at a SuperNode that does not know waits: short while messages arrive, longer after `calm` seconds
    without one.
    """

    busy: float = 0.05
    idle: float = 3.0
    calm: float = 30.0
    away: float = 5.0
    objects: float = 0.02
    """First wait for a part of a message that the SuperNode announced but has not fetched yet."""


def serve(
    handler: Handler,
    *,
    address: str,
    secret: bytes,
    stop: threading.Event,
    seconds: float | None = None,
    pace: Pace | None = None,
    note: Note | None = None,
) -> None:
    """Answer messages of the SuperNode at `address` (loopback) until `stop` is set.

    A SuperNode that disappears is awaited. One that refuses the runtime secret is not, because that needs a person. A
    message that takes longer than `seconds` is answered with an error, so that the node is not blocked; messages that
    arrive meanwhile are answered with an error at once.

    Args:
        handler: Answers one message.
        address: Host and port of the runtime API.
        secret: The runtime secret.
        stop: Ends the loop.
        seconds: Time limit of one message.
        pace: Polling intervals.
        note: Callback for events.

    Raises:
        BadInput: The SuperNode refuses the runtime secret.
    """
    require_flower()
    import httpx

    pace, say = pace or Pace(), note or _silent
    connected, wait, last = False, pace.busy, time.monotonic()
    waits = WaitInterceptor(ACQUIRE)
    with make_client(address, make_authentication(secret), waits) as door:
        worker = _Worker(address, door, _MessageRunner(handler, seconds), pace)
        while not stop.is_set():
            try:
                has_task = worker.look()
            except (httpx.HTTPError, ValueError) as e:
                if _refused(e):
                    raise BadInput(
                        f"the SuperNode at {address} refuses the runtime secret: start both with the same file",
                        code="wrong-secret",
                    ) from None
                if connected:
                    say("away")
                connected, wait = False, min(2 * wait, pace.away)
                stop.wait(wait)
                continue
            if not connected:
                say("connected")
                connected, last = True, time.monotonic()
            if not has_task:
                if waits.supported:
                    worker.wait_for_task(waits, stop)
                if waits.failed or not waits.supported:
                    stop.wait(pace.busy if time.monotonic() - last < pace.calm else pace.idle)
                continue
            wait = pace.busy
            say("taken")
            say(worker.answer(stop))
            last = time.monotonic()


def _silent(word: str) -> None:
    """Ignore an event."""


class _Worker:
    """Takes tasks of one SuperNode, one at a time. `_next` is the token of a task that is taken but not started."""

    def __init__(self, address: str, door: RuntimeHttpClient, runner: _MessageRunner, pace: Pace) -> None:
        self._address, self._door, self._runner, self._pace = address, door, runner, pace
        self._next = ""

    def look(self) -> bool:
        """Check for a task."""
        if not self._next:
            self._next = self._acquire().token
        return bool(self._next)

    def _acquire(self) -> Any:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        return self._door.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))

    def wait_for_task(self, waits: WaitInterceptor, stop: threading.Event) -> None:
        """Wait at the SuperNode until it has a task, in a thread, so that `stop` is seen meanwhile."""
        ended = threading.Event()

        def wait() -> None:
            try:
                answer = waits.wait(self._acquire)
                if answer is not None:  # the SuperNode does not know waits (any more), and may have given a task
                    self._next = answer.token
            except (RuntimeError, ValueError):
                pass  # the client was closed meanwhile, or the answer is unreadable: the next look reports it
            finally:
                ended.set()

        threading.Thread(target=wait, daemon=True, name="wait").start()
        while not ended.wait(STOP) and not stop.is_set():
            pass

    def answer(self, stop: threading.Event) -> str:
        """Fetch one message, have it answered and return the answer; gives the word for the outcome."""
        import httpx
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        token, self._next = self._next, ""
        with make_client(self._address, RuntimeTokenHttpInterceptor(token)) as client:
            try:
                with send_heartbeats(client):
                    node, tree = read_announcement(client)
                    if not self._arrived(client, node, tree, stop):
                        finish(client, SubStatus.FAILED)
                        return "lost"
                    message = pull(client, node, tree, self._pace.objects)
                    answer, word = self._runner.answer(message)
                    content = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION) if answer is None else pack(answer)
                    push(client, node, Message(content, reply_to=message))
                    finish(client, SubStatus.COMPLETED)
            except (httpx.HTTPError, ObjectPullError, ObjectPushError, ValueError, TypeError, KeyError):
                return "lost"  # the SuperNode is gone, or abandoned the task; the server asks again
        return word

    def _arrived(self, client: RuntimeHttpClient, node: TaskPlace, tree: Any, stop: threading.Event) -> bool:
        """Wait for a message that the SuperNode announced and is still fetching.

        Nothing more arrives, without notice, if the run is stopped meanwhile. The SuperNode fetches one message at a time,
        so a further task shows that this one was abandoned.
        """
        from flwr.proto.message_pb2 import PullObjectRequest

        wait, began = self._pace.objects, time.monotonic()
        while not stop.is_set():
            response = client.PullObject(PullObjectRequest(node=node.node, run_id=node.run, object_id=tree.object_id))
            if response.object_available:
                return True
            if not response.object_found or (time.monotonic() - began > 1.0 and self.look()):
                return False
            stop.wait(wait)
            wait = min(2 * wait, self._pace.idle)
        return False


class _MessageRunner:
    """Processes one message at a time; one that takes too long continues here without blocking others."""

    def __init__(self, handler: Handler, seconds: float | None) -> None:
        self._handler, self._seconds = handler, seconds
        self._at_work: Future[bytes] | None = None

    def answer(self, message: Message) -> tuple[bytes | None, str]:
        """Return the answer, or None, with the word for the outcome."""
        if self._at_work is not None and not self._at_work.done():
            return None, "busy"
        work: Future[bytes] = Future()
        try:
            self._at_work, data = work, unpack(message.content)
        except (NotAMessage, ValueError):
            work.cancel()
            return None, "failed"
        threading.Thread(target=self._work, args=(work, data), daemon=True, name="keeper").start()
        try:
            return work.result(self._seconds), "answered"
        except TimeoutError:
            return None, "failed" if work.done() else "late"
        except Exception:
            return None, "failed"  # never the exception's text

    def _work(self, work: Future[bytes], data: bytes) -> None:
        try:
            work.set_result(self._handler(data))
        except Exception as e:
            work.set_exception(e)


def _refused(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and response.status_code == 401


@dataclass(frozen=True)
class TaskPlace:
    """Node and run of a task, which Flower requires with every object."""

    node: Any
    run: int


def read_announcement(client: RuntimeHttpClient) -> tuple[TaskPlace, Any]:
    """Read the place of a task's message and the tree of its parts. The app bundle of the task is not opened."""
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest

    context = client.PullTaskInput(PullTaskInputRequest()).context
    response = client.PullMessages(PullAppMessagesRequest())
    if not response.message_object_trees:
        raise ValueError("a task without a message")
    return TaskPlace(Node(node_id=context.node_id), context.run_id), response.message_object_trees[0]


def pull(client: RuntimeHttpClient, place: TaskPlace, tree: Any, wait: float) -> Message:
    """Download the message."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, place.node, place.run),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, place.node, place.run),
        return_type=Message,
        max_time=60.0,
        initial_backoff=wait,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own id
    return message


def push(client: RuntimeHttpClient, place: TaskPlace, reply: Message) -> None:
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    reply.metadata.__dict__["_message_id"] = reply.object_id
    head = message_to_proto(remove_content_from_message(reply))
    with no_object_id_recompute():
        tree = get_object_tree(reply)
        sent = client.PushMessages(PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree]))
        push_objects(
            get_all_nested_objects(reply),
            make_push_object_fn_protobuf(client.PushObject, place.node, run_id=place.run, session_id=sent.session_id),
            object_ids_to_push=set(sent.objects_to_push),
        )


def finish(client: RuntimeHttpClient, status: str) -> None:
    """Report to the SuperNode that the task is finished. Flower calls it a success if there was a reply."""
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))


def make_client(address: str, *interceptors: Any) -> RuntimeHttpClient:
    """Create a client for plain HTTP on loopback that retries a broken connection a few times."""
    import httpx
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import RetryInvoker, exponential
    from flwr.supercore.runtime import RuntimeHttpClient

    again = RetryInvoker(
        lambda: exponential(base_delay=0.05, max_delay=1),
        httpx.TransportError,
        max_tries=4,
        max_time=10.0,
    )
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *interceptors],
        retry_invoker=again,
    )


def make_authentication(secret: bytes) -> Any:
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE}))


@contextmanager
def send_heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats from a thread while a message is processed.

    Flower's own sender ends the process when a task was abandoned; here only the answer is lost.
    """
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    finished = threading.Event()

    def beat() -> None:
        while not finished.wait(BEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, ValueError):
                continue

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def runtime_secret(path: Path) -> bytes:
    """Read the exact bytes of a secret file, line endings included, as Flower's own programs do.

    Raises:
        BadInput: The file cannot be read or is empty.
    """
    try:
        secret = path.read_bytes()
    except OSError as e:
        raise BadInput(f"cannot read the runtime secret {path}: {e.strerror or e}", code="cannot-read") from None
    if not secret:
        raise BadInput(f"the runtime secret {path} is empty: restore the file that was handed over", code="empty-secret")
    return secret
