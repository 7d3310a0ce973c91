"""Folders of watches, and the key that signs a record: the site's own, or in a simulation the one that follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grandrounds.audit.entry import OWN, SIMULATED
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.sources import AT_SITES
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.protocol.identity import Identity

LEDGER = "ledger.db"


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


def find_watch(place: Path, site: str | None = None) -> Path:
    """Find the folder of a watch.

    Args:
        place: The folder itself, a site's folder with the folder watch/, or the folder of a run.
        site: The site, where a run has several watches.

    Returns:
        The folder.

    Raises:
        BadInput: There is no watch, or several and no site is named.
    """
    if not place.is_dir():
        raise BadInput(f"there is no folder {place}: give the folder of a watch, or of a run", code="no-watch-record")
    watches = list_watches(place)
    if not watches:
        inside = [folder for folder in (place, place / "watch") if (folder / LEDGER).exists()]
        if not inside or (place / "checkpoint").is_dir():
            raise BadInput(
                f"{place} has no record of a watch: `rounds watch RUN --table FILE` starts one", code="no-watch-record"
            )
        return inside[0]
    if site is None and len(watches) > 1:
        raise BadInput(
            f"{place} has watches of {len(watches)} sites ({', '.join(watches)}): choose one with --site", code="missing-option"
        )
    return watches[site_named(site, list(watches), where=place) if site is not None else next(iter(watches))]


def list_watches(run: Path) -> dict[str, Path]:
    """List the watches in the folder of a run by site; none for another folder."""
    if not (run / "checkpoint").is_dir():
        return {}
    folders = sorted((run / "at_sites").glob("*/watch"))
    return {folder.parent.name: folder for folder in folders if (folder / LEDGER).is_file()}
