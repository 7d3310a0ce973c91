"""Whole consortia of processes that are killed, cut off and hung, and the other methods on them: minutes each.

`make test-slow`, or `python -m pytest -m slow tests/capabilities/hospital/deploy/test_hospital_faults.py`.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.control import ONLINE, Control
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.core.errors import GrandRoundsError
from tests.capabilities.hospital.deploy.consortia import free_port
from tests.capabilities.hospital.deploy.cut import Wire
from tests.capabilities.hospital.deploy.real import ROUNDS, Real, rounds, until
from tests.capabilities.hospital.deploy.test_hospitals_for_real import QUIET, gateway, same_model, table
from tests.engine.hospitals import final_model
from tests.engine.test_hospitals import ELSEWHERE, MLP, NETS
from tests.support import averaging_methods

pytestmark = [pytest.mark.slow, gateway]

FEDAVG = {"method": {"name": "fedavg", "rounds": 5}, **QUIET}
ASYNCHRONOUS = ("fedasync", "fedbuff")
"""Who is first differs between processes and a simulation, so their models do too."""

QUICK = ("fedavg", "fedxchain", "sse-agg", "veil")
"""In `make test`, with settings of their own."""


@pytest.fixture
def wire():
    gateway = free_port()
    found = Wire(gateway)
    yield gateway, found
    found.close()


@pytest.fixture
def real(tmp_path, wire):
    gateway, found = wire
    with Real(tmp_path, table(), limit=8, port=gateway, dial={"south": found.port}).at_work() as made:
        yield made


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    with Real(tmp_path_factory.mktemp("steady"), table()).at_work() as made:
        yield made


def begun(real: Real, name: str, settings: dict, *, rounds: int = 1) -> None:
    real.submit(name, settings)
    until(lambda: len(real.rounds_of(name)) >= rounds, seconds=240, what="rounds")


def test_a_killed_server_goes_on_with_the_run_from_what_it_wrote(real):
    """kill -9 of SuperLink, gateway, conductor and run. The server takes the run up by itself when it starts. The last model is
    that of a simulation, which nothing happened to."""
    begun(real, "server", FEDAVG, rounds=2)
    real.kill_server()
    real.start_server()
    run = real.done("server", seconds=400)
    same_model(run, real.simulated("server", FEDAVG))


def test_a_server_brought_back_from_a_copy_of_its_runs_goes_on_though_a_site_is_away(real):
    """Flower's database and our own records are gone, and one site has lost power: it takes part again when it is back."""
    settings = {"method": {"name": "fedavg", "rounds": 6}, **QUIET}
    begun(real, "copy", settings, rounds=2)
    rounds("server", "stop", str(real.out))
    shutil.rmtree(real.link.state)
    real.kill_site("north")
    done = len(real.rounds_of("copy"))
    assert done < 5, "too quick to be stopped in time"
    real.start_server()
    rounds("server", "submit", "--resume", "copy", "--server", str(real.out))
    until(lambda: len(real.rounds_of("copy")) > done, seconds=300, what="a round without the site")
    real.start_site("north")
    run = real.done("copy", seconds=450)
    decisions = [round["decision"] for round in run.rounds]
    assert [d["missing"] for d in decisions[:done]] == [{}] * done
    assert set(decisions[done]["missing"]) == {"north"}
    assert [note for note in decisions[done]["notes"] if note.startswith("north was not there when the run was set up")]
    assert len(decisions) == 6 and all(set(d["missing"]) <= {"north"} for d in decisions)
    assert decisions[-1]["missing"] == {} and "north" in decisions[-1]["weights"]


def test_a_cut_network_that_heals_loses_no_round(real, wire):
    _, line = wire
    begun(real, "cut", FEDAVG)
    line.cut()
    until(lambda: "south" not in real.online(), seconds=180, what="the SuperLink notices")
    line.mend()
    run = real.done("cut", seconds=400)
    assert len(run.rounds) == FEDAVG["method"]["rounds"]
    gone = [round["decision"]["missing"] for round in run.rounds]
    assert all(set(missing) <= {"south"} for missing in gone)
    if not any(gone):
        same_model(run, real.simulated("cut", FEDAVG))


