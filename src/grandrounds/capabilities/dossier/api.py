"""Write and verify the papers of a run: `gr.dossier(run)`, `gr.verify_dossier(folder)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grandrounds.capabilities.dossier.building.verify import Verification
    from grandrounds.capabilities.dossier.building.writer import Dossier
    from grandrounds.runs.run import Run


def dossier(
    run: Run | str | Path, out: str | Path | None = None, *, answers: str | Path | None = None, pdf: bool = True, date: str = ""
) -> Dossier:
    """Write TRIPOD+AI, EU AI Act Annex IV, FDA PCCP, DPIA, model card and data sheet of a finished run.

    Args:
        run: The run, or its folder.
        out: Folder of the dossier; by default RUN/dossier.
        answers: An answers.toml with people's answers; by default the one in the dossier's folder.
        pdf: Also print dossier.pdf, which needs Chrome or Chromium.
        date: Day of the dossier, such as "2026-01-31"; by default today, UTC.

    Returns:
        The dossier: `.folder`, `.documents`, `.open_questions`, and `.manifest`, the SHA-256 that a signature covers.

    Raises:
        BadInput: The run is not finished, an answer has no name, or the folder is in use.

    Examples:
        >>> dossier("runs/heart-fedavg-seed0").open_questions  # doctest: +SKIP
    """
    from grandrounds.capabilities.dossier.building.writer import write_dossier
    from grandrounds.runs.run import Run

    found = run if isinstance(run, Run) else Run(Path(run), withdrawn=True)
    folder, file = (None if place is None else Path(place) for place in (out, answers))
    return write_dossier(found, folder, answers=file, pdf=pdf, date=date)


def verify_dossier(
    folder: str | Path, *, key: bytes | None = None, manifest: str = "", run: str | Path | None = None
) -> Verification:
    """Verify a dossier and name each altered figure.

    Args:
        folder: The dossier.
        key: The server's public key; by default the one that the ledger names.
        manifest: SHA-256 of manifest.json that was signed, or its first 16 digits.
        run: The run folder, to collect the evidence again and compare it too.

    Returns:
        The result; `.differences` is empty if nothing was altered.

    Raises:
        BadInput: The folder is not a dossier.

    Examples:
        >>> verify_dossier("runs/heart-fedavg-seed0/dossier").differences  # doctest: +SKIP
    """
    from grandrounds.capabilities.dossier.building import verify

    return verify.verify_dossier(Path(folder), key=key, manifest=manifest, run=None if run is None else Path(run))
