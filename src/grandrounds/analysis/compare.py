"""Compare runs: the same figures over seeds and folds, with paired differences and intervals.

Runs that differ only in their seed or fold are repetitions of one another; everything else that
differs makes another arm. Arms are paired by seed and fold where both have them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.conclusion import describe_conclusion
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import TrainSettings
from grandrounds.core.plugins import is_path, last_word
from grandrounds.methods.baselines import POOLED
from grandrounds.methods.dp import DP_SGD
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.sse_agg.method import choose_regularizer
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.metrics import DESCRIPTIONS, METRICS, PairedTest, Place, Summary, paired_t, shown_in
from grandrounds.metrics.fairness import lowest_accuracy, worst_site
from grandrounds.metrics.names import FINETUNED_PREFIX, OOD_PREFIX, PERSONAL_PREFIX, base_metric, metric_range
from grandrounds.metrics.scores import HEADLINE, LOSS, OUTCOME_SCORES
from grandrounds.metrics.statistics import clip_pair, describe_bounded
from grandrounds.models import READS_COLUMNS
from grandrounds.report.outcome import is_classification, task_of_run
from grandrounds.runs.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

WORST = "worst_site_accuracy"
"""The lowest accuracy, by the largest probability, of a site with enough test rows (`metrics.fairness.LEAST_ROWS`)."""
WORST_AUROC = "worst_site_auroc"
"""The AUROC of the summary's worst site."""
HARMED = "harmed_sites"
"""The number of sites where the deployed model is clearly worse than the site alone could do; undefined without the guard."""
GAP = "spurious_gap"
"""The AUROC gained from a shortcut in the images (SSE-AGG eq. 26); `metrics.names.OOD` before a metric's name: on test
rows without it. Undefined for runs without a shortcut."""

SUMMARY_METRICS: dict[str, tuple[str, ...]] = {metric.name: metric.path for metric in METRICS if metric.path}
"""Metrics of a summary besides scores of test rows, and their keys: explanations, cohorts, trust (FedXChain), scoring images
(XFed), local models (FL-XAI). Undefined for runs that did not measure it."""

DEFAULT_METRICS = shown_in(Place.COMPARISON)
"""Metrics that a comparison shows unless told otherwise; `default_metrics` takes the first two of the models' decisions."""
_DEPLOYED = (f"{PERSONAL_PREFIX}accuracy", f"{PERSONAL_PREFIX}log_loss", HARMED)
"""Metrics that follow where sites deploy personal models."""
PlainPlan = dict[str, Any]
"""A plan as JSON; settings are removed from it to separate arms."""

