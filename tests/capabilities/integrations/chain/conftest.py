from __future__ import annotations

import pytest

from grandrounds.capabilities.integrations.chain.key import need_web3
from grandrounds.core.errors import BadInput
from tests.capabilities.integrations.chain import anvil


@pytest.fixture(scope="session", autouse=True)
def need() -> None:
    """web3, before any test imports it by itself: this way Python's recursion limit stays as it was. It takes seconds."""
    try:
        need_web3()
    except BadInput as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def node():
    """One node for many tests."""
    if anvil.command() is None:
        pytest.skip("no EVM node on this machine: `make test` installs anvil from npm where it can")
    running = anvil.Anvil().start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def accounts(node):
    """Accounts with funds: the owner of contracts first."""
    from eth_account import Account

    return [Account.from_key(anvil.key_of(n)) for n in range(4)]


@pytest.fixture(scope="session")
def deployed(node, accounts):
    """A contract of the first account's."""
    from grandrounds.capabilities.integrations.chain.contract import Contract
    from grandrounds.capabilities.integrations.chain.node import Node

    made, _ = Contract.deploy(Node(node.url, patience=30), accounts[0])
    return made


@pytest.fixture
def contract(node, deployed):
    """That contract with nothing in it: after each test the whole chain is put back to what it was."""
    before = node.ask("evm_snapshot")
    yield deployed
    assert node.ask("evm_revert", before)
