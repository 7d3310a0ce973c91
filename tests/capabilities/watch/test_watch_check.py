"""`rounds audit verify` of a watch: its ledger, its files and its run, with every alteration named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grandrounds.analysis.audit.report import audit
from grandrounds.audit import verify as names
from grandrounds.audit.ledger import Ledger
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.capabilities.watch.at_sites.signer import find_signer
from grandrounds.capabilities.watch.audit import ALTERED, MISSING, OTHER_STUDY, UNRECORDED
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.experiment.experiment import Experiment
from grandrounds.protocol.identity import Identity, public_pem
from tests.audit import ledgers
from tests.capabilities.watch.records import FACTS, SIGNER, SITE, STATE, alarm, alarmed, status, write_files
from tests.command import rounds


@pytest.fixture
def folder(tmp_path) -> Path:
    return alarmed(tmp_path / "watch")


@pytest.fixture
def in_run(tmp_path) -> Path:
    """The watch of site a in the folder of a run whose ledger names a's key."""
    run = tmp_path / "heart"
    (run / "checkpoint").mkdir(parents=True)
    plan = Experiment.parse({"seed": 7, "data": {"name": "heart"}}).plan()
    (run / "checkpoint" / "plan.json").write_text(json.dumps(plan))
    ledgers.made(run / "ledger.db", rounds=1)
    with Ledger.open(run / "ledger.db") as ledger:
        size, root = len(ledger), ledger.tree().root().hex()
    watch = run / "at_sites" / "a" / "watch"
    watch.mkdir(parents=True)
    signer = find_signer(watch, site="a")
    assert signer.identity.public == ledgers.SITES["a"].public
    with WatchRecord.open(watch, signer=signer) as record:
        record.start(replace(FACTS, run=ledgers.RUN, site="a", entries=size, root=root))
        record.add_reading({**status(120), "site": "a"}, [alarm()], new=120, state=STATE)
    write_files(watch)
    (watch / "watch.json").write_text(json.dumps({**status(120, alarms=(alarm(),)), "site": "a"}))
    return watch


def found(folder: Path, **options) -> dict[str, str]:
    result = audit(folder, **options)
    assert result.fails == bool(result.findings)
    return {f.name: f"{f.where}: {f.what}" for f in result.findings}


def test_an_untouched_watch_verifies_with_its_files(folder):
    result = audit(folder)
    assert not result.findings, result.findings
    assert result.line.startswith("verifies, with its alarms and figures, by SIMULATED keys")
    assert "(4 entries, 1 alarm, root" in result.line
    checked = " ".join(result.checked)
    for words in ("4 entries and 3 heads", "alarms.json: 1 alarm,", "watch.json: every figure", "state.safetensors", "baseline"):
        assert words in checked
    assert "give --key" in " ".join(result.notes)
    assert "its folder is not at hand" in " ".join(result.unchecked)


def test_states_of_alarms_may_change_and_a_watch_goes_on(folder):
    with WatchRecord.open(folder, signer=SIGNER) as record:
        record.acknowledge("A1", by="M. Curie")
    write_files(folder, state="acknowledged")
    assert not found(folder)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sentence": "All is well."}, "alarm A1: its 'sentence' is 'All is well.', and entry 2 says 'Age has"),
        ({"since": 110}, "alarm A1: its 'since' is 110, and entry 2 says 71"),
        ({"kind": "missing"}, "its 'kind' is 'missing', and entry 2 says 'shift'"),
        ({"figures": {"reference": 54.25, "current": 54.5}}, "its 'figures' is"),
        ({"patients": "many"}, "alarm A1 lacks a part"),
    ],
)
def test_an_altered_alarm_is_named(folder, change, what):
    write_files(folder, **change)
    assert what in found(folder)[ALTERED]


@pytest.mark.parametrize("name", ["alarms.json", "watch.json"])
def test_a_removed_and_an_invented_alarm_are_named(folder, name):
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, "alarms": [{**alarm(), "id": "A2"}]}))
    changed = found(folder)
    assert changed[MISSING] == f"{name}: alarm A1 of entry 2 is not there"
    assert changed[UNRECORDED] == f"{name}: alarm 'A2' is there, and no entry raises it"


def test_an_altered_figure_of_the_status_is_named(folder):
    content = json.loads((folder / "watch.json").read_text())
    content["checks"][0]["evidence"] = -9.0
    (folder / "watch.json").write_text(json.dumps(content))
    assert found(folder)[ALTERED] == "watch.json: its 'checks' is not that of the reading in entry 3"
    (folder / "watch.json").write_text("{")
    assert "it is not JSON" in found(folder)[ALTERED]


@pytest.mark.parametrize("name", ["baseline.safetensors", "state.safetensors"])
def test_another_baseline_or_state_is_named(folder, name):
    (folder / name).write_bytes(b"another")
    assert found(folder)[ALTERED].startswith(f"{name}: it is not the file that entry")
    (folder / name).unlink()
    assert "does not exist" in found(folder)[ALTERED]


