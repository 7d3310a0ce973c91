"""Cyclic weight transfer: each cycle visits every site once, and the model is that of the last one."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import Answers
from tests.support import refused, sections

SITES = ("a", "b", "c")


def turn(number: int, model: np.ndarray, *, present: tuple[str, ...] = (), seed: int = 3):
    """Run one round in which a site adds its number (a: 1, b: 2, c: 3) to the model; return site and model."""
    method = build_method(*sections({"name": "cyclic", "rounds": 9}))
    rows = dict(zip(SITES, (10, 20, 30), strict=True))
    step = method.round(Server(number, model, SITES, seed, present=present, rows=rows))
    ask = next(step)
    (site,) = ask.to
    assert ask.task == "train"
    np.testing.assert_array_equal(ask.shared["model"], model)
    trained = model + 1 + SITES.index(site)
    with pytest.raises(StopIteration) as end:
        step.send(Answers((site,), {"model": trained[None], "count": np.array([rows[site]]), "steps": np.array([1])}))
    np.testing.assert_array_equal(end.value.value.model, trained)
    return site, end.value.value.model, end.value.value.decision


def test_a_cycle_visits_every_site_once_and_passes_the_model_on():
    model, visited = np.zeros(2), []
    for number in range(1, 10):
        site, model, decision = turn(number, model)
        assert decision.weights == {site: 1.0}
        visited.append(site)
    assert [sorted(visited[k : k + 3]) for k in (0, 3, 6)] == [list(SITES)] * 3
    np.testing.assert_array_equal(model, [18.0, 18.0])


def test_the_order_is_drawn_anew_for_each_cycle():
    orders = {tuple(turn(3 * cycle + k, np.zeros(1))[0] for k in (1, 2, 3)) for cycle in range(8)}
    assert len(orders) > 1


def test_the_order_does_not_depend_on_how_sites_are_listed():
    method = build_method(*sections({"name": "cyclic", "rounds": 9}))
    for number in range(1, 4):
        asked = {next(method.round(Server(number, np.zeros(1), sites, 3))).to for sites in (SITES, SITES[::-1])}
        assert len(asked) == 1


def test_a_site_that_is_away_is_passed_over():
    site, *_ = turn(1, np.zeros(1))
    others = tuple(s for s in SITES if s != site)
    assert turn(1, np.zeros(1), present=others)[0] in others


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"privacy": {"secure": True}}, "secure-aggregation-does-not-fit"),
        ({"privacy": {"mechanism": "client", "noise": 1.0, "public_counts": True}}, "method-does-not-fit"),
        ({"method": {"name": "cyclic", "select": {"rule": "random", "fraction": 0.5}}}, "method-does-not-fit"),
        ({"train": {"continue_epoch": True}}, "method-does-not-fit"),
        (
            {"train": {"continue_epoch": True, "steps": 2}, "privacy": {"mechanism": "dp-sgd", "noise": 1.0}},
            "privacy-does-not-fit",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, code, tmp_path):
    plan = {"data": {"name": "heart"}, "method": {"name": "cyclic", "rounds": 2}} | settings
    with refused(code):
        gr.run(gr.Experiment.parse(plan), out=tmp_path / "run")
