"""Whom a site adds up with: those that its own people listed, by the keys that they listed, and not too few of them.

The server introduces sites to one another. Were it believed, it could play all the others with keys of its own, and the sum
less its own values would be the one site's (docs/threat-model.md). A refusal is a code; the names behind it stay at the site.
"""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.core.errors import BadInput

UNKNOWN, OTHER_KEY, TOO_FEW, NOT_MET = "unknown-peer", "other-peer-key", "too-few-peers", "not-met"
_SHOWN = 80
"""Characters of a name that a server made up."""


class UnknownPeers(BadInput):
    """A site does not add up with whom it is introduced to. `code` is all that may leave; the words have names in them."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def check_peers(introduced: Mapping[str, bytes], listed: Mapping[str, bytes] | None, *, fewest: int) -> None:
    """Raise why a site does not go along with an introduction.

    `introduced`: names and keys as the server says; `listed`: as the site's own list says, None where it takes the server's word.
    """
    strangers = [] if listed is None else sorted(name for name in introduced if name not in listed)
    if strangers:
        raise UnknownPeers(UNKNOWN, f"{_named(strangers)} introduced and not on this site's list")
    changed = [] if listed is None else sorted(name for name, key in introduced.items() if listed[name] != key)
    if changed:
        raise UnknownPeers(OTHER_KEY, f"{_named(changed)} introduced with another key than this site's list has")
    if len(introduced) < fewest:
        raise UnknownPeers(
            TOO_FEW, f"{len(introduced)} sites are introduced, and this site adds up with {fewest} or more"
        )


def _named(names: list[str]) -> str:
    listed = ", ".join(name[:_SHOWN] for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{listed} {'is' if len(names) == 1 else 'are'}"
