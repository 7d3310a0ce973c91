"""Sums in whole numbers: exact in the clear and by secure aggregation, for any division of the rows; refused beyond 30 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.describe import foresee_ratio
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import CELLS, Cells, Policy
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.methods.site import WHOLE_BITS, WHOLE_BOUND, ask_question, read_question
from grandrounds.capabilities.statistics.question import Question
from grandrounds.core.errors import GrandRoundsError, RunFailed
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods import METHODS
from grandrounds.methods.secure import STATISTIC_BITS
from grandrounds.methods.sums import read_result
from grandrounds.privacy.secagg.ring import Scale
from grandrounds.privacy.secagg.terms import Refused
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.tasks import MASKED, STATISTICS
from tests.engine.hospitals import Hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.support import refused

SCALE = 2.0**20
SIZES = (70, 9, 45, 80)
DATA = {"label": "died", "site": "hospital", "task": "classification"}
PLAN = {"data": DATA, "split": {"val": 0.0, "test": 0.0}, "explain": {"sketch": "none"}}


@dataclass(frozen=True)
class Sums:
    """The summed contributions of three exchanges."""

    values: tuple[tuple[float, ...], ...]

    def to_dict(self):
        return {"values": [list(v) for v in self.values]}


def fit_toy(scale):
    found = []
    for exchange in range(3):
        total = yield Question("toy", {"turn": float(exchange), "scale": scale}, {"sum": (2,), "n": ()}, whole=True)
        found.append((*total["sum"].tolist(), float(total["n"])))
    return Sums(tuple(found))


def answer_toy(question, rows):
    """Contributions of rows, each rounded before they are added."""
    each = np.rint(float(question.values["scale"]) * np.sin(rows.x[:, 0] + float(question.values["turn"])))
    return {"sum": np.array([each.sum(), np.abs(each).sum()]), "n": float(len(rows))}


class Toy(ExactMethod):
    name = "toy"
    kinds: ClassVar[tuple[str, ...]] = ("toy",)
    scale: ClassVar[float] = SCALE

    def fit(self, server):
        return fit_toy(self.scale)

    @classmethod
    def summarize(cls, plan, state, encoding):
        record = read_result(state)
        return {} if record is None else {"toy": record}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS.paths, "toy", f"{Toy.__module__}:{Toy.__name__}")
    monkeypatch.setitem(ANSWERS, "toy", answer_toy)
    return Toy


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(8)
    n = sum(SIZES)
    hospital = np.repeat([f"h{k}" for k in range(len(SIZES))], SIZES).astype(object)
    return Table({"hospital": hospital, "age": rng.normal(60, 12, n), "died": (rng.random(n) < 0.3).astype(float)}, "rows")


def run(rows, folder, **settings):
    return gr.run(gr.Experiment.parse({**PLAN, "method": {"name": "toy"}, **settings}), table=rows, out=folder)


@pytest.mark.parametrize("secure", [False, True])
def test_sums_are_exact_for_any_division_of_the_rows(secure, toy, rows, tmp_path):
    """At 2^20 a row the 204 rows fill 28 of 30 bits, with most of it at one hospital: no step of the ring is lost."""
    sums = []
    for k, hospital in enumerate((rows.columns["hospital"], np.resize(["a", "b", "c", "d", "e"], sum(SIZES)).astype(object))):
        done = run(replace(rows, columns={**rows.columns, "hospital": hospital}), tmp_path / str(k), privacy={"secure": secure})
        sums.append(done.summary["toy"])
    assert sums[0]["result"] == sums[1]["result"]
    first = sums[0]["result"]["values"]
    assert all(v == int(v) for total in first for v in total) and [total[2] for total in first] == [204.0] * 3
    assert max(total[1] for total in first) > 2**26
    assert sums[0]["exchanges"]["bytes_up"] == 3 * 3 * 4, "32 bits a number"


def test_killed_between_exchanges_it_ends_with_the_same_sums(toy, rows, tmp_path):
    whole = run(rows, tmp_path / "whole", privacy={"secure": True})

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan = gr.Experiment.parse({**PLAN, "method": {"name": "toy"}, "privacy": {"secure": True}})
        gr.run(plan, table=rows, out=tmp_path / "part", progress=stop)
    assert gr.resume(tmp_path / "part", table=rows).summary["toy"] == whole.summary["toy"]


def test_a_site_that_drops_out_is_in_no_later_sum(toy, rows, tmp_path):
    done = run(rows, tmp_path / "r", privacy={"secure": True}, engine={"faults": {"drop": 0.15}, "min_sites": 3}, seed=8)
    left, found = done.summary["toy"]["sites"], done.summary["toy"]["result"]["values"]
    assert 3 <= len(left) < len(SIZES), "choose another seed: nobody dropped out"
    kept = np.isin(rows.columns["hospital"].astype(str), left)
    assert found[-1][2] == kept.sum() < found[0][2]


@pytest.mark.parametrize("secure", [False, True])
def test_a_sum_of_more_than_thirty_bits_ends_the_run(secure, toy, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "scale", 2.0**25)
    with pytest.raises(GrandRoundsError, match="bits"):
        run(rows, tmp_path / "r", privacy={"secure": secure})
    monkeypatch.setattr(toy, "scale", 2.0**23)  # every site is within 30 bits, their sum is not
    with pytest.raises(RunFailed):
        run(rows, tmp_path / "s", privacy={"secure": secure})


def test_answers_that_are_not_whole_are_refused(toy, rows, tmp_path, monkeypatch):
    monkeypatch.setitem(ANSWERS, "toy", lambda question, rows: {"sum": np.array([0.5, 1.0]), "n": 3.0})
    with refused("out-of-range"):
        run(rows, tmp_path / "r")


def test_hospitals_answer_in_whole_numbers_too(toy, rows, tmp_path):
    """The keeper of each site accepts the bound of whole-number sums."""
    plan = {**PLAN, "data": {"table": "data frame", **DATA}, "method": {"name": "toy"}, "privacy": {"secure": True}}
    held = Hospitals.of(rows, name="whole", **plan)
    here, there = held.simulated(tmp_path / "here", rows), held.deployed(tmp_path / "there")
    assert there.summary["toy"] == here.summary["toy"]


def test_the_policy_accepts_one_bound_of_whole_sums(toy):
    plan = gr.Experiment.parse({**PLAN, "data": {"table": "x.csv", **DATA}, "method": {"name": "toy"},
                                "privacy": {"secure": True}}).plan()  # fmt: skip

    def masked(bits, bound, **more):
        shared = {"tag": f"{STATISTICS} 1", "bits": bits, "bound": bound, **more}
        return Ask(MASKED, shared=shared, report=("masked",), id=AskId("r", 1, 0))

    Questions(plan, {}).check(masked(WHOLE_BITS, WHOLE_BOUND, whole=1))
    Questions(plan, {}).check(masked(STATISTIC_BITS, plan["method"]["exact"]["bound"]))
    for bits, bound, whole in ((WHOLE_BITS, WHOLE_BOUND, 0), (WHOLE_BITS, 100.0, 1), (STATISTIC_BITS, WHOLE_BOUND, 1)):
        with refused("not-in-plan", kind=Refusal):
            Questions(plan, {}).check(masked(bits, bound, whole=whole))


def test_a_whole_question_survives_its_message(toy):
    question = Question("toy", {"turn": 0.0}, {"n": ()}, whole=True)
    assert read_question(ask_question(question, ("a",), rows=9)).whole
    assert not read_question(ask_question(replace(question, whole=False), ("a",), rows=9)).whole


def test_whole_sums_have_steps_of_one_for_any_number_of_sites():
    for parties in (3, 185, 4000):
        scale = Scale(32, 2.0**30, parties, whole=True)
        assert scale.step == 1.0
        values = np.array([2.0**30, -(2.0**30), 3.0])
        assert np.array_equal(scale.from_ring(scale.to_ring(values)), values)
    with pytest.raises(Refused):
        Scale(32, 2.0**30, 3, whole=True).to_ring(np.array([0.5]))
    with refused("bad-secure-range"):
        Scale(32, 2.0**31, 3, whole=True)


def test_a_fit_that_sends_too_much_is_refused_at_its_first_exchange(toy, rows, tmp_path, monkeypatch):
    """The method foresees its numbers; the sentence names them, the rows and the key of the policy."""
    monkeypatch.setattr(toy, "foresee_numbers", classmethod(lambda cls, settings, columns: 5000))
    plan = {**PLAN, "data": {"table": "data frame", **DATA}, "method": {"name": "toy"}, "privacy": {"secure": True}}
    held = Hospitals.of(rows, name="many", **plan)
    usual = MemoryTransport(held.keepers(tmp_path / "state", access=AccessControl(Policy(cells=Cells(smallest=1)))))
    with pytest.raises(RunFailed, match=r"exchange 1: .* at least 5,000 numbers from 204 rows and exact.most_ratio of") as no:
        held.deployed(tmp_path / "there", usual)
    assert no.value.code == "too-many-numbers"


def test_the_policy_says_beforehand_below_how_many_rows_it_refuses(toy, monkeypatch):
    monkeypatch.setattr(toy, "foresee_numbers", classmethod(lambda cls, settings, columns: 300 * columns))
    plan = gr.Experiment.parse({**PLAN, "data": {"table": "x.csv", **DATA}, "method": {"name": "toy"}}).plan()
    assert "have fewer than 910 training rows" in foresee_ratio(Policy(), plan), "300 / 0.33, in the clear"
    assert not foresee_ratio(Policy(), {**plan, "method": {**plan["method"], "name": "fedavg"}})


def test_a_policy_names_the_fewest_patients_of_a_cell(toy):
    plan = gr.Experiment.parse({**PLAN, "data": {"table": "x.csv", **DATA},
                                "method": {"name": "toy", "exact": {"least": 5}}}).plan()  # fmt: skip
    assert Policy.parse("[exact]\nleast = 6\n").refuses(Ask("open"), plan) == CELLS
    assert not Policy.parse("[exact]\nleast = 5\n").refuses(Ask("open"), plan)


def test_totals_of_a_long_fit_are_written_once(tmp_path):
    """A state of many megabytes is not written anew in every exchange, and reads back with all totals."""
    checkpoint, rng = Checkpoint(tmp_path), np.random.default_rng(0)
    plan = {"method": {"name": "toy", "rounds": 9}}
    checkpoint.start(plan)
    facts = {"round": 1, "best_round": 0, "best_loss": 0.0, "seconds": 0.0, "cost": {}, "stopped": "", "clock": 0.0,
             "encoding": {}, "warnings": [], "engine": {}}  # fmt: skip
    arrays, sizes = {"served/model": np.zeros(3)}, []
    for k in range(1, 9):
        arrays = {**arrays, f"method/total.{k:04d}": rng.integers(0, 9, 100_000).astype(np.int32)}
        checkpoint.write({"round": k}, arrays, {**facts, "round": k})
        sizes.append(checkpoint.state_file.stat().st_size)
        if k == 5:
            checkpoint = Checkpoint(tmp_path)  # as after a crash
            assert checkpoint.read() is not None
    back = Checkpoint(tmp_path).read()
    assert max(sizes) < 1.3e6 and set(back.arrays) == set(arrays)
    assert all(np.array_equal(back.arrays[n], a) for n, a in arrays.items())
    assert len(list(tmp_path.glob("totals-*"))) >= 2
    one = next(tmp_path.glob("totals-0002*"))
    kept = one.read_bytes()
    one.unlink()
    with refused("cannot-read"):
        Checkpoint(tmp_path).read()
    one.write_bytes(kept)
    checkpoint.write({"round": 9}, {"served/model": np.zeros(3)}, {**facts, "round": 9})
    assert not list(tmp_path.glob("totals-*")), "the fit ended"
    assert set(Checkpoint(tmp_path).read().arrays) == {"served/model"}
