"""SSE-AGG's weights from answers made by hand: the blend, flat models, what is remembered, and its stability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from scipy.special import expit, softmax
from scipy.stats import entropy

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.experiment.checks.methods import refuse_what_it_cannot
from grandrounds.methods import build_method
from grandrounds.methods.anchors import ADAPTIVE_STRENGTH, DEFAULT_STRENGTH
from grandrounds.methods.base import Server
from grandrounds.methods.sse_agg.agreement import is_explained_round
from grandrounds.methods.sse_agg.harm import HARM_BY_HALF, MIN_ROWS_TO_HALVE, choose_halves, confirms_on_halves
from grandrounds.methods.sse_agg.outliers import (
    MAX_REMEMBERED_RATIO,
    MIN_DISTANCE,
    count_neighbours,
    outlier_ratio_beyond_sampling,
)
from grandrounds.methods.sse_agg.weights import requested_reports, resolve_lambdas
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.models import build_model, model_spec
from grandrounds.protocol.messages import Answers
from grandrounds.runs.federation import assemble
from grandrounds.runs.references import ServerRows
from grandrounds.runs.setup import set_up_run
from tests.methods.test_anchored import watched
from tests.site.test_anchor import lent_engine
from tests.support import patients, refused, sections

SITES = ("a", "b", "c", "d")
ROWS = np.array([10, 20, 30, 40])
ALIKE = np.array([[0.5, 0.5, 0.0]] * 3)
ODD = np.vstack([ALIKE, [[0.0, 0.0, 1.0]]])
"""Three sites that reason alike, and the largest of all, which goes by another feature."""

FORMS = ["outlier", "inverse", "exponential"]


def weighing(**settings) -> Settings:
    """[method.weigh] of SSE-AGG with these settings; by explanations alone, without a least share, unless one is given."""
    values = {"rule": "explanations", "least_share": 0.0, **settings}
    return Settings(gr.Experiment.parse({"method": {"weigh": values}}).model_dump(mode="json")["method"]["weigh"])


def answers(sketches=ODD, *, rows=ROWS, total=None, flat=(), sites=SITES, **more) -> Answers:
    """Answers of sites that explain themselves; `flat` names those whose model uses no feature."""
    values = np.array(sketches, float)
    found = np.ones(len(values)) if total is None else np.array(total, float)
    idle = np.array([s in flat for s in sites])
    values[idle], found[idle] = 1 / values.shape[1], 0.0
    told = {"sketch": values, "sketch.flat": idle, "sketch.total": found}
    return Answers(sites, {"model": np.zeros((len(sites), 2)), "count": np.asarray(rows), **told, **more})


def server(round=1, *, state=None, sites=SITES) -> Server:
    return Server(round, np.zeros(2), sites, 0, {} if state is None else state)


def shares_of(values) -> np.ndarray:
    return np.asarray(values, float) / np.sum(values)


# By hand


def test_the_papers_blend_by_hand():
    """The mean sketch is (3/8, 3/8, 1/4): three sites lie 1/2 from it and one 3/2 (eq. 4, 5 and 8)."""
    got = weigh(weighing(form="inverse", explanation_weight=0.25), server(), answers())
    agree = shares_of(1 / (0.01 + np.array([0.5, 0.5, 0.5, 1.5])))
    np.testing.assert_allclose(got.weights, 0.75 * ROWS / 100 + 0.25 * agree)
    np.testing.assert_allclose(got.signals["disagreement"], [0.5, 0.5, 0.5, 1.5])
    np.testing.assert_allclose(got.shares["data"], 0.75 * ROWS / 100)
    np.testing.assert_allclose(got.shares["agreement"], 0.25 * agree)
    assert "0.75 x its share of the training rows + 0.25 x the agreement" in got.why


def test_the_exponential_form_by_hand():
    """Experiment II (eq. 20-21): exp(-tau D), blended with rows, raised to w_min and made to sum to 1."""
    chosen = weighing(form="exponential", tau=2.0, lambdas={"data": 0.5, "agreement": 0.5}, floor=0.22)
    got = weigh(chosen, server(), answers())
    blended = 0.5 * ROWS / 100 + 0.5 * shares_of(np.exp([-1.0, -1.0, -1.0, -3.0]))
    assert blended[0] < 0.22 < blended[2]
    np.testing.assert_allclose(got.weights, shares_of(np.maximum(blended, 0.22)))
    assert got.why.endswith("at least 0.22 before normalisation")


def test_the_outlier_form_by_hand():
    """The median site uses half of two features; the odd one is 2 off, where hardly anything is allowed."""
    got = weigh(weighing(sharpness=2.0, tolerance=2.0), server(), answers())
    kept = np.array([1, 1, 1, (MIN_DISTANCE / 2) ** 2])
    np.testing.assert_allclose(got.signals["disagreement"], [0, 0, 0, 2])
    np.testing.assert_allclose(got.signals["standing"], [0, 0, 0, 2 / MIN_DISTANCE])
    np.testing.assert_allclose(got.signals["in_line"], kept)
    np.testing.assert_allclose(got.weights, shares_of(kept * ROWS))


def test_the_outlier_form_sees_a_model_that_uses_the_right_features_too_little():
    """Learnt from shuffled labels: the same shares, a tenth of the importance. The paper's forms cannot tell."""
    weak = answers(ODD[[0, 1, 2, 0]], total=[1, 1, 1, 0.1])
    got = weigh(weighing(sharpness=4.0), server(), weak)
    assert got.signals["disagreement"] == pytest.approx([0, 0, 0, 0.9])
    assert got.weights[3] < 0.02
    np.testing.assert_allclose(weigh(weighing(form="inverse"), server(), weak).weights, [0.25] * 4)


def test_the_outlier_form_leaves_rows_alone_where_most_reasons_lie_far_apart():
    """Four hospitals that go by four features: there is no consensus that one of them could stand out from."""
    apart = np.eye(4) * 0.6 + 0.1
    got = weigh(weighing(), server(), answers(apart))
    np.testing.assert_allclose(got.weights, ROWS / 100)
    np.testing.assert_array_equal(got.signals["standing"], np.full(4, np.nan), "and nothing is known of any")
    np.testing.assert_array_equal(got.signals["in_line"], np.ones(4))
    far = np.median(got.signals["disagreement"])
    said = f"explanations usually differ by {far:.2f} from their consensus, too much to identify outliers"
    assert got.notes == (said,)
    assert weigh(weighing(form="inverse"), server(), answers(apart)).notes == ()
    two = answers(np.vstack([ODD, apart[:, :3]]), sites=tuple("abcdefgh"), rows=[10] * 8)
    within = weigh(weighing(), server(sites=two.sites), two, np.repeat([0, 1], 4))
    assert within.notes[0].startswith("cohort 2: explanations usually differ by ") and within.notes[1].startswith("d: ")
    assert within.weights[3] < 0.01 and within.weights[4:] == pytest.approx([1 / 7] * 4, abs=0.01)
    np.testing.assert_array_equal(np.isnan(within.memory["standing"]), np.repeat([False, True], 4))


