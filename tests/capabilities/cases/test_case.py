"""One patient and one site of a finished run explained: what adds up, whose model speaks, what is odd, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.attributions import contrast_weights
from grandrounds.capabilities.cases.case import explain_case, explain_site
from grandrounds.capabilities.cases.values import short
from grandrounds.core.names import site_named
from grandrounds.core.rng import generator
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.table import Table
from grandrounds.runs.run_rows import RunRows
from tests.runs.test_run import frame
from tests.store import shared_folder
from tests.support import patients, refused

SETTINGS = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 4}}


def made(folder, table=None, **changes) -> gr.Run:
    """A finished run on a CSV file of patients of hospitals a, b and c."""
    path = folder.parent / f"{folder.name}.csv"
    (frame(patients([80, 60, 50])) if table is None else table).to_csv(path, index=False)
    values = {**SETTINGS, **changes}
    values["data"] = {**SETTINGS["data"], **changes.get("data", {}), "table": str(path)}
    return gr.run(gr.Experiment.parse(values), out=folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@shared_folder
def patients_explained(root: Path) -> None:
    """A run with a common model, and one whose sites have their own."""
    made(root / "logistic")
    made(root / "apart", method={"name": "local", "rounds": 4})


@pytest.fixture(scope="module")
def logistic(patients_explained):
    return gr.load_run(patients_explained / "logistic")


@pytest.fixture(scope="module")
def apart(patients_explained):
    return gr.load_run(patients_explained / "apart")


def by_hand(run: gr.Run, case: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """A linear model's coefficients, the patient's inputs, the mean of all training rows, and each input's column."""
    model, rows = run.model, RunRows.read(run)
    data = rows.consortium.data
    x = model.encoding.encode(data.take([case - 1]), float)[0]
    return (
        model.parameters["layer0.weight"].astype(float),
        x,
        model.encoding.encode(data.take(rows.training), float).mean(axis=0),
        model.encoding.sources,
    )


def test_a_linear_models_reasons_add_up_to_its_log_odds(logistic):
    case = explain_case(logistic, 12)
    risk = logistic.model.predict(pd.read_csv(logistic.plan["data"]["table"])).risk[11]
    assert case.probability == pytest.approx(risk)
    assert case.score == pytest.approx(np.log(risk / (1 - risk)), abs=1e-5)
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score, abs=1e-9)
    assert case.baseline == pytest.approx(1 / (1 + np.exp(-case.base)))
    assert case.target_class == "1"
    assert case.start == "the mean of the 128 training patients of all sites"
    sizes = [abs(r.contribution) for r in case.attributions]
    assert sizes == sorted(sizes, reverse=True)


def test_inputs_of_one_column_are_one_reason(logistic):
    w, x, mean, sources = by_hand(logistic, 12)
    case = explain_case(logistic, 12)
    assert {r.column for r in case.attributions} == {"age", "lactate", "pressure", "ward"}
    assert sources.count("ward") == 3, "a category of three levels is three inputs"
    for reason in case.attributions:
        own = [j for j, source in enumerate(sources) if source == reason.column]
        assert reason.contribution == pytest.approx(float((w[own, 0] * (x - mean)[own]).sum()), abs=1e-5)


def test_values_are_in_clinical_units_and_stand_among_the_training_rows(logistic):
    table = pd.read_csv(logistic.plan["data"]["table"])
    rows = RunRows.read(logistic)
    trained = table.iloc[rows.training]
    case = explain_case(logistic, 30)
    held = {r.column: r for r in case.attributions}
    row = table.iloc[29]
    assert held["age"].value == row["age"]
    below, alike = (trained["age"] < row["age"]).sum(), (trained["age"] == row["age"]).sum()
    exact = 100 * (below + alike / 2) / trained["age"].notna().sum()
    assert held["age"].percentile == pytest.approx(exact, abs=case.population.summary.numeric["age"].tolerance)
    assert held["ward"].value == row["ward"]
    assert held["ward"].share == pytest.approx((trained["ward"] == row["ward"]).mean())
    assert held["ward"].percentile is None
    assert case.outcome == str(int(row["died"]))
    assert case.site == row["hospital"]
    position = rows.consortium.stack.names.index(case.site)
    assert 29 in getattr(rows.consortium.stack.rows[position], case.part)


