"""Bytes of the console: compressed, stored by browsers until they change, and few on a first visit."""

from __future__ import annotations

import gzip
import re

import pytest

from grandrounds.capabilities.console.render import environment
from grandrounds.capabilities.console.static_files import accepts_gzip, static_files

FIRST_VISIT = 1_600_000
"""Bytes that a browser may transfer until it has shown a run with all its figures."""


def test_files_are_compressed_where_a_browser_takes_it(signed):
    client = signed.client()
    packed = client.get("/static/plotly.min.js", headers={"accept-encoding": "gzip, br"})
    plain = client.get("/static/plotly.min.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert packed.content == plain.content and int(packed.headers["content-length"]) * 2 < int(
        plain.headers["content-length"]
    )
    assert packed.headers["vary"] == "accept-encoding" and packed.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
    ],
)
def test_gzip_is_sent_only_where_it_is_accepted(header, taken):
    assert accepts_gzip(header) is taken


def test_addresses_on_a_page_have_a_hash_and_are_stored_for_a_year(signed):
    client = signed.client("all")
    page = client.get("/run", params={"run": "plain"}).text
    addresses = re.findall(r'"(/static/[^"]+)"', page)
    assert any("plotly.min.js" in a for a in addresses) and all("?v=" in a for a in addresses)
    for address in addresses:
        assert client.get(address).headers["cache-control"] == "public, max-age=31536000, immutable", address
    for other in ("/static/console.css", "/static/console.css?v=0123456789abcdef"):
        assert client.get(other).headers["cache-control"] == "no-cache"


def test_no_script_names_a_static_file_without_its_hash():
    for name, file in static_files().items():
        if name != "plotly.min.js":
            assert "/static/" not in gzip.decompress(file.packed).decode(), name
    assert environment().from_string('<a href="/static/nothing.js">').render() == '<a href="/static/nothing.js">'


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/x.js"]
)
def test_no_other_file_is_served(signed, path):
    assert signed.client("all").get(path).status_code == 404


def test_figures_are_compressed_and_patients_are_not(signed):
    client = signed.client("all")
    figure = client.get(
        "/api/run/figure", params={"run": "plain", "figure": "curves"}, headers={"accept-encoding": "gzip"}
    )
    assert figure.headers["content-encoding"] == "gzip" and "data" in figure.json()
    page = client.get("/run", params={"run": "plain"}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in page.headers, "a page has the session's token"


def test_a_first_visit_is_light(window, console):
    """Sign in, the list, and a section of a run with its figures, in a browser with an empty cache."""
    received = []
    session = window.page.context.new_cdp_session(window.page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    window.sign_in(console.tokens["all"])
    window.go("/run?run=by-reasons&section=explanations")
    window.page.evaluate("() => rounds.all()")
    window.page.wait_for_load_state("networkidle")
    first = sum(received)
    assert 300_000 < first < FIRST_VISIT
    received.clear()
    window.go("/run?run=by-reasons&section=explanations")
    window.page.evaluate("() => rounds.all()")
    window.page.wait_for_load_state("networkidle")
    assert sum(received) < first / 4, "scripts and styles are not transferred again"
    assert not window.wrong
