"""`rounds attack` on real runs: who is told apart, who is not, what is written, how it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from html import escape

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.analysis.membership import shadows as shadow_runs
from grandrounds.analysis.membership.attack import Promise, attack_run
from grandrounds.analysis.membership.shadows import find_target
from grandrounds.cli import main
from grandrounds.core.plan import Settings
from grandrounds.privacy.attacks.membership import judged
from grandrounds.runs.federation import assemble
from grandrounds.runs.run import Run, load_run
from grandrounds.runs.run_rows import RunRows
from tests.runs.test_run import frame
from tests.support import patients, refused, slow, without_ledger

QUICK = {"explain": {"sketch": "none"}}
BREAST = {"data": {"name": "breast-cancer"}, "split": {"partition": "equal", "sites": 4}, **QUICK}
DIGITS = {"data": {"name": "digits"}, "split": {"partition": "equal", "sites": 3, "val": 0.05, "test": 0.45}, **QUICK}
LEARNT_BY_HEART = {
    "model": {"name": "mlp", "hidden": [128]},
    "train": {"epochs": 40, "lr": 0.3},
    "method": {"rounds": 4},
}


def ran(values, out):
    return gr.run(gr.Experiment.parse(values), out=out)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="module")
def learnt(home):
    """Patients of three hospitals whose outcome is mostly chance, and a net that learnt them by heart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 20))
    table = pd.DataFrame(x, columns=[f"m{j}" for j in range(20)])
    table["hospital"] = np.array(["a", "b", "c"])[np.arange(240) % 3]
    table["died"] = (x[:, 0] + 1.5 * rng.normal(size=240) > 0).astype(int)
    table.to_csv(home / "patients.csv", index=False)
    values = {
        "data": {"table": str(home / "patients.csv"), "label": "died", "site": "hospital"},
        "split": {"val": 0.1, "test": 0.4},
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"epochs": 20, "lr": 0.2},
        "method": {"rounds": 10},
        **QUICK,
    }
    return ran(values, home / "learnt")


