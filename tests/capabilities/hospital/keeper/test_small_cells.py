"""No count of few patients leaves a site as it is, and what can be kept is kept: totals, medians, the larger groups."""

from __future__ import annotations

import json

import numpy as np

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.capabilities.hospital.keeper.policy.small_cells import without_small_cells
from grandrounds.data.summary import Cells, Summary, grid_value
from grandrounds.metrics.tally import Tally, tally
from grandrounds.protocol.messages import Ask
from grandrounds.site.host import SiteHost
from grandrounds.site.prepare import summarise
from tests.capabilities.hospital.keeper.plans import plan
from tests.support import patients, stack


def summary_of(rows: int, rare: int = 0):
    """The report `summary` of one site, with `rare` patients of a ward of their own."""
    held = stack([rows + 2, 20])
    found = summarise(held, Ask("summarise"), np.array([0]))
    values = {name: column[0] for name, column in found.items()}
    words = json.loads(values["summary.words"])
    if rare:
        words["levels"][0]["leprosarium"] = rare
        words["groups"] = {"old": rare, "young": 30}
        words["classes"]["2"] = rare
    return {**values, "summary.words": json.dumps(words)}


def test_rare_categories_are_left_out_and_rare_classes_told_as_the_least_allowed():
    told = json.loads(without_small_cells("summarise", summary_of(60, rare=3), 5)["summary.words"])
    assert "leprosarium" not in told["levels"][0] and len(told["levels"][0]) == 3
    assert told["groups"] == {"young": 30} and told["classes"]["2"] == 5
    enough = json.loads(without_small_cells("summarise", summary_of(60, rare=5), 5)["summary.words"])
    assert enough["levels"][0]["leprosarium"] == 5


def test_quantile_cells_hold_enough_patients_each_and_medians_stay():
    raw = summary_of(120)
    told = without_small_cells("summarise", raw, 5)
    before, after = Summary.from_payload(_bare(raw)), Summary.from_payload(_bare(told))
    assert before.cells.count.min() == 1 and after.cells.count.min() >= 5
    for j in range(3):
        same = [int(s.cells.count[s.cells.column == j].sum()) for s in (before, after)]
        assert same[0] == same[1] == int(before.count[j])
        assert set(after.cells.cell[after.cells.column == j]) <= set(before.cells.cell[before.cells.column == j])
    q = np.array([0.25, 0.5, 0.75])
    was, now = (s.cells.quantiles(q, columns=3) for s in (before, after))
    assert (np.abs(now - was) < 0.15 * (was[2] - was[0])).all()


def test_by_hand():
    """Values 1 .. 7 with cells of three: 1 2 3 | 4 5 6 7, told by their middle patients 2 and 5."""
    x = np.arange(1.0, 8.0)[:, None]
    cells = Cells.from_values(x)
    values = {
        "summary.words": json.dumps({"levels": [], "groups": {}, "classes": {"a": 7}}),
        "summary.cell_column": cells.column, "summary.cell": cells.cell, "summary.cell_count": cells.count,
        "summary.count": np.array([7]),
    }  # fmt: skip
    told = without_small_cells("summarise", values, 3)
    assert told["summary.cell_count"].tolist() == [3, 4]
    np.testing.assert_allclose(grid_value(told["summary.cell"]), [2, 5], rtol=1e-3)
    nobody = without_small_cells("summarise", values, 8)  # fewer values than a cell: nothing is said of the column
    assert nobody["summary.cell_count"].tolist() == []
    assert nobody["summary.count"].tolist() == [0]


def test_means_of_columns_with_few_values_are_not_told():
    values = {
        "summary.count": np.array([7, 3]),
        "summary.mean": np.array([4.0, 2.0]),
        "summary.m2": np.array([28.0, 2]),
    }
    told = without_small_cells("summarise", values, 5)
    assert {name: v.tolist() for name, v in told.items()} == {
        "summary.count": [7, 0], "summary.mean": [4.0, 0.0], "summary.m2": [28.0, 0.0],
    }  # fmt: skip


def told_tally(counts: list[int], smallest: int):
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(len(counts)), counts)
    logits, y = rng.normal(size=(len(group), 1)), rng.integers(0, 2, len(group))
    own = tally(logits, y, classes=2, group=group, groups=len(counts))
    values = {f"test.{name}": array for name, array in own.arrays().items()}
    values["figures.test.auroc"] = 0.7
    told = without_small_cells("evaluate", values, smallest)
    after = Tally.from_arrays({n.removeprefix("test."): v for n, v in told.items() if n.startswith("test.")})
    return own, after, told


def test_small_subgroups_are_counted_among_the_others_and_totals_stay():
    own, after, _ = told_tally([30, 2, 12, 4, 0], 5)
    assert after.count.tolist() == [30, 0, 12, 0, 6]
    for name, array in own.sum().arrays().items():
        np.testing.assert_allclose(after.sum().arrays()[name], array)


