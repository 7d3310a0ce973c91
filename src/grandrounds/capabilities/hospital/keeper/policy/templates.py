"""The three policies that `rounds provision` can write: strict, standard and research.

A template is a policy file with comments, which a hospital edits. The values below are the only differences between the three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Template

from grandrounds.core.errors import BadInput, nearest

STRICT, STANDARD, RESEARCH = "strict", "standard", "research"

TEMPLATES: Mapping[str, str] = {
    STRICT: "each plan is approved by its digest; secure aggregation and differential privacy are required",
    STANDARD: "any plan of the named methods; secure aggregation is required, differential privacy is not",
    RESEARCH: "any plan of any method; single models and statistics may leave without protection",
}
"""Names of the templates, each with one line for the person who chooses."""

_PRIVATE = (
    *("fedavg", "fedprox", "scaffold", "feddyn", "fedavgm", "fedopt", "fedadam", "fedyogi", "fedadagrad", "fedrmsprop"),
    *("private-gam", "veil", "watch", "quality"),
)
"""Methods that work with secure aggregation and have differential privacy."""

_COMMON = (*_PRIVATE, "sse-agg", "fedxchain", "moon", "fedbn", "glm", "cox", "gam", "card", "table1", "survival")
"""Methods that work with secure aggregation. Boosted trees (`trees`) do too, but disclose most of all sums."""

_VALUES: Mapping[str, Mapping[str, object]] = {
    STRICT: {
        "methods": _PRIVATE, "approve": "digest", "summary": False, "metrics": False, "smallest": 10, "fewest_rows": 20,
        "only": True, "largest_weight": 0.8, "require": True, "epsilon": 6.0, "run_epsilon": 3.0, "most_ratio": 0.33,
        "most_ratio_clear": 0.1, "least": 10,
    },
    STANDARD: {
        "methods": _COMMON, "approve": "any", "summary": True, "metrics": True, "smallest": 5, "fewest_rows": 8,
        "only": True, "largest_weight": 0.95, "require": False, "epsilon": 10.0, "run_epsilon": 5.0, "most_ratio": 1.0,
        "most_ratio_clear": 0.33, "least": 5,
    },
    RESEARCH: {
        "methods": "all", "approve": "any", "summary": True, "metrics": True, "smallest": 5, "fewest_rows": 8,
        "only": False, "largest_weight": 0.95, "require": False, "epsilon": 10.0, "run_epsilon": 10.0, "most_ratio": 1.0,
        "most_ratio_clear": 0.33, "least": 2,
    },
}  # fmt: skip

_FILE = """\
# Requests that this hospital allows: template '$template', $line.
# The keeper reads this file when it starts and when it changes; no message can change it.
# A request that the policy refuses is answered with a fixed code and written to the site's log.
# `rounds site policy policy.toml` prints the rules in plain language; with `--plan plan.json`, the refusals of a plan.
# `rounds site policy --template strict` prints another template: strict, standard or research.

[runs]
# Runs that may be opened here: "any", or a list of names: ["heart-2026"]. The server chooses a run's name,
# so a list of names guards against mistakes, not against a dishonest server.
allow = "any"
# Methods of plans that may be opened: "all", or a list of names, as in docs/methods.md.
methods = $methods
# "digest": a plan is opened only if its digest is listed in `plans`. "any": any plan, while none is listed.
approve = $approve
# Digests of approved plans. `rounds site approve FOLDER plan.json` shows what a plan sends, and adds its digest.
# If any is listed, no other plan is opened: the settings of a run are then the ones that you reviewed.
plans = []
# Digests of approved cohorts (`rounds cohort check` prints a cohort's digest). If any is listed, no plan with another
# cohort, or without one, is opened. Without a list, the cohort of this folder is the only one.
cohorts = []
# Largest number of rounds of a run.
rounds = 1000
# After this many requests that the site could not answer, the run is over for this site: each refusal discloses a
# little about the site's data.
refusals = 10
# Working hours, local time: [20, 6] is from 8 in the evening to 6 in the morning.
hours = [0, 24]

