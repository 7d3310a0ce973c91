"""The report: complete, self-contained, harmless, and drawn by a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.analysis.comparison_plans import write_comparison
from grandrounds.cli.report import report
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report import figure as plotly_js
from grandrounds.report.document import Charts
from grandrounds.report.explanations import name_features
from grandrounds.report.page import report_page
from grandrounds.report.sections.trust import trust_limits, trust_section
from tests.command import rounds
from tests.conftest import CHROMIUM
from tests.report import EVIL, RULE, explanations, many, trusting, typed
from tests.store import copied, finished
from tests.support import patients, refused, without_ledger


class Page(HTMLParser):
    """A page as a browser reads it: scripts by kind, words outside them, headings, rows of tables, addresses."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[tuple[dict, str]] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self._inside = tag
        held = dict(attributes)
        self.addresses += [v for k, v in held.items() if k in ("src", "href", "action", "data", "srcset", "poster")]
        if tag == "script":
            self.scripts.append((held, ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            held, text = self.scripts[-1]
            self.scripts[-1] = (held, text + data)
            return
        if self._inside != "style":
            self.words.append(data)
        if self._inside in ("td", "th"):
            self.rows[-1][-1] += data
        if self._inside in ("h1", "h2", "h3"):
            self.headings[-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def figures(self) -> list[dict]:
        return [json.loads(text) for held, text in self.scripts if "data-figure" in held]

    def titles(self) -> str:
        return " ".join(f["layout"]["title"]["text"] for f in self.figures)


def trained(*, settings=(), seed: int = 0, evil: bool = False) -> Path:
    pd = pytest.importorskip("pandas")
    columns = dict(patients([120, 100, 80]).columns)
    if evil:
        columns["hospital"] = [EVIL if h == "a" else h for h in columns["hospital"]]
        columns[EVIL] = columns.pop("lactate")
    base = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 3}, "seed": seed})
    return finished(base.with_settings(list(settings)), table=pd.DataFrame(columns))


@pytest.fixture(scope="module")
def evil_run():
    return gr.load_run(trained(evil=True))


@pytest.fixture(scope="module")
def evil_page(evil_run):
    """The report of a run whose site and column have a script for a name, with explanations of both kinds."""
    told = explanations(EVIL, EVIL)
    return report_page(evil_run.summary, evil_run.rounds, evil_run.summary["environment"], told)


def test_names_from_data_stay_names(evil_run, evil_page):
    for text in (evil_page, (evil_run.folder / "report.html").read_text()):
        page = Page(text)
        kinds = [held.get("type") for held, _ in page.scripts]
        assert set(kinds) == {"application/json", "text/plain", "module"}
        assert kinds.count("module") == 1
        assert "i" not in page.tags and EVIL in page.text
        assert not any("alert" in text for held, text in page.scripts if held.get("type") == "module")
        assert len(page.figures) == kinds.count("application/json") > 4


def test_the_page_asks_nobody_for_anything(evil_page):
    page = Page(evil_page)
    assert page.addresses and all(re.fullmatch("#[a-z-]+", address) for address in page.addresses)
    without = evil_page.replace(plotly_js.packed_script(), "")
    assert "://" not in without and "//cdn" not in without
    assert "default-src 'none'" in evil_page, "and a browser is told not to"


def test_the_script_is_in_the_page_once_and_whole(evil_page):
    packed = [text for held, text in Page(evil_page).scripts if held.get("id") == "plotly-packed"]
    assert len(packed) == 1
    assert gzip.decompress(base64.b64decode(packed[0])) == gzip.decompress(plotly_js.packed_script_bytes())


def test_every_section_is_there(evil_page):
    page = Page(evil_page)
    for heading in (
        "Summary",
        "Training",
        "Performance on test patients of all sites",
        "Explanations",
        "Sites, lowest AUROC first",
        "Participation and cost",
        "For whom it is worse",
        "Model card",
        "Hospitals",
        "Privacy",
        "Record and provenance",
        "Training details",
    ):
        assert heading in page.headings
    for title in (
        "Test scores by round",
        "AUROC at each site",
        "Aggregation weights",
        "Reliability",
        "Decision curve",
        "Drift of explanations between sites",
        "Overlap of sites' explanations",
        "Most important features of each site's own model",
        "Most important features of the common model, by site",
        "Training drift, by pair of sites",
        "Deployed divergence, by pair of sites",
    ):
        assert title in page.titles()
    assert "Charts need JavaScript" in page.text


