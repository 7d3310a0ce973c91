"""A plan that sites approve by its digest before the first run: `rounds server submit --plan` writes what they will be told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.provision import provision
from grandrounds.capabilities.hospital.deploy.run_worker import _run_at_sites, load_started_plan
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.policy.rules import RUN, plan_digest
from grandrounds.capabilities.hospital.keeper.runtime.log import SiteLog
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.privacy.events import Event
from grandrounds.privacy.site_budget import SiteBudget
from grandrounds.site.host import SiteHost
from tests.capabilities.hospital.deploy.real import write_csv
from tests.command import rounds
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


class RunningSites:
    """The sites of a consortium with their logs and screens, in this process: they read a policy that changes."""

    def __init__(self, here: Path) -> None:
        self.here, self.out, self.screen = here, Folders(here / "out"), []
        self.sites = [self._start(name) for name in "abc"]

    def _start(self, name: str) -> SiteLog:
        site = SiteFolder(self.out.site(name))
        log = SiteLog(site.state / "log.jsonl", site.keeper(str(self.here / f"{name}.csv")).answer_message)
        log.say = lambda sentence: self.screen.append(f"{name}: {sentence}")
        return log

    def with_limit(self, name: str, epsilon: float, file: Path | None = None) -> Path:
        """Write the policy of a site with another limit of its budget: in place, or to a new file."""
        policy = self.out.site(name) / "policy.toml"
        text, count = re.subn(r"(?m)^epsilon = [0-9.]+", f"epsilon = {epsilon}", policy.read_text())
        assert count == 1
        (file or policy).write_text(text)
        return file or policy

    def run(self, name: str) -> Path:
        folder = self.out.server / "runs" / name
        plan = deployed_plan(self.here / "study.toml", ("method.rounds=1",))
        _run_at_sites(plan, folder, MemoryTransport(self.sites), self.out.server, False)
        return folder

    def refusals(self, name: str) -> list[dict]:
        """Refusals in the site's log, without sessions that begin anew."""
        lines = [json.loads(line) for line in (self.out.site(name) / "state" / "log.jsonl").read_text().splitlines()]
        return [line for line in lines if line["code"]]


def test_a_lower_limit_applies_while_the_site_runs(here):
    """The move to another template that docs/policies.md describes: epsilon 10, of which 3 is spent, becomes 6."""
    sites = RunningSites(here)
    assert (sites.run("one") / "summary.json").exists()
    budget = SiteBudget(sites.out.site("a") / "state" / "purse.json")
    budget.charge(Event("laplace", "sums", epsilon=3.0), run="earlier", key="1")
    before = rounds("site", "policy", sites.with_limit("a", 6.0, here / "new.toml"), "--folder", sites.out.site("a"))
    assert before.returncode == 0 and "site budget: epsilon limit 10 -> 6; spent 3; remaining 3" in before.stdout
    assert budget.budget().epsilon == 10.0, "the command changes nothing"
    sites.with_limit("a", 6.0)
    assert (sites.run("two") / "summary.json").exists()
    assert (budget.budget().epsilon, budget.spent()) == (6.0, pytest.approx(3.0, rel=1e-4))
    assert not sites.refusals("a") and not sites.screen
    after = rounds("site", "policy", sites.out.site("a") / "policy.toml", "--json")
    expected = {"epsilon": 6.0, "limit": 6.0, "spent": pytest.approx(3.0, rel=1e-4), "refused": ""}
    assert json.loads(after.stdout)["budget"] == expected


def test_a_raised_limit_is_refused_with_its_code_and_a_sentence_at_the_site(here):
    sites = RunningSites(here)
    foreseen = rounds("site", "policy", sites.with_limit("a", 20.0, here / "new.toml"), "--folder", sites.out.site("a"))
    assert foreseen.returncode == 1 and "epsilon limit 10 -> 20" in foreseen.stdout and "refused" in foreseen.stdout
    sites.with_limit("a", 20.0)
    with refused("setup-incomplete", match=r"a: refused \(changed-budget-limit\)", kind=RunFailed):
        sites.run("one")
    (line, *_) = sites.refusals("a")
    assert line["code"] == "changed-budget-limit" and "from 10 to 20" in line["sentence"]
    assert any(said.startswith("a: ") and "from 10 to 20" in said and "changed-budget-limit" in said for said in sites.screen)
    assert "from 10 to 20" in sites.sites[0].fault and not sites.sites[1].fault, "the health page has it"
    start = rounds("site", "start", sites.out.site("a"), "--data", here / "a.csv", "--no-node")
    assert start.returncode == 2 and "changed-budget-limit" in start.stderr
    assert SiteBudget(sites.out.site("a") / "state" / "purse.json").budget().epsilon == 10.0
    sites.with_limit("a", 10.0)
    assert (sites.run("two") / "summary.json").exists() and not sites.sites[0].fault


def test_a_policy_names_the_open_runs_that_it_refuses(here):
    sites = RunningSites(here)
    with pytest.raises(Killed):
        conducted(here, killed=True)
    strict = here / "strict.toml"
    strict.write_text(rounds("site", "policy", "--template", "strict").stdout)
    done = rounds("site", "policy", strict, "--folder", sites.out.site("a"))
    assert "open run study: open is refused: " in done.stdout, done.stdout
    assert done.returncode == 0, "a limit that is lowered is no fault of the policy"


def test_a_refusal_that_depends_on_rows_keeps_its_code_and_sentence_at_the_site(here, monkeypatch):
    """The code would tell the server about the rows, and the sentence can quote them: neither leaves, nor is logged in full."""
    sites = RunningSites(here)

    def quote(*arguments):
        raise BadInput("row 3: age is 'Muster, 4711', no number", code="not-a-number")

    monkeypatch.setattr(SiteHost, "_train", quote)
    with refused("too-few-sites", match=r"a \(refused \(refused\)\)", kind=RunFailed) as caught:
        sites.run("one")
    line = next(line for line in sites.refusals("a") if line["task"] == "train")
    texts = [str(caught.value), json.dumps(line), *sites.screen]
    assert line["code"] == "refused" and "not-a-number" in line["sentence"] and "work.log" in line["sentence"]
    assert not [text for text in texts if "Muster" in text]


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
