"""The policy of a running site: policy.toml is read anew when it changes, so that an approved plan needs no restart."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.codes import POLICY, Refusal
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.core.errors import BadInput

_log = logging.getLogger("grandrounds.keeper")

_PAUSE = 0.2
"""Seconds between two readings of a changed file, which must be the same: an editor may be writing it."""


class PolicyFile:
    """A policy file that is compared with its last content before every request.

    Args:
        path: The file.

    Raises:
        BadInput: It cannot be read, or is no policy.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._content = path, _read(path)  # first: a change after it is seen
        self.policy = Policy.load(path)

    def read(self) -> Policy:
        """Return the policy, read anew if the file changed.

        Raises:
            Refusal: The file is absent, empty or no policy; nothing is answered until it is corrected.
        """
        content = _read(self._path)
        if content != self._content:
            content = self._settle(content)
            self.policy = self._parse(content)
            self._content = content
            _log.warning("%s was changed and is read anew", self._path)
        return self.policy

    def _settle(self, content: bytes) -> bytes:
        """Read until the content is the same twice."""
        while True:
            time.sleep(_PAUSE)
            again = _read(self._path)
            if again == content:
                return again
            content = again

    def _parse(self, content: bytes) -> Policy:
        try:
            if not content.strip():  # an empty file would allow everything, and may be one that is being written
                raise BadInput(f"the policy {self._path} is absent or empty", code="cannot-read")
            return Policy.parse(content.decode(), where=str(self._path))
        except (BadInput, UnicodeDecodeError) as e:
            raise Refusal(POLICY, f"{e}; nothing is answered until the file is corrected") from None


def _read(path: Path) -> bytes:
    """Read a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
