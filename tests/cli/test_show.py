"""`rounds show` on a real run: the words, the table and the JSON hold the numbers of the record."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import typer

import grandrounds as gr
from grandrounds.cli.report import report
from grandrounds.cli.show import model_lines, register
from grandrounds.core.arrays import save
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels
from grandrounds.metrics.names import with_auroc
from grandrounds.report.model_table import model_section
from grandrounds.report.weights.record import percent
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.readable_model import readable, readable_file
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.e2e.test_sse_agg import own_rules
from tests.store import finished
from tests.support import patients, refused, without_ledger


@pytest.fixture(scope="module")
def held():
    """Six sites weighed by all four signals in two cohorts, over three rounds; the second asks for no reasons."""
    frame = pytest.importorskip("pandas").DataFrame(dict(patients([80, 60, 50, 50, 40, 40]).columns))
    weigh = {"every": 3, "lambdas": {"data": 0.4, "agreement": 0.3, "worst_site": 0.2, "calibration": 0.1}}
    method = {"name": "sse-agg", "rounds": 3, "stability": "none", "cohorts": 2, "weigh": weigh}
    plan = {"data": {"label": "died", "site": "hospital"}, "method": method, "reference": {"rows": {"rows": 40}}}
    return gr.load_run(finished(gr.Experiment.parse(plan), table=frame))


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
        found = [int(n) for n in re.findall(r"(\d+)%", said)]
        exact = [100 * of[site] / decision["weights"][site] for of in decision["shares"].values()]
        assert sum(found) == 100 and np.abs(np.subtract(found, exact)).max() < 1
        cohort = decision["cohorts"]["of"]
        companions = [s for s, c in cohort.items() if c == cohort[site] and s != site]
        assert f"in cohort {cohort[site]} of 2" in text
        assert f"Its explanations lie {decision['signals']['disagreement'][site]:.2f} from" in text or not companions
        assert f"Weighting: {decision['stages'][0]['why']}." in text


def test_features_come_from_the_rounds_own_sketches(held):
    """The last round is always explained: each share said is the site's in explanations.json."""
    told = held.explanations
    block = next(r["training"] for r in told["rounds"] if r["round"] == 3)
    seen = 0
    for site, sketch in block["sketches"].items():
        for line in held.why(3, site).splitlines():
            for name, share in re.findall(r"(\w+) ([\d.]+)% \(consensus ", line):
                assert f"{share}%" == percent(sketch[told["features"].index(name)])
                seen += 1
    assert seen > 0


def test_a_round_between(held):
    text = held.why(2, "a")
    assert "Explanations were not requested in this round" in text and "Its explanations lie" not in text


def test_the_round_as_a_table(held, shown):
    decision = held.rounds[2]["decision"]
    lines = shown(held.folder, "--round", 3).splitlines()
    assert lines[0] == "round 3: 6 sites asked, 6 answered"
    signals = ("disagreement", "in line", "standing", "importance", "neighbours", "sampling", "harm", "val loss", "ECE")
    assert re.split(r"\s{2,}", lines[1]) == ["site", "weight", "rows", *signals, "cohort"]
    table = {line.split()[0]: line.split()[1:] for line in lines[2:8]}
    for site, weight in decision["weights"].items():
        assert table[site][:2] == [f"{weight:.4f}", f"{decision['signals']['data_size'][site]:.0f}"]
        assert float(table[site][2]) == pytest.approx(decision["signals"]["disagreement"][site], rel=1e-3)
        assert table[site][-1] == str(decision["cohorts"]["of"][site])
    shown = [float(line.split()[1]) for line in lines[2:8]]
    assert shown == sorted(shown, reverse=True)
    for part, words in zip(("weighting", "cohorts"), decision["stages"], strict=True):
        assert f"{part}: {words['why']}" in lines
    first = [s for s, c in decision["cohorts"]["of"].items() if c == 1]
    assert f"  cohort 1: {', '.join(first)}" in lines
    assert f"  adjusted Rand index to the round before {decision['cohorts']['consistency']:.2f}" in lines


