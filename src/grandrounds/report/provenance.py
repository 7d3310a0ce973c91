"""Facts that a report carries about itself: the ledger as it was when the page was drawn, and the hashes of its inputs.

In a page they are a meta tag and one line for people; in a PDF an entry of its information dictionary. `rounds audit verify RUN
--report FILE` reads them back and compares them with the run folder.
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
_TAG = re.compile(rf"<meta name='{NAME}' content='([^']*)'>")
_ENTRY = re.compile(rb"/GrandRounds \(((?:[^()\\]|\\.)*)\)")
_UPDATE = b" 0 obj\n<< /Producer (Grand Rounds) /GrandRounds "
_HEX = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class LedgerState:
    """A ledger at one moment: its run, its entries and their root; `simulated`: its keys follow from the seed."""

    run: str
    entries: int
    root: str
    simulated: bool


@dataclass(frozen=True)
class Provenance:
    """The facts. `ledger`: None for a run without one; `inputs`: SHA-256 of each file that the report was drawn from.

    `pages`: of a PDF the SHA-256 of its bytes as the browser printed them.
    """

    ledger: LedgerState | None
    inputs: Mapping[str, str]
    version: str
    pages: str = ""

    @property
    def tag(self) -> str:
        """The meta tag of a page."""
        return f"<meta name='{NAME}' content='{escape(self._json())}'>"

    @property
    def line(self) -> str:
        """One line for people, as HTML; yellow for keys that follow from the seed."""
        drawn = ", ".join(f"{name} {digest[:16]}" for name, digest in sorted(self.inputs.items()))
        inputs = f"Drawn from (SHA-256, first 16 digits): {escape(drawn)}."
        if self.ledger is None:
            return f"<p class='warn'>No ledger: these figures cannot be checked against a record. {inputs}</p>"
        at = self.ledger
        keys = "; its keys are simulated, so whoever knows the seed can sign it" if at.simulated else ""
        said = (
            f"Ledger of {escape(at.run)} when this page was drawn: {at.entries} entries, root {escape(at.root)}{keys}. {inputs} "
            "<code>rounds audit verify RUN --report FILE</code> compares this page with the run folder."
        )
        return f"<p{' class=warn' if at.simulated else ''}>{said}</p>"

    def stamp_pdf(self, data: bytes) -> bytes:
        """Add the facts to a PDF's information dictionary, by an incremental update at its end.

        Raises:
            BadInput: The file has no trailer of the plain kind that browsers write.
        """
        size, root = _last(rb"/Size (\d+)", data), _last(rb"/Root (\d+ \d+ R)", data)
        before = _last(rb"startxref\s+(\d+)\s+%%EOF", data)
        if not (size and root and before):
            raise BadInput(
                "the browser printed a PDF of an unknown kind: print report.html yourself", code="unknown-pdf-kind"
            )
        number, start = int(size), len(data) + 1
        text = replace(self, pages=hashlib.sha256(data).hexdigest())._json()
        text = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        entry = f"{number}".encode() + _UPDATE + f"({text}) >>\nendobj\n".encode()
        table = f"xref\n{number} 1\n{start:010d} 00000 n \n".encode()
        trailer = b"trailer\n<< /Size %d /Root %s /Info %d 0 R /Prev %s >>\n" % (number + 1, root, number, before)
        return data + b"\n" + entry + table + trailer + b"startxref\n%d\n%%%%EOF\n" % (start + len(entry))

    def _json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def read_provenance(data: bytes) -> Provenance:
    """Read the facts of a page or PDF.

    Raises:
        BadInput: The file carries none, carries several, or they are damaged.
    """
    if data.startswith(b"%PDF"):
        found = [re.sub(rb"\\(.)", rb"\1", m) for m in _ENTRY.findall(data)]
        texts = [m.decode("utf-8", "replace") for m in found]
    else:
        texts = [unescape(m) for m in _TAG.findall(data.decode("utf-8", "replace"))]
    if not texts:
        raise BadInput(
            "carries no facts about its inputs: an earlier version drew it, or they were removed", code="no-provenance"
        )
    if len(texts) > 1:
        raise BadInput("carries facts about its inputs more than once", code="repeated-provenance")
    try:
        return _parse(json.loads(texts[0]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput("carries facts about its inputs that cannot be read", code="damaged-provenance") from None


def _parse(said: Mapping[str, Any]) -> Provenance:
    held, inputs, version, pages = said["ledger"], said["inputs"], said["version"], said["pages"]
    ledger = None if held is None else LedgerState(**held)
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


def is_as_printed(data: bytes, carried: Provenance) -> bool:
    """Tell that nothing of a PDF was changed, or added after its facts, since it was printed.

    Facts are not signed: who changes pages and writes new facts as well is not found by this.
    """
    at = data.rfind(b"\n", 0, data.find(_UPDATE))
    try:
        return at > 0 and carried.stamp_pdf(data[:at]) == data
    except (BadInput, ValueError):  # a number of more digits than one is read of
        return False


def _last(pattern: bytes, data: bytes) -> bytes:
    found = re.findall(pattern, data)
    return found[-1] if found else b""
