"""Every method, twice: all hospitals in one process, and each behind a keeper that reads its own file and answers messages.

Letters travel as Flower messages over a Grid in this process, where Flower is installed.
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet
from grandrounds.data.sets.images import SCORING_SETS
from grandrounds.data.table import Table
from tests.capabilities.hospital.keeper.plans import PUBLIC
from tests.engine.hospitals import QUICK, Hospitals, final_model
from tests.support import averaging_methods, patients, thinned

SIZES = [60, 50, 40, 45]
DATA = {"table": "data frame", "label": "died", "site": "hospital"}
NETS = ("xfed", "fedbn")
METHODS = averaging_methods()
ELSEWHERE = ("pooled",)
"""Takes all rows to one place: refused."""

MLP = {"name": "mlp", "hidden": [6]}
CASES = {
    **{name: {"method": {"name": name}} for name in METHODS if name not in (*NETS, *ELSEWHERE, "sse-agg", "moon")},
    "moon": {"method": {"name": "moon"}, "model": MLP},
    "fedavg, mlp with momentum that sites keep": {
        "model": MLP, "train": {"optimizer": "momentum", "keep_optimizer": True},
    },
    "fedavg, some sites a round": {"method": {"select": {"rule": "random", "fraction": 0.5}}},
    "krum": {"method": {"robust": {"rule": "krum"}}},
    "forest": {"model": {"name": "forest", "trees": 3, "depth": 3}, "method": {"rounds": 1}},
    "secure sums": {"privacy": {"secure": True}},
    "fedxchain, masked": {"method": {"name": "fedxchain"}, "privacy": {"secure": True}},
    "dp-sgd": {"privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "min_rows": 10}},
    "client level, secure": {"privacy": {"mechanism": "client", "noise": 0.5, "secure": True}},
    "fine-tuned, calibrated": {"train": {"finetune": 1}, "evaluation": {"calibrate": "platt"}, "split": {"val": 0.2}},
    "one hospital kept for the test": {"split": {"scheme": "holdout", "holdout": ["c"]}},
    "subgroups": {"evaluation": {"subgroup": "ward"}},
    "personal models, guarded": {"personal": {"guard": True, "part": "recalibration"}, "split": {"val": 0.2}},
    "explained": {"explain": {"sketch": "permutation"}},
    "boosted trees": {
        "model": {"name": "trees"}, "method": {"name": "trees", "rounds": 30, "trees": {"rounds": 2, "depth": 2, "least": 5}},
    },
    "additive model": {"model": {"name": "gam"}, "method": {"name": "gam", "rounds": 30}},
    "private additive model": {
        "model": {"name": "gam"}, "method": {"name": "gam", "rounds": 1}, "data": {**DATA, **PUBLIC},
        "privacy": {"epsilon": 5.0, "secure": True},
    },
    "exact regression": {"method": {"name": "glm", "rounds": 30, "exact": {"heterogeneity": False, "ridge": 1.0}}},
}  # fmt: skip


def twice(tmp_path: Path, table, **settings):
    method = {"name": "fedavg", "rounds": 3, **settings.pop("method", {})}
    held = Hospitals.of(table, name="twice", data=settings.pop("data", DATA), method=method, **settings)
    transport = over_flower(held.keepers(tmp_path / "state"))
    there = held.deployed(tmp_path / "there", transport, timeouts=replace(QUICK, answer=300.0, poll=20.0))
    return held.simulated(tmp_path / "here", table), there


def over_flower(keepers):
    """A transport on Flower's Grid in this process; None, for a plain transport in memory, where there is no Flower."""
    if importlib.util.find_spec("flwr") is None:
        return None
    from grandrounds.engine.transport import FlowerTransport
    from tests.engine.grid import keeper_grid

    # FedBuff's model depends on the order of answers: no second one is fetched while the first is carried over
    return FlowerTransport(keeper_grid(keepers), interval=20.0)


