"""Every method with every way to select, weigh, stand attacks and hold sites together: it runs, or is refused in words."""

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.experiment.checks.methods import refuse_what_it_cannot
from grandrounds.methods import REGULARIZERS
from grandrounds.methods.robust import RULES as ROBUST
from grandrounds.methods.select import RULES as SELECT
from grandrounds.methods.weigh import CHOSEN_RULES
from grandrounds.methods.weigh import RULES as WEIGH
from grandrounds.models import READS_COLUMNS, TABLES, build_model, model_spec
from tests.support import averaging_methods, patients, refused

SITES = 6
METHODS = averaging_methods()
OF_CLASSES = [name for name in TABLES if name not in ("linear", *READS_COLUMNS)]
"""Models that predict a class; those of whole columns have a method each, and tests of their own."""
WAY_OUT = re.compile(r"[:;] (for '\w+' )?(use|set|leave|add|lower|weigh|turn|remove|raise|send|name) ")


def experiment(method: dict, **changes) -> dict:
    """Six small hospitals, two rounds, a small net, reference rows to keep and to lend; krum has answers to choose from."""
    values = {
        "data": {"label": "died", "site": "hospital"},
        "model": {"name": "mlp", "hidden": [3], "trees": 3, "depth": 3},
        "method": {"rounds": 2, "buffer": 4, "reference": "root", **method},
        "train": {"epochs": 1, "batch": 8},
        "reference": {"root": {"rows": 20}, "anchor": {"rows": 20, "sent": True}},
        "explain": {"reference": "root"},
        "evaluation": {"every": 2},
    }
    return values | changes


def plan_of(**changes) -> dict:
    return gr.Experiment.parse(experiment({}, **changes)).model_dump(mode="json")


def method_of(base: dict, name, select, weigh, robust, stability) -> dict:
    return {
        **base,
        "name": name,
        "select": {**base["select"], "rule": select, "fraction": 0.7},
        "weigh": {**base["weigh"], "rule": weigh},
        "robust": {**base["robust"], "rule": robust},
        "stability": stability,
    }


ALIKE = ("permuted_anchor", "alignment")
"""Stabilities that lend rows as 'anchor' does: what refuses one refuses all (`test_anchored.py`)."""


PLAIN = ("all", "data_size", "none", "none")
"""What FedAvg selects, weighs, stands and holds together with."""


def walk(model: str = "mlp", *, reference: bool = True, most: int = len(PLAIN)):
    """Each of the combinations in which at most so many parts are not FedAvg's, and why it is refused, where it is."""
    base = plan_of(model={"name": model, "hidden": [3], "trees": 3, "depth": 3})
    if not reference:
        base["reference"], base["method"]["reference"] = {}, None
    net = build_model(model_spec(Settings(base["model"]), inputs=(4,), classes=2))
    for parts in product(METHODS, SELECT, WEIGH, ROBUST, REGULARIZERS):
        if parts[0] == "sse-agg" and parts[2] != "explanations":
            continue  # refused before there is a plan (`test_sse_agg.py`)
        if sum(part != plain for part, plain in zip(parts[1:], PLAIN, strict=True)) > most:
            continue
        plan = Settings({**base, "method": method_of(base["method"], *parts)})
        try:
            refuse_what_it_cannot(net, plan, sites=SITES)
        except BadInput as e:
            yield parts, str(e)
        else:
            yield parts, ""


def in_words(said: str, *named: str) -> None:
    """One sentence that names what does not go together and ends with a way out."""
    assert "\n" not in said and len(said) < 220, said
    assert any(word.lower() in said.lower() for word in named if word != "none"), (named, said)
    assert WAY_OUT.search(said), said


# --- on paper ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every() -> dict[tuple[str, ...], str]:
    return dict(walk())


def test_every_combination_is_accepted_or_refused_in_one_sentence(every):
    assert len(every) == ((len(METHODS) - 1) * 6 + 1) * 4 * 9 * 8
    for parts, said in every.items():
        if said:
            in_words(said, *parts, "method.robust", "method.select")
    accepted = [parts for parts, said in every.items() if not said]
    assert 6000 < len(accepted) < 14000
    for place, names in enumerate((set(METHODS) - {"fedbn", "veil", "xfed"}, SELECT, WEIGH, ROBUST, REGULARIZERS)):
        assert {parts[place] for parts in accepted} == set(names)


