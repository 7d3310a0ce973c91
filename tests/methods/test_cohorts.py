"""Cohorts: found where updates part, weighed by hand, combined or kept apart, through bytes and after a resume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import grandrounds as gr
from grandrounds.methods import build_method
from grandrounds.methods.aggregate import Aggregation, aggregate
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.cohorts import choose_cohorts, cluster_updates, cohort_consistency, cohort_shares
from grandrounds.protocol.messages import Answers
from grandrounds.runs.model import TrainedModel
from tests.methods.test_separate import accuracy, rows_for_test, two_kinds
from tests.support import patients, refused, sections

# Found


def parted(sizes, *, seed=0, gap=3.0, noise=0.3, width=40) -> np.ndarray:
    """Updates of groups of sites, each group about a direction of its own."""
    rng = np.random.default_rng(seed)
    centres = gap * np.linalg.qr(rng.normal(size=(width, len(sizes))))[0].T
    return np.repeat(centres, sizes, axis=0) + noise * rng.normal(size=(sum(sizes), width)) / np.sqrt(width)


def test_opposite_directions_are_two_cohorts():
    one = np.random.default_rng(0).normal(size=(4, 30)) + 5
    updates = np.vstack([one, -one[:3]])
    assert cluster_updates(updates, count=2, seed=0).tolist() == [0, 0, 0, 0, 1, 1, 1]
    found = choose_cohorts(updates, most=5, seed=0)
    assert found.labels.tolist() == [0, 0, 0, 0, 1, 1, 1] and found.count == 2
    assert found.silhouette > 0.5 and "2 cohorts (silhouette 0." in found.why


@pytest.mark.parametrize("sizes", [(5, 4), (3, 4, 5), (2, 3, 2, 3)])
def test_the_silhouette_finds_as_many_as_there_are(sizes):
    found = choose_cohorts(parted(sizes), most=5, seed=1)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    assert found.count == len(sizes) and adjusted_rand_score(truth, found.labels) == 1
    assert choose_cohorts(parted(sizes), most=2, seed=1).count <= 2


def test_one_group_is_one_cohort():
    """Noise parts into clusters too, but into none that lie apart."""
    for seed in range(5):
        found = choose_cohorts(np.random.default_rng(seed).normal(size=(8, 60)) + 4, most=5, seed=seed)
        assert found.count == 1 and found.silhouette < 0.3
        assert found.why.startswith("the sites' updates form one group")


@pytest.mark.parametrize("updates", [np.ones((4, 3)), np.ones((1, 3)), np.eye(2)])
def test_where_there_is_nothing_to_part_there_is_one_cohort_and_no_silhouette(updates):
    found = choose_cohorts(updates, most=5, seed=0)
    assert found.labels.tolist() == [0] * len(updates) and found.silhouette is None
    assert found.why == "the sites' updates form one group"


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_equal_updates_are_never_parted(scale):
    """There are two places, so that three cohorts are two."""
    rng = np.random.default_rng(0)
    updates = scale * np.repeat(rng.normal(size=(2, 50)), 3, axis=0)
    assert cluster_updates(updates, count=3, seed=1).tolist() == [0, 0, 0, 1, 1, 1]
    assert choose_cohorts(updates, most=5, seed=1).labels.tolist() == [0, 0, 0, 1, 1, 1]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    seed=st.integers(0, 10_000),
    gap=st.sampled_from([0.0, 1.0, 5.0]),
)
@examples(max_examples=25, deadline=None)
def test_it_is_scikit_learns_k_means_on_the_updates_themselves(sizes, seed, gap):
    """Of K updates (K, P) the Gram matrix holds all that k-means looks at; P may be millions."""
    updates = parted(sizes, seed=seed, gap=gap, noise=1.0)
    raw = KMeans(len(sizes), n_init=10, random_state=seed).fit(updates - updates.mean(axis=0))
    mine = cluster_updates(updates, count=len(sizes), seed=seed)

    def spread(of) -> float:
        return sum(((updates[of == c] - updates[of == c].mean(axis=0)) ** 2).sum() for c in np.unique(of))

    assert spread(mine) == pytest.approx(raw.inertia_, rel=1e-6) or spread(mine) < raw.inertia_
    if gap == 5.0:
        assert adjusted_rand_score(raw.labels_, mine) == 1
    sizes_found = np.bincount(mine)
    assert (np.diff(sizes_found) <= 0).all(), "the largest cohort comes first"


def test_consistency_is_the_adjusted_rand_index():
    before, now = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0}, {"a": 1, "b": 1, "c": 0, "d": 0, "f": 0}
    assert cohort_consistency(before, now) == 1.0, "another number for the same cohort is no change"
    moved = {"a": 0, "b": 1, "c": 1, "d": 1}
    assert cohort_consistency(before, moved) == pytest.approx(adjusted_rand_score([0, 0, 1, 1], [0, 1, 1, 1]))
    assert cohort_consistency({}, now) is None and cohort_consistency({"a": 0}, now) is None


# Weighed (eq. 10-11), by hand

SITES = ("a", "b", "c", "d")
ROWS = np.array([10, 20, 30, 40])
MODELS = np.array([[1.0, 0.0], [1.2, 0.1], [0.9, -0.1], [-5.0, 3.0]])
"""Three sites that go one way and a fourth, with the most rows, that goes another."""

INNER = np.array([1, 2, 3]) / 6


def joined(
    models=MODELS, *, rows=ROWS, sites=SITES, served=None, state=None, round=1, columns=None, **method
) -> Aggregation:
    made = build_method(*sections({"name": "fedavg", **method}))
    told = {"model": np.asarray(models), "count": np.asarray(rows), **(columns or {})}
    return aggregate(Server(round, np.zeros(2), SITES, 0, state or {}, assignment=served), Answers(sites, told), made)


def test_what_a_cohort_counts_by_by_hand():
    of, weights = np.array([0, 0, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(cohort_shares("sites", of, weights, ROWS), [3 / 4, 1 / 4])
    np.testing.assert_allclose(cohort_shares("rows", of, np.full(4, 0.25), ROWS), [0.6, 0.4])
    np.testing.assert_allclose(cohort_shares("weights", of, np.array([0.3, 0.3, 0.3, 0.1]), ROWS), [0.9, 0.1])


@pytest.mark.parametrize(
    ("weigh", "weight", "expected"),
    [
        ("data_size", "weights", [0.1, 0.2, 0.3, 0.4]),
        ("data_size", "rows", [0.1, 0.2, 0.3, 0.4]),
        ("data_size", "sites", [*(0.75 * INNER), 0.25]),
        ("uniform", "weights", [0.25, 0.25, 0.25, 0.25]),
        ("uniform", "rows", [0.2, 0.2, 0.2, 0.4]),
        ("uniform", "sites", [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_cohorts_combined_by_hand(weigh, weight, expected):
    """A cohort's model is the mean of its sites by their weights; alone, a site counts 1 / K or by its own weight."""
    got = joined(weigh=weigh, cohorts={"count": 2, "weight": weight})
    np.testing.assert_allclose(got.weights, expected)
    np.testing.assert_allclose(got.model, np.array(expected) @ MODELS)
    assert got.cohorts["of"] == {"a": 1, "b": 1, "c": 1, "d": 2} and got.cohorts["count"] == 2
    assert [s.part for s in got.stages] == ["weigh", "cohorts"]
    np.testing.assert_allclose(list(got.stages[1].weights.values()), expected)


