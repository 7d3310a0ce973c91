"""How other sites' models would explain a patient: each model that there is, or what the run recorded of their reasons.

Where all sites use one common model there is one explanation, and the page says so. What can still be compared is how much
the patient's columns count elsewhere, by the sketches in explanations.json; no other site's row is read for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from grandrounds.analysis.case.image import ImageExplanation
from grandrounds.analysis.case.table import CaseExplanation
from grandrounds.console.cases.patients import Patients
from grandrounds.console.run_index import NotFound, RunIndex
from grandrounds.report.figure import Figure
from grandrounds.report.figures.cases import attribution_shares, attributions_by_model
from grandrounds.report.weights.record import join_names
from grandrounds.runs.run import Run

MODELS = 12
"""Other models that explain the patient; of more only the first, in the run's order, do."""
COLUMNS = 8
BY_MODEL = "by-model"
BLOCKS = {"training": "elsewhere-training", "deployed": "elsewhere-deployed"}
"""What a run records of sites' reasons, and the figure that draws it."""
_TITLES = {
    "training": "Sites' own models of the last recorded round",
    "deployed": "The model in use on each site's patients",
}
_NOTES = {
    "training": "each site's model after its own training, before models were joined, on the run's reference rows",
    "deployed": "what counts for the common model where its patients differ",
}


class ModelSays(BaseModel):
    """What one model says of the patient. `alike`: how much of the reasons is the same as by this site's model, 0 to 1."""

    sites: list[str]
    own: bool
    probability: float
    decision: str
    reasons: dict[str, float]
    alike: float | None


class Weight(BaseModel):
    """A column's share of the reasons: for this patient, at this site, at the other sites on average and at most."""

    column: str
    patient: float
    here: float | None
    others: float | None
    lowest: float | None
    highest: float | None


class Recorded(BaseModel):
    """What the run recorded of sites' reasons, for this patient's strongest columns."""

    figure: str
    title: str
    note: str
    sites: int
    columns: list[Weight]


class Others(BaseModel):
    """`kind`: whether sites have models of their own; `said`: what that means, in sentences."""

    kind: Literal["separate", "common"]
    said: list[str]
    event: str
    columns: list[str]
    models: list[ModelSays]
    recorded: list[Recorded]


@dataclass(frozen=True, eq=False)
class _Block:
    """Sketches of a run: site -> share of each feature."""

    features: tuple[str, ...]
    sketches: Mapping[str, np.ndarray[Any, Any]]

    def of(self, site: str, columns: list[str]) -> list[float]:
        place = {name: k for k, name in enumerate(self.features)}
        return [float(self.sketches[site][place[c]]) if c in place else 0.0 for c in columns]


def others(run_index: RunIndex, name: str, patients: Patients, number: int) -> Others:
    case = patients.explain(number)
    apart = _models(patients)
    blocks = {} if isinstance(case, ImageExplanation) or apart else _blocks(run_index, name)
    said = _separate(patients, apart) if apart else _common(case, blocks)
    columns = [] if isinstance(case, ImageExplanation) else _strongest(case)
    return Others(
        kind="separate" if apart else "common",
        said=said,
        event=case.predicted if isinstance(case, ImageExplanation) else case.event,
        columns=columns,
        models=_explain_by_models(patients, number, apart, columns) if apart else [],
        recorded=[]
        if isinstance(case, ImageExplanation)
        else [_recorded(kind, block, case, patients.site) for kind, block in blocks.items()],
    )


def figure(run_index: RunIndex, name: str, patients: Patients, number: int, which: str) -> Figure | None:
    """One of this section's figures; None where `which` is none of them."""
    case = patients.explain(number)
    if which not in (BY_MODEL, *BLOCKS.values()) or isinstance(case, ImageExplanation):
        return None
    found = others(run_index, name, patients, number)
    if which == BY_MODEL and found.kind == "separate":
        shown = [_names(m.sites) + (" (own)" if m.own else "") for m in found.models]
        held = [[m.reasons[c] for c in found.columns] for m in found.models]
        return attributions_by_model(found.columns, shown, held, unit=case.unit)
    kind = next((k for k, fig in BLOCKS.items() if fig == which), "")
    block = None if found.kind == "separate" else _blocks(run_index, name).get(kind)
    if block is None:
        raise NotFound(f"run '{name}' has no figure '{which}'")
    return attribution_shares(
        found.columns,
        [_shares(case)[c] for c in found.columns],
        block.of(patients.site, found.columns) if patients.site in block.sketches else None,
        {s: block.of(s, found.columns) for s in block.sketches if s != patients.site},
        site=patients.site,
        title=_TITLES[kind],
        note=_NOTES[kind],
    )


def _models(patients: Patients) -> dict[str, list[str]]:
    """The separate models: file -> the sites that use it, this site's first."""
    out: dict[str, list[str]] = {}
    own = patients.run.summary["models"].get(patients.user)
    if own is not None:
        out[own] = []
    for site, file in patients.run.summary["models"].items():
        out.setdefault(file, []).append(site)
    return out


