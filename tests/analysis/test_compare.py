"""Comparing runs: repetitions are found, arms are paired, and an interrupted comparison goes on."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

import grandrounds as gr
from grandrounds.analysis.compare import Arm, Comparison, check_metrics, compare
from grandrounds.analysis.comparison_page import comparison_page
from grandrounds.analysis.comparison_plans import comparison_plans, model_plans
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.runs.batch import run_all
from tests.command import rounds
from tests.store import copied, finished
from tests.support import refused

BASE = {"data": {"name": "breast-cancer"}, "method": {"rounds": 2}, "name": "cmp"}


def run_of(experiment: gr.Experiment) -> gr.Run:
    return gr.load_run(finished(experiment))


@pytest.fixture(scope="module")
def runs():
    base = gr.Experiment.parse(BASE)
    return [
        run_of(base.with_settings([f"method.name={method}", f"seed={seed}", "method.mu=20.0"]))
        for method in ("fedavg", "fedprox")
        for seed in range(3)
    ]


def test_runs_that_differ_in_their_seed_are_repetitions(runs):
    result = compare(runs)
    assert [a.label for a in result.arms] == ["fedavg", "fedprox"]
    assert [sorted(a.runs) for a in result.arms] == [[(0, 0), (1, 0), (2, 0)]] * 2
    values = [r.summary["final"]["log_loss"] for r in runs[:3]]
    mean = sum(values) / 3
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    got = result.summary(result.arms[0], "log_loss")
    assert (got.mean, got.std) == pytest.approx((mean, std))
    half = 4.302653 * std / math.sqrt(3)  # Student-t quantile for 2 degrees of freedom
    assert (got.low, got.high) == pytest.approx((mean - half, mean + half))


def test_differences_are_paired_by_seed(runs):
    result = compare(runs)
    pair = result.paired(result.arms[1], "log_loss")
    by_seed = [runs[3 + s].summary["final"]["log_loss"] - runs[s].summary["final"]["log_loss"] for s in range(3)]
    assert pair.n == 3
    assert pair.difference == pytest.approx(sum(by_seed) / 3)
    assert result.paired(result.arms[0], "log_loss") is None


def test_a_comparison_ends_with_what_it_shows(runs):
    """A paired t by hand: differences of 0.01, 0.02, 0.03 are 0.02 with t = 3.46 of 2 degrees of freedom, p = 0.074."""
    same = {(seed, 0): runs[seed] for seed in range(3)}

    def conclude(**others):
        arms = [Given("fedavg", same), *(Given(name, same, added=added) for name, added in others.items())]
        return Comparison(tuple(arms), ("auroc",)).conclusion

    (unclear,) = conclude(fedprox=(0.01, 0.02, 0.03))
    assert "none differs from fedavg beyond chance" in unclear and "fedprox +0.0200 (-0.0048 to +0.0448), p = 0.074" in unclear
    (clear,) = conclude(fedprox=(0.010, 0.011, 0.012), scaffold=(-0.01, 0.01, 0.02))
    assert "fedprox is better than fedavg, +0.011" in clear and "Not beyond chance: scaffold" in clear
    (worse,) = conclude(fedprox=(-0.010, -0.011, -0.012))
    assert "fedprox is worse than fedavg" in worse
    (once,) = conclude(fedprox=(0.01, 0.013, 0.016))
    twice = conclude(fedprox=(0.01, 0.013, 0.016), scaffold=(0.01, 0.02, 0.03), feddyn=(0.02, 0.01, 0.03))[0]
    assert "is better" in once and "none differs" in twice, "one of three is held to a third of the level"


@dataclass(frozen=True)
class Given(Arm):
    """An arm whose figures are given: three of the first arm, and what is added to them."""

    added: tuple[float, ...] = (0.0, 0.0, 0.0)

    def values(self, metric, keys=None):
        return [a + b for a, b in zip((0.90, 0.80, 0.85), self.added, strict=True)]


def test_federation_against_hospitals_alone_has_a_sentence_and_other_patients_none(runs):
    local = {**BASE, "method": {"name": "local", "rounds": 1}}
    alone = [run_of(gr.Experiment.parse({**local, "seed": s})) for s in range(3)]
    same = {(seed, 0): runs[seed] for seed in range(3)}
    theirs = {(seed, 0): run for seed, run in enumerate(alone)}
    told = Comparison((Given("fedavg", same), Given("local", theirs, added=(-0.02, -0.021, -0.022))), ("auroc",)).conclusion
    assert "federation (fedavg) is better than hospitals alone, +0.0210 (+0.0185 to +0.0235), p < 0.001." in told[0]
    held = gr.Experiment.parse({**BASE, "reference": {"rows": {"rows": 40}}})
    fewer = [run_of(held.with_settings([f"seed={s}"])) for s in range(3)]
    result = compare([*runs[:3], *fewer])
    assert result.paired(result.arms[1], "auroc") is None and result.conclusion == []
    assert "other patients" in result.warnings[0] and "--set reference.rows.rows=40" in result.warnings[0]
    assert result.notes == [] and "40 reference rows" in compare(fewer).notes[0]


def test_rows_that_one_method_sets_aside_are_set_aside_in_every_arm():
    """Before, SSE-AGG was refused after the other methods had run, or was tested on other patients than they."""
    base = gr.Experiment.parse({"data": {"name": "heart"}})

    def aside(experiment, *methods):
        plans, _ = comparison_plans(experiment, methods, seeds=1)
        return {name: {s: v["rows"] for s, v in plan["reference"].items()} for name, plan in plans.items()}

    needed = aside(base, "fedavg", "sse-agg")
    assert len(needed) >= 4 and set(map(str, needed.values())) == {"{'rows': 200}"}, "references too"
    assert not any(aside(base, "fedavg", "fedprox", "fedxchain").values())
    own = base.with_settings(["reference.mine.rows=50"])
    assert set(map(str, aside(own, "fedavg", "sse-agg").values())) == {"{'mine': 50}"}


def test_what_a_method_brings_with_it_goes_without_saying(runs):
    """SSE-AGG weighs by explanations and holds sites together of itself; what someone chose is named."""
    held = {**BASE, "reference": {"rows": {"rows": 40}}, "method": {**BASE["method"], "name": "sse-agg"}}
    ours = run_of(gr.Experiment.parse(held))
    other = {**held, "method": {**held["method"], "stability": "proximal"}}
    chosen = run_of(gr.Experiment.parse(other))
    plain = run_of(gr.Experiment.parse({**held, "method": BASE["method"]}))
    assert [a.label for a in compare([plain, ours]).arms] == ["fedavg", "sse-agg"]
    assert [a.label for a in compare([plain, chosen]).arms] == [
        "fedavg, method.stability=none",
        "sse-agg, method.stability=proximal",
    ]
    assert [a.label for a in compare([ours, chosen]).arms] == ["method.stability=none", "method.stability=proximal"]


def test_other_differences_are_named(runs):
    other = run_of(gr.Experiment.parse({**BASE, "train": {"lr": 0.3}}))
    labels = [a.label for a in compare([runs[0], other]).arms]
    assert "train.lr=0.1" in labels[0]
    assert "train.lr=0.3" in labels[1]
    with refused("unknown-metric", match="'acuracy'"):
        compare([runs[0], other], metrics=["acuracy"]).to_dict()


def test_a_finished_run_of_another_experiment_is_not_taken_for_this_one(runs, tmp_path):
    copied(runs[0].folder, tmp_path / "fedavg-0")
    changed = gr.Experiment.parse({**BASE, "train": {"lr": 0.2}}).plan()
    with refused("another-experiment"):
        run_all({"fedavg-0": changed}, tmp_path, jobs=1, progress=lambda name, run: None)


@pytest.mark.parametrize(("label", "decimal"), [("diagnosis", ","), ("diagnosis", "."), ("mean_radius", ".")])
def test_a_finished_run_of_a_semicolon_table_is_not_repeated(label, decimal, tmp_path):
    """The run writes the decimal mark, the task and the model that it found into its plan; the plan asked for has none."""
    table = CATALOG["breast-cancer"].load()
    columns = ["diagnosis", "mean_radius", "mean_texture"]
    lines = [";".join(columns), *(";".join(map(str, row)) for row in zip(*(table.columns[c] for c in columns), strict=True))]
    path = tmp_path / "export.csv"
    path.write_text("\n".join(lines).replace(".", decimal))
    made = gr.Experiment.parse({"data": {"table": str(path), "label": label}, "method": {"rounds": 1}, "name": "export"})
    assert made.plan()["data"]["decimal"] == "auto"
    ended = []
    for _ in range(2):
        run_all({"a": made.plan()}, tmp_path, jobs=1, progress=lambda name, run: ended.append(run.plan), here=True)
    assert ended[0] == ended[1] and ended[0]["data"]["decimal"] == decimal
    other = made.with_settings(["data.decimal=" + {",": ".", ".": ","}[decimal]]).plan()
    with refused("another-experiment"):
        run_all({"a": other}, tmp_path, jobs=1, progress=lambda name, run: None, here=True)


def test_the_command_runs_methods_over_seeds_and_goes_on_where_it_was(tmp_path):
    command = [
        "compare", "breast-cancer", "--methods", "fedavg,fedprox", "--no-references", "--seeds", 2,
        "--set", "method.rounds=2", "--out", tmp_path / "c", "--metrics", "accuracy,worst_site_accuracy",
    ]  # fmt: skip
    done = rounds(*command)
    assert done.returncode == 0, done.stderr
    assert "95% CI" in done.stdout
    assert "fedprox" in done.stdout
    first = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").glob("*/summary.json")}
    assert len(first) == 4
    broken = tmp_path / "c" / "fedprox-seed1"
    (broken / "summary.json").unlink()
    again = rounds(*command, "--json")
    assert again.returncode == 0, again.stderr
    second = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").glob("*/summary.json")}
    assert {p for p in first if first[p] != second[p]} == {broken / "summary.json"}
    assert {r["arm"] for r in json.loads(again.stdout)["rows"]} == {"fedavg", "fedprox"}


def test_runs_are_compared_at_one_virtual_time():
    """Sites take 1 to 4 virtual seconds: a synchronous round takes 4, FedAsync's arrivals come when they come."""
    slow = {"engine": {"faults": {"slow": {f"site-{k:02d}": 1.0 + k % 4 for k in range(1, 11)}}}, "seed": 0}
    made = [
        run_of(gr.Experiment.parse({**BASE, **slow, "method": {"name": name, "rounds": 12}}))
        for name in ("fedavg", "fedasync")
    ]
    whole, early = compare(made, metrics=["log_loss"]), compare(made, metrics=["log_loss"], virtual_seconds=9.0)
    clocks = [[r["virtual_seconds"] for r in run.rounds] for run in made]
    assert clocks[0] == [4.0 * r for r in range(1, 13)]
    assert clocks[1] == sorted(clocks[1]) and clocks[1][-1] < 9
    assert early.arms[0].values("log_loss") == [made[0].rounds[1]["test"]["log_loss"]]
    assert early.arms[1].values("log_loss") == [made[1].rounds[-1]["test"]["log_loss"]]
    assert whole.arms[0].values("log_loss") == [made[0].summary["final"]["log_loss"]]
    with refused("no-evaluated-round", match="2 virtual seconds"):
        compare(made, metrics=["log_loss"], virtual_seconds=2.0).to_dict()