@pytest.fixture(scope="module")
def apart():
    """Four hospitals that go by four things, so that nothing is known of who stands out."""
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "model": {"name": "logistic"},
        "reference": {"rows": {"rows": 40}},
        "method": {"name": "sse-agg", "rounds": 2, "stability": "none"},
        "train": {"steps": 20, "lr": 0.3},
    }
    return gr.load_run(finished(gr.Experiment.parse(plan), table=own_rules([60, 48, 72, 54])))


def test_what_is_not_known_of_a_site_is_shown_as_such(apart, shown):
    """In the table and in the report; in words; and as JSON."""
    lines = shown(apart.folder, "--round", 2).splitlines()
    at = re.split(r"\s{2,}", lines[1]).index("standing")
    assert [line.split()[at] for line in lines[2:6]] == ["-"] * 4
    assert any(line.startswith("note: explanations usually differ by ") for line in lines)
    assert json.loads(shown(apart.folder, "--round", 2, "--json"))["signals"]["standing"] == dict.fromkeys("abcd")
    words = shown(apart.folder, "--round", 2, "--site", "c")
    assert "Explanations differ too much to identify outliers: it keeps all that its rows give it." in words
    assert "nan" not in words.lower()
    assert "standing unknown, in line 1" in (apart.folder / "report.html").read_text()


def test_a_sites_course_has_its_disagreement(held, shown):
    lines = shown(held.folder, "--site", "b").splitlines()
    assert lines[0].split()[-1] == "disagreement"
    for record, line in zip(held.rounds, lines[1:], strict=False):
        away = record["decision"]["signals"].get("disagreement", {}).get("b")
        assert line.split()[-1] == ("-" if away is None else f"{away:.4f}")


@pytest.fixture(scope="module", params=["plain", "masked"])
def by_trust(request):
    """FedXChain at four sites, the largest with flipped labels, and an alarm that rings."""
    masked = request.param == "masked"
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "reference": {"root": {"rows": 30, "sent": masked}},
        "method": {"name": "fedxchain", "rounds": 3, "trust": {"preset": "robust", "alarm": 0.01}},
        "explain": {"at": "site" if masked else "server"},
        "privacy": {"secure": masked},
        "attacks": [{"kind": "label-flip", "sites": ["a"]}],
    }
    frame = pytest.importorskip("pandas").DataFrame(dict(patients([120, 100, 90, 90]).columns))
    return gr.load_run(finished(gr.Experiment.parse(plan), table=frame))


def test_trust_in_words_adds_up_to_the_record(by_trust, shown):
    decision = by_trust.rounds[2]["decision"]
    hidden = decision["privacy"]["secure"]
    for site, trust in decision["signals"]["trust"].items():
        text = shown(by_trust.folder, "--round", 3, "--site", site)
        whole, *parts = re.search(
            r"trust is ([\d.]+) \(scale.*: ([\d.]+) for accuracy, ([\d.]+) for agreement of its explanations, "
            r"([\d.]+) for consistency",
            text,
        ).groups()
        assert float(whole) == pytest.approx(trust, abs=5e-4)
        assert sum(map(float, parts)) == pytest.approx(trust, abs=2e-3)
        assert ("as the server measured" in text) != hidden and ("as it reported" in text) == hidden
        assert f"an NSDS of {decision['signals']['nsds'][site]:.3f}" in text
        kept = np.exp(-0.5 * decision["signals"]["nsds"][site])
        assert f" = {kept:.3f}), before normalisation" in text
        assert "Every site that answered was shown all numbers, recomputed the weights and accepted them." in text


