"""Cohort files: what they mean, that they survive writing and reading, and one sentence for every mistake."""

from __future__ import annotations

import copy
import json
import tomllib

import pytest

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort, read_cohort, read_span
from grandrounds.capabilities.sources.cohort.definition import Code, Cohort, write_span
from grandrounds.core.errors import BadInput

FILE = """
name = "death in hospital"
about = "Adults with heart failure"
predict_at = "24 hours"
fewest_rows = 20
[include]
visit = ["inpatient", "icu"]
first_visit = true
age = [18, 90.5]
diagnoses = ["heart failure", 316139]
without_diagnoses = ["SNOMED:1"]
look_back = "5 years"
observed = "1 week"
[outcome]
death = "30 days"
name = "dead"
complete_follow_up = false
[features]
age = true
sex = true
glucose = { measurement = ["LOINC:2345-7"], take = "max", unit = "mg/dL", range = [10, 1000], window = "36 hours" }
smoker = { observation = ["LOINC:72166-2"], values = { yes = ["SNOMED:77176002"], no = ["SNOMED:266919005"] }, window = "all" }
diabetes = { condition = ["diabetes"] }
insulin = { drug = ["ATC:A10A*"], take = "days_since" }
dialysis = { procedure = ["CPT4:90935"], take = "count", window = "history" }
[concepts]
"heart failure" = ["SNOMED-CT:84114007", "icd10cm:I50*"]
diabetes = ["SNOMED:73211009", "ICD10CM:E11*", "SNOMED:73211009"]
"""
SMALL = {"outcome": {"death": "visit"}, "features": {"age": True}}


def parse_text(text: str = FILE) -> Cohort:
    return parse_cohort(tomllib.loads(text))


def test_a_file_has_every_rule_in_seconds_and_codes():
    cohort = parse_text()
    include = cohort.include
    assert (cohort.predict_at, cohort.fewest_rows, cohort.name) == (86400, 20, "death in hospital")
    assert include.diagnoses is not None
    assert include.diagnoses.codes == (
        Code("SNOMED", "84114007"),
        Code("ICD10CM", "I50", prefix=True),
        Code("OMOP", "316139"),
    )
    assert (include.visits, include.first_visit, include.age) == (("inpatient", "icu"), True, (18, 90.5))
    assert (include.look_back, include.observed) == (5 * 365 * 86400, 7 * 86400)
    outcome = cohort.outcome
    assert (outcome.name, outcome.within, outcome.complete_follow_up) == ("dead", 30 * 86400, False)
    windows = {f.name: (f.take, f.window) for f in cohort.features}
    assert windows == {
        "age": ("last", "visit"), "sex": ("last", "visit"), "glucose": ("max", 36 * 3600), "smoker": ("last", "all"),
        "diabetes": ("any", "history"), "insulin": ("days_since", "history"), "dialysis": ("count", "history"),
    }  # fmt: skip
    assert [str(c) for f in cohort.features if f.name == "diabetes" and f.concepts for c in f.concepts.codes] == [
        "SNOMED:73211009",
        "ICD10CM:E11*",
    ]


@pytest.mark.parametrize(
    "outcome, task",
    [
        ({"death": "visit"}, "classification"),
        ({"death": "1 year", "time_to_event": True}, "survival"),
        ({"condition": ["SNOMED:1"], "within": "visit"}, "classification"),
        ({"condition": ["SNOMED:1"], "within": "90 days", "first": True, "time_to_event": True}, "survival"),
        ({"measurement": ["LOINC:1"], "within": "3 days", "take": "mean", "unit": "mg/dL"}, "regression"),
        ({"measurement": ["LOINC:1"], "within": "visit", "above": 0}, "classification"),
        ({"measurement": ["LOINC:1"], "within": "visit", "below": 1.5}, "classification"),
    ],
)
def test_outcomes_have_a_task_and_survive_writing_and_reading(outcome, task):
    cohort = parse_cohort(SMALL | {"outcome": outcome})
    assert cohort.outcome.task == task == cohort.schema().task
    assert parse_cohort(cohort.to_dict()) == cohort
    assert parse_cohort(json.loads(json.dumps(cohort.to_dict()))).digest() == cohort.digest()