def test_reasons_keep_the_two_questions_apart(evil_page):
    page = Page(evil_page)
    assert "models of a round on the same reference rows" in page.text
    assert "compares explanations on each site's own patients" in page.text
    assert not [row for row in page.rows if row[0].endswith("resolution")]
    numbers = {row[0]: row[1:] for row in page.rows if row[0] in ("training drift", "deployed divergence")}
    assert numbers["training drift"] == ["0.800", "–", "0.200", "0.333", "0.500"]
    assert numbers["deployed divergence"] == ["0.267", "0.050", "–", "1.000", "0.500"]
    sites = {row[0]: row[1:] for row in page.rows if len(row) == 5 and row[0] in ("a", "b", EVIL)}
    assert sites[EVIL] == ["0.400", f"ward 60%, {EVIL} 30%, age 10%", "0.200", f"{EVIL} 40%, age 30%, ward 30%"]
    assert sites["b"] == ["–", "–", "0.000", "flat: the model uses no feature"]


def test_a_run_without_explanations_has_no_reasons(evil_run):
    page = Page(report_page(evil_run.summary, evil_run.rounds, evil_run.summary["environment"]))
    assert "Explanations" not in page.headings
    assert "Aggregation weights" in page.titles()


def test_many_sites_are_cut_to_those_that_matter(evil_run):
    told = many(200, rounds=2, pairs=False)
    page = Page(report_page(evil_run.summary, evil_run.rounds, evil_run.summary["environment"], told))
    assert "Distance to the consensus" in page.titles()
    assert "The 40 farthest of 200 sites." in page.text
    assert sum(row[0].startswith("site-") for row in page.rows if row) == 40


@pytest.fixture(scope="module")
def trust_run():
    """FedXChain at three sites, one with a script for a name, with an alarm that rings."""
    settings = ["method.name=fedxchain", "reference.root.rows=30", "method.trust.alarm=0.001"]
    return gr.load_run(trained(settings=settings, evil=True))


def test_trust_is_told_with_the_numbers_of_the_last_round(trust_run):
    page = Page((trust_run.folder / "report.html").read_text())
    assert "Trust" in page.headings and "i" not in page.tags
    for title in (
        "Trust",
        "Divergence of explanations (NSDS)",
        "components of trust",
        "Rewards so far",
        "The consortium's attributions",
    ):
        assert title in page.titles()
    assert "what determined each weight" not in page.titles(), "trust has a figure of its own"
    decision, told = trust_run.rounds[-1]["decision"], trust_run.summary["trust"]
    signals = decision["signals"]
    head = next(k for k, row in enumerate(page.rows) if "NSDS" in row)
    rows = {row[0]: row[1:] for row in page.rows[head + 1 : head + 4]}
    for site, trust in signals["trust"].items():
        assert rows[site][:3] == [
            f"{signals['accuracy'][site]:.3f}", f"{signals['nsds'][site]:.4f}", f"{signals['consistency'][site]:.3f}"
        ]  # fmt: skip
        assert rows[site][3:5] == [f"{trust:.3f}", f"{decision['weights'][site]:.4f}"]
    assert EVIL in rows and rows[EVIL][-1] == "alarm"
    assert set(told["alarmed"]) == set(signals["nsds"]) and told["last"] == signals["trust"]
    assert f"{EVIL}: its explanations diverged by more than 0.001 in rounds 1, 2, 3" in page.text
    assert "No site refused the weights of a round." in page.text
    assert "The server measured each model's accuracy itself" in page.text


def test_a_run_without_trust_has_no_section_on_it(evil_page):
    assert "Trust" not in Page(evil_page).headings


@pytest.mark.parametrize(
    ("told", "words", "never"),
    [
        (
            {"secure": True},
            "on these rows and is detected. A site that misreports its numbers is not detected.",
            "server measured",
        ),
        (
            {"secure": True, "accuracy_at": "site"},
            "reports a high accuracy and is trusted. A site that misreports",
            "that is caught",
        ),
        ({"accuracy_at": "site"}, "and so is a site that lies", "server measured"),
        ({}, "and so does one that lies about its accuracy", "is not caught"),
        ({"explained": "reference"}, "a site cannot fake its NSDS", "may make them up"),
    ],
    ids=["masked", "masked, own rows", "own rows", "reference rows", "explained there too"],
)
def test_what_trust_cannot_see_follows_from_who_measured(told, words, never):
    held = {"accuracy_at": "reference", "explained": "own", "secure": False, "rule": RULE, **told}
    text = " ".join(trust_limits(held))
    assert words in text and never not in text
    assert "every sign flipped has the same NSDS" in text
    assert "every sign turned" not in " ".join(trust_limits({**held, "rule": {**RULE, "signed": True}}))