def test_the_summary_of_a_run_says_whom_it_trusts_least(by_trust, shown):
    told = by_trust.summary["trust"]
    text = " ".join(shown(by_trust.folder, "--verbose").split())
    assert min(told["last"], key=told["last"].get) == "a", "the site with flipped labels"
    assert f"trust in the last round: mean {told['mean_trust']:.3f} (least: a {told['last']['a']:.3f}," in text
    assert "(NSDS above method.trust.alarm = 0.01)" in text and "a (rounds 1, 2, 3)" in text
    assert f"rewards and trust over sites: r = {told['reward_correlation']:.2f}" in text
    assert "trust in the last round" not in shown_without_trust(told, by_trust)


def test_the_summary_of_a_run_that_weighs_by_explanations_has_their_drift(shown, tmp_path):
    plan = {"data": {"label": "died", "site": "hospital"}, "reference": {"rows": {"rows": 30}}, "method": {"rounds": 1}}
    frame = pytest.importorskip("pandas").DataFrame(dict(patients([80, 70, 60]).columns))
    for name in ("sse-agg", "fedavg"):
        run = gr.run(gr.Experiment.parse(plan), method=name, table=frame, out=tmp_path / name)
        text = " ".join(shown(run.folder).split())
        drift = run.summary["explanation"]["training"]["drift"]
        assert (f"training drift: {drift:.3f}, Jaccard@" in text) == (name == "sse-agg")


def shown_without_trust(told, run):
    """The same summary as a run without trust has it."""
    from rich.console import Console

    from grandrounds.cli.screen import show_summary
    from grandrounds.core.records import RunSummary

    console = Console(record=True, quiet=True, width=200)
    show_summary(console, RunSummary.from_dict({k: v for k, v in run.summary.items() if k != "trust"}))
    return console.export_text()


def test_a_round_and_a_course_have_trust_and_the_consortiums_reasons(by_trust, shown):
    lines = shown(by_trust.folder, "--round", 3).splitlines()
    decision = by_trust.rounds[2]["decision"]
    assert {"NSDS", "trust", "consistency", "reward"} <= set(re.split(r"\s{2,}", lines[1]))
    first = max(decision["reasons"], key=decision["reasons"].get)
    assert f"feature attributions of the consortium: {first} {percent(decision['reasons'][first])}," in "\n".join(lines)
    course = shown(by_trust.folder, "--site", "b").splitlines()
    assert course[0].split()[-3:] == ["trust", "NSDS", "reward"]
    for record, line in zip(by_trust.rounds, course[1:4], strict=True):
        known = [record["decision"]["signals"][name]["b"] for name in ("trust", "nsds", "reward")]
        assert line.split()[-3:] == [f"{v:.4f}" for v in known]


def test_runs_can_be_compared_by_trust(by_trust):
    from grandrounds.analysis.compare import compare

    found = compare([by_trust, by_trust], metrics=("mean_trust", "mean_nsds", "reward_correlation"))
    told = by_trust.summary["trust"]
    for name in found.metrics:
        assert found.arms[0].values(name) == [told[name]]


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
    command_refused(rounds("show", held.folder, "--round", 3, "--site", 7), "no site '7' in", "known: a, b, c, d, e, f")
    with refused("unknown-round"):
        held.why(9, "a")


def test_an_old_folder_still_says_what_it_can(held, shown, tmp_path):
    """Records from before there were stages, shares and cohorts, and no explanations beside them."""
    old = shutil.copytree(held.folder, tmp_path / "old")
    logs = json.loads((old / "round_logs.json").read_text())
    for record in logs["rounds"]:
        for key in ("stages", "shares", "cohorts"):
            del record["decision"][key]
    (old / "round_logs.json").write_text(json.dumps(logs))
    (without_ledger(old) / "explanations.json").unlink()
    text = gr.load_run(old).why(3, "a")
    assert text.startswith("round 3, a: weight") and "Its explanations lie" in text
    assert f"Why: {logs['rounds'][2]['decision']['why']}." in text
    assert "cohort 1" not in shown(old, "--round", 3)
    report(old)
    drawn = {folder: (folder / "report.html").read_text() for folder in (held.folder, old)}
    for title in ("Aggregation weights", "Disagreement of explanations"):
        assert all(title in page for page in drawn.values())
    assert "Cohorts of sites" in drawn[held.folder] and "Cohorts of sites" not in drawn[old]


