"""One self-contained page: its style, its tables, and the script that draws its figures. Nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from grandrounds.core.errors import visible
from grandrounds.core.records import RunSummary

CONFIG = {"displayModeBar": False, "displaylogo": False, "responsive": True}
"""Plotly's configuration in a page: no tool bar."""

ON_PAPER = 40
"""Rows of a long table that are printed; a screen has all."""

_STYLE = """
:root { color-scheme: light; --paper: #fff; --ink: #1b1f24; --quiet: #57606a; --line: #d0d7de; --faint: #e5e8eb;
  --warn: #fff8c5; --good: #00674b; --bad: #a04000; --link: #0a58a8; --good-back: #e3f4ec; --bad-back: #fdeee3 }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 1120px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.7rem; margin: 0 0 .2rem }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .8rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
h4 { font-size: .95rem; margin: 1.1rem 0 .3rem }
a { color: var(--link) }
p { max-width: 80ch }
li { max-width: 90ch; margin: .15rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; margin: .6rem 0 }
th { color: var(--quiet); font-weight: 600 }
th, td { text-align: right; padding: .22rem .7rem; border-bottom: 1px solid var(--faint); vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td { white-space: nowrap }
td.text { color: var(--quiet); white-space: normal; min-width: 11rem }
td.value { color: inherit }
.scroll { overflow-x: auto }
.newpage { break-after: page }
.contents { border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem; margin: 1.2rem 0 }
.contents ol { columns: 3 13rem; margin: .2rem 0; padding-left: 1.4rem }
.contents b { font-size: .93rem; color: var(--quiet) }
.verdict { border-left: 5px solid var(--line); border-radius: 6px; padding: .7rem 1rem; margin: 1rem 0; font-size: 1.15rem;
  max-width: none; font-weight: 600; background: var(--faint) }
.verdict.better { border-color: var(--good); background: var(--good-back) }
.verdict.worse, .verdict.mixed, .verdict.failed { border-color: var(--bad); background: var(--bad-back) }
.on-paper { display: none }
.signoff table { width: 100% }
.signoff td { height: 2.6rem; vertical-align: bottom; min-width: 9rem }
.signoff th, .signoff td { text-align: left }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.4rem; margin: .8rem 0 }
.charts .wide { grid-column: 1 / -1 }
figure { margin: 0; min-width: 0 }
figcaption { padding: 0 .4rem; font-size: .93em }
.nomogram { max-width: 760px; margin: 1rem 0 }
.nomogram svg { width: 100%; height: auto }
details { margin: 1rem 0 }
summary { cursor: pointer; font-weight: 600 }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.4rem, 1fr)); gap: .8rem; margin: 1rem 0 }
.tile { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .8rem; font-size: .94em }
.tile b { display: block; font-size: 1.5em; line-height: 1.3 }
.warn { background: var(--warn); padding: .4rem .8rem; border-radius: 6px; max-width: none }
.quiet { color: var(--quiet) }
.good { color: var(--good) }
.bad { color: var(--bad) }
@page { size: A4; margin: 12mm }
@media print {
  body { margin: 0; padding: 0; max-width: none; font-size: 12px }
  h2 { margin-top: 1.4rem }
  h2, h3, h4 { break-after: avoid }
  tr, figure, .tile, .verdict, li, .keep { break-inside: avoid }
  thead { display: table-header-group }
  .scroll:not(:has(tbody tr:nth-child(15))) { break-inside: avoid }
  thead, tbody tr:nth-child(-n + 3):not(:last-child) { break-after: avoid }
  tbody tr:nth-last-child(-n + 3):not(:first-child) { break-before: avoid }
  p { orphans: 3; widows: 3 }
  .contents { display: none }
  .charts { gap: 12px; grid-template-columns: 342px 342px }
  .scroll { overflow: visible }
  details:not([open]) > summary::after { content: " (in report.html)" }
  table { font-size: 11px; max-width: 100% }
  th, td { white-space: normal; padding: .15rem .45rem }
  p, li { max-width: none }
  td .quiet { white-space: nowrap }
  td:first-child { min-width: 72px }
  #sign-off { break-inside: avoid }
  .signoff td { height: 1.7rem }
  .first-rows tbody tr:nth-child(n + 41) { display: none }
  .on-paper { display: block }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(116px, 1fr)); gap: 8px; padding-right: 1px }
  .tile { padding: .35rem .55rem }
}
@media screen and (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr) } }
"""

