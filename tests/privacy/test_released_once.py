"""Nothing is released twice for one charge: a calibration has an identity, and a checkpoint agrees with its ledger."""

from __future__ import annotations

import json

import pytest

import grandrounds as gr
from grandrounds.analysis.privacy.account import load_account
from grandrounds.audit.entry import CLOSE
from grandrounds.core.arrays import load, save
from grandrounds.core.errors import RunFailed
from grandrounds.engine.local import LocalEngine
from grandrounds.privacy.accounting import Event
from grandrounds.runs.ledger_recorder import Recorder
from tests.e2e.test_privacy import SIZES, model, plan
from tests.support import patients, refused

SPARE = {"noise": 20.0}
"""Noise that leaves room for more rounds than are run."""


def run(out, **changes):
    changes.setdefault("evaluation", {"calibrate": "platt"})
    return gr.run(plan(**changes), table=patients(SIZES), out=out)


def go_on(folder, *settings):
    return gr.resume(folder, settings=settings, table=patients(SIZES))


def closings(done) -> list[dict]:
    with done.ledger as ledger:
        return [e.content for e in ledger.book().entries if e.content["kind"] == CLOSE]


@pytest.fixture
def asked(monkeypatch):
    """The tasks that sites are asked for."""
    tasks, before = [], LocalEngine._ask

    def noted(self, ask):
        tasks.append(ask.task)
        return before(self, ask)

    monkeypatch.setattr(LocalEngine, "_ask", noted)
    return tasks


@pytest.mark.parametrize("privacy", [{}, SPARE], ids=["spent", "noise to spare"])
def test_more_rounds_do_not_calibrate_again_for_nothing(privacy, tmp_path, asked):
    """Review H2: five calibrations were accounted as one."""
    done = run(tmp_path / "run", privacy=privacy)
    before, line = (done.folder / "summary.json").read_bytes(), done.summary["platt"]
    asked.clear()
    for rounds in (4, 5):
        with refused("calibrated-already"):
            go_on(done.folder, f"method.rounds={rounds}")
    assert asked == [] and (done.folder / "summary.json").read_bytes() == before
    held = gr.load_run(done.folder)
    assert held.plan["method"]["rounds"] == 3, "a refused resume leaves the run as it was"
    assert held.summary["platt"] == line and load_account(held).findings == ()


def test_a_run_that_goes_on_without_calibration_still_counts_the_first(tmp_path):
    done = run(tmp_path / "run", privacy=SPARE)
    more = go_on(done.folder, "method.rounds=4", "evaluation.calibrate=none")
    assert "platt" not in more.summary and more.summary["rounds"] == 4
    assert more.summary["privacy"]["spent"]["validation"] == pytest.approx(2.0, rel=1e-3)
    assert load_account(more).findings == () and len(closings(more)[-1]["released"]) == 1


def test_the_line_of_the_same_model_is_the_same_release(tmp_path, asked):
    done = run(tmp_path / "run")
    bits, line = model(done).tobytes(), done.summary["platt"]
    asked.clear()
    again = go_on(done.folder, "evaluation.every=2")
    assert "platt" not in asked, "sites were asked for the same calibration once more"
    assert again.summary["platt"] == line and model(again).tobytes() == bits
    assert again.summary["privacy"]["events"] == done.summary["privacy"]["events"]
    assert {len(c["released"]) for c in closings(again)} == {1}


