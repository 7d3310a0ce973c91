"""Withdrawal of a site: the bits of a run that never had it, both ledgers, refusals, and bad input."""

from __future__ import annotations

import fcntl
import json
import os

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.analysis.membership.withdrawal import prove_withdrawal
from grandrounds.audit.digest import model_digest
from grandrounds.audit.entry import WITHDRAW
from grandrounds.audit.ledger import Ledger
from grandrounds.data.table import Table
from grandrounds.protocol.identity import Identity
from grandrounds.runs.federation import assemble
from grandrounds.runs.run import Run, resume
from grandrounds.runs.withdraw import describe_repetition, leave_out, withdraw
from grandrounds.runs.withdrawal import MARK, read_withdrawn
from tests.support import patients, refused, slow

COLUMNS = {"label": "died", "site": "hospital"}


def own_ward(table: Table, site: str) -> Table:
    """A table in which one site has a ward and large values of its own: they would be seen in an encoding."""
    mine = table.columns["hospital"] == site
    ward = np.where(mine, "burns", table.columns["ward"]).astype(object)
    age = np.where(mine, table.columns["age"] + 500, table.columns["age"])
    return table.with_columns({"ward": ward, "age": age})


def start(table: Table, out, **changes) -> Run:
    values = {"data": COLUMNS, "method": {"rounds": 4}, "reference": {"scoring": {"rows": 30}}, **changes}
    return gr.run(gr.Experiment.parse(values), table=table, out=out)


def note_round(event, rounds: list[int]) -> None:
    if event["event"] == "round":
        rounds.append(event["round"])


@pytest.fixture(scope="module")
def table() -> Table:
    return own_ward(patients([40, 50, 30, 45]), "c")


