"""Boosted trees from sums: the same bits for any division of the rows, splits by hand and by brute force, and every loss."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.statistics import boosting_answers
from grandrounds.capabilities.statistics.answers import ANSWERS, GROUP_ANSWERS
from grandrounds.capabilities.statistics.boosting import find_scale, fit_trees
from grandrounds.capabilities.statistics.boosting_answers import LEVEL
from grandrounds.capabilities.statistics.boosting_bins import choose_edges
from grandrounds.capabilities.statistics.boosting_result import TreesResult, read_effects
from grandrounds.capabilities.statistics.boosting_terms import PRESETS, trees_terms
from grandrounds.capabilities.statistics.models.columns import Column, read_columns
from grandrounds.capabilities.statistics.question import Record, RowGroup, Rows, Total, check_blocks, fit_in_memory
from tests.capabilities.statistics.hospital_rows import heart_rows
from tests.support import refused

COLUMNS = (
    *(Column("a", 0, 3), Column("b", 1), Column("same", 2)),
    Column("ward", levels=(4, 5, 6, 7), words=("w", "x", "y", "z")),
)
SMALL = {"rounds": 3, "depth": 3, "parallel": 2, "columns": 0.7, "rate": 0.5, "least": 5}
N = 240


def inputs(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs with a gap in column "a", a constant column and a category with four levels; and the score behind outcomes."""
    rng = np.random.default_rng(seed)
    a, b, ward, gap = rng.normal(50, 10, n), rng.integers(0, 9, n) / 4, rng.integers(0, 4, n), rng.random(n) < 0.2
    score = 0.08 * (a - 50) * ~gap + 0.8 * gap + 0.6 * (b - 1) + np.array([0, 1.0, -1.0, 0.3])[ward]
    return np.column_stack([np.where(gap, 50, a), b, np.full(n, 7.0), gap, np.eye(4)[ward]]), score


def outcome(task: str, score: np.ndarray, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    if task == "survival":
        time, end = rng.exponential(300 * np.exp(-score)), rng.uniform(100, 900, len(score))
        return {"y": (time <= end).astype(float), "time": np.minimum(time, end)}
    drawn = {
        "classification": lambda: (rng.random(len(score)) < 1 / (1 + np.exp(-score))).astype(float),
        "three": lambda: np.searchsorted([-0.7, 0.7], score + rng.normal(size=len(score))).astype(float),
        "regression": lambda: 120 + 15 * (score + rng.normal(size=len(score))),
        "count": lambda: rng.poisson(2 * np.exp(0.5 * score)).astype(float),
    }
    return {"y": drawn[task]()}


def deal(rows: Rows, sites: int, seed: int = 5) -> dict[str, Rows]:
    parts = np.array_split(np.random.default_rng(seed).permutation(len(rows)), sites)
    return {str(k): take(rows, part) for k, part in enumerate(parts)}


def take(rows: Rows, part: np.ndarray) -> Rows:
    return Rows(rows.x[part], rows.y[part], time=None if rows.time is None else rows.time[part])


def terms(task: str, y: np.ndarray, options: dict | None = None, columns=COLUMNS, **more):
    classes = {"classification": 2, "three": 3}.get(task, 0)
    units = (
        {"centre": y.mean(), "unit": y.std()} if task == "regression" else {"unit": y.mean()} if task == "count" else {}
    )
    task = "classification" if classes else task
    return trees_terms({**SMALL, **(options or {})}, columns, task=task, classes=classes, **units, **more)


def fit(
    task: str, rows: Rows, options: dict | None = None, sites: int = 1, record: Record | None = None, **more
) -> TreesResult:
    return fit_in_memory(fit_trees(terms(task, rows.y, options, **more)), deal(rows, sites), ANSWERS, record)


def make(task: str, n: int = N) -> tuple[Rows, np.ndarray]:
    x, score = inputs(n)
    return Rows(x, **outcome(task, score)), score


def scores(result: TreesResult, x: np.ndarray, columns=COLUMNS) -> np.ndarray:
    return result.trees.scores(result.trees.bin(read_columns(x, columns)))


def sha(result: TreesResult) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in result.arrays.values())).hexdigest()


TASKS = ["classification", "three", "regression", "count", "survival"]


