"""A watch at hospitals: keepers on Flower's Grid answer as a simulation does, from the new patients that each names itself."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import FEW_NEW_PATIENTS, Refusal
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.capabilities.hospital.keeper.watched import EarlierWatches
from grandrounds.capabilities.watch.earlier_run import watch_values
from grandrounds.capabilities.watch.method.server import COUNTS
from grandrounds.core.errors import RunFailed
from grandrounds.data.new_patients import NewPatients, read_new_patients
from grandrounds.data.table import Table
from grandrounds.privacy.site_budget import SiteBudget
from tests.capabilities.hospital.deploy.consortia import provisioned
from tests.engine.hospitals import QUICK, Hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.engine.test_hospitals import over_flower
from tests.support import dataset, patients, refused

SIZES = [120, 110, 130, 100]
TRUSTING = Policy.parse('[secure]\npeers = "told"\n')


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The hospitals, the run whose model they use, and each one's new patients: at two of four lactate has another unit."""
    table = patients(SIZES)
    settings = {"data": {"label": "died", "site": "hospital"}, "split": {"val": 0.2, "test": 0.2}, "explain": {"sketch": "none"}}
    folder = tmp_path_factory.mktemp("watched") / "run"
    values = {"name": "model", "method": {"rounds": 2}, "train": {"steps": 10, "lr": 0.2}, **settings}
    gr.run(gr.Experiment.parse(values), table=table, out=folder)
    fresh = patients([60, 70, 65, 75], seed=3)
    lactate, site = fresh.columns["lactate"].copy(), fresh.columns["hospital"]
    lactate[np.isin(site, ("a", "c"))] *= 9
    fresh = Table.from_mapping({**fresh.columns, "lactate": lactate}, source="new.csv")
    return table, gr.load_run(folder), {s: fresh.take(np.flatnonzero(site == s)) for s in "abcd"}


def deployed(held, folder, *, policy=TRUSTING, without="", **settings):
    table, run, fresh = held
    hospitals = Hospitals.of(table, **watch_values(run, **settings))
    folder.mkdir(exist_ok=True)
    keepers = hospitals.keepers(folder / "state")
    for keeper in keepers:
        name = keeper.me.name
        budget = SiteBudget.open(folder / f"{name}.json", epsilon=policy.privacy.epsilon, delta=policy.privacy.delta)
        keeper._access = AccessControl(policy, budget, split=folder / f"{name}.split", classes=("0", "1"))
        if name != without:
            keeper._new = NewPatients(lambda rows=fresh[name]: rows, folder / name)
    transport = over_flower(keepers) or MemoryTransport(keepers)
    return hospitals.deployed(folder, transport, timeouts=replace(QUICK, answer=300.0, poll=20.0))


@pytest.mark.parametrize("secure", [False, True])
def test_hospitals_tell_which_feature_moved_at_how_many_of_them(held, secure, tmp_path):
    found = deployed(held, tmp_path, secure=secure).summary["watch"]
    first = found["features"][0]
    assert (first["name"], first["moved"]) == ("lactate", 2) and found["compared"] == 4 and found["patients"] == 270
    assert [f["moved"] for f in found["features"][1:]] == [0, 0, 0] and bool(found["by_site"]) != secure
    assert found["calibration"]["moved"] in (0, 1, 2)


def test_a_site_charges_its_own_budget_and_adds_its_own_noise(held, tmp_path):
    """A site that requires differential privacy answers a watch under a budget, and no other."""
    strict = Policy.parse('[secure]\npeers = "told"\n[privacy]\nrequire = true\nepsilon = 5.0\nrun_epsilon = 2.0\n')
    with refused("setup-incomplete", match="needs-privacy", kind=RunFailed):
        deployed(held, tmp_path / "bare", policy=strict)
    run = deployed(held, tmp_path / "noised", policy=strict, epsilon=1.5, secure=True)
    assert run.summary["watch"]["noise"] > 0 and run.summary["privacy"]["epsilon"] <= 1.5
    for name in "abcd":
        budget = SiteBudget.open(tmp_path / "noised" / f"{name}.json", epsilon=5.0, delta=1e-5)
        assert {of: budget.spent(of) for of in run.summary["privacy"]["spent"]} == pytest.approx(run.summary["privacy"]["spent"])
        assert {e.what for e in budget.budget().events} == {COUNTS}


def test_a_hospital_without_new_patients_refuses(held, tmp_path):
    with refused("setup-incomplete", match="no-new-patients", kind=RunFailed):
        deployed(held, tmp_path, without="b")


def test_two_watches_that_differ_by_few_patients_are_refused(held, tmp_path):
    """Their difference would be those patients, also of secure sums."""
    table, _, fresh = held
    data = dataset(table).schema
    admit = EarlierWatches(tmp_path / "watched.json").admit
    new = read_new_patients(fresh["a"], data)
    admit(new, smallest=5)
    admit(new, smallest=5)
    for more in (1, 4):
        with pytest.raises(Refusal) as caught:
            admit(new.take(np.arange(len(new) - more)), smallest=5)
        assert caught.value.code == FEW_NEW_PATIENTS
    admit(new.take(np.arange(len(new) - 5)), smallest=5)
    with pytest.raises(Refusal):
        admit(new.take(np.arange(len(new) - 7)), smallest=5)
    assert len(json.loads((tmp_path / "watched.json").read_bytes())) == 2
    (tmp_path / "watched.json").write_text("[1")
    with refused("damaged-file"):
        admit(new, smallest=5)


def test_a_hospital_names_its_new_patients_in_its_site_configuration(tmp_path):
    folder = provisioned(tmp_path, "north", "south", "west", insecure=True).site("north")
    site = SiteFolder(folder)
    assert site.new_patients() is None
    (folder / "new.csv").write_text("age,cp,disease\n50,1,\n60,4,yes\n")
    settings = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(f'{settings}\n[watch]\ntable = "new.csv"\n')
    new = site.new_patients()
    assert new is not None and len(new.read()) == 2 and new.folder == folder / "watch"
    (folder / "site.toml").write_text(f'{settings}\n[watch]\nfile = "new.csv"\n')
    with refused("unknown-key"):
        site.new_patients()
