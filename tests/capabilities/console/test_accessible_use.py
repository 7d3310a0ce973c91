"""The console without a mouse, without seeing its figures, on paper, and for those who see fewer colours."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from grandrounds.report.style import COLOURS, INK, MORE_COLOURS, SIGNED
from grandrounds.runs.run import load_run
from tests.report import EVIL

FOCUSED = "() => document.activeElement.id || document.activeElement.textContent.trim()"
BLIND = {
    "to nothing": np.eye(3),
    "to red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "to green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "to blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What of linear RGB reaches whom: the matrices of Machado, Oliveira and Fernandes 2009 at severity 1."""
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
"""Linear sRGB to CIE XYZ under D65."""


def test_the_first_key_leads_past_the_navigation(window, console):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    window.go("/")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to the page"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUSED) == "main"
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "q"


def test_a_table_is_sorted_by_key_and_says_how(window, console):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    for order in ("descending", "ascending"):
        page.locator("#q").focus()
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate(FOCUSED) == "pooled AUROC":
                break
        page.keyboard.press("Enter")
        page.locator(f"th[aria-sort={order}]").wait_for()
        assert page.locator("th[aria-sort]").all_inner_texts() == ["pooled AUROC"]
        column = page.locator("#runs thead th").all_inner_texts().index("pooled AUROC")
        shown = [float(t) for t in page.locator(f"#runs tbody td:nth-child({column + 1})").all_inner_texts()]
        assert shown == sorted(shown, reverse=order == "descending")


def test_a_round_and_a_site_are_chosen_by_key(window, console, runs):
    window.sign_in(console.tokens["viewer"])
    page, run = window.page, load_run(runs / "trust")
    window.go("/run?run=trust&section=weights")
    page.locator("#sites button").first.wait_for()
    slider = page.locator("#round")
    slider.focus()
    for key, said in (("Home", "round 1 of 3"), ("ArrowRight", "round 2 of 3")):
        page.keyboard.press(key)
        window.until(f"document.querySelector('#round').getAttribute('aria-valuetext') === '{said}'")
    window.until(f"document.querySelector('#round-why').textContent === {run.record(2)['decision']['why']!r}")
    for _ in range(2):  # the first site is explained already
        page.keyboard.press("Tab")
    site = page.evaluate("() => document.activeElement.dataset.site")
    assert page.evaluate("() => document.activeElement.ariaPressed") == "false"
    page.keyboard.press("Space")
    window.until("document.activeElement.ariaPressed === 'true'")
    window.until(f"document.querySelector('#why').textContent.includes({run.why(2, site).splitlines()[0]!r})")
    assert page.locator("#why p").all_inner_texts() == run.why(2, site).splitlines()
    assert page.locator("#why").get_attribute("aria-live") == "polite"


@pytest.mark.slow
def test_a_click_on_a_site_in_a_figure_does_the_same(window, console, runs):
    """On the second site of a figure: in the first round, or in the round that the page is at, which is that one then."""
    window.sign_in(console.tokens["viewer"])
    page, run = window.page, load_run(runs / "trust")
    for figure, round_number in {"weights-by-signal": 3, "weights": 1}.items():
        window.go(f"/run?run=trust&section=weights&figure={figure}")
        window.drawn(figure)
        site, x, y = page.locator(f'figure[data-figure="{figure}"] .plot').evaluate("""plot => {
          const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect(), [first, second] = plot.data;
          const [site, across, up] = first.type === "heatmap" ? [first.y[1], xaxis.l2p(0), yaxis.l2p(1)]
            : xaxis.type === "category" ? [first.x[1], xaxis.l2p(1), yaxis.l2p(first.y[1] / 2)]
            : [second.name, xaxis.l2p(1), yaxis.l2p(first.y[0] + second.y[0] / 2)];
          return [site, box.left + xaxis._offset + across, box.top + yaxis._offset + up];
        }""")
        page.locator("#sites button").first.wait_for()
        page.mouse.move(x - 1, y)
        page.mouse.click(x, y)
        window.until("document.querySelector('#why p') !== null && document.activeElement.dataset.site !== undefined")
        assert page.locator("#why p").all_inner_texts() == run.why(round_number, site).splitlines()
        assert page.evaluate("() => document.activeElement.dataset.site") == site
    assert window.wrong == []


@pytest.mark.slow
def test_the_numbers_of_a_figure_are_those_that_are_drawn_and_follow_it(window, console, signed):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    window.go("/run?run=plain&section=weights&figure=weights")
    window.drawn("weights")
    asked = {"run": "plain", "figure": "weights"}
    data = signed.client("viewer").get("/api/run/figure", params=asked).json()["data"]
    place = page.locator('figure[data-figure="weights"]')
    place.locator("summary").focus()
    page.keyboard.press("Enter")
    place.locator("tbody tr").first.wait_for()
    head = place.locator("thead th").all_inner_texts()
    assert head[0] == "round" and EVIL in head and len(head) == 5
    cells = [row.locator("th, td").all_inner_texts() for row in place.locator("tbody tr").all()]
    assert [row[0] for row in cells] == ["1", "2", "3"]
    drawn = np.array([trace["y"] for trace in data]).T
    np.testing.assert_allclose(np.array([row[1:] for row in cells], float), drawn, rtol=1e-3)
    assert place.get_by_role("link", name="Data as JSON").get_attribute("href").startswith("/api/run/figure?")
    window.go("/run?run=by-reasons&section=explanations&figure=pairs-training")
    window.drawn("pairs-training")
    place = page.locator('figure[data-figure="pairs-training"]')
    place.locator("summary").click()
    before = place.locator("tbody").inner_text()
    place.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    place.locator("tbody", has_text=before).wait_for(state="detached")
    assert place.locator("input[type=range]").get_attribute("aria-valuetext").endswith("1")
    assert window.wrong == []