def test_worst_site_and_calibration_by_hand():
    """Sites with more loss and worse calibration count more; a liar that says so would, too."""
    told = answers(val_loss=np.log([1.0, 1.0, 2.0, 4.0]), ece=np.array([0.1, np.nan, 0.3, 0.2]))
    used = {"data": 0.25, "worst_site": 0.25, "calibration": 0.5}
    got = weigh(weighing(lambdas=used, beta=1.0, gamma=10.0), server(), told)
    worst, poor = np.array([1, 1, 2, 4]) / 8, softmax([1.0, 2.0, 3.0, 2.0])
    np.testing.assert_allclose(got.weights, 0.25 * ROWS / 100 + 0.25 * worst + 0.5 * poor)
    np.testing.assert_allclose(got.shares["worst_site"], 0.25 * worst)
    np.testing.assert_allclose(got.signals["ece"], [0.1, np.nan, 0.3, 0.2])
    assert "disagreement" not in got.signals and not got.memory


def test_explanation_weight_is_a_shorthand():
    assert resolve_lambdas(weighing(explanation_weight=0.25)) == {"data": 0.75, "agreement": 0.25}
    assert resolve_lambdas(weighing()) == {"data": 0.0, "agreement": 1.0}
    long = weighing(lambdas={"data": 0.75, "agreement": 0.25, "worst_site": 0, "calibration": 0})
    short = weigh(weighing(explanation_weight=0.25), server(), answers())
    np.testing.assert_array_equal(weigh(long, server(), answers()).weights, short.weights)


@pytest.mark.parametrize("settings", [{"explanation_weight": 0.0}, {"lambdas": {"data": 1.0, "agreement": 0.0}}])
@pytest.mark.parametrize("form", FORMS)
def test_all_on_data_size_is_fedavg_to_the_bit_and_asks_for_nothing(settings, form):
    chosen = weighing(form=form, **settings)
    plain = weigh(Settings({"rule": "data_size"}), server(), answers())
    assert weigh(chosen, server(), answers()).weights.tobytes() == plain.weights.tobytes()
    assert all(requested_reports(chosen, r) == () for r in range(1, 9))


# Equal reasons, and none


@pytest.mark.parametrize("form", FORMS)
def test_equal_sketches_give_equal_agreement(form):
    """Rows alone decide in the outlier form; as the paper has it, nothing does."""
    got = weigh(weighing(form=form), server(), answers(ODD[[0] * 4]))
    expected = ROWS / 100 if form == "outlier" else np.full(4, 0.25)
    np.testing.assert_allclose(got.weights, expected)


@pytest.mark.parametrize("form", FORMS)
def test_a_flat_model_is_flagged_and_gains_nothing_by_being_near(form):
    """A uniform sketch at the very consensus of four sites that differ: as printed it would get the top weight."""
    sites = (*SITES, "e")
    apart = np.vstack([np.eye(4) * 0.6 + 0.1, np.full((1, 4), 0.25)])
    total = [1, 1, 1, 1, 1]
    same = {"sites": sites, "rows": np.full(5, 20)}
    near = weigh(weighing(form=form), server(sites=sites), answers(apart, total=total, **same))
    flat = weigh(weighing(form=form), server(sites=sites), answers(apart, total=total, flat=("e",), **same))
    if form != "outlier":
        assert near.weights[4] > near.weights[:4].max()
    assert flat.weights[4] <= flat.weights[:4].min() + 1e-12
    assert flat.signals["flat"].tolist() == [0, 0, 0, 0, 1] and "flat" not in near.signals
    assert flat.notes[-1] == (
        "e: its model uses no feature, so its weight by explanations is at most the lowest of the others'"
    )


def test_a_flat_model_has_no_say_in_the_consensus():
    one = weigh(weighing(form="inverse"), server(), answers(ODD))
    far = weigh(weighing(form="inverse"), server(), answers(ODD, flat=("a",))).signals["disagreement"]
    np.testing.assert_allclose(far[1:], [2 / 3, 2 / 3, 4 / 3])
    assert one.signals["disagreement"][3] == pytest.approx(1.5)


def test_flat_models_do_not_make_it_usual_to_be_far_off():
    """Three of six are flat: the median distance of all would let the odd one pass."""
    sites = (*SITES, "e", "f")
    told = answers(ODD[[0, 0, 0, 3, 0, 0]], sites=sites, rows=[10] * 6, flat=("c", "e", "f"))
    got = weigh(weighing(sharpness=4.0), server(sites=sites), told)
    assert got.weights[3] < 0.01 and got.weights[0] == got.weights[1] > 0.4
    assert (got.weights[[2, 4, 5]] <= got.weights[3] + 1e-12).all()


def test_a_flat_model_at_the_consensus_leaves_others_their_weight_however_sharp():
    """exp(-tau D) of the others is nothing beside its own: the nearest with reasons is what all are measured by."""
    apart = np.vstack([np.eye(3) * 0.6 + 0.4 / 3, np.full((1, 3), 1 / 3)])
    got = weigh(weighing(form="exponential", tau=2000.0), server(), answers(apart, flat=("d",)))
    np.testing.assert_allclose(got.weights, [0.25] * 4)


@pytest.mark.parametrize("form", FORMS)
def test_where_no_model_uses_a_feature_rows_decide(form):
    got = weigh(weighing(form=form), server(), answers(flat=SITES))
    np.testing.assert_allclose(got.weights, ROWS / 100)
    assert got.notes == ("no site's model uses any feature, so weights follow rows alone",)


def test_where_no_model_uses_a_feature_rows_decide_and_memory_is_as_it_was():
    """Such a round finds nobody off and nobody in line: what was found before counts again once there are reasons."""
    chosen = weighing(sharpness=1.0)
    held = {"standing": np.array([0.0, 8.0, 0.0, np.nan]), "trust": np.array([1.0, 1 / 8, 1.0, np.nan])}
    idle = weigh(chosen, server(4, state=held), answers(flat=SITES))
    np.testing.assert_allclose(idle.weights, ROWS / 100)
    for name, before in held.items():
        np.testing.assert_array_equal(idle.memory[name], before, name)
    again = weigh(chosen, server(5, state=idle.memory), answers(ODD[[0] * 4]))
    np.testing.assert_allclose(again.signals["standing"], [0, 4, 0, 0])
    np.testing.assert_allclose(again.weights, shares_of(ROWS * [1, 1 / 4, 1, 1]))


