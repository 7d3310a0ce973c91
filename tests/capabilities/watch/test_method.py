"""A watch across hospitals: sums equal the pooled counts, no patient leaves, noise has its charge, planted shifts are named."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import ask_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.capabilities.hospital.keeper.codes import NOT_IN_PLAN, Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import CELLS, SECURE, TASK, Policy
from grandrounds.capabilities.watch.earlier_run import read_model, read_watched, watch_values
from grandrounds.capabilities.watch.method.bins import WatchBins, agree_edges, edges_json
from grandrounds.capabilities.watch.method.comparison import (
    Comparison,
    compare_counts,
    fisher_p,
    holm,
    stability_index,
    student_p,
    trend_p,
)
from grandrounds.capabilities.watch.method.site import WatchLayout, watch_layout
from grandrounds.capabilities.watch.method.task import WATCH, watch_sensitivity
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.new_patients import PlantedShift
from grandrounds.data.table import Table
from grandrounds.experiment.requests import expected_asks
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.federation import assemble
from grandrounds.site.ask_cost import RowCounts
from grandrounds.site.host import SiteHost
from tests.support import patients, refused

SIZES = [260, 240, 250, 230, 270]
SHIFT = ["lactate=2@a", "lactate=2@c", "lactate=2@e", "ward=missing@b"]


@pytest.fixture(scope="module")
def rows() -> Table:
    return patients(SIZES)


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    values = {
        "name": "watched",
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.4},
        "method": {"rounds": 2},
        "train": {"steps": 20, "batch": 32, "lr": 0.3},
        "explain": {"sketch": "none"},
    }
    return gr.run(gr.Experiment.parse(values), table=rows, out=tmp_path_factory.mktemp("watched") / "run")


@pytest.fixture
def sent(monkeypatch):
    """Everything that sites answer with, by task: the sums before masking are not in it under secure aggregation."""
    seen: list[tuple[str, str, np.ndarray]] = []
    answer = SiteHost.answer

    def noted(self, ask, members):
        columns = answer(self, ask, members)
        seen.extend((ask.task, name, column) for name, column in columns.items())
        return columns

    monkeypatch.setattr(SiteHost, "answer", noted)
    return seen


def watch(trained, rows, tmp_path, name="w", **settings):
    return gr.watch_consortium(trained, rows=rows, out=tmp_path / name, **settings).summary


def layout_of(trained, *, private=False) -> WatchLayout:
    model = read_model(trained.folder)
    edges = watch_values(trained)["method"]["watch"]["edges"]
    return watch_layout(model.encoding, WatchBins.from_encoding(model.encoding, edges), private=private)


def test_sums_over_sites_equal_the_counts_of_the_pooled_new_patients(trained, rows, tmp_path, sent):
    plan = Plan(gr.Experiment.parse(watch_values(trained)).plan())
    layout = layout_of(trained)
    watch(trained, rows, tmp_path, secure=True, shifts=["age=1.5@b"])
    watched = assemble(Plan({**plan.plain(), "method": {**plan.plain()["method"], "watch": {
        **plan.plain()["method"]["watch"], "shifts": ["age=1.5@b"]}}}), rows)  # fmt: skip
    pooled = [np.concatenate(p) for p in zip(*(layout.bins.place(d) for d in watched.stack.new), strict=True)]
    masked = gr.load_run(tmp_path / "w").summary["watch"]
    by_name = {f["name"]: f for f in masked["features"]}
    n = len(pooled[0])
    assert masked["patients"] == n == sum(len(d) for d in watched.stack.new)
    checked = 0
    for column, place in zip(layout.bins.columns, pooled, strict=True):
        counts = np.bincount(place, minlength=len(column.names))
        for told, count in zip(by_name[column.name]["bins"], counts.tolist(), strict=True):
            if told["new"] is not None:
                assert told["new"] * n == pytest.approx(count, abs=1e-6)
                checked += 1
            else:
                assert count > 0, "only counts of patients are hidden"
    assert checked > 15


def test_secure_sums_are_those_in_the_clear(trained, rows, tmp_path, sent):
    clear = watch(trained, rows, tmp_path, "clear", shifts=SHIFT)["watch"]
    assert [len(v) for task, _, v in sent if task == WATCH] == [5]
    sent.clear()
    masked = watch(trained, rows, tmp_path, "masked", secure=True, shifts=SHIFT)["watch"]
    assert clear["by_site"] and not masked["by_site"], "sites are seen in the clear only"
    assert (clear["patients"], clear["reference"], clear["compared"]) == (masked["patients"], masked["reference"], 5)
    shown = {f["name"]: f for f in clear["features"]}
    for feature in masked["features"]:
        assert feature["moved"] == shown[feature["name"]]["moved"]
        assert feature["explanation"]["share"] == pytest.approx(shown[feature["name"]]["explanation"]["share"], abs=1e-7)
        if feature["means"]:
            assert feature["means"]["new"] == pytest.approx(shown[feature["name"]]["means"]["new"], rel=1e-6)
    assert clear["explanation"]["distance"] == pytest.approx(masked["explanation"]["distance"], abs=1e-6)
    assert {name for task, name, _ in sent if task == WATCH} == {"held"}, "sums are withheld: the server receives their shape"


def test_planted_shifts_are_named_with_their_sites_and_nothing_else(trained, rows, tmp_path):
    found = watch(trained, rows, tmp_path, secure=True, shifts=SHIFT)["watch"]
    first, second = found["features"][:2]
    assert (first["name"], first["moved"], first["shifted"]) == ("lactate", 3, True)
    assert (second["name"], second["moved"], second["shifted"]) == ("ward", 1, True)
    assert second["largest"]["bin"] == "missing"
    assert first["means"]["new"] > 1.3 * first["means"]["expected"]
    assert first["psi"] > 0.1 > max(f["psi"] for f in found["features"][2:])
    assert all(f["moved"] == 0 and not f["shifted"] for f in found["features"][2:])
    assert first["explanation"]["share"] > first["explanation"]["expected"], "the model relies more on a larger lactate"
    clear = watch(trained, rows, tmp_path, "clear", shifts=SHIFT)["watch"]
    assert {s["site"]: "lactate" in s["moved"] for s in clear["by_site"]} == dict(zip("abcde", (1, 0, 1, 0, 1), strict=True))


def test_patients_like_those_of_training_raise_no_alarm(trained, rows, tmp_path):
    calm = watch(trained, rows, tmp_path)
    found = calm["watch"]
    assert [s["moved"] for s in found["by_site"]] == [[]] * 5 and not any(f["shifted"] for f in found["features"])
    assert found["by_chance"] == pytest.approx(0.05) and found["explanation"]["distance"] < 0.1
    assert found["calibration"]["moved"] == 0 and 0.7 < found["calibration"]["ratio"] < 1.4
    assert calm["privacy"]["mechanism"] == "none" and calm["rounds"] == 1 and not (tmp_path / "w" / "model.safetensors").exists()
    assert calm["statistic"]["exchanges"]["count"] == 1


def test_no_value_of_a_patient_is_in_an_answer(trained, rows, tmp_path, sent):
    """Neither in the clear nor masked: no number of a patient, as recorded or as the model reads it, nor the score."""
    for secure in (False, True):
        watch(trained, rows, tmp_path, f"w{secure}", secure=secure)
    numbers = [rows.columns[c] for c in ("age", "lactate", "pressure")]
    model = read_model(trained.folder)
    scaled = [(v - r.centre) / r.scale for v, r in zip(numbers, model.encoding.numeric, strict=True)]
    words = {np.float64(v).tobytes() for column in (*numbers, *scaled) for v in column[np.isfinite(column)].tolist()}
    words |= {np.float32(v).tobytes() for column in scaled for v in column[np.isfinite(column)].tolist()}
    assert len(words) > 5000
    left = b"".join(np.ascontiguousarray(v).tobytes() for _, _, v in sent if isinstance(v, np.ndarray))
    told = {left[k : k + 8] for k in range(0, len(left) - 7)}
    assert not words & told
    assert {task for task, _, _ in sent} <= {"prepare", WATCH, "witness"} | {t for t, _, _ in sent if t.startswith("secagg.")}


def test_small_counts_do_not_leave_in_the_clear(trained, rows, tmp_path, sent):
    watch(trained, rows, tmp_path)
    layout = layout_of(trained)
    for vector in np.concatenate([v for task, _, v in sent if task == WATCH]):
        comparisons, _, counts = layout.unpack(vector)
        assert counts[0] >= 5
        for c in range(len(layout.bins.columns)):
            seen = comparisons[f"column {c}"].observed
            assert not ((seen > 0) & (seen < 5)).any()
            assert counts[0] - seen.sum() == 0 or counts[0] - seen.sum() >= 5 or (seen == 0).sum() >= 2
        assert not comparisons["calibration"].variance.any(), "events by bin are too few: one total is sent"


def test_noise_has_the_stated_scale_and_the_whole_budget_is_charged_once(trained, rows, tmp_path, sent):
    summary = watch(trained, rows, tmp_path, epsilon=1.0)
    found, promised = summary["watch"], summary["privacy"]
    reach = math.sqrt(2 * (4 + 4))  # 4 columns, scores, explanations, events and risks; as a new and as a reference patient
    assert watch_sensitivity(4, labels=True) == pytest.approx(reach)
    assert {e["of"] for e in promised["events"]} == {"training", "validation"}
    sigma = promised["events"][0]["sigma"]
    assert found["noise"] == pytest.approx(sigma * reach)
    assert promised["epsilon"] == pytest.approx(epsilon_of([Event("gaussian", "x", sigma=sigma)], promised["delta"]))
    assert 0.99 < promised["epsilon"] <= 1.0 and set(promised["spent"]) == {"training", "validation"}
    noisy = np.concatenate([v for task, _, v in sent if task == WATCH])
    sent.clear()
    stack = assemble(Plan(gr.Experiment.parse(watch_values(trained)).plan()), rows).stack
    layout = layout_of(trained, private=True)
    off = []
    for k, vector in enumerate(noisy):
        comparisons, _, _ = layout.unpack(vector)
        for c, (column, place) in enumerate(zip(layout.bins.columns, layout.bins.place(stack.new_patients(k)), strict=True)):
            off.extend(comparisons[f"column {c}"].observed - np.bincount(place, minlength=len(column.names)))
    assert len(off) > 100 and abs(np.mean(off)) < 4 * found["noise"] / math.sqrt(len(off))
    assert 0.8 * found["noise"] < np.std(off) < 1.25 * found["noise"]
    assert any("the watched model and the agreed bins" in line for line in promised["not_covered"])
    unasked = ("summaries of training rows", "metrics on test rows")
    assert not any(line.startswith(unasked) for line in promised["not_covered"]), "nobody was asked for them"
    assert "noisy counts" in gr.load_run(tmp_path / "w").folder.joinpath("report.html").read_text()


def test_one_patient_changes_the_counts_by_no_more_than_the_charge_says(trained, rows):
    """Leave one patient out of both groups and compare all histograms."""
    from grandrounds.capabilities.watch.method.site import WatchSite, _histograms
    from grandrounds.models import build_model

    model = read_model(trained.folder)
    layout = layout_of(trained, private=True)
    data = assemble(Plan(gr.Experiment.parse(watch_values(trained)).plan()), rows).stack.data

    class Site:
        encoding = model.encoding
        stack = type("S", (), {"event": 1, "parts": {"train": type("P", (), {"x": np.zeros(1, np.float32)})}})

        def prepared_model(self):
            return build_model(model.spec, device="cpu")

    site = WatchSite(Site())  # type: ignore[arg-type]
    most = 0.0
    for gone in range(12):
        both = []
        for part in (data.take(np.arange(40)), data.take(np.delete(np.arange(40), gone))):
            group = site._count(part, part, layout, model.theta, model.background, labels=True)
            both.append(np.concatenate(_histograms(group, labels=True)))
        most = max(most, float(np.linalg.norm(both[0] - both[1])))
    assert most * math.sqrt(2) <= watch_sensitivity(4, labels=True) + 1e-9
    assert most > math.sqrt(5), "columns and scores are counted in full"


def test_noise_alone_moves_nothing():
    """Under no change and under noise p-values of trends and bins are those of chance: 5% are below 0.05."""
    rng = generator(3, purpose="noisy counts")
    share, noise, n, m = np.array([0.2, 0.3, 0.1, 0.25, 0.15]), 12.0, 80, 300
    draws = [
        (rng.multinomial(n, share) + rng.normal(0, noise, 5), rng.multinomial(m, share) + rng.normal(0, noise, 5))
        for _ in range(2000)
    ]
    trend = [trend_p(a, b, noise=noise, n=n, n_reference=m) for a, b in draws]
    bins = [compare_counts(a, b, noise=noise, n=n, n_reference=m).p() for a, b in draws]
    assert 0.03 < np.mean(np.array(trend) < 0.05) < 0.07
    assert np.mean(np.array(bins) < 0.05) < 0.06
    exact = [trend_p(rng.multinomial(n, share), rng.multinomial(m, share)) for _ in range(2000)]
    assert 0.03 < np.mean(np.array(exact) < 0.05) < 0.07


def test_noise_and_secure_aggregation_go_together(trained, rows, tmp_path):
    clear = watch(trained, rows, tmp_path, "clear", epsilon=8.0, shifts=SHIFT)
    masked = watch(trained, rows, tmp_path, "masked", epsilon=8.0, secure=True, shifts=SHIFT)
    assert clear["privacy"]["spent"] == masked["privacy"]["spent"]
    assert clear["watch"]["patients"] == masked["watch"]["patients"], "the noise follows from each site's secret"
    assert [f["moved"] for f in clear["watch"]["features"]] == [f["moved"] for f in masked["watch"]["features"]]
    assert masked["watch"]["features"][0]["name"] == "lactate" and masked["watch"]["features"][0]["moved"] >= 1
    assert masked["watch"]["features"][0]["psi"] is None, "noise alone would make it large"


def ask(trained, **changes) -> Ask:
    w = watch_values(trained)["method"]["watch"]
    shared = {"digest": w["model"], "edges": edges_json(w["edges"]), "level": 0.01, "least": 5, "labels": 1, "columns": 4}
    shared["moved"] = "test"
    return Ask(WATCH, shared={**shared, **changes}, report=("sums",)).numbered(AskId("w", 1, 1), ("a",))


def test_a_site_charges_the_noise_of_the_request(trained):
    counts = RowCounts(100, 30, 20)
    cost = ask_cost(ask(trained, noise=40.0), counts, Terms(), unbounded=False)
    assert [(e.kind, e.of, e.sigma) for e in cost.events] == [("gaussian", p, 10.0) for p in ("training", "validation")]
    tests_only = ask_cost(ask(trained, noise=40.0), RowCounts(0, 0, 20), Terms(), unbounded=False)
    assert [(e.kind, e.of, e.sigma) for e in tests_only.events] == [("gaussian", "training", 10.0)]  # new patients are counted
    bare = ask_cost(ask(trained), counts, Terms(), unbounded=False)
    assert not bare.events and bare.disclosures["sums"].rows == ("training", "validation")


def test_a_policy_refuses_small_cells_in_the_clear_and_what_it_does_not_allow(trained):
    def plan(*settings, **more):
        return gr.Experiment.parse(watch_values(trained, **more)).with_settings(list(settings)).plan()

    low, usual, secure = plan("method.watch.least=2"), plan(), plan(secure=True)
    assert Policy().refuses(ask(trained), low) == CELLS and Policy().refuses(ask(trained), usual) == ""
    assert Policy().refuses(ask(trained), plan("method.watch.least=2", secure=True)) == ""
    only = Policy.parse("[secure]\nonly = true\n")
    assert only.refuses(ask(trained), usual) == SECURE
    assert only.refuses(replace(ask(trained), withheld=("sums",)), secure) == ""
    assert Policy.parse('[tasks]\ndeny = ["watch"]\n').refuses(ask(trained), usual) == TASK
    assert "summarise" not in {a.task for a in expected_asks(usual)} and WATCH in {a.task for a in expected_asks(usual)}
    questions = Questions(usual, {})
    questions.check(ask(trained))
    for changes in ({"digest": "0" * 64}, {"edges": "{}"}, {"least": 2}, {"level": 0.5}):
        with pytest.raises(Refusal) as caught:
            questions.check(ask(trained, **changes))
        assert caught.value.code == NOT_IN_PLAN


def test_another_model_than_the_plan_names_is_refused(trained, rows, tmp_path):
    built = gr.Experiment.parse(watch_values(trained)).with_settings([f"method.watch.model={'0' * 64}"])
    with refused("other-model"):
        read_watched(Plan(built.plan()))
    with refused("no-watched-run"):
        gr.run(gr.Experiment.parse({**built.plan(), "method": {"name": "watch"}}), table=rows, out=tmp_path / "r")


def test_new_patients_come_from_a_table_with_or_without_labels(trained, rows, tmp_path):
    fresh = pd.DataFrame(dict(patients([60, 3, 50, 40, 45], seed=5).columns))
    fresh.loc[fresh.hospital == "a", "pressure"] *= 1.6
    fresh.drop(columns="died").to_csv(tmp_path / "new.csv", index=False)
    found = watch(trained, rows, tmp_path, table=tmp_path / "new.csv", secure=True)["watch"]
    assert found["compared"] == 4 and found["patients"] == 195, "three patients are too few to compare"
    assert found["calibration"] is None and found["features"][0]["name"] == "pressure" and found["features"][0]["moved"] == 1
    fresh["hospital"] = "z"
    fresh.to_csv(tmp_path / "other.csv", index=False)
    with refused("unknown-site"):
        watch(trained, rows, tmp_path, "x", table=tmp_path / "other.csv")


def test_alarms_of_a_sites_own_watch_decide_what_moved_there(trained, rows, tmp_path):
    checks = [
        {"kind": "missing", "column": "age", "status": "alarm"},
        {"kind": "shift", "column": "lactate", "status": "quiet"},
        {"kind": "explanation", "column": "ward", "status": "alarm"},
        {"kind": "net benefit", "column": "", "status": "alarm"},
    ]
    folder = trained.folder / "at_sites" / "b" / "watch"
    folder.mkdir(parents=True)
    (folder / "watch.json").write_text(json.dumps({"checks": checks}))
    try:
        found = watch(trained, rows, tmp_path, alarms=True, shifts=["lactate=2@a", "lactate=2@b"])["watch"]
        moved = {s["site"]: s["moved"] for s in found["by_site"]}
        assert moved["b"] == ["age", "explanation of ward"] and "lactate" in moved["a"] and found["moved_by"] == "alarms"
        with refused("method-does-not-fit", match="have no noise"):
            watch(trained, rows, tmp_path, "noised", alarms=True, epsilon=1.0)
    finally:
        shutil.rmtree(trained.folder / "at_sites")


@pytest.mark.parametrize("text", ["lactate", "lactate=two@a", "=2@a", "lactate=nan@a"])
def test_a_planted_change_has_one_form(text):
    with refused("bad-shift"):
        PlantedShift.parse(text)
    assert PlantedShift.parse("lactate = 2 @ a") == PlantedShift("lactate", 2.0, "a")


def test_tests_are_those_of_the_textbooks():
    new, old = np.array([3, 9, 0]), np.array([1, 40, 7])
    wanted = [stats.fisher_exact([[a, 12 - a], [b, 48 - b]]).pvalue for a, b in zip(new, old, strict=True)]
    assert fisher_p(new, old) == pytest.approx(wanted, rel=1e-9)
    low, high = np.array([5, 20, 30, 20, 5]), np.array([30, 60, 30, 20, 10])
    values = [np.repeat(np.arange(5), counts) for counts in (low, high)]
    wilcoxon = stats.mannwhitneyu(*values, method="asymptotic", use_continuity=False).pvalue
    assert trend_p(low, high) == pytest.approx(wilcoxon, rel=0.05)
    assert trend_p(low, low) == 1.0 and trend_p(low[:1], high[:1]) == 1.0
    t = Comparison(np.array([3.0, -9.0]), np.zeros(2), np.array([1.0, 4.0]))
    assert student_p(t, fewest=31) == pytest.approx([2 * stats.t.sf(3, 30), 2 * stats.t.sf(4.5, 30)], rel=0.03)
    assert holm([0.001, 0.04, 0.03, 0.2], 0.05).tolist() == [True, False, False, False]
    assert holm([0.01, 0.01, 0.02, 0.04], 0.05).tolist() == [True, True, True, True]
    even, half = np.array([50.0, 50.0]), Comparison(np.array([75.0, 25.0]), np.array([50.0, 50.0]), np.ones(2))
    assert stability_index(half) == pytest.approx(0.25 * math.log(3), abs=0.01)  # (.75-.5) ln 1.5 + (.25-.5) ln .5
    assert stability_index(Comparison(even, even, np.ones(2))) == 0
    assert compare_counts([5, 5], [100, 100]).expected == pytest.approx([5, 5])


def test_bins_hold_every_value(trained):
    encoding = read_model(trained.folder).encoding
    layout = layout_of(trained)
    age = layout.bins.columns[0]
    low, high = age.edges[0], age.edges[-1]
    placed = age.place_numbers(np.array([np.nan, low - 1, low, high, high + 1]))
    assert placed.tolist() == [0, 1, 2, len(age.names) - 2, len(age.names) - 1]
    assert agree_edges(encoding, None)["age"][0] == low and len(agree_edges(encoding, None)["age"]) == 6
    with refused("bad-bins"):
        WatchBins.from_encoding(encoding, {"age": [1.0, 1.0]})
