"""Encodings known beforehand: nothing is asked of a site, and inputs follow from ranges and levels alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.data.dataset import build_dataset
from grandrounds.data.encoding import Encoding, EncodingRules
from grandrounds.data.image_encoding import ImageEncoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import encoding_from
from grandrounds.data.public import BEYOND, PublicFacts, make_public_encoding, public_encoding
from grandrounds.data.row_files import write_bundle
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets import diabetes, public_ranges
from grandrounds.data.sets.catalog import CATALOG, find_entry
from grandrounds.data.table import Table
from grandrounds.engine import local
from grandrounds.experiment.experiment import Experiment
from grandrounds.runs.federation import assemble
from tests.support import dataset, patients, refused

KNOWN = PublicFacts(
    ranges={"age": (20, 100), "lactate": (0, 4), "pressure": (50, 110)},
    levels={"ward": ("medical", "surgical", "cardiac"), "died": ("0", "1")},
)
KINDS = {name: list(r) for name, r in KNOWN.ranges.items()}


def made(table: Table, known: PublicFacts = KNOWN, **rules) -> tuple[Encoding, np.ndarray]:
    data = dataset(table)
    encoding = public_encoding(data, known, label="died", rules=EncodingRules(**rules))
    return encoding, encoding.encode(data, float)


def rows(*, died=(0.0, 1.0), **columns) -> Table:
    """Two patients, and a third who keeps every column from being a constant."""
    values = {"age": [60.0, 20.0], "lactate": [2.0, 4.0], "pressure": [80.0, 65.0], "ward": ["medical", "cardiac"]}
    third = {"age": 71.0, "lactate": 1.1, "pressure": 72.0, "ward": "surgical"}
    full = {name: [*columns.get(name, usual), third[name]] for name, usual in values.items()}
    return Table.from_mapping({**full, "hospital": ["a", "b", "b"], "died": [*died, 1.0]}, source="patients.csv")


def test_numbers_by_hand():
    encoding, x = made(rows(age=[60.0, 100.0], lactate=[4.0, 0.0], pressure=[np.nan, 1000.0]))
    # the middle reads 0, an end of the range 2 deviations, a gap the middle, and 1,000 mmHg what 110 + 60 would
    np.testing.assert_allclose(x[:2, :3], [[0, 2, 0], [2, -2, 6]])
    assert encoding.features == (
        "age", "lactate", "pressure", "ward=cardiac", "ward=medical", "ward=surgical", "ward=other",
    )  # fmt: skip


def test_a_level_nobody_listed_is_other_and_a_gap_is_no_level():
    _, x = made(rows(ward=["neonatal", "surgical"]))
    assert x[:2, 3:].tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]
    two = replace(KNOWN, levels={**KNOWN.levels, "ward": ("medical", "surgical")})
    _, x = made(rows(ward=[None, "medical"]), two)
    assert x[:, 3:].tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]


@given(st.floats(allow_nan=True, allow_infinity=False), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@settings(max_examples=200, deadline=None)
def test_every_input_is_finite_and_bounded(value, low, width):
    expected = replace(KNOWN, ranges={**KNOWN.ranges, "age": (low, low + width)})
    _, x = made(rows(age=[value, 50.0]), expected)
    assert np.isfinite(x).all()
    assert np.abs(x[0, 0]) <= 4 * (0.5 + BEYOND) + 1e-6 * abs(low) / width + 1e-9


@given(st.integers(0, 20), st.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_the_rows_have_no_say(one, other):
    first, _ = made(patients([30, 20], seed=one))
    second, _ = made(patients([25, 40], seed=other, gaps=0.3))
    assert first == second


def test_scale_none_and_clip_zero_leave_values_as_they_are():
    _, x = made(rows(age=[60.0, 1e5]), scale="none", clip=0)
    assert x[:2, 0].tolist() == [60.0, 1e5]


def test_an_encoding_comes_back_from_json_as_it_was():
    encoding, _ = made(rows())
    again = encoding_from(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    assert again.public
    assert "middle of its usual range" in encoding.notes(dataset(rows(age=[np.nan, 3.0])).take([0]))[0]


def test_the_positive_class_comes_last():
    data = dataset(rows())
    for positive, classes in (("0", ("1", "0")), ("1", ("0", "1")), (None, ("0", "1"))):
        rules = EncodingRules(positive=positive)
        assert public_encoding(data, KNOWN, label="died", rules=rules).classes == classes


@pytest.mark.parametrize(
    ("known", "code", "value"),
    [
        (replace(KNOWN, ranges={"age": (20, 100)}), "range-not-known", "data.ranges.lactate"),
        (replace(KNOWN, ranges={**KNOWN.ranges, "age": (100, 20)}), "unordered-range", None),
        (replace(KNOWN, ranges={**KNOWN.ranges, "age": (20, 20)}), "unordered-range", None),
        (replace(KNOWN, levels={"died": ("0", "1")}), "levels-not-known", "data.levels.ward"),
        (replace(KNOWN, levels={**KNOWN.levels, "ward": ("a", "a")}), "invalid-levels", None),
        (replace(KNOWN, levels={"ward": ("a", "b")}), "levels-not-known", "'died'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(known, code, value):
    with refused(code, match=value):
        made(rows(), known)


def test_a_class_that_was_not_listed_is_refused():
    encoding, _ = made(rows())
    with refused("unknown-class"):
        encoding.labels(dataset(rows(died=(0.0, 2.0))))


def test_subgroups_must_be_known_and_the_unknown_are_told_together():
    data = dataset(rows())
    encoding = public_encoding(data, KNOWN, label="died", rules=EncodingRules(), subgroup="ward")
    assert encoding.groups == ("cardiac", "medical", "surgical")
    assert encoding.group_numbers(["medical", "missing"]).tolist() == [1, 3]
    with refused("levels-not-known", match="evaluation.subgroup.*'age'"):
        public_encoding(data, KNOWN, label="died", rules=EncodingRules(), subgroup="age")


def test_ordered_levels_need_no_range():
    table = Table.from_mapping(
        {"grade": ["low", "high", "mid"], "hospital": ["a", "a", "b"], "died": [0.0, 1.0, 0.0]}, source="t.csv"
    )
    schema = infer_schema(table, label="died", site="hospital", overrides={"grade": ["low", "mid", "high"]})
    data = build_dataset(table, schema, name="t")
    encoding = public_encoding(data, PublicFacts(levels={"died": ("0", "1")}), label="died", rules=EncodingRules())
    assert encoding.encode(data, float)[:, 0].tolist() == [-2, 2, 0]


def test_pictures_are_centred_on_grey():
    pixels = np.array([[[[0]]], [[[255]]]], np.uint8)
    pictures = ImageSet("p", pixels, np.array(["cat", "dog"], object))
    expected = PublicFacts(levels={"label": ("cat", "dog")})
    encoding = public_encoding(pictures, expected, label=None, rules=EncodingRules())
    assert isinstance(encoding, ImageEncoding)
    assert encoding.encode(pictures, float).ravel().tolist() == [-2, 2]


def plan_for(name: str, *changes: str) -> Settings:
    experiment = Experiment.parse({"data": {"name": name}}).with_settings(["data.encoding=public", *changes])
    return Settings(experiment.plan())


EICU = pytest.mark.data("eicu_demo")


@pytest.mark.parametrize(
    "name",
    ["heart", pytest.param("eicu-demo", marks=EICU), pytest.param("eicu-demo-hospitals", marks=EICU), "icu-cohort"],
)
def test_the_catalog_knows_its_clinical_sets(name):
    """Every feature has a range or a list; the list has every level, and hardly a value is drawn in."""
    plan = plan_for(name)
    data = assemble(plan)
    encoding = make_public_encoding(plan, data.data)
    x = encoding.encode(data.data, float)
    index = {feature: j for j, feature in enumerate(encoding.features)}
    assert all(x[:, index[f"{rule.name}=other"]].sum() == 0 for rule in encoding.categorical)
    numbers = x[:, : len(encoding.numeric)]
    assert (np.abs(numbers) >= 6).mean() < 0.01
    assert (np.abs(numbers).mean(axis=0) > 0.01).all()
    assert set(encoding.labels(data.data)) == {0, 1}
    assert set(encoding.group_numbers(data.stack.groups.tolist())) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "sites", "folds"),
    [("heart", 4, 4), pytest.param("eicu-demo-hospitals", 117, 5, marks=EICU), ("icu-cohort", 152, 5)],
)
@pytest.mark.slow
def test_whole_hospitals_are_tested_once_in_all_folds(name, sites, folds):
    table = find_entry(name).load()
    table = table.take(np.arange(0, len(table), 5 if name == "icu-cohort" else 1))  # some rows of each will do
    tested = []
    for fold in range(folds):
        plan = plan_for(name, "split.scheme=group-kfold", f"split.folds={folds}", f"split.fold={fold}")
        data = assemble(plan, table)
        unseen = [site for site, r in zip(data.stack.names, data.stack.rows, strict=True) if len(r.test)]
        assert not set(unseen) & set(data.training)
        assert len(unseen) + len(data.training) == sites
        tested += unseen
    assert len(tested) == len(set(tested)) == sites


@EICU
def test_the_demos_hospitals():
    table = find_entry("eicu-demo-hospitals").load()
    assert table.column("died_in_hospital").sum() == 101
    assert np.unique(table.column("hospitalid"), return_counts=True)[1].min() == 8


def test_ranges_are_whole_and_the_right_way_round():
    for one in CATALOG.values():
        assert all(low < high for low, high in one.ranges.values())
        assert not set(one.ranges) & set(one.levels)
    features = [
        name for name in find_entry("icu-cohort").load().names if name not in ("stay_id", "patient_id", "hospital")
    ]
    expected = {*public_ranges.COHORT, *public_ranges.COHORT_LEVELS, "hospital_beds"}
    assert set(features) == expected


def test_numbers_and_codes_of_the_diabetes_set_have_ranges_and_levels():
    assert set(public_ranges.DIABETES) == set(diabetes.NUMBERS) - {"encounter_id", "patient_nbr"}
    assert {*diabetes.CODES, *diabetes.DIAGNOSES, *diabetes.TESTS} < set(public_ranges.DIABETES_LEVELS)
    assert "other" not in public_ranges.DIABETES_LEVELS["diag_1"], "codes of no group become `other` by themselves"
    assert not set(diabetes.GONE) & set(public_ranges.DIABETES_LEVELS["discharge_disposition_id"])


def test_the_users_range_goes_before_the_catalogs():
    plan = plan_for("heart", "data.ranges.age=[0, 80]", "data.levels.sex=['female','male','diverse']")
    encoding = make_public_encoding(plan, assemble(plan).data)
    age = next(rule for rule in encoding.numeric if rule.name == "age")
    assert (age.centre, age.scale) == (40.0, 20.0)
    assert "sex=diverse" in encoding.features


def test_rows_that_travel_with_their_plan_are_still_known(tmp_path):
    plan = plan_for("heart")
    values = plan.plain()
    bundle = write_bundle(find_entry("heart").load(), tmp_path / "plan.json")
    values["data"] = {**values["data"], "name": None, "table": str(bundle)}
    carried = Settings(values)
    assert make_public_encoding(carried, assemble(carried).data) == make_public_encoding(plan, assemble(plan).data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.class_weights=balanced", "give the weights themselves"),
        ("tasks.t.classes={x=['yes'],y=['no']}", "does not know beforehand"),
    ],
)
def test_what_needs_the_sites_counts_is_refused(change, said):
    plan = plan_for("heart", change)
    with refused("conflicting-settings"):
        make_public_encoding(plan, assemble(Settings({**plan.plain(), "tasks": {}})).data)


@pytest.mark.parametrize("encoding", ["fitted", "public"])
def test_no_summary_leaves_a_site(encoding, tmp_path, monkeypatch):
    """We listen on the wire: with a public encoding no site is asked for a summary, and none sends one."""
    requests, answered = [], []
    decode_ask, encode_answer = local.decode_ask, local.encode_answer

    def ask(data, site, layout):
        heard = decode_ask(data, site, layout)
        requests.append(heard.task)
        return heard

    def answer(message, layout):
        answered.extend(message.values)
        return encode_answer(message, layout)

    monkeypatch.setattr(local, "decode_ask", ask)
    monkeypatch.setattr(local, "encode_answer", answer)
    data = {"label": "died", "site": "hospital", "encoding": encoding, "ranges": KINDS, "levels": KNOWN.levels}
    experiment = Experiment.parse(
        {
            "data": {**data, "table": "data frame"},
            "method": {"rounds": 2},
            "engine": {"wire": True},
            "train": {"class_weights": {"0": 1.0, "1": 2.0}},
        }
    )
    run = gr.run(experiment, out=tmp_path / "run", table=patients([60, 50, 40]))
    summaries = [name for name in answered if name.startswith("summary")]
    assert ("summarise" in requests, bool(summaries)) == ((encoding == "fitted",) * 2)
    assert {"prepare", "train", "evaluate"} <= set(requests)
    assert run.summary["final"]["auroc"] > 0.6