[tasks]
# "all", or a list of tasks; docs/releases.md lists all of them, and the data that each discloses.
allow = "all"
# Tasks that are never performed, such as "veil.propose".
deny = []

[reports]
# "all", or a list; a report is written "val_loss" (for any task) or "train.val_loss".
allow = "all"
deny = []
# true: summaries of columns (means, quantiles, category counts) may leave, to prepare inputs for all sites.
# If false, a plan must set data.encoding = "public".
summary = $summary
# true: metrics and explanations of this site alone may leave. If false, the metrics of an evaluation are sent empty, and
# other metrics and explanations are refused unless differential privacy covers them.
metrics = $metrics
# true: notes on replaced values may leave. Such a note can name a rare category.
notes = false

[cells]
# Counts of fewer patients than this do not leave: rare categories are left out, small quantile cells are merged,
# small subgroups are counted with the others. Values in a secure sum are not changed.
smallest = $smallest
# With fewer training rows the site neither trains nor describes them.
fewest_rows = $fewest_rows

[secure]
# true: models, counts and sums leave by secure aggregation only, and the server sees no single site's values.
only = $only
# Largest share of a secure sum: with nearly all of the weight, the sum would be this site's own model.
largest_weight = $largest_weight
# Smallest number of sites in a secure sum, this one included; never below 3, since in a sum of two each site learns
# the other's values. A consortium of two sites cannot use secure aggregation.
fewest = 3
# "listed": only sites of this folder's peers.json, with the keys that it lists (`rounds site peers .` prints them, to be
# compared with the other hospitals by telephone). "told": any site that the server names; a dishonest server can then
# impersonate all of them and read this site's values.
peers = "listed"

[privacy]
# true: nothing is learnt from training and validation patients without differential privacy. Metrics of test rows are
# not covered: they leave without noise, for at least `cells.smallest` patients.
require = $require
# Methods without differential privacy, such as "glm" or "table1", that may run although `require` is true. Each must be
# named, also in runs.methods. A method that has differential privacy cannot be exempt.
exempt = []
# Site budget: epsilon of each patient over all runs. It is stored on this machine.
epsilon = $epsilon
delta = 1e-5
# Largest planned epsilon of one run.
run_epsilon = $run_epsilon
# true: accept the server's word for noise that it adds itself (privacy.mechanism = "client" without secure sums).
trust_server = false
# Number of sites of a secure sum, this one included, that are assumed to add their share of the noise: 0 is as few as the
# protocol lets survive, 1 counts this site's own share only.
honest = 0

[exact]
# Methods such as glm, cox and table1 send sums over patients. A run may send at most this many numbers for each number that
# the hospitals hold (rows of all hospitals times columns): with secure aggregation, and without it.
most_ratio = $most_ratio
most_ratio_clear = $most_ratio_clear
# Fewest patients, over all hospitals, in a level, a time interval or a leaf that a plan may ask for (method.exact.least,
# method.trees.least).
least = $least
# true: sums by the day of an event may leave (method.exact.baseline = "days"). A patient who is alone on a day can be read.
days = false

[objectives]
# Local objectives of others (train.objective) that may train here. The module must be installed on this machine and be
# listed with the SHA-256 of its source file, as `sha256sum` prints it. Its code sees patients: read it first.
# own_objective = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
"""


def policy_template(name: str) -> str:
    """Return the text of a policy file.

    Args:
        name: strict, standard or research.

    Returns:
        The file, with comments.

    Raises:
        BadInput: There is no such template.
    """
    if name not in TEMPLATES:
        raise BadInput(f"there is no policy template '{name}'; {nearest(name, list(TEMPLATES))}", code="unknown-template")
    values = {key: _toml(value) for key, value in _VALUES[name].items()}
    return Template(_FILE).substitute(values, template=name, line=TEMPLATES[name])


def _toml(value: object) -> str:
    """Write a value of a template as TOML; a long list has several lines."""
    if not isinstance(value, tuple):
        return json.dumps(value)
    words = [json.dumps(word) for word in value]
    lines = [", ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    return "[\n" + "".join(f"  {line},\n" for line in lines) + "]"