def test_of_many_sites_the_least_trusted_are_listed(trust_run):
    sites = tuple(f"site-{k:03}" for k in range(150))
    rounds = trusting(sites)
    told = {
        **trust_run.summary["trust"],
        "alarm": 1.0,
        "alarmed": {"site-149": [1, 2, 3]},
        "refused": {"site-002": [2]},
    }
    text = "".join(trust_section(replace(trust_run.summary, trust=told), typed(rounds), Charts(None)))
    page = Page(text)
    listed = [row for row in page.rows if row and row[0].startswith("site-")]
    assert len(listed) == 40 and listed[0][0] == "site-149" and "The 40 least trusted of 150 sites." in page.text
    assert "at most by 1.200 (round 3)" in page.text and "site-002 refused the weights of round 2" in page.text


def test_without_plotly_the_charts_remain(evil_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    text = report_page(evil_run.summary, evil_run.rounds, evil_run.summary["environment"], explanations())
    assert len(Page(text).figures) > 4 and plotly_js.packed_script() in text


def test_reliability_bins_add_up_to_the_calibration_error(evil_run):
    bins, final = evil_run.summary["reliability"], evil_run.summary["final"]
    rows = np.array(bins["count"])
    held = rows > 0
    said, came = (np.array(bins[k], float)[held] for k in ("confidence", "outcome"))
    assert rows.sum() == final["count"]
    assert (rows[held] * abs(said - came)).sum() / rows.sum() == pytest.approx(final["ece"])
    edges = np.array(bins["edges"])
    assert len(edges) == len(rows) + 1
    assert ((said >= edges[:-1][held]) & (said <= edges[1:][held])).all()


def test_the_report_of_a_run_can_be_drawn_again(evil_run, tmp_path):
    copy = copied(evil_run.folder, tmp_path / "run")
    before = (copy / "report.html").read_text()
    (copy / "report.html").unlink()
    done = rounds("report", copy)
    assert (done.returncode, done.stdout.strip()) == (0, str(copy / "report.html")), done.stderr
    assert (copy / "report.html").read_text() == before
    (copy / "explanations.json").write_text(json.dumps(explanations()))
    without_ledger(copy)
    report(copy)
    assert "Training drift, by pair of sites" in Page((copy / "report.html").read_text()).titles()
    (copy / "summary.json").unlink()
    report(copy)
    assert "Interrupted after 3 of 3 rounds." in Page((copy / "report.html").read_text()).text
    with refused("run-not-finished"):
        report(copy, pdf=True)


def test_a_folder_of_something_else_is_refused(tmp_path):
    refused = rounds("report", tmp_path)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "is neither a run's folder (no checkpoint/) nor a comparison's (no comparison.json)" in refused.stderr


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two arms over two seeds, all in the comparison's folder, with training drift set by hand."""
    folder = tmp_path_factory.mktemp("compared")
    drift = {"0.1": (1.0, 1.2), "0.5": (0.4, 0.6)}
    runs = []
    for lr, found in drift.items():
        for seed in (0, 1):
            held = gr.load_run(copied(trained(settings=[f"train.lr={lr}"], seed=seed), folder / f"{lr}-{seed}"))
            told = {**held.summary["explanation"], "training": {"drift": found[seed], "jaccard": 0.5, "sampling": 0.1}}
            (held.folder / "summary.json").write_text(json.dumps({**held.summary, "explanation": told}))
            runs.append(gr.load_run(held.folder))
    result = compare(runs, metrics=["accuracy", "auroc", "log_loss"])
    write_comparison(result, folder, virtual_seconds=None)
    return folder, result


def test_a_comparison_has_a_report_of_its_own(compared):
    folder, result = compared
    page = Page((folder / "report.html").read_text())
    assert page.addresses == []
    first, second = (a.label for a in result.arms)
    pair = result.paired(result.arms[1], "log_loss")
    row = next(r for r in page.rows if r[0] == second and f"{pair.difference:+.4f}" in r)
    assert row[1] == "2" and row[6] == f"{pair.difference:+.4f}"
    assert "Means and 95% intervals" in page.titles()
    assert "Accuracy, by round" in page.titles()
    pareto = next(f for f in page.figures if "Accuracy against training drift" in f["layout"]["title"]["text"])
    marks = {t["name"].removesuffix(" (Pareto-optimal)"): t for t in pareto["data"][1:]}
    assert [marks[a]["x"][0] for a in (first, second)] == pytest.approx([1.1, 0.5])
    assert marks[first]["error_x"]["array"] == [0.0], "two runs have no interval"
    assert "2 runs: no interval" in row


def test_the_report_of_a_comparison_can_be_drawn_again(compared, tmp_path, capsys):
    folder, result = compared
    places = json.loads((folder / "comparison.json").read_text())["runs"]
    assert places[result.arms[0].label] == {"seed 0 fold 0": "0.1-0", "seed 1 fold 0": "0.1-1"}
    moved = shutil.copytree(folder, tmp_path / folder.name)
    (moved / "report.html").unlink()
    report(moved)
    assert capsys.readouterr().out.strip() == str(moved / "report.html")
    assert (moved / "report.html").read_text() == (folder / "report.html").read_text()
    shutil.rmtree(moved / "0.1-0")
    report(moved)
    assert f"left out {moved / '0.1-0'}: the folder no longer exists" in capsys.readouterr().err
    assert "Means and 95% intervals" in Page((moved / "report.html").read_text()).titles()
    (moved / "comparison.json").write_text("{}")
    with refused("damaged-file", match=r"comparison\.json"):
        report(moved)


def test_heat_maps_do_not_glare_on_a_dark_screen(evil_page, chromium, tmp_path):
    """Their scales begin with white, which becomes the colour of the paper, and end with the lightest colour."""
    (tmp_path / "page.html").write_text(evil_page)
    scales = {}
    for scheme in ("light", "dark"):
        page = chromium.new_page(color_scheme=scheme)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
        scales[scheme] = page.evaluate(
            "() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data)"
            ".filter(t => t.type === 'heatmap').map(t => t.colorscale.map(([, colour]) => colour))"
        )
        page.close()
    assert len(scales["light"]) == len(scales["dark"]) >= 4
    assert sum(scale[0] == "#ffffff" for scale in scales["light"]) >= 4
    for light, dark in zip(scales["light"], scales["dark"], strict=True):
        assert not {"#ffffff", "#e5e8eb", "#f7f7f7"} & set(dark), dark
        assert light[0] != "#ffffff" or dark[0] == "#14181d"


def test_paper_has_no_notes_on_the_pointer_and_no_figure_that_fills_a_page(evil_page, chromium, tmp_path):
    """A figure of 800 pixels shrinks to 624, so that its heading and its sentences fit on the same sheet."""
    (tmp_path / "page.html").write_text(re.sub(r'"height":\d+', '"height":800', evil_page))
    seen = {}
    for media in ("screen", "print"):
        page = chromium.new_page()
        page.emulate_media(media=media)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
        seen[media] = page.evaluate(
            "() => [...document.querySelectorAll('.js-plotly-plot')].map(p => [p.layout.title.text, p.layout.height])"
        )
        page.close()
    assert any("names on hover" in title for title, _ in seen["screen"])
    assert not any("hover" in title for title, _ in seen["print"])
    assert 600 < max(height for _, height in seen["print"]) < 720 < max(height for _, height in seen["screen"])


def test_clinical_names_of_features_in_the_section_on_explanations():
    labels = ColumnLabels(names={"lactate": "serum lactate"})
    assert name_features(explanations(), labels)["features"] == ["age", "serum lactate", "ward"]
    clash = ColumnLabels(names={"lactate": "age"})
    assert name_features(explanations(), clash) == explanations(), "two features would have one name"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to draw the page with")
def test_a_browser_draws_every_figure(evil_page, tmp_path):
    (tmp_path / "page.html").write_text(evil_page)
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=10000", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    dom = done.stdout
    count = len(Page(evil_page).figures)
    assert count == 15
    assert dom.count('class="plot-container plotly"') == count, done.stderr[-2000:]
    for k in range(1, count + 1):
        start = dom.index(f'id="figure-{k}"')
        assert '<svg class="main-svg"' in dom[start : dom.index(f'data-figure="figure-{k}"')]
    assert re.search(r'id="no-charts"[^>]*hidden', dom), "nothing went wrong"
    drawn = "".join(re.findall(r"<text[^>]*>.*?</text>", dom))
    assert "&lt;script&gt;alert(1)" in drawn and "<i>" not in drawn
