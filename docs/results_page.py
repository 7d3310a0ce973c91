"""Generate the tables and verdicts of docs/results/*.md from the results of `rounds reproduce`.

The text between `<!-- WHAT STUDY -->` and `<!-- end -->` on a page is generated from results.json of that study. The
page's name is the system's, so `fig-1` on sse-agg.md is read from runs/reproduce/sse-agg/fig-1. WHAT is one of

    about STUDY                   command, number of runs and seeds or folds, source, machines
    settled STUDY                 details that the paper leaves open, and our choices
    figures STUDY                 for each point a table: published, and ours as mean ± 95% interval
    across STUDY MEASURE          one measure: points down, arms across
    paired STUDY MEASURE ...      differences to the first arm, paired by seed or fold, with their 95% intervals
    seeds STUDY MEASURE           one measure seed by seed, or fold by fold
    replicated STUDY MEASURE      one measure of flamby: published mean and sd over seeds, ours, the difference in standard errors
    verdicts STUDY                every claim with its verdict and our numbers, folded

Run the studies first (`make reproduce`), in the same folder. index.md is made from these pages: docs/book.py.

python docs/results_page.py                     print the pages
python docs/results_page.py --write             put them right
python docs/results_page.py --check             exit 1 where one differs
python docs/results_page.py --write sse-agg     the same of some systems only; of others no study needs to have been run
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Any

from grandrounds_studies import FOLDER
from grandrounds_studies.machine import machine_words
from grandrounds_studies.tally import Tally, Told, answers
from grandrounds_studies.wording import cell_words, published_words, shown_figures, shown_verdict

PAGES = Path(__file__).with_name("results")
MARK = re.compile(
    r"(?P<mark><!-- (?P<what>\w+) (?P<study>[\w.-]+)(?P<measures>(?: \w+)*) -->).*?<!-- end -->", re.DOTALL
)
ACROSS = 6
"""Measures that fit beside each other."""

Found = Mapping[str, Any]
"""Values of results.json."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


def points(found: Found) -> list[str]:
    return list(dict.fromkeys(f["point"] for f in found["figures"]))


def arms(found: Found) -> list[str]:
    return list(dict.fromkeys(f["arm"] for f in found["figures"]))


def words(found: Found, measure: str) -> str:
    return str(found["measures"][measure]["words"])


def repeat(found: Found) -> str:
    """Return the word for a repetition: "seed" or "fold"."""
    return str(found.get("repeats", "seed"))


def ours(found: Found, figure: Found) -> str:
    return cell_words(figure, found["measures"][figure["measure"]]["digits"])


def about(found: Found, measures: Sequence[str]) -> str:
    pairs = {(f["point"], f["arm"]) for f in found["figures"]}
    first = int(found.get("first_repeat", 0))
    count = f"{len(pairs) * found['seeds']} runs, {repeat(found)}s {first} to {first + found['seeds'] - 1}"
    lost = [f"Left out: {point}, because {why}." for point, why in found["left_out"].items()]
    lost += [f"Failed: {why}." for why in found["failed"].values()]
    none = f"Published: {found['unpublished']}." if found["unpublished"] else ""
    source = f"`rounds reproduce {found['study']}`: {count}. Source: {found['source']}."
    known = any("processor" in one for one in found.get("machines", ()))  # of older runs the page itself says it
    ran = f"Run on: {machine_words(found['machines'])}." if known else ""
    return "\n".join(filter(None, [source, none, *lost, ran]))


def settled(found: Found, measures: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in found["settled"])


def figures(found: Found, measures: Sequence[str]) -> str:
    """Return a table for each point; with one arm and few measures one table, one point per row."""
    if len(arms(found)) == 1 and len(_names(found, points(found)[0])) <= ACROSS:
        rows = [[point, *cells] for point in points(found) for _, cells in _lines(found, point)]
        return table([arms(found)[0], *_names(found, points(found)[0])], rows)
    return "\n\n".join(f"**{point}**\n\n{_at(found, point)}" for point in points(found))


def _names(found: Found, point: str) -> list[str]:
    return list(dict.fromkeys(words(found, f["measure"]) for f in shown_figures(found, point)))


def _at(found: Found, point: str) -> str:
    """Return a table with arms as rows and measures as columns; transposed if there are more than ACROSS measures."""
    names, lines = _names(found, point), list(_lines(found, point))
    if len(names) <= ACROSS or len(lines) > len(names):
        return table(["", *names], [[label, *cells] for label, cells in lines])
    return table(
        ["", *(label for label, _ in lines)],
        [[name, *(cells[k] for _, cells in lines)] for k, name in enumerate(names)],
    )


