"""FedXChain from the plan to the folder: plain and under masks, with servers that cheat, sites that leave, and liars."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.privacy.disclosures import list_disclosures
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import Settings
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import LocalEngine
from grandrounds.explain.trust import TrustInputs, TrustRule, compute_trust
from grandrounds.methods.effects import intercept
from grandrounds.methods.fedxchain.server import FedXChain
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import CONTRIBUTE, DIVERGE, WEIGHTS
from grandrounds.recipes import load_recipe
from grandrounds.runs.references import ServerRows
from grandrounds.site.host import SiteHost
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.e2e.test_images import pictures  # noqa: F401
from tests.support import patients, refused, thinned

SIZES = [60, 50, 70, 40, 55]
BASE = {
    "data": {"label": "died", "site": "hospital"},
    "split": {"val": 0.2, "test": 0.2},
    "reference": {"root": {"rows": 30, "sent": True}},
    "method": {"name": "fedxchain", "rounds": 3},
    "train": {"steps": 8, "batch": 16, "lr": 0.2},
    "explain": {"sketch": "none"},
}
MASKED = {"secure": True}


def experiment(**changes) -> gr.Experiment:
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section} if isinstance(section, dict) else section
    return gr.Experiment.parse({key: section for key, section in values.items() if section is not None})


def run(out, *, sizes=SIZES, classes=2, progress=None, **changes) -> gr.Run:
    more = {} if progress is None else {"progress": progress}
    return gr.run(experiment(**changes), table=patients(sizes, classes=classes), out=out, **more)


def decisions(done: gr.Run) -> list[dict]:
    return [r["decision"] for r in done.rounds]


def signal(done: gr.Run, name: str, round: int = -1) -> dict[str, float]:
    return decisions(done)[round]["signals"][name]


def started(heard) -> list[bytes]:
    """The model that each round began with."""
    return [np.asarray(a.shared["model"]).tobytes() for a, _ in heard if a.task == "train"]


# Other methods are in it


@pytest.mark.thinned(3)
@pytest.mark.parametrize("privacy", [{}, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize(
    ("watched", "plain"),
    [
        ({"weigh": "data_size"}, {"name": "fedavg"}),
        ({"weigh": "uniform"}, {"name": "fedavg", "weigh": "uniform"}),
        ({"weigh": "data_size", "stability": "proximal", "mu": 0.3}, {"name": "fedprox", "mu": 0.3}),
    ],
    ids=["fedavg", "uniform", "fedprox"],
)
def test_where_trust_has_no_say_every_rounds_model_is_the_other_methods_to_the_bit(
    watched, plain, privacy, heard, tmp_path
):
    ours = run(tmp_path / "ours", method=watched, privacy=privacy)
    mine = started(heard)
    heard.clear()
    theirs = run(tmp_path / "theirs", method={"name": "fedavg", **plain}, privacy=privacy)
    assert len(mine) == 3 and mine == started(heard)
    assert ours.model.theta.tobytes() == theirs.model.theta.tobytes()
    for a, b in zip(decisions(ours), decisions(theirs), strict=True):
        assert a["weights"] == b["weights"]
        assert set(a["signals"]["trust"]) == set("abcde") and "trust" not in b["signals"]


# Under masks it is the same, and nothing is seen


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "trust",
    [
        {},
        {"preset": "robust"},
        {"explained": "reference"},
        {"accuracy_at": "site", "top": 2},
        {"kappa": 1.0, "form": "printed"},
    ],
    ids=["default", "robust", "reference", "own rows", "printed"],
)
def test_masked_and_plain_are_the_same_run(trust, tmp_path):
    masked = run(tmp_path / "masked", method={"trust": trust}, privacy=MASKED)
    plain = run(tmp_path / "plain", method={"trust": trust})
    np.testing.assert_allclose(masked.model.theta, plain.model.theta, atol=1e-5)
    for a, b in zip(decisions(masked), decisions(plain), strict=True):
        assert a["weights"] == pytest.approx(b["weights"], abs=1e-5)
        assert a["signals"].keys() == b["signals"].keys() >= {"nsds", "trust", "contribution", "reward"}
        for name in ("trust", "nsds", "steadiness", "consistency", "contribution", "reward"):
            assert a["signals"][name] == pytest.approx(b["signals"][name], abs=1e-5, nan_ok=True), name
        assert a["reasons"] == pytest.approx(b["reasons"], abs=1e-6)


@pytest.mark.parametrize("sketch", ["none", "permutation"])
def test_what_left_under_masks_names_what_each_site_told_of_its_own_model(sketch, tmp_path):
    changes = {"privacy": MASKED, "explain": {"sketch": sketch, "at": "site"}}
    done = run(tmp_path / "r", **changes)
    said = list_disclosures(Settings(done.plan), done.summary)
    assert "its model's accuracy on the reference rows, to every site" in said
    assert "the loss in performance on the reference rows without its model" in said
    assert any("SHAP values on its own training rows" in line and "into a sum" in line for line in said)
    assert any("of its local model on received reference rows" in line for line in said) == (sketch != "none")


def test_the_server_hears_names_shapes_and_single_numbers_and_no_reasons_or_model(heard, tmp_path):
    run(tmp_path / "r", method={"trust": "robust"}, privacy=MASKED)
    seen = defaultdict(set)
    for ask, answers in heard:
        seen[ask.task] |= set(answers.columns)
        if ask.task == "train":
            assert set(ask.withheld) == {"model", "shap"}
            told = {json.dumps([row[0] for row in json.loads(layout)]) for layout in answers["held"]}
            assert told == {json.dumps(["model", "shap.direction", "shap.shares"])}
        for name, column in answers.columns.items():
            if name.startswith("trust."):
                assert np.asarray(column).shape == (len(answers),), "one number a site"
    assert seen["train"] == {"count", "steps", "trust.accuracy", "trust.steadiness", "held"}
    assert seen[DIVERGE] == {"trust.nsds", "trust.alignment"}
    assert seen[WEIGHTS] == {"agreed", "error"} and seen[CONTRIBUTE] == {"trust.contribution"}
    assert not [n for names in seen.values() for n in names if n.startswith("shap") or n == "model"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("privacy", [{}, MASKED], ids=["plain", "masked"])
def test_through_bytes_and_back_it_is_the_same_to_the_bit(privacy, tmp_path):
    changes = {"method": {"trust": {"preset": "robust", "top": 2}}, "privacy": privacy}
    here = run(tmp_path / "here", **changes)
    there = run(tmp_path / "there", **changes, engine={"wire": True})
    assert here.model.theta.tobytes() == there.model.theta.tobytes()
    for a, b in zip(decisions(here), decisions(there), strict=True):
        assert a["signals"] == b["signals"] and a["weights"] == b["weights"]


# Servers that cheat


def cheating(monkeypatch, change, *, round=2, task=WEIGHTS) -> None:
    """From this round on the server's questions of this name are changed on their way to the sites."""
    joined = FedXChain.train_and_aggregate

    def tampered(self, server, ask):
        def through(effect):
            if effect.task == task and server.round >= round:
                effect = change(effect)
            return (yield effect)

        return (yield from intercept(joined(self, server, ask), through))

    monkeypatch.setattr(FedXChain, "train_and_aggregate", tampered)


