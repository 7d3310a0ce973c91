"""consortium.toml: the sites of a consortium, the address of its server, the agreed data; names of sites and their folders."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, nearest

DAYS, MOST_DAYS = 365, 825
"""Of leaf certificates: as set, and at most. 825 days is what TLS clients of today still take."""

_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True)
class Server:
    """Where sites find the gateway, and where the SuperLink listens behind it."""

    address: str
    port: int = 9443
    superlink_port: int = 9092

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"

    @property
    def dialled(self) -> str:
        """address:port, with brackets round an IPv6 address."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Member:
    """One site, by its name; `slug` is what its folder and files are called."""

    name: str
    contact: str = ""

    @property
    def slug(self) -> str:
        return slug(self.name)


@dataclass(frozen=True)
class Consortium:
    """All that consortium.toml says. `data`: the agreed columns or pictures as they stand in the file, which the keeper reads."""

    name: str
    server: Server
    sites: tuple[Member, ...]
    days: int = DAYS
    data: Mapping[str, Any] = field(default_factory=dict)

    def site(self, name: str) -> Member:
        """The site of this name; another name is refused."""
        for site in self.sites:
            if site.name == name:
                return site
        raise BadInput(
            f"there is no site {name!r} in the consortium; {nearest(name, [s.name for s in self.sites])}",
            code="unknown-site",
        )


def load(path: Path) -> Consortium:
    """The consortium of a file; what is wrong with it is said with the file's name."""
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path))
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="unreadable-file") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no text in UTF-8: a consortium is a TOML file", code="not-text") from None


def parse(text: str, *, where: str = "consortium.toml") -> Consortium:
    """The consortium that a TOML text describes."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{where} is not valid TOML: {e}", code="invalid-toml") from None
    try:
        return _of(said)
    except BadInput as e:
        raise BadInput(f"{where}: {e}", code=e.code) from None


def _of(said: Mapping[str, Any]) -> Consortium:
    _known(said, ("name", "server", "certificates", "sites", "data"), "the file")
    certificates = _table(said, "certificates", ("days",))
    return Consortium(
        name=check_name(said.get("name"), "the consortium"),
        server=_server(_table(said, "server", ("address", "port", "superlink_port"))),
        sites=_sites(said.get("sites")),
        days=_whole(certificates, "days", DAYS, 1, MOST_DAYS, "[certificates]"),
        data=_data(said),
    )


def _server(said: Mapping[str, Any]) -> Server:
    address = said.get("address")
    if not isinstance(address, str) or not address:
        raise BadInput(
            '[server] needs an address: the DNS name or IP address that sites dial, as address = "fl.example.org"',
            code="missing-address",
        )
    server = Server(
        _checked_address(address),
        _whole(said, "port", Server.port, 1, 65535, "[server]"),
        _whole(said, "superlink_port", Server.superlink_port, 1, 65535, "[server]"),
    )
    if server.port == server.superlink_port:
        raise BadInput(
            f"[server] port and superlink_port are both {server.port}: they must differ", code="port-conflict"
        )
    return server


def _checked_address(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        pass
    if not _HOST.fullmatch(address) or re.fullmatch(r"[0-9.]+", address):
        raise BadInput(
            f"[server] address {address!r} is neither a DNS name nor an IP address (no https://, port or path)",
            code="invalid-address",
        )
    return address.lower()


def _sites(said: Any) -> tuple[Member, ...]:
    if not isinstance(said, list) or not said:
        raise BadInput('there are no sites: each needs a section [[sites]] with name = "..."', code="too-few-sites")
    found: dict[str, Member] = {}
    for number, one in enumerate(said, 1):
        if not isinstance(one, dict):
            raise BadInput(f"sites must be sections [[sites]]; number {number} is none", code="wrong-type")
        _known(one, ("name", "contact"), f"[[sites]] number {number}")
        site = Member(check_name(one.get("name"), f"[[sites]] number {number}"), _contact(one, number))
        before = found.get(fold_name(site.name))
        if before is not None:
            same = "both called" if before.name == site.name else f"called {before.name!r} and"
            raise BadInput(
                f"two sites are {same} {site.name!r}: names must differ in more than their case", code="duplicate-site"
            )
        found[fold_name(site.name)] = site
    return tuple(found.values())


def _contact(said: Mapping[str, Any], number: int) -> str:
    contact = said.get("contact", "")
    if not isinstance(contact, str) or not contact.isprintable():
        raise BadInput(f"contact of [[sites]] number {number} must be one line of text", code="wrong-type")
    return contact


def _data(said: Mapping[str, Any]) -> Mapping[str, Any]:
    data = said.get("data", {})
    if not isinstance(data, dict):
        raise BadInput("data must be a section [data]", code="wrong-type")
    if data:
        from grandrounds.data.agreement.schema import parse_schema

        parse_schema(data)
    return data


def _table(said: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    table = said.get(name, {})
    if not isinstance(table, dict):
        raise BadInput(f"{name} must be a section [{name}]", code="wrong-type")
    _known(table, keys, f"[{name}]")
    return table


def _known(said: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in said:
        if key not in keys:
            raise BadInput(f"unknown key {key!r} in {where}: {nearest(key, keys)}", code="unknown-key")


def _whole(said: Mapping[str, Any], key: str, default: int, least: int, most: int, where: str) -> int:
    value = said.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise BadInput(
            f"{where} {key} must be a whole number from {least} to {most}, not {value!r}", code="value-out-of-range"
        )
    return value


LONGEST = 64
"""Characters of a name: the most that the common name of a certificate may have."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKS = "-_. "


def check_name(value: Any, what: str) -> str:
    """A name as it may stand in a certificate, a key's comment and a log; others are refused."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{what} needs a name: some text that is not empty", code="invalid-name")
    wrong = [c for c in value if not (c.isalnum() or c in _MARKS)]
    if wrong:
        raise BadInput(
            f"{what} {value!r} has {wrong[0]!r} in its name: letters, digits, - _ . and spaces are allowed",
            code="invalid-name",
        )
    if value != value.strip() or "  " in value:
        raise BadInput(
            f"{what} {value!r} has spaces at an end of its name, or two in a row: take them away", code="invalid-name"
        )
    if not any(c.isalnum() for c in value):
        raise BadInput(f"{what} {value!r} has neither a letter nor a digit in its name", code="invalid-name")
    if len(value.encode()) > LONGEST:
        raise BadInput(
            f"{what} {value[:20]!r}... has a name of {len(value.encode())} bytes: at most {LONGEST} are allowed",
            code="invalid-name",
        )
    return value


def slug(name: str) -> str:
    """What a site's files and folder are called: ASCII without spaces, and another one for every other name.

    A plain name is its own slug. Any other ends in a digest of the name, since two of them may look alike in ASCII.
    """
    if _PLAIN.fullmatch(name) and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    ascii_ = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", ascii_).strip("._-") or "site"
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def fold_name(name: str) -> str:
    """What two names share that people, or file systems, take for one."""
    return unicodedata.normalize("NFKC", name).casefold()