@pytest.mark.parametrize("task", [*TASKS, "cox"])
def test_trees_have_the_same_bits_for_1_4_and_50_sites(task):
    options = {"survival": "cox", "rounds": 2, "depth": 2} if task == "cox" else {"rounds": 2, "depth": 2}
    rows, _ = make("survival" if task == "cox" else task)
    found = {sha(fit("survival" if task == "cox" else task, rows, options, sites)) for sites in (1, 4, 50)}
    assert len(found) == 1


def test_the_unit_of_a_number_may_differ_in_its_last_bit():
    rows, _ = make("regression")
    one = terms("regression", rows.y)
    other = replace(one, unit=np.nextafter(one.unit, 100), centre=np.nextafter(one.centre, 0))
    first, second = (fit_in_memory(fit_trees(t), {"a": rows}, ANSWERS) for t in (one, other))
    assert np.array_equal(first.trees.low, second.trees.low) and np.array_equal(first.trees.column, second.trees.column)
    assert np.allclose(first.trees.value, second.trees.value, rtol=1e-14, atol=0)


def test_a_split_computed_by_hand():
    """x = 0: 4 events of 20; x = 1: 16 of 20. Start 0, g = +-0.5, h = 0.25: left G = 6, H = 5, leaf -6 / (5 + 1)."""
    x, y = np.repeat([0.0, 1.0], 20)[:, None], np.tile([0.0, 0, 0, 1, 0, 0, 0, 1, 0, 0], 4)
    y[20:] = 1 - y[20:]
    options = {"rounds": 1, "depth": 1, "parallel": 1, "columns": 1.0, "rate": 1.0, "least": 5}
    result = fit("classification", Rows(x, y), options, columns=(Column("x", 0),))
    assert result.trees.column[0].tolist() == [0, -1, -1]
    assert scores(result, np.array([[0.0], [1.0]]), (Column("x", 0),)).ravel().tolist() == [-1.0, 1.0]
    assert result.trees.start.tolist() == [0.0]


def brute_force(bins: np.ndarray, g: np.ndarray, h: np.ndarray, categories: set[int], least: int) -> float:
    """The best gain over all columns, cuts, sides of missing values and sorted sets of levels, from float sums."""

    def gain(left: np.ndarray) -> float:
        if min(left.sum(), (~left).sum()) < least:
            return -np.inf
        parts = [g[m].sum() ** 2 / (h[m].sum() + 1) for m in (left, ~left, np.ones(len(g), bool))]
        return parts[0] + parts[1] - parts[2]

    best = -np.inf
    for c, b in enumerate(bins.T):
        if c in categories:
            ratio = {v: g[b == v].sum() / (h[b == v].sum() + 10) for v in np.unique(b)}
            order = sorted(ratio, key=ratio.__getitem__)
            best = max([best, *(gain(np.isin(b, order[:k])) for k in range(1, len(order)))])
        else:
            cuts = [((b >= 1) & (b <= k)) | (missing & (b == 0)) for k in range(1, 65) for missing in (False, True)]
            best = max([best, *(gain(left) for left in cuts)])
    return best


