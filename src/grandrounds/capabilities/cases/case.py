"""Explain one patient, or the model's behaviour at one site, for a finished run.

`explain_case(load_run("runs/demo"), 12).attributions[0]` is the column that counts most for the patient of row 12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.cases.attributions import EXPLAINERS
from grandrounds.capabilities.cases.image import (
    MAPS,
    ImageExplanation,
    SiteImageExplanation,
    explain_image,
    explain_site_images,
)
from grandrounds.capabilities.cases.intervals import intercept_note
from grandrounds.capabilities.cases.near_misses import NearMisses, near_misses
from grandrounds.capabilities.cases.outcome import OutcomeExplanation, explain_outcome_row
from grandrounds.capabilities.cases.site import SiteExplanation, explain_site_columns
from grandrounds.capabilities.cases.table import Attribution, CaseExplanation, explain_table_row
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.data.kinds import outcome_of
from grandrounds.explain.explainers.registry import DEFAULT_CASE
from grandrounds.methods.baselines import POOL
from grandrounds.methods.guard.candidates import COMMON
from grandrounds.runs.run_rows import (
    TRAINING_ROW,
    CaseRow,
    ComparisonRows,
    RunRows,
    comparison_rows,
    find_new_case,
    outcome_for_task,
    read_patients,
)

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run

Case = CaseExplanation | ImageExplanation | OutcomeExplanation
Site = SiteExplanation | SiteImageExplanation

_NO_SITE = "models stay separate in this run and this row is no site's: their mean is used (--for SITE names another)"


def explain_case(
    run: Run,
    case: int,
    *,
    site: str | None = None,
    table: Any = None,
    query: str | None = None,
    reading: Mapping[str, object] | None = None,
    explainer: str | None = None,
    protected: Sequence[str] = (),
    data: Any = None,
    allow_missing: bool = False,
) -> Case:
    """Explain the prediction for one patient or image.

    A linear model needs no other rows to explain a new patient. An explainer that compares with rows takes the run's own; where
    those are at the sites, or gone, it takes the other rows of `table`.

    Args:
        run: A finished run.
        case: The row number, from 1, in the run's own data or in `table`.
        site: The site whose model is used; by default the site of the row.
        table: New patients: a file, a data frame or an ImageSet.
        query: The SQL query, where `table` is a database.
        reading: Settings of [data] that differ for `table`.
        explainer: A name in EXPLAINERS, by default shap; images have heat maps instead.
        protected: The columns to flag, in place of those known by name.
        data: The run's own rows, where they came from memory.
        allow_missing: Also take a `table` without columns that the model relies on.

    Returns:
        The risk, the contribution of each column or the heat maps, and the quality of the values.

    Raises:
        BadInput: There is no such row, its rows cannot be read, or the explainer does not suit the model.
    """
    comparison: Callable[[], ComparisonRows]
    if table is None:
        run_rows = RunRows.read(run, data)  # a run that is not finished, or whose data have changed, is refused first
        row, comparison = run_rows.find(case), lambda: run_rows
    else:
        new = read_patients(run, table, query=query, reading=reading, allow_missing=allow_missing)
        row, comparison = find_new_case(run, new, case), cache(lambda: comparison_rows(run, new, case, data=data))
    user = row.site if site is None else site_named(site, [s for s in run.summary["per_site"] if s != POOL])
    if user is None and run.summary["models"]:
        row = replace(row, notes=(*row.notes, _NO_SITE))
    return explain_row(run, run.model_for(user), row, comparison, user=user, explainer=explainer, protected=protected)


def explain_row(
    run: Run,
    model: TrainedModel,
    row: CaseRow,
    comparison: Callable[[], ComparisonRows],
    *,
    user: str | None,
    explainer: str | None = None,
    protected: Sequence[str] = (),
) -> Case:
    """Explain a row with a given model.

    Args:
        run: The run that the model is of.
        model: The model that site `user` uses.
        row: The row to explain.
        comparison: Gives the rows to compare with; called only where the explainer needs them.
        user: The site whose model it is; None for no site.
        explainer: A name in EXPLAINERS, by default shap.
        protected: The columns to flag, in place of those known by name.
    """
    if run.summary["models"] and user != row.site:  # another site's model has not seen the row
        row = replace(row, notes=tuple(n for n in row.notes if n != TRAINING_ROW))
    task, model_owner = comparison().task(user) if run.plan["tasks"] else "", _model_owner(run, user)
    absent = _personal_note(run, user)
    row = replace(row, outcome=outcome_for_task(run, task, row.outcome), notes=(*row.notes, *([absent] if absent else [])))
    if model.schema is None:
        _refuse_explainer(explainer)
        if protected:
            raise BadInput("--protected names columns, and images have none", code="images-without-columns")
        own = run.personal_file(user)
        constant = own is not None and not own.is_model
        return explain_image(
            model, row, model_owner=model_owner, task=task, seed=run.plan["seed"], is_constant=constant
        )
    if user not in run.summary["models"]:
        notes = [note for note in (intercept_note(run.summary), _shapes_note(run)) if note]
        row = replace(row, notes=(*row.notes, *notes))
    outcome = outcome_of(model.encoding)
    if outcome is not None:
        return explain_outcome_row(
            run,
            model,
            row,
            comparison,
            outcome=outcome,
            model_owner=model_owner,
            user=user,
            explainer=explainer or DEFAULT_CASE,
        )
    return explain_table_row(
        run,
        model,
        row,
        comparison,
        model_owner=model_owner,
        user=user,
        task=task,
        explainer=explainer or DEFAULT_CASE,
        protected=protected,
    )


def explain_site(run: Run, site: str, *, explainer: str | None = None, data: Any = None) -> Site:
    """Explain what the model in use relies on at a site: importances beside those of other sites, or some of its images.

    Args:
        run: A finished run.
        site: The site's name or number.
        explainer: A sketch explainer. By default the run's own record, which needs no data, and else permutation importance.
        data: The run's own rows, where they came from memory.

    Returns:
        The importances of columns at this site and elsewhere, or some of its images with heat maps.

    Raises:
        BadInput: There is no such site, or there is nothing to explain at it.
    """
    name = site_named(str(site), [s for s in run.summary["per_site"] if s != POOL])
    model, model_owner = run.model_for(name), _model_owner(run, name)
    if model.schema is None:
        _refuse_explainer(explainer)
        return explain_site_images(model, RunRows.read(run, data), name, model_owner=model_owner)
    return explain_site_columns(run, name, model_owner=model_owner, explainer=explainer, data=data)


def _shapes_note(run: Run) -> str:
    """Say that an additive model is the common one, where each hospital may have shapes of its own; else ""."""
    options = run.plan["method"].get("gam", {})
    if run.plan["method"]["name"] != "gam" or not options.get("own_shapes"):
        return ""
    return "each hospital may add shapes of its own, which stay there: this prediction uses the common ones, as at a new one"


def _model_owner(run: Run, site: str | None) -> str:
    """Name the owner of the model that a site uses."""
    own = run.personal_file(site)
    if own is not None:
        return f"{own.description}, which {site} deploys"
    return f"{site}'s own model" if site in run.summary["models"] else "the common model"


def _personal_note(run: Run, site: str | None) -> str:
    """Say that a site deploys a model that is not in this folder; "" where it deploys the common model."""
    personal = run.summary.personal
    if not personal or (site is not None and run.personal_file(site) is not None):
        return ""
    if not personal["stays"]:
        choices = personal.get("choices") or {}
        known = list(choices.values()) if site is None else [choices.get(site, COMMON)]  # without a choice: the common one
        if all(choice == COMMON for choice in known):
            return ""
    who = "each hospital" if site is None else site
    return f"{who} deploys a personal model, whose file stays there (--personal FOLDER uses it): this is the common model"


def _refuse_explainer(explainer: str | None) -> None:
    if explainer is not None:
        shown = ", ".join(MAPS.values())
        raise BadInput(
            f"explainer '{explainer}' is for tables; images are explained by {shown}, all at once",
            code="explainer-does-not-fit",
        )


__all__ = ["EXPLAINERS", "Case", "NearMisses", "Attribution", "Site", "explain_case", "explain_site", "near_misses"]
