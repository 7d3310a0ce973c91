"""Diagnose a site's connection: name, TCP, proxy, TLS, clock, as sentences for the hospital's network team."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.network.clock import WARN_SECONDS, describe_offset
from grandrounds.capabilities.hospital.keeper.network.connect import CannotConnect
from grandrounds.capabilities.hospital.keeper.network.probe import probe
from grandrounds.capabilities.hospital.keeper.network.route import Hop, Route

_SOON_DAYS = 30


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis. `level` is `ok`, `note` or `fault`; `ask` is a request to the network team."""

    gateway: str
    step: str
    level: str
    text: str
    ask: str = ""

    def lines(self) -> Iterator[str]:
        """Format the finding as lines."""
        yield f"{'FAULT' if self.level == 'fault' else self.level}  {self.text}"
        if self.ask:
            yield f"       {self.ask}"


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all gateways."""

    findings: tuple[Finding, ...]
    reachable: int
    gateways: int

    @property
    def connects(self) -> bool:
        """True if at least one gateway can be used."""
        return self.reachable > 0

    def summary(self) -> str:
        """Return the result in one sentence."""
        if self.reachable == self.gateways:
            return "the connection works" if self.gateways == 1 else f"all {self.gateways} gateways can be used"
        if self.connects:
            return f"{self.reachable} of {self.gateways} gateways can be used: the site works, without fail-over"
        return "no gateway can be used: the site cannot take part"

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as plain values."""
        return {"connects": self.connects, "findings": [asdict(finding) for finding in self.findings]}


def diagnose(route: Route, authority: Path) -> Diagnosis:
    """Try every gateway of a route.

    Args:
        route: The gateways and proxies.
        authority: The consortium's authority, server-ca.pem.
    """
    findings: list[Finding] = []
    reachable = 0
    for hop in route.hops:
        found = list(_examine(hop, authority))
        reachable += all(finding.level != "fault" for finding in found)
        findings += found
    return Diagnosis(tuple(findings), reachable, len(route.hops))


def _examine(hop: Hop, authority: Path) -> Iterator[Finding]:
    gateway = str(hop.gateway)
    if hop.proxy is not None:
        named = f"proxy {hop.proxy.endpoint} (from {hop.proxy.source}{f', user {hop.proxy.user}' if hop.proxy.user else ''})"
        yield Finding(gateway, "route", "ok", f"{gateway} is reached through the {named}")
    try:
        answer = probe(hop, authority)
    except CannotConnect as e:
        yield Finding(gateway, e.step, "fault", e.problem, e.advice)
        return
    through = "" if hop.proxy is None else " through the proxy"
    at = f" ({answer.address})" if hop.proxy is None and answer.address != hop.gateway.host else ""
    yield Finding(gateway, "tls", "ok", f"{gateway}{at} answers{through} with a certificate of this consortium")
    days = (answer.expires - datetime.now(UTC)).days
    if days < _SOON_DAYS:
        text = f"its certificate expires in {days} days: ask the operator to renew it (rounds provision renew)"
        yield Finding(gateway, "tls", "note", text)
    level = "ok" if abs(answer.offset) < WARN_SECONDS else "note"
    yield Finding(gateway, "clock", level, describe_offset(answer.offset))
