"""Passwords in database URLs: they are used once and never written into a plan, a run folder or a message."""

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
    """The URL without its password; anything that is no URL as it is."""
    if "://" not in url:
        return url
    return _OPTION.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1:{HIDDEN}@", url))


def password() -> str | None:
    """The password for a URL whose own was hidden, from the environment."""
    return os.environ.get(VARIABLE)


def is_for(host: str, port: int | None) -> bool:
    """Whether the user's own environment names this host, or host and port, as the one that the password is for."""
    named = os.environ.get(HOST, "").strip().lower()
    return bool(named) and named in (host.lower(), f"{host.lower()}:{port}")