def in_its_mouth(site: str, nsds: float):
    """Another divergence than this site said of itself, and weights that follow from it."""

    def change(ask: Ask) -> Ask:
        k = json.loads(ask.shared["names"]).index(site)
        shown = {n: np.array(v, float) for n, v in TrustInputs.from_values(ask.shared).to_values().items()}
        shown["nsds"][k] = nsds
        weights = compute_trust(TrustRule.from_json(ask.shared["rule"]), TrustInputs.from_values(shown)).weights
        return replace(ask, shared={**ask.shared, **shown, "weights": weights})

    return change


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("privacy", "wire"), [(MASKED, False), (MASKED, True), ({}, False)], ids=["masked", "wire", "plain"]
)
def test_a_site_in_whose_mouth_numbers_are_put_is_left_out_and_named(privacy, wire, monkeypatch, tmp_path):
    """In the plain run the server works divergences out itself, so there it is the accuracy that sites said."""
    cheating(monkeypatch, in_its_mouth("b", 3.0))
    if privacy:
        done = run(tmp_path / "r", privacy=privacy, engine={"wire": wire})
    else:
        monkeypatch.undo()

        def change(ask: Ask) -> Ask:
            shown = {n: np.array(v, float) for n, v in TrustInputs.from_values(ask.shared).to_values().items()}
            shown["accuracies"][1, -1] = 0.123
            weights = compute_trust(TrustRule.from_json(ask.shared["rule"]), TrustInputs.from_values(shown)).weights
            return replace(ask, shared={**ask.shared, **shown, "weights": weights})

        cheating(monkeypatch, change)
        done = run(tmp_path / "r", method={"trust": {"accuracy_at": "site"}})
    first, second, third = decisions(done)
    assert not first["missing"] and set(first["weights"]) == set("abcde")
    for cheated in (second, third):
        assert cheated["missing"] == {"b": "refused (not-as-told)"}
        assert set(cheated["weights"]) == set("acde") and sum(cheated["weights"].values()) == pytest.approx(1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("privacy", [{}, MASKED], ids=["plain", "masked"])
def test_where_all_refuse_the_run_fails_in_one_sentence_and_finished_rounds_are_kept(privacy, monkeypatch, tmp_path):
    whole = run(tmp_path / "whole", privacy=privacy)

    def change(ask: Ask) -> Ask:
        weights = np.asarray(ask.shared["weights"]) + np.array([1e-6, -1e-6, 0, 0, 0])
        return replace(ask, shared={**ask.shared, "weights": weights})

    with monkeypatch.context() as patched:
        cheating(patched, change)
        with refused("weights-rejected", match="weights-wrong", kind=RunFailed):
            run(tmp_path / "r", privacy=privacy)
    assert len(Checkpoint(tmp_path / "r" / "checkpoint").records()) == 1
    left = gr.load_run(tmp_path / "r")
    assert not left.finished and [r["round"] for r in left.rounds] == [1]
    honest = gr.resume(tmp_path / "r", table=patients(SIZES))
    assert honest.model.theta.tobytes() == whole.model.theta.tobytes()


def test_the_command_ends_with_1_where_all_refuse(monkeypatch, tmp_path):
    cheating(monkeypatch, lambda ask: replace(ask, shared={**ask.shared, "weights": np.full(10, 0.1)}))
    done = rounds(
        "run", "fedxchain", "--set", "method.rounds=3", "--set", "explain.sketch=none", "--out", tmp_path / "r"
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        "error: round 2: every site rejected the aggregation weights (refused (weights-wrong)) [weights-rejected]"
    ]


def test_a_rule_that_changes_between_rounds_is_refused(monkeypatch, tmp_path):
    def change(ask: Ask) -> Ask:
        rule = TrustRule(tau=2.0)
        weights = compute_trust(rule, TrustInputs.from_values(ask.shared)).weights
        return replace(ask, shared={**ask.shared, "rule": rule.to_json(), "weights": weights})

    cheating(monkeypatch, change)
    with refused("weights-rejected", match="rule-changed", kind=RunFailed):
        run(tmp_path / "r", privacy=MASKED)


def test_a_server_that_sums_by_other_weights_than_it_showed_gets_no_sum(monkeypatch, tmp_path):
    def change(ask: Ask) -> Ask:
        if not ask.shared["tag"].startswith("models"):
            return ask
        table = np.array(ask.shared["weights"])
        table[0] += 0.05
        return replace(ask, shared={**ask.shared, "weights": table / table.sum()})

    cheating(monkeypatch, change, task="secagg.shares", round=1)
    with refused("secure-sum-halted", match="other-weights", kind=RunFailed):
        run(tmp_path / "r", privacy=MASKED)


# Sites that say what cannot be


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("what", "value"), [("trust.nsds", -40.0), ("trust.nsds", np.nan), ("trust.accuracy", 50.0)])
def test_a_site_that_says_what_cannot_be_is_left_out_and_the_others_go_on(what, value, monkeypatch, tmp_path):
    """exp(20) of trust would be all of the weight, and no number would be nobody's."""
    answer = SiteHost.answer

    def answering(self, ask, members):
        columns = answer(self, ask, members)
        if what in columns and ask.id.round == 2:
            said = np.array(columns[what])
            said[1] = value
            columns = {**columns, what: said}
        return columns

    monkeypatch.setattr(SiteHost, "answer", answering)
    done = run(tmp_path / "r", privacy=MASKED)
    assert decisions(done)[1]["missing"] == {"b": "reported impossible figures"}
    assert set(decisions(done)[1]["weights"]) == set("acde") and set(decisions(done)[2]["weights"]) == set("abcde")