def test_a_large_table_is_cut_and_says_so(window, console):
    window.sign_in(console.tokens["viewer"])
    window.go("/run?run=trust")
    told = window.page.evaluate("""() => {
      const name = k => `site ${k}`, rows = [...Array(350).keys()], columns = [...Array(60).keys()];
      const heat = {type: "heatmap", x: columns.map(name), y: rows.map(name), z: rows.map(k => columns.map(j => k + j / 100))};
      const layout = {title: {text: "<b>Many</b><br><span>small print</span>"}};
      const table = rounds.folded(() => ({data: [heat], layout}), () => "/api");
      table.open = true;
      table.fill();
      const counts = ["tbody tr", "thead th"].map(part => table.querySelectorAll(part).length);
      return [...counts, ...["p", "tbody td"].map(part => table.querySelector(part).textContent),
              table.querySelector(".scroll").getAttribute("aria-label")];
    }""")
    said = "This table has 200 of 350 rows and 40 of 61 columns. Complete data as JSON"
    assert told == [200, 40, said, "0", "Numbers: Many"]


@pytest.mark.slow
def test_paper_is_light_has_no_navigation_and_no_figure_is_cut(window, console):
    page = window.page
    page.emulate_media(color_scheme="dark")
    window.sign_in(console.tokens["viewer"])
    window.go("/run?run=plain&section=weights")
    page.evaluate("() => window.rounds.all()")
    paper = "() => [...document.querySelectorAll('.plot')].map(plot => plot.layout.paper_bgcolor)"
    assert set(page.evaluate(paper)) == {"#161b22"}
    page.set_viewport_size({"width": 718, "height": 1000})  # what a sheet of A4 has between margins of a centimetre
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert set(page.evaluate(paper)) == {"#fff"}
    for hidden in ("nav", ".skip", "#theme", "#round", "summary", "footer"):
        assert not page.locator(hidden).first.is_visible(), hidden
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut = """() => [...document.querySelectorAll("figure.chart")].filter(place => {
      const sheet = document.documentElement.clientWidth, drawn = place.querySelector(".main-svg").getBoundingClientRect();
      return drawn.right > sheet || drawn.width > place.clientWidth || drawn.bottom > place.getBoundingClientRect().bottom;
    }).map(place => place.dataset.figure)"""
    assert page.locator("figure.chart").count() > 0 and page.evaluate(cut) == []
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="dark")
    window.until("document.documentElement.dataset.theme === 'dark'")
    assert set(page.evaluate(paper)) == {"#161b22"}


@pytest.mark.slow
def test_a_page_is_printed_once_all_its_figures_are_drawn(window, console):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    page.set_viewport_size({"width": 1280, "height": 240})  # most figures are far below
    for press in (lambda: page.get_by_role("button", name="Print").click(), lambda: page.keyboard.press("Control+p")):
        window.go("/run?run=plain&section=training")
        page.evaluate("""() => {
          const count = what => document.querySelectorAll(`figure.chart${what}`).length;
          window.print = () => { window.printed = [count(""), count(" .plot[role=img]")]; };
        }""")
        press()
        window.until("window.printed !== undefined")
        there, drawn = page.evaluate("() => window.printed")
        assert there == drawn > 2


def linear(colour: str) -> np.ndarray:
    """Linear RGB of a colour of the web (IEC 61966-2-1)."""
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB under D65 (CIE 15:2004)."""
    t = XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_lab_is_that_of_the_books():
    """Red of sRGB: L 53.24, a 80.09, b 67.20; white 100, 0, 0 (Lindbloom's calculator)."""
    np.testing.assert_allclose(lab(linear("#ff0000")), [53.24, 80.09, 67.20], atol=0.02)
    np.testing.assert_allclose(lab(linear("#ffffff")), [100, 0, 0], atol=0.02)


@pytest.mark.parametrize("blind", BLIND)
def test_series_of_a_figure_are_told_apart_by_the_colour_blind(blind):
    """A difference of 2.3 is just noticeable side by side (Mahy et al. 1994); lines and marks lie apart and are small."""
    drawn = [*COLOURS, *MORE_COLOURS, "#000000", "#c3c9cf"]
    seen = {colour: lab(np.array(BLIND[blind]) @ linear(colour)) for colour in drawn}
    near = {(a, b): round(float(np.linalg.norm(seen[a] - seen[b])), 1) for a, b in combinations(drawn, 2)}
    assert min(near.values()) >= 16, min(near, key=near.__getitem__)


def test_numbers_on_a_signed_heat_map_can_be_read():
    """WCAG 1.4.3: 4.5 to 1."""
    light = lambda colour: float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) + 0.05  # noqa: E731
    assert all(light(colour) / light(INK) >= 4.5 for _, colour in SIGNED)