_REPEATS = (("seed",), ("split", "fold"))


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: its repetitions by (seed, fold)."""

    label: str
    runs: Mapping[tuple[int, int], Run]
    virtual_seconds: float | None = None  # the time to read values at; None: the end of the run

    def values(self, metric: str, keys: Sequence[tuple[int, int]] | None = None) -> list[float]:
        """Return the test value of each repetition, of all or of those with `keys`."""
        chosen = list(self.runs) if keys is None else keys
        return [
            _final_value(self.runs[k], metric)
            if self.virtual_seconds is None
            else _value_at(self.runs[k], metric, self.virtual_seconds)
            for k in chosen
        ]


@dataclass(frozen=True)
class Price:
    """Mean cost of the runs of an arm.

    Attributes:
        exchanges: Exchanges between server and sites: the rounds of a run. None for pooled rows, which leave the hospitals.
        bytes_up: Bytes of the arrays that one site sends in training, without evaluation and preparation. None for pooled rows.
        cpu_seconds: CPU time of the whole run. None for runs of early versions, which did not measure it.
    """

    exchanges: float | None
    bytes_up: float | None
    cpu_seconds: float | None


@dataclass(frozen=True)
class Comparison:
    """Arms side by side; the others are compared with the first."""

    arms: tuple[Arm, ...]
    metrics: tuple[str, ...]

    def summary(self, arm: Arm, metric: str) -> Summary:
        """Summarise a metric of an arm.

        Args:
            arm: The arm.
            metric: The name of a metric in `summary.json`.

        Returns:
            Mean, standard deviation and 95% interval over its runs.
        """
        return describe_bounded(arm.values(metric), metric_range(metric))

    def paired(self, arm: Arm, metric: str) -> PairedTest | None:
        """Compute the paired difference to the first arm over shared seeds and folds.

        Args:
            arm: Another arm than the first.
            metric: The name of a metric in `summary.json`.

        Returns:
            The paired t-test; None with fewer than two pairs, and where the arm was tested on other patients.
        """
        first = self.arms[0]
        keys = [k for k in arm.runs if k in first.runs]
        if arm is first or len(keys) < 2 or self.has_other_rows(arm):
            return None
        return clip_pair(paired_t(arm.values(metric, keys), first.values(metric, keys)), metric_range(metric))

    @property
    def headline(self) -> str:
        """The metric shown beside the prices: the one that ranks models of this task, or the first."""
        first = next(iter(self.arms[0].runs.values()))
        usual = HEADLINE[task_of_run(first.summary)]
        return usual if usual in self.metrics else self.metrics[0]

    def price(self, arm: Arm) -> Price:
        """Return the mean cost of the runs of an arm.

        Args:
            arm: The arm.
        """
        prices = [_price(run) for run in arm.runs.values()]
        return Price(*(_mean([getattr(p, f.name) for p in prices]) for f in fields(Price)))

    @property
    def warnings(self) -> list[str]:
        """One sentence each where runs predict another event or were tested on other patients than the first arm's."""
        first, out = self.arms[0], []
        for arm in self.arms[1:]:
            if self.has_other_rows(arm):
                rows = [_test_rows(next(iter(each.runs.values()))) for each in (arm, first)]
                out.append(
                    f"{arm.label} was tested on {rows[0]:,} rows and {first.label} on {rows[1]:,}: these are other patients, so "
                    f"there is no paired difference{_reference_hint(arm, first)}"
                )
        return [*out, *self._other_events()]

    @property
    def notes(self) -> list[str]:
        """One sentence where rows are set aside in all runs: nobody trains on them or is tested on them."""
        sets = [sum(rows for _, rows in _set_aside(run)) for arm in self.arms for run in arm.runs.values()]
        if not min(sets, default=0) or len(set(sets)) > 1:
            return []
        return [f"{sets[0]:,} reference rows are set aside in every arm: no arm trains on them or is tested on them"]

    def _other_events(self) -> list[str]:
        events_by_arm = {arm.label: {_event(run) for run in arm.runs.values()} for arm in self.arms}
        if len(set().union(*events_by_arm.values())) < 2:
            return []
        listing = "; ".join(f"{label}: {', '.join(sorted(events))}" for label, events in events_by_arm.items())
        return [f"the runs do not predict the same event, so their figures cannot be compared ({listing})"]

    def has_other_rows(self, arm: Arm) -> bool:
        """Tell whether an arm's test rows cannot be the first arm's.

        Args:
            arm: An arm of the comparison.

        Returns:
            True if their numbers of test rows differ for a seed and fold that both have.
        """
        first = self.arms[0]
        return any(_test_rows(run) != _test_rows(first.runs[key]) for key, run in arm.runs.items() if key in first.runs)

    @property
    def conclusion(self) -> list[str]:
        """Sentences on the headline metric by the paired tests: of the methods, and of the first against hospitals alone."""
        return describe_conclusion(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        from dataclasses import asdict

        from grandrounds.core.arrays import plain

        rows = []
        for arm, metric in itertools.product(self.arms, self.metrics):
            pair = self.paired(arm, metric)
            rows.append(
                {
                    "arm": arm.label,
                    "metric": metric,
                    "values": {f"seed {s} fold {f}": v for (s, f), v in zip(arm.runs, arm.values(metric), strict=True)},
                    **asdict(self.summary(arm, metric)),
                    "paired_to_first": None if pair is None else asdict(pair),
                }
            )
        prices = [{"arm": arm.label, **asdict(self.price(arm))} for arm in self.arms]
        head = {"schema": 1, "first": self.arms[0].label, "warnings": self.warnings, "headline": self.headline}
        head |= {"notes": self.notes, "conclusion": self.conclusion}
        return dict(plain({**head, "rows": rows, "prices": prices}))


    @property
    def frame(self) -> DataFrame:
        """The comparison as a data frame: one line per arm and metric.

        Columns: `n`, `mean`, `std`, `low` and `high` (95% interval), `cv`; then the paired difference to the first arm with
        its interval and p-value, NaN for the first arm itself and where fewer than two runs pair up.
        """
        from dataclasses import asdict

        from pandas import DataFrame

        lines = []
        for arm, metric in itertools.product(self.arms, self.metrics):
            pair = self.paired(arm, metric)
            parts = {} if pair is None else asdict(pair)
            names = {"difference": "difference", "low": "difference_low", "high": "difference_high", "p": "p"}
            paired = {shown: parts.get(name, float("nan")) for name, shown in names.items()}
            lines.append({"arm": arm.label, "metric": metric, **asdict(self.summary(arm, metric)), **paired})
        return DataFrame(lines).set_index(["arm", "metric"])

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def _set_aside(run: Run) -> list[tuple[str, int]]:
    """List the reference sets that are taken from the hospitals' rows, with their sizes."""
    sets = run.plan.get("reference", {})
    return [(name, int(settings["rows"])) for name, settings in sets.items() if not settings.get("source")]


def _reference_hint(arm: Arm, first: Arm) -> str:
    """Say how both arms get the same rows, where one of them sets reference rows aside and the other none."""
    sets = [_set_aside(next(iter(each.runs.values()))) for each in (arm, first)]
    if sum(map(bool, sets)) != 1:
        return ""
    name, rows = next(each[0] for each in sets if each)
    without = next(iter((first if sets[0] else arm).runs.values())).plan["method"]["name"]
    return f"; run {without} with --set reference.{name}.rows={rows} too, so that the same rows are set aside"


def _test_rows(run: Run) -> int:
    return int(run.summary["final"]["count"])


def _event(run: Run) -> str:
    """Name the event of a run, or the column of numbers."""
    if not is_classification(run.summary):
        return str(run.plan["data"]["label"] or "label")
    event = run.summary.get("event")
    return f"{run.plan['data']['label'] or 'label'} = {event['class'] if event else 'the last class'}"


def _price(run: Run) -> Price:
    summary = run.summary
    cost = summary["cost"]
    seconds = cost.get("cpu_seconds")
    if run.plan["method"]["name"] == POOLED:
        return Price(None, None, seconds)
    sites = sum(rows["train"] > 0 for rows in summary["rows"].values())
    sent = cost.get("payload_up")
    return Price(float(summary["rounds"]), None if sent is None else float(sent) / max(1, sites), seconds)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _value_at(run: Run, metric: str, seconds: float) -> float:
    """Return a test value after so many virtual seconds: that of the last round evaluated by then."""
    judged = [r for r in run.rounds if "test" in r and r["virtual_seconds"] <= seconds]
    if not judged:
        first = run.rounds[0]["virtual_seconds"]
        raise BadInput(
            f"{run.folder} had evaluated no round after {seconds:g} virtual seconds (its first took {first:g})",
            code="no-evaluated-round",
        )
    if metric == WORST:
        sites = judged[-1]["sites"]
        rows = sites.get("count", {})
        by_site = {s: {"count": rows.get(s) or 0, "accuracy": v} for s, v in sites["accuracy"].items()}
        lowest = lowest_accuracy(by_site)
        return float("nan") if lowest is None else lowest
    if metric not in judged[-1]["test"]:
        raise BadInput(
            f"no metric '{metric}' in the rounds of {run.folder}; known: {', '.join(judged[-1]['test'])}",
            code="unknown-metric",
        )
    value = judged[-1]["test"][metric]
    return float("nan") if value is None else float(value)


def _deployed_value(run: Run, metric: str) -> float:
    """Return a metric of the models that sites deploy; where they are the common model, its own. NaN if figures stay at sites."""
    personal = run.summary.personal
    if personal.get("stays"):
        return float("nan")
    per_site = personal.get("per_site") or run.summary["per_site"]
    if metric in (WORST, WORST_AUROC):
        value = lowest_accuracy(per_site) if metric == WORST else worst_site(per_site).get("auroc")
        return float("nan") if value is None else float(value)
    figures = personal.get("final") or run.summary["final"]
    if metric not in figures:
        raise BadInput(
            f"no metric '{PERSONAL_PREFIX}{metric}' in {run.folder}; known: {', '.join(figures)}",
            code="unknown-metric",
        )
    return float("nan") if figures[metric] is None else float(figures[metric])


def _final_value(run: Run, metric: str) -> float:
    summary = run.summary
    if metric.startswith(FINETUNED_PREFIX) and summary["finetuned"]:
        value = summary["finetuned"]["final"].get(metric.removeprefix(FINETUNED_PREFIX))
        return float("nan") if value is None else float(value)
    if metric == HARMED:
        harmed = summary.personal.get("harmed")
        return float("nan") if harmed is None else float(len(harmed))
    if metric.startswith(PERSONAL_PREFIX):
        return _deployed_value(run, metric.removeprefix(PERSONAL_PREFIX))
    if metric in SUMMARY_METRICS:
        value = summary
        for key in SUMMARY_METRICS[metric]:
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        return float(value) if isinstance(value, int | float) else float("nan")
    if metric == GAP or (metric.startswith(OOD_PREFIX) and metric.removeprefix(OOD_PREFIX) in summary["final"]):
        block = summary.get("shortcut", {})
        value = block.get(GAP) if metric == GAP else block.get("ood", {}).get(metric.removeprefix(OOD_PREFIX))
        return float("nan") if value is None else float(value)
    if metric in (WORST, WORST_AUROC):
        per_site = summary["per_site"]
        value = lowest_accuracy(per_site) if metric == WORST else worst_site(per_site).get("auroc")
        return float("nan") if value is None else float(value)
    value = summary["final"].get(metric)
    if metric not in summary["final"]:
        names = (*summary["final"], WORST, WORST_AUROC, HARMED, GAP, *SUMMARY_METRICS)
        raise BadInput(f"no metric '{metric}' in {run.folder}; known: {', '.join(names)}", code="unknown-metric")
    return float("nan") if value is None else float(value)


def check_metrics(chosen: Sequence[str], custom: Sequence[str]) -> None:
    """Refuse a metric that no run will have, before any is run.

    Args:
        chosen: The metrics asked for.
        custom: Import paths of the experiment's own metrics.

    Raises:
        BadInput: A metric is unknown.
    """
    figures = [*DESCRIPTIONS, *(m.name for table in OUTCOME_SCORES.values() for m in table), *map(last_word, custom)]
    names = [*figures, WORST, WORST_AUROC, HARMED, GAP, *SUMMARY_METRICS]
    for metric in chosen:
        if metric not in names and base_metric(metric) not in (*figures, WORST, WORST_AUROC):
            raise BadInput(f"no metric '{metric}'; {nearest(metric, names)}", code="unknown-metric")


def default_metrics(runs: Sequence[Run], *, virtual_seconds: float | None = None) -> tuple[str, ...]:
    """Choose the metrics of the runs' task; of classes `DEFAULT_METRICS`, of decisions where all runs have them.

    Runs with personal models add the accuracy and the loss of deployed models and the number of harmed sites.
    Rounds (`virtual_seconds`) have no figures of decisions.

    Args:
        runs: Finished runs.
        virtual_seconds: The time of the comparison; None: the end.

    Raises:
        BadInput: The runs are of different tasks.
    """
    tasks = sorted({task_of_run(run.summary) for run in runs})
    if len(tasks) > 1:
        raise BadInput(
            f"these runs predict different kinds of outcome ({', '.join(tasks)}), which have no metric in common: compare runs "
            "of one task",
            code="several-tasks",
        )
    deploy = virtual_seconds is None and any("per_site" in run.summary.personal for run in runs)
    if tasks and tasks[0] != CLASSIFICATION:
        deployed = (f"{PERSONAL_PREFIX}{LOSS[tasks[0]]}", HARMED) if deploy else ()
        return (*shown_in(Place.COMPARISON, tasks[0]), *deployed)
    if virtual_seconds is not None:
        return DEFAULT_METRICS
    finals = [run.summary["final"] for run in runs]
    chosen = tuple(f"decision_{m}" if all(f"decision_{m}" in f for f in finals) else m for m in DEFAULT_METRICS)
    return (*chosen, *_DEPLOYED) if deploy else chosen


def compare(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] | None = None,
    named: Mapping[str, str] = MappingProxyType({}),
    virtual_seconds: float | None = None,
) -> Comparison:
    """Group runs into arms and name the arms by the settings that differ.

    Args:
        runs: Finished runs.
        metrics: The metrics to compare; by default those of `default_metrics`.
        named: Folder name -> arm, for runs whose arm has a name of its own (references).
        virtual_seconds: Compare the runs as they were after so many virtual seconds, so that those that wait for every site and
            those that do not are on one clock; by default their end.
    """
    arms: dict[str, dict[tuple[int, int], Run]] = {}
    plans: dict[str, PlainPlan] = {}
    apart: dict[str, dict[tuple[int, int], Run]] = {}
    for run in runs:
        plan = json.loads(json.dumps(run.plan))
        key = (int(plan["seed"]), int(plan["split"]["fold"]))
        if run.folder.name in named:
            apart.setdefault(named[run.folder.name], {})[key] = run
            continue
        for path in _REPEATS:
            _remove(plan, path)
        plan.pop("name")
        word = json.dumps(plan, sort_keys=True)
        arms.setdefault(word, {})[key] = run
        plans[word] = plan
    labels = _labels(list(plans.values()), with_method=bool(apart))
    every = {**dict(zip(labels, arms.values(), strict=True)), **apart}
    chosen = default_metrics(runs, virtual_seconds=virtual_seconds) if metrics is None else tuple(metrics)
    return Comparison(tuple(Arm(label, members, virtual_seconds) for label, members in every.items()), chosen)


