"""Public survival tables as sites, with inputs in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from lifelines.datasets import load_gbsg2, load_lung

from grandrounds.capabilities.statistics.question import Rows


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


def make_set(table: Any, names: tuple[str, ...], units: Any = None) -> SurvivalSet:
    """Make sites of a table with the columns `time`, `event`, `site`, and `patient` if there is one.

    Inputs are in standard deviations of `units`, another table; None: of the table itself.
    """
    x = (table if units is None else units)[list(names)]
    table = table.copy().reset_index(drop=True)
    table[list(names)] = (table[list(names)].astype(float) - x.mean()) / x.std()
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


def tcga(folder: Path) -> tuple[SurvivalSet, SurvivalSet]:
    """Return training and test rows of FLamby's Fed-TCGA-BRCA, both in standard deviations of the training rows."""
    import pandas as pd

    table = pd.read_csv(folder / "brca.csv").merge(pd.read_csv(folder / "train_test_split.csv"), on="pid")
    table = table.rename(columns={"E": "event", "T": "time"})
    table["site"] = table["fold2"].str.rsplit("_").str[-1]
    names = tuple(c for c in table if c not in ("pid", "event", "time", "site", "fold", "fold2"))
    train, test = (table[table["fold"] == part] for part in ("train", "test"))
    return make_set(train, names), make_set(test, names, units=train)
