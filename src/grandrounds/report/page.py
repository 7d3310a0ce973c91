"""The report of a run: report.html, one self-contained page for the screen or for paper, and its PDF."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord, RunSummary, Scores
from grandrounds.data.event import Event, event_line
from grandrounds.metrics import DESCRIPTIONS, Place, shown_in
from grandrounds.metrics.fairness import (
    clearly_worse,
    decision_key,
    decision_metric,
    group_lines,
    intervals,
    is_defined,
    majority_lines,
    rank_sites,
    site_flags,
    worst_site,
)
from grandrounds.metrics.names import binning_note
from grandrounds.metrics.scores import BY_NAME, HEADLINE
from grandrounds.report import figures
from grandrounds.report.deployed import deployed_tile
from grandrounds.report.document import (
    Charts,
    about_line,
    document,
    has_test_rows,
    is_from_sums,
    machine_line,
    number,
    span,
    table,
    td,
    text_cell,
)
from grandrounds.report.explanations import Explanations
from grandrounds.report.figure import Figure, find_browser, packed_script
from grandrounds.report.figures.trust import trust_decisions
from grandrounds.report.findings import describe_findings
from grandrounds.report.model_table import ReadableModel, model_section
from grandrounds.report.outcome import is_classification, outcome_line, task_of_run
from grandrounds.report.provenance import Provenance
from grandrounds.report.sections.description import (
    cohort_section,
    quality_section,
    survival_section,
    table_one_section,
    watch_section,
)
from grandrounds.report.sections.estimates import estimates_section
from grandrounds.report.sections.explanations import explanations_section, shortcut_section
from grandrounds.report.sections.fairness import fairness_section
from grandrounds.report.sections.images import maps_section, rationale_section
from grandrounds.report.sections.local_models import local_section
from grandrounds.report.sections.outcome import outcome_section, outcome_tiles
from grandrounds.report.sections.personal import deployed_section, differences_section
from grandrounds.report.sections.privacy import attack_sections, privacy_section
from grandrounds.report.sections.risk_card import risk_card_section
from grandrounds.report.sections.shapes import shapes_section, trees_section
from grandrounds.report.sections.trust import trust_section
from grandrounds.report.style import words


def report_page(
    summary: RunSummary,
    rounds: Sequence[RoundRecord],
    environment: Mapping[str, Any],
    explanations: Explanations | None = None,
    attacks: Mapping[str, Any] | None = None,
    model: ReadableModel | None = None,
    card: Sequence[str] = (),
    provenance: Provenance | None = None,
) -> str:
    """Write the page. All names from data are escaped.

    Args:
        summary: The summary of a finished run.
        rounds: The record of each round.
        environment: The machine and the packages of the run (environment.json).
        explanations: explanations.json; None where there is none.
        attacks: attacks.json of `rounds attack`; None where there is none.
        model: The model as a table, where it can be read.
        card: A model card to begin with.
        provenance: The ledger's state and the hashes of inputs that the page carries.

    Returns:
        HTML.
    """
    title = f"{summary.data}: {summary.method}"
    charts = Charts(packed_script())
    body = [
        *card,
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(about_line(summary))}</p>",
        *_event_lines(summary),
        *[f"<p class='warn'>{escape(w)}</p>" for w in summary.warnings],
        *([] if card else findings_section(summary)),
        *[f"<p class='quiet'>Assumption made while reading the table: {escape(note)}</p>" for note in summary.assumed],
        charts.note,
        *([_tiles(summary)] if has_test_rows(summary) else []),
        *estimates_section(summary, charts),
        *risk_card_section(summary, charts),
        *shapes_section(summary, charts),
        *trees_section(summary, charts),
        *cohort_section(summary),
        *table_one_section(summary),
        *survival_section(summary, charts),
        *watch_section(summary),
        *quality_section(summary),
        *deployed_section(summary, charts),
        *_performance(summary, charts),
        *fairness_section(summary, charts),
        *([] if summary.get("estimates") else model_section(model)),
        *explanations_section(explanations, charts, task=task_of_run(summary)),
        *differences_section(summary, charts),
        *shortcut_section(summary, explanations, charts),
        *rationale_section(summary, rounds, charts),
        *maps_section(summary, rounds, charts),
        *trust_section(summary, rounds, charts),
        *_training(rounds, charts, summary),
        *local_section(summary, rounds, charts),
        *_task_table(summary),
        *_separate_models(summary),
        *privacy_section(summary, rounds, charts),
        *attack_sections(attacks),
        "<h2>Participation and cost</h2>",
        _missing_sites(rounds),
        charts.place(figures.presence_over_rounds(rounds), wide=True) if rounds else "",
        charts.place(figures.bytes_over_rounds(rounds), figures.seconds_over_rounds(rounds)) if rounds else "",
        "<h2>Privacy and provenance</h2>",
        _provenance(summary, environment),
        "" if provenance is None else provenance.line,
    ]
    return document(title, body, charts.script, head="" if provenance is None else provenance.tag)


def _event_lines(summary: RunSummary) -> list[str]:
    """Name the event, or the classes where there are more than two; a run of version 0.1 records neither."""
    if not is_classification(summary):
        line = outcome_line(summary)
        return [f"<p><b>{escape(line)}</b></p>"] if line else []
    if not summary.parameters:
        return []
    if "event" not in summary:
        if summary.final.get("sensitivity") is None:
            return []
        return ["<p class='quiet'>event: the last of two classes, as version 0.1 chose it</p>"]
    event = Event.from_dict(summary.event) if summary.event else None
    return [f"<p><b>{escape(event_line(event, summary.classes))}</b></p>"]


def findings_section(summary: RunSummary) -> list[str]:
    """Write the section with the findings of a run in plain language; empty for a run without test rows."""
    items = "".join(f"<li>{escape(line)}</li>" for line in describe_findings(summary))
    return [f"<h2>Summary</h2><ul>{items}</ul>"] if items else []


def _performance(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the sections on scores of test rows, over all sites, by site and by subgroup."""
    if not has_test_rows(summary):
        if not summary.parameters:
            return []
        return ["<p class='quiet'>No row was set aside for a test: the run has no scores of predictions.</p>"]
    if not is_classification(summary):
        return outcome_section(summary)
    return [
        f"<h2>Sites{' with the common model' if summary.personal else ''}, lowest AUROC first</h2>",
        _site_table(summary),
        *_subgroups(summary),
        "<h2>Performance on test patients of all sites</h2>",
        _calibration_figures(summary, charts),
        _metrics(summary),
    ]