def test_a_site_that_loses_power_comes_back(real):
    """kill -9 of keeper, worker and SuperNode. The SuperLink lets the node in again when its last heartbeat has run out."""
    settings = {"method": {"name": "fedavg", "rounds": 6}, **QUIET}
    begun(real, "power", settings)
    real.kill_site("north")
    real.start_site("north")
    run = real.done("power", seconds=450)
    assert len(run.rounds) == 6
    assert all(set(round["decision"]["missing"]) <= {"north"} for round in run.rounds)


def test_a_process_that_hangs_is_stopped_by_the_sites_own_limit(real):
    settings = {"method": {"name": "fedavg", "rounds": 4}, **QUIET}
    begun(real, "hung", settings)
    real.worker("north").suspend()
    run = real.done("hung", seconds=300)
    gone = [round["decision"]["missing"] for round in run.rounds]
    assert len(gone) == 4 and gone[-1] == {}
    assert codes.LATE in {line["code"] for line in real.log("north")}


@pytest.mark.parametrize("method", sorted(set(averaging_methods()) - {*NETS, *ELSEWHERE, *QUICK}))
def test_every_other_method_for_tables_runs_at_the_hospitals(steady, method):
    model = {"model": MLP} if method == "moon" else {}
    settings = {"method": {"name": method, "rounds": 2}, **model, **QUIET}
    run = steady.run(method, settings)
    assert len(run.rounds) == 2
    if method not in ASYNCHRONOUS:
        same_model(run, steady.simulated(method, settings))
    assert final_model(run).size


def test_an_exact_regression_at_the_hospitals_is_that_of_a_simulation(steady):
    settings = {"method": {"name": "glm", "exact": {"intercept": "common", "heterogeneity": False}}, **QUIET}
    run, here = steady.run("glm", settings), steady.simulated("glm", settings)
    there, known = (r.summary["estimates"]["fitted"]["coefficients"] for r in (run, here))
    assert [c["reason"] for c in there] == [c["reason"] for c in known], "a level of each category is left out"
    estimated = [(told, other) for told, other in zip(there, known, strict=True) if other["estimate"] is not None]
    assert len(estimated) > 2
    for told, other in estimated:
        assert told["estimate"] == pytest.approx(other["estimate"], rel=1e-9)
        assert told["error"] == pytest.approx(other["error"], rel=1e-9)


class Plain(Real):
    """The same on one machine without TLS, keys of nodes and a gateway: `--insecure-loopback`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shutil.rmtree(self.out)
        flags = ("--make-keys", "--insecure-loopback", "--policy", "research")
        rounds("provision", str(self.folder / "consortium.toml"), "--out", str(self.out), *flags)
        self.link = Link.from_folder(self.out, insecure=True)
        self.port = self.link.port
        for name in self.names:
            self._settle(self.site_folder(name), self.port)

    def start_server(self) -> None:
        rounds("server", "start", str(self.out), "--health", "0", "--insecure-loopback")

    def all_there(self, *, seconds: float = 150.0) -> None:
        """Nodes have no names here."""
        until(lambda: self.online() == len(self.names), seconds=seconds, what="all sites online")

    def online(self) -> int:
        try:
            with Control.local(self.link) as control:
                return sum(node.status == ONLINE for node in control.nodes())
        except GrandRoundsError:
            return 0


def test_a_consortium_on_one_machine_without_certificates(tmp_path):
    """Provision, start the server, start the sites, submit; letters are signed all the same."""
    made = Plain(tmp_path, table())
    assert subprocess.run([ROUNDS, "server", "start", str(made.out)], capture_output=True).returncode == 2
    try:
        made.start()
        settings = {"method": {"name": "fedavg", "rounds": 2}, **QUIET}
        same_model(made.run("plain", settings), made.simulated("plain", settings))
        assert "│ plain │ done" in rounds("server", "status", "--server", str(made.out))
    finally:
        made.close()