def test_a_crash_after_the_calibration_costs_no_second_one(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", privacy=SPARE)

    def pulled(*_, **__):
        raise RunFailed("pulled the plug")

    with monkeypatch.context() as m:
        m.setattr(Recorder, "end", pulled)
        with pytest.raises(RunFailed, match="plug"):
            run(tmp_path / "run", privacy=SPARE)
    with refused("calibrated-already"):
        go_on(tmp_path / "run", "method.rounds=4")
    done = go_on(tmp_path / "run")
    assert done.summary["platt"] == whole.summary["platt"]
    assert done.summary["privacy"] == whole.summary["privacy"]


def altered(folder, how) -> None:
    """Change the budget in the checkpoint."""
    file = folder / "checkpoint" / "state.safetensors"
    arrays, facts = load(file)
    how(facts["privacy"])
    save(file, arrays, facts)


def emptied(privacy) -> None:
    privacy["budget"].update(events=[], keys={})


def unasked(privacy) -> None:
    privacy["joined"] = {}


def roomier(privacy) -> None:
    privacy["budget"]["epsilon"] = 100.0


@pytest.mark.parametrize("how", [emptied, unasked, roomier])
def test_a_budget_that_was_altered_stops_a_resume(how, tmp_path):
    """Review M9: an emptied budget was gone on with."""
    done = run(tmp_path / "run", privacy=SPARE, evaluation={"calibrate": "none"})
    altered(done.folder, how)
    with refused("altered-budget"):
        go_on(done.folder, "method.rounds=4")
    assert gr.load_run(done.folder).finished


@pytest.mark.parametrize("lost", ["budget", "state"])
def test_a_budget_that_is_gone_stops_a_resume(lost, tmp_path):
    """A run without its budget would begin with a new one."""
    done = run(tmp_path / "run", privacy=SPARE, evaluation={"calibrate": "none"})
    file = done.folder / "checkpoint" / "state.safetensors"
    arrays, facts = load(file)
    if lost == "budget":
        del facts["privacy"]
        save(file, arrays, facts)
    else:
        file.unlink()
    with refused("altered-budget"):
        go_on(done.folder, "method.rounds=4")


def test_a_forgotten_calibration_stops_a_resume(tmp_path):
    done = run(tmp_path / "run", privacy=SPARE)
    (done.folder / "checkpoint" / "charges.json").unlink()
    with refused("altered-budget", match=r"charges\.json"):
        go_on(done.folder, "method.rounds=4")


def test_an_older_checkpoint_stops_a_resume(tmp_path):
    done = run(tmp_path / "run", privacy=SPARE, evaluation={"calibrate": "none"})
    state = done.folder / "checkpoint" / "state.safetensors"
    older, journal = state.read_bytes(), (done.folder / "checkpoint" / "rounds.jsonl").read_bytes()
    go_on(done.folder, "method.rounds=4")
    state.write_bytes(older)
    (done.folder / "checkpoint" / "rounds.jsonl").write_bytes(journal)
    with refused("altered-budget"):
        go_on(done.folder, "method.rounds=4")


VEIL = {"method": {"name": "veil", "rounds": 4}, "privacy": {"mechanism": "none", "epsilon": 2.0}}


@pytest.mark.slow
def test_a_round_begun_with_other_noise_is_refused(tmp_path, monkeypatch):
    """VEIL parts its budget by method.rounds: a round asked for twice, with other noise, would be two releases."""
    before = LocalEngine.drive

    def broken(self, work, *, round):
        if round == 2 and "evaluate" in work.__qualname__:
            raise RunFailed("pulled the plug")
        return before(self, work, round=round)

    with monkeypatch.context() as m:
        m.setattr(LocalEngine, "drive", broken)
        with pytest.raises(RunFailed, match="plug"):
            run(tmp_path / "run", **VEIL, evaluation={"calibrate": "none"})
    with refused("rounds-changed", match=r"method\.rounds"):
        go_on(tmp_path / "run", "method.rounds=40")
    done = go_on(tmp_path / "run", "method.rounds=4")
    whole = run(tmp_path / "whole", **VEIL, evaluation={"calibrate": "none"})
    assert model(done).tobytes() == model(whole).tobytes() and load_account(done).findings == ()


def test_charges_are_plain_json(tmp_path):
    done = run(tmp_path / "run")
    (one,) = json.loads((done.folder / "checkpoint" / "charges.json").read_text())["calibrations"]
    assert [Event.from_dict(e).of for e in one["events"]] == ["validation", "validation"]
    assert one["line"]["slope"] == done.summary["platt"]["slope"] and one["round"] == 3
