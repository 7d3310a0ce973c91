"""`rounds audit`: what a person sees, and exit codes 0, 2 and 3."""

from __future__ import annotations

import json
import shutil

import pytest

import grandrounds as gr
from grandrounds.protocol.identity import Identity, public_pem
from tests.audit.ledgers import tampered
from tests.command import rounds, rounds_in_a_process
from tests.store import copied, finished
from tests.support import without_ledger


@pytest.fixture(scope="module")
def stored():
    values = {"name": "x", "data": {"name": "breast-cancer"}, "method": {"rounds": 4}, "train": {"epochs": 1}}
    return finished(gr.Experiment.parse(values))


@pytest.fixture(scope="module")
def trusting():
    """FedXChain under masks."""
    values = {
        "name": "t",
        "data": {"name": "breast-cancer"},
        "reference": {"root": {"rows": 40, "sent": True}},
        "method": {"name": "fedxchain", "rounds": 2},
        "explain": {"at": "site", "every": 0},
        "privacy": {"secure": True},
    }
    return finished(gr.Experiment.parse(values))


@pytest.fixture
def folder(stored, tmp_path):
    return copied(stored, tmp_path / "copy")


def test_a_whole_ledger_verifies_with_code_0(stored):
    done = rounds("audit", "verify", stored, "--key", stored / "server.pub")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert "verifies, with model and records, by SIMULATED keys" in last and "(6 entries, 4 rounds, root " in last
    assert "keys are simulated" in done.stdout and "valid: entry 5 closes the run" in done.stdout
    assert "summary.json: by the SHA-256 in entry 5" in done.stdout
    assert rounds("audit", "verify", stored, "--key", stored / "server.pub", "--deep").stdout == done.stdout
    told = json.loads(rounds("audit", "verify", stored, "--json").stdout)
    assert told["verifies"] and told["entries"] == 6 and told["findings"] == []
    assert any("the key was taken from beside the ledger" in note for note in told["notes"])


