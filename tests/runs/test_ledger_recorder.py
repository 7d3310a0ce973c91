"""Every run has a ledger, whatever the method; it survives a kill at any point, a resume, and tells what was changed."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.audit.entry import without_seconds
from grandrounds.audit.head import WITNESSES, SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.core.errors import RunFailed
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.job import main as job
from grandrounds.protocol.identity import Identity, load_public
from tests import command
from tests.audit.ledgers import countersigned, lasting, tampered
from tests.store import copied, finished
from tests.support import refused, slow, thinned

BASE = {
    "name": "led",
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 5},
    "method": {"rounds": 3},
    "train": {"epochs": 1},
}
REFERENCE = {"reference": {"rows": {"rows": 60, "labelled": True}}}
KINDS = {
    "fedavg": {},
    "sse-agg": {"method": {"name": "sse-agg"}, **REFERENCE},
    "cohorts": {"method": {"name": "sse-agg", "cohorts": 2}, **REFERENCE},
    "scaffold": {"method": {"name": "scaffold"}},
    "fedadam": {"method": {"name": "fedadam"}},
    "fedasync": {"method": {"name": "fedasync"}},
    "fedbuff": {"method": {"name": "fedbuff", "buffer": 2}},
    "clustered": {"method": {"name": "clustered"}},
    "local": {"method": {"name": "local"}},
    "pooled": {"method": {"name": "pooled"}},
    "forest": {"model": {"name": "forest", "trees": 4}},
    "wire": {"engine": {"wire": True}},
    "wire async": {"method": {"name": "fedasync"}, "engine": {"wire": True}},
    "some drop out": {"method": {"select": "random"}, "engine": {"faults": {"drop": 0.2}}},
    "best round kept": {"train": {"epochs": 1, "early_stop": 1}},
    "calibrated": {"evaluation": {"calibrate": "temperature"}},
    "fine-tuned": {"train": {"epochs": 1, "finetune": 1}},
    "a large seed": {"seed": 2**60 + 1},
    "secure": {"privacy": {"secure": True}},
    "fedxchain": {"method": {"name": "fedxchain"}, **REFERENCE},
    "fedxchain, secure": {
        "method": {"name": "fedxchain"},
        "reference": {"root": {"rows": 40, "sent": True}},
        "explain": {"at": "site"},
        "privacy": {"secure": True},
    },
}
KILLED = """
import os, signal, sys
from grandrounds.runs import ledger_recorder as recorder
from grandrounds.job import main
where, at = sys.argv[1], int(sys.argv[2])
whole = getattr(recorder.Recorder, where)
calls = []
def killed(self, *args, **kwargs):
    calls.append(where)
    if len(calls) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, *args, **kwargs)
