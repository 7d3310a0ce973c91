"""Read consortium.toml: sites, the address of the server, the agreed data; names of sites and their folders."""

from __future__ import annotations

import ipaddress
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper.network.route import Endpoint, parse_endpoint, parse_host
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.names import folder_name

DAYS, MOST_DAYS = 365, 825
"""Validity of leaf certificates in days: the default, and the limit that current TLS clients accept."""

PROVISIONED_BY = "server.pub"
"""File by which a folder is known that `rounds provision` wrote."""

Section = Mapping[str, object]
"""A section of the file as parsed, not yet checked."""


@dataclass(frozen=True)
class Server:
    """Address of the gateway for sites, and the port of the SuperLink behind it.

    Attributes:
        address: DNS name or IP address of the first gateway.
        port: Its port.
        superlink_port: Loopback port of the SuperLink.
        gateways: Further gateways, which sites use while the first is down.
        relay: Address on the server's host at which gateways of other hosts reach the SuperLink; None if all gateways run on
            the server's host.
    """

    address: str
    port: int = 9443
    superlink_port: int = 9092
    gateways: tuple[Endpoint, ...] = ()
    relay: Endpoint | None = None

    @property
    def is_loopback(self) -> bool:
        """True if the address is this machine's own."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"

    @property
    def endpoint(self) -> str:
        """address:port, with brackets around an IPv6 address."""
        return str(Endpoint(self.address, self.port))


@dataclass(frozen=True)
class Member:
    """One site by its name; `slug` is the name of its folder and files."""

    name: str
    contact: str = ""

    @property
    def slug(self) -> str:
        return folder_name(self.name)


@dataclass(frozen=True)
class Consortium:
    """Content of consortium.toml.

    `data` is the agreed [data] section, which the keeper reads; with a cohort its whole schema, and the cohort's definition.
    """

    name: str
    server: Server
    sites: tuple[Member, ...]
    days: int = DAYS
    data: Mapping[str, Any] = field(default_factory=dict)

    def site(self, name: str) -> Member:
        """Find a site by its name.

        Raises:
            BadInput: There is no such site.
        """
        for site in self.sites:
            if site.name == name:
                return site
        raise BadInput(
            f"there is no site {name!r} in the consortium; {nearest(name, [s.name for s in self.sites])}",
            code="unknown-site",
        )


def load(path: Path) -> Consortium:
    """Load a consortium from a file.

    Args:
        path: The file. Its cohort file is searched for in the same folder; in a folder that `rounds provision` wrote, it is
            cohort.json.

    Raises:
        BadInput: The file cannot be read, or a value in it is wrong; the sentence names the file.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path), folder=path.parent)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="unreadable-file") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text: a consortium is a TOML file", code="not-text") from None