def test_another_key_a_removed_ledger_and_a_damaged_head_are_named(folder, tmp_path):
    other = tmp_path / "other.pub"
    other.write_bytes(public_pem(Identity.new().public))
    assert list(found(folder, key=other)) == [names.WRONG_KEY]
    (folder / "ledger.head.json").write_text("{}")
    assert "ledger.head.json" in found(folder)[names.UNREADABLE]
    (folder / "ledger.db").unlink()
    assert "it was removed" in found(folder)[names.UNREADABLE]


def test_the_run_is_compared_where_it_is_at_hand(in_run):
    result = audit(in_run)
    assert not result.findings, result.findings
    assert "with the key that the run's ledger names" in " ".join(result.checked)
    assert "the head of its ledger, by entry 0" in " ".join(result.checked)
    assert "the model cdcdcdcdcdcdcdcd... of entry 0: no file at hand has it" in result.unchecked
    assert "give --key" not in " ".join(result.notes)
    run = in_run.parents[2]
    (run / "ledger.db").unlink()
    ledgers.made(run / "ledger.db", rounds=2)
    assert not found(in_run), "a run that was resumed still begins with the same entries"
    (run / "ledger.db").unlink()
    ledgers.made(run / "ledger.db", rounds=1, said=lambda n: ledgers.of_round(n, why="other"))
    assert "another ledger than entry 0 names" in found(in_run)[OTHER_STUDY]


def test_a_watch_signed_by_another_than_the_site_of_the_run_is_named(in_run):
    for file in in_run.iterdir():
        file.unlink()
    alarmed(in_run)
    assert list(found(in_run)) == [names.WRONG_KEY]


def test_the_command_verifies_a_watch(folder):
    done = rounds("audit", "verify", folder)
    assert done.returncode == 0, done.stderr
    assert "verifies, with its alarms and figures" in done.stdout
    assert rounds("audit", "verify", folder, "--json").returncode == 0
    write_files(folder, since=3)
    done = rounds("audit", "verify", folder)
    assert done.returncode == 3
    assert "FOUND  altered file (alarms.json): alarm A1: its 'since' is 3, and entry 2 says 71" in done.stdout


def test_an_export_of_a_watch_verifies_with_the_sites_key_and_names_a_change(folder, tmp_path):
    key, out = tmp_path / "va.pub", tmp_path / "watch.jsonl"
    key.write_bytes(public_pem(SITE.public))
    assert rounds("audit", "export", folder, "--out", out).returncode == 0
    result = audit(out, key=key, files=False)
    assert not result.findings
    assert "(4 entries, 1 alarm, root" in result.line
    assert "unfinished" not in result.line.lower(), "a watch has no end"
    out.write_text(out.read_text().replace("higher since", "lower since"))
    assert names.CHANGED in found(out, key=key, files=False)
    assert rounds("audit", "prove", folder, "--site", "va").returncode == 2


def test_the_key_is_taken_from_a_list_of_sites(folder, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "va.pub").write_bytes(public_pem(SITE.public))
    assert not found(folder, sites=keys)
    assert "with the key that was given" in audit(folder, sites=keys).checked[0]
    (keys / "va.pub").write_bytes(public_pem(Identity.new().public))
    assert list(found(folder, sites=keys)) == [names.WRONG_KEY]
    (keys / "va.pub").rename(keys / "paris.pub")
    with pytest.raises(BadInput, match="is the watch of 'va', for which no key is given: known: paris"):
        audit(folder, sites=keys)


def leaves(value, path=()):
    """List the paths of all numbers, texts and nulls in JSON."""
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in leaves(one, (*path, key))]
    if isinstance(value, list):
        return [leaf for n, one in enumerate(value) for leaf in leaves(one, (*path, n))]
    return [path]


def altered(value):
    return value + 1 if isinstance(value, (int, float)) else f"{value or ''}x"


@pytest.mark.parametrize("name", ["alarms.json", "watch.json"])
def test_every_altered_value_of_the_files_is_found(folder, name):
    path = folder / name
    content = json.loads(path.read_text())
    states = {"state", "status"}  # people change these
    paths = [p for p in leaves(content) if p[-1] not in states and (name == "watch.json" or p != ("schema",))]
    assert len(paths) >= 15
    for place in paths:
        changed = json.loads(json.dumps(content))
        at = changed
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = altered(at[place[-1]])
        path.write_text(json.dumps(changed))
        assert found(folder), place
    path.write_text(json.dumps(content))
    assert not found(folder)


def test_every_altered_byte_of_an_entry_is_found(folder):
    rng = generator(0, purpose="altered bytes")
    with Ledger.open(folder / "ledger.db") as ledger:
        book = ledger.book()
    for number, entry in enumerate(book.entries):
        for place in rng.integers(0, len(entry.body), 12).tolist():
            body = bytearray(entry.body)
            body[place] ^= 1
            entries = list(book.entries)
            entries[number] = replace(entry, body=bytes(body))
            assert names.verify(replace(book, entries=tuple(entries)), SITE.public), (number, place)
    assert not names.verify(book, SITE.public)