def _remove(plan: PlainPlan, path: Sequence[str]) -> None:
    *sections, last = path
    for name in sections:
        plan = plan[name]
    plan.pop(last, None)


def _labels(plans: Sequence[PlainPlan], *, with_method: bool) -> list[str]:
    """Label arms by the settings in which they differ, the method's name first (always, if asked for) and without its key."""
    flat = [dict(_flatten(p)) for p in plans]
    keys = list(compare_settings(plans))
    if with_method and "method.name" not in keys:
        keys.append("method.name")
    keys.sort(key=lambda k: k != "method.name")
    for short in (last_word, lambda path: path.replace(":", ".")):  # in full only where the last words are the same
        words = [{k: short(v) if isinstance(v, str) and is_path(v) else v for k, v in f.items()} for f in flat]
        out = [
            ", ".join(str(f[k]) if k == "method.name" else f"{k}={f.get(k)}" for k in keys) or str(f["method.name"])
            for f in words
        ]
        if len(set(out)) == len(out):
            break
    return out


def compare_settings(plans: Sequence[PlainPlan]) -> dict[str, list[Any]]:
    """Return the settings in which plans differ, without those that follow from the method and the model.

    Args:
        plans: Plans of runs.

    Returns:
        Setting -> its value in each plan; None in a plan without it.
    """
    flat = [dict(_flatten(p)) for p in plans]
    keys = sorted({k for f in flat for k in f if len({json.dumps(g.get(k)) for g in flat}) > 1})
    keys = [k for k in keys if not k.startswith(("data.kinds", "data.sha256", "code."))]
    usual = [_implied_settings(p) for p in plans]
    keys = [k for k in keys if not all(k in u and f.get(k) == u[k] for f, u in zip(flat, usual, strict=True))]
    return {k: [f.get(k) for f in flat] for k in keys}


