"""A key is read from where only its owner can read it, and quoted nowhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from grandrounds.capabilities.integrations.chain.key import VARIABLE, account
from grandrounds.core.errors import install_extra
from tests.support import refused

SECRET = "c0ffee" * 10 + "abcd"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def written(path, text: str, mode: int = 0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_comes_from_the_environment_or_a_file_and_the_file_is_first(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0x" + "01" * 32)
    assert account().address == "0x1a642f0E3c3aF545E7AcBD38b07251B3990914F1"
    assert account(written(tmp_path / "key", f"{SECRET}\n")).address != account().address


def test_no_key_says_where_one_is_looked_for():
    with refused("no-account-key", match=f"{VARIABLE}.*--key-file"):
        account()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_can_open_is_refused(tmp_path, mode):
    with refused("file-too-open"):
        account(written(tmp_path / "key", SECRET, mode))


@pytest.mark.parametrize("text", [SECRET[:-2], SECRET + "00", SECRET[:-1] + "g", "", "00" * 32, "ff" * 32, "é" * 64])
def test_what_is_no_key_is_refused_without_being_quoted(tmp_path, monkeypatch, text):
    path = written(tmp_path / "key", text)
    monkeypatch.setenv(VARIABLE, text)
    for given in (path, None):
        with refused("bad-account-key", match="64 hexadecimal digits") as caught:
            account(given)
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        assert not text or text not in str(caught.value)


def test_a_missing_file_is_said(tmp_path):
    with refused("cannot-read"):
        account(tmp_path / "none")


def test_an_account_prints_as_no_key(tmp_path):
    made = account(written(tmp_path / "key", SECRET))
    assert SECRET not in repr(made) and SECRET not in str(made)


def test_without_web3_the_way_out_is_said():
    code = (
        "import sys; sys.modules['web3'] = None\n"
        "from grandrounds.capabilities.integrations.chain.node import Node\n"
        "from grandrounds.core.errors import BadInput\n"
        "try: Node('http://127.0.0.1:1')\n"
        "except BadInput as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert install_extra("chain") in done.stdout


def test_web3_does_not_get_to_raise_the_recursion_limit():
    """One of its parts does when it is imported; Python then dies of nested JSON that it would otherwise refuse."""
    code = (
        "import sys; before = sys.getrecursionlimit()\n"
        "from grandrounds.capabilities.integrations.chain.key import need_web3\n"
        "need_web3(); import eth_account\n"
        "print(before == sys.getrecursionlimit(), 'py_ecc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