def test_high_lactate_raises_the_risk_and_low_lactate_lowers_it(logistic):
    rows = {"age": 60.0, "pressure": 75.0, "ward": "medical"}
    new = pd.DataFrame([{**rows, "lactate": 6.0}, {**rows, "lactate": 0.4}])
    ill, well = (next(r for r in explain_case(logistic, n, table=new).attributions if r.column == "lactate") for n in (1, 2))
    assert (ill.value, ill.direction) == (6.0, "raises")
    assert (well.value, well.direction) == (0.4, "lowers")
    assert ill.percentile > 90
    assert well.percentile < 10


def test_what_is_odd_about_a_patient_is_said(logistic):
    new = pd.DataFrame([{"age": 1e4, "lactate": np.nan, "ward": "attic"}])
    case = explain_case(logistic, 1, table=new, allow_missing=True)
    held = {r.column: r for r in case.attributions}
    fill = next(r for r in logistic.model.encoding.numeric if r.name == "lactate").fill
    high = next(r for r in logistic.model.encoding.numeric if r.name == "age").high
    assert held["lactate"].value is None
    assert 0 < held["lactate"].share < 0.2
    assert held["age"].percentile == 100
    assert held["ward"].share == 0
    for words in (
        f"lactate has no value: the consortium's median, {short(fill)}, is used instead",
        f"age = 10000 is above what nearly all training patients have: it is clipped to {short(high)}",
        "column 'pressure' is absent: the consortium's median",
        "ward = 'attic' occurs in fewer than 5 training patients: it reads as no category",
    ):
        assert any(note.text.startswith(words) for note in case.quality), (words, case.quality)
    assert {n.column: n.kind for n in case.quality} == {
        "age": "outside", "lactate": "imputed", "pressure": "absent", "ward": "unseen",
    }  # fmt: skip
    assert {r.column for r in case.attributions if r.imputed} == {"lactate", "pressure"}
    assert (case.site, case.part, case.outcome) == (None, None, None)
    clipped = explain_case(logistic, 1, table=new.assign(age=high), allow_missing=True)
    assert case.score == pytest.approx(clipped.score), "a value drawn in counts as the bound it was drawn to"


def test_ordered_levels_keep_their_words(home):
    table = frame(patients([80, 60, 50])).assign(grade=lambda t: np.where(t["lactate"] > 2, "high", "low"))
    run = made(home / "ordered", table, data={"kinds": {"grade": ["low", "mid", "high"]}})
    case = explain_case(run, 3)
    grade = next(r for r in case.attributions if r.column == "grade")
    assert grade.value == table["grade"][2]
    assert grade.percentile is not None
    missing = explain_case(run, 1, table=pd.DataFrame([{"age": 50.0, "grade": None}]), allow_missing=True)
    assert any("grade has no value: the consortium's median, low" in note.text for note in missing.quality)


def test_of_three_classes_the_predicted_one_is_explained_against_the_others(home):
    run = made(home / "three", frame(patients([80, 60, 50], classes=3)))
    case = explain_case(run, 7)
    row = pd.read_csv(run.plan["data"]["table"]).iloc[[6]]
    p = run.model.predict(row).probabilities[0]
    best = int(p.argmax())
    assert case.target_class == case.decision == run.model.encoding.classes[best]
    assert case.threshold is None
    others = np.log(np.delete(p, best)).mean()
    assert case.score == pytest.approx(np.log(p[best]) - others, abs=1e-5)
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score, abs=1e-9)
    assert sum(case.probabilities) == pytest.approx(1)


def test_a_contrast_of_two_outputs_is_their_log_odds():
    np.testing.assert_array_equal(contrast_weights(1, [0, 1], 1, kernel="numpy"), [1])
    np.testing.assert_array_equal(contrast_weights(1, [0, 1], 0, kernel="numpy"), [-1], "an event that is class 0")
    np.testing.assert_array_equal(contrast_weights(2, [0, 1], 1, kernel="numpy"), [-1, 1])
    np.testing.assert_array_equal(contrast_weights(5, [1, 2, 4], 2, kernel="numpy"), [0, -0.5, 1, 0, -0.5])
    np.testing.assert_array_equal(contrast_weights(3, [0, 1, 2], 0, kernel="forest"), [1, 0, 0])