@pytest.fixture
def rounds(monkeypatch, capsys):
    """The command in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rounds", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
            sys.exit(0)
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_a_net_that_learnt_few_rows_by_heart_gives_them_away(home):
    values = {**DIGITS, "split": {**DIGITS["split"], "test": 0.85}, **LEARNT_BY_HEART}
    found = attack_run(ran(values, home / "few-digits"))
    (threshold,) = found.attacks
    assert threshold.low > 0.55
    assert "An AUC of 0.5 is guessing" in found.sentences()[0]
    assert "no epsilon" in found.sentences()[1]


def test_a_small_linear_model_with_l2_does_not(home):
    values = {**BREAST, "model": {"name": "logistic"}, "train": {"l2": 0.1, "lr": 0.1}, "method": {"rounds": 5}}
    (threshold,) = attack_run(ran(values, home / "linear")).attacks
    assert threshold.low < 0.5 < threshold.high
    assert abs(threshold.auc - 0.5) < 0.08


def test_members_are_training_rows_and_confidence_is_the_loss_of_the_model_in_use(learnt):
    held = RunRows.read(learnt)
    target = find_target(learnt, held)
    stack = held.consortium.stack
    assert sorted(target.rows[target.member]) == sorted(np.concatenate([r.train for r in stack.rows]))
    assert sorted(target.rows[~target.member]) == sorted(np.concatenate([r.test for r in stack.rows]))
    losses = np.log1p(np.exp(-target.confidence))
    for part, of in (("training", target.member), ("final", ~target.member)):
        assert losses[of].mean() == pytest.approx(learnt.summary[part]["log_loss"], rel=1e-4)


@pytest.mark.slow
def test_shadow_models_do_no_worse_than_the_loss_and_are_kept(learnt):
    found = attack_run(learnt, shadows=4, jobs=2)
    threshold, offline, online = found.attacks
    assert threshold.low > 0.5
    assert max(offline.auc, online.auc) >= threshold.auc
    kept = sorted(p.name for p in (learnt.folder / "attacks").iterdir())
    assert kept == [f"shadow-{k:03}" for k in range(1, 5)]  # and no patient's row beside them
    times = {k: (learnt.folder / "attacks" / k / "summary.json").stat().st_mtime_ns for k in kept}
    again = attack_run(learnt, shadows=4, jobs=2)
    assert again == found
    assert times == {k: (learnt.folder / "attacks" / k / "summary.json").stat().st_mtime_ns for k in kept}


def test_shadow_runs_deal_the_same_sites_rows_in_halves(learnt):
    held = RunRows.read(learnt)
    rows, given = shadow_runs._shadow_rows(held)
    assert len(rows) == len(held.consortium.data)
    seen = []
    for k in range(8):
        plan = shadow_runs._shadow_plan(learnt, held, learnt.folder / "given.rows.safetensors", k)
        stack = assemble(Settings(plan), given).stack
        assert stack.names == held.consortium.stack.names
        for mine, own in zip(held.consortium.stack.rows, stack.rows, strict=True):
            assert set(np.concatenate([own.train, own.val, own.test])) == set(
                np.concatenate([mine.train, mine.val, mine.test])
            )
        inside = np.zeros(len(rows), bool)
        inside[np.concatenate([r.train for r in stack.rows])] = True
        assert inside.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(rows)))
        seen.append(inside)
    assert len({s.tobytes() for s in seen}) == 8
    assert abs(np.corrcoef(seen)[np.triu_indices(8, 1)]).max() < 0.25


@pytest.mark.slow
def test_a_run_of_chance_is_not_given_away_by_its_shadows(home):
    """Labels that follow from nothing, and a model too small to learn any by learnt."""
    table = patients([120, 120], gaps=0.0)
    rng = np.random.default_rng(6)
    table = table.with_columns({"died": rng.integers(0, 2, len(table)).astype(float)})
    frame(table).to_csv(home / "chance.csv", index=False)
    values = {
        "data": {"table": str(home / "chance.csv"), "label": "died", "site": "hospital"},
        "split": {"val": 0.1, "test": 0.4},
        "train": {"epochs": 1, "lr": 0.01, "l2": 1.0},
        "method": {"rounds": 2},
        **QUICK,
    }
    for found in attack_run(ran(values, home / "chance"), shadows=4, jobs=2).attacks:
        assert found.low < 0.5 < found.high


@pytest.mark.parametrize(
    ("name", "more", "shadows"),
    [
        ("forest", {"model": {"name": "forest", "trees": 10}, "method": {"rounds": 1}}, 0),
        ("lightgbm", {"model": {"name": "lightgbm", "trees": 60}, "method": {"rounds": 1, "name": "pooled"}}, 0),
        ("torch", {"model": {"name": "mlp", "hidden": [16]}, "engine": {"kernel": "torch", "device": "cpu"}}, 0),
        slow("local", {"method": {"name": "local", "rounds": 2}}, 4),
        ("tuned", {"method": {"rounds": 2}, "train": {"finetune": 2}}, 0),
    ],
)
def test_every_model_can_be_attacked(home, name, more, shadows):
    if name in ("lightgbm", "torch"):
        pytest.importorskip(name)
    base = {**BREAST, "method": {"rounds": 2}}
    found = attack_run(ran({**base, **more}, home / name), shadows=shadows, jobs=2)
    assert [a.attack for a in found.attacks] == ["loss threshold", "LiRA, offline", "LiRA, online"][
        : 3 if shadows else 1
    ]
    assert all(0 <= a.auc <= 1 and a.members > 200 for a in found.attacks)
    assert found.separate == (name in ("local", "tuned"))
    assert (len(found.sites) == 4) == (name != "lightgbm")  # pooled rows are no site's own


def test_each_site_is_judged_by_its_own_model(home, learnt):
    run = ran({**BREAST, "method": {"name": "local", "rounds": 2}}, home / "own-models")
    held = RunRows.read(run)
    target = find_target(run, held)
    site = held.consortium.stack.names[1]
    mine = target.site == site
    own = run.model_for(site)
    x = own.encoding.encode(held.consortium.data.take(target.rows[mine]), own.theta.dtype)
    y = held.consortium.data.label[target.rows[mine]] == own.encoding.classes[1]
    logits = own.net.logits(own.theta, x)[:, 0] * np.where(y, 1, -1)
    assert target.confidence[mine] == pytest.approx(logits, rel=1e-5)
    assert attack_run(run).sites[site] == judged("loss threshold", logits, target.member[mine])


@pytest.mark.slow
def test_hospitals_that_only_test_stay_out(home):
    frame(patients([80, 60, 50])).to_csv(home / "three.csv", index=False)
    values = {
        "data": {"table": str(home / "three.csv"), "label": "died", "site": "hospital"},
        "split": {"scheme": "holdout", "holdout": ["c"]},
        "method": {"rounds": 2},
        **QUICK,
    }
    run = ran(values, home / "holdout")
    found = attack_run(run, shadows=4)
    assert set(found.sites) == {"a", "b"}
    assert "validation rows" in found.notes[0]
    rows, given = shadow_runs._shadow_rows(RunRows.read(run))
    assert len(rows) == 140 and set(given.columns["site of the run"]) == {"a", "b"}


def test_the_command_prints_writes_and_reports(learnt, rounds):
    code, out, _ = rounds("attack", learnt.folder)
    assert code == 0
    assert "loss threshold" in out and "95% CI" in out and "guessing" in out
    told = json.loads((learnt.folder / "attacks.json").read_text())
    assert told["schema"] == 1 and told["bound"] is None and told["shadows"] == 0
    page = (learnt.folder / "report.html").read_text()
    assert "<h3>Membership attacks</h3>" in page and escape(told["sentences"][0]) in page
    code, out, _ = rounds("attack", learnt.folder, "--json")
    assert code == 0 and json.loads(out) == told
    rounds("report", learnt.folder)
    assert "<h3>Membership attacks</h3>" in (learnt.folder / "report.html").read_text()


def test_one_attack_is_chosen_with_its_columns(learnt, home, rounds):
    other = home / "chosen"
    shutil.copytree(learnt.folder, other, ignore=shutil.ignore_patterns("attacks", "attacks.json"))
    code, out, _ = rounds("attack", other, "--only", "attribute", "--sensitive", "m0, m3")
    told = json.loads((other / "attacks.json").read_text())
    assert code == 0 and told["tried"] == ["attribute"] and {a["column"] for a in told["attribute"]["columns"]} == {"m0", "m3"}
    assert "over all 2 columns" in out and "Membership inference was not tried" in out and "membership inference  " not in out
    assert "<h3>Attribute inference</h3>" in (other / "report.html").read_text()
    code, _, err = rounds("attack", other, "--only", "burglary")
    assert code == 2 and "membership, attribute, reconstruction" in err
    code, _, err = rounds("attack", other, "--sensitive", "m99")
    assert code == 2 and "m99" in err and "Traceback" not in err


@pytest.mark.slow
def test_what_lira_found_outlives_an_attack_without_shadows(learnt, home, rounds):
    again = home / "again"
    shutil.copytree(learnt.folder, again, ignore=shutil.ignore_patterns("attacks"))
    path = again / "attacks.json"
    rounds("attack", again, "--shadows", "4", "--jobs", "1")
    whole = json.loads(path.read_text())
    assert [a["attack"] for a in whole["attacks"]] == ["loss threshold", "LiRA, offline", "LiRA, online"]
    for _ in range(2):  # and once more: notes do not pile up
        code, out, _ = rounds("attack", again)
        kept = json.loads(path.read_text())
        assert code == 0 and "LiRA, offline" in out and "--shadows 16" not in out
        assert kept.pop("notes") == [
            *whole["notes"],
            "LiRA's figures are those of an earlier attack with 4 shadow runs",
        ]
        assert kept == {k: v for k, v in whole.items() if k != "notes"}
    lost = json.loads(path.read_text())
    for other in (json.dumps({**lost, "model": "0" * 64}), "{", json.dumps({**lost, "attacks": [{}]})):
        path.write_text(other)  # of another model, or damaged: there is nothing to keep
        assert rounds("attack", again)[0] == 0
        assert [a["attack"] for a in json.loads(path.read_text())["attacks"]] == ["loss threshold"]


def test_what_was_found_of_another_model_is_not_shown(learnt, home, rounds):
    other = home / "moved"
    shutil.copytree(learnt.folder, other, ignore=shutil.ignore_patterns("attacks"))
    rounds("attack", other)
    found = json.loads((other / "attacks.json").read_text())
    (other / "attacks.json").write_text(json.dumps({**found, "model": "0" * 64}))
    rounds("report", other)
    assert "<h3>Membership attacks</h3>" not in (other / "report.html").read_text()
    (other / "attacks.json").write_text("{")
    code, _, err = rounds("report", other)
    assert code == 2 and "damaged" in err


def test_an_epsilon_bounds_what_is_reported(learnt, home, rounds):
    private = home / "private"
    shutil.copytree(learnt.folder, private, ignore=shutil.ignore_patterns("attacks"))
    summary = json.loads((without_ledger(private) / "summary.json").read_text())
    summary["privacy"] |= {"mechanism": "dp-sgd", "epsilon": 0.2, "delta": 1e-5, "unit": "patient"}
    (private / "summary.json").write_text(json.dumps(summary))
    code, out, _ = rounds("attack", private)
    assert code == 0
    assert "Epsilon = 0.2 for each patient" in out
    assert "does not hold" in out  # this net promised nothing, and its memory shows
    bound = json.loads((private / "attacks.json").read_text())["bound"]
    assert bound["broken"] and bound["auc"] == pytest.approx(1 / (1 + np.exp(-0.2)), abs=1e-4)
    assert "maximum that epsilon = 0.2 allows" in (private / "report.html").read_text()


def test_an_epsilon_of_sites_or_none_promises_patients_nothing():
    assert Promise.from_statement({"mechanism": "none", "epsilon": None}) is None
    assert Promise.from_statement({"epsilon": 2.0, "delta": 1e-5, "unit": "site"}) is None
    assert Promise.from_statement({"epsilon": float("inf"), "unit": "patient"}) is None


def test_refusals_are_one_sentence(home, learnt, rounds):
    code, _, err = rounds("attack", home / "nowhere")
    assert code == 2 and "not a run folder" in err
    begun = home / "begun"
    shutil.copytree(learnt.folder, begun, ignore=shutil.ignore_patterns("summary.json", "attacks"))
    code, _, err = rounds("attack", begun)
    assert code == 2 and "not finished" in err and "rounds resume" in err
    code, _, err = rounds("attack", learnt.folder, "--shadows", 2)
    assert code == 2 and "at least 4" in err
    values = {**BREAST, "split": {**BREAST["split"], "val": 0.0, "test": 0.0}, "method": {"rounds": 1}}
    nobody = ran(values, home / "nobody")
    code, _, err = rounds("attack", nobody.folder)
    assert code == 2 and "split.test" in err and "Traceback" not in err


def test_changed_or_missing_data_are_refused(home, learnt, rounds):
    held = (home / "patients.csv").read_text()
    try:
        (home / "patients.csv").write_text(held.replace(held.splitlines()[1], held.splitlines()[2], 1))
        code, _, err = rounds("attack", learnt.folder)
        assert code == 2 and "not the data" in err
        (home / "patients.csv").unlink()
        code, _, err = rounds("attack", learnt.folder)
        assert code == 2 and "patients.csv" in err
    finally:
        (home / "patients.csv").write_text(held)


def test_a_run_from_memory_is_attacked_with_its_frame(home):
    table = frame(patients([60, 50]))
    experiment = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}, **QUICK})
    run = gr.run(experiment, out=home / "memory", table=table)
    with refused("rows-not-available"):
        attack_run(run)
    assert attack_run(run, data=table).attacks[0].members > 50


def test_a_shadow_of_another_plan_is_refused(home, learnt):
    other = home / "elsewhere"
    shutil.copytree(learnt.folder, other)
    (other / "attacks" / "shadow-001").mkdir(parents=True, exist_ok=True)
    if not (other / "attacks" / "shadow-001" / "checkpoint").exists():
        shutil.copytree(learnt.folder / "checkpoint", other / "attacks" / "shadow-001" / "checkpoint")
    with refused("other-run", match="attacks"):
        attack_run(load_run(other), shadows=4)
    assert isinstance(load_run(other), Run)


@pytest.mark.slow
def test_a_private_run_keeps_to_its_epsilon_and_leaves_out_who_took_no_part(home):
    frame(patients([300, 260, 40])).to_csv(home / "private.csv", index=False)
    values = {
        "data": {"table": str(home / "private.csv"), "label": "died", "site": "hospital"},
        "split": {"val": 0.1, "test": 0.4},
        "method": {"rounds": 4},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 1.0, "min_rows": 50},
        **QUICK,
    }
    found = attack_run(ran(values, home / "dp-sgd"), shadows=4, jobs=2)
    assert set(found.sites) == {"a", "b"}  # c has 20 training rows and was not trained on
    assert any("without c" in note for note in found.notes)
    assert found.promise.epsilon <= 1.0 and not found.broken
    assert all(a.low <= found.promise.max_auc for a in found.attacks)
    assert "for each row" in found.sentences()[1]


def test_tasks_and_attackers_have_no_shadows(home):
    values = {**BREAST, "method": {"rounds": 1}, "attacks": [{"kind": "label-flip", "count": 1}]}
    run = ran(values, home / "attackers")
    assert any("attacked their own" in note for note in attack_run(run).notes)
    with refused("shadows-not-offered"):
        attack_run(run, shadows=4)
