"""Faults that `rounds site check` names before training, and false alarms on clean tables, with real hospitals.

    python bench/quality.py                  # 100 faults and 100 clean tables; about 2 minutes; needs GRANDROUNDS_DATA
    python bench/quality.py --part tuning    # hospitals and seeds that thresholds were chosen on

The agreed schema comes from half of the hospitals (`rounds site schema --quantiles` and the units), sites from others that it
has not seen (`bench/quality_tables.py`). Each site is written as CSV and assessed as `rounds site check` does. A fault is named
if a finding has one of the codes of its kind and the right column, or the table where the fault is the file's. A false alarm is
a clean table with any finding of these codes. Clean tables overlap: they are drawn from the same 47 hospitals and 9 departments.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.capabilities.quality.assessment.assess import FAULTS, assess_data
from grandrounds.data.agreement.check import Finding
from quality_faults import KINDS, Fault, make_fault, write_csv
from quality_tables import FOLDERS, SETS, Cohort, load_cohort
from smoke import need_data, pick

CODES = frozenset(code for codes in FAULTS.values() for code in codes)
FAULT_COUNT, CLEAN_COUNT = 100, 100
_SEED = {"tuning": 7, "report": 34}


@dataclass(frozen=True)
class Outcome:
    """One fault and its findings."""

    set: str
    fault: Fault
    findings: tuple[Finding, ...]

    @property
    def named(self) -> bool:
        """True where a finding has the kind and a column of the fault."""
        codes = FAULTS[self.fault.kind]
        return any(f.code in codes and f.column in self.fault.columns for f in self.findings)

    def __str__(self) -> str:
        others = sorted({f"{f.code} {f.column}".strip() for f in self.findings if f.code in CODES})
        result = "named" if self.named else f"MISSED ({', '.join(others[:3]) or 'no finding'})"
        return f"{self.set:12} {self.fault.kind:20} {self.fault.form[:70]:70} {result}"


def run_faults(count: int = FAULT_COUNT, *, part: str = "report", seed: int | None = None) -> list[Outcome]:
    """Inject faults of all kinds in turn, each into another site.

    Args:
        count: Faults over all kinds and both sets.
        part: Part of the hospitals that sites come from.
        seed: Start of the random numbers (default: that of the part).
    """
    seed = _SEED[part] if seed is None else seed
    out = []
    for i in range(count):
        kind, name = KINDS[i % len(KINDS)], SETS[i // len(KINDS) % len(SETS)]
        cohort = load_cohort(name)
        rng = np.random.default_rng([seed, i])
        form = i // (len(KINDS) * len(SETS)) + (3 if name == "diabetes-130" and kind == "shifted dates" else 0)
        table = cohort.site(seed * 1000 + i, part)
        fault = make_fault(kind, form, table, cohort.schema, rng)
        out.append(Outcome(name, fault, assess_fault(cohort, fault)))
    return out


def assess_fault(cohort: Cohort, fault: Fault) -> tuple[Finding, ...]:
    """Write a fault's file and list the findings."""
    with tempfile.TemporaryDirectory() as folder:
        path = fault.write(Path(folder))
        return assess_data(cohort.schema, str(path), expected_rows=fault.expected_rows).findings


def run_clean(
    count: int = CLEAN_COUNT, *, part: str = "report", seed: int | None = None
) -> list[tuple[str, tuple[Finding, ...]]]:
    """Assess clean sites; half of them are in the order of admission, as exports often are, and half state their rows.

    Args:
        count: Clean sites of both sets.
        part: Part of the hospitals that sites come from.
        seed: Start of the random numbers (default: that of the part).
    """
    seed = _SEED[part] if seed is None else seed
    out = []
    for i in range(count):
        cohort = load_cohort(SETS[i % len(SETS)])
        table = cohort.site(seed * 1000 + 500 + i, part)
        if i // 2 % 2:
            table = table.take(np.argsort(table.columns["admitted"].astype(str), kind="stable"))
        clean = Fault("", "clean", frozenset(), write_csv(table), expected_rows=len(table) if i // 4 % 2 else None)
        out.append((cohort.name, assess_fault(cohort, clean)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=sorted(_SEED), default="report")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--faults", type=int, default=pick(FAULT_COUNT, len(KINDS)))
    parser.add_argument("--clean", type=int, default=pick(CLEAN_COUNT, 2))
    options = parser.parse_args()
    need_data(*FOLDERS)
    outcomes = run_faults(options.faults, part=options.part, seed=options.seed)
    for outcome in outcomes:
        print(outcome)
    print(f"\n{'kind':22}{'named':>8}{'faults':>8}")
    for kind in KINDS:
        mine = [o for o in outcomes if o.fault.kind == kind]
        print(f"{kind:22}{sum(o.named for o in mine):8}{len(mine):8}")
    print(f"{'all':22}{sum(o.named for o in outcomes):8}{len(outcomes):8}\n")
    clean = run_clean(options.clean, part=options.part, seed=options.seed)
    alarms = [(name, [f for f in findings if f.code in CODES]) for name, findings in clean]
    for name, findings in alarms:
        for finding in findings:
            print(f"false alarm, {name}: {finding.code}: {finding}")
    others = Counter(f.code for _, findings in clean for f in findings if f.code not in CODES)
    print(f"{sum(bool(findings) for _, findings in alarms)} of {len(clean)} clean tables with a false alarm")
    print(f"other findings on clean tables: {', '.join(f'{code} {n}' for code, n in others.most_common()) or 'none'}")


if __name__ == "__main__":
    main()