_DARK = """
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --paper: #14181d; --ink: #e6e9ec; --quiet: #a7b0b9; --line: #3c444d; --faint: #2a3038;
    --warn: #40370f; --good: #5fc9a2; --bad: #f0a36b; --link: #79b8ff; --good-back: #12322a; --bad-back: #3a2417 }
  .nomogram { background: #fff; border-radius: 8px }
}
"""
"""Colours on a dark screen; paper stays white."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""Content-Security-Policy of the page: a browser loads nothing from outside it."""

# On paper, a sheet of A4 between its margins is 702 CSS pixels wide: two columns of 342, or one figure of 696.
_DRAW = """
const plots = () => [...document.querySelectorAll(".js-plotly-plot")];
const screen = plot => Plotly.relayout(plot, {width: null, autosize: true});
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const KEPT = new Set(["x", "y", "z", "r", "theta", "name", "customdata", "hovertemplate", "colorscale"]);
const dyed = (value, by) => {
  if (typeof value === "string") return by.get(value) ?? value.replaceAll("color:#57606a", `color:${by.get("#57606a")}`);
  if (Array.isArray(value)) return value.map(one => dyed(one, by));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, KEPT.has(key) ? one : dyed(one, by)]));
};
// A heat map on dark paper: a scale that begins with white begins with the paper, and its darkest colour is the lightest.
const channels = colour => [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));
const pale = colour => /^#[0-9a-f]{6}$/i.test(colour) && channels(colour).every(channel => channel >= 0xe0);
const lit = colour => { // the same hue with the opposite lightness
  const [low, high] = [Math.min(...channels(colour)), Math.max(...channels(colour))];
  return `rgb(${channels(colour).map(channel => Math.round(30 + 0.85 * (channel + 255 - low - high))).join(",")})`;
};
const dimmed = (trace, back, faint) => {
  if (!Array.isArray(trace.colorscale)) return trace;
  const rises = trace.colorscale[0][1] === "#ffffff";
  const colour = one => pale(one) ? (rises ? back : faint) : rises ? lit(one) : one;
  return {...trace, colorscale: trace.colorscale.map(([at, one]) => [at, colour(one)])};
};
const tinted = ({data, layout}) => { // ink, grid and background of the page; paper stays white
  if (document.documentElement.dataset.dark === undefined || !dark.matches) return [data, layout];
  const [back, ink, quiet, faint, line] = ["--paper", "--ink", "--quiet", "--faint", "--line"].map(css);
  const inks = [["#1b1f24", ink], ["#57606a", quiet], ["#000000", ink]];
  const series = [["#003377", "#7da7f5"], ["#994422", "#e08a5e"], ["#663333", "#d68f8f"],
    ["#554466", "#b7a3d9"], ["#c3c9cf", "#6b747e"]];
  const by = new Map([...inks, ...series, ["#ffffff", back], ["#e5e8eb", faint], ["#b6bec6", line]]);
  return [data.map(trace => trace.type === "heatmap" ? dimmed(trace, back, faint) : dyed(trace, by)), dyed(layout, by)];
};
const broken = (text, most) => text.split(" ").reduce((lines, word) => {
  const last = lines.at(-1);
  return last && (last + word).length < most ? [...lines.slice(0, -1), `${last} ${word}`] : [...lines, word];
}, []).join("<br>");
const sheet = ({data, layout}, wide) => { // as paper has it: its width, lines that fit, and no controls
  const title = /^<b>(.*?)<.b>(?:<br>(<span[^>]*>)(.*)<.span>)?$/.exec(layout.title?.text ?? "");
  const named = ["xaxis", "yaxis"].some(axis => layout[axis]?.type === "category");
  const full = named || data.length > 8 ? layout.height : Math.min(layout.height, wide ? 300 : 320);
  const height = Math.min(full, Math.max(600, 0.78 * full)); // a tall one shrinks, so that its heading is on the same page
  const on = {...layout, width: wide ? 696 : 342, height, sliders: [], updatemenus: []};
  if (!title) return [data, on];
  const read = (title[3] ?? "").replace(/;? ?names on hover/, ""); // a note about the pointer
  const [first, note] = [broken(title[1], wide ? 80 : 36), broken(read, wide ? 110 : 52)];
  const more = (first + note).split("<br>").length - 1;
  on.title = {...layout.title, text: `<b>${first}</b>${note && `<br>${title[2]}${note}</span>`}`};
  const t = (layout.margin?.t ?? 48) + 16 * more;
  return [data, {...on, margin: {...layout.margin, t}, height: height + 16 * more}];
};
const isPaper = () => matchMedia("print").matches;
const drawAll = async (draw, paper = isPaper()) => {
  for (const place of document.querySelectorAll("script[data-figure]")) {
    const figure = JSON.parse(place.textContent), plot = document.getElementById(place.dataset.figure);
    const [data, layout] = paper ? sheet(figure, plot.closest(".wide")) : tinted(figure);
    plot.style.height = `${layout.height}px`;
    await draw(plot, data, layout, %s);
  }
};
try {
  const packed = atob(document.getElementById("plotly-packed").textContent);
  const bytes = Uint8Array.from(packed, one => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  await drawAll(Plotly.newPlot);
  dark.addEventListener("change", () => drawAll(Plotly.react));
  for (const fold of document.querySelectorAll("details")) { // a figure inside a closed fold has no width
    fold.addEventListener("toggle", () => fold.querySelectorAll(".js-plotly-plot").forEach(screen));
  }
  addEventListener("beforeprint", () => isPaper() || drawAll(Plotly.react, true));
  addEventListener("afterprint", () => isPaper() || drawAll(Plotly.react, false).then(() => plots().forEach(screen)));
} catch (error) {
  const line = document.getElementById("no-charts");
  line.textContent = `This browser could not draw the charts (${error}). Use a browser from 2023 or later.`;
  line.hidden = false;
}
document.documentElement.dataset.drawn = "";
"""
"""Draws the figures, in the colours of a dark screen where the page has them; marks the page as drawn at the end."""

