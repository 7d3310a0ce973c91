"""Check both histories of a withdrawal: the entries of two ledgers that refer to each other, and the mark of the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.file_check import AuditFindings, Entry
from grandrounds.audit.book import Book
from grandrounds.audit.entry import CLOSE, OPEN, WITHDRAW
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.core.errors import BadInput
from grandrounds.runs.withdrawal import MARK, Withdrawn, read_mark

OTHER_HISTORY = "other history"
NO_MARK = "mark of a withdrawal"


def withdrawal_in(entries: Sequence[Entry]) -> Withdrawn | None:
    """Return the withdrawal at the end of a ledger that verifies; None where its model is valid."""
    last = entries[-1]
    return Withdrawn.from_dict(last) if last["kind"] == WITHDRAW else None


def compare_mark(out: AuditFindings, folder: Path, withdrawn: Withdrawn | None) -> None:
    """Compare withdrawn.json of a run folder with the ledger."""
    try:
        mark = read_mark(folder)
    except BadInput as e:
        out.add_finding(NO_MARK, MARK, str(e))
        return
    if withdrawn is not None and mark is None:
        out.add_finding(NO_MARK, MARK, f"it was removed, and the ledger says that {withdrawn.sentence}")
    elif withdrawn is None and mark is not None:
        out.add_finding(NO_MARK, MARK, f"it says that {mark.sentence}, and the ledger does not")
    elif mark != withdrawn:
        out.add_finding(NO_MARK, MARK, "it does not say what the ledger says")
    elif mark is not None:
        out.checked.append(f"{MARK}: as in the last entry")


def compare_other_run(out: AuditFindings, folder: Path, entries: Sequence[Entry], withdrawn: Withdrawn | None) -> None:
    """Compare the other run of a withdrawal, where its folder lies beside this one.

    Args:
        out: Takes the findings.
        folder: The run folder.
        entries: The entries of its ledger.
        withdrawn: The withdrawal at its end, if there is one.
    """
    opening = entries[0]
    repeats = opening.get("repeats") if opening["kind"] == OPEN else None
    if withdrawn is not None:
        valid = entries[-1]["valid"]
        out.notes.append(f"{withdrawn.sentence}: the model of this run is not valid any more")
        _compare(out, folder, valid, part="the run that is valid now", names_back=CLOSE)
    if repeats is not None:
        words = f"it repeats {repeats['folder']} without {repeats.get('site', 'a site')}, which withdrew"
        out.notes.append(words)
        _compare(out, folder, repeats, part="the earlier run", names_back=WITHDRAW)


def _compare(out: AuditFindings, folder: Path, other: Mapping[str, Any], *, part: str, names_back: str) -> None:
    """Compare the ledger of another run with the head and the model by which this ledger names it."""
    name = str(other["folder"])
    place = folder.absolute().with_name(Path(name).name)
    if not other["root"]:
        out.add_unchecked(f"{part}, {name}: it has no ledger")
        return
    if not (place / "ledger.db").is_file():
        out.add_unchecked(f"{part}, {name}: its folder is not beside this one")
        return
    try:
        with Ledger.open(place / "ledger.db") as ledger:
            findings, book = ledger.verify(), ledger.book()
    except BadInput as e:
        out.add_finding(OTHER_HISTORY, name, str(e))
        return
    if findings:
        out.add_finding(OTHER_HISTORY, name, f"the ledger of {part} does not verify: {findings[0]}")
        return
    _compare_book(out, folder, book, other, part=part, names_back=names_back)


def _compare_book(
    out: AuditFindings, folder: Path, book: Book, other: Mapping[str, Any], *, part: str, names_back: str
) -> None:
    name, size = str(other["folder"]), int(other["entries"])
    contents = [entry.content for entry in book.entries]
    tree = Tree(entry.leaf for entry in book.entries)
    if not 0 < size <= len(tree) or tree.root(size).hex() != other["root"]:
        out.add_finding(OTHER_HISTORY, name, f"{part} has another ledger than this one names")
        return
    closing = contents[size - 1]
    if closing["kind"] != CLOSE or closing["model"] != other["model"]:
        out.add_finding(OTHER_HISTORY, name, f"{part} ended with another model than this ledger names")
        return
    back = contents[-1].get("valid") if names_back == WITHDRAW else contents[0].get("repeats")
    if back is None or (names_back == WITHDRAW and contents[-1]["kind"] != WITHDRAW):
        fix = "; run `rounds withdraw` again" if names_back == WITHDRAW else ""
        out.add_finding(OTHER_HISTORY, name, f"{part} does not name this run{fix}")
    elif Path(str(back["folder"])).name != folder.absolute().name:
        out.add_unchecked(f"{part}, {name}: it names {back['folder']}, the folder of this run under another name")
    else:
        out.checked.append(f"{part}, {name}: its ledger verifies, with the head and the model that this one names")