@pytest.mark.parametrize("explainer", ["kernel", "integrated_gradients", "lime", "coefficients"])
def test_every_explainer_agrees_on_a_linear_model(logistic, explainer):
    want = {r.column: r.contribution for r in explain_case(logistic, 12).attributions}
    case = explain_case(logistic, 12, explainer=explainer)
    found = {r.column: r.contribution for r in case.attributions}
    if explainer == "coefficients":
        w, x, _, sources = by_hand(logistic, 12)
        want = {c: float((w[:, 0] * x)[np.array(sources) == c].sum()) for c in want}
    off = 0.05 if explainer == "lime" else 1e-6
    assert found == pytest.approx(want, abs=off)
    assert case.remainder == pytest.approx(0, abs=off)
    assert case.explainer == explainer


def test_deep_shap_explains_an_mlp_and_adds_up(home):
    pytest.importorskip("torch")
    run = made(home / "mlp", model={"name": "mlp", "hidden": [6]})
    paths, deep = (explain_case(run, 12, explainer=e) for e in ("shap", "deep"))
    assert deep.remainder == pytest.approx(0, abs=1e-9)
    assert paths.remainder == pytest.approx(0, abs=0.01)
    assert deep.base == paths.base
    near = {r.column: r.contribution for r in paths.attributions}
    assert {r.column: r.contribution for r in deep.attributions} == pytest.approx(near, abs=0.1)
    with refused("explainer-does-not-fit", match="'coefficients'.*shap, deep"):
        explain_case(run, 12, explainer="coefficients")


@pytest.mark.parametrize(
    ("model", "method", "calibrate"),
    [("logistic", "fedavg", "platt"), ("logistic", "fedavg", "temperature"), ("lightgbm", "pooled", "platt")],
)
def test_what_is_taken_apart_is_the_calibrated_risk(home, model, method, calibrate):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    more = {"model": {"name": model}, "method": {"name": method, "rounds": 3}, "evaluation": {"calibrate": calibrate}}
    run = made(home / f"{model}-{calibrate}", **more)
    assert run.model.calibration is not None
    case = explain_case(run, 12)
    assert case.score == pytest.approx(np.log(case.probability / (1 - case.probability)), abs=1e-5)
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score, abs=1e-5)
    assert case.baseline == pytest.approx(1 / (1 + np.exp(-case.base)))


def test_a_forests_vote_is_explained_in_probability(home):
    run = made(home / "forest", model={"name": "forest", "trees": 4, "depth": 3}, method={"rounds": 1})
    case = explain_case(run, 12)
    assert case.unit == "probability"
    assert case.score == pytest.approx(case.probability, abs=1e-5)
    assert case.baseline == case.base
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.probability, abs=1e-5)
    with refused("explainer-does-not-fit", match="shap, kernel, lime"):
        explain_case(run, 12, explainer="integrated_gradients")


def test_where_models_stay_separate_the_sites_own_speaks(apart):
    table = pd.read_csv(apart.plan["data"]["table"])
    case = explain_case(apart, 100)
    assert (case.site, case.model_owner) == ("b", "b's own model")
    assert case.probability == pytest.approx(apart.model_for("b").predict(table).risk[99])
    other = explain_case(apart, 100, site="3")
    assert (other.site, other.model_owner) == ("b", "c's own model")
    assert other.probability == pytest.approx(apart.model_for("c").predict(table).risk[99])
    assert other.probability != pytest.approx(case.probability)
    assert explain_case(apart, 1, table=table[99:100]).model_owner == "b's own model", "a new patient's row may name the site"
    stranger = explain_case(apart, 1, table=table[99:100].drop(columns="hospital"))
    assert stranger.model_owner == "the common model"
    assert any("models stay separate" in note for note in stranger.notes)


def test_a_site_that_deploys_the_common_model_has_no_note_of_another(logistic, home):
    """Site a deploys its own intercept, b the common model, and c refused; none of their files is in the folder."""
    folder = home / "choices"
    shutil.copytree(logistic.folder, folder, ignore=shutil.ignore_patterns("at_sites"))
    summary = json.loads((folder / "summary.json").read_text())
    choices = {"a": "intercept", "b": "common"}
    common = {"part": "intercept", "guard": True, "rows": "train", "spread": 0.5, "stays": False}
    summary["personal"] = {**common, "choices": choices}
    (folder / "summary.json").write_text(json.dumps(summary))
    run = gr.load_run(folder)
    hospitals = list(frame(patients([80, 60, 50]))["hospital"])
    rows = {site: hospitals.index(site) + 1 for site in "abc"}
    notes = {site: explain_case(run, case).notes for site, case in rows.items()}
    noted = {site: any("deploys a personal model" in note for note in each) for site, each in notes.items()}
    assert noted == {"a": True, "b": False, "c": False}


