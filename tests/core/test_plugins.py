"""Code of one's own: a model, method, partition, loader or metric named by import path or given from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.core import plugins
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.sets.catalog import find_entry
from grandrounds.methods import METHODS, build_method, is_variant_of, method_class
from grandrounds.methods.base import Server
from grandrounds.metrics import tally
from grandrounds.metrics.custom import custom_metrics
from grandrounds.models import build_model
from grandrounds.protocol.messages import Answers, Ask, AskId
from grandrounds.runs.run import folder_name
from grandrounds.site.host import SiteHost
from tests import own_things as mine
from tests.command import rounds as rounds_here
from tests.support import ready, refused, stack
from tests.support import rounds as drive

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HERE = mine.__name__


# --- helpers --------------------------------------------------------------------------------------------


def own(name) -> str:
    return f"{HERE}:{name if isinstance(name, str) else name.__name__}"


def experiment(**sections) -> gr.Experiment:
    base = {"data": {"name": "breast-cancer"}, "method": {"rounds": 2}, "split": {"sites": 4}}
    merged = {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
    return gr.Experiment.parse(merged)


def run(tmp_path, name="r", **sections) -> gr.Run:
    return gr.run(experiment(**sections), out=tmp_path / name)


def fails_to_run(match, tmp_path, kind=BadInput, **sections) -> None:
    with pytest.raises(kind, match=match) as caught:
        run(tmp_path, **sections)
    assert "\n" not in str(caught.value)


def rounds(*arguments, cwd, module="grandrounds.cli") -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.pop(0); from {module} import main; sys.exit(main())"  # as the installed command does
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


def allow(*names: str) -> None:
    """Say what an experiment says by naming code: that this process may import it."""
    plugins.allow({"evaluation": {"metrics": names}})


def sentence(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    (last,) = [line for line in done.stderr.strip().splitlines() if line.startswith("error: ")]  # a hint may follow
    for word in words:
        assert word in last


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_path", "word"),
    [
        ("pkg.mod:Net", True, "Net"),
        ("mod:Outer.Inner", True, "Inner"),
        ("fedavg", False, "fedavg"),
        ("small-cnn", False, "small-cnn"),
        ("my-pkg:Net", False, "my-pkg:Net"),
        ("sqlite:///ward.db", False, "sqlite:///ward.db"),
        ("mod:", False, "mod:"),
        (":Net", False, ":Net"),
    ],
)
def test_an_import_path_is_told_from_a_name(name, is_path, word):
    assert plugins.is_path(name) is is_path
    assert plugins.last_word(name) == word


def test_a_path_that_leads_nowhere_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_half.py").write_text("x = 1\nraise ValueError('not\\nready')\n")
    (tmp_path / "own_syntax.py").write_text("def f(:\n")
    for path, match in {
        "no_such_module_here:Net": "cannot import no_such_module_here .*is it installed, or in this folder",
        own("Nett"): "has no 'Nett'; did you mean 'Net'",
        own("Net.inner"): "has no 'Net.inner'",
        "own_half:Net": r"cannot import own_half \(ValueError: not ready, own_half.py line 2\)",
        "own_syntax:Net": r"cannot import own_syntax \(SyntaxError",
        "__main__:NoSuchThing": "only while that script runs; define it in a module",
    }.items():
        allow(path)
        with refused("cannot-import-code", match=match) as caught:
            plugins.resolve(path, key="model.name")
        assert str(caught.value).startswith(f"model.name is '{path}': ")


def test_the_current_folder_is_searched_last(tmp_path, monkeypatch):
    (tmp_path / "own_thing_of_mine.py").write_text("value = 7\n")
    (tmp_path / "json.py").write_text("loads = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    allow("own_thing_of_mine:value", "json:loads")
    assert plugins.resolve("own_thing_of_mine:value", key="x") == 7
    assert callable(plugins.resolve("json:loads", key="x"))


# --- from Python ------------------------------------------------------------------------------------------


def test_a_class_or_function_stands_for_its_import_path():
    given = gr.Experiment(
        data={"name": mine.frame, "label": "died"},
        split={"partition": mine.by_turns},
        model={"name": mine.Net},
        method={"name": mine.Halfway},
        evaluation={"metrics": [mine.harm, own(mine.undefined)]},
    )
    assert given.data.name == own(mine.frame)
    assert given.split.partition == own(mine.by_turns)
    assert given.model.name == own(mine.Net)
    assert given.method.name == own(mine.Halfway)
    assert given.evaluation.metrics == (own(mine.harm), own(mine.undefined))
    again = gr.Experiment.parse(json.loads(json.dumps(given.plan())))
    assert again.plan() == given.plan()


def test_what_has_no_import_path_is_refused():
    class Inside(mine.Net):
        pass

    for thing, word in (
        (lambda **_: None, "<lambda>"),
        (Inside, "Inside"),
        (mine.Net(inputs=(3,), outputs=1), "type Net"),
    ):
        with refused("bad-setting", match="model.name: .*has no import path: define a class or function") as caught:
            gr.Experiment.parse({"model": {"name": thing}})
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)
        with refused("bad-setting", match="model.name: .*has no import path"):
            gr.Experiment(model={"name": thing})
    with refused("bad-setting", match="evaluation.metrics: .*has no import path"):
        gr.Experiment.parse({"evaluation": {"metrics": [lambda t: 0.0]}})


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            {"split": {"partition": "dirichelt"}},
            "split.partition is 'dirichelt'; did you mean 'dirichlet'. known: auto",
        ),
        ({"model": {"name": "my-net:Net"}}, "model.name is 'my-net:Net'; known: logistic"),
        ({"method": {"name": "fedavgg"}}, "method.name is 'fedavgg'; did you mean"),
        ({"evaluation": {"metrics": ["f2"]}}, "evaluation.metrics is 'f2'"),
        ({"model": {"name": 3}}, "model.name is 3"),
    ],
)
def test_names_that_are_neither_known_nor_paths_are_refused(values, match):
    with refused("bad-setting", match=match):
        gr.Experiment.parse(values)


@pytest.mark.slow
def test_a_script_can_run_what_it_defines_itself(tmp_path):
    script = """
