"""Additive models, trees and cards in runs: after a crash, with dropouts, at hospitals, in the ledger, and on awkward tables."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.cli import app
from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods import METHODS
from grandrounds.recipes import load_recipe
from tests.engine.hospitals import Hospitals, final_model
from tests.support import refused, slow

SIZES = (80, 70, 60, 90)
DATA = {"label": "died", "site": "hospital", "task": "classification"}
PLAN = {"seed": 3, "data": DATA, "split": {"val": 0.0, "test": 0.2}, "explain": {"sketch": "none"}}
PUBLIC = {
    "encoding": "public", "ranges": {"age": [0, 110], "lactate": [0, 20]},
    "levels": {"died": ["0", "1"], "ward": ["medical", "surgical", "cardiac"], "sex": ["f", "m"]},
}  # fmt: skip
SMALL = {"gam": {}, "trees": {"rounds": 3, "depth": 2, "parallel": 2, "least": 5}, "card": {"terms": 4}}
"""Settings of fits that are quick."""

NAMES = [name for name in SMALL if name in METHODS]


def table(seed=0, sizes=SIZES, bent=0.0):
    """Rows of hospitals with gaps and categories; `bent`: a slope of age that the first hospital has in addition."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    age, lactate = rng.normal(60, 12, n).round(), rng.lognormal(0.5, 0.6, n).round(1)
    ward, sex = rng.choice(["medical", "surgical", "cardiac"], n), rng.choice(["f", "m"], n)
    first = np.arange(n) < sizes[0]
    score = 0.04 * (age - 60) + 0.7 * (lactate - 1.9) + 0.6 * (ward == "cardiac") + bent * first * (age - 60) / 12
    died = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(float)
    lactate[rng.random(n) < 0.2] = np.nan
    hospital = np.repeat([f"h{k}" for k in range(len(sizes))], sizes)
    columns = {"hospital": hospital, "age": age, "lactate": lactate, "ward": ward, "sex": sex, "died": died}
    return Table({k: v.astype(object) if v.dtype.kind == "U" else v for k, v in columns.items()}, "rows")


ROWS = table()


def plan(name, **settings):
    method = {name: {**SMALL[name], **settings.pop("options", {})}, **settings.pop("method", {})}
    return gr.Experiment.parse({**PLAN, "model": {"name": name}, "method": method, **settings})


def run(name, folder, rows=ROWS, progress=False, **settings):
    return gr.run(plan(name, **settings), table=rows, out=folder, progress=progress)


def facts(done):
    """The parts of summary.json that tell about the fit, without bytes."""
    return {k: done.summary[k] for k in ("shapes", "trees", "card") if k in done.summary}


@pytest.mark.parametrize("name", NAMES)
def test_killed_between_exchanges_it_ends_with_the_same_bits(name, tmp_path):
    whole = run(name, tmp_path / "whole")

    def stop(event):
        if event["event"] == "round" and event["round"] == len(whole.rounds) // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, tmp_path / "part", progress=stop)
    again = gr.resume(tmp_path / "part", table=ROWS)
    assert final_model(again).tobytes() == final_model(whole).tobytes()
    assert facts(again) == facts(whole)
    entries = CliRunner().invoke(app, ["audit", "verify", str(again.folder)])
    assert entries.exit_code == 0, entries.output


@pytest.mark.parametrize("name", NAMES)
def test_secure_sums_give_the_same_model(name, tmp_path):
    clear, secure = run(name, tmp_path / "clear"), run(name, tmp_path / "secure", privacy={"secure": True})
    if name == "trees":
        assert final_model(secure).tobytes() == final_model(clear).tobytes()
    else:
        np.testing.assert_allclose(final_model(secure), final_model(clear), atol=1e-6, rtol=1e-6)
    written = (secure.folder / "round_logs.json").read_text()
    assert "exchange 1," in written and "total " in written


@pytest.mark.parametrize("name", NAMES)
def test_a_site_that_drops_out_is_left_out_from_then_on(name, tmp_path):
    """No sum over another roster is used again: the model is that of the sites that stayed to the end."""
    for seed in (3, 4, 5, 6):
        faults = {"faults": {"drop": 0.04}, "min_sites": 3}
        done = run(name, tmp_path / f"r{seed}", engine=faults, seed=seed, privacy={"secure": True})
        rosters = [set(Decision.from_dict(r["decision"]).weights) for r in done.rounds]
        assert all(b <= a for a, b in itertools.pairwise(rosters)), "nobody comes back"
        if len(rosters[-1]) < len(rosters[0]):
            break
    else:
        pytest.fail("choose other seeds: nobody dropped out")
    said = [note for r in done.rounds for note in r["decision"]["notes"]]
    assert any("dropped out: the fit continues with" in note for note in said)
    assert next(iter(facts(done).values()))["sites"] == sorted(rosters[-1])


