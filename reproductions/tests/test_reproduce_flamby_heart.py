"""flamby/heart: published figures, the protocol against an independent reference, our goals, and verdicts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support import slow

from grandrounds.core.errors import BadInput
from grandrounds.runs.run import run_plan
from grandrounds.site import batches
from grandrounds_studies import studies
from grandrounds_studies.flamby.claims import at_least, near, no_more_than
from grandrounds_studies.flamby.heart_measures import (
    CENTRES,
    Hospital,
    compare_answers,
    hospitals,
    pooled_test,
    test_rows,
)
from grandrounds_studies.flamby.heart_published import BY_SEED
from grandrounds_studies.flamby.heart_setting import FEDERATED, MAJORITY, ONE_SCALE, OURS, POINT
from grandrounds_studies.flamby.published import SEEDS, published
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import FAILS, HOLDS, Cell

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("pandas")
pytest.importorskip("sklearn")

MEANS = {
    "pooled training": (0.783, 0.764, 0.750, 0.644, 0.7353, 0.795), "FedAvg": (0.731, 0.719, 0.650, 0.640, 0.6850, 0.748),
    "FedProx": (0.731, 0.719, 0.650, 0.640, 0.6850, 0.748), "Scaffold": (0.727, 0.719, 0.650, 0.640, 0.6840, 0.748),
    "Cyclic": (0.758, 0.762, 0.713, 0.640, 0.7180, 0.785), "FedAdam": (0.752, 0.746, 0.738, 0.667, 0.7255, 0.779),
    "FedYogi": (0.760, 0.753, 0.738, 0.676, 0.7314, 0.779), "FedAdagrad": (0.760, 0.753, 0.738, 0.676, 0.7314, 0.779),
}  # fmt: skip
"""Strategy -> means over seeds of centres 0 to 3, over centres, and of "Pooled Test", averaged from FLamby's files by others."""

STUDY = studies()["flamby/heart"]


@pytest.mark.parametrize("strategy", MEANS)
def test_published_figures_average_to_the_known_means(strategy):
    measures = ("centre_0", "centre_1", "centre_2", "centre_3", "client_mean", "pooled")
    found = [published(strategy, m, BY_SEED).mean for m in measures]
    assert found == pytest.approx(MEANS[strategy], abs=6e-4)


