"""The recipes "as printed": every setting that a paper prints has the printed value, at the place named beside it."""

from __future__ import annotations

import math

import pytest

from grandrounds.recipes import load_recipe, recipe_departure, recipes

PRINTED = {
    "veil/printed": [
        ("method.veil.selection", "paper", "Algorithm 1, client lines 3 to 10: the largest weights, signs sent as they are"),
        ("method.veil.votes", "quorum", "eq. 3 and 4"),
        ("method.veil.decay", False, "eq. 4: eta_g does not depend on t"),
        ("method.veil.prior", None, "Algorithm 1: W(0) = 0"),
        ("method.veil.claimed_epsilon", 5.0, "Table 1, second row"),
        ("privacy.epsilon", None, "line 9 sends signs without noise, so there is no budget to keep"),
        ("privacy.secure", False, "Algorithm 1, line 7: the server receives each proposal"),
        ("split.scheme", "group-kfold", "Evaluation Protocol: folds of hospitals"),
        ("split.folds", 5, "Evaluation Protocol: 5-fold group cross-validation"),
        ("split.val", 0.2, "Model Calibration: a held-out validation set, 20% of the training data"),
        ("evaluation.calibrate", "platt", "Model Calibration: Platt scaling"),
        ("tune.trials", 50, "Hyperparameter Optimization: 50 trials"),
        ("tune.share", 0.2, "Hyperparameter Optimization: 20% of the dataset"),
        ("tune.metric", "auroc", "Hyperparameter Optimization: the highest validation AUC"),
    ],
    "fedxchain/printed": [
        ("data.name", "breast-cancer", "sec. IV-A: Wisconsin Breast Cancer, 569 samples, 30 features"),
        ("split.sites", 10, "sec. IV-C: 10 federated participants"),
        ("split.partition", "dirichlet", "sec. IV-C: Dirichlet allocation"),
        ("split.alpha", 0.5, "sec. IV-C: alpha = 0.5"),
        ("model.name", "logistic", "sec. IV-B: logistic regression, the first model of Table I"),
        ("method.rounds", 10, "sec. IV-C: 10 communication rounds"),
        ("method.select.rule", "all", "sec. IV-C: 100% participation per round"),
        ("train.epochs", 5, "sec. IV-C: 5 epochs per round per node"),
        ("train.lr", 0.01, "sec. IV-C: learning rate 0.01"),
        ("train.batch", 32, "sec. IV-C: batch size 32"),
        ("train.optimizer", "sgd", "sec. IV-B: SGDClassifier"),
        ("privacy.secure", False, "Algorithm 2, line 8: the mask is sent with the masked value"),
    ],
    "fl-xai/printed": [
        ("model.name", "small-cnn", "sec. 3.1.2: two convolutions, each with a max pool, and three dense layers"),
        ("train.optimizer", "adam", "sec. 3.1.2, eq. 3.3"),
        ("method.name", "fedavg", "sec. 4.4 to 4.12, eq. 3.7"),
        ("method.weigh.rule", "data_size", "eq. 3.7: n_k / n"),
        ("method.rounds", 10, "sec. 4.3: 10 training rounds"),
        ("split.sites", 10, "Table 4.1: clients 0 to 9"),
        ("split.partition", "equal", "sec. 4.3: evenly distributed across all clients"),
        ("explain.maps", ("grad_cam", "gradient_norm"), "sec. 3.1.3: eq. 3.4 and 3.5, and eq. 3.6"),
        ("explain.maps_rows", 5, "sec. 4.6: Figs. 4.25 to 4.29"),
        ("evaluation.local_models", "own", "sec. 4.3: training and evaluation accuracy of each client"),
        ("train.noise", 0.0, "sec. 4.7 alone adds noise"),
    ],
}


def setting(recipe: str, path: str) -> object:
    value: object = load_recipe(recipe)
    for key in path.split("."):
        value = getattr(value, key)
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(("recipe", "path", "printed", "place"), [(r, *row) for r, rows in PRINTED.items() for row in rows])
def test_a_printed_recipe_has_the_papers_setting(recipe, path, printed, place):
    found = setting(recipe, path)
    assert found == printed or (isinstance(printed, float) and math.isclose(found, printed)), place


def test_the_printed_trust_rule_is_eq_7_and_8():
    trust = load_recipe("fedxchain/printed").method.trust.resolved()
    assert (trust.alpha, trust.beta, trust.gamma) == (0.5, 0.3, 0.2), "sec. III-F: typically"
    assert (trust.form, trust.kappa, trust.signed, trust.reasons) == ("printed", 0.0, False, False), "eq. 8: no rows, no signs"
    assert trust.accuracy_at == "site", "sec. III-F: node i's local validation accuracy"


@pytest.mark.parametrize("recipe", PRINTED)
def test_only_the_default_recipe_names_a_departure(recipe):
    system = recipe.partition("/")[0]
    assert not recipe_departure(recipe)
    assert recipe_departure(system)
    assert "as printed" in recipes()[recipe]
