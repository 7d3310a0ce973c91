"""The private additive model as a run: noise of the accountant's size, one charge, patients with several rows, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import ask_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.capabilities.statistics.methods.private_gam import COUNTS, PrivateGAMSite
from grandrounds.capabilities.statistics.methods.private_gam_task import COUNT_CELLS
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.private_scores import ScoreBins, fit_scores
from grandrounds.core.errors import GrandRoundsError
from grandrounds.core.plan import Settings
from grandrounds.data.table import Table
from grandrounds.privacy.accounting import Event, epsilon_of, noise_for
from grandrounds.privacy.attacks.empirical import lower_bound
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.ask_cost import RowCounts
from grandrounds.site.stack import Part
from tests.support import patients, refused, stack

PUBLIC: dict[str, Any] = {
    "label": "died",
    "site": "hospital",
    "ranges": {"age": [30, 90], "lactate": [0.5, 6], "pressure": [45, 105]},
    "levels": {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]},
}
SIZES = [300, 250, 350, 280]


def experiment(**changes: Any) -> gr.Experiment:
    values: dict[str, Any] = {
        "data": PUBLIC,
        "split": {"val": 0.2, "test": 0.2},
        "model": {"name": "gam"},
        "privacy": {"epsilon": 4.0},
        "explain": {"sketch": "none"},
    }
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    return gr.Experiment.parse(values)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("private")
    secure = experiment(privacy={"secure": True}, evaluation={"calibrate": "platt"})
    return {
        "local": gr.run(experiment(), table=patients(SIZES), out=home / "local"),
        "secure": gr.run(secure, table=patients(SIZES), out=home / "secure"),
    }


@pytest.mark.parametrize("trust", ["local", "secure"])
def test_one_release_is_charged_with_the_accountants_noise(trust, runs):
    summary = runs[trust].summary
    (event,) = [e for e in summary["privacy"]["events"] if e["of"] == "training"]
    assert (event["kind"], event["what"], event["count"], event["unit"]) == ("gaussian", COUNTS, 1, "patient")
    assert event["sigma"] == noise_for(4.0, 1e-5, steps=1)
    assert 3.99 < summary["privacy"]["epsilon"] <= 4.0
    assert epsilon_of([Event.from_dict(event)], 1e-5) == pytest.approx(summary["privacy"]["spent"]["training"])
    assert summary["method"] == "private-gam" and summary["model"] == "gam"
    assert "summaries of training rows" not in summary["privacy"]["statement"]
    assert len(runs[trust].rounds) == 1 and "after one exchange" in json.dumps(runs[trust].rounds[0].decision.to_dict())


@pytest.mark.parametrize("trust", ["local", "secure"])
def test_the_model_and_its_shapes(trust, runs):
    run = runs[trust]
    shapes = run.summary["shapes"]
    by_name = {c["name"]: c for c in shapes["columns"]}
    assert set(by_name) == {"age", "lactate", "pressure", "ward"}
    lactate = by_name["lactate"]
    assert len(lactate["values"]) == len(lactate["effect"]) == len(lactate["se"]) == len(lactate["rows"]) == 6
    assert lactate["used"] and lactate["effect"][-2] > lactate["effect"][0]
    assert by_name["ward"]["values"] == ["cardiac", "medical", "surgical", "other"] and by_name["ward"]["missing"]
    assert shapes["exchanges"]["count"] == 1 and shapes["exchanges"]["numbers_sent"] == 2 * (3 * 7 + 5) + 2
    assert run.summary["final"]["auroc"] > 0.68
    kinds = {e["of"] for e in run.summary["privacy"]["events"]}
    assert kinds == ({"training"} if trust == "local" else {"training", "validation"})


def part(x: np.ndarray, y: np.ndarray, names: np.ndarray | None = None, copies: int = 1) -> Part:
    n, tiled = len(y), np.tile(y, copies)
    whose = None if names is None else np.tile(names, copies)
    target = tiled[:, None].astype(float)
    return Part(np.tile(x, (copies, 1)), tiled, target, np.zeros(n * copies, int), np.arange(copies + 1) * n, whose)


def answer(held: Part, values: dict[str, Any], *, secret: int = 0) -> np.ndarray:
    """Return the answers of sites with these rows."""
    names = [f"s{k}" for k in range(len(held.offsets) - 1)]
    rows = replace(stack([5, 5]), parts={"train": held})
    site: Any = SimpleNamespace(
        stack=rows,
        secret=lambda name: Secret.simulated(secret, name),
        names_of=lambda members: [names[k] for k in members.tolist()],
    )
    ask = Ask(COUNT_CELLS, shared=values, report=("cells",)).numbered(AskId("r", 1, 1), tuple(names))
    return np.asarray(PrivateGAMSite(site).tasks[COUNT_CELLS](ask, np.arange(len(names)))["cells"])


BINS = ScoreBins.from_ranges(
    (Column("age", place=0), Column("lactate", place=1)), {"age": (0, 1), "lactate": (0, 1)}, bins=2
)
X = np.random.default_rng(3).random((12, 2))
Y = np.arange(12) % 2
WHO = np.array([*("abcd" * 2), *["long"] * 4], object)


def test_sites_add_noise_of_the_stated_size_from_their_own_secret():
    sigma = noise_for(4.0, 1e-5, steps=1) * BINS.sensitivity
    told = {**BINS.to_values(), "noise": sigma}
    held = part(X, Y, copies=120)
    drawn = answer(held, told) - answer(held, BINS.to_values())
    assert drawn.dtype == np.int64 and drawn.std() == pytest.approx(sigma, rel=0.06)
    assert abs(drawn.mean()) < 4 * sigma / math.sqrt(drawn.size)
    assert (answer(held, told) == answer(held, told)).all(), "the same question has the same noise"
    assert (answer(held, told) != answer(held, told, secret=1)).any()


def test_a_patient_with_several_rows_is_counted_once():
    others = WHO != "long"
    values = BINS.to_values()
    change = answer(part(X, Y, WHO), values) - answer(part(X[others], Y[others], WHO[others]), values)
    assert np.linalg.norm(change) == pytest.approx(BINS.sensitivity)
    assert answer(part(X, Y, WHO), values)[0, -2:].sum() == 5, "five patients of twelve rows"
    assert answer(part(X, Y), values)[0, -2:].sum() == 12


@pytest.mark.parametrize("too_little", [False, True], ids=["as charged", "an eighth of it"])
def test_the_empirical_epsilon_stays_below_the_stated_one(too_little):
    claim, delta, others = 1.0, 1e-3, WHO != "long"
    sigma = noise_for(claim, delta, steps=1) * BINS.sensitivity / (8 if too_little else 1)
    told = {**BINS.to_values(), "noise": sigma}

    def released(is_there, rng, runs):
        kept = np.ones(len(Y), bool) if is_there else others
        return answer(part(X[kept], Y[kept], WHO[kept], runs), told, secret=int(rng.integers(2**31)))

    bound = lower_bound(released, True, False, runs=240, seed=4, delta=delta, at_once=True)
    assert bound.refutes(claim) == too_little


def charged(values: dict[str, Any], *, rows: int = 40) -> Any:
    return ask_cost(Ask(COUNT_CELLS, shared=values, report=("cells",)), RowCounts(rows, 5, 5), Terms(), unbounded=False)


def test_a_site_charges_by_its_own_reading_of_the_question():
    """The server names the noise; the site divides it by sqrt(columns + 1), whatever the server says of the sensitivity."""
    cost = charged({**BINS.to_values(), "noise": 6.0})
    assert cost.events == (Event("gaussian", COUNTS, sigma=6.0 / math.sqrt(3)),) and not cost.disclosures
    wider = ScoreBins.from_ranges(
        tuple(Column(f"c{k}", place=0) for k in range(8)), {f"c{k}": (0, 1) for k in range(8)}, bins=2
    )
    assert charged({**wider.to_values(), "noise": 6.0}).events[0].sigma == pytest.approx(2.0)
    without = charged(BINS.to_values()).disclosures["cells"]
    assert (without.reach, without.rows) == (pytest.approx(math.sqrt(3)), ("training",))
    assert charged({**BINS.to_values(), "noise": 1e-9}).events[0].kind == "raw"


def test_the_scores_follow_from_the_noisy_counts_alone(runs):
    """The server's half has no other input: the same counts give the same scores."""
    shapes = runs["local"].summary["shapes"]
    assert len(shapes["notes"]) == 3 and "noise of standard deviation" in shapes["notes"][0]
    assert "Each of 4 sites added the whole noise" in shapes["notes"][2] and "50% less" in shapes["notes"][2]
    assert len(runs["secure"].summary["shapes"]["notes"]) == 2
    counts = np.arange(BINS.cells, dtype=float)
    one, other = (fit_scores(BINS, counts, noise=2.0) for _ in range(2))
    assert all((a.score == b.score).all() for a, b in zip(one.columns, other.columns, strict=True))


