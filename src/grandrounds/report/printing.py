"""Print a self-contained page to PDF in a Chrome or Chromium of this machine, with page numbers, a header and bookmarks.

The browser is driven over a pair of pipes (its DevTools protocol), so that no port is open and no further package is needed. The
page's policy forbids it to fetch anything.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, visible
from grandrounds.report.figure import find_browser
from grandrounds.report.provenance import Provenance

_PRINT_SECONDS = 120
_MARGINS = "@media print { @page { size: A4; margin: 19mm 12mm 16mm } }"
"""Margins that leave room for the header and the footer."""
_LAUNCH = (
    "import fcntl, os, sys\n"
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]\n"
    "for end, number in zip(ends, (3, 4)): os.dup2(end, number); os.close(end)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""Starts the browser with the pipes at the numbers 3 and 4, where it expects them."""
_DRAWN = (
    "document.readyState === 'complete' && (document.getElementById('plotly-packed') === null || "
    "document.documentElement.dataset.drawn !== undefined)"
)
_LINE = "width:100%;margin:0 12mm;font:9px system-ui,Helvetica,Arial,sans-serif;color:#57606a;display:flex"


def write_pdf(page: str, path: Path, provenance: Provenance, *, header: tuple[str, str] | None = None) -> None:
    """Print a page.

    Args:
        page: The page.
        path: The PDF to write.
        provenance: The facts about ledger and inputs that the file's information dictionary holds.
        header: Texts at the left and at the right of each page's top; with them each page has its number. None: neither.

    Raises:
        BadInput: There is no browser, it fails, or the file cannot be written.
    """
    browser = find_browser()
    if browser is None:
        raise BadInput(
            "a PDF needs Chrome or Chromium on this machine: install one, or print report.html yourself",
            code="browser-missing",
        )
    printed = _print(browser, page, header)
    if not printed.startswith(b"%PDF"):
        raise BadInput(f"{browser} could not print the page: print report.html yourself", code="browser-failed")
    try:
        write_atomic(path, provenance.stamp_pdf(printed), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None


def _print(browser: str, page: str, header: tuple[str, str] | None) -> bytes:
    """Print a page in a new browser; returns the PDF."""
    deadline = time.monotonic() + _PRINT_SECONDS
    with tempfile.TemporaryDirectory(prefix="rounds-pdf-", ignore_cleanup_errors=True) as folder:
        source = Path(folder) / "report.html"
        style = f"<style>{_MARGINS}</style></head>" if header is not None else "</head>"
        source.write_text(page.replace("</head>", style, 1), "utf-8")
        try:
            with _Browser(browser, Path(folder) / "profile", deadline) as driver:
                driver.open(source.as_uri())
                return driver.print_pdf(header)
        except TimeoutError:
            raise BadInput(
                f"{browser} did not print the page within {_PRINT_SECONDS} s: try again on an idle machine",
                code="browser-timeout",
            ) from None
        except (OSError, ValueError, KeyError):
            raise BadInput(f"{browser} could not print the page: print report.html yourself", code="browser-failed") from None


class _Browser:
    """A headless browser, driven over pipes."""

    def __init__(self, path: str, profile: Path, deadline: float) -> None:
        self._path, self._profile, self._deadline = path, profile, deadline
        self._number, self._session, self._unread = 0, "", b""

    def __enter__(self) -> _Browser:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            self._path, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # the sandbox does not start as root; the page is our own
            f"--user-data-dir={self._profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _LAUNCH, str(to_browser), str(from_browser), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser), start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._out)
        os.close(self._in)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)  # a browser whose pipe was closed ends by itself
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def open(self, address: str) -> None:
        """Open a page as it is on paper, and wait until its figures are drawn."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Emulation.setEmulatedMedia", media="print")
        self._call("Page.navigate", url=address)
        while not self._call("Runtime.evaluate", expression=_DRAWN, returnByValue=True)["result"].get("value"):
            time.sleep(0.05)

    def print_pdf(self, header: tuple[str, str] | None) -> bytes:
        """Print the open page with an outline of its headings."""
        options: dict[str, Any] = {"printBackground": True, "preferCSSPageSize": True}
        options |= {"generateTaggedPDF": True, "generateDocumentOutline": True}
        if header is not None:
            left, right = (escape(visible(text)) for text in header)
            both = "<span style='flex:1'>{}</span><span>{}</span>"
            numbers = "page <span class='pageNumber'></span> of <span class='totalPages'></span>"
            options |= {
                "displayHeaderFooter": True,
                "headerTemplate": f"<div style='{_LINE}'>{both.format(left, right)}</div>",
                "footerTemplate": f"<div style='{_LINE}'>{both.format('', numbers)}</div>",
            }
        return base64.b64decode(self._call("Page.printToPDF", **options)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and wait for its result.

        Raises:
            ValueError: The browser refuses.
            TimeoutError: The time is over.
            OSError: The browser ended.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = json.loads(self._read())
            if answer.get("id") != self._number:
                continue  # an event
            if "error" in answer:
                raise ValueError(method)
            result: dict[str, Any] = answer["result"]
            return result

    def _read(self) -> bytes:
        """Read one message."""
        chunks = [self._unread]
        while b"\0" not in chunks[-1]:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise OSError("the browser ended")
            chunks.append(chunk)
        message, _, self._unread = b"".join(chunks).partition(b"\0")
        return message
