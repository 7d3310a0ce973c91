"""Differences of hospitals from the common model: the Ask, the sites' answers, and the record in clinical units.

A hospital with a personal part tests its columns (`score_test.py`) and writes the result to its own file, differences.json. The
server receives it, unless a privacy budget is set: then it stays at the hospital.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.personal.differences_task import PERSONAL_DIFFERENCES
from grandrounds.capabilities.personal.score_test import Effect, SiteRows, correct_misfit, find_differences, misfit_sums
from grandrounds.core.arrays import Array
from grandrounds.core.outcome import REGRESSION, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding, outcome_of, task_of
from grandrounds.explain.features import Features
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.guard.candidates import HEAD, loss_of, patients_of, rows_of
from grandrounds.methods.guard.server import PersonalResult
from grandrounds.metrics.differences import LEVEL, WHOLE_SCORE, Difference
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.site.evaluate import score
from grandrounds.site.plugin import Columns, Site

FILE = "differences.json"
"""A hospital's own file of its differences."""

MOST_CORRECTED = 500
"""Inputs up to which the common model is corrected: a hospital sends their number squared."""

SHOWN = 8
"""Columns of each hospital in the summary, at most, besides those that differ."""

_FIELDS = ("difference", "low", "high", "p", "differs", "input", "output", "common", "deviation")
_P = _FIELDS.index("p")


def why_untested(plan: Plan, encoding: AnyEncoding) -> str:
    """Return the reason why no hospital can be tested; "" if they can."""
    if not isinstance(encoding, Encoding):
        return "images have no clinical columns that could differ: compare heat maps (explain.maps)"
    if task_of(encoding) == SURVIVAL:
        return "differences of a survival model are not tested: see the forest plots of method 'cox'"
    if plan.personal.part == HEAD:
        return "the last layer of the common model is not trained (personal.part = 'head'), so there is none to compare with"
    if plan.tasks.plain():
        return "sites with different tasks are not compared column by column"
    return ""


def collect_differences(
    plan: Plan, encoding: AnyEncoding, served: ModelAssignment, sites: tuple[str, ...], personal: PersonalResult
) -> Generator[Ask, Answers, dict[str, Any]]:
    """Have sites with a personal part test which columns differ from the common model; return their part of `personal`."""
    if not plan.personal.differences:
        return {}
    if reason := why_untested(plan, encoding):
        return {"untested": reason}
    assert isinstance(encoding, Encoding)
    private = plan.privacy.epsilon is not None
    tested = sites if private else personal.with_part
    found = yield from ask_differences(
        served, sites, tested, encoding, rows=personal.rows, seed=plan.seed, private=private
    )
    return {} if private else summarise_differences(describe_differences(found, encoding))


def ask_differences(
    served: ModelAssignment,
    sites: tuple[str, ...],
    tested: tuple[str, ...],
    encoding: Encoding,
    *,
    rows: str,
    seed: int,
    private: bool,
) -> Generator[Ask, Answers, dict[str, Array]]:
    """Ask hospitals to test their columns, against the common model as corrected by what they show together.

    Args:
        served: The common model, or the model of each site.
        sites: All sites that train.
        tested: Sites with a personal part; under a budget, where the server does not know them, all sites.
        encoding: The agreed encoding.
        rows: "train": training and validation rows; "validation": those alone, for models that memorise training rows.
        seed: The run's seed.
        private: A privacy budget is set: sites keep their findings.

    Returns:
        (F + 1, 9) findings of each site; empty if they stay at the sites.
    """
    if not tested:
        return {}
    shared: dict[str, Value] = {"model": served.model, "rows": rows, "seed": seed}
    inputs = len(encoding.features)
    if not private and not encoding.by_column and inputs <= MOST_CORRECTED and len(sites) > 1:
        together = Ask(
            PERSONAL_DIFFERENCES, shared=shared, each=served.payloads(), to=sites, report=("sums",), summed=("sums",)
        )
        answers = yield together
        if "sums" in answers.totals:
            shared["correction"] = correct_misfit(np.asarray(answers.totals["sums"]), inputs)
    report = ("tested",) if private else ("tested", "differences")
    answers = yield Ask(PERSONAL_DIFFERENCES, shared=shared, each=served.payloads(), to=tested, report=report)
    if private or not len(answers):
        return {}
    return {site: np.asarray(found) for site, found in zip(answers.sites, answers["differences"], strict=True)}


def answer_differences(site: Site, folder: Path | None, ask: Ask, members: Array) -> Columns:
    """Answer an Ask for differences at the sites of one host, and write the file of each.

    Args:
        site: The host.
        folder: Folder of the sites' own files; None: no files.
        ask: The Ask.
        members: Site numbers.

    Returns:
        (m, ...) sums for the correction if these are asked for; else (m,) yes, and (m, F + 1, 9) findings: a site without a
        personal model, or with too few patients, has NaN.
    """
    encoding = site.encoding
    splits = ("val",) if str(ask.shared["rows"]) == "validation" else ("train", "val")
    candidates, columns = find_candidates(encoding)
    common = np.broadcast_to(site.in_use(ask, members), (len(members), np.shape(ask.shared["model"])[-1]))
    out = np.full((len(members), columns[-1] + 1, len(_FIELDS)), np.nan)
    rows = {k: _rows_of_site(site, k, theta, splits) for k, theta in zip(members.tolist(), common, strict=True)}
    if "sums" in ask.report:
        return {"sums": np.stack([misfit_sums(mine) for mine in rows.values()])}
    for row, (k, mine) in enumerate(rows.items()):
        if k not in site.personal_models:
            continue
        name, units = site.stack.names[k], mine.units
        if "correction" in ask.shared:
            mine = replace(mine, scores=mine.scores + mine.x @ np.asarray(ask.shared["correction"]))
        rng = generator(int(ask.shared["seed"]), purpose="permutations of differences", site=name)
        found = find_differences(mine, candidates, rng)
        for f, effect in zip(columns, found or (), strict=False):
            if effect is not None and not out[row, f, _P] <= effect.p:  # of a column, its value or its gaps
                out[row, f] = [getattr(effect, field) for field in _FIELDS]
        if folder is not None:
            records = describe_differences({name: out[row]}, encoding)[name]
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = {"rows": len(units), "splits": list(splits), "features": [r.to_dict() for r in records]}
            text = json.dumps(facts, indent=1)
            (folder / name / FILE).write_text(text, encoding="utf-8")
    return {"tested": np.ones(len(members), np.uint8), "differences": out}


