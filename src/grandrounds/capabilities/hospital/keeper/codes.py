"""Refusal codes of a keeper, with a sentence each for the site's staff.

Only fixed codes leave the site, because an exception's text may contain patients' values. `policy.rules` has those of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.core.errors import GrandRoundsError
from grandrounds.site import secure

REFUSED = "refused"
NOT_IN_PLAN = "not-in-plan"
LATE = "late"
CRASHED = "crashed"
STORAGE = "storage"
NO_WORKER = "no-worker"
UNSIGNED = "unsigned"
PROTOCOL = "protocol"
NO_SESSION = "no-session"
REPLAYED = "replayed"
UNKNOWN_RUN = "unknown-run"
STALE = "stale"
OTHER_SPLIT = "other-split"
OTHER_COHORT = "other-cohort"
SCHEMA = "schema"
NO_NEW_PATIENTS = "no-new-patients"
FEW_NEW_PATIENTS = "few-new-patients"
FEW_CHANGED_ROWS = "few-changed-rows"
NOT_FINITE = "not-finite"
POLICY = "policy-unreadable"
BUDGET = "budget-spent"
BUDGET_LIMIT = "changed-budget-limit"
NO_BUDGET = "missing-budget"
BUDGET_DAMAGED = "damaged-budget"
NOT_PRIVATE = "not-private"
UNKNOWN_PEER = secure.UNKNOWN
OTHER_PEER_KEY = secure.OTHER_KEY
TOO_FEW_PEERS = secure.TOO_FEW
NOT_MET = secure.NOT_MET

SENTENCES: Mapping[str, str] = {
    # one code for an invalid request, for values that do not fit it, and for an internal error: others would tell about rows
    REFUSED: "the request is not valid, or the site could not answer it: the cause is in state/work.log",
    NOT_IN_PLAN: "the opened plan has no such request, no more of them, or other settings for it",
    LATE: "the work exceeded the site's time limit and was stopped",
    CRASHED: "the worker process ended; another takes its place",
    STORAGE: "the site cannot write to its disk, for example because it is full: free space; nothing was released",
    NO_WORKER: "the worker runs apart from the network, and none is at work: its job waits or has ended",
    UNSIGNED: "the message is not from the server, or not for this site",
    PROTOCOL: "the server uses another version of the protocol: install the same version at both",
    NO_SESSION: "the site has no keys for this message, because its worker process was restarted: the server greets it again",
    REPLAYED: "the message arrived before, or was changed",
    UNKNOWN_RUN: "the run was never opened here, or is closed",
    STALE: "the request belongs to a round that ended long ago",
    OTHER_SPLIT: "the run was opened before with another split of rows",
    OTHER_COHORT: "the plan has another cohort than the one in the site's folder, which the server signed and the site accepted",
    SCHEMA: "the site's data do not fit the agreed schema: the cause is in state/work.log",
    NO_NEW_PATIENTS: "a watch asks for new patients, and the site names no table of them ([watch] table in site.toml)",
    FEW_NEW_PATIENTS: "the new patients differ from those of an earlier watch by so few rows that the difference would tell them",
    FEW_CHANGED_ROWS: "the rows differ from those counted earlier by so few that the two counts would disclose them",
    NOT_FINITE: "the answer has infinite numbers or NaN, such as a model whose training diverged; it did not leave, and counts "
    "as a refusal",
    POLICY: "policy.toml was changed and cannot be read; nothing is answered until it is corrected",
    BUDGET: "the site budget does not cover it",
    NOT_PRIVATE: "the answer would have no noise, and the site's policy requires differential privacy",
    UNKNOWN_PEER: "a site is introduced for secure sums that is not on this site's own list",
    OTHER_PEER_KEY: "a site is introduced with another key than on this site's own list, or than before",
    TOO_FEW_PEERS: "fewer sites are introduced than this site requires for a sum",
    NOT_MET: "a secure sum is requested, but the sites were never introduced",
}

OF_SITE_FILES = frozenset({BUDGET_LIMIT, NO_BUDGET, BUDGET_DAMAGED})
"""Codes of errors that leave the site as they are: they depend on its policy and on the file of its budget, and on no row."""


class Refusal(GrandRoundsError):
    """An Ask that is not answered; `code` is the only part that is sent to the server. `sentence` is for the site's staff."""

    def __init__(self, code: str, sentence: str = "") -> None:
        super().__init__(code)
        self.code, self.sentence = code, sentence
