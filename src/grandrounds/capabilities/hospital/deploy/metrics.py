"""Metrics of a server for Prometheus: programs, sites, runs, certificates, disk, and the counts of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.consortium import load
from grandrounds.capabilities.hospital.deploy.control import ONLINE, Control
from grandrounds.capabilities.hospital.deploy.counts import FILE, Counts
from grandrounds.capabilities.hospital.deploy.pki import load_certificate
from grandrounds.capabilities.hospital.deploy.processes import SupervisedProgram
from grandrounds.capabilities.hospital.deploy.records import DONE, FAILED, QUEUED, RUNNING, STOPPED, RunRecords
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.core.prometheus import Metrics, build_info, disk_metrics, label

STATES = (QUEUED, RUNNING, STOPPED, FAILED, DONE)


def server_metrics(link: Link, programs: Sequence[SupervisedProgram]) -> Metrics:
    """Collect the metrics of a server.

    Args:
        link: The server's folder.
        programs: The SuperLink and the gateway.

    Returns:
        The metrics.
    """
    names = {supervised.program.log.stem: supervised for supervised in programs}
    online = _online(link)
    return {
        **build_info(),
        "grandrounds_up": (
            "gauge",
            "1 while a program is running.",
            {label(program=name): float(supervised.alive) for name, supervised in names.items()},
        ),
        "grandrounds_restarts_total": (
            "counter",
            "Restarts of a program.",
            {label(program=name): float(max(0, supervised.starts - 1)) for name, supervised in names.items()},
        ),
        "grandrounds_site_up": (
            "gauge",
            "1 while a site's SuperNode is connected.",
            {label(site=name): float(up) for name, up in online.items()},
        ),
        "grandrounds_sites": ("gauge", "Sites that may take part.", {"": float(len(online))}),
        "grandrounds_sites_online": ("gauge", "Sites whose SuperNode is connected.", {"": float(sum(online.values()))}),
        "grandrounds_runs": (
            "gauge",
            "Runs by state; queued is the length of the queue.",
            {label(state=state): float(n) for state, n in _states(link).items()},
        ),
        **Counts.load(link.state / FILE).metrics(),
        **certificate_metrics({name: link.folder / "pki" / f"{name}.pem" for name in _certificates(link)}),
        **disk_metrics({"server": link.folder, "runs": link.runs}),
    }


def certificate_metrics(files: Mapping[str, Path]) -> Metrics:
    """Return when certificates end; one that cannot be read is left out."""
    ends = {}
    for name, path in files.items():
        with suppress(BadInput, OSError):
            ends[label(certificate=name)] = load_certificate(path).not_valid_after_utc.timestamp()
    return {"grandrounds_certificate_expiry_timestamp_seconds": ("gauge", "End of a certificate.", ends)}


def _certificates(link: Link) -> tuple[str, ...]:
    return () if link.insecure else ("server-ca", "operator-ca", "superlink", "gateway")


def _online(link: Link) -> dict[str, bool]:
    """Return each registered site and whether it is connected; empty where the SuperLink does not answer."""
    with suppress(GrandRoundsError):
        names = {site.slug: site.name for site in load(link.folder / "consortium.toml").sites}
        with Control.local(link) as control:
            return {names.get(node.name, node.name): node.status == ONLINE for node in control.nodes()}
    return {}


def _states(link: Link) -> dict[str, int]:
    """Count runs by state; a damaged record counts as 'damaged' and hides no other."""
    records = RunRecords(link.state / "runs")
    states: Counter[str] = Counter(dict.fromkeys(STATES, 0))
    for path in records.folder.glob("*.json"):
        try:
            states[str((records.get(path.stem) or {}).get("state", ""))] += 1
        except BadInput:
            states["damaged"] += 1
    return dict(states)
