"""Passwords in database URLs: they are used once and never written into a plan, a run folder or a message."""

from __future__ import annotations

import os
import re

VARIABLE = "GRANDROUNDS_SQL_PASSWORD"
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
