"""What leaves without noise is named with whose rows it is of, and rows are prepared by nothing that singles a patient out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.accounting.account import Account
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.protocol.messages import Ask
from tests.capabilities.hospital.keeper.charges_support import NOBODY, STRICT, Site, told
from tests.support import refused


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path).prepared()


@pytest.mark.parametrize(
    "ask",
    [
        Ask("evaluate", report=("test", "figures")),
        Ask("evaluate", report=("train", "val")),
    ],
)
def test_what_is_said_of_test_rows_is_for_the_policy_to_say(site, tmp_path, ask):
    """A host that says nothing of the other rows says nothing; one that would is refused."""
    ask = site.numbered(told(ask, model=site.model))
    assert site.pay(ask).code == ""
    bare = Account(site.host, Terms())
    assert bare.pay(ask, site.purse, required=True).code == "not-private"
    assert {e.of for e in bare.charges(ask)} <= {"training", "validation", "test"}
    assert not site.purse.budget().events


@pytest.mark.parametrize(
    ("ask", "rows"),
    [
        (Ask("summarise", report=("summary",)), {"training"}),
        (Ask("score", report=("loss",)), {"training"}),
        (Ask("score", {"parts": "test"}, report=("lent",)), {"test"}),
        (Ask("score", {"parts": "train,test,all"}, report=("lent",)), {"training", "validation", "test"}),
        (Ask("calibrate", {"grid": np.ones(1)}, report=("losses",)), {"validation"}),
        (Ask("platt", {"lines": np.ones((1, 2))}, report=("sums",)), {"validation"}),
        (Ask("explain", {"explain": "{}"}, report=("sketch",)), {"training", "validation", "test"}),
        (Ask("maps", report=("maps",)), {"training", "test"}),
        (Ask("something new", report=("x",)), {"training", "validation", "test"}),
    ],
)
def test_what_is_told_without_noise_is_named_with_whose_rows_it_is_of(site, ask, rows):
    ask = site.numbered(ask)
    events = site.account.charges(ask)
    assert {e.kind for e in events} == {"raw"} and {e.of for e in events} == rows
    if rows != {"test"}:
        assert site.pay(ask).code == "not-private"
    assert site.pay(ask, required=False).code == "", "a site that promises nothing only lists it"
    assert site.account.pay(ask, None, required=False).events == events


@pytest.mark.parametrize("report", ["centre", "notes", "something new"])
def test_preparing_tells_how_many_rows_there_are_and_no_more(site, report):
    assert site.pay(site.preparing(site.encoding.to_dict())).code == ""
    assert site.pay(site.preparing(site.encoding.to_dict(), report)).code == "not-private"


def test_an_encoding_that_singles_out_a_patient_is_refused(site):
    """A scale of 0 makes no number of whoever is at the centre; one such row is seen in a sum through any noise."""
    crafted = site.encoding.to_dict()
    column = site.stack.data.numeric_names.index(crafted["numeric"][0]["name"])
    rows = site.stack.data.numeric[site.stack.rows[0].train, column]
    values = np.unique(rows[np.isfinite(rows)])
    there, nobody = float(values[3]), float(values[3] + 0.123)
    for centre in (there, nobody):
        crafted["numeric"] = [{**crafted["numeric"][0], "centre": centre, "scale": 0.0}, *crafted["numeric"][1:]]
        ask = site.preparing(crafted)
        assert site.pay(ask).code == "not-private"
        with refused("damaged-encoding"):  # were it allowed
            site.host.answer(ask, NOBODY)


@pytest.mark.parametrize("lie", [{"scale": 0.0}, {"scale": 1e-300}, {"centre": float("inf")}, {"low": float("nan")}])
def test_numbers_of_an_encoding_that_are_none(site, lie):
    crafted = site.encoding.to_dict()
    crafted["numeric"] = [{**crafted["numeric"][0], **lie}, *crafted["numeric"][1:]]
    assert site.pay(site.preparing(crafted)).code == "not-private"


def test_a_label_that_is_left_out_would_tell_who_has_it(site):
    classes = site.encoding.classes
    careful = Account(site.host, replace(STRICT, classes=classes))
    whole = site.preparing(site.encoding.to_dict())
    less = site.preparing({**site.encoding.to_dict(), "classes": list(classes[:1])})
    assert careful.pay(whole, site.purse, required=True).code == ""
    assert careful.pay(less, site.purse, required=True).code == "not-private"
