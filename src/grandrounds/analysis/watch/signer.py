"""The key that signs the record of a watch: the site's own, or in a simulation the one that follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grandrounds.audit.entry import OWN, SIMULATED
from grandrounds.core.errors import BadInput
from grandrounds.data.loading import AT_SITES
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.protocol.identity import Identity


@dataclass(frozen=True)
class Signer:
    """The key that signs the record of a watch, and how it was made."""

    identity: Identity
    made: str


def find_signer(folder: Path, *, site: str, run: Path | None = None, key: Path | None = None) -> Signer:
    """Find the key of a site: the file that is given, keys/site.key of the site's folder, or the key of a simulation.

    Args:
        folder: The folder of the watch, RUN/at_sites/SITE/watch in a simulation, or a folder in the site's folder.
        site: The site's name.
        run: The run's folder; None takes the one that the watch is in.
        key: The site's private key (PEM).

    Returns:
        The key.

    Raises:
        BadInput: There is no key for this site.
    """
    if key is not None:
        return Signer(Identity.load(key), OWN)
    at_hospital = folder.absolute().parent / "keys" / "site.key"
    if at_hospital.is_file():
        return Signer(Identity.load(at_hospital), OWN)
    place = run if run is not None else run_of(folder)
    if place is None:
        raise BadInput(
            f"no key of {site} is known for the watch in {folder}: give the site's key with --key, or in a simulation the run's "
            "folder with --run",
            code="missing-key",
        )
    plan = Checkpoint(place / "checkpoint").plan()
    if plan["data"]["table"] == AT_SITES:
        raise BadInput(
            f"{place} was run at hospitals, and each has its own key: give keys/site.key of the site's folder with --key",
            code="missing-key",
        )
    return Signer(Identity.simulated(int(plan["seed"]), site), SIMULATED)


def run_of(folder: Path) -> Path | None:
    """Return the run's folder of a watch in RUN/at_sites/SITE/watch; None for another place."""
    place = folder.absolute()
    if len(place.parents) < 3 or place.parents[1].name != "at_sites":
        return None
    run = place.parents[2]
    return run if (run / "checkpoint").is_dir() else None