def test_plain_methods_take_every_part(every):
    """FedAvg and those built on it refuse only what cannot be: a vote each that is weighed by something else."""
    one_vote = {"krum", "median", "trimmed-mean", "fltrust"}
    for parts, said in every.items():
        name, _, weigh, robust, stability = parts
        if name in ("fedavg", "fedavgm", "fedopt", "fedadam", "fedyogi", "fedadagrad", "fedrmsprop"):
            assert bool(said) == ((robust in one_vote and weigh in CHOSEN_RULES) or weigh == "trust")
        if name in ("fedprox", "scaffold", "moon") and not said:
            assert stability in ("none", {"fedprox": "proximal"}.get(name, name))
        if name in ("fedasync", "fedbuff") and parts[1] in ("loss", "power-of-choice"):
            assert "'random'" in said or robust != "none" or weigh in CHOSEN_RULES
            assert said
        if name == "fedasync" and not said:
            assert robust == "none" and weigh in ("data_size", "uniform")
        if name in ("fedasync", "fedbuff", "clustered") and not said:
            assert stability not in ("scaffold", "anchored_scaffold")
        if name in ("local", "pooled"):
            assert bool(said) == (parts[1] != "all" or weigh in CHOSEN_RULES or robust != "none" or stability != "none")
        assert said or name != "fedbn"


def test_without_reference_rows_whatever_needs_them_is_refused():
    for parts, said in walk(reference=False, most=2):
        if parts[3] == "fltrust" or parts[2] == "reference_accuracy" or REGULARIZERS[parts[4]].needs == "reference":
            assert said
            in_words(said, *parts)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("model", ["logistic", "forest", "lightgbm"])
def test_other_models_refuse_in_words_too(model):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    accepted = []
    for parts, said in walk(model, most=2):
        if said:
            in_words(said, *parts, f"model.name is '{model}'", "a logistic model")
        else:
            accepted.append(parts)
    names = {parts[0] for parts in accepted}
    if model == "lightgbm":
        assert names == {"local", "pooled"}
    elif model == "forest":
        assert names == {"fedavg", "sse-agg", "fedxchain", "local", "pooled"}
        assert {parts[3:] for parts in accepted} == {("none", "none")}
    else:
        assert names == set(METHODS) - {"moon", "fedbn", "xfed"}
        assert "moon" not in {parts[4] for parts in accepted}


def test_krum_is_refused_where_too_few_answer():
    base = plan_of()
    net = build_model(model_spec(Settings(base["model"]), inputs=(4,), classes=2))

    def tried(sites, **method):
        refuse_what_it_cannot(net, Settings({**base, "method": {**base["method"], **method}}), sites=sites)

    krum = {**base["method"]["robust"], "rule": "krum"}
    tried(4, robust=krum)
    for method, sites in (
        ({"robust": krum}, 3),
        ({"robust": {**krum, "attackers": 4}}, 6),
        ({"robust": krum, "select": {**base["method"]["select"], "rule": "random", "fraction": 0.5}}, 6),
        ({"robust": krum, "name": "fedbuff", "buffer": 3}, 6),
    ):
        with refused("method-does-not-fit", match="'krum'"):
            tried(sites, **method)
    with refused("method-does-not-fit", match=r"method\.buffer"):
        tried(6, name="fedbuff", buffer=7)


# --- in earnest -------------------------------------------------------------------------------------


def pairs(parts: tuple[str, ...]) -> set:
    """Every two of the parts; server optimisers, which differ in one line of their step, count as one method here.

    So do stabilities that lend rows, which differ at sites alone; but every method has each of them.
    """
    name, *others, stability = parts
    kind = "fedopt" if METHODS[name].family == "fedopt" else name
    held = "anchor" if stability in ALIKE else stability
    return {*combinations(enumerate((kind, *others, held)), 2), name, (kind, stability)}