def alike(here, there, *, within: float = 1e-5) -> None:
    np.testing.assert_allclose(final_model(there), final_model(here), atol=within, rtol=within)
    for told, known in zip(there.rounds, here.rounds, strict=True):
        assert told["decision"]["weights"].keys() == known["decision"]["weights"].keys()
        for site, weight in known["decision"]["weights"].items():
            assert told["decision"]["weights"][site] == pytest.approx(weight, abs=within)
    for name, value in here.summary["final"].items():
        if isinstance(value, float):
            assert there.summary["final"][name] == pytest.approx(value, abs=within, nan_ok=True), name
    ours, theirs = here.summary["cost"], there.summary["cost"]
    assert theirs["payload_up"] == ours["payload_up"]
    assert "simulat" not in there.summary["privacy"]["statement"], "hospitals draw their own noise and keys"


@pytest.mark.parametrize("case", thinned(CASES, 3))
def test_a_method_gives_the_same_model_at_the_hospitals(case, tmp_path):
    here, there = twice(tmp_path, patients(SIZES), **CASES[case])
    alike(here, there)


def test_groups_of_patients_are_cut_alike_at_hospitals_that_differ(tmp_path):
    """Each hospital has its own rows only: bands are those of all hospitals together, and so are the figures."""
    table = patients(SIZES)
    age = table.columns["age"] + 15 * (table.columns["hospital"] == "a")  # a hospital of the old
    evaluation = {"subgroups": ["age", "lactate", "ward"], "mitigation": "recalibration"}
    table = Table.from_mapping({**table.columns, "age": age}, source="patients.csv")
    settings = {"data": DATA, "method": {"name": "fedavg", "rounds": 1}, "evaluation": evaluation, "split": {"val": 0.2}}
    held = Hospitals.of(table, name="groups", **settings)
    here, there = held.simulated(tmp_path / "here", table), held.deployed(tmp_path / "there")
    for column, part in here.summary.fairness["columns"].items():
        other = there.summary.fairness["columns"][column]
        assert other.get("cuts", []) == pytest.approx(part.get("cuts", []), rel=0.1)
        rows = [g["count"] for g in other["groups"].values() if g["count"] is not None]
        assert sum(rows) <= here.summary.final["count"] and min(rows) >= 5  # each hospital hides its small groups
    assert there.summary.fairness["columns"]["age"]["cuts"] == [45, 65, 80]
    assert there.summary.fairness["mitigation"]["column"] == "age"


def test_a_submitted_run_warns_of_no_simulated_sites(tmp_path):
    """A submitted plan names no column of sites and keeps the usual partition, which means nothing where rows are away."""
    held = Hospitals.of(patients(SIZES), name="submitted", data=DATA, method={"name": "fedavg", "rounds": 1})
    split = {**held.at_sites["split"], "partition": "equal"}
    there = Hospitals(held.plan, {**held.at_sites, "split": split}, held.rows).deployed(tmp_path)
    assert not [text for text in there.summary["warnings"] if "simulated sites" in text]


def test_every_method_is_among_these():
    tried = {c.get("method", {}).get("name", "fedavg") for c in CASES.values()} | {"sse-agg", *NETS}
    assert set(METHODS) - tried == set(ELSEWHERE)


def write_csv(path: Path, table: Table) -> None:
    with path.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(table.columns)
        out.writerows(zip(*(table.columns[name].tolist() for name in table.columns), strict=True))


def test_reasons_are_compared_on_rows_of_the_servers_own(tmp_path):
    """SSE-AGG needs reference rows: of a file that no hospital's patients are in, since the server has no other."""
    write_csv(tmp_path / "public.csv", patients([30], seed=7))
    reference = {"rows": {"rows": 25, "source": str(tmp_path / "public.csv")}}
    here, there = twice(tmp_path, patients(SIZES), method={"name": "sse-agg"}, reference=reference)
    alike(here, there)
    for told, known in zip(there.rounds, here.rounds, strict=True):
        for name, by_site in known["decision"]["signals"].items():
            assert told["decision"]["signals"][name] == pytest.approx(by_site, abs=1e-5), name