_LEFT_OUT = (
    "Charts are missing: plotly is not installed on the machine that wrote this page. "
    "Install it and run <code>rounds report RUN</code>."
)
_WITHOUT = "<noscript><p class='warn'>Charts need JavaScript; the tables do not.</p></noscript>"


class Drawable(Protocol):
    """A figure that can be placed on a page."""

    def html(self, div_id: str) -> str: ...


class Charts:
    """Figures of one page, numbered in order; omitted where there is no script to draw them."""

    def __init__(self, script: str | None) -> None:
        self._script, self._count = script, 0

    @property
    def script(self) -> str | None:
        """Return the script that draws the figures; None where there are none."""
        return self._script if self._count else None

    @property
    def note(self) -> str:
        """Return the page's note about charts, which comes before the first of them."""
        if self._script is None:
            return f"<p class='warn'>{_LEFT_OUT}</p>"
        return f"{_WITHOUT}<p class='warn' id='no-charts' hidden></p>"

    def place(self, *figures: Drawable, wide: bool = False, captions: Sequence[str] = ()) -> str:
        """Place figures in two columns, or each over both.

        Args:
            figures: The figures.
            wide: Give each the whole width.
            captions: A text below each figure, which is escaped; none by default.

        Returns:
            HTML; empty where figures are left out.
        """
        if self._script is None or not figures:
            return ""
        out = []
        for k, figure in enumerate(figures):
            self._count += 1
            below = f"<figcaption>{escape(captions[k])}</figcaption>" if captions else ""
            out.append(f"<figure{' class=wide' if wide else ''}>{figure.html(f'figure-{self._count}')}{below}</figure>")
        return f"<div class='charts'>{''.join(out)}</div>"


def document(
    title: str, body: Iterable[str], script: str | None, *, style: str = "", head: str = "", dark: bool = False
) -> str:
    """Assemble a page from parts that are already HTML.

    Args:
        title: The title of the page.
        body: The parts of the body.
        script: Plotly's packed script (`packed_script`) if the page has figures, else None.
        style: CSS that is added to the common style.
        head: HTML that is added to the page's head.
        dark: Follow a dark colour scheme on a screen.

    Returns:
        The page.
    """
    head = (
        f"<meta charset='utf-8'><meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(visible(title))}</title>{head}<style>{_STYLE}{_DARK if dark else ''}{style}</style>"
    )
    draw = ""
    if script is not None:
        packed = f"<script type='text/plain' id='plotly-packed'>{script}</script>"
        draw = f"{packed}<script type='module'>{_DRAW % json.dumps(CONFIG)}</script>"
    mark = " data-dark" if dark else ""
    return f"<!doctype html><html lang='en'{mark}><head>{head}</head><body>{visible(''.join(body))}{draw}</body></html>"


def number(value: Any, digits: int = 4) -> str:
    """Format a number; a dash where there is none."""
    return "&ndash;" if value is None else f"{value:.{digits}f}"