def test_a_failing_run_is_named(tmp_path):
    plan = gr.Experiment.parse({**BASE, "engine": {"min_sites": 10, "faults": {"drop": 0.9}}}).plan()
    with pytest.raises(gr.RunFailed, match=r"bad: round 1: only \d+ of 10 sites answered"):
        run_all({"bad": plan}, tmp_path, jobs=1, progress=lambda name, run: None)


def test_runs_in_this_process_go_on_after_a_failure_and_resume_in_their_own(tmp_path):
    plans = {seed: gr.Experiment.parse({**BASE, "seed": seed}).plan() for seed in (0, 1)}
    bad = gr.Experiment.parse({**BASE, "engine": {"min_sites": 10, "faults": {"drop": 0.9}}}).plan()
    failed, done = [], []
    made = run_all(
        {"0": plans[0], "bad": bad, "1": plans[1]},
        tmp_path,
        jobs=2,
        progress=lambda name, run: done.append(name),
        failed=lambda name, error: failed.append(str(error)),
        here=True,
    )
    assert done == ["0", "1"] and failed[0].startswith("bad: round 1: only") and len(made) == 2
    expected = made[1].summary["final"]
    (tmp_path / "1" / "summary.json").unlink()
    again = run_all({"1": plans[1]}, tmp_path, jobs=1, progress=lambda name, run: None, here=True)
    assert again[0].summary["final"] == expected


