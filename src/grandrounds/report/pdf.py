"""A page as a PDF, printed by a Chrome or Chromium of this machine, which draws its figures first."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.report.provenance import Provenance

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 120
_DRAWING = 20_000
"""Milliseconds of the page's own time that drawing may take; the browser does not wait them out."""


def write_pdf(page: str, path: Path, carried: Provenance) -> None:
    """Print a self-contained page. Nothing is fetched: the page's policy forbids it.

    `carried`: the facts about ledger and inputs that the file's information dictionary is to hold.
    """
    browser = next((at for at in map(shutil.which, BROWSERS) if at), None)
    if browser is None:
        raise BadInput(
            "a PDF needs Chrome or Chromium on this machine: install one, or print report.html yourself",
            code="browser-missing",
        )
    with tempfile.TemporaryDirectory(prefix="rounds-pdf-") as folder:
        source, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, "utf-8")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
            f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--virtual-time-budget={_DRAWING}",
            f"--print-to-pdf={made}", source.as_uri(),
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # root has none; the page is our own
        try:
            subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BadInput(
                f"{browser} did not print the page within {_SECONDS} s: try again on an idle machine",
                code="browser-timeout",
            ) from None
        if not made.exists() or not made.read_bytes().startswith(b"%PDF"):
            raise BadInput(f"{browser} could not print the page: print report.html yourself", code="browser-failed")
        try:
            write_atomic(path, carried.stamp_pdf(made.read_bytes()), durable=False)
        except OSError as e:
            raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
