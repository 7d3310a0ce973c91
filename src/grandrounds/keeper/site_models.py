"""Models of one hospital in its own folder: the personal model of a run, and recalibrations made after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.keeper.folder import SiteFolder
from grandrounds.methods.personal.site import digest_model

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