import grandrounds as gr
from grandrounds.methods.fedavg import FedAvg
class Mine(FedAvg):
    pass
run = gr.run(gr.Experiment(data={"name": "breast-cancer"}, method={"name": Mine, "rounds": 2}))
print(run.folder, run.summary["method"])
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["runs/breast-cancer-Mine-seed0", "__main__:Mine"]
    again = rounds("resume", "runs/breast-cancer-Mine-seed0", "--set", "method.rounds=3", cwd=tmp_path)
    sentence(again, "method.name is '__main__:Mine'", "only while that script runs")


# --- model ------------------------------------------------------------------------------------------------


def spec(name, *, inputs=(5,), classes=2, **options):
    allow(own(name))
    return {"name": own(name), "inputs": list(inputs), "classes": classes, "weights": None, "options": options}


def test_a_module_of_ones_own_learns_on_a_table(tmp_path):
    held = run(tmp_path, model={"name": own(mine.Net), "options": {"width": 9}}, method={"rounds": 8})
    assert held.summary["final"]["auroc"] > 0.97
    assert held.summary["parameters"] == 30 * 9 + 9 + 9 + 1
    assert held.model.parameters["head.weight"].shape == (1, 9)
    rows = find_entry("breast-cancer").load()
    assert held.model.predict(rows).probabilities.shape == (569, 2)


def test_a_module_of_ones_own_learns_on_pictures(tmp_path):
    data, split = {"name": own(mine.pictures)}, {"partition": "column", "min_rows": 4}
    held = run(
        tmp_path, data=data, split=split, model={"name": own(mine.Net)}, train={"lr": 0.3}, method={"rounds": 15}
    )
    assert held.summary["final"]["auroc"] > 0.9
    assert list(held.summary["per_site"]) == ["a", "b", "c"]
    assert held.summary["inputs"] == [1, 8, 8]


