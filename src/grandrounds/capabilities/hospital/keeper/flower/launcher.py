"""Start the `flower-supernode` command so that it waits instead of polling: `python -m` with this module and its arguments.

Flower's SuperNode sleeps 3 s when no message waits and 0.5 s until a reply is ready, and waits a second for a late object.
This launcher rebinds names of its modules, in this process only; Flower's files are not changed:

- The SuperNode waits at the SuperLink for messages (`protocol/flower_wait.py`). At a SuperLink that does not know waits it
  polls: often for half a minute after a message, then as Flower does.
- A request that is sent again, because a gateway died, keeps its number, so that no message is lost
  (`protocol/flower_retry.py`).
- The keeper waits at the SuperNode for tasks, and the SuperNode for the keeper's reply, without polling.
- A SuperNode that was killed is deactivated at its next start, so that it need not wait until its heartbeat has expired.
- A SuperNode that gives up ends its process with an error, so that it is started again.

Versions of flwr that were not reviewed keep Flower's own pace.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from grandrounds.core.errors import GrandRoundsError
from grandrounds.protocol.flower_inline import run_in_line
from grandrounds.protocol.flower_message import is_reviewed, rebuild_parts, require_flower
from grandrounds.protocol.flower_retry import RetryInterceptor
from grandrounds.protocol.flower_wait import News, WaitInterceptor, WaitMiddleware

SHORT, LONG, ACTIVE = 0.1, 3.0, 30.0
"""Seconds between polls of a SuperLink that does not know waits: soon after a message, later, and how long `soon` is."""

GAP = 2.5
"""Seconds that a node which was killed stays deactivated: servers look every second, and must notice that messages to the
killed process are lost.
"""

CONNECTIONS = 60.0
"""Seconds that an idle connection to the gateway is kept open (Flower: 5): a heartbeat needs no new TLS handshake."""

OFFSET = "GRANDROUNDS_CLOCK_OFFSET"
"""Environment variable with the seconds that the server's clock is ahead of this machine's."""

TASKS = "tasks"
ACQUIRE_PATH = "/v1/runtime/acquire-task"
REPLIES = ("/v1/runtime/push-messages", "/v1/runtime/push-object", "/v1/runtime/push-task-output")
PULL = "/flwr.proto.Fleet/PullMessages"
RETRIED = (PULL, "/flwr.proto.Fleet/PushMessages", "/flwr.proto.Fleet/PushObject")


def command(*, superlink: str, authority: Path | None, key: Path | None, port: int, secret: Path) -> list[str]:
    """Build the command that starts a site's SuperNode.

    The node connects to the gateway, identifies itself by its key, listens on loopback only, starts no process and installs
    nothing.

    Args:
        superlink: Address of the gateway.
        authority: Certificate of the server's authority; None together with `key` for plain text on one machine.
        key: The node's private key.
        port: Loopback port of its runtime API.
        secret: File with the runtime secret.

    Returns:
        The command line.
    """
    tls = ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]
    return [
        *(sys.executable, "-m", "grandrounds.capabilities.hospital.keeper.flower.launcher"),
        *("--superlink", superlink),
        *(["--insecure"] if authority is None else tls),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


class Activation:
    """Id of the node that is activated at the SuperLink, on disk, so that the next process can deactivate it after a kill.

    Two processes with the key of one site must never be active together: each would answer a part of the messages, with a
    budget of its own. So an id counts only if no process has the file open, and if it was written to this very file since
    this machine was started: in a copy of the folder it does not.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except OSError:
            os.close(self._file)
            self._file = -1

    def _place(self) -> str:
        status = os.fstat(self._file)
        boot = Path("/proc/sys/kernel/random/boot_id")
        return f"{status.st_dev} {status.st_ino} {boot.read_text().strip() if boot.exists() else ''}"

    def read(self) -> int | None:
        """Return the id of a node that a dead process left activated."""
        if self._file < 0:
            return None
        try:
            stored = json.loads(os.pread(self._file, 4096, 0))
            return int(stored["node"]) if stored["place"] == self._place() else None
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, node: int | None) -> None:
        """Store the id of the active node; None if there is none."""
        if self._file < 0:
            return
        os.ftruncate(self._file, 0)
        if node is not None:
            os.pwrite(self._file, json.dumps({"node": node, "place": self._place()}).encode(), 0)


class _Pace:
    """Sleeps of the SuperNode's loop."""

    def __init__(self) -> None:
        self.waits = WaitInterceptor(PULL)
        self.reply = threading.Event()
        """Set whenever the keeper sends a part of a reply."""
        self.last_message = float("-inf")

    def sleep(self, seconds: float) -> None:
        """Sleep in place of `time.sleep`: 3 s without a message, 0.5 s until a reply, or a part of it, is there."""
        if seconds < 1.0:
            self.reply.wait(seconds)
            self.reply.clear()
        elif self.waits.failed or not self.waits.supported:
            time.sleep(SHORT if time.monotonic() - self.last_message < ACTIVE else LONG)


class OneByOne:
    """Pulls a message, and sends replies until the one to this message is sent.

    Flower's loop sends the first reply that is there. If a run ends while its message is fetched, the keeper still answers that
    message; every later reply would then be sent only after the next message.

    Args:
        pull: Flower's function that pulls and stores a message.
        push: Flower's function that waits for replies and sends them.
        announce: Called when a message was stored.
    """

    def __init__(self, pull: Callable[..., int | None], push: Callable[..., None], announce: Callable[[], None]) -> None:
        self._pull, self._push, self._announce = pull, push, announce
        self._unanswered = ""

    def pull(self, *, receive: Callable[[], Any], **arguments: Any) -> int | None:
        """Pull one message; returns its run, or None without a message."""
        self._unanswered = ""

        def receive_and_note() -> Any:
            received = receive()
            if received is not None:
                self._unanswered = received[0].metadata.message_id
            return received

        run = self._pull(receive=receive_and_note, **arguments)
        if run is not None:
            self._announce()
        return run

    def push(self, *, send: Callable[..., Any], **arguments: Any) -> None:
        """Send replies until the message that was pulled last is answered."""
        answered: set[str] = set()

        def send_and_note(message: Any, *more: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *more)

        self._push(send=send_and_note, **arguments)
        while self._unanswered not in answered:
            self._push(send=send_and_note, **arguments)