def linear(path, *, weights, bias, platt=None, classes=("0", "1"), name="logistic"):
    """A finished run's model file, with numbers that were chosen: age, lactate (often missing), sex, ward."""
    encoding = Encoding(
        numeric=(
            Numeric("age", 60.0, -1e300, 1e300, 60.0, 12.0, False),
            Numeric("lactate", 2.0, -1e300, 1e300, 0.0, 1.0, True),
        ),
        categorical=(
            Categorical("sex", ("male",), False, baseline="female"),
            Categorical("ward", ("<b>", "icu"), True),
        ),
        classes=classes,
        class_counts=(9,) * len(classes),
    )
    spec = {"name": name, "inputs": [7], "classes": len(classes), "hidden": []}
    meta = {"schema": 1, "spec": spec, "encoding": encoding.to_dict(), "threshold": 0.25, "temperature": None}
    columns = [{"name": "died", "kind": "numeric", "why": "", "order": []}]
    meta["columns"] = {"columns": columns, "label": "died", "site": None, "patient": None, "time": None}
    if platt is not None:
        meta["platt"] = platt
    outputs = 1 if len(classes) == 2 else len(classes)
    weight = np.repeat(np.array(weights, np.float32)[:, None], outputs, axis=1)
    save(path, {"layer0.weight": weight, "layer0.bias": np.full(outputs, bias, np.float32)}, meta)
    return path


WEIGHTS = [np.log(2), 0.0, np.log(1.5), -np.log(4), 0.0, 0.0, np.log(3)]


def test_a_linear_model_by_hand(tmp_path):
    """Odds ratios are 2, 1.5, 1/4 and 3; a baseline of 1 to 9 is a risk of 10%; ten years of age are 2^(10/12)."""
    path = linear(
        tmp_path / "m.safetensors", weights=WEIGHTS, bias=-np.log(9), platt={"slope": 0.5, "intercept": -1.25}
    )
    table = readable(TrainedModel.load(path))
    assert [w.feature for w in table.weights] == ["sex = male", "ward = other", "age", "lactate missing"]
    assert [w.odds_ratio for w in table.weights] == pytest.approx([0.25, 3, 2, 1.5], rel=1e-6)
    assert [w.effect for w in table.weights] == ["lowers", "raises", "raises", "raises"]
    assert table.weights[0].per == "vs. female" and table.weights[1].per == "vs. missing"
    age = table.weights[2]
    assert (age.per, age.step) == ("SD (12)", 12.0)
    assert age.odds_ratio_per_unit**10 == pytest.approx(2 ** (10 / 12), rel=1e-6)
    assert table.zeros == 3 and table.baseline == pytest.approx(0.1, rel=1e-6)
    lines = list(model_lines(table, NO_LABELS))
    assert lines[0] == "log-odds of died = 1: 4 of 7 weights are not zero"
    assert re.split(r"\s{2,}", lines[1]) == ["feature", "weight", "odds ratio", "comparison", "risk"]
    assert re.split(r"\s{2,}", lines[2]) == ["sex = male", "-1.386", "0.250", "vs. female", "lowers"]
    assert re.split(r"\s{2,}", lines[4]) == ["age", "+0.693", "2.00", "per SD (12)", "raises"]
    told = "\n".join(lines[6:])
    assert "3 weights are zero and not listed." in told and "a baseline risk of 10.0%" in told
    assert "Platt's slope 0.5 and intercept -1.25" in told and "Flagged as died = 1 at a risk of 25.0% or more." in told
    values = table.to_dict()
    assert values["baseline_risk"] == table.baseline and values["weights"][0]["effect"] == "lowers"


