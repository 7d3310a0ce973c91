"""A real EVM node on loopback: anvil, as `make test` puts it beside the virtual environment."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

MNEMONIC = "test test test test test test test test test test test junk"
MODULES = Path(sys.prefix) / "chain" / "node_modules"
_LIBRARIES = Path("/usr/x86_64-linux-gnu")


def command() -> list[str] | None:
    """How anvil is started here: as it is, or in an emulator where it has no build for this kind of machine."""
    built = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine())
    native = MODULES / f"@foundry-rs/anvil-{platform.system().lower()}-{built}" / "bin/anvil"
    if native.exists():
        return [str(native)]
    other, emulator = MODULES / "@foundry-rs/anvil-linux-amd64/bin/anvil", shutil.which("qemu-x86_64")
    if other.exists() and emulator and _LIBRARIES.exists():
        return [emulator, "-L", str(_LIBRARIES), str(other)]
    return None


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def key_of(number: int) -> str:
    """The private key of an account that the node has filled: made from the mnemonic above, worth nothing anywhere."""
    from eth_account import Account

    Account.enable_unaudited_hdwallet_features()
    return str(Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{number}").key.hex())


class Anvil:
    """A node that is started, stopped, killed and started again; with `state` it comes back with what it had."""

    def __init__(self, *, state: Path | None = None) -> None:
        self.port, self.state = free_port(), state
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Anvil:
        how = command()
        assert how is not None
        kept = ["--state", str(self.state), "--state-interval", "1"] if self.state else []
        self._process = subprocess.Popen(
            [*how, "--silent", "--host", "127.0.0.1", "--port", str(self.port), "--mnemonic", MNEMONIC, *kept],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                self.ask("eth_chainId")
                return self
            time.sleep(0.05)
        raise RuntimeError("anvil does not start")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """As a crash would, once its state is on disk; a state that it was just writing anew is not what it comes back with."""
        assert self.state is not None
        now = time.time()
        while (whole := self._written(self.state, since=now)) is None:
            time.sleep(0.1)
        self.stop(signal.SIGKILL)
        self.state.write_bytes(whole)

    @staticmethod
    def _written(state: Path, *, since: float) -> bytes | None:
        """The state as it is on disk, where it is newer than that and whole."""
        try:
            written, data = state.stat().st_mtime, state.read_bytes()
            json.loads(data)
        except (OSError, ValueError):
            return None
        return data if written >= since else None

    def ask(self, method: str, *values: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": values}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = json.load(answer)
        if "error" in said:
            raise RuntimeError(said["error"]["message"])
        return said["result"]

    def sent_by(self, address: str) -> int:
        """Transactions of an account that are in blocks."""
        return int(self.ask("eth_getTransactionCount", address, "latest"), 16)