@pytest.mark.parametrize(("name", "secure"), [slow(n, s) for n in NAMES for s in (False, True)])
def test_hospitals_with_their_own_files_give_the_same_model(name, secure, tmp_path):
    settings = {**PLAN, "data": {"table": "data frame", **DATA}, "model": {"name": name}, "method": {name: SMALL[name]}}
    held = Hospitals.of(ROWS, name="glass", **settings, privacy={"secure": secure})
    here = held.simulated(tmp_path / "here", ROWS)
    there = held.deployed(tmp_path / "there")
    if name == "trees":
        assert final_model(there).tobytes() == final_model(here).tobytes()
    np.testing.assert_allclose(final_model(there), final_model(here), atol=1e-6, rtol=1e-6)
    assert there.summary["final"]["auroc"] == pytest.approx(here.summary["final"]["auroc"], abs=1e-9)


@pytest.mark.parametrize("name", [slow("gam"), *NAMES[1:]])
def test_commands_work_on_a_finished_run(name, tmp_path):
    """Predict, export, report, explain, privacy and the audit of a run, as a user calls them."""
    done = run(name, tmp_path / "r", explain={"sketch": "auto"})
    rows = tmp_path / "new.csv"
    columns = {k: v[:20] for k, v in ROWS.columns.items()}
    cells = [["" if v != v else str(v) for v in row] for row in zip(*columns.values(), strict=True)]
    rows.write_text("\n".join(",".join(row) for row in [list(columns), *cells]))
    folder = str(done.folder)
    commands = {
        "predict": ["predict", folder, "--table", str(rows), "--out", str(tmp_path / "p.csv")],
        "export": ["export", folder, "--to", "onnx", "--out", str(tmp_path / "m.onnx")],
        "report": ["report", folder],
        "show": ["show", folder],
        "explain": ["explain", folder, "--case", "3", "--table", str(rows), "--out", str(tmp_path / "case.html")],
        "privacy": ["privacy", folder],
        "verify": ["audit", "verify", folder],
    }
    for command, arguments in commands.items():
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (command, result.output)
    risk = gr.predict(done, ROWS)["risk_of_died"].to_numpy()
    assert np.isfinite(risk).all() and risk.std() > 0.02


class TestPairing:
    """A model of sums brings its own method, whatever the recipe says."""

    @pytest.mark.parametrize("name", NAMES)
    def test_a_model_alone_takes_its_method(self, name):
        found = load_recipe("breast-cancer").with_settings([f"model.name={name}"]).plan()
        assert (found["model"]["name"], found["method"]["name"], found["data"]["coding"]) == (name, name, "columns")
        assert found["method"]["rounds"] >= 60, "the recipe's 20 rounds are those of training"
        found = load_recipe("breast-cancer").with_settings([f"method.name={name}"]).plan()
        assert (found["model"]["name"], found["method"]["name"]) == (name, name)

    def test_what_the_user_names_is_not_changed(self):
        found = load_recipe("heart").with_settings(["model.name=trees", "method.name=pooled", "method.rounds=3"]).plan()
        assert (found["method"]["name"], found["method"]["rounds"]) == ("pooled", 3)

    def test_in_one_place_the_fit_is_one_round(self):
        found = load_recipe("heart").with_settings(["model.name=trees", "method.name=pooled"]).plan()
        assert (found["model"]["name"], found["method"]["name"], found["method"]["rounds"]) == ("trees", "pooled", 1)
        assert load_recipe("heart").with_settings(["method.name=pooled"]).plan()["method"]["rounds"] == 20

    def test_the_command_line_says_so(self, tmp_path):
        result = CliRunner().invoke(app, ["plan", "breast-cancer", "--model", "gam", "--out", str(tmp_path / "p.json")])
        assert result.exit_code == 0 and "assumed: model 'gam' is fitted from sums" in result.output
        assert json.loads((tmp_path / "p.json").read_text())["method"]["name"] == "gam"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gam", {"method": {"name": "fedavg"}}),
        ("gam", {"train": {"class_weights": "balanced"}}),
        ("trees", {"privacy": {"epsilon": 4.0}}),
        ("gam", {"options": {"monotone": {"ward": "up"}}}),
        ("trees", {"options": {"monotone": {"ward": "up"}}}),
        ("gam", {"options": {"monotone": {"agee": "up"}}}),
        ("trees", {"options": {"monotone": {"agee": "up"}}}),
        ("trees", {"privacy": {"secure": True, "on_halt": "skip"}}),
        ("trees", {"method": {"rounds": 3}}),
    ],
)
def test_what_does_not_fit_is_one_sentence(name, settings, tmp_path):
    with pytest.raises(BadInput) as no:
        run(name, tmp_path / "r", **settings)
    assert "\n" not in str(no.value) and no.value.code