def clear_cut(sizes: list[int], *, seed: int, shuffled: str = "") -> Table:
    """Patients whose outcome follows from six measurements; at one hospital outcomes are shuffled."""
    rng = generator(seed, purpose="clear-cut patients")
    x = rng.normal(size=(sum(sizes), 6))
    died = (x @ [3, -3, 2, -2, 1, 1] > 0).astype(float)
    site = np.repeat([chr(ord("a") + k) for k in range(len(sizes))], sizes)
    here = site == shuffled
    died[here] = rng.permutation(died[here])
    columns = {**{f"m{j}": x[:, j] for j in range(6)}, "hospital": site, "died": died}
    return Table.from_mapping(columns, source="clear.csv")


def test_a_hospital_that_harms_the_model_is_tried_on_halves_of_its_own_patients(tmp_path):
    write_csv(tmp_path / "public.csv", clear_cut([80], seed=7))
    here, there = twice(
        tmp_path,
        clear_cut([60, 60, 120, 60], seed=1, shuffled="c"),
        method={"name": "sse-agg", "rounds": 4},
        reference={"rows": {"rows": 80, "source": str(tmp_path / "public.csv")}},
        train={"steps": 40, "lr": 0.5},
    )
    alike(here, there)
    told = [[n for n in r["decision"]["notes"] if "in this round it trained on" in n] for r in there.rounds]
    assert [len(notes) for notes in told] == [0, 0, 1, 1] and all(n.startswith("c: ") for notes in told for n in notes)
    weights = [r["decision"]["signals"]["in_line"]["c"] for r in there.rounds]
    assert min(weights[:3]) >= 0.5 > weights[3], "once both halves were tried"
    for one, other in zip(here.rounds, there.rounds, strict=True):
        assert one["decision"]["notes"] == other["decision"]["notes"]


def bars(sites: int, each: int) -> ImageSet:
    """Pictures with a bright bar whose place says the class, and where it is."""
    rng = generator(0, purpose="bars")
    n = sites * each
    y = rng.integers(0, 3, n)
    x = rng.integers(0, 60, (n, 28, 28, 1))
    masks = np.zeros((n, 28, 28), bool)
    x[np.arange(n), 4 + 8 * y] += 150
    masks[np.arange(n), 4 + 8 * y] = True
    site = np.array([f"s{k}" for k in np.repeat(np.arange(sites), each)], object)
    return ImageSet("bars", x.astype(np.uint8), np.array([f"{c}" for c in y], object), site, masks=masks)


NET = {
    "split": {"test": 0.25}, "train": {"batch": 16, "steps": 2},
    "data": {"table": "data frame", "label": "label", "site": "site"},
    "explain": {"sketch": "none"}, "engine": {"device": "cpu"},
}  # fmt: skip
XFED = {"name": "xfed", "rounds": 2, "xfed": {"steps": 1, "samples": 1}}


def test_nets_that_look_at_pictures_are_trained_at_the_hospitals(tmp_path, monkeypatch):
    """XFed in two steps, with scoring pictures that were published, and FedBN's layers that stay at the sites."""
    pytest.importorskip("torch")
    scoring = replace(bars(1, 9), site=None, name="xfed-mnist", columns={"origin": np.array(["x"] * 9, object)})
    monkeypatch.setitem(SCORING_SETS, "xfed-mnist", {**SCORING_SETS["xfed-mnist"], "load": lambda: scoring})
    source = {"scoring": {"sent": True, "source": "xfed-mnist"}}
    pictures = replace(bars(4, 24), masks=None)
    net = {"name": "small-cnn"}
    here, there = twice(tmp_path / "xfed", pictures, method=XFED, model=net, reference=source, **NET)
    alike(here, there)
    assert {len(r["decision"]["weights"]) for r in there.rounds} == {3}, "one of four is not asked for its model"
    norm = {"name": "deep-cnn", "norm": "batch"}
    few = bars(2, 40)
    here, there = twice(tmp_path / "fedbn", few, method={"name": "fedbn", "rounds": 1}, model=norm, **NET)
    alike(here, there)
