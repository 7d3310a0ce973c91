"""Compare regressions across hospitals with statsmodels and lifelines on the pooled rows, and print the largest differences.

    python examples/equal_to_pooled.py

It needs statsmodels and lifelines (`pip install statsmodels lifelines`). The rows are those of the heart data set (920 patients
of four hospitals, in the package) and of the lung cancer set that comes with lifelines (18 institutions). Differences are
relative; "digits" is how many decimal digits of the worst coefficient agree.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_lung

import grandrounds as gr
from grandrounds.data.sets.catalog import find_entry

NUMBERS, SEX, PAIN = ["age", "resting_bp", "max_heart_rate"], ("sex", "female"), ("chest_pain", "asymptomatic")


def design(frame: pd.DataFrame) -> pd.DataFrame:
    """Write out the raw columns of the heart model: numbers, and 0 or 1 for each level but the reference."""
    out = frame[NUMBERS].astype(float)
    out.insert(0, "(intercept)", 1.0)
    for name, reference in (SEX, PAIN):
        for level in sorted(set(frame[name]) - {reference}):
            out[f"{name}={level}"] = (frame[name] == level).astype(float)
    return out


def compare(title: str, result: gr.Regression, coefficients: Any, errors: Any, p: Any) -> None:
    """Print one line: exchanges, and the largest difference of coefficients, standard errors and p-values."""
    ours = result.to_frame()
    off = np.abs(ours["coef"] / coefficients[ours.index] - 1).max()
    wide = np.abs(ours["std_err"] / errors[ours.index] - 1).max()
    tested = np.abs(ours["p"] - p[ours.index]).max()
    digits = 16 if off == 0 else math.floor(-math.log10(off))
    print(f"{title:<34} {result.exchanges['fit']:>9} {off:>12.1e} {wide:>15.1e} {tested:>9.1e} {digits:>6}")


def main() -> None:
    """Fit both ways and print the table."""
    heart = pd.DataFrame(dict(find_entry("heart").load().columns)).dropna(subset=[*NUMBERS, SEX[0], PAIN[0]])
    x, sick = design(heart), (heart["disease"] == "yes").astype(float)
    lung = load_lung().dropna(subset=["inst", "age", "sex", "ph.ecog"]).astype({"inst": int})
    print(f"{'fit':<34} {'exchanges':>9} {'coefficients':>12} {'standard errors':>15} {'p-values':>9} {'digits':>6}")
    with tempfile.TemporaryDirectory() as folder:
        runs = (Path(folder) / str(k) for k in range(100))
        columns = [*NUMBERS, SEX[0], PAIN[0]]
        pooled = sm.GLM(sick, x, sm.families.Binomial()).fit(tol=1e-13)
        for secure in (False, True):
            result = gr.glm("heart", features=columns, secure=secure, out=next(runs), progress=False)
            where = "secure sums" if secure else "sums in the clear"
            compare(f"logistic, heart, {where}", result, pooled.params, pooled.bse, pooled.pvalues)
        robust = sm.GLM(sick, x, sm.families.Binomial()).fit(tol=1e-13, cov_type="HC0")
        result = gr.glm("heart", features=columns, errors="rows", out=next(runs), progress=False)
        compare("logistic, heart, robust errors", result, robust.params, robust.bse, robust.pvalues)
        own = x.drop(columns="(intercept)").join(pd.get_dummies(heart["hospital"], dtype=float))
        dummies = sm.GLM(sick, own, sm.families.Binomial()).fit(tol=1e-13)
        result = gr.glm("heart", features=columns, intercept="own", out=next(runs), progress=False)
        compare("logistic, heart, own intercepts", result, dummies.params, dummies.bse, dummies.pvalues)
        columns = ["time", "status", "inst", "age", "sex", "ph.ecog"]
        strata = CoxPHFitter().fit(lung[columns], "time", "status", strata=["inst"], fit_options={"precision": 1e-12})
        for secure in (False, True):
            result = gr.cox(
                lung[columns], time="time", event="status", site="inst", secure=secure, out=next(runs), progress=False
            )
            where = "secure sums" if secure else "sums in the clear"
            compare(f"Cox, lung, {where}", result, strata.params_, strata.standard_errors_, strata.summary["p"])


if __name__ == "__main__":
    main()