setattr(recorder.Recorder, where, killed)
sys.exit(main(sys.argv[3:]))
"""


def experiment(**changes) -> gr.Experiment:
    method = {**BASE["method"], **changes.pop("method", {})}
    return gr.Experiment.parse({**BASE, **changes, "method": method})


@pytest.fixture(scope="module")
def stored():
    return finished(experiment(**KINDS["sse-agg"]))


@pytest.fixture
def folder(stored, tmp_path):
    return copied(stored, tmp_path / "copy")


@pytest.mark.parametrize("kind", thinned(KINDS, 3))
def test_every_run_has_a_ledger_that_verifies_before_and_after_it_is_resumed(tmp_path, kind):
    run = gr.run(experiment(**KINDS[kind]), out=tmp_path / "run")
    done = len(run.rounds)
    for rounds in (done, done + 2):
        found = audit(run.folder, deep=True)
        assert found.findings == () and found.deep and found.rounds == len(run.rounds) >= min(rounds, done)
        with run.ledger as ledger:
            assert ledger.verify() == []
            said = [s for s in ledger.entries() if s["kind"] == "round"]
        assert [s["decision"] for s in said] == [without_seconds(r["decision"]) for r in run.rounds]
        run = gr.resume(run.folder, settings=[f"method.rounds={done + 2}"])


def test_the_same_experiment_gives_the_same_ledger_wherever_it_is_run(tmp_path, stored):
    """But for the seconds it took and the machine, which are in files that the last entry has the hashes of."""
    again = gr.run(gr.Experiment.load(stored / "experiment.toml"), out=tmp_path / "again")
    books = [gr.load_run(folder).ledger.book() for folder in (again.folder, stored)]
    assert books[0].entries[:-1] == books[1].entries[:-1] and books[0].heads[:-1] == books[1].heads[:-1]
    assert lasting(books[0], but="schema.json") == lasting(books[1], but="schema.json")  # it says who named the columns
    assert "seconds" in again.rounds[0]["decision"]["cost"]


def test_of_many_sites_each_head_has_a_sample_of_witnesses(tmp_path):
    """Hospitals that were not drawn last time are shown the way from the head they signed before."""
    many = {"data": {"name": "digits"}, "split": {"partition": "equal", "sites": 80}, "explain": {"sketch": "none"}}
    run = gr.run(experiment(method={"rounds": 4}, **many), out=tmp_path / "run")
    run = gr.resume(run.folder, settings=["method.rounds=6"])
    with run.ledger as ledger:
        heads = ledger.book().heads
    assert len(run.site_names) > WITNESSES and [len(h.witnesses) for h in heads] == [WITNESSES] * len(heads)
    assert len({frozenset(h.witnesses) for h in heads}) == len(heads)
    assert audit(run.folder, deep=True).findings == ()


def test_a_run_that_stops_in_the_middle_leaves_its_newest_head_countersigned(tmp_path):
    with refused("too-few-sites", kind=RunFailed):
        gr.run(
            experiment(method={"rounds": 30}, engine={"min_sites": 5, "faults": {"drop": 0.05}}), out=tmp_path / "run"
        )
    done = len(gr.load_run(tmp_path / "run").rounds)
    found = audit(tmp_path / "run", deep=True)
    assert done and found.findings == () and found.rounds == done
    assert not any("lacks the countersignatures" in note for note in found.notes)
    assert SignedHead.read(tmp_path / "run" / "ledger.head.json").head.size == found.entries


def test_what_sites_remember_gives_a_rewritten_ledger_away(folder):
    """Signed anew with the server's own key, with fresh countersignatures for a head nobody asked the sites about."""
    path, server = folder / "ledger.db", Identity.simulated(0, "server")
    with Ledger.open(path) as ledger:
        said = [{k: v for k, v in e.items() if k not in ("number", "previous", "schema")} for e in ledger.entries()]
    said[1]["reference"] = {"rows": "00" * 32}
    for name in ("ledger.db", "ledger.head.json"):
        (folder / name).unlink()
    with Ledger.open(path, identity=server) as ledger:
        ledger.append("led-0", *said)
    assert [f.name for f in audit(folder).findings] == ["missing countersignature"]
    countersigned(path, seed=0, sites=said[0]["keys"]["sites"])
    assert audit(folder).findings == ()
    assert [f.name for f in audit(folder, deep=True).findings] == ["forked head"]


def test_an_entry_says_all_that_the_round_rested_on(stored):
    run = gr.load_run(stored)
    with run.ledger as ledger:
        first, *rounds, last = ledger.entries()
        book = ledger.book()
    assert (first["kind"], first["first"], last["kind"]) == ("open", 1, "close")
    assert "whoever knows it can sign as anybody" in first["keys"]["made"]
    assert first["keys"]["sites"] == {s: Identity.simulated(0, s).public.hex() for s in run.site_names}
    for entry, record in zip(rounds, run.rounds, strict=True):
        assert set(entry["commitments"]) == set(record["decision"]["weights"])
        assert entry["reference"] == run.summary["reference"]
        assert entry["decision"]["signals"].keys() >= {"data_size", "disagreement", "in_line"}
    assert len({e["model"] for e in rounds}) == 3
    assert rounds[-1]["explanation"] is not None
    assert len({c for e in rounds for c in e["commitments"].values()}) == 15
    assert [len(h.witnesses) for h in book.heads] == [5] * 5
    assert load_public(stored / "server.pub") == Identity.simulated(0, "server").public
    assert SignedHead.read(stored / "ledger.head.json") == book.heads[-1]