def test_the_first_split_has_the_gain_of_a_brute_force_search():
    rows, _ = make("classification")
    result = fit("classification", rows, {"rounds": 1, "depth": 1, "parallel": 1, "columns": 1.0})
    bins = result.trees.bin(read_columns(rows.x, COLUMNS))
    p = rows.y.mean()
    g, h = p - rows.y, np.full(len(rows), p * (1 - p))
    left = (result.trees.masks[0, 0] >> bins[:, result.trees.column[0, 0]].astype(np.uint64)) & np.uint64(1) == 1
    parts = [g[m].sum() ** 2 / (h[m].sum() + 1) for m in (left, ~left, np.ones(len(g), bool))]
    assert parts[0] + parts[1] - parts[2] == pytest.approx(brute_force(bins, g, h, {3}, 5), rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_every_loss_learns(task):
    rows, score = make(task, 600)
    found = scores(fit(task, rows, {"rounds": 8}), rows.x)
    if task == "three":
        assert (found.argmax(axis=1) == rows.y).mean() > 0.6 > np.bincount(rows.y.astype(int)).max() / 600
    else:
        assert np.corrcoef(found[:, 0], score)[0, 1] > 0.85


@pytest.mark.parametrize("loss", ["hazard", "cox"])
def test_survival_trees_have_the_scale_of_a_log_hazard(loss):
    rows, score = make("survival", 900)
    found = scores(fit("survival", rows, {"rounds": 12, "survival": loss}), rows.x)[:, 0]
    slope = np.polyfit(found, score, 1)[0]
    assert 0.7 < slope < 1.4


def test_missing_values_and_levels_go_where_they_have_the_gain():
    rng = np.random.default_rng(0)
    gap, ward = rng.random(400) < 0.5, rng.integers(0, 4, 400)
    columns = (Column("a", 0, 1), COLUMNS[3])
    x = np.column_stack([np.zeros(400), gap, np.zeros((400, 2)), np.eye(4)[ward]])
    y = (gap ^ (ward >= 2)).astype(float)
    x[:, 0] = np.where(gap, 0, rng.normal(size=400))
    result = fit("classification", Rows(x, y), {"rounds": 10, "columns": 1.0, "depth": 2}, columns=columns)
    assert ((scores(result, x, columns)[:, 0] > 0) == (y == 1)).all()


def test_monotone_columns_never_step_the_wrong_way():
    x, score = inputs(800)
    rows = Rows(x, **outcome("classification", score + np.sin(x[:, 0] / 3) - 0.8 * x[:, 1]))
    grid = np.repeat(x[:40], 60, axis=0)
    grid[:, 3] = 0

    def worst(options, place, sign):
        result = fit("classification", rows, {"rounds": 8, "least": 10, "columns": 1.0, **options})
        mine = grid.copy()
        mine[:, place] = np.tile(np.linspace(x[:, place].min(), x[:, place].max(), 60), 40)
        return (sign * np.diff(scores(result, mine).reshape(40, 60), axis=1)).min()

    both = {"monotone": {"a": "up", "b": "down"}}
    assert worst({}, 0, 1) < -0.05 and worst(both, 0, 1) == 0
    assert worst({}, 1, -1) < -0.01 and worst(both, 1, -1) == 0


def test_constraints_on_a_category_or_an_unknown_column_are_refused():
    with refused("monotone-category", match="'ward'"):
        terms("classification", np.zeros(2), {"monotone": {"ward": "up"}})
    with refused("unknown-column", match="'aa'"):
        terms("classification", np.zeros(2), {"monotone": {"aa": "up"}})


def test_early_stopping_keeps_the_round_with_the_lowest_summed_validation_loss():
    rows, _ = make("classification", 300)
    held_out = make("classification", 900)[0]
    late = take(held_out, np.arange(600, 900))
    options = {"rounds": 40, "rate": 1.0, "least": 1, "early_stop": 3}
    record = Record()
    found = []
    for sites in (1, 3):
        dealt, rest = deal(rows, sites), deal(late, sites)
        mine = {name: replace(part, validation=rest[name]) for name, part in dealt.items()}
        found.append(fit_in_memory(fit_trees(terms("classification", rows.y, options)), mine, ANSWERS, record))
    assert sha(found[0]) == sha(found[1])
    result = found[0]
    losses = np.array(result.validation)
    assert result.rounds == losses.argmin() and len(losses) == result.rounds + 4 < 40
    f = scores(result, late.x)[:, 0]
    assert losses.min() == pytest.approx(np.mean(np.logaddexp(0, f) - late.y * f), abs=1e-4)
    with refused("no-validation-rows"):
        fit("classification", rows, options)


def test_a_group_of_sites_answers_as_each_of_them_does():
    rows, _ = make("survival")
    sites = {k: replace(v, validation=v) for k, v in deal(rows, 5).items()}
    group = RowGroup(tuple(sites.values()))
    driven = fit_trees(terms("survival", rows.y, {"early_stop": 2, "depth": 2}))
    question, compared = next(driven), 0
    try:
        while True:
            single = [check_blocks(question, ANSWERS[question.kind](question, part)) for part in sites.values()]
            if question.kind == LEVEL:
                together = GROUP_ANSWERS[LEVEL](question, group)
                compared += 1
                for k, blocks in enumerate(single):
                    assert all(np.array_equal(blocks[name], together[name][k]) for name in blocks)
            question = driven.send(Total({n: sum(b[n] for b in single) for n in question.blocks}, tuple(sites)))
    except StopIteration:
        assert compared == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grow_column", np.array([[9], [0]])),
        ("asked_node", np.array([5, 5])),
        ("tree_columns", np.array([[0, 9], [0, 1]])),
        ("value", np.zeros((1, 3))),
        ("output", np.full(99, 1)),
        ("edge_counts", np.zeros(2, np.uint8)),
        ("columns", "[]"),
        ("start", None),
    ],
)
def test_a_question_that_does_not_fit_itself_is_refused(name, value):
    rows, _ = make("classification")
    record = Record()
    fit("classification", rows, record=record)
    question = [q for q in record.questions if q.kind == LEVEL][4]
    assert ANSWERS[LEVEL](question, rows)["g"].any()
    values = {**question.values, name: value}
    if value is None:
        del values[name]
    with refused("malformed-message"):
        ANSWERS[LEVEL](replace(question, values=values), rows)


