"""What may be searched: ranges and lists as files and flags give them, refused by the experiment's own rules."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FixedTrial

from grandrounds.capabilities.tuning.defaults import default_space
from grandrounds.capabilities.tuning.space import Choices, Range, current_values, parse_space, read_space, with_values
from grandrounds.core.errors import BadInput
from grandrounds.experiment.experiment import Experiment
from grandrounds.experiment.tune_section import Tune
from grandrounds.methods import METHODS
from grandrounds.recipes import load_recipe, recipes
from tests.support import refused

CANCER = Experiment.parse({"data": {"name": "breast-cancer"}})


def test_a_file_and_flags_say_the_same():
    text = """
    [tune.space]
    "train.lr" = { low = 1e-3, high = 1.0, log = true }
    train.epochs = { low = 1, high = 8 }
    "train.batch" = { choices = [16, 32] }
    "model.hidden" = [[64], [32, 16]]
    """
    flags = ["train.lr=1e-3..1:log", "train.epochs=1..8", "train.batch=16,32", "model.hidden=[64],[32,16]"]
    from_file = read_space(tomllib.loads(text)["tune"]["space"], CANCER)
    assert from_file == read_space(parse_space(flags), CANCER)
    assert from_file == {
        "train.lr": Range(0.001, 1.0, log=True),
        "train.epochs": Range(1, 8, whole=True),
        "train.batch": Choices((16, 32)),
        "model.hidden": Choices(([64], [32, 16])),
    }


def test_bare_words_are_text():
    space = read_space(parse_space(["train.optimizer=sgd,adam", "train.keep_optimizer=true,false"]), CANCER)
    assert space["train.optimizer"] == Choices(("sgd", "adam"))
    assert space["train.keep_optimizer"] == Choices((True, False))


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("train.lrr=1..2", ("unknown key 'train.lrr'", "'lr'")),
        ("trian.lr=1..2", ("unknown key 'trian'", "'train'")),
        ("train.lr=0..1", ("train.lr is 0.0", "greater than 0")),
        ("train.epochs=0..3", ("train.epochs is 0",)),
        ("train.momentum=0.5..1", ("train.momentum is 1.0", "less than 1")),
        ("train.batch=16,-1", ("train.batch is -1",)),
        ("train.lr=1..0.1", ("low must be less",)),
        ("train.l2=0..1:log", ("above 0",)),
        ("train.epochs=1.5..3", ("whole number",)),
        ("train.optimizer=1..3", ("not a number", "choices")),
        ("train.keep_optimizer=0..1", ("not a number",)),
        ("method.name=fedavg,fedprxo", ("did you mean 'fedprox'",)),
        ("train.batch=16,16", ("twice",)),
        ("train.lr=a..b", ("two numbers",)),
        ("train.lr=1..2:cubic", ("low..high:log",)),
        ("train.lr", ("train.lr=1e-3..1:log",)),
        ("split.val=0.1..0.2", ("cannot be tuned", "could not be compared")),
        ("seed=1,2", ("cannot be tuned",)),
        ("data.name=heart,digits", ("cannot be tuned", "scale")),
        ("privacy.epsilon=1,2", ("cannot be tuned", "guarantee")),
        ("privacy.noise=0.5..2", ("without privacy.epsilon",)),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(flag, words):
    with pytest.raises(BadInput) as caught:
        read_space(parse_space([flag]), CANCER)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"low": 1}, "bad-search-space"),
        ({"low": 1, "hihg": 2}, "unknown-key"),
        ({"choices": []}, "bad-search-space"),
        ({"choices": [1], "log": True}, "bad-search-space"),
        (0.5, "bad-search-space"),
    ],
)
def test_a_damaged_entry_is_refused(entry, code):
    with refused(code, match="train.lr"):
        read_space({"train.lr": entry}, CANCER)


@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.floats(0, 1))
def test_numbers_are_short_and_stay_in_their_range(a, b, at):
    low, high = sorted((a, b))
    drawn = low + at * (high - low)
    if low < high and low <= drawn <= high:
        value = Range(low, high).suggest(FixedTrial({"train.lr": drawn}), "train.lr")
        assert low <= value <= high
        assert value == pytest.approx(drawn, rel=1e-3)
        assert value in (low, high) or float(f"{value:.4g}") == value


def test_settings_reach_the_experiment():
    changed = with_values(CANCER, {"train.lr": 0.25, "model.hidden": [8, 4], "train.optimizer": "adam"})
    assert (changed.train.lr, changed.model.hidden, changed.train.optimizer) == (0.25, (8, 4), "adam")


def test_own_values_are_those_that_are_set_in_the_space_or_not():
    space = read_space(parse_space(["train.lr=1e-3..0.05", "train.epochs=1..4", "method.server.lr=0.1,1.0"]), CANCER)
    assert current_values(space, CANCER) == {"train.lr": 0.1, "train.epochs": 2}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_a_usual_space_that_its_experiment_accepts(method):
    experiment = CANCER.with_settings([f"method.name={method}"])
    if method in ("gam", "private-gam", "card"):  # chosen from the sums, or by the readers
        with refused("nothing-to-tune"):
            default_space(experiment)
        return
    space = read_space(default_space(experiment), experiment)
    assert len(space) >= 3


def test_usual_spaces_know_the_methods_own_settings():
    def usual(*settings):
        return set(default_space(CANCER.with_settings(list(settings))))

    assert {"train.lr", "train.epochs", "train.batch"} <= usual()
    assert "method.mu" in usual("method.name=fedprox") - usual()
    assert "method.server.lr" in usual("method.name=fedadam")
    assert {"privacy.clip", "privacy.sampling_rate"} <= usual("privacy.mechanism=dp-sgd", "privacy.epsilon=1")
    assert "train.batch" not in usual("privacy.mechanism=dp-sgd", "privacy.epsilon=1")
    assert usual("model.name=forest") == {"model.trees", "model.depth"}
    assert {"method.veil.k", "method.veil.step"} <= usual("method.name=veil")
    assert {"method.veil.norm", "method.veil.lr"} <= usual("method.name=veil", "privacy.secure=true")


def test_a_plan_knows_nothing_of_what_is_searched():
    bare = load_recipe("breast-cancer")
    searched = bare.with_settings(["tune.trials=7", "tune.space={ 'train.lr' = { low = 0.1, high = 1.0 } }"])
    assert searched.tune.trials == 7
    assert searched.with_settings(["seed=3"]).tune.space == {"train.lr": {"low": 0.1, "high": 1.0}}
    assert searched.plan() == bare.plan()
    assert "tune" not in bare.plan()


def test_a_misspelt_key_of_tune_is_refused():
    with refused("unknown-setting", match=r"tune\.trails"):
        Experiment.parse({"tune": {"trails": 3}})


@pytest.mark.parametrize("name", [n for n in recipes() if n.partition("/")[0] == "veil"])
def test_recipes_of_veil_are_tuned_as_its_paper_does_and_their_own_settings_are_in_the_space(name):
    recipe = load_recipe(name)
    assert (recipe.tune.trials, recipe.tune.share, recipe.tune.metric) == (50, 0.2, "auroc")
    assert recipe.plan() == recipe.model_copy(update={"tune": Tune()}).plan()
    space = read_space(default_space(recipe), recipe)
    assert space["method.rounds"].stored(recipe.method.rounds) is not None


def test_models_of_sums_have_their_own_space():
    heart = Experiment.parse({"data": {"name": "heart"}})
    trees = default_space(heart.with_settings(["model.name=trees"]))
    assert set(trees) == {"method.trees.rounds", "method.trees.depth", "method.trees.rate"}
    assert set(read_space(trees, heart)) == set(trees)
    with refused("nothing-to-tune", match="gam"):
        default_space(heart.with_settings(["model.name=gam"]))
