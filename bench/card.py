"""Accuracy of risk cards on five folds by patient (seed 0): bars R1 and R2 of the specification.

    GRANDROUNDS_DATA=/path/to/data python bench/card.py [--cohort eicu-demo] [--terms 5 10]
    python bench/card.py --write FOLDER        # folds for bench/card_fasterrisk.py

A card is fitted from sums over the cohort's sites. AUROC is that of the printed risks on the test rows of all sites. The table
has mean and standard deviation over folds, the exchanges and the kilobytes that one site sends, and CPU seconds of a fit. Exits
with status 1 if a bar of the eICU demo is missed, or if the printed risk of a patient is not the program's.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from folds import COHORTS, FOLDS, Fold, auroc, make_fold
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.card import (
    SHARES,
    CardResult,
    card_options,
    card_terms,
    fit_card,
    list_candidates,
)
from grandrounds.capabilities.statistics.methods.options import CardOptions, GAMOptions
from grandrounds.capabilities.statistics.models.card import CardModel, card_arrays, meet_terms
from grandrounds.capabilities.statistics.question import Record, fit_in_memory
from smoke import pick

BARS = {("distilled", 5): 0.74, ("distilled", 10): 0.77, ("direct", 5): 0.71, ("direct", 10): 0.74}
"""Least mean AUROC on the eICU demo, by route and number of terms."""

LEAST = 5


def fit(fold: Fold, route: str, terms: int, record: Record) -> tuple[CardModel, CardResult]:
    """Fit a card on the training rows of a fold, from sums over its sites."""
    options = card_options(
        {"card": CardOptions(terms=terms, route=route).model_dump(), "gam": GAMOptions().model_dump()}  # type: ignore[arg-type]
    )
    model = CardModel(fold.test.x.shape[1], fold.columns, options=options)
    return model, fit_in_memory(fit_card(card_terms(model, LEAST)), fold.sites, ANSWERS, record)


def arithmetic_differs(model: CardModel, result: CardResult, fold: Fold) -> bool:
    """Add up the card's points by hand for every row, and compare the printed risk with the model's."""
    rows = fold.test
    theta = model.pack(result.arrays)
    risk = 1 / (1 + np.exp(-model.logits(theta, rows.x)[:, 0]))
    draft = card_arrays(result.card, fold.columns)
    met = meet_terms(fold.values(rows), draft["column"], draft["kind"], draft["value"])
    totals = (met @ draft["points"]).astype(int)
    by_hand = np.array([result.card.risk(int(t)) for t in totals])
    return bool(np.abs(risk - by_hand).max() > 1e-12)


def write_folds(folder: Path, cohort: str) -> None:
    """Write the steps of the training and test rows of each fold, for a program that reads 0/1 columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FOLDS):
        fold = make_fold(cohort, number)
        train, test = fold.values(fold.train), fold.values(fold.test)
        steps = list_candidates(fold.columns, np.nanquantile(train, SHARES, axis=0).T)
        z = meet_terms(train, steps.column, steps.kind, steps.value)
        count = z.sum(axis=0)
        enough = np.flatnonzero((count >= LEAST) & (len(z) - count >= LEAST))
        first = np.unique(z[:, enough], axis=1, return_index=True)[1]
        kept = enough[np.sort(first)]
        tested = meet_terms(test, steps.column, steps.kind, steps.value)[:, kept]
        np.savez(folder / f"fold{number}.npz", train=z[:, kept], test=tested, train_y=fold.train.y, test_y=fold.test.y)
        print(folder / f"fold{number}.npz", f"{len(kept)} steps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", choices=COHORTS, default=pick("eicu-demo", "heart"))
    parser.add_argument("--terms", type=int, nargs="+", default=pick([5, 10], [5]))
    parser.add_argument("--routes", nargs="+", default=["distilled", "direct"])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.write is not None:
        write_folds(given.write, given.cohort)
        return 0
    folds = [make_fold(given.cohort, number) for number in range(pick(FOLDS, 2))]
    print(
        f"{given.cohort}: {len(folds[0].sites)} sites, {len(folds[0].columns)} columns, {FOLDS} folds by patient, seed 0"
    )
    print("| route | terms | AUROC | by fold | exchanges | kB up | CPU s | bar |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    missed = False
    for route in given.routes:
        for terms in given.terms:
            scores, exchanges, sent, cpu = [], [], [], []
            for fold in folds:
                record, start = Record(), time.process_time()
                model, result = fit(fold, route, terms, record)
                cpu.append(time.process_time() - start)
                scores.append(auroc(fold.test.y, model.logits(model.pack(result.arrays), fold.test.x)[:, 0]))
                exchanges.append(record.exchanges)
                sent.append(sum(q.numbers * (4 if q.whole else 8) for q in record.questions) / 1000)
                if arithmetic_differs(model, result, fold):
                    print(f"{route} {terms}: the printed risk of a row is not the program's")
                    missed = True
            bar = BARS.get((route, terms)) if given.cohort == "eicu-demo" else None
            missed |= bar is not None and float(np.mean(scores)) < bar
            by_fold = " ".join(f"{s:.3f}" for s in scores)
            told = "" if bar is None else f">= {bar}"
            print(
                f"| {route} | {terms} | {np.mean(scores):.3f} +- {np.std(scores, ddof=1):.3f} | {by_fold} | "
                f"{min(exchanges)} to {max(exchanges)} | {np.mean(sent):.0f} | {np.mean(cpu):.1f} | {told} |",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