def test_starting_weights_follow_the_seed_and_leave_torchs_generator_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    model = build_model(spec(mine.Net), own_code=True)
    first, again, other = model.init(0), model.init(0), model.init(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert model.kernel == "torch"
    double = build_model(spec(mine.Net), own_code=True, precision="float64").init(0, np.float64)
    np.testing.assert_array_equal(double.astype(np.float32), first)


@pytest.mark.slow
def test_dropout_gives_the_same_bits_in_any_chunking_through_bytes_and_after_a_resume(tmp_path):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    ways = ({}, {"chunk": 1}, {"wire": True})
    models = [
        run(tmp_path, str(i), model={"name": own(mine.Net)}, engine=way).model.theta for i, way in enumerate(ways)
    ]
    assert torch.equal(torch.random.get_rng_state(), before)
    for other in models[1:]:
        np.testing.assert_array_equal(models[0], other)
    half = run(tmp_path, "half", model={"name": own(mine.Net)}, method={"rounds": 1})
    np.testing.assert_array_equal(models[0], gr.resume(half.folder, settings=["method.rounds=2"]).model.theta)
    dry = run(tmp_path, "dry", model={"name": own(mine.Net), "options": {"dropout": 0.0}}).model.theta
    assert np.abs(dry - models[0]).max() > 1e-4, "dropout must have been at work"


def test_a_module_with_batch_norm_averages_its_statistics(tmp_path):
    held = run(tmp_path, model={"name": own(mine.Normed)}, train={"batch": 0})
    assert np.abs(held.model.parameters["body.1.running_mean"]).max() > 0


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (mine.no_module, "it returns a dict, not a torch.nn.Module"),
        (mine.empty, "has no parameters"),
        (mine.frozen, "parameter '0.weight' is frozen; register it as a buffer"),
        (mine.Wide, r"for 2 rows it returns an output of shape \(2, 3\), not logits of shape \(2, 1\)"),
        (mine.Idle, "parameter 'spare.weight' has no effect"),
        (mine.Broken, r"its forward of rows \(2, 30\) failed with RuntimeError: .*own_things.py line"),
        ("NUMBER", "of type int, not a function or class"),
    ],
)
@pytest.mark.parametrize("wire", [False, True])
def test_a_module_that_cannot_be_trained_is_refused_before_training(tmp_path, name, match, wire):
    fails_to_run(match, tmp_path, model={"name": own(name)}, engine={"wire": wire})
    assert not (tmp_path / "r").exists()


def test_an_option_that_the_module_does_not_take_is_refused(tmp_path):
    fails_to_run("unexpected keyword argument 'wdth'", tmp_path, model={"name": own(mine.Net), "options": {"wdth": 3}})


def test_a_module_that_fails_in_training_fails_the_round_in_words(tmp_path):
    match = "round 1: '.*Fragile' failed with ZeroDivisionError: no, own_things.py line"
    fails_to_run(match, tmp_path, RunFailed, model={"name": own(mine.Fragile)})


def test_a_temperature_needs_a_last_layer_that_gives_the_logits(tmp_path):
    calibrate = {"calibrate": "temperature"}
    for name in (mine.Squashed, mine.HeadFirst):
        match = "evaluation.calibrate needs a torch.nn.Linear"
        fails_to_run(match, tmp_path, model={"name": own(name)}, evaluation=calibrate)
        assert not build_model(spec(name), own_code=True).ends_linear
    fails_to_run("MOON's contrast needs", tmp_path, model={"name": own(mine.HeadFirst)}, method={"stability": "moon"})
    for name in (mine.Net, mine.linear):
        model = build_model(spec(name), own_code=True)
        theta, x = model.init(0), generator(0, purpose="x").standard_normal((7, 5), np.float32)
        np.testing.assert_allclose(model.logits(model.with_temperature(theta, 2.0), x), model.logits(theta, x) / 2, rtol=1e-5)


