"""What a summary says of trust: the newest of each site, alarms and refusals by round, rewards beside trust."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.records import Decision
from grandrounds.explain.trust import DOUBTS
from grandrounds.methods.fedxchain.summary import (
    alarm_rounds,
    latest_by_site,
    rejection_code,
    rejection_rounds,
    reward_correlation,
    trust_facts,
)
from grandrounds.privacy.secagg.terms import REASONS
from tests.support import patients

DATA = {"data": {"label": "died", "site": "hospital"}, "split": {"val": 0.2, "test": 0.2}}


def decision(round, trust, nsds, reward=None, missing=None):
    signals = {"trust": trust, "nsds": nsds, **({} if reward is None else {"reward": reward})}
    return {"round": round, "signals": signals, "missing": missing or {}}


def test_a_site_that_was_away_at_the_end_has_the_trust_it_left_with():
    told = [decision(1, {"a": 0.5, "b": 0.9}, {}), decision(2, {"a": 0.6}, {})]
    assert latest_by_site(told, "trust") == {"a": 0.6, "b": 0.9}


def test_alarms_are_by_site_and_round_and_only_beyond_the_line():
    told = [decision(1, {}, {"a": 1.0, "b": 1.1}), decision(4, {}, {"a": 1.01, "b": 2.0, "c": None})]
    assert alarm_rounds(told, 1.0) == {"b": [1, 4], "a": [4]}


def test_refusals_of_weights_are_told_from_other_absences():
    away = {"a": "refused (weights-wrong)", "b": "dropped out", "c": "refused (other-weights)"}
    assert rejection_rounds([decision(3, {}, {}, missing=away)]) == {"a": [3]}
    assert (rejection_code("refused (not-as-told)"), rejection_code("dropped out")) == ("not-as-told", "")
    assert not set(DOUBTS) & set(REASONS), "a code of one would be told in the words of the other"


def test_the_correlation_is_pearsons_over_means_of_rounds():
    told = [
        decision(1, {"a": 0.2, "b": 0.6, "c": 1.0}, {}, {"a": 1.0, "b": 2.0, "c": 6.0}),
        decision(2, {"a": 0.4, "b": 0.6, "c": 0.8}, {}, {"a": 1.0, "b": 2.0, "c": 4.0}),
    ]
    assert reward_correlation(told) == pytest.approx(np.corrcoef([0.3, 0.6, 0.9], [1.0, 2.0, 5.0])[0, 1])
    level = [decision(1, dict.fromkeys("abc", 0.5), {}, {"a": 1.0, "b": 2.0, "c": 3.0})]
    assert reward_correlation(level) is None, "trust that does not differ has no correlation"
    assert reward_correlation([decision(1, {"a": 1.0}, {})]) is None


def test_fltrusts_trust_is_another():
    of_fltrust = Decision(round=1, signals={"trust": {"a": 1.0}, "similarity": {"a": 1.0}})
    of_fedxchain = Decision(round=1, signals={"trust": {"a": 1.0}, "nsds": {"a": 0.1}})
    assert (of_fltrust.has_trust, of_fedxchain.has_trust) == (False, True)


def facts(**changes) -> dict[str, tuple[str, str]]:
    trust = {
        "last": {"a": 0.9, "b": 0.5},
        "mean_trust": 0.7,
        "mean_nsds": 0.02,
        "weighs": True,
        "alarm": 1.0,
        "alarmed": {},
        "refused": {},
        "reward_correlation": None,
        "accepted": [],
        "ledger": {},
    }
    return {fact.label: (fact.value, fact.note) for fact in trust_facts({**trust, **changes})}


def test_a_run_states_who_accepted_its_weights_and_the_size_of_its_ledger():
    found = facts(accepted=[3, 2, 3], refused={"c": [2]}, ledger={"entries": 4, "countersignatures": 12})
    assert found["weights recomputed and accepted"][0] == "by 2 to 3 sites in each of 3 rounds"
    assert found["weights rejected"][0] == "c (round 2)"
    assert found["ledger"][0] == "4 entries, 12 countersignatures by sites"
    assert "rounds audit anchor RUN" in found["blockchain"][1]


def test_a_run_without_a_ledger_or_that_does_not_use_trust_states_neither():
    found = facts(weighs=False)
    assert not {"ledger", "blockchain", "weights recomputed and accepted"} & set(found)
    assert "recorded only" in found["trust in the last round"][1]


def test_the_counts_are_those_that_the_audit_finds(tmp_path):
    settings = {"method": {"name": "fedxchain", "rounds": 3}, "explain": {"sketch": "none"}}
    done = gr.run(gr.Experiment.parse({**DATA, **settings}), table=patients([40, 30, 50]), out=tmp_path / "run")
    trust, book = done.summary.trust, done.ledger.book()
    assert trust["accepted"] == [3, 3, 3]
    assert trust["ledger"] == {"entries": len(book.entries) - 1, "countersignatures": 4 * 3}, "the start and three rounds"
    assert sum(len(head.witnesses) for head in book.heads) == 5 * 3, "and the closing entry"