def one_bit(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def one_weight(folder):
    path = folder / "round_logs.json"
    logs = json.loads(path.read_text())
    logs["rounds"][1]["decision"]["weights"]["site-03"] += 0.01
    path.write_text(json.dumps(logs))


def forged_auroc(folder):
    """Raise the AUROC of the summary, as who owns the file can."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["final"]["auroc"] = 0.8765
    path.write_text(json.dumps(summary))


READERS = (
    ("show",), ("show", "--round", "1"), ("show", "--json"), ("report",), ("report", "--deck", "deck.pptx"),
    ("predict", "--table", "rows.csv"), ("evaluate", "--table", "rows.csv"), ("export", "--to", "json"),
    ("explain", "--case", "1"), ("card",), ("attack",), ("dossier",), ("watch", "--table", "rows.csv"),
    ("recalibrate", "--table", "rows.csv"), ("track",), ("withdraw", "--site", "a"),
)  # fmt: skip


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_changed_run_is_refused_by_the_commands_that_read_it(folder, command):
    forged_auroc(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = rounds(command[0], folder, *command[1:], cwd=folder.parent)
    assert done.returncode == 3 and not done.stdout
    assert "[changed-run]" in done.stderr and "final.auroc is 0.8765" in done.stderr and "rounds audit verify" in done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", [one_bit, one_weight, forged_auroc])
def test_a_change_is_named_as_audit_names_it(folder, change):
    change(folder)
    said = rounds("show", folder).stderr
    found = json.loads(rounds("audit", "verify", folder, "--json").stdout)["findings"][0]
    assert found["where"] in said and found["what"] in said


def test_unverified_goes_on_and_says_so_first(folder):
    forged_auroc(folder)
    done = rounds("show", folder, "--unverified")
    first = done.stdout.splitlines()[0]
    assert done.returncode == 0 and first.startswith("UNVERIFIED") and "final.auroc is 0.8765" in first
    told = rounds("show", folder, "--json", "--unverified")
    assert json.loads(told.stdout)["final"]["auroc"] == 0.8765 and told.stderr.startswith("UNVERIFIED")


def test_the_report_of_a_changed_run_begins_with_the_change_and_replaces_no_other(folder):
    forged_auroc(folder)
    signed, page = (folder / "report.html").read_bytes(), folder.parent / "page.html"
    refused = rounds("report", folder, "--unverified")
    assert refused.returncode == 2 and "[file-exists]" in refused.stderr and (folder / "report.html").read_bytes() == signed
    assert rounds("report", folder, "--unverified", "--out", page).returncode == 0
    body = page.read_text().split("<body>")[1]
    assert body.index("do NOT match the ledger") < body.index("<h1>")
    pytest.importorskip("pptx")
    from pptx import Presentation

    deck = folder.parent / "deck.pptx"
    assert rounds("report", folder, "--unverified", "--out", page, "--deck", deck).returncode == 0
    slides = [[s.text_frame.text for s in slide.shapes if s.has_text_frame] for slide in Presentation(deck).slides]
    assert any("do NOT match the ledger: summary.json" in text for text in slides[0])
    assert all(any("does NOT match its ledger" in text for text in slide) for slide in slides)


def test_a_page_that_is_drawn_again_is_the_same_and_one_that_differs_is_named(folder):
    signed = (folder / "report.html").read_bytes()
    done = rounds("report", folder)
    assert (done.returncode, done.stderr, (folder / "report.html").read_bytes()) == (0, "", signed)
    (folder / "report.html").write_bytes(signed + b" ")
    done = rounds("report", folder)
    assert done.returncode == 0 and "replaces another page" in done.stderr and (folder / "report.html").read_bytes() == signed


@pytest.mark.parametrize("file", ["ledger.db", "ledger.head.json", "server.pub"])
def test_a_ledger_that_was_cut_or_signed_by_another_is_found_before_a_run_is_shown(folder, file):
    if file == "ledger.db":
        tampered(folder / file, "DELETE FROM entries WHERE number > 4", "DELETE FROM heads WHERE size > 5")
    elif file == "server.pub":
        (folder / file).write_bytes(public_pem(Identity.new().public))
    else:
        (folder / "ledger.db").unlink()
    done = rounds("show", folder)
    assert done.returncode == 3 and "[changed-run]" in done.stderr


def test_runs_without_a_ledger_or_without_an_end_are_read(folder):
    forged_auroc(folder)
    without_ledger(folder)
    assert rounds("show", folder).returncode == 0
    (folder / "summary.json").unlink()
    assert "[changed-run]" not in rounds("show", folder).stderr


def test_python_warns_of_a_changed_run(folder):
    forged_auroc(folder)
    with pytest.warns(UserWarning, match="do NOT match the ledger"):
        assert gr.load_run(folder).summary.final["auroc"] == 0.8765


@pytest.mark.parametrize("change, file", [(one_bit, "model.safetensors"), (one_weight, "round_logs.json")])
def test_a_changed_model_or_record_is_named_unless_the_ledger_alone_is_asked_for(folder, change, file):
    change(folder)
    done = rounds("audit", "verify", folder)
    assert done.returncode == 3
    assert f"differs ({file})" in done.stdout and "does NOT verify: 1 finding" in done.stdout
    alone = rounds("audit", "verify", folder, "--ledger-only")
    assert alone.returncode == 0
    said, last = alone.stdout.splitlines()[1], alone.stdout.splitlines()[-1]
    assert said == "unchecked: model files, figures, journal, round logs and weights: the ledger alone was checked"
    assert "the ledger verifies; model and records were not checked, by SIMULATED keys" in last


def test_a_changed_ledger_fails_with_code_3_and_a_name(folder):
    tampered(folder / "ledger.db", "UPDATE entries SET body = replace(body, '\"round\"', '\"rOund\"') WHERE number = 2")
    done = rounds_in_a_process("audit", "verify", folder)
    assert done.returncode == 3
    assert "FOUND  changed entry (entry 2)" in done.stdout and "does NOT verify" in done.stdout
    told = json.loads(rounds("audit", "verify", folder, "--json").stdout)
    assert not told["verifies"] and "changed entry" in {f["name"] for f in told["findings"]}


def test_a_wrong_key_fails_with_code_3(stored, tmp_path):
    (tmp_path / "other.pub").write_bytes(public_pem(Identity.new().public))
    done = rounds("audit", "verify", stored, "--key", tmp_path / "other.pub")
    assert done.returncode == 3 and "FOUND  wrong key (ledger)" in done.stdout


def test_a_cut_ledger_is_found_by_a_kept_head(folder, tmp_path):
    kept = shutil.move(folder / "ledger.head.json", tmp_path / "kept.json")
    tampered(
        folder / "ledger.db",
        "DELETE FROM entries WHERE number > 2",
        "DELETE FROM heads WHERE size > 3",
        "DELETE FROM witnesses WHERE size > 3",
    )
    only = rounds("audit", "verify", folder, "--ledger-only")
    assert only.returncode == 3 and "is UNFINISHED: the ledger has no closing entry after round 2" in only.stdout
    alone = rounds("audit", "verify", folder)
    assert alone.returncode == 3 and "it is in the journal and not in the ledger" in alone.stdout
    assert "unfinished ledger (ledger): it has no closing entry after round 2, though summary.json is there" in alone.stdout
    done = rounds("audit", "verify", folder, "--heads", kept)
    assert done.returncode == 3
    assert (
        "truncated ledger (kept head 1, of 6 entries): the ledger has 3 entries, but a head over 6 was signed"
        in done.stdout
    )


def test_a_proof_is_checked_without_the_run(stored, tmp_path):
    proof, key = tmp_path / "proof.json", shutil.copy(stored / "server.pub", tmp_path / "server.pub")
    assert rounds("audit", "prove", stored, "--round", 3, "--site", 7, "--out", proof).returncode == 0
    weight = gr.load_run(stored).rounds[2]["decision"]["weights"]["site-07"]
    done = rounds("audit", "check", proof, "--key", key)
    assert done.returncode == 0
    assert f"holds: site-07 had weight {weight:.6g} in round 3 of x-0" in done.stdout
    [told] = json.loads(rounds("audit", "check", proof, "--key", key, "--json").stdout)["rounds"]
    assert told["weight"] == weight
    proof.write_bytes(proof.read_bytes().replace(b'"site":"site-07"', b'"site":"site-08"'))
    done = rounds("audit", "check", proof, "--key", key)
    assert done.returncode == 3 and "claim without ground (round 3)" in done.stdout and "does not hold" in done.stdout
    done = rounds("audit", "verify", proof)
    assert done.returncode == 2 and "is a proof" in done.stderr


def test_a_member_sees_its_own_numbers_of_every_round(trusting, tmp_path):
    mine, run = tmp_path / "mine.json", gr.load_run(trusting)
    wrote = rounds("audit", "prove", trusting, "--site", 3, "--out", mine)
    assert wrote.returncode == 0 and wrote.stdout.endswith(f"{mine}\n")
    done = rounds("audit", "check", mine, "--key", trusting / "server.pub")
    assert done.returncode == 0
    for record in run.rounds:
        decision = record["decision"]
        own = {name: values["site-03"] for name, values in decision["signals"].items()}
        [line] = [text for text in done.stdout.splitlines() if text.startswith(f"round {record['round']}: ")]
        assert line in wrote.stdout
        assert f"weight {decision['weights']['site-03']:.6g}; rows {own['data_size']:g}" in line
        for name in ("accuracy", "NSDS", "consistency", "trust", "reward"):
            assert f"{name} {own[name.lower()]:.4g}" in line
    assert "a site's weight follows trust x exp(-0.5 NSDS)" in done.stdout
    assert "holds: site-03 in 2 rounds, 1 to 2, of t-0" in done.stdout
    assert "site-03 signed for the first 4 entries" in done.stdout and "note: the key" not in done.stdout
    alone = rounds("audit", "check", mine)
    assert alone.returncode == 0 and "note: the key was taken from the proof itself" in alone.stdout
    told = json.loads(rounds("audit", "check", mine, "--json").stdout)
    assert told["holds"] and told["key"] == "the proof itself" and told["signed"] == 4
    mine.write_bytes(mine.read_bytes().replace(b'"trust":0.9', b'"trust":0.8', 1))
    assert rounds("audit", "check", mine).returncode == 3


def test_an_export_has_an_entry_a_line_and_verifies_by_itself(stored, tmp_path):
    out = tmp_path / "ledger.jsonl"
    assert rounds("audit", "export", stored, "--out", out).returncode == 0
    lines = out.read_text().splitlines()
    assert [json.loads(line)["entry"]["number"] for line in lines[:6]] == list(range(6))
    assert rounds("audit", "export", stored).stdout == out.read_text()
    whole = rounds("audit", "verify", out, "--key", stored / "server.pub")
    assert whole.returncode == 0 and "unchecked: model files, figures, journal, round logs and weights" in whole.stdout
    out.write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    done = rounds("audit", "verify", out)
    assert done.returncode == 3 and "removed entry (entry 3)" in done.stdout
    out.write_text("nonsense\n")
    assert rounds("audit", "verify", out).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "{tmp}"], "is not a run folder"),
        (["verify", "{tmp}/nowhere"], "there is no"),
        (["verify", "{run}/ledger.db"], "give the run folder it lies in"),
        (["verify", "{run}/server.pub"], "is a key: give it as --key"),
        (["verify", "{run}", "--key", "{tmp}/none.pub"], "[cannot-read]"),
        (["verify", "{run}", "--heads", "{run}/summary.json"], "is not a signed head"),
        (["verify", "{run}", "--heads", "{tmp}/none"], "cannot read"),
        (["prove", "{run}", "--round", "9", "--site", "1"], "the ledger has no round 9; it has rounds 1 to 4"),
        (["prove", "{run}", "--round", "1", "--site", "nowhere"], "no site 'nowhere'"),
        (["prove", "{run}", "--site", "nowhere"], "no site 'nowhere'"),
        (["prove", "{run}", "--round", "1", "--site", "1", "--out", "{tmp}/no/such"], "[cannot-write]"),
        (["check", "{tmp}/none", "--key", "{run}/server.pub"], "cannot read"),
        (["verify", "{run}/summary.json", "--deep"], "--deep needs the run folder"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(stored, tmp_path, arguments, said):
    done = rounds("audit", *(a.format(tmp=tmp_path, run=stored) for a in arguments))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_a_removed_ledger_is_found_and_a_damaged_one_proves_nothing(folder, tmp_path):
    commands = (["verify", folder], ["export", folder], ["prove", folder, "--round", 1, "--site", 1])
    tampered(folder / "ledger.db", "UPDATE entries SET signature = zeroblob(64) WHERE number = 2")
    for command in commands:
        done = rounds("audit", *command)
        assert done.returncode == 3 and "forged signature (entry 2)" in done.stdout
    (folder / "ledger.db").unlink()
    for command in commands:
        done = rounds("audit", *command)
        assert done.returncode == 3 and "ledger.db): it was removed" in done.stdout


def test_a_folder_without_a_ledger_is_bad_input(folder):
    (folder / "ledger.db").unlink()
    (folder / "ledger.head.json").unlink()
    for command in (["verify", folder], ["export", folder], ["prove", folder, "--round", 1, "--site", 1]):
        done = rounds("audit", *command)
        assert done.returncode == 2
        assert "has no ledger: it was run on a machine without" in done.stderr


def test_a_damaged_file_is_a_finding_and_no_traceback(folder):
    (folder / "ledger.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    done = rounds("audit", "verify", folder)
    assert done.returncode == 3 and "unreadable (ledger.db)" in done.stdout
    (folder / "ledger.head.json").write_text("{")
    assert rounds("audit", "verify", folder).stdout.count("unreadable") == 2
