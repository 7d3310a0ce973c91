"""What a round costs on a chain: gas for one transaction a round, and for batches under one Merkle root.

    python bench/chain.py [--rounds 200]

On a node of its own on loopback (anvil, which `make test` installs). Gas is counted by the chain, by the rules of
its fork, not by this machine; the first transaction of a run is dearer, because it takes the run's name, and is told
apart. Prints a table.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from eth_account import Account

from grandrounds.capabilities.integrations.chain.anchor import anchors
from grandrounds.capabilities.integrations.chain.contract import Contract
from grandrounds.capabilities.integrations.chain.node import Node

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.capabilities.integrations.chain.anvil import Anvil, command, key_of

from smoke import pick, skip

BATCHES = pick((1, 10, 100), (1, 10))


def measured(contract: Contract, account: Account, *, rounds: int, batch: int) -> list[int]:
    """Gas of each transaction that anchors so many rounds."""
    name = hashlib.sha256(f"run in batches of {batch}".encode()).digest()
    entries = [(n, hashlib.sha256(f"entry {batch} {n}".encode()).digest()) for n in range(1, rounds + 1)]
    return [r.gas for _, r in anchors(entries, run=name, contract=contract, account=account, batch=batch)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=pick(200, 20))
    rounds = parser.parse_args().rounds
    if command() is None:
        skip("no EVM node on this machine: `make test` installs anvil from npm where it can")
    node, account = Anvil().start(), Account.from_key(key_of(0))
    try:
        contract, receipt = Contract.deploy(Node(node.url), account)
        print(f"Deploying the contract, once: {receipt.gas:,} gas. {rounds} rounds:\n")
        print("| rounds a transaction | transactions | gas, first | gas, each later | gas a round | to one a round |")
        print("|---:|---:|---:|---:|---:|---:|")
        single = 0.0
        for batch in BATCHES:
            gas = measured(contract, account, rounds=rounds, batch=batch)
            each = sum(gas) / rounds
            single = single or each
            later = f"{sum(gas[1:]) / len(gas[1:]):,.0f}" if gas[1:] else "-"
            print(f"| {batch} | {len(gas)} | {gas[0]:,} | {later} | {each:,.0f} | {each / single:.3f} |")
    finally:
        node.stop()


if __name__ == "__main__":
    main()
