"""Invitation of a site to a consortium: its name, and a one-time code with which it asks for that name.

The operator's copies lie in OUT/server/invitations until a request is approved; each site's folder has its own. The code is
no key: it proves that a request comes from the holder of the folder, and is void after its first use or after some days.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grandrounds.audit.canonical import canonical, loads
from grandrounds.capabilities.hospital.deploy.files import make_folder, read, write_private
from grandrounds.core.errors import BadInput

FILE, SCHEMA = "invitation.json", 1
DAYS = 14
"""Days for which an invitation is valid by default."""

_CODE_BYTES = 16
_PROOF = b"grandrounds/join/1\x00"


@dataclass(frozen=True)
class Invitation:
    """Invitation of one site, until a time."""

    consortium: str
    site: str
    code: bytes = field(repr=False)
    ends: datetime

    @classmethod
    def new(cls, consortium: str, site: str, *, days: int = DAYS, now: datetime | None = None) -> Invitation:
        """Create an invitation with a new code."""
        start = (now or datetime.now(UTC)).replace(microsecond=0)
        return cls(consortium, site, secrets.token_bytes(_CODE_BYTES), start + timedelta(days=days))

    @classmethod
    def load(cls, path: Path) -> Invitation:
        """Load an invitation that `save` wrote.

        Raises:
            BadInput: It cannot be read, or is damaged.
        """
        try:
            content = loads(read(path))
            code, ends = bytes.fromhex(content["code"]), datetime.fromisoformat(content["ends"])
            fits = content["schema"] == SCHEMA and len(code) == _CODE_BYTES and ends.tzinfo is not None
            names = str(content["consortium"]), str(content["site"])
        except (ValueError, TypeError, KeyError):
            fits = False
        except BadInput as e:
            if e.code == "unreadable-file":
                raise
            fits = False
        if not fits:
            raise BadInput(f"{path} is not an invitation: ask the operator for the folder again", code="damaged-file")
        return cls(*names, code, ends)

    def save(self, path: Path) -> None:
        """Write the invitation to a file that only its owner can read."""
        make_folder(path.parent)
        content = {"schema": SCHEMA, "consortium": self.consortium, "site": self.site, "code": self.code.hex()}
        write_private(path, canonical({**content, "ends": self.ends.isoformat()}) + b"\n")

    def prove(self, text: bytes) -> bytes:
        """Compute the proof that the author of a text has the code, which the proof does not disclose (HMAC-SHA256)."""
        return hmac.digest(self.code, _PROOF + text, "sha256")

    def is_proof(self, text: bytes, proof: bytes) -> bool:
        """Check a proof."""
        return hmac.compare_digest(self.prove(text), proof)

    def is_over(self, now: datetime | None = None) -> bool:
        """Check whether its time is over."""
        return (now or datetime.now(UTC)) >= self.ends

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the consortium's record: the SHA-256 of the code, and the end."""
        return {"code": hashlib.sha256(self.code).hexdigest(), "ends": self.ends.isoformat()}
