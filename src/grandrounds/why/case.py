"""Why the model says this of this patient, and how it reasons at this site: for a finished run.

`explain_case(load_run("runs/demo"), 12).reasons[0]` is what counts most for the patient of row 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from grandrounds.consortium import POOL
from grandrounds.errors import BadInput
from grandrounds.why.attributions import EXPLAINERS
from grandrounds.why.near_misses import NearMisses, near_misses
from grandrounds.why.picture import MAPS, PictureCase, PictureSite, picture_case, picture_site
from grandrounds.why.rows import TRAINED_ON, RunRows, find_new
from grandrounds.why.site import SiteReasons, site_reasons
from grandrounds.why.table import Reason, TableCase, table_case
from grandrounds.why.which_site import site_named

if TYPE_CHECKING:
    from grandrounds.runs import Run

Case = TableCase | PictureCase
Site = SiteReasons | PictureSite

_NOBODY = "models stay separate in this run and this row is no site's: their mean speaks (--for SITE names another)"


def explain_case(
    run: Run,
    case: int,
    *,
    site: str | None = None,
    table: Any = None,
    query: str | None = None,
    explainer: str | None = None,
    protected: Sequence[str] = (),
    data: Any = None,
) -> Case:
    """Row number `case`, from 1, of the run's own data or of new patients (`table`: a file, a frame, an ImageSet).

    The model is the one in use at the row's own site, or at `site`. `explainer` is one of EXPLAINERS (default: shap);
    pictures have their heat maps instead. `protected` names the columns to flag, in place of those that are known by
    name. `data` gives the run's own rows again where they came from memory. A new patient is explained by a linear model
    without anybody's rows: the run's own are read only where the explainer compares with them.
    """

    @cache
    def rows() -> RunRows:
        return RunRows.read(run, data)

    if table is None or run.model.schema is None:
        rows()  # a run that is not finished, or whose data have changed, is refused first
    found = rows().find(case) if table is None else find_new(run, table, case, query=query)
    user = found.site if site is None else site_named(site, [s for s in run.summary["per_site"] if s != POOL])
    if user is None and run.summary["models"]:
        found = replace(found, notes=(*found.notes, _NOBODY))
    if run.summary["models"] and user != found.site:  # another site's model has not seen the row
        found = replace(found, notes=tuple(n for n in found.notes if n != TRAINED_ON))
    model, task = run.model_for(user), rows().task(user) if run.plan["tasks"] else ""
    if model.schema is None:
        _no_choice(explainer)
        if protected:
            raise BadInput("--protected names columns, and pictures have none")
        return picture_case(model, found, by=_by(run, user), task=task, seed=run.plan["seed"])
    return table_case(
        run,
        model,
        found,
        rows,
        by=_by(run, user),
        user=user,
        task=task,
        explainer=explainer or "shap",
        protected=protected,
    )


def explain_site(run: Run, site: str, *, explainer: str | None = None, data: Any = None) -> Site:
    """How the model in use reasons at a site: its importances beside the others', or some of its pictures.

    Without an `explainer` the run's own record is used where there is one, for which no data are needed, and else
    permutation importance.
    """
    name = site_named(str(site), [s for s in run.summary["per_site"] if s != POOL])
    model, by = run.model_for(name), _by(run, name)
    if model.schema is None:
        _no_choice(explainer)
        return picture_site(model, RunRows.read(run, data), name, by=by)
    return site_reasons(run, name, by=by, explainer=explainer, data=data)


def _by(run: Run, site: str | None) -> str:
    """Whose model it is."""
    return f"{site}'s own model" if site in run.summary["models"] else "the common model"


def _no_choice(explainer: str | None) -> None:
    if explainer is not None:
        shown = ", ".join(MAPS.values())
        raise BadInput(f"explainer '{explainer}' is for tables; pictures are explained by {shown}, all at once")


__all__ = ["EXPLAINERS", "Case", "NearMisses", "Reason", "Site", "explain_case", "explain_site", "near_misses"]
