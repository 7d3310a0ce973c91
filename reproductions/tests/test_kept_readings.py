"""Readings that are kept with the pages: of version 0.1 and said to be so, or the page says that there are none."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path

import pytest
from tests.support import slow

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds_studies import load_study, studies
from grandrounds_studies.carried import Carried
from grandrounds_studies.kept import Kept, digest, first_digest
from grandrounds_studies.results import FIRST, MEASURED, Reading
from grandrounds_studies.running import nobody
from grandrounds_studies.xfed.photos import CIFAR, FULL

DOCS = Path(__file__).parents[2] / "docs" / "results"
READINGS = DOCS / "readings"
ENDING = ".json.gz"
KEPT = sorted(f"{file.parent.name}/{file.name.removesuffix(ENDING)}" for file in READINGS.glob(f"*/*{ENDING}"))


def unpack(name: str, folder: Path) -> None:
    """Put a study's readings into its folder. Those of two fifths of CIFAR-10 are of another plan where all of it is here."""
    study = load_study(name)
    if CIFAR == FULL and any(study.data(cell) == FULL for cell in study.cells(1)):
        pytest.skip("kept readings are of two fifths of CIFAR-10, and all of it is on this machine")
    (folder / "readings.json").write_bytes(gzip.decompress((READINGS / f"{name}{ENDING}").read_bytes()))


def test_a_setting_that_came_in_later_leaves_digests_alone_at_its_default():
    plan = gr.Experiment.parse({"data": {"name": "heart"}}).plan()
    before = json.loads(json.dumps(plan))
    del before["method"]["veil"]["percentiles"]
    assert digest(plan) == digest(before)
    plan["method"]["veil"]["percentiles"] = 0.02
    assert digest(plan) != digest(before)


@pytest.mark.parametrize("name", KEPT)
def test_readings_of_01_are_those_of_a_whole_study_and_are_read_as_such(name, tmp_path):
    """A failure means that a setting was added: name it in `ADDED` of kept.py with the value that changes nothing."""
    chosen = load_study(name)
    unpack(name, tmp_path)
    kept = Kept.read(tmp_path)
    assert kept.measured == FIRST
    cells = chosen.cells(chosen.seeds)
    kept.refuse_more([c.name for c in cells if kept.reading(chosen, c, chosen.plan(c)) is None])


def test_a_study_of_01_is_shown_as_such_and_never_mixed_with_runs_of_today(tmp_path):
    folder = tmp_path / "4.12"
    folder.mkdir()
    unpack("fl-xai/4.12", folder)
    results = gr.reproduce("fl-xai/4.12", out=folder)
    assert results.to_dict()["measured"] == FIRST
    assert "Measured with 0.1" in (folder / "report.html").read_text()
    before = (folder / "readings.json").read_bytes()
    with pytest.raises(BadInput, match=r"measured with 0\.1, 3 runs are missing .* not mixed: run the study in another folder"):
        gr.reproduce("fl-xai/4.12", out=folder, seeds=6)
    carried = Carried.of(load_study("fl-xai/4.12"), quick=False, seeds=4)
    with pytest.raises(BadInput, match=r"1 run is missing"):
        carried.run(load_study("fl-xai/4.12"), folder, jobs=1, progress=nobody)
    assert (folder / "readings.json").read_bytes() == before


def test_readings_of_today_say_so_and_are_taken_for_no_plan_of_01(tmp_path):
    plan = gr.Experiment.parse({"data": {"name": "heart"}}).plan()
    Kept.read(tmp_path).add("a", plan, Reading({"accuracy": 0.5}))
    assert json.loads((tmp_path / "readings.json").read_text())["measured"] == MEASURED
    Kept.read(tmp_path).refuse_more(["b"])  # nothing is mixed
    text = (tmp_path / "readings.json").read_text().replace('"measured": "0.2"', '"measured": "0.1"')
    (tmp_path / "readings.json").write_text(text)
    with pytest.raises(BadInput, match="of another experiment, or of another version's"):
        Kept.read(tmp_path).has("a", plan)


def test_the_defence_of_sse_agg_was_not_in_01():
    told = {"data": {"name": "heart"}, "reference": {"rows": {"rows": 40}}}
    plans = {
        preset: gr.Experiment.parse({**told, "method": {"name": "sse-agg", "preset": preset}}).plan()
        for preset in ("drift", "defence")
    }
    was = json.loads(json.dumps(plans["drift"]))
    for section, key in (("data", "decimal"), ("data", "event"), ("method", "preset"), ("split", "seed")):
        del was[section][key]
    del was["method"]["weigh"]["own_halves"]
    was["data"]["missing"] = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]
    assert first_digest(plans["drift"]) == digest(was)
    assert first_digest(plans["defence"]) != digest({**was, "method": {**plans["defence"]["method"], "preset": "default"}})


FEW = ("fl-xai/4.12", "xfed/table-2")


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in KEPT])
def test_a_page_has_the_figures_and_verdicts_of_its_readings(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS.parent)
    results_page = importlib.import_module("results_page")
    system, what = name.split("/")
    unpack(name, tmp_path)
    found = json.loads(json.dumps(gr.reproduce(name, out=tmp_path).to_dict()))
    places = [p for p in results_page.MARK.finditer((DOCS / f"{system}.md").read_text()) if p["study"] == what]
    assert places
    for place in places:
        part = results_page.PARTS[place["what"]](found, place["measures"].split())
        assert f"{place['mark']}\n\n{part}\n\n<!-- end -->" == place[0]


@pytest.mark.parametrize("system", sorted({name.split("/")[0] for name in studies()}))
def test_readings_are_kept_or_the_page_says_that_they_are_not(system):
    page = (DOCS / f"{system}.md").read_text()
    says = "are not kept in the repository" in page[: page.index("\n## ")]
    mine = {name for name in studies() if name.startswith(f"{system}/")}
    kept = {name for name in KEPT if name.startswith(f"{system}/")}
    withheld = {name for name in mine - kept if f"`{name}`" in page}
    assert says != bool(kept)
    assert says or mine == kept | withheld
