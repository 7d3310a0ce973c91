"""The report of a run: report.html, one self-contained page for the screen or for paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.data.event import Event, event_line
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.metrics.fairness import deployed_scores
from grandrounds.report.card import BoardFile, calibration_line, card_part, record_lines, sign_off_part
from grandrounds.report.deployed import describe_scored
from grandrounds.report.document import Charts, about_line, document, has_test_rows, machine_line
from grandrounds.report.explanations import Explanations, name_features
from grandrounds.report.figure import packed_script
from grandrounds.report.method_facts import method_section
from grandrounds.report.model_table import ReadableModel, model_section
from grandrounds.report.outcome import is_classification, outcome_line, task_of_run
from grandrounds.report.overview import NOT_CHECKED, LedgerCheck, Overview, make_overview
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
from grandrounds.report.sections.outcome import outcome_section
from grandrounds.report.sections.performance import (
    accuracy_name,
    calibration_figures,
    fairness_lines,
    hospitals_section,
    metrics_table,
    score_tiles,
    site_table,
    subgroup_table,
)
from grandrounds.report.sections.personal import deployed_section, differences_section
from grandrounds.report.sections.privacy import attack_sections, privacy_section
from grandrounds.report.sections.risk_card import risk_card_section
from grandrounds.report.sections.shapes import shapes_section, trees_section
from grandrounds.report.sections.summary import summary_part, worse_part
from grandrounds.report.sections.training import (
    participation_section,
    separate_models_section,
    task_section,
    training_section,
)
from grandrounds.report.sections.trust import trust_section

__all__ = ["Part", "accuracy_name", "contents", "fairness_lines", "lower_headings", "page_overview", "report_page"]


@dataclass(frozen=True)
class Part:
    """A part of the report, which the contents list: its anchor, its title and its HTML."""

    anchor: str
    title: str
    body: Sequence[str]

    @property
    def html(self) -> str:
        """The part with its heading; headings of its sections are one level lower."""
        return f"<section id='{self.anchor}'><h2>{escape(self.title)}</h2>{lower_headings(''.join(self.body))}</section>"


def report_page(
    summary: RunSummary,
    rounds: Sequence[RoundRecord],
    environment: Mapping[str, Any],
    explanations: Explanations | None = None,
    attacks: Mapping[str, Any] | None = None,
    model: ReadableModel | None = None,
    board: BoardFile | None = None,
    provenance: Provenance | None = None,
    ledger: LedgerCheck = NOT_CHECKED,
) -> str:
    """Write the page. All names from data are escaped.

    Args:
        summary: The summary of a finished run.
        rounds: The record of each round.
        environment: The machine and the packages of the run (environment.json).
        explanations: explanations.json; None where there is none.
        attacks: attacks.json of `rounds attack`; None where there is none.
        model: The model as a table, where it can be read.
        board: For a file for a board: intended use, date, result of the audit and the sign-off block. None for report.html, which
            is drawn again to check it and so depends on the files of the run alone.
        provenance: The ledger's state and the hashes of inputs that the page carries.
        ledger: The check of a run whose files were changed, which the page begins with; that of `board` where there is one.

    Returns:
        HTML.
    """
    view, charts = page_overview(summary, board, provenance, ledger), Charts(packed_script())
    title = f"{summary.data}: {view.prediction or summary.method}"
    parts = [
        Part("summary", "Summary", summary_part(view)),
        Part("worse", "For whom it is worse", worse_part(summary, view)),
        Part("card", _card_title(summary), card_part(summary, view, None if board is None else board.plan)),
        Part("sign-off", "Decision and sign-off", [] if board is None else sign_off_part(board, view)),
        Part("hospitals", "Hospitals", _hospitals(summary, charts)),
        Part("subgroups", "Subgroups", _subgroups(summary, charts)),
        Part("performance", _performance_title(summary), _performance(summary, charts)),
        Part("method", f"Method: {summary.method}", method_section(summary, rounds, charts)),
        Part("monitoring", "Monitoring", watch_section(summary)),
        Part("patients", "Patients and data", _patients(summary, charts)),
        Part("explanations", "Features that the model relies on", _relies_on(summary, rounds, explanations, model, charts)),
        Part("privacy", "Privacy", [*_privacy(summary, rounds, charts), *attack_sections(attacks)]),
        Part("record", "Record and provenance", _record(summary, environment, board, provenance)),
        Part("training", "Training details", _training(summary, rounds, charts)),
    ]
    shown = [part for part in parts if any(part.body)]
    body = [
        *([f"<p class='verdict failed' role='alert'>{escape(view.ledger.sentence)}</p>"] if view.ledger.fails else []),
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(_about(summary, board))}</p>",
        *_event_lines(summary),
        charts.note,
        contents(shown),
        *(part.html for part in shown),
    ]
    return document(title, body, charts.script, head="" if provenance is None else provenance.tag, dark=True)


def page_overview(
    summary: RunSummary, board: BoardFile | None, provenance: Provenance | None, ledger: LedgerCheck = NOT_CHECKED
) -> Overview:
    """Collect the facts that the page begins with."""
    digest = "" if provenance is None else provenance.inputs.get("model.safetensors", "")
    if board is None:
        return make_overview(summary, ledger=ledger, model_hash=digest)
    return make_overview(summary, use=board.use, ledger=LedgerCheck.from_audit(board.audited), model_hash=digest)


def contents(parts: Iterable[Part]) -> str:
    """Write the list of parts with links; paper has the outline of the PDF instead."""
    items = "".join(f"<li><a href='#{part.anchor}'>{escape(part.title)}</a></li>" for part in parts)
    return f"<nav class='contents' aria-label='Contents'><b>Contents</b><ol>{items}</ol></nav>"


def lower_headings(html: str) -> str:
    """Lower h2 and h3 by one level. Text from data cannot hold a tag: it is escaped."""
    for level in (3, 2):
        html = html.replace(f"<h{level}>", f"<h{level + 1}>").replace(f"</h{level}>", f"</h{level + 1}>")
    return html


def _about(summary: RunSummary, board: BoardFile | None) -> str:
    date = f"; {board.date}" if board is not None and board.date else ""
    return f"{summary.name}: {summary.method}, {about_line(summary)}{date}"


def _event_lines(summary: RunSummary) -> list[str]:
    """Name the event, or the classes where there are more than two."""
    if not is_classification(summary):
        line = outcome_line(summary)
        return [f"<p><b>{escape(line)}</b></p>"] if line else []
    if not summary.parameters:
        return []
    event = Event.from_dict(summary.event) if summary.event else None
    return [f"<p><b>{escape(event_line(event, summary.classes))}</b></p>"]


def _hospitals(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the sites with test rows, the models that hospitals deploy, and why hospitals differ."""
    out = []
    if has_test_rows(summary) and is_classification(summary):
        table = site_table(deployed_scores(summary))
        out = [f"<h2>Sites, lowest AUROC first{describe_scored(summary)}</h2>", table, _trained_only(summary)]
    compared = hospitals_section(summary, charts)
    return [*compared, *deployed_section(summary, charts), *out, *differences_section(summary, charts)]