def parse(text: str, *, where: str = "consortium.toml", folder: Path | None = None) -> Consortium:
    """Parse the TOML text of a consortium.

    Args:
        text: The text.
        where: The file, for messages.
        folder: The folder of its cohort file; None: the working directory.

    Raises:
        BadInput: It is not valid TOML, or a value in it is wrong; the sentence begins with `where`.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{where} is not valid TOML: {e}", code="not-toml") from None
    try:
        return _read_consortium(content, folder)
    except BadInput as e:
        raise BadInput(f"{where}: {e}", code=e.code) from None


def _read_consortium(content: Section, folder: Path | None) -> Consortium:
    _check_keys(content, ("name", "server", "certificates", "sites", "data"), "the file")
    certificates = _section(content, "certificates", ("days",))
    return Consortium(
        name=check_name(content.get("name"), "the consortium"),
        server=_read_server(_section(content, "server", ("address", "port", "superlink_port", "gateways", "relay"))),
        sites=_read_sites(content.get("sites")),
        days=_integer(certificates, "days", DAYS, 1, MOST_DAYS, "[certificates]"),
        data=_read_data(content, folder),
    )


def _read_server(section: Section) -> Server:
    address = section.get("address")
    if not isinstance(address, str) or not address:
        raise BadInput(
            '[server] has no address: set the DNS name or IP address that sites connect to, as address = "fl.example.org"',
            code="missing-address",
        )
    server = Server(
        _checked_address(address),
        _integer(section, "port", Server.port, 1, 65535, "[server]"),
        _integer(section, "superlink_port", Server.superlink_port, 1, 65535, "[server]"),
        _read_gateways(section),
        None if "relay" not in section else _read_endpoint(section["relay"], "relay"),
    )
    if server.port == server.superlink_port:
        raise BadInput(
            f"[server] port and superlink_port are both {server.port}: choose different ports", code="port-conflict"
        )
    _check_gateways(server)
    return server


def _check_gateways(server: Server) -> None:
    everything = [Endpoint(server.address, server.port), *server.gateways]
    if len(set(everything)) != len(everything):
        raise BadInput(
            "[server] gateways names a gateway twice: list only further gateways, each with another address or port",
            code="port-conflict",
        )
    if server.relay is not None and not (server.gateways and server.relay.is_address):
        raise BadInput(
            "[server] relay is for further gateways on other hosts: name them in gateways, and give an IP address of the "
            'server\'s host with a free port, as relay = "10.0.0.5:9446"',
            code="invalid-address",
        )
    ports = [server.superlink_port, *(gateway.port for gateway in everything)]
    if server.gateways and server.relay is None and len(set(ports)) != len(ports):
        raise BadInput(
            "[server] gateways without a relay run on the server's host, and two of them have the same port: give each its own "
            'port, or name a relay for gateways on other hosts, as relay = "10.0.0.5:9446"',
            code="port-conflict",
        )
    if server.relay is not None and server.relay.port in (server.port, server.superlink_port):
        raise BadInput(
            f"[server] relay has port {server.relay.port}, which the gateway or the SuperLink uses: choose another",
            code="port-conflict",
        )


def _read_gateways(section: Section) -> tuple[Endpoint, ...]:
    listed = section.get("gateways", [])
    if not isinstance(listed, list):
        raise BadInput('[server] gateways must be a list, as ["b.example.org:9443"]', code="wrong-type")
    return tuple(_read_endpoint(one, "gateways") for one in listed)


def _read_endpoint(value: object, key: str) -> Endpoint:
    try:
        return parse_endpoint(str(value))
    except ValueError:
        raise BadInput(
            f"[server] {key} has {value!r}: write HOST:PORT without https://, and an IPv6 address in brackets, as "
            '"[2001:db8::2]:9443"',
            code="invalid-address",
        ) from None


def _checked_address(address: str) -> str:
    try:
        return parse_host(address)
    except ValueError:
        raise BadInput(
            f"[server] address {address!r} is neither a DNS name nor an IP address: leave out https://, port and path",
            code="invalid-address",
        ) from None


def _read_sites(sections: object) -> tuple[Member, ...]:
    if not isinstance(sections, list) or not sections:
        raise BadInput('there are no sites: add a section [[sites]] with name = "..." for each', code="too-few-sites")
    members: dict[str, Member] = {}
    for number, one in enumerate(sections, 1):
        if not isinstance(one, dict):
            raise BadInput(f"sites must be sections [[sites]]; number {number} is not", code="wrong-type")
        _check_keys(one, ("name", "contact"), f"[[sites]] number {number}")
        site = Member(check_name(one.get("name"), f"[[sites]] number {number}"), _read_contact(one, number))
        before = members.get(fold_name(site.name))
        if before is not None:
            same = "both called" if before.name == site.name else f"called {before.name!r} and"
            raise BadInput(
                f"two sites are {same} {site.name!r}: names must differ in more than case", code="repeated-site"
            )
        members[fold_name(site.name)] = site
    return tuple(members.values())


def _read_contact(section: Section, number: int) -> str:
    contact = section.get("contact", "")
    if not isinstance(contact, str) or not contact.isprintable():
        raise BadInput(f"contact of [[sites]] number {number} must be one line of text", code="wrong-type")
    return contact


def _read_data(content: Section, folder: Path | None) -> Mapping[str, Any]:
    data = content.get("data", {})
    if not isinstance(data, dict):
        raise BadInput("data must be a section [data]", code="wrong-type")
    if data:
        from grandrounds.capabilities.sources.cohort.plan_cohort import COHORT_FILE, resolve_cohort
        from grandrounds.data.agreement.schema_file import parse_schema

        if "cohort" in data and folder is not None and (folder / PROVISIONED_BY).exists():
            data = {**data, "cohort": COHORT_FILE}
        data = resolve_cohort(data, folder)
        parse_schema(data)
    return data


def _section(content: Section, name: str, keys: tuple[str, ...]) -> Section:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise BadInput(f"{name} must be a section [{name}]", code="wrong-type")
    _check_keys(table, keys, f"[{name}]")
    return table


def _check_keys(section: Section, keys: tuple[str, ...], where: str) -> None:
    for key in section:
        if key not in keys:
            raise BadInput(f"unknown key {key!r} in {where}: {nearest(key, keys)}", code="unknown-key")


def _integer(section: Section, key: str, default: int, least: int, most: int, where: str) -> int:
    value = section.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise BadInput(
            f"{where} {key} must be an integer from {least} to {most}, not {value!r}", code="out-of-range"
        )
    return value


LONGEST = 64
"""Largest length of a name: the limit of a certificate's common name."""

_MARKS = "-_. "


def check_name(value: object, owner: str) -> str:
    """Check a name for use in certificates, key comments and logs.

    Args:
        value: The name.
        owner: The owner of the name, for the error.

    Returns:
        The name.

    Raises:
        BadInput: It is not text, is too long, or contains other characters than A-Z, digits, - _ . and spaces.
    """
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{owner} needs a name: give a text that is not empty", code="invalid-name")
    wrong = [c for c in value if not (c.isalnum() or c in _MARKS)]
    if wrong:
        raise BadInput(
            f"{owner} {value!r} has {wrong[0]!r} in its name: only letters, digits, - _ . and spaces are allowed",
            code="invalid-name",
        )
    if value != value.strip() or "  " in value:
        raise BadInput(
            f"{owner} {value!r} has spaces at an end of its name, or two in a row: remove them", code="invalid-name"
        )
    if not any(c.isalnum() for c in value):
        raise BadInput(f"{owner} {value!r} has neither a letter nor a digit in its name", code="invalid-name")
    if len(value.encode()) > LONGEST:
        raise BadInput(
            f"{owner} {value[:20]!r}... has a name of {len(value.encode())} bytes: at most {LONGEST} are allowed",
            code="invalid-name",
        )
    return value


def fold_name(name: str) -> str:
    """Fold a name, so that names that people or file systems confuse become equal."""
    return unicodedata.normalize("NFKC", name).casefold()