def test_reference_rows_are_the_background_of_a_model_that_needs_rows(home):
    run = made(home / "reference", reference={"rows": {"rows": 25}}, model={"name": "mlp", "hidden": [4]})
    case = explain_case(run, 12)
    assert case.start == "the mean of 25 reference rows ('rows')"
    rows = RunRows.read(run)
    held = rows.consortium.reference["rows"].rows
    x = run.model.encoding.encode(rows.consortium.data.take(held), float)
    logits = run.model.net.logits(run.model.theta.astype(float), x)
    assert case.base == pytest.approx(float(logits.mean()), abs=1e-6)
    assert explain_case(run, int(held[0]) + 1).part == "reference"


def test_rows_are_counted_as_in_the_file_even_where_some_were_left_out(home):
    table = frame(patients([80, 60, 50]))
    table.loc[[2, 5], "died"] = np.nan
    run = made(home / "gaps", table, data={"drop_unlabelled": True})
    case = explain_case(run, 12)
    assert next(r.value for r in case.attributions if r.column == "age") == table["age"][11]
    with refused("row-without-label", match="row 6 "):
        explain_case(run, 6)
    assert explain_case(run, 6, table=run.plan["data"]["table"]).outcome is None
    last = explain_case(run, 190)
    assert next(r.value for r in last.attributions if r.column == "pressure") == table["pressure"][189]


def test_poisoned_rows_are_called_so(home):
    run = made(home / "attacked", attacks=[{"kind": "label-flip", "sites": ["a"]}])
    rows = RunRows.read(run)
    case = explain_case(run, int(rows.consortium.stack.rows[0].train[0]) + 1)
    assert any("a attacks in this study (label-flip)" in note for note in case.notes)
    tested = explain_case(run, int(rows.consortium.stack.rows[0].test[0]) + 1)
    assert tested.notes == ()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"case": 0}, "unknown-row"),
        ({"case": 191}, "unknown-row"),
        ({"case": 2, "table": pd.DataFrame([{"age": 4.0}]), "allow_missing": True}, "unknown-row"),
        ({"case": 1, "table": pd.DataFrame([{"weight": 4.0}])}, "missing-columns"),
        ({"case": 1, "explainer": "shop"}, "unknown-explainer"),
        ({"case": 1, "site": "d"}, "unknown-site"),
    ],
)
def test_what_cannot_be_explained_is_refused(logistic, arguments, code):
    with refused(code):
        explain_case(logistic, **arguments)


def test_changed_lost_and_remembered_data(home, tmp_path):
    table = frame(patients([40, 40]))
    run = made(home / "moved", table)
    path = run.plan["data"]["table"]
    table.assign(age=1.0).to_csv(path, index=False)
    with refused("data-changed"):
        explain_case(run, 1)
    (home / "moved.csv").unlink()
    with refused("file-not-found", match=r"moved\.csv"):
        explain_case(run, 1)
    assert explain_site(run, "a").provenance.startswith("recorded by the run"), "a record needs no data"
    with refused("file-not-found", match=r"moved\.csv"):
        explain_site(run, "a", explainer="permutation")
    memory = gr.run(gr.Experiment.parse(SETTINGS), table=table, out=tmp_path / "memory")
    with refused("rows-not-available"):
        explain_case(memory, 1)
    assert explain_case(memory, 1, data=table).site == "a"
    (memory.folder / "summary.json").unlink()
    with refused("run-not-finished"):
        explain_case(gr.load_run(memory.folder), 1, data=table)


def test_a_case_is_plain_json(logistic, apart):
    for found in (explain_case(logistic, 12), explain_site(logistic, "b"), explain_site(apart, "b")):
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert json.loads(text)["site"] == found.site


def test_heart_patients_with_gaps_are_explained(home):
    run = gr.run(gr.Experiment.parse({"data": {"name": "heart"}, "method": {"rounds": 3}}), out=home / "heart")
    case = explain_case(run, 700)
    raw = RunRows.read(run).consortium.data.table.take([699])
    read = read_new_rows(raw, run.model.schema)
    gaps = {c for c, v in zip(read.numeric_names, read.numeric[0], strict=True) if np.isnan(v)}
    gaps |= {c for c, code in zip(read.categorical_names, read.codes[0], strict=True) if code < 0}
    assert gaps
    assert {r.column for r in case.attributions if r.value is None} == gaps
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score, abs=1e-5)