def test_the_protocol_has_flambys_constants():
    plan = STUDY.plan(Cell(POINT, "FedAvg", 0))
    assert plan["method"]["rounds"] == (486 // 4 // 4) * 50 // 100 == 15
    assert (plan["train"]["steps"], plan["train"]["batch"], plan["train"]["optimizer"]) == (100, 4, "sgd")
    assert [STUDY.plan(Cell(POINT, "FedAvg", i))["seed"] for i in range(5)] == [42, 43, 44, 45, 46]
    assert [STUDY.plan(Cell(POINT, "Cyclic", i))["method"]["rounds"] for i in range(5)] == [4, 4, 4, 4, 3]
    assert {name: len(rows.ill) for name, rows in test_rows().items()} == dict(
        zip(CENTRES, (104, 89, 16, 45), strict=True)
    )
    rates = {arm.label: STUDY.plan(Cell(POINT, arm.label, 0)) for arm in FEDERATED}
    assert {label: p["train"]["lr"] for label, p in rates.items()} == {
        "FedAvg": 0.001, "FedProx": 0.001, "Scaffold": 0.001, "Cyclic": 0.01, "FedAdam": 0.01, "FedYogi": 0.003162,
        "FedAdagrad": 0.003162,
    }  # fmt: skip
    servers = {label: rates[label]["method"]["server"] for label in ("FedAdam", "FedYogi", "FedAdagrad")}
    assert [s["lr"] for s in servers.values()] == [0.01, 0.01, 0.316228]
    assert all((s["beta1"], s["beta2"], s["tau"], s["v0"]) == (0.9, 0.999, 1e-8, 0.0) for s in servers.values())
    assert not any(s["bias_correction"] for s in servers.values())
    assert rates["FedProx"]["method"]["mu"] == 0.01


def test_a_sixth_seed_is_refused():
    with pytest.raises(BadInput, match="42 to 46"):
        STUDY.plan(Cell(POINT, "FedAvg", 5))


def test_majority_classes_are_those_of_training_rows():
    right = {name: (rows.majority == rows.ill).mean() for name, rows in test_rows().items()}
    assert [round(float(v), 3) for v in right.values()] == [0.538, 0.629, 0.938, 0.778]


def test_runs_start_from_the_layer_that_torch_draws():
    pytest.importorskip("torch")
    from flamby_heart_reference import initial

    from grandrounds.core.arrays import load

    for i, seed in enumerate(SEEDS):
        arrays, _ = load(Path(STUDY.plan(Cell(POINT, "FedAvg", i))["model"]["weights"]))
        drawn = np.append(arrays["layer0.weight"].ravel(), arrays["layer0.bias"])
        np.testing.assert_array_equal(drawn, initial(seed).astype(np.float32))


@pytest.mark.parametrize(
    "strategy", ["FedYogi", "Cyclic", *map(slow, ("FedAvg", "FedProx", "Scaffold", "FedAdam", "FedAdagrad"))]
)
def test_the_reference_gives_the_published_accuracies_to_the_digit(strategy):
    """With FLamby's initial weights and torch's order of batches, all 20 accuracies of a strategy are the published ones."""
    pytest.importorskip("torch")
    from flamby_heart_reference import accuracies, run_published

    np.testing.assert_allclose(accuracies(run_published(strategy)), np.array(BY_SEED[strategy])[:, :4], atol=6e-5)


EVERY = [(arm.label, seed) for arm in FEDERATED if arm.label != "Cyclic" for seed in SEEDS]


@pytest.mark.parametrize(("strategy", "seed"), [("FedAvg", 44), *(slow(*one) for one in EVERY if one != ("FedAvg", 44))])
def test_a_run_with_flambys_order_of_batches_has_the_published_accuracies(strategy, seed, tmp_path, monkeypatch):
    """The product's engine and methods, given the batches that torch's loaders drew: accuracies are published to the digit."""
    pytest.importorskip("torch")
    from flamby_heart_reference import NAMES, centres, loader_order, turns

    order = loader_order(seed, [len(c) for c in centres("train")], turns(seed, strategy))

    def deal(rows, n, *, width, first, site, config):
        mine = order[config.round - 1, NAMES.index(site)].ravel()
        rows[:] = np.where(mine >= 0, mine + first, -1)

    monkeypatch.setattr(batches, "_deal_on", deal)
    run = run_plan(STUDY.plan(Cell(POINT, strategy, SEEDS.index(seed))), out=tmp_path / "run")
    found = hospitals(run)
    theirs = BY_SEED[strategy][SEEDS.index(seed)]
    assert [found[name].accuracy for name in CENTRES] == pytest.approx(theirs[:4], abs=6e-5)
    assert pooled_test(run) == pytest.approx(theirs[4], abs=6e-5)
    per_site = run.summary["per_site"]
    assert {n: per_site[n]["accuracy"] for n in CENTRES} == pytest.approx({n: found[n].accuracy for n in CENTRES})


@pytest.mark.parametrize(("arm", "mean", "loss"), [(OURS, 0.8122, 0.4516), (ONE_SCALE, 0.8253, 0.4437)])
def test_shrunk_intercepts_reach_the_goals(arm, mean, loss, tmp_path):
    """The figures of an independent check: client mean .812 with log loss .452 (one intercept for all: .552), and .825."""
    run = run_plan(STUDY.plan(Cell(POINT, arm.label, 0)), out=tmp_path / "run")
    found = hospitals(run)
    assert np.mean([h.accuracy for h in found.values()]) == pytest.approx(mean, abs=1e-4)
    assert STUDY.measure("log_loss").read(run) == pytest.approx(loss, abs=1e-4)
    assert not any(h.is_clearly_below for h in found.values())
    deployed = run.summary["personal"]
    assert [h.accuracy for h in found.values()] == pytest.approx([deployed["per_site"][n]["accuracy"] for n in CENTRES])
    assert deployed["harmed"] == [] and deployed["choices"]["va"] == "intercept"


def test_a_clear_loss_to_the_majority_class_is_seen():
    assert Hospital(0.6, 0.9, 0.02, 0.32, 50, 1.0).is_clearly_below
    assert not Hospital(0.85, 0.9, 0.05, 0.10, 50, 1.0).is_clearly_below
    assert Hospital(0.85, 0.9, 0.05, 0.10, 50, 1.0).is_below and not Hospital(0.9, 0.9, 0.1, 0.1, 50, 1.0).is_below


def test_answers_are_compared_row_by_row():
    rows = test_rows()["va"]
    found = compare_answers(np.where(rows.ill == 1, 1.0, -1.0), rows)
    assert (found.accuracy, found.wins, found.losses) == pytest.approx((1.0, 1 - 0.7778, 0.0), abs=1e-3)
    assert found.log_loss == pytest.approx(np.log1p(np.exp(-1)))


def made(**values: list[float]) -> Results:
    cells = {Cell(POINT, arm, i): Reading({"x": v}) for arm, row in values.items() for i, v in enumerate(row)}
    return Results(STUDY, cells, 2)


def test_verdicts_hold_within_their_bars():
    found = made(FedAvg=[0.68, 0.70], FedYogi=[0.73, 0.75])
    assert near("x", 0.700, bar=0.02, point=POINT)(found, "FedAvg").word == HOLDS
    assert near("x", 0.715, bar=0.02, point=POINT)(found, "FedAvg").word == FAILS
    assert no_more_than("x", "FedYogi", point=POINT)(found, "FedAvg").word == HOLDS
    assert no_more_than("x", "FedAvg", point=POINT)(found, "FedYogi").word == FAILS
    assert at_least("x", 0.72, point=POINT)(found, "FedYogi").word == HOLDS
    assert MAJORITY.label in [arm.label for arm in STUDY.arms]