def test_a_metric_that_no_run_will_have_is_refused_before_any_is_run():
    check_metrics(("accuracy", "worst_site_accuracy", "training_drift", "finetuned_auroc", "mine"), ("module:mine",))
    check_metrics(("personal_log_loss", "personal_worst_site_accuracy", "harmed_sites"), ())
    with refused("unknown-metric", match="'training_drfit'.*'training_drift'"):
        check_metrics(("accuracy", "training_drfit"), ())


def test_how_right_local_models_were_is_compared_like_any_metric(runs):
    told = run_of(gr.Experiment.parse({**BASE, "evaluation": {"local_models": "crossed"}}))
    names = ("local_train_accuracy", "local_test_accuracy", "others_train_accuracy", "external_accuracy")
    mute, ours = compare([runs[0], told], metrics=names).arms
    keys = ("train_accuracy", "test_accuracy", "others_train", "external")
    assert [ours.values(name) for name in names] == [[told.summary["local"][key]] for key in keys]
    assert all(math.isnan(mute.values(name)[0]) for name in names), "a run that did not ask gives a dash"


def test_deployed_models_are_compared_with_the_common_ones_of_other_runs(runs):
    own = run_of(gr.Experiment.parse({**BASE, "personal": {"guard": True}}))
    compared = compare([runs[0], own])
    common, deployed = compared.arms
    assert {"personal_accuracy", "personal_log_loss", "harmed_sites"} <= set(compared.metrics)
    assert common.values("personal_log_loss") == common.values("log_loss"), "it is what these sites deploy"
    assert deployed.values("personal_log_loss") == [own.summary.personal["final"]["log_loss"]]
    assert deployed.values("harmed_sites") == [float(len(own.summary.personal["harmed"]))]
    assert math.isnan(common.values("harmed_sites")[0])
    lowest = min(m["accuracy"] for m in own.summary.personal["per_site"].values())
    assert deployed.values("personal_worst_site_accuracy")[0] >= lowest


