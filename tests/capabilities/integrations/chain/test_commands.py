"""`rounds audit deploy | writer | anchor`, and a verified ledger that the chain gives away, with a real run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from functools import cache
from subprocess import CompletedProcess

import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.verify import NO_WITNESS, TRUNCATED
from grandrounds.capabilities.integrations.chain.audit import add_chain_check, compare_chain
from grandrounds.capabilities.integrations.chain.check import ABSENT, DIFFERENT
from grandrounds.capabilities.integrations.chain.contract import Contract
from grandrounds.capabilities.integrations.chain.key import VARIABLE
from grandrounds.cli import main
from grandrounds.protocol.identity import Identity
from tests.capabilities.integrations.chain.anvil import free_port, key_of
from tests.command import rounds_in_a_process as in_a_process
from tests.support import refused

SEED, ROUNDS = 3, 6


@cache
def secrets() -> tuple[str, ...]:
    return key_of(0), key_of(1), "apikey456"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with a ledger."""
    plan = {
        "data": {"name": "breast-cancer"},
        "split": {"partition": "dirichlet", "sites": 3},
        "method": {"rounds": ROUNDS},
        "train": {"epochs": 1},
        "seed": SEED,
    }
    return gr.run(gr.Experiment.parse(plan), out=tmp_path_factory.mktemp("trained") / "run").folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def key(tmp_path):
    """The first account's key in a file."""
    path = tmp_path / "key"
    path.write_text(key_of(0))
    path.chmod(0o600)
    return path


@pytest.fixture
def rounds(monkeypatch, capfd):
    """A command, with all that it prints; in this process, because starting one takes longer than most commands."""

    def called(*arguments) -> CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["rounds", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return CompletedProcess(sys.argv, ended.value.code or 0, *capfd.readouterr())

    return called


@pytest.fixture
def call(rounds, node, monkeypatch):
    """A command of `rounds audit` against the node; whatever it prints, the keys are not in it."""

    def called(name: str, *arguments, rpc: str = node.url, signer: int = 0) -> CompletedProcess:
        monkeypatch.setenv(VARIABLE, "0x" + key_of(signer))
        return discreet(rounds("audit", name, *arguments, "--rpc", rpc))

    return called


@pytest.fixture
def address(contract) -> str:
    return contract.address


def discreet(done: CompletedProcess) -> CompletedProcess:
    assert "Traceback" not in done.stderr
    assert not any(secret in done.stdout + done.stderr for secret in secrets())
    return done


def rewritten(run, *, until: int = ROUNDS, weight: float | None = None) -> None:
    """A server that rewrites its ledger with its own key: signed and linked throughout, one weight changed or cut short."""
    with Ledger.open(run / "ledger.db") as held:
        said = [e for e in held.entries() if e["kind"] != "round" or e["round"] <= until]
    if until < ROUNDS:
        said = [e for e in said if e["kind"] != "close"]
    for entry in said:
        if weight is not None and entry.get("round") == 3 and entry["kind"] == "round":
            entry["decision"]["weights"][next(iter(entry["decision"]["weights"]))] = weight
    for path in run.glob("ledger.db*"):
        path.unlink()
    with Ledger.open(run / "ledger.db", identity=Identity.simulated(SEED, "server")) as ledger:
        head = ledger.append(said[0]["run"], *said)
    (run / "ledger.head.json").write_bytes(head.to_bytes())


def book(run):
    with Ledger.open(run / "ledger.db") as ledger:
        return ledger.book()


@pytest.mark.slow
def test_a_contract_is_deployed_and_a_run_anchored_by_programs_of_their_own(node, contract, run):
    """As a user does it: the key is in the environment, and in nothing that either program prints."""
    env = {**os.environ, VARIABLE: "0x" + key_of(0)}
    made = discreet(in_a_process("audit", "deploy", "--rpc", node.url, env=env))
    assert made.returncode == 0, made.stderr
    where = ("--rpc", node.url, "--contract", made.stdout.strip())
    done = discreet(in_a_process("audit", "anchor", run, *where, "--batch", 4, env=env))
    assert done.returncode == 0 and "6 rounds anchored now, of 6" in done.stdout
    assert not compare_chain(book(run), rpc=node.url, contract=made.stdout.strip()).findings


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("batch", "transactions"), [(1, 6), (4, 2), (10, 1)])
def test_a_run_is_anchored_and_verifies_against_the_chain(call, node, run, address, batch, transactions):
    found = compare_chain(book(run), rpc=node.url, contract=address)
    assert [f.name for f in found.findings] == [ABSENT]
    done = call("anchor", run, "--contract", address, "--batch", batch)
    assert done.returncode == 0, done.stderr
    assert "6 rounds anchored now, of 6" in done.stdout and done.stdout.count("transaction 0x") == transactions
    again = call("anchor", run, "--contract", address)
    assert again.returncode == 0 and "0 rounds anchored now, of 6" in again.stdout
    found = compare_chain(book(run), rpc=node.url, contract=address)
    assert not found.findings and found.notes == ("rounds 1 to 6: on chain 31337 as in the ledger",)
    [place] = json.loads((run / "anchors.json").read_text())["anchors"]
    assert (place["chain"], place["contract"], len(place["spans"])) == (31337, address, transactions)


