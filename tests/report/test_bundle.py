"""The part of plotly.js that reports and the console contain draws every kind of figure, in a real browser."""

from __future__ import annotations

import gzip

from grandrounds.report.document import Charts, document
from grandrounds.report.figure import packed_script, packed_script_bytes
from tests.report.figures.test_gallery import GALLERY


def test_the_bundle_is_small_and_makes_no_code_from_text():
    text = gzip.decompress(packed_script_bytes()).decode()
    assert len(packed_script_bytes()) < 500_000
    assert "plotly.js v4.1.1" in text[:100]
    assert "new Function" not in text, "which the console's policy forbids"


def test_every_figure_is_drawn_with_the_bundle(chromium, tmp_path):
    charts = Charts(packed_script())
    body = [charts.note, charts.place(*GALLERY.values(), wide=True)]
    page_file = tmp_path / "all.html"
    page_file.write_text(document("All", body, charts.script))
    kinds = {trace.get("type", "scatter") for figure in GALLERY.values() for trace in figure["data"]}
    page, wrong = chromium.new_page(), []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.goto(page_file.as_uri())
    page.wait_for_function(
        f"() => document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3 * {len(GALLERY)}"
        " || !document.getElementById('no-charts').hidden",
        timeout=120_000,
    )
    traces = page.evaluate("() => [...document.querySelectorAll('.js-plotly-plot')].map(p => p._fullData.length)")
    known = set(page.evaluate("() => Object.keys(Plotly.PlotSchema.get().traces)"))
    page.close()
    assert not wrong
    assert traces == [len(figure["data"]) for figure in GALLERY.values()]
    assert kinds <= known
