"""A provisioned hospital after a run: its validation rows, its recalibrated model, and the record signed by its own key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from grandrounds.audit.entry import OWN
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.site_plan import plan_at_sites
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.deployment import Deployment
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.runtime import run as site_run
from grandrounds.capabilities.hospital.keeper.runtime.run import build_stack
from grandrounds.capabilities.hospital.keeper.site_models import find_watch_folder
from grandrounds.capabilities.hospital.keeper.watch_rows import read_site_rows
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.capabilities.watch.recalibration.recalibrate import hash_model
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.table import Table
from grandrounds.protocol.identity import load_public
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan
from tests.capabilities.hospital.deploy.consortia import provisioned
from tests.capabilities.watch.recalibration.test_recalibrate import recent
from tests.command import rounds
from tests.engine.hospitals import QUICK
from tests.engine.memory_transport import MemoryTransport
from tests.engine.test_hospitals import write_csv
from tests.support import patients, refused

SIZES = [150, 140, 130]
SETTINGS = {
    "method": {"rounds": 3},
    "train": {"lr": 0.1},
    "split": {"val": 0.2},
    "explain": {"sketch": "none"},
}


class Consortium:
    """Folders as `rounds provision` writes them, each hospital's own file, and keepers of those folders in this process."""

    def __init__(self, folder: Path) -> None:
        table = patients(SIZES)
        agreed = draft_schema(table, label="died", site="hospital").to_dict()
        data = dumps({"data": {name: value for name, value in agreed.items() if name != "schema"}})
        self.folder, self.table = folder, table
        self.folders: Folders = provisioned(folder, "a", "b", "c", data=f"\n{data}", insecure=True)
        self.files, self.kept = {}, {}
        for name in ("a", "b", "c"):
            mine = table.take(np.flatnonzero(table.columns["hospital"] == name))
            rows = Table.from_mapping({n: v for n, v in mine.columns.items() if n != "hospital"}, source=name)
            self.files[name] = folder / f"{name}.csv"
            write_csv(self.files[name], rows)

    def site(self, name: str) -> Path:
        return self.folders.site(name)

    def run(self, name: str, **settings) -> Run:
        """A run at the hospitals, and the copy of its folder that the server hands out."""
        file = self.folder / f"{name}.toml"
        file.write_text(dumps({"name": name, **SETTINGS, **settings}))
        plan = plan_at_sites(deployed_plan(file, []), self.folders.consortium().data)
        keepers = [SiteFolder(self.site(n)).keeper(str(file)) for n, file in self.files.items()]
        keys = {n: load_public(self.folders.site_key(n)) for n in self.folders.members()}
        venue = Deployment(MemoryTransport(keepers), self.folders.identity(), keys, name, timeouts=QUICK)
        made = RunFolder(self.folder / "runs" / name)
        made.create()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site_run, "build_stack", self._build)
            execute_plan(plan, made, venue=venue)
        return Run(made.path)

    def _build(self, plan, rows, *, name, **more):
        stack = build_stack(plan, rows, name=name, **more)
        self.kept[name] = (stack.data, stack.rows[0])
        return stack


@pytest.fixture(scope="module")
def consortium(tmp_path_factory) -> Consortium:
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture(scope="module")
def done(consortium) -> Run:
    return consortium.run("first")


def own(rows: Table) -> Table:
    return Table.from_mapping({n: v for n, v in rows.columns.items() if n != "hospital"}, source="recent.csv")


def test_validation_rows_are_those_that_the_keeper_had(consortium, done):
    """The rows that the keeper split off while the run was made, with their label; and no training row."""
    rows = read_site_rows(done, SiteFolder(consortium.site("b")), str(consortium.files["b"])).validation
    data, split = consortium.kept["b"]
    assert len(rows) == len(split.val) > 20
    for column in ("age", "died"):
        np.testing.assert_array_equal(rows.columns[column], data.table.columns[column][split.val])
    assert not np.isin(rows.columns["pressure"], data.table.columns["pressure"][split.train]).any()


def test_a_table_that_has_changed_since_is_refused(consortium, done, tmp_path):
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("".join(consortium.files["b"].read_text().splitlines(keepends=True)[:-30]))
    with refused("other-rows", match="give the table of that time"):
        read_site_rows(done, SiteFolder(consortium.site("b")), str(fewer))


def test_a_hospital_recalibrates_with_its_own_folder(consortium, done, tmp_path):
    copy, file, site = tmp_path / "copy", tmp_path / "recent.csv", consortium.site("b")
    shutil.copytree(done.folder, copy)
    write_csv(file, own(recent()))
    before = rounds("predict", copy, "--table", file).stdout
    made = rounds("recalibrate", copy, "--folder", site, "--table", file, "--by", "A. Smith", "--json")
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout)
    assert result["site"] == "b" and Path(result["file"]).is_relative_to(site / "state")
    after = rounds("predict", copy, "--table", file, "--personal", site).stdout
    assert after != before == rounds("predict", copy, "--table", file).stdout
    assert not (copy / "at_sites").exists(), "the hospital's model is in its own folder, not in the run's"
    for place, key in ((copy, consortium.folders.server / "server.pub"), (site / "watch", site / "keys" / "site.pub")):
        verified = rounds("audit", "verify", place, "--key", key)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    again = rounds("recalibrate", copy, "--folder", site, "--table", file)
    assert "The model is kept as it is" in again.stdout
    nowhere = rounds("recalibrate", copy, "--site", "b", "--table", file)
    assert nowhere.returncode == 2 and "add --folder FOLDER" in nowhere.stderr
    other = rounds("recalibrate", copy, "--folder", site, "--site", "a", "--table", file)
    assert other.returncode == 2 and "is the folder of b" in other.stderr
    back = rounds("recalibrate", copy, "--folder", site, "--undo")
    assert back.returncode == 0 and rounds("predict", copy, "--table", file, "--personal", site).returncode == 2
    assert rounds("provision", "verify", site).returncode == 0, "the folder that the server signed is as it was"


