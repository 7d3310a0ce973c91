"""Provenance of a report: the state of the ledger when the page was drawn, and the hashes of its inputs.

A page carries them in a meta tag and one visible line, a PDF in an entry of its information dictionary. `rounds audit
verify RUN --report FILE` reads them back and compares them with the run folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html import escape, unescape
from typing import Any

from grandrounds.core.errors import BadInput

NAME = "grandrounds"
_META_TAG = re.compile(rf"<meta name='{NAME}' content='([^']*)'>")
_PDF_ENTRY = re.compile(rb"/GrandRounds \(((?:[^()\\]|\\.)*)\)")
_PDF_UPDATE = b" 0 obj\n<< /Producer (Grand Rounds) /GrandRounds "
_HEX = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class LedgerState:
    """A ledger at one moment.

    Attributes:
        run: The name of its run.
        entries: The number of its entries.
        root: The root of their Merkle tree, in hex.
        simulated: Its keys are simulated: derived from the seed.
    """

    run: str
    entries: int
    root: str
    simulated: bool


@dataclass(frozen=True)
class Provenance:
    """The ledger and the inputs that a report was drawn from.

    Attributes:
        ledger: The ledger's state; None for a run without one.
        inputs: SHA-256 of each file that the report was drawn from.
        version: The version that drew it.
        pages: For a PDF, the SHA-256 of its bytes as the browser printed them.
    """

    ledger: LedgerState | None
    inputs: Mapping[str, str]
    version: str
    pages: str = ""

    @property
    def tag(self) -> str:
        """Write the meta tag of a page."""
        return f"<meta name='{NAME}' content='{escape(self._json())}'>"

    @property
    def line(self) -> str:
        """Write one visible line as HTML; yellow for simulated keys."""
        drawn = ", ".join(f"{name} {digest[:16]}" for name, digest in sorted(self.inputs.items()))
        inputs = f"Drawn from (SHA-256, first 16 digits): {escape(drawn)}."
        if self.ledger is None:
            return f"<p class='warn'>No ledger: these figures cannot be checked against a record. {inputs}</p>"
        ledger = self.ledger
        keys = "; its keys are simulated, so anyone who knows the seed can sign it" if ledger.simulated else ""
        text = (
            f"Ledger of {escape(ledger.run)} when this page was drawn: {ledger.entries} entries, "
            f"root {escape(ledger.root)}{keys}. {inputs} "
            "<code>rounds audit verify RUN --report FILE</code> compares this page with the run folder."
        )
        return f"<p{' class=warn' if ledger.simulated else ''}>{text}</p>"

    def stamp_pdf(self, data: bytes) -> bytes:
        """Add the provenance to a PDF's information dictionary, by an incremental update at its end.

        Raises:
            BadInput: The file has no trailer of the plain kind that browsers write.
        """
        size, root = _last_match(rb"/Size (\d+)", data), _last_match(rb"/Root (\d+ \d+ R)", data)
        before = _last_match(rb"startxref\s+(\d+)\s+%%EOF", data)
        if not (size and root and before):
            raise BadInput(
                "the browser printed a PDF of an unknown kind: print report.html yourself", code="unknown-pdf-kind"
            )
        number, start = int(size), len(data) + 1
        text = replace(self, pages=hashlib.sha256(data).hexdigest())._json()
        text = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        entry = f"{number}".encode() + _PDF_UPDATE + f"({text}) >>\nendobj\n".encode()
        table = f"xref\n{number} 1\n{start:010d} 00000 n \n".encode()
        trailer = b"trailer\n<< /Size %d /Root %s /Info %d 0 R /Prev %s >>\n" % (number + 1, root, number, before)
        return data + b"\n" + entry + table + trailer + b"startxref\n%d\n%%%%EOF\n" % (start + len(entry))

    def _json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def read_provenance(data: bytes) -> Provenance:
    """Read the provenance of a page or PDF.

    Args:
        data: The bytes of the file.

    Raises:
        BadInput: The file carries none, carries several, or they are damaged.
    """
    if data.startswith(b"%PDF"):
        entries = [re.sub(rb"\\(.)", rb"\1", m) for m in _PDF_ENTRY.findall(data)]
        texts = [m.decode("utf-8", "replace") for m in entries]
    else:
        texts = [unescape(m) for m in _META_TAG.findall(data.decode("utf-8", "replace"))]
    if not texts:
        raise BadInput(
            "carries no facts about its inputs: they were removed", code="no-provenance"
        )
    if len(texts) > 1:
        raise BadInput("carries facts about its inputs more than once", code="repeated-provenance")
    try:
        return _parse(json.loads(texts[0]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput("carries facts about its inputs that cannot be read", code="damaged-provenance") from None


def _parse(values: Mapping[str, Any]) -> Provenance:
    ledger_values, inputs, version, pages = values["ledger"], values["inputs"], values["version"], values["pages"]
    ledger = None if ledger_values is None else LedgerState(**ledger_values)
    if ledger is not None and not (
        isinstance(ledger.run, str)
        and type(ledger.entries) is int
        and 0 <= ledger.entries < 2**53
        and isinstance(ledger.root, str)
        and _HEX.match(ledger.root)
        and type(ledger.simulated) is bool
    ):
        raise ValueError
    hashes = [*inputs.values(), *([pages] if pages else [])]
    if not (isinstance(version, str) and isinstance(pages, str) and all(_HEX.match(digest) for digest in hashes)):
        raise ValueError
    return Provenance(ledger, dict(inputs), version, pages)


def is_as_printed(data: bytes, provenance: Provenance) -> bool:
    """Tell whether a PDF is unchanged since it was printed, with nothing added after its provenance.

    Provenance is not signed: this does not detect somebody who changes pages and writes new provenance as well.
    """
    end = data.rfind(b"\n", 0, data.find(_PDF_UPDATE))
    try:
        return end > 0 and provenance.stamp_pdf(data[:end]) == data
    except (BadInput, ValueError):  # a number with too many digits
        return False


def _last_match(pattern: bytes, data: bytes) -> bytes:
    matches = re.findall(pattern, data)
    return matches[-1] if matches else b""
