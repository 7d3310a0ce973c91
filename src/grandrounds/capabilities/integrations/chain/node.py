"""A node of a chain: retried when the connection is lost, without sending a transaction twice.

A transaction is signed once. Until it is in a block it is looked up before the same bytes are sent again; its nonce lets a
chain accept it only once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any, TypeVar
from urllib.parse import urlsplit

from grandrounds.capabilities.integrations.chain.key import need_web3
from grandrounds.core.errors import BadInput, RunFailed

T = TypeVar("T")
Transaction = dict[str, Any]
"""A transaction or its receipt, as in web3."""
RPC = "GRANDROUNDS_CHAIN_RPC"
"""Environment variable for a node's URL; a URL with a secret must not be on a command line."""
ANSWER = 15.0
"""Time limit of one request to the node, in seconds."""


class Reverted(RunFailed):
    """The contract refused a transaction."""


class Refused(RunFailed):
    """The node answered with an error."""


FIRST, LONGEST, GROWTH = 0.02, 2.0, 1.5
"""First and longest pause in seconds, and the growth factor."""


class Waiting:
    """Growing pauses of at most `patience` seconds in total."""

    def __init__(self, patience: float) -> None:
        self._until, self._pause = time.monotonic() + patience, FIRST

    def goes_on(self) -> bool:
        """Pause; returns False at once if patience would end meanwhile."""
        if time.monotonic() + self._pause > self._until:
            return False
        time.sleep(self._pause)
        self._pause = min(GROWTH * self._pause, LONGEST)
        return True


@dataclass(frozen=True)
class Receipt:
    """A transaction that is in a block."""

    transaction: str
    block: int
    gas: int
    contract: str | None


