"""XFed's Table 2: the printed figures, verdicts on hand-made numbers, and a real run from its plan to its readings."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from grandrounds.core.rng import generator
from grandrounds.runs.run import run_plan
from grandrounds_studies import load_study, studies
from grandrounds_studies.results import NotRun, Reading, Results
from grandrounds_studies.running import read
from grandrounds_studies.study import FAILS, HOLDS, UNTESTED, Cell
from grandrounds_studies.xfed.cost import (
    MOBILE_2,
    MOBILE_3,
    PICTURE,
    RESNET,
    SHUFFLE,
    TABLE_2,
    a_few,
    about,
    as_printed,
    at_most,
)
from grandrounds_studies.xfed.cost_measures import (
    FORWARD,
    IG_BOTH,
    IG_FORWARD,
    LARGE_COUNT,
    MEGABYTES,
    ONE,
    PARAMETERS,
    PTFLOPS,
)

GPU = {"gpu": True, "machine": "a GPU"}
CPU = {"gpu": False, "machine": "one core of a CPU"}


def results(kept: dict, **figures: float) -> Results:
    """Two seeds of every arm with these figures; all others are undefined."""
    held = {m.name: math.nan for m in TABLE_2.measures} | figures
    return Results(TABLE_2, {cell: Reading(held, kept) for cell in TABLE_2.cells(2)}, seeds=2)


def test_the_study_is_among_all_and_runs_four_nets_as_published():
    assert studies()["xfed/table-2"] is TABLE_2
    plans = {arm.label: TABLE_2.plan(Cell(PICTURE.label, arm.label, 0)) for arm in TABLE_2.arms}
    assert [p["model"]["name"] for p in plans.values()] == [
        "mobilenet-v2",
        "mobilenet-v3-large",
        "resnet18",
        "shufflenet-v2",
    ]
    assert {(p["model"]["stem"], p["model"]["norm"], p["engine"]["device"]) for p in plans.values()} == {
        ("imagenet", "batch", "cuda")
    }
    assert {(p["method"]["rounds"], p["train"]["steps"], p["split"]["sites"]) for p in plans.values()} == {(1, 1, 2)}


def test_the_printed_figures_hang_together():
    """IG-S is printed as 25 times the forward, and 30 samples of the slowest net as 0.78 s."""
    rows = [TABLE_2.published[PICTURE.label, arm.label] for arm in (MOBILE_2, MOBILE_3, RESNET, SHUFFLE)]
    assert [row[PARAMETERS.name] for row in rows] == [3.5, 5.48, 11.69, 2.28]
    assert [25 * row[PTFLOPS.name] for row in rows] == pytest.approx([row[IG_FORWARD.name] for row in rows])
    assert round(30 * max(row[ONE.name] for row in rows) / 1e3, 2) == 0.78


def test_sites_have_a_hundred_pictures_each_and_none_twice():
    dealt = a_few(np.zeros(500), sites=3, rng=generator(0, purpose="test"))
    assert [len(rows) for rows in dealt] == [100, 100, 100]
    assert len(np.unique(np.concatenate(dealt))) == 300


def test_a_count_holds_to_the_printed_digits():
    test = as_printed(PTFLOPS.name)
    assert test(results(GPU, ptflops=37.6898), RESNET.label).word == HOLDS
    assert test(results(GPU, ptflops=37.5235), RESNET.label).word == FAILS


def test_a_time_is_held_against_what_is_printed_of_the_net():
    test = at_most(ONE.name, unit="ms")
    found = results(GPU, ms_one=20.0)
    assert test(found, MOBILE_2.label).word == HOLDS
    verdict = test(found, RESNET.label)
    assert (verdict.word, verdict.why) == (FAILS, "20.000 ms against 15.38 ms on a GPU")
    thirty = at_most(ONE.name, 0.78, times=30 / 1e3, unit="s")
    assert thirty(found, RESNET.label).why.startswith("0.600 s against 0.78 s")


def test_no_cpu_is_held_against_the_papers_gpu():
    with pytest.raises(NotRun, match="20.000 ms on one core of a CPU, and the claim is of a GPU"):
        at_most(ONE.name, unit="ms")(results(CPU, ms_one=20.0), RESNET.label)


def test_memory_holds_within_a_tenth_and_undefined_is_no_verdict():
    test = about(MEGABYTES.name, share=0.1, unit="MB")
    assert test(results(GPU, ig_mb=90.0), MOBILE_2.label).word == HOLDS
    assert test(results(GPU, ig_mb=60.0), MOBILE_2.label).word == FAILS
    judged = {j.verdict.word for j in results(GPU).claims}
    assert judged == {UNTESTED}


@pytest.mark.slow
@pytest.mark.data("cifar10", "xfed_masks")
def test_a_run_is_counted_and_timed(tmp_path):
    small = load_study("xfed/table-2", quick=True)
    plan = small.plan(Cell(PICTURE.label, RESNET.label, 0))
    plan["engine"]["device"] = "cpu"
    found = read(small, run_plan(plan, out=tmp_path / "run"))
    assert found.figures[PARAMETERS.name] == pytest.approx(11.689512)
    assert found.figures[FORWARD.name] == pytest.approx(37.523456)
    assert found.figures[PTFLOPS.name] == pytest.approx(37.689832)
    assert found.figures[IG_BOTH.name] == pytest.approx(2 * 25 * 37.523456)
    assert found.figures[LARGE_COUNT.name] == pytest.approx(33.63, abs=0.01)
    assert found.figures[ONE.name] > 0
    assert math.isnan(found.figures[MEGABYTES.name]) and not found.kept["gpu"]
