"""Documents of a dossier as Markdown and HTML. Every sentence is followed by the numbers of its sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from grandrounds.capabilities.dossier.building.document import OPEN, Content, Document, Item
from grandrounds.capabilities.dossier.building.statement import Source, Statement, Table

NOT_ADVICE = "This file is not legal advice. Whoever relies on it reads the original texts of the guidelines and laws."
_TOC = "In this file"
_OPEN = "Open questions are in answers.toml. Fill them in, then run <code>rounds dossier</code> again."
_STYLE = """
.item { border-left: 3px solid #d0d7de; padding: 0 0 .2rem .9rem; margin: 1rem 0; break-inside: auto }
.item h3 { margin: .2rem 0 }
.item p { margin: .35rem 0 }
.asks { color: #57606a; margin: .1rem 0 .4rem; font-size: .93em }
.state { font-size: .8em; font-weight: 600; border-radius: 4px; padding: .05rem .4rem; background: #e5e8eb; color: #1b1f24 }
.state.filled, .state.answered { background: #d6f0e2; color: #00543d }
.state.begun { background: #fff1c2; color: #5c4400 }
.state.open { background: #fbdcc8; color: #7a2e00 }
.open-question { background: #fff8c5; padding: .15rem .5rem; border-radius: 4px }
sup a { color: #0b5cad; text-decoration: none }
ol.sources { font-size: .85em; overflow-wrap: anywhere }
.document { break-before: page }
td { white-space: normal }
.sign td { height: 2.2rem; min-width: 9rem }
"""


class SourceList:
    """Numbers of the sources of a document, in the order in which they appear."""

    def __init__(self) -> None:
        self.numbers: dict[Source, int] = {}

    def mark(self, sources: Sequence[Source]) -> list[int]:
        """Return the numbers of sources; new ones get the next number."""
        return [self.numbers.setdefault(source, len(self.numbers) + 1) for source in sources]


def write_markdown(document: Document) -> str:
    """Write a document as Markdown.

    Args:
        document: The document.

    Returns:
        The text; every statement ends with the numbers of its sources in brackets.
    """
    sources = SourceList()
    lines = [f"# {_plain(document.title)}", "", f"After: {_plain(document.reference)}.", "", NOT_ADVICE, ""]
    lines += [f"> {note.write(str, _plain)} {_marks(sources, note)}\n" for note in document.notes]
    lines += [f"Items: {_count(document)}.", ""]
    for section in document.sections:
        lines += [f"## {_plain(section.title)}", ""]
        for item in section.items:
            lines += [*_markdown_item(item, sources), ""]
    lines += ["## Sources", ""]
    lines += [f"{number}. {_plain(source.text)}" for source, number in sources.numbers.items()]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_item(item: Item, sources: SourceList) -> Iterator[str]:
    yield f"### {_heading(item)} ({item.state})"
    yield ""
    yield f"*{_plain(item.asks)}*"
    yield ""
    for content in item.all_contents():
        if isinstance(content, Table):
            yield from _markdown_table(content, sources)
        else:
            yield f"- {content.write(str, _plain)} {_marks(sources, content)}"
    for question in item.open_questions:
        yield f"- **Open:** {_plain(question.line)} (answers.toml: {question.id})"
    for gap in item.gaps:
        yield f"- **Not available:** {_code_plain(gap)}."
    if item.state == OPEN and not item.open_questions and not item.gaps:
        yield "- **Open:** this version has no source for it."


def _markdown_table(table: Table, sources: SourceList) -> Iterator[str]:
    yield ""
    yield f"**{_plain(table.title)}** {_marks(sources, table)}"
    yield ""
    yield f"| {' | '.join(_cell(c) for c in table.columns)} |"
    yield "|" + "---|" * len(table.columns)
    for row in table.texts():
        yield f"| {' | '.join(_cell(c) for c in row)} |"
    yield ""


def _plain(text: str) -> str:
    """Escape the characters with which Markdown would read names from data as markup."""
    return _escape(" ".join(text.split()))


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def _code_plain(text: str) -> str:
    """Escape a text for Markdown, except for its `code`."""
    parts = text.split("`")
    return "".join(f"`{part}`" if n % 2 else _escape(part) for n, part in enumerate(parts))


def _code(text: str) -> str:
    """Escape a text for HTML, and mark its `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _cell(text: str) -> str:
    return _plain(text) or " "


def _marks(sources: SourceList, content: Content) -> str:
    return "".join(f"[{n}]" for n in sources.mark(content.all_sources))


def _heading(item: Item) -> str:
    return _plain(f"{item.id} {item.title}".strip())


def _count(document: Document) -> str:
    return ", ".join(f"{count} {state}" for state, count in document.count_states().items() if count)


def write_html(documents: Sequence[Document], *, title: str, first: Sequence[str] = ()) -> str:
    """Write documents as one self-contained page.

    Args:
        documents: The documents.
        title: Title of the page.
        first: HTML before the documents, such as the index.

    Returns:
        The page, one element per line.
    """
    from grandrounds.report.document import document as page

    body = [*first]
    for document in documents:
        body += _html_document(document)
    return page(title, [f"{line}\n" for line in body], None, style=_STYLE)


def _html_document(document: Document) -> Iterator[str]:
    sources = SourceList()
    name = document.name
    yield f"<div class='document' id='{name}'>"
    yield f"<h1>{escape(document.title)}</h1>"
    yield f"<p class='quiet'>After: {escape(document.reference)}.</p>"
    yield f"<p class='warn'>{NOT_ADVICE}</p>"
    for note in document.notes:
        yield f"<p>{note.write(_code, escape)} {_links(sources, note, name)}</p>"
    yield f"<p>Items: {escape(_count(document))}.</p>"
    yield f"<nav aria-label='{_TOC}'><ul>"
    for number, section in enumerate(document.sections):
        yield f"<li><a href='#{name}-{number}'>{escape(section.title)}</a></li>"
    yield "</ul></nav>"
    for number, section in enumerate(document.sections):
        yield f"<h2 id='{name}-{number}'>{escape(section.title)}</h2>"
        for item in section.items:
            yield from _html_item(item, sources, name)
    yield "<h2>Sources</h2>"
    yield "<ol class='sources'>"
    for source, number in sources.numbers.items():
        yield f"<li id='{name}-s{number}'>{escape(source.text)}</li>"
    yield "</ol>"
    yield "</div>"


def _html_item(item: Item, sources: SourceList, name: str) -> Iterator[str]:
    state = item.state
    yield "<div class='item'>"
    heading = escape(f"{item.id} {item.title}".strip())
    yield f"<h3>{heading} <span class='state {state.split()[0]}'>{state}</span></h3>"
    yield f"<p class='asks'>{escape(item.asks)}</p>"
    for content in item.all_contents():
        if isinstance(content, Table):
            yield from _html_table(content, sources, name)
        else:
            yield f"<p>{content.write(_code, escape)} {_links(sources, content, name)}</p>"
    for question in item.open_questions:
        place = f"<span class='quiet'>(answers.toml: {question.id})</span>"
        yield f"<p class='open-question'><b>Open:</b> {escape(question.line)} {place}</p>"
    for gap in item.gaps:
        yield f"<p class='quiet'><b>Not available:</b> {_code(gap)}.</p>"
    if state == OPEN and not item.open_questions and not item.gaps:
        yield "<p class='quiet'><b>Open:</b> this version has no source for it.</p>"
    yield "</div>"


def _html_table(table: Table, sources: SourceList, name: str) -> Iterator[str]:
    yield f"<p><b>{escape(table.title)}</b> {_links(sources, table, name)}</p>"
    yield "<div class='scroll'><table>"
    yield "<tr>" + "".join(f"<th>{escape(c)}</th>" for c in table.columns) + "</tr>"
    for row in table.texts():
        yield "<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>"
    yield "</table></div>"


def _links(sources: SourceList, content: Statement | Table, name: str) -> str:
    numbers = sources.mark(content.all_sources)
    return "<sup>" + " ".join(f"<a href='#{name}-s{n}'>{n}</a>" for n in numbers) + "</sup>"


def _count_questions(documents: Sequence[Document]) -> dict[str, int]:
    """Count the open questions of each role."""
    questions = {q.id: q.role for d in documents for item in d.items for q in item.open_questions}
    roles = list(questions.values())
    return {role: roles.count(role) for role in sorted(set(roles))}


def write_index_markdown(documents: Sequence[Document], made: Mapping[str, str]) -> str:
    """Write the index of a dossier as Markdown.

    Args:
        documents: The documents.
        made: Run, date and version, from made.json.

    Returns:
        The text.
    """
    made_line = f"Made on {made['date']} by Grand Rounds {made['version']}."
    lines = [f"# Dossier of {_plain(made['run'])}", "", made_line, "", NOT_ADVICE, ""]
    lines += ["| document | title | items |", "|---|---|---|"]
    lines += [f"| [{d.name}]({d.name}.md) | {_cell(d.title)} | {_count(d)} |" for d in documents]
    lines += ["", "## Open questions", "", _OPEN.replace("<code>", "`").replace("</code>", "`"), ""]
    lines += ["| to be answered by | questions |", "|---|---|"]
    lines += [f"| {role} | {count} |" for role, count in _count_questions(documents).items()]
    lines += ["", "`rounds dossier verify FOLDER` checks every figure against the evidence and the ledger.", ""]
    lines += ["## Signatures", "", "A signature covers the manifest whose SHA-256 `rounds dossier` printed.", ""]
    lines += ["| name | role | SHA-256 of manifest.json, first 16 digits | date and signature |", "|---|---|---|---|"]
    lines += ["| | | | |"] * 4
    return "\n".join(lines) + "\n"


def write_index_html(documents: Sequence[Document], made: Mapping[str, str], *, linked: str = "{}.html") -> list[str]:
    """Write the index of a dossier as lines of HTML.

    Args:
        documents: The documents.
        made: Run, date and version, from made.json.
        linked: Form of the link to a document: "{}.html", or "#{}" within one page.

    Returns:
        Lines of the body.
    """
    return [
        f"<h1>Dossier of {escape(made['run'])}</h1>",
        f"<p class='quiet'>Made on {escape(made['date'])} by Grand Rounds {escape(made['version'])}.</p>",
        f"<p class='warn'>{NOT_ADVICE}</p>",
        "<table>",
        "<tr><th>document</th><th>items</th></tr>",
        *(f"<tr><td><a href='{linked.format(d.name)}'>{escape(d.title)}</a></td><td>{_count(d)}</td></tr>" for d in documents),
        "</table>",
        "<h2>Open questions</h2>",
        f"<p>{_OPEN}</p>",
        "<table>",
        "<tr><th>to be answered by</th><th>questions</th></tr>",
        *(f"<tr><td>{escape(role)}</td><td>{count}</td></tr>" for role, count in _count_questions(documents).items()),
        "</table>",
        "<p><code>rounds dossier verify FOLDER</code> checks every figure against the evidence and the ledger.</p>",
        "<h2>Signatures</h2>",
        "<p>A signature covers the manifest whose SHA-256 <code>rounds dossier</code> printed.</p>",
        "<table class='sign'>",
        "<tr><th>name</th><th>role</th><th>SHA-256 of manifest.json, first 16 digits</th><th>date and signature</th></tr>",
        *["<tr><td></td><td></td><td></td><td></td></tr>"] * 4,
        "</table>",
    ]
