"""Terminal output of a run: a progress bar while rounds run, tables when they are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from grandrounds.cli.terminal import Terminal, plain_column, styled, warn
from grandrounds.core.capability import collect, load
from grandrounds.core.errors import visible
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RunSummary, Scores
from grandrounds.methods.guard.candidates import MAJORITY, describe_base
from grandrounds.methods.sse_agg.method import SSEAgg
from grandrounds.methods.sse_agg.summary import drift_facts
from grandrounds.methods.sums import ENDED
from grandrounds.metrics.fairness import (
    NO_MODEL,
    can_rank,
    decision_key,
    decision_metric,
    deployed_scores,
    enough_rows,
    group_lines,
    intervals,
    is_defined,
    majority_lines,
    rank_sites,
)
from grandrounds.metrics.names import binning_note, metric_label
from grandrounds.metrics.scores import BY_NAME, HEADLINE, LOSS, Place, shown_in
from grandrounds.report.calibration import describe_calibration
from grandrounds.report.deployed import Deployed, describe_scored, read_deployed
from grandrounds.report.differences import overview_sentences, patients_sentences
from grandrounds.report.document import has_test_rows, machine_line, rounds_line
from grandrounds.report.fairness import (
    describe_merged,
    gap_table,
    group_tables,
    has_correction,
    mitigation_table,
    short_group_table,
)
from grandrounds.report.findings import describe_findings
from grandrounds.report.method_facts import method_facts
from grandrounds.report.outcome import percent
from grandrounds.report.tables import TextTable

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

HEADLINES = shown_in(Place.SCREEN)
"""Metrics of the table, in its order; the first three are those of the model's decisions (`fairness.decision_metric`)."""

RANKS = ("auroc_within", "auroc")
"""The AUROC within hospitals, and of all patients pooled."""
MAIN = ("accuracy", *RANKS, "auprc", "log_loss", "ece", "sensitivity", "specificity", "ppv", "npv")
"""Metrics that are printed without --verbose."""

LINE_SECONDS = 10.0
"""Seconds between two lines on runs in a file."""

ProgressEvent = Mapping[str, Any]
"""An event of a run as `runs` reports it; its keys depend on `event`: reading, start, round, ..."""

_NAMED = 8
"""Sites that a line names."""


def custom_metrics(final: Scores) -> list[str]:
    """List the metrics that the experiment added (evaluation.metrics)."""
    return [name for name in final if name not in BY_NAME]


def number(value: float | None, digits: int = 4) -> str:
    """Format a score; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


class RunsBar(Progress):
    """A progress bar over runs. Where it is not drawn, as in a file, it prints a line at most every `LINE_SECONDS`."""

    _printed: float | None = None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change the task, as Rich does."""
        super().update(task_id, **changes)
        task = self._tasks[task_id]
        if self.disable or self.console.is_terminal or task.total is None:
            return
        now = self.get_time()
        if self._printed is None or now - self._printed >= LINE_SECONDS or task.finished:
            self._printed = now
            done = f"{task.completed:.0f} of {task.total:.0f} runs after {task.elapsed or 0:.0f} s"
            self.console.print(f"{done}: {visible(task.description)}", markup=False, highlight=False, soft_wrap=True)