def test_millions_of_rows_have_sums_of_their_own_for_curvatures(monkeypatch):
    rows, _ = make("three")
    expected = sha(fit("three", rows, sites=3))
    monkeypatch.setattr(boosting_answers, "_MOST_PACKED", 0)
    assert sha(fit("three", rows, sites=3)) == expected


def test_a_site_without_rows_answers_zeros():
    rows, _ = make("count")
    none = take(rows, np.empty(0, int))
    with_none = fit_in_memory(fit_trees(terms("count", rows.y)), {"a": rows, "b": none}, ANSWERS)
    assert sha(with_none) == sha(fit("count", rows))


def test_a_site_that_drops_out_ends_the_trees_of_its_round():
    rows, _ = make("classification")
    sites, dropped = deal(rows, 3), 0
    driven = fit_trees(terms("classification", rows.y))
    question, asked = next(driven), 0
    try:
        while True:
            asked += question.kind == LEVEL
            if asked == 2:  # the second level of the first round
                dropped += sites.pop("0", None) is not None
            answers = [ANSWERS[question.kind](question, part) for part in sites.values()]
            total = {n: np.sum([b[n] for b in answers], axis=0) for n in question.blocks}
            question = driven.send(Total(total, tuple(sites), is_new_roster=asked == 2 and question.kind == LEVEL))
    except StopIteration as end:
        result = end.value
    assert dropped == 1 and "a site dropped out, so its trees end at depth 1" in result.notes[-1]
    first = result.trees.column[:2]
    assert (first[:, 0] >= 0).all() and (first[:, 1:] < 0).all()
    assert (result.trees.column[2:, 1:3] >= 0).any() and result.rounds == 3


def test_one_class_a_constant_table_and_no_rows_are_refused_in_one_sentence():
    rows, _ = make("classification")
    with refused("one-class"):
        fit("classification", replace(rows, y=np.ones(N)))
    with refused("no-columns"):
        fit("classification", rows, columns=(Column("same", 2),))
    with refused("no-rows"):
        fit("classification", take(rows, np.empty(0, int)))
    with refused("constant-label"):
        fit_in_memory(fit_trees(trees_terms({}, COLUMNS, task="count")), {"a": replace(rows, y=np.zeros(N))}, ANSWERS)


def test_a_constant_column_is_left_out_with_a_note():
    rows, _ = make("classification")
    result = fit("classification", rows)
    assert not (result.trees.column == 2).any() and "columns with one bin are left out: 'same'" in result.notes


def test_the_scale_is_lowered_so_that_sums_fit_into_30_bits():
    assert find_scale(1000) == 2.0**16 and find_scale(100_000) == 2.0**13
    for rows in (16_000, 17_000, 99_343, 5_000_000):
        assert rows * find_scale(rows) < 2.0**30 <= 2 * rows * find_scale(rows) * (1 + 1e-3) or rows < 2**14
    rows, _ = make("regression", 6000)
    result = fit("regression", rows, {"rounds": 1, "depth": 1})
    assert "gradients of 6,000 rows are rounded to 1/8,192" in result.notes[0]


def test_cells_with_one_row_are_counted():
    """One tree of depth one: the cells are the bins of its columns, and single ones are bins with one row."""
    rows, _ = make("classification")
    result = fit("classification", rows, {"rounds": 1, "depth": 1, "parallel": 1, "columns": 1.0})
    bins = result.trees.bin(read_columns(rows.x, COLUMNS))
    counts = [np.bincount(bins[:, c]) for c in (0, 1, 3)]
    assert result.cells.filled == sum((n > 0).sum() for n in counts)
    assert result.cells.single == sum((n == 1).sum() for n in counts)
    assert result.cells.asked == sum(int(result.trees.edge_counts[c]) + 2 for c in (0, 1, 3))
    deeper = fit("classification", rows, {"depth": 4, "least": 2})
    assert deeper.cells.to_dict()["share_single"] > 0.1


