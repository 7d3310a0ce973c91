"""Statements about the data: sites, rows by site and part, outcome and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from grandrounds.capabilities.dossier.building.evidence import PLAN, PRIVACY, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.run_kind import (
    classifies,
    defined,
    has_event,
    is_deployed,
    reads_images,
    site_rows,
    task_of,
    trains_model,
    under_budget,
)
from grandrounds.core.outcome import COUNT, SURVIVAL
from grandrounds.methods.baselines import POOL
from grandrounds.metrics.fairness import is_defined

PARTS = {"train": "training", "val": "validation", "test": "test"}
"""Parts of the rows, and their names for people."""
SCORED = {"train": "training", "val": "validation", "test": "final"}
"""Parts of the rows, and the key of their figures in summary.json."""
MOST_SITES = 60
"""Sites that a table shows one by one; above, it shows their range."""
NAMED = 12
"""Names that a sentence lists."""


def list_names(facts: Facts, names: Sequence[str], rule: str, *sources: Value) -> Value:
    """Make a value of names: all of them, or the first and the number of the others."""
    rest = len(names) - NAMED
    shown = ", ".join(names) if rest <= 0 else f"{', '.join(names[:NAMED])} and {rest:,} more"
    return facts.derive(list(names), rule, *sources, text=shown)


def state_sites(facts: Facts) -> Iterator[Statement]:
    """State the number of sites and their names."""
    rows, source = site_rows(facts), facts.value(SUMMARY, "rows")
    number = facts.derive(len(rows), "number of sites with rows", source)
    if POOL in facts.raw(SUMMARY, "rows"):
        yield say("The data come from {number} sites; their training rows were pooled in one place.", number=number)
    else:
        training = count_training_sites(facts)
        yield say(
            "The data come from {number} sites, of which {training} took part in the analysis.",
            number=number,
            training=training,
        )
    yield say("The sites are: {names}.", names=list_names(facts, list(rows), "sites with rows", source))


def count_training_sites(facts: Facts) -> Value:
    """Count the sites that took part in training: those of the privacy account, else those of the summary."""
    if facts.get(PRIVACY, "took_part"):
        took_part = facts.value(PRIVACY, "took_part")
        return facts.derive(len(took_part.value), "number of sites that took part", took_part)
    return facts.value(SUMMARY, "sites", "training")


def state_site_origin(facts: Facts) -> Statement:
    """State whether sites are real, named by a column, or simulated."""
    table = facts.source(PLAN, "data", "table")
    if is_deployed(facts):
        return say("Each site kept its rows on its own machine; the server received none of them.", table)
    if facts.get(PLAN, "split", "partition") == "column":
        if not facts.has(PLAN, "data", "site"):
            return say("The data set names the site of each row.", facts.source(PLAN, "split", "partition"))
        return say("Column {site} of one table names the site of each row.", site=facts.value(PLAN, "data", "site"))
    return say(
        "The sites are simulated: one data set was divided by the rule '{rule}'. They are not hospitals.",
        rule=facts.value(PLAN, "split", "partition"),
    )


def state_data_set(facts: Facts) -> Iterator[Statement]:
    """Name the data set and the hash by which it is recognised."""
    if is_deployed(facts):
        yield say(
            "Every site read its own table by the schema on which the sites agreed.",
            facts.source(PLAN, "data", "table"),
        )
        return
    yield say("The data set is {data}.", data=facts.value(SUMMARY, "data"))
    if facts.has(PLAN, "data", "sha256"):
        yield say(
            "Its SHA-256 is {digest}; a repetition of the run refuses other data.",
            digest=facts.value(PLAN, "data", "sha256"),
        )


def state_rows(facts: Facts) -> Statement:
    """State the number of rows by part."""
    rows, source = facts.raw(SUMMARY, "rows"), facts.value(SUMMARY, "rows")
    totals = {part: sum(int(r.get(part, 0)) for r in rows.values()) for part in PARTS}
    values = {part: facts.derive(n, f"sum over sites of {part}", source) for part, n in totals.items()}
    whole = facts.derive(sum(totals.values()), "sum of all rows", source)
    return say(
        "The run used {whole} rows: {train} for training, {val} for validation and {test} for test.",
        whole=whole,
        **values,
    )


def state_unit(facts: Facts) -> Statement:
    """State what a row is, and whether patients can have several rows."""
    if reads_images(facts) and not facts.has(PLAN, "data", "patient"):
        return say("A row is an image. No column names the patient.", facts.source(PLAN, "data", "patient"))
    if facts.has(PLAN, "data", "patient"):
        return say(
            "Column {patient} names the patient; all rows of a patient are in the same part.",
            facts.source(PLAN, "split", "by"),
            patient=facts.value(PLAN, "data", "patient"),
        )
    return say(
        "No column names the patient, so each row counts as one participant.", facts.source(PLAN, "data", "patient")
    )


def tabulate_range(
    facts: Facts, title: str, figures: Mapping[str, Sequence[float]], source: Value, *, show: str
) -> Table:
    """Tabulate the range of figures over many sites.

    Args:
        facts: The facts.
        title: Title of the table.
        figures: Name -> the figure of each site that has it, one at least.
        source: The figures' source.
        show: Form of a figure.

    Returns:
        A table with number of sites, smallest figure, quartiles and largest.
    """
    rows: list[tuple[str | Value, ...]] = []
    for name, values in figures.items():
        cells = np.quantile(np.asarray(values, float), [0, 0.25, 0.5, 0.75, 1]).tolist()
        number = facts.derive(len(values), "sites with this figure", source)
        rows.append((name, number, *(facts.derive(q, "quantile over sites", source, show=show) for q in cells)))
    return Table(
        title, ("figure", "sites", "smallest", "first quartile", "median", "third quartile", "largest"), tuple(rows)
    )


def tabulate_sites(facts: Facts) -> Table:
    """Tabulate the rows of each site by part, with the events among test rows."""
    rows = site_rows(facts)
    if len(rows) > MOST_SITES:
        source = facts.value(SUMMARY, "rows")
        ranges = {f"{name} rows": [float(r.get(part, 0)) for r in rows.values()] for part, name in PARTS.items()}
        return tabulate_range(facts, f"Rows of {len(rows):,} sites", ranges, source, show=",.0f")
    counted = counts_events(facts) and trains_model(facts)
    body: list[tuple[str | Value, ...]] = []
    for site in rows:
        cells: list[str | Value] = [site]
        cells += [_count(facts, "rows", site, part) for part in PARTS]
        cells += [_count(facts, "per_site", site, "events")] if counted else []
        body.append(tuple(cells))
    heads = ("site", "training rows", "validation rows", "test rows", *(["events in test rows"] if counted else []))
    return Table("Rows by site", heads, tuple(body), (facts.source(SUMMARY, "rows"),))


def _count(facts: Facts, *path: str) -> str | Value:
    value = facts.get(SUMMARY, *path)
    return facts.value(SUMMARY, *path, show=",.0f") if is_defined(value) else "-"


USES = {"train": "development (training)", "val": "choice of threshold and calibration", "test": "evaluation"}
"""Parts of the rows, and the analysis that uses them."""


def counts_events(facts: Facts) -> bool:
    """Tell whether the outcome has events to count."""
    return has_event(facts) or task_of(facts) == SURVIVAL


def tabulate_analyses(facts: Facts) -> Table:
    """Tabulate participants in each analysis, with events where the outcome has them."""
    if counts_events(facts) and trains_model(facts):
        return tabulate_events(facts)
    if not trains_model(facts):
        described = facts.value(SUMMARY, "statistic", "rows")
        return Table("Participants in the analysis", ("analysis", "rows"), (("description of patients", described),))
    rows = tuple((use, _total(facts, part)) for part, use in USES.items())
    return Table("Participants in each analysis", ("analysis", "rows"), rows)


def tabulate_events(facts: Facts) -> Table:
    """Tabulate participants and events in each analysis: training, validation (choices), test (evaluation)."""
    if not counts_events(facts):
        raise MissingFact("the outcome has no event to count")
    body: list[tuple[str | Value, ...]] = []
    for part, use in USES.items():
        key = SCORED[part]
        if not is_defined(facts.get(SUMMARY, key, "events")):
            body.append((use, _total(facts, part), "-", "-"))
            continue
        events, count = (
            facts.value(SUMMARY, key, "events", show=",.0f"),
            facts.value(SUMMARY, key, "count", show=",.0f"),
        )
        share = events.value / count.value if count.value else None
        shown = facts.derive(share, "events / rows", events, count, show=".1%") if share is not None else "-"
        body.append((use, count, events, shown))
    return Table("Participants and events in each analysis", ("analysis", "rows", "events", "share"), tuple(body))


def _total(facts: Facts, part: str) -> Value:
    rows = facts.value(SUMMARY, "rows")
    return facts.derive(sum(int(r.get(part, 0)) for r in rows.value.values()), f"sum over sites of {part}", rows)


def state_events(facts: Facts) -> Iterator[Statement]:
    """State rows with and without the event among all test rows, and the share among training rows."""
    if not trains_model(facts):
        raise MissingFact("the run describes patients and evaluates no model on test rows")
    if not counts_events(facts):
        raise MissingFact("the outcome has no event to count")
    reason = "the run has no test rows, so events among them are not known"
    events, count = (
        defined(facts, "final", "events", reason=reason, show=",.0f"),
        defined(facts, "final", "count", show=",.0f"),
    )
    without = facts.derive(count.value - events.value, "rows - events", count, events, show=",.0f")
    yield say(
        "Of {count} test rows, {events} have the event and {without} do not.",
        count=count,
        events=events,
        without=without,
    )
    if is_defined(facts.get(SUMMARY, "event", "share")):
        yield say(
            "Among training rows the share of events is {share}.",
            share=facts.value(SUMMARY, "event", "share", show=".1%"),
        )


def require_follow_up(facts: Facts) -> Iterator[Statement]:
    """Ask for a summary of follow-up times, of a survival outcome.

    Raises:
        MissingFact: The outcome is survival, of which the run has no such summary.
    """
    if task_of(facts) == SURVIVAL:
        raise MissingFact("the run folder has no summary of follow-up times")
    return iter(())


def require_known_events(facts: Facts) -> Iterator[Statement]:
    """Ask for the events among training rows, of an outcome with events.

    Raises:
        MissingFact: They are not known, with the cause.
    """
    if counts_events(facts) and not is_defined(facts.get(SUMMARY, "training", "events")):
        cause = (
            "training rows are not scored under a privacy budget"
            if under_budget(facts)
            else "training rows were not scored"
        )
        raise MissingFact(f"{cause}, so the table has no count of their events")
    return iter(())


def state_outcome(facts: Facts) -> Iterator[Statement]:
    """Define the outcome as the run read it."""
    task = task_of(facts)
    if not classifies(facts):
        label = facts.value(SUMMARY, "outcome", "label") if facts.has(SUMMARY, "outcome", "label") else _label(facts)
        if task == SURVIVAL:
            yield say(
                "The outcome is the time to {label}; column {duration} has the follow-up time.",
                label=label,
                duration=facts.value(SUMMARY, "outcome", "duration")
                if facts.has(SUMMARY, "outcome", "duration")
                else facts.value(PLAN, "data", "duration"),
            )
        else:
            kind = facts.derive(
                task, "task of the run", facts.value(SUMMARY, "task"), text="a count" if task == COUNT else "a number"
            )
            yield say("The outcome is {label}, {kind}.", label=label, kind=kind)
        return
    if facts.has(PLAN, "data", "label"):
        yield say("The outcome is column {label}.", label=_label(facts))
    else:
        yield say("The outcome is the class of an image.", facts.source(PLAN, "data", "label"))
    if has_event(facts):
        event, other = facts.value(SUMMARY, "event", "class"), facts.value(SUMMARY, "event", "other")
        yield say("The event is '{event}', against '{other}'.", event=event, other=other)
    elif facts.get(SUMMARY, "classes"):
        classes = facts.value(SUMMARY, "classes")
        number = facts.derive(len(classes.value), "number of classes", classes)
        yield say("It has {number} classes: {classes}.", number=number, classes=classes)


def _label(facts: Facts) -> Value:
    return facts.value(PLAN, "data", "label")


def name_outcome(facts: Facts) -> Value:
    """Name the outcome in a few words: "died = 1", "days"."""
    if has_event(facts):
        label, event = facts.get(PLAN, "data", "label") or "class", facts.value(SUMMARY, "event", "class")
        return facts.derive(event.value, "label and event", event, text=f"{label} = {event.value}")
    if facts.has(SUMMARY, "outcome", "label"):
        return facts.value(SUMMARY, "outcome", "label")
    if facts.has(PLAN, "data", "label"):
        return _label(facts)
    return facts.derive("class of an image", "the plan names no label", facts.source(PLAN, "data", "label"))


def state_partition(facts: Facts) -> Iterator[Statement]:
    """State how rows were divided into training, validation and test."""
    scheme = facts.get(PLAN, "split", "scheme", default="within")
    official = bool(facts.get(PLAN, "split", "official", default=False)) and scheme == "within"
    if official and facts.has(PLAN, "data", "part"):
        yield say("Column {part} assigns rows to training and test.", part=facts.value(PLAN, "data", "part"))
    elif scheme == "within":
        by = facts.get(PLAN, "split", "by", default="auto")
        unit = ("patient" if facts.has(PLAN, "data", "patient") else "row") if by == "auto" else by
        how = {"patient": "by patient", "row": "row by row", "time": "in order of time"}.get(unit, unit)
        yield say(
            "Rows of each site were divided {how}; the plan sets {val} for validation and {test} for test.",
            how=facts.derive(
                unit, "split.by, or patient where a column names it", facts.source(PLAN, "split", "by"), text=how
            ),
            val=facts.value(PLAN, "split", "val", show=".0%"),
            test=facts.value(PLAN, "split", "test", show=".0%"),
        )
    if official and reads_images(facts):
        yield say(
            "Official test images of the data set, if any, are the test rows.", facts.source(PLAN, "split", "official")
        )
    if scheme != "within":
        rows, source = site_rows(facts), facts.value(SUMMARY, "rows")
        unseen = [site for site, r in rows.items() if r.get("test", 0) and not r.get("train", 0)]
        yield say(
            "The test rows are of sites that took no part in training ({scheme}): {names}.",
            scheme=facts.value(PLAN, "split", "scheme"),
            names=list_names(facts, unseen, "sites with test rows and without training rows", source),
        )
    if trains_model(facts):
        yield say(
            "Training rows fit the model. Validation rows choose threshold, calibration and early stop. "
            "Test rows choose nothing.",
            facts.source(PLAN, "evaluation"),
        )
    else:
        yield say("The description is of {rows} training rows.", rows=facts.value(SUMMARY, "statistic", "rows"))


def state_dates(facts: Facts) -> Statement:
    """Name the column that orders rows in time."""
    if not facts.has(PLAN, "data", "time"):
        raise MissingFact("the plan names no column of dates (data.time), and the run folder has no dates of patients")
    return say("Column {time} orders the rows in time.", time=facts.value(PLAN, "data", "time"))
