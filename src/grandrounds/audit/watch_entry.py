"""Entries in the ledger of a watch: its start, readings, alarms, notices to others, and decisions of people.

A hospital that watches a model after the study has a ledger of its own, beside the watch and signed by the site. No entry has a
value of a patient: an alarm names a check, a column, counts and means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

Content = dict[str, Any]

START, READING, ALARM, NOTICE = "watch-start", "reading", "alarm", "notice"
SILENCE, ACKNOWLEDGE, ACTION = "silence", "acknowledge", "action"
KINDS = (START, READING, ALARM, NOTICE, SILENCE, ACKNOWLEDGE, ACTION)

DELIVERED = "delivered"
"""Result of a notice whose command ended well; any other text says why it failed."""

_NUMBER, _NULL = (int, float), type(None)
_COMMON: Mapping[str, tuple[Any, bool]] = {"run": (str, True), "site": (str, True), "date": (str, True)}
_PERSON: Mapping[str, tuple[Any, bool]] = {**_COMMON, "by": (str, True), "note": (str, True)}
PARTS: Mapping[str, Mapping[str, tuple[Any, bool]]] = {
    START: {
        **_COMMON,
        "study": (dict, True),
        "model": (str, True),
        "baseline": (str, True),
        "rates": (dict, True),
        "alarms_per_5000": (_NUMBER, True),
        "keys": (dict, True),
    },
    READING: {
        **_COMMON,
        "new": (int, True),
        "patients": (int, True),
        "labelled": (int, True),
        "alarms": (int, True),
        "status": (dict, True),
        "state": (str, False),
    },
    ALARM: {
        **_COMMON,
        "alarm": (str, True),
        "check": (str, True),
        "type": (str, True),
        "column": ((str, _NULL), True),
        "direction": (str, True),
        "patient": (int, True),
        "since": (int, True),
        "patients": (int, True),
        "sentence": (str, True),
        "details": (list, True),
        "advice": (list, True),
        "figures": (dict, True),
        "hashes": (dict, True),
    },
    NOTICE: {**_COMMON, "alarm": (str, True), "hook": (str, True), "result": (str, True)},
    SILENCE: {**_PERSON, "check": (str, True), "until": ((str, _NULL), True), "patients": ((int, _NULL), True)},
    ACKNOWLEDGE: {**_PERSON, "alarm": (str, True)},
    ACTION: {
        **_PERSON,
        "alarm": ((str, _NULL), True),
        "action": (str, True),
        "figures": (dict, True),
        "models": (dict, False),
    },
}
"""Parts of each kind of entry: types, and whether they are required."""

_STUDY = {"folder": str, "entries": int, "root": str}


def start_entry(
    run: str,
    *,
    site: str,
    date: str,
    study: Mapping[str, object],
    model: str,
    baseline: str,
    rates: Mapping[str, float],
    alarms_per_5000: float,
    key: bytes,
    made: str,
) -> Content:
    """Create the first entry of a watch, and of a watch that starts again with another model or baseline.

    Args:
        run: Name of the run.
        site: The site.
        date: Day and time, UTC.
        study: The run's folder name, and the size and root of its ledger; 0 and "" without a ledger.
        model: SHA-256 of the model that the site uses.
        baseline: SHA-256 of the file of the reference rows' summaries.
        rates: The stated false-alarm rate of each check, per patient.
        alarms_per_5000: The stated bound over all checks, in alarms per 5,000 patients.
        key: The site's public key, which signs this ledger.
        made: How the key was made.

    Returns:
        The content.
    """
    keys = {"site": key.hex(), "made": made}
    facts = {"study": dict(study), "model": model, "baseline": baseline, "rates": dict(rates)}
    return {"kind": START, "run": run, "site": site, "date": date, **facts, "alarms_per_5000": alarms_per_5000, "keys": keys}


def part_fault(content: Content) -> str:
    """Name a part of an entry of a watch whose values are of the wrong form; "" if there is none."""
    kind = content["kind"]
    if kind == START:
        if not all(isinstance(content["study"].get(name), type_) for name, type_ in _STUDY.items()):
            return "it does not name the run by its folder and the entries and root of its ledger"
        if not isinstance(content["keys"].get("made"), str):
            return "its 'keys' do not state how they were made"
        if not _are_numbers(content["rates"]):
            return "its 'rates' are not numbers by check"
    for name in ("status", "hashes"):
        if not all(isinstance(v, str) for v in content.get(name, {}).values()):
            return f"its '{name}' are not hashes by name"
    if kind == ALARM and not all(isinstance(v, str) for v in (*content["details"], *content["advice"])):
        return "its 'details' or 'advice' are not sentences"
    if kind in (ALARM, ACTION) and not _are_numbers(content["figures"]):
        return "its 'figures' are not numbers by name"
    if kind == ACTION and not all(isinstance(v, str) for v in content.get("models", {}).values()):
        return "its 'models' are not hashes by name"
    if kind == SILENCE and content["until"] is None and content["patients"] is None:
        return "it silences a check without an end"
    if kind == SILENCE and content["until"] is not None and not _is_time(content["until"]):
        return "its 'until' is not a time with its zone"
    return ""


def order_faults(contents: Sequence[Content]) -> Iterator[tuple[object, str]]:
    """Find entries that do not fit those before them, by number: an unknown alarm or check, an alarm twice, another site.

    Args:
        contents: The entries of the ledger of a watch, each of a valid form.

    Yields:
        The entry's number and its fault.
    """
    site = contents[0]["site"] if contents else ""
    alarms: set[str] = set()
    checks: set[str] = set()
    patients = 0
    for content in contents:
        number, kind = content.get("number"), content["kind"]
        if content["site"] != site:
            yield number, f"it is of site {content['site']!r}, but the watch of {site!r}"
        if kind == START:
            checks |= set(content["rates"])
            patients = 0
            if content["keys"] != contents[0].get("keys"):
                yield number, "the watch starts again with another key"
        if kind == READING:
            if content["patients"] < patients:
                yield number, f"it counts {content['patients']} patients, after {patients} were read"
            patients = content["patients"]
        if kind == ALARM and content["alarm"] in alarms:
            yield number, f"alarm {content['alarm']!r} is there already"
        if kind in (ALARM, SILENCE) and content["check"] not in checks:
            yield number, f"the watch has no check {content['check']!r}"
        if kind == ALARM:
            alarms.add(content["alarm"])
        elif content.get("alarm") is not None and content["alarm"] not in alarms:
            yield number, f"no entry before it raises alarm {content['alarm']!r}"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _are_numbers(values: Mapping[str, object]) -> bool:
    return all(isinstance(v, _NUMBER) and not isinstance(v, bool) for v in values.values())