@pytest.mark.slow
def test_a_personal_model_is_recalibrated_beside_its_file(consortium, done, tmp_path):
    run = consortium.run("second", personal={"part": "intercept", "spread": 1.0})
    site, file = consortium.site("c"), tmp_path / "recent.csv"
    write_csv(file, own(recent(seed=11)))
    personal = run.use_personal(site) and run.personal_file("c").path
    first = rounds("predict", run.folder, "--table", file, "--personal", site).stdout
    result = json.loads(rounds("recalibrate", run.folder, "--folder", site, "--table", file, "--json").stdout)
    assert Path(result["file"]).parent == personal.parent and personal.exists()
    assert rounds("predict", run.folder, "--table", file, "--personal", site).stdout != first
    assert rounds("recalibrate", run.folder, "--folder", site, "--undo").returncode == 0
    assert rounds("predict", run.folder, "--table", file, "--personal", site).stdout == first
    renamed = find_watch_folder(run, site), find_watch_folder(done, site)
    assert {place.name for place in renamed} == {"watch", f"watch-{'first' if renamed[0].name == 'watch' else 'second'}"}


def test_a_hospital_watches_with_its_own_folder(consortium, done, tmp_path):
    """The baseline is the keeper's validation rows, the record is signed by the site's own key."""
    new, site = tmp_path / "new.csv", consortium.site("c")
    write_csv(new, own(recent(120, flip=0.9, seed=21)))
    common = ("watch", done.folder, "--folder", site, "--data", consortium.files["c"], "--table", new, "--json")
    elsewhere = rounds(*common[:4], *common[6:])
    assert elsewhere.returncode == 2 and "add --folder FOLDER --data FILE" in elsewhere.stderr
    first = rounds(*common)
    assert first.returncode == 3, first.stderr
    status = json.loads(first.stdout)
    assert (status["site"], status["reference"]["rows"], status["new"]) == ("c", len(consortium.kept["c"][1].val), 120)
    assert {"prevalence", "calibration"} & {alarm["kind"] for alarm in status["alarms"]}
    assert not (done.folder / "at_sites").exists() and Path(status["folder"]).parent == site
    with WatchRecord.open(Path(status["folder"])) as record:
        assert not record.verify(load_public(site / "keys" / "site.pub"))
        assert record.started["keys"]["made"] == OWN
    without = rounds(*common[:2], *common[4:])
    assert without.returncode == 2 and "add --folder FOLDER" in without.stderr


@pytest.mark.slow
def test_a_hospital_watches_with_its_own_folder_and_starts_afresh_after_a_recalibration(consortium, done, tmp_path):
    """New patients of whom more die: an alarm, a recalibration that answers it, and a watch of the new model."""
    copy, new, site = tmp_path / "copy", tmp_path / "new.csv", consortium.site("a")
    shutil.copytree(done.folder, copy)
    write_csv(new, own(recent(260, flip=0.8, seed=21)))
    common = ("watch", copy, "--folder", site, "--data", consortium.files["a"], "--table", new)
    first = rounds(*common, "--json")
    assert first.returncode == 3, first.stderr
    status = json.loads(first.stdout)
    kinds = {alarm["id"]: alarm["kind"] for alarm in status["alarms"]}
    alarm = next(name for name, kind in kinds.items() if kind in ("prevalence", "calibration"))
    assert status["model"] == hash_model(done.folder / "model.safetensors")
    assert rounds(*common, "--json").returncode == 0, "the same patients are counted once"
    made = rounds("recalibrate", copy, "--folder", site, "--table", new, "--by", "A. Smith", "--alarm", alarm, "--json")
    assert made.returncode == 0, made.stderr
    after = json.loads(made.stdout)["model_after"]
    again = rounds(*common, "--json")
    status = json.loads(again.stdout)
    assert again.returncode == 0 and status["model"] == after and status["patients"] == 0
    assert "the model is another than before" in " ".join(status["notes"])
    write_csv(new, own(recent(200, flip=0.8, seed=22)))
    baseline = tmp_path / "baseline.csv"
    write_csv(baseline, own(recent(260, flip=0.8, seed=21)))
    same = rounds("watch", copy, "--folder", site, "--baseline-table", baseline, "--table", new, "--json")
    assert same.returncode == 0, "patients like those of the recalibration raise no alarm against them as the baseline"
    with WatchRecord.open(site / "watch") as record:
        kinds = [e["kind"] for e in record.entries]
        action = next(e for e in record.entries if e["kind"] == "action")
    assert kinds.count("watch-start") == 3 and action["alarm"] == alarm and action["models"]["after"] == after
    for place, key in ((copy, consortium.folders.server / "server.pub"), (site / "watch", site / "keys" / "site.pub")):
        verified = rounds("audit", "verify", place, "--key", key)
        assert verified.returncode == 0, verified.stdout + verified.stderr