@pytest.mark.parametrize("form", FORMS)
def test_where_no_model_uses_a_feature_in_the_first_round_nothing_is_remembered(form):
    """So that rows decide until reasons are asked for again, not an agreement that nobody found."""
    chosen = weighing(form=form, every=5, sharpness=1.0)
    idle = weigh(chosen, server(1), answers(flat=SITES))
    assert "trust" not in idle.memory
    assert np.isnan(idle.memory.get("standing", np.full(4, np.nan))).all()
    between = weigh(chosen, server(2, state=idle.memory), quiet())
    assert between.weights.tobytes() == (ROWS / 100).tobytes() and between.shares.keys() == {"data"}


# What the numbers must always be


@st.composite
def cases(draw):
    """Answers of some sites, with flat models among them, and settings."""
    count = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    sites = tuple("abcdef"[:count])
    parts = np.array(draw(st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any)), float)
    signals = ("data", "agreement", "worst_site", "calibration")
    told = answers(
        rng.dirichlet(np.full(3, 0.3), count),
        sites=sites,
        rows=rng.integers(1, 500, count),
        total=rng.exponential(size=count),
        flat=tuple(s for s in sites if rng.random() < 0.2),
        val_loss=np.where(rng.random(count) < 0.2, np.nan, rng.exponential(size=count)),
        ece=rng.random(count),
    )
    chosen = weighing(
        form=draw(st.sampled_from(FORMS)),
        lambdas=dict(zip(signals, (parts / parts.sum()).tolist(), strict=True)),
        floor=draw(st.sampled_from([0.0, 0.05, 0.3])),
        tau=draw(st.sampled_from([0.0, 5.0, 2000.0])),
        every=draw(st.sampled_from([1, 3])),
        between_rounds=draw(st.sampled_from(["last", "data_size"])),
        memory=draw(st.sampled_from([0.0, 0.5, 0.9])),
    )
    before = {
        "trust": rng.random(count),
        "standing": np.where(rng.random(count) < 0.3, np.nan, rng.exponential(3, count)),
    }
    held = {} if draw(st.booleans()) else before
    groups = None if draw(st.booleans()) else rng.integers(0, 2, count)
    return chosen, told, held, groups


@given(case=cases(), seed=st.integers(0, 99))
@examples(max_examples=200, deadline=None)
def test_weights_sum_to_one_shares_add_up_to_them_and_both_move_with_the_sites(case, seed):
    chosen, told, held, groups = case
    order = np.random.default_rng(seed).permutation(len(told))
    for round in (3, 2):
        heard = told.only(range(len(told)), {})
        for name in {"sketch", "val_loss", "ece"}.difference(requested_reports(chosen, round)):
            heard.columns.pop(name)
        at = server(round, state=held, sites=told.sites)
        got = weigh(chosen, at, heard, groups)
        assert np.isfinite(got.weights).all() and (got.weights >= 0).all()
        assert got.weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(np.sum(list(got.shares.values()), axis=0), got.weights, atol=1e-12)
        assert all((part >= 0).all() for part in got.shares.values())
        assert all(len(values) == len(told) for values in got.signals.values())
        turned = weigh(chosen, at, heard.only(order, {}), None if groups is None else groups[order])
        np.testing.assert_allclose(turned.weights, got.weights[order], atol=1e-9)


# Cohorts: whose reasons a site is compared with


def test_reasons_are_compared_within_a_cohort():
    """One hospital of another kind among seven stands out; beside a second of its kind, in their own cohort, it does not."""
    sites = tuple("abcdefgh")
    two = answers(ODD[[0, 0, 0, 0, 0, 0, 3, 3]], sites=sites, rows=[20] * 8)
    among_all = weigh(weighing(), server(sites=sites), two)
    within = weigh(weighing(), server(sites=sites), two, np.repeat([0, 1], [6, 2]))
    assert among_all.weights[6:].max() < 1e-3
    np.testing.assert_allclose(within.weights, [1 / 8] * 8)
    np.testing.assert_allclose(within.signals["disagreement"], np.zeros(8))


@pytest.mark.parametrize(("sites", "bad"), [(4, 1), (5, 1), (7, 1), (8, 2), (12, 3)])
def test_one_bad_site_in_four_loses_its_weight_and_with_one_more_nobody_does(sites, bad):
    """No more than that can be told from hospitals with other patients, which would be shut out with all they know."""
    names, rows = tuple("abcdefghijkl"[:sites]), np.full(sites, 10)

    def told(off: int):
        sketches = np.vstack([np.repeat(ODD[:1], sites - off, axis=0), np.repeat(ODD[3:], off, axis=0)])
        return weigh(weighing(), server(sites=names), answers(sketches, sites=names, rows=rows))

    few, more = told(bad), told(bad + 1)
    assert few.weights[-bad:].sum() < 1e-4 and few.weights[:-bad] == pytest.approx(1 / (sites - bad), rel=1e-4)
    np.testing.assert_allclose(more.weights, 1 / sites)


# Rounds without reasons (T_s)


@pytest.mark.parametrize(
    ("every", "between", "asked"),
    [
        (1, "last", [1, 2, 3, 4, 5, 6]),
        (3, "data_size", [3, 6]),
        (3, "last", [1, 3, 6]),
        (5, "last", [1, 5]),
    ],
)
def test_reasons_are_asked_for_every_so_many_rounds(every, between, asked):
    """The paper has them in every T_s-th round; where the last known trust stands in between, in the first round too.

    The other signals are asked for in every round, but where the rounds between are left to the rows.
    """
    chosen = weighing(every=every, between_rounds=between, lambdas={"agreement": 0.5, "worst_site": 0.25, "calibration": 0.25})
    assert [r for r in range(1, 7) if is_explained_round(chosen, r)] == asked
    rest = ("val_loss", "ece") if between == "last" else ()
    for r in range(1, 7):
        assert requested_reports(chosen, r) == (("sketch", "val_loss", "ece") if r in asked else rest)
    assert requested_reports(Settings({"rule": "data_size"}), 1) == ()