def liar(out, **changes) -> gr.Run:
    flips = [{"kind": "label-flip", "sites": ["c"], "lies": True}]
    return run(out, sizes=[70] * 5, attacks=flips, train={"steps": 30}, **changes)


def test_a_liar_is_believed_under_masks_and_not_where_the_server_looks_itself(tmp_path):
    """The limit of what is told: accuracy 1 and divergence 0 are taken for it, and so the most trust of all."""
    masked, plain = liar(tmp_path / "masked", privacy=MASKED), liar(tmp_path / "plain", method={"trust": "robust"})
    assert signal(masked, "accuracy")["c"] == 1 and signal(masked, "nsds")["c"] == 0
    assert max(signal(masked, "trust"), key=signal(masked, "trust").get) == "c"
    assert signal(plain, "accuracy")["c"] < 0.5
    assert min(signal(plain, "trust"), key=signal(plain, "trust").get) == "c"
    assert signal(plain, "alignment")["c"] < 0


# Sites that leave

STEPS = [f"{of} {step}" for of in ("reasons", "models") for step in ("keys", "shares", "masked", "sign", "unmask")]
LATE = ("models sign", "models unmask", CONTRIBUTE)
"""After these a site's model is in the sum, whether it stays or not."""


def leaves(monkeypatch, site: str, where: str, *, round: int = 2) -> None:
    def absent(self, ask, name, *, seed):
        step = (
            f"{str(ask.shared.get('tag', '')).split()[0]} {ask.task.removeprefix('secagg.')}"
            if "tag" in ask.shared
            else ""
        )
        return "no answer" if ask.id.round == round and name == site and where in (ask.task, step) else ""

    monkeypatch.setattr(Faults, "absent", absent)


