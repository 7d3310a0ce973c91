"""Units, Compose files and scripts, looked at by the programs that read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.deploy.consortium import parse
from grandrounds.deploy.start_files import InstallPaths, server_compose, server_units, site_compose, site_units
from tests.deploy.consortia import consortium_text, provisioned

CONSORTIUM = parse(consortium_text("St. Mary Zürich", address="fl.example.org"))
SITE = CONSORTIUM.sites[0]
HARDENED = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "CapabilityBoundingSet=",
    "PrivateDevices=yes",
    "ProtectHome=yes",
)


@pytest.fixture
def written(tmp_path) -> dict[str, str]:
    """Units for this machine, since systemd looks whether programs are there."""
    (tmp_path / "gateway.sh").write_text("#!/bin/sh\n")
    (tmp_path / "gateway.sh").chmod(0o700)
    here = InstallPaths(environment=str(Path(sys.executable).parent.parent), folder=str(tmp_path))
    return {**server_units(CONSORTIUM, here), **site_units(CONSORTIUM, SITE, 9500, here)}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_no_fault(written, tmp_path):
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


def test_every_unit_is_hardened_and_calls_nobody(written):
    assert set(written) == {"grandrounds-server.service", "grandrounds-node.service", "grandrounds-keeper.service"}
    for text in written.values():
        lines = text.splitlines()
        assert not [h for h in (*HARDENED, "Environment=FLWR_TELEMETRY_ENABLED=0") if h not in lines]


def test_the_keeper_alone_has_the_data_and_no_network(written):
    keeper, node = written["grandrounds-keeper.service"], written["grandrounds-node.service"]
    assert "IPAddressDeny=any" in keeper and "TABLE" in keeper
    assert "IPAddressDeny" not in node and "TABLE" not in node
    assert "--isolation process" in node and "--superlink fl.example.org:9443" in node


KEYS = {
    "image", "build", "command", "user", "working_dir", "environment", "volumes", "tmpfs", "read_only", "cap_drop",
    "security_opt", "init", "restart", "stop_grace_period", "ports", "network_mode", "depends_on",
}  # fmt: skip
"""Of the Compose specification, those that are used: with the kind of value that it asks for."""
KINDS = {"image": str, "build": dict, "command": list, "user": str, "environment": dict, "volumes": list, "ports": list,
         "read_only": bool, "init": bool, "depends_on": list, "network_mode": str, "restart": str}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "services"),
    [(server_compose(CONSORTIUM), ["server"]), (site_compose(CONSORTIUM, SITE, 9500), ["node", "keeper"])],
)
def test_compose_files_are_yaml_of_known_keys(text, services):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(text)
    assert list(found) == ["services"] and list(found["services"]) == services
    for service in found["services"].values():
        assert set(service) <= KEYS
        assert all(isinstance(service[key], kind) for key, kind in KINDS.items() if key in service)
        assert all(isinstance(v, str) for v in service["environment"].values())
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert not service["user"].startswith("0") and "privileged" not in service
        assert service["build"]["dockerfile_inline"].startswith("FROM python:3.11-slim\nRUN ")
        assert "--require-hashes" in service["build"]["dockerfile_inline"]


def test_in_containers_only_the_gateway_is_open_and_the_keeper_has_no_network_of_its_own():
    yaml = pytest.importorskip("yaml")
    server = yaml.safe_load(server_compose(CONSORTIUM))["services"]
    site = yaml.safe_load(site_compose(CONSORTIUM, SITE, 9500))["services"]
    assert server["server"]["ports"] == ["9443:9443"]
    assert "ports" not in site["node"] and "ports" not in site["keeper"]
    assert site["keeper"]["network_mode"] == "service:node"
    assert not any("/data" in v for v in site["node"]["volumes"])


def test_scripts_are_sh(tmp_path):
    folders = provisioned(tmp_path)
    scripts = sorted(folders.out.rglob("*.sh"))
    assert len(scripts) == 5
    for script in scripts:
        assert subprocess.run(["sh", "-n", script]).returncode == 0
    done = subprocess.run([folders.site("cleveland") / "start.sh"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")
