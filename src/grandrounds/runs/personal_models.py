"""Models of single hospitals of a finished run, from the hospitals' own files. A run at hospitals has none of these files.

personal.safetensors is the model that the hospital chose in the run. recalibrated-1.safetensors, recalibrated-2.safetensors ...
are made later (`rounds recalibrate`); the last one is deployed. One that was undone has the ending .undone.safetensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import Array, load, save
from grandrounds.core.errors import BadInput
from grandrounds.methods.guard.candidates import MAJORITY, describe_choice
from grandrounds.methods.guard.site import FILE, digest_model
from grandrounds.protocol.layout import Layout

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel


RECALIBRATED = "recalibrated"
"""Name of a hospital's choice after a recalibration, and the beginning of the names of its files."""

_NAME = re.compile(rf"{RECALIBRATED}-(\d{{1,6}})(\.undone)?\.safetensors")


@dataclass(frozen=True)
class PersonalFile:
    """A hospital's own file.

    Attributes:
        path: The file.
        site: The hospital.
        choice: Name of the model that the hospital deploys.
        theta: (P,) its parameters.
        common: Digest of the common model that it was made from.
        facts: All facts of the file; of a recalibration also its line, date, rows and the model before it.
    """

    path: Path
    site: str
    choice: str
    theta: Array
    common: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> PersonalFile:
        """Read a file.

        Raises:
            BadInput: The file is missing or damaged.
        """
        try:
            arrays, facts = load(path)
            site, choice, common = (str(facts[name]) for name in ("site", "choice", "common_sha256"))
            return cls(path, site, choice, arrays["deployed"], common, facts)
        except (KeyError, TypeError, ValueError) as e:
            raise BadInput(f"{path} is not a file of a personal model ({e})", code="damaged-file") from None

    @property
    def description(self) -> str:
        """Description of the model for readers."""
        if self.choice == RECALIBRATED:
            base = str(self.facts.get("base", ""))
            return f"{describe_choice(base)}, recalibrated on {str(self.facts.get('time', ''))[:10]}"
        return describe_choice(self.choice)

    @property
    def is_model(self) -> bool:
        """False where the hospital deploys its most common class: every patient has the same risk."""
        return MAJORITY not in (self.choice, self.facts.get("base"))

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, as `sha256sum` prints it."""
        with self.path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    def apply(self, model: TrainedModel) -> TrainedModel:
        """Return the model that the hospital deploys.

        Args:
            model: The common model of the run, with its encoding.

        Raises:
            BadInput: The file was made from another model.
        """
        if not self.fits(model):
            raise BadInput(
                f"{self.path} was made from another model than that of this run: give the file of this run",
                code="other-personal-model",
            )
        return replace(model, theta=self.theta.astype(model.theta.dtype))

    def fits(self, model: TrainedModel) -> bool:
        """Check that the file was made from this model."""
        layout = model.net.layout
        whole = not isinstance(layout, Layout) or self.theta.shape == (layout.size,)  # trees and cards differ in size
        return whole and self.common == digest_model(model.theta)


def find_personal_file(path: Path, models: Sequence[TrainedModel], *, personal: bool = True) -> PersonalFile:
    """Find the file of a personal model that was made from a model of a run.

    Args:
        path: The file, or a folder that has it somewhere below, such as the folder of a site. Of a folder with recalibrations
            the last one that was not undone.
        models: The common model of the run, and those of groups of sites.
        personal: The run has personal parts. Without, personal models of another run with the same common model are passed over.

    Returns:
        The file.

    Raises:
        BadInput: There is none, or none of this run.
    """
    if not path.is_dir():
        return PersonalFile.read(path)
    folders = sorted({p.parent for p in (*path.rglob(FILE), *path.rglob(f"{RECALIBRATED}-*.safetensors"))})
    folders = [folder for folder in folders if personal or not (folder / FILE).exists()]
    files = [PersonalFile.read(deployed) for folder in folders if (deployed := find_deployed(folder)) is not None]
    fitting = [file for file in files if any(file.fits(model) for model in models)]
    if not fitting:
        found = f"{len(files)} of other runs" if files else "none"
        raise BadInput(
            f"{path} has no {FILE} of this run (found: {found}): a site writes it where the plan has personal.part or "
            "personal.guard and its policy allows the task 'personal'",
            code="no-personal-model",
        )
    return fitting[-1]


def find_deployed(folder: Path) -> Path | None:
    """Find the file of the model that a hospital deploys: its last recalibration, else its personal model.

    Args:
        folder: The hospital's folder of one run.

    Returns:
        The file; None where there is none.
    """
    numbers = {n: name for n, undone, name in _recalibrations(folder) if not undone}
    name = numbers[max(numbers)] if numbers else FILE
    return folder / name if (folder / name).exists() else None


def write_recalibrated(folder: Path, theta: Array, facts: Mapping[str, Any]) -> PersonalFile:
    """Write a recalibrated model beside the earlier files of a hospital, which stay as they are.

    Args:
        folder: The hospital's folder of one run; it is made where there is none.
        theta: (P,) parameters.
        facts: Facts of the file: "site", "common_sha256", "base", "time" and those of the recalibration.

    Returns:
        The file.

    Raises:
        BadInput: Another process recalibrates at the same time.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = max((n for n, _, _ in _recalibrations(folder)), default=0) + 1
    path = folder / f"{RECALIBRATED}-{number}.safetensors"
    written = folder / f".{RECALIBRATED}-{secrets.token_hex(8)}"
    save(written, {"deployed": theta}, {**facts, "choice": RECALIBRATED, "number": number})
    try:
        os.link(written, path)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise BadInput(f"{path} was written by another process at the same time: run it again", code="folder-in-use") from None
    finally:
        written.unlink()
    return PersonalFile.read(path)


def undo_recalibrated(folder: Path) -> Path:
    """Set the last recalibration of a hospital aside; its file stays, under another name.

    Returns:
        The file that was set aside.

    Raises:
        BadInput: There is no recalibration.
    """
    deployed = find_deployed(folder)
    if deployed is None or deployed.name == FILE:
        raise BadInput(
            f"{folder} has no recalibration to undo: the model is the one that the run ended with", code="no-recalibration"
        )
    return deployed.rename(deployed.with_name(deployed.name.replace(".safetensors", ".undone.safetensors")))


def _recalibrations(folder: Path) -> list[tuple[int, bool, str]]:
    """List the recalibrations of a folder: number, undone, file name."""
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return [(int(m[1]), m[2] is not None, name) for name in names if (m := _NAME.fullmatch(name))]