def test_the_schema_has_kinds_units_and_roles():
    schema = parse_text().schema()
    kinds = {c.name: (c.kind, c.unit, c.values) for c in schema.columns}
    assert kinds == {
        "age": ("number", "years", ()), "sex": ("category", "", ("female", "male", "other")),
        "glucose": ("number", "mg/dL", ()), "smoker": ("category", "", ("yes", "no")),
        "diabetes": ("binary", "", ("0", "1")), "insulin": ("number", "days", ()), "dialysis": ("number", "", ()),
    }  # fmt: skip
    assert (schema.label, schema.patient, schema.time, schema.event) == ("dead", "patient", "visit_start", "1")
    survival = parse_cohort(SMALL | {"outcome": {"death": "1 year", "time_to_event": True}}).schema()
    assert (survival.duration, survival.classes) == ("days", ())


def test_numbers_are_of_the_year_before_where_the_prediction_is_at_the_start():
    features = {"glucose": {"measurement": ["LOINC:2345-7"]}}
    assert parse_cohort(SMALL | {"features": features}).features[0].window == 365 * 86400
    assert parse_cohort(SMALL | {"features": features, "predict_at": "1 hour"}).features[0].window == "visit"


def test_a_cohort_survives_writing_and_reading_as_plain_values():
    cohort = parse_text()
    plain = cohort.to_dict()
    assert parse_cohort(plain) == cohort
    assert parse_cohort(json.loads(json.dumps(plain))) == cohort
    assert parse_cohort(plain).to_dict() == plain


def test_the_digest_depends_on_meaning_alone():
    """A digest that is written down here may never change: signed cohorts have it."""
    cohort = parse_text()
    moved = "# a comment\n" + FILE.replace("age = [18, 90.5]\n", "").replace(
        "[include]\n", "[include]\nage = [18, 90.5]\n"
    )
    renamed = FILE.replace("diabetes = [", "sugar = [").replace('condition = ["diabetes"]', 'condition = ["sugar"]')
    hours = FILE.replace('predict_at = "24 hours"', 'predict_at = "1 day"')
    assert {parse_text(text).digest() for text in (moved, renamed, hours)} == {cohort.digest()}
    assert parse_cohort(SMALL).digest() == "9451536e2687516f541ffbeec56c8472ec904407b6f604ae5ba2bd8f568c3577"
    changed = [
        FILE.replace('"mg/dL"', '"mmol/L"'), FILE.replace("ICD10CM:E11*", "ICD10CM:E11"), FILE.replace("90.5", "90"),
        FILE.replace("complete_follow_up = false", ""), FILE.replace("age = true\nsex = true", "sex = true\nage = true"),
        FILE.replace("fewest_rows = 20", "fewest_rows = 21"),
    ]  # fmt: skip
    assert len({parse_text(text).digest() for text in changed} | {cohort.digest()}) == len(changed) + 1


@pytest.mark.parametrize("seconds", [0, 1, 1800, 3600, 5400, 86400, 86486, 90 * 86400, 86400086, 10**9 + 7])
def test_spans_survive_writing_and_reading(seconds):
    assert read_span(write_span(seconds), "x", "x") == seconds


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("24 hours", 86400),
        ("1h", 3600),
        ("2 Weeks", 1209600),
        ("0.5 d", 43200),
        (" 1 year ", 365 * 86400),
        ("3y", 94608000),
    ],
)
def test_spans(text, seconds):
    assert read_span(text, "x", "x") == seconds


def change(path: str, value: object) -> dict:
    """Change one value of the file; None removes it."""
    plain = copy.deepcopy(tomllib.loads(FILE))
    *outer, last = path.split("/")
    place = plain
    for key in outer:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return plain


