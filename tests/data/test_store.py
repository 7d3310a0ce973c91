"""Finding and fetching files: against a real server on loopback, with the faults real servers have."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.data import download as module
from grandrounds.data import store
from grandrounds.data.download import Source
from grandrounds.data.store import Build, DataFile, cache_folder, get_files, locate_file, new_file, sources_of
from tests.data.http_server import Page, serve
from tests.support import refused

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


@pytest.fixture(scope="module")
def server():
    with serve() as httpd:
        httpd.pages = {path: Page(data) for path, data in PAGES.items()}
        yield httpd


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """An empty data folder and an empty cache; loopback is reached without any proxy."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PAUSE", 0.0)
    return tmp_path


def at(server, page, **more):
    return DataFile("set/a.csv", RIGHT, len(CONTENT), url=server.at(page), **more)


def asked(server):
    """How often each page was asked for, from now on."""
    for page in server.pages.values():
        page.asked.clear()
    return lambda: {path: len(page.asked) for path, page in server.pages.items() if page.asked}


def put(path, data=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def nothing_left(places):
    return [p for p in (places / "cache").rglob("*") if p.is_file()] == []


def test_own_folder_comes_before_the_cache_and_nothing_is_fetched(places, server):
    file = at(server, "/right")
    in_cache = put(places / "cache/grandrounds/set/a.csv")
    assert locate_file(file) == in_cache
    in_folder = put(places / "data/set/a.csv")
    count = asked(server)
    assert locate_file(file) == in_folder == locate_file(file, download=True)
    assert count() == {}


def test_the_package_comes_after_the_own_folder_and_before_the_cache(places, server, monkeypatch):
    monkeypatch.setattr(store, "INCLUDED", places / "package")
    in_cache, included = put(places / "cache/grandrounds/set/a.csv"), put(places / "package/set/a.csv")
    count = asked(server)
    assert locate_file(at(server, "/right")) == included == locate_file(at(server, "/right"), download=True)
    in_folder = put(places / "data/set/a.csv")
    assert locate_file(at(server, "/right")) == in_folder
    in_folder.unlink()
    included.write_bytes(b"edited")
    for download in (False, True):
        with refused("checksum-mismatch", match=rf"{included} is not the file we know: .*install grandrounds again"):
            locate_file(at(server, "/right"), download=download)
    assert in_cache.read_bytes() == CONTENT and count() == {}


def test_cache_is_in_the_home_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "grandrounds"


def test_download_is_checked_and_kept(places, server):
    steps = []
    path = locate_file(at(server, "/right"), download=True, progress=lambda *step: steps.append(step))
    assert path == places / "cache/grandrounds/set/a.csv"
    assert path.read_bytes() == CONTENT
    assert steps[-1] == ("set/a.csv", len(CONTENT), len(CONTENT)) and len(steps) > 1
    assert [p.name for p in path.parent.iterdir()] == ["a.csv"]
    count = asked(server)
    assert locate_file(at(server, "/right")) == path == locate_file(at(server, "/right"), download=True)
    assert count() == {}


def test_members_of_one_archive_are_fetched_together(places, server):
    a = at(server, "/set.zip", member="a")
    b = DataFile("set/b.csv", hashlib.sha256(CONTENT[:100]).hexdigest(), 100, url=a.url, member="b")
    count = asked(server)
    paths = get_files([a, b], name="set")
    assert [p.read_bytes() for p in paths] == [CONTENT, CONTENT[:100]]
    assert count() == {"/set.zip": 1}


def test_another_wrapping_will_do(places, server):
    zipped_copy = DataFile("set/a.csv.gz", hashlib.sha256(b"gz").hexdigest(), 2)
    path = put(places / "data/set/a.csv.gz", b"gz")
    assert locate_file(at(server, "/right", also=(zipped_copy,))) == path


@pytest.mark.parametrize("page", ["/wrong", "/longer"])
def test_wrong_content_is_refused_and_not_kept(places, server, page):
    with refused("unexpected-file") as e:
        locate_file(at(server, page), download=True)
    message = str(e.value)
    assert f"{page} is not the published file" in message and "download the file yourself to" in message
    if page == "/wrong":
        assert RIGHT in message and hashlib.sha256(PAGES[page]).hexdigest() in message
    assert nothing_left(places)


@pytest.mark.parametrize(
    ("page", "more", "error", "code", "value"),
    [
        ("/nowhere", {}, RunFailed, "download-failed", "404"),
        ("/not.zip", {"member": "a"}, BadInput, "damaged-file", None),
        ("/set.zip", {"member": "c"}, BadInput, "incomplete-archive", "'c'"),
    ],
)
def test_a_failed_download_is_said_and_leaves_nothing(places, server, page, more, error, code, value):
    with refused(code, match=value, kind=error):
        locate_file(at(server, page, **more), download=True)
    assert nothing_left(places)


def test_missing_file_says_both_ways_out(server):
    with refused("data-not-downloaded", match="GRANDROUNDS_DATA.*a.csv"):
        locate_file(at(server, "/right"), name="set")


@pytest.mark.parametrize("download", [False, True])
def test_missing_file_without_an_address(download):
    with refused("data-not-downloaded", match="a.csv"):
        locate_file(DataFile("set/a.csv", RIGHT, 1), download=download)


def test_a_changed_file_in_the_users_folder_is_never_replaced(places, server):
    path = put(places / "data/set/a.csv", b"edited")
    for download in (False, True):
        with refused(
            "checksum-mismatch", match=rf"{path} is not the file we know: .*{RIGHT} and is .*unset GRANDROUNDS_DATA"
        ):
            locate_file(at(server, "/right"), download=download)
    assert path.read_bytes() == b"edited"


def test_a_damaged_copy_in_the_cache_is_replaced_by_a_download(places, server):
    path = put(places / "cache/grandrounds/set/a.csv", CONTENT[:50])
    with refused("checksum-mismatch"):
        locate_file(at(server, "/right"), name="set")
    assert locate_file(at(server, "/right"), download=True) == path
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
    with refused("folder-not-found", match="GRANDROUNDS_DATA.*'.*nowhere'"):
        locate_file(DataFile("a", RIGHT, 1))


def test_a_cache_that_cannot_be_written(places, server, monkeypatch):
    put(places / "file", b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "file"))
    with refused("cannot-write", match="XDG_CACHE_HOME"):
        locate_file(at(server, "/right"), download=True)