def test_no_message_makes_a_site_import_code(tmp_path):
    with refused("code-not-allowed"):
        build_model(spec(mine.Net))
    _, encoding = ready(stack([30, 20]))
    values = {**spec(mine.Net, inputs=encoding.inputs), "keeps": "none", "groups": 1}
    shared = {"encoding": json.dumps(encoding.to_dict()), "spec": json.dumps(values)}
    ask = Ask("prepare", shared=shared, report=("train_rows",)).numbered(AskId("t", 0, 0), ("a", "b"))
    with refused("code-not-allowed"):
        SiteHost(stack([30, 20])).answer(ask, np.arange(2))
    SiteHost(stack([30, 20]), own_code=True).answer(ask, np.arange(2))


# --- method -----------------------------------------------------------------------------------------------


def plan_of(**method) -> Settings:
    return Settings(gr.Experiment.parse({"data": {"name": "breast-cancer"}, "method": method}).plan())


def answered(method, *, loss=None) -> object:
    """The outcome of one round by hand: two sites with 30 and 10 rows."""
    server = Server(round=1, model=np.zeros(2, np.float32), sites=("north", "south"), seed=0)
    work = method.round(server)
    ask = work.send(None)
    if loss is not None:
        assert (ask.task, ask.report) == ("score", ("loss",))
        ask = work.send(Answers(server.sites, {"loss": np.array(loss)}))
    assert ask.task == "train"
    columns = {"model": np.array([[1.0, 2.0], [5.0, 6.0]]), "count": np.array([30, 10])}
    with pytest.raises(StopIteration) as end:
        work.send(Answers(server.sites, columns))
    return end.value.value


def test_a_method_of_ones_own_by_hand():
    plan = plan_of(name=own(mine.Halfway), options={"share": 0.25})
    outcome = answered(build_method(plan.method, plan.train))
    np.testing.assert_allclose(outcome.model, [0.75, 1.0])
    assert outcome.decision.weights == {"north": 0.125, "south": 0.125}


def test_the_example_method_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    plan = plan_of(name="own_method:LossWeighted", options={"q": 2.0})
    outcome = answered(build_method(plan.method, plan.train), loss=[0.1, 0.3])
    assert outcome.decision.weights == pytest.approx({"north": 0.25, "south": 0.75})  # 30 * 0.01 and 10 * 0.09
    np.testing.assert_allclose(outcome.model, [4.0, 5.0])