def test_a_linear_model_has_clinical_names_and_units(tmp_path):
    table = readable(TrainedModel.load(linear(tmp_path / "m.safetensors", weights=WEIGHTS, bias=0.0)))
    labels = ColumnLabels(names={"age": "age at admission", "died": "death in hospital"}, units={"age": "years"})
    lines = list(model_lines(table, labels))
    assert lines[0].startswith("log-odds of death in hospital: ")
    assert re.split(r"\s{2,}", lines[4]) == ["age at admission", "+0.693", "2.00", "per SD (12 years)", "raises"]
    page = "".join(model_section(table, labels))
    assert "log-odds of death in hospital are" in page and "<td>per SD (12 years)</td>" in page
    assert table.to_dict()["weights"][2]["column"] == "age", "the names of the table in JSON"


def test_a_number_that_was_not_scaled_is_per_one(tmp_path):
    path = linear(tmp_path / "m.safetensors", weights=[0, 0.5, 0, 0, 1.0, 0, 0], bias=0.0)
    ward, lactate = readable(TrainedModel.load(path)).weights
    assert (lactate.per, lactate.odds_ratio_per_unit) == ("1", pytest.approx(np.exp(0.5)))
    page = "".join(model_section(readable_file(path)))
    assert ward.feature == "ward = <b>" and "ward = &lt;b&gt;" in page and "<b>" not in page


def test_a_model_without_readable_weights_says_what_to_use(tmp_path):
    three = linear(tmp_path / "three.safetensors", weights=WEIGHTS, bias=0.0, classes=("0", "1", "2"))
    with refused("model-not-readable"):
        readable(TrainedModel.load(three))
    assert readable_file(three) is None and readable_file(tmp_path / "none") is None


def test_the_model_of_a_run(held, shown):
    """The command, its JSON and the report say what the model file holds."""
    values = json.loads(shown(held.folder, "--model", "--json"))
    weights = dict(zip(held.model.encoding.features, held.model.parameters["layer0.weight"][:, 0], strict=True))
    assert {w["column"] for w in values["weights"]} == set(held.model.encoding.sources)
    for w in values["weights"]:
        assert w["weight"] == pytest.approx(weights[w["feature"].replace(" = ", "=")])
        assert w["odds_ratio"] == pytest.approx(np.exp(w["weight"]))
    sizes = [abs(w["weight"]) for w in values["weights"]]
    assert sizes == sorted(sizes, reverse=True)
    lines = shown(held.folder, "--model").splitlines()
    assert lines[2].startswith(values["weights"][0]["feature"])
    page = (held.folder / "report.html").read_text()
    assert "Model equation" in page and f"{values['weights'][0]['odds_ratio']:#.3g}" in page
    assert shown(held.folder, "--model", "--site", "b").splitlines() == lines, "all sites use the one model"


def test_other_models_are_refused_with_exit_2(tmp_path):
    plan = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}}
    made = gr.run(
        gr.Experiment.parse({**plan, "model": {"name": "mlp", "hidden": [4]}}),
        table=patients([60, 50]),
        out=tmp_path / "m",
    )
    command_refused(rounds("show", made.folder, "--model"), "model 'mlp' has no weights", "rounds explain RUN")
    assert "Model equation" not in (made.folder / "report.html").read_text()


def test_calibration_error_is_never_compared_alone():
    assert with_auroc(["ece"]) == ("auroc", "ece")
    assert with_auroc(["ood_ece", "accuracy", "ece", "auroc"]) == ("ood_auroc", "ood_ece", "accuracy", "ece", "auroc")


def test_a_figure_that_binning_may_have_moved_says_by_how_much(held, shown, tmp_path):
    folder = shutil.copytree(held.folder, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    final = summary["final"]
    assert 0 < final["auroc_resolution"] < 0.1
    assert 0 < final["auprc_resolution"] < 0.1
    assert all(at["auprc_resolution"] == 0 for at in summary["per_site"].values() if at["auprc"] is not None)
    final |= {"auroc_resolution": 0.00099, "auprc_resolution": 0.0041}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = shown(folder, "--unverified").splitlines()
    assert any("AUPRC" in line and "± 0.004 at most from" in line for line in lines)
    assert sum("± " in line for line in lines) == 1
