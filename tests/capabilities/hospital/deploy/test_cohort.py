"""A consortium with a cohort: signed folders, hospitals with OMOP tables behind keepers, and plans with another cohort."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grandrounds.capabilities.hospital.deploy.folders import Folders, load_agreed
from grandrounds.capabilities.hospital.deploy.handover import accept, refuse_changed_cohort
from grandrounds.capabilities.hospital.deploy.manifest import check_manifest
from grandrounds.capabilities.hospital.deploy.provision import change_agreement, provision
from grandrounds.capabilities.hospital.deploy.submit import plan_for_sites
from grandrounds.capabilities.hospital.deployment import Deployment
from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.policy.rules import RUN, Policy, Runs
from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.capabilities.sources.cohort.plan_cohort import write_agreed
from grandrounds.cli import app
from grandrounds.core.errors import RunFailed
from grandrounds.experiment.experiment import Experiment
from grandrounds.protocol.identity import load_public
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import OPEN
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run, run
from grandrounds.runs.runner import execute_plan
from tests.capabilities.hospital.deploy.consortia import consortium_text, provisioned
from tests.capabilities.sources.cohort.omop_hospitals import COHORT, write_hospitals
from tests.engine.hospitals import QUICK, final_model
from tests.engine.memory_transport import MemoryTransport
from tests.support import refused

SITES = ("a", "b", "c", "d")
EXPERIMENT = '[method]\nrounds = 2\n[evaluation]\ncalibrate = "none"\n'
OPEN_POLICY = "[cells]\nsmallest = 1\nfewest_rows = 1\n[reports]\nnotes = true\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Four hospitals, their cohort, and the folders of a consortium that agreed on it."""
    folder = tmp_path_factory.mktemp("consortium")
    write_hospitals(folder, *SITES)
    text = consortium_text(*SITES, data='[data]\ncohort = "cohort.toml"\n[data.columns.glucose]\nrange = [20, 900]\n')
    (folder / "consortium.toml").write_text(text)
    (folder / "e.toml").write_text(EXPERIMENT)
    provision(folder / "consortium.toml", folder / "out", insecure=True, make_keys=True, policy="research")
    return folder


def keeper_of(folder: Path, data: Path):
    (folder / "policy.toml").write_text(OPEN_POLICY)
    return SiteFolder(folder).keeper(str(data))


def deploy(place: Path, plan, folder: Path) -> Run:
    """Run a plan at the four hospitals, each with the keeper of its own folder and its own OMOP tables."""
    folders, copies = Folders(place / "out"), folder / "sites"
    shutil.copytree(place / "out" / "sites", copies)
    keepers = [keeper_of(copies / name, place / "hospitals" / name) for name in SITES]
    keys = {name: load_public(folders.site_key(name)) for name in SITES}
    venue = Deployment(MemoryTransport(keepers), folders.identity(), keys, "run", timeouts=QUICK)
    run_folder = RunFolder(folder / "run")
    run_folder.create()
    execute_plan(plan, run_folder, venue=venue)
    return Run(folder / "run")


def test_hospitals_with_omop_tables_train_the_model_of_a_simulation(place, tmp_path):
    cohort = read_cohort(place / "cohort.toml")
    plan = plan_for_sites(place / "e.toml", [], Folders(place / "out").consortium().data)
    assert plan["data"]["cohort"]["digest"] == cohort.digest()
    there = deploy(place, plan, tmp_path)
    data = {"table": str(place / "hospitals"), "cohort": str(place / "cohort.toml")}
    method, evaluation = {"rounds": 2}, {"calibrate": "none"}
    here = run(Experiment.parse({"data": data, "method": method, "evaluation": evaluation}), out=tmp_path / "here")
    assert final_model(there) == pytest.approx(final_model(here), abs=1e-6)
    assert there.summary["cohort"] == {"name": "cohort", "digest": cohort.digest()}  # the steps stay at the hospitals
    assert "The steps of the selection stay at each hospital" in (there.folder / "report.html").read_text()


def test_a_plan_with_another_cohort_is_refused(place, tmp_path):
    data = Folders(place / "out").consortium().data
    plan = plan_for_sites(place / "e.toml", [], data)
    other = _changed_cohort(tmp_path)
    with pytest.raises(RunFailed, match=codes.OTHER_COHORT):
        deploy(place, {**plan, "data": {**plan["data"], "cohort": write_agreed(other)}}, tmp_path / "other")
    keeper = AccessControl(cohort=read_cohort(place / "cohort.toml").digest())
    keeper.check_opening(Ask(OPEN), plan)
    false_digest = {**write_agreed(other), "digest": plan["data"]["cohort"]["digest"]}
    for cohort in (None, write_agreed(other), false_digest):
        with pytest.raises(Refusal, match=codes.OTHER_COHORT):
            keeper.check_opening(Ask(OPEN), {**plan, "data": {**plan["data"], "cohort": cohort}})
    with pytest.raises(Refusal, match=codes.OTHER_COHORT):
        AccessControl().check_opening(Ask(OPEN), plan)  # a folder without a cohort


