"""Why a keeper does not answer, as fixed codes: an exception's own words can carry patients' values, so none leaves."""

from __future__ import annotations

from grandrounds.core.errors import GrandRoundsError
from grandrounds.site import secure

REFUSED = "refused"
"""The site does not answer. Its own log says why, and the server hears the same word whatever the reason was: a question
that makes no sense here, values that do not fit it, or something that broke."""

NOT_IN_PLAN = "not-in-plan"
"""The plan that the site opened has no such question, no more of them, or other numbers for it."""

LATE = "late"
"""It took longer than the site's own limit, and was stopped."""

CRASHED = "crashed"
"""The process that works with the data ended; another takes its place."""

UNSIGNED = "unsigned"
"""The message is not the server's, or not for this site."""

PROTOCOL = "protocol"
"""The server speaks another version of the protocol."""

UNKNOWN_RUN = "unknown-run"
"""The run was never opened here, or is closed."""

STALE = "stale"
"""The Ask is of a round that is long done: nobody who is honest asks it now."""

OTHER_SPLIT = "other-split"
"""The run was opened before with rows dealt otherwise to training and test."""

SCHEMA = "schema"
"""The site's data do not fit what the consortium agreed on."""

BUDGET = "budget-spent"
"""The site's own budget does not cover it."""

NOT_PRIVATE = "not-private"
"""It would leave without noise, and the site's policy requires some."""

UNKNOWN_PEER = secure.UNKNOWN
"""A site is introduced, for secure sums, that is not on this site's own list."""

OTHER_PEER_KEY = secure.OTHER_KEY
"""A site is introduced with another key than this site's own list has, or than before."""

TOO_FEW_PEERS = secure.TOO_FEW
"""Fewer sites are introduced than this site adds up with."""

NOT_MET = secure.NOT_MET
"""A secure sum is asked for, and the sites were never introduced."""


class Refusal(GrandRoundsError):
    """An Ask that is not answered; `code` is all that the server is told."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
