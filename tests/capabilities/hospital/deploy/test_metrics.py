"""Metrics of server and site are read by Prometheus' own parsers, and have the values that an operator alerts on."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy.counts import ROUND, STARTED, Counts
from grandrounds.capabilities.hospital.deploy.metrics import server_metrics
from grandrounds.capabilities.hospital.deploy.records import QUEUED, RUNNING, RunRecords
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.runtime.site import Site
from grandrounds.core.prometheus import disk_metrics, label, merge_metrics, prometheus
from tests.capabilities.hospital.deploy.consortia import provisioned

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
PROMTOOL = shutil.which("promtool")
MONITORING = Path(__file__).parents[4] / "charts" / "monitoring"


def read(metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Metrics as Prometheus' Python library reads them."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parser.text_string_to_metric_families(prometheus(metrics)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def counted() -> Counts:
    counts = Counts()
    for event in (
        {"event": STARTED, "run": "heart-1", "round": 0, "rounds": 20},
        {"event": "request sent", "site": 'va "north"', "task": "train", "bytes": 100},
        {"event": "answer received", "site": 'va "north"', "task": "train", "bytes": 40, "seconds": 1.5},
        {"event": "request refused", "site": 'va "north"', "task": "train", "code": "budget-spent"},
        {"event": ROUND, "run": "heart-1", "round": 1, "seconds": 2.5, "missing": 1},
    ):
        counts.add(event, 1000.0)
    return counts


@pytest.fixture
def site(tmp_path_factory):
    """Metrics of a site that answered three requests and refused one."""
    folders = provisioned(tmp_path_factory.mktemp("site"), "cleveland", "hungary")
    folder = SiteFolder(folders.site("cleveland"))
    folder.budget()  # as its first start makes it
    found = Site(folder, data="none", query=None, device="cpu", node=False)
    found.log.codes.update({"answered": 3, "budget-spent": 1})
    return found._metrics()


@pytest.fixture
def server(tmp_path):
    provisioned(tmp_path, "cleveland", "hungary")
    link = Link.from_folder(tmp_path / "out")
    link.prepare()
    counted().save(link.state / "counts.json")
    records = RunRecords(link.state / "runs")
    records.update("heart-1", state=RUNNING)
    records.update("heart-2", state=QUEUED)
    records.update("heart-3", state=QUEUED)
    return server_metrics(link, [])


def test_server_has_what_an_operator_alerts_on(server):
    found = read(server)
    va = ("site", 'va "north"')
    assert found["grandrounds_runs"][(("state", "queued"),)] == 2
    assert found["grandrounds_runs"][(("state", "running"),)] == 1
    assert found["grandrounds_runs"][(("state", "failed"),)] == 0
    assert found["grandrounds_refusals_total"][(("code", "budget-spent"), va)] == 1
    assert found["grandrounds_message_bytes_total"] == {(("direction", "down"), va): 100, (("direction", "up"), va): 40}
    assert found["grandrounds_last_message_timestamp_seconds"][(va,)] == 1000
    assert found["grandrounds_rounds_total"][()] == 1
    assert found["grandrounds_round_duration_seconds"][(("run", "heart-1"),)] == 2.5
    assert found["grandrounds_round_missing_sites"][(("run", "heart-1"),)] == 1
    ends = found["grandrounds_certificate_expiry_timestamp_seconds"]
    assert {name for ((_, name),) in ends} == {"server-ca", "operator-ca", "superlink", "gateway"}
    assert all(end > time.time() for end in ends.values())
    assert found["grandrounds_disk_free_bytes"][(("folder", "runs"),)] > 0
    assert found["grandrounds_sites_online"][()] == 0, "no SuperLink answers here"


def test_site_has_what_its_staff_alert_on(site):
    found = read(site)
    assert found["grandrounds_node_up"][()] == 0
    assert found["grandrounds_messages_total"] == {(("code", "answered"),): 3, (("code", "budget-spent"),): 1}
    assert found["grandrounds_epsilon_spent"][()] == 0
    assert found["grandrounds_restarts_total"] == {(("program", "node"),): 0, (("program", "worker"),): 0}
    assert found["grandrounds_disk_free_bytes"][(("folder", "site"),)] > 0


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_has_no_complaint_about_names_and_format(server, site):
    for metrics in (server, site):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=prometheus(metrics), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_alert_rules():
    done = subprocess.run([PROMTOOL, "check", "rules", str(MONITORING / "alerts.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [PROMTOOL, "test", "rules", str(MONITORING / "alerts-test.yaml")]
    done = subprocess.run(tests, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_rules_and_dashboard_name_only_metrics_that_exist(name, server, site):
    known = {*server, *site}
    named = set(re.findall(r"grandrounds_[a-z_]+[a-z]", (MONITORING / name).read_text()))
    assert named and named <= known, named - known


def test_labels_with_quotes_lines_and_backslashes_survive():
    name = 'a "b"\\c\nd'
    metrics = merge_metrics([{"x": ("gauge", "A\nB", {label(site=name): 1.0})}, disk_metrics({})])
    assert read(metrics)["x"] == {(("site", name),): 1.0}