def test_two_hospitals_are_too_few(tmp_path):
    for name in NAMES:
        with refused("method-does-not-fit"):
            run(name, tmp_path / name, rows=table(sizes=(100, 100)))


@pytest.mark.parametrize("name", NAMES)
def test_an_awkward_table(name, tmp_path):
    """Missing values, a constant column, free text, an identifier, and a number that is always missing."""
    n = sum(SIZES)
    extra = {
        "id": np.arange(n) + 1000.0,
        "unit": np.full(n, "icu", object),
        "note": np.array([f"patient {k} was seen in room {k % 97}" for k in range(n)], object),
        "never": np.full(n, np.nan),
    }
    rows = replace(ROWS, columns={**extra, **ROWS.columns})
    done = run(name, tmp_path / "r", rows=rows)
    assert done.summary["final"]["auroc"] > 0.6


class TestOwnShapes:
    """A hospital's own shapes stay there: they change its predictions and nothing else."""

    ROWS = table(seed=5, sizes=(300, 200, 200, 200), bent=-2.5)

    def done(self, folder, own=True, **settings):
        return run("gam", folder, rows=self.ROWS, options={"own_shapes": own}, **settings)

    def test_the_hospital_that_differs_predicts_better(self, tmp_path):
        common, own = self.done(tmp_path / "common", own=False), self.done(tmp_path / "own")
        assert final_model(own).tobytes() == final_model(common).tobytes(), "the common model is the same"
        before, after = (r.summary["per_site"] for r in (common, own))
        loss = {s: (before[s]["log_loss"], after[s]["log_loss"]) for s in before}
        assert loss["h0"][1] < loss["h0"][0] - 0.05
        assert sum(a == b for s, (a, b) in loss.items() if s != "h0") >= 2, "others keep the common model"
        stored = Checkpoint(own.folder / "checkpoint").read().part("sites")["0/value/own"][2]
        assert stored[0].any()
        assert any("shapes of its own" in note for note in own.summary["shapes"]["notes"])
        written = (own.folder / "summary.json").read_text() + (own.folder / "round_logs.json").read_text()
        assert not any(repr(float(v))[:10] in written for v in stored[0] if abs(v) > 1e-3)

    @pytest.mark.slow
    def test_they_are_the_same_after_a_crash_and_at_the_hospitals(self, tmp_path):
        whole = self.done(tmp_path / "whole")

        def stop(event):
            if event["event"] == "round" and event["round"] == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.done(tmp_path / "part", progress=stop)
        again = gr.resume(tmp_path / "part", table=self.ROWS)
        settings = {**PLAN, "data": {"table": "data frame", **DATA}, "model": {"name": "gam"},
                    "method": {"gam": {"own_shapes": True}}}  # fmt: skip
        held = Hospitals.of(self.ROWS, name="own", **settings)
        there = held.deployed(tmp_path / "there")
        for other in (again, there):
            for site, scores in whole.summary["per_site"].items():
                assert other.summary["per_site"][site]["log_loss"] == pytest.approx(scores["log_loss"], abs=1e-9)

    def test_a_case_says_that_its_prediction_is_the_common_one(self, tmp_path):
        done = self.done(tmp_path / "r")
        notes = [gr.explain_case(d, 3, table=self.ROWS).notes for d in (done, self.done(tmp_path / "c", own=False))]
        assert [any("shapes of its own" in note for note in told) for told in notes] == [True, False]

    def test_they_need_the_spline_model(self, tmp_path):
        with refused("method-does-not-fit"):
            self.done(tmp_path / "r", privacy={"epsilon": 4.0}, data={**DATA, **PUBLIC})