@pytest.mark.parametrize("between", ["last", "data_size"])
def test_signals_without_agreement_know_no_rounds_between(between):
    """T_s is about sketches, and there are none: the loss is asked for and counts in every round."""
    chosen = weighing(every=3, between_rounds=between, lambdas={"data": 0.5, "worst_site": 0.5})
    told = quiet(val_loss=np.log([1.0, 1.0, 2.0, 4.0]))
    for r in range(1, 7):
        assert requested_reports(chosen, r) == ("val_loss",)
        got = weigh(chosen, server(r), told)
        np.testing.assert_allclose(got.weights, 0.5 * ROWS / 100 + 0.5 * np.array([1, 1, 2, 4]) / 8)


def quiet(sites=SITES, rows=ROWS, **more) -> Answers:
    """Answers in a round without reasons."""
    return Answers(sites, {"model": np.zeros((len(sites), 2)), "count": np.asarray(rows), **more})


def test_the_last_known_trust_stands_until_reasons_are_asked_for_again():
    chosen = weighing(every=5, sharpness=1.0)
    first = weigh(chosen, server(1), answers())
    held = first.memory
    assert held["trust"] == pytest.approx([1, 1, 1, MIN_DISTANCE / 2])
    for r in (2, 3, 4):
        got = weigh(chosen, server(r, state=held), quiet())
        np.testing.assert_allclose(got.weights, first.weights)
        np.testing.assert_array_equal(got.memory["trust"], held["trust"])
        held = got.memory
    fewer = weigh(chosen, server(2, state=held), quiet(("b", "d"), [20, 40]))
    np.testing.assert_allclose(fewer.weights, shares_of([20, 40 * MIN_DISTANCE / 2]))
    np.testing.assert_array_equal(held["standing"], first.memory["standing"])
    again = weigh(chosen, server(5, state=held), answers(ODD[[0] * 4]))
    np.testing.assert_allclose(again.memory["standing"], [0, 0, 0, MAX_REMEMBERED_RATIO / 2])
    np.testing.assert_allclose(again.memory["trust"], [1, 1, 1, 2 / MAX_REMEMBERED_RATIO])
    np.testing.assert_allclose(again.weights, shares_of(ROWS * again.memory["trust"]))
    forgetful = weigh(weighing(every=5, memory=0.0), server(5, state=held), answers(ODD[[0] * 4]))
    np.testing.assert_allclose(forgetful.weights, ROWS / 100)


def test_between_rounds_loss_and_calibration_are_fresh_beside_the_last_known_agreement():
    """Their lambdas hold in every round; only agreement is from the round that asked for reasons."""
    used = {"data": 0.25, "agreement": 0.25, "worst_site": 0.25, "calibration": 0.25}
    chosen = weighing(every=3, sharpness=1.0, lambdas=used, gamma=10.0)
    first = answers(val_loss=np.log([1.0, 1.0, 1.0, 1.0]), ece=np.full(4, 0.1))
    held = weigh(chosen, server(1), first).memory
    agree = shares_of(ROWS * [1, 1, 1, MIN_DISTANCE / 2])
    for losses, gaps in (([1, 1, 2, 4], [0.1, 0.2, 0.3, 0.2]), ([4, 2, 1, 1], [0.3, 0.1, 0.1, 0.1])):
        got = weigh(chosen, server(2, state=held), quiet(val_loss=np.log(losses), ece=np.array(gaps)))
        worst, poor = shares_of(losses), softmax(10 * np.array(gaps))
        np.testing.assert_allclose(got.weights, 0.25 * (ROWS / 100 + agree + worst + poor))
        np.testing.assert_allclose(got.shares["worst_site"], 0.25 * worst)
        np.testing.assert_allclose(got.signals["val_loss"], np.log(losses))
        np.testing.assert_allclose(got.signals["ece"], gaps)
        assert "disagreement" not in got.signals and "standing" not in got.signals
        assert got.why.startswith(
            "explanations are requested every 3 rounds; in this one the last known agreement is used: a site's weight is 0.25 x"
        )


def test_the_papers_rounds_in_between_go_by_rows():
    chosen = weighing(every=5, between_rounds="data_size")
    held = weigh(chosen, server(5), answers()).memory
    got = weigh(chosen, server(6, state=held), quiet())
    assert got.weights.tobytes() == (ROWS / 100).tobytes()
    assert got.shares.keys() == {"data"}
    assert got.memory.keys() == {"trust", "standing"}, "rows decide here, and the next round with reasons goes on"
    assert "every 5 rounds; in this one a site's weight is its share of the rows" in got.why


def test_a_site_that_was_never_asked_is_trusted_and_others_keep_what_was_found():
    """With random selection, trust is remembered site by site."""
    chosen = weighing(every=4, sharpness=1.0)
    some = answers(ODD[1:], sites=SITES[1:], rows=ROWS[1:])
    held = weigh(chosen, server(1), some).memory
    np.testing.assert_allclose(held["trust"], [np.nan, 1, 1, MIN_DISTANCE / 2])
    got = weigh(chosen, server(2, state=held), quiet())
    np.testing.assert_allclose(got.weights, shares_of(ROWS * [1, 1, 1, MIN_DISTANCE / 2]))


def test_a_floor_holds_in_between_too():
    chosen = weighing(every=5, sharpness=1.0, floor=0.1)
    got = weigh(chosen, server(2, state={"trust": np.array([1.0, 1.0, 1.0, 0.0])}), quiet())
    np.testing.assert_allclose(got.weights, shares_of(np.maximum(np.array([10, 20, 30, 0]) / 60, 0.1)))
    np.testing.assert_allclose(got.shares["agreement"], got.weights)


# What is remembered of a site that stands out


def halfway(share: float) -> np.ndarray:
    """Sketches of three sites alike and one that has moved this share of its reasons to a third feature: 2 x share off."""
    return np.vstack([ALIKE, [[(1 - share) / 2, (1 - share) / 2, share]]])


def course(shares, **settings) -> list:
    """Rounds of sites a, b, c, which are alike, and d, which is off by these shares."""
    held, out = {}, []
    for r, share in enumerate(shares, start=1):
        out.append(weigh(weighing(sharpness=1.0, **settings), server(r, state=held), answers(halfway(share))))
        held = out[-1].memory
    return out