def recorded(run: gr.Run, folder, block) -> gr.Run:
    """A copy of a run whose explanations.json says `block` of the final model."""
    shutil.copytree(run.folder, folder)
    held = {"schema": 1, "sketch": {"explainer": "permutation"}, "features": ["age", "lactate"], "rounds": []}
    (folder / "explanations.json").write_text(json.dumps({**held, "final": {"consensus": [0.6, 0.4], **block}}))
    return gr.load_run(folder)


def test_a_site_is_compared_with_what_the_run_recorded(logistic, tmp_path):
    sketches = {"a": [0.5, 0.5], "b": [0.9, 0.1], "c": [0.4, 0.6]}
    blur = {"a": 0.06, "b": 0.09, "c": 0.03}
    block = {"sketches": sketches, "error": {s: [0.03, 0.04] for s in sketches}, "flat": [], "blur": blur}
    found = explain_site(recorded(logistic, tmp_path / "r", block), "B")
    age, lactate = found.columns
    assert (age.column, age.share, age.other_sites, age.consensus) == ("age", 0.9, pytest.approx(0.45), pytest.approx(0.6))
    assert age.other_sites_error == pytest.approx(0.03 * np.sqrt(2) / 2)
    assert found.divergence == pytest.approx(0.6)
    assert (found.rank, found.sites) == (1, 3)
    assert [c.column for c in found.more] == ["age"]
    assert [c.column for c in found.less] == ["lactate"]
    assert found.sampling == pytest.approx(np.sqrt(0.06**2 + 0.02**2 + 0.01**2))  # own blur counts 2/3, the others' 1/3
    assert lactate.difference == pytest.approx(-0.45)
    near = explain_site(recorded(logistic, tmp_path / "n", {**block, "error": {s: [0.3, 0.3] for s in sketches}}), "b")
    assert near.more == near.less == ()


def test_a_flat_site_is_left_out_of_the_others(logistic, tmp_path):
    sketches = {"a": [0.8, 0.2], "b": [0.6, 0.4], "c": [0.5, 0.5]}
    block = {
        "sketches": sketches,
        "error": {s: [0.0, 0.0] for s in sketches},
        "flat": ["c"],
        "blur": dict.fromkeys(sketches, 0.0),
    }
    run = recorded(logistic, tmp_path / "r", block)
    assert {c.column: c.other_sites for c in explain_site(run, "b").columns} == {"age": 0.8, "lactate": 0.2}
    assert explain_site(run, "c").flat


def test_a_site_whose_patients_differ_in_nothing_does_not_use_that_column(home):
    table = frame(patients([80, 60, 50]))
    table.loc[table["hospital"] == "b", "lactate"] = 1.9
    run = made(home / "constant", table, explain={"sketch": "none"})
    found = explain_site(run, "b")
    assert "measured now on 60 patients of b" in found.provenance
    uses = {c.column: c for c in found.columns}
    assert uses["lactate"].share == 0
    assert uses["lactate"].other_sites > 0.1
    assert sum(c.share for c in found.columns) == pytest.approx(1)
    assert found.performance["count"] == run.summary["per_site"]["b"]["count"]
    assert explain_site(run, "b", explainer="coefficients").divergence == pytest.approx(0, abs=1e-6)
    with refused("unknown-explainer", match="'lime'"):
        explain_site(run, "b", explainer="lime")


def test_sites_are_found_by_name_number_and_carelessly():
    names = ("site-01", "site-02", "site-10", "North")
    assert site_named("site-02", names) == "site-02"
    assert site_named("Site-2", names) == "site-02"
    assert site_named("north", names) == "North"
    assert site_named("3", names) == "site-10"
    assert site_named("3", ("7", "3")) == "3", "a name goes before a place"
    with refused("unknown-site", match="'site-01'"):
        site_named("sit-01", names)
    with refused("unknown-site", match="'5'"):
        site_named("5", names)


def test_numbers_are_written_as_people_write_them():
    assert [short(v) for v in (120.0, 0.11840000000000001, 12345.678, -2.5)] == ["120", "0.1184", "12346", "-2.5"]