@pytest.fixture(scope="module")
def done(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("withdrawal")
    return withdraw(start(table, folder / "a", train={"optimizer": "adam", "lr": 0.01}), "c", table=table)


def test_the_model_has_the_bits_of_a_run_that_never_had_the_site(table, done, tmp_path):
    never = start(
        table.take(table.columns["hospital"] != "c"), tmp_path / "n", train={"optimizer": "adam", "lr": 0.01}
    )
    assert model_digest(done.run.model.theta) == model_digest(never.model.theta) == done.mark.valid.model
    assert done.run.model.encoding.to_dict() == never.model.encoding.to_dict()
    assert done.run.summary["reference"] == never.summary["reference"] != done.earlier.summary["reference"]
    assert done.run.summary["per_site"] == never.summary["per_site"]
    assert "burns" in str(Run(done.earlier.folder, withdrawn=True).model.encoding.to_dict())
    assert "burns" not in str(done.run.model.encoding.to_dict())


def test_simulated_sites_keep_their_rows_when_one_of_them_withdraws(tmp_path):
    plan = gr.Experiment.parse({"data": {"name": "breast-cancer"}, "split": {"sites": 5}}).plan()
    from grandrounds.core.plan_types import Plan

    before, after = assemble(Plan(plan)), assemble(Plan(leave_out(plan, "site-02")))
    rows = {n: before.data.table.take(r.train).sha256() for n, r in zip(before.stack.names, before.stack.rows, strict=True)}
    left = {n: after.data.table.take(r.train).sha256() for n, r in zip(after.stack.names, after.stack.rows, strict=True)}
    assert rows.keys() - left.keys() == {"site-02"}
    assert left == {n: digest for n, digest in rows.items() if n != "site-02"}
    assert len(after.data) < len(before.data)


def test_both_ledgers_name_each_other_and_a_removed_mark_is_found(done, tmp_path):
    earlier, now = done.earlier.folder, done.run.folder
    entries = list(done.earlier.ledger.entries())
    assert entries[-1]["kind"] == WITHDRAW
    assert (entries[-1]["site"], entries[-1]["valid"]["folder"]) == ("c", now.name)
    opening = next(done.run.ledger.entries())
    assert (opening["repeats"]["folder"], opening["repeats"]["site"]) == (earlier.name, "c")
    assert "c" not in opening["keys"]["sites"]
    before, after = audit(earlier, deep=True), audit(now, deep=True)
    assert not before.fails and "WITHDRAWN" in before.line
    assert not after.fails and "without c, which withdrew" in " ".join(after.notes)
    mark = earlier / MARK
    text = mark.read_bytes()
    mark.unlink()
    try:
        assert read_withdrawn(earlier) == done.mark  # the ledger is the source of truth
        assert [f.where for f in audit(earlier).findings] == [MARK]
    finally:
        mark.write_bytes(text)


def test_an_entry_after_a_withdrawal_is_found(done, tmp_path):
    copy = tmp_path / "ledger.db"
    copy.write_bytes((done.earlier.folder / "ledger.db").read_bytes())
    with Ledger.open(copy, identity=Identity.simulated(0, "server")) as ledger:
        close = [e for e in ledger.entries() if e["kind"] == "close"][-1]
        ledger.append(str(close["run"]), {k: v for k, v in close.items() if k not in ("number", "previous", "schema")})
        assert any("after a withdrawal" in str(finding) for finding in ledger.verify())


def test_the_model_of_the_earlier_run_is_refused_unless_told_otherwise(done, table):
    with refused("withdrawn-run"):
        assert Run(done.earlier.folder).model
    with refused("withdrawn-run"):
        gr.predict(done.earlier.folder, table)
    with refused("withdrawn-run"):
        resume(done.earlier.folder, settings=["method.rounds=9"], table=table)
    assert len(gr.load_run(done.earlier.folder, withdrawn=True).model.theta)


def test_an_attack_on_the_members_of_the_site_finds_nothing_in_the_new_model(tmp_path):
    rng = np.random.default_rng(0)
    site = np.repeat(["a", "b", "c", "d"], 150)
    noise = {f"x{j}": rng.standard_normal(600) for j in range(200)}
    table = Table.from_mapping({**noise, "hospital": site, "died": rng.integers(0, 2, 600).astype(float)}, source="noise")
    run = start(table, tmp_path / "a", reference={}, split={"test": 0.4}, method={"rounds": 1}, train={"epochs": 20, "lr": 0.5})
    done = withdraw(run, "c", table=table)
    proof = prove_withdrawal(gr.load_run(run.folder, withdrawn=True), done.run, "c", data=table)
    assert proof.before.low > 0.6
    assert proof.after.low < 0.5 < proof.after.high
    assert "0.5 is guessing" in proof.sentences()[0]


def test_an_interrupted_withdrawal_is_continued(table, tmp_path):
    run = start(table, tmp_path / "a")

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        withdraw(run, "c", table=table, progress=stop)
    assert read_withdrawn(run.folder) is None
    rounds = []
    done = withdraw(run, "c", table=table, progress=lambda e: note_round(e, rounds))
    assert rounds == [3, 4]
    never = start(table.take(table.columns["hospital"] != "c"), tmp_path / "n")
    assert done.mark.valid.model == model_digest(never.model.theta)


def test_bad_input_has_one_sentence_and_a_code(table, done, tmp_path):
    run = start(table, tmp_path / "a", engine={"absences": {"d": [1, 99]}})
    with refused("unknown-site"):
        withdraw(run, "nowhere", table=table)
    with refused("never-took-part"):
        withdraw(run, "d", table=table)
    with refused("data-frame-needed"):
        withdraw(run, "a")
    with refused("withdrawn-run"):
        withdraw(done.earlier, "a", table=table)
    lock = os.open(run.folder / "checkpoint" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with refused("run-in-use"):
        withdraw(run, "a", table=table)
    os.close(lock)
    (run.folder / "summary.json").rename(tmp_path / "summary.json")
    with refused("run-not-finished"):
        withdraw(Run(run.folder), "a", table=table)
    one = start(patients([40, 40]), tmp_path / "two", reference={}, method={"rounds": 1})
    fewer = withdraw(one, "a", table=patients([40, 40]))
    with refused("too-few-sites"):
        withdraw(fewer.run, "b", table=patients([40, 40]))
    experiment = gr.Experiment.parse({"data": COLUMNS, "split": {"without": ["e"]}})
    with refused("unknown-site"):
        gr.run(experiment, table=table, out=tmp_path / "u")


def test_sums_over_fewer_than_three_sites_are_refused(tmp_path):
    rows = patients([40, 50, 30], gaps=0.0)
    run = gr.run(gr.Experiment.parse({"data": COLUMNS, "method": {"name": "glm"}}), table=rows, out=tmp_path / "g")
    with refused("too-few-sites"):
        withdraw(run, "a", table=rows)


def kept(table: Table, out, **changes) -> Run:
    return start(table, out, **{"method": {"rounds": 5}, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}},
        slow({"method": {"name": "fedadam", "rounds": 5}, "engine": {"wire": True}}),
    ],
    ids=["kept optimizer", "server optimizer, messages"],
)
def test_with_the_setup_kept_the_model_is_that_of_a_run_in_which_the_site_left(table, tmp_path, changes):
    engine = changes.get("engine", {})
    run = kept(table, tmp_path / "a", **{**changes, "engine": {**engine, "absences": {"c": [1, 2]}}})
    rounds = []
    done = withdraw(run, "c", keep_setup=True, table=table, progress=lambda e: note_round(e, rounds))
    assert rounds == [3, 4, 5]
    left = kept(table, tmp_path / "l", **{**changes, "engine": {**engine, "absences": {"c": [1, 5]}}})
    assert model_digest(done.run.model.theta) == model_digest(left.model.theta) != done.facts.repeats.model
    assert "c" not in done.run.summary["per_site"]
    assert any("reference rows are kept" in line for line in done.run.summary["warnings"])
    assert done.cost()["repetition"]["rounds"] == 3
    result = audit(done.run.folder, deep=True)
    assert not result.fails, result.findings