def test_a_run_weighed_by_trust_under_masks_is_anchored_as_any_other(call, node, address, tmp_path):
    plan = {
        "data": {"name": "breast-cancer"},
        "split": {"partition": "dirichlet", "sites": 4},
        "reference": {"root": {"rows": 40, "sent": True}},
        "method": {"name": "fedxchain", "rounds": 2},
        "train": {"epochs": 1},
        "explain": {"at": "site", "every": 0},
        "privacy": {"secure": True},
    }
    run = gr.run(gr.Experiment.parse(plan), out=tmp_path / "trusting").folder
    done = call("anchor", run, "--contract", address)
    assert done.returncode == 0 and "2 rounds anchored now, of 2" in done.stdout
    found = add_chain_check(audit(run, deep=True), run, rpc=node.url, contract=address)
    assert not found.findings and "rounds 1 to 2: on chain 31337 as in the ledger" in found.notes


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [1, 4])
def test_history_that_was_rewritten_with_the_servers_own_key_is_found(rounds, call, node, run, address, batch):
    assert call("anchor", run, "--contract", address, "--batch", batch).returncode == 0
    rewritten(run, weight=0.99)
    assert rounds("audit", "verify", run, "--ledger-only").returncode == 0, "by itself it looks whole"
    findings = compare_chain(book(run), rpc=node.url, contract=address).findings
    assert {f.name for f in findings} == {DIFFERENT}
    # each later entry names the changed one, so all spans from its own on differ
    assert [f.where for f in findings] == (
        ["round 3", "round 4", "round 5", "round 6"] if batch == 1 else ["rounds 1 to 4", "rounds 5 to 6"]
    )
    done = call("anchor", run, "--contract", address)
    assert done.returncode == 3 and "history was rewritten" in done.stderr


def test_a_ledger_cut_short_is_found(rounds, call, node, run, address):
    assert call("anchor", run, "--contract", address).returncode == 0
    rewritten(run, until=4)
    assert "is UNFINISHED" in rounds("audit", "verify", run, "--ledger-only").stdout
    findings = compare_chain(book(run), rpc=node.url, contract=address).findings
    assert [f.name for f in findings] == [TRUNCATED]
    assert call("anchor", run, "--contract", address).returncode == 3


def test_a_ledger_that_does_not_verify_is_not_anchored(call, node, run, address, accounts):
    sent = node.sent_by(accounts[0].address)
    data = bytearray((run / "ledger.db").read_bytes())
    at = data.index(b'"weights"')
    data[at + 12] ^= 1
    (run / "ledger.db").write_bytes(data)
    done = call("anchor", run, "--contract", address)
    assert done.returncode == 3 and "does not verify" in done.stderr
    assert node.sent_by(accounts[0].address) == sent


def test_a_writer_is_registered_by_the_owner_alone(call, run, address, accounts):
    second = accounts[1].address
    refused = call("anchor", run, "--contract", address, signer=1)
    assert refused.returncode == 2 and f"rounds audit writer {second}" in refused.stderr
    assert call("writer", second, "--contract", address, signer=1).returncode == 2
    assert call("writer", second, "--contract", address).returncode == 0
    assert call("anchor", run, "--contract", address, signer=1).returncode == 0
    assert "already" in call("writer", second, "--contract", address).stdout
    assert call("writer", second, "--contract", address, "--remove").returncode == 0


def test_the_key_file_is_used_and_one_that_others_read_is_refused(call, node, contract, key):
    made = call("deploy", "--key-file", key, signer=1)
    assert made.returncode == 0
    assert Contract(contract.node, made.stdout.strip()).owner == contract.owner
    key.chmod(0o644)
    done = call("deploy", "--key-file", key)
    assert done.returncode == 2 and "chmod 600" in done.stderr


def test_a_key_cannot_be_given_on_the_command_line(call):
    assert call("deploy", "--key", "0x00").returncode == 2