@shared_folder
def squares(home: Path) -> None:
    """Bright squares on the left or on the right of dark pictures, at three sites, and a net that learnt them."""
    pytest.importorskip("torch")
    rng = generator(0, purpose="pictures")
    n = 240
    y = rng.integers(0, 2, n)
    x = rng.integers(0, 40, (n, 16, 16, 1))
    for i in range(n):
        c = 2 if y[i] == 0 else 9
        x[i, 5:11, c : c + 5] += 180
    site = np.array(["north", "south", "west"])[np.arange(n) % 3]
    np.savez(home / "squares.npz", images=x.astype(np.uint8), labels=np.array(["benign", "malignant"])[y], site=site)
    values = {
        "data": {"table": str(home / "squares.npz"), "masks": "strokes"},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 2},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
    }
    gr.run(gr.Experiment.parse(values), out=home / "squares")


@pytest.fixture(scope="module")
def pictures(squares):
    return gr.load_run(squares / "squares")


def test_a_picture_is_explained_by_heat_where_the_square_is(pictures):
    from grandrounds.data.image_files import read_npz

    held = read_npz(pictures.plan["data"]["table"])
    case = explain_case(pictures, 8)
    said = pictures.model.predict(held.take([7]))
    assert case.predicted == said.decisions[0] == case.outcome == held.label[7]
    assert case.probability == pytest.approx(said.probabilities[0].max())
    assert (case.site, case.source) == ("south", "squares")
    assert case.covered == pytest.approx(30 / 256)
    np.testing.assert_array_equal(case.mask, held.pixels[7, ..., 0] >= 0.3 * 255)
    assert set(case.heats) == {"grad_cam", "normgrad", "integrated_gradients"}
    assert all(h.shape == (16, 16) for h in case.heats.values())
    numbers = case.numbers["integrated_gradients"]
    heat = np.abs(case.heats["integrated_gradients"])
    assert numbers.inside == pytest.approx(heat[case.mask].sum() / heat.sum(), abs=1e-6)
    assert numbers.iou_ratio == pytest.approx(heat[case.mask].mean() / heat[~case.mask].mean(), rel=1e-5)
    assert numbers.inside > 3 * case.covered
    new = explain_case(pictures, 8, table=pictures.plan["data"]["table"])
    assert (new.part, new.covered) == (None, case.covered)
    np.testing.assert_array_equal(new.heats["grad_cam"], case.heats["grad_cam"])


def test_a_sites_pictures_are_some_wrong_and_some_right(pictures, home):
    from grandrounds.explain.explainers.heat import heat

    found = explain_site(pictures, "south")
    rows = RunRows.read(pictures)
    south = rows.consortium.stack.rows[rows.consortium.stack.names.index("south")]
    assert {c.number - 1 for c in found.cases} <= set(south.test.tolist())
    assert len({c.number for c in found.cases}) == 6
    assert found.rows == found.scored == found.masked == len(south.test)
    assert found.covered == pytest.approx(30 / 256)
    assert found.means["integrated_gradients"].xai_accuracy.value == 1
    assert 0 < found.means["normgrad"].concentration < 1
    weak = gr.run(
        gr.Experiment.parse({**gr.Experiment.load(pictures.folder / "experiment.toml").model_dump(mode="json")})
        .with_settings(["method.rounds=1", "train.lr=0.0001"]),
        out=home / "weak",
    )  # fmt: skip
    unsure = explain_site(weak, "south")
    wrong = [c.predicted != c.outcome for c in unsure.cases]
    assert wrong == [True, True, True, False, False, False]
    first = unsure.cases[0]
    x = weak.model.encoding.encode(rows.consortium.data.take([first.number - 1]))
    said = np.array([weak.model.encoding.classes.index(first.predicted)])
    want = heat("grad_cam", weak.model.net, weak.model.theta, x, said)[0]
    np.testing.assert_allclose(first.heats["grad_cam"], want, atol=1e-6, err_msg="heat is of what the net says")


def test_pictures_and_tables_are_not_mixed_up(pictures, logistic):
    squares = pictures.plan["data"]["table"]
    with refused("wrong-data-kind"):
        explain_case(logistic, 1, table=squares)
    with refused("wrong-data-kind"):
        explain_case(pictures, 1, table=pd.DataFrame([{"age": 1.0}]))
    with refused("explainer-does-not-fit", match="'shap'.*Grad-CAM"):
        explain_case(pictures, 1, explainer="shap")
    with refused("unknown-row", match="squares.*row 241"):
        explain_case(pictures, 241)


def test_a_table_from_memory_may_be_a_table(logistic):
    row = Table.from_mapping(
        {"age": [60.0], "lactate": [2.0], "pressure": [75.0], "ward": ["cardiac"]}, source="bedside"
    )
    assert explain_case(logistic, 1, table=row).source == "bedside"
