"""A watch at one site of heart: alarms, patients counted once, late outcomes, crashes, refusals."""

from __future__ import annotations

import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.watch.at_sites import site_watch
from grandrounds.capabilities.watch.at_sites.baseline import choose_site, read_baseline
from grandrounds.capabilities.watch.at_sites.record import BASELINE, LEDGER, STATE, STATUS, WatchRecord
from grandrounds.capabilities.watch.at_sites.signer import find_signer
from grandrounds.capabilities.watch.at_sites.site_watch import PatientColumns, open_watch
from grandrounds.capabilities.watch.at_sites.sources import Source
from grandrounds.capabilities.watch.statistics import calibrate
from grandrounds.core.rng import generator
from grandrounds.runs.run import Run
from grandrounds.runs.run_rows import RunRows
from tests.store import copied, finished, shared_folder
from tests.support import bright_squares, patients, refused, slow

QUICK = {"method.rounds": 2, "explain.sketch": "none", "evaluation.every": 100}
SITE = "cleveland"


@pytest.fixture(scope="module", autouse=True)
def few_streams():
    """Levels of alarms from few resampled streams, which take a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grandrounds.capabilities.watch.at_sites.baseline.calibrate", partial(calibrate, streams=5))
        yield


@shared_folder
def watched(root: Path) -> None:
    """A run with the baseline of a site, which tests copy."""
    open_watch(gr.load_run(copied(finished("heart", settings=QUICK), root / "heart")), SITE).close()


@pytest.fixture(scope="module")
def run(watched):
    return gr.load_run(watched / "heart")


@pytest.fixture(scope="module")
def new(run):
    """240 patients of the site as a data frame, drawn from its rows without repetition."""
    rows = RunRows.read(run)
    table = rows.consortium.data.take(generator(1, purpose="new").permutation(rows.all_rows(SITE))[:240]).table
    return frame(table).drop(columns="hospital", errors="ignore")


@pytest.fixture
def folder(run, tmp_path):
    place = tmp_path / "watch"
    place.mkdir()
    shutil.copy(run.folder / "at_sites" / SITE / "watch" / BASELINE, place)
    return place


def frame(table):
    return pd.DataFrame({name: list(values) for name, values in table.columns.items()})


def opened(run, folder, **given):
    return open_watch(run, SITE, folder=folder, **given)


def in_other_unit(frame, since):
    changed = frame.copy()
    changed.loc[changed.index >= since, "cholesterol"] /= 38.67
    return changed


def test_patients_like_the_reference_raise_no_alarm(run, new, folder):
    with opened(run, folder) as watch:
        result = watch.read(Source(new))
        assert (result.new, result.labelled, list(result.alarms)) == (240, 240, [])
        assert watch.read(Source(new)).new == 0, "the same patients are not counted again"
    status = json.loads((folder / STATUS).read_text())
    assert status == result.status | {"timeline": status["timeline"]} and status["patients"] == 240
    assert 5000 * sum(c["rate"] for c in status["checks"]) == pytest.approx(status["rate"]["bound_per_5000"])
    assert {"missing values", "scores", "explanations", "outcomes"} <= {c["group"] for c in status["checks"]}
    age = next(c for c in status["checks"] if c["name"] == "shift up: age")
    assert age["current"] == pytest.approx(new["age"][-100:].mean(), rel=1e-9) and age["text"] == "age: higher"


def test_a_change_of_unit_is_found_named_and_explained(run, new, folder):
    with opened(run, folder) as watch:
        (alarm,) = watch.read(Source(in_other_unit(new, 120))).alarms
    assert alarm["column"] == "cholesterol" and 121 <= alarm["since"] <= 123 and alarm["patient"] < 140
    assert alarm["sentence"].startswith("Column cholesterol is outside the range of training in 100% of patients, 0% before")
    assert alarm["since_sentence"].startswith(f"Since patient {alarm['since']}, for ")
    assert "mg/dL to mmol/L, as of cholesterol is a factor of 38.67" in alarm["advice"][0]
    assert "labelled patients since then" in alarm["harm_sentence"] and alarm["harm"] in ("no clear loss", "unknown")
    assert (alarm["id"], alarm["state"]) == ("A1", "open")


def test_missing_columns_and_unknown_codes_are_named(run, new, folder, tmp_path):
    other = new.drop(columns=["max_heart_rate"]).assign(sex=new["sex"].replace({"male": "M"}))
    with opened(run, folder) as watch:
        alarms = {a["column"]: a for a in watch.read(Source(other.drop(columns="disease"))).alarms}
    assert alarms["max_heart_rate"]["sentence"].startswith("Column max_heart_rate is not in the table any more")
    sex = alarms["sex"]
    assert "codes that training did not have" in sex["sentence"] and "'M' (" in sex["sentence"]
    assert "map 'M' of column sex to 'male' if they mean the same" in sex["advice"][0]
    assert sex["harm_sentence"].startswith("There are no labels since then yet: it cannot be said")


@pytest.mark.parametrize("size", [slow(7), 30])
def test_batches_of_any_size_give_the_same_status(run, new, tmp_path, folder, size):
    shifted = in_other_unit(new, 60)[:110]
    with opened(run, folder) as watch:
        whole = watch.read(Source(shifted)).status
    again = tmp_path / "again"
    shutil.copytree(folder, again, ignore=lambda _, names: [n for n in names if n != BASELINE])
    with opened(run, again) as watch:
        for start in range(0, len(shifted), size):
            status = watch.read(Source(shifted[start : start + size])).status
    assert status["patients"] == whole["patients"]
    for mine, theirs in zip(status["checks"], whole["checks"], strict=True):
        assert mine["evidence"] == theirs["evidence"] and mine["current"] == pytest.approx(theirs["current"])
    assert [(a["check"], a["patient"], a["since"]) for a in status["alarms"]] == [
        (a["check"], a["patient"], a["since"]) for a in whole["alarms"]
    ]


def test_a_table_that_grows_is_read_from_where_it_ended(run, new, folder, tmp_path):
    file = tmp_path / "new.csv"
    new[:50].to_csv(file, index=False)
    with opened(run, folder) as watch:
        assert watch.read(Source(file)).new == 50
        new[:80].to_csv(file, index=False)
        result = watch.read(Source(file))
        assert (result.new, result.notes) == (30, ())
        new[:80].sample(frac=1, random_state=0).to_csv(file, index=False)
        assert watch.read(Source(file)).new == 0, "the order of rows does not matter"
        changed = new[:80].copy()
        changed.loc[3, "age"] += 1
        changed.to_csv(file, index=False)
        result = watch.read(Source(file))
    assert result.new == 1
    assert result.notes[0].startswith("new.csv: 1 of the 80 rows that were read before are not in it any more")


def test_rows_that_are_alike_are_several_patients(run, new, folder):
    twins = new.iloc[[0, 0, 1]].reset_index(drop=True)
    with opened(run, folder) as watch:
        assert watch.read(Source(twins)).new == 3 and watch.read(Source(twins)).new == 0
        ids = twins.assign(who=["a", "a", "b"])
        assert watch.read(Source(ids), PatientColumns(id="who")).new == 2, "an id is one patient"


def test_a_folder_is_read_file_by_file_and_each_once(run, new, folder, tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    new[:40].to_csv(inbox / "2026-01.csv", index=False)
    new[40:70].to_csv(inbox / "2026-02.csv", index=False)
    (inbox / ".2026-03.csv.part").write_text("half")
    (inbox / "2026-00.csv").write_text(",".join(new.columns) + "\n")  # a day without patients
    with opened(run, folder) as watch:
        assert watch.read(Source(inbox)).new == 70
        new[70:90].to_csv(inbox / "2026-03.csv", index=False)
        new[40:75].to_csv(inbox / "2026-02.csv", index=False)
        assert watch.read(Source(inbox)).new == 25
        assert watch.read(Source(inbox)).new == 0


def test_a_query_is_read_in_any_order(run, new, folder, tmp_path):
    with sqlite3.connect(tmp_path / "ward.db") as database:
        new[:40].to_sql("stays", database, index=False)
    database.close()
    url, query = f"sqlite:///{tmp_path / 'ward.db'}", "SELECT * FROM stays ORDER BY age {}"
    with opened(run, folder) as watch:
        assert watch.read(Source(url, query.format("ASC"))).new == 40
        assert watch.read(Source(url, query.format("DESC"))).new == 0


def test_dates_of_patients_order_them_and_date_the_change(run, new, folder):
    days = pd.date_range("2026-01-01", periods=len(new)).strftime("%Y-%m-%d")
    dated = in_other_unit(new, 120).assign(day=days).sample(frac=1, random_state=0)
    with opened(run, folder) as watch:
        (alarm,) = watch.read(Source(dated), PatientColumns(time="day")).alarms
    assert 121 <= alarm["since"] <= 123 and alarm["since_time"][:10] == days[alarm["since"] - 1]
    assert f"({days[alarm['since'] - 1]})" in alarm["since_sentence"]


def test_the_status_says_that_nothing_is_sent_under_a_privacy_budget(run, folder):
    private = Run(run.folder)
    private.plan["privacy"]["epsilon"] = 2.0
    with opened(private, folder) as watch:
        assert "privacy budget (epsilon 2.0), and nothing of the watch is sent" in watch.status["watched"][-1]


def test_rows_of_other_hospitals_are_left_out(run, new, folder):
    both = new[:20].assign(hospital=["va"] * 5 + [SITE] * 15)
    with opened(run, folder) as watch:
        result = watch.read(Source(both))
        assert result.new == 15 and result.notes == ("data frame: 5 rows of other sites are left out",)
        with refused("no-rows-of-site", match="va"):
            watch.read(Source(both[:5]))


def test_outcomes_that_come_later_count_as_if_they_came_at_once(run, new, folder, tmp_path):
    named = new.assign(who=[f"patient-{i:04}" for i in range(len(new))])
    known, later = tmp_path / "at-once", folder
    shutil.copytree(folder, known)
    with opened(run, known) as watch:
        at_once = watch.read(Source(named), PatientColumns(id="who")).status
    with opened(run, later) as watch:
        assert watch.read(Source(named.drop(columns="disease")), PatientColumns(id="who")).labelled == 0
        assert watch.status["waiting"] == 240
    data = (later / STATE).read_bytes()
    assert b"patient-0" not in data, "ids are not kept"
    with opened(run, later) as watch:
        outcomes = named[["who", "disease"]].rename(columns={"disease": "outcome"})
        unknown = outcomes[:1].assign(who="nobody")
        columns = PatientColumns(id="who", label="outcome")
        nobody = Source(named.drop(columns="disease").assign(outcome=None))
        result = watch.read(nobody, columns, labels=Source(outcomes[:100]))
        assert (result.new, result.labelled) == (0, 100)
        result = watch.read(nobody, columns, labels=Source(pd.concat([outcomes, unknown])))
        assert result.labelled == 140 and result.status["waiting"] == 0
        assert result.notes == ("rows in memory: 1 ids are of no patient who was read",)
        assert watch.read(nobody, columns, labels=Source(outcomes)).labelled == 0
    for mine, theirs in zip(result.status["checks"], at_once["checks"], strict=True):
        assert mine["evidence"] == pytest.approx(theirs["evidence"], abs=1e-3)
        assert mine["current"] == pytest.approx(theirs["current"])


def test_labels_in_the_same_table_may_be_filled_in_later(run, new, folder, tmp_path):
    file = tmp_path / "new.csv"
    late = new[:60].copy()
    late.loc[30:, "disease"] = None
    late.to_csv(file, index=False)
    with opened(run, folder) as watch:
        assert watch.read(Source(file)).labelled == 30
        new[:60].to_csv(file, index=False)
        result = watch.read(Source(file))
    assert (result.new, result.labelled, result.notes) == (0, 30, ())


def crash(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["before the state", "before the record", "before the files"])
def test_a_crash_loses_nothing_and_counts_nobody_twice(run, new, folder, monkeypatch, step):
    shifted = in_other_unit(new, 60)[:100]
    target = {
        "before the state": (site_watch.WatchState, "write"),
        "before the record": (WatchRecord, "add_reading"),
        "before the files": (site_watch, "_json"),
    }[step]
    with opened(run, folder) as watch, monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*target, crash)
        watch.read(Source(shifted))
    with opened(run, folder) as watch:
        result = watch.read(Source(shifted))
        assert result.status["patients"] == 100 and len(result.status["alarms"]) == 1
    with WatchRecord.open(folder) as record:
        assert [a.id for a in record.alarms()] == ["A1"] and not record.verify()
        assert record.alarms()[0].content["sentence"] == result.status["alarms"][0]["sentence"]


def test_an_acknowledged_check_starts_afresh(run, new, folder):
    columns = PatientColumns()
    shifted = in_other_unit(new, 0)
    with opened(run, folder) as watch:
        assert len(watch.read(Source(shifted[:60]), columns).alarms) == 1
        assert not watch.read(Source(shifted[60:120]), columns).alarms, "an open alarm is not raised again"
    with WatchRecord.open(folder, signer=find_signer(folder, site=SITE, run=run.folder)) as record:
        record.acknowledge("A1", by="M. Curie")
    with opened(run, folder) as watch:
        result = watch.read(Source(shifted[120:180]), columns)
        assert [a["state"] for a in result.status["alarms"]] == ["acknowledged", "open"], "the change lasts"
        assert [a["id"] for a in result.alarms] == ["A2"]


def test_another_baseline_starts_the_checks_afresh_and_reads_no_patient_again(run, new, folder):
    with opened(run, folder) as watch:
        watch.read(Source(in_other_unit(new, 0)[:60]))
    with opened(run, folder, baseline=Source(new[100:])) as watch:
        result = watch.read(Source(in_other_unit(new, 0)[:60]))
        assert result.new == 0 and "baseline is another than before" in result.notes[0]
        assert [a["id"] for a in result.status["alarms"]] == ["A1"], "earlier alarms stay"
        assert result.status["reference"]["source"] == "140 rows of data frame"
    assert (folder / LEDGER).exists()


def test_two_processes_cannot_use_one_folder(run, folder):
    with opened(run, folder), refused("folder-in-use"):
        opened(run, folder)


def test_refusals(run, new, folder, tmp_path):
    with refused("unknown-site", match="nowhere"):
        choose_site(run, "nowhere")
    with refused("site-required", match="--site"):
        choose_site(run, None)
    with refused("too-few-rows", match="at least 10"):
        read_baseline(run, SITE, table=new[:9])
    with opened(run, folder) as watch:
        with refused("unknown-class", match="maybe"):
            watch.read(Source(new[:3].assign(disease="maybe")))
        with refused("missing-columns"):
            watch.read(Source(new[["disease"]]))
        with refused("unknown-column", match="outcome"):
            watch.read(Source(new), PatientColumns(label="outcome"))
        with refused("unknown-column", match="who"):
            watch.read(Source(new), PatientColumns(id="who"))
        with refused("missing-option", match="--id"):
            watch.read(Source(new[:2]), labels=Source(new))
        assert watch.status["patients"] == 0, "what is refused is not counted"
    unfinished = tmp_path / "unfinished"
    copied(run.folder, unfinished)
    (unfinished / "summary.json").unlink()
    with refused("run-not-finished"):
        open_watch(Run(unfinished), SITE)


def test_a_run_without_validation_rows_names_the_setting(tmp_path):
    table = patients([60, 60])
    made = gr.run(
        frame(table), label="died", site="hospital", settings={**QUICK, "split.val": 0}, out=tmp_path / "run", progress=False
    )
    with refused("no-validation-rows", match="--baseline-table"):
        open_watch(made, "a")
    with refused("no-validation-rows", match=r"split\.val = 0"):
        open_watch(made, "a", data=table)


@pytest.mark.parametrize(
    ("label", "settings", "text"),
    [
        ("pressure", {"data.task": "regression", "data.drop_unlabelled": True}, "outcomes: not watched"),
        ("died", {"model.name": "trees", "method.rounds": 100, "method.trees.rounds": 3}, "exact Shapley values"),
        slow("died", {"model.name": "mlp", "model.hidden": [4]}, "path gradients"),
        slow("ward", {}, "prevalence, calibration and discrimination of each class"),
    ],
)
def test_other_models_and_tasks(tmp_path, label, settings, text):
    table = patients([150, 40, 40])
    given = {**QUICK, **settings}
    made = gr.run(frame(table), site="hospital", label=label, settings=given, out=tmp_path / "run", progress=False)
    said: list[str] = []
    with open_watch(made, "a", data=table, folder=tmp_path / "watch", say=said.append) as watch:
        assert f"resampling {watch.baseline.count} reference patients" in said[0]
        assert said[1].startswith(f"note: {watch.baseline.count} reference patients are few")
        assert any(text in line for line in watch.status["watched"])
        assert watch.read(Source(frame(patients([150], seed=1)).drop(columns="hospital"))).new == 150
        shifted = frame(patients([100], seed=2)).drop(columns="hospital")
        shifted["lactate"] *= 9
        alarms = watch.read(Source(shifted)).alarms
    assert "lactate" in {a["column"] for a in alarms}


def test_explanations_by_hiding_columns_where_no_explainer_suits(run, monkeypatch):
    baseline = read_baseline(run, SITE)
    exact = baseline.observer
    monkeypatch.setattr("grandrounds.capabilities.watch.at_sites.observer.Observer._signed", _no_explainer)
    rows = RunRows.read(run).consortium.data.table.take(np.arange(5))
    other = type(exact)(exact.model, exact.background)
    assert other.explainer == "hiding one column at a time"
    hidden = other.observe(rows).explanations
    monkeypatch.undo()
    assert hidden == pytest.approx(exact.observe(rows).explanations, abs=1e-5), "the two agree for a linear model"


def _no_explainer(*_):
    raise ImportError


@pytest.mark.slow
def test_images_are_watched_by_their_brightness_and_scores(tmp_path):
    file = bright_squares(tmp_path / "images.npz", 240, ["a", "b"], purpose="watch")
    settings = {"method.rounds": 1, "explain.sketch": "none", "model.name": "small-cnn"}
    made = gr.run(str(file), settings=settings, out=tmp_path / "run", progress=False)
    with open_watch(made, "a", folder=tmp_path / "watch") as watch:
        assert watch.status["watched"][0].startswith("inputs: brightness, contrast and detail of images")
        alike = bright_squares(tmp_path / "alike.npz", 80, ["a"], purpose="alike")
        assert (watch.read(Source(alike)).new, watch.status["alarms"]) == (80, [])
        dark = dict(np.load(alike))
        np.savez(tmp_path / "dark.npz", **{**dark, "images": dark["images"] // 2})
        alarms = {a["column"]: a for a in watch.read(Source(tmp_path / "dark.npz")).alarms}
    assert alarms["brightness"]["sentence"].startswith("Image brightness is lower: 100% of patients")
    assert alarms["brightness"]["advice"][0].startswith("Check the camera or scanner")
