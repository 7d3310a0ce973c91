"""How often a wrong unit is told, and a right one suspected: every hospital of two real sets, against all others of the set.

`python -m tests.data.agreement.unit_rates` prints the table of docs/site.md. The thresholds were set before
any of this was looked at; one clause of the rule (a fifth of what it was) came from half of the eICU demo's hospitals
("looked at") and from the heart set. The other half was kept for the test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from grandrounds.data.agreement.schema import LEVELS, AgreedColumn
from grandrounds.data.agreement.units import FEWEST, conversions, suspect_unit
from grandrounds.data.sets import eicu, heart
from grandrounds.data.table import Table

HEART = {"age": "years", "cholesterol": "mg/dL", "resting_bp": "mmHg"}


def eicu_units(table: Table) -> dict[str, str]:
    """The units that the eICU demo's columns are in, which its documentation says."""
    size = {name: unit for unit, names in eicu.LAB_UNITS.items() for name in names}
    stems = {c: c.rsplit("_", 1)[0] for c in table.names if c.endswith(("_mean", "_min", "_max", "_std"))}
    return {c: size[stem] for c, stem in stems.items() if stem in size} | eicu.COLUMN_UNITS


@dataclass
class Rates:
    """Columns as they are, and columns put into each other unit that is known for them."""

    sites: set[str] = field(default_factory=set)
    columns: int = 0
    alarms: list[tuple[str, str, bool]] = field(default_factory=list)  # site, column, whether it was an error
    mistakes: int = 0
    told: list[bool] = field(default_factory=list)  # whether it was an error
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    misnamed: int = 0

    def __str__(self) -> str:
        errors = sum(a[-1] for a in self.alarms)
        return (
            f"{len(self.sites)} hospitals, {self.columns} columns as they are: {len(self.alarms)} suspected "
            f"({errors} as errors); {self.mistakes} in another unit: {len(self.told)} told "
            f"({len(self.told) / self.mistakes:.1%}; {sum(self.told) / self.mistakes:.1%} as errors), "
            f"{self.misnamed} as a wrong unit"
        )


def rates(table: Table, site: np.ndarray, units: dict[str, str], sites: list, *, stated: bool = True) -> Rates:
    """`stated`: whether the schema says the unit, or the column's name has to do."""
    out = Rates()
    for name in sites:
        mine = site == name
        for column, unit in units.items():
            values = table.column(column)
            present = ~np.isnan(values)
            local, rest = values[mine & present], values[~mine & present]
            if len(local) < FEWEST:
                continue
            agreed = tuple(np.quantile(rest, LEVELS).tolist())
            _judge(out, str(name), AgreedColumn(column, "number", unit if stated else "", quantiles=agreed), local)
    return out


def _judge(out: Rates, site: str, column: AgreedColumn, own: np.ndarray) -> None:
    out.sites.add(site)
    out.columns += 1
    result = suspect_unit(column, own)
    if result is not None:
        out.alarms.append((site, column.name, result.certain))
    for c in conversions(column.name, unit=column.unit, median=column.quantiles[2]):
        out.mistakes += 1
        result = suspect_unit(column, (own - c.offset) / c.factor)
        if result is None:
            out.missed[(column.name, c.site_unit)] += 1
        elif not np.isclose(result.conversion.factor, c.factor, rtol=1e-3):
            out.misnamed += 1
        else:
            out.told.append(result.certain)


def halves(site: np.ndarray) -> tuple[list, list]:
    """The hospitals that were looked at, and the others."""
    mixed = np.random.default_rng(1).permutation(np.unique(site))
    return mixed[: len(mixed) // 2].tolist(), mixed[len(mixed) // 2 :].tolist()


def main() -> None:
    table = eicu.load()
    site, units = table.column("hospitalid"), eicu_units(table)
    observed, test = halves(site)
    print("eICU, looked at:", rates(table, site, units, observed))
    data = rates(table, site, units, test)
    print("eICU, the other half:", data)
    print("  missed most:", ", ".join(f"{c} in {u} {n}" for (c, u), n in data.missed.most_common(8)))
    print("eICU, the other half, no unit stated:", rates(table, site, units, test, stated=False))
    rows = heart.load()
    site = rows.column("hospital")
    print("heart:", rates(rows, site, HEART, list(dict.fromkeys(site.tolist()))))


if __name__ == "__main__":
    main()
