"""The reproduction report: results pages, reproductions in one line, and all of them at once."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.command import rounds

import grandrounds_studies as package
from grandrounds.core.errors import BadInput
from grandrounds_studies import claims, studies
from grandrounds_studies.book import load_book, tallies
from grandrounds_studies.lines import headline, line_of, what
from grandrounds_studies.machine import gpus, machine_words, machines
from grandrounds_studies.measures import ACCURACY, MAJORITY
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import Arm, Cell, Claim, Headline, Measure, Point, Quick, Study, Verdict
from grandrounds_studies.tally import Tally, Told, answers

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def docs():
    """The scripts of docs/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        import book
        import book_pages

        yield SimpleNamespace(book=book, pages=book_pages)


# What a page says


def made(name: str, *arms: str, points: tuple[str, ...] = ("alpha 1",), **more) -> Study:
    measures = tuple(
        Measure(n, w, lambda run: 0.0) for n, w in (("acc", "accuracy"), ("drift", "drift"), ("mb", "MB sent"))
    )
    return Study(
        name=name, title="A title", source="a paper", base={}, points=tuple(Point(p, {}) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=measures, claims=(), quick=Quick(), **more,
    )  # fmt: skip


PAGE = """# Results

Written on 1 May 2026 by nobody.

## How they were run

All of it on a machine with 4 cores,
on 2 May 2026.

## The table

<!-- about one -->

`rounds reproduce sys/one`: 1,020 runs, seeds 0 to 9. Source: a paper, Table 1.

<!-- end -->

<!-- figures one -->

**alpha 1**

|  | accuracy | drift |
|---|---:|---:|
| FedAvg: ours | 0.900 ± 0.010 | 1.000 ± 0.100 |
| new (x, y): published | 0.99 | – |
| new (x, y): ours | 0.950 ± 0.020 | undefined |

**alpha 2**

|  | FedAvg | new (x, y) |
|---|---:|---:|
| accuracy | 0.800 ± 0.010 | 0.700 ± 0.020 |
| drift | 2.000 ± 0.100 | 3.000 |

<!-- end -->

<!-- across one mb -->

| MB sent | FedAvg | new (x, y) |
|---|---:|---:|
| alpha 1 | 5.0 | 6.0 ± 0.1 |

<!-- end -->

<!-- verdicts one -->

- “it is better (read as: clearly)” (sec. 1, Fig. 2)
    - new (x, y): **inconclusive**: accuracy: 0.9 -> 0.95
    - FedAvg: **reproduced**: by itself
- “it costs “little”” (our question)
    - new (x, y): **not tested**: it was not run

A remark that is no claim.

<!-- end -->

## The table

<!-- about 4.2 -->

`rounds reproduce sys/4.2`: 8 runs, folds 0 to 3. Source: our own.
Run on: 8 runs: a processor, 2 cores.

<!-- end -->

<!-- figures 4.2 -->

| alone | accuracy | drift |
|---|---:|---:|
| alpha 1 | 0.500 | 1.000 |
| alpha 2 | 0.600 | 2.000 |

<!-- end -->
"""


@pytest.fixture
def known() -> dict[str, Study]:
    both = ("alpha 1", "alpha 2")
    one = made("sys/one", "FedAvg", "new (x, y)", points=both, published={("alpha 1", "new (x, y)"): {"acc": 0.99}})
    return {
        "sys/one": one,
        "sys/4.2": made("sys/4.2", "alone", points=both, headline=Headline("alpha 2", "alone", "drift")),
    }


def test_a_page_is_read_as_it_was_written(docs, known):
    one, two = docs.pages.entries("sys", PAGE, known)
    assert (one.study, one.command, one.runs, one.repeats) == (
        "sys/one",
        "rounds reproduce sys/one",
        1020,
        "seeds 0 to 9",
    )
    assert one.ran == "All of it on a machine with 4 cores, on 2 May 2026."
    assert two.ran == "8 runs: a processor, 2 cores", "what a study says of itself comes first"
    assert (one.section, two.section) == ("sys.md#the-table", "sys.md#the-table_1")
    assert (one.figure.what, one.figure.published, one.figure.ours) == ("accuracy, new", 0.99, "0.950 ± 0.020")
    assert (two.runs, two.repeats, two.figure.ours, two.figure.published) == (8, "folds 0 to 3", "2.000", None)
    at = "sec. 1, Fig. 2"
    assert one.told == (
        Told("it is better (read as: clearly)", at, "new (x, y)", "not reproduced", "inconclusive: accuracy: 0.9 -> 0.95"),
        Told("it is better (read as: clearly)", at, "FedAvg", "reproduced", "by itself"),
        Told("it costs “little”", "our question", "new (x, y)", "not tested", "it was not run"),
    )
    line = one.line(known["sys/one"])
    assert (line.verdict, line.holds, line.tested) == ("partly reproduced", 0, 1)


def test_tables_are_read_whichever_way_they_lie(docs, known):
    ours = docs.pages.read("sys", PAGE, known)["sys/one"].ours
    assert ours["alpha 1", "new (x, y)", "drift"] == "undefined"
    assert (
        ours["alpha 2", "new (x, y)", "drift"] == "3.000" and ours["alpha 2", "FedAvg", "accuracy"] == "0.800 ± 0.010"
    )
    assert ours["alpha 1", "new (x, y)", "MB sent"] == "6.0 ± 0.1"
    assert len(ours) == 10, "two tables of four figures, one of two; what is published is not ours"


def test_a_study_that_nobody_knows_is_refused(docs, known):
    with pytest.raises(SystemExit, match="sys.md has sys/4.2, which is no study"):
        docs.pages.entries("sys", PAGE, {"sys/one": known["sys/one"]})


def test_the_book_and_its_page_say_what_the_pages_say(docs, capsys):
    assert docs.book.main("--check") == 0, capsys.readouterr().err
    assert [e.study for e in docs.book.written()] == list(load_book())


def test_a_change_of_a_page_is_noticed(docs, tmp_path, monkeypatch, capsys):
    index = tmp_path / "index.md"
    index.write_text(docs.book.INDEX.read_text().replace("**not reproduced**", "**reproduced**", 1))
    monkeypatch.setattr(docs.book, "INDEX", index)
    assert docs.book.main("--check") == 1 and "index.md differs from docs/results" in capsys.readouterr().err
    assert docs.book.main("--write") == 0 and docs.book.main("--check") == 0


# Counting


def told(claim: str, where: str, **verdicts: str) -> list[Told]:
    return [Told(claim, where, arm.replace("_", " "), word, "why") for arm, word in verdicts.items()]


def test_a_papers_claim_is_counted_once_and_of_its_own_form():
    found = answers(
        [
            *told("a", "sec. 1", new_as_printed="not reproduced", new_as_built_here="reproduced"),
            *told("b", "sec. 1", one="reproduced", two="not reproduced", one_by_grid="not tested"),
            *told("c", "Fig. 1", one="not tested", two="reproduced"),
            *told("d", "our question", new_as_printed="not reproduced", new_as_built_here="reproduced"),
            *told("a", "abstract", new_as_printed="not reproduced"),
            *told("e", "Fig. 2", one="not tested"),
        ]
    )
    verdicts = {a.claim: a.verdict for a in found}
    assert verdicts == {
        "a": "not reproduced",
        "b": "partly reproduced",
        "c": "reproduced",
        "d": "partly reproduced",
        "e": "not tested",
    }
    assert [a.claim for a in found if a.ours] == ["d"]
    assert Tally.of(a for a in found if not a.ours) == Tally(tested=3, holds=1, partly=1, fails=1, unclear=0, open=1)


def test_what_only_the_interval_does_not_say_is_counted_apart():
    near = Told("a", "sec. 1", "x", "not reproduced", "inconclusive: accuracy 0.9 -> 0.91")
    far = replace(near, arm="y", why="not clearly better: accuracy 0.9 -> 0.8")
    assert Tally.of(answers([near])).unclear == 1 and Tally.of(answers([near, far])).unclear == 0
    counted = "1 tested: 0 reproduced, 0 partly reproduced, 1 not reproduced (1 of these inconclusive)"
    assert str(Tally.of(answers([near]))) == counted


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
        Claim("first", "sec. 1", ("new",), lambda found, arm: Verdict("not tested", "later")),
        Claim("second", "sec. 1", ("new",), lambda found, arm: Verdict("reproduced", "it does")),
    )
    figures = {("alpha 1", "old"): {"acc": 0.8}, ("alpha 1", "new"): {"acc": 0.99}}
    study = replace(made("sys/one", "old", "new", published=figures), claims=says)
    line = line_of(study, numbered(study, old=(0.7, 0.7), new=(0.8, 1.0)).to_dict())
    assert (line.what, line.published, line.ours) == ("accuracy, new", 0.99, "0.900"), "two runs have no interval"
    assert (line.verdict, line.claim, line.holds, line.tested) == ("reproduced", "second", 1, 1)