def runs_bar(*, quiet: bool) -> Progress:
    """Make a progress bar over runs, with a word on the last that ended."""
    columns = (
        plain_column("runs", "bold"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        plain_column("{task.description}"),
    )
    return RunsBar(*columns, console=Terminal(stderr=True), disable=quiet)


class Watch:
    """Show the progress of a run. Use as a context manager; call its value with each event."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._bar = Progress(
            plain_column("{task.description}", "bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            plain_column("{task.fields[figures]}"),
            console=console,
            disable=quiet,
            transient=False,
        )
        self._task: TaskID | None = None
        self._noun = "round"

    def __enter__(self) -> Callable[[ProgressEvent], None]:
        return self._event

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is not None:
            self._bar.stop()
        if kind is KeyboardInterrupt:
            self._console.print(
                f"stopped; finished {self._noun}s are saved: `rounds resume RUN` continues the run", highlight=False
            )

    def _event(self, event: ProgressEvent) -> None:
        if self._quiet:
            return
        if event["event"] == "reading":
            self._console.print(f"reading {event['data']} and fitting its preprocessing ...", style="dim")
        elif event["event"] == "start":
            self._start(event)
        elif event["event"] == "round":
            self._round(event)

    def _start(self, event: ProgressEvent) -> None:
        inputs, pooled = event["inputs"], event.get("pooled", False)
        inputs_text = f"{inputs[0]} features" if len(inputs) == 1 else f"images {'x'.join(str(n) for n in inputs)}"
        task = event.get("task", CLASSIFICATION)
        outcome = f"classes {', '.join(event['classes'])}" if task == CLASSIFICATION else event["outcome"]
        shape = f"{event['sites']} sites, {inputs_text}, {outcome}"
        if pooled:
            shape += " (training rows pooled in one place)"
        elif event["training"] != event["sites"]:
            shape += f" ({event['training']} train, {event['sites'] - event['training']} only test)"
        self._console.print(f"{shape} -> {event['folder']}", highlight=False, soft_wrap=True)
        if task == CLASSIFICATION and len(event["classes"]) == 2:
            self._console.print(event["outcome"], soft_wrap=True)
        schema = event["schema"]
        roles = (schema.label, schema.site, schema.patient, schema.time, schema.duration) if schema else ()
        columns = schema.columns if schema else ()
        left_out = [c for c in columns if c.kind in ("id", "constant", "drop") and c.name not in roles]
        if left_out:
            text = "; ".join(f"{c.name} ({c.why})" for c in left_out[:6])
            more = f"; and {len(left_out) - 6} more" if len(left_out) > 6 else ""
            self._console.print(f"left out: {text}{more}", style="dim", highlight=False, soft_wrap=True)
        for note in event.get("assumed", ()):
            self._console.print(f"assumed: {note}", soft_wrap=True)
        for warning in event["warnings"]:
            self._console.print(warn(warning), highlight=False, soft_wrap=True)
        self._bar.start()
        if event.get("exchanges"):
            self._noun = "exchange"
        total = None if event.get("exchanges") else event["rounds"]  # the end of a fit is not known before
        self._task = self._bar.add_task(f"{self._noun}s", total=total, completed=event["done"], figures="")

    def _round(self, event: ProgressEvent) -> None:
        assert self._task is not None  # a run starts before its rounds
        if "test" in event:
            t = event["test"]
            names = [m for m in shown_in(Place.COURSE, event.get("task", CLASSIFICATION)) if m in t]
            figures = "  ".join(f"{metric_label(m)} {number(t[m], 3)}" for m in names)
            self._bar.update(self._task, advance=1, figures=figures)
        else:
            step = str(event.get("why", "")).partition(" (")[0] if self._noun == "exchange" else ""
            self._bar.update(self._task, advance=1, figures=step.partition(", ")[2])
        for note in event["notes"]:
            self._console.print(warn(note, f"{self._noun} {event['round']}:"))
        for site, why in event["missing"].items():
            self._console.print(warn(f"without {site} ({why})", f"{self._noun} {event['round']}:"))


def print_own_result(run: Run) -> bool:
    """Print a finished run in the form of its capability; False for a run that has none of its own, which prints its summary."""
    return any(load(printer)(run) for printer in collect("printers").values())


def show_summary(console: Console, summary: RunSummary, *, sites: int = 12, verbose: bool = False) -> None:
    """Print the findings of a run in plain language, then its main scores, overall, by site and by subgroup.

    Args:
        console: The terminal.
        summary: The summary of the run.
        sites: Sites to print at most.
        verbose: Print every score, the features and drift of explanations, trust and cost as well.
    """
    findings = describe_findings(summary)
    for sentence in findings:
        console.print(sentence, soft_wrap=True)
    if findings:
        console.print()
    _show_estimates(console, summary)
    _show_shapes(console, summary)
    if has_test_rows(summary):
        _show_scores(console, summary, verbose=verbose)
        show_sites(console, summary, most=sites, verbose=verbose)
        show_groups(console, summary, verbose=verbose)
        _show_fairness(console, summary, verbose=verbose)
    for task, m in summary.tasks.items():
        text = f"accuracy {number(m['accuracy'])} (majority {number(m['majority'])}), AUROC {number(m['auroc'], 3)}"
        console.print(f"task {task}: {m['sites']} sites, {m['classes']} classes, {text}", highlight=False)
    _show_separate(console, summary, most=sites)
    _show_shortcut(console, summary)
    for fact in method_facts(summary):
        console.print(str(fact), markup=False, highlight=False, soft_wrap=True)
    if verbose:
        _show_explanations(console, summary)
        _show_cost(console, summary)
    if summary.stopped:
        early = "" if summary.stopped.startswith(ENDED) else "stopped early: "
        console.print(f"{early}{summary.stopped}", highlight=False)
    for warning in summary.warnings:
        console.print(warn(warning), highlight=False, soft_wrap=True)
    console.print(f"privacy: {summary.privacy['statement']}", style="dim", highlight=False, soft_wrap=True)


def _show_shapes(console: Console, summary: RunSummary) -> None:
    """Print a risk card, the shapes of an additive model and the facts of boosted trees, where the run has them."""
    from grandrounds.report.shapes_text import model_texts

    for text in model_texts(summary, width=console.width):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        console.print()


def _show_estimates(console: Console, summary: RunSummary) -> None:
    """Print the estimates of a regression, Table 1, survival curves and a watch, where the run has them."""
    from grandrounds.report.estimates import read_estimates
    from grandrounds.report.tables import read_survival, read_table_one, survival_table

    record, first, survival = read_estimates(summary), read_table_one(summary), read_survival(summary)
    if record is not None:
        from grandrounds.report.estimates_text import summary_text

        label = str((summary.event or {}).get("label") or "")
        text = summary_text(record, label=label, hospitals=int(summary.sites["all"]), width=console.width)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if first is not None:
        console.print(first.summary(), markup=False, highlight=False, soft_wrap=True)
    if survival is not None:
        _show_table(console, survival_table(survival))
    show_watch(console, summary)
    show_quality(console, summary)


def show_watch(console: Console, summary: RunSummary) -> None:
    """Print the tables of a watch across hospitals, where the run is one."""
    from grandrounds.report.watch import watch_tables

    for told in watch_tables(summary):
        _show_table(console, told)


def show_quality(console: Console, summary: RunSummary) -> None:
    """Print the tables of a comparison of sites before training, where the run is one."""
    from grandrounds.report.quality import quality_tables

    for told in quality_tables(summary):
        _show_table(console, told)


def _show_table(console: Console, told: TextTable) -> None:
    for line in told.before:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table(title=told.title)
    for k, head in enumerate(told.head):
        table.add_column(styled(head), justify="left" if k < told.names else "right")
    for row in told.rows:
        table.add_row(*map(styled, row))
    console.print(table)
    for note in told.notes:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _show_scores(console: Console, summary: RunSummary, *, verbose: bool) -> None:
    """Print the scores on the test rows of all sites."""
    whose = describe_scored(summary)
    summary = deployed_scores(summary)
    final, gap = summary.final, summary.generalisation_gap
    table = Table(title=f"{summary.data}: {summary.method} after {rounds_line(summary)}, test rows of all sites{whose}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("note")
    if summary.task != CLASSIFICATION:
        loss = LOSS[summary.task]
        for metric in (*shown_in(Place.SCREEN, summary.task), *custom_metrics(final)):
            note = f"train minus test {number(gap[loss], 3)}" if metric == loss and loss in gap else ""
            if final.get(metric) is not None:
                table.add_row(metric_label(metric), number(final[metric]), note)
        console.print(table)
        return
    threshold = "" if summary.threshold is None else f"at a threshold of {percent(summary.threshold)}"
    chosen = f"{threshold}; " if summary.threshold not in (None, 0.5) else ""
    notes = {
        "accuracy": f"{chosen}{NO_MODEL}: {number(final['majority'])}",
        **{key: f"95% CI {number(low, 3)} to {number(high, 3)}" for key, (low, high) in intervals(final).items() if key in RANKS},
        "log_loss": f"train minus test {number(gap['log_loss'], 3)}" if gap else "",
        "calibration_slope": describe_calibration(final),
        "sensitivity": threshold,
    }
    shown = HEADLINES if verbose else [metric for metric in HEADLINES if metric in MAIN]
    for metric in (*shown, *custom_metrics(final)):
        value = decision_metric(metric, final)
        if value is not None:
            pooled = "all patients pooled" if metric == "auroc" and is_defined(final.get("auroc_within")) else ""
            remarks = (pooled, notes.get(metric, ""), binning_note(final, metric))
            table.add_row(metric_label(metric), number(value), "; ".join(note for note in remarks if note))
    console.print(table)


def _show_cost(console: Console, summary: RunSummary) -> None:
    """Print the size of the model, the data sent, and the time and memory used."""
    cost = summary.cost
    sent = (cost["bytes_down"] + cost["bytes_up"]) / 1e6
    console.print(
        f"{summary.parameters} parameters; {sent:.2f} MB sent in {cost['messages']:.0f} messages "
        f"({cost['evaluation_bytes'] / 1e6:.2f} MB of it for evaluation); {cost['seconds']:.2f} s of rounds, "
        f"{cost['virtual_seconds']:g} simulated seconds of training",
        highlight=False,
    )
    if machine_line(cost):
        console.print(machine_line(cost), highlight=False)


def _show_separate(console: Console, summary: RunSummary, *, most: int) -> None:
    """Print which models stay separate, what fine-tuning gave, and which sites attacked."""
    if summary.models:
        count = len(set(summary.models.values()))
        stay = "models stay" if count > 1 else "model stays"
        console.print(f"{count} {stay} separate: rounds predict RUN --for SITE", highlight=False)
    if summary.finetuned:
        tuned, final = summary.finetuned, summary.final
        metrics = ("accuracy", "log_loss") if summary.task == CLASSIFICATION else (HEADLINE[summary.task], LOSS[summary.task])
        changes = [
            f"{metric_label(m)} {number(tuned['final'][m])} (before: {number(final[m])})" for m in metrics
        ]
        console.print(
            f"each site fine-tuned for {tuned['epochs']} epochs: {', '.join(changes)}",
            highlight=False,
        )
    if summary.personal:
        _show_personal(console, summary, most=most)
    for site, kind in summary.attacks.get("sites", {}).items():
        console.print(warn(f"{site} ({kind})", "attack:"))
    for target, hit in summary.attacks.get("backdoor_success", {}).items():
        console.print(f"backdoor: {number(hit, 3)} of stamped test images are classified as {target}", highlight=False)


def _show_personal(console: Console, summary: RunSummary, *, most: int) -> None:
    """Print the models that sites deploy beside the common model, and whether hospitals differ."""
    found = read_deployed(summary)
    if found is None or found.stays:  # the findings say that choices and harm stay at the sites
        return
    if found.sites:
        _show_deployed(console, found, most=most)
    for sentence in (*patients_sentences(summary), *overview_sentences(summary)[:1]):
        console.print(sentence, highlight=False, soft_wrap=True)


def _show_deployed(console: Console, found: Deployed, *, most: int) -> None:
    """Print the scores of deployed models, harmed sites first."""
    is_class = found.task == CLASSIFICATION
    metric = "accuracy" if is_class else HEADLINE[found.task]
    table, base = Table(title="models that sites deploy, test rows by site"), describe_base(str(found.settings["part"]))
    heads = ("site", "deployed", metric_label(metric), base, *(("majority class",) if is_class else ()))
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k < 2 else "right")
    for site in found.sites[:most]:
        scores = [number(m.get(decision_key(metric, m)), 3) for m in (site.deployed, site.common)]
        deploys = "no model" if site.choice == MAJORITY else site.choice
        table.add_row(site.site, deploys, *scores, *([number(site.deployed.get("majority"), 3)] if is_class else []))
    console.print(table)


def _show_explanations(console: Console, summary: RunSummary) -> None:
    """Print the features that the model relies on, and how much explanations differ between sites."""
    explanation = summary.explanation
    if "top" in explanation:
        shares = ", ".join(f"{t['feature']} {t['share']:.0%}" for t in explanation["top"][:5])
        console.print(f"feature attributions ({explanation['explainer']}): {shares}", highlight=False)
    if summary.method != SSEAgg.name:  # SSE-AGG's drift is a number of its paper, which is printed always
        for fact in drift_facts(explanation):
            console.print(str(fact), markup=False, highlight=False, soft_wrap=True)


def _show_shortcut(console: Console, summary: RunSummary) -> None:
    """Print the effect of a shortcut in the images: scores with it and without, and its share of the attributions."""
    block = summary.shortcut
    if not block:
        return
    final, ood = summary.final, block["ood"]
    pairs = [
        f"{metric_label(m)} {number(final.get(m), 3)} -> {number(ood.get(m), 3)}"
        for m in shown_in(Place.SCREEN_SHORTCUT)
    ]
    console.print(
        f"shortcut (a corner patch tied to the label at {len(block['patches'])} sites), test rows with it -> without: "
        f"{', '.join(pairs)} (majority {number(ood['majority'], 3)}); spurious gap {number(block['spurious_gap'], 3)}",
        highlight=False,
    )
    labels = {"sam": "of local models on clean reference images", "sam_deployed": "of the final model on sites' own"}
    masses = [f"{number(block[key], 3)} {label}" for key, label in labels.items() if block[key] is not None]
    if masses:
        console.print(
            f"spurious mass, the share of attributions on the tile with the patch: {', '.join(masses)} "
            f"(by chance {number(block['chance'])})",
            highlight=False,
        )


def show_sites(console: Console, summary: RunSummary, *, most: int, verbose: bool = True) -> None:
    """Print sites, the lowest AUROC first, and name those below their own majority class.

    Args:
        console: The terminal.
        summary: The summary of the run.
        most: Sites to print at most.
        verbose: Print remarks on single sites as well: below the majority class, columns without values.
    """
    whose = describe_scored(summary)
    summary = deployed_scores(summary)
    per_site = summary.per_site
    if summary.task != CLASSIFICATION:
        _show_outcome_sites(console, summary, most=most, verbose=verbose)
        return
    order = rank_sites(per_site)
    events = any(is_defined(per_site[s].get("events")) for s in order)
    columns = shown_in(Place.SCREEN_SITES)
    table = Table(title=f"test rows by site, lowest AUROC first{whose}")
    table.add_column("site")
    for column in ("rows", *(("events",) if events else ()), "AUROC, 95% CI", "accuracy", *map(metric_label, columns)):
        table.add_column(column, justify="right")
    for site in order[:most]:
        m = per_site[site]
        count = [
            f"{m['count']:.0f}",
            *([f"{m['events']:.0f}" if is_defined(m.get("events")) else "-"] if events else []),
        ]
        figures = [number(m.get(k), 3) for k in (decision_key("accuracy", m), *columns)]
        table.add_row(site, *count, with_interval(m, "auroc"), *figures)
    console.print(table)
    if len(order) > most:
        console.print(f"and {len(order) - most} more sites: rounds show RUN --sites", style="dim", highlight=False)
    few = [site for site in order if not enough_rows(per_site[site])]
    if few:
        console.print(f"too few test rows to rank: {_named(few)}", style="dim", highlight=False, soft_wrap=True)
    if not verbose:
        return
    for line in majority_lines(summary):
        console.print(warn(line, "worse than a constant answer:"), highlight=False, soft_wrap=True)
    for site, notes in list(summary.notes.items())[:most]:
        console.print(f"{site}: {'; '.join(notes[:3])}{' ...' if len(notes) > 3 else ''}", style="dim", highlight=False)


def _show_outcome_sites(console: Console, summary: RunSummary, *, most: int, verbose: bool) -> None:
    """Print sites of a run that is no classification, the lowest headline metric first."""
    task, per_site = summary.task, summary.per_site
    order, columns = rank_sites(per_site, task), shown_in(Place.SCREEN_SITES, task)
    counts = ["rows", *(["events"] if any("events" in per_site[s] for s in order) else [])]
    table = Table(title=f"test rows by site, lowest {metric_label(HEADLINE[task])} first")
    table.add_column("site")
    for column in (*counts, *map(metric_label, columns)):
        table.add_column(column, justify="right")
    for site in order[:most]:
        m = per_site[site]
        numbers = [f"{m['count']:.0f}", *([number(m.get("events"), 0)] if "events" in counts else [])]
        table.add_row(site, *numbers, *(number(m.get(k), 3) for k in columns))
    console.print(table)
    if len(order) > most:
        console.print(f"and {len(order) - most} more sites: rounds show RUN --sites", style="dim", highlight=False)
    few = [site for site in order if not can_rank(per_site[site], task)]
    if few:
        console.print(f"too few test rows to rank: {_named(few)}", style="dim", highlight=False, soft_wrap=True)
    for site, notes in list(summary.notes.items())[: most if verbose else 0]:
        console.print(f"{site}: {'; '.join(notes[:3])}{' ...' if len(notes) > 3 else ''}", style="dim", highlight=False)


def with_interval(scores: Scores, metric: str) -> str:
    """Format a score and its 95% interval: '0.831 0.70-0.91'; a dash where it is undefined."""
    ends = intervals(scores).get(metric)
    value = number(scores.get(metric) if is_defined(scores.get(metric)) else None, 3)
    return value if ends is None else f"{value} {ends[0]:.2f}-{ends[1]:.2f}"


def _show_fairness(console: Console, summary: RunSummary, *, verbose: bool) -> None:
    """Print the groups of evaluation.subgroups, and a mitigation with its cost; `verbose`: all figures and gaps."""
    fairness = summary.fairness
    if not fairness:
        return
    by = ", models that sites deploy" if fairness.get("model") == "deployed" else ""
    tables = [(f"test rows by group, 95% CI (* the largest group){by}", *short_group_table(fairness))]
    if verbose:
        tables = [(f"test rows by {column}, with 95% CI", heads, rows) for column, heads, rows in group_tables(fairness)]
        tables.append((f"gaps between groups, {fairness['comparisons']} comparisons", *gap_table(fairness)))
    if has_correction(fairness):
        tables.append((f"{fairness['mitigation']['kind']} by group: test rows before → after", *mitigation_table(fairness)))
    for title, names, lines in tables:
        view = Table(title=title)
        for k, name in enumerate(names):
            view.add_column(name, justify="right" if k else "left")
        for line in lines:
            view.add_row(*line)
        console.print(view)
    for sentence in describe_merged(fairness):
        console.print(sentence, highlight=False, soft_wrap=True)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def show_groups(console: Console, summary: RunSummary, *, verbose: bool = True) -> None:
    """Print scores by subgroup with intervals, where a column was named, and name groups that are clearly worse."""
    whose = describe_scored(summary)
    summary = deployed_scores(summary)
    subgroups = summary.subgroups
    if not subgroups:
        return
    if summary.task != CLASSIFICATION:
        names = shown_in(Place.SUBGROUPS, summary.task)
        table = Table(title=f"test rows by subgroup{whose}")
        table.add_column("subgroup")
        for column in ("rows", *map(metric_label, names)):
            table.add_column(column, justify="right")
        for name, m in subgroups.items():
            table.add_row(name, f"{m['count']:.0f}", *(number(m.get(k), 3) for k in names))
        console.print(table)
        return
    events = any(is_defined(m.get("events")) for m in subgroups.values())
    table = Table(title=f"test rows by subgroup, with 95% CI{whose}")
    table.add_column("subgroup")
    columns = ("AUROC", "sensitivity", "accuracy", "ECE")
    for column in ("rows", *(("events",) if events else ()), *columns):
        table.add_column(column, justify="right")
    for name, m in subgroups.items():
        count = [
            f"{m['count']:.0f}",
            *([f"{m['events']:.0f}" if is_defined(m.get("events")) else "-"] if events else []),
        ]
        figures = [with_interval(m, k) for k in ("auroc", "sensitivity", decision_key("accuracy", m))]
        table.add_row(name, *count, *figures, number(m.get("ece"), 3))
    console.print(table)
    for line in group_lines(summary) if verbose else ():
        console.print(warn(line, "subgroup:"), highlight=False, soft_wrap=True)