# --- files that are made here from what was published --------------------------------------------------


def shout(files, progress):
    """A conversion: both files in capitals, one after the other."""
    progress("set/loud.txt", 1, 1)
    return {"set/loud.txt": b"".join(files[name].read_bytes().upper() for name in ("set/one.txt", "set/two.txt"))}


def made(server, *, sha256=None, convert=shout):
    server.pages |= {"/one": Page(b"one "), "/two": Page(b"two")}
    sources = (
        Source("set/one.txt", (server.at("/one"),), 4, "md5:" + hashlib.md5(b"one ").hexdigest()),
        Source("set/two.txt", (server.at("/two"),), 3),
    )
    return DataFile(
        "set/whole.txt", RIGHT, 7, also=(DataFile("set/loud.txt", sha256, 7),), build=Build(sources, convert)
    )


def test_a_file_is_made_from_downloads_once(places, server):
    file, count = made(server), asked(server)
    with refused("data-not-downloaded"):
        locate_file(file, name="set")
    steps = []
    (path,) = get_files([file], name="set", progress=lambda *step: steps.append(step))
    assert path == places / "cache/grandrounds/set/loud.txt" and path.read_bytes() == b"ONE TWO"
    assert steps[-1] == ("set/loud.txt", 1, 1) and {s.name for s in sources_of([file])} == {
        "set/one.txt",
        "set/two.txt",
    }
    noted = f"{hashlib.sha256(b'ONE TWO').hexdigest()}  loud.txt\n"
    assert path.with_name("loud.txt.sha256").read_text() == noted
    assert sorted(p.name for p in (places / "cache").rglob("*") if p.is_file()) == ["loud.txt", "loud.txt.sha256"]
    assert locate_file(file) == path == get_files([file])[0] and count() == {"/one": 1, "/two": 1}


def test_downloads_are_kept_where_this_is_asked_for(places, server):
    get_files([made(server)], keep=True)
    assert sorted(p.name for p in (places / "cache/grandrounds/downloads/set").iterdir()) == ["one.txt", "two.txt"]


def test_a_file_that_was_made_here_and_edited_is_refused_then_made_again(places, server):
    file = made(server)
    (path,) = get_files([file], name="set")
    path.write_bytes(b"ONE 222")
    with refused("checksum-mismatch", match="loud.txt"):
        locate_file(file, name="set")
    get_files([file], name="set")
    path.with_name("loud.txt.sha256").unlink()
    with refused("checksum-mismatch", match="SHA-256"):
        locate_file(file, name="set")
    assert get_files([file], name="set")[0].read_bytes() == b"ONE TWO"


def test_a_made_file_with_a_known_digest_must_have_it(places, server):
    right = hashlib.sha256(b"ONE TWO").hexdigest()
    assert get_files([made(server, sha256=right)])[0].read_bytes() == b"ONE TWO"
    (places / "cache/grandrounds/set/loud.txt").unlink()
    with refused("checksum-mismatch", match="loud.txt"):
        get_files([made(server, sha256=RIGHT)])
    assert not (places / "cache/grandrounds/set/loud.txt").exists()


def test_a_source_without_a_checksum_is_fetched_anew_after_a_failed_conversion(places, server):
    def refuse(files, progress):
        raise BadInput("two.txt is not what it was")

    with pytest.raises(BadInput, match="not what it was"):
        get_files([made(server, convert=refuse)])
    assert [p.name for p in (places / "cache/grandrounds/downloads/set").iterdir()] == ["one.txt"]
    count = asked(server)
    get_files([made(server)])
    assert count() == {"/two": 1}


def test_a_set_that_does_not_fit_on_the_disk_is_refused_before_the_first_byte(places, server, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 13})())
    file, count = made(server), asked(server)
    with refused("disk-full", match="14 bytes.*13 bytes"):
        get_files([file], name="set")
    assert count() == {}
