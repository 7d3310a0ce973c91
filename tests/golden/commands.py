"""Commands that people use on runs, one case a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.golden.running import Step

RUN = ("run", "patients.csv", "--label", "died", "--site", "hospital", "--set", "method.rounds=3", "-q")
HEART = ("run", "heart", "--set", "method.rounds=2", "-q", "--out", "run")
TABLE = ("patients.csv", "--site", "hospital")
DAYS = ("heart", "--out", "tables")
ONE_ROUND = ("--set", "method.rounds=1")
TWO = ("--methods", "fedavg,fedprox", "--seeds", "2")
CHOICES = (
    "methods", "selection", "weighing", "robust", "stability", "staleness", "personal", "proposals", "explainers", "attacks",
    "models", "data", "recipes",
)  # fmt: skip


TREES = ("--set", "method.rounds=30", "--set", "method.trees.rounds=3", "--set", "method.trees.least=5")
FAILING = ("--set", "engine.faults.drop=0.5", "--set", "engine.min_sites=7")


def _method(name: str) -> tuple[str, ...]:
    """A method that has a model of its own name."""
    return ("--set", f"method.name={name}", "--set", f"model.name={name}")


def list_commands(_: Path) -> Any:
    """Every command with the text of its help."""
    from tests.command import rounds

    out: dict[str, str] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop()
        text = rounds(*command, "--help").stdout
        out[" ".join(("rounds", *command))] = text
        for name in _subcommands(text):
            waiting.append((*command, name))
    return out


def _subcommands(text: str) -> list[str]:
    """Names in the boxes of commands: a line that begins with a word, in a box that is not of arguments or options."""
    names, inside = [], False
    for line in text.splitlines():
        if line.startswith("╭─"):
            inside = not any(word in line for word in ("Arguments", "Options"))
        elif inside and line.startswith("│ ") and line[2] != " ":
            names.append(line[2:].split()[0])
    return names


def kill_and_resume(folder: Path) -> Any:
    """Kill a run in its third round, and resume it."""
    code = (
        "import os, grandrounds as gr\n"
        "def on(event):\n"
        "    if event['event'] == 'round' and event['round'] == 3: os._exit(9)\n"
        "from grandrounds.runs.runner import execute_plan\n"
        "from grandrounds.runs.folder import RunFolder\n"
        "from pathlib import Path\n"
        "folder = RunFolder(Path('run')); folder.create()\n"
        "method = {'name': 'scaffold', 'rounds': 6}\n"
        "plan = gr.Experiment.parse({'name': 'killed', 'data': {'name': 'heart'}, 'method': method}).plan()\n"
        "execute_plan(plan, folder, progress=on)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=folder, env=os.environ, check=False)
    from tests.command import rounds

    resumed = rounds("resume", "run", "-q")
    return {"killed": killed.returncode, "resumed": resumed.returncode, "stderr": resumed.stderr.splitlines()}


def next_patients(folder: Path) -> Any:
    """New patients of a hospital, with one column in another unit."""
    import pandas as pd

    table = pd.read_csv(folder / "tables" / "cleveland.csv")
    table.assign(cholesterol=table["cholesterol"] / 38.67).to_csv(folder / "tables" / "next.csv", index=False)
    return len(table)


def public_names(_: Path) -> Any:
    """The names of the package."""
    import grandrounds as gr

    return sorted(gr.__all__)


def plans_of_recipes(_: Path) -> Any:
    """The plan of every recipe."""
    from tests.command import rounds

    names = json.loads(rounds("list", "recipes", "--json").stdout)
    names = list(names)
    out = {}
    for name in names:
        done = rounds("plan", name, "--out", "plan.json")
        out[name] = json.loads(Path("plan.json").read_text()) if done.returncode == 0 else done.stderr.splitlines()
        Path("plan.json").unlink(missing_ok=True)
    return out


COMMANDS: dict[str, tuple[Step, ...]] = {
    "help": (list_commands,),
    "tables of choices": (
        public_names,
        ("list",),
        *(("list", kind) for kind in CHOICES),
        ("init", "all.toml", "--all"),
        ("init", "short.toml"),
    ),
    "plans of recipes": (plans_of_recipes,),
    "life of a run": (
        ("data", "check", *TABLE, "--label", "died"),
        (*RUN, "--out", "run"),
        ("show", "run", "--verbose"),
        ("show", "run", "--round", "2", "--site", "a"),
        ("show", "run", "--site", "b"),
        ("show", "run", "--model"),
        ("show", "run", "--schema"),
        ("predict", "run", "--table", "new.csv", "--out", "predicted.csv"),
        ("evaluate", "run", "--table", "new.csv", "--json"),
        ("export", "run", "--to", "json", "--out", "model.json"),
        ("explain", "run", "--case", "3", "--out", "case.html"),
        ("explain", "run", "--case", "3", "--json"),
        ("explain", "run", "--site", "a", "--json"),
        ("explain", "run", "--near-misses"),
        ("explain", "run", "--near-misses", "--json"),
        ("card", "run", "--out", "card", "--json"),
        ("dossier", "run", "--out", "dossier", "--no-pdf", "--date", "2026-01-31"),
        ("privacy", "run"),
        ("privacy", "run", "--json"),
        ("report", "run", "--deck", "board.pptx", "--out", "again.html"),
        ("audit", "verify", "run"),
        ("audit", "export", "run", "--out", "ledger.jsonl"),
        ("audit", "prove", "run", "--site", "a", "--out", "proof.json"),
        ("audit", "check", "proof.json", "--json"),
        ("resume", "run"),
    ),
    "attacks": (
        (*RUN, "--out", "run"),
        ("attack", "run", "--only", "membership", "--json"),
        ("attack", "run", "--only", "attribute", "--sensitive", "ward"),
        ("attack", "run", "--only", "reconstruction"),
        ("show", "run"),
    ),
    "comparisons": (
        (*RUN, "--out", "one"),
        (*RUN, "--set", "method.name=fedprox", "--out", "two"),
        ("compare", "one", "two", "--json"),
        ("compare", "breast-cancer", *TWO, *ONE_ROUND, "--out", "compared", "--json"),
    ),
    "search": (
        ("tune", "breast-cancer", "--trials", "3", "--space", "train.lr=1e-2..1:log", *ONE_ROUND, "--out", "search"),
        ("run", "search/best.toml", "--quiet", "--out", "best"),
    ),
    "regressions": (
        ("fit", "glm", "heart", "--features", "age,sex,max_heart_rate", "--out", "glm", "--csv", "glm.csv", "--latex", "glm.tex"),
        ("fit", "glm", "heart", "--label", "age", "--family", "linear", "--features", "sex,chest_pain", "--intercept", "own"),
        ("fit", "glm", "heart", "--formula", "disease ~ age * sex", "--secure", "--json"),
        ("show", "glm"),
        ("show", "glm", "--model"),
        ("audit", "verify", "glm"),
    ),
    "table of patients": (
        ("table1", *TABLE, "--group", "died", "--out", "table", "--csv", "table.csv", "--latex", "table.tex"),
        ("table1", *TABLE, "--secure", "--json"),
    ),
    "quality of data": (
        ("quality", *TABLE, "--label", "died", "--out", "quality"),
        ("quality", *TABLE, "--label", "died", "--json"),
        ("show", "quality"),
    ),
    "models from sums": (
        (*RUN, *_method("gam"), "--set", "method.rounds=30", "--out", "gam"),
        ("show", "gam", "--model"),
        (*RUN, *_method("trees"), *TREES, "--out", "trees"),
        ("show", "trees", "--model"),
        ("export", "trees", "--to", "lightgbm", "--out", "trees.txt"),
        ("predict", "trees", "--table", "new.csv"),
    ),
    "watch": (
        HEART,
        ("data", "split", *DAYS),
        next_patients,
        ("watch", "run", "--site", "cleveland", "--table", "tables/cleveland.csv"),
        ("watch", "run", "--site", "cleveland", "--table", "tables/next.csv"),
        ("watch", "show", "run"),
        ("watch", "show", "run", "--json"),
        ("recalibrate", "run", "--site", "cleveland", "--table", "tables/cleveland.csv", "--by", "ward"),
        ("recalibrate", "run", "--site", "cleveland", "--table", "tables/cleveland.csv", "--by", "ward"),
        ("audit", "verify", "run/at_sites/cleveland/watch"),
    ),
    "watch of a consortium": (
        HEART,
        ("watch", "run", "--simulate", "--shift", "resting_bp=1.5@va", "--shift", "resting_bp=1.5@hungarian", "--out", "watched"),
        ("watch", "run", "--simulate", "--secure", "--epsilon", "1", "--json", "--out", "noised"),
        ("watch", "run", "--plan", "watch.toml", "--secure"),
        ("show", "watched"),
    ),
    "withdrawal": (
        HEART,
        ("withdraw", "run", "--site", "va", "--prove"),
        ("show", "run"),
        ("predict", "run", "--table", "patients.csv"),
        ("show", "run-without-va"),
        ("audit", "verify", "run"),
        ("audit", "verify", "run-without-va"),
    ),
    "killed and resumed": (kill_and_resume, ("show", "run"), ("audit", "verify", "run")),
    "failed and resumed": (
        ("run", *FAILING, "--set", "method.rounds=4", "--out", "run", "-q"),
        ("show", "run"),
        ("resume", "run", "--set", "engine.min_sites=1", "-q"),
        ("show", "run"),
    ),
}  # fmt: skip
"""Commands by the name of the case."""
