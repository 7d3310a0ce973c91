"""`rounds data get` and `rounds data list` against a server on loopback, with small files in the publishers' formats."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.data import download
from grandrounds.data.download import Source, no_progress
from grandrounds.data.sets import images as pictures
from grandrounds.data.sets.catalog import CATALOG, file_status, find_entry
from grandrounds.data.sets.image_sources import convert_cifar10, convert_mnist
from grandrounds.data.store import Build, DataFile, sources_of
from tests.command import rounds
from tests.data.http_server import Page, serve
from tests.data.sets.test_image_sources import cifar_archive, mnist_files


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server, an empty cache, and no data folder."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "GRANDROUNDS_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with serve() as httpd:
        yield httpd


def source(server, name, data):
    """A published file on the server."""
    server.pages[f"/{name}"] = Page(data)
    return Source(name, (server.at(f"/{name}"),), len(data), "md5:" + hashlib.md5(data).hexdigest())


@pytest.fixture
def mnist(server, tmp_path, monkeypatch):
    """The catalog's MNIST, with seven digits, at the server."""
    folder = tmp_path / "published"
    folder.mkdir()
    files, arrays = mnist_files(folder)
    (made,) = convert_mnist(files, no_progress).values()
    sources = tuple(source(server, name, path.read_bytes()) for name, path in sorted(files.items()))
    result = DataFile("mnist/mnist_idx.npz", hashlib.sha256(made).hexdigest(), len(made))
    file = replace(pictures.MNIST_FILE, also=(result,), build=replace(pictures.MNIST_FILE.build, sources=sources))
    monkeypatch.setattr(pictures, "MNIST_FILE", file)
    monkeypatch.setitem(CATALOG, "mnist", replace(find_entry("mnist"), files=(file,)))
    return arrays


def test_a_set_is_fetched_checked_converted_and_loaded(server, mnist, tmp_path):
    assert file_status(find_entry("mnist")) == "not here"
    done = rounds("data", "get", "mnist")
    assert done.returncode == 0, done.stderr
    assert "licence: none stated by the authors" in done.stdout and "in 4 files" in done.stdout
    assert "note: converted from the four idx files" in done.stdout
    assert f"{tmp_path}/cache/grandrounds/mnist/mnist_idx.npz  verified" in done.stdout
    loaded = pictures.mnist()
    assert (loaded.pixels[:5, ..., 0] == mnist["x_train"]).all() and len(loaded) == 7
    assert "mnist                 cached " in rounds("data", "list").stdout
    asked = sum(len(page.asked) for page in server.pages.values())
    again = rounds("data", "get", "mnist")
    assert again.returncode == 0 and "verified" in again.stdout and "licence" not in again.stdout
    assert sum(len(page.asked) for page in server.pages.values()) == asked == 4


def test_an_interrupted_download_is_one_sentence_and_goes_on(server, mnist):
    page = server.pages["/mnist/train-images-idx3-ubyte.gz"]
    page.breaks = [1000, 0, 0, 0]
    done = rounds("data", "get", "mnist")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"broke off after 1,000 of {len(page.data):,} bytes; run the command again" in done.stderr
    assert rounds("data", "get", "mnist", "--keep").returncode == 0
    assert page.starts[-1] == 1000


def test_another_file_at_the_address_is_refused(server, mnist):
    page = server.pages["/mnist/t10k-labels-idx1-ubyte.gz"]
    page.data = page.data[:-1] + b"x"
    done = rounds("data", "get", "mnist")
    assert done.returncode == 2 and "is not the published file: its MD5 should be" in done.stderr


def test_a_missing_set_says_the_command(server):
    for name in ("mnist", "cifar-10", "cifar-10-full", "ham10000", "eicu-demo", "xfed-mnist"):
        text = rounds("data", "check", name)
        assert text.returncode == 2 and f"or run `rounds data get {name}`" in text.stderr, name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "eicu",
            "needs a PhysioNet account and a signed agreement; ask at https://physionet.org/content/eicu-crd/2.0/",
        ),
        ("fed-isic2019", "https://challenge.isic-archive.com/data/#2019"),
    ],
)
def test_a_set_that_needs_an_account_says_where_to_ask(name, says):
    done = rounds("data", "get", name)
    assert done.returncode == 2 and says in done.stderr


def test_the_licence_is_shown_before_the_download(server, monkeypatch):
    file = pictures.HAM_FILES[0]
    build = Build((Source("ham10000/a.zip", (server.at("/none"),), 10**6),), lambda files, progress: {})
    monkeypatch.setitem(CATALOG, "ham10000", replace(find_entry("ham10000"), files=(replace(file, build=build),)))
    done = rounds("data", "get", "ham10000")
    assert done.returncode == 1 and "404" in done.stderr
    assert "CC BY-NC 4.0 (not for commercial use)" in done.stdout and "a download of 1.0 MB in 1 file," in done.stdout


def test_what_comes_with_the_package_is_not_downloaded(server):
    for name in ("breast-cancer", "heart"):
        assert "nothing to download" in rounds("data", "get", name).stdout
    lines = rounds("data", "list").stdout.splitlines()
    states = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert set(states) == set(CATALOG) and " included " in states["heart"]
    assert states["ham10000"].endswith("2.8 GB: rounds data get ham10000")
    assert " not here " in states["cifar-10-full"]


def test_every_set_of_the_catalog_is_included_or_has_an_address():
    for one in CATALOG.values():
        assert len(sources_of(one.files)) >= bool(one.files), one.name
        assert all(url.startswith("https://") for s in sources_of(one.files) for url in s.urls), one.name


def test_two_fifths_of_cifar10_are_cut_from_the_full_file(server, tmp_path, monkeypatch):
    path = tmp_path / "published.tar.gz"
    x, y = cifar_archive(path)
    (made,) = convert_cifar10({"a": path}, no_progress).values()
    build = replace(pictures.CIFAR_FULL_FILE.build, sources=(source(server, "cifar10/a.tar.gz", path.read_bytes()),))
    full = replace(pictures.CIFAR_FULL_FILE, sha256=hashlib.sha256(made).hexdigest(), bytes=len(made), build=build)
    parts = tuple(replace(file, also=(full,), build=build) for file in pictures.CIFAR_FILES)
    monkeypatch.setattr(pictures, "CIFAR_FULL_FILE", full)
    monkeypatch.setattr(pictures, "CIFAR_FILES", parts)
    monkeypatch.setitem(CATALOG, "cifar-10", replace(find_entry("cifar-10"), files=parts))
    done = rounds("data", "get", "cifar-10")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("verified") == 1 and "`cifar-10-full` is all 60,000" in done.stdout
    whole, cut = pictures.cifar10_full(), pictures.cifar10()
    assert whole.name == "cifar-10-full" and cut.name == "cifar-10"
    for found in (whole, cut):  # fewer than 2,000 a class here, so nothing is left out
        assert (found.pixels == x).all() and found.columns["index"].tolist() == [str(i) for i in [*range(15), 0, 1, 2]]
        assert found.label.tolist() == [pictures.CIFAR_CLASSES[c] for c in y]
    cut = pictures._cut(
        np.load(tmp_path / "cache/grandrounds/cifar10/cifar10_60000.npz"), {"train": (1, 2), "test": (0, 1)}
    )
    assert cut["idx_train"].tolist() == [10, 11, 12, 13, 14] and cut["idx_test"].tolist() == [0, 1, 2]
