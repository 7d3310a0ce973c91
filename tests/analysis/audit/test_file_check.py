"""What a closing entry covers: figures, models and reports; which close is valid; and runs that have no end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.audit.ledger import Ledger
from grandrounds.core.arrays import load, save
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.job import main as job
from grandrounds.protocol.identity import Identity, load_public, public_pem
from grandrounds.protocol.peers import Peers
from grandrounds.report.provenance import LedgerState, Provenance, is_as_printed, read_provenance
from tests.audit.ledgers import countersigned, lasting, tampered
from tests.command import rounds
from tests.runs.test_ledger_recorder import KILLED
from tests.store import copied, finished
from tests.support import refused

EXPERIMENT = {
    "name": "cov",
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 4},
    "method": {"rounds": 2},
    "train": {"epochs": 1},
}


@pytest.fixture(scope="module")
def whole():
    return finished(gr.Experiment.parse(EXPERIMENT))


@pytest.fixture
def folder(whole, tmp_path):
    return copied(whole, tmp_path / "copy")


def kinds(folder) -> list[str]:
    with gr.load_run(folder).ledger as ledger:
        return [said["kind"] for said in ledger.entries()]


def rewritten(folder, change) -> None:
    """Sign the ledger anew after a change, with all keys of the simulation."""
    path = folder / "ledger.db"
    with Ledger.open(path) as ledger:
        said = [{k: v for k, v in e.items() if k not in ("number", "previous", "schema")} for e in ledger.entries()]
    change(said)
    for name in ("ledger.db", "ledger.head.json"):
        (folder / name).unlink(missing_ok=True)
    with Ledger.open(path, identity=Identity.simulated(0, "server")) as ledger:
        ledger.append(said[0]["run"], *said)
    countersigned(path, seed=0, sites=said[0]["keys"]["sites"])


def test_the_closing_entry_names_every_file_that_people_read(whole):
    with gr.load_run(whole).ledger as ledger:
        close = ledger.last()
    read = {"summary.json", "round_logs.json", "explanations.json", "schema.json", "environment.json", "percentiles.json"}
    assert {*read, "experiment.toml", "report.html", "model.safetensors"} <= set(close["files"])
    assert close["figures"]["auroc"] == gr.load_run(whole).summary["final"]["auroc"]


def test_an_altered_figure_is_named_with_what_the_ledger_has(folder):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    was = summary["final"]["auroc"]
    summary["final"]["auroc"] = 0.999
    path.write_text(json.dumps(summary, indent=1))
    for deep in (False, True):
        [found] = audit(folder, deep=deep).findings
        assert (found.name, found.where) == ("figure differs", "summary.json")
        assert f"final.auroc is 0.999, the ledger has {was!r}" in found.what


@pytest.mark.parametrize("name", ["environment.json", "experiment.toml", "model.safetensors", "summary.json"])
def test_a_file_that_is_too_large_to_be_read_is_not_hashed(folder, name):
    os.truncate(folder / name, 6 * 10**9)  # takes no room on the disk
    found = {f.where: f.what for f in audit(folder).findings}
    assert "is larger than" in found[name]


def _negate(path) -> None:
    arrays, facts = load(path)
    save(path, {name: -a for name, a in arrays.items()}, facts)


def dropped_close(folder) -> None:
    """Cut the closing entry and its head, and put the head before it beside the ledger (H5)."""
    tampered(
        folder / "ledger.db",
        "DELETE FROM entries WHERE number > 2",
        "DELETE FROM heads WHERE size > 3",
        "DELETE FROM witnesses WHERE size > 3",
    )
    with Ledger.open(folder / "ledger.db") as ledger:
        (folder / "ledger.head.json").write_bytes(ledger.head().to_bytes())


def test_a_dropped_close_and_a_swapped_model_are_named_with_code_3(folder):
    dropped_close(folder)
    _negate(folder / "model.safetensors")
    done = rounds("audit", "verify", folder, "--key", folder / "server.pub")
    assert done.returncode == 3
    assert "unfinished ledger (ledger): it has no closing entry after round 2, though summary.json is there" in done.stdout
    assert "model differs (model.safetensors): it is the model of no round in the ledger" in done.stdout


def test_a_run_without_an_end_is_unfinished_with_code_3_and_one_that_goes_on_is_not(folder):
    dropped_close(folder)
    (folder / "summary.json").unlink()
    done = rounds("audit", "verify", folder)
    assert done.returncode == 3 and "is UNFINISHED: the ledger has no closing entry after round 2" in done.stdout
    assert "do not use it" in done.stdout and f"`rounds resume {folder}`" in done.stdout
    told = json.loads(rounds("audit", "verify", folder, "--json").stdout)
    assert (told["verifies"], told["state"], told["findings"]) == (False, "is UNFINISHED", [])
    checkpoint = Checkpoint(folder / "checkpoint")
    checkpoint.lock()
    try:
        going_on = rounds("audit", "verify", folder)
    finally:
        checkpoint.unlock()
    assert going_on.returncode == 0 and "is going on, and its ledger verifies so far" in going_on.stdout


def test_an_export_of_a_run_without_an_end_is_unfinished(folder, tmp_path):
    dropped_close(folder)
    assert rounds("audit", "export", folder, "--out", tmp_path / "e.jsonl").returncode == 0
    done = rounds("audit", "verify", tmp_path / "e.jsonl")
    assert done.returncode == 3 and "is UNFINISHED" in done.stdout


@pytest.mark.parametrize("setting", ["evaluation.calibrate=platt", "method.rounds=3", "evaluation.every=2"])
def test_a_permitted_resume_raises_no_alarm_and_the_last_close_is_valid(folder, setting):
    gr.resume(folder, settings=[setting])
    found = audit(folder, deep=True)
    assert found.findings == () and not found.fails
    entries = kinds(folder)
    assert entries[:5] == ["open", "round", "round", "close", "resume"] and entries[-1] == "close"
    assert f"entry {len(entries) - 1} closes the run" in found.close


def test_a_run_resumed_and_killed_before_its_next_round_is_unfinished_and_no_alarm(folder):
    plan = Checkpoint(folder / "checkpoint").plan()
    plan["method"]["rounds"] = 9
    (folder / "summary.json").unlink()
    Checkpoint(folder / "checkpoint").rewrite(plan)
    found = audit(folder, deep=True)
    assert found.unfinished and found.findings == ()
    assert any("resumed by another plan" in what for what in found.unchecked)
    gr.resume(folder, settings=["method.rounds=3"])
    assert not audit(folder, deep=True).fails


def test_killed_between_close_and_summary_the_run_ends_again_and_the_last_close_counts(tmp_path):
    plan, broken, whole = tmp_path / "plan.json", tmp_path / "broken", tmp_path / "whole"
    plan.write_text(json.dumps(gr.Experiment.parse(EXPERIMENT).plan()))
    asked = [str(plan), "--quiet", "--out", str(broken)]
    killed = subprocess.run([sys.executable, "-c", KILLED, "_write_countersignatures", "1", *asked])
    assert killed.returncode == -signal.SIGKILL
    found = audit(broken, deep=True)
    assert found.findings == () and "summary.json, which entry 3 names, is not there" in found.unfinished
    assert job(asked) == 0 and job([str(plan), "--quiet", "--out", str(whole)]) == 0
    found = audit(broken, deep=True)
    assert found.findings == () and not found.fails
    ended, once = (gr.load_run(f).ledger.book() for f in (broken, whole))
    assert ended.entries[:3] == once.entries[:3] and kinds(broken)[3:] in (["close"], ["close", "close"])
    facts = ("round", "model", "files", "plan", "figures", "temperature")
    assert [lasting(ended)[-1][name] for name in facts] == [lasting(once)[-1][name] for name in facts]


def test_site_keys_of_another_making_are_named(folder, tmp_path):
    keys = {f"site-{n:02d}": Identity.simulated(0, f"site-{n:02d}").public for n in range(1, 5)}
    (tmp_path / "peers.json").write_text(Peers(keys).text())
    assert rounds("audit", "verify", folder, "--sites", tmp_path / "peers.json").returncode == 0
    kept = tmp_path / "keys"
    kept.mkdir()
    for site, key in keys.items():
        other = Identity.new().public if site == "site-02" else key
        (kept / f"{site}.pub").write_bytes(public_pem(other))
    done = rounds("audit", "verify", folder, "--sites", kept)
    assert done.returncode == 3 and "other site keys (entry 0): the key of site-02 is" in done.stdout
    (kept / "site-02.pub").unlink()
    assert "it names site-02, for which no key was given" in rounds("audit", "verify", folder, "--sites", kept).stdout
    assert rounds("audit", "verify", folder, "--sites", tmp_path / "none").returncode == 2


def test_a_ledger_that_only_the_server_vouches_for_is_named(folder):
    rewritten(folder, lambda said: None)
    tampered(folder / "ledger.db", "DELETE FROM witnesses")
    assert [f.name for f in audit(folder).findings] == ["missing countersignature"]
    rewritten(folder, lambda said: said[0]["keys"].update(sites={}))
    assert "no site keys" in {f.name for f in audit(folder).findings}


@pytest.mark.parametrize(
    "point",
    [
        "00" * 32,
        "01" + "00" * 31,
        "01" + "00" * 30 + "80",
        "ec" + "ff" * 30 + "7f",
        "ee" + "ff" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    ],
)
def test_a_key_of_small_order_is_refused(whole, tmp_path, point):
    (tmp_path / "weak.pub").write_text(point)
    with refused("weak-key"):
        load_public(tmp_path / "weak.pub")
    assert rounds("audit", "verify", whole, "--key", tmp_path / "weak.pub").returncode == 2


def test_a_page_drawn_anew_with_attacks_is_checked_by_drawing_it_again(folder, tmp_path):
    page = (folder / "report.html").read_text()
    assert rounds("report", folder).returncode == 0
    assert (folder / "report.html").read_text() == page  # a page drawn again is the same page
    facts = read_provenance(page.encode())
    assert facts.ledger.entries == 3 and set(facts.inputs) >= {"summary.json", "round_logs.json", "model.safetensors"}
    assert f"root {facts.ledger.root}" in page and "keys are simulated" in page
    other = tmp_path / "sent.html"
    other.write_text(re.sub(r"(<td>accuracy</td><td>)[0-9.]+", r"\g<1>0.9999", page, count=1))
    done = rounds("audit", "verify", folder, "--report", other)
    assert done.returncode == 3 and "report differs (sent.html)" in done.stdout and "'0.9999'" in done.stdout
    assert rounds("audit", "verify", "--report", other).returncode == 2
    assert rounds("audit", "verify", "--report", folder / "report.html").returncode == 0
    assert rounds("audit", "verify").returncode == 2


def test_a_report_of_an_earlier_close_is_named(folder, tmp_path):
    old = shutil.copy(folder / "report.html", tmp_path / "old.html")
    gr.resume(folder, settings=["method.rounds=3"])
    done = rounds("audit", "verify", folder, "--report", old)
    assert done.returncode == 3 and "it was drawn from another summary.json" in done.stdout


def test_a_pdf_carries_the_facts_in_its_information_dictionary():
    plain = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<</Size 2\n/Root 1 0 R>>\nstartxref\n9\n%%EOF\n"
    facts = Provenance(LedgerState("a (run) \\ x", 4, "ab" * 32, True), {"summary.json": "cd" * 32}, "1.0")
    data = facts.stamp_pdf(plain)
    found = read_provenance(data)
    assert data.startswith(plain) and replace(found, pages="") == facts and data.rstrip().endswith(b"%%EOF")
    assert is_as_printed(data, found)
    for changed in (data.replace(b"obj", b"obJ", 1), data + b"\n", data.replace(b"/Prev 9", b"/Prev 8"), plain + data):
        assert not is_as_printed(changed, found)
    with refused("no-provenance"):
        read_provenance(plain)
    with refused("unknown-pdf-kind"):
        facts.stamp_pdf(b"%PDF-1.7 something else")
