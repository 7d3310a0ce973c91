"""Page of a data check: verdict first, findings with fixes, every column, all text escaped, nothing fetched."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from grandrounds.capabilities.quality.assessment.assess import FAULTS, assess_table
from grandrounds.capabilities.quality.assessment.report import QualityReport
from grandrounds.capabilities.quality.quality_page import quality_page
from grandrounds.capabilities.quality.site_check import FIXES, STAYS, check_page
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import AgreedColumn, ImageSchema
from grandrounds.data.table import Table
from grandrounds.report.bars import share_bars
from tests.support import patients, refused

EVIL = "<img src=x onerror=alert(1)>"


class _Tags(HTMLParser):
    """Tags of a page that are open at its end, and addresses that it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.fetched += [v for n, v in attrs if n in ("src", "href") and v]
        if tag not in ("meta", "rect", "path", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.fetched += [v for n, v in attrs if n in ("src", "href") and v]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    return tags


def check(change=None):
    rows = patients([200, 150])
    schema = draft_schema(rows, label="died", drop=["hospital"], quantiles=True)
    schema = replace(schema, columns=tuple(replace(c, unit="mmol/L") if c.name == "lactate" else c for c in schema.columns))
    columns = {name: values.copy() for name, values in rows.columns.items() if name != "hospital"}
    if change:
        change(columns)
    table = Table.from_mapping(columns, source="here.csv")
    return check_page(assess_table(table, schema), schema, table)


def test_a_page_of_fitting_data_says_so_and_shows_every_column():
    page = check()
    assert "fit the schema of the consortium" in page and "do not fit" not in page and STAYS in page
    assert page.index(STAYS) < page.index("class='verdict fits'") < page.index("<h2>Overview")
    for name in ("age", "lactate", "pressure", "ward", "died"):
        assert f"<h3>{name} " in page
    assert page.count("<svg") == 3 and "role='img'" in page and "3 of 3 agreed values are used" in page
    tags = parse(page)
    assert tags.open == [] and tags.fetched == []


def test_faults_come_first_with_their_fix_and_the_factor():
    def wrong(columns):
        columns["lactate"] = columns["lactate"] * 9.008
        columns["ward"][:60] = EVIL

    page = check(wrong)
    assert "do not fit the schema of the consortium: 1 fault to fix" in page
    assert page.index("Faults: fix them") < page.index("Warnings: somebody") < page.index("<h2>Columns")
    assert "looks like mg/dL where mmol/L is agreed" in page and "multiply by 0.111" in page
    assert EVIL not in page and "&lt;img" in page
    assert parse(page).open == []


def test_every_code_of_a_check_has_a_fix():
    known = {code for codes in FAULTS.values() for code in codes}
    assert known <= set(FIXES) and all(text.endswith((".", "?")) for text in FIXES.values())


def test_a_page_of_images_has_findings_alone():
    report = QualityReport("scans", 12, (), ())
    page = check_page(report, ImageSchema(size=(8, 8), channels=1, classes=("a", "b")))
    assert "12" in page and "images" in page and "<h2>Columns" not in page and parse(page).open == []


def test_bars_say_their_numbers():
    drawn = share_bars(["low", "high"], [0.25, 0.75], [0.5, 0.5], title="age")
    assert "aria-label='age: low 25%; high 75%'" in drawn and "low: 25.0%, agreed 50.0%" in drawn


def test_a_number_without_agreed_quantiles_has_a_histogram_of_its_own():
    rows = patients([60])
    schema = draft_schema(rows, label="died", drop=["hospital"])
    assert schema["age"] == AgreedColumn("age", "number")
    page = check_page(assess_table(rows, schema), schema, rows)
    assert page.count("<svg") == 3 and "agreed shares" not in page


def test_a_page_of_no_comparison_is_refused():
    with refused("no-quality"):
        quality_page({})