def _implied_settings(plan: PlainPlan) -> dict[str, object]:
    """Return the settings that `auto` gives a method's parts, and a model its coding: they are implied by the names of both."""
    method, cohorts = plan["method"], plan["method"].get("cohorts", {})
    whole = plan["model"]["name"] in READS_COLUMNS
    coded: dict[str, object] = {
        "data.coding": "columns" if whole else "levels",
        "engine.precision": "float64" if whole else "float32",
    }
    if is_path(method["name"]):
        return coded
    if method["name"] != "sse-agg":
        rule = TRUST if method["name"] == "fedxchain" else "data_size"
        return coded | {"method.weigh.rule": rule, "method.stability": "none", "method.weigh.own_halves": False}
    sent = any(rows.get("sent") for rows in plan["reference"].values())
    trees = plan["model"]["name"] in ("forest", "lightgbm")
    apart = cohorts.get("count", 1) != 1 and cohorts.get("models") == "separate"
    private = plan["privacy"]["mechanism"] == DP_SGD
    preset = method["preset"]
    stability = choose_regularizer(
        TrainSettings(plan["train"]), sent=sent, trees=trees, apart=apart, private=private, preset=preset
    )
    p = plan["privacy"]
    halves = p["mechanism"] == "none" and p["epsilon"] is None and not p["secure"]
    return coded | {"method.weigh.rule": EXPLANATIONS, "method.stability": stability, "method.weigh.own_halves": halves}


def _flatten(values: PlainPlan, prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for k, v in values.items():
        out += _flatten(v, f"{prefix}{k}.") if isinstance(v, dict) else [(f"{prefix}{k}", v)]
    return out
