"""Run folders that were made before modules moved: they open, verify, explain and resume, and repeat to the bit."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.core.arrays import load, read_json
from grandrounds.data.image_files import read_npz
from grandrounds.runs.environment import environment
from tests.command import rounds
from tests.support import bright_squares

FIXTURES = Path(__file__).parent.parent / "fixtures" / "runs.tar.xz"
REMADE = {"veil": FIXTURES.parent / "veil-exact-noise.safetensors"}
"""Models that came to have other bits on purpose: counts take the noise of an exact sampler since."""
SYSTEMS = ("fedavg", "sse-agg", "fedxchain-secure", "veil", "xfed", "dp-sgd", "fedbuff", "forest")
TABLES = [name for name in SYSTEMS if name != "xfed"]
CLOSE = 1e-5
"""How far single-precision parameters of another processor's libraries may lie from those of the fixture."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """The folders as they were made, by a system's name."""
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(FIXTURES) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The images of the XFed run, which came from memory."""
    path = tmp_path_factory.mktemp("npz") / "squares.npz"
    return read_npz(bright_squares(path, 170, "abcdeabcdeabcab", purpose="squares"))


def needs_torch(system: str) -> None:
    if system == "xfed":
        pytest.importorskip("torch")


def copy(folders: Path, system: str, place: Path) -> Path:
    """The folder where it may be changed."""
    with tarfile.open(FIXTURES) as archive:
        archive.extractall(place, [m for m in archive if m.name.split("/")[0] == system], filter="data")
    return place / system


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_opens_and_verifies(system, folders):
    needs_torch(system)
    run = gr.load_run(folders / system)
    assert run.finished and len(run.rounds) == run.summary["rounds"]
    assert run.model.parameters
    checked = audit(folders / system, deep=True)
    assert not checked.findings, checked.findings


@pytest.mark.parametrize("system", TABLES)
def test_a_case_is_explained(system, folders):
    case = gr.explain_case(gr.load_run(folders / system), 3)
    assert case.site and case.attributions and 0 <= case.probability <= 1


@pytest.mark.parametrize("system", ["fedavg", "fedxchain-secure", "veil"])
def test_commands_read_it(system, folders):
    for command in (["show"], ["privacy"], ["show", "--round", "1"]):
        done = rounds(command[0], str(folders / system), *command[1:])
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s not in ("veil", "dp-sgd", "forest")])
def test_it_goes_on(system, folders, images, tmp_path):
    """By one round more; a budget that is used up and a method of one round say that they cannot."""
    needs_torch(system)
    place = copy(folders, system, tmp_path)
    before = gr.load_run(place).rounds
    table = images if system == "xfed" else None
    run = gr.resume(place, settings=[f"method.rounds={len(before) + 1}"], table=table)
    assert len(run.rounds) == len(before) + 1 and run.rounds[: len(before)] == before
    assert not audit(place).findings


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_experiment_gives_the_same_model(system, folders, images, tmp_path):
    needs_torch(system)
    here = folders / system
    again = gr.run(
        gr.Experiment.load(here / "experiment.toml"), out=tmp_path / "again", table=images if system == "xfed" else None
    )
    now, then = again.model.parameters, load(REMADE.get(system, here / "model.safetensors"))[0]
    assert list(now) == list(then)
    if made_here(here):
        assert all(np.array_equal(now[name], then[name]) for name in then), "to the bit on the machine that made it"
    elif system != "forest":  # a tie between two splits of a tree may be broken otherwise elsewhere
        for name in then:
            np.testing.assert_allclose(now[name], then[name], atol=CLOSE)
    assert set(again.summary) >= set(read_json(here / "summary.json"))


def made_here(folder: Path) -> bool:
    """Whether a folder was made on a machine like this one, with these versions."""
    facts = read_json(folder / "environment.json")
    names = ("python", "packages", "processor", "byte_order")
    return all(facts[name] == environment()[name] for name in names)
