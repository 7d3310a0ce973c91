"""Importances of the model in use at one site, compared with other sites: the columns whose difference is more than chance.

This is *deployed divergence*: the model in use on each site's own patients. It does not measure the drift of
local models in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.cases.site_personal import SitePersonal, personal_at
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.features import Features
from grandrounds.explain.rule import TABLES, SketchRule
from grandrounds.explain.sketch import Sketches
from grandrounds.explain.stability import to_consensus
from grandrounds.metrics import Place, shown_in
from grandrounds.models.dense import targets
from grandrounds.runs.explanations import DEPLOYED_SCORE
from grandrounds.runs.run_rows import RunRows

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

MOST_ROWS = 500
"""Rows of each site that are measured on."""

FARTHEST = 2.0
"""The L1 distance of two sketches that share no feature."""

_SURE = 2.0  # standard errors of a difference that count as more than chance


@dataclass(frozen=True)
class ColumnUse:
    """A column's share of importance at the site, at the other sites on average, and in the consensus of all."""

    column: str
    share: float
    error: float
    other_sites: float
    other_sites_error: float
    consensus: float

    def to_dict(self) -> dict[str, object]:
        """Return the column as plain JSON."""
        return {
            "column": self.column,
            "share": self.share,
            "error": self.error,
            "others": self.other_sites,
            "others_error": self.other_sites_error,
            "consensus": self.consensus,
            "difference": self.difference,
            "sure": self.significant,
        }

    @property
    def difference(self) -> float:
        return self.share - self.other_sites

    @property
    def significant(self) -> bool:
        """True if the difference is more than two standard errors of sampling."""
        return abs(self.difference) > _SURE * float(np.hypot(self.error, self.other_sites_error))


@dataclass(frozen=True)
class SiteExplanation:
    """One site's importances beside the others'. `divergence` is its L1 distance to the consensus, 0 to 2."""

    site: str
    source: str
    model_owner: str  # "the common model", or the name of its owner
    explainer: str
    provenance: str  # source of the numbers
    flat: bool  # no column is important here
    columns: tuple[ColumnUse, ...]  # the most important first
    divergence: float
    sampling: float  # the divergence expected by chance
    rank: int  # 1 is the site farthest from the consensus
    sites: int
    performance: Mapping[str, float | None]  # the model's figures on the site's own test rows
    notes: tuple[str, ...] = ()
    personal: SitePersonal | None = None  # the model that the site deploys, and the features that differ there

    @property
    def more(self) -> tuple[ColumnUse, ...]:
        """Columns that count more here than elsewhere, beyond chance, the largest difference first."""
        return tuple(
            sorted((c for c in self.columns if c.significant and c.difference > 0), key=lambda c: -c.difference)
        )

    @property
    def less(self) -> tuple[ColumnUse, ...]:
        """Columns that count less here than elsewhere, beyond chance, the largest difference first."""
        return tuple(
            sorted((c for c in self.columns if c.significant and c.difference < 0), key=lambda c: c.difference)
        )

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain JSON."""
        values: dict[str, object] = {
            "kind": "site",
            "data": self.source,
            "site": self.site,
            "by": self.model_owner,
            "explainer": self.explainer,
            "measured": self.provenance,
            "flat": self.flat,
            "divergence": self.divergence,
            "sampling": self.sampling,
            "rank": self.rank,
            "sites": self.sites,
            "performance": self.performance,
            "notes": self.notes,
            "more": [c.column for c in self.more],
            "less": [c.column for c in self.less],
            "columns": [c.to_dict() for c in self.columns],
        }
        if self.personal is not None:
            values["personal"] = self.personal.to_dict()
        return dict(plain(values))


def explain_site_columns(
    run: Run, site: str, *, model_owner: str, explainer: str | None, data: Any = None
) -> SiteExplanation:
    """Explain what the model in use relies on at a site, as the run recorded it or measured now by the explainer named.

    Raises:
        BadInput: The explainer is unknown, the site has no rows, or sites have different tasks.
    """
    recorded = _read_recorded(run, site) if explainer is None else None
    sketches, how, provenance = recorded or _measure_now(run, RunRows.read(run, data), explainer or "permutation", site)
    k = sketches.sites.index(site)
    other_sites, other_sites_error = _mean_of_others(sketches, k)
    distance = to_consensus(sketches.values, sketches.consensus)
    order = np.argsort(-sketches.values[k], kind="stable")
    columns = tuple(
        ColumnUse(
            column=sketches.names[f],
            share=float(sketches.values[k, f]),
            error=float(sketches.error[k, f]),
            other_sites=float(other_sites[f]),
            other_sites_error=float(other_sites_error[f]),
            consensus=float(sketches.consensus[f]),
        )
        for f in order
    )
    figures = run.summary["per_site"][site]
    return SiteExplanation(
        site=site,
        source=run.summary["data"],
        model_owner="the common model" if recorded and run.personal_file(site) is not None else model_owner,
        explainer=how,
        provenance=provenance,
        flat=bool(sketches.flat[k]),
        columns=columns,
        divergence=float(distance[k]),
        sampling=_sampling_distance(sketches, k),
        rank=int((distance > distance[k]).sum()) + 1,
        sites=len(sketches.sites),
        performance={name: figures.get(name) for name in ("count", *shown_in(Place.COURSE))},
        notes=("only this site was measured, so there is no other site to compare it with",)
        if len(sketches.sites) < 2
        else (),
        personal=personal_at(run, site),
    )


def _read_recorded(run: Run, site: str) -> tuple[Sketches, str, str] | None:
    """Read the final model's sketches from explanations.json, if the site is among them and uses that very model."""
    if run.summary["finetuned"] or not (run.folder / "explanations.json").exists():
        return None
    explanations = run.explanations
    last = [(r["round"], r["deployed"]) for r in explanations["rounds"] if "deployed" in r][-1:]
    blocks = [("of the final model", explanations.get("final")), *((f"of round {r}", block) for r, block in last)]
    for words, block in blocks:
        if block and site in block["sketches"]:
            sites = tuple(block["sketches"])
            if any(
                len(block[part][s]) != len(explanations["features"]) for part in ("sketches", "error") for s in sites
            ):
                raise BadInput(
                    f"{run.folder}/explanations.json is damaged: a sketch does not have a share for each feature",
                    code="damaged-file",
                )
            values, error = (np.array([block[part][s] for s in sites]) for part in ("sketches", "error"))
            flat = np.array([s in block["flat"] for s in sites])
            blur = None if block.get("blur") is None else np.array([block["blur"][s] for s in sites])
            sketches = Sketches(sites, tuple(explanations["features"]), values, error, flat, blur=blur)
            return (
                sketches,
                str(explanations["sketch"]["explainer"]),
                f"recorded by the run ({words}) on the sites' own patients",
            )
    return None