MISTAKES = [
    (
        "wher",
        1,
        "unknown-key",
        "unknown key 'wher' in cohort.toml; known: name, about, predict_at, include, outcome, features, concepts, fewest_rows",
    ),
    ("features", None, "no-columns", "cohort.toml has no features: add [features] with age = true, or a concept set"),
    (
        "outcome",
        None,
        "label-not-set",
        'cohort.toml has no outcome: add [outcome] with death = "visit", or a condition',
    ),
    ("include", 3, "not-a-section", "cohort.toml: include is not a section: write [include]"),
    ("concepts", ["SNOMED:1"], "not-a-section", "cohort.toml: concepts is not a section: write [concepts]"),
    (
        "predict_at",
        24,
        "invalid-time-span",
        'cohort.toml: predict_at is 24; write a time such as "24 hours" or "30 days"',
    ),
    (
        "predict_at",
        "24 parsecs",
        "invalid-time-span",
        'cohort.toml: predict_at is \'24 parsecs\'; write a time such as "24 hours" or "30 days"',
    ),
    (
        "outcome/name",
        "age",
        "conflicting-roles",
        "cohort.toml: column 'age' has two roles; rename the feature or the outcome",
    ),
    (
        "outcome/name",
        "patient",
        "conflicting-roles",
        "cohort.toml: column 'patient' has two roles; rename the feature or the outcome",
    ),
    (
        "features/visit_start",
        {"condition": ["SNOMED:1"]},
        "conflicting-roles",
        "cohort.toml: column 'visit_start' has two roles; rename the feature or the outcome",
    ),
    (
        "include/visits",
        ["icu"],
        "unknown-key",
        "unknown key 'visits' in [include] of cohort.toml; did you mean 'visit'? known: visit, first_visit, "
        "age, diagnoses, without_diagnoses, look_back, observed",
    ),
    (
        "include/visit",
        ["ward"],
        "unknown-visit-type",
        "[include] of cohort.toml: visit names 'ward'; known: inpatient, outpatient, emergency, icu, other",
    ),
    ("include/first_visit", "yes", "wrong-type", "[include] of cohort.toml: first_visit is 'yes'; write true or false"),
    ("include/age", [18], "wrong-type", "[include] of cohort.toml: age is [18]; give 2 numbers"),
    ("include/age", [90, 18], "unordered-range", "[include] of cohort.toml: age goes from low to high"),
    (
        "include/diagnoses",
        ["heart failur"],
        "unknown-concept-set",
        "[include] of cohort.toml: diagnoses names 'heart failur', which is no code and no set of "
        "[concepts]; did you mean 'heart failure'? known: heart failure, diabetes",
    ),
    (
        "include/diagnoses",
        {"a": 1},
        "no-concepts",
        "[include] of cohort.toml: diagnoses is {'a': 1}; list codes such as \"LOINC:2345-7\"",
    ),
    (
        "include/look_back",
        "ever",
        "invalid-time-span",
        '[include] of cohort.toml: look_back is \'ever\'; write a time such as "24 hours" or "30 days"',
    ),
    (
        "include/observed",
        True,
        "invalid-time-span",
        '[include] of cohort.toml: observed is True; write a time such as "24 hours" or "30 days"',
    ),
    (
        "concepts/diabetes",
        [],
        "no-concepts",
        '[concepts] of cohort.toml: diabetes is []; list codes such as "LOINC:2345-7"',
    ),
    (
        "concepts/diabetes",
        ["E11"],
        "unknown-concept-set",
        "[concepts] of cohort.toml: diabetes names 'E11', which is no code and no set of [concepts]; a code "
        'is written with its vocabulary, such as "LOINC:2345-7"',
    ),
    (
        "concepts/diabetes",
        ["ICD11:5A11"],
        "unknown-vocabulary",
        "[concepts] of cohort.toml: diabetes names vocabulary 'ICD11'; did you mean 'ICD10'? known: LOINC, "
        "SNOMED, ICD10, ICD10CM, ICD10GM, ICD9CM, ATC, RxNorm, OMOP, UCUM, CPT4",
    ),
    (
        "concepts/diabetes",
        ["ICD10CM:"],
        "invalid-concept-code",
        "[concepts] of cohort.toml: diabetes has the code 'ICD10CM:'; write a code, with a star only at its "
        "end (OMOP ids are whole numbers)",
    ),
    (
        "concepts/diabetes",
        ["ICD10CM:E*1"],
        "invalid-concept-code",
        "[concepts] of cohort.toml: diabetes has the code 'ICD10CM:E*1'; write a code, with a star only at "
        "its end (OMOP ids are whole numbers)",
    ),
    (
        "concepts/diabetes",
        ["OMOP:E11"],
        "invalid-concept-code",
        "[concepts] of cohort.toml: diabetes has the code 'OMOP:E11'; write a code, with a star only at its "
        "end (OMOP ids are whole numbers)",
    ),
    (
        "concepts/diabetes",
        ["OMOP:20*"],
        "invalid-concept-code",
        "[concepts] of cohort.toml: diabetes has the code 'OMOP:20*'; write a code, with a star only at its "
        "end (OMOP ids are whole numbers)",
    ),
    (
        "concepts/diabetes",
        [0],
        "unknown-concept-set",
        "[concepts] of cohort.toml: diabetes names 0, which is no code and no set of [concepts]; a code is "
        'written with its vocabulary, such as "LOINC:2345-7"',
    ),
    (
        "concepts/diabetes",
        True,
        "no-concepts",
        '[concepts] of cohort.toml: diabetes is True; list codes such as "LOINC:2345-7"',
    ),
    (
        "outcome",
        {},
        "conflicting-settings",
        '[outcome] of cohort.toml has 0 of death, condition and measurement; write one, such as death = "visit"',
    ),
    (
        "outcome",
        {"death": "visit", "condition": ["SNOMED:1"]},
        "conflicting-settings",
        '[outcome] of cohort.toml has 2 of death, condition and measurement; write one, such as death = "visit"',
    ),
    (
        "outcome",
        {"death": "visit", "within": "30 days"},
        "conflicting-settings",
        '[outcome] of cohort.toml: write the horizon once, as death = "30 days"',
    ),
    (
        "outcome",
        {"death": "0 days"},
        "invalid-time-span",
        "[outcome] of cohort.toml: the horizon is '0 days', in which nothing can happen; write a longer time",
    ),
    (
        "outcome",
        {"condition": ["SNOMED:1"]},
        "invalid-time-span",
        '[outcome] of cohort.toml has no horizon: add within = "30 days", or "visit"',
    ),
    (
        "outcome",
        {"condition": ["SNOMED:1"], "within": "soon"},
        "invalid-time-span",
        '[outcome] of cohort.toml: within is \'soon\'; write a time such as "24 hours" or "30 days"',
    ),
    (
        "outcome",
        {"condition": ["SNOMED:1"], "within": "visit", "unit": "mg/dL"},
        "conflicting-settings",
        "[outcome] of cohort.toml: unit does not go with condition",
    ),
    (
        "outcome",
        {"measurement": ["LOINC:1"], "within": "visit", "time_to_event": True},
        "conflicting-settings",
        "[outcome] of cohort.toml: time_to_event or first does not go with measurement",
    ),
    (
        "outcome",
        {"measurement": ["LOINC:1"], "within": "visit", "take": "count"},
        "unknown-aggregation",
        "[outcome] of cohort.toml: take is 'count'; known: last, first, mean, min, max",
    ),
    (
        "outcome",
        {"measurement": ["LOINC:1"], "within": "visit", "above": 1, "below": 2},
        "conflicting-settings",
        "[outcome] of cohort.toml: write above or below, not both",
    ),
    (
        "outcome",
        {"measurement": ["LOINC:1"], "within": "visit", "above": "high"},
        "wrong-type",
        "[outcome] of cohort.toml: above is 'high'; give a number",
    ),
    (
        "outcome",
        {"death": "visit", "time_to_event": 1},
        "wrong-type",
        "[outcome] of cohort.toml: time_to_event is 1; write true or false",
    ),
    (
        "features/bmi",
        True,
        "not-a-section",
        '[features] of cohort.toml, bmi: write bmi = { measurement = ["LOINC:2345-7"], take = "last" }; only '
        "age and sex take true",
    ),
    (
        "features/age",
        False,
        "not-a-section",
        '[features] of cohort.toml, age: write age = { measurement = ["LOINC:2345-7"], take = "last" }; only '
        "age and sex take true",
    ),
    (
        "features/bmi",
        {"take": "last"},
        "conflicting-settings",
        "[features] of cohort.toml, bmi has 0 of condition, measurement, observation, drug, procedure; write one",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "condition": ["SNOMED:1"]},
        "conflicting-settings",
        "[features] of cohort.toml, bmi has 2 of condition, measurement, observation, drug, procedure; write one",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "aggregate": "last"},
        "unknown-key",
        "unknown key 'aggregate' in [features] of cohort.toml, bmi; known: condition, measurement, "
        "observation, drug, procedure, take, window, unit, range, values, about",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "take": "median"},
        "unknown-aggregation",
        "[features] of cohort.toml, bmi: take is 'median'; did you mean 'mean'? known: last, first, mean, "
        "min, max, count, days_since, any",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "take": "max", "values": {"x": ["LOINC:2"]}},
        "unknown-aggregation",
        "[features] of cohort.toml, bmi: take is 'max', and coded values have a last or a first only",
    ),
    (
        "features/bmi",
        {"drug": ["ATC:A10*"], "take": "mean"},
        "unknown-aggregation",
        "[features] of cohort.toml, bmi: take is 'mean', and a drug has no value; use any, count or days_since",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "window": "visits"},
        "invalid-time-span",
        '[features] of cohort.toml, bmi: window is \'visits\'; write a time such as "24 hours" or "30 days"',
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "window": 30},
        "invalid-time-span",
        '[features] of cohort.toml, bmi: window is 30; write a time such as "24 hours" or "30 days"',
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "take": "count", "unit": "kg/m2"},
        "conflicting-settings",
        "[features] of cohort.toml, bmi: unit and range are of numbers, and take is 'count'",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "range": [5, 5]},
        "unordered-range",
        "[features] of cohort.toml, bmi: range goes from low to high",
    ),
    (
        "features/bmi",
        {"measurement": ["LOINC:1"], "values": ["LOINC:2"]},
        "not-a-section",
        "[features] of cohort.toml, bmi: values is not a section: write [values]",
    ),
    ("fewest_rows", 2.5, "wrong-type", "cohort.toml: fewest_rows is 2.5; give a whole number from 1 on"),
]


