"""Attacks through whole runs: the harm they do to FedAvg, the rules that stand them, and what is written down."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.cli import main
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.corruption.attacks import Attack, add_trigger
from grandrounds.data.image_files import read_npz
from grandrounds.data.table import Table
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import AskId
from grandrounds.runs.federation import assemble
from grandrounds.runs.model import TrainedModel
from tests.support import patients, ready, refused, rounds, sections, stack

LARGE = ("g", "h", "i")
"""The three largest of nine sites: a third of the votes, and most of the rows."""


@cache
def clear() -> Table:
    """Nine hospitals of one clear rule; three of them hold 600 of the 960 rows."""
    rng = generator(0, purpose="clear")
    sizes = [60] * 6 + [200] * 3
    n, weight = sum(sizes), np.linspace(2, -1, 12)
    x = rng.normal(size=(n, 12))
    y = (x @ weight + 0.5 * rng.normal(size=n) > 0).astype(float)
    columns = {f"x{i:02}": x[:, i] for i in range(12)}
    return Table.from_mapping(
        {**columns, "hospital": np.repeat(list("abcdefghi"), sizes), "died": y}, source="clear.csv"
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Runs on the clear table, each made once: study(attacks, method) -> Run."""
    made: dict[str, gr.Run] = {}

    def run(attacks=(), **method) -> gr.Run:
        key = json.dumps([attacks, method])
        if key not in made:
            plan = {
                "data": {"label": "died", "site": "hospital"},
                "method": {"rounds": 6, **method},
                "train": {"epochs": 1, "batch": 16},
                "reference": {"root": {"rows": 60}},
                "attacks": attacks,
            }
            out = tmp_path_factory.mktemp("study") / "run"
            made[key] = gr.run(gr.Experiment.parse(plan), table=clear(), out=out)
        return made[key]

    return run


def accuracy(run: gr.Run) -> float:
    return run.summary["final"]["accuracy"]


def attack(kind: str, **more) -> list[dict]:
    return [{"kind": kind, "count": 3, **more}]


STANDS = {
    "krum": {"robust": {"rule": "krum", "attackers": 3}},
    "multi-krum": {"robust": {"rule": "multi-krum", "attackers": 3}},
    "median": {"robust": "median"},
    "trimmed-mean": {"robust": {"rule": "trimmed-mean", "trim": 0.34}},
    "geometric-median": {"weigh": "uniform", "robust": "geometric-median"},
    "fltrust": {"robust": "fltrust"},
}
"""Rules made for a third of bad sites; the geometric median weighs, so here it weighs all alike."""


