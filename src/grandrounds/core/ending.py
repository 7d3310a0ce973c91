"""The end of a run that did not finish: state, error code, sentence and suggested fix, as in failure.json of a run folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grandrounds.core.errors import visible

SCHEMA = 1

FAILED = "failed"
"""An error ended the run."""
STOPPED = "stopped"
"""A person stopped the run: Ctrl-C, or the operator of a server."""
INTERRUPTED = "interrupted"
"""No process works on the run, and none recorded an end: it was killed, or the machine went down."""

ENDINGS = (FAILED, STOPPED, INTERRUPTED)
_LONGEST = 4000
"""Characters of a text that are read."""
_SETTING = re.compile(r"[a-z][a-z_.]{0,80}=[\w.+-]{1,40}", re.ASCII)
"""A setting of the command that continues a run: the record may come from somebody else, and people copy the command."""


@dataclass(frozen=True)
class Ending:
    """How a run ended that has no summary.

    Attributes:
        state: FAILED, STOPPED or INTERRUPTED.
        code: The kind of error for programs, such as "cannot-write-folder"; the type of an unexpected error.
        sentence: The cause in one sentence.
        fix: What to do next, in one sentence; "" where the sentence says it.
        round: Rounds that were finished.
        time: When it ended, UTC, in ISO 8601; "" where it is not known.
        version: The version of grandrounds that ended.
        settings: Settings of the command that continues the run, such as "engine.min_sites=6".
    """

    state: str
    code: str
    sentence: str
    fix: str = ""
    round: int = 0
    time: str = ""
    version: str = ""
    settings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Write the record as a JSON object."""
        return {"schema": SCHEMA, **asdict(self), "settings": list(self.settings)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ending:
        """Read the record. Texts that are too long are cut, and control characters are shown as escapes.

        Raises:
            ValueError: The object is no such record.
        """
        texts = {}
        for name in ("state", "code", "sentence", "fix", "time", "version"):
            text = values.get(name, "")
            if not isinstance(text, str):
                raise ValueError(name)
            texts[name] = visible(text[:_LONGEST]).replace("\n", " ")
        settings = values.get("settings", [])
        if not isinstance(settings, list) or not all(isinstance(s, str) and _SETTING.fullmatch(s) for s in settings):
            raise ValueError("settings")
        done = values.get("round", 0)
        if texts["state"] not in ENDINGS or type(done) is not int or done < 0:
            raise ValueError("state or round")
        return cls(round=done, settings=tuple(settings), **texts)


def interrupted(rounds: int = 0) -> Ending:
    """Describe the end of a run whose process left no record."""
    sentence = "No process works on this run, and none recorded why it ended: it was killed, or the machine went down."
    return Ending(INTERRUPTED, "no-process", sentence, "Resume it: finished rounds are on disk.", rounds)
