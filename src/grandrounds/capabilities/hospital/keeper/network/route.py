"""The way from a site to its gateways: their addresses in order of preference, and the outbound proxy in front of them.

Section [proxy] of site.toml wins over HTTPS_PROXY and NO_PROXY of the environment. A password comes from a file or from the
environment; it is in no text that this module writes.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from grandrounds.core.errors import BadInput, nearest

PASSWORD = "GRANDROUNDS_PROXY_PASSWORD"
"""Environment variable with the proxy's password, where no file is named."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_KEYS = ("url", "user", "password_file")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True)
class Endpoint:
    """A host by its DNS name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """host:port, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def folder(self) -> str:
        """Name of a folder for this endpoint."""
        return f"{self.host.replace(':', '-')}-{self.port}"

    @property
    def is_address(self) -> bool:
        """True if the host is an IP address and not a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_host(text: str) -> str:
    """Return a DNS name in lower case or an IP address in its short form.

    Raises:
        ValueError: It is neither.
    """
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _HOST.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
        raise ValueError(text)
    return text.lower()


def parse_endpoint(text: str) -> Endpoint:
    """Parse `host:port`; an IPv6 address is written in brackets, as `[2001:db8::1]:9443`.

    Raises:
        ValueError: It is not of that form.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ValueError(text)
    return Endpoint(parse_host(match[1] or match[2]), int(match[3]))


@dataclass(frozen=True)
class Proxy:
    """An outbound proxy that passes TLS by the method CONNECT."""

    endpoint: Endpoint
    user: str = ""
    password: str = field(default="", repr=False)
    source: str = "site.toml"
    """The setting that names it, for messages."""

    @property
    def authorization(self) -> str:
        """Value of the header Proxy-Authorization (Basic); empty without a user."""
        if not self.user:
            return ""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True)
class Hop:
    """A gateway, and the proxy on the way to it; None for a direct connection."""

    gateway: Endpoint
    proxy: Proxy | None = None

    def __str__(self) -> str:
        way = "directly" if self.proxy is None else f"through the proxy {self.proxy.endpoint}"
        return f"{self.gateway} {way}"


@dataclass(frozen=True)
class Route:
    """All gateways of a site in order of preference."""

    hops: tuple[Hop, ...]
    insecure: bool = False

    @property
    def is_plain(self) -> bool:
        """True if there is one gateway without a proxy, which a SuperNode reaches by itself."""
        return len(self.hops) == 1 and self.hops[0].proxy is None


def read_route(settings: Mapping[str, Any], folder: Path, environment: Mapping[str, str] | None = None) -> Route:
    """Read the route from the settings of a site.

    Args:
        settings: Content of site.toml.
        folder: The site's folder, to which `password_file` is relative.
        environment: HTTPS_PROXY, NO_PROXY and the proxy's password; this process's own by default.

    Raises:
        BadInput: An address or the section [proxy] is wrong, or the password cannot be read.
    """
    environment = os.environ if environment is None else environment
    where = folder / "site.toml"
    server = settings.get("server", {})
    try:
        first = Endpoint(parse_host(str(server["address"])), int(server["port"]))
        gateways = [first, *(parse_endpoint(str(text)) for text in server.get("gateways", ()))]
    except (KeyError, ValueError, TypeError):
        raise BadInput(
            f"[server] of {where} names no valid gateway: address is a DNS name or an IP address, port a number, and gateways "
            'a list such as ["b.example.org:9443", "[2001:db8::2]:9443"]',
            code="invalid-address",
        ) from None
    insecure = bool(server.get("insecure", False))
    section = settings.get("proxy")
    if insecure:  # one machine
        return Route(tuple(Hop(gateway) for gateway in gateways), insecure=True)
    if section is not None:
        proxy = _read_proxy(section, folder, environment)
        return Route(tuple(Hop(gateway, proxy) for gateway in gateways))
    proxy = _proxy_of_environment(environment)
    exempt = _variable(environment, "NO_PROXY")
    return Route(tuple(Hop(gateway, None if bypasses(gateway.host, exempt) else proxy) for gateway in gateways))


