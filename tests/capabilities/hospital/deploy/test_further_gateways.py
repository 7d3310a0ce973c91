"""Further gateways and the relay, run for real: several nginx on loopback before an HTTPS server that reports what reached it."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy import renewal
from grandrounds.capabilities.hospital.deploy.consortium import parse
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.pki import IssuedCertificate, issue
from grandrounds.capabilities.hospital.deploy.provision import provision
from grandrounds.capabilities.hospital.deploy.superlink import Link, further_gateway_programs
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.network.diagnosis import diagnose
from grandrounds.capabilities.hospital.keeper.network.route import read_route
from grandrounds.core.errors import BadInput
from tests.capabilities.hospital.deploy.consortia import free_port
from tests.capabilities.hospital.deploy.test_gateway import NGINX, _Upstream

nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")
FLEET, CONTROL = "/v1/fleet/pull-messages", "/v1/control/list-runs"


class Net:
    """A server with further gateways, whose programs are started by their own scripts."""

    def __init__(self, folder: Path, *, relay: bool, address: str = "127.0.0.1", host: str = "127.0.0.2") -> None:
        self.link, self.first, self.second, self.relay = (free_port() for _ in range(4))
        further = f"[{host}]:{self.second}" if ":" in host else f"{host}:{self.second}"
        text = (
            f'name = "heart"\n[server]\naddress = "{address}"\nport = {self.first}\nsuperlink_port = {self.link}\n'
            f'gateways = ["{further}"]\n'
        )
        text += (f'relay = "127.0.0.3:{self.relay}"\n' if relay else "") + '[[sites]]\nname = "north"\n'
        (folder / "consortium.toml").write_text(text)
        provision(folder / "consortium.toml", folder / "out")
        self.folders = Folders(folder / "out")
        self.running: list[subprocess.Popen[bytes]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folders.pki / "superlink.pem", self.folders.pki / "superlink.key")
        self._upstream = ThreadingHTTPServer(("127.0.0.1", self.link), _Upstream)
        self._upstream.socket = context.wrap_socket(self._upstream.socket, server_side=True)
        threading.Thread(target=self._upstream.serve_forever, daemon=True).start()

    @property
    def gateway(self) -> Path:
        return next((self.folders.server / "gateways").iterdir())

    def start(self, folder: Path, host: str, port: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([folder / "gateway.sh"], stderr=subprocess.DEVNULL)
        self.running.append(process)
        for _ in range(200):
            try:
                socket.create_connection((host, port), 1).close()
                return process
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"nothing listens at {host}:{port}")

    def ask(self, path: str, host: str, port: int, *, certificate: Path | None = None) -> tuple[int, dict]:
        context = ssl.create_default_context(cafile=self.folders.pki / "server-ca.pem")
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        connection = http.client.HTTPSConnection(host, port, context=context, timeout=10)
        try:
            connection.request("POST", path, body=b"x")
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if answer.status == 200 else {}
        finally:
            connection.close()

    def close(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(10)
        self._upstream.shutdown()
        self._upstream.server_close()


@pytest.fixture
def net(tmp_path):
    made = []

    def make(**options) -> Net:
        made.append(Net(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@nginx
def test_a_further_gateway_on_the_servers_host_passes_fleet_routes_and_no_control_routes(net):
    found = net(relay=False)
    found.start(found.gateway, "127.0.0.2", found.second)
    assert found.ask(FLEET, "127.0.0.2", found.second) == (200, {"path": FLEET, "size": 1})
    operator = found.folders.operator("operator") / "operator.pem"
    assert found.ask(CONTROL, "127.0.0.2", found.second, certificate=operator)[0] == 404
    assert [p.name for p in further_gateway_programs(Link.from_folder(found.folders.out))] == [
        f"the gateway 127.0.0.2:{found.second}"
    ]


@nginx
def test_a_gateway_on_another_host_reaches_the_superlink_through_the_relay(net, tmp_path):
    """Its folder is moved to that host whole: nothing else of the server is there."""
    found = net(relay=True)
    moved = shutil.copytree(found.gateway, tmp_path / "elsewhere")
    found.start(found.folders.server / "relay", "127.0.0.3", found.relay)
    found.start(moved, "127.0.0.2", found.second)
    assert found.ask(FLEET, "127.0.0.2", found.second) == (200, {"path": FLEET, "size": 1})
    assert found.ask(CONTROL, "127.0.0.2", found.second)[0] == 404
    assert [p.name for p in further_gateway_programs(Link.from_folder(found.folders.out))] == ["the relay"]


@nginx
def test_the_relay_serves_listed_gateways_only_and_fleet_routes_only(net, tmp_path):
    found = net(relay=True)
    found.start(found.folders.server / "relay", "127.0.0.3", found.relay)
    known, authority = found.gateway / "pki" / "relay.pem", IssuedCertificate.load(found.folders.pki, "server-ca")
    issue(authority, "c.example.org:9443", days=5).save(tmp_path, "unlisted")
    assert ask_relay(found, FLEET, known) == 200
    assert ask_relay(found, CONTROL, known) == 404
    assert ask_relay(found, FLEET, None) == 400
    assert ask_relay(found, FLEET, tmp_path / "unlisted.pem") == 403
    assert ask_relay(found, FLEET, found.folders.pki / "gateway.pem") == 400  # a server's certificate is no client's
    assert ask_relay(found, FLEET, found.folders.operator("operator") / "operator.pem") == 400


def ask_relay(found: Net, path: str, certificate: Path | None) -> int:
    """Ask the relay under the name that a gateway checks."""
    context = ssl.create_default_context(cafile=found.folders.pki / "server-ca.pem")
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    raw = socket.create_connection(("127.0.0.3", found.relay), 10)
    with context.wrap_socket(raw, server_hostname="localhost") as tls:
        tls.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx".encode())
        return int(tls.makefile("rb").readline().split()[1])


@nginx
@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_gateways_with_ipv6_addresses_are_diagnosed_as_usable(net):
    found = net(relay=False, address="::1", host="::1")
    found.start(found.folders.server, "::1", found.first)
    found.start(found.gateway, "::1", found.second)
    site = found.folders.site("north")
    result = diagnose(read_route(SiteFolder(site).settings(), site, {}), site / "server-ca.pem")
    assert result.summary() == "all 2 gateways can be used", result.findings


def test_a_site_gets_the_further_gateways_and_renewal_writes_their_certificates(tmp_path):
    found = Net(tmp_path, relay=True)
    found.close()
    site = found.folders.site("north")
    assert SiteFolder(site).settings()["server"]["gateways"] == [f"127.0.0.2:{found.second}"]
    before = (found.gateway / "pki" / "gateway.pem").read_bytes()
    serials = renewal.renew(found.folders.out)
    assert f"gateway 127.0.0.2:{found.second}" in serials
    assert (found.gateway / "pki" / "gateway.pem").read_bytes() != before
    assert oct((found.gateway / "pki" / "gateway.key").stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize(
    "lines",
    [
        'gateways = "b.example.org:9443"',
        'gateways = ["https://b.example.org"]',
        'gateways = ["fl.example.org:9443"]',
        'gateways = ["b.example.org:9443"]',  # the same port on the same host
        'relay = "10.0.0.5:9446"',
        'gateways = ["b.example.org:9443"]\nrelay = "fl.example.org:9446"',
        'gateways = ["b.example.org:9443"]\nrelay = "10.0.0.5:9443"',
    ],
)
def test_a_wrong_list_of_gateways_is_refused(lines):
    with pytest.raises(BadInput, match=r"\[server\]"):
        parse(f'name = "heart"\n[server]\naddress = "fl.example.org"\n{lines}\n[[sites]]\nname = "north"\n')
