"""Write a dossier: evidence, documents, questions and a manifest, in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.capabilities.dossier.building.document import Document
from grandrounds.capabilities.dossier.building.documents import build_documents
from grandrounds.capabilities.dossier.building.evidence import FOLDER, MADE, Evidence
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import FILE as ANSWERS
from grandrounds.capabilities.dossier.building.questions import Answer, Question, read_answers, write_answers
from grandrounds.capabilities.dossier.building.text import (
    write_html,
    write_index_html,
    write_index_markdown,
    write_markdown,
)
from grandrounds.core.arrays import make_folder, read_file, write_atomic
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

MANIFEST, ALL, PDF = "manifest.json", "dossier.json", "dossier.pdf"
SCHEMA = 1


@dataclass(frozen=True)
class Dossier:
    """A dossier on disk.

    Attributes:
        folder: Its folder.
        documents: The documents.
        manifest: SHA-256 of manifest.json, which a signature covers.
        unprinted: Why there is no PDF; empty if there is one.
    """

    folder: Path
    documents: tuple[Document, ...]
    manifest: str
    unprinted: str = ""

    @property
    def open_questions(self) -> tuple[Question, ...]:
        """Questions that nobody answered yet."""
        return tuple({q.id: q for d in self.documents for item in d.items for q in item.open_questions}.values())


def write_dossier(
    run: Run,
    out: Path | None = None,
    *,
    answers: Path | None = None,
    pdf: bool = True,
    date: str = "",
    progress: Callable[[str], None] = lambda step: None,
) -> Dossier:
    """Write the dossier of a finished run. Answers that people gave in an earlier one are kept.

    Args:
        run: The run.
        out: Folder of the dossier; None: RUN/dossier.
        answers: An answers.toml to use; None: the one in the folder, if there is one.
        pdf: Print all documents into dossier.pdf, which needs Chrome or Chromium.
        date: Day of the dossier, such as 2026-01-31; empty: today, UTC.
        progress: Called with the name of each step.

    Returns:
        The dossier.

    Raises:
        BadInput: The run is not finished, an answer has no name, or a file cannot be written.
    """
    folder = out or run.folder / "dossier"
    _refuse_other_folder(folder)
    given = load_answers(answers or folder / ANSWERS, required=answers is not None)
    progress("collecting evidence")
    evidence = Evidence.collect(run, date=date)
    progress("writing documents")
    documents = build_documents(Facts(evidence, given))
    files = {f"{FOLDER}/{name}": data for name, data in evidence.files.items()}
    files |= render(documents, evidence, given)
    _write(folder, files)
    unprinted = ""
    if pdf:
        progress("printing the PDF")
        unprinted = _print(folder, documents, evidence)
    elif (folder / PDF).exists():
        (folder / PDF).unlink()  # it would show earlier figures
    if not unprinted and pdf:
        files[PDF] = read_file(folder / PDF)
    manifest = write_manifest({name: sha256(data).hexdigest() for name, data in files.items()})
    write_atomic(folder / MANIFEST, manifest)
    return Dossier(folder, documents, sha256(manifest).hexdigest(), unprinted)


def load_answers(path: Path, *, required: bool = False) -> dict[str, Answer]:
    """Read an answers.toml.

    Args:
        path: The file.
        required: Refuse a missing file; otherwise it has no answers.

    Returns:
        The answers by question.

    Raises:
        BadInput: The file is missing or damaged, or an answer has no name.
    """
    if not path.exists() and not required:
        return {}
    try:
        return read_answers(read_file(path).decode(), where=str(path))
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text: save it as UTF-8", code="bad-answers") from None


def render(documents: tuple[Document, ...], evidence: Evidence, answers: Mapping[str, Answer]) -> dict[str, bytes]:
    """Render the documents: a pure function, so that a dossier can be checked by rendering it again.

    Args:
        documents: The documents.
        evidence: The evidence that they were made from.
        answers: People's answers.

    Returns:
        Content of each file by name.
    """
    made = evidence.json(MADE)
    files = {}
    for document in documents:
        files[f"{document.name}.md"] = write_markdown(document)
        files[f"{document.name}.html"] = write_html([document], title=document.title)
    files["index.md"] = write_index_markdown(documents, made)
    files["index.html"] = write_html([], title=f"Dossier of {made['run']}", first=write_index_html(documents, made))
    values = {"schema": SCHEMA, **made, "documents": [d.to_dict() for d in documents]}
    files[ALL] = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    asked = [q for d in documents for item in d.items for q in item.questions]
    files[ANSWERS] = write_answers(asked, answers)
    return {name: text.encode() for name, text in files.items()}


def write_manifest(hashes: Mapping[str, str]) -> bytes:
    """Write the manifest of a dossier from the SHA-256 of each file."""
    return (json.dumps({"schema": SCHEMA, "files": dict(sorted(hashes.items()))}, indent=1) + "\n").encode()


def _refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that has files but is no dossier."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: give a folder with --out", code="not-a-folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists() and not (folder / ANSWERS).exists():
        raise BadInput(f"{folder} has files and is not a dossier: give an empty folder with --out", code="folder-in-use")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, and remove evidence and documents of an earlier dossier that this one does not have."""
    try:
        make_folder(folder)
        for old in sorted(folder.rglob("*"), reverse=True):
            name = old.relative_to(folder).as_posix()
            if old.is_file() and name not in files and _is_ours(name):
                old.unlink()
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data, durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {folder}: {e.strerror or e}", code="cannot-write") from None


def _is_ours(name: str) -> bool:
    return name.startswith(f"{FOLDER}/") or name == MANIFEST


def _print(folder: Path, documents: tuple[Document, ...], evidence: Evidence) -> str:
    """Print all documents into one PDF; return the reason where that is not possible here."""
    from grandrounds.report.figure import find_browser
    from grandrounds.report.printing import write_pdf
    from grandrounds.report.provenance import Provenance

    path = folder / PDF
    path.unlink(missing_ok=True)
    if find_browser() is None:
        return "a PDF needs Chrome or Chromium on this machine: install one, or print the HTML files"
    made = evidence.json(MADE)
    first = write_index_html(documents, made, linked="#{}")
    page = write_html(documents, title=f"Dossier of {made['run']}", first=first)
    inputs = {f"{FOLDER}/{name}": evidence.digest(name) for name in evidence.files}
    write_pdf(page, path, Provenance(None, inputs, str(made["version"])))
    return ""
