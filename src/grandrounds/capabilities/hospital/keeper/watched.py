"""Rows of earlier watches and counts at a site: two of them without noise must not differ by few patients.

The server could subtract the sums of one watch from those of the next, masked or not: the difference is the patients between
them. So a site refuses a watch whose new patients differ from those of an earlier one by fewer rows than `cells.smallest`, and
counts of method 'quality' whose rows do. It stores a 64-bit hash of each row, which stays in the site's folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.capabilities.hospital.keeper.codes import FEW_NEW_PATIENTS, Refusal
from grandrounds.core.arrays import Array, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.split import row_keys, unit_keys

FILE = "watched.json"
"""File of earlier watches, in the folder of the site's state."""

COUNTED = "counted.json"
"""File of rows that method 'quality' counted earlier, in the same folder."""

_STORED = 20
"""Watches that are compared with; older ones are forgotten."""


@dataclass(frozen=True)
class EarlierWatches:
    """The file of earlier watches, or of earlier counts; `code` is the refusal."""

    path: Path
    code: str = FEW_NEW_PATIENTS

    def admit(self, new: Dataset, *, smallest: int) -> None:
        """Check that new patients differ from those of each earlier watch by enough rows or by none, and record them.

        Args:
            new: The new patients.
            smallest: Fewest rows that two watches may differ by.

        Raises:
            Refusal: They differ by fewer rows.
            BadInput: The file is damaged; nothing is released.
        """
        keys = np.sort(unit_keys(np.arange(len(new)), row_keys(new)))
        earlier = self._read()
        changed = [len(np.setxor1d(keys, before)) for before in earlier]
        if any(0 < count < smallest for count in changed):
            raise Refusal(self.code)
        if 0 not in changed:
            kept = [*earlier, keys][-_STORED:]
            write_atomic(self.path, json.dumps([[f"{key:016x}" for key in one.tolist()] for one in kept]).encode())

    def _read(self) -> list[Array]:
        if not self.path.exists():
            return []
        try:
            return [np.array([int(key, 16) for key in one], np.uint64) for one in json.loads(self.path.read_bytes())]
        except (OSError, ValueError, TypeError):
            raise BadInput(
                f"{self.path} is damaged: restore the newest copy; nothing is released", code="damaged-file"
            ) from None
