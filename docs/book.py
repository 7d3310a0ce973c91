"""Generate the reproduction report from docs/results/*.md: reproductions/grandrounds_studies/book.json, which
`rounds reproduce --list` shows, and the text between marks on docs/results/index.md:

    <!-- book tally -->            counts of verdicts on the claims of each paper
    <!-- book asked -->            the same for our own questions
    <!-- book numbers SYSTEM -->   headline figure of each study: published, ours, verdict
    <!-- book claims SYSTEM -->    every claim of the paper with its verdict and our numbers, folded
    <!-- book runs -->             command, number of runs, seeds or folds of every study
    <!-- book machines -->         machine and date of the runs of each page
    <!-- book later -->            studies without a page

python docs/book.py             print index.md
python docs/book.py --write     write both
python docs/book.py --check     exit 1 if one differs from the pages
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from book_pages import entries
from results_page import fold, pages

import grandrounds_studies
from grandrounds_studies import studies
from grandrounds_studies.book import BOOK, Entry, claims, dumps, tallies
from grandrounds_studies.study import FAILS, HOLDS, NOT_CLEAR
from grandrounds_studies.tally import PARTLY, Answer, Tally
from grandrounds_studies.wording import INCONCLUSIVE, published_words

INDEX = Path(__file__).with_name("results") / "index.md"
HELD = Path(grandrounds_studies.__file__).with_name(BOOK)
MARK = re.compile(r"(?P<mark><!-- book (?P<what>\w+)(?: (?P<system>[\w-]+))? -->).*?<!-- end -->", re.DOTALL)
MOST = 230
"""Most characters of our numbers beside a claim; the page has all of them."""

Book = Sequence[Entry]


def written() -> list[Entry]:
    """Read the results pages, in the order of the reproductions."""
    known = studies()
    found = {e.study: e for path in pages([]) for e in entries(path.stem, path.read_text(encoding="utf-8"), known)}
    return [found[name] for name in known if name in found]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def tally(book: Book, system: str) -> str:
    return _counted(book, "claims of the paper", lambda held: tallies(held)[0])


def asked(book: Book, system: str) -> str:
    return _counted(book, "questions of our own", lambda held: tallies(held)[1])


def _counted(book: Book, what: str, count: Callable[[Book], Tally]) -> str:
    """Return the counts of verdicts by system; a system without claims has no line."""
    rows = []
    for name in [*dict.fromkeys(e.system for e in book), "all"]:
        held = [e for e in book if name in (e.system, "all")]
        c = count(held)
        link = name if name == "all" else f"[{name}]({name}.md)"
        if c.tested:
            rows.append([link, *map(str, (c.tested, c.holds, c.partly, c.fails, c.unclear))])
    return table(["", f"{what}, tested", HOLDS, PARTLY, FAILS, "of these inconclusive"], rows)


def numbers(book: Book, system: str) -> str:
    rows = []
    for entry in book:
        if entry.system != system:
            continue
        line = entry.line(studies()[entry.study])
        count = f"{line.holds} of {line.tested}" if line.tested else "no claim"
        shown = [f"{line.what}; {line.at}", published_words(line.published), line.ours or "–"]
        rows.append([f"[{_short(entry)}]({entry.section})", *shown, line.verdict or "–", count])
    return table(["study", "figure", "published", "ours", "main claim", "claims reproduced"], rows)


def told(book: Book, system: str) -> str:
    own = [entry for entry in book if entry.system == system]
    found = [answer for answer in claims(own) if not answer.ours]
    listed = table(["claim", "where", "verdict", "our numbers", "section"], [_claim(answer, own) for answer in found])
    return fold(f"All claims of the paper: {Tally.of(found)}", listed)


def _claim(answer: Answer, own: Book) -> list[str]:
    entry = next(e for e in own if any(t.claim == answer.claim for t in e.told))
    first = answer.told[0]
    verdict = INCONCLUSIVE if answer.unclear else answer.verdict
    numbers = first.why.removeprefix(NOT_CLEAR) if answer.unclear else first.why
    why = numbers if len(answer.told) == 1 else f"{first.arm}: {numbers}"
    if answer.verdict == PARTLY:
        why = "; ".join(f"{t.arm}: {t.verdict}" for t in answer.told)
    return [answer.claim, answer.where, f"**{verdict}**", _cut(why), f"[{_short(entry)}]({entry.section})"]


def _short(entry: Entry) -> str:
    return entry.study.split("/")[1]


def _cut(text: str) -> str:
    """Shorten a text to the end of a clause or a word."""
    if len(text) <= MOST:
        return text
    end = max(text.rfind(mark, 0, MOST) for mark in ("; ", ", "))
    return text[: end if end > MOST // 2 else text.rfind(" ", 0, MOST)] + " …"


def runs(book: Book, system: str) -> str:
    rows = [
        [f"`{e.command}`", "–" if e.runs is None else f"{e.runs:,}", e.repeats or "–", f"[{_short(e)}]({e.section})"]
        for e in book
    ]
    return table(["command", "runs", "seeds or folds", "section"], rows)


def machines(book: Book, system: str) -> str:
    """Return every statement once, with its studies; for one machine, the runs of each study."""
    by: dict[tuple[str, str], list[str]] = {}
    for entry in book:
        counted = re.fullmatch(r"([\d,]+ runs): ([^;]+)", entry.ran)
        ran, own = (counted[2], f"{_short(entry)}: {counted[1]}") if counted else (entry.ran, _short(entry))
        by.setdefault((entry.system, ran), []).append(own)
    words = []
    for (name, ran), own in by.items():
        which = "" if sum(s == name for s, _ in by) == 1 and ":" not in own[0] else f" ({', '.join(own)})"
        ran = re.sub(r"\]\((#[^)]*)\)", rf"]({name}.md\1)", ran)
        words.append(f"- **{name}**{which}: {ran or 'machine and date are not recorded.'}")
    return "\n".join(words)


def later(book: Book, system: str) -> str:
    known = {entry.study for entry in book}
    missing = [name for name in studies() if name not in known]
    return ", ".join(f"`{name}`" for name in missing) + "." if missing else "None."


PARTS: dict[str, Callable[[Book, str], str]] = {
    "tally": tally,
    "asked": asked,
    "numbers": numbers,
    "claims": told,
    "runs": runs,
    "machines": machines,
    "later": later,
}


def index(book: Book) -> str:
    """Return index.md with every part regenerated; the text between the parts stays."""
    text = INDEX.read_text(encoding="utf-8")
    held = {place["system"] for place in MARK.finditer(text)}
    for system in dict.fromkeys(entry.system for entry in book):
        if system not in held:
            sys.exit(f"{INDEX.name} lacks {system}: add `<!-- book numbers {system} --><!-- end -->`")

    def made(place: re.Match[str]) -> str:
        if place["what"] not in PARTS:
            sys.exit(f"{INDEX.name}: no part '{place['what']}'; there are {', '.join(PARTS)}")
        return f"{place['mark']}\n\n{PARTS[place['what']](book, place['system'] or '')}\n\n<!-- end -->"

    return MARK.sub(made, text)


def main(how: str = "") -> int:
    book = written()
    wanted = {HELD: dumps(book), INDEX: index(book)}
    if not how:
        print(wanted[INDEX])
    if how == "--write":
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if how == "--check":
        for path in wrong:
            print(f"{path.name} differs from docs/results/*.md: run python docs/book.py --write", file=sys.stderr)
    return int(how == "--check" and bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