def _measure_now(run: Run, rows: RunRows, explainer: str, site: str) -> tuple[Sketches, str, str]:
    """Measure importances on every site's own rows, with the model that it uses."""
    if explainer not in TABLES:
        raise BadInput(f"no explainer '{explainer}' for a site; {nearest(explainer, TABLES)}", code="unknown-explainer")
    if rows.plan.tasks.plain():
        raise BadInput(
            "sites with different tasks are not explained side by side: explain single cases with --case",
            code="several-tasks",
        )
    model, data = run.model, rows.consortium.data
    encoding: Any = model.encoding
    rows_by_site = {name: rows.all_rows(name) for name in rows.sites}
    if not len(rows_by_site[site]):
        raise BadInput(f"{site} has no rows of its own to explain", code="no-rows")
    sampled = {name: _sample_rows(r, rows.plan.seed, name) for name, r in rows_by_site.items() if len(r)}
    taken = data.take(np.concatenate(list(sampled.values())))
    dtype = model.theta.dtype
    target = targets(encoding.labels(taken), model.net.outputs, dtype)
    background, _ = rows.background()
    features = Features.from_columns(encoding.sources)
    rule = replace(SketchRule.from_settings(explainer, rows.plan.explain, rows.plan.seed), score=DEPLOYED_SCORE)
    importances = measure(
        rule.explainer(features, encoding.encode(background, dtype)),
        model.net,
        [run.model_for(s).theta for s in sampled] if _has_own_models(run, list(sampled)) else model.theta,
        encoding.encode(taken, dtype),
        target,
        np.cumsum([0, *(len(r) for r in sampled.values())]),
    )
    sketches = Sketches.from_importances(tuple(sampled), features.names, importances)
    return sketches, explainer, f"measured now on {len(sampled[site])} patients of {site}, and the other sites' own"


def _has_own_models(run: Run, sites: Sequence[str]) -> bool:
    """Return True where sites use other models than the common one."""
    return bool(run.summary["models"] or run.summary.personal) or any(run.personal_file(s) is not None for s in sites)


def _sample_rows(rows: Array, seed: int, site: str) -> Array:
    """Take all rows of a site, or a sample of them."""
    if len(rows) <= MOST_ROWS:
        return rows
    return np.sort(generator(seed, purpose="rows to explain", site=site).choice(rows, MOST_ROWS, replace=False))


def _mean_of_others(sketches: Sketches, k: int) -> tuple[Array, Array]:
    """Average the sketches of the other sites that are not flat, with the standard error; the site's own where there are none."""
    use = ~sketches.flat
    use[k] = False
    if not use.any():
        return sketches.values[k], sketches.error[k]
    error: Array = np.sqrt((sketches.error[use] ** 2).sum(axis=0)) / use.sum()
    return sketches.values[use].mean(axis=0), error


def _sampling_distance(sketches: Sketches, k: int) -> float:
    """Compute the L1 distance to the consensus that sampling alone gives a site that is like all others.

    The site is part of the consensus of m sites: its own blur counts 1 - 1/m, each other site's 1/m, in squares.
    """
    assert sketches.blur is not None
    use = ~sketches.flat
    share = np.where(use, -1 / max(1, int(use.sum())), 0.0)
    share[k] += 1
    return min(FARTHEST, float(np.sqrt(((share * sketches.blur) ** 2).sum())))