def test_runs_that_predict_different_events_are_not_compared_in_silence(runs):
    turned = run_of(gr.Experiment.parse(BASE).with_settings(["data.event=benign"]))
    (said,) = compare([runs[0], turned]).warnings
    assert "benign" in said and "malignant" in said and compare(runs).warnings == []
    shown = rounds("compare", str(runs[0].folder), str(turned.folder))
    assert "do not predict the same event" in shown.stderr + shown.stdout


def test_the_price_of_models(tmp_path):
    """Two rounds of a logistic model send its weights twice; a forest is sent once; pooled rows have no such price."""
    base = gr.Experiment.parse({**BASE, "engine": {"precision": "float64"}, "model": {"trees": 2}})
    options = {"seeds": 1, "references": False, "metrics": ["accuracy", "auroc"], "jobs": 1}
    result = gr.compare(base, models=["logistic", "forest"], out=tmp_path / "c", **options)
    pooled = run_of(base.with_settings(["method.name=pooled"]))
    prices = {arm.label: result.price(arm) for arm in result.arms}
    first = next(iter(result.arms[0].runs.values()))
    assert (prices["logistic"].exchanges, prices["forest"].exchanges) == (2, 1)
    assert prices["logistic"].bytes_up == pytest.approx(2 * 8 * (first.summary["parameters"] + 1), rel=0.2)  # and the row count
    assert prices["forest"].cpu_seconds > 0
    beside = compare([first, pooled])
    assert beside.price(beside.arms[1]).exchanges is None and beside.price(beside.arms[1]).bytes_up is None
    assert result.headline == "auroc"
    written = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [p["exchanges"] for p in written["prices"]] == [2, 1]
    page = (tmp_path / "c" / "report.html").read_text()
    assert "<h2>Price</h2>" in page and "rows leave" not in page
    assert "rows leave" in comparison_page(beside.to_dict(), {})
    with refused("conflicting-options"):
        gr.compare("heart", methods=["fedavg"], models=["gam"])


def test_models_are_compared_each_by_its_own_method():
    base = gr.Experiment.parse({"data": {"name": "heart"}, "method": {"name": "fedprox", "rounds": 3}, "train": {"finetune": 2}})
    plans, labels = model_plans(base, ["all", "logistic"], seeds=1)
    settings = {
        labels[name]: (plan["model"]["name"], plan["method"]["name"], plan["data"]["coding"]) for name, plan in plans.items()
    }
    assert settings["logistic"] == ("logistic", "fedprox", "levels")
    assert settings["mlp"] == ("mlp", "fedprox", "levels")
    for model in ("gam", "trees", "card"):
        assert settings[model] == (model, model, "columns")
    assert settings["forest"] == ("forest", "fedavg", "levels")
    assert (plans["forest-seed0"]["method"]["rounds"], plans["mlp-seed0"]["train"]["finetune"]) == (1, 2)
    assert plans["gam-seed0"]["method"]["rounds"] > 3 and plans["gam-seed0"]["train"]["finetune"] == 0
    assert settings["pooled lightgbm"] == ("lightgbm", "pooled", "levels")
    assert settings["pooled ebm"] == ("ebm", "pooled", "columns")
    regression = base.with_settings(["data.label=cholesterol", "data.task=regression"])
    assert set(model_plans(regression, ["all"], seeds=1)[1].values()) == {"linear", "gam", "trees", "mlp"}
    with refused("bad-setting", match="did you mean 'gam'"):
        model_plans(base, ["gan"], seeds=1)


@pytest.mark.parametrize(("metrics", "drawn"), [(["auroc", "ece"], True), (["auroc"], False)])
def test_all_metrics_and_traffic_are_drawn_at_once(metrics, drawn, runs):
    """VEIL's Fig. 1 for one's own runs; two axes are no polygon, and runs without a budget have no axis of privacy."""
    result = compare(runs, metrics=metrics)
    page = comparison_page(result.to_dict(), {arm.label: list(arm.runs.values()) for arm in result.arms})
    assert ("All metrics at once" in page) == ("log(1 / MB)" in page) == drawn
    assert "1 / epsilon" not in page