def _training(rounds: Sequence[RoundRecord], charts: Charts, summary: RunSummary) -> list[str]:
    """Write the section on training; empty for a run whose rounds have neither scores nor weights, or only exchange sums."""
    if is_from_sums(summary) or not summary.parameters:
        return []
    drawn = _rounds(rounds, charts, summary)
    return ["<h2>Training</h2>", drawn] if drawn else []


def _tiles(summary: RunSummary) -> str:
    if is_classification(summary):
        tiles = _class_tiles(summary)
    else:
        tiles = [(escape(n), escape(v), escape(note)) for n, v, note in outcome_tiles(summary)]
    for kind, name in (("training", "training drift"), ("deployed", "deployed divergence")):
        if kind in summary.explanation:
            explanation = summary.explanation[kind]
            by_chance = (
                "scale 0 to 2" if explanation["sampling"] is None else f"by chance {number(explanation['sampling'], 3)}"
            )
            tiles.append((name, number(explanation["drift"], 3), by_chance))
    tiles += [(escape(n), escape(v), escape(note)) for n, v, note in deployed_tile(summary)]
    inner = "".join(f"<div class='tile'>{n}<b>{v}</b><span class='quiet'>{note}</span></div>" for n, v, note in tiles)
    return f"<div class='tiles'>{inner}</div>"


def _class_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    final = summary.final
    tiles = [
        (
            accuracy_name(summary),
            number(decision_metric("accuracy", final), 3),
            f"majority class {number(final['majority'], 3)}",
        ),
        ("AUROC", number(final["auroc"], 3), _interval(final)),
        ("log loss", number(final["log_loss"], 3), f"ECE {number(final['ece'], 3)}"),
    ]
    worst = worst_site(summary.per_site)
    if worst:
        ends = span(intervals(worst).get("auroc"), 2)
        tiles.append(("lowest AUROC of a site", number(worst["auroc"], 3), f"{escape(str(worst['site']))} {ends}"))
    return tiles


