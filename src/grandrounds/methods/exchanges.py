"""Exchanges that methods share: agree on the encoding, evaluate a model, fit a temperature. Generators, like methods."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.encoding import EncodingRules, agree_ranges, describe_design, find_artefacts, make_encoding
from grandrounds.data.image_encoding import KIND
from grandrounds.data.kinds import AnyEncoding, agree_on_images, find_summary_fault
from grandrounds.data.outcome import Outcome
from grandrounds.data.summary import Moments, Summary
from grandrounds.explain.features import Features
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.sketch import Sketches
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.metrics import OutcomeTally, Tally
from grandrounds.protocol.messages import USE_PERSONAL, Answers, Ask, Value
from grandrounds.site.evaluate import BY_COLUMN

TEMPERATURES = np.exp(np.linspace(np.log(0.05), np.log(20.0), 241))
"""Grid of candidate temperatures; bounded, because separable data would drive the temperature to zero."""


def agree_on_encoding(
    *, numeric: Sequence[str], categorical: Sequence[str], rules: EncodingRules, sites: tuple[str, ...]
) -> Generator[Ask, Answers, tuple[AnyEncoding, tuple[str, ...]]]:
    """Merge the training sites' summaries into one encoding, and check the columns.

    Tables take two exchanges: the second asks for means and deviations of values clipped to the ranges of the first, so that an
    outlier has no influence.

    Args:
        numeric: Names of numeric columns.
        categorical: Names of categorical columns.
        rules: The experiment's settings of the preparation.
        sites: The sites that train.

    Returns:
        The encoding, and warnings about columns that leak the label or have implausible values, and about sites that are left
        out.

    Raises:
        RunFailed: No site is left.
    """
    answers = yield Ask("summarise", to=sites, report=("summary",))
    faults = {site: find_summary_fault(a) for site, a in zip(answers.sites, read_summaries(answers), strict=True)}
    answers = answers.only([k for k, fault in enumerate(faults.values()) if not fault], {s: f for s, f in faults.items() if f})
    first = read_summaries(answers)
    left_out = [f"{site} is left out of the preparation of columns: {why}" for site, why in answers.missing.items()]
    if not first:
        raise RunFailed(f"no site described its columns: {'; '.join(left_out)}", code="too-few-sites")
    if first[0].get("kind") == KIND:
        return agree_on_images(first, rules), tuple(left_out)
    summaries = {site: Summary.from_payload(summary) for site, summary in zip(answers.sites, first, strict=True)}
    mismatched = [
        s
        for s, summary in summaries.items()
        if (len(summary.count), len(summary.levels)) != (len(numeric), len(categorical))
        or (summary.outcome is None) != (rules.task in (CLASSIFICATION, SURVIVAL))
    ]
    if mismatched:
        left_out += [
            f"{site} is left out of the preparation of columns: it described other columns" for site in mismatched
        ]
        summaries = {site: summary for site, summary in summaries.items() if site not in mismatched}
    if not summaries:
        raise RunFailed(f"no site described the agreed columns: {'; '.join(left_out)}", code="too-few-sites")
    total = Summary.merge(list(summaries.values()))
    low, high = agree_ranges(total, clip=rules.clip)
    ranges: dict[str, Value] = {"low": low, "high": high}
    second = read_summaries((yield Ask("summarise", shared=ranges, to=tuple(summaries), report=("summary",))))
    moments = Moments.merge([Moments.from_payload(a) for a in second])
    encoding = make_encoding(total, moments, numeric=numeric, categorical=categorical, rules=rules)
    artefacts = find_artefacts(total, low, high, names=numeric)
    design = describe_design(encoding, total, rules)
    return encoding, (*total.leak_warnings([*numeric, *categorical]), *artefacts, *design, *left_out)


def read_summaries(answers: Answers) -> list[dict[str, Any]]:
    """Return the report `summary` of each site."""
    return [{name.removeprefix("summary."): v for name, v in values.items()} for _, values in answers]


def prepare_sites(
    encoding: AnyEncoding, spec: Mapping[str, object], *, centre: Sequence[str] = (), notes: bool = True
) -> Generator[Ask, Answers, tuple[dict[str, dict[str, int]], dict[str, list[str]], Array | None]]:
    """Have every site prepare its rows; returns row counts by site, and `notes` and the `centre` where they are asked for.

    Notes describe imputed values and may name a rare category, so they are not requested under a privacy budget. The centre is
    the consortium's mean row as a model input, (d,), from the mean training row of each of these sites.
    """
    spec_json = json.dumps({**spec, "groups": count_groups(encoding)})
    shared = {"encoding": json.dumps(encoding.to_dict()), "spec": spec_json}
    report = (*PREPARED, *(("notes",) if notes else ()), *(("centre",) if centre else ()))
    answers = yield Ask("prepare", shared=shared, report=report)
    rows = {site: {part: int(values[f"{part}_rows"]) for part in ("train", "val", "test")} for site, values in answers}
    notes_by_site = {site: json.loads(values["notes"]) for site, values in answers} if notes else {}
    mean = None
    if "centre" in answers:
        counts = [rows[site]["train"] * (site in centre) for site in answers.sites]
        mean = np.average(answers["centre"], axis=0, weights=counts)
    return rows, {site: n for site, n in notes_by_site.items() if n}, mean


def count_groups(encoding: AnyEncoding) -> int:
    """Count subgroups, plus one for subgroups unseen in training; 1 if there is no subgroup column."""
    return len(encoding.groups) + 1 if encoding.groups else 1


PREPARED = ("train_rows", "val_rows", "test_rows")


@dataclass(frozen=True)
class EvaluationResult:
    """Tallies of each part over all sites, by subgroup, and metrics that each site computed on its own test rows."""

    sites: tuple[str, ...]
    totals: dict[str, Any]  # part -> Tally or OutcomeTally (groups,)
    figures: dict[str, Array]  # figure -> (K,)
    by_column: dict[str, list[Any]] = field(default_factory=dict)  # part -> Tally (groups,) of each column of subgroups
    by_site: Tally | None = None  # test rows of each site, (K,); None where only their sum was asked for


def evaluate(
    served: ModelAssignment,
    parts: Sequence[str],
    *,
    figures: Sequence[str] = (),
    threshold: float = 0.5,
    sites: tuple[str, ...] | None = None,
    outcome: Outcome | None = None,
    personal: bool = False,
    by_column: Sequence[str] = (),
    by_site: bool = False,
) -> Generator[Ask, Answers, EvaluationResult]:
    """Have sites score the model they use on their own rows. Tallies are summed; figures are kept by site.

    `outcome`: that of the encoding, for tasks other than classification. `personal`: the models that sites deploy
    (`methods.guard`). `by_column`: parts that are also tallied by the groups of each column of evaluation.subgroups.
    `by_site`: the tallies of test rows, which sites send in the clear, are added up here and kept by site; never under secure
    aggregation, which sums what an Ask lists as `summed`.
    """
    shared: dict[str, Value] = {"model": served.model, "figures": ",".join(figures), "threshold": threshold}
    grouped = tuple(f"{part}{BY_COLUMN}" for part in by_column)
    answers = yield Ask(
        "evaluate",
        shared={**shared, USE_PERSONAL: 1} if personal else shared,
        each=served.payloads(),
        to=sites,
        report=(*parts, *grouped, "figures"),
        summed=(*(part for part in parts if not (by_site and part == "test")), *grouped),
    )
    each = _read_sites(answers, "test") if by_site and "test" in parts else None
    totals = {
        part: each.sum(axis=0)
        if each is not None and part == "test"
        else _read_tally(_strip_prefix(answers.totals, part), outcome)
        for part in parts
    }
    columns = {part: _read_columns(_strip_prefix(answers.totals, f"{part}{BY_COLUMN}"), outcome) for part in by_column}
    tallies = None if each is None else each.sum(axis=1)
    return EvaluationResult(answers.sites, totals, _strip_prefix(answers.columns, "figures.test"), columns, tallies)


def _read_sites(answers: Answers, part: str) -> Tally:
    """Read the tallies of one part by site and subgroup, (K, groups)."""
    return Tally.from_arrays(
        {name: np.asarray(column) for name, column in _strip_prefix(answers.columns, part).items()}
    )


def _read_columns(arrays: Mapping[str, Array], outcome: Outcome | None) -> list[Tally | OutcomeTally]:
    """Read the summed tallies of one part by the groups of each column: `0.count`, `1.count` and so on."""
    numbers = sorted({int(name.partition(".")[0]) for name in arrays})
    return [_read_tally(_strip_prefix(arrays, str(j)), outcome) for j in numbers]


def _read_tally(arrays: Mapping[str, Array], outcome: Outcome | None) -> Tally | OutcomeTally:
    """Read the summed tally of one part."""
    if outcome is None:
        return Tally.from_arrays(arrays)
    return OutcomeTally.from_arrays(arrays, task=outcome.task, scale=outcome.scale)


def _strip_prefix(columns: Mapping[str, Any], name: str) -> dict[str, Array]:
    return {k.removeprefix(f"{name}."): v for k, v in columns.items() if k.startswith(f"{name}.")}


def fit_temperature(served: ModelAssignment) -> Generator[Ask, Answers, float | None]:
    """Return the temperature with the least total log loss on the validation rows of all sites (SSE-AGG eq. 12).

    Its Algorithm 4 prints argmax, a misprint. One exchange: sites send their loss at each grid point. None if the best point is
    an end of the grid: the validation rows are separable and determine no temperature.
    """
    shared = {"model": served.model, "grid": TEMPERATURES}
    answers = yield Ask("calibrate", shared=shared, each=served.payloads(), report=("losses",), summed=("losses",))
    best = int(np.argmin(answers.totals["losses"]))
    return None if best in (0, len(TEMPERATURES) - 1) else float(TEMPERATURES[best])


def explain_locally(
    served: ModelAssignment, rule: SketchRule, features: Features, background: Array | None, *, sites: tuple[str, ...]
) -> Generator[Ask, Answers, tuple[Sketches, Array]]:
    """Have sites explain the model in use on their own patients, and report the number of patients; sites without any are left
    out."""
    shared: dict[str, Value] = {"model": served.model, "explain": rule.to_json()}
    if background is not None:
        shared["background"] = background
    answers = yield Ask("explain", shared=shared, each=served.payloads(), to=sites, report=("sketch",))
    explained = answers.only(np.flatnonzero(np.asarray(answers["sketch.rows"])), {})
    values, error, flat, blur, rows = (
        np.asarray(explained[f"sketch{part}"]) for part in ("", ".error", ".flat", ".blur", ".rows")
    )
    return Sketches(explained.sites, features.names, values, error, flat, blur=blur), rows


def share_reference(
    name: str, x: Array, features: Features, target: Array | None, sites: tuple[str, ...], masks: Array | None = None
) -> Generator[Ask, Answers, None]:
    """Send reference rows to sites, which store them under this name; without labels if `target` is None."""
    shared: dict[str, Value] = {"name": name, "x": x, "features": features.feature_index}
    if features.grid is not None and features.size is not None:
        shared |= {"grid": np.array(features.grid), "size": np.array(features.size)}
    if target is not None:
        shared["target"] = target
    if masks is not None:
        shared["masks"] = masks
    yield Ask("lend", shared=shared, to=sites, report=("held",))
