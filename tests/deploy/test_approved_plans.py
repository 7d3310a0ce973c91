"""A plan that sites approve by its digest before the first run: `rounds submit --plan` writes what they will be told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from grandrounds.core.errors import RunFailed
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.provision import provision
from grandrounds.deploy.run_worker import _run_at_sites, load_started_plan
from grandrounds.deploy.submit import deployed_plan
from grandrounds.keeper.folder import SiteFolder
from grandrounds.keeper.policy.rules import RUN, plan_digest
from tests.command import rounds
from tests.deploy.real import write_csv
from tests.engine.disturbed import Killed
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients, refused

EXPERIMENT = 'name = "study"\n[method]\nname = "fedavg"\nrounds = 2\n[explain]\nsketch = "none"\n'


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory) -> Path:
    """Three hospitals with their files, and an experiment."""
    folder = tmp_path_factory.mktemp("consortium")
    table = patients([60, 50, 40])
    site = np.asarray(table.columns["hospital"]).astype(str)
    for name in "abc":
        write_csv(folder / f"{name}.csv", table.take(np.flatnonzero(site == name)), without="hospital")
    said = {
        "name": "approved",
        "server": {"address": "127.0.0.1"},
        "sites": [{"name": name} for name in "abc"],
        "data": {n: v for n, v in draft_schema(table, label="died", site="hospital").to_dict().items() if n != "schema"},
    }
    (folder / "consortium.toml").write_text(dumps(said))
    (folder / "study.toml").write_text(EXPERIMENT)
    provision(folder / "consortium.toml", folder / "out", make_keys=True, policy="research")
    return folder


@pytest.fixture
def here(provisioned, tmp_path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "c"))


def planned(here: Path, *more: str) -> tuple[dict, str]:
    """The plan that is written, and the digest that is printed."""
    done = rounds("server", "submit", here / "study.toml", "--plan", here / "plan.json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads((here / "plan.json").read_text()), done.stdout.split("digest ")[1].strip()


def approve(here: Path, digest: str) -> None:
    for name in "abc":
        policy = here / "out" / "sites" / name / "policy.toml"
        text = policy.read_text()
        assert "plans = []" in text
        policy.write_text(text.replace("plans = []", f'plans = ["{digest}"]'))


def conducted(here: Path, *settings: str, run: str = "study", resume: bool = False, killed: bool = False) -> Path:
    """What the conductor does with a submitted run, with the keepers of the sites' own folders in this process."""
    out = Folders(here / "out")
    keepers = [SiteFolder(out.site(name)).keeper(str(here / f"{name}.csv")) for name in "abc"]
    folder = out.server / "runs" / run
    plan = {} if resume else deployed_plan(here / "study.toml", settings)
    transport = Killing(keepers, folder) if killed else MemoryTransport(keepers)
    _run_at_sites(plan, folder, transport, out.server, resume)
    return folder


class Killing(MemoryTransport):
    """The server's process ends when letters of the second round would be delivered."""

    def __init__(self, keepers, run: Path) -> None:
        super().__init__(keepers)
        self._run = run

    def collect(self, tickets, *, wait):
        if (self._run / "checkpoint" / "state.safetensors").exists():
            raise Killed
        return super().collect(tickets, wait=wait)


def test_the_digest_is_that_of_the_file_and_of_what_the_operator_would_write(here):
    plan, digest = planned(here, "--server", str(here / "out"))
    assert plan_digest(plan) == digest
    assert planned(here, "--operator", str(here / "out" / "operator")) == (plan, digest)
    assert planned(here, "--server", str(here / "out"), "--name", "another")[1] == digest
    assert planned(here, "--server", str(here / "out"), "--set", "seed=1")[1] != digest
    said = rounds("site", "policy", here / "out" / "sites" / "a" / "policy.toml", "--plan", here / "plan.json")
    assert plan_digest(json.loads((here / "plan.json").read_text())) in said.stdout


def test_sites_open_the_plan_that_they_approved_and_no_other(here):
    _, digest = planned(here, "--server", str(here / "out"))
    approve(here, digest)
    assert (conducted(here) / "summary.json").exists()
    with refused("setup-incomplete", match=RUN, kind=RunFailed):
        conducted(here, "seed=1", run="other")


def test_an_approved_run_that_is_gone_on_with_is_still_the_approved_one(here):
    _, digest = planned(here, "--server", str(here / "out"))
    approve(here, digest)
    with pytest.raises(Killed):
        conducted(here, killed=True)
    assert plan_digest(load_started_plan(here / "out" / "server" / "runs" / "study" / "checkpoint")) == digest
    assert (conducted(here, resume=True) / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--set", "method.name=pooled"], "pools the rows of all sites"),
        (["--set", "model.name=small-cnn"], "images"),
        (["--resume", "study"], "give the file of an experiment"),
    ],
)
def test_what_no_hospital_can_be_asked_for_is_refused_before_anybody_approves_it(here, words, why):
    done = rounds("server", "submit", here / "study.toml", "--plan", here / "plan.json", "--server", here / "out", *words)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("change ")]
    assert len(lines) == 1 and why in lines[0]
    assert not (here / "plan.json").exists()
