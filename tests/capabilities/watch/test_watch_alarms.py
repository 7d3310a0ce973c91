"""`rounds watch acknowledge`, `silence` and `act`: signed decisions, sentences for mistakes, metrics that follow."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from grandrounds.analysis.audit.report import audit
from grandrounds.audit.entry import OWN
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.capabilities.watch.at_sites.signer import find_signer
from grandrounds.capabilities.watch.at_sites.status import read_status
from grandrounds.capabilities.watch.audit import OTHER_STUDY
from grandrounds.capabilities.watch.commands import alarms as watch_alarms
from grandrounds.core.errors import BadInput
from grandrounds.experiment.experiment import Experiment
from grandrounds.protocol.identity import Identity
from tests.capabilities.watch.records import FACTS, alarm, alarmed, status

app = typer.Typer()
watch_alarms.register(app)
WHO = ("--by", "M. Curie")


def command(*arguments) -> str:
    """Run a sub-command and return its output; a mistake raises its BadInput."""
    name, *rest = map(str, arguments)
    done = CliRunner().invoke(app, [f"watch {name}", *rest])
    if isinstance(done.exception, BadInput):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A simulated run with the watch of va."""
    run = tmp_path_factory.mktemp("runs") / "heart"
    (run / "checkpoint").mkdir(parents=True)
    plan = Experiment.parse({"seed": 7, "data": {"name": "heart"}}).plan()
    (run / "checkpoint" / "plan.json").write_text(json.dumps(plan))
    alarmed(run / "at_sites" / "va" / "watch")
    return run


@pytest.fixture
def run(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "heart")


def last(run: Path) -> dict:
    with WatchRecord.open(run / "at_sites" / "va" / "watch") as record:
        assert not record.verify()
        return dict(record.entries[-1])


def test_an_alarm_is_acknowledged_and_the_metrics_follow(run):
    out = command("acknowledge", run, "--alarm", "A1", *WHO, "--note", "the new monitor")
    assert "A1: Age has been higher since patient 71." in out
    assert "acknowledged by M. Curie on 20" in out
    entry = last(run)
    assert (entry["kind"], entry["alarm"], entry["by"], entry["note"]) == ("acknowledge", "A1", "M. Curie", "the new monitor")
    metrics = (run / "at_sites" / "va" / "watch" / "metrics.prom").read_text()
    assert 'state="acknowledged"} 1' in metrics
    assert 'grandrounds_watch_open_alarms{run="heart-7",site="va"} 0' in metrics


def test_a_check_is_silenced_until_the_end_of_a_day_or_for_patients_and_ended(run):
    day = (datetime.now(UTC) + timedelta(days=30)).date()
    command("silence", run, "--check", "age up", "--until", day, *WHO)
    assert last(run)["until"] == f"{day + timedelta(days=1)}T00:00:00+00:00"
    with WatchRecord.open(run / "at_sites" / "va" / "watch") as record:
        assert record.alarm("A1").state == "silenced"
    command("silence", run / "at_sites" / "va" / "watch", "--check", "age up", "--patients", 40, *WHO)
    assert last(run)["patients"] == 160
    assert "is not silenced any more" in command("silence", run, "--check", "age up", "--end", *WHO)
    with WatchRecord.open(run / "at_sites" / "va" / "watch") as record:
        assert record.alarm("A1").state == "open"


def test_an_action_is_recorded_with_and_without_an_alarm(run):
    command("act", run, "--alarm", "a1", "--action", "unit of chol corrected", *WHO)
    assert (last(run)["alarm"], last(run)["action"]) == ("A1", "unit of chol corrected")
    command("act", run, "--action", "retraining", *WHO)
    assert last(run)["alarm"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("acknowledge", "--alarm", "A4"), "has no alarm 'A4': the newest are A1: Age has been higher"),
        (("silence", "--check", "age upp", "--patients", "5"), "did you mean 'age up'"),
        (("silence", "--check", "age up"), "has no end"),
        (("silence", "--check", "age up", "--until", "soon"), "is not a day: write it as 2026-12-31"),
        (("silence", "--check", "age up", "--until", "2020-01-01"), "is over"),
        (("silence", "--check", "age up", "--until", "2090-01-01", "--end"), "give one of the two"),
        (("act", "--action", " "), "the action is empty"),
        (("acknowledge", "--alarm", "A1", "--site", "vaa"), "va"),
    ],
)
def test_mistakes_are_answered_in_one_sentence_and_change_nothing(run, arguments, words):
    before = last(run)
    with pytest.raises(BadInput) as e:
        command(arguments[0], run, *arguments[1:], *WHO)
    assert words in str(e.value)
    assert "\n" not in str(e.value)
    assert last(run) == before


def test_several_watches_and_none_are_answered_with_the_list(run, tmp_path):
    second = run / "at_sites" / "paris" / "watch"
    second.mkdir(parents=True)
    with WatchRecord.open(second, signer=find_signer(second, site="paris")) as record:
        record.start(replace(FACTS, site="paris"))
    with pytest.raises(BadInput, match=r"watches of 2 sites \(paris, va\): choose one with --site"):
        command("acknowledge", run, "--alarm", "A1", *WHO)
    command("acknowledge", run, "--alarm", "A1", "--site", "va", *WHO)
    with pytest.raises(BadInput, match="has no record of a watch"):
        command("acknowledge", tmp_path, "--alarm", "A1", *WHO)


def test_at_a_hospital_the_sites_key_signs(tmp_path):
    own, folder = Identity.new(), tmp_path / "va" / "watch"
    (tmp_path / "va" / "keys").mkdir(parents=True)
    own.save(tmp_path / "va" / "keys" / "site.key")
    folder.mkdir()
    with WatchRecord.open(folder, signer=find_signer(folder, site="va")) as record:
        record.start(FACTS)
        record.add_reading(status(120), [alarm()], new=120)
    command("acknowledge", tmp_path / "va", "--alarm", "A1", *WHO)
    with WatchRecord.open(folder) as record:
        assert record.entries[0]["keys"] == {"site": own.public.hex(), "made": OWN}
        assert record.entries[-1]["kind"] == "acknowledge"
        assert not record.verify(own.public)


def test_a_watch_elsewhere_needs_the_run_or_a_key(tmp_path, run):
    folder = alarmed(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="--key"):
        command("acknowledge", folder, "--alarm", "A1", *WHO)
    command("acknowledge", folder, "--alarm", "A1", "--run", run, *WHO)


def test_the_states_of_a_watch_are_those_of_the_record(run):
    folder = run / "at_sites" / "va" / "watch"
    command("silence", run, "--check", "age up", "--patients", 40, *WHO)
    shown = read_status(folder)
    assert [(a["id"], a["state"]) for a in shown["alarms"]] == [("A1", "silenced")]
    assert {c["name"]: c["status"] for c in shown["checks"]}["age up"] == "silenced"
    command("acknowledge", run, "--alarm", "A1", *WHO)
    assert read_status(folder)["alarms"][0]["state_text"].startswith("acknowledged by M. Curie")
    found = {f.name for f in audit(folder).findings}
    assert found == {OTHER_STUDY}, "the file itself is that of the reading; the run of this test has no ledger"
