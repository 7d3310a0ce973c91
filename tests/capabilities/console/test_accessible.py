"""Every page of the console in light and dark, by keyboard, on a desk, a tablet and a screen that is magnified four times.

What a program can check of WCAG 2.2 A and AA is checked by axe-core, in real Chromium.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.capabilities.console.conftest import Window
from tests.capabilities.console.every_page import PLACES, numbers, served

AXE = Path(sys.prefix, "axe/node_modules/axe-core/axe.min.js")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SIZES = {"desk": (1280, 900), "tablet": (820, 1180), "four times": (320, 600)}
"""320 pixels: what is left of 1280 at 400% (WCAG 1.4.10)."""

FIGURED = [name for name, place in PLACES.items() if place.figures]

BROKEN = """async only => {
  const colours = {type: "rule", values: ["color-contrast", "link-in-text-block"]};
  const wanted = {runOnly: only === null ? colours : {type: "tag", values: only}, resultTypes: ["violations"]};
  if (only !== null) wanted.rules = {"target-size": {enabled: true}};
  // a figure is one picture with a name; axe has nothing to say of its inside and takes ten times as long with it
  const inside = [...document.querySelectorAll(".plot")].map(plot => [plot, [...plot.childNodes]]);
  inside.forEach(([plot]) => plot.replaceChildren());
  const {violations} = await axe.run(document, wanted);
  inside.forEach(([plot, nodes]) => plot.replaceChildren(...nodes));
  return violations.flatMap(({id, nodes}) => nodes.map(node => `${id}: ${node.target.join(" ")}: ${node.failureSummary}`));
}"""
PALE = """() => {
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0);
  const rgb = words => words.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const paper = light(rgb(getComputedStyle(document.querySelector(".card, figure.chart")).backgroundColor));
  const contrast = other => (Math.max(paper, other) + .05) / (Math.min(paper, other) + .05);
  const words = [...document.querySelectorAll(".plot text, .plot tspan")].filter(text =>
    [...text.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && !text.closest(".heatmap-label, .hm"));
  return [words.length, words.map(text => [text.textContent, contrast(light(rgb(getComputedStyle(text).fill)))])
    .filter(([, ratio]) => ratio < 4.5)];
}"""
TOO_WIDE = """() => {
  const boxes = [...document.querySelectorAll("main *")].filter(box => getComputedStyle(box).overflowX === "auto"
    && box.checkVisibility() && box.scrollWidth > box.clientWidth + 1);
  const named = box => box.tabIndex === 0 && box.getAttribute("role") === "region" && box.getAttribute("aria-label");
  const page = document.documentElement.scrollWidth > innerWidth ? [document.body] : [];
  return [...page, ...boxes.filter(box => !named(box))].map(box => box.outerHTML.slice(0, 120));
}"""
SHOWN = "x => x.checkVisibility({visibilityProperty: true}) && !x.disabled"
REACHED = """() => {
  const own = document.activeElement, style = getComputedStyle(own), box = own.getBoundingClientRect();
  if (own === document.body) return null;
  const there = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const ring = style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2;
  return [window.able.indexOf(own), ring && there, own.outerHTML.slice(0, 120)];
}"""


@pytest.fixture(scope="module")
def visitors(chromium, everything) -> Iterator[dict[str, Window]]:
    """Somebody with every role, a viewer, and somebody who is not signed in: each with a page of their own."""
    with ExitStack() as stack:
        console = stack.enter_context(served(everything))
        found = {}
        for user in {place.user for place in PLACES.values()}:
            # axe-core is no script of the console's: only where it is put in the policy steps aside
            context = chromium.new_context(bypass_csp=True, color_scheme="light")
            stack.callback(context.close)
            context.set_default_timeout(30_000)
            found[user] = Window(context.new_page(), console.url)
            if user:
                found[user].sign_in(console.tokens[user])
        yield found


@pytest.fixture(scope="module", params=PLACES)
def page(request, visitors, everything):
    """A page that is complete, with all figures drawn."""
    place = PLACES[request.param]
    window = visitors[place.user]
    sized(window.page, "desk")
    window.go(place.path.format(**numbers(everything)))
    window.until(place.ready)
    window.page.evaluate("() => window.rounds?.all?.()")
    return window.page


def sized(page, size: str) -> None:
    """A screen of this size, on which everything has found its place."""
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def dark(page, wanted: bool) -> None:
    page.emulate_media(color_scheme="dark" if wanted else "light")
    page.wait_for_function(f"() => document.documentElement.dataset.theme === '{'dark' if wanted else 'light'}'")


@pytest.mark.thinned(3)
def test_no_rule_is_broken_in_light_or_dark(page):
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE}: `make test` installs it where there is npm")
    page.evaluate(AXE.read_text())
    assert page.evaluate(BROKEN, RULES) == []
    dark(page, True)
    try:
        assert page.evaluate(BROKEN, None) == []
    finally:
        dark(page, False)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("page", FIGURED, indirect=True, scope="module")
def test_words_in_figures_stand_out_in_light_and_dark(page):
    assert page.locator("figure.chart").count() == page.locator("figure.chart .main-svg:first-child").count()
    for wanted in (True, False):
        dark(page, wanted)
        count, pale = page.evaluate(PALE)
        assert count > 10 and pale == []


@pytest.mark.thinned(4)
@pytest.mark.parametrize("size", SIZES)
def test_nothing_scrolls_sideways_but_tables_in_boxes_of_their_own(page, size):
    sized(page, size)
    try:
        for _ in range(50):  # figures follow a moment later
            if not (found := page.evaluate(TOO_WIDE)):
                break
            page.wait_for_timeout(100)
        assert found == []
    finally:
        sized(page, "desk")


@pytest.mark.thinned(3)
def test_all_that_can_be_used_is_reached_by_tab_and_shows_it(page):
    able = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
    count = page.evaluate(f"""() => {{
      window.able = [...document.querySelectorAll("{able}")].filter({SHOWN});
      document.querySelector(".skip").focus();
      return window.able.length;
    }}""")
    reached = {0}  # the link that skips to the page, which comes first
    for _ in range(count + 5):
        page.keyboard.press("Tab")
        told = page.evaluate(REACHED)
        if told is None or told[0] in reached:
            break
        assert told[0] > 0 and told[1], told[2]
        reached.add(told[0])
    missed = sorted(set(range(count)) - reached)
    assert [page.evaluate("k => window.able[k].outerHTML.slice(0, 120)", k) for k in missed] == []


@pytest.mark.thinned(3)
@pytest.mark.parametrize("page", FIGURED, indirect=True, scope="module")
def test_every_figure_has_a_name_says_what_it_shows_and_has_its_numbers(page):
    for figure in page.locator("figure.chart").all():
        name = figure.get_attribute("aria-label")
        plot = figure.locator(".plot")
        assert plot.get_attribute("role") == "img" and name
        assert figure.locator(".gtitle").text_content().startswith(name)
        assert plot.get_attribute("aria-label").startswith(name) and "numbers" in plot.get_attribute("aria-label")
        beside = figure.evaluate("own => own.nextElementSibling?.tagName === 'DETAILS'")
        table = figure.locator("xpath=following-sibling::details[1]") if beside else figure.locator("details.numbers")
        table.locator("summary").click()
        table.locator("tbody tr").first.wait_for()
        cells = table.locator("tbody tr >> nth=0 >> css=th, td").all_inner_texts()
        assert len(cells) >= 2 and all(cells), name
        table.locator("summary").click()