def test_the_journal_keeps_what_the_entry_needs_and_the_round_log_does_not(stored):
    record = Checkpoint(stored / "checkpoint").records()[0]
    assert set(record["ledger"]) == {"model", "served", "explanation", "commitments", "plan"}
    assert "ledger" not in json.loads((stored / "round_logs.json").read_text())["rounds"][0]


@pytest.fixture(scope="module", params=["fedavg", slow("fedasync"), slow("wire")])
def planned(request, tmp_path_factory):
    """A plan's file, and the run folder of it that nobody killed."""
    home = tmp_path_factory.mktemp("whole")
    plan, whole = home / "plan.json", home / "run"
    plan.write_text(json.dumps(experiment(**KINDS[request.param]).plan()))
    assert job([str(plan), "--quiet", "--out", str(whole)]) == 0
    assert audit(whole, deep=True).findings == ()
    return plan, whole


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("enter", 2),  # the model of round 2 counts, the ledger does not know of it
        ("_witness", 1),  # the ledger has begun, no site has signed
        ("_witness", 3),  # round 2 is in the ledger, no site has signed it
        ("_copy_head", 1),  # sites have signed, nobody has a copy of it
        ("end", 1),  # all rounds are done, how the run ended is not written
        ("close", 1),  # everything is written, the file is still open
    ],
)
def test_killed_between_model_and_ledger_the_run_ends_as_if_nothing_had_been(tmp_path, planned, where, at):
    (plan, whole), broken = planned, tmp_path / "broken"
    asked = [str(plan), "--quiet", "--out", str(broken)]
    killed = subprocess.run([sys.executable, "-c", KILLED, where, str(at), *asked])
    assert killed.returncode == -signal.SIGKILL
    assert job(asked) == 0
    assert audit(broken, deep=True).findings == ()
    books = [gr.load_run(f).ledger.book() for f in (broken, whole)]
    assert books[0].entries[:-1] == books[1].entries[:-1] and lasting(books[0]) == lasting(books[1])
    assert all(len(h.witnesses) == 5 for h in books[0].heads)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