def test_the_example_method_on_the_tests_engine(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    engine, _ = ready(stack([60, 40, 30]))
    _, decisions = drive(engine, count=3, method={"name": "own_method:LossWeighted"})
    for decision in decisions:
        assert sum(decision.weights.values()) == pytest.approx(1)


def test_the_example_method_without_q_is_fedavg_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    held = run(tmp_path, "own", method={"name": "own_method:LossWeighted", "options": {"q": 0.0}})
    known = run(tmp_path, "known", method={"name": "fedavg"})
    np.testing.assert_array_equal(held.model.theta, known.model.theta)


def test_a_method_of_ones_own_runs_and_is_not_listed(tmp_path):
    held = run(tmp_path, method={"name": own(mine.Halfway)})
    assert held.summary["method"] == own(mine.Halfway)
    assert held.rounds[0]["decision"]["why"] == "halfway"
    assert mine.Halfway not in METHODS.values()


@pytest.mark.parametrize(
    ("method", "kind", "match"),
    [
        ({"name": own(mine.Net)}, BadInput, "which is not a subclass of grandrounds.methods.base.Method"),
        ({"name": own(mine.harm)}, BadInput, "which is not a subclass of grandrounds.methods.base.Method"),
        ({"name": own(mine.Halfway), "options": {"shar": 1}}, BadInput, "has no option 'shar'.*did you mean 'share'"),
        ({"name": own(mine.OwnBN), "options": {"a": 1}}, BadInput, "BatchNorm layers at sites and this model has none"),
        ({"name": own(mine.Halfway), "robust": "median"}, BadInput, "does not support method.robust"),
        ({"name": own(mine.Failing)}, RunFailed, "round 1: .*KeyError: 'velocity', own_things.py line"),
        ({"name": own(mine.Endless)}, RunFailed, "ended with NoneType: end a round with `return server.next"),
    ],
)
def test_a_method_that_will_not_do_is_refused_in_words(tmp_path, method, kind, match):
    fails_to_run(match, tmp_path, kind, method=method)


def test_a_method_made_from_a_known_one_is_treated_like_it(tmp_path):
    allow(own(mine.OwnPooled))
    assert is_variant_of(own(mine.OwnPooled), "pooled")
    assert not is_variant_of(own(mine.OwnPooled), "fedbn")
    assert method_class(own(mine.OwnPooled)) is mine.OwnPooled
    held = run(tmp_path, "own", method={"name": own(mine.OwnPooled)})
    known = run(tmp_path, "known", method={"name": "pooled"})
    np.testing.assert_array_equal(held.model.theta, known.model.theta)


def test_rules_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    rows = {s: r["train"] for s, r in run(tmp_path, "known").summary["rows"].items()}
    held = run(tmp_path, "select", method={"name": "own_rules:LargestHalf"})
    assert sorted(held.rounds[0]["decision"]["weights"]) == sorted(sorted(rows, key=rows.get)[-2:])
    weights = run(tmp_path, "weigh", method={"name": "own_rules:SquareRoot"}).rounds[0]["decision"]["weights"]
    total = sum(n**0.5 for n in rows.values())
    assert weights == pytest.approx({s: n**0.5 / total for s, n in rows.items()})
    decision = run(tmp_path, "robust", method={"name": "own_rules:DropLongest"}).rounds[0]["decision"]
    (left_out,) = [s for s, w in decision["weights"].items() if w == 0]
    assert decision["signals"]["norm"][left_out] == max(decision["signals"]["norm"].values())


@pytest.mark.parametrize(
    ("name", "privacy", "code"),
    [
        ("own_rules:SquareRoot", {"secure": True}, "secure-aggregation-does-not-fit"),
        ("own_rules:SquareRoot", {"mechanism": "client", "noise": 1.0}, "privacy-does-not-fit"),
        ("own_objective:FedDynServer", {"mechanism": "dp-sgd", "noise": 1.0, "min_rows": 10}, "privacy-does-not-fit"),
        ("own_objective:FedDynServer", {"mechanism": "client", "noise": 1.0}, "privacy-does-not-fit"),
        ("own_objective:FedDynServer", {"secure": True}, "secure-aggregation-does-not-fit"),
    ],
)
def test_a_class_that_may_see_single_models_has_no_privacy_account(tmp_path, monkeypatch, name, privacy, code):
    monkeypatch.syspath_prepend(EXAMPLES)
    with refused(code):
        run(tmp_path, method={"name": name}, privacy=privacy)


# --- partition --------------------------------------------------------------------------------------------


def test_a_partition_of_ones_own_makes_the_sites(tmp_path):
    held = run(tmp_path, split={"partition": own(mine.by_turns), "sites": 3})
    assert [sum(rows.values()) for rows in held.summary["rows"].values()] == [190, 190, 189]
    assert list(held.summary["rows"]) == ["site-01", "site-02", "site-03"]
    named = run(tmp_path, "named", split={"partition": own(mine.two_sites)})
    assert [sum(rows.values()) for rows in named.summary["rows"].values()] == [100, 40], "rows may be left out"
    again = run(tmp_path, "again", split={"partition": own(mine.two_sites)})
    np.testing.assert_array_equal(named.model.theta, again.model.theta)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (mine.too_few, "it gives 3 sites, but split.sites is 4"),
        (mine.twice, "row 0 is given out 4 times; a row belongs to one site"),
        (mine.beyond, "'site-02' has row numbers from 2 to 569; they go from 0 to 568"),
        (mine.halves, "'site-01' is float64 .* give whole row numbers"),
        (mine.one_empty, "'site-01' has no rows"),
        (mine.owners, "it gives a ndarray, not a list of arrays"),
        (mine.broken_partition, "it failed with IndexError: .*own_things.py line"),
    ],
)
def test_a_partition_that_will_not_do_is_refused_in_words(tmp_path, name, match):
    fails_to_run(f"split.partition is '{own(name)}': {match}", tmp_path, split={"partition": own(name)})


