"""Whole consortia on difficult networks: a proxy that asks for a password, a gateway that dies. Minutes each.

`make test-slow`, or `python -m pytest -m slow tests/capabilities/hospital/deploy/test_networks.py`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import psutil
import pytest

pytest.importorskip("flwr")

from tests.capabilities.hospital.deploy.consortia import free_port
from tests.capabilities.hospital.deploy.real import Real, until
from tests.capabilities.hospital.deploy.test_hospitals_for_real import QUIET, gateway, same_model, table
from tests.capabilities.hospital.keeper.network.gateways import ConnectProxy

pytestmark = [pytest.mark.slow, gateway]


@pytest.fixture
def proxy():
    made = ConnectProxy(user="svc", password="geheim")
    yield made
    made.close()


def use_proxy(real: Real, name: str, proxy: ConnectProxy) -> None:
    folder = real.site_folder(name)
    with (folder / "site.toml").open("a") as f:
        f.write(f'\n[proxy]\nurl = "http://{proxy.endpoint}"\nuser = "svc"\npassword_file = "keys/proxy.password"\n')
    (folder / "keys" / "proxy.password").write_text("geheim\n")
    (folder / "keys" / "proxy.password").chmod(0o600)


def health(real: Real, name: str) -> dict:
    port = next(line for line in real.output(name).splitlines() if "health page" in line).split(":")[-1].split("/")[0]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as page:
            return json.load(page)
    except urllib.error.HTTPError as e:
        return json.load(e)


def stop_gateway(real: Real) -> None:
    """End the first gateway so that its supervisor cannot bring it back."""
    (real.out / "server" / "nginx.conf").rename(real.out / "server" / "nginx.away")
    process = psutil.Process(int((real.link.logs / "gateway.pid").read_text()))
    for one in (*process.children(recursive=True), process):
        one.kill()


def return_gateway(real: Real) -> None:
    (real.out / "server" / "nginx.away").rename(real.out / "server" / "nginx.conf")


def test_a_run_continues_when_a_gateway_dies_and_sites_return_to_it(tmp_path, proxy):
    """One site uses a proxy with a password. The first gateway is killed after the first round and comes back later."""
    second = free_port()
    real = Real(tmp_path, table(), limit=25, server={"gateways": [f"127.0.0.2:{second}"]})
    use_proxy(real, "south", proxy)
    settings = {"method": {"name": "fedavg", "rounds": 60}, **QUIET}
    with real.at_work():
        real.submit("gateways", settings)
        until(lambda: len(real.rounds_of("gateways")) >= 1, seconds=240, what="a round")
        stop_gateway(real)
        assert len(real.rounds_of("gateways")) < 50, "the run ended before the gateway"
        run = real.done("gateways", seconds=400)
        same_model(run, real.simulated("gateways", settings))
        assert f"connected to 127.0.0.2:{second} through the proxy {proxy.endpoint}" in real.output("south")
        assert health(real, "north")["gateway"] == f"127.0.0.2:{second} directly"
        return_gateway(real)
        back = f"127.0.0.1:{real.port} directly"
        until(lambda: health(real, "north")["gateway"] == back, seconds=300, what="the first gateway is used again")
        written = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*.out")) + "".join(
            p.read_text(errors="replace") for p in tmp_path.rglob("*.log")
        )
        assert "geheim" not in written