@pytest.mark.parametrize("where", thinned([*STEPS, DIVERGE, WEIGHTS, CONTRIBUTE], 2))
def test_a_site_that_leaves_at_any_step_harms_nobody(where, monkeypatch, tmp_path):
    leaves(monkeypatch, "b", where)
    done = run(tmp_path / "r", privacy=MASKED)
    first, second, third = decisions(done)
    still = where in LATE or where in ("reasons sign", "reasons unmask")
    assert set(second["weights"]) == set("abcde" if still else "acde")
    assert set(third["weights"]) == set("abcde"), "and it is back"
    for d in (first, second, third):
        assert sum(d["weights"].values()) == pytest.approx(1)
        assert not set(d["weights"]) & set(d["missing"]), "in the sum or missing from it"
    assert ("b" in second["missing"]) is not still
    assert ("reward" in second["signals"] and "b" in second["signals"]["reward"]) is (still and where != CONTRIBUTE)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("where", ["train", "reasons masked", DIVERGE, WEIGHTS])
def test_the_trust_of_a_site_that_was_away_is_kept(where, monkeypatch, tmp_path):
    """What the next round's reasons are pooled by: told to sites as weights of the sum."""
    leaves(monkeypatch, "b", where)
    pooled = {}
    shares = LocalEngine._ask

    def asking(self, ask):
        if ask.task == "secagg.shares" and ask.shared["tag"].startswith("reasons"):
            names = json.loads(ask.shared["names"])
            pooled[self.round] = dict(zip(names, np.asarray(ask.shared["weights"])[:, 0].tolist(), strict=True))
        return shares(self, ask)

    monkeypatch.setattr(LocalEngine, "_ask", asking)
    done = run(tmp_path / "r", privacy=MASKED)
    known = {**signal(done, "trust", 0), **{s: t for s, t in signal(done, "trust", 1).items() if s != "b"}}
    assert pooled[1] == pytest.approx(dict.fromkeys("abcde", 0.2))
    assert pooled[3] == pytest.approx({s: t / sum(known.values()) for s, t in known.items()})


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sites_that_drop_out_at_random_are_named_and_weights_sum_to_1(seed, tmp_path):
    out = tmp_path / "r"
    plan = experiment(engine={"faults": {"drop": 0.03}}, privacy={**MASKED, "on_halt": "retry"}, method={"rounds": 4})
    plan = plan.model_copy(update={"seed": seed})
    done = gr.run(plan, table=patients([40] * 8), out=out)
    assert any(d["missing"] for d in decisions(done))
    for d in decisions(done):
        assert sum(d["weights"].values()) == pytest.approx(1)
        assert not set(d["weights"]) & set(d["missing"]) and set(d["weights"]) | set(d["missing"]) >= set(d["asked"])


def test_where_one_weight_is_too_large_the_way_out_is_said(tmp_path):
    with refused("weights-rejected", match=r"weight-too-large.*privacy\.largest_weight", kind=RunFailed):
        run(tmp_path / "r", privacy={**MASKED, "largest_weight": 0.2})


def test_fewer_than_three_sites_are_refused_before_or_when_they_are_left(monkeypatch, tmp_path):
    with refused("secure-aggregation-does-not-fit", match=r"privacy\.secure"):
        run(tmp_path / "two", sizes=[60, 60], privacy=MASKED)
    leaves(monkeypatch, "b", WEIGHTS)
    with refused("secure-sum-halted", kind=RunFailed):
        run(tmp_path / "three", sizes=[60, 60, 60], privacy=MASKED)


def test_where_all_leave_before_they_say_what_it_was_worth_the_round_counts_without_rewards(monkeypatch, tmp_path):
    monkeypatch.setattr(
        Faults, "absent", lambda self, ask, site, *, seed: "no answer" if ask.task == CONTRIBUTE else ""
    )
    done = run(tmp_path / "r", privacy=MASKED, method={"rounds": 1})
    assert set(decisions(done)[0]["weights"]) == set("abcde") and not decisions(done)[0]["missing"]


def test_a_plain_run_goes_on_with_the_only_site_that_is_left(monkeypatch, tmp_path):
    """Its model is seen either way, so there is nothing that a largest weight could hide."""
    only = lambda self, ask, site, *, seed: "no answer" if ask.task == "train" and site != "a" else ""  # noqa: E731
    monkeypatch.setattr(Faults, "absent", only)
    assert decisions(run(tmp_path / "r"))[-1]["weights"] == {"a": 1.0}


