"""Waiting for news at a server, the id of the active node on disk, and Flower's middleware in line: without processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response
from starlette.routing import Route

from grandrounds.deploy.superlink_launcher import RUNTIME, Uploads
from grandrounds.keeper.flower.launcher import Activation
from grandrounds.protocol.flower_inline import run_in_line
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
from grandrounds.keeper.flower.launcher import Activation
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
