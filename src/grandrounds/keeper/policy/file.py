"""The policy file: the template for a new site, and the parsing of its sections.

A value has the type of its default. An unknown key or word is refused, because it may have been meant to forbid something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from grandrounds.core.errors import BadInput, nearest

Section = TypeVar("Section")
_ONE_OF = {"listed": ("listed", "told")}
"""Allowed values of a key, by its default."""

DEFAULT = """\
# Requests that this hospital allows. The keeper reads this file when it starts; no message can change it.
# A request that the policy refuses is answered with a fixed code and written to the site's log.
# `rounds site policy policy.toml` prints the rules in plain language; with `--plan plan.json`, the refusals of a plan.

[runs]
# Runs that may be opened here: "any", or a list of names: ["heart-2026"]. The server chooses a run's name,
# so a list of names guards against mistakes, not against a dishonest server.
allow = "any"
# Digests of approved plans (`rounds site policy` prints a plan's digest). If any is listed, no other plan is opened:
# the settings of a run are then the ones that you reviewed.
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
summary = true
# true: notes on replaced values may leave. Such a note can name a rare category.
notes = false

[cells]
# Counts of fewer patients than this do not leave: rare categories are left out, small quantile cells are merged,
# small subgroups are counted with the others. Values in a secure sum are not changed.
smallest = 5
# With fewer training rows the site neither trains nor describes them.
fewest_rows = 8

[secure]
# true: models, counts and sums leave by secure aggregation only, and the server sees no single site's values.
only = false
# Largest share of a secure sum: with nearly all of the weight, the sum would be this site's own model.
largest_weight = 0.95
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
require = false
# Site budget: epsilon of each patient over all runs. It is stored on this machine.
epsilon = 10.0
delta = 1e-5
# Largest planned epsilon of one run.
run_epsilon = 10.0
# true: accept the server's word for noise that it adds itself (privacy.mechanism = "client" without secure sums).
trust_server = false
# Number of sites of a secure sum, this one included, that are assumed to add their share of the noise: 0 is as few as the
# protocol lets survive, 1 counts this site's own share only.
honest = 0

[exact]
# Methods such as glm, cox and table1 send sums over patients. A run may send at most this many numbers for each number that
# the hospitals hold (rows of all hospitals times columns): with secure aggregation, and without it.
most_ratio = 1.0
most_ratio_clear = 0.33
# Fewest patients, over all hospitals, in a level, a time interval or a leaf that a plan may ask for (method.exact.least,
# method.trees.least).
least = 2
# true: sums by the day of an event may leave (method.exact.baseline = "days"). A patient who is alone on a day can be read.
days = false

[objectives]
# Local objectives of others (train.objective) that may train here. The module must be installed on this machine and be
# listed with the SHA-256 of its source file, as `sha256sum` prints it. Its code sees patients: read it first.
# own_objective = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
"""


def parse_section(kind: type[Section], values: Any, where: str) -> Section:
    """Check one section of the file and build it.

    Raises:
        BadInput: A key is unknown, or a value has another type.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"{where} is not a section", code="not-a-section")
    usual = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    checked = {}
    for name, value in values.items():
        if name not in usual:
            raise BadInput(f"unknown key '{name}' in {where}; {nearest(name, usual)}", code="unknown-key")
        checked[name] = _check_value(value, usual[name], f"{where} {name}")
    return kind(**checked)


def parse_objectives(values: Any, where: str) -> dict[str, str]:
    """Check the modules of local objectives and their hashes.

    Args:
        values: The section [objectives] of the file.
        where: Its place, for errors.

    Returns:
        SHA-256 by module.

    Raises:
        BadInput: A name is no module, or a value is no SHA-256.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"{where} is no section", code="not-a-section")
    for module, digest in values.items():
        if not all(word.isidentifier() for word in module.split(".")):
            raise BadInput(f"{where} lists '{module}', which is no name of a module", code="bad-policy-value")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise BadInput(
                f"{where} {module} is {digest!r}; give the SHA-256 of its source file, 64 hex digits in quotes",
                code="bad-policy-value",
            )
    return dict(values)


def _check_value(value: Any, usual: Any, where: str) -> Any:
    """Check that a value has the type of its default."""
    if isinstance(usual, bool):
        right, expected = isinstance(value, bool), "true or false"
    elif isinstance(usual, int):
        right, expected = (
            isinstance(value, int) and not isinstance(value, bool) and value >= 0,
            "an integer of 0 or more",
        )
    elif isinstance(usual, float):
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        expected = "a number above 0"
    elif usual == (0, 24):
        right = isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 <= v <= 24 for v in value)
        expected = "two whole hours, such as [20, 6]"
    elif usual in _ONE_OF:
        right, expected = value in _ONE_OF[usual], " or ".join(f'"{word}"' for word in _ONE_OF[usual])
    else:
        right = value == usual or (isinstance(value, list) and all(isinstance(v, str) for v in value))
        expected = f'"{usual}" or a list of words' if isinstance(usual, str) else "a list of words"
    if not right:
        raise BadInput(f"{where} is {value!r}; give {expected}", code="bad-policy-value")
    return tuple(value) if isinstance(value, list) else float(value) if isinstance(usual, float) else value