def bypasses(host: str, exempt: str) -> bool:
    """Check a host against NO_PROXY: names with their subdomains, addresses, networks such as 10.0.0.0/8, or `*`.

    Loopback never uses a proxy.
    """
    if host in LOOPBACK:
        return True
    for entry in (part.strip().lower() for part in exempt.split(",")):
        if not entry:
            continue
        if entry == "*":
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False):
                return True
        except ValueError:
            name = entry.lstrip("*").lstrip(".")
            if host == name or host.endswith(f".{name}"):
                return True
    return False


def exempt_loopback(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return NO_PROXY with loopback added, so that a proxy of the environment is never asked for this machine's own ports."""
    environment = os.environ if environment is None else environment
    exempt = [part.strip() for part in _variable(environment, "NO_PROXY").split(",") if part.strip()]
    value = ",".join([*exempt, *(name for name in LOOPBACK if name not in exempt)])
    return {"NO_PROXY": value, "no_proxy": value}


def _read_proxy(section: object, folder: Path, environment: Mapping[str, str]) -> Proxy | None:
    where = f"[proxy] of {folder / 'site.toml'}"
    if not isinstance(section, Mapping):
        raise BadInput(f"{where} must be a section", code="wrong-type")
    odd = next((key for key in section if key not in _KEYS), None)
    if odd is not None:
        raise BadInput(f"unknown key {odd!r} in {where}: {nearest(odd, _KEYS)}", code="unknown-key")
    url = section.get("url", "")
    if url == "":
        return None  # none, although the environment may name one
    proxy = _parse_proxy(str(url), where)
    if proxy.user or proxy.password:
        raise BadInput(
            f"url in {where} contains a user or password: set user and password_file instead, because other people read "
            "site.toml",
            code="invalid-proxy",
        )
    user = str(section.get("user", ""))
    if not user:
        return proxy
    file = section.get("password_file")
    password = _read_password(folder / str(file)) if file is not None else environment.get(PASSWORD, "")
    if not password:
        raise BadInput(
            f"{where} names a user without a password: set password_file to a file with it, or {PASSWORD} in the environment",
            code="missing-password",
        )
    return Proxy(proxy.endpoint, user, password)


def _read_password(path: Path) -> str:
    try:
        mode, text = path.stat().st_mode, path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(
            f"cannot read the proxy's password from {path}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}",
            code="cannot-read",
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(
            f"other users of this machine may read the proxy's password in {path}: chmod 600 {path}", code="open-secret"
        )
    return text.splitlines()[0] if text else ""


def _proxy_of_environment(environment: Mapping[str, str]) -> Proxy | None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        if url := _variable(environment, name):
            return _parse_proxy(url, f"the environment ({name})", source=name)
    return None


def _parse_proxy(url: str, where: str, *, source: str = "site.toml") -> Proxy:
    """Parse the URL of a proxy; messages never repeat it, because it may contain a password."""
    fault = BadInput(
        f"{where} does not name a proxy: write http://HOST:PORT (https:// and socks:// proxies are not supported)",
        code="invalid-proxy",
    )
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parse_host(parts.hostname or "")
        port = parts.port or 80
    except ValueError:
        raise fault from None
    if parts.scheme != "http":
        raise fault
    return Proxy(Endpoint(host, port), unquote(parts.username or ""), unquote(parts.password or ""), source)


def _variable(environment: Mapping[str, str], name: str) -> str:
    """Read a variable in either case, as other programs do."""
    return environment.get(name) or environment.get(name.lower(), "")


def describe(hops: Sequence[Hop]) -> str:
    """Describe the gateways in order, without secrets."""
    return ", then ".join(str(hop) for hop in hops)
