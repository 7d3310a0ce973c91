"""Check a report: the ledger and the inputs that it carries, and its text, by drawing it again from the same files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
from pathlib import Path

from grandrounds.analysis.audit.file_check import DAMAGE, Close, Compared
from grandrounds.audit.entry import SIMULATED
from grandrounds.audit.files import REPORT, hash_file, read_file
from grandrounds.audit.merkle import Tree
from grandrounds.core.arrays import decode
from grandrounds.core.errors import BadInput
from grandrounds.report.provenance import LedgerState, Provenance, is_as_printed, read_provenance
from grandrounds.runs.environment import own_version

DIFFERS = "report differs"
_DRAWN_FROM = ("summary.json", "round_logs.json")
_SCRIPT = re.compile(r"(<script type='text/plain' id='plotly-packed'>)([A-Za-z0-9+/=]*)(</script>)")
_SHOWN = 60


def check_report(out: Compared, path: Path, folder: Path, *, close: Close, tree: Tree, run: str, made: str) -> None:
    """Check one report of a run.

    Args:
        out: Takes what is found.
        path: The page or PDF.
        folder: The run folder that it is about.
        close: The closing entry that is valid.
        tree: The tree over the ledger's entries.
        run: The run that the ledger is of.
        made: How the ledger says that its keys were made.
    """
    try:
        data = read_file(path)
    except BadInput as e:
        out.wrong(DIFFERS, path.name, f"it {e}")
        return
    if hashlib.sha256(data).hexdigest() == close.files.get(REPORT):
        out.checked.append(f"{path.name}: by the SHA-256 in entry {close.number}")
        return
    try:
        carried = read_provenance(data)
    except BadInput as e:
        out.wrong(DIFFERS, path.name, f"it {e}; draw it anew with `rounds report`")
        return
    before = len(out.findings)
    _compare_ledger(out, path.name, carried.ledger, tree=tree, run=run, made=made)
    _compare_inputs(out, path.name, carried, folder, close)
    if len(out.findings) > before:
        return
    facts = f"{path.name}: the ledger's root and the hashes of its {len(carried.inputs)} inputs"
    if data.startswith(b"%PDF") and not is_as_printed(data, carried):
        out.wrong(
            DIFFERS, path.name, "its pages were changed since it was printed; `rounds report --pdf` makes it anew"
        )
    elif data.startswith(b"%PDF"):
        out.checked.append(f"{facts}; its bytes, by the hash that it carries")
        out.open_question(
            f"figures printed in {path.name}: what it carries is not signed, and a PDF cannot be drawn again to compare it; "
            "`rounds report --pdf` makes it anew"
        )
    else:
        _compare_text(out, path.name, data, carried, folder, facts)


def _compare_ledger(out: Compared, name: str, held: LedgerState | None, *, tree: Tree, run: str, made: str) -> None:
    if held is None:
        out.wrong(DIFFERS, name, "it carries no ledger, though the run has one; draw it anew with `rounds report`")
    elif held.run != run:
        out.wrong(DIFFERS, name, f"it is of run {held.run[:80]!r}, the ledger of {run!r}")
    elif not 0 < held.entries <= len(tree):
        out.wrong(DIFFERS, name, f"it was drawn when the ledger had {held.entries} entries; it has {len(tree)}")
    elif tree.root(held.entries).hex() != held.root:
        out.wrong(DIFFERS, name, f"it carries another root over {held.entries} entries than this ledger has")
    elif held.simulated < (made == SIMULATED):
        out.wrong(DIFFERS, name, "it does not say that the ledger's keys are simulated")


def _compare_inputs(out: Compared, name: str, carried: Provenance, folder: Path, close: Close) -> None:
    for missing in (n for n in _DRAWN_FROM if n not in carried.inputs):
        out.wrong(DIFFERS, name, f"it does not carry the hash of {missing}, which a report is drawn from")
    for file, digest in carried.inputs.items():
        told = close.files.get(file)
        if told is None:
            told = _hash(folder, file)
        if digest != told:
            out.wrong(
                DIFFERS, name, f"it was drawn from another {file[:80]} than entry {close.number} or the folder has"
            )


def _hash(folder: Path, file: str) -> str:
    """The hash of an input that no closing entry names, such as attacks.json."""
    try:
        return hash_file(folder / file) if file == Path(file).name else ""
    except BadInput:
        return ""


def _compare_text(out: Compared, name: str, data: bytes, carried: Provenance, folder: Path, facts: str) -> None:
    """Draw the page again and compare it letter by letter."""
    anew = "draw it anew with `rounds report`"
    own = own_version()
    if carried.version != own:
        said = f"version {carried.version[:20]} drew it and this is {own}, so that its figures cannot be compared"
        out.wrong(DIFFERS, name, f"it is not the page that the run ended with; {said}; {anew}")
        return
    try:
        page = draw_again(folder, carried)
        found = _difference(data.decode(), page)
    except DAMAGE as e:
        out.wrong(DIFFERS, name, f"it cannot be drawn again to compare it ({type(e).__name__}); {anew}")
        return
    if found:
        out.wrong(DIFFERS, name, f"it is not what is drawn from its inputs: {found}; {anew}")
    else:
        out.checked.append(f"{facts}, and every figure, by drawing it again")


def draw_again(folder: Path, carried: Provenance) -> str:
    """Draw the page of a run with the facts that an earlier one carried."""
    from grandrounds.analysis.membership.attack import FILE, read_attacks
    from grandrounds.report.page import report_page
    from grandrounds.runs.readable_model import readable_file
    from grandrounds.runs.run import Run

    run = Run(folder)
    held = run.explanations if "explanations.json" in carried.inputs else None
    attacks = read_attacks(run) if FILE in carried.inputs else None
    model = readable_file(folder / "model.safetensors") if _is_linear(folder / "model.safetensors") else None
    return report_page(
        run.summary, run.rounds, run.summary["environment"], held, attacks, model, provenance=carried
    )


def _is_linear(path: Path) -> bool:
    """Tell a logistic model, the only one that a report lists, by its name alone: no code of a model is loaded for it."""
    _, meta = decode(read_file(path), where=path.name)
    return isinstance(meta, dict) and isinstance(meta.get("spec"), dict) and meta["spec"].get("name") == "logistic"


def _difference(found: str, drawn: str) -> str:
    """Say where two pages differ; nothing where they are the same but for how tightly the script is packed."""
    if found == drawn:
        return ""
    theirs, ours = _SCRIPT.search(found), _SCRIPT.search(drawn)
    if theirs and ours and theirs[2] != ours[2]:
        if not _same_script(theirs[2], ours[2]):
            return "the script that draws its charts is another"
        found = found[: theirs.start(2)] + ours[2] + found[theirs.end(2) :]
        if found == drawn:
            return ""
    at = next((n for n, (a, b) in enumerate(zip(found, drawn, strict=False)) if a != b), min(len(found), len(drawn)))
    return f"it has '{_around(found, at)}' where '{_around(drawn, at)}' is drawn"


def _around(text: str, at: int) -> str:
    """The words around a place, without the tags beside them."""
    start = max(text.rfind(">", 0, at) + 1, at - _SHOWN)
    end = text.find("<", at)
    return text[start : min(end if end >= 0 else len(text), start + 2 * _SHOWN)].strip()


def _same_script(theirs: str, ours: str) -> bool:
    own = gzip.decompress(base64.b64decode(ours))
    with gzip.open(io.BytesIO(base64.b64decode(theirs))) as f:
        return f.read(len(own) + 1) == own