def rebind(activation: Activation | None = None) -> None:
    """Rebind names of Flower's SuperNode, in this process.

    Args:
        activation: Id of the active node on disk; None without.
    """
    from flwr.supercore.exit.exit_handler import add_exit_handler

    pace, news = _Pace(), News()
    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = types.SimpleNamespace(sleep=pace.sleep, time=time.time, monotonic=time.monotonic)
    loop.pull_objects = functools.partial(loop.pull_objects, initial_backoff=SHORT / 2, backoff_cap=1.0)
    exchange = OneByOne(loop._pull_and_store_message, loop._push_messages, announce=lambda: news.announce(TASKS))
    loop._pull_and_store_message, loop._push_messages = exchange.pull, exchange.push
    connection: Any = import_module("flwr.supernode.fleet_http_connection")
    connection.FleetHttpClient = _make_client_class(pace, activation)
    api: Any = import_module("flwr.supernode.main")
    api.create_app = functools.partial(_create_app, api.create_app, pace, news)
    cli: Any = import_module("flwr.supernode.cli.flower_supernode")  # its package has a function of the same name
    start = cli.start_client_internal

    def start_node(**arguments: Any) -> None:
        add_exit_handler(news.close)  # the last one is called first: keepers that wait do not delay the end
        start(**arguments)

    cli.start_client_internal = start_node


def correct_clock(seconds: float) -> None:
    """Add `seconds` to the times that the SuperNode signs, in this process; see `keeper.network.clock`."""
    module: Any = import_module("flwr.supernode.node_auth_http_interceptor")
    now = module.now
    module.now = lambda: now() + timedelta(seconds=seconds)


def _create_app(create: Any, pace: _Pace, news: News, *arguments: Any, **named: Any) -> Any:
    """Create the SuperNode's runtime API, at which a keeper can wait for tasks."""
    from flwr.proto.runtime_pb2 import AcquireTaskResponse
    from starlette.middleware import Middleware

    def after(path: str, request: Any, response: Any) -> None:
        if path in REPLIES:
            pace.reply.set()

    app = create(*arguments, **named)
    wait = Middleware(
        WaitMiddleware,
        news=news,
        keys={ACQUIRE_PATH: lambda request: TASKS},
        empty={ACQUIRE_PATH: AcquireTaskResponse},
        after=after,
    )
    app.user_middleware.append(wait)
    run_in_line(app)
    return app


def _make_client_class(pace: _Pace, activation: Activation | None) -> Any:
    """Make the class of the SuperNode's client, which waits for messages and keeps its connections."""
    import httpx
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.proto.message_pb2 import PullObjectResponse
    from flwr.supernode.fleet_http_client import FleetHttpClient

    class WaitingClient(FleetHttpClient):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._client.close()
            self._client = httpx.Client(
                verify=named.get("verify", True),
                timeout=self._client.timeout,
                follow_redirects=True,
                limits=httpx.Limits(keepalive_expiry=CONNECTIONS),
            )
            self._interceptors = (*self._interceptors, pace.waits, RetryInterceptor(RETRIED))
            self._was_empty = False
            self._parts: dict[str, bytes] = {}  # of the message that was announced last

        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            answer = None
            if self._was_empty and pace.waits.supported:
                answer = pace.waits.wait(lambda: super(WaitingClient, self).PullMessages(request))
            if answer is None:
                answer = super().PullMessages(request)
            self._was_empty = not answer.messages_list
            if not self._was_empty:
                pace.last_message = time.monotonic()
                self._parts = rebuild_parts(answer.messages_list[0], answer.message_object_trees[0])
            return answer

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            part = self._parts.get(request.object_id)
            if part is None:
                return super().PullObject(request)
            return PullObjectResponse(object_found=True, object_available=True, object_content=part)

        def ActivateNode(self, request: Any) -> Any:  # noqa: N802
            left = None if activation is None else activation.read()
            if left is not None:
                try:
                    super().DeactivateNode(DeactivateNodeRequest(node_id=left))
                    time.sleep(GAP)
                except httpx.HTTPError:
                    pass  # it is inactive already, or the gateway is away, which the next line reports
            answer = super().ActivateNode(request)
            if activation is not None:
                activation.write(answer.node_id)
            return answer

        def DeactivateNode(self, request: Any) -> Any:  # noqa: N802
            answer = super().DeactivateNode(request)
            if activation is not None:
                activation.write(None)
            return answer

    return WaitingClient


def _open_activation() -> Activation | None:
    """Open the record of the active node in Flower's folder; None where nothing can be written."""
    try:
        return Activation(Path(os.environ["FLWR_HOME"]) / "active-node.json")
    except (KeyError, OSError):
        return None


def main() -> int:
    """Start the SuperNode with the arguments of this command; it returns only if the SuperNode gave up."""
    try:
        require_flower()
        if is_reviewed():
            rebind(_open_activation())
            if offset := float(os.environ.get(OFFSET, 0.0)):
                correct_clock(offset)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()
    print("error: the SuperNode gave up its connection; it must be started again", file=sys.stderr, flush=True)
    os._exit(1)  # the thread of its runtime API would keep this process


if __name__ == "__main__":
    sys.exit(main())