class Node:
    """A connection. `patience` is the time in seconds to wait for a lost connection or a pending transaction."""

    def __init__(self, url: str, *, patience: float = 120.0) -> None:
        web3 = need_web3()
        self.place, self.patience, self._secrets = _place(url), patience, _secrets(url)
        provider = web3.HTTPProvider(url, request_kwargs={"timeout": ANSWER}, exception_retry_configuration=None)
        self.web3: Any = web3.Web3(provider)
        # Chains with known signers put more into a block's header than Ethereum does.
        self.web3.middleware_onion.inject(web3.middleware.ExtraDataToPOAMiddleware, layer=0)
        self._met = False
        self.chain = int(self.ask(lambda: self.web3.eth.chain_id))

    def ask(self, question: Callable[[], T]) -> T:
        """Send a request to the node. A lost connection is awaited if there was one before."""
        from requests import ConnectionError, HTTPError, RequestException, Timeout
        from web3.exceptions import BadResponseFormat, Web3RPCError

        waiting = Waiting(self.patience)
        while True:
            try:
                answer = question()
            except HTTPError as e:
                code = 0 if e.response is None else e.response.status_code
                if code < 500 and code != 429:
                    raise BadInput(
                        f"{self.place} refuses to answer (HTTP {code}): check --rpc", code="node-refused"
                    ) from None
                lost = f"answers with HTTP {code}"
            except (ConnectionError, Timeout) as e:
                lost = "takes too long to answer" if isinstance(e, Timeout) else "cannot be reached"
            except RequestException:
                raise BadInput(f"{self.place} does not answer like a node: check --rpc", code="not-a-node") from None
            except Web3RPCError as e:
                raise self._refused(e) from None
            except (BadResponseFormat, JSONDecodeError, RecursionError):
                raise BadInput(
                    f"the server at {self.place} is not a node of an EVM chain: check --rpc", code="not-a-node"
                ) from None
            else:
                self._met = True
                return answer
            if not self._met:
                raise BadInput(f"there is no node at {self.place}: it {lost}; start it, or check --rpc", code="node-unreachable")
            if not waiting.goes_on():
                raise RunFailed(
                    f"the node at {self.place} {lost}, for {self.patience:g} s; anchored rounds stay, and the same "
                    "command continues from there",
                    code="node-unreachable",
                )

    def settle(self, address: str) -> int:
        """Wait until this account has no pending transaction; returns the nonce of its next one."""
        waiting = Waiting(self.patience)
        while True:
            mined = int(self.ask(lambda: self.web3.eth.get_transaction_count(address, "latest")))
            if mined >= self.ask(lambda: self.web3.eth.get_transaction_count(address, "pending")):
                return mined
            self._pause(waiting, f"a transaction that {address} sent earlier is")

    def send(self, account: Any, *, data: bytes, recipient: str | None = None) -> Receipt:
        """Send one transaction and wait for it; call `settle` first, and check that it is still needed."""
        number = self.settle(account.address)
        signed = account.sign_transaction(self._fill_transaction(account.address, number, recipient, data))
        name, waiting = signed.hash.to_0x_hex(), Waiting(self.patience)
        while True:
            receipt = self.ask(lambda: self._receipt(name))
            if receipt is not None:
                break
            if not self.ask(lambda: self._knows(name)):
                self._broadcast(signed.raw_transaction, account.address, number, name)
            self._pause(waiting, f"transaction {name} is")
        if receipt["status"] != 1:
            raise Reverted(f"the contract refused transaction {name}", code="contract-refused")
        address = receipt["contractAddress"]
        return Receipt(name, int(receipt["blockNumber"]), int(receipt["gasUsed"]), address)

    def _fill_transaction(self, address: str, number: int, recipient: str | None, data: bytes) -> Transaction:
        """Fill in a transaction's gas and price, if the account can pay them."""
        values: Transaction = {"from": address, "data": data, "value": 0, "chainId": self.chain, "nonce": number}
        if recipient is not None:
            values["to"] = recipient
        gas = self.ask(lambda: self._estimated(values))
        values["gas"] = gas + gas // 5
        price = self._price()
        most = values["gas"] * max(price.values())
        have = int(self.ask(lambda: self.web3.eth.get_balance(address)))
        if have < most:
            raise BadInput(
                f"account {address} has {_coins(have)} on chain {self.chain}, but the transaction may cost "
                f"{_coins(most)}: send it funds",
                code="too-little-funds",
            )
        return {**values, **price}

    def _estimated(self, values: Transaction) -> int:
        from web3.exceptions import ContractLogicError

        try:
            return int(self.web3.eth.estimate_gas(values))
        except ContractLogicError:
            raise Reverted("the contract refuses it", code="contract-refused") from None

    def _price(self) -> dict[str, int]:
        base = self.ask(lambda: self.web3.eth.get_block("latest")).get("baseFeePerGas")
        if base is None:
            return {"gasPrice": int(self.ask(lambda: self.web3.eth.gas_price))}
        tip = int(self.ask(lambda: self.web3.eth.max_priority_fee))
        return {"maxPriorityFeePerGas": tip, "maxFeePerGas": 2 * int(base) + tip}

    def _receipt(self, name: str) -> Transaction | None:
        from web3.exceptions import TransactionNotFound

        try:
            receipt: Transaction = self.web3.eth.get_transaction_receipt(name)
        except TransactionNotFound:
            return None
        return receipt if receipt.get("blockNumber") is not None else None

    def _knows(self, name: str) -> bool:
        from web3.exceptions import TransactionNotFound

        try:
            self.web3.eth.get_transaction(name)
        except TransactionNotFound:
            return False
        return True

    def _broadcast(self, raw: bytes, address: str, number: int, name: str) -> None:
        """Send a transaction; a node that already has it, or has executed it, is fine."""
        try:
            self.ask(lambda: self.web3.eth.send_raw_transaction(raw))
        except (Refused, BadInput):
            if self.ask(lambda: self._receipt(name)) is not None or self.ask(lambda: self._knows(name)):
                return
            if self.ask(lambda: self.web3.eth.get_transaction_count(address, "latest")) > number:
                raise RunFailed(
                    f"another transaction of {address} was first: another program uses the account at the same time; run "
                    "the same command again to continue",
                    code="account-in-use",
                ) from None
            raise

    def _refused(self, e: Exception) -> Exception:
        message = _words(e)
        if "insufficient funds" in message.lower():
            return BadInput(
                f"the account has too little funds on chain {self.chain}: send it funds",
                code="too-little-funds",
            )
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return Refused(f"the node at {self.place} refuses: {message}", code="node-refused")

    def _pause(self, waiting: Waiting, subject: str) -> None:
        if not waiting.goes_on():
            raise RunFailed(
                f"{subject} in no block after {self.patience:g} s; run the same command again: it looks for it before it "
                "sends anything",
                code="transaction-pending",
            )


def _place(url: str) -> str:
    """Return the host of a node's URL, without parts that may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("--rpc is not a URL of a node: give http://HOST:PORT or https://...", code="bad-url")
    return f"{parts.scheme}://{parts.hostname}{port}"


def _secrets(url: str) -> list[str]:
    """Return the parts of a URL that may be a key: user, password, path and options."""
    parts = urlsplit(url)
    pieces = [parts.username, parts.password, *parts.path.split("/"), *re.split("[=&]", parts.query)]
    return sorted({text for text in pieces if text}, key=len, reverse=True)


def _words(e: Exception) -> str:
    """Return the node's error message."""
    response = getattr(e, "rpc_response", None) or {}
    error = response.get("error")
    return str(error.get("message")) if isinstance(error, Mapping) else str(e)


def _coins(wei: int) -> str:
    return f"{wei / 10**18:.6g} ether"
