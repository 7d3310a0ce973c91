"""`rounds recalibrate` on finished runs: every kind of model, the files of a site, the record, undo and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.cases.site_personal import personal_at
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.capabilities.watch.at_sites.site_watch import open_watch
from grandrounds.capabilities.watch.recalibration.recalibrate import hash_model, recalibrate, undo_recalibration
from grandrounds.core.arrays import load, save
from grandrounds.data.image_files import read_npz
from grandrounds.data.table import Table
from tests.command import rounds
from tests.engine.test_hospitals import write_csv
from tests.store import copied, finished
from tests.support import bright_squares, patients, refused, slow

SIZES = [150, 140, 130]
KINDS = {
    "logistic": {"model": {"name": "logistic"}, "method": {"rounds": 3}, "train": {"lr": 0.1}},
    "mlp": {"model": {"name": "mlp", "hidden": [5]}, "method": {"rounds": 10}, "train": {"lr": 0.3}},
    "personal": {"method": {"rounds": 3}, "train": {"lr": 0.1}, "personal": {"part": "intercept", "spread": 1.0}},
    "gam": {"model": {"name": "gam"}},
    "trees": {"model": {"name": "trees", "trees": 8, "depth": 2}},
    "local": {"model": {"name": "lightgbm", "trees": 3, "depth": 2}, "method": {"name": "local", "rounds": 1}},
    "glm": {"method": {"name": "glm", "exact": {"heterogeneity": False, "intercept": "common"}}},
}


def plan_of(**settings) -> gr.Experiment:
    data = {"label": "died", "site": "hospital", **settings.pop("data", {})}
    return gr.Experiment.parse({"data": data, "explain": {"sketch": "none"}, **settings})


def trained(folder: Path, table: Table | None = None, **settings) -> gr.Run:
    return gr.run(plan_of(**settings), table=patients(SIZES) if table is None else table, out=folder, progress=False)


def runs(kind: str) -> Path:
    """A finished run of a kind of model."""
    return finished(plan_of(**KINDS[kind]), table=patients(SIZES))


def recent(n: int = 200, *, site: str = "b", flip: float = 0.45, seed: int = 7, classes: int = 2) -> Table:
    """Later patients of a hospital, of whom more died: the model's risks are too low."""
    table = patients([n], seed=seed, classes=classes)
    rng, died = np.random.default_rng(seed), table.columns["died"].copy()
    died[(rng.random(n) < flip) & (died == 0)] = classes - 1
    return Table.from_mapping({**table.columns, "died": died, "hospital": np.repeat(site, n)}, source="recent.csv")


def logits(run: gr.Run, site: str | None, rows: Table) -> np.ndarray:
    return run.model_for(site).score_labelled(rows)[0]


@pytest.mark.parametrize("kind", ["logistic", "personal", "gam", slow("mlp"), slow("trees"), slow("local")])
def test_every_kind_of_model_has_the_line_in_its_own_file(kind, tmp_path):
    """Twice: the second recalibration composes with the first; and the run's own files stay, bit by bit."""
    copied(runs(kind), tmp_path / "run")
    run, rows = gr.load_run(tmp_path / "run"), recent()
    files = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file() and p.name != "lock"}
    first, other = logits(run, "b", rows), logits(run, "a", rows)
    done = recalibrate(run, "b", rows, by="A. Smith")
    assert done.update.kind != "none" and done.file.name == "recalibrated-1.safetensors"
    expected = done.line.slope * first + done.line.intercept
    np.testing.assert_allclose(logits(gr.load_run(run.folder), "b", rows), expected, atol=2e-5)
    np.testing.assert_array_equal(logits(run, "a", rows), other)
    after = recalibrate(run, "b", rows)
    assert after.update.kind == "none" and after.file is None and after.before.intercept.value == pytest.approx(0, abs=1e-3)
    later = recent(seed=9, flip=0.7)
    again = recalibrate(run, "b", later, by="B. Jones")
    assert again.file.name == "recalibrated-2.safetensors" and again.model_before == done.model_after
    composed = again.line.slope * expected + again.line.intercept
    np.testing.assert_allclose(logits(run, "b", rows), composed, atol=5e-5)
    assert undo_recalibration(run, "b")[1] == done.file
    np.testing.assert_allclose(logits(run, "b", rows), expected, atol=2e-5)
    assert undo_recalibration(run, "b")[1] == done.file_before
    np.testing.assert_array_equal(logits(run, "b", rows), first)
    with refused("no-recalibration"):
        undo_recalibration(run, "b")
    assert {p: p.read_bytes() for p in files} == files
    third = recalibrate(run, "b", rows)
    assert third.file.name == "recalibrated-3.safetensors", "files that were undone are kept and not overwritten"


