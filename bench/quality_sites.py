"""Sites that a comparison before training names: unit errors planted at one site, and alarms on clean hospitals, on eICU.

    python bench/quality_sites.py                  # 40 groupings of hospitals, with and without a fault
    python bench/quality_sites.py --draws 10

The hospitals of the eICU demo are put into 5 to 8 groups of about the same size at random. The agreed schema has the quantiles of
all clean rows. Groups send counts in agreed bins, without those of fewer than 5 patients. Each grouping is compared as it is,
and again with one column of one group in another unit that is known for it. A fault is named if its group and column are; the
unit is right if the text gives the planted one. Every other finding is an alarm. At last the five silos of the set are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

from grandrounds.capabilities.quality.method.comparison import Rules, fill_hidden
from grandrounds.capabilities.quality.method.findings import SiteFinding, find_differences
from grandrounds.core.rng import generator
from grandrounds.data.agreement.bins import AgreedBins
from grandrounds.data.agreement.counts import Roles, count_rows
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.agreement.units import Conversion, conversions
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.data.table import Table
from smoke import need_data, pick

LEAST = 5
FEWEST_VALUES = 40  # of a planted column at the group


def name_sites(bins: AgreedBins, sites: Mapping[str, Table], roles: Roles) -> list[SiteFinding]:
    """Compare sites as the server does: from counts without those of few patients."""
    sent = {name: count_rows(bins, rows, roles).hide_small(bins, least=LEAST) for name, rows in sites.items()}
    return find_differences(bins, fill_hidden(bins, sent), Rules(least=LEAST), event="1")


def group_hospitals(hospital: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the group of each row: hospitals in random order, dealt to the group with fewest rows."""
    names, sizes = np.unique(hospital, return_counts=True)
    k = int(rng.integers(5, 9))
    totals, chosen = np.zeros(k), {}
    for j in rng.permutation(len(names)):
        g = int(np.argmin(totals))
        totals[g] += sizes[j]
        chosen[names[j]] = f"group-{g + 1}"
    return np.array([chosen[h] for h in hospital], object)


def plantable(schema: DataSchema) -> list[tuple[str, Conversion]]:
    """List the columns with a known unit, each with the units that it may be mistaken for."""
    out = []
    for column in schema.columns:
        if column.quantiles:
            found = conversions(column.name, unit=column.unit, median=column.quantiles[2])
            out += [(column.name, c) for c in found if not 0.8 < c.factor < 1.25 or c.offset]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=pick(40, 1))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    need_data("eicu_demo")
    entry = CATALOG["eicu-demo-hospitals"]
    whole = CATALOG["eicu-demo"]
    table = whole.load()
    drop = [*whole.drop, *entry.drop, "silo", "hospitalid", "region", "teachingstatus", "numbedscategory"]
    drop = [name for name in dict.fromkeys(drop) if name in table.columns and name not in (whole.label, whole.patient)]
    assert whole.label is not None
    schema = draft_schema(table, label=whole.label, patient=whole.patient, drop=drop, quantiles=True)
    bins, roles = AgreedBins.from_schema(schema), Roles(whole.label, None, whole.patient)
    faults = plantable(schema)
    hospital = np.array([str(h) for h in table.columns["hospitalid"]], object)
    comparisons = tests = clean = false = named = units = planted = 0
    for draw in range(options.draws):
        rng = generator(draw, purpose="bench quality of sites")
        group = group_hospitals(hospital, rng)
        sites = {name: table.take(np.flatnonzero(group == name)) for name in sorted(set(group))}
        found = name_sites(bins, sites, roles)
        comparisons, clean, tests = comparisons + 1, clean + len(found), tests + len(sites) * len(bins.columns)
        if options.verbose:
            for f in found:
                print(draw, "clean:", f.site, f.column, f.code, f"{f.effect:.2f}", f.text)
        site = str(rng.choice(list(sites)))
        rows = sites[site]
        usable = [(n, c) for n, c in faults if np.isfinite(rows.columns[n]).sum() >= FEWEST_VALUES]
        column, conversion = usable[int(rng.integers(len(usable)))]
        other = (rows.columns[column] - conversion.offset) / conversion.factor
        sites[site] = Table.from_mapping({**rows.columns, column: other}, source="planted")
        before = {(f.site, f.column, f.code) for f in found}
        after = name_sites(bins, sites, roles)
        hits = [f for f in after if (f.site, f.column) == (site, column) and f.code in ("unit", "distribution")]
        planted += 1
        named += bool(hits)
        units += any(f.code == "unit" and conversion.units[0] in f.text for f in hits)
        false += sum((f.site, f.column) != (site, column) and (f.site, f.column, f.code) not in before for f in after)
        if options.verbose and not hits:
            print(draw, "not named:", site, column, conversion, int(np.isfinite(other).sum()), "values")
    print(f"unit errors: {named} of {planted} named at their site, {units} with the planted unit; {false} further alarms")
    print(f"clean: {clean} alarms in {comparisons} comparisons of {tests / comparisons:.0f} sites x columns each")
    silos = np.array([str(s) for s in table.columns["silo"]], object)
    found = name_sites(bins, {s: table.take(np.flatnonzero(silos == s)) for s in sorted(set(silos))}, roles)
    print(f"five silos as they are: {len(found)} differences of {5 * len(bins.columns)} sites x columns")
    for f in found:
        print(f"  {f.site}, {f.column or 'rows'} ({f.code}, {f.effect:.0%}): {f.text}")


if __name__ == "__main__":
    main()