def test_exchanges_and_numbers_are_those_of_the_smaller_children():
    rows, _ = make("classification")
    record = Record()
    fit("classification", rows, {"least": 2}, record=record)
    level = [q for q in record.questions if q.kind == LEVEL]
    assert len(level) == 9 and record.exchanges <= 9 + 4
    nodes = [len(np.asarray(q.values["asked_node"])) for q in level]
    assert nodes[:3] == [1, 2, 4], "both trees have the same root"
    assert all(q.whole and q.cells == ("rows",) for q in level)


def test_random_rounding_sends_few_levels_from_each_sites_own_randomness():
    rows, score = make("classification", 900)
    sites = {
        k: replace(v, random=lambda purpose, k=k: np.random.default_rng([len(purpose), int(k)]))
        for k, v in deal(rows, 2).items()
    }
    record = Record()
    options = {"rounding": "stochastic", "rounds": 8}
    found = fit_in_memory(fit_trees(terms("classification", rows.y, options)), sites, ANSWERS, record)
    first = next(q for q in record.questions if q.kind == LEVEL)
    assert float(first.values["scale"]) == 8
    answers = [ANSWERS[LEVEL](first, part) for part in sites.values()]
    again = [ANSWERS[LEVEL](first, part) for part in sites.values()]
    assert all(np.array_equal(a["g"], b["g"]) for a, b in zip(answers, again, strict=True))
    assert np.corrcoef(scores(found, rows.x)[:, 0], score)[0, 1] > 0.75
    assert sha(found) != sha(fit("classification", rows, {"rounds": 8}))


def test_trees_of_depth_one_are_a_sum_of_shapes():
    rows, _ = make("classification")
    result = fit("classification", rows, {"depth": 1, "rounds": 10})
    intercept, effects = read_effects(result.trees)
    bins = result.trees.bin(read_columns(rows.x, COLUMNS))
    shapes = intercept + sum(effects[c][bins[:, c]] for c in range(len(COLUMNS)))
    assert np.allclose(shapes, scores(result, rows.x)[:, 0], rtol=0, atol=1e-12)


def test_a_result_is_read_back():
    rows, _ = make("three")
    result = fit("three", rows)
    assert sha(TreesResult.from_dict(result.to_dict())) == sha(result)
    assert TreesResult.from_dict(result.to_dict()).cells == result.cells


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_filled_by_single_settings(name):
    found = trees_terms({"preset": name, "rounds": None, "rate": 0.1}, COLUMNS)
    assert (found.rounds, found.depth, found.rate) == (PRESETS[name]["rounds"], PRESETS[name]["depth"], 0.1)
    assert found.exchanges == 5 + found.rounds * found.depth


def test_edges_give_shared_values_bins_of_their_own_and_join_rare_ones():
    cuts = np.arange(10.0)
    even = np.full(11, 10)
    assert choose_edges(cuts, even, most=30).tolist() == cuts.tolist()
    assert len(choose_edges(cuts, even, most=4)) == 4
    heavy = np.array([2, 500, 3, 3, 3, 3, 3, 3, 3, 3, 0])
    edges = choose_edges(cuts, heavy, most=3)
    assert 1.0 in edges.tolist() and len(edges) <= 3
    assert choose_edges(cuts, np.array([0, 50, 0, 0, 0, 0, 0, 0, 50, 0, 0]), most=30).tolist() == [4.0]
    assert choose_edges(cuts, np.array([50, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]), most=30).tolist() == []


def test_on_heart_trees_are_as_accurate_as_lightgbm():
    lightgbm = pytest.importorskip("lightgbm")
    x, y, _ = heart_rows()
    columns = tuple(Column(f"c{k}", k) for k in range(x.shape[1]))
    fold = np.random.default_rng(0).permutation(len(y)) % 3
    areas = []
    for k in range(2):
        train, test = fold != k, fold == k
        result = fit_in_memory(fit_trees(trees_terms({}, columns)), {"a": Rows(x[train], y[train])}, ANSWERS)
        peer = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1).fit(x[train], y[train])
        found = scores(result, x[test], columns)[:, 0]
        areas.append([area(y[test], found), area(y[test], peer.predict(x[test], raw_score=True))])
    ours, theirs = np.mean(areas, axis=0)
    assert ours > 0.86 and ours > theirs, (ours, theirs)


def area(y: np.ndarray, score: np.ndarray) -> float:
    pairs = score[y == 1][:, None] - score[y == 0]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())