def test_several_classes(tmp_path):
    table = patients([200, 190, 180], classes=3)
    run = trained(tmp_path / "run", table, method={"rounds": 3}, train={"lr": 0.1})
    rows = recent(300, classes=3)
    first = logits(run, "b", rows)
    done = recalibrate(run, "b", rows)
    assert done.update.kind != "none" and done.decisions is None and set(done.by_class) == {"0", "1", "2"}
    np.testing.assert_allclose(logits(run, "b", rows), done.line.slope * first + done.line.intercept, atol=2e-5)
    before, after = run.model.evaluate(rows)["overall"], run.model_for("b").evaluate(rows)["overall"]
    assert after["log_loss"] < before["log_loss"]


def test_the_event_may_be_the_first_class(tmp_path):
    """Risk of '0': figures are of that event, and the line is turned round for the model."""
    table = patients(SIZES)
    run = trained(tmp_path / "run", table, data={"event": "0"}, method={"rounds": 3}, train={"lr": 0.1})
    copied(runs("logistic"), tmp_path / "other")
    rows, other = recent(), gr.load_run(tmp_path / "other")
    here, there = recalibrate(run, "b", rows), recalibrate(other, "b", rows)
    assert here.line.slope == pytest.approx(there.line.slope, rel=1e-4)
    assert here.line.intercept == pytest.approx(there.line.intercept, abs=1e-3)
    assert here.before.intercept.value == pytest.approx(-there.before.intercept.value, abs=1e-3)
    assert here.before.observed[0] == pytest.approx(1 - there.before.observed[0])
    np.testing.assert_allclose(logits(run, "b", rows), logits(other, "b", rows), atol=1e-4)


def test_the_command_prints_records_and_undoes(tmp_path):
    folder, file = tmp_path / "run", tmp_path / "recent.csv"
    copied(runs("logistic"), folder)
    write_csv(file, recent())
    start = folder / "model.safetensors"
    tried = rounds("recalibrate", folder, "--site", "b", "--table", file, "--dry-run")
    assert tried.returncode == 0 and "nothing was written (--dry-run)" in tried.stdout
    assert not (folder / "at_sites" / "b").exists()
    before = rounds("predict", folder, "--for", "b", "--table", file).stdout
    done = json.loads(rounds("recalibrate", folder, "--site", "b", "--table", file, "--by", "A. Smith", "--json").stdout)
    assert done["model_before"] == hash_model(start) and done["model_after"] == hash_model(Path(done["file"]))
    after = rounds("predict", folder, "--for", "b", "--table", file).stdout
    assert after != before
    with WatchRecord.open(folder / "at_sites" / "b" / "watch") as record:
        entry = record.entries[-1]
    assert entry["kind"] == "action" and entry["by"] == "A. Smith" and entry["action"].startswith("recalibration: ")
    assert entry["models"] == {"before": done["model_before"], "after": done["model_after"]}
    assert entry["figures"]["slope"] == done["slope"] and entry["figures"]["intercept"] == done["intercept"][0]
    assert (entry["figures"]["rows"], entry["figures"]["patients with 1"]) == (200, done["patients_by_class"]["1"])
    for place in (folder, folder / "at_sites" / "b" / "watch"):
        verified = rounds("audit", "verify", place)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    back = rounds("recalibrate", folder, "--site", "b", "--undo", "--by", "B. Jones")
    assert back.returncode == 0 and f"uses {start} again" in back.stdout
    assert rounds("predict", folder, "--for", "b", "--table", file).stdout == before
    with WatchRecord.open(folder / "at_sites" / "b" / "watch") as record:
        entry = record.entries[-1]
        assert not record.verify()
    assert entry["action"] == "recalibration undone" and entry["models"]["after"] == done["model_before"]