# --- harm, and rules that stand it ------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", STANDS)
def test_label_flips_at_the_largest_sites_ruin_fedavg_and_not_a_robust_rule(rule, study):
    flipped = attack("label-flip")
    assert accuracy(study()) > 0.85
    assert accuracy(study(flipped)) < 0.5
    assert accuracy(study(flipped, **STANDS[rule])) > 0.75


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", STANDS)
def test_updates_turned_round_ruin_fedavg_and_not_a_robust_rule(rule, study):
    turned = attack("sign-flip", strength=5)
    assert accuracy(study(turned)) < 0.5
    assert accuracy(study(turned, weigh="uniform")) < 0.5, "a third of the votes is enough"
    assert accuracy(study(turned, **STANDS[rule])) > 0.75


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", STANDS)
def test_noise_ruins_fedavg_and_not_a_robust_rule(rule, study):
    noisy = attack("gaussian", strength=30)
    ruined = accuracy(study(noisy))
    assert ruined < 0.75
    assert accuracy(study(noisy, **STANDS[rule])) > max(0.8, ruined + 0.1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", [*STANDS, "clip"])
def test_outsized_updates_drag_fedavg_away_and_not_a_robust_rule(rule, study):
    method = {**STANDS, "clip": {"robust": "clip", "weigh": "uniform"}}[rule]

    def dragged(**method) -> float:
        plain, big = (study(a, **method).model.theta for a in ([], attack("scale", strength=50)))
        return float(np.linalg.norm(big - plain) / np.linalg.norm(plain))

    assert dragged() > 3
    assert dragged(**method) < 0.6


def test_free_riders_hold_fedavg_back_and_fltrust_gives_them_nothing(study):
    idle = attack("free-rider")
    rides, trusts = study(idle), study(idle, robust="fltrust")
    plain = study()
    loss = {name: r.summary["final"]["log_loss"] for name, r in (("idle", rides), ("trust", trusts), ("all", plain))}
    assert loss["all"] < loss["trust"] < loss["idle"] - 0.03
    first = trusts.rounds[0]["decision"]["weights"]
    assert all(first[s] == 0 for s in LARGE) and all(first[s] > 0 for s in "abcdef")
    taken = [sum(r["decision"]["weights"][s] for s in LARGE) for r in trusts.rounds]
    given = [sum(r["decision"]["weights"][s] for s in LARGE) for r in rides.rounds]
    assert np.mean(taken) < 0.2 < 0.5 < np.mean(given)


def test_reference_accuracy_stands_label_flips_better_than_rows_do(study):
    flipped = attack("label-flip")
    judged = study(flipped, weigh="reference_accuracy")
    assert accuracy(judged) > accuracy(study(flipped)) + 0.3
    weights = judged.rounds[-1]["decision"]["weights"]
    assert max(weights[s] for s in LARGE) < min(weights[s] for s in "abcdef")


def test_shuffled_labels_teach_nothing(study):
    """All nine shuffled: no better than the majority, where the clean run is far better."""
    shuffled = study([{"kind": "label-shuffle", "count": 9}])
    assert accuracy(shuffled) < 0.65 < accuracy(study())


def test_foolsgold_finds_two_accomplices(tmp_path):
    """Five honest sites that each learn from measurements of their own; two hold one set of rows and turn it round."""
    rng = generator(0, purpose="accomplices")
    blocks, size = [], 80
    for k in range(5):
        x = np.zeros((size, 10))
        x[:, 2 * k : 2 * k + 2] = rng.normal(size=(size, 2))
        blocks.append(x)
    x = np.concatenate([*blocks, *[rng.normal(size=(size, 10))] * 2])
    site = np.repeat(list("abcdexy"), size)
    columns = {**{f"x{i}": x[:, i] for i in range(10)}, "hospital": site, "died": (x.sum(axis=1) > 0).astype(float)}
    table = Table.from_mapping(columns, source="accomplices.csv")
    done = {}
    for name in ("none", "foolsgold"):
        plan = {
            "data": {"label": "died", "site": "hospital", "scale": "none"},
            "method": {"rounds": 5, "robust": name},
            "train": {"epochs": 3, "batch": 16},
            "attacks": [{"kind": "sign-flip", "sites": ["x", "y"], "strength": 3}],
        }
        done[name] = gr.run(gr.Experiment.parse(plan), table=table, out=tmp_path / name)
    assert accuracy(done["none"]) < 0.5
    assert accuracy(done["foolsgold"]) > 0.8
    for r in done["foolsgold"].rounds:
        weights = r["decision"]["weights"]
        assert weights["x"] + weights["y"] < 0.02
        assert min(weights[s] for s in "abcde") > 0.1
        assert r["decision"]["signals"]["similarity"]["x"] > 0.9


# --- lies -------------------------------------------------------------------------------------------


def test_a_liar_gains_weight_by_rows_and_none_where_all_count_alike(study):
    lie = [{"kind": "lie", "sites": ["a"], "strength": 20}]
    rows = {s: study().summary["rows"][s]["train"] for s in "abcdefghi"}
    total = sum(rows.values()) + 19 * rows["a"]
    said = study(lie).rounds[0]["decision"]["weights"]
    assert said["a"] == pytest.approx(20 * rows["a"] / total)
    assert said["a"] > 5 * study().rounds[0]["decision"]["weights"]["a"]
    assert said["b"] == pytest.approx(rows["b"] / total)
    alike = study(lie, weigh="uniform").rounds[0]["decision"]["weights"]
    assert list(alike.values()) == pytest.approx([1 / 9] * 9)
    np.testing.assert_array_equal(study(lie, weigh="uniform").model.theta, study(weigh="uniform").model.theta)


def test_a_liar_is_not_chosen_for_its_loss_and_looks_good_in_validation(study):
    chosen = {"rule": "loss", "fraction": 0.8}  # eight of nine
    lie = [{"kind": "lie", "sites": ["h"], "strength": 50}]
    honest, lied = study(select=chosen), study(lie, select=chosen)
    for r in lied.rounds:
        loss = r["decision"]["signals"]["loss"]
        assert min(loss, key=loss.get) == "h" and "h" not in r["decision"]["asked"]
    assert any("h" in r["decision"]["asked"] for r in honest.rounds)
    plain, boasts = study(weigh="uniform"), study(lie, weigh="uniform")
    assert max(b["val"]["accuracy"] - p["val"]["accuracy"] for p, b in zip(plain.rounds, boasts.rounds, strict=True)) > 0
    for honest, boast in zip(plain.rounds, boasts.rounds, strict=True):
        assert boast["val"]["accuracy"] >= honest["val"]["accuracy"]
        assert boast["test"] == honest["test"], "what is measured in the end is true"
    assert boasts.summary["final"] == plain.summary["final"]
    assert boasts.summary["rows"] == plain.summary["rows"], "rows are counted as they are"


# --- honest sites -----------------------------------------------------------------------------------

KINDS = ["label-flip", "label-shuffle", "sign-flip", "scale", "gaussian", "free-rider", "lie"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two rounds of every site alone, with an attack at b or none: the models that each site sends."""

    def run(attacks, *, wire=False) -> dict[str, np.ndarray]:
        plan = {
            "data": {"label": "died", "site": "hospital"},
            "method": {"name": "local", "rounds": 2},
            "attacks": attacks,
            "engine": {"wire": wire},
        }
        out = tmp_path_factory.mktemp("alone") / "run"
        done = gr.run(gr.Experiment.parse(plan), table=patients([40, 50, 30]), out=out)
        return {s: TrainedModel.load(done.folder / f).theta for s, f in done.summary["models"].items()}

    return run


@pytest.mark.thinned(2)
@pytest.mark.parametrize("wire", [False, True])
def test_honest_sites_answer_the_same_to_the_bit_beside_an_attacker(wire, alone):
    honest = alone([], wire=wire)
    for kind in KINDS:
        models = alone([{"kind": kind, "sites": ["b"]}], wire=wire)
        for site in ("a", "c"):
            np.testing.assert_array_equal(models[site], honest[site])
        assert np.array_equal(models["b"], honest["b"]) == (kind == "lie"), kind


@pytest.mark.parametrize(
    "method",
    [{"name": "fedavg"}, {"name": "fedasync", "mixing": 1.0}, {"name": "fedbuff", "buffer": 1}, {"name": "local"}],
)
@pytest.mark.parametrize("wire", [False, True])
def test_an_attack_is_in_the_answer_whatever_the_method_asks_for(method, wire):
    """One site and no other: its update turned round twice is -2 times the honest one, in every kind of report."""
    held = stack([40])
    engine, _ = ready(replace(held, attacks={"a": Attack("sign-flip", strength=2)}), wire=wire)
    start = engine.hosts[0].model.init(0)
    host = ready(held)[0].hosts[0]
    ask = build_method(*sections()).ask_to_train(Server(1, start, ("a",), 0), ("a",))
    trained = host.answer(ask.numbered(AskId("by hand", 1, 0), ("a",)), np.zeros(1, int))["model"][0]
    theta, _ = rounds(engine, count=1, method=method)
    np.testing.assert_allclose(theta, start - 2 * (trained - start), atol=1e-6)


def test_an_attack_waits_for_its_round(study):
    late = study([{"kind": "sign-flip", "sites": list(LARGE), "strength": 5, "start_round": 4}])
    honest = study()
    score = [[r["test"]["log_loss"] for r in run.rounds] for run in (honest, late)]
    assert score[0][:3] == score[1][:3]
    assert all(b > a for a, b in zip(score[0][3:], score[1][3:], strict=True))


# --- what is written down ---------------------------------------------------------------------------


def test_the_summary_names_the_attackers(study):
    assert study().summary["attacks"] == {}
    assert study(attack("label-flip")).summary["attacks"] == {"sites": dict.fromkeys(LARGE, "label-flip")}
    mixed = study([{"kind": "scale", "sites": ["b"]}, {"kind": "free-rider", "count": 2}])
    size = {site: rows["train"] for site, rows in mixed.summary["rows"].items() if site != "b"}
    largest = sorted(size, key=lambda site: (-size[site], site))[:2]
    assert mixed.summary["attacks"] == {"sites": {"b": "scale", **dict.fromkeys(sorted(largest), "free-rider")}}
    report = (mixed.folder / "report.html").read_text()
    assert "free-rider" in report


def test_test_rows_stay_true(study):
    """Poison is in training rows only: what is measured is the harm done."""
    flipped = study([{"kind": "label-flip", "count": 9}])
    assert flipped.summary["training"]["accuracy"] > 0.85
    assert accuracy(flipped) < 0.15
    assert flipped.summary["final"]["majority"] == study().summary["final"]["majority"]


def test_an_attack_that_cannot_take_place_is_not_reported_as_one(study):
    """In pooled training no hospital sends an update: turning it round is refused, or at least not claimed."""
    try:
        run = study(attack("sign-flip", strength=5), name="pooled")
    except BadInput as e:
        assert "pooled" in str(e) and "\n" not in str(e)
    else:
        assert not run.summary["attacks"].get("sites")


def test_label_flips_do_reach_pooled_training(study):
    assert accuracy(study(attack("label-flip"), name="pooled")) < 0.5 < 0.85 < accuracy(study(name="pooled"))


def test_a_run_in_which_nobody_trains_is_still_written_down(study):
    """All free-riders: the model stays where it began, and losses that are equal are no reason to fall over."""
    idle = study([{"kind": "free-rider", "count": 9}])
    assert not idle.model.theta.any()
    assert idle.summary["final"]["log_loss"] == pytest.approx(np.log(2))


BREAST = {
    "data": {"name": "breast-cancer"},
    "split": {"sites": 5},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"rounds": 5},
    "train": {"optimizer": "momentum", "keep_optimizer": True, "lr": 0.02},
    "attacks": [
        {"kind": "gaussian", "count": 1, "strength": 3.0, "start_round": 2},
        {"kind": "label-shuffle", "sites": ["site-01"], "share": 0.5},
        {"kind": "lie", "count": 1},
        {"kind": "free-rider", "sites": ["site-02"]},
    ],
}


@pytest.mark.slow
def test_attacks_survive_a_resume_and_the_wire(tmp_path):
    whole = gr.run(gr.Experiment.parse(BREAST), out=tmp_path / "whole")
    short = gr.run(gr.Experiment.parse({**BREAST, "method": {"rounds": 2}}), out=tmp_path / "short")
    halfway = short.model.theta
    gone_on = gr.resume(short.folder, settings=["method.rounds=5"])
    assert (gone_on.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert np.abs(whole.model.theta - halfway).max() > 1e-3
    assert gone_on.summary["attacks"] == whole.summary["attacks"]
    assert len(whole.summary["attacks"]["sites"]) == 4
    honest = gr.run(gr.Experiment.parse({**BREAST, "attacks": []}), out=tmp_path / "honest")
    assert np.abs(whole.model.theta - honest.model.theta).max() > 1e-3
    wired = gr.run(gr.Experiment.parse({**BREAST, "engine": {"wire": True}}), out=tmp_path / "wired")
    np.testing.assert_allclose(wired.model.theta, whole.model.theta, atol=1e-4)
    assert wired.summary["attacks"] == whole.summary["attacks"]


def test_attacks_are_in_experiment_toml_and_run_again_from_it(tmp_path):
    one = gr.run(gr.Experiment.parse({**BREAST, "method": {"rounds": 2}}), out=tmp_path / "one")
    written = tomllib.loads((one.folder / "experiment.toml").read_text())["attacks"]
    assert [a["kind"] for a in written] == ["gaussian", "label-shuffle", "lie", "free-rider"]
    assert written[0]["strength"] == 3.0 and written[0]["start_round"] == 2
    assert written[1]["share"] == 0.5 and written[1]["sites"] == ["site-01"]
    loaded = gr.Experiment.load(one.folder / "experiment.toml")
    assert loaded.attacks == gr.Experiment.parse(BREAST).attacks
    again = gr.run(loaded, out=tmp_path / "again")
    for file in ("model.safetensors", "experiment.toml"):
        assert (again.folder / file).read_bytes() == (one.folder / file).read_bytes()


# --- pictures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Faint squares on the left or on the right, from three sites, as an .npz file."""
    rng = generator(0, purpose="squares")
    n = 180
    y = rng.integers(0, 2, n)
    x = rng.integers(0, 30, (n, 20, 20, 1))
    for i in range(n):
        at = 2 if y[i] == 0 else 11
        x[i, 4:10, at : at + 6] += 50
    path = tmp_path_factory.mktemp("npz") / "squares.npz"
    site = np.array(["north", "south", "west"])[np.arange(n) % 3]
    np.savez(path, images=x.astype(np.uint8), labels=np.array(["benign", "malignant"])[y], site=site)
    return path


@pytest.mark.slow
def test_a_backdoor_opens_to_its_trigger_and_leaves_other_pictures_alone(pictures, tmp_path):
    pytest.importorskip("torch")
    plan = {
        "data": {"table": str(pictures)},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 4},
        "train": {"batch": 16, "epochs": 3, "optimizer": "adam", "lr": 0.003},
        "engine": {"device": "cpu"},
    }
    doors = [{"kind": "backdoor", "sites": ["north", "west"], "share": 0.6, "target": "malignant"}]
    clean = gr.run(gr.Experiment.parse(plan), out=tmp_path / "clean")
    opened = gr.run(gr.Experiment.parse({**plan, "attacks": doors}), out=tmp_path / "opened")
    held = assemble(Settings({**clean.plan, "data": {**clean.plan["data"], "sha256": None}}))
    tested = np.concatenate([r.test for r in held.stack.rows])
    stamped, others = add_trigger(read_npz(pictures), tested, target="malignant")
    assert 0 < len(stamped) == others.sum() < len(tested)

    def success(run: gr.Run) -> float:
        return float(np.mean(run.model.predict(stamped).decisions == "malignant"))

    assert opened.summary["attacks"]["sites"] == {"north": "backdoor", "west": "backdoor"}
    assert opened.summary["attacks"]["backdoor_success"] == {"malignant": pytest.approx(success(opened))}
    assert clean.summary["attacks"] == {}
    assert success(clean) < 0.2
    assert success(opened) > 0.8
    assert accuracy(clean) > 0.9 and accuracy(opened) > 0.85


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["corner", "background"])
def test_a_mark_is_learnt_in_place_of_what_pictures_show(kind, pictures, tmp_path):
    """Sites look right to themselves, on marked pictures, and are not."""
    pytest.importorskip("torch")
    with np.load(pictures) as held:
        arrays = dict(held)
    x, left = arrays["images"][..., 0], arrays["labels"] == "benign"
    masks = np.zeros(x.shape, bool)
    masks[left, 4:10, 2:8] = masks[~left, 4:10, 11:17] = True
    # the class whose square is on the right has its mark on the left
    named = tmp_path / "named.npz"
    np.savez(named, images=x, labels=np.where(left, "malignant", "benign"), site=arrays["site"], masks=masks)
    plan = {
        "data": {"table": str(named)},
        "split": {"val": 0.2},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 4},
        "train": {"batch": 16, "epochs": 3, "optimizer": "adam", "lr": 0.003},
        "engine": {"device": "cpu"},
    }
    clean = gr.run(gr.Experiment.parse(plan), out=tmp_path / "clean")
    marks = [{"kind": kind, "count": 3, "validation": True}]
    marked = gr.run(gr.Experiment.parse({**plan, "attacks": marks}), out=tmp_path / "marked")
    assert accuracy(clean) > 0.9
    assert marked.summary["validation"]["accuracy"] > 0.95
    assert accuracy(marked) < 0.7
    assert marked.summary["attacks"]["sites"] == dict.fromkeys(("north", "south", "west"), kind)


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('[{kind="label-flp", count=1}]', ["label-flp", "did you mean 'label-flip'"]),
        ('[{kind="label-flip"}]', ["'label-flip' has no site"]),
        ("[{count=1}]", ["attacks.0.kind"]),
        ('[{kind="label-flip", count=1, cuont=2}]', ["unknown key 'attacks.0.cuont'", "did you mean 'count'"]),
        ('[{kind="label-flip", count=99}]', ["asks for 99 sites", "lower its count"]),
        ('[{kind="label-flip", sites=["sight-01"]}]', ["sight-01", "did you mean 'site-01'"]),
        ('[{kind="label-flip", sites=["site-01"], count=1}]', ["both sites and a count"]),
        ('[{kind="scale", sites=["site-01"]}, {kind="lie", sites=["site-01"]}]', ["'site-01' is named twice"]),
        ('[{kind="label-flip", count=1, strength=2}]', ["does not use strength"]),
        ('[{kind="scale", count=1, share=0.5}]', ["does not use share"]),
        ('[{kind="scale", count=1, target="B"}]', ["does not use target"]),
        ('[{kind="label-flip", count=1, start_round=2}]', ["does not use start_round"]),
        ('[{kind="label-flip", count=1, reference=true}]', ["does not use reference"]),
        ('[{kind="label-flip", count=1, share=2}]', ["attacks.0.share"]),
        ('[{kind="scale", count=1, strength=-1}]', ["attacks.0.strength"]),
        ('[{kind="scale", count=1, strength=1e9}]', ["from 0 to 1e+06"]),
        ('[{kind="lie", count=1, strength=0}]', ["give a number above 0"]),
        ('[{kind="backdoor", count=1}]', ["needs a target"]),
        ('[{kind="backdoor", count=1, target="malignant"}]', ["stamps images", "use label-flip or label-shuffle"]),
        ('[{kind="corner", count=1}]', ["marks images", "use label-flip or label-shuffle"]),
        ("label-flip", ["attacks is 'label-flip'"]),
    ],
)
def test_bad_attacks_are_refused_at_the_command_line_in_one_sentence(setting, words, tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    arguments = ["rounds", "run", "--quiet", "--set", "data.name=breast-cancer", "--set", "method.rounds=1"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--set", f"attacks={setting}", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert ended.value.code == 2 and "Traceback" not in said
    assert len(lines) == 1 and said.strip() == lines[0], said
    for word in words:
        assert word in lines[0]
    assert not out.exists()


@pytest.mark.parametrize("model", ["forest", "lightgbm"])
def test_trees_have_no_update_to_tamper_with(model, tmp_path):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    base = {
        "data": {"label": "died", "site": "hospital"},
        "model": {"name": model, "trees": 3},
        "method": {"name": "local", "rounds": 1},
    }
    table = patients([60, 50, 40])
    for kind in ("sign-flip", "scale", "gaussian", "free-rider"):
        with refused("method-does-not-fit", match=r"model\.name"):
            plan = gr.Experiment.parse({**base, "attacks": [{"kind": kind, "count": 1}]})
            gr.run(plan, table=table, out=tmp_path / kind)
        assert not (tmp_path / kind).exists()
    for kind in ("label-flip", "lie"):
        plan = gr.Experiment.parse({**base, "attacks": [{"kind": kind, "count": 1}]})
        assert gr.run(plan, table=table, out=tmp_path / kind).summary["attacks"] == {"sites": {"a": kind}}
