"""FedXChain's trust and weights worked out again by an auditor: right ones follow, and whatever was bent is named."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.method_weights import TAKEN_AS_RECORDED
from grandrounds.analysis.audit.report import audit
from grandrounds.analysis.audit.weights import recompute_weights
from grandrounds.audit.canonical import canonical
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.verify import CHANGED
from grandrounds.core.arrays import load, save
from grandrounds.core.plan import Settings
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods.fedxchain import site as at_site
from grandrounds.protocol.identity import Identity
from tests.audit.ledgers import tampered
from tests.support import refused, thinned

BASE = {
    "name": "trust",
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 8},
    "train": {"epochs": 1, "lr": 0.1},
    "reference": {"root": {"rows": 40, "sent": True}},
    "explain": {"every": 0, "at": "site"},
}
METHODS = {
    "default": {},
    "printed": {"trust": "printed"},
    "robust": {"trust": "robust"},
    "watched, by rows": {"weigh": "data_size"},
    "watched, uniform": {"weigh": "uniform"},
    "watched, by reasons": {"weigh": "explanations"},
    "by rows too": {"trust": {"kappa": 0.5, "window": 2}},
    "own accuracy": {"trust": {"accuracy_at": "site"}},
    "reasons too": {"trust": {"reasons": True}},
    "in cohorts": {"trust": {"reasons": True}, "cohorts": 2, "rounds": 2},
    "few features": {"trust": {"top": 5}},
    "alarms": {"trust": {"alarm": 0.05}},
    "no weight left": {"trust": {"form": "printed", "tau": 1e6}},
    "some away": {"select": "random"},
    "under masks": {},
    "under masks, some drop out": {},
    "one refuses": {"trust": {"accuracy_at": "site", "kappa": 0.5}, "rounds": 6},
    "one refuses under masks": {"rounds": 5},
}
MORE = {
    "under masks": {"privacy": {"secure": True}},
    "under masks, some drop out": {"privacy": {"secure": True}, "engine": {"faults": {"drop": 0.008}}, "seed": 8},
    "one refuses under masks": {"privacy": {"secure": True}},
}
REFUSER, REFUSES, UNKNOWN = "site-02", (2, 3), "site-05"


def refusing(self, site, *told):
    """A site that does not go along in two of the rounds."""
    self.asked = getattr(self, "asked", 0) + (site == REFUSER)
    return "weights-wrong" if site == REFUSER and self.asked in REFUSES else DOUBT(self, site, *told)


def unjudged(self, models, members, on):
    """A site that has no row to judge its model on."""
    found = ACCURACY(self, models, members, on)
    return np.where(np.array(self.site.names_of(members)) == UNKNOWN, np.nan, found)


DOUBT, ACCURACY = at_site.SiteTrust._rejection_code, at_site.SiteTrust._accuracy


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made: dict[str, gr.Run] = {}

    def run(kind: str) -> gr.Run:
        if kind not in made:
            method = {"name": "fedxchain", "rounds": 4, **METHODS[kind]}
            plan = {**BASE, **MORE.get(kind, {}), "method": method}
            with pytest.MonkeyPatch.context() as patched:
                if "refuses" in kind:
                    patched.setattr(at_site.SiteTrust, "_rejection_code", refusing)
                    patched.setattr(at_site.SiteTrust, "_accuracy", unjudged)
                made[kind] = gr.run(gr.Experiment.parse(plan), out=tmp_path_factory.mktemp("trust") / "run")
        return made[kind]

    return run


def of(run: gr.Run) -> tuple[Settings, list[dict]]:
    return Settings(run.plan).method, [record["decision"] for record in run.rounds]


@pytest.mark.parametrize("kind", thinned(METHODS, 3))
def test_a_run_as_it_was_verifies_and_what_was_not_checked_is_said_once(runs, kind):
    found = audit(runs(kind).folder, deep=True)
    assert found.findings == () and found.deep
    assert [what for what in found.unchecked if "trust" in what] == [TAKEN_AS_RECORDED]


def test_what_is_tested_did_happen(runs):
    """Some did drop out after they were weighed, one did refuse, alarms were noted, accuracies were not known."""
    decisions = of(runs("under masks, some drop out"))[1]
    stages = [{s["part"]: set(s["weights"]) for s in d["stages"]} for d in decisions]
    assert any(s["secure"] < s["weigh"] for s in stages)
    for kind in ("one refuses", "one refuses under masks"):
        _, decisions = of(runs(kind))
        assert [d["round"] for d in decisions if REFUSER not in d["weights"]] == list(REFUSES)
        assert all("weights-wrong" in decisions[r - 1]["missing"][REFUSER] for r in REFUSES)
    assert of(runs("one refuses"))[1][0]["signals"]["accuracy"][UNKNOWN] is None
    assert any("its attributions diverge" in note for d in of(runs("alarms"))[1] for note in d["notes"])
    assert "all weights were 0" in of(runs("no weight left"))[1][0]["why"]


def test_the_numbers_of_who_refused_are_recorded_because_the_others_weights_were_made_with_them(runs):
    """Whoever has no accuracy counts as the mean of those that have one: of all that were weighed."""
    method, decisions = of(runs("one refuses"))
    at = REFUSES[-1] - 1
    assert REFUSER in decisions[at]["signals"]["trust"] and REFUSER in decisions[at]["signals"]["data_size"]
    without = {n: {s: v for s, v in vs.items() if s != REFUSER} for n, vs in decisions[at]["signals"].items()}
    assert recompute_weights(method, {**decisions[at], "signals": without}, decisions[:at]).wrong


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("kind", "signal"),
    [
        *[(k, n) for k in ("default", "printed", "under masks") for n in ("trust", "accuracy", "nsds", "consistency")],
        *[("watched, by rows", n) for n in ("trust", "accuracy", "nsds", "consistency", "data_size", "reward")],
        ("watched, uniform", "trust"),
        ("robust", "alignment"),
        ("default", "steadiness"),
        ("default", "reward"),
        ("default", "contribution"),
        ("under masks", "reward"),
        ("by rows too", "data_size"),
        ("reasons too", "in_line"),
        ("reasons too", "disagreement"),
        ("one refuses", "trust"),
        ("under masks, some drop out", "trust"),
    ],
)
def test_a_number_bent_by_a_millionth_is_noticed(runs, kind, signal):
    method, decisions = of(runs(kind))
    *before, last = decisions
    values = last["signals"][signal]
    site = max(last["weights"], key=last["weights"].get)
    bent = {**values, site: values[site] + (1 if signal == "data_size" else 1e-6)}
    assert recompute_weights(method, {**last, "signals": {**last["signals"], signal: bent}}, before).wrong


@pytest.mark.parametrize("kind", ["default", "watched, by rows", "under masks", "one refuses", "no weight left"])
def test_a_millionth_of_weight_given_for_nothing_is_named(runs, kind):
    method, (*before, last) = of(runs(kind))
    first, *_, other = last["weights"]

    def moved(weights: dict) -> dict:
        return {**weights, first: weights[first] + 1e-6, other: weights[other] - 1e-6} if weights else weights

    stages = [{**s, "weights": moved(s["weights"])} for s in last["stages"]]
    wrong = recompute_weights(method, {**last, "weights": moved(last["weights"]), "stages": stages}, before).wrong
    assert any(f"of {first} " in said for said in wrong) and any(f"of {other} " in said for said in wrong)


def test_an_accuracy_of_an_earlier_round_has_its_say_as_long_as_the_window_lasts(runs):
    method, decisions = of(runs("default"))
    assert method.trust.window == 3

    def bent(at: int) -> list[dict]:
        signals = decisions[at]["signals"]
        accuracy = {**signals["accuracy"], "site-01": signals["accuracy"]["site-01"] - 0.2}
        changed = {**decisions[at], "signals": {**signals, "accuracy": accuracy}}
        return [changed if k == at else d for k, d in enumerate(decisions[:3])]

    assert recompute_weights(method, decisions[3], bent(0)).wrong == []
    for at in (1, 2):
        assert any("'consistency' of site-01" in said for said in recompute_weights(method, decisions[3], bent(at)).wrong)


def test_what_a_site_said_while_it_refused_does_not_count_later(runs):
    """It was away for two rounds: its accuracies of those are recorded and are not among its last three."""
    method, decisions = of(runs("one refuses"))
    changed = [dict(d) for d in decisions]
    for r in REFUSES:
        accuracy = {**decisions[r - 1]["signals"]["accuracy"], REFUSER: 0.0}
        changed[r - 1]["signals"] = {**decisions[r - 1]["signals"], "accuracy": accuracy}
    assert recompute_weights(method, decisions[3], changed[:3]).wrong == []


def test_a_signal_or_a_site_left_out_is_noticed(runs):
    method, (*before, last) = of(runs("default"))
    site = next(iter(last["weights"]))
    for signal in ("trust", "nsds", "consistency", "reward", "contribution"):
        held = {s: v for s, v in last["signals"][signal].items() if s != site}
        assert recompute_weights(method, {**last, "signals": {**last["signals"], signal: held}}, before).wrong, signal


def test_an_alarm_that_was_taken_out_is_noticed(runs):
    method, decisions = of(runs("alarms"))
    at = next(k for k, d in enumerate(decisions) if any("attributions diverge" in n for n in d["notes"]))
    wrong = recompute_weights(method, {**decisions[at], "notes": []}, decisions[:at]).wrong
    assert wrong and all("diverges by more than method.trust.alarm, and no note says so" in said for said in wrong)


def test_by_hand():
    """T = .5 Acc + .3 exp(-NSDS) + .2 C, weight ~ T exp(-NSDS / 2). NSDS 0 and ln 2; accuracies .8, then .6 and .8.

    First round: T = .9 and .75, weights as .9 to .75 / sqrt 2. Then a's accuracies differ by a standard deviation of .1, which
    is a fifth of .5, and its reasons are steady by .9: C = (.8 + .9) / 2 = .85, T = .3 + .3 + .17 = .77.
    """
    trust = {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "tau": 0.5, "kappa": 0.0, "form": "exponential", "window": 3}
    trust |= {"signed": False, "reasons": False, "alarm": 1.0}
    method = Settings({"name": "fedxchain", "weigh": {"rule": "trust"}, "trust": trust})
    far, even = {"a": 0.0, "b": math.log(2)}, {"a": 1.0, "b": 1.0}

    def decision(accuracy: float, steady: float | None, consistency: float, of_a: float) -> dict:
        raw = {"a": of_a, "b": 0.75 / math.sqrt(2)}
        weights = {s: w / sum(raw.values()) for s, w in raw.items()}
        signals = {
            "data_size": {"a": 10.0, "b": 90.0},
            "accuracy": {"a": accuracy, "b": 0.8},
            "nsds": far,
            "steadiness": {"a": steady, "b": None if steady is None else 1.0},
            "consistency": {**even, "a": consistency},
            "trust": {"a": of_a, "b": 0.75},
            "contribution": {"a": 0.1, "b": -0.2},
            "reward": {"a": 0.1 * of_a, "b": -0.15},
        }
        stage = {"part": "weigh", "why": "", "weights": weights}
        return {"weights": weights, "signals": signals, "stages": [stage], "cohorts": {}, "notes": []}

    first = decision(0.8, None, 1.0, 0.9)
    assert recompute_weights(method, first, []).wrong == []
    assert recompute_weights(method, decision(0.6, 0.9, 0.85, 0.77), [first]).wrong == []
    assert recompute_weights(method, decision(0.6, 0.9, 0.85, 0.78), [first]).wrong
    assert recompute_weights(method, decision(0.6, 0.9, 0.85, 0.77), []).wrong


@pytest.mark.parametrize("kind", ["default", "under masks"])
def test_a_server_that_signs_more_trust_for_a_friend_is_found_by_arithmetic(runs, kind, tmp_path):
    """It has its own key, and writes journal and ledger to match: everything is well signed, and does not follow."""
    folder = shutil.copytree(runs(kind).folder, tmp_path / "run")
    with Ledger.open(folder / "ledger.db") as ledger:
        said = [{k: v for k, v in e.items() if k not in ("number", "previous", "schema")} for e in ledger.entries()]
    _trusted_more(said[3]["decision"])
    _journal(folder, 3, _trusted_more)
    for name in ("ledger.db", "ledger.head.json"):
        (folder / name).unlink()
    with Ledger.open(folder / "ledger.db", identity=Identity.simulated(0, "server")) as ledger:
        ledger.append(said[0]["run"], *said)
    assert audit(folder, files=False).findings == ()
    found = [str(f) for f in audit(folder, deep=True).findings]
    assert any(f.startswith("weights do not follow (round 3): 'trust' of site-01") for f in found)
    assert not any(f.startswith("journal differs (round") for f in found)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["default", "under masks"])
@pytest.mark.parametrize(
    "where",
    [
        ("model",),
        ("served",),
        ("commitments", "site-03"),
        ("previous",),
        ("reference", "root"),
        ("plan",),
        ("decision", "weights", "site-03"),
        *(
            ("decision", "signals", n, "site-03")
            for n in ("data_size", "accuracy", "nsds", "steadiness", "consistency")
        ),
        *(("decision", "signals", n, "site-03") for n in ("trust", "contribution", "reward")),
        ("decision", "reasons", "mean_radius"),
        ("decision", "stages", 0, "weights", "site-03"),
    ],
    ids=lambda where: "/".join(map(str, where)),
)
def test_an_entry_covers_all_that_eq_9_should(runs, kind, where, tmp_path):
    """The paper hashes the old model and no weights. Here whatever is changed in the file is found."""
    folder = shutil.copytree(runs(kind).folder, tmp_path / "run")
    with Ledger.open(folder / "ledger.db") as ledger:
        said = list(ledger.entries())[2]
    held = said
    for step in where[:-1]:
        held = held[step]
    value = held[where[-1]]
    held[where[-1]] = (
        value + 1e-9 if isinstance(value, float) else value + 1 if isinstance(value, int) else _bent(value)
    )
    tampered(folder / "ledger.db", "UPDATE entries SET body = ? WHERE number = 2", values=(canonical(said),))
    assert CHANGED in {f.name for f in audit(folder).findings}


@pytest.mark.parametrize("kind", ["default", "under masks"])
def test_every_number_of_a_round_is_in_its_entry(runs, kind):
    run = runs(kind)
    with run.ledger as ledger:
        rounds = [e for e in ledger.entries() if e["kind"] == "round"]
    for entry, record in zip(rounds, run.rounds, strict=True):
        decision = record["decision"]
        assert (
            entry["decision"]["signals"] == decision["signals"] and entry["decision"]["weights"] == decision["weights"]
        )
        assert entry["decision"]["reasons"] == decision["reasons"]
        assert math.isclose(sum(entry["decision"]["reasons"].values()), 1, abs_tol=1e-6)
        assert set(entry["commitments"]) == set(decision["asked"])
    assert len({e["model"] for e in rounds}) == len(rounds)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"robust": "foolsgold"}, r"method\.robust"),
        ({"weigh": {"rule": "explanations", "every": 2}}, r"method\.weigh"),
    ],
)
def test_what_would_leave_two_meanings_of_trust_in_a_record_is_refused(method, said, tmp_path):
    plan = {**BASE, "method": {"name": "fedxchain", "rounds": 1, **method}}
    with refused("method-does-not-fit", match=said):
        gr.run(gr.Experiment.parse(plan), out=tmp_path / "run")


def _trusted_more(decision: dict) -> None:
    decision["signals"]["trust"]["site-01"] += 0.01


def _bent(hashed: str) -> str:
    return ("0" if hashed[0] != "0" else "1") + hashed[1:]


def _journal(folder: Path, round: int, change) -> None:
    """Change a round's line in the journal; the state says how long the journal is."""
    path, state = folder / "checkpoint" / "rounds.jsonl", folder / "checkpoint" / "state.safetensors"
    records = Checkpoint(folder / "checkpoint").records()
    change(next(r for r in records if r["round"] == round)["decision"])
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    arrays, facts = load(state)
    save(state, arrays, {**facts, "journal": path.stat().st_size})
