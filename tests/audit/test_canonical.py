"""RFC 8785: its own examples, parity with the package that is the judge, and what is refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.audit.canonical import DEEPEST, canonical, loads, parse
from tests.support import refused

NUMBERS = [  # RFC 8785, appendix B: the bits of a double, and its text
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555555", "333333333.3333333"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]
TEXT = st.text(max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_are_written_as_in_the_rfc(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text
    assert canonical({"site": value}).decode() == f'{{"site":{text}}}'


def test_the_examples_of_the_rfc():
    """Sections 3.2.2 and 3.2.3: literals, text, and keys sorted by their UTF-16."""
    given = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(given).decode() == wanted
    keys = {"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\u0080": 6, "ö": 7}
    assert list(json.loads(canonical(keys))) == ["\r", "1", "\u0080", "ö", "€", "😀", "\ufb33"]


@given(VALUES)
def test_the_fast_way_gives_the_bytes_of_the_package(value):
    try:
        wanted = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        with refused("not-canonical"):
            canonical(value)
        return
    assert canonical(value) == wanted
    assert parse(wanted) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], {"a": {"b": float("nan")}}])
def test_numbers_that_are_none_are_refused(value):
    with refused("not-canonical"):
        canonical(value)


@pytest.mark.parametrize(
    "value", [{1: 2}, {"a": {None: 1}}, {"a": {1, 2}}, object(), "\ud800", {"\ud800": 1}, b"bytes"]
)
def test_what_is_no_json_is_refused(value):
    with refused("not-canonical"):
        canonical(value)


def test_numbers_too_large_for_json_are_refused():
    with refused("not-canonical"):
        canonical({"seed": 2**60})


@pytest.mark.parametrize("data", [b"{", b"", b"\xff", b"nul", b"[" * 100_000, "[1]".encode("utf-16")])
def test_other_bytes_are_no_json(data):
    with refused("nested-too-deeply" if data.startswith(b"[[") else "not-json"):
        parse(data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'["\\"[",', b'"\\"' + b"["])
def test_deep_nesting_is_refused_where_python_would_die_of_it(opening):
    """A program may have raised Python's recursion limit (web3 raises it to 100,000): then json.loads is a crash."""
    code = (
        "import sys; sys.setrecursionlimit(100_000)\n"
        "from grandrounds.audit.canonical import loads\n"
        "from grandrounds.core.errors import BadInput\n"
        f"try: loads({opening!r} * 100_000)\n"
        "except BadInput: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_nesting_counts_and_brackets_in_text_or_side_by_side_do_not():
    def nested(depth):
        return b"[" * depth + b"]" * depth

    with refused("nested-too-deeply", match=f"nested more than {DEEPEST} deep"):
        loads(nested(DEEPEST + 1))
    for fine in (nested(DEEPEST - 100), b"[" + b",".join([b"{}"] * 5000) + b"]", b'["' + b'\\"[' * 5000 + b'"]'):
        assert json.dumps(loads(fine), separators=(",", ":")).encode() == fine


@pytest.mark.parametrize("data", [b'{"b":1,"a":2}', b"[1, 2]", b"1.0", b"1e0", b'{"a":1,"a":1}', b'"\\u0041"', b"-0"])
def test_other_spellings_are_refused(data):
    with refused("not-canonical"):
        parse(data)


def test_a_number_that_no_double_holds_is_refused_in_words():
    with refused("not-json"):
        parse(b'{"size":1' + b"0" * 400 + b"}")