def test_a_hospital_approves_cohorts_by_their_digest(place):
    plan = plan_for_sites(place / "e.toml", [], Folders(place / "out").consortium().data)
    mine = plan["data"]["cohort"]["digest"]
    assert Policy(runs=Runs(cohorts=(mine,))).refuses(Ask(OPEN), plan) == ""
    assert Policy(runs=Runs(cohorts=("0" * 64,))).refuses(Ask(OPEN), plan) == RUN
    assert Policy(runs=Runs(cohorts=(mine,))).refuses(Ask(OPEN), {**plan, "data": {**plan["data"], "cohort": None}}) == RUN
    policy = place / "odd.toml"
    policy.write_text('[runs]\ncohorts = ["abc"]\n')
    with refused("bad-policy-value", match="rounds cohort check"):
        Policy.load(policy)


def test_an_altered_cohort_is_found_by_the_manifest(place, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(place / "out" / "sites" / "a", folder)
    assert not check_manifest(folder).faults
    refuse_changed_cohort(folder)
    (folder / "cohort.json").write_text(json.dumps(write_agreed(_changed_cohort(tmp_path))))
    assert check_manifest(folder).faults == ("cohort.json was changed",)
    with refused("folder-changed", match=r"cohort\.json"):
        refuse_changed_cohort(folder)
    stored = json.loads((place / "out" / "sites" / "a" / "cohort.json").read_text())
    stored["definition"]["predict_at"] = "0 hours"
    (folder / "cohort.json").write_text(json.dumps(stored))
    with refused("cohort-changed"):
        SiteFolder(folder).schema()


def test_a_cohort_among_many_unlisted_files_is_refused(tmp_path):
    """The note on files that are not in the manifest names the first five."""
    folder = provisioned(tmp_path, "a", "b", "c").site("a")
    refuse_changed_cohort(folder)
    for name in (*(f"a{k}" for k in range(6)), "cohort.json"):
        (folder / name).write_text("{}")
    with refused("folder-changed", match=r"cohort\.json"):
        refuse_changed_cohort(folder)


def test_a_site_checks_its_records_with_the_folders_cohort(place):
    site = place / "out" / "sites" / "a"
    told = CliRunner().invoke(
        app, ["site", "check", "--data", str(place / "hospitals" / "a"), "--schema", str(site / "schema.json"), "--json"]
    )
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout[told.stdout.index("{") :])
    assert (result["rows"], result["fits"]) == (60, True)
    assert result["assumed"][0].startswith("cohort 'cohort': all visits 120, visits of type inpatient 60")


def test_a_changed_cohort_is_shown_and_confirmed_before_a_site_accepts_it(place, tmp_path):
    shutil.copytree(place / "out", tmp_path / "out")
    mine = tmp_path / "mine"
    shutil.copytree(tmp_path / "out" / "sites" / "a", mine)
    new = _changed_cohort(tmp_path)
    shutil.copy(place / "consortium.toml", tmp_path / "consortium.toml")
    change_agreement(tmp_path / "consortium.toml", tmp_path / "out")
    with refused("nothing-changed"):
        change_agreement(tmp_path / "consortium.toml", tmp_path / "out")
    handed, shown = tmp_path / "out" / "sites" / "a", []
    before = (mine / "cohort.json").read_text()

    def answer(word: bool):
        return lambda lines: shown.append(list(lines)) or word

    assert accept(mine, handed, lambda changes: True, answer(False)) is None
    assert (mine / "cohort.json").read_text() == before
    assert accept(mine, handed, lambda changes: True, answer(True)) is False
    assert shown[0] == shown[1]
    assert shown[0] == ["include.age: [18.0, 120.0] -> [40.0, 120.0]", f"digest of the cohort: {new.digest()}"]
    assert SiteFolder(mine).cohort() == new
    assert not check_manifest(mine).faults


def test_a_server_reads_the_signed_copy_of_the_cohort(place, tmp_path):
    text = (place / "consortium.toml").read_text().replace("cohort.toml", str(tmp_path / "cohort.toml"))
    (tmp_path / "consortium.toml").write_text(text)
    (tmp_path / "cohort.toml").write_text(COHORT)
    provision(tmp_path / "consortium.toml", tmp_path / "out", make_keys=True, policy="research")
    agreed = Folders(tmp_path / "out").consortium().data["cohort"]
    _changed_cohort(tmp_path)
    assert Folders(tmp_path / "out").consortium().data["cohort"] == agreed
    assert load_agreed(tmp_path / "out" / "operator").data["cohort"] == agreed
    assert not check_manifest(tmp_path / "out" / "operator").faults


def _changed_cohort(folder: Path) -> Cohort:
    file = folder / "cohort.toml"
    file.write_text(COHORT.replace("[18, 120]", "[40, 120]"))
    return read_cohort(file)
