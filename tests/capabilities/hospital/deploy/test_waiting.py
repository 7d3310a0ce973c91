"""Waiting at a server, requests sent again, the active node on disk, and Flower's middleware in line: without processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from importlib import import_module

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message as FlowerMessage
from flwr.proto.message_pb2 import Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.protobuf.client import ProtobufRequestContext
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response
from starlette.routing import Route

from grandrounds.capabilities.hospital.deploy.superlink_launcher import RUNTIME, Uploads
from grandrounds.capabilities.hospital.keeper.flower.launcher import Activation, OneByOne
from grandrounds.protocol.flower_inline import run_in_line
from grandrounds.protocol.flower_retry import REQUEST, RetryInterceptor, RetryMiddleware
from grandrounds.protocol.flower_wait import News


def waited(news: News, number: str, *, seconds: float = 10.0, during=lambda: None) -> float:
    """Seconds of a wait for key 7, while `during` is called from another thread."""

    async def wait() -> float:
        began = time.monotonic()
        threading.Timer(0.05, during).start()
        await news.wait(7, number, seconds)
        return time.monotonic() - began

    return asyncio.run(wait())


def test_a_wait_ends_with_its_news_and_not_with_others():
    news = News()
    assert waited(news, news.number(7), during=lambda: news.announce(7)) < 5
    assert waited(news, news.number(7), seconds=0.3, during=lambda: news.announce(8)) >= 0.3
    assert waited(news, news.number(7), during=news.close) < 5, "a server that stops ends its waits"


def test_news_between_the_look_and_the_wait_are_not_missed():
    news = News()
    looked = news.number(7)
    news.announce(7)
    assert waited(news, looked) < 5
    assert waited(News(), looked) < 5, "a server that was restarted has other numbers"


def test_messages_are_announced_with_their_last_part():
    news = News()
    uploads, before = Uploads(news), news.number(7)
    request = PushAppMessagesRequest()
    request.messages_list.add().metadata.dst_node_id = 7
    answer = PushAppMessagesResponse(session_id="s", objects_to_push=["a", "b"])
    uploads.note(f"{RUNTIME}/push-messages", request, answer)
    uploads.note(f"{RUNTIME}/push-object", PushObjectRequest(session_id="s", object_id="a"), None)
    uploads.note(f"{RUNTIME}/push-object", PushObjectRequest(session_id="another", object_id="b"), None)
    assert news.number(7) == before
    uploads.note(f"{RUNTIME}/push-object", PushObjectRequest(session_id="s", object_id="b"), None)
    assert news.number(7) != before


READ = """
import sys
from pathlib import Path
from grandrounds.capabilities.hospital.keeper.flower.launcher import Activation, OneByOne
print(Activation(Path(sys.argv[1])).read())
"""


def read_elsewhere(path) -> str:
    return subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True).stdout.strip()


def test_a_node_is_deactivated_by_the_next_process_of_its_folder_only(tmp_path):
    path = tmp_path / "active-node.json"
    code = READ.replace("print(Activation(Path(sys.argv[1])).read())", "Activation(Path(sys.argv[1])).write(2**63 + 5)")
    subprocess.run([sys.executable, "-c", code, path], check=True)
    copy = tmp_path / "copy.json"
    shutil.copy(path, copy)
    assert read_elsewhere(copy) == "None", "a copy of the folder may run beside the original"
    mine = Activation(path)
    assert mine.read() == 2**63 + 5
    assert read_elsewhere(path) == "None", "a process that is alive keeps its node"
    mine.write(None)
    assert mine.read() is None


def test_an_unreadable_record_counts_as_none(tmp_path):
    (tmp_path / "record").write_text(json.dumps(["node"]))
    assert Activation(tmp_path / "record").read() is None


class Doubled(BaseHTTPMiddleware):
    """Reads the body, and appends to the answer's headers."""

    async def dispatch(self, request, call_next):
        body = await request.body()
        response = await call_next(request)
        response.headers["x-read"] = str(len(body))
        return response


async def echo(request):
    return Response(await request.body(), headers={"x-route": "1"})


def ask(app, path: str) -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.post(path, content=PullMessagesRequest().SerializeToString() or b"body")

    return asyncio.run(call())


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/control/list-nodes"])
def test_middleware_in_line_answers_as_it_does_in_tasks(path):
    answers = []
    for in_line in (False, True):
        app = Starlette(
            routes=[Route(path, echo, methods=["POST"])], middleware=[Middleware(Doubled), Middleware(Doubled)]
        )
        if in_line:
            run_in_line(app)
        answer = ask(app, path)
        answers.append((answer.status_code, answer.content, sorted(answer.headers.multi_items())))
    assert answers[0] == answers[1]


def test_uvicorn_still_has_what_the_launcher_of_the_superlink_overrides():
    assert callable(uvicorn.Server.handle_exit)
    uvicorn.Config(echo, timeout_keep_alive=75, timeout_graceful_shutdown=5)