def test_a_model_is_not_changed_where_the_change_cannot_be_recorded(tmp_path):
    folder, file = tmp_path / "run", tmp_path / "recent.csv"
    copied(runs("logistic"), folder)
    write_csv(file, recent())
    common = ("recalibrate", folder, "--site", "b", "--table", file)
    unknown = rounds(*common, "--alarm", "A3")
    assert unknown.returncode == 2 and "no alarm 'A3'" in unknown.stderr
    assert rounds(*common).returncode == 0
    ledger = folder / "at_sites" / "b" / "watch" / "ledger.db"
    ledger.unlink()
    lost = rounds(*common[:4], "--undo")
    assert lost.returncode == 2 and "was removed" in lost.stderr
    assert gr.load_run(folder).deployed_path("b").name == "recalibrated-1.safetensors"


def test_readers_name_the_recalibrated_model(tmp_path):
    copied(runs("glm"), tmp_path / "run")
    run, table = gr.load_run(tmp_path / "run"), patients(SIZES)
    before = explain_case(run, 160, data=table)
    assert before.model_owner == "the common model" and personal_at(run, "b") is None
    done = recalibrate(run, "b", recent(), by="A. Smith")
    case = explain_case(run, 160, data=table)
    assert case.model_owner == f"the common model, recalibrated on {done.time[:10]}, which b deploys"
    assert before.risk_interval is not None and case.risk_interval is None, "intervals are those of the common model"
    [sentence] = personal_at(run, "b").sentences
    assert f"times those of model.safetensors, plus {done.line.intercept[0]:+.3f}" in sentence and "A. Smith" in sentence
    assert personal_at(run, "a") is None


def test_few_patients_have_an_intercept_alone_and_too_few_none(tmp_path):
    copied(runs("logistic"), tmp_path / "run")
    run = gr.load_run(tmp_path / "run")
    few = recalibrate(run, "b", recent(90, flip=0.6), write=False)
    assert few.intercept_only and few.line.slope == 1 and len(few.update.tests) == 1 and few.update.kind == "intercept"
    with refused("too-few-patients", match="needs 20 of each class"):
        recalibrate(run, "b", recent(30))
    rows = recent(40, flip=0.3)
    many = Table.from_mapping(
        {**{n: np.repeat(c, 5) for n, c in rows.columns.items()}, "patient": np.repeat(np.arange(40) % 30, 5).astype(str)},
        source="recent.csv",
    )
    with refused("too-few-patients"):
        recalibrate(run, "b", many, patient="patient")


def test_rows_of_others_and_without_an_outcome_are_left_out(tmp_path):
    run, rows = gr.load_run(runs("logistic")), recent(220)
    died, site = rows.columns["died"].copy(), rows.columns["hospital"].astype(object)
    died[:15] = np.nan
    site[15:35] = "a"
    mixed = Table.from_mapping({**rows.columns, "died": died, "hospital": site}, source="recent.csv")
    done = recalibrate(run, "b", mixed, write=False)
    assert done.rows == 185
    assert done.warnings == ("20 rows of other hospitals were left out", "15 rows without a label were left out")
    named = Table.from_mapping({("outcome" if n == "died" else n): v for n, v in mixed.columns.items()}, source="recent.csv")
    assert recalibrate(run, "b", named, label="outcome", write=False).line.slope == done.line.slope
    with refused("no-rows-of-site", match="give rows of c"):
        recalibrate(run, "c", mixed, write=False)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"model": {"name": "forest", "trees": 3, "depth": 3}, "method": {"rounds": 1}}, "forest"),
        slow({"model": {"name": "card"}}, "risk card"),
        ({"data": {"label": "age", "task": "regression"}, "method": {"rounds": 1}}, "a number"),
        ({"data": {"task": "survival", "duration": "lactate"}, "method": {"name": "cox"}}, "hazard"),
    ],
)
def test_a_model_without_a_line_is_refused_in_one_sentence(settings, word, tmp_path):
    run = trained(tmp_path / "run", patients(SIZES, gaps=0.0), **settings)
    with refused("cannot-recalibrate", match=word):
        recalibrate(run, "b", recent())