def test_a_site_is_weighed_by_what_was_found_over_the_rounds():
    """0.4 off is four times what passes unnoticed, 0.04 is 0.4 of it: 4, then (4 + 0.4) / 2, then (2.2 + 0.4) / 2."""
    found = course([0.2, 0.02, 0.02, 0.02])
    np.testing.assert_allclose([r.signals["disagreement"][3] for r in found], [0.4, 0.04, 0.04, 0.04])
    np.testing.assert_allclose([r.signals["standing"][3] for r in found], [4, 2.2, 1.3, 0.85])
    np.testing.assert_allclose([r.signals["in_line"][3] for r in found], [1 / 4, 1 / 2.2, 1 / 1.3, 1])
    np.testing.assert_allclose(found[1].weights, shares_of(ROWS * [1, 1, 1, 1 / 2.2]))
    np.testing.assert_allclose(found[3].weights, ROWS / 100)
    slow = course([0.2, 0.02], memory=0.75)
    assert slow[1].signals["standing"][3] == pytest.approx(0.75 * 4 + 0.25 * 0.4)


def test_without_memory_every_round_speaks_for_itself_to_the_bit():
    shares = [0.2, 0.02, 0.3, 0.0]
    for share, got in zip(shares, course(shares, memory=0.0), strict=True):
        alone = weigh(weighing(sharpness=1.0), server(), answers(halfway(share)))
        assert got.weights.tobytes() == alone.weights.tobytes()
        assert got.signals["standing"].tobytes() == alone.signals["standing"].tobytes()


def test_an_honest_site_that_stands_out_once_keeps_more_than_without_memory():
    shares = [0.02, 0.02, 0.1, 0.02, 0.02]
    (*_, minded, after, last), (*_, forgetful, _, _) = course(shares), course(shares, memory=0.0)
    assert minded.signals["standing"][3] == pytest.approx(1.2) and forgetful.signals["standing"][3] == pytest.approx(2)
    assert forgetful.weights[3] < minded.weights[3] < 0.4
    for got in (after, last):
        np.testing.assert_allclose(got.weights, ROWS / 100, err_msg="and it is not held against it")


def test_a_bad_site_that_looks_normal_in_one_round_stays_below_half():
    shares = [0.4, 0.4, 0.4, 0.0, 0.4]
    minded, forgetful = course(shares)[3], course(shares, memory=0.0)[3]
    np.testing.assert_allclose(forgetful.weights, ROWS / 100)
    assert minded.signals["disagreement"][3] == 0
    assert minded.signals["in_line"][3] == pytest.approx(1 / 4)
    assert minded.weights[3] < 0.4 / 2


def test_under_random_selection_each_site_is_remembered_by_itself():
    """d stands out in round 1, is not there in round 2, in which a is new, and is known again in round 3.

    There the two are compared with each other: each lies 0.02 from their middle, 0.2 of what passes unnoticed.
    """
    chosen = weighing(sharpness=1.0)
    first = weigh(chosen, server(1), answers(halfway(0.2)[1:], sites=SITES[1:], rows=ROWS[1:]))
    np.testing.assert_allclose(first.memory["standing"], [np.nan, 0, 0, 4])
    second = weigh(chosen, server(2, state=first.memory), answers(ALIKE, sites=SITES[:3], rows=ROWS[:3]))
    np.testing.assert_allclose(second.signals["standing"], [0, 0, 0])
    np.testing.assert_allclose(second.memory["standing"], [0, 0, 0, 4])
    third = weigh(
        chosen, server(3, state=second.memory), answers(halfway(0.02)[[3, 0]], sites=("d", "a"), rows=[40, 10])
    )
    np.testing.assert_allclose(third.memory["standing"], [0.1, 0, 0, 2.1])
    np.testing.assert_allclose(third.weights, shares_of([40 / 2.1, 10]))


FOUR_WAYS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
"""Four hospitals that go by four things: no two of them can be compared."""


def test_a_round_without_a_consensus_leaves_a_bad_sites_standing():
    """d is 4 times off, then nobody can be compared, for twice: it is not forgiven meanwhile, and none is accused."""
    chosen = weighing(sharpness=1.0)
    held = weigh(chosen, server(1), answers(halfway(0.2))).memory
    for r in (2, 3):
        got = weigh(chosen, server(r, state=held), answers(FOUR_WAYS))
        assert got.notes[0].startswith("explanations usually differ by ")
        np.testing.assert_allclose(got.signals["standing"], [0, 0, 0, 4])
        np.testing.assert_allclose(got.weights, shares_of(ROWS * [1, 1, 1, 1 / 4]))
        held = got.memory
    again = weigh(chosen, server(4, state=held), answers(halfway(0.02)))
    assert again.signals["standing"][3] == pytest.approx((4 + 0.4) / 2)


def test_after_rounds_without_a_consensus_the_first_with_one_counts_in_full():
    """Nothing was known of anyone, which does not speak for a site that stands out as soon as it can be told."""
    chosen = weighing(sharpness=1.0)
    first = weigh(chosen, server(1), answers(FOUR_WAYS))
    np.testing.assert_array_equal(first.memory["standing"], np.full(4, np.nan))
    np.testing.assert_allclose(first.weights, ROWS / 100)
    second = weigh(chosen, server(2, state=first.memory), answers(halfway(0.2)))
    np.testing.assert_allclose(second.signals["standing"], [0, 0, 0, 4])
    np.testing.assert_allclose(second.weights, shares_of(ROWS * [1, 1, 1, 1 / 4]))


def test_what_is_out_of_all_proportion_is_remembered_from_a_round_without_a_consensus():
    """Beyond 5 a model is broken, whoever it is compared with; of the others nothing is known."""
    chosen = weighing(sharpness=1.0)
    broken = weigh(chosen, server(1), answers(FOUR_WAYS, total=[1, 1, 1, 1e4]))
    times = broken.signals["disagreement"][3] / 5
    np.testing.assert_allclose(broken.signals["standing"], [np.nan, np.nan, np.nan, times])
    assert times > MAX_REMEMBERED_RATIO and broken.weights[3] < 0.01
    after = weigh(chosen, server(2, state=broken.memory), answers(FOUR_WAYS))
    np.testing.assert_allclose(after.signals["standing"], [np.nan, np.nan, np.nan, times], err_msg="nothing new")
    back = weigh(chosen, server(3, state=after.memory), answers(ODD[[0] * 4]))
    np.testing.assert_allclose(back.signals["standing"], [0, 0, 0, MAX_REMEMBERED_RATIO / 2])


@pytest.mark.parametrize("form", ["inverse", "exponential"])
def test_the_papers_forms_remember_nothing_that_counts(form):
    """They go by this round's distances alone, whatever the memory."""
    chosen = weighing(form=form, memory=0.9)
    held = {"trust": np.array([0.1, 0.1, 0.1, 1.0]), "standing": np.array([9.0, 9.0, 9.0, 0.0])}
    got = weigh(chosen, server(2, state=held), answers())
    assert got.weights.tobytes() == weigh(weighing(form=form), server(), answers()).weights.tobytes()
    assert "standing" not in got.signals