def _explain_by_models(patients: Patients, number: int, apart: Mapping[str, list[str]], columns: list[str]) -> list[ModelSays]:
    mine = patients.explain(number)
    made = []
    for sites in list(apart.values())[: MODELS + 1]:
        own = patients.user in sites
        case = mine if own else patients.explain(number, by=sites[0])
        if isinstance(case, ImageExplanation):
            made.append(
                ModelSays(
                    sites=sites, own=own, probability=case.probability, decision=case.predicted, reasons={}, alike=None
                )
            )
            continue
        assert isinstance(mine, CaseExplanation)
        parts = {r.column: r.contribution for r in case.attributions}
        two = len(case.classes) == 2
        made.append(
            ModelSays(
                sites=sites,
                own=own,
                probability=case.probability if two else case.probabilities[case.classes.index(mine.target_class)],
                decision=case.decision,
                reasons={column: parts[column] for column in columns},
                alike=None if case.target_class != mine.target_class else _alike(mine, case),
            )
        )
    return made


def _separate(patients: Patients, apart: Mapping[str, list[str]]) -> list[str]:
    count, shown = len(apart), min(len(apart), MODELS + 1)
    lines = [
        f"Sites of this run have {count} models of their own: each was asked about this patient here, on this machine."
    ]
    if shown < count:
        lines.append(
            f"{shown} of them are shown; the others belong to {join_names([s for v in list(apart.values())[shown:] for s in v])}."
        )
    if patients.user is None:
        lines.append(f"{patients.site} took no part in the run and has none: above, the mean of them speaks.")
    return lines


def _common(case: CaseExplanation | ImageExplanation, blocks: Mapping[str, _Block]) -> list[str]:
    lines = ["All sites of this run use one common model: it says the same at each of them, for the same reasons."]
    if isinstance(case, ImageExplanation):
        return lines
    if blocks:
        lines.append("What differs is how much these columns count elsewhere, as the run recorded it:")
    else:
        lines.append("The run recorded no reasons by site (explain.sketch), so there is nothing to compare them with.")
    return lines


def _recorded(kind: str, block: _Block, case: CaseExplanation, site: str) -> Recorded:
    columns, shares = _strongest(case), _shares(case)
    here = block.of(site, columns) if site in block.sketches else None
    rest = np.array([block.of(s, columns) for s in block.sketches if s != site])
    return Recorded(
        figure=BLOCKS[kind],
        title=_TITLES[kind],
        note=_NOTES[kind],
        sites=len(block.sketches),
        columns=[
            Weight(
                column=c,
                patient=shares[c],
                here=None if here is None else here[k],
                others=float(rest[:, k].mean()) if len(rest) else None,
                lowest=float(rest[:, k].min()) if len(rest) else None,
                highest=float(rest[:, k].max()) if len(rest) else None,
            )
            for k, c in enumerate(columns)
        ],
    )


def _blocks(run_index: RunIndex, name: str) -> dict[str, _Block]:
    """The last sketches that a run recorded; what is damaged about them is said as of any other file."""
    return run_index.kept(name, "sketches by site", lambda found: _read(run_index.run(found.name)))


def _read(run: Run) -> dict[str, _Block]:
    if not (run.folder / "explanations.json").exists():
        return {}
    told = run.explanations
    features = tuple(str(f) for f in told["features"])
    rounds = [r for r in told["rounds"] if isinstance(r, dict)]
    trained = next((r["training"] for r in reversed(rounds) if r.get("training")), None)
    deployed = next((r["deployed"] for r in reversed(rounds) if r.get("deployed")), None)
    last = {"training": trained, "deployed": told.get("final") or deployed}
    out = {}
    for kind, block in last.items():
        held = {str(s): np.array(v, float) for s, v in (block or {}).get("sketches", {}).items()}
        if any(v.shape != (len(features),) for v in held.values()):
            raise ValueError("a sketch does not have a share for each feature")
        if len(held) > 1:
            out[kind] = _Block(features, held)
    return out


def _strongest(case: CaseExplanation) -> list[str]:
    return [r.column for r in case.attributions[:COLUMNS]]


def _shares(case: CaseExplanation) -> dict[str, float]:
    """Each column's share of the size of all contributions."""
    total = sum(abs(r.contribution) for r in case.attributions) or 1.0
    return {r.column: abs(r.contribution) / total for r in case.attributions}


def _alike(a: CaseExplanation, b: CaseExplanation) -> float:
    """1 less half the L1 distance of the signed contributions, each divided by their whole size: 1 where reasons are the
    same, 0 where no column pulls the same way."""
    sizes = [sum(abs(r.contribution) for r in case.attributions) or 1.0 for case in (a, b)]
    mine = {r.column: r.contribution / sizes[0] for r in a.attributions}
    return 1 - sum(abs(mine[r.column] - r.contribution / sizes[1]) for r in b.attributions) / 2


def _names(sites: list[str]) -> str:
    return sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"