def test_a_site_that_was_selected_late_leaves_at_the_round_of_its_first_selection(table, tmp_path):
    method = {"rounds": 6, "select": {"rule": "random", "fraction": 0.5}}
    run = kept(table, tmp_path / "a", method=method)
    asked = {r["round"]: r["decision"]["asked"] for r in run.rounds}
    site, first = max(((s, min(r for r in asked if s in asked[r])) for s in "abcd"), key=lambda found: found[1])
    assert first > 1, asked
    done = withdraw(run, site, keep_setup=True, table=table)
    left = kept(table, tmp_path / "l", method=method, engine={"absences": {site: [first, 6]}})
    assert model_digest(done.run.model.theta) == model_digest(left.model.theta)
    assert done.facts.from_round == first
    other = next(s for s in done.run.summary["rows"])
    again = withdraw(done.run, other, table=table)  # from round 1: without both, and nothing remains
    assert (again.facts.setup, again.run.plan["split"]["without"]) == ("agreed again", [site, other])
    assert any("set-up statistics, which are kept" in line for line in done.run.summary["withdrawal"]["remains"])


def test_a_run_without_the_checkpoint_says_which_file_is_missing(table, tmp_path):
    run = kept(table, tmp_path / "a", engine={"absences": {"c": [1, 2]}, "keep_states": 0})
    with refused("no-checkpoint", match="before-0003.safetensors is missing.*engine.keep_states"):
        withdraw(run, "c", keep_setup=True, table=table)
    with refused("cannot-keep-setup", match="counted from round 1"):
        withdraw(run, "a", keep_setup=True, table=table)
    assert not (tmp_path / "a-without-c").exists()
    with refused("needs-earlier-run"):
        start(table, tmp_path / "k", split={"keep_setup": True})


def test_the_repetition_is_charged_and_the_record_states_the_sum(table, tmp_path):
    private = {"mechanism": "dp-sgd", "epsilon": 3.0, "min_rows": 10}
    public = {"encoding": "public", "ranges": {"age": [0, 600], "lactate": [0, 9], "pressure": [30, 120]}}
    levels = {"ward": ["medical", "surgical", "cardiac", "burns"], "died": ["0", "1"]}
    run = start(
        table, tmp_path / "a", privacy=private, reference={}, explain={"sketch": "none"}, method={"rounds": 2},
        data={**COLUMNS, **public, "levels": levels},
    )  # fmt: skip
    done = withdraw(run, "c", table=table)
    spent = [r.summary["privacy"]["epsilon"] for r in (run, done.run)]
    assert min(spent) > 1
    assert done.run.summary["withdrawal"]["both"]["epsilon"] == pytest.approx(sum(spent))
    assert "adds to this one" in done.run.summary["privacy"]["statement"]
    assert f"{sum(spent):.3g} with the earlier run" in done.privacy_sentence()


def test_a_pooled_run_and_the_shadows_of_an_attack_do_without_the_site(table, tmp_path):
    from grandrounds.analysis.membership.shadows import _shadow_plan
    from grandrounds.runs.run_rows import RunRows

    run = start(table, tmp_path / "a", reference={}, method={"name": "pooled", "rounds": 1})
    done = withdraw(run, "c", table=table)
    never = start(
        table.take(table.columns["hospital"] != "c"), tmp_path / "n", reference={}, method={"name": "pooled", "rounds": 1}
    )
    assert done.mark.valid.model == model_digest(never.model.theta)
    assert done.run.plan["split"]["without"] == ["c"]
    shadow = _shadow_plan(done.run, RunRows.read(done.run, table), tmp_path / "rows", 0)
    assert shadow["split"]["without"] == []  # the rows of a shadow run are those of the sites left


def test_a_run_without_a_ledger_is_closed_by_its_mark(table, tmp_path, monkeypatch):
    for module in ("ledger", "withdraw"):
        monkeypatch.setattr(f"grandrounds.runs.{module}.is_installed", lambda name: False)
    run = start(table, tmp_path / "a", reference={}, method={"rounds": 1})
    done = withdraw(run, "c", table=table)
    assert not (done.run.folder / "ledger.db").exists()
    assert read_withdrawn(run.folder) == done.mark
    with refused("withdrawn-run"):
        assert Run(run.folder).model


def test_weights_that_a_run_starts_from_are_named(done):
    run = Run(done.run.folder)
    run.plan["model"]["weights"] = "earlier.safetensors"
    assert "starts from earlier.safetensors again: if a took part" in describe_repetition(run, "a").remains[0]
    assert describe_repetition(done.run, "a").remains == ()


def test_no_setting_of_the_repeated_plan_names_the_site():
    sections = {
        "data": {"name": "heart"},
        "split": {"scheme": "holdout", "holdout": ["va", "hungarian"]},
        "engine": {"absences": {"va": [1, 2], "cleveland": [2, 3]}, "faults": {"nan": ["va"], "slow": {"va": 3.0}}},
        "attacks": [{"kind": "label-flip", "sites": ["va"]}, {"kind": "label-flip", "sites": ["va", "cleveland"]}],
    }
    plan = leave_out(gr.Experiment.parse(sections).plan(), "va")
    assert plan["split"]["without"] == ["va"]
    assert '"va"' not in json.dumps({**plan, "split": {**plan["split"], "without": []}})
    assert [attack["sites"] for attack in plan["attacks"]] == [["cleveland"]]
    with refused("no-test-sites"):
        leave_out(plan, "hungarian")
