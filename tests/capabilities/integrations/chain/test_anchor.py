"""Anchoring over a wire that breaks, with a node that dies: every round once, and never over another."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager

import pytest

from grandrounds.capabilities.integrations.chain.anchor import Rewritten, anchors
from grandrounds.capabilities.integrations.chain.batches import spans
from grandrounds.capabilities.integrations.chain.contract import Contract
from grandrounds.capabilities.integrations.chain.node import Node
from grandrounds.core.errors import BadInput, RunFailed
from tests.capabilities.integrations.chain.anvil import Anvil, free_port, key_of
from tests.capabilities.integrations.chain.proxy import Proxy
from tests.capabilities.integrations.chain.test_spans import some_rounds
from tests.support import refused

RUN = b"\x0a" * 32
ROUNDS = some_rounds(range(1, 6))


@pytest.fixture
def wire(node):
    proxy = Proxy(node.port)
    yield proxy
    proxy.close()


def through(wire: Proxy, contract: Contract, *, patience: float = 30) -> Contract:
    return Contract(Node(wire.url, patience=patience), contract.address)


def anchor_all(contract, account, rounds=ROUNDS, **more):
    return list(anchors(rounds, run=RUN, contract=contract, account=account, **more))


def test_all_rounds_are_anchored_and_the_second_time_nothing_is_sent(node, contract, accounts):
    done = anchor_all(contract, accounts[0])
    assert [span for span, _ in done] == list(spans(ROUNDS, batch=1))
    sent = node.sent_by(accounts[0].address)
    assert anchor_all(contract, accounts[0]) == []
    assert anchor_all(contract, accounts[0], batch=5) == []
    assert node.sent_by(accounts[0].address) == sent


def test_a_run_that_goes_on_is_anchored_from_where_it_was_in_any_batch(contract, accounts):
    rounds = some_rounds([*range(1, 15), 20, 21])
    assert len(anchor_all(contract, accounts[0], rounds[:3], batch=2)) == 2
    done = anchor_all(contract, accounts[0], rounds, batch=10)
    assert [(s.first, s.last) for s, _ in done] == [(4, 13), (14, 14), (20, 21)]
    assert contract.read_run(RUN, rounds).next == 22


@pytest.mark.parametrize("arrives", [True, False], ids=["sent, its answer lost", "lost on its way to the node"])
def test_a_connection_lost_while_a_transaction_is_sent_writes_it_once(node, wire, contract, accounts, arrives):
    far, before = through(wire, contract), node.sent_by(accounts[0].address)
    wire.cut("eth_sendRawTransaction", arrives=arrives)
    done = anchor_all(far, accounts[0], batch=2)
    assert wire.cuts == 1
    assert [span for span, _ in done] == list(spans(ROUNDS, batch=2))
    assert node.sent_by(accounts[0].address) - before == len(done)
    assert contract.read_run(RUN, ROUNDS).spans == tuple(s for s, _ in done)


@pytest.mark.parametrize(
    "method", ["eth_getTransactionReceipt", "eth_estimateGas", "eth_call", "eth_getTransactionCount"]
)
def test_a_connection_lost_at_any_other_question_is_waited_for(node, wire, contract, accounts, method):
    far, before = through(wire, contract), node.sent_by(accounts[0].address)
    wire.cut(method, arrives=True, refuse=4)
    assert len(anchor_all(far, accounts[0], ROUNDS[:2])) == 2 and wire.cuts == 1
    assert node.sent_by(accounts[0].address) - before == 2


def test_a_process_that_stopped_after_it_sent_is_taken_up_by_the_next(node, contract, accounts):
    """Nothing is mined, the first gives up; the second finds the transaction on its way and waits for it."""
    account, before = accounts[0], node.sent_by(accounts[0].address)
    node.ask("evm_setAutomine", False)
    try:
        hasty = Contract(Node(node.url, patience=0.5), contract.address)
        with refused("transaction-pending", match="0.5 s", kind=RunFailed):
            anchor_all(hasty, account, batch=5)
        with refused("transaction-pending", match="sent earlier", kind=RunFailed):
            anchor_all(hasty, account, batch=5)
        threading.Timer(0.3, node.ask, ("evm_mine",)).start()
        assert anchor_all(contract, account, batch=5) == []
    finally:
        node.ask("evm_setAutomine", True)
    assert node.sent_by(account.address) - before == 1
    assert contract.read_run(RUN, ROUNDS).spans == tuple(spans(ROUNDS, batch=5))


@pytest.mark.slow
def test_a_node_that_is_killed_and_comes_back_is_gone_on_with(node, tmp_path, accounts):
    mortal = Anvil(state=tmp_path / "state.json").start()
    try:
        contract, _ = Contract.deploy(Node(mortal.url, patience=60), accounts[0])
        work = anchors(ROUNDS, run=RUN, contract=contract, account=accounts[0])
        done = [next(work), next(work)]
        mortal.kill()
        threading.Timer(0.3, mortal.start).start()
        done += list(work)
        assert [span for span, _ in done] == list(spans(ROUNDS, batch=1))
        assert mortal.sent_by(accounts[0].address) == 1 + 5
        assert contract.read_run(RUN, ROUNDS).spans == tuple(spans(ROUNDS, batch=1))
    finally:
        mortal.stop()


def test_a_node_that_stays_away_is_given_up_in_words(wire, contract, accounts):
    work = anchors(ROUNDS, run=RUN, contract=through(wire, contract, patience=3), account=accounts[0])
    next(work)
    wire.cut("eth_", arrives=False, refuse=1_000_000)
    with refused("node-unreachable", match="3 s", kind=RunFailed):
        next(work)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_another_history_is_refused_with_exit_code_3(node, contract, accounts, batch):
    anchor_all(contract, accounts[0], ROUNDS[:4], batch=batch)
    sent = node.sent_by(accounts[0].address)
    forged = [*ROUNDS[:2], (3, b"\x66" * 32), *ROUNDS[3:]]
    with refused("history-rewritten", match="round.* 3", kind=Rewritten) as caught:
        anchor_all(contract, accounts[0], forged)
    assert caught.value.exit_code == 3 and node.sent_by(accounts[0].address) == sent


def test_two_programs_with_one_account_write_every_round_once(node, contract, accounts):
    """Both start from the same state of the chain; whoever loses a race looks again."""
    rounds, before = some_rounds(range(1, 13)), node.sent_by(accounts[0].address)
    failed: list[Exception] = []

    def work() -> None:
        try:
            anchor_all(Contract(Node(node.url, patience=30), contract.address), accounts[0], rounds)
        except RunFailed as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    anchor_all(contract, accounts[0], rounds)
    assert len(failed) <= 2 and all("the same command" in str(e) for e in failed)
    assert contract.read_run(RUN, rounds).spans == tuple(spans(rounds, batch=1))
    assert node.sent_by(accounts[0].address) - before >= 12


def test_an_account_without_funds_is_told_so(node, contract, accounts):
    from eth_account import Account

    poor = Account.from_key("0x" + "5a" * 32)
    contract.set_writer(accounts[0], poor.address, registered=True)
    with refused("too-little-funds", match=f"account {poor.address} has .*funds"):
        anchor_all(contract, poor)


def test_an_account_that_may_not_write_is_told_who_can_let_it(contract, accounts):
    with refused("not-a-writer", match=f"not a registered writer.*{accounts[0].address} can register it"):
        anchor_all(contract, accounts[1])
    contract.set_writer(accounts[0], accounts[1].address, registered=True)
    anchor_all(contract, accounts[0], ROUNDS[:1])
    with refused("not-a-writer", match=f"anchored by {accounts[0].address}"):
        anchor_all(contract, accounts[1])
    with refused("not-the-owner"):
        contract.set_writer(accounts[1], accounts[2].address, registered=True)


@pytest.mark.parametrize("batch", [0, 1025])
def test_a_batch_beyond_the_contracts_is_refused(contract, accounts, batch):
    with refused("out-of-range", match="from 1 to 1024"):
        anchor_all(contract, accounts[0], batch=batch)


def test_rounds_out_of_order_are_refused(contract, accounts):
    with refused("rounds-out-of-order"):
        anchor_all(contract, accounts[0], [*ROUNDS, ROUNDS[0]])


def test_no_node_is_said_without_what_may_be_secret_in_the_url():
    with refused("node-unreachable", match="no node at http://127.0.0.1:") as caught:
        Node(f"http://ann:pass123@127.0.0.1:{free_port()}/v3/apikey456?token=t789")
    assert not any(word in str(caught.value) for word in ("pass123", "apikey456", "t789"))
    for url in ("ws://127.0.0.1:1", "127.0.0.1:8545", "", "http://", "http://h:notaport"):
        with refused("bad-url"):
            Node(url)


@contextmanager
def answering(body: bytes, status: int = 200):
    """The URL of a server that answers everything with the same."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v3/apikey456"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("body", "status", "error", "code"),
    [
        (b"<html>hello</html>", 200, BadInput, "not-a-node"),
        (b"[1, 2]", 200, BadInput, "not-a-node"),
        (b"[" * 100_000, 200, BadInput, "not-a-node"),
        (b"no", 403, BadInput, "node-refused"),
        (b"busy", 503, BadInput, "node-unreachable"),
        (
            b'{"jsonrpc": "2.0", "id": 0, "error": {"code": -32002, "message": "unknown key apikey456"}}',
            200,
            RunFailed,
            "node-refused",
        ),
    ],
    ids=["a page", "a list", "nested without end", "forbidden", "busy", "its own error"],
)
def test_what_answers_but_is_no_node_is_said(body, status, error, code):
    with answering(body, status) as url, refused(code, kind=error) as caught:
        Node(url)
    assert "apikey456" not in str(caught.value)


def test_keys_are_the_nodes_own(accounts):
    from eth_account import Account

    assert accounts[0].address == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert Account.from_key(key_of(1)).address == accounts[1].address
