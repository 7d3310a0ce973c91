"""A thin slice of `bench/quality.py`: one fault of each kind on both sets, and clean tables."""

from __future__ import annotations

import pytest

from quality import CODES, run_clean, run_faults


@pytest.mark.slow
@pytest.mark.data("eicu_demo", "diabetes130")
def test_faults_of_real_hospitals_are_named_and_clean_tables_do_not_alarm():
    outcomes = run_faults(16, part="tuning", seed=11)
    assert {o.fault.kind for o in outcomes if o.set == "eicu-demo"} == {o.fault.kind for o in outcomes}
    assert sum(o.named for o in outcomes) >= 14, [str(o) for o in outcomes if not o.named]
    clean = run_clean(6, part="tuning", seed=11)
    assert sum(any(f.code in CODES for f in findings) for _, findings in clean) <= 1