# Interrupted, and chosen at random

SETTINGS = {
    "masked": {"privacy": MASKED, "method": {"trust": {"preset": "robust", "top": 2}, "rounds": 4}},
    "at the server": {"method": {"trust": {"explained": "reference"}, "rounds": 4}},
    "own": {"method": {"select": {"rule": "random", "fraction": 0.7}, "rounds": 4}},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", SETTINGS)
def test_a_run_that_breaks_off_anywhere_goes_on_to_the_same_bits(how, monkeypatch, tmp_path):
    """Between rounds, and in the middle of one; once more after that."""
    whole = run(tmp_path / "whole", **SETTINGS[how])

    class Broken(Exception):
        pass

    ask, breaks = LocalEngine._ask, [(1, WEIGHTS), (3, WEIGHTS), (4, "train")]

    def asking(self, question):
        answers = ask(self, question)
        if breaks and (self.round, question.task) == breaks[0]:
            breaks.pop(0)
            raise Broken
        return answers

    monkeypatch.setattr(LocalEngine, "_ask", asking)
    with pytest.raises(Broken):
        run(tmp_path / "r", **SETTINGS[how])
    for _ in range(2):
        with pytest.raises(Broken):
            gr.resume(tmp_path / "r", table=patients(SIZES))
    done = gr.resume(tmp_path / "r", table=patients(SIZES))
    assert not breaks and done.model.theta.tobytes() == whole.model.theta.tobytes()
    for a, b in zip(decisions(done), decisions(whole), strict=True):
        assert a["weights"] == b["weights"]
        np.testing.assert_equal(a["signals"], b["signals"])


def test_sites_that_are_not_chosen_keep_their_trust(heard, tmp_path):
    """Each round's reasons are pooled by what was last found of each; the consortium's mean shows by what."""
    done = run(tmp_path / "r", method={"select": {"rule": "random", "fraction": 0.6}, "rounds": 5})
    known: dict[str, float] = {}
    trained = [(a, answers) for a, answers in heard if a.task == "train"]
    assert len({a.to for a, _ in trained}) > 1
    for (_, answers), d in zip(trained, decisions(done), strict=True):
        before = np.array([known.get(s, 1.0) for s in answers.sites])
        expected = before @ np.asarray(answers["shap.shares"]) / before.sum()
        assert list(d["reasons"].values()) == pytest.approx(expected)
        known |= d["signals"]["trust"]


# What trust catches

CANCER = {"data": {"name": "breast-cancer"}, "split": {"partition": "dirichlet", "sites": 10, "alpha": 0.5}}
TRAIN = {"epochs": 5, "batch": 32, "lr": 0.1}


def poisoned(out, seed: int, trust: str, *, validation: bool = False) -> tuple[gr.Run, list[str]]:
    """The three largest of ten sites flip every label; their names."""
    attacks = [{"kind": "label-flip", "count": 3, "validation": validation}]
    values = {**CANCER, "seed": seed, "reference": {"root": {"rows": 40}}, "train": TRAIN, "attacks": attacks}
    values |= {"method": {"name": "fedxchain", "rounds": 8, "trust": trust}, "explain": {"sketch": "none"}}
    done = gr.run(gr.Experiment.parse(values), out=out)
    flipped, rows = list(done.summary["attacks"]["sites"]), signal(done, "data_size")
    assert sorted(rows[s] for s in flipped) == sorted(rows.values())[-3:]
    return done, flipped


@pytest.mark.parametrize("seed", [0, 1])
def test_the_robust_preset_stands_three_large_sites_that_flip_labels(seed, tmp_path):
    done, flipped = poisoned(tmp_path / "r", seed, "robust")
    trust = signal(done, "trust")
    honest = [t for s, t in trust.items() if s not in flipped]
    assert max(trust[s] for s in flipped) < min(honest)
    assert done.summary["final"]["accuracy"] > 0.95


def test_as_printed_trust_is_blind_to_it(tmp_path):
    """They are right on their own flipped rows, and |SHAP| has no sign."""
    done, flipped = poisoned(tmp_path / "r", 0, "printed", validation=True)
    trust = signal(done, "trust")
    honest = np.mean([t for s, t in trust.items() if s not in flipped])
    assert abs(honest - np.mean([trust[s] for s in flipped])) < 0.1


# Compression, alarms, rewards


def test_top_features_cost_fewer_bytes_and_hardly_change_trust(tmp_path):
    def done(name: str, top: int) -> gr.Run:
        values = {**CANCER, "train": TRAIN, "explain": {"sketch": "none"}, "reference": {"root": {"rows": 40}}}
        values |= {"method": {"name": "fedxchain", "rounds": 3, "trust": {"top": top}}}
        return gr.run(gr.Experiment.parse(values), out=tmp_path / name)

    whole, few = done("whole", 0), done("few", 5)
    assert decisions(few)[0]["cost"]["payload_up"] == decisions(whole)[0]["cost"]["payload_up"], "the first tells all"
    assert decisions(few)[2]["cost"]["payload_up"] < 0.7 * decisions(whole)[2]["cost"]["payload_up"]
    assert len(decisions(few)[2]["reasons"]) == 6 and "all others" in decisions(few)[2]["reasons"]
    for site, trust in signal(whole, "trust").items():
        assert signal(few, "trust")[site] == pytest.approx(trust, abs=0.02)
        assert signal(few, "nsds")[site] <= signal(whole, "nsds")[site] + 0.01


def test_alarms_name_the_site_with_its_divergence(tmp_path):
    done = run(tmp_path / "r", method={"trust": {"alarm": 0.05}})
    for d in decisions(done):
        over = {s: v for s, v in d["signals"]["nsds"].items() if v > 0.05}
        said = [n for n in d["notes"] if "above method.trust.alarm = 0.05" in n]
        assert [n.split(":")[0] for n in said] == list(over)
        assert all(f"NSDS {v:.3f}" in n for n, v in zip(said, over.values(), strict=True))
    assert any(d["notes"] for d in decisions(done))


def test_without_the_site_that_is_the_whole_model_the_others_are_what_is_left(tmp_path):
    """Theta less all of itself is no model: where a weight is 1 it is the other site's model, and not one of zeros."""
    held = {
        "data": {"name": "breast-cancer"},
        "split": {"partition": "equal", "sites": 2},
        "reference": {"root": {"rows": 40}},
        "method": {"name": "fedxchain", "rounds": 2, "trust": "robust"},
        "train": {"epochs": 5, "lr": 0.1},
        "explain": {"sketch": "none"},
        "attacks": [{"kind": "label-flip", "count": 1}],
    }
    done = gr.run(gr.Experiment.parse(held), out=tmp_path / "r")
    assert decisions(done)[-1]["weights"] == {"site-01": 0.0, "site-02": 1.0}, "its reasons point the other way"
    worth = signal(done, "contribution")
    assert worth["site-01"] < 0 < worth["site-02"], "the flipped model has no weight, and is worth less than nothing"


def test_a_contribution_is_how_much_worse_the_model_is_without_the_site(heard, monkeypatch, tmp_path):
    """Worked out again from the models and the reference rows: the others' weights made to sum to 1, and a fifth of the site."""
    rows = {}
    losses = ServerRows.losses

    def looking(self, models):
        rows["x"], rows["y"] = np.asarray(self.part.x, float), np.asarray(self.part.y)
        return losses(self, models)

    monkeypatch.setattr(ServerRows, "losses", looking)
    done = run(tmp_path / "r")
    _, answers = [pair for pair in heard if pair[0].task == "train"][-1]
    models = dict(zip(answers.sites, np.asarray(answers["model"], float), strict=True))
    weights = decisions(done)[-1]["weights"]

    def loss(by: dict[str, float]) -> float:
        theta = sum(w * models[s] for s, w in by.items()) / sum(by.values())
        p = 1 / (1 + np.exp(-(rows["x"] @ theta[:-1] + theta[-1])))
        return float(-np.mean(np.where(rows["y"] == 1, np.log(p), np.log(1 - p))))

    assert len(rows["x"]) == 30
    for site in weights:
        others = {s: w for s, w in weights.items() if s != site}
        whole = sum(others.values())
        worth = loss(others) - loss({site: 1 / 5, **{s: 4 / 5 * w / whole for s, w in others.items()}})
        assert signal(done, "contribution")[site] == pytest.approx(worth, abs=1e-6)
        assert signal(done, "reward")[site] == pytest.approx(signal(done, "trust")[site] * worth, abs=1e-6)


@pytest.mark.parametrize("preset", ["default", "robust"])
def test_rewards_follow_trust_and_flippers_get_less(preset, tmp_path):
    """Preset 'robust' shuts flippers out: at the weight they are left with they would contribute zero, more than some others."""
    attack = 'attacks=[{kind="label-flip", count=3, validation=true}]'
    recipe = load_recipe("fedxchain").with_settings([f"method.trust={preset}", attack, "explain.sketch=none"])
    done = gr.run(recipe, out=tmp_path / "r")
    bad, last = done.summary["attacks"]["sites"], decisions(done)
    paid = {s: np.mean([d["signals"]["reward"][s] for d in last]) for s in last[0]["weights"]}
    assert done.summary["trust"]["reward_correlation"] > 0.5
    assert all(paid[s] < 0 for s in bad)
    assert np.mean([paid[s] for s in bad]) < min(v for s, v in paid.items() if s not in bad)


@pytest.mark.parametrize("changes", [{"reference": None}, {"method": {"trust": {"rewards": False}}}])
def test_without_rows_to_tell_by_or_where_it_is_not_asked_for_there_is_no_reward(changes, tmp_path):
    done = run(tmp_path / "r", **changes)
    assert "reward" not in decisions(done)[-1]["signals"] and "trust" in decisions(done)[-1]["signals"]


@pytest.mark.parametrize("privacy", [{}, MASKED], ids=["plain", "masked"])
def test_labels_that_may_not_be_used_are_not(privacy, tmp_path):
    rows = {"root": {"rows": 30, "sent": True, "labelled": False}}
    done = run(tmp_path / "r", reference=rows, privacy=privacy)
    assert "contribution" not in decisions(done)[-1]["signals"]


def test_what_a_robust_rule_makes_of_models_has_no_model_without_one_site(tmp_path):
    done = run(tmp_path / "r", method={"weigh": "data_size", "robust": "median"})
    assert "contribution" not in decisions(done)[-1]["signals"]


# Models, and parts that go together


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("model", "classes", "trust"),
    [
        ({"name": "forest", "trees": 5, "depth": 4}, 2, {"preset": "robust"}),
        ({"name": "forest", "trees": 5, "depth": 4}, 3, {"accuracy_at": "site"}),
        ({"name": "mlp", "hidden": [4]}, 3, {"preset": "robust", "explained": "reference"}),
    ],
)
def test_other_models_and_more_classes(model, classes, trust, tmp_path):
    done = run(tmp_path / "r", model=model, classes=classes, method={"trust": trust})
    trust = np.array(list(signal(done, "trust").values()))
    assert (trust > 0).all() and (trust <= 1).all() and len(set(trust)) == 5
    assert signal(done, "contribution").keys() == set("abcde")