def test_a_reply_to_a_run_that_ended_does_not_delay_the_replies_to_the_next_run(monkeypatch):
    """Flower's own functions with its own state: the first message's run ends while the message is fetched."""
    from flwr.app import Message, RecordDict
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.nodestate import NodeStateFactory

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    loop = import_module("flwr.supernode.start_client_internal")
    store = ObjectStoreFactory().store()
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    state.set_node_id(1)
    sent: list[str] = []
    queries = [query(RecordDict(), run) for run in (11, 12)]
    waiting = list(queries)

    def confirm(run: int, message: str) -> None:
        if run == 11:
            raise RunNotRunningException

    for number in (11, 12):
        state.store_run(Run.create_empty(number))
    exchange = OneByOne(loop._pull_and_store_message, loop._push_messages, announce=lambda: None)

    def pull() -> int | None:
        return exchange.pull(
            state=state, object_store=store, node_config={}, get_run=None, get_fab=None, trusted_entities=None,
            receive=lambda: (waiting[0], get_object_tree(waiting.pop(0))) if waiting else None,
            pull_object=lambda run, name: contents[name], confirm_message_received=confirm,
        )  # fmt: skip

    contents = {name: part.deflate() for message in queries for name, part in get_all_nested_objects(message).items()}
    assert pull() is None, "its run has ended"
    assert pull() == 12
    reply = Message(RecordDict(), reply_to=queries[0])
    loop._insert_message(reply, state, store)  # the keeper answers both, one after the other
    later = Message(RecordDict(), reply_to=queries[1])
    threading.Timer(0.3, lambda: loop._insert_message(later, state, store)).start()

    def send(message, tree, seconds):
        sent.append(message.metadata.reply_to_message_id)
        return set(), "session"

    exchange.push(state=state, object_store=store, send=send, push_object=lambda *_: None)
    assert sent == [queries[0].metadata.message_id, queries[1].metadata.message_id]


def query(content, run: int):
    from flwr.app import Message, MessageType

    message = Message(content, dst_node_id=1, message_type=MessageType.QUERY)
    message.metadata.__dict__["_run_id"] = run
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


class Link:
    """A SuperLink's route that takes one waiting message for each call, behind a gateway that can lose answers."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.waiting, self.calls, self.lose, self.seconds = ["first", "second"], 0, 0, seconds
        self._app = RetryMiddleware(self._route, paths=[PULL_PATH])

    async def _route(self, scope, receive, send) -> None:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        scope["state"]["protobuf_response"] = PullMessagesResponse(
            messages_list=[FlowerMessage(metadata=Metadata(message_id=self.waiting.pop(0)))] if self.waiting else []
        )
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def call(self, number: str, *, node: int = 7) -> str:
        """The id of the message in the answer to a request with this number."""
        request = PullMessagesRequest(node=Node(node_id=node))
        scope = {"type": "http", "path": PULL_PATH, "headers": [(REQUEST.encode(), number.encode())],
                 "state": {"protobuf_request": request}}  # fmt: skip

        async def send(message) -> None: ...

        await self._app(scope, None, send)
        found = scope["state"]["protobuf_response"].messages_list
        return found[0].metadata.message_id if found else ""

    def send_over_http(self, context) -> httpx.Response:
        """Answer the client's interceptor; the answer is lost as often as `lose` says, after it took effect."""
        found = asyncio.run(self.call(context.request.headers[REQUEST]))
        if self.lose:
            self.lose -= 1
            raise httpx.RemoteProtocolError("the gateway died")
        return httpx.Response(200, content=found.encode())


PULL_PATH, PULL_METHOD = "/v1/fleet/pull-messages", "/flwr.proto.Fleet/PullMessages"


def pull_from(link: Link, interceptor: RetryInterceptor) -> str:
    """Pull as Flower's client does: again after a lost answer, with a request that is built anew."""
    while True:
        request = httpx.Request("POST", f"http://here{PULL_PATH}")
        context = ProtobufRequestContext(PULL_METHOD, PullMessagesRequest(node=Node(node_id=7)), request)
        try:
            return interceptor.intercept(context, link.send_over_http).text
        except httpx.TransportError:
            continue


def test_a_message_whose_delivery_was_lost_with_its_gateway_is_delivered_again():
    link, interceptor = Link(), RetryInterceptor([PULL_METHOD])
    link.lose = 2
    assert [pull_from(link, interceptor) for _ in range(3)] == ["first", "second", ""]
    assert link.calls == 3, "what was sent again had no second effect"


def test_a_request_that_is_sent_again_while_the_first_is_under_way_waits_for_its_answer():
    async def both(link: Link) -> list[str]:
        return await asyncio.gather(link.call("a"), link.call("a"), link.call("b"))

    assert asyncio.run(both(Link(seconds=0.05))) == ["first", "first", "second"]


def test_a_number_of_one_node_gives_another_node_nothing():
    link = Link()
    assert asyncio.run(link.call("a", node=7)) == "first"
    assert asyncio.run(link.call("a", node=8)) == "second"


def test_a_request_that_failed_is_tried_anew():
    link = Link()
    link._app = RetryMiddleware(fail_once(link._route), paths=[PULL_PATH])
    with pytest.raises(RuntimeError):
        asyncio.run(link.call("a"))
    assert asyncio.run(link.call("a")) == "first"


def fail_once(route):
    failed = []

    async def call(scope, receive, send) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("the database is locked")
        await route(scope, receive, send)

    return call
