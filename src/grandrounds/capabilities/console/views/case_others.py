"""Explanations of a patient by other sites' models, or the attributions that the run recorded for these sites.

Where all sites use one common model there is one explanation, and the page says so. What can still be compared is how much
the patient's columns count elsewhere, by the sketches in explanations.json; no other site's row is read for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from grandrounds.capabilities.cases.image import ImageExplanation
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.table import CaseExplanation
from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.figure import Figure
from grandrounds.report.figures.cases import attribution_shares, attributions_by_model
from grandrounds.report.weights.record import join_names
from grandrounds.runs.run import Run

MODELS = 12
"""Other models that explain the patient; of more only the first, in the run's order, do."""
COLUMNS = 8
BY_MODEL = "by-model"
BLOCKS = {"training": "elsewhere-training", "deployed": "elsewhere-deployed"}
"""The kinds of attributions that a run records by site, and the figure that draws each."""
_TITLES = {
    "training": "Local models of the last recorded round",
    "deployed": "The final model on each site's patients",
}
_NOTES = {
    "training": "each site's model after local training, before aggregation, on the run's reference rows",
    "deployed": "importance for the common model on each site's patients",
}


class ModelExplanation(BaseModel):
    """The explanation by one model. `alike`: its similarity to that by this site's model, 0 to 1."""

    sites: list[str]
    own: bool
    probability: float
    decision: str
    reasons: dict[str, float]
    alike: float | None


class ColumnShare(BaseModel):
    """A column's share of the attributions: for this patient, at this site, at the other sites on average and at most."""

    column: str
    patient: float
    here: float | None
    others: float | None
    lowest: float | None
    highest: float | None


class RecordedShares(BaseModel):
    """The recorded attributions of sites, for this patient's strongest columns."""

    figure: str
    title: str
    note: str
    sites: int
    columns: list[ColumnShare]


class OtherModels(BaseModel):
    """Explanations by other sites' models. `kind`: sites have separate models, or one; `said`: sentences about that."""

    kind: Literal["separate", "common"]
    said: list[str]
    event: str
    columns: list[str]
    models: list[ModelExplanation]
    recorded: list[RecordedShares]


@dataclass(frozen=True, eq=False)
class _Sketches:
    """Sketches of a run: site -> share of each feature."""

    features: tuple[str, ...]
    sketches: Mapping[str, np.ndarray[Any, Any]]

    def shares(self, site: str, columns: list[str]) -> list[float]:
        place = {name: k for k, name in enumerate(self.features)}
        return [float(self.sketches[site][place[c]]) if c in place else 0.0 for c in columns]


def explain_elsewhere(run_index: RunIndex, name: str, patients: Patients, number: int) -> OtherModels:
    case = _explain(patients, number)
    apart = _models(patients)
    blocks = {} if isinstance(case, ImageExplanation) or apart else _load_sketches(run_index, name)
    sentences = _separate(patients, apart) if apart else _common(case, blocks, personal=bool(patients.run.summary.personal))
    columns = [] if isinstance(case, ImageExplanation) else _strongest(case)
    return OtherModels(
        kind="separate" if apart else "common",
        said=sentences,
        event=case.predicted if isinstance(case, ImageExplanation) else case.event,
        columns=columns,
        models=_explain_by_models(patients, number, apart, columns) if apart else [],
        recorded=[]
        if isinstance(case, ImageExplanation)
        else [_recorded(kind, block, case, patients.site) for kind, block in blocks.items()],
    )


def _explain(
    patients: Patients, number: int, *, model_site: str | None = None
) -> CaseExplanation | ImageExplanation:
    """Explain a patient of a run that predicts classes."""
    case = patients.explain(number, model_site=model_site)
    if isinstance(case, OutcomeExplanation):
        raise BadInput(
            f"models of other sites are compared for classes, and this run predicts {case.label}", code="not-binary"
        )
    return case


def figure(run_index: RunIndex, name: str, patients: Patients, number: int, figure_name: str) -> Figure | None:
    """One of this section's figures; None where `figure_name` is none of them."""
    case = _explain(patients, number)
    if figure_name not in (BY_MODEL, *BLOCKS.values()) or isinstance(case, ImageExplanation):
        return None
    shown_others = explain_elsewhere(run_index, name, patients, number)
    if figure_name == BY_MODEL and shown_others.kind == "separate":
        shown = [_names(m.sites) + (" (own)" if m.own else "") for m in shown_others.models]
        contributions = [[m.reasons[c] for c in shown_others.columns] for m in shown_others.models]
        return attributions_by_model(shown_others.columns, shown, contributions, unit=case.unit)
    kind = next((k for k, fig in BLOCKS.items() if fig == figure_name), "")
    block = None if shown_others.kind == "separate" else _load_sketches(run_index, name).get(kind)
    if block is None:
        raise NotFound(f"run '{name}' has no figure '{figure_name}'", code="unknown-figure")
    labels = ColumnLabels.of_plan(patients.run.plan["data"])
    return attribution_shares(
        [labels.find(c).name for c in shown_others.columns],
        [_shares(case)[c] for c in shown_others.columns],
        block.shares(patients.site, shown_others.columns) if patients.site in block.sketches else None,
        {s: block.shares(s, shown_others.columns) for s in block.sketches if s != patients.site},
        site=patients.site,
        title=_TITLES[kind],
        note=_NOTES[kind],
    )


