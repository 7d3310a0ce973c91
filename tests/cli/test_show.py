"""`rounds show` on a real run: the words, the table and the JSON hold the numbers of the record."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import typer

import grandrounds as gr
from grandrounds.cli.looking import register
from grandrounds.cli.reporting import report
from grandrounds.errors import BadInput
from grandrounds.why.saying import percent
from tests.cli.test_commands import refused, rounds
from tests.support import patients
from tests.test_sse_agg_run import own_rules


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Six sites weighed by all four signals in two cohorts, over three rounds; the second asks for no reasons."""
    frame = pytest.importorskip("pandas").DataFrame(dict(patients([80, 60, 50, 50, 40, 40]).columns))
    weigh = {"every": 3, "lambdas": {"data": 0.4, "agreement": 0.3, "worst_site": 0.2, "calibration": 0.1}}
    method = {"name": "sse-agg", "rounds": 3, "stability": "none", "cohorts": 2, "weigh": weigh}
    plan = {"data": {"label": "died", "site": "hospital"}, "method": method, "reference": {"rows": {"rows": 40}}}
    return gr.run(gr.Experiment.parse(plan), table=frame, out=tmp_path_factory.mktemp("show") / "run")


@pytest.fixture
def shown(capsys):
    """What `rounds show` prints."""

    def printed(*arguments):
        app = typer.Typer()
        register(app)
        typer.main.get_command(app).main(["show", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return printed


def test_the_words_have_the_numbers_of_the_record(held, shown):
    decision = held.rounds[2]["decision"]
    rows = decision["signals"]["data_size"]
    for number, site in enumerate(decision["weights"], start=1):
        text = shown(held.folder, "--round", 3, "--site", number)
        assert text == held.why(3, site) + "\n", "a number is the n-th site where names end in none"
        place = sorted(decision["weights"].values(), reverse=True).index(decision["weights"][site]) + 1
        assert text.startswith(f"round 3, {site}: weight {percent(decision['weights'][site])}, number {place} of 6")
        assert f"({rows[site]:,.0f} of {sum(rows.values()):,.0f})" in text or f": {rows[site]:,.0f} of " in text
        assert f"Its validation loss is {decision['signals']['val_loss'][site]:.3f}, number " in text
        assert f"Its calibration error is {decision['signals']['ece'][site]:.3f}, number " in text
        said = next(line for line in text.splitlines() if line.startswith("Of its weight, "))
        found = [int(n) for n in re.findall(r"(\d+) %", said)]
        exact = [100 * of[site] / decision["weights"][site] for of in decision["shares"].values()]
        assert sum(found) == 100 and np.abs(np.subtract(found, exact)).max() < 1
        cohort = decision["cohorts"]["of"]
        companions = [s for s, c in cohort.items() if c == cohort[site] and s != site]
        assert f"in cohort {cohort[site]} of 2" in text
        assert f"Its reasons lie {decision['signals']['disagreement'][site]:.2f} from" in text or not companions
        assert f"Weighing: {decision['stages'][0]['why']}." in text


def test_features_come_from_the_rounds_own_sketches(held):
    """The last round is always explained: each share said is the site's in explanations.json."""
    told = held.explanations
    block = next(r["training"] for r in told["rounds"] if r["round"] == 3)
    seen = 0
    for site, sketch in block["sketches"].items():
        for line in held.why(3, site).splitlines():
            for name, share in re.findall(r"(\w+) ([\d.]+) % \(consensus ", line):
                assert f"{share} %" == percent(sketch[told["features"].index(name)])
                seen += 1
    assert seen > 0


def test_a_round_between(held):
    text = held.why(2, "a")
    assert "Reasons were not asked for in this round" in text and "Its reasons lie" not in text


def test_the_round_as_a_table(held, shown):
    decision = held.rounds[2]["decision"]
    lines = shown(held.folder, "--round", 3).splitlines()
    assert lines[0] == "round 3: 6 sites asked, 6 answered"
    assert re.split(r"\s{2,}", lines[1]) == [
        *("site", "weight", "rows", "disagreement", "in line", "standing", "importance", "val loss", "ECE", "cohort"),
    ]
    table = {line.split()[0]: line.split()[1:] for line in lines[2:8]}
    for site, weight in decision["weights"].items():
        assert table[site][:2] == [f"{weight:.4f}", f"{decision['signals']['data_size'][site]:.0f}"]
        assert float(table[site][2]) == pytest.approx(decision["signals"]["disagreement"][site], rel=1e-3)
        assert table[site][-1] == str(decision["cohorts"]["of"][site])
    shown = [float(line.split()[1]) for line in lines[2:8]]
    assert shown == sorted(shown, reverse=True)
    for part, words in zip(("weighing", "cohorts"), decision["stages"], strict=True):
        assert f"{part}: {words['why']}" in lines
    first = [s for s, c in decision["cohorts"]["of"].items() if c == 1]
    assert f"  cohort 1: {', '.join(first)}" in lines
    assert f"  adjusted Rand index to the round before {decision['cohorts']['consistency']:.2f}" in lines


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Four hospitals that go by four things, so that nothing is known of who stands out."""
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "model": {"name": "logistic"},
        "reference": {"rows": {"rows": 40}},
        "method": {"name": "sse-agg", "rounds": 2, "stability": "none"},
        "train": {"steps": 20, "lr": 0.3},
    }
    table = own_rules([60, 48, 72, 54])
    return gr.run(gr.Experiment.parse(plan), table=table, out=tmp_path_factory.mktemp("apart") / "run")


def test_what_is_not_known_of_a_site_is_shown_as_such(apart, shown):
    """In the table and in the report; in words; and as JSON."""
    lines = shown(apart.folder, "--round", 2).splitlines()
    at = re.split(r"\s{2,}", lines[1]).index("standing")
    assert [line.split()[at] for line in lines[2:6]] == ["-"] * 4
    assert any(line.startswith("note: reasons usually lie ") for line in lines)
    assert json.loads(shown(apart.folder, "--round", 2, "--json"))["signals"]["standing"] == dict.fromkeys("abcd")
    words = shown(apart.folder, "--round", 2, "--site", "c")
    assert "Reasons lie too far apart to say whose stand out: it keeps all that its rows give it." in words
    assert "nan" not in words.lower()
    assert "standing unknown, in line 1" in (apart.folder / "report.html").read_text()


def test_a_sites_course_has_its_disagreement(held, shown):
    lines = shown(held.folder, "--site", "b").splitlines()
    assert lines[0].split()[-1] == "disagreement"
    for record, line in zip(held.rounds, lines[1:], strict=False):
        away = record["decision"]["signals"].get("disagreement", {}).get("b")
        assert line.split()[-1] == ("-" if away is None else f"{away:.4f}")


def test_json(held, shown):
    printed = shown(held.folder, "--round", 3, "--json")
    assert json.loads(printed) == held.rounds[2]["decision"]
    course = json.loads(shown(held.folder, "--site", "b", "--json"))
    assert course["site"] == "b" and [r["round"] for r in course["rounds"]] == [r["round"] for r in held.rounds]
    assert [r["weight"] for r in course["rounds"]] == [r["decision"]["weights"]["b"] for r in held.rounds]
    one = json.loads(shown(held.folder, "--round", 3, "--site", "c", "--json"))
    assert one["weight"] == held.rounds[2]["decision"]["weights"]["c"]
    assert (one["round"], one["site"], "\n".join(one["why"])) == (3, "c", held.why(3, "c"))


def test_the_command_itself(held):
    done = rounds("show", held.folder, "--round", 3, "--site", 2)
    assert (done.returncode, done.stdout) == (0, held.why(3, 2) + "\n")
    refused(rounds("show", held.folder, "--round", 3, "--site", 7), "no site '7' in", "known: a, b, c, d, e, f")
    with pytest.raises(BadInput, match="has no round 9; it has rounds 1 to 3"):
        held.why(9, "a")


def test_an_old_folder_still_says_what_it_can(held, shown, tmp_path):
    """Records from before there were stages, shares and cohorts, and no explanations beside them."""
    old = shutil.copytree(held.folder, tmp_path / "old")
    logs = json.loads((old / "round_logs.json").read_text())
    for record in logs["rounds"]:
        for key in ("stages", "shares", "cohorts"):
            del record["decision"][key]
    (old / "round_logs.json").write_text(json.dumps(logs))
    (old / "explanations.json").unlink()
    text = gr.load_run(old).why(3, "a")
    assert text.startswith("round 3, a: weight") and "Its reasons lie" in text
    assert f"Why: {logs['rounds'][2]['decision']['why']}." in text
    assert "cohort 1" not in shown(old, "--round", 3)
    report(old)
    drawn = {folder: (folder / "report.html").read_text() for folder in (held.folder, old)}
    for title in ("Weights in the common model", "Whose reasons stood apart"):
        assert all(title in page for page in drawn.values())
    assert "Who was grouped with whom" in drawn[held.folder] and "Who was grouped with whom" not in drawn[old]
