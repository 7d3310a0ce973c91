"""Downloads against a real server on loopback: resume, checksums, mirrors, redirects, disks that are full."""

from __future__ import annotations

import hashlib
import re
import resource
import signal
from collections import namedtuple

import pytest

from grandrounds.core.errors import RunFailed
from grandrounds.data import download as module
from grandrounds.data.download import Source, check_space, fetch, remaining_bytes, size_text
from tests.data.http_server import Page, serve
from tests.support import refused

DATA = bytes(range(256)) * 1200  # more than four chunks
MD5 = "md5:" + hashlib.md5(DATA).hexdigest()


@pytest.fixture(scope="module")
def running():
    with serve() as httpd:
        yield httpd


@pytest.fixture
def server(running, monkeypatch):
    """The server without pages; loopback is reached without a proxy, and retries do not wait."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    running.pages.clear()
    return running


SIZE = len(DATA)


def at(server, *paths, checksum=MD5, size=SIZE):
    return Source("set/a.bin", tuple(server.at(p) for p in paths), size, checksum)


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_download_is_checked_and_asked_for_once(server, tmp_path):
    page = server.pages["/a"] = Page(DATA)
    steps = []
    path = fetch(at(server, "/a"), tmp_path, progress=lambda *step: steps.append(step))
    assert path.read_bytes() == DATA and names(tmp_path) == ["set/a.bin"]
    assert steps[-1] == ("set/a.bin", len(DATA), len(DATA)) and len(steps) > 2
    assert fetch(at(server, "/a"), tmp_path) == path and len(page.asked) == 1


def test_a_broken_connection_goes_on_where_it_broke(server, tmp_path):
    page = server.pages["/a"] = Page(DATA, breaks=[100_000, 70_000])
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.starts == [0, 100_000, 170_000]
    assert [a.get("if-range") for a in page.asked] == [None, '"v1"', '"v1"']


def test_a_later_command_goes_on_where_the_first_gave_up(server, tmp_path):
    page = server.pages["/a"] = Page(DATA, breaks=[100_000, 0, 0, 0])
    with refused("download-failed", match="100,000 of 307,200", kind=RunFailed):
        fetch(at(server, "/a"), tmp_path)
    assert names(tmp_path) == ["set/a.bin.part", "set/a.bin.part.json"]
    assert remaining_bytes(at(server, "/a"), tmp_path) == len(DATA) - 100_000
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.starts == [0, 100_000, 100_000, 100_000, 100_000] and names(tmp_path) == ["set/a.bin"]


def kept(server, tmp_path, data, **page):
    """Bytes of an interrupted download, as the server had them then."""
    server.pages["/a"] = Page(data, breaks=[100_000, 0, 0, 0], **page)
    with refused("download-failed", kind=RunFailed):
        fetch(at(server, "/a"), tmp_path)


@pytest.mark.parametrize("marks", [{"etag": '"v0"'}, {"etag": None, "date": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_a_file_that_changed_on_the_server_starts_anew(server, tmp_path, marks):
    kept(server, tmp_path, DATA[::-1], **marks)
    page = server.pages["/a"] = Page(DATA)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.asked[0]["if-range"] == (marks["etag"] or marks["date"]) and len(page.asked) == 1


def test_kept_bytes_of_another_file_are_found_by_the_checksum(server, tmp_path):
    """A server without ETag and date cannot say that its file changed."""
    kept(server, tmp_path, DATA[::-1], etag=None)
    page = server.pages["/a"] = Page(DATA, etag=None)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.starts == [100_000, 0] and "if-range" not in page.asked[0]


def test_a_weak_etag_is_not_asked_for_a_range(server, tmp_path):
    kept(server, tmp_path, DATA, etag='W/"v1"')
    page = server.pages["/a"] = Page(DATA, etag='W/"v1"')
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert "if-range" not in page.asked[0]


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    page = server.pages["/a"] = Page(DATA, breaks=[100_000], ranges=False)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.starts == [0, 100_000]


def test_kept_bytes_beyond_the_end_of_the_file_are_dropped(server, tmp_path):
    kept(server, tmp_path, DATA)
    with (tmp_path / "set/a.bin.part").open("ab") as f:
        f.write(b"x" * len(DATA))
    page = server.pages["/a"] = Page(DATA)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert page.starts == [100_000 + len(DATA), 0]


def test_a_damaged_note_beside_kept_bytes_starts_anew(server, tmp_path):
    kept(server, tmp_path, DATA)
    (tmp_path / "set/a.bin.part.json").write_text("{")
    page = server.pages["/a"] = Page(DATA)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA and page.starts == [0]


def test_a_size_that_nobody_states_is_no_hindrance(server, tmp_path):
    server.pages["/a"] = Page(DATA, length=False)
    assert fetch(at(server, "/a", size=None), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(
    ("data", "length", "says"),
    [
        (DATA[:-1] + b"x", True, f"its MD5 should be {MD5[4:]} and is "),
        (DATA + b"x", True, "its server offers 307,201 bytes where there should be 307,200"),
        (DATA + b"x", False, "it sends more than 307,200 bytes"),
        (DATA[:-1], True, "its server offers 307,199 bytes where there should be 307,200"),
    ],
)
def test_another_file_is_refused_and_not_kept(server, tmp_path, data, length, says):
    server.pages["/a"] = Page(data, length=length)
    with refused("unexpected-file", match=f"/a is not the published file: {says}"):
        fetch(at(server, "/a"), tmp_path)
    assert names(tmp_path) == []


def test_a_mirror_is_asked_where_the_first_address_fails(server, tmp_path):
    server.pages |= {"/wrong": Page(DATA[::-1]), "/a": Page(DATA)}
    assert fetch(at(server, "/none", "/wrong", "/a"), tmp_path).read_bytes() == DATA
    (tmp_path / "set/a.bin").unlink()
    with refused("download-failed", match="404", kind=RunFailed):
        fetch(at(server, "/none", "/wrong"), tmp_path)


def test_kept_bytes_outlive_a_mirror_that_is_not_there(server, tmp_path):
    server.pages["/a"] = Page(DATA, breaks=[100_000, 0, 0, 0])
    for _ in range(2):
        with refused("download-failed", kind=RunFailed):
            fetch(at(server, "/a", "/none"), tmp_path)
        server.pages["/a"].breaks = [0, 0, 0, 0]
    assert (tmp_path / "set/a.bin.part").stat().st_size == 100_000


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server, tmp_path):
    page = server.pages["/a"] = Page(DATA, status=503, refusals=2)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA and len(page.asked) == 3
    (tmp_path / "set/a.bin").unlink()
    page = server.pages["/a"] = Page(DATA, status=403)
    with refused("download-failed", match="403.*a.bin", kind=RunFailed):
        fetch(at(server, "/a"), tmp_path)
    assert len(page.asked) == 1


def test_redirects_are_followed_to_https_only(server, tmp_path):
    server.pages |= {"/old": Page(to=server.at("/a")), "/a": Page(DATA, breaks=[100_000])}
    assert fetch(at(server, "/old"), tmp_path).read_bytes() == DATA
    assert server.pages["/a"].starts == [0, 100_000]
    for target in ("http://example.org/a", "ftp://example.org/a"):
        server.pages["/old"] = Page(to=target)
        with refused("insecure-address", match=f"{target} is not an https address"):
            fetch(at(server, "/old", size=1), tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://example.org/a", "ftp://127.0.0.1/a"])
def test_only_https_is_fetched(url, tmp_path):
    with refused("insecure-address"):
        fetch(Source("a", (url,)), tmp_path)


def test_a_server_that_is_not_there(server, tmp_path):
    with serve() as other:
        missing = other.at("/a")
    with refused("download-failed", kind=RunFailed):
        fetch(Source("a", (missing,)), tmp_path)


def test_a_folder_that_cannot_be_written(server, tmp_path):
    server.pages["/a"] = Page(DATA)
    (tmp_path / "file").write_bytes(b"")
    with refused("cannot-write", match="XDG_CACHE_HOME"):
        fetch(at(server, "/a"), tmp_path / "file")


def test_a_disk_that_fills_up_is_said_and_the_bytes_are_kept(server, tmp_path):
    """A limit on the size of files stands for a full disk: the write fails in the same place."""
    server.pages["/a"] = Page(DATA)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
        with refused("cannot-write", match="a.bin.*XDG_CACHE_HOME"):
            fetch(at(server, "/a"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert fetch(at(server, "/a"), tmp_path).read_bytes() == DATA
    assert server.pages["/a"].starts[1] > 0


def test_a_download_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda place: usage(10, 9, 10**9))
    check_space(tmp_path / "not/there", 10**9, name="set")
    text = f"set needs 2.8 GB of disk space in {tmp_path}, and 1.0 GB are free; free some, or set XDG_CACHE_HOME"
    with refused("disk-full", match=re.escape(text)):
        check_space(tmp_path, 2_780_000_000, name="set")


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (40_000, "40.0 kB"), (11_594_722, "11.6 MB"), (170_052_171, "170 MB")]
)
def test_sizes_are_for_people(count, text):
    assert size_text(count) == text


def test_an_unreadable_file_is_said(tmp_path):
    with refused("unreadable-file"):
        module.file_digest(tmp_path / "none")
