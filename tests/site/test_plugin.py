"""Site plug-ins: a host calls those that it is given, in turn, and checkpoints what they keep."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.plan_types import Plan
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods.site_halves import site_plugins
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.host import SiteHost
from grandrounds.site.plugin import SitePlugin
from tests.support import all_site_plugins, ready, refused, rounds, stack


class Counter(SitePlugin):
    """Counts the hooks that are called, and keeps the count in a checkpoint."""

    name = "counter"

    def __init__(self, site):
        super().__init__(site)
        self.called: list[str] = []

    @property
    def tasks(self):
        return {"count": lambda ask, members: {"count": np.full(len(members), len(self.called))}}

    def choose_rows(self, request, part):
        self.called.append("rows")
        return part

    def before_training(self, request, job):
        self.called.append("before")
        return job

    def on_trained(self, request, result):
        self.called.append("trained")
        return {}

    def after_training(self, request, columns):
        self.called.append("after")
        return {}

    def arrays(self):
        return {"calls": np.array(len(self.called))}

    def restore(self, arrays):
        self.called = ["before the checkpoint"] * int(arrays["calls"])


def test_hooks_are_called_around_training_and_change_nothing():
    plain, watched = (ready(stack([20, 30]))[0] for _ in range(2))
    host = watched.hosts[0]
    counter = Counter(host)
    host.plugins = (*host.plugins, counter)
    assert rounds(watched, count=2)[0].tobytes() == rounds(plain, count=2)[0].tobytes()
    assert counter.called == ["before", "rows", "trained", "after"] * 2


def test_a_checkpoint_holds_what_a_plugin_keeps_under_its_name():
    first, second = (SiteHost(stack([10, 10]), plugins=(Counter,)) for _ in range(2))
    kept = next(p for p in first.plugins if isinstance(p, Counter))
    kept.called = ["some", "calls"]
    assert first.arrays()["counter/calls"] == 2
    second.restore(first.arrays())
    assert len(next(p for p in second.plugins if isinstance(p, Counter)).called) == 2


def test_a_host_answers_the_tasks_of_its_plugins_and_no_others():
    ask = Ask("count", report=("count",), id=AskId("x", 1, 0))
    with refused("unknown-task", match="'count'"):
        SiteHost(stack([10, 10])).answer(ask, np.arange(2))
    with refused("undeclared-report"):  # nor may its report leave
        SiteHost(stack([10, 10]), plugins=(Counter,)).answer(ask, np.arange(2))


PLUGINS = {
    "fedavg": set(),
    "scaffold": {"SiteVariates"},
    "feddyn": {"SiteDuals"},
    "fedxchain": {"SiteTrust"},
    "glm": {"StatisticSite"},
    "veil": {"VeilSite"},
}


@pytest.mark.parametrize("method", PLUGINS)
def test_a_host_is_built_with_the_halves_of_its_plan_and_no_others(method):
    settings = {"data": {"name": "heart"}, "method": {"name": method}, "personal": {"guard": False}}
    plan = Plan(Experiment.parse(settings).plan())
    assert {p.__name__ for p in site_plugins(plan)} == PLUGINS[method]


def test_personal_parts_and_weighting_bring_their_own_halves():
    settings = {"data": {"name": "heart"}, "method": {"weigh": {"rule": "explanations"}}, "personal": {"part": "ditto"}}
    plan = Plan(Experiment.parse(settings).plan())
    assert {p.__name__ for p in site_plugins(plan)} == {"PatientHalves", "TrainedParts", "PersonalSite"}


def test_a_host_may_be_built_with_all_of_them():
    hosted = {type(p) for p in ready(stack([10, 10]))[0].hosts[0].plugins}
    assert set(all_site_plugins()) < hosted
