"""Why the model says this of this patient, and how it reasons at this site: for a finished run.

`explain_case(load_run("runs/demo"), 12).reasons[0]` is what counts most for the patient of row 12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.case.attributions import EXPLAINERS
from grandrounds.analysis.case.image import MAPS, PictureCase, PictureSite, picture_case, picture_site
from grandrounds.analysis.case.near_misses import NearMisses, near_misses
from grandrounds.analysis.case.rows import (
    TRAINED_ON,
    ComparisonRows,
    Found,
    RunRows,
    comparison_rows,
    find_new,
    outcome_in,
    read_new,
)
from grandrounds.analysis.case.site import SiteReasons, site_reasons
from grandrounds.analysis.case.table import Reason, TableCase, table_case
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.explain.explainers.registry import DEFAULT_CASE
from grandrounds.methods.baselines import POOL

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run

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
    reading: Mapping[str, Any] | None = None,
    explainer: str | None = None,
    protected: Sequence[str] = (),
    data: Any = None,
) -> Case:
    """Row number `case`, from 1, of the run's own data or of new patients (`table`: a file, a frame, an ImageSet).

    The model is the one in use at the row's own site, or at `site`. `explainer` is one of EXPLAINERS (default: shap);
    pictures have their heat maps instead. `protected` names the columns to flag, in place of those that are known by
    name. `data` gives the run's own rows again where they came from memory. A new patient is explained by a linear model
    without anybody's rows. Where another explainer compares with rows, they are the run's own, or of a run whose rows are
    at its sites, or gone, the others of `table`.
    """
    beside: Callable[[], ComparisonRows]
    if table is None:
        own = RunRows.read(run, data)  # a run that is not finished, or whose data have changed, is refused first
        found, beside = own.find(case), lambda: own
    else:
        new = read_new(run, table, query=query, reading=reading)
        found, beside = find_new(run, new, case), cache(lambda: comparison_rows(run, new, case, data=data))
    user = found.site if site is None else site_named(site, [s for s in run.summary["per_site"] if s != POOL])
    if user is None and run.summary["models"]:
        found = replace(found, notes=(*found.notes, _NOBODY))
    return explain_found(run, run.model_for(user), found, beside, user=user, explainer=explainer, protected=protected)


def explain_found(
    run: Run,
    model: TrainedModel,
    found: Found,
    beside: Callable[[], ComparisonRows],
    *,
    user: str | None,
    explainer: str | None = None,
    protected: Sequence[str] = (),
) -> Case:
    """A row that was found, explained by the `model` that site `user` has; None is no site."""
    if run.summary["models"] and user != found.site:  # another site's model has not seen the row
        found = replace(found, notes=tuple(n for n in found.notes if n != TRAINED_ON))
    task, by = beside().task(user) if run.plan["tasks"] else "", _by(run, user)
    found = replace(found, outcome=outcome_in(run, task, found.outcome))
    if model.schema is None:
        _no_choice(explainer)
        if protected:
            raise BadInput("--protected names columns, and pictures have none", code="images-without-columns")
        return picture_case(model, found, by=by, task=task, seed=run.plan["seed"])
    return table_case(
        run,
        model,
        found,
        beside,
        by=by,
        user=user,
        task=task,
        explainer=explainer or DEFAULT_CASE,
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
    """Whose model a site uses, in words."""
    return f"{site}'s own model" if site in run.summary["models"] else "the common model"


def _no_choice(explainer: str | None) -> None:
    if explainer is not None:
        shown = ", ".join(MAPS.values())
        raise BadInput(
            f"explainer '{explainer}' is for tables; pictures are explained by {shown}, all at once",
            code="unsuitable-explainer",
        )


__all__ = ["EXPLAINERS", "Case", "NearMisses", "Reason", "Site", "explain_case", "explain_site", "near_misses"]
