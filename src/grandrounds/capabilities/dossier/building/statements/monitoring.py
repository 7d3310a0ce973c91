"""Statements on watching a model in use: the checks, their false-alarm rates, and what sites recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from grandrounds.audit.watch_entry import ACKNOWLEDGE, ACTION, ALARM, SILENCE, START
from grandrounds.capabilities.dossier.building.evidence import WATCH, WATCH_LEDGERS
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, cite_page, say
from grandrounds.capabilities.watch.statistics.checks import (
    CALIBRATION,
    DISCRIMINATION,
    EXPLANATION,
    INPUT_KINDS,
    INPUT_SHARE,
    KINDS,
    LABEL_KINDS,
    NET_BENEFIT,
    PREVALENCE,
    SCORE,
    SHARES,
)
from grandrounds.capabilities.watch.statistics.threshold import ALARMS, PATIENTS

_COMMAND = "rounds watch RUN --table NEW --site SITE"
_START = f"no watch of a site is in the evidence (`{_COMMAND}` starts one; with a privacy budget it stays at the site)"
_NAMES = {ALARM: "alarm", ACKNOWLEDGE: "acknowledgement", SILENCE: "silence", ACTION: "action"}
_ACTIONS = {
    "inputs": "check the unit and the coding of the column, repair it",
    SCORE: "look for a change of patients or inputs",
    EXPLANATION: "look at the feature, retrain if patients changed",
    PREVALENCE: "recalibrate at the site",
    CALIBRATION: "recalibrate at the site",
    DISCRIMINATION: "retrain by the same plan",
    NET_BENEFIT: "recalibrate, choose the threshold again, or stop use",
}
_MOST = 40
"""Rows of the table of alarms and actions; the newest are shown."""


def state_watch(facts: Facts) -> Iterator[Statement]:
    """State how a model is watched at a site."""
    source = cite_page("watch.md")
    yield say(
        "`rounds watch` compares new patients of a hospital with its validation rows: inputs, scores, explanations.", source
    )
    yield say("With outcomes, it also checks prevalence, calibration, discrimination and net benefit.", source)
    yield say(
        f"The aim is {ALARMS:g} false alarms of all checks in {PATIENTS:,} patients, set by resampling a site's validation rows.",
        source,
    )
    yield say("Across hospitals only counts and sums leave: how many sites see a feature move, never a patient.", source)
    yield say("Each check has a stated false-alarm rate. Alarms and people's actions are signed entries of a ledger.", source)


def tabulate_plan(facts: Facts) -> Table:
    """List the kinds of checks of a watch, the share of the false alarms that each may have, and the action that fits."""
    source = cite_page("watch.md")
    shares = {kind: sum(share for (name, _), share in SHARES.items() if name == kind) for kind in KINDS}
    rows = [("inputs: " + ", ".join(INPUT_KINDS), "no", f"{INPUT_SHARE:.0%}", _ACTIONS["inputs"])]
    rows += [
        (kind, "yes" if kind in LABEL_KINDS else "no", f"{shares[kind]:.0%}", _ACTIONS[kind])
        for kind in KINDS
        if kind not in INPUT_KINDS
    ]
    columns = ("check", "needs outcomes", "share of the false alarms", "action")
    return Table("Checks of a watch (proposal of a plan)", columns, tuple(rows), (source,))


def _list_files(facts: Facts, folder: str) -> list[tuple[str, str]]:
    """List (site, file) of a folder of the evidence."""
    names = sorted(name for name in facts.evidence.files if name.startswith(f"{folder}/"))
    return [(name.removeprefix(f"{folder}/").removesuffix(".json"), name) for name in names]


def tabulate_watches(facts: Facts) -> Table:
    """List the watches of sites: patients, patients with an outcome, checks and alarms so far."""
    rows = tuple(_describe_watch(facts, site, name) for site, name in _list_files(facts, WATCH))
    if not rows:
        raise MissingFact(_START)
    return Table("Watches of sites", ("site", "patients", "with outcome", "checks", "alarms"), rows)


def _describe_watch(facts: Facts, site: str, name: str) -> tuple[str | Value, ...]:
    return (
        facts.derive(site, "name of the site", facts.source(name)),
        *(facts.value(name, key) if facts.has(name, key) else "" for key in ("patients", "labelled")),
        *(_count(facts, name, key) for key in ("checks", "alarms")),
    )


def _count(facts: Facts, name: str, key: str) -> str | Value:
    found = facts.get(name, key)
    if not isinstance(found, list | dict):
        return facts.value(name, key) if found is not None else ""
    return facts.derive(len(found), f"number of {key}", facts.source(name, key))


def tabulate_rates(facts: Facts) -> Table:
    """List the stated false-alarm rates of each watch, as its newest start recorded them."""
    rows = []
    for site, name in _list_files(facts, WATCH_LEDGERS):
        starts = [k for k, entry in enumerate(_entries(facts, name)) if entry["kind"] == START]
        if starts:
            rows.append(_describe_rates(facts, site, name, starts[-1]))
    if not rows:
        raise MissingFact(_START)
    columns = ("site", "checks", "false alarms in 5,000 patients, all checks", "patients per false alarm, one check", "since")
    return Table("Stated false-alarm rates", columns, tuple(rows))


def _describe_rates(facts: Facts, site: str, name: str, k: int) -> tuple[str | Value, ...]:
    path = ("entries", k, "entry")
    rates = facts.raw(name, *path, "rates")
    source = facts.source(name, *path, "rates")
    each = sorted(1 / float(rate) for rate in rates.values() if rate)
    text = f"{each[0]:,.0f} to {each[-1]:,.0f}" if each else ""
    return (
        facts.derive(site, "name of the site", facts.source(name)),
        facts.derive(len(rates), "number of checks with a rate", source),
        replace_text(facts.value(name, *path, "alarms_per_5000"), "at most {}"),
        facts.derive(each[:1] + each[-1:], "1 divided by the largest and the smallest rate", source, text=text),
        facts.value(name, *path, "date"),
    )


def replace_text(value: Value, form: str) -> Value:
    """Show a value within other words."""
    return replace(value, text=form.format(value.text))


def tabulate_actions(facts: Facts) -> Iterator[Table]:
    """List alarms, acknowledgements, silences and actions of sites, the newest last; nothing without a watch."""
    found: list[tuple[str, str, int, Mapping[str, Any]]] = []
    for site, name in _list_files(facts, WATCH_LEDGERS):
        found += [(site, name, k, entry) for k, entry in enumerate(_entries(facts, name)) if entry["kind"] in _NAMES]
    if not found:
        return
    found.sort(key=lambda row: str(row[3].get("date", "")))
    rows = tuple(_describe_action(facts, *row) for row in found[-_MOST:])
    title = "Alarms and actions of sites" if len(found) <= _MOST else f"The newest {_MOST} alarms and actions of sites"
    yield Table(title, ("site", "date", "entry", "content", "by"), rows)


def _describe_action(facts: Facts, site: str, name: str, k: int, entry: Mapping[str, Any]) -> tuple[str | Value, ...]:
    path = ("entries", k, "entry")
    key = {ALARM: "sentence", ACTION: "action", SILENCE: "check", ACKNOWLEDGE: "alarm"}[entry["kind"]]
    kind = facts.value(name, *path, "kind")
    return (
        facts.derive(site, "name of the site", facts.source(name)),
        facts.value(name, *path, "date"),
        replace(kind, text=_NAMES[entry["kind"]]),
        facts.value(name, *path, key),
        facts.value(name, *path, "by") if entry.get("by") else "",
    )


def state_actions(facts: Facts) -> Iterator[Statement]:
    """State how many actions sites recorded, such as recalibrations; nothing without a watch."""
    ledgers = _list_files(facts, WATCH_LEDGERS)
    if not ledgers:
        return
    actions = sum(entry["kind"] == ACTION for _, name in ledgers for entry in _entries(facts, name))
    sources = [facts.source(name) for _, name in ledgers]
    count = facts.derive(actions, "entries of kind action in the watches' ledgers", *sources)
    yield say("Actions that sites recorded after the study, such as recalibrations: {count}.", count=count)


def _entries(facts: Facts, name: str) -> list[Mapping[str, Any]]:
    return [item["entry"] for item in facts.raw(name, "entries")]