def _rows_of_site(site: Site, k: int, theta: Array, splits: Sequence[str]) -> SiteRows:
    """Gather site k's rows of these splits, with the scores of the common model."""
    model, parts = site.prepared_model(), [site.stack.parts[split] for split in splits]
    x = np.concatenate([part.x[rows_of(part, k)] for part in parts])
    target = np.concatenate([part.target[rows_of(part, k)] for part in parts])
    return SiteRows(loss_of(model), score(model, theta, x), target, x, patients_of(site.stack, k, splits))


def find_candidates(encoding: Encoding) -> tuple[list[Array], list[int]]:
    """List the groups of inputs that are tested together, and the column of each; the last column is the whole score.

    All levels of a category are one group. A number and its missing values are two, with one degree of freedom each.
    """
    features = Features.from_columns(encoding.sources)
    numbers = len(encoding.numeric)
    gaps = np.arange(numbers, numbers + sum(r.indicator for r in encoding.numeric))
    candidates, columns = [], []
    for f, places in enumerate(features.groups):
        is_gap = np.isin(places, gaps)
        for group in (places[~is_gap], places[is_gap]):
            if len(group):
                candidates.append(group)
                columns.append(f)
    return candidates, [*columns, len(features)]


def describe_differences(found: Mapping[str, Array], encoding: Encoding) -> dict[str, list[Difference]]:
    """Turn findings into records in clinical units, the clearest first.

    Args:
        found: (F + 1, 9) findings of each site.
        encoding: The agreed encoding.

    Returns:
        Records of each site; columns that could not be tested are left out.
    """
    names = (*Features.from_columns(encoding.sources).names, WHOLE_SCORE)
    effects = {
        site: {f: _effect(row) for f, row in enumerate(np.asarray(rows, float)) if np.isfinite(row).all()}
        for site, rows in found.items()
    }
    steps: dict[int, list[float]] = {}
    for by_column in effects.values():
        for e in by_column.values():
            steps.setdefault(e.input, []).append(e.deviation)
    out = {}
    for site, by_column in effects.items():
        records = [_record(names[f], e, float(np.median(steps[e.input])), encoding) for f, e in by_column.items()]
        out[site] = sorted(records, key=lambda r: (not r.differs, r.p, -abs(r.difference) / max(r.high - r.low, 1e-12)))
    return out


def _effect(row: Array) -> Effect:
    """Read an effect from a row of findings."""
    values = dict(zip(_FIELDS, row.tolist(), strict=True))
    whole = {"differs": bool(values["differs"]), "input": int(values["input"]), "output": int(values["output"])}
    return Effect(**{**values, **whole})


def _record(feature: str, effect: Effect, deviation: float, encoding: Encoding) -> Difference:
    """Convert an effect into original units."""
    factor, per = 1.0, 0.0
    if feature == WHOLE_SCORE:
        word = WHOLE_SCORE
    else:
        word = encoding.features[effect.input]
        if effect.input < len(encoding.numeric):
            scale = encoding.numeric[effect.input].scale
            per = round_step(deviation * scale)
            factor = per / scale
    outcome = outcome_of(encoding)
    if outcome is not None and task_of(encoding) == REGRESSION and feature != WHOLE_SCORE:
        factor *= outcome.scale
    classes = encoding.classes if len(encoding.classes) > 2 else ()
    if len(encoding.classes) == 2 and encoding.event == encoding.classes[0] and feature != WHOLE_SCORE:
        factor = -factor  # scores are those of the last class, and the event is the first
    low, high = sorted((factor * effect.low, factor * effect.high))
    return Difference(
        feature,
        word,
        str(classes[effect.output]) if effect.output < len(classes) else "",
        difference=factor * effect.difference,
        low=low,
        high=high,
        p=effect.p,
        differs=effect.differs,
        common=factor * effect.common,
        per=per,
    )


def round_step(deviation: float) -> float:
    """Round a standard deviation to a step that people think in: 1, 2 or 5 times a power of ten."""
    if not deviation > 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(deviation))
    steps = [m * power for m in (1.0, 2.0, 5.0, 10.0)]
    return float(f"{min(steps, key=lambda s: abs(np.log(s / deviation))):.3g}")


def summarise_differences(found: Mapping[str, Sequence[Difference]]) -> dict[str, Any]:
    """Return the entries `differences` and `differs` of `personal` in summary.json.

    Args:
        found: Records of each site that was asked.
    """
    return {
        "differences": {
            site: {
                "tested": sum(r.feature != WHOLE_SCORE for r in records),
                "features": [r.to_dict() for i, r in enumerate(records) if r.differs or i < SHOWN],
            }
            for site, records in found.items()
        },
        "differs": [site for site, records in found.items() if any(r.differs and r.feature != WHOLE_SCORE for r in records)],
        "level": LEVEL,
    }
