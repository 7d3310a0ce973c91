"""Finding and fetching files: against a real server on loopback, with the faults real servers have."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grandrounds.data import store
from grandrounds.data.store import DataFile, cache_folder, get, locate, new_file
from grandrounds.errors import BadInput, RunFailed

CONTENT = b"age,died\n71,1\n64,0\n" * 9000  # more than one chunk
RIGHT = hashlib.sha256(CONTENT).hexdigest()


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


PAGES = {
    "/right": CONTENT,
    "/wrong": CONTENT[:-2] + b"1\n",
    "/longer": CONTENT + b"more",
    "/not.zip": b"<html>moved</html>",
    "/set.zip": zipped(a=CONTENT, folder__b=CONTENT[:100]),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
        elif self.path in PAGES:
            self.send_response(200)
            self.send_header("Content-Length", str(len(PAGES[self.path])))
            self.end_headers()
            self.wfile.write(PAGES[self.path])
        else:
            self.send_error(404)

    def log_message(self, *args):
        """Quiet: pytest's output is for tests."""


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.seen = []
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """An empty data folder and an empty cache; loopback is reached without any proxy."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def at(server, page, **more):
    address = f"http://127.0.0.1:{server.server_port}{page}"
    return DataFile("set/a.csv", RIGHT, len(CONTENT), url=address, **more)


def put(path, data=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def nothing_left(places):
    return [p for p in (places / "cache").rglob("*") if p.is_file()] == []


def test_own_folder_comes_before_the_cache_and_nothing_is_fetched(places, server):
    file = at(server, "/right")
    in_cache = put(places / "cache/grandrounds/set/a.csv")
    assert locate(file) == in_cache
    in_folder = put(places / "data/set/a.csv")
    server.seen.clear()
    assert locate(file) == in_folder == locate(file, download=True)
    assert server.seen == []


def test_the_package_comes_after_the_own_folder_and_before_the_cache(places, server, monkeypatch):
    monkeypatch.setattr(store, "INCLUDED", places / "package")
    in_cache, included = put(places / "cache/grandrounds/set/a.csv"), put(places / "package/set/a.csv")
    server.seen.clear()
    assert locate(at(server, "/right")) == included == locate(at(server, "/right"), download=True)
    in_folder = put(places / "data/set/a.csv")
    assert locate(at(server, "/right")) == in_folder
    in_folder.unlink()
    included.write_bytes(b"edited")
    for download in (False, True):
        with pytest.raises(BadInput, match=rf"{included} is not the file we know: .*install grandrounds again"):
            locate(at(server, "/right"), download=download)
    assert in_cache.read_bytes() == CONTENT and server.seen == []


def test_cache_is_in_the_home_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "grandrounds"


def test_download_is_checked_and_kept(places, server):
    steps = []
    path = locate(at(server, "/right"), download=True, progress=lambda done, total: steps.append((done, total)))
    assert path == places / "cache/grandrounds/set/a.csv"
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT)) and len(steps) > 1
    assert [p.name for p in path.parent.iterdir()] == ["a.csv"]
    server.seen.clear()
    assert locate(at(server, "/right")) == path == locate(at(server, "/right"), download=True)
    assert server.seen == []


def test_members_of_one_archive_are_fetched_together(places, server):
    a = at(server, "/set.zip", member="a")
    b = DataFile("set/b.csv", hashlib.sha256(CONTENT[:100]).hexdigest(), 100, url=a.url, member="b")
    server.seen.clear()
    paths = get([a, b], name="set")
    assert [p.read_bytes() for p in paths] == [CONTENT, CONTENT[:100]]
    assert server.seen == ["/set.zip"]


def test_another_wrapping_will_do(places, server):
    zipped_copy = DataFile("set/a.csv.gz", hashlib.sha256(b"gz").hexdigest(), 2)
    path = put(places / "data/set/a.csv.gz", b"gz")
    assert locate(at(server, "/right", also=(zipped_copy,))) == path


@pytest.mark.parametrize("page", ["/wrong", "/longer"])
def test_wrong_content_is_refused_and_not_kept(places, server, page):
    with pytest.raises(BadInput) as e:
        locate(at(server, page), download=True)
    said = str(e.value)
    assert "set/a.csv" in said and RIGHT in said and "set GRANDROUNDS_DATA" in said
    if page == "/wrong":
        assert hashlib.sha256(PAGES[page]).hexdigest() in said
    assert nothing_left(places)


@pytest.mark.parametrize(
    ("page", "more", "error", "says"),
    [
        ("/nowhere", {}, RunFailed, "the server answers 404 Not Found"),
        ("/cut", {}, RunFailed, rf"broke off after {len(CONTENT) // 2:,} of {len(CONTENT):,} bytes"),
        ("/not.zip", {"member": "a"}, BadInput, "not a zip archive"),
        ("/set.zip", {"member": "c"}, BadInput, "holds no 'c' any more"),
    ],
)
def test_a_failed_download_is_said_and_leaves_nothing(places, server, page, more, error, says):
    with pytest.raises(error, match=says):
        locate(at(server, page, **more), download=True)
    assert nothing_left(places)


def test_a_server_that_is_not_there(server):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        port = other.server_port
    file = DataFile("a.csv", RIGHT, 1, url=f"http://127.0.0.1:{port}/right")
    with pytest.raises(RunFailed, match=r"cannot fetch http.*refused.*; try again, or fetch it by hand"):
        locate(file, download=True)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://example.org/a", "ftp://127.0.0.1/a"])
def test_only_https_is_fetched(url):
    with pytest.raises(BadInput, match="not an https address"):
        locate(DataFile("a.csv", RIGHT, 1, url=url), download=True)


def test_missing_file_says_both_ways_out(server):
    with pytest.raises(
        BadInput, match=r"set GRANDROUNDS_DATA to a folder that holds set/a.csv, or run `rounds data get s"
    ):
        locate(at(server, "/right"), name="set")


@pytest.mark.parametrize("download", [False, True])
def test_missing_file_without_an_address(download):
    with pytest.raises(BadInput, match=r"folder that holds set/a.csv \(it has no public address"):
        locate(DataFile("set/a.csv", RIGHT, 1), download=download)


def test_a_changed_file_in_the_users_folder_is_never_replaced(places, server):
    path = put(places / "data/set/a.csv", b"edited")
    for download in (False, True):
        with pytest.raises(
            BadInput, match=rf"{path} is not the file we know: .*{RIGHT} and is .*unset GRANDROUNDS_DATA"
        ):
            locate(at(server, "/right"), download=download)
    assert path.read_bytes() == b"edited"


def test_a_damaged_copy_in_the_cache_is_replaced_by_a_download(places, server):
    path = put(places / "cache/grandrounds/set/a.csv", CONTENT[:50])
    with pytest.raises(BadInput, match="`rounds data get set` replaces it"):
        locate(at(server, "/right"), name="set")
    assert locate(at(server, "/right"), download=True) == path
    assert path.read_bytes() == CONTENT


def test_a_new_file_takes_the_old_ones_place_whole_or_not_at_all(places):
    path = put(places / "cache/grandrounds/set/a.csv", b"old")
    with pytest.raises(ZeroDivisionError), new_file("set/a.csv") as f:
        f.write(b"ne")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    with new_file("set/a.csv") as f:
        f.write(b"new")
        f.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["a.csv"]


def test_a_variable_that_names_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match=r"GRANDROUNDS_DATA is '.*nowhere', which is not a folder"):
        locate(DataFile("a", RIGHT, 1))


def test_a_cache_that_cannot_be_written(places, server, monkeypatch):
    put(places / "file", b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "file"))
    with pytest.raises(BadInput, match=r"cannot write .*; set XDG_CACHE_HOME"):
        locate(at(server, "/right"), download=True)
