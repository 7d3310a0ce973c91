"""Units and scripts, looked at by the programs that read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy.consortium import parse
from grandrounds.capabilities.hospital.deploy.start_files import InstallPaths, server_units, site_units
from tests.capabilities.hospital.deploy.consortia import consortium_text, provisioned

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
    return {**server_units(CONSORTIUM, here), **site_units(CONSORTIUM, SITE, here)}


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
    assert " site node " in node and "Restart=always" in node


def test_scripts_are_sh(tmp_path):
    folders = provisioned(tmp_path)
    scripts = sorted(folders.out.rglob("*.sh"))
    assert len(scripts) == 5
    for script in scripts:
        assert subprocess.run(["sh", "-n", script]).returncode == 0
    done = subprocess.run([folders.site("cleveland") / "start.sh"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")
