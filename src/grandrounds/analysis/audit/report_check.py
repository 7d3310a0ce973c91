"""Check a report: the ledger and the inputs that it carries, and its text, by drawing it again from the same files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
from pathlib import Path

from grandrounds.analysis.audit.file_check import DAMAGE, AuditFindings, ClosingEntry
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


def check_report(
    out: AuditFindings, path: Path, folder: Path, *, close: ClosingEntry, tree: Tree, run: str, key_source: str
) -> None:
    """Check one report of a run.

    Args:
        out: Takes what is found.
        path: The page or PDF.
        folder: The run folder that it is about.
        close: The closing entry that is valid.
        tree: The tree over the ledger's entries.
        run: The run that the ledger is of.
        key_source: How the ledger says that its keys were made.
    """
    try:
        data = read_file(path)
    except BadInput as e:
        out.add_finding(DIFFERS, path.name, f"it {e}")
        return
    if hashlib.sha256(data).hexdigest() == close.files.get(REPORT):
        out.checked.append(f"{path.name}: by the SHA-256 in entry {close.number}")
        return
    try:
        carried = read_provenance(data)
    except BadInput as e:
        out.add_finding(DIFFERS, path.name, f"it {e}; write it again with `rounds report`")
        return
    before = len(out.findings)
    _compare_ledger(out, path.name, carried.ledger, tree=tree, run=run, key_source=key_source)
    _compare_inputs(out, path.name, carried, folder, close)
    if len(out.findings) > before:
        return
    facts = f"{path.name}: the ledger's root and the hashes of its {len(carried.inputs)} inputs"
    if data.startswith(b"%PDF") and not is_as_printed(data, carried):
        out.add_finding(
            DIFFERS, path.name, "its pages were changed since it was printed; `rounds report --pdf` writes it again"
        )
    elif data.startswith(b"%PDF"):
        out.checked.append(f"{facts}; its bytes, by the hash that it carries")
        out.add_unchecked(
            f"figures printed in {path.name}: what it carries is not signed, and a PDF cannot be drawn again to compare it; "
            "`rounds report --pdf` writes it again"
        )
    else:
        _compare_text(out, path.name, data, carried, folder, facts)


def _compare_ledger(
    out: AuditFindings, name: str, state: LedgerState | None, *, tree: Tree, run: str, key_source: str
) -> None:
    if state is None:
        out.add_finding(
            DIFFERS, name, "it carries no ledger, though the run has one; write it again with `rounds report`"
        )
    elif state.run != run:
        out.add_finding(DIFFERS, name, f"it is of run {state.run[:80]!r}, the ledger of {run!r}")
    elif not 0 < state.entries <= len(tree):
        out.add_finding(DIFFERS, name, f"it was drawn when the ledger had {state.entries} entries; it has {len(tree)}")
    elif tree.root(state.entries).hex() != state.root:
        out.add_finding(DIFFERS, name, f"it carries another root over {state.entries} entries than this ledger has")
    elif state.simulated < (key_source == SIMULATED):
        out.add_finding(DIFFERS, name, "it does not say that the ledger's keys are simulated")


def _compare_inputs(out: AuditFindings, name: str, carried: Provenance, folder: Path, close: ClosingEntry) -> None:
    for missing in (n for n in _DRAWN_FROM if n not in carried.inputs):
        out.add_finding(DIFFERS, name, f"it does not carry the hash of {missing}, which a report is drawn from")
    for file, digest in carried.inputs.items():
        expected = close.files.get(file)
        if expected is None:
            expected = _input_hash(folder, file)
        if digest != expected:
            out.add_finding(
                DIFFERS, name, f"it was drawn from another {file[:80]} than entry {close.number} or the folder has"
            )


def _input_hash(folder: Path, file: str) -> str:
    """Hash an input that no closing entry names, such as attacks.json."""
    try:
        return hash_file(folder / file) if file == Path(file).name else ""
    except BadInput:
        return ""


def _compare_text(out: AuditFindings, name: str, data: bytes, carried: Provenance, folder: Path, facts: str) -> None:
    """Draw the page again and compare it character by character."""
    anew = "write it again with `rounds report`"
    version = own_version()
    if carried.version != version:
        versions = (
            f"version {carried.version[:20]} drew it and this is {version}, so that its figures cannot be compared"
        )
        out.add_finding(DIFFERS, name, f"it is not the page that the run ended with; {versions}; {anew}")
        return
    try:
        page = draw_again(folder, carried)
        difference = _difference(data.decode(), page)
    except DAMAGE as e:
        out.add_finding(DIFFERS, name, f"it cannot be drawn again to compare it ({type(e).__name__}); {anew}")
        return
    if difference:
        out.add_finding(DIFFERS, name, f"it is not what is drawn from its inputs: {difference}; {anew}")
    else:
        out.checked.append(f"{facts}, and every figure, by drawing it again")


def draw_again(folder: Path, carried: Provenance) -> str:
    """Draw the page of a run with the facts that an earlier one carried."""
    from grandrounds.analysis.membership.attack import FILE, read_attacks
    from grandrounds.report.page import report_page
    from grandrounds.runs.readable_model import readable_file
    from grandrounds.runs.run import Run

    run = Run(folder)
    explanations = run.explanations if "explanations.json" in carried.inputs else None
    attacks = read_attacks(run) if FILE in carried.inputs else None
    model = readable_file(folder / "model.safetensors") if _is_linear(folder / "model.safetensors") else None
    return report_page(
        run.summary, run.rounds, run.summary["environment"], explanations, attacks, model, provenance=carried
    )


def _is_linear(path: Path) -> bool:
    """Tell a logistic model, the only one that a report lists, by its name alone: no code of a model is loaded for it."""
    _, meta = decode(read_file(path), where=path.name)
    return isinstance(meta, dict) and isinstance(meta.get("spec"), dict) and meta["spec"].get("name") == "logistic"


def _difference(page: str, drawn: str) -> str:
    """Name the first difference of two pages; compression of the script does not count."""
    if page == drawn:
        return ""
    theirs, ours = _SCRIPT.search(page), _SCRIPT.search(drawn)
    if theirs and ours and theirs[2] != ours[2]:
        if not _is_same_script(theirs[2], ours[2]):
            return "the script that draws its charts differs"
        page = page[: theirs.start(2)] + ours[2] + page[theirs.end(2) :]
        if page == drawn:
            return ""
    position = next(
        (n for n, (a, b) in enumerate(zip(page, drawn, strict=False)) if a != b), min(len(page), len(drawn))
    )
    return f"it has '{_excerpt(page, position)}' where '{_excerpt(drawn, position)}' is drawn"


def _excerpt(text: str, position: int) -> str:
    """Cut out the words around a place, without the tags beside them."""
    start = max(text.rfind(">", 0, position) + 1, position - _SHOWN)
    end = text.find("<", position)
    return text[start : min(end if end >= 0 else len(text), start + 2 * _SHOWN)].strip()


def _is_same_script(theirs: str, ours: str) -> bool:
    script = gzip.decompress(base64.b64decode(ours))
    with gzip.open(io.BytesIO(base64.b64decode(theirs))) as f:
        return f.read(len(script) + 1) == script