def _trained_only(summary: RunSummary) -> str:
    names = [s for s, rows in summary.rows.items() if rows.get("train") and not rows.get("test")]
    if not names:
        return ""
    return f"<p class='quiet'>{len(names)} more {'site' if len(names) == 1 else 'sites'} trained only, without test patients.</p>"


def _subgroups(summary: RunSummary, charts: Charts) -> list[str]:
    """Write scores by subgroup, and gaps between groups of patients."""
    groups, summary = fairness_section(summary, charts), deployed_scores(summary)
    if has_test_rows(summary) and is_classification(summary) and summary.subgroups:
        return [subgroup_table(summary), *groups]
    return groups


def _card_title(summary: RunSummary) -> str:
    return "Model card" if summary.parameters else "Data and method"


def _performance_title(summary: RunSummary) -> str:
    return "Performance and calibration" if is_classification(summary) else "Performance"


def _performance(summary: RunSummary, charts: Charts) -> list[str]:
    """Write scores and calibration over all test rows, of the models that hospitals deploy."""
    whose, tested = describe_scored(summary), deployed_scores(summary)
    if not has_test_rows(summary):
        if not summary.parameters:
            return []
        return ["<p class='quiet'>No row was set aside for a test: the run has no scores of predictions.</p>"]
    if not is_classification(summary):
        return [score_tiles(summary), *outcome_section(tested)]
    return [
        score_tiles(summary),
        f"<p>{calibration_line(tested.final)}</p>",
        calibration_figures(tested, charts),
        f"<h2>Performance on test patients of all sites{whose}</h2>",
        metrics_table(tested),
    ]


def _patients(summary: RunSummary, charts: Charts) -> list[str]:
    """Write cohort, Table 1, survival curves and data quality, and the assumptions that were made to read the table."""
    notes = [f"<p class='quiet'>Assumption made while reading the table: {escape(note)}</p>" for note in summary.assumed]
    sections = [cohort_section(summary), table_one_section(summary), survival_section(summary, charts), quality_section(summary)]
    return [*(html for section in sections for html in section), *notes]


def _relies_on(
    summary: RunSummary,
    rounds: Sequence[RoundRecord],
    explanations: Explanations | None,
    model: ReadableModel | None,
    charts: Charts,
) -> list[str]:
    """Write the model in a readable form, and the explanations of sites."""
    return [
        *estimates_section(summary, charts),
        *risk_card_section(summary, charts),
        *shapes_section(summary, charts),
        *trees_section(summary, charts),
        *([] if summary.get("estimates") else model_section(model, ColumnLabels.of_summary(summary))),
        *explanations_section(name_features(explanations, ColumnLabels.of_summary(summary)), charts, task=task_of_run(summary)),
        *shortcut_section(summary, explanations, charts),
        *rationale_section(summary, rounds, charts),
        *maps_section(summary, rounds, charts),
    ]


def _privacy(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the privacy statement, and the budget spent where there is one."""
    return [f"<p>{escape(summary.privacy['statement'])}</p>", *privacy_section(summary, rounds, charts)]


def _record(
    summary: RunSummary, environment: Mapping[str, Any], board: BoardFile | None, provenance: Provenance | None
) -> list[str]:
    """Write the state of the ledger, the hashes of the inputs, and the machine of the run."""
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
    machine = f"{environment['processor']}, {environment['cores']} cores, {environment['memory_gib']} GiB"
    lines = [
        *([machine_line(summary.cost)] if machine_line(summary.cost) else []),
        escape(f"Python {environment['python']} ({packages}); {machine}"),
        "experiment.toml, in the same folder, holds the experiment. Running it again gives bit-identical results.",
    ]
    return [
        *([] if board is None else record_lines(board.audited)),
        "" if provenance is None else provenance.line,
        *(f"<p>{line}</p>" for line in lines),
    ]


def _training(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write curves, weights, trust, tasks, separate models, participation and cost."""
    return [
        *training_section(summary, rounds, charts),
        *trust_section(summary, rounds, charts),
        *local_section(summary, rounds, charts),
        *task_section(summary),
        *separate_models_section(summary),
        *participation_section(summary, rounds, charts),
    ]
