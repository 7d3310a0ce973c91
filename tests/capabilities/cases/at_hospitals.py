"""Runs of hospitals that hold their own rows: real keepers in this process, and a plan as a consortium's server makes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.deploy.site_plan import plan_at_sites
from grandrounds.data.agreement.draft import draft_image_schema, draft_schema
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.runs.run import Run
from tests.engine.hospitals import Hospitals
from tests.runs.test_run import frame


def deployed(folder: Path, rows: Table | ImageSet, **settings: Any) -> Run:
    """A finished run folder; the column `hospital` of a table, or the site of pictures, says whose each row is."""
    data = {"table": "data frame", "label": "label" if isinstance(rows, ImageSet) else "died"}
    data["site"] = "site" if isinstance(rows, ImageSet) else "hospital"
    held = Hospitals.of(rows, **{"name": folder.name, "data": data, "method": {"rounds": 3}, **settings})
    agreed = draft_image_schema(rows) if isinstance(rows, ImageSet) else draft_schema(rows, label="died", site="hospital")
    submitted = {**held.plan, "split": {**held.plan["split"], "by": "auto"}}
    held.at_sites = plan_at_sites(submitted, agreed.to_dict())
    away = folder.with_name(f"{folder.name}-conducted")
    held.deployed(away)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(away / "run", folder)
    return Run(folder)


def own_files(folder: Path, rows: Table) -> dict[str, Path]:
    """Each hospital's own file, without the column that names the hospital."""
    out = {}
    for name, mine in frame(rows).groupby("hospital"):
        out[str(name)] = folder / f"{name}.csv"
        mine.drop(columns="hospital").to_csv(out[str(name)], index=False)
    return out