def span(ends: tuple[float, float] | None, digits: int = 3) -> str:
    """Format an interval as '0.801 to 0.874'; empty where there is none."""
    return "" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def sites_line(summary: RunSummary) -> str:
    """Count the sites, and those that train: '31 sites, 25 train'; a pooled run is named as such."""
    from grandrounds.methods.baselines import POOL

    if POOL in summary.rows:
        hospitals = len(summary.rows) - 1
        return f"{hospitals} sites, their training rows pooled in one place"
    every, training = summary.sites["all"], summary.sites["training"]
    return f"{every} sites, all train" if every == training else f"{every} sites, {training} train"


def about_line(summary: RunSummary) -> str:
    """Describe a run in a line: its sites, its rounds or exchanges and its model; a run without a model has none."""
    if not summary.parameters:
        return f"{sites_line(summary)}, {rounds_line(summary)}"
    seed = f", seed {summary.seed}" if is_random(summary) else ""
    return f"{sites_line(summary)}, {rounds_line(summary)}, {model_line(summary)}{seed}"


def is_random(summary: RunSummary) -> bool:
    """Tell whether the seed of a run has an effect: of fits from sums on the columns of trees, and on noise."""
    noisy = bool((summary.get("shapes") or {}).get("private"))
    return not is_from_sums(summary) or bool(summary.get("trees")) or noisy


def is_from_sums(summary: RunSummary) -> bool:
    """Tell whether a run computed its result from sums over hospitals: its rounds are exchanges, and no step is random."""
    return any((summary.get(key) or {}).get("exchanges") for key in ("estimates", "statistic", "shapes", "trees", "card"))


def rounds_line(summary: RunSummary) -> str:
    """Count the rounds of a run; those of a fit from sums are exchanges."""
    name = "exchange" if is_from_sums(summary) else "round"
    return f"{summary.rounds} {name}{'' if summary.rounds == 1 else 's'}"


def reads_columns(summary: RunSummary) -> bool:
    """Tell whether the model reads whole columns, so that the number of its inputs says nothing to people."""
    return any(summary.get(key) for key in ("card", "trees", "shapes"))


def model_line(summary: RunSummary) -> str:
    """Describe the model of a run: by its terms, trees or columns where people read those, else by its parameters."""
    card, trees, shapes = (summary.get(key) or {} for key in ("card", "trees", "shapes"))
    if card.get("terms"):
        return f"risk card of {len(card['terms'])} terms"
    if trees.get("trees"):
        return f"{trees['trees']:,} boosted trees of depth {trees.get('depth')}"
    if shapes.get("columns"):
        used = sum(bool(c.get("used", True)) for c in shapes["columns"])
        return f"additive model that uses {used} of {len(shapes['columns'])} columns"
    return f"{summary.model} with {summary.parameters:,} parameters"


def has_test_rows(summary: RunSummary) -> bool:
    """Tell whether the final model was scored on test rows; a regression may use every row to estimate."""
    count = summary.final.get("count")
    return count is not None and count == count and count > 0


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table.

    Args:
        head: Column headings; one that starts with <th is used as it is, to be aligned left.
        rows: Cells that are already HTML, row by row.

    Returns:
        HTML.
    """
    top = "".join(h if h.startswith("<th") else f"<th>{h}</th>" for h in head)
    inner = "".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{inner}</tbody></table></div>"


def td(text: str) -> str:
    """Write a cell from HTML."""
    return f"<td>{text}</td>"


def text_cell(text: object) -> str:
    """Write a left-aligned cell from text, which is escaped."""
    return f"<td class='text'>{escape(str(text))}</td>"


def value_cell(text: object) -> str:
    """Write a left-aligned cell from a value that may be a sentence, which is escaped."""
    return f"<td class='text value'>{escape(str(text))}</td>"


def machine_line(cost: Mapping[str, float]) -> str:
    """Summarise the CPU time and memory of a run; empty for runs of versions that did not measure them."""
    if "cpu_seconds" not in cost:
        return ""
    children = cost["children_peak_memory"]
    largest_child = f", {children / 1e6:.0f} MB in the largest worker process" if children else ""
    return (
        f"{cost['round_seconds']:.3g} s per round; {cost['cpu_seconds']:.2f} CPU seconds ({cost['cpu_share']:.0%} of the cores); "
        f"at most {cost['peak_memory'] / 1e6:.0f} MB in memory ({cost['memory_share']:.1%} of the machine's){largest_child}"
    )
