"""Start the `flower-superlink` command so that clients can wait at it: `python -m` with this module and its arguments.

Names of Flower's modules are rebound in this process only; Flower's files are not changed. A SuperNode waits for messages,
and the process of a run for replies (`protocol/flower_wait.py`); both are announced when their last part has arrived, so that
nobody asks for a part that is not there. A request that a node sends again, because a gateway died before the answer came, gets
the same answer (`protocol/flower_retry.py`). Stock SuperNodes and grids poll here as they do at a stock SuperLink. Versions of
flwr that were not reviewed are started as they are.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from collections.abc import Hashable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from grandrounds.core.errors import GrandRoundsError
from grandrounds.protocol.flower_inline import call_dependencies_in_line, run_in_line
from grandrounds.protocol.flower_message import is_reviewed, require_flower
from grandrounds.protocol.flower_retry import RetryMiddleware
from grandrounds.protocol.flower_wait import News, WaitMiddleware

CONNECTIONS = 75
"""Seconds that an idle connection is kept open (uvicorn: 5), longer than the 60 s of the gateway: the gateway then never
sends a request over a connection that is closed meanwhile, and heartbeats need no TLS handshake.
"""

STOP = 5
"""Seconds that requests may take when the SuperLink stops."""

UPLOAD = 300.0
"""Seconds after which an upload that was not completed is forgotten here; the SuperLink gives it up after 180 s."""

FLEET, RUNTIME = "/v1/fleet", "/v1/runtime"
REPLIES = "replies"

RETRIED = ("pull-messages", "push-messages", "push-object")
"""Requests of nodes that have an effect, so that one that is sent again must get the same answer."""


@dataclass
class _Upload:
    """Parts of messages that were announced and have not arrived, and the keys to announce when they have."""

    parts: set[str]
    keys: set[Hashable]
    began: float = field(default_factory=time.monotonic)


class Uploads:
    """Announces messages to nodes, and replies to runs, when their last part has arrived."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._uploads: dict[str, _Upload] = {}  # by Flower's push session

    def note(self, path: str, request: Any, response: Any) -> None:
        """Note an answered request."""
        if path in (f"{FLEET}/push-messages", f"{RUNTIME}/push-messages"):
            to_nodes = path.startswith(RUNTIME)
            keys = {m.metadata.dst_node_id for m in request.messages_list} if to_nodes else {REPLIES}
            now = time.monotonic()
            self._uploads = {name: upload for name, upload in self._uploads.items() if now - upload.began < UPLOAD}
            self._uploads[response.session_id] = _Upload(set(response.objects_to_push), keys)
            self._announce(response.session_id)
        elif path in (f"{FLEET}/push-object", f"{RUNTIME}/push-object") and request.session_id in self._uploads:
            self._uploads[request.session_id].parts.discard(request.object_id)
            self._announce(request.session_id)

    def _announce(self, session: str) -> None:
        if not self._uploads[session].parts:
            for key in self._uploads.pop(session).keys:
                self._news.announce(key)


def rebind() -> None:
    """Rebind names of Flower's SuperLink, in this process."""
    import uvicorn

    call_dependencies_in_line()
    news = News()

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            news.close()
            super().handle_exit(sig, frame)

    def run(app: Any, **options: Any) -> None:
        config = uvicorn.Config(app, timeout_keep_alive=CONNECTIONS, timeout_graceful_shutdown=STOP, **options)
        Server(config).run()

    api: Any = import_module("flwr.superlink.main")
    api.create_app = functools.partial(_create_app, api.create_app, news)
    cli: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name
    cli.uvicorn = types.SimpleNamespace(run=run)


def _create_app(create: Any, news: News, *arguments: Any, **named: Any) -> Any:
    """Create the SuperLink's API, at which nodes wait for messages and runs for replies."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse
    from starlette.middleware import Middleware

    app = create(*arguments, **named)
    node, run = f"{FLEET}/pull-messages", f"{RUNTIME}/pull-messages"
    wait = Middleware(
        WaitMiddleware,
        news=news,
        keys={node: lambda request: request.node.node_id, run: lambda request: REPLIES},
        empty={node: PullMessagesResponse, run: PullAppMessagesResponse},
        after=Uploads(news).note,
    )
    retry = Middleware(RetryMiddleware, paths=[f"{FLEET}/{name}" for name in RETRIED])
    app.user_middleware += [wait, retry]
    run_in_line(app)
    return app


def main() -> int:
    """Start the SuperLink with the arguments of this command."""
    try:
        require_flower()
        if is_reviewed():
            rebind()
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    from flwr.superlink.cli.flower_superlink import flower_superlink

    flower_superlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
