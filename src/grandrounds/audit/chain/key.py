"""The key that signs transactions: from the environment or from a file, never from a command line, never printed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput

VARIABLE = "GRANDROUNDS_CHAIN_KEY"
_FORM = "a private key is 64 hexadecimal digits"


def need_web3() -> Any:
    """The package web3, or how to get it.

    A part of it (py_ecc) lets every program that imports it nest calls 100,000 deep, and Python then dies of JSON that is
    nested so deep instead of refusing it: the limit is put back.
    """
    limit = sys.getrecursionlimit()
    try:
        import web3
    except ImportError:
        raise BadInput(
            "a chain needs the package web3: pip install 'grandrounds[chain]'", code="missing-package"
        ) from None
    finally:
        sys.setrecursionlimit(limit)
    return web3


def account(key_file: Path | None = None) -> Any:
    """The account that pays for and signs transactions; it prints as no more than its address."""
    need_web3()
    from eth_account import Account

    if key_file is not None:
        text, where = _read(key_file), str(key_file)
    elif VARIABLE in os.environ:
        text, where = os.environ[VARIABLE], f"the variable {VARIABLE}"
    else:
        raise BadInput(f"no key to sign with: set the variable {VARIABLE}, or give --key-file", code="no-account-key")
    try:
        return Account.from_key(bytes.fromhex(text.strip().removeprefix("0x")))
    except Exception:  # its own words might quote the key
        raise BadInput(f"{where} holds no key of an account: {_FORM}", code="bad-account-key") from None


def _read(path: Path) -> str:
    """The text of a file that nobody but its owner can read or write."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise BadInput(f"{path} can be read by others (mode {mode:04o}): chmod 600 {path}", code="file-too-open")
        return path.read_text(encoding="ascii")
    except OSError as e:
        raise BadInput(f"cannot read the key {path}: {e.strerror or e}", code="cannot-read") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} holds no key of an account: {_FORM}", code="bad-account-key") from None
