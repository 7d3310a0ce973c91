"""VEIL's own numbers: traffic, features used, and the epsilon charged beside the one that the paper claims."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.methods.veil.summary import describe_run
from tests.command import rounds
from tests.e2e.test_veil import SIZES, D, run, slopes


def facts(run) -> dict[str, tuple[str, str]]:
    return {fact.label: (fact.value, fact.note) for fact in describe_run(run.summary)}


def test_a_private_run_states_its_traffic_its_features_and_what_was_charged(tmp_path):
    done = run(tmp_path / "v", veil={"selection": "score", "features": 4})
    numbers, cost = done.summary.method_numbers, done.summary.cost
    assert (numbers["features"], numbers["used"]) == (D, np.count_nonzero(slopes(done))) == (D, 4)
    assert numbers["dense_bytes"] == 2 * 4 * len(SIZES) * (D + 1) * 4, "two ways, four rounds, every site, float32"
    found = facts(done)
    assert found["features used"][0] == "4 of 9"
    arrays = cost["payload_up"] + cost["payload_down"]
    assert found["traffic of training, both ways"][0] == f"{arrays / 1e6:.3f} MB"
    charged, releases = found["epsilon charged for each row"]
    assert charged == "5.00 of 5, delta 1e-5"
    assert "16 x proposals of features with a sign" in releases, "four rounds of four proposals"
    assert "epsilon claimed by the paper" not in found


def test_as_printed_the_claimed_epsilon_stands_beside_infinity(tmp_path):
    printed = {"selection": "paper", "claimed_epsilon": 5.0, "k": 2, "votes": "quorum", "quorum": 0.1, "decay": False}
    done = run(tmp_path / "v", veil=printed, privacy={"epsilon": None})
    found = facts(done)
    assert found["epsilon charged for each row"][0] == "infinity"
    assert found["epsilon claimed by the paper"][0] == "5"
    assert done.summary.cost["payload_up"] == 4 * len(SIZES) * 2, "four rounds, two proposals of one byte each"
    assert done.summary.cost["payload_down"] == 0, "the model is never sent to a site"


@pytest.mark.parametrize("surface", ["screen", "report", "python"])
def test_every_surface_has_the_same_facts(surface, tmp_path):
    done = run(tmp_path / "v", veil={"selection": "score", "features": 4})
    if surface == "screen":
        text = rounds("show", done.folder).stdout
    elif surface == "report":
        text = (done.folder / "report.html").read_text()
    else:
        text = "\n".join(map(str, done.method_facts))
    assert "features used" in text and "4 of 9" in text and "5.00 of 5" in text