def test_a_partition_of_ones_own_keeps_patients_whole(tmp_path):
    data = {"name": own(mine.pictures_of_patients), "patient": "patient"}
    split, model = {"sites": 4, "min_rows": 4}, {"name": own(mine.Net)}
    run(tmp_path, data=data, split={**split, "partition": own(mine.by_patient)}, model=model)
    fails_to_run("one patient at two sites; take an argument `groups`", tmp_path / "x", data=data, model=model,
            split={**split, "partition": own(mine.by_turns)})  # fmt: skip


# --- data -------------------------------------------------------------------------------------------------


def test_a_loader_of_ones_own_gives_a_frame_or_a_table(tmp_path):
    labelled = {"label": "died", "site": "hospital"}
    held = run(tmp_path, data={"name": own(mine.frame), **labelled})
    assert held.plan["data"]["sha256"] == mine.table().sha256()
    assert list(held.summary["per_site"]) == ["a", "b", "c"]
    assert held.summary["data"] == own(mine.frame)
    other = run(tmp_path, "t", data={"name": own(mine.table), **labelled})
    np.testing.assert_array_equal(held.model.theta, other.model.theta)
    again = gr.run(gr.Experiment.load(held.folder / "experiment.toml"), out=tmp_path / "again")
    np.testing.assert_array_equal(held.model.theta, again.model.theta)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"name": own(mine.frame)}, "data.label is not set"),
        ({"name": own(mine.frame), "label": "dead"}, "column 'dead' not found in .*did you mean"),
        ({"name": own(mine.frame), "label": "died", "sha256": "0" * 64}, "is not the data this experiment was run on"),
        ({"name": own(mine.no_data), "label": "died"}, "it gives a list, not a data frame, a Table or an ImageSet"),
        ({"name": own(mine.broken_data), "label": "died"}, "it failed with FileNotFoundError: ward.db is not there"),
        ({"name": own(mine.pictures_of_patients)}, "its images name their patients; set data.patient"),
        ({"name": own(mine.frame), "table": "x.csv"}, "two data sources"),
    ],
)
def test_a_loader_that_will_not_do_is_refused_in_words(tmp_path, data, match):
    model = {"name": own(mine.Net)}
    fails_to_run(match, tmp_path, data=data, model=model)


def test_a_partition_by_column_needs_sites_in_the_pictures(tmp_path):
    data = {"name": own(mine.pictures_of_patients), "patient": "patient"}
    fails_to_run(
        "has no site for each row",
        tmp_path,
        data=data,
        split={"partition": "column"},
        model={"name": own(mine.Net)},
    )