CREATED = """
import os, signal, sys
from grandrounds.audit import ledger
from grandrounds.job import main
def killed(database):
    database.execute("PRAGMA journal_mode = WAL")
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "prepare":
    ledger._prepare = killed
else:
    os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("where", ["create", "prepare"])
def test_a_run_that_is_killed_while_its_ledger_is_created_is_resumed(tmp_path, where):
    folder, plan = tmp_path / "run", tmp_path / "plan.json"
    plan.write_text(json.dumps(experiment(method={"rounds": 1}).plan()))
    begun = subprocess.run([sys.executable, "-c", CREATED, where, str(plan), "--quiet", "--out", str(folder)])
    assert begun.returncode == -signal.SIGKILL
    assert command.rounds("resume", folder, "--quiet").returncode == 0
    assert command.rounds("audit", "verify", folder).returncode == 0


def test_a_run_that_is_resumed_twice_before_its_first_round_has_a_ledger_that_verifies(tmp_path):
    """The second time its last entry is that of the first resume."""
    folder, plan = tmp_path / "run", tmp_path / "plan.json"
    plan.write_text(json.dumps(experiment().plan()))
    began = subprocess.run([sys.executable, "-c", KILLED, "facts", "1", str(plan), "--quiet", "--out", str(folder)])
    resume = f"import grandrounds as gr; gr.resume({str(folder)!r}, settings=['method.rounds=4'])"
    killed = KILLED.replace("sys.exit(main(sys.argv[3:]))", resume)
    resumed = subprocess.run([sys.executable, "-c", killed, "facts", "1"])
    assert (began.returncode, resumed.returncode) == (-signal.SIGKILL, -signal.SIGKILL)
    run = gr.resume(folder, settings=["method.rounds=5"])
    with run.ledger as ledger:
        kinds = [entry["kind"] for entry in ledger.entries()]
    assert kinds == ["open", "resume", "resume", *["round"] * 5, "close"]
    assert audit(folder, deep=True).findings == ()


def test_a_ledger_that_was_lost_is_written_again_to_the_bit(folder):
    """Journal and keys say it all; the sites, which remember the head they signed, see that it is the same."""
    with gr.load_run(folder).ledger as ledger:
        before = ledger.book()
    (folder / "ledger.db").unlink()
    run = gr.resume(folder, settings=["method.rounds=4"])
    with run.ledger as ledger:
        after = ledger.book()
    assert after.entries[:4] == before.entries[:4]
    assert audit(folder, deep=True).findings == ()


def test_a_rewritten_ledger_is_not_gone_on_with(folder):
    tampered(folder / "ledger.db", "UPDATE entries SET signature = x'00' WHERE number = 2")
    with refused("ledger-does-not-verify", match=r"does not verify: forged signature \(entry 2\).*rounds audit verify"):
        gr.resume(folder, settings=["method.rounds=4"])


def test_sites_refuse_a_history_that_is_not_the_one_they_signed(folder):
    """The server, which has the key, signs another past and changes the journal to match: its sites remember."""
    journal = folder / "checkpoint" / "rounds.jsonl"
    text = journal.read_bytes()
    changed = text.replace(b'"bytes_up"', b'"bytes_UP"', 1)
    journal.write_bytes(changed)
    (folder / "ledger.db").unlink()
    with refused("countersignature-refused", match="does not continue the one it signed", kind=RunFailed):
        gr.resume(folder, settings=["method.rounds=4"])


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda f: _bend(f / "model.safetensors"), "model differs"),
        (lambda f: (f / "model.safetensors").unlink(), "model differs"),
        (lambda f: _state(f), "model differs"),
        (lambda f: _replace(f / "checkpoint" / "rounds.jsonl", b'"why": "', b'"why": "not '), "journal differs"),
        (
            lambda f: _replace(f / "checkpoint" / "rounds.jsonl", b'"consensus": [0.', b'"consensus": [1.'),
            "explanation differs",
        ),
        (lambda f: _replace(f / "checkpoint" / "plan.json", b'"lr": 0.', b'"lr": 1.'), "plan differs"),
        (lambda f: _replace(f / "experiment.toml", b"lr = 0.", b"lr = 1."), "plan differs"),
        (lambda f: (f / "experiment.toml").unlink(), "plan differs"),
        (lambda f: _replace(f / "round_logs.json", b'"weights": {', b'"weightx": {'), "round log differs"),
        (lambda f: (f / "round_logs.json").unlink(), "round log differs"),
    ],
)
def test_what_lies_beside_the_ledger_is_compared_with_it(folder, spoil, name):
    spoil(folder)
    assert audit(folder, files=False).findings == ()
    assert name in {f.name for f in audit(folder, deep=True).findings}


def test_an_audit_says_what_it_did_not_look_at(stored):
    assert "journal, checkpoint and weights" in audit(stored).unchecked[0]
    assert "the ledger alone was checked" in audit(stored, files=False).unchecked[0]


def test_the_newest_round_of_a_run_that_goes_on_may_be_on_its_way(folder):
    """The journal is written first: between the two an audit must not cry wolf; a run that was stopped there is unfinished."""
    last = audit(folder).rounds
    cut = [
        f"DELETE FROM entries WHERE number > {last - 1}",
        f"DELETE FROM heads WHERE size > {last}",
        f"DELETE FROM witnesses WHERE size > {last}",
    ]
    tampered(folder / "ledger.db", *cut)
    (folder / "ledger.head.json").unlink()
    (folder / "summary.json").unlink()
    stopped = audit(folder, deep=True)
    assert stopped.unfinished and [f.name for f in stopped.findings] == ["model differs"]  # no run leaves one so early
    assert any("its entry is still to come: the run was stopped in between" in what for what in stopped.unchecked)
    checkpoint = Checkpoint(folder / "checkpoint")
    checkpoint.lock()
    try:
        found = audit(folder, deep=True)
    finally:
        checkpoint.unlock()
    assert not found.findings and any("its entry is still to come: the run is going on" in what for what in found.unchecked)
    assert not checkpoint.is_locked()


def test_a_key_that_is_none_is_refused_and_not_called_wrong(stored):
    with gr.load_run(stored).ledger as ledger:
        for key in (b"-----BEGIN PUBLIC KEY-----", str(stored / "server.pub")):
            with refused("bad-key"):
                ledger.verify(key)
        assert ledger.verify(load_public(stored / "server.pub")) == []


def _replace(path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    at = data.rindex(old)
    assert len(old) == len(new) or path.suffix == ".jsonl"
    changed = data[:at] + new + data[at + len(old) :]
    path.write_bytes(changed)
    if len(old) != len(new):  # the state says how long the journal is
        from grandrounds.core.arrays import load, save

        state = path.parent / "state.safetensors"
        arrays, facts = load(state)
        save(state, arrays, {**facts, "journal": len(changed)})


def _bend(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def _state(folder) -> None:
    from grandrounds.core.arrays import load, save

    path = folder / "checkpoint" / "state.safetensors"
    arrays, facts = load(path)
    save(path, {**arrays, "served/model": np.nextafter(arrays["served/model"], np.float32(9))}, facts)


def test_a_run_cut_with_its_heads_is_found_by_the_head_beside_it_or_one_that_was_kept(folder, tmp_path):
    kept = tmp_path / "kept.json"
    shutil.copy(folder / "ledger.head.json", kept)
    cut = [
        "DELETE FROM entries WHERE number > 2",
        "DELETE FROM heads WHERE size > 3",
        "DELETE FROM witnesses WHERE size > 3",
    ]
    tampered(folder / "ledger.db", *cut)
    assert [f.name for f in audit(folder).findings] == ["truncated ledger"]
    (folder / "ledger.head.json").unlink()
    assert [f.name for f in audit(folder).findings] == ["unfinished ledger", "model differs"]
    assert [f.name for f in audit(folder, heads=[kept]).findings] == ["truncated ledger"]


def test_an_old_folder_has_no_ledger_until_it_is_gone_on_with(folder):
    (folder / "ledger.db").unlink()
    journal = folder / "checkpoint" / "rounds.jsonl"
    old = b"".join(
        json.dumps({k: v for k, v in json.loads(line).items() if k != "ledger"}).encode() + b"\n"
        for line in journal.read_bytes().splitlines()
    )
    from grandrounds.core.arrays import load, save

    arrays, facts = load(folder / "checkpoint" / "state.safetensors")
    journal.write_bytes(old)
    save(
        folder / "checkpoint" / "state.safetensors",
        {name: a for name, a in arrays.items() if "witness" not in name},
        {**facts, "journal": len(old)},
    )
    with refused("no-ledger"):
        _ = gr.load_run(folder).ledger
    run = gr.resume(folder, settings=["method.rounds=5"])
    assert "rounds up to 3 were run without a ledger, which starts with the next" in run.summary["warnings"]
    found = audit(folder, deep=True)
    assert found.findings == () and found.rounds == 2
    assert "rounds before 4 were run without a ledger" in found.notes


def test_a_refused_experiment_leaves_nothing_behind(tmp_path):
    with refused("no-validation-rows"):
        gr.run(
            experiment(train={"epochs": 1, "early_stop": 2}, split={"partition": "dirichlet", "sites": 5, "val": 0.0}),
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_the_file_is_append_only_and_synced(folder):
    database = sqlite3.connect(folder / "ledger.db")
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with Ledger.open(folder / "ledger.db", identity=Identity.simulated(0, "server")) as ledger:
        assert ledger._database.execute("PRAGMA synchronous").fetchone() == (2,)


BARE = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Without())
from grandrounds.job import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("missing", ["rfc8785", "cryptography", "cryptography,rfc8785"])
def test_a_machine_that_lacks_what_a_ledger_needs_runs_without_and_says_so(tmp_path, missing):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(experiment().plan()))
    done = subprocess.run([sys.executable, "-c", BARE, missing, str(plan), "--out", str(tmp_path / "run"), "--quiet"])
    assert done.returncode == 0
    run = gr.load_run(tmp_path / "run")
    said = f"this run has no ledger, because {missing.replace(',', ' and ')} cannot be imported here"
    assert said in run.summary["warnings"]
    assert not (tmp_path / "run" / "ledger.db").exists()
    run = gr.resume(run.folder, settings=["method.rounds=4"])
    assert audit(run.folder, deep=True).rounds == 1
