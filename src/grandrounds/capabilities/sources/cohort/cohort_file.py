"""Reader of cohort files (`cohort.toml`).

One row of the table is one visit. The prediction is made `predict_at` after the visit starts; features come from records up
to then, the outcome from records after it. Names of sections and keys:

    name = "death in hospital"        # optional
    predict_at = "24 hours"           # after the visit starts; default "0 hours"
    [include]
    visit = ["inpatient"]             # words of VISITS; default: every visit
    first_visit = true                # only a patient's first such visit; default false
    age = [18, 120]                   # years at the prediction
    diagnoses = ["SNOMED:84114007"]   # recorded up to the end of the visit
    without_diagnoses = []
    look_back = "5 years"             # how long before the visit a diagnosis counts; default: always
    observed = "365 days"             # time under observation before the visit
    [outcome]
    death = "visit"                   # or "30 days"; or condition = [...] or measurement = [...] with within = "30 days"
    [features]
    age = true
    glucose = { measurement = ["LOINC:2345-7"], take = "last", unit = "mg/dL" }
    diabetes = { condition = ["diabetes"] }
    [concepts]
    diabetes = ["SNOMED:73211009", "ICD10CM:E11*"]

Concepts are codes with their vocabulary (`LOINC:2345-7`, `ATC:A10*`), OMOP concept ids (`OMOP:201826`, or the number), or
names of `[concepts]`. A star matches every code that begins so. Descendants count where the hospital has a vocabulary.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from grandrounds.capabilities.sources.cohort.definition import (
    ALL,
    DAY,
    DOMAINS,
    DURATION,
    HISTORY,
    HOUR,
    NUMERIC_TAKES,
    PATIENT,
    TAKES,
    VISIT,
    VISIT_START,
    VISITS,
    VOCABULARIES,
    Code,
    Cohort,
    ConceptSet,
    Feature,
    Inclusion,
    Outcome,
)
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.agreement.schema import check_keys, read_numbers, read_whole_number, read_word, read_words

_UNITS = {
    "h": HOUR,
    "hour": HOUR,
    "d": DAY,
    "day": DAY,
    "w": 7 * DAY,
    "week": 7 * DAY,
    "y": 365 * DAY,
    "year": 365 * DAY,
}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?")
_USUAL_WINDOW = 365 * DAY
_TOP = ("name", "about", "predict_at", "include", "outcome", "features", "concepts", "fewest_rows")
_INCLUDE = ("visit", "first_visit", "age", "diagnoses", "without_diagnoses", "look_back", "observed")
_OUTCOME = (
    "name", "death", "condition", "measurement", "within", "first", "take", "unit", "above", "below", "time_to_event",
    "complete_follow_up",
)  # fmt: skip
_FEATURE = (*DOMAINS, "take", "window", "unit", "range", "values", "about")
_SEPARATE = re.compile(r"[^0-9A-Za-z]+")


def read_cohort(path: Path) -> Cohort:
    """Read a cohort file.

    Args:
        path: A TOML file, or the JSON that `Cohort.to_dict` gives.

    Returns:
        The cohort.

    Raises:
        BadInput: The file cannot be read, or a value in it is wrong; the sentence names file, section and key.
    """
    try:
        text = path.read_text("utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as e:
        raise BadInput(
            f"the cohort file {path} cannot be read: {e.strerror or e}; write one with `rounds cohort draft`",
            code="unreadable-file",
        ) from None
    except ValueError as e:  # also of bytes that are no UTF-8
        raise BadInput(f"the cohort file {path} is not valid TOML: {e}", code="not-toml") from None
    if not isinstance(content, Mapping):
        raise BadInput(f"the cohort file {path} has no sections: write [outcome] and [features]", code="not-a-section")
    return parse_cohort({"name": path.stem, **content}, where=str(path))


def parse_cohort(plain: Mapping[str, object], *, where: str = "cohort.toml") -> Cohort:
    """Parse the plain values of a cohort file.

    Args:
        plain: The content of the file.
        where: The file, for messages.

    Returns:
        The cohort.

    Raises:
        BadInput: A value is wrong; the sentence names file, section and key.
    """
    check_keys(plain, _TOP, where)
    named = _read_named_sets(_section(plain, "concepts", where), where)
    features = _section(plain, "features", where)
    if not features:
        raise BadInput(f"{where} has no features: add [features] with age = true, or a concept set", code="no-columns")
    if "outcome" not in plain:
        raise BadInput(
            f'{where} has no outcome: add [outcome] with death = "visit", or a condition', code="label-not-set"
        )
    predict_at = read_span(plain.get("predict_at", "0 hours"), "predict_at", where)
    outcome = _read_outcome(_section(plain, "outcome", where), named, f"[outcome] of {where}")
    cohort = Cohort(
        outcome=outcome,
        features=tuple(_read_feature(str(n), v, named, where, predict_at) for n, v in features.items()),
        include=_read_inclusion(_section(plain, "include", where), named, f"[include] of {where}"),
        name=read_word(plain, "name", where) or "cohort",
        about=read_word(plain, "about", where) or "",
        predict_at=predict_at,
        fewest_rows=read_whole_number(plain, "fewest_rows", where, 8),
    )
    taken = [PATIENT, VISIT_START, outcome.name, *([DURATION] if outcome.time_to_event else [])]
    twice = next((f.name for f in cohort.features if f.name in taken), None)
    if twice is not None or len(set(taken)) < len(taken):
        raise BadInput(
            f"{where}: column '{twice or outcome.name}' has two roles; rename the feature or the outcome",
            code="conflicting-roles",
        )
    return cohort


def read_span(value: object, key: str, where: str) -> int:
    """Read a time such as "24 hours" or "30 days" as seconds.

    Raises:
        BadInput: It is none.
    """
    match = _SPAN.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    factor = None if match is None else _UNITS.get(match.group(2))
    if match is None or factor is None:
        raise BadInput(
            f'{where}: {key} is {value!r}; write a time such as "24 hours" or "30 days"', code="invalid-time-span"
        )
    return round(float(match.group(1)) * factor)


def read_codes(value: object, key: str, where: str, named: Mapping[str, ConceptSet] | None = None) -> tuple[Code, ...]:
    """Read a list of codes, OMOP concept ids and names of concept sets.

    Args:
        value: The list.
        key: Its key, for messages.
        where: Its place, for messages.
        named: The sets of `[concepts]`.

    Returns:
        The codes, without repetition.

    Raises:
        BadInput: An entry is no code and no known name.
    """
    entries = [value] if isinstance(value, str | int) else value
    if not isinstance(entries, Sequence) or not entries or isinstance(value, bool):
        raise BadInput(f'{where}: {key} is {value!r}; list codes such as "LOINC:2345-7"', code="no-concepts")
    codes: list[Code] = []
    for entry in entries:
        if isinstance(entry, int) and not isinstance(entry, bool) and entry > 0:
            codes.append(Code("OMOP", str(entry)))
        elif isinstance(entry, str) and named is not None and entry in named:
            codes += named[entry].codes
        else:
            codes.append(_read_code(entry, key, where, named or {}))
    return tuple(dict.fromkeys(codes))


def _read_code(entry: object, key: str, where: str, named: Mapping[str, ConceptSet]) -> Code:
    vocabulary, colon, code = entry.partition(":") if isinstance(entry, str) else ("", "", "")
    if not colon:
        known = nearest(str(entry), named) if named else 'a code is written with its vocabulary, such as "LOINC:2345-7"'
        raise BadInput(
            f"{where}: {key} names {entry!r}, which is no code and no set of [concepts]; {known}",
            code="unknown-concept-set",
        )
    by_name = {_SEPARATE.sub("", v).lower(): v for v in VOCABULARIES} | {
        "snomedct": "SNOMED",
        "rxnormextension": "RxNorm",
    }
    found = by_name.get(_SEPARATE.sub("", vocabulary).lower())
    if found is None:
        raise BadInput(
            f"{where}: {key} names vocabulary '{vocabulary}'; {nearest(vocabulary, VOCABULARIES)}",
            code="unknown-vocabulary",
        )
    code, prefix = code.strip().removesuffix("*"), code.strip().endswith("*")
    if not code or "*" in code or (found == "OMOP" and (prefix or not code.isdigit())):
        raise BadInput(
            f"{where}: {key} has the code {entry!r}; write a code, with a star only at its end (OMOP ids are whole numbers)",
            code="invalid-concept-code",
        )
    return Code(found, code, prefix)


def _read_named_sets(section: Mapping[str, object], where: str) -> dict[str, ConceptSet]:
    return {name: ConceptSet(name, read_codes(v, name, f"[concepts] of {where}")) for name, v in section.items()}


def _section(plain: Mapping[str, object], name: str, where: str) -> Mapping[str, object]:
    value = plain.get(name, {})
    if not isinstance(value, Mapping):
        raise BadInput(f"{where}: {name} is not a section: write [{name}]", code="not-a-section")
    return value


def _read_flag(plain: Mapping[str, object], key: str, where: str, usual: bool = False) -> bool:
    value = plain.get(key, usual)
    if not isinstance(value, bool):
        raise BadInput(f"{where}: {key} is {value!r}; write true or false", code="wrong-type")
    return value


def _read_number(plain: Mapping[str, object], key: str, where: str) -> float | None:
    value = plain.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadInput(f"{where}: {key} is {value!r}; give a number", code="wrong-type")
    return None if value is None else float(value)


def _read_range(plain: Mapping[str, object], key: str, where: str) -> tuple[float, float] | None:
    numbers = read_numbers(plain, key, where, 2)
    if numbers and numbers[0] >= numbers[1]:
        raise BadInput(f"{where}: {key} goes from low to high", code="unordered-range")
    return (numbers[0], numbers[1]) if numbers else None


def _read_inclusion(plain: Mapping[str, object], named: Mapping[str, ConceptSet], where: str) -> Inclusion:
    check_keys(plain, _INCLUDE, where)
    visits = read_words(plain, "visit", where)
    odd = next((v for v in visits if v not in VISITS), None)
    if odd is not None:
        raise BadInput(f"{where}: visit names '{odd}'; {nearest(odd, VISITS)}", code="unknown-visit-type")
    sets = {
        key: ConceptSet(key, read_codes(plain[key], key, where, named)) if plain.get(key) else None
        for key in ("diagnoses", "without_diagnoses")
    }
    return Inclusion(
        visits=visits,
        first_visit=_read_flag(plain, "first_visit", where),
        age=_read_range(plain, "age", where),
        look_back=read_span(plain["look_back"], "look_back", where) if "look_back" in plain else None,
        observed=read_span(plain["observed"], "observed", where) if "observed" in plain else 0,
        **sets,
    )


def _read_outcome(plain: Mapping[str, object], named: Mapping[str, ConceptSet], where: str) -> Outcome:
    check_keys(plain, _OUTCOME, where)
    kinds = [kind for kind in ("death", "condition", "measurement") if kind in plain]
    if len(kinds) != 1:
        raise BadInput(
            f'{where} has {len(kinds)} of death, condition and measurement; write one, such as death = "visit"',
            code="conflicting-settings",
        )
    death, measurement = kinds == ["death"], kinds == ["measurement"]
    horizon = plain["death"] if death else plain.get("within")
    if death and "within" in plain:
        raise BadInput(f'{where}: write the horizon once, as death = "30 days"', code="conflicting-settings")
    if horizon is None:
        raise BadInput(f'{where} has no horizon: add within = "30 days", or "visit"', code="invalid-time-span")
    within = None if horizon == VISIT else read_span(horizon, "death" if death else "within", where)
    if within == 0:
        raise BadInput(
            f"{where}: the horizon is {horizon!r}, in which nothing can happen; write a longer time",
            code="invalid-time-span",
        )
    stray = next((k for k in ("take", "unit", "above", "below") if k in plain and not measurement), None)
    if stray or (measurement and (plain.get("time_to_event") or plain.get("first"))):
        raise BadInput(
            f"{where}: {stray or 'time_to_event or first'} does not go with {kinds[0]}", code="conflicting-settings"
        )
    concepts = None if death else ConceptSet(kinds[0], read_codes(plain[kinds[0]], kinds[0], where, named))
    take = read_word(plain, "take", where) or "max"
    if take not in NUMERIC_TAKES:
        raise BadInput(f"{where}: take is '{take}'; {nearest(take, NUMERIC_TAKES)}", code="unknown-aggregation")
    above, below = _read_number(plain, "above", where), _read_number(plain, "below", where)
    if above is not None and below is not None:
        raise BadInput(f"{where}: write above or below, not both", code="conflicting-settings")
    return Outcome(
        name=read_word(plain, "name", where) or ("died" if death else "outcome"),
        kind="death" if death else "measurement" if measurement else "condition",
        within=within,
        concepts=concepts,
        first=_read_flag(plain, "first", where),
        take=take,
        unit=read_word(plain, "unit", where) or "",
        above=above,
        below=below,
        time_to_event=_read_flag(plain, "time_to_event", where),
        complete_follow_up=_read_flag(plain, "complete_follow_up", where, usual=True),
    )


def _read_feature(name: str, value: object, named: Mapping[str, ConceptSet], where: str, predict_at: int) -> Feature:
    where = f"[features] of {where}, {name}"
    if name in ("age", "sex") and value is True:
        return Feature(name, "age" if name == "age" else "sex")
    if not isinstance(value, Mapping):
        raise BadInput(
            f'{where}: write {name} = {{ measurement = ["LOINC:2345-7"], take = "last" }}; only age and sex take true',
            code="not-a-section",
        )
    check_keys(value, _FEATURE, where)
    domains = [d for d in DOMAINS if d in value]
    if len(domains) != 1:
        raise BadInput(f"{where} has {len(domains)} of {', '.join(DOMAINS)}; write one", code="conflicting-settings")
    domain = domains[0]
    numeric = domain in ("measurement", "observation")
    words = _section(value, "values", where)
    values = tuple(ConceptSet(str(w), read_codes(v, f"values.{w}", where, named)) for w, v in words.items())
    take = read_word(value, "take", where) or ("last" if numeric else "any")
    if take not in TAKES:
        raise BadInput(f"{where}: take is '{take}'; {nearest(take, TAKES)}", code="unknown-aggregation")
    if values and take not in ("last", "first"):
        raise BadInput(
            f"{where}: take is '{take}', and coded values have a last or a first only", code="unknown-aggregation"
        )
    if not numeric and take in NUMERIC_TAKES:
        raise BadInput(
            f"{where}: take is '{take}', and a {domain} has no value; use any, count or days_since",
            code="unknown-aggregation",
        )
    usual = HISTORY if not numeric else VISIT if predict_at else _USUAL_WINDOW
    window = value.get("window", usual)
    if "window" in value and window not in (VISIT, HISTORY, ALL):
        window = read_span(window, "window", where)
    assert isinstance(window, str | int)
    unit, limits = read_word(value, "unit", where) or "", _read_range(value, "range", where)
    if (unit or limits) and (take not in NUMERIC_TAKES or values):
        raise BadInput(f"{where}: unit and range are of numbers, and take is '{take}'", code="conflicting-settings")
    concepts = ConceptSet(name, read_codes(value[domain], domain, where, named))
    return Feature(name, domain, concepts, take, window, unit, limits, values, read_word(value, "about", where) or "")
