"""The flow of template strict: a plan is refused, approved at every hospital by its digest, and run with noise in secure sums.

Commands are those that people type; the keepers are those of provisioned folders, in this process.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.run_worker import _run_at_sites
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.keeper.codes import POLICY
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.policy.rules import METHOD, RUN, Policy
from grandrounds.capabilities.hospital.keeper.policy.templates import STANDARD, STRICT, policy_template
from grandrounds.core.errors import RunFailed
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_schema
from tests.capabilities.hospital.deploy.real import write_csv
from tests.command import rounds
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients, refused

SITES = "abc"
STUDY = """\
name = "study"
[data]
encoding = "public"
ranges = { age = [18, 100], lactate = [0, 20], pressure = [30, 140] }
[method]
name = "fedavg"
rounds = 2
[privacy]
mechanism = "dp-sgd"
epsilon = 3.0
secure = true
[evaluation]
threshold = "half"
[explain]
sketch = "none"
"""


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory) -> Path:
    """Three hospitals with their files; the command was not told which policy, and there is no terminal."""
    folder = tmp_path_factory.mktemp("strict")
    table = patients([120, 110, 100])
    site = np.asarray(table.columns["hospital"]).astype(str)
    for name in SITES:
        write_csv(folder / f"{name}.csv", table.take(np.flatnonzero(site == name)), without="hospital")
    agreed = draft_schema(table, label="died", site="hospital").to_dict()
    consortium = {
        "name": "strict",
        "server": {"address": "127.0.0.1"},
        "sites": [{"name": name} for name in SITES],
        "data": {n: v for n, v in agreed.items() if n != "schema"},
    }
    (folder / "consortium.toml").write_text(dumps(consortium))
    (folder / "study.toml").write_text(STUDY)
    done = rounds("provision", folder / "consortium.toml", "--out", folder / "out", "--make-keys")
    assert done.returncode == 0 and "policy of each site: strict, " in done.stdout
    return folder


@pytest.fixture
def here(provisioned, tmp_path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "c"))


def policy_file(here: Path, site: str) -> Path:
    return here / "out" / "sites" / site / "policy.toml"


def write_plan(here: Path, *settings: str) -> Path:
    """The plan that the operator sends to the hospitals."""
    words = [w for s in settings for w in ("--set", s)]
    done = rounds("server", "submit", here / "study.toml", "--plan", here / "plan.json", "--server", here / "out", *words)
    assert done.returncode == 0, done.stderr
    return here / "plan.json"


def start_sites(here: Path) -> list:
    return [SiteFolder(here / "out" / "sites" / name).keeper(str(here / f"{name}.csv"), device="cpu") for name in SITES]


def run_study(here: Path, keepers: list, *settings: str, run: str = "study") -> Path:
    folder = Folders(here / "out").server / "runs" / run
    plan = deployed_plan(here / "study.toml", settings)
    _run_at_sites(plan, folder, MemoryTransport(keepers), here / "out" / "server", False)
    return folder


def approve_everywhere(here: Path, *settings: str) -> None:
    plan = write_plan(here, *settings)
    for name in SITES:
        done = rounds("site", "approve", here / "out" / "sites" / name, plan, "--yes", "--by", "A. Smith")
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_plan_is_refused_then_approved_and_runs_at_sites_that_were_not_restarted(here):
    keepers = start_sites(here)
    with refused("setup-incomplete", match=RUN, kind=RunFailed):
        run_study(here, keepers, run="early")
    approve_everywhere(here)
    done = run_study(here, keepers)
    summary = json.loads((done / "summary.json").read_text())
    assert 0 < summary["privacy"]["epsilon"] <= 3 and summary["privacy"]["secure"]
    assert summary["final"]["count"] == 64, "metrics of all sites together come from the secure sum"
    assert summary["per_site"] == {} or all(v is None for own in summary["per_site"].values() for v in own.values())
    for site in SITES:
        assert 0 < SiteFolder(here / "out" / "sites" / site).budget().spent() <= 3
    with refused("setup-incomplete", match=RUN, kind=RunFailed):
        run_study(here, keepers, "seed=1", run="other")


def test_an_approval_that_is_deleted_ends_the_run_at_once(here):
    approve_everywhere(here)
    keepers = start_sites(here)
    for name in SITES:
        policy_file(here, name).write_text(policy_template(STRICT))
    with refused("setup-incomplete", match=RUN, kind=RunFailed):
        run_study(here, keepers)


@pytest.mark.parametrize("text", ["", "[runs\n", "[runs]\nmethods = ['fedagv']\n"])
def test_a_site_whose_policy_cannot_be_read_answers_nothing_until_it_is_corrected(here, text):
    approve_everywhere(here)
    keepers, file = start_sites(here), policy_file(here, "b")
    approved = file.read_text()
    file.write_text(text)
    with refused("setup-incomplete", match=POLICY, kind=RunFailed):
        run_study(here, keepers, run="early")
    file.write_text(approved)
    assert (run_study(here, keepers) / "summary.json").exists()


GLM = """\
name = "study"
[data]
encoding = "public"
coding = "levels"
ranges = { age = [18, 100], lactate = [0, 20], pressure = [30, 140] }
[method]
name = "glm"
[method.exact]
ridge = 1.0
[privacy]
secure = true
[explain]
sketch = "none"
"""


def test_a_method_without_differential_privacy_runs_only_where_the_site_names_it(here):
    (here / "study.toml").write_text(GLM)
    glm = write_plan(here)
    said = rounds("site", "approve", here / "out" / "sites" / "a", glm, "--yes")
    assert said.returncode == 1 and "nothing was approved" in said.stdout
    assert "method 'glm' is not in runs.methods of policy.toml: add it there and, as it has no differential" in said.stdout
    assert METHOD not in said.stdout, "people read sentences"
    for name in SITES:
        policy = policy_file(here, name)
        text = policy.read_text().replace('"quality",', '"quality", "glm",')
        policy.write_text(text.replace("exempt = []", 'exempt = ["glm"]'))
    named = rounds("site", "policy", policy_file(here, "a"), "--plan", glm)
    assert "cells of 5 patients over all sites, and exact.least is 10: raise method.exact.least in the plan" in named.stdout
    keepers = start_sites(here)
    approve_everywhere(here, "method.exact.least=10")
    summary = json.loads((run_study(here, keepers, "method.exact.least=10") / "summary.json").read_text())
    assert summary["method"] == "glm" and summary["final"]["count"] == 64
    with refused("setup-incomplete", match=RUN, kind=RunFailed):
        run_study(here, keepers, "method.exact.least=10", "seed=2", run="other")


def test_an_approval_keeps_the_file_and_needs_a_person(here):
    plan, file = write_plan(here), policy_file(here, "a")
    before = file.read_text()
    asked = rounds("site", "approve", here / "out" / "sites" / "a", plan)
    assert asked.returncode == 2 and "[unconfirmed-plan]" in asked.stderr and file.read_text() == before
    assert "would leave in secure sums, with noise: the site's own model" in asked.stdout
    assert "would leave in secure sums: patients counted in cells" in asked.stdout
    done = rounds("site", "approve", here / "out" / "sites" / "a", plan, "--yes", "--by", "A. Smith")
    added = [line for line in file.read_text().splitlines() if line not in before.splitlines()]
    assert done.returncode == 0 and len(added) == 2 and added[1].endswith("by A. Smith") and "study, approved 20" in added[1]
    again = rounds("site", "approve", here / "out" / "sites" / "a", plan, "--yes")
    assert "approved before" in again.stdout and len(Policy.load(file).runs.plans) == 1


def test_the_template_can_be_chosen_and_a_wrong_name_writes_nothing(provisioned, tmp_path):
    source = provisioned / "consortium.toml"
    wrong = rounds("provision", source, "--out", tmp_path / "out", "--policy", "stirct")
    assert wrong.returncode == 2 and "did you mean 'strict'" in wrong.stderr and not (tmp_path / "out").exists()
    done = rounds("provision", source, "--out", tmp_path / "out", "--make-keys", "--policy", "standard")
    assert done.returncode == 0 and "policy" not in done.stdout
    assert policy_file(tmp_path, "a").read_text() == policy_template(STANDARD)
    assert rounds("site", "policy", "--template", "standard").stdout == policy_template(STANDARD)
