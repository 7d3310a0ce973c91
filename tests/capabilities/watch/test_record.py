"""The record of a watch: what is entered, once each, the states of alarms, and every alteration named."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from grandrounds.audit import verify as names
from grandrounds.audit.entry import OWN, SIMULATED, Entry, find_fault
from grandrounds.audit.ledger import Ledger
from grandrounds.capabilities.watch.at_sites.record import HEAD, LEDGER, WatchRecord
from grandrounds.capabilities.watch.at_sites.signer import Signer, find_signer, run_of
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity
from tests.capabilities.watch.records import FACTS, SIGNER, SITE, alarm, alarmed, started, status

LATER = datetime(2027, 1, 1, tzinfo=UTC)


def kinds(record: WatchRecord) -> list[str]:
    return [e["kind"] for e in record.entries]


def test_a_watch_starts_once_and_again_only_with_another_model_or_baseline(tmp_path):
    with started(tmp_path) as record:
        assert not record.start(FACTS)
        assert record.start(replace(FACTS, baseline="00" * 32))
        assert kinds(record) == ["watch-start", "watch-start"]
        first = record.entries[0]
    assert first["study"] == {"folder": "heart", "entries": 5, "root": "ab" * 32}
    assert first["keys"] == {"site": SITE.public.hex(), "made": SIMULATED}
    assert (first["model"], first["rates"]["age up"]) == ("cd" * 32, 2e-5)


@pytest.mark.parametrize(("change", "code"), [({"site": "paris"}, "wrong-site"), ({"run": "other"}, "wrong-run")])
def test_a_folder_keeps_the_watch_of_one_site_and_run(tmp_path, change, code):
    with started(tmp_path) as record, pytest.raises(BadInput) as e:
        record.start(replace(FACTS, **change))
    assert e.value.code == code


def test_a_reading_and_its_alarms_are_entered_together_and_not_twice(tmp_path):
    with started(tmp_path) as record:
        assert record.add_reading(status(60), new=60) == ()
        for _ in range(2):  # the second: a crash after the ledger was written, so that the same patients are read again
            assert record.add_reading(status(120), [alarm(), alarm("score up", 120)], new=60) == ("A1", "A2")
        assert kinds(record) == ["watch-start", "reading", "alarm", "alarm", "reading"]
        assert [e["alarms"] for e in record.entries if e["kind"] == "reading"] == [0, 2]
        assert record.add_reading(status(180), [alarm(patient=170)], new=60) == ("A3",)
        assert record.patients == 180
        assert not record.verify(SITE.public)


def test_an_alarm_entry_has_no_more_than_its_named_parts(tmp_path):
    with started(tmp_path) as record:
        secret = alarm(rows=[[63.0, "cardiac"]], figures={"current": 61.5, "row": [63.0], "worst": float("nan")})
        record.add_reading(status(120), [secret], new=120)
        entry = record.alarms()[0].content
    assert set(entry) == {
        "kind", "run", "site", "date", "alarm", "check", "type", "column", "direction", "patient", "since", "patients",
        "sentence", "details", "advice", "figures", "hashes", "schema", "number", "previous",
    }  # fmt: skip
    assert entry["figures"] == {"current": 61.5}
    assert entry["date"] == "2026-11-18T02:00:00+00:00"


def test_an_alarm_is_open_until_a_person_acknowledges_it(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        assert record.alarm("A1").state_sentence == "open"
        done = record.acknowledge("a1", by="M. Curie", note="the new monitor")
        assert (done.state, done.acknowledged.by) == ("acknowledged", "M. Curie")
        record.act("repaired column", by="IT", alarm="A1", figures={"factor": 0.1})
        record.act("retraining", by="IT")
        assert [a.action for a in record.alarm("A1").actions] == ["repaired column"]
        assert kinds(record)[-3:] == ["acknowledge", "action", "action"]
        assert not record.verify(SITE.public)


def test_who_acts_on_an_alarm_has_acknowledged_it(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        record.act("recalibration", by="M. Curie", alarm="A1", note="slope 1.1")
        done = record.alarm("A1")
        assert (done.state, done.acknowledged.by) == ("acknowledged", "M. Curie")
        assert done.state_sentence.endswith(": recalibration; slope 1.1")


def test_a_silence_until_a_day_outlasts_a_new_start_and_one_by_patients_does_not(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        record.silence("age up", by="M. Curie", until=LATER)
        record.silence("score up", by="M. Curie", patients=1000)
        now = LATER - timedelta(days=1)
        assert {s.check for s in record.silences(now=now)} == {"age up", "score up"}
        record.start(replace(FACTS, model="00" * 32))
        assert {s.check for s in record.silences(now=now)} == {"age up"}


def test_an_unknown_alarm_is_answered_with_the_list(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        with pytest.raises(BadInput, match=r"no alarm 'A9': the newest are A1: Age has been higher since patient 71\."):
            record.acknowledge("A9", by="M. Curie")
        with pytest.raises(BadInput, match="no name is given"):
            record.acknowledge("A1", by=" ")
        with pytest.raises(BadInput, match="did you mean 'age up'"):
            record.silence("age ups", by="M. Curie", patients=5)
        with pytest.raises(BadInput, match="has no end"):
            record.silence("age up", by="M. Curie")


def test_a_silence_ends_at_its_time_or_after_its_patients(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        record.silence("age up", by="M. Curie", note="known", until=LATER)
        before, after = LATER - timedelta(seconds=1), LATER
        assert [record.alarm("A1", now=t).state for t in (before, after)] == ["silenced", "open"]
        assert "until 2027-01-01 00:00 UTC" in record.alarm("A1", now=before).state_sentence
        record.silence("age up", by="M. Curie", patients=30)  # of 120: until 150, in place of the first
        assert [record.alarms(patients=n)[0].state for n in (149, 150)] == ["silenced", "open"]
        record.acknowledge("A1", by="M. Curie")
        assert record.alarm("A1").state == "acknowledged"


def test_a_notice_is_entered_when_its_result_changes(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        for result in ("exit code 1", "exit code 1", "delivered", "delivered"):
            record.add_notice("A1", hook="mail 12ab", result=result)
        assert kinds(record).count("notice") == 2
        assert record.alarm("A1").is_delivered("mail 12ab")
        assert not record.alarm("A1").is_delivered("other")


def test_entries_of_another_process_are_seen(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path, signer=SIGNER) as watch, WatchRecord.open(tmp_path, signer=SIGNER) as person:
        assert watch.alarm("A1").state == "open"
        person.acknowledge("A1", by="M. Curie")
        assert watch.alarm("A1").state == "acknowledged"
        watch.add_reading(status(180), new=60)
        assert not person.verify(SITE.public)


def test_another_key_cannot_continue_the_record(tmp_path):
    alarmed(tmp_path)
    with pytest.raises(BadInput) as e:
        WatchRecord.open(tmp_path, signer=Signer(Identity.simulated(8, "va"), SIMULATED))
    assert e.value.code == "wrong-key"
    with WatchRecord.open(tmp_path) as record:
        assert [f.name for f in record.verify(Identity.simulated(8, "va").public)] == [names.WRONG_KEY]
        with pytest.raises(BadInput, match="opened for reading"):
            record.acknowledge("A1", by="M. Curie")



@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("DELETE FROM entries WHERE number = 2", names.REMOVED),
        ("UPDATE entries SET body = replace(body, 'higher', 'lower') WHERE number = 2", names.CHANGED),
        ("UPDATE entries SET signature = zeroblob(64) WHERE number = 2", names.FORGED),
        ("DELETE FROM entries WHERE number > 1; DELETE FROM heads WHERE size > 2", names.TRUNCATED),
        ("DELETE FROM heads WHERE size > 2", names.UNCOVERED),
    ],
)
def test_every_alteration_is_named_and_the_watch_stops(tmp_path, statement, name):
    alarmed(tmp_path)
    with Ledger.open(tmp_path / LEDGER, identity=SITE) as ledger:
        triggers = [row[0] for row in ledger._database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        created = [row[0] for row in ledger._database.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")]
    database = sqlite3.connect(tmp_path / LEDGER)
    for trigger in triggers:
        database.execute(f"DROP TRIGGER {trigger}")
    database.executescript(statement.replace("body = replace(body,", "body = CAST(replace(CAST(body AS TEXT),").replace(
        "'lower')", "'lower') AS BLOB)"
    ))
    for sql in created:
        database.execute(sql)
    database.commit()
    database.close()
    with WatchRecord.open(tmp_path) as record:
        found = record.verify(SITE.public)
    assert name in {f.name for f in found}, found
    assert all("server" not in f.what for f in found)
    with pytest.raises(BadInput) as e:
        WatchRecord.open(tmp_path, signer=SIGNER)
    assert e.value.code == "ledger-does-not-verify"


def test_a_ledger_that_was_removed_is_not_begun_again(tmp_path):
    alarmed(tmp_path)
    (tmp_path / LEDGER).unlink()
    assert (tmp_path / HEAD).exists()
    with pytest.raises(BadInput, match="was removed"):
        WatchRecord.open(tmp_path, signer=SIGNER)


PERSON = {"run": "r", "site": "s", "date": "d", "by": "x", "note": ""}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"kind": "alarm"}, "it has no 'run'"),
        ({**PERSON, "kind": "acknowledge", "note": 3, "alarm": "A1"}, "'note' is of the wrong"),
        ({**PERSON, "kind": "silence", "check": "c", "until": None, "patients": None}, "without an end"),
        ({**PERSON, "kind": "silence", "check": "c", "until": "soon", "patients": None}, "not a time"),
        ({**PERSON, "kind": "action", "alarm": None, "action": "a", "figures": {"x": "y"}}, "not numbers"),
    ],
)
def test_the_form_of_entries_is_checked(content, fault):
    assert fault in find_fault(content)


def test_entries_that_do_not_fit_those_before_them_are_named(tmp_path):
    alarmed(tmp_path)
    common = {"run": "heart-7", "date": "2026-11-18T00:00:00+00:00"}
    acknowledge = {**common, "kind": "acknowledge", "by": "x", "note": "", "site": "va"}
    odd = [
        {**acknowledge, "alarm": "A7"},
        {**acknowledge, "alarm": "A1", "site": "paris"},
        {**acknowledge, "alarm": "A1", "run": "other"},
        {**common, "kind": "resume", "round": 1, "plan": ""},
        {**common, "kind": "reading", "site": "va", "new": 0, "patients": 3, "labelled": 0, "alarms": 0, "status": {}},
    ]
    with Ledger.open(tmp_path / LEDGER, identity=SITE) as ledger:
        ledger.append("heart-7", *odd)
        found = ledger.verify(SITE.public)
    whats = " ".join(f.what for f in found)
    assert {f.where for f in found} == {f"entry {n}" for n in range(4, 9)}, found
    for words in ("raises alarm 'A7'", "of site 'paris'", "of run 'other'", "not an entry of a watch", "after 120"):
        assert words in whats


def test_an_alarm_in_the_ledger_of_a_run_is_named(tmp_path):
    from tests.audit import ledgers

    path = ledgers.made(tmp_path / "ledger.db", rounds=1)
    with Ledger.open(path, identity=ledgers.SERVER) as ledger:
        ledger.append(ledgers.RUN, {**PERSON, "kind": "acknowledge", "run": ledgers.RUN, "alarm": "A1"})
        assert "it belongs into the ledger of a watch" in {f.what for f in ledger.verify()}


def test_the_key_is_the_sites_own_or_follows_from_the_seed(tmp_path):
    run = tmp_path / "run"
    folder = run / "at_sites" / "va" / "watch"
    folder.mkdir(parents=True)
    assert run_of(folder) is None
    with pytest.raises(BadInput, match="--key"):
        find_signer(folder, site="va")
    own = Identity.new()
    (folder.parent / "keys").mkdir()
    own.save(folder.parent / "keys" / "site.key")
    assert find_signer(folder, site="va").identity.public == own.public
    assert find_signer(folder, site="va").made == OWN


def test_the_entries_are_signed_one_by_one(tmp_path):
    alarmed(tmp_path)
    with WatchRecord.open(tmp_path) as record:
        entries: tuple[Entry, ...] = record._ledger.book().entries
    assert len(entries) == 4
    assert all(entry.is_signed_by(SITE.public) for entry in entries)
