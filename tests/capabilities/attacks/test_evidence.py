"""Attacks as evidence: what memorises leaks a column, what is planted is found, and nothing disclosed is passed over."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.membership.attack import read_attacks, write_attacks
from grandrounds.analysis.membership.shadows import select_rows
from grandrounds.capabilities.attacks.counts import attack_summary
from grandrounds.capabilities.attacks.evidence import ATTACKS, collect_evidence
from grandrounds.capabilities.attacks.findings import AttackedRun
from grandrounds.capabilities.attacks.reconstruction import list_statistics, rebuild_rows
from grandrounds.capabilities.attacks.sums import attack_sums, describe_sums
from grandrounds.capabilities.attacks.updates import UpdateProtection, attack_updates, train_sites
from grandrounds.core.plan_types import Plan
from grandrounds.data.table import Table
from grandrounds.methods import METHODS
from grandrounds.models.dense import Dense
from grandrounds.report.sections.privacy import attack_sections
from grandrounds.runs.run import load_run
from grandrounds.runs.run_rows import RunRows
from grandrounds.site.train_job import TrainConfig
from tests.support import patients, refused

QUICK = {"split": {"val": 0.1, "test": 0.4}, "explain": {"sketch": "none"}, "personal": {"guard": False}}
DATA = {"label": "died", "site": "hospital"}
PLANTED = 4
"""A training row of patients([50, 45, 60]) under the split of QUICK."""


def memorised_patients() -> Table:
    """Outcomes by lot, and a category that tells nothing: only memory connects them."""
    rng = np.random.default_rng(3)
    n = 300
    columns = {f"m{j}": rng.normal(size=n) for j in range(2)}
    columns |= {"secret": rng.choice(["yes", "no"], n), "hospital": np.array(list("abc"))[np.arange(n) % 3]}
    return Table.from_mapping({**columns, "died": rng.integers(0, 2, n).astype(float)}, source="memorised.csv")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("evidence")


@pytest.fixture(scope="module")
def plain(home):
    table = patients([50, 45, 60])
    ward = table.columns["ward"].astype(object)
    ward[PLANTED] = "hospice"  # the only one anywhere
    table = Table.from_mapping({**table.columns, "ward": ward}, source=table.source)
    values = {"data": DATA, "method": {"rounds": 2}, **QUICK}
    return gr.run(gr.Experiment.parse(values), table=table, out=home / "plain"), table


def attacked_run(run, table) -> AttackedRun:
    rows = RunRows.read(run, table)
    return AttackedRun(run, rows, select_rows(run, rows))


def test_a_model_that_memorised_reveals_a_column_of_its_training_patients(home):
    pytest.importorskip("sklearn")
    table, model = memorised_patients(), {"name": "forest", "depth": 12, "trees": 20}
    values = {"data": DATA, "model": model, "method": {"name": "pooled", "rounds": 1}, **QUICK}
    run = gr.run(gr.Experiment.parse(values), table=table, out=home / "memorised")
    found = collect_evidence(run, data=table, only=("attribute",)).attribute
    secret = next(a for a in found.columns if a.column == "secret")
    assert secret.low_all > 0.1 and secret.accuracy_nonmembers < 0.65 < 0.8 < secret.accuracy_members
    assert "secret" in found.to_dict()["leaking"] and "reveals more about its training patients" in found.sentences()[-1]
    assert secret.imputation < secret.accuracy_members, "the other columns alone tell nothing"


def test_a_model_that_ignores_the_column_reveals_nothing_of_it(plain):
    run, table = plain
    blind = load_run(run.folder)
    theta = blind.model.theta.copy()
    features = list(blind.model.encoding.features)
    blind.model.net.layers(theta)[0][0][[j for j, f in enumerate(features) if f.startswith("ward")]] = 0
    blind.__dict__["model"] = replace(blind.model, theta=theta)
    (ward,) = collect_evidence(blind, data=table, only=("attribute",), sensitive=("ward",)).attribute.columns
    assert ward.low < 0 < ward.high and ward.accuracy_members == ward.marginal
    assert (ward.low, ward.high) == (ward.low_all, ward.high_all), "one column needs no correction"


def test_an_update_of_one_row_is_the_row_and_a_sum_or_noise_hides_it():
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(8, 5)), rng.integers(0, 2, (8, 1)).astype(float)
    net = Dense((5, 1))
    config = TrainConfig(seed=0, round=1, lr=0.1, epochs=3, batch=4)
    updates = train_sites(net, np.zeros(6), x, target, 1, config)
    assert np.allclose(updates[:, :5] / updates[:, 5:], x, atol=1e-9)
    summed = updates.reshape(2, 4, -1).mean(axis=1)
    assert np.abs(summed[:, :5] / summed[:, 5:] - x[[0, 4]]).max() > 0.1
    noisy = train_sites(net, np.zeros(6), x, target, 1, replace(config, clip=1.0, noise=1.0, rate=1.0, fewest=1))
    assert np.abs(noisy[:, :5] / noisy[:, 5:] - x).max(axis=1).min() > 0.01


@pytest.mark.parametrize(
    ("protection", "rebuilt"),
    [(UpdateProtection(), 1.0), (UpdateProtection(sites=3), 0.0), (UpdateProtection(1, 1.0, 1.0, 0.5), 0.0)],
    ids=["clear", "secure", "dp-sgd"],
)
def test_rows_rebuilt_from_updates_of_a_run(plain, protection, rebuilt):
    run, table = plain
    attacked = attacked_run(run, table)
    x = np.asarray(run.model.encoding.encode(attacked.run_rows.consortium.data), float)
    y = run.model.encoding.labels(attacked.run_rows.consortium.data)[:, None].astype(float)
    one, most = attack_updates(run, attacked.plan, x, y, smallest=30, protection=protection, sizes=(1,))
    assert (one.rows, most.rows, most.own) == (1, 30, True)
    assert one.rebuilt == rebuilt and most.rebuilt == 0.0 and one.low <= one.rebuilt <= one.high


def test_a_planted_category_of_one_patient_is_found(plain):
    run, table = plain
    found = attack_summary(attacked_run(run, table), "summary", "columns")
    assert found.attacked and "1 category has one patient of a site (of 'ward')" in found.finding
    assert "hospice" not in json.dumps(found.to_dict()), "a page that is shared does not name it"


@pytest.mark.parametrize("secure", [False, True])
def test_the_row_of_that_patient_is_read_from_sums_of_a_regression(plain, home, secure):
    _, table = plain
    method = {"name": "glm", "exact": {"intercept": "common", "ridge": 1.0}}
    values = {"data": DATA, "method": method, "privacy": {"secure": secure}, **QUICK}
    attacked = attacked_run(gr.run(gr.Experiment.parse(values), table=table, out=home / f"glm-{secure}"), table)
    result = attack_sums(attacked)
    training = np.concatenate(list(attacked.site_rows("train").values()))
    assert result.ended and result.rebuilt[training == PLANTED].tolist() == [True]
    assert result.rebuilt.mean() < 0.3, "most patients share every category with others"
    told = describe_sums(attacked, result, "sums", "sums")
    assert told.exposed == result.rebuilt.sum() and ("of all sites" in told.finding) == secure


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_every_disclosure_of_every_method_is_attacked_or_said_not_to_be(plain, name, promised):
    """A run of the method that is not on this machine: its plan, and the summary of a run."""
    run, _ = plain
    values = json.loads(json.dumps(run.plan))
    values["method"]["name"] = name
    summary = replace_privacy(run.summary, promised)
    fake = SimpleNamespace(plan=values, summary=summary, folder=run.folder, model=run.model)
    attacked = AttackedRun(fake)
    found = rebuild_rows(attacked)
    told = [(s.kind, s.statistic) for s in found.statistics if s.is_of_run]
    assert told == [(d.kind, d.text) for d in list_statistics(attacked)] and told
    assert all(s.finding and bool(s.attack) == s.attacked for s in found.statistics)
    sentences = " ".join(found.sentences())
    assert all(s.statistic[1:] in sentences for s in found.statistics)


def replace_privacy(summary, promised: bool):
    events = [{"what": "models of the sites", "kind": "sampled_gaussian"}, {"what": "rows and events", "kind": "gaussian"}]
    privacy = {"mechanism": "dp-sgd", "epsilon": 2.0, "delta": 1e-5, "unit": "row", "events": events, "budget": 2.0}
    privacy |= {"not_covered": ["metrics on test rows, which have no noise", "number of rows of each site"]}
    copy = type(summary).from_dict(json.loads(json.dumps(dict(summary.to_dict()))), where="test")
    if promised:
        copy["privacy"].clear()
        copy["privacy"].update(privacy)
    return copy


def test_a_file_is_read_and_a_damaged_one_is_refused(plain, tmp_path):
    run, table = plain
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    copy = load_run(folder)
    values = collect_evidence(copy, data=table).to_dict()
    write_attacks(folder, values)
    assert read_attacks(copy) == json.loads(json.dumps(values)) and set(values["tried"]) == set(ATTACKS)
    page = " ".join(attack_sections(read_attacks(copy)))
    assert all(f"<h2>{title}" in page for title in ("Membership", "Attribute", "Reconstruction", "Attacks that were not"))
    for section, bad in (
        ("attribute", {**values["attribute"], "columns": [{"column": 3}]}),
        ("attribute", "none"),
        ("reconstruction", {**values["reconstruction"], "statistics": [{}]}),
        ("not_tried", [1]),
    ):
        write_attacks(folder, {**values, section: bad})
        with refused("damaged-file", match="attacks.json"):
            read_attacks(copy)


def test_one_attack_alone_keeps_what_others_found(plain, tmp_path):
    run, table = plain
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    copy = load_run(folder)
    first = collect_evidence(copy, data=table, only=("membership",))
    assert first.tried == ["membership"] and any("Attribute inference was not tried" in s for s in first.not_tried())
    write_attacks(folder, first.to_dict())
    second = collect_evidence(copy, data=table, only=("attribute",), sensitive=("ward", "age"))
    assert second.tried == ["membership", "attribute"] and {a.column for a in second.attribute.columns} == {"ward", "age"}
    assert second.to_dict()["attacks"] == first.to_dict()["attacks"]
    with refused("unknown-attack"):
        collect_evidence(copy, data=table, only=("theft",))
    with refused("unknown-column", match="wart"):
        collect_evidence(copy, data=table, sensitive=("wart",))


def test_rows_at_hospitals_leave_attacks_that_need_none(plain, tmp_path):
    run, _ = plain
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    plan = json.loads((folder / "checkpoint" / "plan.json").read_text())
    plan["data"]["table"] = "at the sites"
    (folder / "checkpoint" / "plan.json").write_text(json.dumps(plan))
    found = collect_evidence(load_run(folder))
    assert found.tried == ["reconstruction"] and "the rows are at the hospitals" in found.not_tried()[0]
    made = {s.kind for s in found.reconstruction.statistics if s.attacked}
    assert {"final model", "row counts", "percentiles", "published metrics"} <= made
    assert found.reconstruction.prototypes["classes"] and found.reconstruction.prototypes["attack"] is None
    write_attacks(folder, found.to_dict())
    assert read_attacks(load_run(folder))["attacks"] == []


@pytest.mark.parametrize("task", ["regression", "survival"])
def test_numbers_and_survival_have_attribute_inference_without_membership(task, tmp_path):
    table = patients([60, 55, 65])
    columns = {k: v for k, v in table.columns.items() if k != "died"}
    rng = np.random.default_rng(0)
    outcome = {"days": rng.exponential(50, len(table)) + 1}
    values = {"data": {"label": "days", "site": "hospital", "task": "regression"}, "method": {"rounds": 2}, **QUICK}
    if task == "survival":
        outcome |= {"died": table.columns["died"]}
        values["data"] = {**DATA, "task": "survival", "duration": "days"}
    given = Table.from_mapping({**columns, **outcome}, source="t.csv")
    run = gr.run(gr.Experiment.parse(values), table=given, out=tmp_path / "run")
    found = collect_evidence(run, data=given)
    assert found.tried == ["attribute", "reconstruction"] and len(found.attribute.columns) == 4
    assert all(-1 <= a.low_all <= a.advantage <= a.high_all <= 1 for a in found.attribute.columns)
    assert "predicts none" in found.not_tried()[0]


def test_a_plan_without_secure_sums_shows_updates_before_the_noise_of_the_server():
    plan = Plan(gr.Experiment.parse({"data": {"name": "heart"}}).plan())
    seen = UpdateProtection.read(plan, {"mechanism": "client", "clip": 1.0, "noise": 2.0}, 4)
    assert seen == UpdateProtection() and seen.describe() == "each site's update as it is"
