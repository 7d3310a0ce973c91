"""The contract RoundAnchor at an address: read it, check writers, write spans."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from grandrounds.audit.spans import Rounds, Span
from grandrounds.capabilities.integrations.chain.batches import LONGEST
from grandrounds.capabilities.integrations.chain.check import AnchoredRun
from grandrounds.capabilities.integrations.chain.key import need_web3
from grandrounds.capabilities.integrations.chain.node import Node, Receipt
from grandrounds.core.errors import BadInput

PAGE = 500
"""Rounds read with one request."""
CONTRACT, WRITER = "--contract", "the writer's ADDRESS"
"""Names of addresses in messages of commands."""


@cache
def artefact() -> dict[str, Any]:
    """Load the compiled contract of the package: `abi`, `bytecode` to deploy, `deployed` as on a chain."""
    text = files("grandrounds.capabilities.integrations").joinpath("contracts/RoundAnchor.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


class Contract:
    """RoundAnchor on a chain; an address with anything else is refused."""

    def __init__(self, node: Node, address: str) -> None:
        self.node, self.address = node, checked_address(address, CONTRACT)
        code = bytes(node.ask(lambda: node.web3.eth.get_code(self.address)))
        if not code:
            raise BadInput(
                f"there is no contract at {self.address} on chain {node.chain}: check --contract and --rpc, "
                "or deploy one with `rounds audit deploy`",
                code="no-contract",
            )
        if code.hex() != artefact()["deployed"]:
            raise BadInput(
                f"the contract at {self.address} on chain {node.chain} is not RoundAnchor",
                code="other-contract",
            )
        self._contract: Any = node.web3.eth.contract(address=self.address, abi=artefact()["abi"])

    @classmethod
    def connect(cls, rpc: str, address: str, *, patience: float = 120.0) -> Contract:
        """Connect to the contract at an address; a malformed address is refused before the node is contacted."""
        address = checked_address(address, CONTRACT)
        return cls(Node(rpc, patience=patience), address)

    @classmethod
    def deploy(cls, node: Node, account: Any) -> tuple[Contract, Receipt]:
        """Deploy a new contract, owned and writable by the account."""
        receipt = node.send(account, data=bytes.fromhex(artefact()["bytecode"]))
        assert receipt.contract is not None
        return cls(node, receipt.contract), receipt

    @property
    def owner(self) -> str:
        return str(self._read("owner"))

    def is_writer(self, address: str) -> bool:
        return bool(self._read("isWriter", checked_address(address, WRITER)))

    def read_run(self, run: bytes, rounds: Rounds) -> AnchoredRun:
        """Read a run with the spans that contain these rounds."""
        writer, following = self._read("runs", run)
        if not int(writer, 16):
            return AnchoredRun(None, 0)
        if not rounds:
            return AnchoredRun(writer, following)
        first, last = rounds[0][0], rounds[-1][0]
        all_spans = []
        for start in range(max(0, first - LONGEST + 1), last + 1, PAGE):
            page = self._read("spans", run, start, min(start + PAGE - 1, last))
            all_spans += [Span(a, b, bytes(h)) for a, b, h in page]
        return AnchoredRun(writer, following, tuple(s for s in all_spans if s.last >= first))

    def check_writer(self, account: Any, anchored: AnchoredRun) -> None:
        """Refuse an account that may not anchor this run."""
        if not self.is_writer(account.address):
            raise BadInput(
                f"account {account.address} is not a registered writer of {self.address}: its owner {self.owner} can "
                f"register it (rounds audit writer {account.address})",
                code="not-a-writer",
            )
        if anchored.writer not in (None, account.address):
            raise BadInput(
                f"this run is anchored by {anchored.writer}: account {account.address} cannot write to it",
                code="not-a-writer",
            )

    def write(self, account: Any, run: bytes, span: Span) -> Receipt:
        """Anchor one span."""
        if span.first == span.last:
            return self._send(account, "anchor", run, span.first, span.hash)
        return self._send(account, "anchorBatch", run, span.first, span.last, span.hash)

    def set_writer(self, account: Any, address: str, *, registered: bool) -> Receipt | None:
        """Register or unregister a writer; nothing is sent if there is no change."""
        if self.owner != account.address:
            raise BadInput(
                f"only the owner {self.owner} can change the writers of {self.address}, not {account.address}",
                code="not-the-owner",
            )
        self.node.settle(account.address)
        if self.is_writer(address) == registered:
            return None
        return self._send(account, "setWriter", checked_address(address, WRITER), registered)

    def _read(self, name: str, *values: Any) -> Any:
        return self.node.ask(lambda: self._contract.functions[name](*values).call())

    def _send(self, account: Any, name: str, *values: Any) -> Receipt:
        data = bytes.fromhex(self._contract.encode_abi(name, args=list(values))[2:])
        return self.node.send(account, data=data, recipient=self.address)


def checked_address(text: str, name: str) -> str:
    """Return an address with its checksum spelling; a lower-case one is accepted.

    An invalid address is not quoted, because it may be a key in the wrong place.
    """
    tools = need_web3().Web3
    if not (text.startswith("0x") and tools.is_address(text.lower())):
        raise BadInput(f"{name} is not an address: give 0x and 40 hexadecimal digits", code="invalid-address")
    address = str(tools.to_checksum_address(text))
    if text not in (address, address.lower()):
        raise BadInput(f"{name} is not an address: its checksum (capitals) shows a typing error", code="invalid-address")
    return address