def reasons_of(sketches) -> dict[str, np.ndarray]:
    return {"sketch": np.array(sketches, float), "sketch.flat": np.zeros(4, bool), "sketch.total": np.ones(4)}


ODD = reasons_of([[0.5, 0.5, 0.0]] * 3 + [[0.0, 0.0, 1.0]])


def test_a_cohort_of_one_and_its_reasons():
    """Among all, d stands out and is left with nothing, also in a cohort of its own, where it would be its own judge;
    eq. 11 gives it a quarter, whatever is thought of it."""
    odd = {"columns": ODD, "weigh": {"rule": "explanations", "least_share": 0.0}}
    cohort = joined(**odd, cohorts={"count": 2})
    among_all = joined(**odd, cohorts={"count": 2, "consensus": "global"})
    printed = joined(**odd, cohorts={"count": 2, "consensus": "global", "weight": "sites"})
    np.testing.assert_allclose(cohort.weights, among_all.weights)
    assert among_all.weights[3] < 1e-3
    np.testing.assert_allclose(among_all.weights[:3], INNER, atol=1e-3)
    np.testing.assert_allclose(printed.weights, [*(0.75 * INNER), 0.25])
    assert cohort.signals["disagreement"]["d"] == among_all.signals["disagreement"]["d"] > 1
    for got in (cohort, among_all, printed):
        np.testing.assert_allclose(list(got.shares["agreement"].values()), got.weights)


