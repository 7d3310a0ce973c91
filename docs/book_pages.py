"""Read docs/results/*.md, study by study, for docs/book.py. Only the text between a page's marks is read, and one
paragraph: the first with a machine's cores or GPU and a date, which tells how the page's studies were run."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from results_page import MARK

from grandrounds_studies.book import Entry
from grandrounds_studies.kept import digest
from grandrounds_studies.lines import Figure, headline, what
from grandrounds_studies.study import FAILS, NOT_CLEAR, Cell, Headline, Study
from grandrounds_studies.tally import Told
from grandrounds_studies.wording import INCONCLUSIVE

ABOUT = re.compile(r"`(?P<command>rounds reproduce \S+)`: (?P<runs>[\d,]+) runs, (?P<repeats>\w+ \d+ to \d+)\.")
RUN_ON = re.compile(r"^Run on: (?P<words>.*)\.$", re.MULTILINE)
CLAIM = re.compile(r"^- “(?P<claim>.*)” \((?P<where>[^“”]*)\)$")
VERDICT = re.compile(r"^    - (?P<arm>.+?): \*\*(?P<verdict>[^*]+)\*\*: (?P<why>.*)$")
HEADING = re.compile(r"^#{1,6} (?P<words>.*)$", re.MULTILINE)
POINT = re.compile(r"^\*\*(?P<point>.*)\*\*$")
DATED = re.compile(r"\b\d{1,2} [A-Z][a-z]+ 20\d\d\b")
MACHINE = re.compile(r"\bcores?\b|\bGPU\b|\bH200\b")

Key = tuple[str, str, str]
"""Point, arm, and the measure's words."""


@dataclass
class Section:
    """Content of a page about one study."""

    anchor: str
    about: str = ""
    told: list[Told] = field(default_factory=list)
    ours: dict[Key, str] = field(default_factory=dict)


def entries(page: str, text: str, known: Mapping[str, Study]) -> list[Entry]:
    """Return the studies of a page; `page` is the system. An unknown study is an error."""
    sections = read(page, text, known)
    ran = how(text)
    out = []
    for name, held in sections.items():
        about, own = ABOUT.search(held.about), RUN_ON.search(held.about)
        out.append(
            Entry(
                study=name,
                command=about["command"] if about else f"rounds reproduce {name}",
                runs=int(about["runs"].replace(",", "")) if about else None,
                repeats=about["repeats"] if about else "",
                ran=own["words"] if own else ran,
                section=f"{page}.md#{held.anchor}",
                figure=_figure(known[name], sections, known),
                told=tuple(held.told),
            )
        )
    return out


def read(page: str, text: str, known: Mapping[str, Study]) -> dict[str, Section]:
    """The sections of a page by the names of their studies: those that it says something `about`, or has `verdicts` of."""
    anchors = list(_anchors(text))
    out: dict[str, Section] = {}
    for part in MARK.finditer(text):
        name = f"{page}/{part['study']}"
        if part["what"] in ("about", "verdicts") and name not in out:
            if name not in known:
                raise SystemExit(f"{page}.md has {name}, which is no study")
            anchor = [a for at, a in anchors if at < part.start()][-1]
            out[name] = Section(anchor, about=part[0] if part["what"] == "about" else "")
    for part in MARK.finditer(text):
        held = out.get(f"{page}/{part['study']}")
        if held is None:
            continue
        study = known[f"{page}/{part['study']}"]
        if part["what"] == "verdicts":
            held.told += verdicts(part[0])
        elif part["what"] == "figures":
            held.ours |= tables(part[0], {a.label for a in study.arms})
        elif part["what"] == "across":
            words = study.measure(part["measures"].strip()).words
            rows = _rows(part[0])
            held.ours |= {
                (row[0], arm, words): c for row in rows[1:] for arm, c in zip(rows[0][1:], row[1:], strict=True)
            }
    return out


def verdicts(part: str) -> list[Told]:
    """Return the claims of a part `verdicts`, one for each arm."""
    out, claim, where = [], "", ""
    for line in part.splitlines():
        if said := CLAIM.match(line):
            claim, where = said["claim"], said["where"]
        elif found := VERDICT.match(line):
            word, why = found["verdict"], found["why"]
            if word == INCONCLUSIVE:
                word, why = FAILS, f"{NOT_CLEAR}{why}"
            out.append(Told(claim, where, found["arm"], word, why))
    return out


def tables(part: str, arms: set[str]) -> dict[Key, str]:
    """Our figures of a part `figures`, in whichever way its tables lie; with one arm it has one table, a point a row."""
    if not any(POINT.match(line) for line in part.splitlines()):
        (arm, *words), *rows = _rows(part)
        return {(row[0], arm, m): cell for row in rows for m, cell in zip(words, row[1:], strict=True)}
    out: dict[Key, str] = {}
    for point, rows in _by_point(part):
        (_, *head), *body = rows
        for row in body:
            for top, cell in zip(head, row[1:], strict=True):
                arm, words = (top, row[0]) if top.removesuffix(": ours") in arms else (row[0], top)
                if not arm.endswith(": published"):
                    out[point, arm.removesuffix(": ours"), words] = cell
    return {key: cell for key, cell in out.items() if key[1] in arms}


def how(text: str) -> str:
    """Return the page's sentence on machine and date; "" if it has none."""
    bare = MARK.sub("", text)
    paragraphs = (" ".join(p.split()) for p in bare.split("\n\n"))
    return next((p for p in paragraphs if DATED.search(p) and MACHINE.search(p)), "")


def _figure(study: Study, sections: Mapping[str, Section], known: Mapping[str, Study]) -> Figure | None:
    chosen = headline(study)
    if chosen is None:
        return None
    words = study.measure(chosen.measure).words
    ours = sections[study.name].ours.get((chosen.point, chosen.arm, words)) or _twin(study, chosen, sections, known)
    published = study.published.get((chosen.point, chosen.arm), {}).get(chosen.measure)
    return Figure(what(study, chosen.arm, chosen.measure), chosen.point, published, ours)


def _twin(study: Study, chosen: Headline, sections: Mapping[str, Section], known: Mapping[str, Study]) -> str:
    """The figure where the page has it under another study that has the very same run; "" where it has not."""
    wanted = _run(study, chosen.point, chosen.arm)
    words = study.measure(chosen.measure).words
    for name, held in sections.items():
        other = known[name]
        for point, arm, measure in held.ours:
            if arm == chosen.arm and measure == words and _run(other, point, arm) == wanted:
                return held.ours[point, arm, measure]
    return ""


def _run(study: Study, point: str, arm: str) -> str:
    """Which run an arm's first repeat is, whatever it is called."""
    return digest({**study.plan(Cell(point, arm, 0, study.repeats.word)), "name": ""})


def _by_point(part: str) -> Iterator[tuple[str, list[list[str]]]]:
    point, lines = "", []
    for line in part.splitlines():
        if found := POINT.match(line):
            if point:
                yield point, _rows("\n".join(lines))
            point, lines = found["point"], []
        else:
            lines.append(line)
    yield point, _rows("\n".join(lines))


def _rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without the line under its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _anchors(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position of each heading and its anchor, as MkDocs makes them."""
    seen: dict[str, int] = {}
    for found in HEADING.finditer(text):
        plain = unicodedata.normalize("NFKD", found["words"]).encode("ascii", "ignore").decode()
        name = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        count = seen[name] = seen.get(name, -1) + 1
        yield found.start(), f"{name}_{count}" if count else name