def _interval(final: Scores) -> str:
    if final["auroc_low"] is None:
        text = "mean of one class against the rest"
    else:
        text = f"95% CI {number(final['auroc_low'], 3)} to {number(final['auroc_high'], 3)}"
    binned = binning_note(final, "auroc")
    return f"{text}; {binned}" if binned else text


def _rounds(rounds: Sequence[RoundRecord], charts: Charts, summary: RunSummary) -> str:
    """Draw training curves of all sites together and of each site, and the aggregation weights."""
    out = []
    if any(r.test is not None for r in rounds):
        if is_classification(summary):
            out += [charts.place(figures.curves(rounds, summary), wide=True)]
            paired = [figures.site_curves(rounds)]
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


def _metrics(summary: RunSummary) -> str:
    final, train = summary.final, summary.training
    custom = {name: "A metric that this experiment defines." for name in final if name not in DESCRIPTIONS}
    same = {
        f"decision_{m}" for m in final if final.get(f"decision_{m}") == final[m]
    }  # equal at a threshold of 0.5: listed once
    rows = [
        [
            td(escape(words(name))),
            *[td(number(part.get(name), BY_NAME[name].digits if name in BY_NAME else 4)) for part in (final, train)],
            f"<td class='text'>{text}</td>",
        ]
        for name, text in (DESCRIPTIONS | custom).items()
        if final.get(name) is not None and name != "count" and name not in same
    ]
    return table(["metric", "test", "train", ""], rows)


def _calibration_figures(summary: RunSummary, charts: Charts) -> str:
    """Draw calibration, and the net benefit of acting on predictions."""
    drawn = []
    if summary.reliability:
        drawn.append(figures.reliability(summary.reliability))
    if summary.decision_curve:
        drawn.append(figures.decision_curve(summary.decision_curve))
    return charts.place(*drawn)


def fairness_lines(summary: RunSummary) -> list[str]:
    """Write a sentence for each site below its own majority class and for each subgroup that is clearly worse."""
    lines = [f"Worse than a constant answer at {line}." for line in majority_lines(summary)]
    return [*lines, *(f"Subgroup {line}." for line in group_lines(summary))]


def accuracy_name(summary: RunSummary) -> str:
    """Name the accuracy: with its threshold where decisions are not made at 0.5."""
    threshold = summary.threshold
    if threshold in (None, 0.5):
        return "accuracy"
    return f"accuracy at {threshold if decision_key('accuracy', summary.final) != 'accuracy' else 0.5:.3g}"


def _site_table(summary: RunSummary) -> str:
    per_site = summary.per_site
    events = any(is_defined(m.get("events")) for m in per_site.values())
    rows, columns = [], shown_in(Place.REPORT_SITES)
    for site in rank_sites(per_site):
        m = per_site[site]
        cells = [td(escape(site)), td(str(summary.rows[site]["train"])), td(f"{m['count']:.0f}")]
        cells += [td(number(m.get("events"), 0))] if events else []
        ends = intervals(m)
        for value, metric in ((m["auroc"], "auroc"), (decision_metric("accuracy", m), decision_key("accuracy", m))):
            cells.append(td(f"{number(value, 3)} <span class='quiet'>{span(ends.get(metric), 2)}</span>"))
        cells += [td(number(m.get(c), 3)) for c in columns]
        rows.append([*cells, text_cell("; ".join([*site_flags(m), *summary.notes.get(site, [])[:2]]))])
    head = [
        "site",
        "train rows",
        "test rows",
        *(["events"] if events else []),
        "AUROC (95% CI)",
        f"{accuracy_name(summary)} (95% CI)",
    ]
    return table([*head, *map(words, columns), ""], rows)


def _subgroups(summary: RunSummary) -> list[str]:
    if not summary.subgroups:
        return []
    return ["<h2>Subgroups</h2>", subgroup_table(summary)]