def test_before_their_first_round_there_are_no_cohorts():
    assert joined(cohorts={"count": 2, "start": 3}, round=2).cohorts == {}
    assert joined(cohorts={"count": 2, "start": 3}, round=3).cohorts["count"] == 2
    assert joined(cohorts=1).cohorts == {}


def test_how_far_cohorts_are_as_they_were_is_told():
    first = joined(cohorts=2)
    assert first.cohorts["consistency"] is None
    again = joined(cohorts=2, round=2, state=first.memory)
    assert again.cohorts["consistency"] == 1
    turned = joined(MODELS[[3, 0, 1, 2]], cohorts=2, round=2, state=first.memory)
    expected = adjusted_rand_score([0, 0, 0, 1], [1, 0, 0, 0])
    assert turned.cohorts["consistency"] == pytest.approx(expected)
    some = joined(MODELS[:3], rows=ROWS[:3], sites=SITES[:3], cohorts=2, round=2, state=first.memory)
    assert first.memory["cohorts"][3] == 1
    assert some.memory["cohorts"][3] == -1, "numbers of two rounds' cohorts do not mix"


def test_a_robust_rule_judges_each_cohort_by_itself():
    """Five sites one way, one of them far out; two the other way, too few for Krum, which is noted."""
    sites = tuple("abcdefg")
    near = np.array([[1.0, 0.0], [1.1, 0.1], [0.9, 0.0], [1.0, 0.1], [3.0, 2.0]])
    models = np.vstack([near, [[-9.0, 0.0], [-9.2, 0.0]]])
    made = build_method(*sections({"cohorts": 2, "robust": {"rule": "multi-krum", "attackers": 1}}))
    rows = np.array([10, 10, 10, 10, 40, 10, 10])
    got = aggregate(Server(1, np.zeros(2), sites, 0), Answers(sites, {"model": models, "count": rows}), made)
    assert [s.part for s in got.stages] == ["weigh", "cohorts", "robust"]
    before, after = (list(got.stages[k].weights.values()) for k in (1, 2))
    np.testing.assert_allclose(before, rows / 100)
    assert after[4] == 0 and got.weights[4] == 0
    assert sum(after) == pytest.approx(1) and sum(after[:5]) == pytest.approx(0.8)
    np.testing.assert_allclose(got.model, np.array(after) @ models)
    said = (
        "cohort 2 is the weighted mean of its answers, not 'multi-krum': multi-krum with attackers = 1 needs at least 4"
    )
    assert len(got.notes) == 1 and got.notes[0].startswith(said)
    assert np.isnan([got.signals["krum_score"][s] for s in "fg"]).all(), "nobody judged them"


# Kept apart


