"""XFed's paper as studies: one set of runs for table and figures, verdicts on hand-made and on printed numbers, a quick one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from tests.report.test_page import Page
from tests.support import on_few_pictures

from grandrounds.capabilities.cases.rationale import ScoredImage
from grandrounds.methods.select import count_sites
from grandrounds.methods.xfed.ranking import rank_sites
from grandrounds.recipes import load_recipe, recipes
from grandrounds_studies import studies
from grandrounds_studies.kept import digest
from grandrounds_studies.results import NotRun, Reading, Results
from grandrounds_studies.study import Arm, Cell, Point, Quick, Study
from grandrounds_studies.xfed import claims, drawing, photos
from grandrounds_studies.xfed.looked import LIFT, LUCKY, QUARTERS, lift, packed, unpacked
from grandrounds_studies.xfed.measures import (
    ACCURACY,
    CHANGED,
    GRID,
    MEAN_XAI,
    RUN,
    SAVED,
    XAI,
    baselines,
    course,
    swing,
)
from grandrounds_studies.xfed.seen import FIGURE_1
from grandrounds_studies.xfed.setting import (
    ARMS,
    BY_ACCURACY,
    BY_GRID,
    DIGITS,
    FEDAVG,
    FEDPROX,
    KEEP,
    OORT,
    PHOTOS,
    PLAIN,
    XFEDAVG,
    XFEDPROX,
)
from grandrounds_studies.xfed.table import LAST, PRINTED, ROUNDS

OF_THE_TABLE = ("table-1", "fig-1", "fig-2", "fig-4", "fig-5", "fig-7")


def plan(study: str, arm: Arm, point: Point = PHOTOS, seed: int = 2) -> dict:
    return studies()[f"xfed/{study}"].plan(Cell(point.label, arm.label, seed))


# What there is


def test_the_table_and_the_figures_are_there():
    named = {name.removeprefix("xfed/") for name in studies() if name.startswith("xfed/")}
    assert {*OF_THE_TABLE, "fig-6"} <= named


@pytest.mark.parametrize("study", OF_THE_TABLE[1:])
def test_a_figure_has_the_runs_of_the_table(study):
    """So each distinct plan needs to run once."""
    for arm in studies()[f"xfed/{study}"].arms:
        mine, theirs = plan(study, arm), plan("table-1", arm)
        assert digest({**mine, "name": ""}) == digest({**theirs, "name": ""})


def test_arms_differ_in_the_method_alone_and_are_scored_alike():
    plans = [plan("table-1", arm) for arm in ARMS]
    assert len({digest(p) for p in plans}) == len(ARMS)
    assert len({digest({**p, "name": "", "method": {}}) for p in plans}) == 1
    rule = ("form", "top", "grid", "steps", "samples", "sigma")
    assert len({tuple(p["method"]["xfed"][k] for k in rule) for p in plans}) == 1
    assert all(p["evaluation"]["rationale_set"] == "scoring" for p in plans)


def test_the_set_up_is_the_papers():
    made = plan("table-1", XFEDAVG)
    assert (made["data"]["name"], made["split"]["sites"], made["method"]["rounds"]) == ("cifar-10", 16, 17)
    t = made["train"]
    assert (t["epochs"], t["batch"], t["lr"], t["optimizer"], t["augment"]) == (20, 128, 0.01, "momentum", "none")
    assert (made["model"]["name"], made["model"]["stem"]) == ("resnet18", "imagenet")
    assert made["reference"]["scoring"]["source"] == "xfed-cifar-30" and studies()["xfed/table-1"].seeds == 3
    assert (made["method"]["xfed"]["xai_share"], made["method"]["xfed"]["score"]) == (0.2, "masks")
    assert plan("table-1", BY_ACCURACY)["method"]["xfed"]["xai_share"] == 0
    assert plan("table-1", BY_GRID)["method"]["xfed"]["score"] == "grid"
    assert plan("table-1", XFEDPROX)["method"]["mu"] == plan("table-1", FEDPROX)["method"]["mu"] == 0.01
    digits = plan("fig-6", XFEDAVG, DIGITS)
    assert (digits["data"]["name"], digits["split"]["sites"]) == ("mnist", 10)
    assert digits["reference"]["scoring"]["source"] == "xfed-mnist"


@pytest.mark.parametrize(("sites", "kept"), [(16, 15), (10, 9)])
def test_one_site_is_left_out_and_oort_asks_as_many_as_xfed_keeps(sites, kept):
    names = tuple(f"site-{k:02}" for k in range(sites))
    zeros = np.zeros(sites)
    for keep in (KEEP, 0.95):
        assert rank_sites(zeros, zeros, names, keep=keep).selected.sum() == kept
    assert count_sites(plan("table-1", OORT)["method"]["select"]["fraction"], sites) == kept


def test_recipes_are_the_papers_set_up():
    for name, study, point in (("xfed/cifar-10", "table-1", PHOTOS), ("xfed/mnist", "fig-6", DIGITS)):
        assert recipes()[name].startswith("XFed")
        made, theirs = load_recipe(name).plan(), plan(study, XFEDAVG, point, seed=0)
        for section in ("split", "reference", "model", "method", "train", "evaluation"):
            assert made[section] == theirs[section], (name, section)


# What is printed


def test_the_printed_table_is_the_papers():
    assert ROUNDS[-1] == 17 and len(ROUNDS) == 9
    assert all(len(values) == 9 for printed in PRINTED.values() for values in printed.values())
    assert [LAST[PHOTOS.label, a.label]["accuracy"] for a in (FEDAVG, FEDPROX, XFEDAVG, XFEDPROX)] == [
        80.39, 82.68, 81.11, 83.33,
    ]  # fmt: skip
    assert [LAST[PHOTOS.label, a.label]["xai"] for a in (FEDAVG, FEDPROX, XFEDAVG, XFEDPROX)] == [
        66.67, 50.00, 80.00, 53.33,
    ]  # fmt: skip


def test_every_printed_xai_accuracy_is_a_number_of_thirty_pictures():
    for printed in PRINTED.values():
        for value in printed["xai"]:
            assert value == pytest.approx(100 * claims.right_of(value) / 30, abs=0.005)


@given(st.integers(0, 30))
@settings(max_examples=31, deadline=None)
def test_a_coin_is_scipys(k):
    assert claims.coin(k) == pytest.approx(binomtest(k, 30).pvalue)


def test_printed_figures_put_to_the_test():
    """15 of 30 is what a coin gives. 20 and 24 of the same 30 are at best four changes in one direction: 2 / 2^4."""
    nothing = found({("p", "a"): {}})
    xai = {arm: printed["xai"][-1] for arm, printed in PRINTED.items()}
    chance = claims.printed_above_chance(xai, others={arm: p["xai"] for arm, p in PRINTED.items()})
    assert [chance(nothing, a.label).word for a in (FEDAVG, FEDPROX, XFEDAVG, XFEDPROX)] == [
        "refuted", "refuted", "reproduced", "refuted",
    ]  # fmt: skip
    assert "15 of 30 images, p = 1.000; of 9 printed rounds 0" in chance(nothing, FEDPROX.label).why
    apart = claims.printed_apart(xai, PLAIN)
    assert apart(nothing, XFEDAVG.label).word == "refuted"
    assert "20 (FedAvg) and 24 of 30 images, +13.3 points" in apart(nothing, XFEDAVG.label).why
    assert apart(nothing, XFEDAVG.label).why.endswith("p = 0.125")
    large = claims.printed_apart({"FedAvg": 50.0, "XFedAvg": 80.0}, PLAIN)
    assert large(nothing, XFEDAVG.label).word == "reproduced", "nine pictures are more than chance"


# Verdicts on hand-made numbers


def found(numbers, kept=None, seeds=2) -> Results:
    """(point, arm) -> measure -> figures by seed."""
    measures = {m.name: m for m in (*RUN, *baselines("xai"), *QUARTERS, MEAN_XAI, LIFT)}
    points, arms = (dict.fromkeys(key[k] for key in numbers) for k in (0, 1))
    made = Study(
        name="test/one", title="One", source="a paper", base={}, points=tuple(Point(p, {}) for p in points),
        arms=tuple(Arm(a, {}) for a in arms), measures=tuple(measures.values()), claims=(), quick=Quick(),
    )  # fmt: skip
    readings = {
        Cell(point, arm, i): Reading({m: v[i] for m, v in figures.items()}, (kept or {}).get((point, arm, i), {}))
        for (point, arm), figures in numbers.items()
        for i in range(seeds)
    }
    return Results(made, readings, seeds)


TO = {"x": "avg"}


def test_a_gain_must_be_large_enough_and_clear():
    numbers = {("p", "avg"): {"xai": [60.0, 62.0]}, ("p", "x"): {"xai": [70.0, 72.0]}}
    assert str(claims.gains("p", "xai", TO, least=0.14)(found(numbers), "x")) == (
        "reproduced: XAI accuracy (%) 61.0 -> 71.0 against avg, +10.000, 95% CI +10.000 to +10.000, at p; +16.4% of it"
    )
    assert claims.gains("p", "xai", TO, least=0.2)(found(numbers), "x").word == "refuted"
    wide = {**numbers, ("p", "x"): {"xai": [60.0, 90.0]}}
    assert claims.gains("p", "xai", TO, least=0.14)(found(wide), "x").word == "inconclusive"
    assert claims.above("p", "xai", TO)(found(numbers), "x").word == "reproduced"
    assert claims.below("p", "xai", TO)(found(numbers), "x").word == "refuted"


def test_close_wants_all_of_the_interval_inside_the_margin():
    numbers = {("p", "avg"): {"accuracy": [60.0, 62.0]}, ("p", "x"): {"accuracy": [60.5, 62.5]}}
    sure = claims.close("p", "accuracy", TO, within=1.0)(found(numbers), "x")
    assert sure.word == "reproduced"
    wide = {**numbers, ("p", "x"): {"accuracy": [58.0, 65.0]}}
    assert claims.close("p", "accuracy", TO, within=1.0)(found(wide), "x").word == "inconclusive"


def test_a_sixteenth_of_the_uploads_is_between_5_and_10_percent_and_a_quarter_is_not():
    numbers = {("p", "avg"): {"uploads": [16.0, 16.0]}, ("p", "x"): {"uploads": [15.0, 15.0]}}
    saved = claims.fewer("p", "uploads", "avg", low=0.05, high=0.10)
    assert saved(found(numbers), "x").word == "reproduced" and "-6.25%" in saved(found(numbers), "x").why
    assert saved(found({**numbers, ("p", "x"): {"uploads": [12.0, 12.0]}}), "x").word == "refuted"


def test_a_net_that_scores_as_its_shuffled_weights_beats_nothing():
    numbers = {("p", "x"): {"xai": [80.0, 83.0], "shuffled_xai": [80.0, 83.0], "blob_xai": [100.0, 100.0]}}
    assert claims.beats("p", "xai", "shuffled_xai")(found(numbers), "x").word == "refuted"
    assert claims.beats("p", "xai", "blob_xai")(found(numbers), "x").word == "refuted"
    better = {("p", "x"): {"xai": [80.0, 83.0], "shuffled_xai": [60.0, 63.0]}}
    assert str(claims.beats("p", "xai", "shuffled_xai")(found(better), "x")) == (
        "reproduced: XAI accuracy of shuffled weights (%) 61.5, of the trained net 81.5, +20.000, 95% CI +20.000 to +20.000, at p"
    )
    with pytest.raises(NotRun, match="one seed has no interval"):
        claims.beats("p", "xai", "shuffled_xai")(found(better, seeds=1), "x")


def test_courses_are_held_against_each_other_in_every_round():
    numbers = {("p", a): {"accuracy": [0.0, 0.0]} for a in ("avg", "x")}
    kept = {("p", "avg", i): {"accuracy": [90.0, 95.0]} for i in range(2)}
    kept |= {("p", "x", i): {"accuracy": [93.0 + i, 95.2]} for i in range(2)}
    verdict = claims.together("p", "accuracy", TO, within=1.0)(found(numbers, kept), "x")
    assert verdict.word == "inconclusive"
    assert "furthest apart in round 1: 90.00 -> 93.50, +3.50 points; in the last +0.20" in verdict.why
    assert claims.together("p", "accuracy", TO, within=4.0)(
        found(numbers, kept), "x"
    ).word == "inconclusive"  # 3 and 4 points, two seeds
    assert claims.together("p", "accuracy", TO, within=10.0)(found(numbers, kept), "x").word == "reproduced"
    with pytest.raises(NotRun, match="xai by round is not known"):
        claims.together("p", "xai", TO, within=4.0)(found(numbers, kept), "x")


def test_a_run_that_failed_leaves_a_gap_and_not_a_wrong_figure():
    numbers = {("p", "avg"): {"xai": [60.0, float("nan")]}, ("p", "x"): {"xai": [70.0, 72.0]}}
    with pytest.raises(NotRun, match="undefined in a run"):
        claims.gains("p", "xai", TO, least=0.14)(found(numbers), "x")


# What is read off a run


class Told:
    """As much of a run as measures read."""

    def __init__(self, *rounds: dict, sites: int = 4) -> None:
        self.rounds, self.plan = list(rounds), {"split": {"sites": sites}}


def chosen(accuracy: dict[str, float], place: dict[str, float], kept: int) -> dict:
    weights = dict.fromkeys(sorted(place, key=place.get)[:kept], 1 / kept)
    return {"decision": {"signals": {"accuracy": accuracy, "place": place}, "weights": weights}}


def test_how_often_reasons_changed_the_choice():
    same = chosen({"a": 0.9, "b": 0.5, "c": 0.4}, {"a": 1, "b": 2, "c": 3}, 2)
    other = chosen({"a": 0.9, "b": 0.5, "c": 0.4}, {"a": 1, "c": 2, "b": 3}, 2)
    tied = chosen({"a": 0.9, "b": 0.4, "c": 0.4}, {"b": 1, "a": 2, "c": 3}, 2)
    assert CHANGED.read(Told(same, other)) == 50 and CHANGED.read(Told(same, tied)) == 0
    assert np.isnan(CHANGED.read(Told({"decision": {"signals": {}, "weights": {"a": 1.0}}})))


def test_models_that_were_not_sent_are_counted():
    one = chosen({}, {"a": 1, "b": 2, "c": 3, "d": 4}, 3)
    assert SAVED.read(Told(one, one)) == 25


def test_a_course_is_in_percent_and_skips_rounds_without_a_score():
    run = Told({"test": {"accuracy": 0.5}, "reasons": {"xai": 0.25}}, {}, {"test": {"accuracy": 0.75}, "reasons": {}})
    assert course(run, "accuracy") == [50, 75]
    assert course(run, "xai")[0] == 25 and np.isnan(course(run, "xai")[1])
    assert swing([50, 75, 70]) == 15 and np.isnan(swing([50]))


def test_lift_by_hand():
    """Right in 3 of 4 where it looks at the object, in 1 of 2 where it does not."""
    told = [(True, True)] * 3 + [(False, True), (True, False), (False, False)]
    assert lift(told) == pytest.approx(25) and np.isnan(lift([(True, True)]))


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]))
@settings(max_examples=20, deadline=None)
def test_a_kept_picture_comes_back(seed, channels):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (5, 4, channels), np.uint8)
    mask, heat = rng.random((5, 4)) < 0.5, rng.random((5, 4)) * 7
    numbers = {
        "right": True,
        "ratio": 0.5,
        "reason": False,
        "in_mask": 0.1,
        "iou": 0.1,
        "masked_right": None,
        "grid": 1.0,
    }
    picture = ScoredImage(3, "cat", "cat", 0.7, **numbers, pixels=pixels, mask=mask, heat=heat)
    back = unpacked(json.loads(json.dumps(packed(picture))))
    assert np.array_equal(back["pixels"].reshape(pixels.shape), pixels) and np.array_equal(back["mask"] > 0, mask)
    assert np.abs(back["heat"] / 255 - heat / heat.max()).max() <= 0.5 / 255 + 1e-12


# Figures


def test_columns_show_the_printed_rounds_and_the_last():
    numbers = {("p", a): {"xai": [0.0, 0.0]} for a in ("avg", "x")}
    kept = {("p", a, i): {"xai": [10.0 * r + i for r in range(1, 6)]} for a in ("avg", "x") for i in range(2)}
    (figure,) = drawing.columns(found(numbers, kept), "xai", (2, 4, 17))
    assert [t["x"] for t in figure["data"]] == [["round 2", "round 4", "round 5"]] * 2
    assert figure["data"][0]["y"] == [20.5, 40.5, 50.5]


def test_a_course_that_is_not_known_in_a_round_has_a_gap_there():
    kept = {("p", "x", i): {"xai": [10.0, None, 30.0]} for i in range(2)}
    (figure,) = drawing.over_rounds(found({("p", "x"): {"xai": [0.0, 0.0]}}, kept), "xai")
    assert figure["data"][0]["y"] == [10.0, None, 30.0]


# A quick one, from its plans to its report


@pytest.mark.data("cifar10", "xfed_masks")
def test_quick_pictures_from_runs_to_the_page(tmp_path):
    """Figure 1 quick: two runs, their pictures kept, drawn and counted."""
    on_few_pictures(FIGURE_1, FEDAVG, XFEDAVG, out=tmp_path)
    values = json.loads((tmp_path / "results.json").read_text())
    assert not values["failed"]
    by = {(f["arm"], f["measure"]): f["mean"] for f in values["figures"]}
    for arm in (FEDAVG.label, XFEDAVG.label):
        assert sum(by[arm, m.name] for m in QUARTERS) == pytest.approx(100)
        assert by[arm, QUARTERS[0].name] + by[arm, QUARTERS[2].name] == pytest.approx(by[arm, XAI.name], abs=4), (
            "right reasons are XAI accuracy, but for a picture at the edge"
        )
    readings = json.loads((tmp_path / "readings.json").read_text())["runs"]
    (kept,) = [r["kept"]["pictures"] for name, r in readings.items() if "xfedavg" in name]
    assert len(kept) == 30
    lucky = [p for p in kept if p["right"] and p["reason"] is False]
    assert 100 * len(lucky) / 30 == pytest.approx(by[XFEDAVG.label, LUCKY.name])
    page = Page((tmp_path / "report.html").read_text())
    assert "Answers and explanations" in page.headings and page.addresses == []
    assert "carry no licence" in page.text
    if lucky:
        assert f"Right for the wrong reason: XFedAvg, {len(lucky)} of 30 images" in page.headings
    assert ACCURACY.name in values["measures"] and GRID.name not in values["measures"]


# Which images


def test_all_of_cifar_10_is_used_where_it_is_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("GRANDROUNDS_DATA", raising=False)
    monkeypatch.delenv(photos.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert photos.find_photos() == "cifar-10"
    file = tmp_path / "grandrounds" / photos.CIFAR_FULL_FILE.path
    file.parent.mkdir(parents=True)
    file.touch()
    assert photos.find_photos() == "cifar-10-full"
    monkeypatch.setenv(photos.VARIABLE, "cifar-10")
    assert photos.find_photos() == "cifar-10"
    monkeypatch.delenv(photos.VARIABLE)
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path / "nowhere"))
    assert photos.find_photos() == "cifar-10"


def test_xfed_and_fl_xai_say_which_images_they_use():
    for name in ("xfed/table-1", "fl-xai/4.3"):
        study = studies()[name]
        cell = next(study.cells(1))
        assert study.data(cell) == photos.CIFAR and any(f"{photos.TRAINED:,} images" in text for text in study.settled)
