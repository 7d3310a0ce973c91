"""Table 1 and survival curves as text, on the report's page and in the console."""

from __future__ import annotations

import numpy as np

from grandrounds.capabilities.statistics.group_tests import GroupTest
from grandrounds.capabilities.statistics.kaplan_meier import fit_kaplan_meier
from grandrounds.capabilities.statistics.question import Rows, fit_in_memory
from grandrounds.capabilities.statistics.table_result import Cell, TableColumn, TableOne, Variable
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.report.document import Charts
from grandrounds.report.page import report_page
from grandrounds.report.sections.description import survival_section, table_one_section
from grandrounds.report.tables import read_survival, read_table_one, survival_table, table_one
from tests.report import EVIL, summary
from tests.support import refused


def first_table(name: str = "age") -> TableOne:
    columns = TableColumn("Overall", "overall", 100), TableColumn("0", "group", 60), TableColumn("1", "group", 40)
    age = tuple(Cell(1, 99, 61.25, 10.0) for _ in columns)
    sex = tuple(Cell(0, n, counts=(n - 3, None), small=(False, True)) for n in (100, 60, 40))
    test = GroupTest("Welch's t", 1.5, 0.04, (98.0,))
    variables = (
        Variable(name, "mean", age, smd=(0.1,), test=test),
        Variable("sex", "category", sex, ("f", "m"), smd=(None,), p_range=">=0.05"),
    )
    return TableOne(columns, variables, "died", 5, {"note": "text"}, 3)


def curves():
    from grandrounds.capabilities.statistics.answers import ANSWERS

    time = np.arange(1.0, 61.0)
    sites = {
        s: Rows(np.zeros((60, 0)), np.ones(60), time=time + k, group=np.arange(60) % 2) for k, s in enumerate("abc")
    }
    return fit_in_memory(fit_kaplan_meier(("drug", "placebo")), sites, ANSWERS)


def test_table_one_is_the_printed_one():
    told = table_one(first_table())
    assert told.title == "Table 1 by died" and told.head[:4] == ("variable", "", "Missing", "Overall")
    assert told.rows[1] == ("age", "mean (SD)", "1", *["61.2 (10.0)"] * 3, "0.100", "0.040", "Welch's t")
    assert [row[0] for row in told.rows] == ["n", "age", "sex, n (%)", ""], "a name in its first row alone"
    assert any(note.startswith("<5: fewer than 5 patients") for note in told.notes)
    assert "note is left out: text." in told.notes and "Each hospital answered 3 questions with sums." in told.notes


def test_the_sections_escape_names_and_are_empty_without_a_table():
    html = "".join(table_one_section(summary(table1=first_table(EVIL).to_dict())))
    assert "<h2>Table 1 by died</h2>" in html and EVIL not in html and "&lt;script&gt;" in html
    assert table_one_section(summary()) == [] and survival_section(summary(), Charts("")) == []


def test_survival_curves_have_medians_and_the_log_rank_test():
    found = curves()
    told = survival_table(found)
    assert [row[0] for row in told.rows] == ["all", "drug", "placebo"]
    assert told.rows[0][1:3] == ("180", f"{found.overall.events}")
    median = found.overall.median
    assert told.rows[0][3] == f"{median.value:.4g} ({median.low:.4g} to {median.high:.4g})"
    assert told.before[0].startswith("Survival does not clearly differ between groups: log-rank test within hospitals")
    html = "".join(survival_section(summary(survival=found.to_dict()), Charts("")))
    assert "<h2>Survival</h2>" in html and "median (95% CI)" in html and html.count("data-figure") == 1
    assert "survival" in list_figures(RunRecord([], summary(survival=found.to_dict())))


def test_a_damaged_record_is_named():
    with refused("damaged-record", match="Table 1 cannot be read"):
        read_table_one({"table1": {"columns": []}})
    with refused("damaged-record", match="survival curves cannot be read"):
        read_survival({"survival": {"overall": {}}})
    assert read_survival({"survival": {"c_index": 0.7}}) is None


def test_a_run_without_a_model_has_a_page():
    """No scores, no tiles, no training: the table, the exchanges and the privacy statement."""
    cost = {"bytes_down": 1e4, "bytes_up": 2e4, "messages": 12.0, "seconds": 0.1}
    told = summary(
        data="patients.csv", method="table1", sites={"all": 3, "training": 3}, rounds=3, cost=cost,
        privacy={"mechanism": "none", "statement": "Counts leave the sites."},
        table1=first_table().to_dict(), survival=curves().to_dict(),
    )  # fmt: skip
    machine = {"python": "3.11", "packages": {}, "processor": "x", "cores": 2, "memory_gib": 8}
    page = report_page(told, [], machine)
    assert "3 sites, all train, 3 rounds</p>" in page
    assert "Table 1 by died" in page and "<h3>Survival</h3>" in page and "Counts leave the sites." in page
    for absent in ("AUROC", "accuracy", "<h2>Training</h2>", "tiles'>", "<h2>Sites", "parameters"):
        assert absent not in page.split("</style>")[1].split("plotly-packed")[0], absent