def test_cohorts_that_keep_their_models_keep_their_sites():
    own = {"count": 2, "models": "separate"}
    first = joined(cohorts=own)
    assert first.assignment.index_by_site == {"a": 0, "b": 0, "c": 0, "d": 1}
    np.testing.assert_allclose(first.assignment.models, [INNER @ MODELS[:3], MODELS[3]])
    np.testing.assert_allclose(first.model, ROWS / 100 @ MODELS)
    crossed = MODELS[[0, 3, 1, 2]]
    again = joined(crossed, cohorts=own, round=2, served=first.assignment, state=first.memory)
    assert again.assignment.index_by_site == first.assignment.index_by_site
    np.testing.assert_allclose(again.assignment.models, [INNER @ crossed[:3], crossed[3]])
    assert again.cohorts["consistency"] == 1 and "keep their own models and their sites" in again.stages[1].why


def test_a_site_that_was_not_there_when_cohorts_were_formed_is_named():
    own = {"count": 2, "models": "separate"}
    first = joined(MODELS[1:], rows=ROWS[1:], sites=SITES[1:], cohorts=own)
    later = joined(cohorts=own, round=2, served=first.assignment, state=first.memory)
    assert later.assignment.index_by_site["a"] == 0
    assert "(a: new, so in the first cohort)" in later.stages[1].why


def test_one_cohort_of_several_asked_for_is_said_in_the_singular():
    alike = np.ones((4, 2))
    assert joined(alike, cohorts=3).stages[1].why.startswith("the sites' updates form 1 cohort (k-means)")


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "atuo", "2"])
def test_what_is_no_number_of_cohorts_is_refused(count):
    with refused("bad-setting", match="'auto'"):
        gr.Experiment.parse({"method": {"cohorts": count}})


def test_a_cohort_that_nobody_answers_for_keeps_its_model():
    own = {"count": 2, "models": "separate"}
    first = joined(cohorts=own)
    gone = joined(MODELS[:3] + 1, rows=ROWS[:3], sites=SITES[:3], cohorts=own, round=2, served=first.assignment)
    np.testing.assert_array_equal(gone.assignment.models[1], first.assignment.models[1])
    np.testing.assert_allclose(gone.assignment.models[0], INNER @ (MODELS[:3] + 1))
    assert gone.cohorts["count"] == 2 and gone.assignment.index_by_site["d"] == 1
    alone = joined(MODELS[3:] + 1, rows=ROWS[3:], sites=SITES[3:], cohorts=own, round=2, served=first.assignment)
    np.testing.assert_array_equal(alone.assignment.models[0], first.assignment.models[0])
    np.testing.assert_allclose(alone.assignment.models[1], MODELS[3] + 1)
    np.testing.assert_allclose(alone.weights, [1.0])


def test_a_robust_rule_starts_from_each_cohorts_own_model():
    """Clipping cuts what a site changed, not how far its cohort's model lies from the others'."""
    served = ModelAssignment(np.zeros(2), np.array([[10.0, 0.0], [-10.0, 0.0]]), {"a": 0, "b": 0, "c": 1, "d": 1})
    models = np.array([[10.5, 0.0], [10.0, 9.0], [-10.5, 0.0], [-10.0, -9.0]])
    method = {
        "cohorts": {"count": 2, "models": "separate"},
        "robust": {"rule": "clip", "norm": 1.0},
        "weigh": "uniform",
    }
    got = joined(models, served=served, **method)
    np.testing.assert_allclose(got.assignment.models, [[10.25, 0.5], [-10.25, -0.5]])


BASE = {
    "data": {"label": "died", "site": "hospital"},
    "reference": {"rows": {"rows": 40}},
    "method": {"name": "sse-agg", "rounds": 3, "cohorts": {"count": 2, "models": "separate"}},
    "train": {"epochs": 2, "batch": 16, "lr": 0.2},
}


def run(out, table, **changes) -> gr.Run:
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section}
    return gr.run(gr.Experiment.parse(values), table=table, out=out)


@pytest.fixture(scope="module")
def kinds():
    return two_kinds()


@pytest.fixture(scope="module")
def apart(kinds, tmp_path_factory):
    """Two kinds of hospital, at which the same measurements mean the opposite, each with a model of its own."""
    return run(tmp_path_factory.mktemp("apart") / "r", kinds)


