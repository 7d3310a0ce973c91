"""The diagnosis of a connection names the step that fails, and what to ask the network team for."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from grandrounds.capabilities.hospital.deploy.pki import certificate_pem, issue, new_authority
from grandrounds.capabilities.hospital.keeper.network import connect
from grandrounds.capabilities.hospital.keeper.network.clock import ClockCheck
from grandrounds.capabilities.hospital.keeper.network.diagnosis import diagnose
from grandrounds.capabilities.hospital.keeper.network.route import Endpoint, Hop, Proxy, Route
from grandrounds.cli.command_line import app
from grandrounds.core import toml
from tests.capabilities.hospital.keeper.network.gateways import ConnectProxy, TlsGateway


@pytest.fixture
def authority(tmp_path):
    made = new_authority("heart", "server CA")
    (tmp_path / "server-ca.pem").write_bytes(certificate_pem(made.certificate))
    return made


@pytest.fixture
def start(authority, tmp_path):
    started = []

    def make(name: str = "gateway", *, by=authority, **options) -> TlsGateway:
        started.append(TlsGateway(by, tmp_path, name, **options))
        return started[-1]

    yield make
    for one in started:
        one.close()


def fault(hop: Hop, folder):
    findings = [f for f in diagnose(Route((hop,)), folder / "server-ca.pem").findings if f.level == "fault"]
    assert len(findings) == 1
    return findings[0]


def through(gateway: Endpoint, **options) -> Hop:
    return Hop(gateway, Proxy(ConnectProxy(**options).endpoint))


def test_a_working_connection_has_no_faults(start, tmp_path):
    result = diagnose(Route((Hop(start().endpoint),)), tmp_path / "server-ca.pem")
    assert result.connects and result.summary() == "the connection works"
    assert [f.level for f in result.findings] == ["ok", "ok"]


def test_an_unknown_name_is_a_matter_of_dns(authority, tmp_path):
    found = fault(Hop(Endpoint("fl.grandrounds.invalid", 9443)), tmp_path)
    assert (found.step, "fl.grandrounds.invalid" in found.ask) == ("dns", True)


def test_a_closed_port_is_a_matter_of_tcp(authority, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        found = fault(Hop(Endpoint("127.0.0.1", s.getsockname()[1])), tmp_path)
    assert found.step == "tcp" and "refused" in found.text


def test_a_port_whose_packets_are_dropped_is_named_as_such(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.3)
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    crowd = [socket.socket() for _ in range(4)]
    for one in crowd:  # the queue of a listener that accepts nobody is full: further packets are dropped
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    found = fault(Hop(Endpoint("127.0.0.1", full.getsockname()[1])), tmp_path)
    for one in (full, *crowd):
        one.close()
    assert found.step == "tcp" and "dropped" in found.text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=x\r\n\r\n", "password_file"),
        (b"HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM\r\nProxy-Authenticate: Negotiate\r\n\r\n", "exemption"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "CONNECT"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "reach"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "HTTP proxy"),
    ],
)
def test_a_refusal_of_the_proxy_says_what_to_ask_for(start, tmp_path, answer, expected):
    found = fault(through(start().endpoint, refuse=answer), tmp_path)
    assert found.step == "proxy" and expected in found.ask


def test_tls_inspection_is_recognised_by_the_issuer(start, tmp_path):
    other = start("inspected", by=new_authority("City Hospital", "Inspection CA"))
    found = fault(Hop(other.endpoint), tmp_path)
    assert found.step == "tls" and "Inspection CA" in found.text and "TLS inspection" in found.ask


def test_a_certificate_for_another_name_lists_its_names(start, tmp_path):
    found = fault(Hop(start(names=("fl.example.org",)).endpoint), tmp_path)
    assert found.step == "tls" and "fl.example.org" in found.text


def test_a_certificate_of_the_future_points_to_the_clock(authority, start, tmp_path, monkeypatch):
    later = datetime.now(UTC) + timedelta(days=3)
    monkeypatch.setattr(
        "tests.capabilities.hospital.keeper.network.gateways.issue", lambda *a, **k: issue(*a, **k, now=later)
    )
    found = fault(Hop(start().endpoint), tmp_path)
    assert found.step == "tls" and "clock" in found.text and "NTP" in found.ask


@pytest.mark.parametrize(("ahead", "level"), [(0, "ok"), (3600, "note"), (-3600, "note")])
def test_the_difference_of_the_clocks_is_measured_over_tls(start, tmp_path, ahead, level):
    gateway = start(ahead=ahead)
    result = diagnose(Route((Hop(gateway.endpoint),)), tmp_path / "server-ca.pem")
    found = next(f for f in result.findings if f.step == "clock")
    assert found.level == level and result.connects
    if ahead:
        assert f"60 min {'behind' if ahead > 0 else 'ahead of'} the server" in found.text


@pytest.mark.parametrize(
    ("ahead", "corrected", "warns"), [(2, False, False), (20, True, False), (-3600, True, True), (86400, False, True)]
)
def test_signed_times_are_corrected_within_bounds(start, tmp_path, ahead, corrected, warns):
    clock = ClockCheck(Route((Hop(start(ahead=ahead).endpoint),)), tmp_path / "server-ca.pem")
    assert clock.measure() == pytest.approx(ahead, abs=2)
    assert (bool(clock.correction), bool(clock.warning)) == (corrected, warns)


def test_a_foreign_server_cannot_set_the_clock(authority, start, tmp_path):
    foreign = start("foreign", by=new_authority("other", "server CA"), ahead=3600)
    clock = ClockCheck(Route((Hop(foreign.endpoint),)), tmp_path / "server-ca.pem")
    assert clock.measure() is None and clock.correction == 0.0


def test_the_command_prints_each_gateway_and_ends_with_a_code(start, tmp_path):
    gateway = start()
    settings = {
        "name": "north",
        "server": {"address": "127.0.0.1", "port": gateway.endpoint.port, "gateways": ["b.grandrounds.invalid:9443"]},
        "node": {"port": 9500},
        "limits": {"seconds": 60},
    }
    (tmp_path / "site.toml").write_text(toml.dumps(settings))
    result = CliRunner().invoke(app, ["site", "check-connection", str(tmp_path)])
    assert result.exit_code == 0 and "1 of 2 gateways can be used" in result.output and "FAULT" in result.output
    gateway_down = {**settings, "server": {"address": "b.grandrounds.invalid", "port": 9443}}
    (tmp_path / "site.toml").write_text(toml.dumps(gateway_down))
    result = CliRunner().invoke(app, ["site", "check-connection", str(tmp_path), "--json"])
    assert result.exit_code == 1 and json.loads(result.output)["connects"] is False
