"""Plotly figures as plain data, built without importing Plotly and drawn by the browser.

Importing plotly takes half a second, and the package is optional. A figure is a dict of `data` and `layout`, so none of it
needs the import. With plotly installed, `Figure.plotly()` returns a checked plotly figure.

A page contains the script plotly.min.js. The file is 4.8 MB; packed it is 1.5 MB, and the browser unpacks it. Packing takes a
fifth of a second, so it is done once per machine and stored in the user's cache folder.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from html import escape, unescape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import plain, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.data.store import cache_folder
from grandrounds.report.document import CONFIG, Charts, document

_CACHED_LEVEL = 6
_UNCACHED_LEVEL = 1  # without a cache every page compresses again


def script_file() -> Path | None:
    """Find plotly.min.js of the installed plotly; None where there is none."""
    try:
        spec = find_spec("plotly")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=1)
def packed_script() -> str | None:
    """Return plotly.min.js as gzip in base64; None where plotly is not installed."""
    path = script_file()
    return None if path is None else base64.b64encode(_packed_bytes(path)).decode()


def _packed_bytes(path: Path) -> bytes:
    facts = path.stat()
    cached = cache_folder() / f"plotly-{facts.st_size}-{facts.st_mtime_ns}.js.gz"
    data_cached = _read_cached(cached, size=facts.st_size)
    if data_cached is not None:
        return data_cached
    text = path.read_bytes()
    part: Path | None = None
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cached.parent, prefix=".part-", delete=False) as f:
            part = Path(f.name)
            data = gzip.compress(text, _CACHED_LEVEL, mtime=0)
            f.write(data)
        part.replace(cached)
    except OSError:
        if part is not None:
            part.unlink(missing_ok=True)
        return gzip.compress(text, _UNCACHED_LEVEL, mtime=0)
    return data


def _read_cached(path: Path, *, size: int) -> bytes | None:
    """Read the packed script from the cache if it is complete: gzip's last four bytes hold the length of the text."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    complete = data[:2] == b"\x1f\x8b" and int.from_bytes(data[-4:], "little") == size % 2**32
    return data if complete else None


Trace = dict[str, Any]
"""One trace of a figure, as Plotly reads it."""

Layout = dict[str, Any]
"""The layout of a figure or a part of it (an axis, a legend), as Plotly reads it."""

MIME = "application/vnd.plotly.v1+json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Commands of a browser that prints pages and draws images of figures."""


def find_browser() -> str | None:
    """Return the path of a Chrome or Chromium of this machine; None where there is none."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


class Figure(dict[str, Any]):
    """A figure: `data` and `layout` as Plotly reads them, in JSON's own types."""

    def __init__(self, data: Sequence[Trace], layout: Layout) -> None:
        super().__init__(data=plain(list(data)), layout=plain(layout))

    @property
    def title(self) -> str:
        """Return the title without its markup."""
        text = str(self["layout"]["title"]["text"])
        return unescape(text.partition("</b>")[0].removeprefix("<b>"))

    def plotly(self) -> Any:
        """Convert to a checked plotly.graph_objects.Figure.

        Raises:
            BadInput: plotly is not installed.
        """
        try:
            from plotly.graph_objects import Figure as Drawn
        except ImportError:
            raise BadInput("plotly is not installed: `pip install plotly`", code="missing-package") from None
        return Drawn(dict(self))

    def show(self) -> None:
        """Show the figure as Plotly does: in a browser, or below a notebook's cell.

        Raises:
            BadInput: plotly is not installed.
        """
        self.plotly().show()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {MIME: {**self, "config": CONFIG}, "text/plain": f"Figure: {self.title}"}

    def html(self, div_id: str) -> str:
        """Write the figure's element and its data; `document.document` adds the script that draws it."""
        name = escape(div_id)
        head = f'<div class="plot" id="{name}" role="img" aria-label="{escape(self.title)}"'
        style = f'style="height:{self["layout"]["height"]}px"'
        return f'{head} {style}></div><script type="application/json" data-figure="{name}">{self._json()}</script>'

    def _json(self) -> str:
        """Write JSON that is safe inside a script element: no name in it can end the element or begin a comment."""
        text = json.dumps(self, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def write_html(self, path: str | Path) -> None:
        """Write one page with this figure and all it takes to draw it.

        Raises:
            BadInput: plotly is not installed, or the file cannot be written.
        """
        script = packed_script()
        if script is None:
            raise BadInput(
                "plotly is not installed, and its script draws the figure: `pip install plotly`", code="missing-package"
            )
        charts = Charts(script)
        body = [charts.note, charts.place(self, wide=True)]
        _write(Path(path), document(self.title, body, script).encode())

    def write_png(self, path: str | Path, *, width: int = 900, height: int | None = None) -> None:
        """Write an image of the figure, at twice the pixels; kaleido draws it in a Chrome or Chromium of this machine.

        Args:
            path: The file.
            width: Its width in CSS pixels.
            height: Its height in CSS pixels; by default the figure's own.

        Raises:
            BadInput: kaleido, plotly or a browser is missing, or the file cannot be written.
        """
        script = script_file()
        try:
            kaleido = import_module("kaleido")
            draw, missing = kaleido.calc_fig_sync, import_module("choreographer.browsers.chromium").ChromeNotFoundError
        except (ImportError, AttributeError):
            raise BadInput(
                "a PNG needs kaleido 1 or newer: `pip install -U kaleido`, or use write_html", code="missing-package"
            ) from None
        if script is None:
            raise BadInput(
                "plotly is not installed, and its script draws the figure: `pip install plotly`", code="missing-package"
            )
        size = {"format": "png", "width": width, "height": height or self["layout"]["height"], "scale": 2}
        # no MathJax, no script from a content network: nothing is fetched
        browser = {"path": find_browser(), "mathjax": False, "plotlyjs": script.as_uri()}
        try:
            drawn = draw({"data": self["data"], "layout": self["layout"]}, opts=size, kopts=browser)
        except missing:
            raise BadInput(
                "a PNG needs Chrome or Chromium on this machine: install one, or use write_html", code="browser-missing"
            ) from None
        _write(Path(path), drawn)


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data, durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another place", code="cannot-write") from None
