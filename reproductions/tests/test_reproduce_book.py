"""The reproduction report: counts, reproductions in one line, all of them at once, and one report for a paper."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.command import rounds
from tests.report.test_page import Page

import grandrounds_studies as package
from grandrounds.core.errors import BadInput
from grandrounds_studies import claims, studies
from grandrounds_studies.book import load_book, tallies, waiting
from grandrounds_studies.kept import NOT_MEASURED
from grandrounds_studies.lines import headline, line_of, what
from grandrounds_studies.machine import gpus, machine_words, machines
from grandrounds_studies.measures import ACCURACY, MAJORITY
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import Arm, Cell, Claim, Headline, Measure, Point, Quick, Study, Verdict
from grandrounds_studies.tally import Tally, Told, answers
from grandrounds_studies.wording import VERDICTS
from grandrounds_studies.written import write_paper, write_results


def made(name: str, *arms: str, points: tuple[str, ...] = ("alpha 1",), **more) -> Study:
    measures = tuple(
        Measure(n, w, lambda run: 0.0) for n, w in (("acc", "accuracy"), ("drift", "drift"), ("mb", "MB sent"))
    )
    return Study(
        name=name, title="A title", source="a paper", base={}, points=tuple(Point(p, {}) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=measures, claims=(), quick=Quick(), **more,
    )  # fmt: skip


# Counting


def told(claim: str, where: str, **verdicts: str) -> list[Told]:
    return [Told(claim, where, arm.replace("_", " "), word, "why") for arm, word in verdicts.items()]


def test_a_papers_claim_is_counted_once_and_of_its_own_form():
    found = answers(
        [
            *told("a", "sec. 1", new_as_printed="refuted", new_as_built_here="reproduced"),
            *told("b", "sec. 1", one="reproduced", two="refuted", one_by_grid="cannot be tested"),
            *told("c", "Fig. 1", one="cannot be tested", two="reproduced"),
            *told("d", "our question", new_as_printed="refuted", new_as_built_here="reproduced"),
            *told("a", "abstract", new_as_printed="refuted"),
            *told("e", "Fig. 2", one="cannot be tested"),
            *told("f", "Fig. 2", one="inconclusive", two="reproduced"),
            *told("g", "Fig. 2", one="inconclusive", two="refuted"),
        ]
    )
    assert {a.claim: a.verdict for a in found} == {
        "a": "refuted",
        "b": "refuted",
        "c": "reproduced",
        "d": "refuted",
        "e": "cannot be tested",
        "f": "inconclusive",
        "g": "refuted",
    }
    assert [a.claim for a in found if a.ours] == ["d"]
    papers = Tally.of(a for a in found if not a.ours)
    assert papers == Tally(reproduced=1, refuted=3, inconclusive=1, untested=1)
    assert str(papers) == "1 reproduced, 3 refuted, 1 inconclusive, 1 cannot be tested"
    assert (papers.all, papers.tested) == (6, 5)


def test_a_claim_of_several_arms_says_in_how_many_and_takes_the_most_seeds():
    one = Told("a", "sec. 1", "x", "inconclusive", "+0.01", 12)
    (answer,) = answers([one, replace(one, arm="y", verdict="reproduced", seeds=None), replace(one, arm="z", seeds=40)])
    assert (answer.verdict, answer.seeds) == ("inconclusive", 40)
    assert answer.why == "x: +0.01; in 1 of 3 settings reproduced"
    (same,) = answers([one, replace(one, arm="y")])
    assert same.why == "x: +0.01"


# One line


def test_every_headline_names_what_its_study_has():
    for name, study in studies().items():
        chosen = headline(study)
        if chosen is None:
            continue
        assert chosen.point in [p.label for p in study.points], name
        assert chosen.arm in [a.label for a in study.arms_at(chosen.point)], name
        assert what(study, chosen.arm, chosen.measure), name
        assert not chosen.claim or any(c.says.startswith(chosen.claim) for c in study.claims), name


def numbered(study: Study, **arms: tuple[float, float]) -> Results:
    readings = {
        Cell(p.label, a, i): Reading({"acc": values[i], "drift": 0.0, "mb": 0.0})
        for p in study.points
        for a, values in arms.items()
        for i in range(2)
    }
    return Results(study, readings, seeds=2)


def test_the_headline_is_the_first_published_figure_of_another_arm_than_the_first():
    says = (
        Claim("first", "sec. 1", ("new",), lambda found, arm: Verdict("cannot be tested", "later")),
        Claim("second", "sec. 1", ("new",), lambda found, arm: Verdict("reproduced", "it does")),
    )
    figures = {("alpha 1", "old"): {"acc": 0.8}, ("alpha 1", "new"): {"acc": 0.99}}
    study = replace(made("sys/one", "old", "new", published=figures), claims=says)
    line = line_of(study, numbered(study, old=(0.7, 0.7), new=(0.8, 1.0)).to_dict())
    assert (line.what, line.published, line.ours) == ("accuracy, new", 0.99, "0.900"), "two runs have no interval"
    assert (line.verdict, line.claim, line.reproduced, line.tested) == ("reproduced", "second", 1, 1)


def test_a_quick_version_without_the_headlines_point_shows_another_point_and_no_published_figure_of_it():
    both = ("alpha 1", "alpha 2")
    study = made("sys/one", "old", "new", points=both, published={("alpha 1", "new"): {"acc": 0.99}})
    small = study.without(["alpha 1"])
    line = line_of(study, numbered(small, old=(0.7, 0.7), new=(0.9, 0.9)).to_dict())
    assert (line.at, line.published, line.ours) == ("alpha 2", None, "0.900")


def test_a_quick_version_without_the_papers_form_is_judged_by_the_arm_that_was_run():
    def judged(found: Results, arm: str) -> Verdict:
        return Verdict("cannot be tested", "not run") if "printed" in arm else Verdict("reproduced", "it does")

    claim = Claim("it is better", "sec. 1", ("new", "new as printed"), judged)
    study = made("sys/one", "old", "newer", "new", headline=Headline("alpha 1", "new as printed", "acc"))
    results = numbered(replace(study, claims=(claim,)), old=(0.7, 0.7), newer=(0.8, 0.8), new=(0.9, 0.9))
    full, quick = (line_of(study, replace(results, quick=q).to_dict()) for q in (False, True))
    assert (quick.verdict, quick.tested, quick.what) == ("reproduced", 1, "accuracy, new")
    assert (full.verdict, full.tested) == ("cannot be tested", 0)


# The list


def test_the_list_has_one_line_for_every_study():
    listed = rounds("reproduce", "--list")
    assert listed.returncode == 0, listed.stderr
    names = [line.split()[0] for line in listed.stdout.split("\n\n")[0].splitlines()[1:]]
    assert names == list(studies())
    papers, ours = tallies(load_book().values())
    wait = waiting(studies().values(), load_book())
    assert f"{papers.all} claims of papers: {papers}" in listed.stdout
    assert f"{ours.all} questions of our own: {ours}" in listed.stdout
    assert wait == 0 or f"{wait} wait for a study to be measured" in listed.stdout
    for name in names:
        line = next(line for line in listed.stdout.splitlines() if line.startswith(f"{name} "))
        assert (NOT_MEASURED in line) == (name not in load_book())
    line = next(line for line in listed.stdout.splitlines() if line.startswith("flamby/heart "))
    assert load_book()["flamby/heart"].figure.ours in line


def test_the_list_of_a_system_as_data():
    held = json.loads(rounds("reproduce", "--list", "flamby", "--json").stdout)
    assert [s["study"] for s in held["studies"]] == [n for n in studies() if n.startswith("flamby/")]
    first, entry = held["studies"][0], load_book()["flamby/heart"]
    assert (first["published"], first["ours"]) == (entry.figure.published, entry.figure.ours)
    assert first["verdict"] in VERDICTS
    papers = tallies([e for e in load_book().values() if e.system == "flamby"])[0]
    assert {k: held["claims"]["papers"][k] for k in ("reproduced", "refuted")} == {
        "reproduced": papers.reproduced,
        "refuted": papers.refuted,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--list", "--all"), "--list shows what came out in full and --all runs: give one"),
        (("--list", "--quick"), "runs nothing: leave out --quick"),
        (("--list", "--jobs", "2", "--seeds", "3"), "leave out --jobs, --seeds"),
        (("--list", "veil/table-1"), "'veil/table-1' is one study: --list and --all take systems"),
        (("--all", "--quick", "sse-agg/fig-1"), "'sse-agg/fig-1' is one study"),
        (("--all", "veill"), "no system 'veill'; did you mean 'veil'"),
        (("flamby/heart", "--import", "f", "--jobs", "2"), "--import adds readings and runs nothing: leave out --jobs"),
        (("--import", "f"), "--import needs the name of the study that the readings are of, or --all"),
        (("--all", "--plans", "p.json"), "--plans is of one study: leave out --all and name it"),
        (("sse-agg/fig-1", "sse-agg/fig-2"), "one study at a time, not 2: --all runs every study"),
    ],
)
def test_what_cannot_be_meant_together_is_refused(arguments, words):
    refused = rounds("reproduce", *arguments)
    assert refused.returncode == 2 and words in refused.stderr and len(refused.stderr.splitlines()) == 1


# All of them


def tiny(name: str, point: Point, *, over: dict | None = None) -> Study:
    """A study of one run; `over` is what is different in it."""
    return Study(
        name=name,
        title="Tiny",
        source="a paper",
        base={"method": {"rounds": 1}},
        points=(point,),
        arms=(Arm("FedAvg", {"method": {"name": "fedavg"}}, over or {}),),
        measures=(ACCURACY, MAJORITY),
        claims=(Claim("it learns", "sec. 1", ("FedAvg",), _learns),),
        quick=Quick(seeds=1),
        headline=Headline(point.label, "FedAvg", "accuracy"),
        published={(point.label, "FedAvg"): {"accuracy": 0.95}},
    )


def _learns(found: Results, arm: str) -> Verdict:
    better = found.summary("here", arm, "accuracy").mean > found.summary("here", arm, "majority").mean
    return claims.verdict(better, "by the means")


def _no_gpu(wish: str) -> str:
    raise BadInput(f"'{wish}' is not here")


@pytest.fixture
def four(tmp_path, monkeypatch):
    """Four studies of a run each: without its data, failing, sound, and one that asks for a GPU."""
    here, away = Point("here", {"data": {"name": "breast-cancer"}}), Point("away", {"data": {"name": "diabetes-130"}})
    made = (
        tiny("tiny/away", away),
        tiny("tiny/halts", here, over={"engine": {"min_sites": 9, "faults": {"drop": 0.9}}}),
        tiny("tiny/sound", here),
        tiny("tiny/gpu", here, over={"engine": {"device": "cuda"}}),
    )
    monkeypatch.setitem(sys.modules, "grandrounds_studies.tiny", SimpleNamespace(STUDIES=made))
    monkeypatch.setattr(package, "SYSTEMS", ("tiny",))
    monkeypatch.setitem(sys.modules, "grandrounds.models.torch_build", SimpleNamespace(pick_device=_no_gpu))
    (tmp_path / "empty").mkdir()
    for variable in ("GRANDROUNDS_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "empty"))
    studies.cache_clear()
    yield tmp_path
    studies.cache_clear()


@pytest.mark.slow
def test_one_that_fails_or_cannot_be_run_does_not_stop_the_others(four):
    done = rounds("reproduce", "--all", "--quick", "--jobs", "2", cwd=four)
    away, halts, sound, gpu = done.stdout.splitlines()[1:5]
    assert done.returncode == 1, "a run failed"
    assert away.startswith("tiny/away") and "not run: diabetes130" in away and "not on this machine" in away
    assert "failed: tiny/halts" not in halts and "no run ended" in halts and "min_sites" in halts
    assert sound.split()[:5] == ["tiny/sound", "accuracy,", "FedAvg", "0.95", f"{_mean(four):.3f}"]
    assert sound.endswith("  reproduced")
    assert "not run: it asks for a GPU, and this machine has none that torch can use" in gpu
    assert "4 studies in 0 min" in done.stdout and "1 ran, 2 not run here, 1 with a run that failed" in done.stdout
    assert "QUICK VERSION" in done.stdout and "report: runs/reproduce/tiny/report-quick.html" in done.stdout
    paper = Page((four / "runs/reproduce/tiny/report-quick.html").read_text())
    assert "tiny/away was not run" in paper.text and "it learns" in paper.text and "reproduced" in paper.text
    assert (four / "runs/reproduce/tiny/sound-quick/report.html").exists()
    held = json.loads((four / "runs/reproduce/tiny/sound-quick/results.json").read_text())
    (machine,) = held["machines"]
    assert machine["runs"] == 1 and machine["cores"] >= 1 and machine["python"].startswith("3.")


def _mean(folder: Path) -> float:
    held = json.loads((folder / "runs/reproduce/tiny/sound-quick/results.json").read_text())
    return next(f["mean"] for f in held["figures"] if f["measure"] == "accuracy")


def test_what_is_done_is_not_run_again(four, monkeypatch):
    sound = [s for s in package.studies().values() if s.name == "tiny/sound"]
    monkeypatch.setitem(sys.modules, "grandrounds_studies.tiny", SimpleNamespace(STUDIES=sound))
    studies.cache_clear()
    first = rounds("reproduce", "--all", "tiny", "--seeds", "1", "--out", "all", "--json", cwd=four)
    assert first.returncode == 0, first.stderr
    run = four / "all/tiny/sound/runs"
    assert [p.name for p in run.iterdir()] == ["here-fedavg-seed0"]
    for path in sorted(run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = rounds("reproduce", "--all", "tiny", "--seeds", "1", "--out", "all", "--json", cwd=four)
    one, two = (json.loads(text.stdout)["studies"] for text in (first, again))
    assert one == two and not list(run.iterdir()), "the reading is enough"
    monkeypatch.chdir(four)
    report = package.reproduce_paper("tiny", seeds=1, out="all")
    assert report == Path("all/tiny/report.html") and "it learns" in Page(report.read_text()).text
    assert not list(run.iterdir())
    with pytest.raises(BadInput, match="no system 'small'"):
        package.reproduce_paper("small")


# One report of a paper


def test_a_paper_has_one_report_of_its_claims_figures_and_readings_and_of_what_else_was_tried(tmp_path):
    claim = Claim("it is <better>", "sec. 1", ("new as printed", "new as built here"), claims.better("acc", "alpha 1"))
    ours = Claim("it is cheap", "our question", ("new as built here",), claims.better("acc", "alpha 1"))
    one = replace(
        made(
            "sys/table-1",
            *("old", "new as printed", "new as built here"),
            published={("alpha 1", "new as printed"): {"acc": 0.99}},
            settled=("Epochs are not given: five.",),
            remarks=("Printed in percent.",),
        ),
        claims=(claim,),
    )
    two = replace(made("sys/goals", "old", "new as built here"), claims=(ours,))
    for study in (one, two):
        readings = {
            Cell("alpha 1", arm.label, i): Reading({"acc": 0.7 + k * 0.1 + i * 0.01, "drift": 0.0, "mb": 0.0})
            for k, arm in enumerate(study.arms)
            for i in range(3)
        }
        write_results(Results(study, readings, seeds=3), _folder(tmp_path / study.name))
    path = write_paper("sys", (one, two, made("sys/fig-1", "old")), tmp_path, quick=False)
    assert path == tmp_path / "sys" / "report.html"
    page = Page(path.read_text())
    assert page.headings[:3] == ["sys: the paper's claims and figures, and ours", "The paper's claims", "Figures of the paper"]
    assert page.headings[3:] == ["table-1: A title", "What else was tried", "goals: A title"]
    row = next(r for r in page.rows if r[:2] == ["it is <better>", "reproduced"])
    assert "0.710 -> 0.810 against old" in row[2]
    assert next(r for r in page.rows if r[0] == "new as printed")[:2] == ["new as printed", "0.99 → 0.810 ± 0.025"]
    for words in ("Epochs are not given: five.", "Printed in percent.", "sys/fig-1 was not run"):
        assert words in page.text
    assert {a for a in page.addresses if not a.startswith("#")} == {"table-1/report.html", "goals/report.html"}


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


# Machines


def test_machines_are_told_apart_and_one_that_is_not_recorded_is_said_to_be():
    here = {"processor": "a CPU", "cores": 2, "device": "auto", "gpus": [], "python": "3.11.9", "torch": None}
    there = here | {"cores": 16, "device": "cuda", "gpus": ["NVIDIA H200"], "torch": "2.11.0"}
    there |= {"version": "0.2.0", "date": "2026-11-19"}
    found = machines([here, there, here, {}])
    assert [one["runs"] for one in found] == [2, 1, 1]
    assert machine_words(found) == (
        "2 runs: a CPU, 2 cores, Python 3.11.9; 1 run: a CPU, 16 cores, NVIDIA H200 (engine.device cuda), "
        "Python 3.11.9, torch 2.11.0, Grand Rounds 0.2.0, 2026-11-19; 1 run: machine not recorded"
    )


def test_gpus_are_read_as_the_driver_lists_them(tmp_path):
    assert gpus(tmp_path / "none") == []
    for number in ("0000:01", "0000:02"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n")
    assert gpus(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]