def covering(accepted: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Combinations that hold every method, and every pair of parts that goes together: greedy, in a fixed order."""
    held = {parts: pairs(parts) for parts in accepted}
    missing = set().union(*held.values())
    chosen = []
    while missing:
        best = max(accepted, key=lambda parts: len(held[parts] & missing))
        chosen.append(best)
        missing -= held[best]
    return chosen


ALONE = {"local", "clustered", "fedasync"}
"""Methods whose weights are not shares of one mean."""


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_what_is_accepted_runs(step, every, tmp_path):
    """Some hundred runs that hold every pair of parts, half of them through bytes; a fifth of them, or all."""
    table = patients([30, 24, 36, 28, 32, 26])
    accepted = [parts for parts, said in every.items() if not said]
    chosen = covering(accepted)
    assert 60 < len(chosen) < 115
    start = None
    for i, parts in enumerate(chosen[::step]):
        base = plan_of()["method"]
        values = experiment(method_of(base, *parts), engine={"wire": bool(i % 2)})
        done = gr.run(gr.Experiment.parse(values), table=table, out=tmp_path / str(i))
        assert np.isfinite(done.model.theta).all(), parts
        assert [r["round"] for r in done.rounds] == [1, 2]
        for r in done.rounds:
            decision = r["decision"]
            weights = np.array(list(decision["weights"].values()))
            assert np.isfinite(weights).all() and (weights >= 0).all(), parts
            assert len(weights) and decision["why"], parts
            assert not decision["missing"], parts
            if parts[0] not in ("fedasync", "fedbuff"):
                assert set(decision["weights"]) == set(decision["asked"]), parts
            if parts[0] not in ALONE:
                assert weights.sum() == pytest.approx(1) or not weights.any(), parts
        start = done.model.theta if start is None else start
        assert i == 0 or not np.array_equal(done.model.theta, start), "another method, another model"


def test_what_is_refused_leaves_no_folder(every, tmp_path):
    table = patients([30, 24, 36, 28, 32, 26])
    by_reason: dict[str, tuple[str, ...]] = {}
    for parts, said in every.items():
        if said and parts[0] in ("fedasync", "clustered", "fedprox", "fedavg", "pooled"):
            by_reason.setdefault(said, parts)
    assert len(by_reason) > 15
    for i, (said, parts) in enumerate(list(by_reason.items())[::3]):
        values = experiment(method_of(plan_of()["method"], *parts))
        with pytest.raises(BadInput) as refused:
            gr.run(gr.Experiment.parse(values), table=table, out=tmp_path / str(i))
        assert str(refused.value) == said
        assert not (tmp_path / str(i)).exists()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("model", OF_CLASSES)
def test_every_method_runs_on_every_model_for_tables_or_is_refused(model, tmp_path):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    table, ran = patients([60, 48, 72, 54]), set()
    for name in METHODS:
        values = experiment({"name": name}, model={"name": model, "hidden": [3], "trees": 3, "depth": 3})
        try:
            done = gr.run(gr.Experiment.parse(values), table=table, out=tmp_path / name)
        except BadInput as e:
            in_words(str(e), name, model)
            assert not (tmp_path / name).exists()
            continue
        ran.add(name)
        risk = done.model.predict(table).risk
        assert np.isfinite(risk).all() and ((risk >= 0) & (risk <= 1)).all()
        assert 0 <= done.summary["final"]["accuracy"] <= 1
        assert name == "pooled" or np.ptp(risk) > 0 or model == "lightgbm"
    expected = {
        "logistic": set(METHODS) - {"moon", "fedbn", "xfed"},
        "mlp": set(METHODS) - {"fedbn", "veil", "xfed"},
        "forest": {"fedavg", "sse-agg", "fedxchain", "local", "pooled"},
        "lightgbm": {"local", "pooled"},
    }
    assert ran == expected[model]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("model", OF_CLASSES)
def test_a_site_that_sends_no_numbers_is_left_out_whatever_the_model(model, wire, tmp_path):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    values = experiment(
        {"name": "local" if model == "lightgbm" else "fedavg"},
        model={"name": model, "hidden": [3], "trees": 3, "depth": 3},
        engine={"wire": wire, "faults": {"nan": ["b"]}},
    )
    done = gr.run(gr.Experiment.parse(values), table=patients([60, 48, 72]), out=tmp_path / "run")
    for r in done.rounds:
        assert set(r["decision"]["missing"]) == {"b"} and set(r["decision"]["weights"]) == {"a", "c"}
