"""Canonical JSON (RFC 8785): one value has exactly one byte string, so that its hash is well-defined.

The package `rfc8785` is the reference and handles everything unusual. Plain maps of names and numbers, such as a Decision
of ten thousand sites, are written here directly: the same bytes (property test), ten times faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring as _text
from typing import Any

import rfc8785

from grandrounds.core.errors import BadInput

_SAFE = 2**53
DEEPEST = 500
"""Deepest nesting of lists and maps. Deeper JSON is refused before parsing: if a program has raised Python's recursion
limit (web3 does), parsing it would end the process.
"""
_MARK = re.compile(rb'(?s)"(?:[^"\\]|\\.)*+"?|[\[\]{}]')


def canonical(value: Any) -> bytes:
    """Encode a JSON value canonically.

    Args:
        value: The value.

    Returns:
        Its canonical bytes.

    Raises:
        BadInput: It is not valid JSON, such as NaN or a key that is not text.
    """
    try:
        return _written(value).encode()
    except rfc8785.FloatDomainError as e:
        raise BadInput(
            f"no canonical JSON: {e}; a ledger can contain finite numbers only", code="not-canonical"
        ) from None
    except rfc8785.IntegerDomainError as e:
        raise BadInput(f"no canonical JSON: {e}; write a number of this size as text", code="not-canonical") from None
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeEncodeError) as e:
        raise BadInput(f"no canonical JSON: {e}", code="not-canonical") from None


def parse(data: bytes) -> Any:
    """Parse canonical JSON; any other bytes are refused, even if they mean the same."""
    value = loads(data)
    if canonical(value) != data:
        raise BadInput("is not in canonical form (RFC 8785)", code="not-canonical")
    return value


def loads(data: bytes) -> Any:
    """Parse JSON. Canonical JSON writes 1e17 as digits, which are converted back to a float."""
    if _is_too_deep(data):
        raise BadInput(f"is not JSON of a ledger: it is nested more than {DEEPEST} deep", code="nested-too-deeply")
    try:
        return json.loads(data.decode(), parse_int=_whole)
    except (ValueError, RecursionError):
        raise BadInput("is not JSON", code="not-json") from None


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for mark in _MARK.finditer(data):
        depth += (mark[0] in b"[{") - (mark[0] in b"]}")
        if depth > DEEPEST:
            return True
    return False


def _whole(digits: str) -> int | float:
    number = int(digits)
    if -_SAFE < number < _SAFE:
        return number
    try:
        return float(number)
    except OverflowError:
        raise ValueError("a number that no double represents") from None


def _written(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is float:
        return _number(value)
    if kind is dict:
        if set(map(type, value)) <= {str} and "".join(value).isascii():  # then text sorts like its UTF-16
            kinds = set(map(type, value.values()))
            write: Callable[[Any], str] = _text if kinds == {str} else _number if kinds == {float} else _written
            return "{" + ",".join([f"{_text(k)}:{write(value[k])}" for k in sorted(value)]) + "}"
    elif kind is list or kind is tuple:
        return "[" + ",".join([_written(item) for item in value]) + "]"
    elif kind is int and -_SAFE < value < _SAFE:
        return str(value)
    return rfc8785.dumps(value).decode()


def _number(value: float) -> str:
    if value.is_integer() and -_SAFE < value < _SAFE:
        return str(int(value))
    plain = repr(value)
    if "e" in plain or "n" in plain or plain.endswith(".0"):  # ECMAScript writes it differently
        return rfc8785.dumps(value).decode()
    return plain