# What a site keeps unless it harms the model


def test_a_site_that_stands_out_keeps_half_unless_it_harms_the_model():
    """d lies 4 times the tolerated distance away; harm counts once it is beyond 2 standard errors over the rounds."""
    chosen = weighing(least_share=0.5)

    def kept(*harms: float | None) -> tuple[float, str]:
        held = {}
        for r, harm in enumerate(harms, start=1):
            more = {} if harm is None else {"sketch.harm": np.array([0.0, 0.0, 0.0, harm])}
            got = weigh(chosen, server(r, state=held), answers(halfway(0.2), **more))
            held = got.memory
        return float(got.signals["in_line"][3]), got.notes[-1]

    assert kept(None)[0] == kept(1.0)[0] == kept(9.0)[0] == 0.5, "one round of harm is not enough"
    assert kept(*[9.0] * 3)[0] == pytest.approx(1 / 4**4)
    assert "no labelled reference rows to measure harm: it keeps at least 50% of its weight" in kept(None)[1]
    assert "no harm on the reference rows (0.2): it keeps at least 50%" in kept(1.0)[1]
    assert kept(*[9.0] * 3)[1].endswith("demoted")
    assert kept(*[9.0] * 3, None)[0] == pytest.approx(1 / 4**4), "a round that says nothing leaves what was found"


def test_harm_alone_takes_weight_where_explanations_agree():
    chosen, held = weighing(least_share=0.5), {}
    for r in range(1, 30):
        got = weigh(
            chosen, server(r, state=held), answers(halfway(0.0), **{"sketch.harm": np.array([0, 0, -9, 20.0])})
        )
        held = got.memory
    assert got.signals["standing"][3] == 0
    np.testing.assert_allclose(got.signals["in_line"], [1, 1, 1, (5 / 20) ** 4], rtol=0.05)
    assert got.notes[-1].startswith("d: with it the model is worse on the reference rows, by 20.0 standard errors")


def try_halves(harms: dict[int, float], *, rows: int = 40, **settings) -> tuple[WeightingResult, list[int]]:
    """Ten rounds in which d stands out and does this harm with all (0), the first (1) and the second half (2) of its patients."""
    chosen, held, asked = weighing(own_halves=True, **settings), {}, []
    for r in range(1, 11):
        here = replace(server(r, state=held), rows=dict.fromkeys(SITES, rows))
        asked.append(choose_halves(chosen, here).get("d", 0))
        told = {"sketch.harm": np.array([0.0, 0.0, 0.0, harms[asked[-1]]])}
        got = weigh(chosen, here, answers(halfway(0.2), rows=[rows] * 4, **told))
        held = got.memory
    return got, asked


def test_a_site_is_demoted_for_harm_only_if_it_harms_with_either_half_of_its_own_patients():
    got, asked = try_halves({0: 9.0, 1: 9.0, 2: 1.0}, least_share=0.5)
    assert asked == [0, 0, 2, 1, 2, 1, 2, 1, 2, 1], "asked once harm over the rounds is beyond 2, and then in turn"
    assert got.signals["in_line"][3] == pytest.approx(1 / 4**4)
    assert [got.signals[name][3] for name in HARM_BY_HALF] == [9, 1] and np.isnan(got.signals[HARM_BY_HALF[0]][:3]).all()
    by_one, asked = try_halves({0: 9.0, 1: 20.0, 2: -1.0}, least_share=0.5)
    assert asked[2:] == [2, 1] * 4 and by_one.signals["in_line"][3] == 0.5
    assert any("not with either half of its own patients: it keeps at least 50% of its weight" in n for n in by_one.notes)
    assert by_one.notes[-1] == "d: in this round it trained on the first half of its own patients"


def test_sites_too_small_for_halves_are_judged_by_all_of_their_patients():
    got, asked = try_halves({0: 9.0}, rows=MIN_ROWS_TO_HALVE - 1, least_share=0.5)
    assert not any(asked) and got.signals["in_line"][3] == pytest.approx(1 / 4**4) and HARM_BY_HALF[0] not in got.signals


@pytest.mark.parametrize("settings", [{"least_share": 0.0}, {"form": "inverse"}, {"form": "exponential"}])
def test_halves_are_tried_only_where_harm_decides(settings):
    """Not of a site that loses its weight by standing out alone, nor in the paper's forms."""
    assert not any(try_halves({0: 4.0}, **settings)[1])


def test_halves_take_turns_where_explanations_are_asked_for_seldom():
    asked = try_halves({0: 9.0, 1: 9.0, 2: 9.0}, least_share=0.5, every=2)[1]
    assert asked == [0, 0, 0, 1, 0, 2, 0, 1, 0, 2]


@pytest.mark.parametrize(
    ("changes", "tried"),
    [
        ({}, True),
        ({"method": {"name": "fedavg"}}, False),
        ({"privacy": {"mechanism": "dp-sgd", "noise": 1.0}}, False),
        ({"privacy": {"secure": True}}, False),
    ],
)
def test_halves_are_not_tried_where_something_is_promised(changes, tried):
    plan = gr.Experiment.parse({"data": {"name": "digits"}, "method": {"name": "sse-agg"}, **changes}).plan()
    assert confirms_on_halves(Settings(plan).method.weigh) is tried


def test_what_sampling_alone_gives_is_no_standing_out():
    """0.5 off where sampling of the reference rows gives 0.3: 0.4 is left, as errors add in squares."""
    less = {"sketch.sampling": np.array([0, 0, 0, 0.3])}
    got = weigh(weighing(least_share=0.5), server(), answers(halfway(0.25), **less))
    assert got.signals["disagreement"][3] == pytest.approx(0.5)
    assert got.signals["standing"][3] == pytest.approx(4)
    quiet = {"sketch.sampling": np.array([0, 0, 0, 0.6])}
    assert weigh(weighing(least_share=0.5), server(), answers(halfway(0.25), **quiet)).signals["in_line"][3] == 1
    strict = weigh(weighing(), server(), answers(halfway(0.25), **quiet)).signals
    assert strict["standing"][3] == pytest.approx(5) and "sampling" not in strict, "without a least share nothing excuses a site"


