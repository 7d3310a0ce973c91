"""Methods, and a site that is killed, on real processes: TLS, node keys, gateway and database on loopback."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from grandrounds.audit.ledger import Ledger
from grandrounds.data.table import Table
from grandrounds.protocol.identity import load_public
from tests.capabilities.hospital.deploy.real import Real, until, write_csv
from tests.engine.hospitals import final_model
from tests.support import patients

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
gateway = pytest.mark.skipif(NGINX is None, reason="there is no nginx for the gateway: apt-get install nginx-light")
pytestmark = gateway

NAMES = {"a": "north", "b": "south", "c": "St Mary"}
HUGE = 1e8
QUIET = {"explain": {"sketch": "none"}}


def table() -> Table:
    made = patients([60, 50, 40])
    site = np.array([NAMES[s] for s in np.asarray(made.columns["hospital"]).astype(str)], object)
    return Table.from_mapping({**made.columns, "hospital": site}, source="patients.csv")


PLANS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg", "rounds": 2}, **QUIET},
    "sse-agg": {"method": {"name": "sse-agg", "rounds": 1}},
    "fedxchain": {"method": {"name": "fedxchain", "rounds": 1}, "privacy": {"secure": True}, **QUIET},
    "veil": {
        "method": {"name": "veil", "rounds": 2, "veil": {"selection": "score", "k": 2}},
        "privacy": {"epsilon": HUGE},
        **QUIET,
    },
}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with Real(tmp_path_factory.mktemp("real"), table(), limit=25, in_memory=True).at_work() as made:
        yield made


@pytest.fixture(scope="module")
def plans(real):
    """All four are at work at the same time, as experiments of several people are."""
    source = write_csv(real.folder / "public.csv", patients([40], seed=7))
    rows = {"reference": {"rows": {"rows": 25, "source": str(source)}}}
    found = {**PLANS, "sse-agg": {**PLANS["sse-agg"], **rows}}
    for name, settings in found.items():
        real.submit(name, settings)
    return found


def same_model(there, here) -> None:
    np.testing.assert_allclose(final_model(there), final_model(here), atol=1e-5, rtol=1e-5)
    for told, known in zip(there.rounds, here.rounds, strict=True):
        assert told["decision"]["missing"] == known["decision"]["missing"] == {}
        assert told["decision"]["weights"] == pytest.approx(known["decision"]["weights"], abs=1e-5)
    with Ledger.open(there.folder / "ledger.db") as ledger:
        assert ledger.verify(load_public(there.folder / "server.pub")) == []


def test_fedavg(real, plans):
    there, here = real.done("fedavg"), real.simulated("fedavg", plans["fedavg"])
    same_model(there, here)
    assert there.summary["event"] == here.summary["event"] and there.summary["event"]["class"]


def test_sse_agg_with_reference_rows_of_the_servers_own(real, plans):
    there, here = real.done("sse-agg"), real.simulated("sse-agg", plans["sse-agg"])
    same_model(there, here)
    for name, by_site in here.rounds[0]["decision"]["signals"].items():
        assert there.rounds[0]["decision"]["signals"][name] == pytest.approx(by_site, abs=1e-5), name


def test_fedxchain_whose_models_nobody_sees(real, plans):
    """Masks come from each site's own entropy, and cancel: sums are those of a simulation to the last fixed-point digit."""
    there = real.done("fedxchain")
    same_model(there, real.simulated("fedxchain", plans["fedxchain"]))
    assert there.rounds[0]["decision"]["privacy"]["secure"] is True


def test_veil_whose_sites_send_no_model(real, plans):
    """Votes are drawn with each site's own entropy, so that two runs agree only where nothing is left to chance: with an
    epsilon this large the drawn features are the strongest ones, and counts have no noise."""
    there, here = real.done("veil"), real.simulated("veil", plans["veil"])
    same_model(there, here)
    assert np.count_nonzero(final_model(there)) >= 2


@pytest.mark.slow
def test_a_site_is_killed_in_mid_round_and_started_again_and_no_round_is_lost(real):
    """kill -9 of the keeper and of the process with the data, which is at work on a letter. Sites deploy personal models."""
    settings = {"method": {"name": "fedavg", "rounds": 4}, "personal": {"guard": True, "spread": 1.0}, **QUIET}
    real.submit("killed", settings)
    until(lambda: len(real.rounds_of("killed")) >= 1, seconds=120, what="a round")
    real.worker("north").suspend()  # it has the next letter, and is not done with it
    until(lambda: real.log("south")[-1]["round"] > 1, seconds=60, what="a letter of the next round")
    real.kill_keeper("north")
    real.start_site("north")
    there, here = real.done("killed", seconds=240), real.simulated("killed", settings)
    same_model(there, here)
    assert {s: there.summary.personal["choices"][s] for s in NAMES.values()} == here.summary.personal["choices"]
    assert there.summary.personal["final"]["log_loss"] == pytest.approx(here.summary.personal["final"]["log_loss"], abs=1e-5)
    assert there.use_personal(real.site_folder("north")) == "north", "its file is in its folder after the run"
    np.testing.assert_allclose(there.model_for("north").theta, here.model_for("north").theta, atol=1e-5)
