"""Sums of exact methods: cells of one patient in boosted trees are linked by their gradient, and counts are searched."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.attacks.findings import AttackedRun
from grandrounds.capabilities.attacks.sums import (
    FEWEST,
    SeenRound,
    attack_sums,
    describe_links,
    describe_sums,
    judge_round,
)
from grandrounds.data.table import Table
from grandrounds.runs.run_rows import RunRows
from tests.support import patients


def test_cells_with_the_same_gradient_are_one_patient():
    bins = np.array([[1] * FEWEST, [2] * FEWEST, [2] * FEWEST])  # the first patient is alone in bin 1 of every column
    gradient, outcome = np.array([-3.0, 5.0, 5.0]), np.array([1.0, 0.0, 0.0])
    sums = np.zeros((FEWEST, 4, 3))
    for row, places in enumerate(bins):
        for column, place in enumerate(places):
            sums[column, place] += (gradient[row], 2.0, 1.0)
    seen = SeenRound()
    seen.add(np.arange(FEWEST), sums)
    assert (seen.filled, seen.single) == (2 * FEWEST, FEWEST)
    assert judge_round(seen, bins, outcome) == (1, FEWEST, 1.0)
    assert judge_round(seen, bins, 1 - outcome)[0] == 0, "the sign of the gradient tells the outcome"


@pytest.fixture(scope="module")
def survivors():
    table = patients([60, 55, 65])
    days = np.ceil(np.random.default_rng(0).exponential(50, len(table)))
    return Table.from_mapping({**table.columns, "days": days}, source="survivors.csv")


@pytest.mark.parametrize(("baseline", "read"), [("days", True), ("stratified", False)])
def test_rows_are_read_from_sums_by_day_and_not_from_those_within_sites(survivors, baseline, read, tmp_path):
    values = {
        "data": {"label": "died", "site": "hospital", "task": "survival", "duration": "days"},
        "method": {"name": "cox", **({"exact": {"baseline": baseline}} if read else {})},
        "split": {"val": 0.1, "test": 0.3},
        "explain": {"sketch": "none"},
    }
    run = gr.run(gr.Experiment.parse(values), table=survivors, out=tmp_path / "cox")
    attacked = AttackedRun(run, RunRows.read(run, survivors))
    result = attack_sums(attacked)
    told = describe_sums(attacked, result, "sums", "sums")
    assert told.attacked == read and (not read or told.exposed == result.by_time.sum() > 20)


def test_histograms_of_a_run_of_trees_are_counted_and_linked(tmp_path):
    table = patients([60, 50, 70])
    values = {"data": {"label": "died", "site": "hospital"}, "model": {"name": "trees"}, "explain": {"sketch": "none"}}
    values |= {"method": {"trees": {"rounds": 2, "depth": 2, "parallel": 2}}, "split": {"val": 0.2, "test": 0.2}}
    run = gr.run(gr.Experiment.parse(values), table=table, out=tmp_path / "trees")
    attacked = AttackedRun(run, RunRows.read(run, table))
    result = attack_sums(attacked)
    assert result.ended and 0 < result.single < result.filled and result.linked is not None
    assert describe_links(result, "histograms", "h").total == result.patients == len(attacked.run_rows.training)
    assert describe_sums(attacked, result, "sums", "s").unit == "cells"