def test_two_kinds_of_hospital_are_told_apart_and_judged_by_their_own_model(apart, kinds, tmp_path):
    for r in apart.rounds:
        of = r["decision"]["cohorts"]["of"]
        assert {s for s in of if of[s] == of["a"]} == set("abc")
    assert [r["decision"]["cohorts"]["consistency"] for r in apart.rounds] == [None, 1.0, 1.0]
    tested, files = rows_for_test(apart, kinds), apart.summary["models"]
    assert files["a"] == files["b"] == files["c"] != files["d"] == files["e"] == files["f"]
    for site, file in files.items():
        found = apart.summary["per_site"][site]["accuracy"]
        assert found == pytest.approx(accuracy(TrainedModel.load(apart.folder / file), kinds, tested[site]))
        assert found > 0.8
    combined = run(tmp_path / "combined", kinds, method={"cohorts": 2})
    assert combined.rounds[0]["decision"]["cohorts"]["of"] == apart.rounds[0]["decision"]["cohorts"]["of"]
    assert combined.summary["final"]["accuracy"] < 0.7, "one model cannot serve both"


def test_auto_finds_the_two_kinds(apart, kinds, tmp_path):
    found = run(tmp_path / "auto", kinds, method={"cohorts": {"count": "auto", "models": "separate"}})
    first = found.rounds[0]["decision"]["cohorts"]
    assert first["count"] == 2 and first["silhouette"] > 0.5
    assert first["of"] == apart.rounds[0]["decision"]["cohorts"]["of"]
    np.testing.assert_array_equal(found.model.theta, apart.model.theta)


def test_a_resumed_run_and_one_through_bytes_are_the_same(apart, kinds, tmp_path):
    short = run(tmp_path / "short", kinds, method={"rounds": 1})
    gone_on = gr.resume(short.folder, settings=["method.rounds=3"], table=kinds)
    wired = run(tmp_path / "wired", kinds, engine={"wire": True})
    for site, file in apart.summary["models"].items():
        own, resumed, sent = (
            TrainedModel.load(r.folder / r.summary["models"][site]).theta for r in (apart, gone_on, wired)
        )
        assert resumed.tobytes() == own.tobytes() and file
        np.testing.assert_allclose(sent, own, atol=1e-5)
    for one, again, other in zip(apart.rounds, gone_on.rounds, wired.rounds, strict=True):
        assert again["decision"]["weights"] == one["decision"]["weights"]
        assert again["decision"]["cohorts"] == one["decision"]["cohorts"]
        assert other["decision"]["cohorts"]["of"] == one["decision"]["cohorts"]["of"]
        assert other["decision"]["weights"] == pytest.approx(one["decision"]["weights"], abs=1e-4)


def test_whose_consensus_changes_the_weights_of_a_run(kinds, tmp_path):
    """Three hospitals of one kind and two of the other: among all, the two are further off than among their own."""
    fewer = kinds.take(np.flatnonzero(kinds.columns["hospital"] != "c"))
    own, among_all = (
        run(
            tmp_path / c,
            fewer,
            method={"rounds": 1, "weigh": {"form": "inverse"}, "cohorts": {"count": 2, "consensus": c}},
        ).rounds[0]["decision"]
        for c in ("cohort", "global")
    )
    assert own["cohorts"]["of"] == among_all["cohorts"]["of"]
    for site in "ab":
        assert own["signals"]["disagreement"][site] < 0.5 * among_all["signals"]["disagreement"][site]
        assert own["weights"][site] > 1.3 * among_all["weights"][site]


def test_sites_of_one_kind_are_one_cohort_and_the_model_is_the_same(tmp_path):
    table = patients([60, 48, 72, 54, 66])
    auto, none = (run(tmp_path / str(c), table, method={"cohorts": c}) for c in ("auto", 1))
    assert [r["decision"]["cohorts"]["count"] for r in auto.rounds] == [1, 1, 1]
    np.testing.assert_allclose(auto.model.theta, none.model.theta, atol=1e-6)
