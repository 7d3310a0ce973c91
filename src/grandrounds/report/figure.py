"""Plotly figures as plain data, built without importing Plotly and drawn by the browser.

Importing plotly takes half a second, and the package is optional. A figure is a dict of `data` and `layout`, so none of it
needs the import. With plotly installed, `Figure.plotly()` returns a checked plotly figure.

A page contains the script that draws them: a part of plotly.js, 0.45 MB packed, which the browser unpacks.
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
from importlib.resources import files
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import plain, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.report.document import CONFIG, Charts, document

SCRIPT = "static/plotly.min.js.gz"
"""The script that draws figures, packed: plotly.js with the kinds of traces that our figures have (tools/plotly)."""


@lru_cache(maxsize=1)
def packed_script_bytes() -> bytes:
    """Return the script that draws figures, as gzip."""
    return (files("grandrounds.report") / SCRIPT).read_bytes()


@lru_cache(maxsize=1)
def packed_script() -> str:
    """Return the script that draws figures, as gzip in base64."""
    return base64.b64encode(packed_script_bytes()).decode()


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
            BadInput: The file cannot be written.
        """
        script = packed_script()
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
            BadInput: kaleido or a browser is missing, or the file cannot be written.
        """
        try:
            kaleido = import_module("kaleido")
            draw, missing = kaleido.calc_fig_sync, import_module("choreographer.browsers.chromium").ChromeNotFoundError
        except (ImportError, AttributeError):
            raise BadInput(
                "a PNG needs kaleido 1 or newer: `pip install -U kaleido`, or use write_html", code="missing-package"
            ) from None
        size = {"format": "png", "width": width, "height": height or self["layout"]["height"], "scale": 2}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "plotly.min.js"
            script.write_bytes(gzip.decompress(packed_script_bytes()))
            # no MathJax, no script from a content network: nothing is fetched
            browser = {"path": find_browser(), "mathjax": False, "plotlyjs": script.as_uri()}
            try:
                drawn = draw({"data": self["data"], "layout": self["layout"]}, opts=size, kopts=browser)
            except missing:
                raise BadInput(
                    "a PNG needs Chrome or Chromium on this machine: install one, or use write_html",
                    code="browser-missing",
                ) from None
        _write(Path(path), drawn)


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data, durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another place", code="cannot-write") from None