def test_a_quick_version_without_the_headlines_point_shows_another_point_and_no_published_figure_of_it():
    both = ("alpha 1", "alpha 2")
    study = made("sys/one", "old", "new", points=both, published={("alpha 1", "new"): {"acc": 0.99}})
    small = study.without(["alpha 1"])
    line = line_of(study, numbered(small, old=(0.7, 0.7), new=(0.9, 0.9)).to_dict())
    assert (line.at, line.published, line.ours) == ("alpha 2", None, "0.900")


def test_a_quick_version_without_the_papers_form_is_judged_by_the_arm_that_was_run():
    def judged(found: Results, arm: str) -> Verdict:
        return Verdict("not tested", "not run") if "printed" in arm else Verdict("reproduced", "it does")

    claim = Claim("it is better", "sec. 1", ("new", "new as printed"), judged)
    study = made("sys/one", "old", "newer", "new", headline=Headline("alpha 1", "new as printed", "acc"))
    results = numbered(replace(study, claims=(claim,)), old=(0.7, 0.7), newer=(0.8, 0.8), new=(0.9, 0.9))
    full, quick = (line_of(study, replace(results, quick=q).to_dict()) for q in (False, True))
    assert (quick.verdict, quick.tested, quick.what) == ("reproduced", 1, "accuracy, new")
    assert (full.verdict, full.tested) == ("not tested", 0)