def test_one_neighbour_does_not_judge_another():
    """The fourth lies far from the median, but from one of the others alone: it does not stand out."""
    far, none = np.array([0.02, 0.02, 0.02, 0.5]), np.zeros(4)
    by_one, by_two = (outlier_ratio_beyond_sampling(far, none, np.array([0, 0, 0, n]), peers=far)[3] for n in (1, 2))
    assert by_one == 1 and by_two == pytest.approx(5)
    apart = np.array([[1.0, 0.0], [0.9, 0.1], [0.75, 0.25], [0.5, 0.5]])
    near = count_neighbours(apart, none, np.array([0.1, 0.1, 0.3, 0.9]), 1.0, tolerance=2.0)
    assert near.tolist() == [1, 1, 0, 2], "0.6 passes unnoticed: the last lies 1.0, 0.8 and 0.5 from the others"


# What `auto` means


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, "none"),
        ({"reference": {"rows": {}}}, "none"),
        ({"reference": {"anchor": {"sent": True}}}, "permuted_anchor"),
        ({"method": {"preset": "defence"}}, "none"),
        ({"method": {"preset": "defence"}, "reference": {"anchor": {"sent": True}}}, "permuted_anchor"),
        ({"method": {"preset": "drift"}}, "scaffold"),
        ({"method": {"preset": "drift"}, "reference": {"rows": {}}}, "scaffold"),
        ({"method": {"preset": "drift"}, "reference": {"anchor": {"sent": True}}}, "anchored_scaffold"),
        ({"method": {"preset": "drift"}, "train": {"optimizer": "adamw"}}, "none"),
        ({"reference": {"anchor": {"sent": True}}, "train": {"optimizer": "adamw"}}, "permuted_anchor"),
        ({"reference": {"anchor": {"sent": True}}, "train": {"optimizer": "momentum"}}, "permuted_anchor"),
        ({"train": {"optimizer": "adamw"}}, "none"),
        ({"model": {"name": "forest"}, "reference": {"anchor": {"sent": True}}}, "none"),
        ({"reference": {"anchor": {"sent": True}}, "method": {"cohorts": {"count": 2, "models": "separate"}}}, "permuted_anchor"),
        ({"method": {"cohorts": {"count": "auto", "models": "separate"}}}, "none"),
        ({"method": {"cohorts": 2, "preset": "drift"}}, "scaffold"),
        ({"method": {"stability": "none"}, "reference": {"anchor": {"sent": True}}}, "none"),
        ({"method": {"stability": "proximal"}}, "proximal"),
        ({"method": {"name": "fedavg"}, "reference": {"anchor": {"sent": True}}}, "none"),
        ({"method": {"name": "fedavg", "weigh": "explanations"}}, "none"),
    ],
)  # fmt: skip
def test_what_auto_holds_sites_together_with(changes, held):
    values = {"data": {"name": "digits"}, **changes, "method": {"name": "sse-agg", **changes.get("method", {})}}
    plan = gr.Experiment.parse(values).plan()
    assert plan["method"]["stability"] == held
    assert gr.Experiment.parse(plan).plan() == plan, "what a run writes down is what it is"


def test_what_auto_weighs_by():
    def rule(**method) -> str:
        return gr.Experiment.parse({"data": {"name": "digits"}, "method": method}).plan()["method"]["weigh"]["rule"]

    assert rule(name="sse-agg") == rule(name="sse-agg", weigh="explanations") == "explanations"
    assert rule(name="sse-agg", weigh={"explanation_weight": 0.5}) == "explanations"
    assert rule() == rule(name="fedprox") == "data_size"
    assert rule(name="fedadam", weigh="explanations") == "explanations"


@pytest.mark.parametrize(
    ("optimizer", "strength"),
    [("sgd", DEFAULT_STRENGTH), ("momentum", DEFAULT_STRENGTH), ("adam", ADAPTIVE_STRENGTH), ("adamw", ADAPTIVE_STRENGTH)],
)
def test_an_anchor_of_no_stated_strength_suits_the_optimizer(optimizer, strength):
    values = {"data": {"name": "digits"}, "train": {"optimizer": optimizer}, "method": {"stability": "anchor"}}
    assert (DEFAULT_STRENGTH, ADAPTIVE_STRENGTH) == (3.0, 40.0)
    assert gr.Experiment.parse(values).plan()["method"]["anchor"] == strength
    values["method"]["anchor"] = 0.5
    assert gr.Experiment.parse(values).plan()["method"]["anchor"] == 0.5


# SCAFFOLD's variates with an anchor


@pytest.mark.parametrize("classes", [2, 3])
def test_doubt_is_the_share_of_the_most_entropy_there_could_be(classes):
    values = {
        "data": {"table": "data frame", "label": "died", "site": "hospital"},
        "reference": {"anchor": {"rows": 25, "sent": True, "labelled": False}},
        "engine": {"precision": "float64"},
    }
    plan = Settings(gr.Experiment.parse(values).plan())
    consortium = assemble(plan, patients([60, 50, 40], classes=classes))
    opening = set_up_run(plan, consortium, None)
    held = ServerRows.of("anchor", plan, consortium, opening)
    model = opening.engine.hosts[0].model
    start = model.init(0)
    assert not start.any() and held.doubt(start) == pytest.approx(1.0)
    theta = np.random.default_rng(3).normal(size=start.shape)
    logits = model.logits(theta, held.part.x)
    p = np.column_stack([1 - expit(logits), expit(logits)]) if classes == 2 else softmax(logits, axis=1)
    assert logits.shape == (25, 1 if classes == 2 else 3)
    assert held.doubt(theta) == pytest.approx(entropy(p, axis=1).mean() / np.log(classes))
    assert 0.05 < held.doubt(theta) < 0.95
    assert held.doubt(1e6 * theta) == pytest.approx(0, abs=1e-6), "sure of every row, right or wrong"


class Doubting:
    """Reference rows on which a model doubts as much as it is told to."""

    def __init__(self, share: float) -> None:
        self.share, self.asked = share, []

    def doubt(self, model):
        self.asked.append(model)
        return self.share


def test_the_anchor_follows_the_models_doubt_and_never_overshoots():
    engine = lent_engine()
    start = engine.hosts[0].model.init(0)

    def anchor(doubt: float, *, hold: float, lr: float = 0.1, round: int = 50) -> float:
        made, rows = build_method(*sections({"stability": "anchored_scaffold", "anchor_gain": hold}, lr=lr)), Doubting(doubt)
        at = Server(round, start, engine.sites, 0, rows=dict.fromkeys(engine.sites, 1), anchors=rows)
        _, ((ask, heard),) = watched(engine, made, at)
        assert ask.shared["permuted"] is True and not np.any(ask.shared["variate"]) and "variate" in heard
        np.testing.assert_array_equal(rows.asked[0], start)
        return ask.shared["anchor"]

    found = [anchor(d, hold=2.0) for d in (0.0, 0.2, 0.5, 1.0)]
    assert found[0] == 0 and found[3] == pytest.approx(2.0) and found == sorted(found) and found[1] > 0
    assert anchor(0.5, hold=4.0) == pytest.approx(2 * found[2])
    assert anchor(1.0, hold=0.0) == 0
    assert anchor(1.0, hold=50.0, lr=0.5) == pytest.approx(2.0), "a step past 1 / lr would swing about the start"
    grown = [anchor(1.0, hold=2.0, round=r) for r in (1, 2, 4, 20)]
    assert grown[0] == 0 and grown == sorted(grown) and 0 < grown[1] < grown[3] == found[3], (
        "the first model knows nothing"
    )


