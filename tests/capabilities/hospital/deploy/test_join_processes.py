"""A consortium whose sites make their own keys runs over real processes: TLS, node keys, gateway and database."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.status import list_keys
from grandrounds.core.names import folder_name
from grandrounds.protocol.identity import Identity, load_public
from tests.capabilities.hospital.deploy.real import Real, rounds
from tests.capabilities.hospital.deploy.test_hospitals_for_real import PLANS, gateway, same_model, table

pytestmark = gateway


class Invited(Real):
    """Each site has its folder apart from the operator's, and joins while the server is running."""

    def provision(self) -> None:
        rounds("provision", str(self.folder / "consortium.toml"), "--out", str(self.out), "--policy", "research")
        for name in self.names:
            shutil.copytree(Folders(self.out).site(name), self.site_folder(name))

    def site_folder(self, name: str) -> Path:
        return self.folder / "hospitals" / folder_name(name)

    def start(self) -> None:
        self.start_server()
        assert self.online() == set() and {s.state[:7] for s in self.states()} == {"invited"}
        for name in self.names:
            rounds("site", "join", str(self.site_folder(name)), "--key", str(self.out / "server" / "server.pub"))
            rounds("provision", "approve", str(self.out), str(self.site_folder(name) / "request.json"), "--yes")
        for name in self.names:
            rounds("site", "accept", str(self.site_folder(name)), str(Folders(self.out).site(name)), "--yes")
            self.start_site(name)
        self.all_there()

    def states(self):
        return [line for line in list_keys(self.out) if line.kind == "site"]


@pytest.mark.slow
def test_sites_that_make_their_own_keys_run_a_round(tmp_path):
    settings = {**PLANS["fedavg"], "method": {"name": "fedavg", "rounds": 1}, "privacy": {"secure": True}}
    with Invited(tmp_path, table(), limit=60, in_memory=True).at_work() as real:
        there = real.run("first", settings)
        assert {s.state for s in real.states()} == {"takes part"}
        same_model(there, real.simulated("first", settings))
        for name in real.names:
            own = Identity.load(real.site_folder(name) / "keys" / "site.key").public
            assert load_public(Folders(real.out).site_key(name)) == own
        private = [p for p in (real.out / "sites").rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
        assert not private
