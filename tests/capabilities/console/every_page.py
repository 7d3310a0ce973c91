"""A folder that every page of the console has something to show of, and the addresses of these pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import grandrounds as gr
from grandrounds.analysis.membership.attack import write_attacks
from grandrounds.capabilities.attacks.evidence import MEMBERSHIP, collect_evidence
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.core.rng import generator
from grandrounds.runs.run import run_plan
from grandrounds_studies import studies
from grandrounds_studies.results import Results
from grandrounds_studies.running import read
from grandrounds_studies.study import Cell
from tests.capabilities.console.conftest import Served, known_users, serving
from tests.capabilities.console.test_audit import one_byte
from tests.capabilities.watch.records import alarmed_run
from tests.command import rounds
from tests.runs.test_run import frame
from tests.support import bright_squares, patients

RUNS = {
    "reasons": {"method": {"name": "sse-agg", "rounds": 3}, "reference": {"rows": {"rows": 25}}, "explain": {"every": 1}},
    "trust": {"method": {"name": "fedxchain", "rounds": 2}},
    "noisy": {"method": {"rounds": 2}, "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0, "min_rows": 5}},
    "apart": {"method": {"name": "local", "rounds": 2}},
}  # fmt: skip
STUDY, CELL = "fedxchain/fig-2", Cell("the same split for all, alpha 0.5", "FedAvg", 0)
SITE = "b"
"""Whose console it is."""
DONE = "document.querySelector('[data-poll]') === null"
"""Nothing is being checked or worked out any more."""

WEIGHED = "document.querySelector('#sites button') !== null"


@dataclass(frozen=True)
class Place:
    """An address. `user`: who looks at it; `ready`: an expression of JavaScript that is true once the page is complete."""

    path: str
    user: str = "all"
    ready: str = "true"
    figures: bool = False


PLACES = {
    "sign in": Place("/sign-in", user=""),
    "runs": Place("/"),
    "runs, searched": Place("/runs?q=reasons&sort=name"),
    "board": Place("/", user="board"),
    "run": Place("/run?run=reasons"),
    "run, interrupted": Place("/run?run=stopped", figures=True),
    "run, performance": Place("/run?run=reasons&section=performance", figures=True),
    "run, hospitals": Place("/run?run=reasons&section=hospitals"),
    "run, explanations": Place("/run?run=reasons&section=explanations", figures=True),
    "run, weights": Place("/run?run=trust&section=weights", figures=True, ready=WEIGHED),
    "run, training": Place("/run?run=reasons&section=training", figures=True),
    "run, privacy": Place("/run?run=noisy&section=privacy", figures=True),
    "run, settings": Place("/run?run=reasons&section=settings"),
    "run, regression": Place("/run?run=fit&section=estimates", figures=True),
    "run, number": Place("/run?run=number&section=training", figures=True),
    "shapes": Place("/shapes?run=gam", figures=True, ready="document.querySelector('.main-svg') !== null"),
    "shapes, unfinished": Place("/shapes?run=stopped"),
    "risk card": Place("/card?run=card", ready="document.getElementById('shown').textContent !== ''"),
    "risk card, unfinished": Place("/card?run=stopped"),
    "watch": Place("/watch?run=trust", figures=True),
    "watch, none": Place("/watch?run=reasons"),
    "hospitals": Place("/hospitals?run=reasons", figures=True),
    "hospitals, unfinished": Place("/hospitals?run=stopped"),
    "hospital": Place("/hospital?run=reasons&site=a", figures=True),
    "thresholds": Place("/thresholds?run=reasons", figures=True, ready="document.querySelector('[data-ready]') !== null"),
    "thresholds, none": Place("/thresholds?run=number"),
    "compare, to choose": Place("/compare"),
    "compare, chosen": Place("/compare?run=reasons&run=trust", figures=True),
    "compare, kept": Place("/compare?comparison=held", figures=True),
    "study": Place("/compare?study=study"),
    "models": Place("/models"),
    "model, in use": Place("/models?run=reasons"),
    "model, to sign": Place("/models?run=noisy"),
    "model, not valid": Place("/models?run=bent"),
    "worklist": Place("/case", ready="document.querySelector('#patients tbody tr') !== null"),
    "cases, runs": Place("/case/runs"),
    "cases, refused": Place("/case?run=bent"),
    "access log": Place("/access"),
    "cases, patients": Place("/case?run=reasons", ready="document.querySelector('#patients tbody tr') !== null"),
    "case": Place("/case?run=reasons&case={case}", figures=True),
    "case, regression": Place("/case?run=fit&case={case}", figures=True),
    "case, number": Place("/case?run=number&case={case}", figures=True),
    "case, shapes": Place("/case?run=gam&case={case}", figures=True),
    "case, risk card": Place("/case?run=card&case={case}", figures=True),
    "case by models apart": Place("/case?run=apart&case={case}", figures=True),
    "case, picture": Place("/case?run=pictures&case={picture}", ready="[...document.images].every(i => i.complete)"),
    "audit, runs": Place("/audit"),
    "audit": Place("/audit?run=trust", ready=DONE),
    "audit, changed": Place("/audit?run=bent", ready=DONE),
    "audit, no ledger": Place("/audit?run=bare"),
    "privacy, runs": Place("/privacy"),
    "privacy, promised": Place("/privacy?run=noisy", ready=DONE, figures=True),
    "privacy, none": Place("/privacy?run=trust", ready=DONE),
    "privacy, unfinished": Place("/privacy?run=stopped"),
    "api": Place("/api/docs"),
    "fault, not there": Place("/run?run=nobody"),
    "fault, other role": Place("/audit", user="viewer"),
}


def fill(root: Path) -> None:
    """Make tables of three hospitals under four methods, a comparison, a study, pictures, and runs with something amiss."""
    table = frame(patients([90, 70, 50]))
    rng = generator(0, purpose="more columns")
    for k in range(9):
        table[f"laboratory value {k}"] = table["died"] * (k % 3) / 2 + rng.normal(size=len(table))
    table["sex"] = rng.choice(["female", "male"], len(table))
    table.to_csv(root / "patients.csv", index=False)
    data = {"table": str(root / "patients.csv"), "label": "died", "site": "hospital"}
    home = root / "runs"
    held = {n: gr.run(gr.Experiment.parse({"name": n, "data": data, **told}), out=home / n) for n, told in RUNS.items()}
    fitted = {**data, "features": ["age", "sex", "laboratory value 0"], "coding": "reference", "complete": True}
    gr.run(gr.Experiment.parse({"name": "fit", "data": fitted, "method": {"name": "glm"}}), out=home / "fit")
    for model in ("gam", "card"):
        gr.run(gr.Experiment.parse({"name": model, "data": data, "model": {"name": model}}), out=home / model)
    numbers = {**data, "label": "laboratory value 0", "features": ["age", "sex", "lactate"]}
    gr.run(gr.Experiment.parse({"name": "number", "data": numbers, "method": {"rounds": 2}}), out=home / "number")
    write_attacks(held["noisy"].folder, collect_evidence(held["noisy"], only=[MEMBERSHIP]).to_dict())
    done = rounds("compare", home / "reasons", home / "trust", "--out", home / "held", "--quiet")
    assert done.returncode == 0, done.stderr
    study = studies()[STUDY]
    run = run_plan(study.plan(CELL), out=home / "study" / "runs" / CELL.name)
    results = Results(study, {CELL: read(study, run)}, seeds=1)
    (home / "study" / "results.json").write_text(json.dumps(results.to_dict()))
    _pictures(root)
    alarmed_run(home / "trust", "a")
    for name in ("stopped", "bare", "damaged", "bent"):
        shutil.copytree(home / "trust", home / name)
    (home / "stopped" / "summary.json").unlink()
    (home / "bare" / "ledger.db").unlink()
    (home / "damaged" / "summary.json").write_text("{")
    _register(home)
    one_byte(home / "bent" / "ledger.db")


def _register(home: Path) -> None:
    """Enter models: one in use, one that waits for the user "all", and one whose ledger is changed afterwards."""
    words, roles = "four quiet words here", ("medical director", "data protection officer")
    register = Register.create(home, roles=roles)
    for name, role in zip(("director", "all"), roles, strict=True):
        register.add_signatory(name, role=role, passphrase=words)
    for run, purpose in (("reasons", "death in hospital"), ("bent", "readmission"), ("noisy", "length of stay")):
        register.propose(home / run, purpose=purpose, by="engineer")
        register.decide("approve", run, by="director", passphrase=words)
    for run in ("reasons", "bent"):
        register.decide("approve", run, by="all", passphrase=words)
        register.decide("use", run, by="all", passphrase=words, hospitals=[SITE])


def _pictures(root: Path) -> None:
    made = np.load(bright_squares(root / "plain.npz", 60, ("a", "b", "c"), purpose="pictures"))
    np.savez(root / "squares.npz", **made, masks=made["images"][..., 0] > 120)
    told = {"data": {"table": str(root / "squares.npz")}, "model": {"name": "small-cnn"}, "method": {"rounds": 1}}
    gr.run(gr.Experiment.parse({**told, "engine": {"device": "cpu"}}), out=root / "runs" / "pictures")


@contextmanager
def served(root: Path) -> Iterator[Served]:
    """The console of hospital b over it."""
    users, tokens = known_users()
    run_index = RunIndex(root / "runs")
    yield from serving(AppState(run_index, users, cases=SiteCases(run_index, SITE)), tokens)


def numbers(root: Path) -> dict[str, int]:
    """Rows of hospital b that pages are asked for."""
    cases = SiteCases(RunIndex(root / "runs"), SITE)
    return {key: next(iter(cases.open(run).rows.parts)) for key, run in (("case", "reasons"), ("picture", "pictures"))}