@pytest.mark.slow
def test_the_command_checks_a_loader_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text((EXAMPLES / "own_data.py").read_text())
    done = rounds("data", "check", "mine:stays", "--label", "died", "--site", "hospital", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "600 rows, 3 sites" in done.stdout
    sentence(rounds("data", "check", "mine:stays", cwd=tmp_path), "data.label is not set")


# --- metric -----------------------------------------------------------------------------------------------


def test_a_metric_of_ones_own_is_in_every_record(tmp_path):
    held = run(tmp_path, evaluation={"metrics": [own(mine.harm), own(mine.undefined)]}, train={"finetune": 1})
    for record in held.rounds:
        assert record["val"]["harm"] >= 0
        assert record["test"]["harm"] >= 0
        assert record["test"]["undefined"] is None
    for part in ("final", "validation", "training"):
        assert held.summary[part]["harm"] >= 0
    assert held.summary["finetuned"]["final"]["harm"] >= 0
    assert "<td>harm</td>" in (held.folder / "report.html").read_text()
    shown = rounds_here("show", held.folder, cwd=tmp_path).stdout
    assert shown.index("NPV") < shown.index("harm"), "after the built-in ones"
    other = run(tmp_path, "other", evaluation={"metrics": [own(mine.harm), own(mine.undefined)]})
    result = compare([held, other], metrics=["harm"]).to_dict()
    assert result["rows"][0]["mean"] == held.summary["final"]["harm"]


def test_a_metric_of_ones_own_by_hand():
    logits, y = np.array([[2.0], [2.0], [-2.0], [-2.0]]), np.array([0, 1, 1, 0])
    measure = custom_metrics([own(mine.harm)])["harm"]
    assert measure(tally(logits, y, classes=2)) == (1 + 10) / 4


@pytest.mark.parametrize(
    ("metrics", "kind", "match"),
    [
        ([own(mine.words)], RunFailed, "which gave a value of type str: return one number"),
        ([own(mine.broken_metric)], RunFailed, "it failed with AttributeError: .*own_things.py line"),
        ([own(mine.accuracy)], BadInput, "there is a metric 'accuracy' already: rename it"),
        ([own(mine.harm), own(mine.harm)], BadInput, "there is a metric 'harm' already"),
        ([own("NUMBER")], BadInput, "which is not a function"),
    ],
)
def test_a_metric_that_will_not_do_is_refused_in_words(tmp_path, metrics, kind, match):
    fails_to_run(match, tmp_path, kind, evaluation={"metrics": metrics})


# --- runs, names and the command ----------------------------------------------------------------------------


def test_folders_and_labels_are_named_by_the_last_word(tmp_path):
    plan = experiment(data={"name": own(mine.frame), "label": "died"}, method={"name": own(mine.Halfway)}).plan()
    assert folder_name(plan) == "frame-Halfway-seed0"
    runs = [run(tmp_path, name, method={"name": name}) for name in ("fedavg", own(mine.Halfway))]
    assert [arm.label for arm in compare(runs).arms] == ["fedavg", "Halfway"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder with two modules whose methods have the same name."""
    home = tmp_path_factory.mktemp("own")
    (home / "own_method.py").write_text((EXAMPLES / "own_method.py").read_text())
    (home / "other.py").write_text("from own_method import LossWeighted as Base\nclass LossWeighted(Base):\n    pass\n")
    return home


OWN = ("--set", "method.name=own_method:LossWeighted")


@pytest.mark.slow
def test_a_run_is_resumed_in_the_folder_of_its_module(folder, tmp_path):
    for name, count in (("short", 2), ("straight", 4)):
        done = rounds("run", *OWN, "--set", f"method.rounds={count}", "--out", name, "--quiet", cwd=folder)
        assert done.returncode == 0, done.stderr
    sentence(rounds("resume", folder / "short", "--set", "method.rounds=4", cwd=tmp_path), "cannot import own_m")
    done = rounds("resume", "short", "--set", "method.rounds=4", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "short/model.safetensors").read_bytes() == (folder / "straight/model.safetensors").read_bytes()
    held = gr.load_run(folder / "short")
    assert [r["round"] for r in held.rounds] == [1, 2, 3, 4]


def test_a_job_runs_a_plan_that_names_own_code(folder):
    done = rounds("plan", *OWN, "--set", "method.rounds=2", "--out", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    job = [sys.executable, "-m", "grandrounds.job", "plan.json", "--out", "job"]
    done = subprocess.run(job, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round ") == 2


@pytest.mark.slow
def test_methods_of_ones_own_are_compared(folder):
    methods = "own_method:LossWeighted,other:LossWeighted,fedavg"
    arguments = ("compare", "breast-cancer", "--methods", methods, "--no-references", "--seeds", "1")
    chosen = ("--set", "method.rounds=2", "--set", "method.options.q=2.0", "--metrics", "log_loss")
    done = rounds(*arguments, *chosen, "--out", "c", cwd=folder)
    assert done.returncode == 0, done.stderr
    names = {p.name for p in (folder / "c").iterdir()}
    assert {"LossWeighted-seed0", "other.LossWeighted-seed0", "fedavg-seed0"} <= names
    assert not any(":" in name for name in names)
    labels = {row["arm"] for row in json.loads((folder / "c" / "comparison.json").read_text())["rows"]}
    assert {"own_method.LossWeighted", "other.LossWeighted", "fedavg"} <= labels
