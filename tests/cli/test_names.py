"""Names with brackets, ANSI codes and marks of text direction: every command shows them whole, and none acts on them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import grandrounds.cli
from grandrounds.core.errors import visible
from tests.command import rounds

CRP, CELLS, WARD, SEX = "CRP [mg/l]", "Leukozyten [/nl]", "Station [bold]", "se\x1b[31mx"
SITES = ["Nord [/1]", "Süd [2]", "West [dim]", "Ost \u202e[:smile:]"]
LABEL, DIED, LIVED = "Tod [30 d]", "ja [/x]", "nein [y]"
WARDS, SEXES = ["A [/red]", "B [b]"], ["[m]", "\x1b[1mw"]
SHAPES = {"COLUMNS": "240", "TERM": "dumb"}
"""Wide enough that no name is folded."""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """160 patients of four hospitals in the words of a laboratory that writes units in brackets."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("names") / "lab [nl].csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([CRP, CELLS, WARD, SEX, "Klinik [D]", LABEL])
        for i in range(160):
            crp, cells = rng.lognormal(3, 1), rng.normal(8, 2)
            died = 0.6 * (np.log(crp) - 3) + 0.2 * (cells - 8) + rng.logistic() > 0.5
            words = WARDS[i % 2 if rng.random() < 0.5 else int(died)], SEXES[int(rng.random() < 0.5)]
            writer.writerow([f"{crp:.2f}", f"{cells:.2f}", *words, SITES[i % 4], DIED if died else LIVED])
    return path


@pytest.fixture(scope="module")
def columns():
    return "--label", LABEL, "--site", "Klinik [D]", "--event", DIED


@pytest.fixture(scope="module")
def started(table, columns):
    """The run and what it printed."""
    out = table.parent / "run"
    rules = "method.rounds=2", "evaluation.subgroup=Station [bold]"
    done = rounds("run", "--table", table, *columns, "--out", out, *(f"--set={r}" for r in rules), env=SHAPES)
    assert done.returncode == 0, done.stderr
    return out, done


def has(text, *names):
    """All names are there letter by letter, escaped where a letter cannot be seen, and no control character is."""
    shown = re.sub(r"\s+", " ", text)
    for name in names:
        assert visible(name) in shown, f"{name!r} is not in: {text}"
    assert "\x1b" not in text and "\u202e" not in text


def test_a_check_of_the_table_names_columns_and_classes(table, columns):
    done = rounds("data", "check", table, *columns, env=SHAPES)
    assert done.returncode == 0, done.stderr
    has(done.stdout, CRP, CELLS, WARD, SEX, DIED, LIVED)


def test_a_run_names_sites_columns_and_groups(started):
    has(started[1].stdout, *SITES, CRP, CELLS, *WARDS)
    has(started[1].stderr, DIED, LIVED)


@pytest.mark.parametrize(
    "arguments, names",
    [
        (["show", "RUN"], [*SITES, CRP, CELLS]),
        (["show", "RUN", "--schema"], [CRP, CELLS, WARD, SEX]),
        (["show", "RUN", "--model"], [CRP, CELLS, WARD, LABEL]),
        (["show", "RUN", "--round", 2], SITES),
        (["show", "RUN", "--round", 2, "--site", SITES[0]], [SITES[0]]),
        (["explain", "RUN", "--case", 3], [CRP, CELLS, WARD, SEX]),
        (["explain", "RUN", "--site", SITES[3]], [CRP, CELLS, SITES[3]]),
        (["explain", "RUN", "--near-misses"], []),
        (["evaluate", "RUN", "--table", "TABLE"], SITES),
        (["privacy", "RUN"], []),
        (["compare", "RUN", "RUN"], []),
    ],
)
def test_commands_that_look_at_a_run_name_all(started, table, arguments, names):
    run = started[0]
    done = rounds(*(str(a).replace("RUN", str(run)).replace("TABLE", str(table)) for a in arguments), env=SHAPES)
    assert done.returncode == 0, done.stderr
    has(done.stdout + done.stderr, *names)


def test_predictions_keep_the_class_as_it_is_written(started, table):
    done = rounds("predict", started[0], "--table", table)
    assert {row["decision"] for row in csv.DictReader(done.stdout.splitlines())} <= {DIED, LIVED}


def test_the_ledger_names_a_site(started):
    run = started[0]
    assert rounds("audit", "verify", run).returncode == 0
    made = rounds("audit", "prove", run, "--site", SITES[2], "--round", 2, "--out", run / "proof.json")
    assert made.returncode == 0, made.stderr
    has(rounds("audit", "check", run / "proof.json", "--key", run / "server.pub").stdout, SITES[2])


def test_a_search_and_its_failures_are_printed(table, columns, tmp_path):
    wanted = "--set=tune.trials=1", "--set=method.rounds=1"
    done = rounds("tune", "--table", table, *columns, *wanted, "--out", tmp_path / "tuned", env=SHAPES)
    assert done.returncode == 0, done.stderr
    has(done.stdout, "lab [nl]")


def test_an_error_shows_the_name_that_is_wrong(table):
    done = rounds("run", "--table", table, "--label", "\x1b[31mTod [/x]")
    assert done.returncode == 2
    has(done.stderr, "\x1b[31mTod [/x]", CELLS)


def test_pages_show_names_escaped(started):
    run = started[0]
    assert rounds("report", run).returncode == 0
    page = (run / "report.html").read_text("utf-8")
    has(page, CELLS, *SITES)
    drawn = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert drawn and all("\u202e" not in str(json.loads(text)) for text in drawn), "nor has a figure"
    for command in (["--case", 3], ["--site", SITES[3]]):
        assert rounds("explain", run, *command, "--out", run / "page.html").returncode == 0
        has((run / "page.html").read_text("utf-8"), CELLS)


def test_the_consoles_pages_show_names_escaped():
    pytest.importorskip("jinja2")
    from grandrounds.capabilities.console.render import environment

    shown = environment().from_string("{{ name }} {{ n }}").render(name="<b>\x1b[31m\u202e [/nl]", n=3)
    assert shown == "&lt;b&gt;\\x1b[31m\\u202e [/nl] 3"


def test_no_command_uses_markup():
    """Styles are arguments: a tag in a text would be printed as it is, and a console of Rich's own would read names."""
    folder = Path(grandrounds.cli.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text("utf-8")
        assert not re.search(r"\[/?(dim|bold|red|green|yellow)[ \w]*\]", text) or path.name == "terminal.py", path
        assert path.name == "terminal.py" or not re.search(r"\bConsole\((?!stderr=True\)\) as bar)", text), path


def test_the_code_of_an_error_is_printed_and_is_no_markup():
    done = rounds("list", "[bold]lemons[/]")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot list '[bold]lemons[/]'") and done.stderr.endswith(" [unknown-list]\n")
