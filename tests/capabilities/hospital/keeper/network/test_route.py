"""Settings of a site's way to its gateways."""

from __future__ import annotations

import pytest

from grandrounds.capabilities.hospital.keeper.network.route import (
    PASSWORD,
    Endpoint,
    bypasses,
    exempt_loopback,
    parse_endpoint,
    read_route,
)
from grandrounds.core.errors import BadInput

SERVER = {"address": "fl.example.org", "port": 9443}


def hops(settings, folder, **environment):
    return [(str(h.gateway), str(h.proxy.endpoint) if h.proxy else None) for h in read_route(settings, folder, environment).hops]


def test_a_site_without_proxy_and_further_gateways_connects_directly(tmp_path):
    route = read_route({"server": SERVER}, tmp_path, {})
    assert route.is_plain and str(route.hops[0]) == "fl.example.org:9443 directly"


def test_further_gateways_follow_in_order_and_ipv6_has_brackets(tmp_path):
    settings = {"server": {**SERVER, "gateways": ["b.example.org:9444", "[2001:db8::2]:9443"]}}
    route = read_route(settings, tmp_path, {})
    assert [str(h.gateway) for h in route.hops] == ["fl.example.org:9443", "b.example.org:9444", "[2001:db8::2]:9443"]
    assert not route.is_plain


def test_the_environment_names_a_proxy_and_exempts_hosts(tmp_path):
    settings = {"server": {**SERVER, "gateways": ["10.1.2.3:9443"]}}
    got = hops(settings, tmp_path, HTTPS_PROXY="http://proxy:3128", NO_PROXY="10.0.0.0/8,internal")
    assert got == [("fl.example.org:9443", "proxy:3128"), ("10.1.2.3:9443", None)]


def test_site_toml_wins_over_the_environment(tmp_path):
    environment = {"https_proxy": "http://other:1"}
    assert hops({"server": SERVER, "proxy": {"url": "http://mine:3128"}}, tmp_path, **environment)[0][1] == "mine:3128"
    assert hops({"server": SERVER, "proxy": {"url": ""}}, tmp_path, **environment)[0][1] is None


@pytest.mark.parametrize(
    ("host", "exempt", "result"),
    [
        ("fl.example.org", ".example.org", True),
        ("fl.example.org", "example.org", True),
        ("fl.example.org", "ample.org", False),
        ("fl.example.org", "*", True),
        ("2001:db8::1", "2001:db8::/32", True),
        ("192.0.2.1", "192.0.2.0/25", True),
        ("192.0.2.200", "192.0.2.0/25", False),
        ("localhost", "", True),
    ],
)
def test_no_proxy(host, exempt, result):
    assert bypasses(host, exempt) is result


def test_loopback_is_added_to_no_proxy_once():
    once = exempt_loopback({"no_proxy": "example.org"})
    assert once["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1" == exempt_loopback(once)["no_proxy"]


def test_a_password_comes_from_a_file_that_only_its_owner_reads(tmp_path):
    file = tmp_path / "proxy.password"
    file.write_text("geheim\n")
    settings = {"server": SERVER, "proxy": {"url": "http://p:3128", "user": "svc", "password_file": "proxy.password"}}
    file.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        read_route(settings, tmp_path, {})
    file.chmod(0o600)
    proxy = read_route(settings, tmp_path, {}).hops[0].proxy
    assert (proxy.user, proxy.password) == ("svc", "geheim")
    assert "geheim" not in repr(proxy)


def test_a_password_may_come_from_the_environment(tmp_path):
    settings = {"server": SERVER, "proxy": {"url": "http://p:3128", "user": "svc"}}
    assert read_route(settings, tmp_path, {PASSWORD: "x"}).hops[0].proxy.password == "x"
    with pytest.raises(BadInput, match=PASSWORD):
        read_route(settings, tmp_path, {})


@pytest.mark.parametrize(
    "proxy",
    [
        {"url": "http://svc:geheim@p:3128"},
        {"url": "socks5://svc:geheim@p:3128"},
        {"url": "http://geheim geheim:x"},
        {"adress": "p"},
    ],
)
def test_a_wrong_section_is_refused_without_its_secrets(tmp_path, proxy):
    with pytest.raises(BadInput) as e:
        read_route({"server": SERVER, "proxy": proxy}, tmp_path, {})
    assert "geheim" not in str(e.value)


@pytest.mark.parametrize("text", ["b.example.org", "https://b:1", "b:0", "b:70000", "2001:db8::1:9443", "1.2.3:9443"])
def test_what_is_not_host_and_port_is_refused(text, tmp_path):
    with pytest.raises(ValueError):
        parse_endpoint(text)
    with pytest.raises(BadInput, match="gateways"):
        read_route({"server": {**SERVER, "gateways": [text]}}, tmp_path, {})


def test_an_ipv6_address_is_shortened():
    assert parse_endpoint("[2001:0db8:0::2]:9443") == Endpoint("2001:db8::2", 9443)