def test_the_smallest_large_group_joins_where_the_others_are_still_few():
    _, after, _ = told_tally([30, 2, 12, 0], 5)
    assert after.count.tolist() == [30, 0, 0, 14]
    _, untouched, _ = told_tally([30, 7, 12, 0], 5)
    assert untouched.count.tolist() == [30, 7, 12, 0]


def test_of_very_few_rows_nothing_is_told():
    _, after, told = told_tally([2, 1, 0], 5)
    assert all((array == 0).all() for array in after.arrays().values()) and np.isnan(told["figures.test.auroc"])


def test_of_a_part_with_few_rows_no_figure_is_told_even_where_its_tally_is_under_masks():
    rows = {"train": 40, "val": 3, "test": 2}
    answers = {"figures.test.auroc": 0.5, "figures.test.accuracy": 1.0, "held": "[]"}
    told = Policy().trim(Ask("evaluate"), answers, rows=rows)
    assert np.isnan(told["figures.test.auroc"]) and np.isnan(told["figures.test.accuracy"]) and told["held"] == "[]"
    trained = {"val_loss": 0.3, "ece": 0.1, "local.test_accuracy": 1.0, "local.train_accuracy": 0.9, "count": 40}
    told = Policy().trim(Ask("train"), trained, rows=rows)
    assert np.isnan([told["val_loss"], told["ece"], told["local.test_accuracy"]]).all()
    assert (told["local.train_accuracy"], told["count"]) == (0.9, 40)
    assert not Policy().trim(Ask("calibrate"), {"losses": np.ones(4)}, rows=rows)["losses"].any()
    losses = {"losses": np.ones(4)}  # of training rows
    assert Policy().trim(Ask("score"), losses, rows=rows)["losses"].tolist() == [1, 1, 1, 1]
    assert Policy().trim(Ask("train"), trained, rows={"train": 40, "val": 5, "test": 0}) == trained


def test_a_sketch_of_few_patients_counts_as_none():
    values = {"sketch": np.array([0.7, 0.3]), "sketch.rows": 3, "sketch.error": np.array([0.1, 0.1])}
    told = without_small_cells("explain", values, 5)
    assert int(told["sketch.rows"]) == 0 and not told["sketch"].any()
    assert without_small_cells("explain", {**values, "sketch.rows": 5}, 5)["sketch"].tolist() == [0.7, 0.3]


def test_the_policy_trims_what_a_host_answers_and_empties_notes():
    host = SiteHost(stack([30, 20]))
    ask = Ask("summarise", report=("summary",))
    values = {name: column[0] for name, column in summarise(host.stack, ask, np.array([0])).items()}
    told = Policy.parse("[cells]\nsmallest = 5").trim(ask, values)
    assert min(json.loads(told["summary.words"])["levels"][0].values()) >= 5
    assert told["summary.cell_count"].min() >= 5
    kept = Policy.parse("[cells]\nsmallest = 1\n[reports]\nnotes = true").trim(ask, {**values, "notes": '["x"]'})
    assert kept["notes"] == '["x"]' and kept["summary.words"] == values["summary.words"]
    assert Policy().trim(ask, {"notes": '["ward leprosarium is new"]'}) == {"notes": "[]"}


def trimming(monkeypatch, policy: Policy) -> None:
    """Every site of a run over the wire answers as its policy lets it."""
    answer = SiteHost.answer

    def trimmed(self, ask, members):
        values = {name: column[0] for name, column in answer(self, ask, members).items()}
        return {name: [value] for name, value in policy.trim(ask, values).items()}

    monkeypatch.setattr(SiteHost, "answer", trimmed)


def test_a_run_goes_on_with_what_small_sites_may_tell(tmp_path, monkeypatch):
    """Subgroups of a few test rows each: they are counted among the others, and the consortium's figures are the same."""
    values = plan(method={"name": "fedavg"}, evaluation={"subgroup": "ward"}, engine={"wire": True})
    sizes = [60, 50, 25, 10, 55]
    plain = gr.run(gr.Experiment.parse(values), table=patients(sizes), out=tmp_path / "plain")
    trimming(monkeypatch, Policy())
    told = gr.run(gr.Experiment.parse(values), table=patients(sizes), out=tmp_path / "told")
    few = told.summary["rows"]["d"]["test"]
    assert 0 < few < 5 and told.summary["final"]["count"] == plain.summary["final"]["count"] - few
    assert abs(told.summary["final"]["auroc"] - plain.summary["final"]["auroc"]) < 0.05
    assert plain.summary["per_site"]["d"]["accuracy"] is not None and told.summary["per_site"]["d"]["accuracy"] is None
    others = set(told.summary["subgroups"]) - set(plain.summary["subgroups"])
    assert len(others) == 1 and told.summary["subgroups"][others.pop()]["count"] >= 5


def _bare(values):
    return {name.removeprefix("summary."): v for name, v in values.items()}