@pytest.mark.parametrize("privacy", [{}, MASKED], ids=["plain", "masked"])
def test_sse_aggs_agreement_has_a_say_where_it_is_wanted(privacy, tmp_path):
    at = {"sketch": "permutation", "at": "site"} if privacy else {"sketch": "permutation"}
    changes = {"sizes": [90] * 5, "train": {"steps": 40}, "attacks": [{"kind": "scale", "sites": ["d"], "strength": 20}]}
    done = run(tmp_path / "r", method={"trust": {"reasons": True}}, explain=at, privacy=privacy, **changes)
    d = decisions(done)[-1]
    in_line, nsds, trust = (np.array(list(d["signals"][n].values())) for n in ("in_line", "nsds", "trust"))
    expected = trust * np.exp(-0.5 * nsds) * in_line
    assert list(d["weights"].values()) == pytest.approx(expected / expected.sum(), abs=1e-6)
    assert min(d["signals"]["in_line"], key=d["signals"]["in_line"].get) == "d" and in_line.min() < 1


def test_pictures_are_explained_by_tiles(pictures, tmp_path):  # noqa: F811
    values = {
        "data": {"table": str(pictures)},
        "model": {"name": "small-cnn"},
        "method": {"name": "fedxchain", "rounds": 1},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
        "explain": {"sketch": "none", "tiles": 4},
    }
    done = gr.run(gr.Experiment.parse(values), out=tmp_path / "r")
    assert len(decisions(done)[0]["reasons"]) == 16 and signal(done, "trust").keys() == {"north", "south", "west"}
    for trust, words in (
        ({"preset": "robust"}, r"trust\.signed"),
        ({"explainer": "shap"}, r"method\.trust\.explainer"),
    ):
        wrong = {**values, "method": {**values["method"], "trust": trust}}
        with refused("method-does-not-fit", match=words):
            gr.run(gr.Experiment.parse(wrong), out=tmp_path / "no")


