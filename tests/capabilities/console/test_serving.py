"""The console as a server on a network: sizes, times and numbers of connections, with real sockets."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from grandrounds.capabilities.console import server as limits
from grandrounds.capabilities.console.api import STREAMS_BY_SESSION
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Served, known_users, serving


@pytest.fixture
def listening(runs, request, monkeypatch):
    """A console whose limits the test sets."""
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setattr(limits, name, value)
    users, tokens = known_users()
    yield from serving(AppState(RunIndex(runs), users), tokens)


def connect(served: Served) -> socket.socket:
    at = urlsplit(served.url)
    return socket.create_connection((at.hostname, at.port), timeout=60)


def read(s: socket.socket) -> bytes:
    """Everything until the other side closes."""
    out = b""
    with suppress(ConnectionResetError):
        while part := s.recv(65536):
            out += part
    return out


REQUEST = b"GET /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


def test_headers_have_a_largest_size(listening):
    with connect(listening) as s:
        s.sendall(REQUEST + b"X-Small: " + b"x" * 30_000 + b"\r\n\r\n")
        assert read(s).startswith(b"HTTP/1.1 200")
    with connect(listening) as s:
        s.sendall(REQUEST + b"X-Large: ")
        try:
            for _ in range(1024):  # 64 MB, if it were taken
                s.sendall(b"x" * 65536)
        except OSError:
            return
        pytest.fail("a header of 64 MB was taken")


@pytest.mark.parametrize("listening", [{"REQUEST": 0.3}], indirect=True)
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        REQUEST,
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nform=",
        REQUEST.replace(b"Connection: close", b"X: y") + b"\r\n" + REQUEST,
    ],
    ids=["nothing", "half a header", "half a body", "half a second request"],
)
def test_a_request_that_does_not_arrive_is_ended(listening, sent):
    with connect(listening) as s:
        s.sendall(sent)
        read(s)  # comes back: the console closed it


@pytest.mark.parametrize("listening", [{"CONNECTIONS": 8}], indirect=True)
def test_half_open_connections_shut_nobody_out(listening):
    held = [connect(listening) for _ in range(40)]
    for s in held:
        with suppress(OSError):  # it made room for another one already
            s.sendall(REQUEST)
    with connect(listening) as s:
        s.sendall(REQUEST + b"\r\n")
        assert read(s).startswith(b"HTTP/1.1 200")
    for s in held:
        s.close()


def test_a_connection_is_used_again_and_a_broken_request_is_refused(listening):
    with connect(listening) as s:
        s.sendall(REQUEST.replace(b"close", b"keep-alive") + b"\r\n" + REQUEST + b"\r\n")
        assert read(s).count(b"HTTP/1.1 200") == 2
    with connect(listening) as s:
        s.sendall(b"nonsense\r\n\r\n")
        assert read(s).startswith(b"HTTP/1.1 400")


def test_the_server_prints_no_lines_of_its_own(runs, capfd):
    users, tokens = known_users()
    for served in serving(AppState(RunIndex(runs), users), tokens):
        with connect(served) as s:
            s.sendall(REQUEST + b"\r\n")
            assert read(s).startswith(b"HTTP/1.1 200")
    said = capfd.readouterr()
    assert said.out + said.err == ""


def follow(served: Served, role: str) -> tuple[socket.socket, bytes]:
    """Ask for the stream of runs at work; the socket, and the first line of the answer."""
    s = connect(served)
    s.sendall(
        b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        + served.tokens[role].encode()
        + b"\r\n\r\n"
    )
    return s, s.recv(12)


def test_one_persons_event_streams_shut_nobody_else_out(listening):
    with ThreadPoolExecutor(30) as pool:
        asked = list(pool.map(lambda _: follow(listening, "viewer"), range(30)))  # at once: no more slip through
    codes = [code for _, code in asked]
    assert codes.count(b"HTTP/1.1 200") == STREAMS_BY_SESSION and codes.count(b"HTTP/1.1 429") == 30 - STREAMS_BY_SESSION
    other, code = follow(listening, "auditor")
    assert code == b"HTTP/1.1 200"
    for s, _ in asked:
        s.close()
    code = b""
    while code != b"HTTP/1.1 200":  # the places of those that went are free again
        again, code = follow(listening, "viewer")
        again.close()
    other.close()