def test_the_model_gam_under_a_budget_is_the_private_one():
    plan = Settings(experiment(data={"name": "heart"}).plan())
    assert (plan.method.name, plan.data.encoding, plan.data.coding, plan.method.rounds) == (
        "private-gam",
        "public",
        "columns",
        1,
    )
    assert plan.privacy.unit == "row" and plan.engine.precision == "float64"
    by_method = Settings(experiment(data={"name": "heart"}, method={"name": "private-gam"}).plan())
    assert by_method.model.name == "gam"


def test_a_fitted_encoding_is_refused_before_a_site_is_asked():
    with refused("conflicting-settings", match="data.encoding = 'public'"):
        experiment(data={**PUBLIC, "encoding": "fitted"}).plan()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"gam": {"own_shapes": True}}}, "method.gam.own_shapes"),
        ({"method": {"gam": {"monotone": {"age": "up"}}}}, "method.gam.monotone"),
        ({"method": {"gam": {"columns": 2}}}, "method.gam.columns"),
        ({"privacy": {"mechanism": "dp-sgd", "min_rows": 10}}, "privacy.mechanism"),
        ({"privacy": {"epsilon": None}, "method": {"name": "private-gam"}}, "privacy.epsilon"),
        ({"evaluation": {"calibrate": "temperature"}}, "temperature"),
    ],
)
def test_settings_that_the_guarantee_does_not_cover_are_refused(changes, words, tmp_path):
    with pytest.raises(GrandRoundsError, match=words):
        gr.run(experiment(**changes), table=patients([60, 50, 70]), out=tmp_path / "r")
    assert not (tmp_path / "r" / "model.safetensors").exists()


def test_more_than_two_classes_are_refused(tmp_path):
    data = {**PUBLIC, "levels": {**PUBLIC["levels"], "died": ["0", "1", "2"]}}
    with pytest.raises(GrandRoundsError, match="two classes"):
        gr.run(experiment(data=data), table=patients([60, 50, 70], classes=3), out=tmp_path / "r")


def test_the_risk_is_of_the_event_where_it_is_the_first_class(tmp_path):
    table = patients(SIZES)
    words = np.where(table.columns["died"] == 1, "dead", "well").astype(object)
    named = Table.from_mapping({**table.columns, "died": words}, source="patients.csv")
    data = {**PUBLIC, "levels": {**PUBLIC["levels"], "died": ["dead", "well"]}, "event": "dead"}
    run = gr.run(experiment(data=data), table=named, out=tmp_path / "r")
    assert run.summary["final"]["auroc"] > 0.65
    risk = run.model.predict(named).risk
    assert risk[words == "dead"].mean() > risk[words == "well"].mean() + 0.1
    lactate = next(c for c in run.summary["shapes"]["columns"] if c["name"] == "lactate")
    assert lactate["effect"][-2] > lactate["effect"][0], "shapes are of the event"
