"""Public survival data, split into sites: lung and gbsg2 come with lifelines, TCGA-BRCA lies in GRANDROUNDS_DATA."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines.datasets import load_gbsg2, load_lung

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.arrays import Array


@dataclass(frozen=True, eq=False)
class Cohort:
    """Pooled rows and the site of each."""

    x: Array
    time: Array
    event: Array
    group: Array
    site: Array

    def rows(self) -> dict[str, Rows]:
        """Split the rows by site."""
        return {
            f"site {k}": Rows(self.x[at], self.event[at], time=self.time[at], group=self.group[at])
            for k in np.unique(self.site)
            for at in [self.site == k]
        }

    def names(self) -> list[str]:
        """Name the groups by their numbers."""
        return [str(g) for g in range(int(self.group.max()) + 1)]


def lung() -> Cohort:
    """228 patients of 18 institutions (one patient's is not known: it is a site of its own), grouped by sex."""
    d = load_lung()
    x = d[["age", "sex", "ph.ecog"]].fillna(1).to_numpy(float)
    return Cohort(
        x,
        d["time"].to_numpy(float),
        d["status"].to_numpy(float),
        d["sex"].to_numpy(int) - 1,
        d["inst"].fillna(99).to_numpy(),
    )


def gbsg2() -> Cohort:
    """686 patients at 5 made-up sites, in three grades."""
    d = load_gbsg2()
    x = d[["age", "pnodes", "tsize"]].to_numpy(float)
    grade = d["tgrade"].map({"I": 0, "II": 1, "III": 2}).to_numpy(int)
    return Cohort(x, d["time"].to_numpy(float), d["cens"].to_numpy(float), grade, np.arange(len(d)) % 5)


def tcga() -> Cohort:
    """1,088 patients of TCGA-BRCA in 6 regions (FLamby), grouped by the halves of the table."""
    folder = Path(os.environ["GRANDROUNDS_DATA"]) / "fed_tcga_brca"
    d = pd.read_csv(folder / "brca.csv").merge(pd.read_csv(folder / "train_test_split.csv"), on="pid")
    x = d.drop(columns=["pid", "E", "T", "fold", "fold2"]).to_numpy(float)
    region = d["fold2"].str.split("_").str[1].to_numpy(int)
    half = (np.arange(len(d)) % 2).astype(int)
    return Cohort(x, d["T"].to_numpy(float), d["E"].to_numpy(float), half, region)
