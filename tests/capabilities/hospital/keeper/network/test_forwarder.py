"""The forwarder between a SuperNode and its gateways, with real sockets, TLS and a proxy."""

from __future__ import annotations

import socket
import ssl
import threading
import time

import httpx
import pytest

from grandrounds.capabilities.hospital.deploy.pki import certificate_pem, new_authority
from grandrounds.capabilities.hospital.keeper.network import forwarder as module
from grandrounds.capabilities.hospital.keeper.network.forwarder import Forwarder
from grandrounds.capabilities.hospital.keeper.network.route import Endpoint, Hop, Proxy, Route
from tests.capabilities.hospital.keeper.network.gateways import ConnectProxy, TlsGateway

has_ipv6 = pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")


class Net:
    """Gateways, and a client that uses TLS with the consortium's authority as a SuperNode does."""

    def __init__(self, folder) -> None:
        self.folder, self.authority = folder, new_authority("heart", "server CA")
        (folder / "ca.pem").write_bytes(certificate_pem(self.authority.certificate))
        self.context = ssl.create_default_context(cafile=folder / "ca.pem")
        self.said: list[str] = []
        self.open: list = []

    def gateway(self, name: str, **options) -> TlsGateway:
        found = TlsGateway(self.authority, self.folder, name, **options)
        self.open.append(found)
        return found

    def proxy(self, **options) -> ConnectProxy:
        found = ConnectProxy(**options)
        self.open.append(found)
        return found

    def forwarder(self, *hops: Hop) -> Forwarder:
        found = Forwarder(Route(hops), self.said.append)
        found.start()
        self.open.append(found)
        return found

    def ask(self, forwarder: Forwarder) -> str:
        """The name of the gateway that answers, over a connection of its own."""
        with httpx.Client(verify=self.context, trust_env=False, timeout=20) as client:
            return client.get(f"https://127.0.0.1:{forwarder.port}/").text


@pytest.fixture
def net(tmp_path):
    made = Net(tmp_path)
    yield made
    for one in made.open:
        one.close()


def free_endpoint() -> Endpoint:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return Endpoint("127.0.0.1", s.getsockname()[1])


def test_a_connection_passes_a_proxy_that_asks_for_a_password(net):
    gateway, proxy = net.gateway("first"), net.proxy(user="svc", password="geheim")
    hop = Hop(gateway.endpoint, Proxy(proxy.endpoint, "svc", "geheim"))
    carried = net.forwarder(hop)
    assert net.ask(carried) == "first"
    assert proxy.requests == [f"CONNECT {gateway.endpoint} HTTP/1.1"]
    assert net.said == [f"connected to {gateway.endpoint} through the proxy {proxy.endpoint}"]


def test_a_wrong_password_is_explained_and_not_repeated(net):
    gateway, proxy = net.gateway("first"), net.proxy(user="svc", password="geheim")
    carried = net.forwarder(Hop(gateway.endpoint, Proxy(proxy.endpoint, "svc", "falsch")))
    with pytest.raises(httpx.TransportError):
        net.ask(carried)
    assert "407" in carried.fault and "svc" in carried.fault and "falsch" not in carried.fault


@has_ipv6
def test_a_gateway_with_an_ipv6_address_is_reached_directly_and_through_a_proxy(net):
    gateway, proxy = net.gateway("six", host="::1"), net.proxy()
    assert net.ask(net.forwarder(Hop(gateway.endpoint))) == "six"
    assert net.ask(net.forwarder(Hop(gateway.endpoint, Proxy(proxy.endpoint)))) == "six"
    assert proxy.requests[0].startswith("CONNECT [::1]:")


@has_ipv6
def test_of_a_name_with_two_addresses_the_one_that_answers_is_used(net):
    """`localhost` is ::1 and 127.0.0.1 on most machines; the gateway listens on IPv4 only."""
    gateway = net.gateway("four")
    assert net.ask(net.forwarder(Hop(Endpoint("localhost", gateway.endpoint.port)))) == "four"