BASE = {
    "data": {"label": "died", "site": "hospital"},
    "model": {"name": "mlp", "hidden": [4]},
    "reference": {"rows": {"rows": 30}, "anchor": {"rows": 30, "sent": True, "labelled": False}},
    "method": {"name": "sse-agg", "rounds": 3, "stability": "anchored_scaffold"},
    "train": {"steps": 4, "batch": 16},
    "explain": {"reference": "rows"},
}


def run(out, table=None, **changes) -> gr.Run:
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section}
    return gr.run(gr.Experiment.parse(values), table=table or patients([60, 48, 72, 54]), out=out)


def test_without_hold_it_is_scaffold_to_the_bit(tmp_path):
    """At sites that have a batch of rows."""
    loose = run(tmp_path / "loose", method={"anchor_gain": 0.0})
    scaffold = run(tmp_path / "scaffold", method={"stability": "scaffold"})
    held = run(tmp_path / "held")
    assert loose.model.theta.tobytes() == scaffold.model.theta.tobytes()
    assert np.abs(held.model.theta - scaffold.model.theta).max() > 1e-3


def test_both_kernels_agree(tmp_path):
    pytest.importorskip("torch")
    one, other = (run(tmp_path / k, engine={"kernel": k, "precision": "float64"}) for k in ("numpy", "torch"))
    np.testing.assert_allclose(other.model.theta, one.model.theta, atol=1e-8)
    for a, b in zip(one.rounds, other.rounds, strict=True):
        assert b["decision"]["weights"] == pytest.approx(a["decision"]["weights"], abs=1e-8)


def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path):
    whole = run(tmp_path / "whole", method={"rounds": 4})
    short = run(tmp_path / "short", method={"rounds": 2})
    gone_on = gr.resume(short.folder, settings=["method.rounds=4"], table=patients([60, 48, 72, 54]))
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()


# What does not go together


def plan(method=None, **changes) -> Settings:
    values = {"data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [3]}, **changes}
    return Settings(gr.Experiment.parse({**values, "method": {"name": "sse-agg", **(method or {})}}).plan())


SENT = {"reference": {"anchor": {"rows": 20, "sent": True}, "rows": {"rows": 20}}}
APART = {"count": 2, "models": "separate"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            plan({"stability": "anchored_scaffold"}, train={"optimizer": "adamw"}, **SENT),
            "train.optimizer is 'adamw'",
        ),
        (
            plan({"stability": "anchored_scaffold"}),
            "add [reference.anchor] with rows = 200 and sent = true",
        ),
        (
            plan({"name": "fedbuff", "weigh": "explanations"}),
            "set method.weigh = 'data_size'",
        ),
        (
            plan({"name": "clustered", "weigh": "explanations"}),
            "does not support method.weigh",
        ),
        (
            plan({"name": "fedavg", "robust": "median", "weigh": "explanations"}),
            "method.weigh 'explanations'",
        ),
        (
            plan({"name": "fedadam", "cohorts": APART}),
            "set method.cohorts.models = 'combined'",
        ),
        (
            plan({"name": "fedavgm", "cohorts": APART}),
            "set method.cohorts.models = 'combined'",
        ),
        (
            plan({"name": "scaffold", "cohorts": APART}),
            "set method.stability = 'proximal'",
        ),
        (
            plan({"cohorts": APART, "stability": "anchored_scaffold"}, **SENT),
            "set method.stability = 'proximal'",
        ),
        (
            plan({"cohorts": APART}, train={"early_stop": 3}),
            "or train.early_stop = 0",
        ),
        (
            plan({"cohorts": 9}),
            "method.cohorts.count is 9, but only 5 sites train",
        ),
        (
            plan({"name": "fedbuff", "cohorts": 2}),
            "remove method.cohorts",
        ),
        (
            plan({"name": "local", "cohorts": "auto"}),
            "does not support method.cohorts",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_words(asked, said):
    model = build_model(model_spec(asked.model, inputs=(4,), classes=2))
    with refused("method-does-not-fit") as e:
        refuse_what_it_cannot(model, asked, sites=5)
    assert said in str(e.value)


def test_two_sites_cannot_say_who_stands_out():
    asked = plan()
    model = build_model(model_spec(asked.model, inputs=(4,), classes=2))
    with refused("method-does-not-fit", match="'fedavg'"):
        refuse_what_it_cannot(model, asked, sites=2)
    refuse_what_it_cannot(model, asked, sites=3)


@pytest.mark.parametrize("rule", ["uniform", "data_size", "distance"])
def test_sse_agg_weighs_by_explanations_alone(rule):
    with refused("method-does-not-fit", match=f"'{rule}'"):
        plan({"weigh": rule})


@pytest.mark.parametrize("name", ["forest", "lightgbm"])
def test_trees_refuse_what_holds_gradients_and_cohorts(name):
    if name == "lightgbm":
        pytest.importorskip("lightgbm")
    asked = plan({"stability": "anchored_scaffold"}, model={"name": name}, **SENT)
    model = build_model(model_spec(asked.model, inputs=(4,), classes=2))
    with refused("method-does-not-fit", match="'none'"):
        refuse_what_it_cannot(model, asked, sites=5)
    apart = plan({"cohorts": 2}, model={"name": name})
    with refused("method-does-not-fit", match=rf"'{name}'.*method\.cohorts"):
        refuse_what_it_cannot(model, apart, sites=5)


def test_a_cohort_of_one_is_not_its_own_judge():
    """The odd site alone in a cohort is compared with all; three that are alike are compared among themselves."""
    odd = answers([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
    got = weigh(weighing(form="outlier"), server(), odd, np.array([1, 0, 0, 0]))
    far, trust = got.signals["disagreement"], got.signals["in_line"]
    assert far.tolist() == [2, 0, 0, 0]
    assert trust.tolist() == [(0.1 / 2) ** 4, 1, 1, 1]
