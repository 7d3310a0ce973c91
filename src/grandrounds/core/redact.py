"""Remove passwords from database URLs, so that no plan, run folder or message contains one."""

from __future__ import annotations

import os
import re

VARIABLE = "GRANDROUNDS_SQL_PASSWORD"
HOST = "GRANDROUNDS_SQL_HOST"
"""The host that the password is for, as the user names it: a plan or a run folder of somebody else's may name another."""

HIDDEN = "***"
_USER = re.compile(r"(://[^/?#:@]*):([^/?#]*)@")
_OPTION = re.compile(r"([?&](?:password|passwd|pwd|token)=)[^&]*", re.IGNORECASE)


def hide(url: str) -> str:
    """Return a URL without its password; other text is unchanged."""
    if "://" not in url:
        return url
    return _OPTION.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1:{HIDDEN}@", url))


def password() -> str | None:
    """Return the password for a URL whose own was removed, from the environment."""
    return os.environ.get(VARIABLE)


def is_for(host: str, port: int | None) -> bool:
    """Return True if the environment names this host (or host and port) as the one that may receive the password."""
    named = os.environ.get(HOST, "").strip().lower()
    return bool(named) and named in (host.lower(), f"{host.lower()}:{port}")
