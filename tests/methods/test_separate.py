"""Separate models: every site alone, all rows in one place, clusters, and fine-tuning at the end."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.faults import DROPPED, Faults
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.baselines import POOL
from grandrounds.methods.clustered import cluster_by_direction
from grandrounds.runs.federation import assemble
from grandrounds.runs.model import TrainedModel
from tests.support import patients, ready, rounds, sections, slow, stack

SIZES = [40, 22, 61, 33]
QUICK = {"epochs": 2, "batch": 8, "lr": 0.1}


def two_kinds(size: int = 80) -> Table:
    """Six hospitals; at d, e and f the same measurements mean the opposite of what they mean at a, b and c."""
    rng = generator(0, purpose="two kinds")
    n = 6 * size
    x = rng.normal(size=(n, 3))
    site = np.repeat(list("abcdef"), size)
    score = 3 * x[:, 0] - 2 * x[:, 1] + 0.3 * rng.normal(size=n)
    y = np.where(np.isin(site, list("def")), score < 0, score > 0).astype(float)
    columns = {"x": x[:, 0], "y": x[:, 1], "z": x[:, 2], "hospital": site, "died": y}
    return Table.from_mapping(columns, source="two-kinds.csv")


def run(out, table, progress=lambda event: None, **changes) -> gr.Run:
    base = {"data": {"label": "died", "site": "hospital"}, "train": QUICK}
    return gr.run(gr.Experiment.parse(base | changes), table=table, out=out, progress=progress)


def rows_for_test(done: gr.Run, table: Table) -> dict[str, np.ndarray]:
    """The test rows of each site, which only a test may look at."""
    plan = Settings({**done.plan, "data": {**done.plan["data"], "sha256": None}})
    held = assemble(plan, table)
    return {name: rows.test for name, rows in zip(held.stack.names, held.stack.rows, strict=True)}


def accuracy(model: TrainedModel, table: Table, rows: np.ndarray) -> float:
    said = model.predict(table.take(rows)).decisions.astype(float)
    return float(np.mean(said == table.columns["died"][rows]))


# --- every site alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [{}, {"optimizer": "momentum", "keep_optimizer": True}])
def test_local_is_a_consortium_of_one_at_every_site(train):
    held = stack(SIZES)
    engine, _ = ready(held, model="mlp")
    start, state = engine.hosts[0].model.init(0), {}
    _, decisions = rounds(engine, count=4, method={"name": "local"}, state=state, **train)
    served: ModelAssignment = state["served"]
    for site in engine.sites:
        lone, _ = ready(held, model="mlp")
        made, theta = build_method(*sections(**train)), start
        for r in range(1, 5):
            theta = lone.drive(made.round(Server(r, theta, (site,), 0)), round=r).model
            lone.commit()
        np.testing.assert_allclose(served.for_site(site), theta, atol=1e-6)
    own = np.asarray(served.models)
    assert min(np.abs(a - b).max() for i, a in enumerate(own) for b in own[:i]) > 1e-3, "sites differ"
    rows = np.array(SIZES) - 2
    np.testing.assert_allclose(served.model, rows / rows.sum() @ own, atol=1e-6)
    assert decisions[-1].weights == dict.fromkeys("abcd", 1.0)


def test_local_over_the_wire_is_the_same():
    held, states = stack(SIZES), ({}, {})
    for wire, state in zip((False, True), states, strict=True):
        rounds(ready(held, wire=wire)[0], count=3, method={"name": "local"}, state=state)
    np.testing.assert_allclose(states[1]["served"].models, states[0]["served"].models, atol=1e-5)


def test_a_site_that_drops_out_keeps_the_model_it_had():
    engine, _ = ready(stack(SIZES), faults=Faults(drop=0.4))
    start, state, theta, away = engine.hosts[0].model.init(0), {}, None, set()
    before = np.repeat(start[None], 4, axis=0)
    for r in range(4):
        theta, (decision,) = rounds(engine, count=1, start=r, theta=theta, method={"name": "local"}, state=state)
        after = np.asarray(state["served"].models)
        for k, site in enumerate(engine.sites):
            gone = decision.missing.get(site) == DROPPED
            assert np.array_equal(after[k], before[k]) == gone
        away |= set(decision.missing)
        before = after.copy()
    assert away, "nobody dropped out, and the test shows nothing"


def test_each_site_is_judged_by_its_own_model_and_strangers_by_the_mean(tmp_path):
    table = two_kinds()
    split = {"scheme": "holdout", "holdout": ["c"], "test": 0.3}
    done = run(tmp_path / "r", table, method={"name": "local", "rounds": 4}, split={"test": 0.3})
    files, tested = done.summary["models"], rows_for_test(done, table)
    assert list(files) == list("abcdef") and len(set(files.values())) == 6
    for site, file in files.items():
        own = TrainedModel.load(done.folder / file)
        figures = done.summary["per_site"][site]
        assert figures["accuracy"] == pytest.approx(accuracy(own, table, tested[site]))
        assert figures["accuracy"] > 0.75
    assert accuracy(done.model, table, np.concatenate([tested[s] for s in "abc"])) < 0.95, "their mean is no good"

    away = run(tmp_path / "away", table, method={"name": "local", "rounds": 4}, split=split)
    tested = rows_for_test(away, table)
    assert set(away.summary["models"]) == set("abdef")
    assert away.summary["per_site"]["c"]["accuracy"] == pytest.approx(accuracy(away.model, table, tested["c"]))
    own = {s: TrainedModel.load(away.folder / f).theta for s, f in away.summary["models"].items()}
    rows = {s: away.summary["rows"][s]["train"] for s in own}
    mean = sum(rows[s] * own[s].astype(float) for s in own) / sum(rows.values())
    np.testing.assert_allclose(away.model.theta, mean, atol=1e-6)


# --- all rows in one place --------------------------------------------------------------------------


def in_one_place(table: Table) -> Table:
    """All rows at one hospital, and a second one that withdraws: a run of one hospital is refused."""
    columns = {name: np.concatenate([values, values[:9]]) for name, values in table.columns.items()}
    columns["hospital"] = np.repeat(["everybody", "withdrawn"], [len(table), 9])
    return Table.from_mapping(columns, source=table.source)


def test_pooled_is_one_site_that_holds_all_rows(tmp_path):
    """In full batches, because the order of rows follows the name of the site."""
    table = patients(SIZES)
    settings = {"train": {"epochs": 5, "batch": 0, "lr": 0.3}, "split": {"val": 0.0, "test": 0.0}}
    pooled = run(tmp_path / "pooled", table, method={"name": "pooled", "rounds": 3}, **settings)
    alone = {**settings, "split": {**settings["split"], "without": ["withdrawn"]}}
    single = run(tmp_path / "single", in_one_place(table), method={"rounds": 3}, **alone)
    fedavg = run(tmp_path / "fedavg", table, method={"rounds": 3}, **settings)
    np.testing.assert_allclose(pooled.model.theta, single.model.theta, atol=1e-5)
    assert np.abs(fedavg.model.theta - single.model.theta).max() > 1e-3, "federated training is something else"


def test_pooled_hospitals_train_nothing_and_test_everything(tmp_path):
    table = patients(SIZES)
    pooled = run(tmp_path / "pooled", table, method={"name": "pooled", "rounds": 2})
    fedavg = run(tmp_path / "fedavg", table, method={"rounds": 2})
    rows, usual = pooled.summary["rows"], fedavg.summary["rows"]
    for site in "abcd":
        assert rows[site] == {**usual[site], "train": 0}
        assert rows[site]["test"] > 0
    assert rows[POOL] == {"train": sum(usual[s]["train"] for s in "abcd"), "val": 0, "test": 0}
    assert pooled.summary["final"]["count"] == fedavg.summary["final"]["count"]
    assert all(r["decision"]["asked"] == [POOL] for r in pooled.rounds)
    assert {s: list(t) for s, t in rows_for_test(pooled, table).items() if s != POOL} == {
        s: list(t) for s, t in rows_for_test(fedavg, table).items()
    }


def test_faults_of_hospitals_do_not_touch_pooled_training(tmp_path):
    table = patients(SIZES)
    plain = run(tmp_path / "plain", table, method={"name": "pooled", "rounds": 2})
    faults = {"drop": 1.0, "nan": ["a", "b"], "slow": {"c": 99.0}}
    hard = run(tmp_path / "hard", table, method={"name": "pooled", "rounds": 2}, engine={"faults": faults})
    assert (hard.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()
    assert hard.summary["cost"]["virtual_seconds"] == 2.0
    assert not any(r["decision"]["missing"] for r in hard.rounds)


@pytest.mark.parametrize("engine", [{"min_sites": 3}, {"deadline": 0.5}])
def test_pooled_training_waits_for_no_hospital(engine, tmp_path):
    """A quorum and a deadline are for hospitals that train; here none does."""
    table = patients(SIZES)
    plain = run(tmp_path / "plain", table, method={"name": "pooled", "rounds": 2})
    strict = run(tmp_path / "strict", table, method={"name": "pooled", "rounds": 2}, engine=engine)
    assert (strict.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()


# --- clusters ---------------------------------------------------------------------------------------


def test_two_clusters_find_two_kinds_of_hospitals(tmp_path):
    table = two_kinds()
    plain = run(tmp_path / "fedavg", table, method={"rounds": 6})
    done = run(tmp_path / "clustered", table, method={"name": "clustered", "rounds": 6, "clusters": 2})
    for r in done.rounds:
        of = r["decision"]["signals"]["cluster"]
        assert of["a"] == of["b"] == of["c"] != of["d"] == of["e"] == of["f"]
        assert set(of.values()) == {1.0, 2.0}
        weights = r["decision"]["weights"]
        assert weights["a"] + weights["b"] + weights["c"] == pytest.approx(1)
        assert weights["d"] + weights["e"] + weights["f"] == pytest.approx(1)
    own = {s: m["accuracy"] for s, m in done.summary["per_site"].items()}
    common = {s: m["accuracy"] for s, m in plain.summary["per_site"].items()}
    assert min(own.values()) > 0.8
    assert np.mean(list(common.values())) < 0.75
    files, tested = done.summary["models"], rows_for_test(done, table)
    assert files["a"] == files["b"] == files["c"] != files["d"] == files["e"] == files["f"]
    models = {f: TrainedModel.load(done.folder / f) for f in set(files.values())}
    for site, file in files.items():
        assert own[site] == pytest.approx(accuracy(models[file], table, tested[site]))
    one, other = (models[files[s]].theta for s in "ad")
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert cosine < -0.8, "two opposite rules"


def test_a_site_goes_where_the_loss_is_least():
    """After the first round everybody is asked for the loss of both models and trains the better one."""
    engine, _ = ready(stack(SIZES))
    rng = np.random.default_rng(0)
    models = rng.normal(size=(2, len(engine.hosts[0].model.init(0)))).astype(np.float32)
    state = {"served": ModelAssignment(models.mean(axis=0), models, dict.fromkeys(engine.sites, 0))}
    _, (decision,) = rounds(engine, count=1, start=1, method={"name": "clustered"}, state=state, theta=models[0])
    part, host = engine.hosts[0].stack.parts["train"], engine.hosts[0]
    for k, site in enumerate(engine.sites):
        mine = part.owner() == k
        z = np.stack([host.model.logits(m, part.x[mine])[:, 0] for m in models]).astype(float)
        loss = np.logaddexp(0, -z * (2 * part.y[mine] - 1)).mean(axis=1)
        assert decision.signals["cluster"][site] == np.argmin(loss) + 1
    assert len(set(decision.signals["cluster"].values())) == 2, "both models must be somebody's"


def test_one_cluster_is_fedavg():
    held, state = stack(SIZES), {}
    plain, _ = rounds(ready(held)[0], count=3)
    mean, _ = rounds(ready(held)[0], count=3, method={"name": "clustered", "clusters": 1}, state=state)
    np.testing.assert_allclose(state["served"].models[0], plain, atol=1e-6)
    np.testing.assert_allclose(mean, plain, atol=1e-6)


def test_directions_are_grouped_whatever_their_length():
    rng = np.random.default_rng(1)
    kinds = np.array([[1.0, 0.5, 0], [0, 1, 0.5], [0.5, 0, 1]])
    truth = rng.integers(0, 3, 30)
    updates = (kinds[truth] + 0.1 * rng.normal(size=(30, 3))) * rng.uniform(0.01, 50, (30, 1))
    for seed in range(5):
        of = cluster_by_direction(updates, count=3, rng=np.random.default_rng(seed))
        assert len(set(zip(truth.tolist(), of.tolist(), strict=True))) == 3
        loose = rng.normal(size=(12, 3))
        long = loose * rng.uniform(0.01, 50, (12, 1))
        one, other = (cluster_by_direction(u, count=3, rng=np.random.default_rng(seed)) for u in (loose, long))
        assert one.tolist() == other.tolist(), "a site with many rows or steps is no centre for that"
    still = cluster_by_direction(np.zeros((4, 3)), count=2, rng=np.random.default_rng(0))
    assert set(still.tolist()) <= {0, 1}


def test_more_clusters_than_sites_and_sites_that_drop_out_are_no_trouble():
    engine, _ = ready(stack(SIZES), faults=Faults(drop=0.3))
    state: dict = {}
    theta, decisions = rounds(engine, count=6, method={"name": "clustered", "clusters": 9}, state=state)
    assert np.isfinite(theta).all() and np.isfinite(state["served"].models).all()
    assert len(state["served"].models) <= 4
    assert any(d.missing for d in decisions)
    assert set(state["served"].index_by_site) == set("abcd"), "who was away in the first round has a model by now"


# --- resume -----------------------------------------------------------------------------------------


class Killed(Exception):
    """Raised once a round is on disk."""


def killed(event) -> None:
    if event["event"] == "round" and event["round"] == 2:
        raise Killed


@pytest.mark.thinned(4)
@pytest.mark.parametrize("wire", [slow(False), True])
@pytest.mark.parametrize("name", ["local", "clustered", "pooled"])
def test_separate_models_survive_a_kill_to_the_bit(name, wire, tmp_path):
    table = two_kinds(30)
    plan = {
        "method": {"name": name, "rounds": 5},
        "train": {**QUICK, "optimizer": "momentum", "keep_optimizer": True, "lr": 0.02, "finetune": 1},
        "engine": {"wire": wire, "faults": {"drop": 0.2}},
        "split": {"scheme": "holdout", "holdout": ["f"]},
    }
    whole = run(tmp_path / "whole", table, **plan)
    with pytest.raises(Killed):
        run(tmp_path / "broken", table, killed, **plan)
    held = Checkpoint(tmp_path / "broken" / "checkpoint").read().part("served")
    resumed = gr.resume(tmp_path / "broken", table=table)
    files = ["model.safetensors", *whole.summary["models"].values()]
    assert len(files) >= (2 if name == "pooled" else 4) and "f" not in whole.summary["models"]
    for file in files:
        assert (resumed.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    assert np.abs(held["model"] - whole.model.theta).max() > 1e-3, "the rounds to come move the models"
    logs = [json.loads((r.folder / "round_logs.json").read_text())["rounds"] for r in (whole, resumed)]
    for r in (*logs[0], *logs[1]):
        r["decision"]["cost"].pop("seconds")
    assert logs[0] == logs[1]
    assert whole.summary["per_site"] == resumed.summary["per_site"]
    assert whole.summary["finetuned"] == resumed.summary["finetuned"]


# --- fine-tuning ------------------------------------------------------------------------------------


def test_fine_tuning_helps_sites_with_another_rule_and_leaves_the_common_model(tmp_path):
    table = two_kinds()
    plain = run(tmp_path / "plain", table, method={"rounds": 4})
    tuned = run(tmp_path / "tuned", table, method={"rounds": 4}, train={**QUICK, "finetune": 10})
    assert (tuned.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()
    assert tuned.summary["final"] == plain.summary["final"]
    assert tuned.summary["per_site"] == plain.summary["per_site"]
    assert plain.summary["finetuned"] == {} and plain.summary["models"] == {}
    found = tuned.summary["finetuned"]
    assert found["epochs"] == 10 and set(found["per_site"]) == set("abcdef")
    assert min(m["accuracy"] for m in found["per_site"].values()) > 0.7
    assert found["final"]["accuracy"] > tuned.summary["final"]["accuracy"] + 0.2
    tested = rows_for_test(tuned, table)
    for site, file in tuned.summary["models"].items():
        own = TrainedModel.load(tuned.folder / file)
        assert found["per_site"][site]["accuracy"] == pytest.approx(accuracy(own, table, tested[site]))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["fedavg", "clustered", "local"])
def test_fine_tuning_goes_on_from_the_model_a_site_has(name, tmp_path):
    """One more round of 'local', by hand, from where the same run without fine-tuning ended."""
    table, method = two_kinds(30), {"name": name, "rounds": 3}
    plain = run(tmp_path / "plain", table, method=method)
    tuned = run(tmp_path / "tuned", table, method=method, train={**QUICK, "finetune": 3})
    own = {s: TrainedModel.load(plain.folder / f).theta for s, f in plain.summary["models"].items()}
    starts = np.stack([own.get(s, plain.model.theta) for s in "abcdef"])
    plan = Settings({**tuned.plan, "data": {**tuned.plan["data"], "sha256": None}})
    engine, _ = ready(assemble(plan, table).stack)
    server = Server(
        4, starts[0], engine.sites, 0, assignment=ModelAssignment(starts[0], starts, {s: k for k, s in enumerate(engine.sites)})
    )
    made = build_method(*sections({"name": "local"}, **{**QUICK, "epochs": 3}))
    served = engine.drive(made.round(server), round=4).assignment
    for k, site in enumerate("abcdef"):
        found = TrainedModel.load(tuned.folder / tuned.summary["models"][site]).theta
        np.testing.assert_allclose(found, served.for_site(site), atol=1e-5)
        assert np.abs(found - starts[k]).max() > 1e-2
    assert (len({tuple(t) for t in starts.tolist()})) == {"fedavg": 1, "clustered": 2, "local": 6}[name]


@pytest.mark.parametrize("schedule", ["constant", "step", "exponential", "cosine"])
def test_fine_tuning_moves_the_model_under_every_schedule(schedule, tmp_path):
    done = run(
        tmp_path / "r", patients(SIZES), method={"rounds": 3}, train={**QUICK, "schedule": schedule, "finetune": 3}
    )
    for file in done.summary["models"].values():
        assert np.abs(TrainedModel.load(done.folder / file).theta - done.model.theta).max() > 1e-4


def test_every_site_is_tuned_even_where_sites_drop_out_of_rounds(tmp_path):
    """Or, where a site was away, nobody reports the common model's figures as its tuned ones."""
    done = run(
        tmp_path / "r",
        two_kinds(30),
        method={"rounds": 3},
        train={**QUICK, "finetune": 10},
        engine={"faults": {"drop": 0.4}},
    )
    assert set(done.summary["finetuned"]["per_site"]) == set(done.summary["models"])