# A budget


def test_under_a_budget_trust_is_told_from_reference_rows_and_costs_nothing_more(tmp_path):
    """What the server works out from noisy models is post-processing: the same epsilon as FedAvg's, event by event."""
    changes = {"sizes": [120] * 4, "privacy": {"epsilon": 6.0, "mechanism": "dp-sgd"}, "train": {"steps": 5}}
    ours, plain = run(tmp_path / "r", **changes), run(tmp_path / "f", **changes, method={"name": "fedavg"})
    assert ours.plan["method"]["trust"]["explained"] == ours.plan["method"]["trust"]["accuracy_at"] == "reference"
    assert ours.summary["privacy"]["epsilon"] == plain.summary["privacy"]["epsilon"] <= 6
    assert [d["privacy"] for d in decisions(ours)] == [d["privacy"] for d in decisions(plain)]
    assert "contribution" in decisions(ours)[-1]["signals"]


PRIVATE = {"epsilon": 6.0, "mechanism": "dp-sgd"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"privacy": PRIVATE, "method": {"trust": {"explained": "own"}}}, "'own'"),
        (
            {"privacy": PRIVATE, "method": {"trust": {"accuracy_at": "site"}}},
            "'site'",
        ),
        ({"privacy": PRIVATE, "method": {"trust": "printed"}}, "'site'"),
        ({"privacy": PRIVATE, "reference": None}, r"reference\.root"),
        (
            {"privacy": {**PRIVATE, "mechanism": "client"}, "method": {"weigh": "uniform"}},
            r"privacy\.mechanism",
        ),
        ({"privacy": {**PRIVATE, "mechanism": "client"}}, r"privacy\.mechanism"),
    ],
)
def test_what_a_budget_does_not_cover_is_refused_in_words(changes, why, tmp_path):
    with pytest.raises(BadInput, match=why):
        run(tmp_path / "r", sizes=[120] * 4, **changes)
    assert not (tmp_path / "r").exists()


