"""The keeper's side of a SuperNode: takes letters from its runtime API, has them answered, gives the answers back.

A SuperNode with `--isolation process` starts nothing by itself. This worker takes the place of Flower's process per
message: one loop, nothing imported per message, no app code installed or run (the app's bundle that comes with a task is
not opened). What goes wrong here leaves as a bare Flower error code: exception text can carry patients' values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.keeper.node_runtime import At, announced, beating, client_of, finish, pull, push, signing
from grandrounds.protocol.flower_message import NotALetter, pack, require_flower, unpack

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.runtime import RuntimeHttpClient

Handler = Callable[[bytes], bytes]
Note = Callable[[str], None]
"""Told what happened, as one of a few fixed words: `connected`, `away`; `taken` and then what became of the letter: `answered`,
`failed`, `late`, `busy` or `lost`."""


@dataclass(frozen=True)
class Pace:
    """How often the SuperNode is asked. Quick while letters come, slower when none came for `calm` seconds."""

    busy: float = 0.05
    idle: float = 0.5
    calm: float = 60.0
    away: float = 5.0
    objects: float = 0.02
    """First wait for a part of a letter that the SuperNode announced and has not fetched yet."""


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
    """Answer letters of the SuperNode at `address` (loopback) until `stop` is set.

    A SuperNode that goes away is waited for. One that refuses the runtime secret is not: that takes a person. A letter that
    takes longer than `seconds` is answered with an error, so that the node is not blocked; letters that come while it is still
    being worked on are answered so at once.
    """
    require_flower()
    import httpx

    pace, say = pace or Pace(), note or _silent
    here, wait, last = False, pace.busy, time.monotonic()
    with client_of(address, signing(secret)) as door:
        worker = _Worker(address, door, _Desk(handler, seconds), pace)
        while not stop.is_set():
            try:
                found = worker.look()
            except (httpx.HTTPError, ValueError) as e:
                if _refused(e):
                    raise BadInput(
                        f"the SuperNode at {address} refuses the runtime secret: both must be started with the same file"
                    ) from None
                if here:
                    say("away")
                here, wait = False, min(2 * wait, pace.away)
                stop.wait(wait)
                continue
            if not here:
                say("connected")
                here, last = True, time.monotonic()
            if not found:
                wait = pace.busy if time.monotonic() - last < pace.calm else pace.idle
                stop.wait(wait)
                continue
            wait = pace.busy
            say("taken")
            say(worker.answer(stop))
            last = time.monotonic()


def _silent(word: str) -> None:
    """Nobody listens."""


class _Worker:
    """Takes tasks of one SuperNode, one at a time. `_next`: the token of a task that is taken and not begun."""

    def __init__(self, address: str, door: RuntimeHttpClient, desk: _Desk, pace: Pace) -> None:
        self._address, self._door, self._desk, self._pace = address, door, desk, pace
        self._next = ""

    def look(self) -> bool:
        """Whether a task is there to be worked on."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        if not self._next:
            self._next = self._door.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])).token
        return bool(self._next)

    def answer(self, stop: threading.Event) -> str:
        """Fetch one letter, have it answered, give the answer back; what became of it."""
        import httpx
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        token, self._next = self._next, ""
        with client_of(self._address, RuntimeTokenHttpInterceptor(token)) as client:
            try:
                with beating(client):
                    node, tree = announced(client)
                    if not self._arrived(client, node, tree, stop):
                        finish(client, SubStatus.FAILED)
                        return "lost"
                    message = pull(client, node, tree, self._pace.objects)
                    answer, word = self._desk.answer(message)
                    content = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION) if answer is None else pack(answer)
                    push(client, node, Message(content, reply_to=message))
                    finish(client, SubStatus.COMPLETED)
            except (httpx.HTTPError, ObjectPullError, ObjectPushError, ValueError, TypeError, KeyError):
                return "lost"  # the SuperNode is gone, or gave the task up; the server asks again
        return word

    def _arrived(self, client: RuntimeHttpClient, node: At, tree: Any, stop: threading.Event) -> bool:
        """Wait for a letter that the SuperNode announced and is still fetching.

        Of a run that is stopped meanwhile nothing more comes, and the SuperNode tells nobody. It fetches one letter at a time, so
        a further task shows that this one is given up.
        """
        from flwr.proto.message_pb2 import PullObjectRequest

        wait, began = self._pace.objects, time.monotonic()
        while not stop.is_set():
            found = client.PullObject(PullObjectRequest(node=node.node, run_id=node.run, object_id=tree.object_id))
            if found.object_available:
                return True
            if not found.object_found or (time.monotonic() - began > 1.0 and self.look()):
                return False
            stop.wait(wait)
            wait = min(2 * wait, self._pace.idle)
        return False


class _Desk:
    """Where one letter at a time is worked on, and where a letter that takes too long stays without blocking others."""

    def __init__(self, handler: Handler, seconds: float | None) -> None:
        self._handler, self._seconds = handler, seconds
        self._at_work: Future[bytes] | None = None

    def answer(self, message: Message) -> tuple[bytes | None, str]:
        """The answer, or None where there is none to give, with the word for what happened."""
        if self._at_work is not None and not self._at_work.done():
            return None, "busy"
        work: Future[bytes] = Future()
        try:
            self._at_work, letter = work, unpack(message.content)
        except (NotALetter, ValueError):
            work.cancel()
            return None, "failed"
        threading.Thread(target=self._work, args=(work, letter), daemon=True, name="keeper").start()
        try:
            return work.result(self._seconds), "answered"
        except TimeoutError:
            return None, "failed" if work.done() else "late"
        except Exception:
            return None, "failed"  # never the text of it

    def _work(self, work: Future[bytes], letter: bytes) -> None:
        try:
            work.set_result(self._handler(letter))
        except Exception as e:
            work.set_exception(e)


def _refused(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and response.status_code == 401
