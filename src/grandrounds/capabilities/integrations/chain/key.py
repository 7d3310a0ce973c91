"""The key that signs transactions: from the environment or a file, never from a command line, never printed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, install_extra

VARIABLE = "GRANDROUNDS_CHAIN_KEY"
_FORM = "a private key is 64 hexadecimal digits"


def need_web3() -> Any:
    """Import web3.

    A part of it (py_ecc) raises Python's recursion limit to 100,000, with which deeply nested JSON ends the process instead
    of being refused. The limit is restored here.

    Raises:
        BadInput: The package is not installed.
    """
    limit = sys.getrecursionlimit()
    try:
        import web3
    except ImportError:
        raise BadInput(
            f"anchoring needs the package web3; {install_extra('chain')}", code="missing-package"
        ) from None
    finally:
        sys.setrecursionlimit(limit)
    return web3


def account(key_file: Path | None = None) -> Any:
    """Load the account that signs and pays for transactions; its `repr` shows its address only."""
    need_web3()
    from eth_account import Account

    if key_file is not None:
        text, where = _read(key_file), str(key_file)
    elif VARIABLE in os.environ:
        text, where = os.environ[VARIABLE], f"the variable {VARIABLE}"
    else:
        raise BadInput(f"there is no key to sign with: set the variable {VARIABLE}, or give --key-file", code="no-account-key")
    try:
        return Account.from_key(bytes.fromhex(text.strip().removeprefix("0x")))
    except Exception:  # its message might quote the key
        raise BadInput(f"{where} is not the key of an account: {_FORM}", code="bad-account-key") from None


def _read(path: Path) -> str:
    """Read a file that only its owner can read or write."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise BadInput(f"{path} can be read by others (mode {mode:04o}): chmod 600 {path}", code="file-too-open")
        return path.read_text(encoding="ascii")
    except OSError as e:
        raise BadInput(f"cannot read the key {path}: {e.strerror or e}", code="cannot-read") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not the key of an account: {_FORM}", code="bad-account-key") from None
