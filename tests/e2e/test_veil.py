"""Whole runs of VEIL: the same through bytes and under masks, within its budget, over a crash, and at the command line."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.cli import main
from grandrounds.core.arrays import load
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import LocalEngine
from grandrounds.privacy.accounting import Event, epsilon_of, skellam_rho
from grandrounds.privacy.secagg import Scale, Secret, Skellam, fewest_honest
from grandrounds.runs.rounds import Rounds
from tests.support import patients, refused, thinned

SIZES = [60, 50, 70, 40, 45, 55]
D = 9  # what three measurements with their gaps and a category of three become


def plan(**changes) -> gr.Experiment:
    values = {
        "name": "veil",
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.2},
        "method": {"name": "veil", "rounds": 4, "veil": {"stages": 2}},
        "explain": {"sketch": "none"},
        "privacy": {"epsilon": 5.0},
    }
    veil = changes.pop("veil", {})
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    values["method"] = {**values["method"], "veil": {**values["method"]["veil"], **veil}}
    return gr.Experiment.parse(values)


def run(out, *, sizes=SIZES, classes=2, **changes):
    return gr.run(plan(**changes), table=patients(sizes, classes=classes), out=out)


def model(run) -> np.ndarray:
    arrays, _ = load(run.folder / "model.safetensors")
    return np.concatenate([a.ravel() for a in arrays.values()])


def slopes(run) -> np.ndarray:
    arrays, _ = load(run.folder / "model.safetensors")
    (weights,) = (a for a in arrays.values() if a.size > 1)
    return weights.ravel()


def events(run) -> list[Event]:
    return [Event.from_dict(e) for r in run.rounds for e in r["decision"]["privacy"]["events"]]


WAYS = {
    "score": {"veil": {"selection": "score"}},
    "quorum": {"veil": {"selection": "score", "votes": "quorum", "weight": "uniform", "prior": 0.5, "decay": False}},
    "paper": {"veil": {"selection": "paper", "claimed_epsilon": 5.0, "k": 2}, "privacy": {"epsilon": None}},
    "convex": {"veil": {"selection": "strongly_convex"}},
    "select_then_fit": {"veil": {"selection": "select_then_fit", "features": 4}},
    "moments": {"veil": {"selection": "moments", "features": 4}},
    "secure select_then_fit": {"veil": {"features": 4}, "privacy": {"secure": True}},
    "secure moments": {"veil": {"selection": "moments", "features": 0}, "privacy": {"secure": True}},
}


@pytest.mark.parametrize("way", thinned(WAYS, 2))
def test_through_bytes_it_is_the_same_to_the_bit_and_the_budget_holds(way, tmp_path):
    here = run(tmp_path / "here", **WAYS[way])
    there = run(tmp_path / "there", **WAYS[way], engine={"wire": True})
    assert model(here).tobytes() == model(there).tobytes()
    one, other = (r.rounds[-1]["decision"] for r in (here, there))
    for key in ("weights", "privacy", "why"):
        assert one[key] == other[key]
    assert one["cost"]["payload_up"] == other["cost"]["payload_up"] > 0
    assert here.summary["privacy"]["statement"] == there.summary["privacy"]["statement"]
    spent = epsilon_of(events(here), 1e-5)
    if way == "paper":
        assert spent == math.inf and "epsilon = infinity" in here.summary["privacy"]["statement"]
    else:
        assert 0.95 * 5 <= spent <= 5 * (1 + 1e-9) and here.summary["privacy"]["epsilon"] == pytest.approx(spent)
        assert "for each row, add/remove" in here.summary["privacy"]["statement"]
    if here.plan["method"]["veil"]["features"] == 4 and way != "score":
        assert np.count_nonzero(slopes(here)) == 4, "as sparse as it was asked to be"


def watched(monkeypatch) -> list:
    """All that sites are asked from here on."""
    seen, ask = [], LocalEngine._ask

    def looked_at(self, question):
        seen.append(question)
        return ask(self, question)

    monkeypatch.setattr(LocalEngine, "_ask", looked_at)
    return seen


@pytest.mark.parametrize("selection", ["score", "select_then_fit", "moments"])
def test_sites_are_asked_for_the_noise_that_is_charged(selection, tmp_path, monkeypatch):
    seen = watched(monkeypatch)
    done = run(tmp_path / "r", veil={"selection": selection, "norm": 2.0, "outcome": 1.5})
    asked = [a.shared for a in seen if a.task.startswith("veil.")]
    charged = events(done)
    assert len(asked) == len(charged) == 5, "rows and events once, and four rounds"
    for shared, event in zip(asked, charged, strict=True):
        assert "seed" not in shared
        if event.kind in ("laplace", "exponential"):
            assert shared["epsilon"] == event.epsilon and "noise" not in shared
            assert event.count == shared.get("k", 1)
        else:
            rows = math.sqrt(3 if selection == "select_then_fit" else 2)
            reach = {"rows and events": rows, "sums of second moments": 2 * math.sqrt(2**2 + 3**2)}
            assert shared["noise"] == pytest.approx(event.sigma * reach.get(event.what, 2.0))


@pytest.mark.parametrize("selection", ["select_then_fit", "moments"])
def test_secure_sums_are_asked_for_the_noise_that_is_charged(selection, tmp_path, monkeypatch):
    seen = watched(monkeypatch)
    secure = {"secure": True}
    done = run(tmp_path / "r", veil={"selection": selection, "norm": 2.0, "outcome": 1.5}, privacy=secure)
    for ask in seen:
        if ask.task.startswith("veil."):
            assert ask.withheld == ask.report and "noise" not in ask.shared, "no site's own sum leaves it"
    sums = [a.shared for a in seen if a.task == "secagg.masked" and str(a.shared["tag"]).startswith("models")]
    charged = events(done)
    assert len(sums) == len(charged) == 5
    centred = selection == "select_then_fit"
    sizes = {"rows and events": 2 + D * centred, "sums of second moments": 55 + 10}
    reaches = {"rows and events": math.sqrt(2 + centred), "sums of second moments": 2 * math.sqrt(2**2 + 3**2)}
    for shared, event in zip(sums, charged, strict=True):
        noise, parties = shared["noise"], shared["parties"]
        spare = Skellam(noise, fewest_honest(parties)).room(parties)
        step = Scale(shared["bits"], shared["bound"], parties, spare=spare).step
        reach, size = reaches.get(event.what, 2.0), sizes.get(event.what, D + 1)
        assert skellam_rho(noise, sensitivity=reach, step=step, dimension=size) <= event.rho * (1 + 1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("selection", ["select_then_fit", "moments"])
def test_without_noise_a_secure_sum_gives_the_same_model(selection, tmp_path):
    how = {"selection": selection, "features": 5}
    secure, plain = (run(tmp_path / str(s), veil=how, privacy={"epsilon": None, "secure": s}) for s in (True, False))
    np.testing.assert_allclose(model(secure), model(plain), atol=1e-5)
    assert np.count_nonzero(slopes(plain)) == 5
    assert plain.summary["final"]["auroc"] > 0.65


def test_draws_are_the_sites_own(tmp_path, monkeypatch):
    one = run(tmp_path / "one")
    assert model(one).tobytes() == model(run(tmp_path / "again")).tobytes(), "a simulation repeats"
    monkeypatch.setattr("grandrounds.engine.local._secret", lambda seed, site: Secret.own())
    two, three = model(run(tmp_path / "two")), model(run(tmp_path / "three"))
    assert not np.allclose(two, three) and not np.allclose(two, model(one))


# Sites that stay away


@pytest.mark.thinned(2)
@pytest.mark.parametrize("selection", ["score", "select_then_fit"])
def test_who_drops_out_has_no_vote_and_no_part_in_a_sum(selection, tmp_path):
    done = run(tmp_path / "r", veil={"selection": selection}, method={"rounds": 6}, engine={"faults": {"drop": 0.3}})
    missing = [r["decision"]["missing"] for r in done.rounds]
    assert any(missing)
    for r, away in zip(done.rounds, missing, strict=True):
        weights = r["decision"]["weights"]
        assert set(weights) == set("abcdef") - set(away) and sum(weights.values()) == pytest.approx(1)
        assert set(r["decision"]["asked"]) == set("abcdef")
    assert np.isfinite(model(done)).all()
    assert done.summary["privacy"]["epsilon"] <= 5 * (1 + 1e-9), "who stayed away is charged all the same"


def test_a_first_round_that_is_tried_again_asks_for_rows_once(tmp_path, monkeypatch):
    """Two of six leave in the middle of the second sum, that of scores; the first, of rows, was seen and is not repeated."""
    seen = watched(monkeypatch)

    def counted() -> int:
        return sum(a.task.startswith("veil.") for a in seen)

    def halts_once(self, ask, site, *, seed):
        return "no answer" if ask.task == "secagg.masked" and counted() == 2 and site in "abc" else ""

    monkeypatch.setattr(Faults, "absent", halts_once)
    done = run(tmp_path / "r", privacy={"secure": True, "on_halt": "retry"})
    assert any("halted" in note for note in done.rounds[0]["decision"]["notes"])
    tasks = [a.task for a in seen if a.task.startswith("veil.")]
    assert tasks.count("veil.census") == 1 and tasks.count("veil.scores") == 5
    assert len(events(done)) == 5


# Spending, and going on


def test_a_run_stops_before_it_would_overspend(tmp_path):
    first = run(tmp_path / "r")
    with refused("budget-spent", kind=RunFailed):
        gr.resume(first.folder, settings=["method.rounds=8"], table=patients(SIZES))
    held = gr.load_run(first.folder)
    assert held.finished and "the budget does not allow round 5" in held.summary["stopped"]
    assert len(held.rounds) == 4 and held.summary["privacy"]["epsilon"] <= 5 * (1 + 1e-9)
    assert model(held).tobytes() == model(first).tobytes()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("way", ["score", "moments", "secure select_then_fit"])
def test_a_resumed_run_ends_with_the_same_model_and_is_charged_once(way, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", **WAYS[way])
    after = Rounds._judge_round

    def broken(self, r, served):
        if r in at:
            at.remove(r)
            raise RunFailed("pulled the plug")
        return after(self, r, served)

    at = [1, 3]  # after the round was asked and before it counts
    with monkeypatch.context() as m:
        m.setattr(Rounds, "_judge_round", broken)
        with pytest.raises(RunFailed, match="plug"):
            run(tmp_path / "broken", **WAYS[way])
        with pytest.raises(RunFailed, match="plug"):
            gr.resume(tmp_path / "broken", table=patients(SIZES))
    done = gr.resume(tmp_path / "broken", table=patients(SIZES))
    assert model(done).tobytes() == model(whole).tobytes()
    assert done.summary["privacy"] == whole.summary["privacy"]
    assert [r["decision"]["privacy"] for r in done.rounds] == [r["decision"]["privacy"] for r in whole.rounds]


@pytest.mark.slow
def test_killed_at_any_instant_it_goes_on_to_the_same_bits(tmp_path):
    values = plan(method={"rounds": 40}, veil={"selection": "moments", "features": 6})
    values = {
        **values.model_dump(mode="json"),
        "data": {"name": "breast-cancer"},
        "split": {"partition": "dirichlet", "sites": 6},
        "evaluation": {"every": 40},
    }
    experiment = gr.Experiment.parse(values)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(experiment.plan()))
    broken = tmp_path / "broken"
    journal = broken / "checkpoint" / "rounds.jsonl"
    command = [sys.executable, "-m", "grandrounds.job", str(file), "--out", str(broken), "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and len(journal.read_bytes().splitlines()) >= 2:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(journal.read_bytes().splitlines())
    assert 2 <= done < 40, "it was to be killed on its way"
    whole = gr.run(experiment, out=tmp_path / "whole")
    resumed = gr.resume(broken)
    assert model(resumed).tobytes() == model(whole).tobytes()
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    assert np.count_nonzero(slopes(resumed)) == 6


# What it is not for


REFUSED = {
    "three classes": ({"classes": 3}, "method 'veil' needs two classes, but the data have 3"),
    "a net": ({"model": {"name": "mlp"}}, "method 'veil' fits a linear model, not 'mlp': set model.name = 'logistic'"),
    "too few rounds": (
        {"veil": {"selection": "select_then_fit"}, "method": {"rounds": 3}},
        "method.veil.stages is 2, each with a selection and a fit, but there are 3 rounds: raise method.rounds",
    ),
    "too few rounds of auto": (
        {"method": {"rounds": 3}, "privacy": {"secure": True}},
        "method.veil.stages is 2, each with a selection and a fit, but there are 3 rounds",
    ),
    "too many proposals": ({"veil": {"k": 10}}, "method.veil.k is 10, but there are 9 features to propose: lower it"),
    "votes under masks": (
        {"veil": {"selection": "score"}, "privacy": {"secure": True}},
        "method.veil.selection 'score' sends each site's proposals: use 'select_then_fit' or 'moments'",
    ),
    "skipped rounds": ({"privacy": {"secure": True, "on_halt": "skip"}}, "set privacy.on_halt = 'retry' or 'stop'"),
    "claims": ({"veil": {"claimed_epsilon": 5.0}}, "method.veil.claimed_epsilon is for selection 'paper', not 'auto'"),
    "as printed": ({"veil": {"selection": "paper"}}, "method.veil.selection 'paper' has no budget"),
    "weights": ({"method": {"weigh": "distance"}}, "does not support method.weigh"),
    "dp-sgd": ({"privacy": {"mechanism": "dp-sgd", "min_rows": 1}}, "method 'veil' has its own privacy mechanism"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_is_not_for_is_refused_in_a_sentence(name, tmp_path):
    changes, words = REFUSED[name]
    with pytest.raises(BadInput) as refusal:
        run(tmp_path / "r", **changes)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "r").exists()


# At the command line


@pytest.fixture
def rounds(tmp_path, monkeypatch, capfd):
    """The command, as its entry point: (exit code, what it printed, what it complained of)."""
    monkeypatch.chdir(tmp_path)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["rounds", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capfd.readouterr()

    return command


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["breast-cancer", "heart"])
def test_from_end_to_end_at_the_command_line(name, rounds, tmp_path):
    """A private sparse score, calibrated, that can be read and whose record verifies."""
    secure = name == "breast-cancer"
    chosen = {
        "data.name": name,
        "split.sites": 4,
        "method.name": "veil",
        "method.rounds": 6,
        "method.veil.selection": "select_then_fit",
        "method.veil.features": 5,
        "privacy.epsilon": 10,
        "privacy.secure": str(secure).lower(),
        "evaluation.calibrate": "platt",
        "explain.sketch": "none",
    }
    given = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    code, printed, error = rounds("run", *given, "--out", "run")
    assert code == 0, error
    assert "for each row, add/remove" in printed
    held = gr.load_run(tmp_path / "run")
    assert np.count_nonzero(slopes(held)) == 5
    assert held.summary["final"]["auroc"] > (0.9 if name == "breast-cancer" else 0.7)
    told = held.summary["privacy"]
    assert told["spent"]["training"] <= 10 and told["spent"]["validation"] <= 10 * (1 + 1e-9)
    assert told["trust"] == ("secure aggregation" if secure else "local")
    code, printed, error = rounds("show", "run", "--model")
    assert code == 0, error
    assert f"5 of {slopes(held).size} weights are not zero" in printed and "Platt's slope" in printed
    code, printed, error = rounds("audit", "verify", "run", "--deep")
    assert code == 0 and "verifies, with model and records" in printed, error
    code, _, error = rounds("run", *given, "--set", "method.veil.stages=4", "--out", "no")
    assert code == 2 and error.count("error: ") == 1 and "stages is 4" in error and "Traceback" not in error


@pytest.mark.parametrize("selection", ["score", "select_then_fit", "moments"])
def test_fine_tuning_under_an_epsilon_is_refused(selection, tmp_path):
    """It would hand out a model of each site without noise beside the promise."""
    with refused("privacy-does-not-fit", match=r"train\.finetune"):
        run(tmp_path / "r", veil={"selection": selection}, train={"finetune": 1})
    assert not (tmp_path / "r" / "models").exists()
