"""Personal models of a finished run, from the hospitals' own files. A run at hospitals has none of these files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.arrays import Array, load
from grandrounds.core.errors import BadInput
from grandrounds.methods.personal.parts import IN_WORDS
from grandrounds.methods.personal.site import FILE, digest_model
from grandrounds.protocol.layout import Layout

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel


@dataclass(frozen=True)
class PersonalFile:
    """A hospital's own file.

    Attributes:
        path: The file.
        site: The hospital.
        choice: Name of the model that the hospital deploys.
        theta: (P,) its parameters.
        common: Digest of the common model that it was made from.
    """

    path: Path
    site: str
    choice: str
    theta: Array
    common: str

    @classmethod
    def read(cls, path: Path) -> PersonalFile:
        """Read a file.

        Raises:
            BadInput: The file is missing or damaged.
        """
        try:
            arrays, facts = load(path)
            return cls(path, str(facts["site"]), str(facts["choice"]), arrays["deployed"], str(facts["common_sha256"]))
        except (KeyError, TypeError, ValueError) as e:
            raise BadInput(f"{path} is not a file of a personal model ({e})", code="damaged-file") from None

    @property
    def description(self) -> str:
        """Description of the model for readers."""
        return IN_WORDS.get(self.choice, self.choice)

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


def find_personal_file(path: Path, models: Sequence[TrainedModel]) -> PersonalFile:
    """Find the file of a personal model that was made from a model of a run.

    Args:
        path: The file, or a folder that has it somewhere below, such as the folder of a site.
        models: The common model of the run, and those of groups of sites.

    Returns:
        The file.

    Raises:
        BadInput: There is none, or none of this run.
    """
    if not path.is_dir():
        return PersonalFile.read(path)
    files = [PersonalFile.read(p) for p in sorted(path.rglob(FILE))]
    fitting = [file for file in files if any(file.fits(model) for model in models)]
    if not fitting:
        found = f"{len(files)} of other runs" if files else "none"
        raise BadInput(
            f"{path} has no {FILE} of this run (found: {found}): a site writes it where the plan has personal.part or "
            "personal.guard and its policy allows the task 'personal'",
            code="no-personal-model",
        )
    return fitting[-1]
