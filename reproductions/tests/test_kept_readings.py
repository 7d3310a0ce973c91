"""Readings: digests of plans, imports from other machines, more seeds, and the pages that are computed from what is kept."""

from __future__ import annotations

import copy
import gzip
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command import rounds

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds_studies import load_study, studies
from grandrounds_studies.digest import DIGESTS, digest, nameless, today, usual
from grandrounds_studies.kept import NOT_MEASURED, READINGS, Kept
from grandrounds_studies.results import Reading
from grandrounds_studies.running import conduct_study
from grandrounds_studies.study import Arm, Cell, Measure, Point, Quick, Study

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def results_page():
    """The script of docs/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("results_page")


# Digests


def heart(**method) -> dict:
    return gr.Experiment.parse({"data": {"name": "heart"}, "method": method}).plan()


def test_a_digest_tells_experiments_apart_and_leaves_out_what_another_method_reads():
    plan = heart(name="fedavg")
    assert digest(heart(name="fedavg")) == digest(plan)
    assert digest(heart(name="fedprox")) != digest(plan) != digest(heart(name="fedavg", rounds=21))
    assert digest({**plan, "name": "other"}) != digest(plan) and nameless({**plan, "name": "other"}) == nameless(plan)
    for section, setting, value in (("veil", "k", 7), ("trust", "tau", 0.9), ("xfed", "keep", 0.5), ("watch", "level", 0.5)):
        other = copy.deepcopy(plan)
        other["method"][section][setting] = value
        assert digest(other) == digest(plan), section
    reads = {"veil": "veil", "trust": "fedxchain", "xfed": "xfed"}
    for section, name in reads.items():
        one = copy.deepcopy(plan)
        one["method"]["name"] = name
        other = copy.deepcopy(one)
        key = next(iter(other["method"][section]))
        other["method"][section][key] = "another"
        assert digest(other) != digest(one), section


def test_a_setting_that_came_in_later_leaves_digests_alone_at_its_default(monkeypatch):
    plan = heart(name="fedavg")
    before = digest(plan)
    known = copy.deepcopy(usual())
    del known["train"]["momentum"], known["personal"]
    monkeypatch.setattr("grandrounds_studies.digest.usual", lambda: known)
    assert digest(plan) == before, "its default is as usual"
    plan["train"]["momentum"] = 0.5
    assert digest(plan) != before


def test_a_default_that_changes_gives_other_digests(monkeypatch):
    known = copy.deepcopy(usual())
    plan = heart(name="fedavg")
    before = digest(plan)
    known["train"]["lr"] = 0.2
    monkeypatch.setattr("grandrounds_studies.digest.usual", lambda: known)
    assert digest(plan) != before
    assert today()["train"]["lr"] == plan["train"]["lr"]


@pytest.mark.parametrize("name", ["sse-agg/table-1", "veil/table-1", "xfed/table-1", "fl-xai/4.3", "fedxchain/robust"])
def test_runs_of_a_study_have_digests_of_their_own(name):
    study = load_study(name)
    cells = list(study.cells(2))
    assert len({digest(study.plan(cell)) for cell in cells}) == len(cells)


# Imports


def study(*arms: str, measures=("accuracy",)) -> Study:
    return Study(
        name="test/one",
        title="One",
        source="a paper",
        base={"data": {"name": "breast-cancer"}, "method": {"rounds": 1}},
        points=(Point("here", {}),),
        arms=tuple(Arm(arm, {"train": {"lr": 0.1 * (k + 1)}}) for k, arm in enumerate(arms)),
        measures=tuple(Measure(m, m, lambda run: 0.0) for m in measures),
        claims=(),
        quick=Quick(),
    )


def fill(folder: Path, made: Study, seeds: range, *, value: float = 0.5) -> Kept:
    kept = Kept.read(folder)
    for arm in made.arms:
        for seed in seeds:
            cell = Cell("here", arm.label, seed)
            kept.add(cell.name, made.plan(cell), Reading({m.name: value + seed / 3 for m in made.measures}, {"k": 1 / 3}))
    return kept


def test_readings_of_several_machines_merge_and_what_is_here_stays(tmp_path):
    made = study("a", "b")
    fill(tmp_path / "there", made, range(2, 4), value=0.1)
    fill(tmp_path / "other", made, range(1, 3), value=0.9)
    kept = fill(tmp_path / "here", made, range(2))
    assert kept.seeds(made) == 2
    taken = kept.take(made, tmp_path / "there" / READINGS)
    assert (taken.new, taken.there, kept.seeds(made)) == (4, 0, 4)
    taken = kept.take(made, tmp_path / "other" / READINGS)
    assert (taken.new, taken.there) == (0, 4)
    again = Kept.read(tmp_path / "here")
    values = [again.reading(made, Cell("here", "a", i), made.plan(Cell("here", "a", i))).figures["accuracy"] for i in range(4)]
    assert values == pytest.approx([0.5, 0.5 + 1 / 3, 0.1 + 2 / 3, 1.1])


def test_readings_of_another_experiment_or_of_no_run_are_left_out(tmp_path):
    made = study("a", "b")
    fill(tmp_path / "there", replace(made, base={**made.base, "method": {"rounds": 2}}), range(1))
    fill(tmp_path / "more", study("a", "b", "c"), range(1))
    kept = Kept.read(tmp_path / "here")
    assert kept.take(made, tmp_path / "there" / READINGS).other == 2 and not len(kept)
    taken = kept.take(made, tmp_path / "more" / READINGS)
    assert (taken.new, taken.unknown) == (2, 1)


def test_digests_of_another_version_are_not_compared_and_made_anew(tmp_path):
    made = study("a")
    cell = Cell("here", "a", 0)
    file = tmp_path / "readings.json"
    file.write_text(json.dumps({"schema": 1, "runs": {cell.name: {"plan": "of old", "figures": {"accuracy": 0.75}}}}))
    kept = Kept.read(tmp_path / "here")
    assert kept.take(made, file).new == 1
    assert kept.reading(made, cell, made.plan(cell)).figures == {"accuracy": 0.75}
    held = json.loads((tmp_path / "here" / READINGS).read_text())
    assert held["digests"] == DIGESTS and held["runs"][cell.name]["plan"] == digest(made.plan(cell))


def test_an_import_by_command_says_what_it_took_and_runs_nothing(tmp_path):
    name = "flamby/heart"
    place = DOCS / "results" / "readings" / f"{name}.json.gz"
    held, study = Kept.load(place), load_study(name)
    done = rounds("reproduce", name, "--import", place, "--out", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    counts = f"{len(held)} runs imported; whole seeds: {held.seeds(study)} of {study.seeds}"
    assert counts in done.stdout and not (tmp_path / "one" / "runs").exists()
    everything = rounds("reproduce", "--all", "flamby", "--import", DOCS / "results" / "readings", "--out", tmp_path / "all")
    assert f"flamby/heart: {counts}" in everything.stdout and (tmp_path / "all" / name / READINGS).exists()
    shown = rounds("reproduce", name, "--out", tmp_path / "one")
    assert shown.returncode == 0 and "client mean" in shown.stdout
    assert not list((tmp_path / "one" / "runs").iterdir()), "every reading is there"
    for words in (["--import", place], [name, "--import", place, "--seeds", "3"], [name, "--import", tmp_path / "none"]):
        refused = rounds("reproduce", *words)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1


def test_more_seeds_run_only_what_is_missing_and_stay(tmp_path):
    """The study of one arm, run for real."""
    made = replace(study("a"), brief=True)
    first = conduct_study(made, tmp_path, seeds=1, jobs=1, quick=False)
    heard: list[str] = []
    more = conduct_study(made, tmp_path, seeds=3, jobs=1, quick=False, progress=lambda text, *_: heard.append(text))
    assert [text.split(":")[0] for text in heard[1:]] == ["here-a-seed1", "here-a-seed2"]
    assert more.values("here", "a", "accuracy")[:1] == first.values("here", "a", "accuracy")
    fewer = replace(made, seeds=2)
    assert conduct_study(fewer, tmp_path, seeds=None, jobs=1, quick=False).seeds == 3, "as many as are there"


# Packed readings


def test_packed_readings_are_rounded_whole_and_the_same_every_time(tmp_path):
    made = study("a")
    kept = fill(tmp_path, made, range(2))
    kept._runs["here-a-seed0"]["figures"]["accuracy"] = 423773123.0
    packed = kept.pack(made)
    assert packed == kept.pack(made)
    held = json.loads(gzip.decompress(packed))
    assert held["runs"]["here-a-seed0"]["figures"]["accuracy"] == 423773123.0, "whole numbers are not rounded"
    assert held["runs"]["here-a-seed1"]["figures"]["accuracy"] == 0.833333
    assert held["runs"]["here-a-seed1"]["kept"] == {"k": 0.333333}
    withheld = json.loads(gzip.decompress(kept.pack(replace(made, withheld="no licence"))))
    assert withheld["runs"]["here-a-seed1"]["kept"] == {}
    (tmp_path / "packed.json.gz").write_bytes(packed)
    assert Kept.load(tmp_path / "packed.json.gz").seeds(made) == 2
    (tmp_path / "packed.json.gz").write_bytes(packed[:40])
    with pytest.raises(BadInput, match="is damaged"):
        Kept.load(tmp_path / "packed.json.gz")


def test_results_from_readings_leave_out_what_has_none_and_keep_failures(tmp_path):
    kept = fill(tmp_path, study("a", "b"), range(2))
    made = study("a", "b", "c")
    results = kept.results(made)
    assert results.seeds == 2 and results.left_out == {"c at here": NOT_MEASURED}
    assert results.arms_at("here") == ("a", "b")
    kept.add_failed(Cell("here", "b", 2).name, "it diverged")
    fill(tmp_path / "more", study("a"), range(3))
    kept.take(study("a"), tmp_path / "more" / READINGS)
    third = kept.results(study("a", "b"))
    assert third.seeds == 3 and third.failed == {"here-b-seed2": "it diverged"}
    assert third.values("here", "b", "accuracy")[2] != third.values("here", "b", "accuracy")[2], "a failure is NaN"
    assert kept.results(study("a", "b", measures=("accuracy", "auroc"))) is None, "the study reads more today"
    with pytest.raises(BadInput, match="of another experiment"):
        kept.results(replace(made, base={**made.base, "method": {"rounds": 2}}))


# Pages


def test_pages_the_index_and_the_counts_are_those_of_the_readings(results_page, capsys):
    assert results_page.main("--check") == 0, capsys.readouterr().out


def test_a_study_without_readings_has_no_figure_and_its_claims_wait(results_page):
    page = results_page.system_page("sse-agg", {})
    claims = {c.says for s in studies().values() if s.system == "sse-agg" for c in s.claims if not c.ours}
    assert page.count("Not measured with this version") == sum(s.system == "sse-agg" for s in studies().values())
    assert f"{len(claims)} claims of the paper wait" in page and "±" not in page and "**" not in page.split("## ")[1]


def test_a_page_says_of_a_claim_what_its_results_say(results_page):
    results = results_page.measured()
    heart = results["flamby/heart"]
    page = results_page.system_page("flamby", results)
    figure = next(f for f in heart["figures"] if f["arm"] == "FedAvg" and f["measure"] == "client_mean")
    row = next(line for line in page.splitlines() if line.startswith("| Fed-Heart-Disease | FedAvg |"))
    assert f"0.685 → {figure['mean']:.3f} ± " in row
    words = {c["verdict"] for c in heart["claims"] if c["claim"] == "client mean 0.6850"}
    row = next(line for line in page.splitlines() if line.startswith("| client mean 0.6850 |"))
    assert f"**{words.pop()}**" in row and not words


def test_finished_readings_are_taken_in_and_kept_ones_stay(results_page, tmp_path, monkeypatch, capsys):
    name = "flamby/heart"
    monkeypatch.setattr(results_page, "KEPT", tmp_path / "kept")
    made, place = load_study(name), DOCS / "results" / "readings" / f"{name}.json.gz"
    for part, keep in (("one", lambda k: k.endswith(("seed0", "seed1"))), ("two", lambda k: not k.endswith(("seed0", "seed1")))):
        held = json.loads(gzip.decompress(place.read_bytes()))
        held["runs"] = {k: v for k, v in held["runs"].items() if keep(k)}
        (tmp_path / part / name).mkdir(parents=True)
        (tmp_path / part / name / READINGS).write_text(json.dumps(held))
    results_page.take_in([tmp_path / "one"])
    packed = tmp_path / "kept" / f"{name}.json.gz"
    assert Kept.load(packed).seeds(made) == 2
    results_page.take_in([tmp_path / "two", tmp_path / "one"])
    assert packed.read_bytes() == place.read_bytes(), "the same readings give the same file"