def _models(patients: Patients) -> dict[str, list[str]]:
    """List the sites that use each separate model, by the model's file; this site's first."""
    out: dict[str, list[str]] = {}
    own_file = patients.run.summary["models"].get(patients.user)
    if own_file is not None:
        out[own_file] = []
    for site, file in patients.run.summary["models"].items():
        out.setdefault(file, []).append(site)
    return out


def _explain_by_models(
    patients: Patients, number: int, apart: Mapping[str, list[str]], columns: list[str]
) -> list[ModelExplanation]:
    mine = _explain(patients, number)
    explained = []
    for sites in list(apart.values())[: MODELS + 1]:
        is_own = patients.user in sites
        case = mine if is_own else _explain(patients, number, model_site=sites[0])
        if isinstance(case, ImageExplanation):
            explained.append(
                ModelExplanation(
                    sites=sites,
                    own=is_own,
                    probability=case.probability,
                    decision=case.predicted,
                    reasons={},
                    alike=None,
                )
            )
            continue
        assert isinstance(mine, CaseExplanation)
        parts = {r.column: r.contribution for r in case.attributions}
        two = len(case.classes) == 2
        explained.append(
            ModelExplanation(
                sites=sites,
                own=is_own,
                probability=case.probability if two else case.probabilities[case.classes.index(mine.target_class)],
                decision=case.decision,
                reasons={column: parts[column] for column in columns},
                alike=None if case.target_class != mine.target_class else _similarity(mine, case),
            )
        )
    return explained


def _separate(patients: Patients, apart: Mapping[str, list[str]]) -> list[str]:
    count, shown = len(apart), min(len(apart), MODELS + 1)
    lines = [f"Sites of this run have {count} models of their own: each explained this patient here, on this machine."]
    if shown < count:
        lines.append(
            f"{shown} of them are shown; the others belong to {join_names([s for v in list(apart.values())[shown:] for s in v])}."
        )
    if patients.user is None:
        lines.append(f"{patients.site} took no part in the run and has none: the page above uses the mean of them.")
    return lines


def _common(
    case: CaseExplanation | ImageExplanation, blocks: Mapping[str, _Sketches], *, personal: bool = False
) -> list[str]:
    lines = [
        "Sites of this run may deploy a personal model, which stays there; so the prediction can differ between sites."
        if personal
        else "All sites of this run use one common model, which gives the same prediction and explanation at each of them."
    ]
    if isinstance(case, ImageExplanation):
        return lines
    if blocks:
        lines.append("The importance of these columns differs between sites, as the run recorded it:")
    else:
        lines.append("The run recorded no explanations by site (explain.sketch), so there is nothing to compare.")
    return lines


def _recorded(kind: str, block: _Sketches, case: CaseExplanation, site: str) -> RecordedShares:
    columns, shares = _strongest(case), _shares(case)
    at_site = block.shares(site, columns) if site in block.sketches else None
    rest = np.array([block.shares(s, columns) for s in block.sketches if s != site])
    return RecordedShares(
        figure=BLOCKS[kind],
        title=_TITLES[kind],
        note=_NOTES[kind],
        sites=len(block.sketches),
        columns=[
            ColumnShare(
                column=c,
                patient=shares[c],
                here=None if at_site is None else at_site[k],
                others=float(rest[:, k].mean()) if len(rest) else None,
                lowest=float(rest[:, k].min()) if len(rest) else None,
                highest=float(rest[:, k].max()) if len(rest) else None,
            )
            for k, c in enumerate(columns)
        ],
    )


def _load_sketches(run_index: RunIndex, name: str) -> dict[str, _Sketches]:
    """Load the last sketches that a run recorded, by kind."""
    return run_index.get_cached(name, "sketches by site", lambda entry: _read_sketches(run_index.run(entry.name)))


def _read_sketches(run: Run) -> dict[str, _Sketches]:
    if not (run.folder / "explanations.json").exists():
        return {}
    explanations = run.explanations
    features = tuple(str(f) for f in explanations["features"])
    rounds = [r for r in explanations["rounds"] if isinstance(r, dict)]
    trained = next((r["training"] for r in reversed(rounds) if r.get("training")), None)
    deployed = next((r["deployed"] for r in reversed(rounds) if r.get("deployed")), None)
    last = {"training": trained, "deployed": explanations.get("final") or deployed}
    out = {}
    for kind, block in last.items():
        sketches = {str(s): np.array(v, float) for s, v in (block or {}).get("sketches", {}).items()}
        if any(v.shape != (len(features),) for v in sketches.values()):
            raise ValueError("a sketch does not have a share for each feature")
        if len(sketches) > 1:
            out[kind] = _Sketches(features, sketches)
    return out


def _strongest(case: CaseExplanation) -> list[str]:
    return [r.column for r in case.attributions[:COLUMNS]]


def _shares(case: CaseExplanation) -> dict[str, float]:
    """Return each column's share of the size of all contributions."""
    total = sum(abs(r.contribution) for r in case.attributions) or 1.0
    return {r.column: abs(r.contribution) / total for r in case.attributions}


def _similarity(a: CaseExplanation, b: CaseExplanation) -> float:
    """Compute 1 less half the L1 distance of the signed contributions, each divided by their whole size.

    It is 1 where contributions are the same, 0 where no column has the same sign in both.
    """
    sizes = [sum(abs(r.contribution) for r in case.attributions) or 1.0 for case in (a, b)]
    mine = {r.column: r.contribution / sizes[0] for r in a.attributions}
    return 1 - sum(abs(mine[r.column] - r.contribution / sizes[1]) for r in b.attributions) / 2


def _names(sites: list[str]) -> str:
    return sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"
