"""A hospital withdraws from a run of the consortium: the others repeat it over Flower, and the earlier run is closed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from grandrounds.analysis.audit.report import audit
from grandrounds.audit.digest import model_digest
from grandrounds.capabilities.hospital.deploy.control import Control
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.plan_encryption import decrypt_plan
from grandrounds.capabilities.hospital.deploy.provision import provision
from grandrounds.capabilities.hospital.deploy.run_worker import _run_at_sites
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.engine.transport import FlowerTransport
from grandrounds.runs.run import Run
from grandrounds.runs.withdrawal import read_withdrawn
from tests.capabilities.hospital.deploy.real import write_csv
from tests.capabilities.hospital.deploy.test_submit import Superlink
from tests.command import rounds
from tests.engine.grid import keeper_grid
from tests.support import patients

SITES = "abcd"
EXPERIMENT = 'name = "study"\n[method]\nname = "fedavg"\nrounds = 2\n[explain]\nsketch = "none"\n'


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """Four hospitals with their files, a finished run of all of them, and one that never had c."""
    folder = tmp_path_factory.mktemp("consortium")
    table = patients([60, 50, 40, 50])
    site = np.asarray(table.columns["hospital"]).astype(str)
    for name in SITES:
        write_csv(folder / f"{name}.csv", table.take(np.flatnonzero(site == name)), without="hospital")
    agreed = draft_schema(table, label="died", site="hospital").to_dict()
    said = {
        "name": "leaving",
        "server": {"address": "127.0.0.1"},
        "sites": [{"name": name} for name in SITES],
        "data": {n: v for n, v in agreed.items() if n != "schema"},
    }
    (folder / "consortium.toml").write_text(dumps(said))
    (folder / "study.toml").write_text(EXPERIMENT)
    provision(folder / "consortium.toml", folder / "out", make_keys=True, policy="research")
    conduct(folder, "study", deployed_plan(folder / "study.toml", []))
    conduct(folder, "never", deployed_plan(folder / "study.toml", ['split.without=["c"]']))
    return folder


def conduct(here: Path, run: str, plan: dict) -> list[str]:
    """Run a submitted plan over Flower's Grid in this process; return the sites that were sent a message."""
    out = Folders(here / "out")
    keepers = [SiteFolder(out.site(name)).keeper(str(here / f"{name}.csv")) for name in SITES]
    grid = keeper_grid(keepers)
    _run_at_sites(plan, out.server / "runs" / run, FlowerTransport(grid, interval=20.0), out.server, False)
    return [SITES[m.metadata.dst_node_id - 1] for m in grid.sent]


def test_the_run_is_repeated_without_the_hospital_and_the_earlier_one_is_closed(here, monkeypatch):
    runs = here / "out" / "server" / "runs"
    link = Superlink()
    monkeypatch.setattr(Control, "local", lambda _: link)
    said = rounds("withdraw", runs / "study", "--site", "c")
    assert said.returncode == 0, said.stderr
    assert "study-without-c is submitted to the consortium without c" in said.stdout
    assert read_withdrawn(runs / "study") is None  # only when the other run is done
    (config,) = link.started
    asked = conduct(here, config["run"], json.loads(decrypt_plan(config["plan"], here / "out" / "server", run=config["run"])))
    assert asked.count("c") <= 1  # the greeting that finds the sites
    now, never = Run(runs / "study-without-c"), Run(runs / "never")
    assert model_digest(now.model.theta) == model_digest(never.model.theta)
    assert set(now.summary["rows"]) == {"a", "b", "d"}
    mark = read_withdrawn(runs / "study")
    assert (mark.site, mark.valid.folder) == ("c", "study-without-c")
    for name in ("study", "study-without-c"):
        result = audit(runs / name, deep=True)
        assert not result.fails, result.findings
    assert "WARNING: no site countersigned the newest head" in " ".join(audit(runs / "study").notes)
    assert "[withdrawn-run]" in rounds("export", runs / "study", "--to", "json").stderr
    assert "[withdrawn-run]" in rounds("withdraw", runs / "study", "--site", "a").stderr


def test_options_of_simulations_are_refused(here, monkeypatch):
    monkeypatch.setattr(Control, "local", lambda _: Superlink())
    for option in ("--keep-setup", "--prove"):
        said = rounds("withdraw", here / "out" / "server" / "runs" / "never", "--site", "a", option)
        assert said.returncode == 2 and "[not-for-hospitals]" in said.stderr
