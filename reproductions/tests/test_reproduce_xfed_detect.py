"""XFed's further studies: signals as detectors on hand-made rounds, what plans ask for, and a quick study to its report."""

from __future__ import annotations

import json
from math import isnan
from types import SimpleNamespace

import pytest
from tests.report.test_page import Page
from tests.support import on_few_pictures

from grandrounds.data.sets.images import ham10000_malignant
from grandrounds_studies import studies
from grandrounds_studies.detection import area, curve
from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import HOLDS, Cell
from grandrounds_studies.xfed import signals
from grandrounds_studies.xfed.claims import tells_more
from grandrounds_studies.xfed.detect import (
    ARMS,
    BY_GRID,
    BY_MASKS,
    DETECT,
    FEDAVG,
    IN_ALL_PICTURES,
    KRUM,
    MASKS_ALONE,
    OORT,
    SSE,
)
from grandrounds_studies.xfed.hospitals import SOURCES
from grandrounds_studies.xfed.scenes import CHANCE, MARKED, NINE, SCENES, TRAINED, scores

NAMES = ("xfed/scenes", "xfed/detect", "xfed/hospitals")


def told(*rounds: dict, bad=("d",)) -> SimpleNamespace:
    """A run of sites a to d with these Decisions."""
    rows = {site: {"train": 10, "val": 0, "test": 5} for site in "abcd"} | {"tested": {"train": 0, "val": 0, "test": 5}}
    return SimpleNamespace(
        summary={"attacks": {"sites": dict.fromkeys(bad, "corner")} if bad else {}, "rows": rows},
        rounds=[{"decision": {"signals": {}, "weights": {}, **decision}} for decision in rounds],
    )


def by_site(*values) -> dict[str, float]:
    return dict(zip("abcd", values, strict=True))


# Detectors


def test_area_by_hand():
    assert area([1, 2], [3, 4]) == 1 and area([5], [3, 4]) == 0
    assert area([3], [2, 3, 4, 5]) == pytest.approx((2 + 0.5) / 4)
    assert isnan(area([], [1.0])) and isnan(area([1.0], []))
    assert curve([1], [2, 3]) == ([0.0, 0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0])


def test_a_signal_is_averaged_over_rounds_and_read_in_the_last():
    first = {"signals": {"score": by_site(0.9, 0.8, 0.7, 0.1)}}  # the bad site is last: 1
    last = {"signals": {"score": by_site(0.9, 0.2, 0.1, 0.8)}}  # it is above two of three: 1/3
    run = told(first, last)
    assert signals.OWN.read(run) == pytest.approx(2 / 3) and signals.LAST_OWN.read(run) == pytest.approx(1 / 3)
    assert signals.of_last_round(run) == {"bad": [0.8], "honest": [0.9, 0.2, 0.1]}


def test_low_is_what_the_method_leaves_out():
    high_is_bad = by_site(1.0, 2.0, 3.0, 9.0)
    assert signals.OWN.read(told({"signals": {"krum_score": high_is_bad}})) == 1
    assert signals.OWN.read(told({"signals": {"loss": high_is_bad}})) == 0, "Oort' keeps a high loss"
    assert signals.BY_LOSS.read(told({"signals": {"cross_entropy": high_is_bad}})) == 1
    assert signals.BY_ACCURACY.read(told({"signals": {"accuracy": high_is_bad}})) == 0


def test_agreement_is_an_opinion_and_rows_are_none():
    rows = {"weights": by_site(0.3, 0.3, 0.3, 0.1)}
    assert isnan(signals.OWN.read(told(rows)))
    assert signals.OWN.read(told({**rows, "signals": {"in_line": by_site(1.0, 1.0, 0.2, 0.2)}})) == pytest.approx(
        2.5 / 3
    )


def test_bad_among_those_left_out():
    out = ({"weights": {"a": 0.5, "b": 0.5}}, {"weights": {"a": 0.4, "b": 0.3, "c": 0.3, "d": 0.0}})
    assert signals.CAUGHT.read(told(*out)) == pytest.approx(2 / 3), "c and d, then d"
    assert isnan(signals.CAUGHT.read(told({"weights": by_site(0.25, 0.25, 0.25, 0.25)})))
    assert signals.left_out_share("c").read(told(*out)) == 50


def test_what_bad_sites_lack_is_in_points():
    assert signals.GAP.read(told({"signals": {"accuracy": by_site(0.9, 0.8, 0.7, 0.5)}})) == pytest.approx(30)
    assert isnan(signals.GAP.read(told({"signals": {"accuracy": by_site(0.9, 0.8, 0.7, 0.5)}}, bad=())))
    reasons = ({"signals": {"xai": by_site(0.5, 0.5, 0.5, 0.2)}}, {"signals": {"xai": by_site(0.4, 0.3, 0.2, 0.4)}})
    assert signals.MASKS_GAP.read(told(*reasons)) == pytest.approx((30 - 10) / 2)
    assert isnan(signals.GRID_GAP.read(told(*reasons)))


# Plans


@pytest.mark.parametrize("name", NAMES)
def test_within_a_seed_every_arm_has_the_same_rows(name):
    study = studies()[name]
    for point in study.points:
        plans = [study.plan(Cell(point.label, arm.label, 1)) for arm in study.arms_at(point.label)]
        parts = ("data", "split", "reference", "attacks", "seed")
        assert len({json.dumps([plan[part] for part in parts]) for plan in plans}) == 1