def subgroup_table(summary: RunSummary) -> str:
    """Tabulate test rows by subgroup: rows, events, AUROC, sensitivity, specificity and accuracy with 95% intervals."""
    rows, columns = [], shown_in(Place.SUBGROUPS)
    for name, m in summary.subgroups.items():
        ends, right = intervals(m), decision_key("accuracy", m)
        cells = [td(escape(name)), td(f"{m['count']:.0f}"), td(number(m.get("events"), 0))]
        for metric in (*columns, right):
            low_high = span(ends.get(metric), 2)
            cells.append(td(f"{number(m.get(metric), 3)} <span class='quiet'>{low_high}</span>"))
        worse = clearly_worse(m, summary.final)
        rows.append(
            [*cells, td(number(m.get("ece"), 3)), text_cell(f"worse: {', '.join(map(words, worse))}" if worse else "")]
        )
    named = [*map(words, columns), accuracy_name(summary)]
    return table(["subgroup", "rows", "events", *named, "ECE", ""], rows)


def _task_table(summary: RunSummary) -> list[str]:
    if not summary.tasks:
        return []
    columns = ("sites", "classes", "count")
    measures = shown_in(Place.REPORT_TASKS)
    rows = [
        [td(escape(name)), *[td(f"{m[c]:.0f}") for c in columns], *[td(number(m.get(c), 3)) for c in measures]]
        for name, m in summary.tasks.items()
    ]
    return ["<h2>Tasks</h2>", table(["task", *columns, *map(words, measures)], rows)]


def _separate_models(summary: RunSummary) -> list[str]:
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


def _missing_sites(rounds: Sequence[RoundRecord]) -> str:
    gaps = [(r.round, site, why) for r in rounds for site, why in r.decision.missing.items()]
    if not gaps:
        return "<p>None: every site that was asked answered in every round.</p>"
    items = "".join(f"<li>round {r}: {escape(site)} ({escape(why)})</li>" for r, site, why in gaps[:200])
    more = f"<p>{len(gaps) - 200} more are in round_logs.json.</p>" if len(gaps) > 200 else ""
    return f"<ul>{items}</ul>{more}"


def _provenance(summary: RunSummary, environment: Mapping[str, Any]) -> str:
    cost = summary.cost
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
    sent = f"{cost['bytes_down'] / 1e6:.2f} MB to sites, {cost['bytes_up'] / 1e6:.2f} MB from them"
    lines = [
        f"{sent}, in {cost['messages']:.0f} messages with setup and final evaluation; {cost['seconds']:.2f} s training time",
        *([machine_line(cost)] if machine_line(cost) else []),
        escape(summary.privacy["statement"]),
        escape(
            f"Python {environment['python']} ({packages}); {environment['processor']}, "
            f"{environment['cores']} cores, {environment['memory_gib']} GiB"
        ),
        "experiment.toml, in the same folder, holds the experiment. Running it again gives bit-identical results.",
    ]
    return "".join(f"<p>{line}</p>" for line in lines)


_PRINT_SECONDS = 120
_DRAWING_MILLISECONDS = 20_000
"""Time limit for drawing the page, in milliseconds of the page's virtual time."""


def write_pdf(page: str, path: Path, provenance: Provenance) -> None:
    """Print a self-contained page in a Chrome or Chromium of this machine. The page's policy forbids it to fetch anything.

    Args:
        page: The page.
        path: The PDF to write.
        provenance: The facts about ledger and inputs that the file's information dictionary holds.

    Raises:
        BadInput: There is no browser, it fails, or the file cannot be written.
    """
    browser = find_browser()
    if browser is None:
        raise BadInput(
            "a PDF needs Chrome or Chromium on this machine: install one, or print report.html yourself",
            code="browser-missing",
        )
    with tempfile.TemporaryDirectory(prefix="rounds-pdf-") as folder:
        source, printed = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, "utf-8")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
            f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--virtual-time-budget={_DRAWING_MILLISECONDS}",
            f"--print-to-pdf={printed}", source.as_uri(),
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium's sandbox does not start as root; the page is our own
        try:
            subprocess.run(command, capture_output=True, timeout=_PRINT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BadInput(
                f"{browser} did not print the page within {_PRINT_SECONDS} s: try again on an idle machine",
                code="browser-timeout",
            ) from None
        if not printed.exists() or not printed.read_bytes().startswith(b"%PDF"):
            raise BadInput(f"{browser} could not print the page: print report.html yourself", code="browser-failed")
        try:
            write_atomic(path, provenance.stamp_pdf(printed.read_bytes()), durable=False)
        except OSError as e:
            raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
