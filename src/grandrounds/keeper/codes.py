"""Refusal codes of a keeper. Only fixed codes leave the site, because an exception's text may contain patients' values."""

from __future__ import annotations

from grandrounds.core.errors import GrandRoundsError
from grandrounds.site import secure

REFUSED = "refused"
"""The site does not answer. The cause is in its own log. The code is the same for an invalid request, for values that do
not fit it, and for an internal error.
"""

NOT_IN_PLAN = "not-in-plan"
"""The opened plan has no such request, no more of them, or other settings for it."""

LATE = "late"
"""The work exceeded the site's time limit and was stopped."""

CRASHED = "crashed"
"""The worker process ended; another takes its place."""

STORAGE = "storage"
"""The site cannot write to its disk, for example because it is full. Nothing is released; a later Ask may be answered."""

NO_WORKER = "no-worker"
"""The worker runs apart from the network, and none is at work: its job waits or has ended."""

UNSIGNED = "unsigned"
"""The message is not from the server, or not for this site."""

PROTOCOL = "protocol"
"""The server uses another version of the protocol."""

NO_SESSION = "no-session"
"""The site has no keys for this message, because its worker process was restarted: the server greets it again."""

REPLAYED = "replayed"
"""The message arrived before, or was changed."""

UNKNOWN_RUN = "unknown-run"
"""The run was never opened here, or is closed."""

STALE = "stale"
"""The Ask belongs to a round that ended long ago."""

OTHER_SPLIT = "other-split"
"""The run was opened before with another split of rows."""

OTHER_COHORT = "other-cohort"
"""The plan has another cohort than the one in the site's folder, which the server signed and the site accepted."""

SCHEMA = "schema"
"""The site's data do not fit the agreed schema."""

NO_NEW_PATIENTS = "no-new-patients"
"""A watch asks for new patients, and the site names no table of them ([watch] table in site.toml)."""

FEW_NEW_PATIENTS = "few-new-patients"
"""The new patients differ from those of an earlier watch by so few rows that the difference of the sums would tell them."""

FEW_CHANGED_ROWS = "few-changed-rows"
"""The rows differ from those that method 'quality' counted earlier by so few that the two counts would disclose them."""

NOT_FINITE = "not-finite"
"""The answer has infinite numbers or NaN, such as a model whose training diverged. It does not leave, and counts as a refusal."""

POLICY = "policy-unreadable"
"""The site's policy.toml was changed and cannot be read; nothing is answered until it is corrected."""

BUDGET = "budget-spent"
"""The site budget does not cover it."""

NOT_PRIVATE = "not-private"
"""The answer would have no noise, and the site's policy requires differential privacy."""

UNKNOWN_PEER = secure.UNKNOWN
"""A site is introduced for secure sums that is not on this site's own list."""

OTHER_PEER_KEY = secure.OTHER_KEY
"""A site is introduced with another key than on this site's own list, or than before."""

TOO_FEW_PEERS = secure.TOO_FEW
"""Fewer sites are introduced than this site requires for a sum."""

NOT_MET = secure.NOT_MET
"""A secure sum is requested, but the sites were never introduced."""


class Refusal(GrandRoundsError):
    """An Ask that is not answered; `code` is the only part that is sent to the server."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