def _lines(found: Found, point: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the published figures, if any, and our figures of each arm."""
    shown = shown_figures(found, point)
    any_published = any(f["published"] is not None for f in shown)
    for arm in dict.fromkeys(f["arm"] for f in shown):
        held = [f for f in shown if f["arm"] == arm]
        if any(f["published"] is not None for f in held):
            yield f"{arm}: published", [published_words(f["published"]) for f in held]
        yield f"{arm}: ours" if any_published else arm, [ours(found, f) for f in held]


def across(found: Found, measures: Sequence[str]) -> str:
    (measure,) = measures
    by = {(f["point"], f["arm"]): ours(found, f) for f in found["figures"] if f["measure"] == measure}
    rows = [[point, *(by.get((point, arm), "") for arm in arms(found))] for point in points(found)]
    return table([words(found, measure), *arms(found)], rows)


def paired(found: Found, measures: Sequence[str]) -> str:
    """Return mean differences to the first arm, with the ends of their 95% intervals."""
    by = {(f["point"], f["arm"], f["measure"]): f["paired_to_first"] for f in found["figures"]}
    held = dict.fromkeys((p, a) for p, a, m in by if m in measures and by[p, a, m] is not None)
    rows = [
        [f"{p}: {a}", *(_difference(by[p, a, m], found["measures"][m]["digits"]) for m in measures)] for p, a in held
    ]
    return table([f"to {found['first']}", *(words(found, m) for m in measures)], rows)


def _difference(pair: Found | None, digits: int) -> str:
    if pair is None or pair["difference"] is None:
        return "undefined"
    middle, low, high = (f"{pair[k]:+.{digits}f}" for k in ("difference", "low", "high"))
    return f"{middle} ({low} to {high})"


def seeds(found: Found, measures: Sequence[str]) -> str:
    (measure,) = measures
    digits = found["measures"][measure]["digits"]
    one = len(points(found)) == 1
    rows = [
        [f["arm"] if one else f"{f['point']}: {f['arm']}", *(_number(v, digits) for v in f["values"].values())]
        for f in found["figures"]
        if f["measure"] == measure
    ]
    first = int(found.get("first_repeat", 0))
    return table([f"{words(found, measure)}, {repeat(found)}", *map(str, range(first, first + found["seeds"]))], rows)


def replicated(found: Found, measures: Sequence[str]) -> str:
    """Return published figures with their sd over seeds beside ours, and the difference in its standard errors."""
    from grandrounds_studies.flamby import PUBLISHED
    from grandrounds_studies.flamby.published import published, spread

    (measure,), by_seed = measures, PUBLISHED[found["study"]]
    rows = []
    for figure in found["figures"]:
        values = [v for v in figure["values"].values() if v is not None]
        if figure["measure"] != measure or not values:
            continue
        own = spread(values)
        told = f"{own.mean:.3f} ± {own.sd:.3f}" if own.sd > 1e-9 else f"{own.mean:.3f}, no seed"
        if figure["arm"] not in by_seed:
            rows.append([figure["arm"], "", told, ""])
            continue
        theirs = published(figure["arm"], measure, by_seed)
        apart = (own.mean - theirs.mean) / hypot(own.error, theirs.error)
        rows.append([figure["arm"], f"{theirs.mean:.3f} ± {theirs.sd:.3f}", told, f"{apart:+.1f}"])
    return table([words(found, measure), "published, mean ± sd", "ours, mean ± sd", "difference in standard errors"], rows)


def _number(value: float | None, digits: int) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def verdicts(found: Found, measures: Sequence[str]) -> str:
    lines: list[str] = []
    before = ""
    for c in found["claims"]:
        if c["claim"] != before:
            lines.append(f"- “{c['claim']}” ({c['where']})")
        before = c["claim"]
        word, why = shown_verdict(c)
        lines.append(f"    - {c['arm']}: **{word}**: {why}")
    listed = "\n".join(lines)
    if len({c["claim"] for c in found["claims"]}) > 1:
        listed = fold(f"Claims: {count_verdicts(found['claims'])}", listed)
    return "\n".join([listed, *(f"\n{remark}" for remark in found["remarks"])])


def count_verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the counts of verdicts of a study's claims, each claim once."""
    return str(Tally.of(answers(Told.of(c) for c in claims)))


def fold(title: str, text: str) -> str:
    """Return a collapsible block of Markdown."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


PARTS: dict[str, Callable[[Found, Sequence[str]], str]] = {
    part.__name__: part for part in (about, settled, figures, across, paired, seeds, replicated, verdicts)
}


def results(system: str, study: str) -> Found:
    """Read results.json of a study that was run in full."""
    path = FOLDER / system / study / "results.json"
    if not path.exists():
        sys.exit(f"{path} does not exist: run `rounds reproduce {system}/{study}`")
    found: Found = json.loads(path.read_text(encoding="utf-8"))
    if found["quick"]:
        sys.exit(f"{path} is from a quick version: run `rounds reproduce {system}/{study}` without --quick")
    return found


def page(path: Path) -> str:
    """Return the page with every part regenerated; the text between the parts stays."""

    def made(place: re.Match[str]) -> str:
        if place["what"] not in PARTS:
            sys.exit(f"{path.name}: no part '{place['what']}'; there are {', '.join(PARTS)}")
        part = PARTS[place["what"]](results(path.stem, place["study"]), place["measures"].split())
        return f"{place['mark']}\n\n{part}\n\n<!-- end -->"

    return MARK.sub(made, path.read_text(encoding="utf-8"))


def pages(systems: Sequence[str]) -> list[Path]:
    """Return the pages of these systems; of all systems if none is named."""
    known = {path.stem: path for path in sorted(PAGES.glob("*.md")) if path.stem != "index"}
    for system in systems:
        if system not in known:
            sys.exit(f"no page of '{system}'; there are {', '.join(known)}")
    return [known[system] for system in systems or known]


def main(*arguments: str) -> int:
    how = next((a for a in arguments if a.startswith("--")), "")
    wanted = {path: page(path) for path in pages([a for a in arguments if not a.startswith("--")])}
    if not how:
        print("\n".join(wanted.values()))
    if how == "--write":
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
    return int(how == "--check" and any(path.read_text(encoding="utf-8") != text for path, text in wanted.items()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