def test_a_model_that_ranks_backwards_is_refused():
    rows = recent(flip=0.0)
    turned = Table.from_mapping({**rows.columns, "died": 1 - rows.columns["died"]}, source="recent.csv")
    with refused("ranks-backwards", match="check the label"):
        recalibrate(gr.load_run(runs("logistic")), "b", turned, write=False)


def test_a_file_of_another_run_is_refused(tmp_path):
    copied(runs("logistic"), tmp_path / "run")
    run = gr.load_run(tmp_path / "run")
    file = recalibrate(run, "b", recent()).file
    arrays, facts = load(file)
    save(file, arrays, {**facts, "common_sha256": "0" * 64})
    with refused("other-personal-model"):
        gr.load_run(run.folder).model_for("b")


def test_a_file_of_another_process_is_not_replaced(tmp_path, monkeypatch):
    copied(runs("logistic"), tmp_path / "run")
    run = gr.load_run(tmp_path / "run")
    first = recalibrate(run, "b", recent()).file
    content = first.read_bytes()
    monkeypatch.setattr("grandrounds.runs.personal_models._recalibrations", lambda folder: [])
    with refused("folder-in-use", match="at the same time"):
        recalibrate(run, "b", recent(seed=9, flip=0.7))
    assert first.read_bytes() == content and [p.name for p in first.parent.iterdir()] == [first.name]


def test_the_python_call_writes_records_and_can_only_compute(tmp_path):
    copied(runs("logistic"), tmp_path / "run")
    file = tmp_path / "recent.csv"
    write_csv(file, recent())
    tried = gr.recalibrate(tmp_path / "run", "b", file, by="A. Smith", write=False)
    assert tried.file is None and not (tmp_path / "run" / "at_sites").exists()
    done = gr.recalibrate(tmp_path / "run", "b", file, by="A. Smith", intercept_only=True)
    assert done.update.kind == "intercept" and done.line.slope == 1 and done.file.exists()
    shown = rounds("watch", "show", tmp_path / "run").stdout
    assert "b: no watch has started" in shown and "action: recalibration: intercept by A. Smith" in shown
    with refused("missing-option", match="who decides"):
        gr.recalibrate(tmp_path / "run", "b", recent(seed=9, flip=0.7), by=" ")
    assert gr.load_run(tmp_path / "run").deployed_path("b") == done.file, "no model is changed without its record"


@pytest.mark.slow
def test_a_net_of_images_is_recalibrated(tmp_path):
    pytest.importorskip("torch")
    file = bright_squares(tmp_path / "squares.npz", 240, "abc", purpose="recalibration")
    settings = {"data": {"table": str(file)}, "model": {"name": "small-cnn"}, "method": {"rounds": 2}}
    settings |= {"train": {"lr": 0.05, "epochs": 1}, "engine": {"device": "cpu"}}
    run = gr.run(gr.Experiment.parse({**settings, "explain": {"sketch": "none"}}), out=tmp_path / "run", progress=False)
    rows = read_npz(str(file)).take(np.arange(180))
    turned = np.where(np.random.default_rng(0).random(180) < 0.35, "malignant", rows.label).astype(object)
    later = replace(rows, label=turned, site=np.repeat(np.array(["b"], object), 180))
    first = logits(run, "b", later)
    done = recalibrate(run, "b", later)
    assert done.update.kind != "none"
    np.testing.assert_allclose(logits(run, "b", later), done.line.slope * first + done.line.intercept, atol=1e-4)


def test_a_watch_that_starts_after_a_recalibration_continues_its_record(tmp_path):
    copied(runs("logistic"), tmp_path / "run")
    run = gr.load_run(tmp_path / "run")
    done = gr.recalibrate(run, "b", recent(), by="A. Smith")
    with open_watch(run, "b", data=patients(SIZES)) as watch:
        assert watch.status["model"] == done.model_after
    undo_recalibration(run, "b")
    with open_watch(run, "b", data=patients(SIZES)) as watch:
        assert watch.status["model"] == done.model_before
    folder = run.folder / "at_sites" / "b" / "watch"
    with WatchRecord.open(folder) as record:
        starts = [e for e in record.entries if e["kind"] == "watch-start"]
    assert [bool(e["rates"]) for e in starts] == [False, True, True]
    assert [e["model"] for e in starts] == [done.model_before, done.model_after, done.model_before]
    assert rounds("audit", "verify", folder).returncode == 0
