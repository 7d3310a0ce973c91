"""Promises to patients with several rows: whatever a mechanism bounds for one row, it bounds for one patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.privacy.account import load_account
from grandrounds.data.table import Table
from grandrounds.methods.veil.site import CENSUS, MOMENTS, SCORES, VeilSite
from grandrounds.models import build_model
from grandrounds.privacy.accounting import Event, epsilon_of, noise_for
from grandrounds.privacy.attacks.empirical import lower_bound
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site import platt
from grandrounds.site.dp_sgd import SampledSteps, refusals, train
from grandrounds.site.stack import Part, Patients
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.e2e.test_privacy import SIZES, model, plan
from tests.support import patients, refused, stack, veil_sites

NAMES = np.array(["p7", "p2", "p7", "p9", "p7", "p2"], object)


def test_rows_are_grouped_by_patient_in_the_order_of_first_rows():
    held = Patients.of(NAMES)
    assert held.count == 3
    assert held.rows.tolist() == [0, 2, 4, 1, 5, 3] and held.starts.tolist() == [0, 3, 5, 6]
    assert [set(np.flatnonzero(NAMES[r] == NAMES)) >= {int(r)} for r in held.chosen] == [True] * 3
    assert NAMES[held.chosen].tolist() == ["p7", "p2", "p9"]


def test_a_patients_row_is_drawn_by_who_they_are_and_not_by_who_else_is_there():
    whole = Patients.of(NAMES)
    without = Patients.of(NAMES[NAMES != "p2"])
    kept = np.flatnonzero(NAMES != "p2")
    assert kept[without.chosen].tolist() == [whole.chosen[0], whole.chosen[2]]
    many = Patients.of(np.repeat([f"p{k}" for k in range(400)], 4).astype(object))
    assert np.bincount(many.chosen % 4, minlength=4).min() > 60, "not always the first row"


def test_rows_of_a_step_are_the_patients_own():
    held = Patients.of(NAMES)
    who = np.repeat([0, 1, 2], 300)
    drawn = held.draw_rows(who, np.random.default_rng(0))
    assert NAMES[drawn].tolist() == np.repeat(["p7", "p2", "p9"], 300).tolist()
    assert np.unique(drawn[:300], return_counts=True)[1].min() > 70, "every row of a patient has its turn"
    single = Patients.of(np.array(["a", "b", "c"], object))
    assert single.draw_rows(np.array([2, 0]), None).tolist() == [2, 0], "nothing is drawn where each has one row"


def logistic():
    from grandrounds.core.plan import Settings
    from grandrounds.models import model_spec

    options = {**gr.Experiment().model.model_dump(), "name": "logistic"}
    return build_model(model_spec(Settings(options), inputs=[2], classes=2), kernel="numpy")


def part(x: np.ndarray, y: np.ndarray, names: np.ndarray | None, copies: int = 1) -> Part:
    """Rows of one site, as often as asked side by side."""
    n = len(y)
    tiled = np.tile(y, copies)
    whose = None if names is None else np.tile(names, copies)
    return Part(
        np.tile(x, (copies, 1)), tiled, tiled[:, None].astype(float), np.zeros(n * copies, int), np.arange(copies + 1) * n, whose
    )


rng = np.random.default_rng(3)
X = np.concatenate([rng.normal(size=(10, 2)), np.full((12, 2), 30.0)])
Y = np.concatenate([rng.integers(0, 2, 10), np.zeros(12, int)])
WHO = np.array([*(f"p{k}" for k in range(5)), *(f"p{k}" for k in range(5)), *["long"] * 12], object)
"""Five patients of two rows, and one with twelve far-out rows: the last, so that without them nobody else is drawn otherwise."""

CLIP = 0.7
STEP = TrainConfig(seed=1, round=1, lr=1.0, steps=1, clip=CLIP, noise=0.0, rate=1.0)


def clipped_sum(held: Part, todo: TrainConfig = STEP, secret: int = 5) -> np.ndarray:
    """The sum of one step's clipped gradients, noise and all, for each site."""
    made = logistic()
    members = np.arange(len(held.counts))
    secrets = [Secret.simulated(secret, f"s{k}") for k in members]
    drawn = SampledSteps.draw(held, members, secrets, config=todo, purpose="ask 1", size=made.layout.size)
    start = np.zeros(made.layout.size)
    done = train(TrainJob(made, held, members, start, todo), drawn)
    return (start - done.theta) * (todo.rate * held.protected)[:, None]


def test_a_patient_with_twelve_rows_moves_a_step_by_at_most_the_clip():
    others = WHO != "long"
    moved = clipped_sum(part(X, Y, WHO)) - clipped_sum(part(X[others], Y[others], WHO[others]))
    assert 0.9 * CLIP < np.linalg.norm(moved) <= CLIP * (1 + 1e-9)
    by_row = clipped_sum(part(X, Y, None)) - clipped_sum(part(X[others], Y[others], None))
    assert np.linalg.norm(by_row) > 10 * CLIP, "by rows: twelve times as much"


def test_one_row_each_keeps_the_bits():
    names = np.array([f"p{k}" for k in range(len(Y))], object)
    todo = replace(STEP, steps=7, rate=0.3, noise=1.1)
    one, other = clipped_sum(part(X, Y, names), todo), clipped_sum(part(X, Y, None), todo)
    assert one.tobytes() == other.tobytes()


def test_a_site_counts_its_patients_where_too_few_are_refused():
    held = part(X, Y, WHO)
    assert held.counts.tolist() == [22] and held.protected.tolist() == [6]
    assert refusals(held.protected, replace(STEP, fewest=7)) == ["too-few-rows"]


