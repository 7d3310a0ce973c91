"""The experiment file: complete, exact, and unforgiving about misspelt keys."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core import toml
from grandrounds.core.errors import BadInput
from grandrounds.experiment.experiment import Experiment
from grandrounds.experiment.template import starter_toml
from grandrounds.recipes import load_recipe, recipes
from tests.support import refused

scalars = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=12)
values = st.recursive(
    scalars | st.lists(scalars, max_size=3), lambda c: st.dictionaries(st.text(max_size=6), c, max_size=4)
)


@given(st.dictionaries(st.text(max_size=6), values, max_size=5))
@settings(max_examples=150, deadline=None)
def test_toml_written_is_toml_read(held):
    assert tomllib.loads(toml.dumps(held)) == held


def test_every_recipe_parses_and_resolves():
    assert "breast-cancer" in recipes()
    for name, line in recipes().items():
        plan = load_recipe(name).plan()
        assert plan["data"]["label"], name
        assert len(line) > 20, name


def test_the_starter_file_is_a_default_experiment():
    written = Experiment.parse(tomllib.loads(starter_toml()))
    assert written == Experiment.parse({"data": {"name": "breast-cancer"}})
    text = starter_toml()
    for key in ("alpha", "keep_optimizer", "min_sites", "threshold", "[engine.faults]", "[method.select]"):
        assert key in text


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"metod": {}}, "unknown key 'metod'; did you mean 'method'"),
        ({"method": {"ronds": 3}}, "unknown key 'method.ronds'; did you mean 'rounds'"),
        ({"method": {"select": {"ruel": "all"}}}, "unknown key 'method.select.ruel'; did you mean 'rule'"),
        ({"method": {"name": "fedavgg"}}, "method.name is 'fedavgg'; did you mean 'fedavg'"),
        ({"model": {"name": "resnet"}}, "model.name is 'resnet'; did you mean 'resnet18'"),
        ({"train": {"optimizer": "adm"}}, "train.optimizer is 'adm'; did you mean 'adam'"),
        ({"train": {"lr": -1}}, "train.lr is -1: input should be greater than 0"),
        ({"train": {"lr": "fast"}}, "train.lr is 'fast'"),
        ({"train": {"lr": float("inf")}}, "train.lr is inf: input should be a finite number"),
        (
            {"method": {"weigh": 3}},
            "method.weigh is 3, but it is a section: write method.weigh = { ... } or [method.weigh]",
        ),
        ({"split": {"val": 0.6, "test": 0.5}}, "leaves no training rows"),
        ({"split": {"scheme": "holdout"}}, "split.holdout is empty"),
        ({"reference": {"probe": {"row": 3}}}, "unknown key 'reference.probe.row'; did you mean 'rows'"),
        ({"engine": {"faults": {"dropp": 1}}}, "did you mean 'drop'"),
        ({"method": {"name": "mine.Median"}}, "write your own as module:Class"),
        ({"lr": -0.1}, "unknown key 'lr'; did you mean 'train.lr'?"),
        ({"method": {"epochs": 2}}, "'train.epochs'"),
    ],
)
def test_faults_are_said_in_one_sentence(given_, message):
    with pytest.raises(BadInput) as e:
        Experiment.parse(given_)
    assert message in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({}, "no-data-named"),
        ({"name": "heart", "table": "x.csv"}, "two-data-sources"),
        ({"name": "hart"}, "unknown-data-set"),
        ({"table": "x.csv"}, "label-not-set"),
    ],
)
def test_what_cannot_be_resolved_is_said(data, code):
    with refused(code):
        Experiment.parse({"data": data}).plan()


def test_settings_change_what_they_name_and_nothing_else():
    base = load_recipe("breast-cancer")
    changed = base.with_settings(["method.name=fedprox", "method.mu=0.5", "model.hidden=[8, 4]", "seed=7"])
    assert (changed.method.name, changed.method.mu, changed.model.hidden, changed.seed) == ("fedprox", 0.5, (8, 4), 7)
    assert changed.train == base.train
    with refused("unknown-setting", match="did you mean 'rounds'"):
        base.with_settings(["method.round=3"])
    with refused("bad-setting-flag"):
        base.with_settings(["method.rounds"])
    with refused("bad-setting-flag", match="'seed' is a value, not a section"):
        base.with_settings(["seed=1", "seed.x=3"])


def test_a_catalog_set_brings_its_columns_and_the_user_may_overrule_them():
    plan = Experiment.parse({"data": {"name": "heart", "drop": ["thal"]}}).plan()
    assert (plan["data"]["label"], plan["data"]["site"]) == ("disease", "hospital")
    assert "thal" in plan["data"]["drop"]
    assert plan["split"]["partition"] == "column"
    assert plan["evaluation"]["subgroup"] == "sex"
    other = Experiment.parse({"data": {"name": "heart"}, "split": {"partition": "equal", "sites": 3}}).plan()
    assert other["split"]["partition"] == "equal"


def test_a_table_is_looked_up_beside_its_file(tmp_path):
    (tmp_path / "e.toml").write_text('[data]\ntable = "rows.csv"\nlabel = "y"\n')
    assert Experiment.load(tmp_path / "e.toml").data.table == str(tmp_path / "rows.csv")
    (tmp_path / "bad.toml").write_text("[data\n")
    with refused("not-toml"):
        Experiment.load(tmp_path / "bad.toml")
    with refused("cannot-read", match="No such file"):
        Experiment.load(tmp_path / "none.toml")
