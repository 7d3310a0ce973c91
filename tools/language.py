"""Check that texts use the field's own words.

    python tools/language.py                  # every text: README, docs, source, recipes, examples
    python tools/language.py src/grandrounds/report docs/methods.md
    python tools/language.py --count          # findings by folder

Two rules. No text uses a private word (`WORDS` gives the word to write instead). No docstring, comment, heading, paragraph or
message begins with "What", "Whether", "Where", "Who" or "How far": it states the thing. A question that ends in "?" may.

Names in code (`like_this`), file names and keys that are written to disk are not texts and are not checked. A line of a text that
has to name a private word (a file on users' disks, an earlier spelling of a command) carries `language: ok`, in a comment.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    r"pictures?": "image",
    r"(?<!five )(?<!the )(?<!for )reasons(?! (to|for|why|that)\b)": "explanations, feature attributions",
    r"(goes|go|going|went|gone) by(?! default)": "relies on, uses",
    r"under masks": "with secure aggregation",
    r"purses?": "site budget",
    r"(?<!capital )(?<!small )letters?(?! (or|nor|and|of|to the)\b|, digits)": "message",
    r"couriers?|errands?": "transport, request",
    r"wardens?": "supervisor",
    r"strangers?": "rejected peer, new user",
    r"lent|lends?|lending": "shared, share",
    r"(goes|go|going|gone) along": "accepts",
    r"(the|a|no) way out": "suggested fix",
    r"stands?(?! for\b)(?!-)": "withstands, is, lies",
    r"hold(s|ing)? (sites|reasons|explanations|them) together": "local regularization",
    r"in words": "in plain language, as text",
    r"says? of (itself|themselves)": "reports",
    r"what (has )?left": "disclosed data",
    r"(spent|worked out) again": "recomputed",
    r"gone on with|(goes|go|going) on with": "resumed, continues",
    r"boast\w*": "inflated metrics",
    r"(?<!new )promis(e|es|ed|ing)": "guarantee",
    r"held against": "compared with",
    r"(is|are|was|were|be) told": "receives",
    r"thought better of": "say it plainly",
    r"others then": "differ",
}
BANNED = [(re.compile(rf"(?<![\w./`-])(?:{word})(?![\w`]|\.\w|/)", re.IGNORECASE), say) for word, say in WORDS.items()]
#: The name of a parameter, in a docstring's list of arguments.
ARGUMENT = re.compile(r"^([ \t]+)\*{0,2}\w+(?: \([^)\n]*\))?:", re.MULTILINE)
QUESTION = re.compile(r"[^.;]*\?")
OPENING = re.compile(r"^(What(?!-if)|Whether|Where|Who|Whom|How far|How many|How much)\b(?!ver)")
#: Folders that are not checked: results are written by the reproductions from what they measured.
LEFT_OUT = ("docs/results", "docs/images", "src/grandrounds/capabilities/console/static/vendor", "build", "runs", "site")
SUFFIXES = {".py", ".md", ".toml", ".html", ".js"}


@dataclass(frozen=True)
class Finding:
    """One text that breaks a rule."""

    path: str
    line: int
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: {self.advice}"


@dataclass(frozen=True)
class Text:
    """A passage that a person reads, with the line it begins on."""

    line: int
    words: str
    opens: bool = True


def read_python(source: str) -> Iterator[Text]:
    """Give the docstrings, comments and sentences of a Python file."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            if is_sentence(words):
                yield Text(node.lineno, words)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
            and is_sentence(node.value)
        ):
            yield Text(node.lineno, node.value)
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#: ")
            yield Text(token.start[0], words, opens=token.start[0] != before + 1)
            before = token.start[0]


def is_sentence(words: str) -> bool:
    """Tell a sentence from a key, a name or a pattern."""
    return len(re.findall(r"[A-Za-z]{2,}", words)) >= 3 and " " in words.strip()


def read_markdown(source: str) -> Iterator[Text]:
    """Give the lines of a Markdown page, without code, output and front matter."""
    fenced, blank = False, True
    for number, line in enumerate(source.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced:
            opens = blank or stripped.startswith(("#", "- ", "* ", "|"))
            words = re.sub(r"`[^`]*`", "`code`", stripped)
            words = re.sub(r"\]\([^)]*\)", "]", words)
            yield Text(number, re.sub(r"^([#>*|-]+|\d+\.)\s*", "", words).lstrip("*[_"), opens)
        blank = not stripped or fenced


def read_toml(source: str) -> Iterator[Text]:
    """Give the comments of a TOML file."""
    for number, line in enumerate(source.splitlines(), 1):
        if "#" in line:
            yield Text(number, line.split("#", 1)[1].strip())


def read_page(source: str) -> Iterator[Text]:
    """Give the visible words of an HTML or JavaScript file, line by line."""
    for number, line in enumerate(source.splitlines(), 1):
        words = re.sub(r"<[^>]*>|\{[{%].*?[%}]\}|[\w-]+=\"[^\"]*\"", " ", line)
        yield Text(number, words, opens=False)


READERS = {".py": read_python, ".md": read_markdown, ".toml": read_toml, ".html": read_page, ".js": read_page}


def check(path: Path) -> Iterator[Finding]:
    """Find what breaks a rule in one file."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    for text in READERS[path.suffix](source):
        if "language: ok" in text.words or (text.line <= len(lines) and "language: ok" in lines[text.line - 1]):
            continue
        prose = re.sub(r"`[^`]*`", "`code`", text.words)
        if path.suffix == ".py":
            prose = ARGUMENT.sub(r"\1`code`:", prose)
        first = prose.lstrip().split("\n", 1)[0]
        if text.opens and OPENING.match(first) and not QUESTION.match(first):
            yield Finding(name, text.line, first[:60], "states nothing: begin with the subject")
        for pattern, say in BANNED:
            for match in pattern.finditer(prose):
                before = prose.count("\n", 0, match.start()) if path.suffix == ".py" else 0
                around = prose[max(0, match.start() - 25) : match.end() + 20].replace("\n", " ")
                yield Finding(name, text.line + before, around, f"write {say}")


def find_files(places: list[Path]) -> Iterator[Path]:
    """Give the files with texts under these places."""
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for path in files:
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            if (
                path.is_file()
                and path.suffix in SUFFIXES
                and not name.startswith(LEFT_OUT)
                and path != Path(__file__).resolve()
            ):
                yield path


def main(arguments: list[str]) -> int:
    """Print every finding; 1 if there are any."""
    count = "--count" in arguments
    named = [Path(word).resolve() for word in arguments if not word.startswith("--")]
    places = named or [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs", "src", "reproductions", "examples")]
    findings = [finding for path in find_files(places) for finding in check(path)]
    if count:
        folders = Counter("/".join(finding.path.split("/")[:3]) for finding in findings)
        for folder, many in folders.most_common():
            print(f"{many:6} {folder}")
    else:
        for finding in findings:
            print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
