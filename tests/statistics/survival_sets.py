"""Public survival tables as sites, with inputs in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from lifelines.datasets import load_gbsg2, load_lung

from grandrounds.statistics.question import Rows


@dataclass(frozen=True, eq=False)
class SurvivalSet:
    """A table and its sites.

    Attributes:
        table: Inputs in sd, `time`, `event` and `site`.
        names: The inputs.
        sites: Rows by site.
    """

    table: Any
    names: tuple[str, ...]
    sites: dict[str, Rows]


def make_set(table: Any, names: tuple[str, ...]) -> SurvivalSet:
    """Make sites of a table with the columns `time`, `event`, `site`, and `patient` if there is one."""
    table = table.copy().reset_index(drop=True)
    table[list(names)] = (table[list(names)] - table[list(names)].mean()) / table[list(names)].std()
    sites = {
        str(site): Rows(
            part[list(names)].to_numpy(float),
            part["event"].to_numpy(float),
            part["time"].to_numpy(float),
            part["patient"].to_numpy() if "patient" in table else None,
        )
        for site, part in table.groupby("site")
    }
    return SurvivalSet(table, names, sites)


@cache
def lung() -> SurvivalSet:
    """Return the complete rows of lung cancer patients at 18 institutions (NCCTG; one institution has no event)."""
    names = ("age", "sex", "ph.ecog", "ph.karno", "pat.karno", "wt.loss")
    table = load_lung()[["inst", "time", "status", *names]].dropna().astype(float)
    table["event"] = (table["status"] == table["status"].max()).astype(float)
    return make_set(table.rename(columns={"inst": "site"}), names)


@cache
def gbsg2() -> SurvivalSet:
    """Return breast cancer patients (GBSG 2), dealt to five made-up sites in turn."""
    table = load_gbsg2().rename(columns={"cens": "event"})
    table["horTh"] = (table["horTh"] == "yes").astype(float)
    table["menostat"] = (table["menostat"] == "Post").astype(float)
    table["tgrade"] = table["tgrade"].map({"I": 1.0, "II": 2.0, "III": 3.0})
    table["site"] = np.arange(len(table)) % 5
    return make_set(table, ("horTh", "age", "menostat", "tsize", "tgrade", "pnodes", "progrec", "estrec"))


SETS = {"lung": lung, "gbsg2": gbsg2}