@pytest.mark.parametrize("path, value, code, sentence", MISTAKES)
def test_a_mistake_is_one_sentence_with_its_place_and_a_fix(path, value, code, sentence):
    with pytest.raises(BadInput) as caught:
        parse_cohort(change(path, value))
    assert (caught.value.code, str(caught.value)) == (code, sentence)


def test_files_that_are_no_cohort_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no\.toml cannot be read: No such file.*write one with `rounds cohort draft`"):
        read_cohort(tmp_path / "no.toml")
    broken, listed, binary = tmp_path / "broken.toml", tmp_path / "list.json", tmp_path / "binary.toml"
    broken.write_text("[outcome\n")
    listed.write_text("[1]")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"broken\.toml is not valid TOML: "):
        read_cohort(broken)
    with pytest.raises(BadInput, match=r"binary\.toml is not valid TOML: "):
        read_cohort(binary)
    with pytest.raises(BadInput, match=r"list\.json has no sections: write \[outcome\] and \[features\]"):
        read_cohort(listed)


def test_a_file_gives_its_name_where_it_has_none(tmp_path):
    path = tmp_path / "sepsis.toml"
    path.write_text('[outcome]\ndeath = "visit"\n[features]\nage = true\n')
    assert read_cohort(path).name == "sepsis"
    plain = tmp_path / "cohort.json"
    plain.write_text(json.dumps(parse_text().to_dict()))
    assert read_cohort(plain) == parse_text()
