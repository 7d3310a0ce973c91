"""Explanations in a run: with any method, at the server or at the sites, every so many rounds, through bytes and resumed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.inspection import permutation_importance

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.core.plan import Settings
from grandrounds.explain.stability import consensus_drift, cross_site_drift, jaccard_at_k
from grandrounds.runs.federation import assemble
from tests.e2e.test_images import pictures  # noqa: F401
from tests.runs.test_run import frame as frame_of
from tests.support import patients, refused

BASE = {
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 4, "alpha": 0.5},
    "reference": {"rows": {"rows": 60}},
    "model": {"name": "mlp", "hidden": [6]},
    "method": {"rounds": 4},
    "train": {"epochs": 1, "lr": 0.1},
    "explain": {"every": 2, "sketch": "permutation"},
}


def run(out, **changes):
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section} if isinstance(section, dict) else section
    return gr.run(gr.Experiment.parse(values), out=out)


def check_refused(tmp_path, code, match, **changes):
    with refused(code, match=match):
        run(tmp_path / "refused", **changes)
    assert not (tmp_path / "refused").exists()


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("explained") / "r")


def test_every_so_many_rounds_and_the_last_are_written_down(explained, tmp_path):
    told = explained.explanations
    assert [r["round"] for r in told["rounds"]] == [2, 4]
    assert told["sketch"]["explainer"] == "permutation" and told["sketch"]["reference"] == "rows"
    assert len(told["features"]) == 30
    for r in told["rounds"]:
        for kind in ("training", "deployed"):
            block = r[kind]
            assert set(block["sketches"]) == {"site-01", "site-02", "site-03", "site-04"}
            values = np.array(list(block["sketches"].values()))
            assert values.shape == (4, 30)
            np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-4)
            assert block["drift"] == pytest.approx(cross_site_drift(values), abs=1e-4)
            assert block["jaccard"] == pytest.approx(jaccard_at_k(values, 5))
            assert np.shape(block["pairs"]["drift"]) == (4, 4)
            assert block["drift"] > 0
    odd = run(tmp_path / "odd", explain={"every": 3})
    assert [r["round"] for r in odd.explanations["rounds"]] == [3, 4]
    last = run(tmp_path / "last", explain={"every": 0})
    assert [r["round"] for r in last.explanations["rounds"]] == [4]


def test_the_consensus_is_followed_from_time_to_time(explained):
    first, second = explained.explanations["rounds"]
    for kind in ("training", "deployed"):
        assert first[kind]["consensus_drift"] is None
        expected = consensus_drift(np.array(second[kind]["consensus"]), np.array(first[kind]["consensus"]))
        assert second[kind]["consensus_drift"] == pytest.approx(expected)


def test_round_logs_and_summary_have_the_numbers(explained):
    last = explained.explanations["rounds"][-1]
    log = explained.rounds[-1]["explanation"]
    assert log["training"]["drift"] == last["training"]["drift"]
    assert "sketches" not in log["training"] and "explanation" not in explained.rounds[0]
    told = explained.summary["explanation"]
    assert told["training"]["drift"] == last["training"]["drift"] and told["training"]["round"] == 4
    assert told["deployed"]["drift"] == last["deployed"]["drift"]
    assert [t["share"] for t in told["top"]] == sorted((t["share"] for t in told["top"]), reverse=True)
    assert compare([explained], metrics=("training_drift",)).arms[0].values("training_drift") == [
        told["training"]["drift"]
    ]


def test_explaining_changes_nothing_that_is_learnt(explained, tmp_path):
    plain = run(tmp_path / "plain", explain={"sketch": "none"})
    assert (plain.folder / "model.safetensors").read_bytes() == (explained.folder / "model.safetensors").read_bytes()
    assert plain.summary["explanation"] == {} and not (plain.folder / "explanations.json").exists()
    with refused("no-explanations"):
        _ = plain.explanations


@pytest.mark.parametrize("wire", [False, True])
def test_sites_explain_themselves_as_the_server_would(explained, tmp_path, wire):
    sent = {"rows": {"rows": 60, "sent": True}}
    own = run(tmp_path / "own", reference=sent, explain={"at": "site"}, engine={"wire": wire})
    for mine, theirs in zip(own.explanations["rounds"], explained.explanations["rounds"], strict=True):
        for kind in ("training", "deployed"):
            assert list(mine[kind]["sketches"]) == list(theirs[kind]["sketches"])
            for site, sketch in mine[kind]["sketches"].items():
                np.testing.assert_allclose(sketch, theirs[kind]["sketches"][site], atol=1e-5)
    assert own.summary["cost"]["bytes_up"] > explained.summary["cost"]["bytes_up"], "sketches travel"
    assert own.summary["cost"]["bytes_down"] > explained.summary["cost"]["bytes_down"], "reference rows travel"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": {"stability": "scaffold"}},
        {"method": {"name": "fedbuff", "buffer": 2}, "engine": {"speed_spread": 1.0}},
        {"reference": {"rows": {"rows": 60, "sent": True}}, "explain": {"at": "site", "every": 1}},
    ],
)
def test_a_resumed_run_has_the_same_explanations(tmp_path, changes):
    whole = run(tmp_path / "whole", **changes)
    values = {key: {**section, **changes.get(key, {})} for key, section in {**changes, **BASE}.items()}
    values["method"]["rounds"] = 3
    part = gr.run(gr.Experiment.parse(values), out=tmp_path / "part")
    part = gr.resume(part.folder, settings=["method.rounds=4"])
    mine = [r for r in part.explanations["rounds"] if r["round"] != 3 or values["explain"]["every"] == 1]
    theirs = whole.explanations["rounds"]
    for a, b in zip(mine, theirs, strict=True):
        for kind in ("training", "deployed"):
            assert a[kind]["sketches"] == b[kind]["sketches"]
    assert (part.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ({"name": "scaffold"}, True),
        ({"name": "moon"}, True),
        ({"name": "fedadam"}, True),
        ({"name": "fedasync"}, False),
        ({"name": "fedbuff"}, True),
        ({"name": "clustered"}, True),
        ({"name": "local"}, True),
        ({"robust": "median", "select": "random"}, True),
        ({"name": "pooled"}, False),
    ],
    ids=lambda m: m.get("name", "fedavg") if isinstance(m, dict) else "",
)
def test_any_method_is_explained(tmp_path, method, trained):
    made = run(tmp_path / "r", method=method)
    block = made.explanations["rounds"][-1]
    assert ("training" in block) == trained
    assert block["deployed"]["drift"] > 0
    assert len(block["deployed"]["sketches"]) == 4


@pytest.mark.thinned(3)
@pytest.mark.parametrize("model", [{"name": "logistic"}, {"name": "forest", "trees": 5, "depth": 3}])
@pytest.mark.parametrize("sketch", ["permutation", "shap"])
def test_linear_models_and_forests_are_explained(tmp_path, model, sketch):
    made = run(tmp_path / "r", model=model, explain={"sketch": sketch, "rows": 20}, reference={"rows": {"rows": 20}})
    block = made.explanations["rounds"][-1]["training"]
    assert block["drift"] > 0
    if model["name"] == "forest" and sketch == "permutation":
        assert "fidelity" not in block, "permutation importances are what others are held against"
    else:
        assert (0.5 if model["name"] == "logistic" else 0.2) < block["fidelity"] <= 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sketch", ["gradient", "shap", "integrated_gradients"])
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_either_kernel_gives_the_same_reasons(tmp_path, sketch, kernel):
    if kernel == "torch":
        pytest.importorskip("torch")
    changes = {"explain": {"sketch": sketch, "every": 0}, "method": {"rounds": 2}}
    double = {"precision": "float64", "device": "cpu"}
    here = run(tmp_path / "a", **changes, engine={**double, "kernel": "numpy"})
    there = run(tmp_path / "b", **changes, engine={**double, "kernel": kernel})
    for kind in ("training", "deployed"):
        mine, theirs = (r.explanations["rounds"][-1][kind]["sketches"] for r in (here, there))
        for site in mine:
            np.testing.assert_allclose(mine[site], theirs[site], atol=1e-5)


def test_sites_that_learn_nothing_have_no_training_drift(tmp_path):
    made = run(tmp_path / "r", train={"lr": 1e-30})
    for block in made.explanations["rounds"]:
        assert block["training"]["drift"] == 0.0
        assert block["deployed"]["drift"] > 0, "patients differ, so the one model's reasons do"


def test_a_logistic_model_at_its_start_is_flat(tmp_path):
    made = run(tmp_path / "r", model={"name": "logistic"}, train={"lr": 1e-30})
    block = made.explanations["rounds"][-1]["training"]
    assert block["flat"] == ["site-01", "site-02", "site-03", "site-04"] and block["drift"] == 0.0


def test_without_reference_rows_only_the_model_in_use_is_explained(tmp_path):
    made = run(tmp_path / "r", reference={"rows": {"rows": 60}}, explain={"every": 0})
    bare = {key: section for key, section in BASE.items() if key not in ("reference", "explain")}
    default = gr.run(gr.Experiment.parse(bare), out=tmp_path / "default")
    assert set(made.explanations["rounds"][-1]) == {"round", "training", "deployed"}
    assert set(default.explanations["rounds"][-1]) == {"round", "deployed"}, "tables are explained without being asked"


def test_noise_and_top_are_applied(explained, tmp_path):
    kept = run(tmp_path / "top", explain={"top": 3})
    blurred = run(tmp_path / "noise", explain={"noise": 0.01})
    both = run(tmp_path / "both", explain={"top": 3, "noise": 0.01})
    for kind in ("training", "deployed"):
        for short in (kept, both):
            sketches = np.array(list(short.explanations["rounds"][-1][kind]["sketches"].values()))
            assert ((sketches > 0).sum(axis=1) <= 3).all(), "noise fills in nothing that was left out"
            np.testing.assert_allclose(sketches.sum(axis=1), 1, atol=1e-6)
        assert both.explanations["rounds"][-1][kind]["drift"] != kept.explanations["rounds"][-1][kind]["drift"]
        assert blurred.explanations["rounds"][-1][kind]["drift"] != explained.explanations["rounds"][-1][kind]["drift"]


def test_unlabelled_rows_do_with_self_agreement(tmp_path):
    unlabelled = {"rows": {"rows": 60, "labelled": False}}
    made = run(tmp_path / "r", reference=unlabelled, explain={"score": "self"})
    assert made.explanations["rounds"][-1]["training"]["drift"] > 0
    check_refused(tmp_path, "explainer-does-not-fit", r"explain\.score", reference=unlabelled)
    sent = {"rows": {"rows": 60, "labelled": False, "sent": True}}
    own = run(tmp_path / "own", reference=sent, explain={"score": "self", "at": "site"})
    mine, theirs = (r.explanations["rounds"][-1]["training"]["drift"] for r in (own, made))
    assert mine == pytest.approx(theirs, abs=1e-5)


def test_rows_that_may_be_sent_are_sent_only_where_they_are_needed(tmp_path):
    """A background is for shap and integrated gradients; other explainers have no use for it."""
    sent = {"rows": {"rows": 60, "sent": True}}
    plain, needed = (run(tmp_path / s, reference=sent, explain={"sketch": s}) for s in ("permutation", "shap"))
    bare = run(tmp_path / "bare", explain={"sketch": "permutation"})
    assert plain.summary["cost"]["bytes_down"] == bare.summary["cost"]["bytes_down"]
    assert needed.summary["cost"]["bytes_down"] > bare.summary["cost"]["bytes_down"] + 4 * 60 * 30 * 4


def test_a_run_that_stops_early_has_its_training_drift(tmp_path):
    made = run(tmp_path / "r", train={"early_stop": 1, "lr": 3.0}, method={"rounds": 40}, explain={"every": 0})
    assert made.summary["stopped"] and made.summary["rounds"] < 40
    assert made.summary["explanation"]["training"]["round"] == made.summary["rounds"]


def test_it_is_said_when_drift_cannot_be_measured(tmp_path):
    anchored = {"reference": {"anchor": {"rows": 60, "sent": True}}, "method": {"stability": "anchor", "rounds": 2}}
    values = {**{k: v for k, v in BASE.items() if k != "reference"}, **anchored}
    made = gr.run(gr.Experiment.parse(values), out=tmp_path / "r")
    assert any("the only reference rows are the anchor of local training" in w for w in made.summary["warnings"])
    assert "training" not in made.summary["explanation"]
    both = {**anchored, "reference": {**anchored["reference"], "rows": {"rows": 60}}}
    again = gr.run(gr.Experiment.parse({**values, **both}), out=tmp_path / "both")
    assert again.summary["explanation"]["training"]["drift"] > 0


def test_the_headline_weighs_sites_by_their_patients(explained):
    final = explained.explanations["final"]
    rows = np.array([final["rows"][s] for s in final["sketches"]])
    overall = np.average(np.array(list(final["sketches"].values())), axis=0, weights=rows)
    np.testing.assert_allclose(final["overall"], overall, atol=1e-5)
    top = explained.summary["explanation"]["top"]
    assert top[0]["share"] == max(final["overall"])


def test_what_does_not_go_together_is_refused_in_words(tmp_path):
    check_refused(tmp_path, "explainer-does-not-fit", "'occlusion'", explain={"sketch": "occlusion"})
    check_refused(tmp_path, "explainer-does-not-fit", "'coefficients'.*'mlp'", explain={"sketch": "coefficients"})
    forest = {"name": "forest", "trees": 3, "depth": 2}
    check_refused(tmp_path, "explainer-does-not-fit", "'gradient'", model=forest, explain={"sketch": "gradient"})
    check_refused(tmp_path, "explainer-does-not-fit", r"reference\.rows\.sent", explain={"at": "site"})
    check_refused(tmp_path, "unknown-reference-set", r"explain\.reference", explain={"reference": "row"})
    with refused("unknown-choice", match=r"explain\.sketch"):
        gr.Experiment.parse({"explain": {"sketch": "permutatoin"}})


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sketch", ["occlusion", "saliency", "integrated_gradients"])
def test_pictures_are_explained_by_tiles(pictures, tmp_path, sketch):  # noqa: F811
    values = {
        "data": {"table": str(pictures)},
        "reference": {"rows": {"rows": 30}},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 3},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
        "explain": {"sketch": sketch, "rows": 20},
    }
    made = gr.run(gr.Experiment.parse(values), out=tmp_path / "r")
    told = made.explanations
    assert told["grid"] == [4, 4] and len(told["features"]) == 16
    tiles = np.array(told["rounds"][-1]["deployed"]["consensus"]).reshape(4, 4)
    assert tiles[1:3].sum() > 0.6, "the squares are in the two middle rows of tiles"
    assert json.loads((made.folder / "explanations.json").read_text())["schema"] == 1


def test_a_forests_sketch_is_that_of_its_own_importances(tmp_path):
    """Two classes are two outputs of a forest: held against scikit-learn's permutation importances of the same votes."""
    made = run(tmp_path / "r", model={"name": "forest", "trees": 20, "depth": 4}, split={"partition": "equal"})
    shares = np.array(made.explanations["rounds"][-1]["training"]["consensus"])
    rows = assemble(Settings(made.plan)).data
    x = made.model.encoding.encode(rows, np.float64)
    y = made.model.encoding.labels(rows)

    class Votes(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(2)

        def fit(self, x, y):
            return self

        def predict_proba(self, x):
            votes = np.exp(made.model.net.logits(made.model.theta, x))
            return votes / votes.sum(axis=1, keepdims=True)

    by_hand = permutation_importance(Votes(), x, y, scoring="neg_log_loss", n_repeats=3, random_state=0)
    assert spearmanr(shares, by_hand.importances_mean).statistic > 0.8


def test_a_site_with_one_class_has_reasons_too(tmp_path):
    """By log loss a shuffled column would make the model look better there; how far predictions move needs no labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    label = np.where(x[:, 0] + 0.3 * rng.normal(size=600) > 0, "yes", "no")
    site = np.where(np.arange(600) % 2 == 0, "both", "one")
    keep = (site == "both") | (label == "yes")
    frame = pd.DataFrame({"real": x[:, 0], "noise": x[:, 1], "more": x[:, 2], "label": label, "site": site})[keep]
    values = {"data": {"label": "label", "site": "site"}, "method": {"rounds": 10}, "train": {"lr": 0.5}}
    made = gr.run(gr.Experiment.parse(values), out=tmp_path / "r", table=frame)
    for shares in made.explanations["final"]["sketches"].values():
        assert shares[0] > 0.9, "the column that is the label"


def test_sites_alike_diverge_by_no_more_than_sampling(tmp_path):
    ratios = []
    for seed in range(3):
        values = {"data": {"name": "breast-cancer"}, "split": {"partition": "equal", "sites": 5}, "seed": seed}
        made = gr.run(gr.Experiment.parse({**values, "method": {"rounds": 3}}), out=tmp_path / str(seed))
        told = made.summary["explanation"]["deployed"]
        ratios.append(told["drift"] / told["sampling"])
    assert 0.7 < np.mean(ratios) < 1.3


def test_a_category_that_everybody_has_is_no_reason(tmp_path):
    """Against a patient of no category a level that all but a few have would count for everybody."""
    rng = np.random.default_rng(1)
    lactate = rng.normal(size=400)
    drug = np.where(rng.random(400) < 0.02, "given", "none")
    label = np.where(lactate + rng.logistic(size=400) * 0.5 > 0, "yes", "no")
    frame = pd.DataFrame({"lactate": lactate, "drug": drug, "level": rng.choice(list("abc"), 400), "label": label})
    for sketch in ("gradient", "shap", "integrated_gradients"):
        values = {
            "data": {"label": "label"},
            "split": {"sites": 2},
            "explain": {"sketch": sketch},
            "model": {"name": "mlp"},
        }
        made = gr.run(gr.Experiment.parse({**values, "method": {"rounds": 5}}), out=tmp_path / sketch, table=frame)
        shares = dict(zip(made.explanations["features"], made.explanations["final"]["overall"], strict=True))
        assert shares["lactate"] > 0.7 and shares["drug"] < 0.1, sketch


def test_reference_rows_are_never_those_of_a_hospital_kept_for_the_test(tmp_path):
    table = frame_of(patients([80, 60, 70]))
    values = {
        "data": {"label": "died", "site": "hospital"},
        "split": {"scheme": "holdout", "holdout": ["b"]},
        "reference": {"rows": {"rows": 50}},
        "method": {"rounds": 1},
    }
    made = gr.run(gr.Experiment.parse(values), out=tmp_path / "r", table=table)
    held = assemble(Settings(made.plan), patients([80, 60, 70])).reference["rows"].rows
    assert len(held) == 50 and not (table["hospital"].to_numpy()[held] == "b").any()
    with refused("too-many-reference-rows"):
        many = {**values, "reference": {"rows": {"rows": 100}}, "split": {"scheme": "holdout", "holdout": ["a", "c"]}}
        gr.run(gr.Experiment.parse(many), out=tmp_path / "many", table=table)


def test_it_is_said_when_patients_rows_are_sent(tmp_path):
    sent = {"rows": {"rows": 60, "sent": True}}
    made = run(tmp_path / "r", reference=sent, explain={"at": "site"})
    assert "60 rows of reference set 'rows' were sent to every site" in made.summary["privacy"]["statement"]
    assert made.summary["privacy"]["lent"] == {"rows": 60}
    background = run(tmp_path / "background", reference=sent, explain={"sketch": "shap"})
    assert background.summary["privacy"]["lent"] == {"rows": 60}
    kept = run(tmp_path / "kept")
    assert "sent to every site" not in kept.summary["privacy"]["statement"]


def test_a_damaged_record_is_said_to_be_damaged(tmp_path):
    made = run(tmp_path / "r")
    (made.folder / "explanations.json").write_text('{"schema": 1}')
    with refused("damaged-file", match=r"explanations\.json"):
        _ = gr.load_run(made.folder).explanations
