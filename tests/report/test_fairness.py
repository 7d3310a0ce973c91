"""Groups of patients in the report, on the screen and in the console: sentences, tables, the figure, and nothing hidden shown."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import grandrounds as gr
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.estimates import groups
from grandrounds.cli.screen import show_summary
from grandrounds.data.table import Table
from grandrounds.report.document import Charts
from grandrounds.report.fairness import describe_gaps, describe_mitigation, gap_table
from grandrounds.report.figures.groups import group_gaps
from grandrounds.report.sections.fairness import CAVEAT, fairness_section
from tests.report.summaries import board_page
from tests.store import finished
from tests.support import patients


def gap(metric="sensitivity", *, flagged=False, alone=False, p=0.5, difference=-0.2):
    ends = {"difference": difference, "low": difference - 0.1, "high": difference + 0.1, "p": p, "p_holm": min(1, 4 * p)}
    named = {"column": "sex", "group": "<b>f", "reference": "m", "metric": metric}
    return {**named, **ends, "excludes_zero": alone or flagged, "flagged": flagged}


def fairness(*gaps):
    columns = {"sex": {"reference": "m", "groups": {}}}
    return {"columns": columns, "gaps": list(gaps), "comparisons": len(gaps), "least": 5}


def test_the_sentence_says_what_is_clear_and_what_may_be_chance():
    assert describe_gaps({}) == []
    assert describe_gaps(fairness(gap(), gap("ppv"))) == [
        "No gap between groups excludes zero (2 comparisons of groups by sex)."
    ]
    alone = describe_gaps(fairness(gap(), gap("ppv", alone=True, p=0.02)))[0]
    assert alone.startswith("No gap between groups is clear after Holm's correction for 2 comparisons of groups by sex.")
    assert "PPV of sex '<b>f' against 'm' -0.2 (95% CI -0.3 to -0.1); it may be chance." in alone
    clear, more = describe_gaps(fairness(gap(flagged=True, p=0.001), gap("ppv", alone=True, p=0.02)))
    assert clear.startswith("1 clear gap between groups after Holm's correction for 2 comparisons of groups by sex: sensitivity")
    assert more == "1 more excludes zero alone but not after the correction."
    assert "too few test rows or events" in describe_gaps(fairness())[0]


def test_the_clearest_gap_comes_first_and_names_are_escaped():
    shown = fairness(gap(p=0.3), gap("auroc", flagged=True, p=0.0004))
    rows = gap_table(shown)[1]
    assert [r[2] for r in rows] == ["AUROC", "sensitivity"] and rows[0][4] == "<0.001" and rows[0][6] == "clear"
    figure = group_gaps(shown)
    assert figure is not None and {t["name"] for t in figure["data"]} == {"clear after Holm's correction", "includes zero"}
    assert all("<b>" not in name for trace in figure["data"] for name in trace["y"])
    assert group_gaps(fairness()) is None


@pytest.fixture(scope="module")
def run():
    table = patients([700, 600])
    sex = np.random.default_rng(0).choice(["f", "m"], len(table))
    sex[:12] = "x"
    settings = {
        "data": {"label": "died", "site": "hospital"},
        "method": {"rounds": 2},
        "split": {"val": 0.3},
        "evaluation": {"subgroups": ["sex", "age"], "mitigation": "thresholds"},
    }
    table = Table.from_mapping({**table.columns, "sex": sex})
    return gr.load_run(finished(gr.Experiment.parse(settings), table=table))


def test_a_run_shows_the_groups_everywhere(run):
    fairness = run.summary.fairness
    sentence = describe_mitigation(fairness)[0]
    assert sentence.startswith("A threshold for each group of sex, chosen on validation rows, changes test rows of all groups:")
    text = (run.folder / "report.html").read_text()
    for part in ("Groups of patients", "Gaps between groups of patients", "Correction by group", CAVEAT):
        assert part in text
    card = board_page(run)
    assert "No subgroup was evaluated" not in card and "sex: f" in card
    screen = io.StringIO()
    show_summary(Console(file=screen, width=200), run.summary)
    show_summary(Console(file=screen, width=200), run.summary, verbose=True)
    for part in ("test rows by group", "sex: f", "age: 45-64", "thresholds by group", "gaps between groups"):
        assert part in screen.getvalue()
    tables = groups(RunIndex(run.folder.parent), run.folder.name)
    assert [t.title for t in tables] == [
        "Groups by sex, 95% intervals", "Groups by age, 95% intervals", "Gaps between groups",
        "Correction by group, test rows before → after",
    ]  # fmt: skip
    assert fairness_section(run.summary, Charts(None))[0] == "<h2>Groups of patients</h2>"


def test_a_group_of_few_patients_shows_no_count(run):
    few = run.summary.fairness["columns"]["sex"]["groups"].get("x")
    assert few == {"count": None, "hidden": "<5"}
    shown = [row for t in groups(RunIndex(run.folder.parent), run.folder.name)[:1] for row in t.rows if row[0] == "x"]
    assert shown and all(row[1] == "<5" and set(row[3:]) == {"-"} for row in shown)