@pytest.mark.parametrize("runs", [3_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_dp_sgd_keeps_its_claim_to_a_patient(runs):
    """The patient's twelve rows are one kind; by rows the same noise tells them at once."""
    claim, delta = 1.0, 1e-3
    todo = replace(STEP, noise=noise_for(claim, delta, steps=1))
    others = WHO != "long"

    def released(by_patient: bool):
        def noisy(there, rng, copies):
            kept = np.ones(len(Y), bool) if there else others
            held = part(X[kept], Y[kept], WHO[kept] if by_patient else None, copies)
            return clipped_sum(held, todo, secret=int(rng.integers(2**62)))

        return noisy

    def bound(by_patient: bool):
        return lower_bound(released(by_patient), True, False, runs=runs, seed=4, delta=delta, at_once=True)

    assert epsilon_of([Event("gaussian", "a step", sigma=todo.noise)], delta) <= claim
    assert bound(True).epsilon <= claim
    assert bound(False).refutes(claim)


def concepts(held: Part) -> VeilSite:
    return veil_sites(["s"], replace(stack([5, 5]), parts={"train": held}), lambda name: Secret.simulated(1, name))


REACH = {
    CENSUS: ({"value": 1.0, "norm": 1.5}, np.sqrt(3)),
    SCORES: ({"value": 1.0, "norm": 1.2, "inputs": 2, "prior": 0.3}, 1.2),
    MOMENTS: ({"value": 1.0, "norm": 1.2, "inputs": 2, "prior": 0.3, "outcome": 1.0}, 1.2 * np.sqrt(1.2**2 + 1)),
}


@pytest.mark.parametrize("task", REACH)
def test_veils_sums_move_by_what_is_charged_for_one_patient(task):
    told, reach = REACH[task]
    ask = Ask(task, shared=told, id=AskId("r", 1, 1))

    def summed(held: Part) -> np.ndarray:
        (values,) = concepts(held).tasks[task](ask, np.zeros(1, np.int64)).values()
        return values[0]

    others = WHO != "long"
    moved = summed(part(X, Y, WHO)) - summed(part(X[others], Y[others], WHO[others]))
    assert 0 < np.linalg.norm(moved) <= reach * (1 + 1e-9)
    by_row = summed(part(X, Y, None)) - summed(part(X[others], Y[others], None))
    assert np.linalg.norm(by_row) > reach


def test_a_patient_is_in_one_cell_of_a_calibration():
    held = part(X, Y, WHO)
    s, y, owner = platt.one_each((X[:, 0], Y, np.zeros(len(Y), int)), held, np.zeros(1, np.int64))
    assert len(s) == 6 and platt.counts(s, y, owner, np.linspace(-8, 8, 9), by_outcome=False, sites=1).sum() == 6


def several(sizes=SIZES) -> Table:
    """As `patients`, with two or three rows of each."""
    table = patients(sizes)
    ids = np.concatenate([[f"{site}{k // 3}" for k in range(n)] for site, n in zip("abcde", sizes, strict=True)])
    return Table.from_mapping({**table.columns, "pid": ids}, source="patients.csv")


BY_PATIENT = {"data": {"patient": "pid"}, "privacy": {"min_rows": 20}}
WAYS = {
    "dp-sgd": {**BY_PATIENT, "evaluation": {"calibrate": "platt"}},
    "veil": {"data": {"patient": "pid"}, "privacy": {"mechanism": "none", "epsilon": 2.0}, "method": {"name": "veil"}},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_statement_names_the_unit(way, tmp_path):
    done = gr.run(plan(**WAYS[way]), table=several(), out=tmp_path / "r")
    told = done.summary["privacy"]
    assert done.plan["privacy"]["unit"] == told["unit"] == "patient" and told["patient_column"] == "pid"
    assert "for each patient (patient column 'pid', one row of each at a time), add/remove" in told["statement"]
    assert not any("per row" in said for said in told["not_covered"])
    assert any("patients at several sites" in said for said in told["not_covered"])
    assert load_account(done).findings == ()


def test_rows_are_the_unit_where_the_plan_says_so_or_names_no_patients(tmp_path):
    changes = {section: dict(own) for section, own in BY_PATIENT.items()}
    changes["privacy"]["unit"] = "row"
    rows = gr.run(plan(**changes), table=several(), out=tmp_path / "rows").summary["privacy"]
    assert rows["unit"] == "row" and "for each row, add/remove" in rows["statement"]
    assert any("the guarantee is per row (privacy.unit = 'row')" in said for said in rows["not_covered"])
    none = gr.run(plan(), table=patients(SIZES), out=tmp_path / "none").summary["privacy"]
    assert none["unit"] == "row" and any("data.patient is not set" in said for said in none["not_covered"])
    with refused("no-patient-column", match=r"privacy\.unit"):
        gr.run(plan(privacy={"unit": "patient"}), table=patients(SIZES), out=tmp_path / "odd")


def test_patients_of_one_row_keep_the_bits_of_a_run(tmp_path):
    table = patients(SIZES)
    named = Table.from_mapping(
        {**table.columns, "pid": np.array([f"p{k}" for k in range(sum(SIZES))])}, source="patients.csv"
    )
    by_row = {"data": {"patient": "pid"}, "privacy": {"unit": "row"}}
    one = gr.run(plan(data={"patient": "pid"}), table=named, out=tmp_path / "one")
    other = gr.run(plan(**by_row), table=named, out=tmp_path / "other")
    assert model(one).tobytes() == model(other).tobytes()