# The list


def test_the_list_has_one_line_for_every_study():
    listed = rounds("reproduce", "--list")
    assert listed.returncode == 0, listed.stderr
    names = [line.split()[0] for line in listed.stdout.split("\n\n")[0].splitlines()[1:]]
    assert names == list(studies())
    papers, ours = tallies(load_book().values())
    assert f"claims of papers, {papers}" in listed.stdout and f"questions of our own, {ours}" in listed.stdout
    line = next(line for line in listed.stdout.splitlines() if line.startswith("sse-agg/table-2 "))
    assert line.split("  ")[-1].strip() == "not reproduced (0 of 3)" and " 0.5154 " in line and "0.604 ± 0.028" in line


def test_the_list_of_a_system_as_data():
    held = json.loads(rounds("reproduce", "--list", "veil", "--json").stdout)
    assert [s["study"] for s in held["studies"]] == [n for n in studies() if n.startswith("veil/")]
    first = held["studies"][0]
    assert (first["published"], first["ours"], first["verdict"]) == (0.835, "0.809 ± 0.010", "not reproduced")
    assert held["claims"]["papers"]["tested"] == 13 and held["claims"]["papers"]["holds"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--list", "--all"), "--list shows what came out in full and --all runs: give one"),
        (("--list", "--quick"), "runs nothing: leave out --quick"),
        (("--list", "--jobs", "2", "--seeds", "3"), "leave out --jobs, --seeds"),
        (("--list", "veil/table-1"), "'veil/table-1' is one study: --list and --all take systems"),
        (("--all", "--quick", "sse-agg/fig-1"), "'sse-agg/fig-1' is one study"),
        (("--all", "veill"), "no system 'veill'; did you mean 'veil'"),
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
    assert "QUICK VERSION" in done.stdout and "reports: runs/reproduce/*/*-quick/report.html" in done.stdout
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


# Machines


def test_machines_are_told_apart_and_one_that_is_not_recorded_is_said_to_be():
    here = {"processor": "a CPU", "cores": 2, "device": "auto", "gpus": [], "python": "3.11.9", "torch": None}
    there = here | {"cores": 16, "device": "cuda", "gpus": ["NVIDIA H200"], "torch": "2.11.0"}
    found = machines([here, there, here, {}])
    assert [one["runs"] for one in found] == [2, 1, 1]
    assert machine_words(found) == (
        "2 runs: a CPU, 2 cores, Python 3.11.9; 1 run: a CPU, 16 cores, NVIDIA H200 (engine.device cuda), "
        "Python 3.11.9, torch 2.11.0; 1 run: machine not recorded"
    )


def test_gpus_are_read_as_the_driver_lists_them(tmp_path):
    assert gpus(tmp_path / "none") == []
    for number in ("0000:01", "0000:02"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n")
    assert gpus(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]
