"""The contract itself, on a real node: what it refuses, it refuses to everybody, whatever the Python side thinks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grandrounds.audit.spans import Span
from grandrounds.capabilities.integrations.chain import contract as module
from grandrounds.capabilities.integrations.chain.batches import LONGEST
from grandrounds.capabilities.integrations.chain.contract import Contract, artefact
from grandrounds.capabilities.integrations.chain.node import Node
from tests.capabilities.integrations.chain.anvil import MODULES
from tests.support import refused

RUN, OTHER = b"\x01" * 32, b"\x02" * 32
SOURCE = Path(module.__file__).parents[1] / "contracts" / "RoundAnchor.sol"


def hashed(number: int) -> bytes:
    return (number + 1).to_bytes(32, "big")


def rounds(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(n, hashed(n)) for n in range(first, last + 1)]


def revert_reason(contract: Contract, account, name: str, *values) -> str:
    """The name of the error with which the contract refuses a call; and that a transaction of it changes nothing."""
    from web3.exceptions import ContractCustomError

    functions, node = contract._contract.functions, contract.node
    before = [contract.read_run(run, rounds(0, 50)) for run in (RUN, OTHER)]
    with pytest.raises(ContractCustomError) as caught:
        functions[name](*values).call({"from": account.address})
    bare = functions[name](*values).build_transaction(
        {"from": account.address, "gas": 300_000, "nonce": node.settle(account.address), "chainId": node.chain}
    )
    sent = node.web3.eth.send_raw_transaction(account.sign_transaction(bare).raw_transaction)
    assert node.web3.eth.wait_for_transaction_receipt(sent)["status"] == 0
    assert [contract.read_run(run, rounds(0, 50)) for run in (RUN, OTHER)] == before
    selectors = {
        node.web3.keccak(text=f"{e['name']}({','.join(i['type'] for i in e['inputs'])})")[:4].hex(): e["name"]
        for e in artefact()["abi"]
        if e["type"] == "error"
    }
    return selectors[caught.value.data[2:10]]


@pytest.mark.skipif(
    not ((MODULES / "solc").exists() and shutil.which("node")),
    reason="no Solidity compiler: `make test` gets it from npm",
)
@pytest.mark.slow
def test_compiling_again_gives_the_same_bytes():
    compiler = Path(__file__).with_name("compile.cjs")
    done = subprocess.run(
        ["node", str(compiler), str(SOURCE)], capture_output=True, env={**os.environ, "NODE_PATH": str(MODULES)}
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == SOURCE.with_suffix(".json").read_bytes()


def test_a_round_is_written_once(contract, accounts):
    contract.write(accounts[0], RUN, Span(3, 3, hashed(3)))
    for entry in (hashed(3), hashed(4)):
        assert revert_reason(contract, accounts[0], "anchor", RUN, 3, entry) == "RoundPassed"
    assert revert_reason(contract, accounts[0], "anchor", RUN, 2, hashed(2)) == "RoundPassed"
    assert contract.read_run(RUN, rounds(0, 9)).spans == (Span(3, 3, hashed(3)),)


def test_a_batch_cannot_touch_a_round_that_is_there(contract, accounts):
    contract.write(accounts[0], RUN, Span(3, 6, hashed(3)))
    for first, last in ((1, 3), (4, 5), (6, 9), (2, 9)):
        assert revert_reason(contract, accounts[0], "anchorBatch", RUN, first, last, hashed(9)) == "RoundPassed"
    assert revert_reason(contract, accounts[0], "anchor", RUN, 5, hashed(5)) == "RoundPassed"


def test_a_stranger_cannot_write_nor_make_writers(contract, accounts):
    stranger = accounts[1]
    assert revert_reason(contract, stranger, "anchor", RUN, 1, hashed(1)) == "NotAWriter"
    assert revert_reason(contract, stranger, "anchorBatch", RUN, 1, 2, hashed(1)) == "NotAWriter"
    assert revert_reason(contract, stranger, "setWriter", stranger.address, True) == "NotTheOwner"


def test_two_writers_cannot_write_into_each_others_runs(contract, accounts):
    owner, second = accounts[:2]
    assert contract.set_writer(owner, second.address, registered=True)
    assert contract.set_writer(owner, second.address, registered=True) is None
    contract.write(owner, RUN, Span(1, 1, hashed(1)))
    contract.write(second, OTHER, Span(1, 1, hashed(7)))
    assert revert_reason(contract, second, "anchor", RUN, 2, hashed(2)) == "RunOfAnother"
    assert revert_reason(contract, owner, "anchor", OTHER, 2, hashed(2)) == "RunOfAnother"
    contract.write(second, OTHER, Span(2, 4, hashed(8)))
    assert contract.read_run(RUN, rounds(0, 9)).writer == owner.address
    assert contract.read_run(OTHER, rounds(0, 9)).spans == (Span(1, 1, hashed(7)), Span(2, 4, hashed(8)))


def test_a_writer_who_is_removed_writes_no_more_and_what_they_wrote_stays(contract, accounts):
    owner, second = accounts[:2]
    contract.set_writer(owner, second.address, registered=True)
    contract.write(second, RUN, Span(1, 1, hashed(1)))
    contract.set_writer(owner, second.address, registered=False)
    assert revert_reason(contract, second, "anchor", RUN, 2, hashed(2)) == "NotAWriter"
    assert contract.read_run(RUN, rounds(0, 9)).spans == (Span(1, 1, hashed(1)),)


def test_what_is_no_span_or_no_hash_is_refused(contract, accounts):
    owner = accounts[0]
    assert revert_reason(contract, owner, "anchor", RUN, 1, bytes(32)) == "NoHash"
    for first, last in ((5, 5), (5, 4), (1, 1 + LONGEST)):
        assert revert_reason(contract, owner, "anchorBatch", RUN, first, last, hashed(1)) == "NotASpan"


def test_the_longest_span_can_be_read_from_its_last_round_and_from_none_after(contract, accounts):
    contract.write(accounts[0], RUN, Span(1, LONGEST, hashed(1)))
    at = contract._contract.functions.anchored
    for number in (1, LONGEST // 2, LONGEST):
        assert tuple(at(RUN, number).call()) == (1, LONGEST, hashed(1))
    for number in (0, LONGEST + 1):
        assert tuple(at(RUN, number).call()) == (0, 0, bytes(32))
    last = [(LONGEST, hashed(1))]
    assert contract.read_run(RUN, last).spans == (Span(1, LONGEST, hashed(1)),)


def test_anyone_can_read_and_every_write_is_an_event(contract, accounts):
    contract.write(accounts[0], RUN, Span(1, 1, hashed(1)))
    contract.write(accounts[0], RUN, Span(2, 5, hashed(2)))
    logs = contract._contract.events.Anchored().get_logs(from_block=0)
    told = [(e["args"]["run"], e["args"]["first"], e["args"]["last"], e["args"]["hash"]) for e in logs]
    assert told == [(RUN, 1, 1, hashed(1)), (RUN, 2, 5, hashed(2))]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), min_size=1, max_size=8),
    run=st.binary(min_size=32, max_size=32),
)
def test_it_does_what_a_list_that_only_grows_does(contract, accounts, writes, run):
    """Against a model of it in Python: a span is taken if it starts at or after the end of the last, and else refused."""
    from web3 import exceptions

    if contract.read_run(run, rounds(0, 50)).writer:
        return
    model: list[Span] = []
    for first, count in writes:
        span = Span(first, first + count - 1, hashed(first))
        if first >= (model[-1].last + 1 if model else 0):
            contract.write(accounts[0], run, span)
            model.append(span)
        else:
            name = "anchor" if count == 1 else "anchorBatch"
            values = (run, first, span.hash) if count == 1 else (run, first, span.last, span.hash)
            with pytest.raises(exceptions.ContractCustomError):
                contract._contract.functions[name](*values).call({"from": accounts[0].address})
    assert contract.read_run(run, rounds(0, 50)).spans == tuple(model)
    for number in {n for s in model for n in (max(0, s.first - 1), s.first, s.last, s.last + 1)}:
        inside = [(s.first, s.last, s.hash) for s in model if s.first <= number <= s.last] or [(0, 0, bytes(32))]
        assert [tuple(contract._contract.functions.anchored(run, number).call())] == inside


def test_an_address_without_the_contract_is_refused(node, accounts):
    connection = Node(node.url)
    with refused("no-contract", match="no contract at .* on chain 31337"):
        Contract(connection, accounts[3].address)
    node.ask("anvil_setCode", "0x" + "77" * 20, "0x6001600101")
    with refused("other-contract"):
        Contract(connection, "0x" + "77" * 20)


def test_a_mistyped_address_is_refused(contract):
    letter = next(i for i, c in enumerate(contract.address) if i > 1 and c.isalpha())
    wrong = contract.address[:letter] + contract.address[letter].swapcase() + contract.address[letter + 1 :]
    for text in (wrong, contract.address[:-1], "round-anchor"):
        with refused("invalid-address"):
            Contract(contract.node, text)
    assert Contract(contract.node, contract.address.lower()).address == contract.address


def test_a_round_costs_less_in_a_batch(contract, accounts):
    """Gas is a fact of the contract: a change that makes rounds dearer shows here. docs/audit.md has the table."""
    contract.write(accounts[0], RUN, Span(1, 1, hashed(1)))
    one = contract.write(accounts[0], RUN, Span(2, 2, hashed(2))).gas
    ten = contract.write(accounts[0], RUN, Span(3, 12, hashed(3))).gas
    hundred = contract.write(accounts[0], RUN, Span(13, 112, hashed(4))).gas
    assert 50_000 < one < 60_000
    assert ten < 1.5 * one and abs(hundred - ten) < 100
