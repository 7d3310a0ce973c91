"""A run that goes on must be able to add to its ledger: with the keys that it was opened with."""

from __future__ import annotations

import pytest

import grandrounds as gr
from grandrounds.audit.book import read_keys
from grandrounds.deploy.run_worker import check_keys
from tests.support import patients, refused


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    experiment = gr.Experiment.parse(
        {
            "name": "x",
            "data": {"table": "p.csv", "label": "died", "site": "hospital"},
            "method": {"name": "fedavg", "rounds": 1},
            "explain": {"sketch": "none"},
        }
    )
    return gr.run(experiment, out=tmp_path_factory.mktemp("runs") / "begun", table=patients([30, 30]))


def test_the_same_keys_go_on_and_a_site_that_joined_since_is_no_matter(begun):
    with begun.ledger as ledger:
        server, sites = read_keys(next(ledger.entries()))
    check_keys(begun.folder, server, sites)
    check_keys(begun.folder, server, {**sites, "joined since": b"k" * 32})


def test_other_keys_are_refused_with_whose_they_are(begun):
    with begun.ledger as ledger:
        server, sites = read_keys(next(ledger.entries()))
    with refused("other-keys", match="keys of b"):
        check_keys(begun.folder, server, {**sites, "b": b"k" * 32})
    with refused("other-keys", match="the server"):
        check_keys(begun.folder, b"k" * 32, sites)
