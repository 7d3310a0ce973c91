"""Files of a run folder, and their privacy class while privacy.epsilon is set.

Reports of sites have their class in the table of tasks (`protocol.tasks`). `docs/releases.md` is generated from both.
"""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.protocol.task_spec import (
    PREPARATION,
    ROW_COUNTS,
    TEST_ROWS,
    UNCOVERED,
    Release,
    charged,
    public,
    uncovered,
)

_SIMULATED = "simulation only: at hospitals it stays with the server"
_AT_SITES = "simulation only: at hospitals each file stays in the folder of its hospital"

FILES: Mapping[str, Release] = {
    "experiment.toml": uncovered("settings, and the kind of each column as read from all rows", PREPARATION),
    "schema.json": uncovered("how each column was read, and why", PREPARATION),
    "environment.json": public("versions of packages"),
    "model.safetensors": charged("final model; how its inputs are prepared is not covered", "computed from charged "
                                                                                            "releases"),
    "models/": charged("models of single sites (method `local`)", "computed from charged releases; fine-tuned models are "
                                                                  "refused"),
    "percentiles.json": charged("noisy percentiles of columns", "VEIL: a share of its budget; no other run writes the "
                                                                 "file"),
    "explanations.json": charged("sketches of private models on reference rows", "computed from charged releases"),
    "round_logs.json": uncovered("Decisions, with row counts and metrics of test rows", TEST_ROWS),
    "summary.json": uncovered("metrics of test rows, their counts by risk over all sites, row counts, the privacy statement",
                              TEST_ROWS),
    "report.html": uncovered("the same, as a page", TEST_ROWS),
    "ledger.db": uncovered("Decisions and hashes", ROW_COUNTS),
    "ledger.head.json": public("signed head of the ledger"),
    "server.pub": public("public key of the server"),
    "checkpoint/": Release(UNCOVERED, "state of server and sites between rounds", f"{_SIMULATED}; listed as \"{PREPARATION}\""),
    "at_sites/": Release(
        UNCOVERED, "personal models of sites, fitted without noise", f"{_AT_SITES}; listed as \"{PREPARATION}\""
    ),
}
"""Release of each file by its name in the run folder; a name that ends in a slash is a folder."""


def file_release(name: str) -> Release | None:
    """Look up a file of the run folder by its path; None if it is not in the table."""
    return FILES.get(name) or next((r for n, r in FILES.items() if n.endswith("/") and name.startswith(n)), None)