def test_a_site_uses_the_second_gateway_while_the_first_is_down_and_returns(net, monkeypatch):
    monkeypatch.setattr(module, "AVOID_SECONDS", 0.0)
    first, second = net.gateway("first"), net.gateway("second")
    carried = net.forwarder(Hop(first.endpoint), Hop(second.endpoint))
    assert net.ask(carried) == "first"
    first.close()
    assert net.ask(carried) == "second"
    assert f"connected to {second.endpoint} directly" in net.said
    net.open.remove(first)
    net.gateway("again", port=first.endpoint.port)
    assert net.ask(carried) == "again"
    assert carried.fault == ""


def test_a_connection_that_stays_open_returns_to_the_first_gateway_when_it_is_back(net, monkeypatch):
    monkeypatch.setattr(module, "RETURN_SECONDS", 0.1)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.2)
    nowhere, second = free_endpoint(), net.gateway("second")
    carried = net.forwarder(Hop(nowhere), Hop(second.endpoint))
    with httpx.Client(verify=net.context, trust_env=False, timeout=20) as client:
        address = f"https://127.0.0.1:{carried.port}/"
        for _ in range(5):
            assert client.get(address).text == "second"
            time.sleep(0.15)
        assert carried.status.opened == {str(second.endpoint): 1}, "it stays open while the first is down"
        net.gateway("first", port=nowhere.port)
        end = time.monotonic() + 20
        while client.get(address).text != "first" and time.monotonic() < end:
            time.sleep(0.5)
        assert client.get(address).text == "first"
    assert net.said[-1] == f"connected to {nowhere} directly"


def test_a_gateway_that_failed_is_asked_last_for_a_while(net):
    second, nowhere = net.gateway("second"), free_endpoint()
    carried = net.forwarder(Hop(nowhere), Hop(second.endpoint))
    assert [net.ask(carried), net.ask(carried)] == ["second", "second"]
    assert carried.status.failed == {str(nowhere): 1}


def test_a_gateway_that_accepts_and_says_nothing_counts_as_down(net, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    net.open.append(silent)
    second = net.gateway("second")
    carried = net.forwarder(Hop(Endpoint("127.0.0.1", silent.getsockname()[1])), Hop(second.endpoint))
    assert net.ask(carried) == "second"


def test_without_a_gateway_the_connection_is_reset_which_flower_tries_again(net):
    """Flower gives up for good where the text of an error contains `ssl`, `tls` or `certificate`."""
    nowhere = free_endpoint()
    carried = net.forwarder(Hop(nowhere))
    with pytest.raises(httpx.TransportError) as e:
        net.ask(carried)
    assert not any(word in str(e.value).lower() for word in ("ssl", "tls", "certificate")), str(e.value)
    assert str(nowhere) in carried.fault


def test_a_foreign_gateway_is_refused_by_the_client_behind_the_forwarder(net, tmp_path):
    (tmp_path / "foreign").mkdir()
    foreign = TlsGateway(new_authority("other", "server CA"), tmp_path / "foreign", "foreign")
    net.open.append(foreign)
    with pytest.raises(httpx.ConnectError, match="certificate"):
        net.ask(net.forwarder(Hop(foreign.endpoint)))


def test_many_bytes_pass_unchanged_in_both_directions(net):
    data = bytes(range(256)) * 40_000
    server = socket.create_server(("127.0.0.1", 0))
    net.open.append(server)

    def echo() -> None:
        far, _ = server.accept()
        with far:
            while part := far.recv(65536):
                far.sendall(part)

    threading.Thread(target=echo, daemon=True).start()
    carried = net.forwarder(Hop(Endpoint("127.0.0.1", server.getsockname()[1])))
    with socket.create_connection(("127.0.0.1", carried.port), 20) as near:
        threading.Thread(target=lambda: (near.sendall(data), near.shutdown(socket.SHUT_WR)), daemon=True).start()
        got = b""
        while part := near.recv(1 << 20):
            got += part
    assert got == data