@pytest.mark.parametrize("point", [p.label for p in DETECT.points])
def test_as_many_are_left_out_as_are_bad(point):
    attack = DETECT.plan(Cell(point, BY_GRID.label, 0))["attacks"][0]
    bad = attack["count"] or len(attack["sites"])
    sites = 4 if attack["sites"] else DETECT.plan(Cell(point, FEDAVG.label, 0))["split"]["sites"]
    method = {arm.label: DETECT.plan(Cell(point, arm.label, 0))["method"] for arm in ARMS}
    assert method[BY_GRID.label]["xfed"]["keep"] * sites == pytest.approx(sites - bad)
    assert method[OORT.label]["select"] == {
        **method[OORT.label]["select"],
        "rule": "loss",
        "fraction": (sites - bad) / sites,
    }
    krum = method[KRUM.label]["robust"]
    assert (krum["rule"], krum["attackers"], krum["keep"]) == ("multi-krum", bad, sites - bad)
    assert method[FEDAVG.label]["robust"]["rule"] == "none" and method[SSE.label]["name"] == "sse-agg"


def test_marked_backgrounds_have_masks_to_be_outside_of():
    for point in DETECT.points:
        plan = DETECT.plan(Cell(point.label, FEDAVG.label, 0))
        if plan["attacks"][0]["kind"] == "background":
            assert plan["data"]["masks"] == "strokes" or plan["data"]["name"].startswith("ham10000")


def test_marks_are_in_the_scoring_pictures_of_just_these_points():
    marked = {p.label for p in DETECT.points if DETECT.plan(Cell(p.label, FEDAVG.label, 0))["attacks"][0]["reference"]}
    assert marked == {p.label for p in IN_ALL_PICTURES} and len(marked) == 5
    for point in IN_ALL_PICTURES:
        arms = {arm.label for arm in DETECT.arms_at(point.label)}
        assert arms == {arm.label for arm in ARMS} - {OORT.label}
        twin = point.label.rsplit(",", 1)[0]  # nothing else differs from where scoring pictures are clean
        here, there = (DETECT.plan(Cell(label, BY_GRID.label, 1)) for label in (point.label, twin))
        assert here["attacks"] == [{**there["attacks"][0], "reference": True}]
        assert {**here, "attacks": []} == {**there, "attacks": []}
    assert {p.label for p in DETECT.points if MASKS_ALONE.label in p.arms} == marked


def test_a_claim_is_made_only_where_its_arm_is_run():
    for claim in DETECT.claims:
        at = [p for p in DETECT.points if claim.says.endswith(f": {p.label}")]
        assert len(at) <= 1 and all(set(claim.of) <= set(p.arms) for p in at)


def test_the_study_stays_within_its_means():
    assert len(list(DETECT.cells(DETECT.seeds))) <= 260


# Verdicts


def test_a_signal_is_held_against_another_of_the_same_runs():
    point = IN_ALL_PICTURES[0].label

    def said(xai: tuple[float, ...], right: tuple[float, ...]) -> tuple[str, str]:
        cells = {
            Cell(point, BY_MASKS.label, i): Reading({"roc_xai": x, "roc_accuracy": a})
            for i, (x, a) in enumerate(zip(xai, right, strict=True))
        }
        verdict = tells_more(point, "roc_xai", than="roc_accuracy")(Results(DETECT, cells, len(xai)), BY_MASKS.label)
        return verdict.word, verdict.why

    word, why = said((0.9, 0.95, 1.0), (0.1, 0.2, 0.2))
    assert word == HOLDS and "ROC area of XAI accuracy 0.95, ROC area of accuracy 0.17" in why
    word, why = said((0.9, 0.1, 1.0), (0.5, 0.5, 0.5))
    assert word == "inconclusive"
    assert said((0.1, 0.2, 0.1), (0.5, 0.5, 0.5))[0] != HOLDS


def test_a_blob_that_scores_chance_is_told_from_one_that_does_not():
    def found(grid: float) -> Results:
        cells = {Cell(MARKED[0].label, arm, i): Reading({"blob_grid": grid}) for arm in CHANCE for i in range(2)}
        return Results(SCENES.without([p.label for p in SCENES.points[1:]]), cells, 2)

    test = scores("blob_grid", (MARKED[0],), CHANCE, within=3.0)
    assert test(found(26.0), TRAINED.label).word == HOLDS != test(found(26.0), NINE.label).word
    assert test(found(11.0), NINE.label).word == HOLDS != test(found(40.0), TRAINED.label).word


# Runs


@pytest.mark.data("ham10000")
def test_the_hospitals_are_those_of_the_set():
    assert tuple(sorted(set(ham10000_malignant().site.tolist()))) == SOURCES


@pytest.mark.slow
@pytest.mark.data("ham10000", "cifar10", "xfed_masks")
def test_a_quick_study_runs_to_its_report(tmp_path):
    pytest.importorskip("torch")
    found = on_few_pictures(DETECT, FEDAVG, BY_GRID, out=tmp_path / "out")
    point = found.points[0]
    assert found.failed == {} and found.left_out == {}
    assert isnan(found.values(point, FEDAVG.label, "roc")[0])
    assert 0 <= found.values(point, BY_GRID.label, "roc")[0] <= 1
    sent = [found.values(point, arm, "uploads")[0] for arm in (BY_GRID.label, FEDAVG.label)]
    assert sent[0] < sent[1]
    assert not isnan(found.values(point, BY_GRID.label, "gap_xai")[0])
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "Ranking as a detector" in page.text
    assert "Accuracy (%) against ROC area of what sites are ranked by" in page.titles(), "measures by their words"