# What does not go together


ROWS = {"rows": 30}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "fedavg", "weigh": "trust"}}, r"method\.weigh"),
        ({"reference": None, "method": {"trust": {"accuracy_at": "reference"}}}, "'reference'"),
        ({"reference": None, "method": {"trust": {"explained": "reference"}}}, "'reference'"),
        (
            {"reference": {"root": {**ROWS, "labelled": False}}, "method": {"trust": {"accuracy_at": "reference"}}},
            r"reference\.root",
        ),
        (
            {
                "reference": {"root": {**ROWS, "labelled": False}},
                "method": {"trust": {"explained": "reference"}},
                "model": {"name": "forest"},
            },
            r"reference\.root",
        ),
        (
            {"reference": {"root": ROWS}, "privacy": MASKED, "method": {"trust": {"accuracy_at": "reference"}}},
            r"privacy\.secure",
        ),
        ({"reference": None, "split": {"val": 0.0}}, r"split\.val"),
        ({"model": {"name": "lightgbm"}}, r"model\.name"),
        (
            {"method": {"trust": {"explainer": "integrated_gradients"}}, "model": {"name": "forest"}},
            "'shap'",
        ),
        (
            {"method": {"cohorts": {"count": 2, "models": "separate"}}},
            r"method\.cohorts\.models",
        ),
        ({"method": {"trust": {"reasons": True}}}, r"method\.trust\.reasons"),
        (
            {"method": {"trust": {"reasons": True}, "weigh": {"form": "inverse"}}, "explain": {"sketch": "auto"}},
            r"method\.trust\.reasons",
        ),
        (
            {"method": {"trust": {"reasons": True}, "weigh": {"explanation_weight": 0}}, "explain": {"sketch": "auto"}},
            r"method\.trust\.reasons",
        ),
        (
            {
                "method": {
                    "trust": {"reasons": True},
                    "weigh": {"rule": "trust", "lambdas": {"agreement": 0.5, "worst_site": 0.5}},
                },
                "explain": {"sketch": "auto"},
            },
            r"method\.trust\.reasons",
        ),
        (
            {"sizes": [60, 60], "method": {"trust": {"reasons": True}}, "explain": {"sketch": "auto"}},
            r"method\.trust\.reasons",
        ),
        ({"privacy": MASKED, "model": {"name": "forest"}}, "'forest'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(changes, why, tmp_path):
    with pytest.raises(BadInput, match=why):
        run(tmp_path / "r", **changes)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("trust", "why"),
    [
        ({"alpha": 0.5, "beta": 0.3, "gamma": 0.3}, r"method\.trust"),
        ({"alpha": 0.5}, r"method\.trust"),
        ({"preset": "paper"}, "preset"),
        ({"tau": -1}, "tau"),
        ({"window": 1}, "window"),
    ],
)
def test_a_trust_that_is_none_is_refused(trust, why):
    with pytest.raises(BadInput, match=why):
        experiment(method={"trust": trust})


def test_the_command_ends_with_2_where_settings_do_not_go_together(tmp_path):
    shares = ("method.trust.alpha=0.9", "method.trust.beta=0.9", "method.trust.gamma=0.1")
    done = rounds("run", "fedxchain", *(a for s in shares for a in ("--set", s)), "--out", tmp_path / "r")
    command_refused(done, "alpha, beta and gamma must sum to 1, so that trust is between 0 and 1")
    command_refused(
        rounds(
            "run", "fedxchain", "--set", "method.weigh=trust", "--set", "method.name=fedavg", "--out", tmp_path / "r"
        ),
        "set method.name = 'fedxchain'",
    )
