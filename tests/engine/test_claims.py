"""Sites that say of themselves what cannot be: each is left out with a reason, and the run goes on without it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.engine import claims
from grandrounds.engine.claims import inconsistent_shapes
from grandrounds.engine.faults import NOT_FINITE
from grandrounds.methods.aggregate import shorten_updates
from grandrounds.protocol.messages import Answer, Answers
from tests.engine.disturbed import B, Disturbed, Passing, decisions, hospitals, lying
from tests.engine.hospitals import final_model


def changed(name: str, value) -> callable:
    """An answer of site b in which one report is another; `value` may be worked out from the true one."""

    def change(answer: Answer) -> Answer:
        if name not in answer.values:
            return answer
        true = answer.values[name]
        said = value(true) if callable(value) else value
        return replace(answer, values={**answer.values, name: said})

    return change


def lied_to(tmp_path, clock, change, *, method="fedavg"):
    """A run at four hospitals of which b lies, and what the run says of it."""
    held = hospitals(method, rounds=2)
    transport = Disturbed.of(held.keepers(tmp_path / "state"), clock)

    def twist(passing: Passing, reply: bytes) -> bytes:
        return lying(transport.box.keepers[B], reply, change) if passing.address == B else reply

    transport.twist = twist
    return held.deployed(tmp_path, transport)


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (1e12, claims.OTHER_ROWS),
        (-145, claims.OTHER_ROWS),
        (0, claims.OTHER_ROWS),
        (31.5, claims.OTHER_ROWS),
        (np.nan, NOT_FINITE),
    ],
)
def test_a_site_is_held_to_the_rows_that_it_told_at_set_up(tmp_path, quick, count, why):
    """Version 0.1 gave weight 1.0 to 1e12 rows, and weights of -0.76 and 2.84 where a site told -145."""
    run = lied_to(tmp_path, quick, changed("count", np.float64(count)))
    for decision in decisions(run):
        assert decision["missing"] == {"b": why}
        assert "b" not in decision["weights"] and sum(decision["weights"].values()) == pytest.approx(1)
        assert all(0 < w < 1 for w in decision["weights"].values())


@pytest.mark.parametrize(
    ("report", "value"),
    [
        ("summary.words", "{no JSON"),
        ("summary.words", json.dumps({"levels": [], "classes": [], "groups": {}})),
        ("summary.cell_column", lambda true: np.full_like(true, 99)),
        ("summary.cell_count", lambda true: -true),
        ("summary.count", lambda true: true * 10**6),
        ("summary.m2", lambda true: np.full_like(true, -1.0)),
        ("summary.mean", lambda true: true + 1e9),
        ("summary.rows", -3),
    ],
)
def test_a_summary_that_cannot_be_has_no_say(tmp_path, quick, report, value):
    run = lied_to(tmp_path, quick, changed(report, value))
    assert run.summary["final"]["auroc"] > 0.5
    assert report in ("summary.m2", "summary.mean") or any(
        w.startswith("b is left out of the preparation of columns") for w in run.summary["warnings"]
    )


@pytest.mark.parametrize(
    ("report", "value"), [("train_rows", np.nan), ("train_rows", -5), ("test_rows", 1e15), ("notes", "{no JSON")]
)
def test_a_site_without_row_counts_that_can_be_takes_no_part(tmp_path, quick, report, value):
    run = lied_to(tmp_path, quick, changed(report, value))
    assert any(w.startswith("b takes no part") for w in run.summary["warnings"])
    assert all(set(d["weights"]) == {"a", "c", "d"} for d in decisions(run))


@pytest.mark.parametrize(
    ("report", "value"),
    [
        ("test.log_loss", lambda true: true * np.nan),
        ("test.confusion", lambda true: true * 10**9),
        ("test.count", lambda true: -true),
        ("val.histogram", lambda true: true - 1),
        ("test.brier", lambda true: true - 100),
        ("figures.test.auroc", np.float64(7.0)),
    ],
)
def test_a_tally_that_cannot_be_is_left_out_of_the_sum(tmp_path, quick, report, value):
    run = lied_to(tmp_path, quick, changed(report, value))
    told = run.summary["final"]
    assert 0 <= told["accuracy"] <= 1 and np.isfinite(told["log_loss"])
    said = [note for d in decisions(run) for note in d["notes"] if note.startswith("b was missing from evaluate")]
    assert said or "b" not in run.summary["per_site"]


def test_updates_a_million_times_too_long_are_cut_to_ten_medians():
    start = np.array([1.0, 2.0])
    honest = start + np.array([[0.3, 0.4], [0.0, 0.5], [-0.5, 0.0]])
    models = np.vstack([honest, start + 1e6 * np.array([0.6, 0.8])])
    answers = Answers(("a", "b", "c", "d"), {"model": models.copy(), "variate": np.ones((4, 2))})
    notes = shorten_updates(answers, start, 10.0)
    np.testing.assert_array_equal(answers["model"][:3], honest)
    assert np.linalg.norm(answers["model"][3] - start) == pytest.approx(5.0)
    assert answers["variate"][3] == pytest.approx(5e-6) and answers["variate"][0].tolist() == [1, 1]
    assert len(notes) == 1 and notes[0].startswith("d: its update was 2e+06 times as long")


def test_without_a_guard_and_without_long_updates_nothing_is_touched():
    models = np.array([[1.0, 0.0], [0.0, 1.0], [1e9, 0.0]])
    answers = Answers(("a", "b", "c"), {"model": models})
    assert shorten_updates(answers, np.zeros(2), 0.0) == [] and answers["model"] is models
    assert shorten_updates(answers, np.zeros(2), 1e10) == [] and answers["model"] is models


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_guard_keeps_the_model_with_a_site_that_scales_its_update(tmp_path, quick, method):
    def scaled(answer: Answer) -> Answer:
        if "model" not in answer.values:
            return answer
        model = np.asarray(answer.values["model"])
        return replace(answer, values={**answer.values, "model": (model * 1e6).astype(model.dtype)})

    said, size = {}, {}
    for guard in (0, 10):
        run = lied_to(tmp_path / str(guard), quick, scaled, method={"name": method, "robust": {"guard": guard}})
        said[guard] = [n for d in decisions(run) for n in d["notes"] if n.startswith("b: its update was")]
        size[guard] = float(np.abs(final_model(run)).max())
    assert len(said[10]) == 2 and not said[0]
    assert size[10] < 100 < 1e4 < size[0]


def test_trees_of_another_size_are_no_mistake():
    """Vectors of forests differ in length: a site whose trees are larger than most takes part."""
    sizes = {"a": {"model": (9,), "count": ()}, "b": {"model": (7,), "count": ()}, "c": {"model": (7,), "count": ()}}
    assert list(inconsistent_shapes(sizes)) == ["a"]
    assert not inconsistent_shapes(sizes, ragged=("model",))
    sizes["b"]["count"] = (2,)
    assert list(inconsistent_shapes(sizes, ragged=("model",))) == ["b"]
