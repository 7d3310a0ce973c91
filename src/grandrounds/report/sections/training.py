"""Sections on training: curves, weights, tasks, separate models, participation and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from grandrounds.core.records import Part, RoundRecord, RunSummary
from grandrounds.methods.xfed.summary import rounds_text
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.fairness import decision_metric
from grandrounds.metrics.scores import HEADLINE
from grandrounds.report import figures
from grandrounds.report.document import Charts, is_from_sums, number, table, td, text_cell
from grandrounds.report.figure import Figure
from grandrounds.report.figures.trust import trust_decisions
from grandrounds.report.outcome import is_classification, task_of_run
from grandrounds.report.overview import describe_cost
from grandrounds.report.style import words


def training_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on training; empty for a run whose rounds have neither scores nor weights, or only exchange sums."""
    if is_from_sums(summary) or not summary.parameters:
        return []
    drawn = _rounds(rounds, charts, summary)
    return ["<h2>Training</h2>", drawn] if drawn else []


def _rounds(rounds: Sequence[RoundRecord], charts: Charts, summary: RunSummary) -> str:
    """Draw training curves of all sites together and of each site, and the aggregation weights."""
    out = []
    if any(r.test is not None for r in rounds):
        if is_classification(summary):
            out += [charts.place(figures.curves(rounds, summary), wide=True)]
            paired = [figures.site_curves(rounds, summary=summary)]
        else:
            metric = HEADLINE[task_of_run(summary)]
            out += [charts.place(figures.outcome_curves(rounds, metric), wide=True)]
            paired = [figures.site_curves(rounds, metric)] if has_site_scores(rounds, metric) else []
    else:
        paired = []
    weighed = [r for r in rounds if r.decision.weights]
    if weighed:
        paired.append(figures.weights(rounds))
    out.append(charts.place(*paired))
    if weighed and len(weighed[-1].decision.signals) > 1 and not trust_decisions(rounds):  # trust has a section
        out.append(charts.place(figures.weights_by_signal(weighed[-1].decision), wide=True))
    drawn = _agreement_figures(rounds)
    out.append(charts.place(*drawn, wide=len(drawn) == 1))
    return "".join(out)


def has_site_scores(rounds: Sequence[RoundRecord], metric: str) -> bool:
    """Tell whether the last evaluated round has a metric of each site."""
    evaluated = [r for r in rounds if r.test is not None]
    return bool(evaluated) and any(v is not None for v in evaluated[-1].sites.get(metric, {}).values())


def _agreement_figures(rounds: Sequence[RoundRecord]) -> list[Figure]:
    """Draw the disagreement of sites' explanations and the cohorts, where the method uses them."""
    decisions = [r.decision for r in rounds]
    drawn = []
    if any(d.signals.get("disagreement") for d in decisions):
        drawn.append(figures.disagreement_over_rounds(rounds))
    if any((d.cohorts or {}).get("of") for d in decisions):
        drawn.append(figures.cohorts_over_rounds(rounds))
    return drawn


def task_section(summary: RunSummary) -> list[str]:
    """Tabulate the scores by task, where sites have different tasks."""
    if not summary.tasks:
        return []
    columns = ("sites", "classes", "count")
    measures = shown_in(Place.REPORT_TASKS)
    rows = [
        [td(escape(name)), *[td(f"{m[c]:.0f}") for c in columns], *[td(number(m.get(c), 3)) for c in measures]]
        for name, m in summary.tasks.items()
    ]
    return ["<h2>Tasks</h2>", table(["task", *columns, *map(words, measures)], rows)]


def separate_models_section(summary: RunSummary) -> list[str]:
    """List fine-tuned sites, models that stay separate and attackers, where there are any."""
    out = []
    if summary.finetuned:
        tuned = summary.finetuned
        columns = shown_in(Place.COURSE)
        before = summary.per_site
        rows = [
            [
                td(escape(site)),
                *[
                    td(f"{number(decision_metric(c, before[site]), 3)} &rarr; {number(decision_metric(c, m), 3)}")
                    for c in columns
                ],
            ]
            for site, m in tuned["per_site"].items()
            if m["count"]
        ]
        title = f"<h2>After {tuned['epochs']} epochs of fine-tuning at each site</h2>"
        out += [title, table(["site", *map(words, columns)], rows)]
    if summary.models:
        models = [[td(escape(s)), text_cell(file)] for s, file in summary.models.items()]
        out += ["<h2>Separate models</h2>", table(["site", "model"], models)]
    if summary.attacks:
        kinds = [[td(escape(s)), text_cell(k)] for s, k in summary.attacks["sites"].items()]
        out += ["<h2>Simulated attackers</h2>", table(["site", "attack"], kinds)]
        for target, hit in summary.attacks.get("backdoor_success", {}).items():
            out.append(f"<p>Stamped test images classified as {escape(target)}: {number(hit, 3)}</p>")
    return out


def missing_sites(rounds: Sequence[RoundRecord], *, left_out: Mapping[str, Part] | None = None) -> str:
    """List the sites that did not answer, by round, after those that were not asked for the models that they trained."""
    if left_out:
        listed = "; ".join(f"{site} in {rounds_text(of['rounds'])}" for site, of in left_out.items())
        trained = f"<p>Sites that trained and were not asked for their models, because of their scores: {escape(listed)}.</p>"
        return f"{trained}<p>Sites that did not answer:</p>{missing_sites(rounds)}"
    gaps = [(r.round, site, why) for r in rounds for site, why in r.decision.missing.items()]
    if not gaps:
        return "<p>None: every site that was asked answered in every round.</p>"
    items = "".join(f"<li>round {r}: {escape(site)} ({escape(why)})</li>" for r, site, why in gaps[:200])
    more = f"<p>{len(gaps) - 200} more are in round_logs.json.</p>" if len(gaps) > 200 else ""
    return f"<ul>{items}</ul>{more}"


def participation_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on sites that did not answer, and on bytes and seconds by round."""
    out = ["<h2>Participation and cost</h2>", f"<p>{escape(describe_cost(summary.cost))}</p>"]
    out.append(missing_sites(rounds, left_out=summary.method_numbers.get("left_out")))
    if not rounds:
        return out
    if any(r.decision.missing for r in rounds) or any(len(r.decision.asked) < summary.sites["training"] for r in rounds):
        out.append(charts.place(figures.presence_over_rounds(rounds), wide=True))
    return [*out, charts.place(figures.bytes_over_rounds(rounds), figures.seconds_over_rounds(rounds))]
