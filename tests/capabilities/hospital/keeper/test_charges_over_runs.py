"""What holds over all runs of a site: how its rows are dealt, whose noise it is, and what is written down of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.accounting.account import Account, describe
from grandrounds.capabilities.hospital.keeper.accounting.terms import check_own_split, declared_noise
from grandrounds.data.split import Rows
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import UNKNOWN_COST
from grandrounds.protocol.tasks import specs
from grandrounds.site.host import SiteHost
from tests.capabilities.hospital.keeper.charges_support import DELTA, NOBODY, STRICT, Site, consortium, told
from tests.support import all_site_plugins, refused


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path).prepared()


def test_every_task_of_a_site_has_a_place_in_the_account():
    """A task that nobody has thought about is refused, and this says so before a hospital does."""
    known = {name for name, spec in specs().items() if spec.cost != UNKNOWN_COST}
    assert set(SiteHost(consortium().alone(0), plugins=all_site_plugins())._tasks) == known


def dealt(stack, *, seed=0, test=0.2):
    """The same rows of a site, dealt by a seed."""
    n = sum(len(getattr(stack.rows[0], p)) for p in ("train", "val", "test"))
    order, cut = np.random.default_rng(seed).permutation(n), int((1 - test) * n)
    parts = [np.sort(part) for part in (order[: cut // 2], order[cut // 2 : cut], order[cut:])]
    return replace(stack, rows=(Rows(*parts),))


def test_the_first_split_is_the_sites_own(site, tmp_path):
    path = tmp_path / "split.json"
    first, other = dealt(site.stack, seed=1), dealt(site.stack, seed=2)
    assert check_own_split(path, first) and check_own_split(path, first)
    assert not check_own_split(path, other) and check_own_split(path, first)


def test_a_split_that_makes_everybody_a_test_patient_is_never_the_sites_own(site, tmp_path):
    path = tmp_path / "split.json"
    assert not check_own_split(path, dealt(site.stack, test=0.9))
    assert not path.exists()
    assert check_own_split(path, dealt(site.stack, test=0.9), most_test=0.95)


def test_a_damaged_note_of_the_split_is_said(site, tmp_path):
    (tmp_path / "split.json").write_text("{")
    with refused("damaged-file"):
        check_own_split(tmp_path / "split.json", site.stack)


def test_rows_dealt_anew_are_covered_whatever_they_are_called(site, tmp_path):
    """A second run in which the training patients of the first are test patients learns nothing of them for free."""
    tested = Ask("evaluate", {"model": site.model}, report=("test",))
    assert check_own_split(tmp_path / "split.json", site.host.stack)
    assert site.pay(site.numbered(tested)).code == ""
    site.host.stack = dealt(site.host.stack, seed=3)
    own = check_own_split(tmp_path / "split.json", site.host.stack)
    site.account = Account(site.host, replace(STRICT, own_split=own))
    assert site.pay(site.numbered(tested, run="again")).code == "not-private"
    assert site.pay(site.training(run="again")).code == ""
    assert site.purse.spent("test") == site.purse.spent("training") > 0


def test_a_trusted_servers_noise_is_what_its_plan_must_add(tmp_path):
    """Three rounds of it are the budget of the plan, by the exact Gaussian account."""
    noise = declared_noise(epsilon=2.0, delta=DELTA, rounds=3)
    assert epsilon_of([Event("gaussian", "x", count=3, sigma=noise)], DELTA) == pytest.approx(2.0, rel=1e-3)
    assert declared_noise(epsilon=None, delta=DELTA, rounds=3, noise=7.0) == 7.0
    site = Site(tmp_path, epsilon=5.0, terms=replace(STRICT, trust_server=True, declared=noise)).prepared()
    for r in range(3):
        assert site.pay(site.training(rate=0.0, longest=1.0, round=r + 1)).code == ""
    assert site.purse.spent() == pytest.approx(2.0, rel=1e-3)
    assert {e.trust for e in site.purse.budget().events} == {"trusted server"}
    site.account = Account(site.host, replace(STRICT, declared=noise))
    assert site.pay(site.training(rate=0.0, longest=1.0)).code == "not-private", "who does not trust it"


def test_the_log_says_what_was_released_and_nothing_of_a_patient(site):
    (paid,) = describe(site.pay(site.training()).events)
    (refused,) = describe(site.pay(site.numbered(Ask("summarise", report=("summary",)))).events)
    assert paid.startswith("5 x models of the sites: Gaussian noise, 2 times the largest change by one patient")
    assert refused == "1 x a summary of training rows: no noise (training rows)"


def test_releases_that_are_alike_are_told_together():
    one = Event("laplace", "rows and events", epsilon=0.25)
    assert describe((one, one, replace(one, count=3))) == [
        "5 x rows and events: Laplace noise, epsilon = 0.25 each (training rows)"
    ]
    assert describe(()) == ["nothing about patients"]


def test_noise_that_follows_from_a_stored_secret_is_no_noise(site):
    """Two questions by one id, with and without the patients: the difference is their gradient, as it is."""
    stored = Secret.simulated(0, "kept on disk")

    def difference(secret: Secret) -> float:
        host = SiteHost(site.stack, secret=lambda _: secret)
        host.answer(site.preparing(site.encoding.to_dict()), NOBODY)
        ask = site.training("model", steps=1, noise=50.0, rate=1.0, lr=1.0, momentum=0.0)
        without, there = (host.answer(told(ask, class_weight=np.full(2, w)), NOBODY)["model"] for w in (0.0, 1.0))
        return float(np.linalg.norm(there - without))

    x = SiteHost(site.stack)
    x.answer(site.preparing(site.encoding.to_dict()), NOBODY)
    part = x.stack.parts["train"]
    rows = np.hstack([part.x, np.ones((len(part.x), 1))])
    each = (0.5 - part.y)[:, None] * rows  # the gradient of a row at a model of zeros
    each /= np.maximum(1, np.linalg.norm(each, axis=1))[:, None]
    assert difference(stored) == pytest.approx(np.linalg.norm(each.mean(axis=0)), rel=1e-3)
    assert difference(Secret.own()) > 2 * difference(stored)
