"""Files of one hospital after a run, in its own folder: personal and recalibrated models, and the watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.watch.at_sites.record import LEDGER, WatchRecord
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named, slug
from grandrounds.methods.guard.site import digest_model

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def use_site_models(run: Run, folder: Path, site: str | None = None) -> str:
    """Let a run use the models in a hospital's folder: recalibrated, personal, or else the common one.

    Args:
        run: A finished run, in the copy that the hospital has.
        folder: The site's folder, as `rounds provision` wrote it.
        site: The site that a person named; None takes the folder's.

    Returns:
        The site's name.

    Raises:
        BadInput: It is no site's folder, it is another site's, or the site took no part in the run.
    """
    files = SiteFolder(folder)
    sites = list(run.summary["per_site"])
    name = site_named(files.name, sites, where=run.folder)
    if site is not None and site_named(site, sites, where=run.folder) != name:
        raise BadInput(f"{folder} is the folder of {name}, but --site names {site}: leave --site out", code="wrong-site")
    try:
        run.use_personal(folder)
    except BadInput as e:
        if e.code != "no-personal-model":
            raise
        common = digest_model(run.model_for(name).theta)
        run.use_site_folder(name, files.state / "recalibrated" / common[:16])
    return name


def find_watch_folder(run: Run, folder: Path) -> Path:
    """Return the folder of a hospital's watch of a run: watch, or watch-NAME where another run is watched in it.

    Args:
        run: A finished run.
        folder: The site's folder.

    Raises:
        BadInput: The record of a watch cannot be read.
    """
    place, name = folder / "watch", str(run.summary["name"])
    if not (place / LEDGER).exists():
        return place
    with WatchRecord.open(place) as record:
        started = record.started
    return place if started is None or started["run"] == name else folder / f"watch-{slug(name)}"