def test_no_node_and_no_contract_are_one_sentence(call, run, accounts):
    done = call("anchor", run, "--contract", accounts[3].address)
    assert done.returncode == 2 and "there is no contract at" in done.stderr
    done = call("deploy", rpc=f"http://127.0.0.1:{free_port()}/v3/apikey456")
    assert done.returncode == 2 and "no node at http://127.0.0.1:" in done.stderr
    assert done.stderr.count("\n") == 1


NOWHERE, KEY = "0x" + "11" * 20, "0x" + "5a" * 32
TOO_LONG = "0x" + "c0ffee" * 10 + "abcd"  # as long as a private key: it is not quoted


@pytest.mark.parametrize(
    ("arguments", "key", "said"),
    [
        (("anchor", "RUN", "--contract", NOWHERE[:-1]), KEY, "--contract is not an address: give 0x and 40 hexadecimal digits"),
        (("anchor", "RUN", "--contract", NOWHERE[2:]), KEY, "--contract is not an address: give 0x and 40 hexadecimal digits"),
        (("anchor", "RUN", "--contract", TOO_LONG), KEY, "--contract is not an address: give 0x and 40 hexadecimal digits"),
        (("anchor", "RUN", "--contract", NOWHERE, "--batch", 1025), KEY, "--batch must be from 1 to 1024, not 1025"),
        (("anchor", "RUN", "--contract", NOWHERE, "--batch", 0), KEY, "--batch must be from 1 to 1024, not 0"),
        (("anchor", "RUN", "--contract", NOWHERE), None, "no key to sign with: set the variable"),
        (("anchor", "RUN", "--contract", NOWHERE), KEY[:-1], f"the variable {VARIABLE} is not the key of an account"),
        (("deploy",), KEY[:-1], f"the variable {VARIABLE} is not the key of an account"),
        (("deploy", "--key-file", "no-such-file"), KEY, "cannot read the key no-such-file"),
        (("writer", TOO_LONG, "--contract", NOWHERE), KEY, "the writer's ADDRESS is not an address"),
        (("writer", NOWHERE, "--contract", "0x12"), KEY, "--contract is not an address"),
        (("writer", NOWHERE, "--contract", NOWHERE), None, "no key to sign with"),
        (("verify", "RUN", "--contract", NOWHERE + "0"), None, "--contract is not an address"),
        (("verify", "RUN", "--contract", "0xAbcdefabcdefabcdefabcdefabcdefabcdefabcd"), None, "shows a typing error"),
    ],
)
def test_what_is_mistaken_is_said_before_a_node_is_asked(rounds, run, monkeypatch, arguments, key, said):
    """A listener stands in for the node: nobody ever connects to it."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(VARIABLE, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = rounds("audit", *(run if a == "RUN" else a for a in arguments), "--rpc", url)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert done.returncode == 2 and said in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and not done.stdout
    assert TOO_LONG[2:] not in done.stderr and (key is None or key[2:] not in done.stderr)


def test_the_contract_on_another_chain_is_a_mistaken_node(call, run, address, node):
    assert call("anchor", run, "--contract", address).returncode == 0
    known = json.loads((run / "anchors.json").read_text())
    known["anchors"][0]["chain"] = 1
    (run / "anchors.json").write_text(json.dumps(known))
    done = call("anchor", run, "--contract", address)
    assert done.returncode == 2 and "on chain 1, but the node at" in done.stderr


def test_an_audit_takes_in_what_the_chain_says_of_a_folder_or_an_export(rounds, call, node, run, address):
    assert call("anchor", run, "--contract", address, "--batch", 4).returncode == 0
    rewritten(run, weight=0.99)
    export = run.parent / "ledger.jsonl"
    assert rounds("audit", "export", run, "--out", export).returncode == 0
    for where in (run, export):
        found = audit(where, files=False)
        assert {f.name for f in found.findings} <= {NO_WITNESS}
        assert add_chain_check(found, where, rpc=None, contract=None) == found
        names = [f.name for f in add_chain_check(found, where, rpc=node.url, contract=address).findings]
        assert names[-2:] == [DIFFERENT, DIFFERENT]
        with refused("incomplete-chain-address"):
            add_chain_check(found, where, rpc=node.url, contract=None)


def test_a_ledger_that_cannot_be_read_says_that_the_chain_was_not_asked(run):
    (run / "ledger.db").write_bytes(b"no ledger" * 500)
    found = add_chain_check(audit(run), run, rpc="http://127.0.0.1:1", contract="0x" + "11" * 20)
    assert found.findings and "the ledger cannot be read" in found.unchecked[-1]
