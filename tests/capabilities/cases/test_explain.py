"""`rounds explain` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases import image_page as picture_grid
from grandrounds.capabilities.cases.case import explain_case, explain_site
from grandrounds.capabilities.cases.case_page import case_figure, case_page, near_misses_page
from grandrounds.capabilities.cases.image_page import image_case_page
from grandrounds.capabilities.cases.near_misses import near_misses
from grandrounds.capabilities.cases.site_page import site_figure, site_page
from grandrounds.cli import main
from grandrounds.core.rng import generator
from tests.runs.test_run import frame
from tests.store import copied, shared_folder
from tests.support import patients

EVIL = "<script>alert(1)</script>"


@shared_folder
def explained(folder: Path) -> None:
    """A finished run on patients of three hospitals."""
    frame(patients([80, 60, 50])).to_csv(folder / "patients.csv", index=False)
    settings = {"data": {"table": str(folder / "patients.csv"), "label": "died", "site": "hospital"}}
    gr.run(gr.Experiment.parse({**settings, "method": {"rounds": 4}}), out=folder / "run")


@pytest.fixture(scope="module")
def home(explained, tmp_path_factory):
    """A copy, since pages are written into a run."""
    return copied(explained, tmp_path_factory.mktemp("home"))


@shared_folder
def explained_squares(home: Path) -> None:
    """Bright squares on the left or on the right, seen in colour, and a net that learnt them."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    rng = generator(0, purpose="pictures")
    y = np.arange(150) % 2
    x = rng.integers(0, 40, (150, 16, 16, 3))
    for i in range(150):
        x[i, 5:11, 2 + 7 * y[i] : 7 + 7 * y[i]] += 180
    site = np.array(["north", "south", "west"])[np.arange(150) % 3]
    np.savez(home / "squares.npz", images=x.astype(np.uint8), labels=np.array(["benign", "malignant"])[y], site=site)
    values = {
        "data": {"table": str(home / "squares.npz"), "masks": "strokes"},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 1},
        "engine": {"device": "cpu"},
    }
    gr.run(gr.Experiment.parse(values), out=home / "squares")


@pytest.fixture(scope="module")
def squares(explained_squares, tmp_path_factory):
    return copied(explained_squares / "squares", tmp_path_factory.mktemp("home") / "squares")


@pytest.fixture
def rounds(monkeypatch, capsys):
    """The command in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rounds", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
            sys.exit(0)
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


class Sources(HTMLParser):
    """Everything a page would fetch, and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched, self.elements = [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.fetched += [v for k, v in attributes if k in ("src", "href") and v and not v.startswith("data:")]


def read(page: str) -> Sources:
    parser = Sources()
    parser.feed(page)
    return parser


def test_a_case_is_printed_with_its_reasons_and_saved(home, rounds):
    code, out, err = rounds("explain", home / "run", "--case", 12, "--top", 1)
    assert (code, err) == (0, "")
    case = explain_case(gr.load_run(home / "run"), 12)
    for words in (
        "Patient 12, a",
        "Row 12 of patients.csv at a (",
        f"risk of died = 1: {case.probability:.1%}, baseline {case.baseline:.1%}",
        f"outcome: died = {case.outcome}",
        case.attributions[0].column,
        f"{case.attributions[0].contribution:+.3f}",
        "Raises the risk",
        "Lowers the risk",
        f"{len(case.amplifiers[1:]) + len(case.mitigators[1:])} other",
        "the mean of the 128 training patients of all sites",
    ):
        assert words in out.replace("\n", ""), words
    page = (home / "run" / "explain" / "case-12.html").read_text()
    assert f"saved: {home / 'run' / 'explain' / 'case-12.html'}" in out
    assert all(r.column in page for r in case.attributions)
    assert read(page).fetched == []
    assert "Treat this page as part of the medical record" in page
    assert "patient" in rounds("explain", "--help")[1]


def test_json_is_json_and_writes_nothing_unless_asked(home, rounds, tmp_path):
    shutil.rmtree(home / "run" / "explain", ignore_errors=True)
    code, out, err = rounds("explain", home / "run", "--case", 12, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == explain_case(gr.load_run(home / "run"), 12).to_dict()
    assert not (home / "run" / "explain").exists()
    _, out, _ = rounds("explain", home / "run", "--site", 2, "--json", "--out", tmp_path / "deep" / "b.html")
    assert json.loads(out)["site"] == "b"
    assert "Features that the common model relies on at b" in (tmp_path / "deep" / "b.html").read_text()


def test_a_site_is_printed_beside_the_others(home, rounds):
    code, out, err = rounds("explain", home / "run", "--site", "b")
    assert (code, err) == (0, "")
    for words in ("b: features that the common model relies on there", "other sites", "Different patients: ", "lactate"):
        assert words in out
    assert (home / "run" / "explain" / "site-b.html").exists()
    assert "measured now on 60 patients of b" in rounds("explain", home / "run", "--site", "b", "--by", "shap")[1]


def test_a_new_patient_from_a_file(home, rounds, tmp_path):
    pd.DataFrame([{"age": 70, "lactate": 4.5, "pressure": 60, "ward": "attic"}]).to_csv(
        tmp_path / "new.csv", index=False
    )
    code, out, _ = rounds("explain", home / "run", "--case", 1, "--table", tmp_path / "new.csv", "--out", tmp_path)
    assert code == 0
    assert "new patient" in out
    assert "outcome: not known" in out
    assert "ward = 'attic' occurs in fewer than 5 training patients" in out
    assert (tmp_path / "case-new-1.html").exists()


def refused(done, *words) -> None:
    code, out, err = done
    assert (code, out) == (2, ""), done
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_refusals_are_one_sentence_and_exit_2(home, rounds, tmp_path):
    run = home / "run"
    refused(rounds("explain", run), "[missing-option]", "--case N", "--site NAME", "--near-misses")
    refused(rounds("explain", run, "--case", 1, "--site", "a"), "[missing-option]")
    refused(rounds("explain", run, "--case", 900), "has no row 900; its rows are 1 to 190")
    refused(rounds("explain", run, "--site", "d"), "no site 'd'; known: a, b, c")
    refused(rounds("explain", run, "--site", "a", "--table", "x.csv"), "[missing-option]", "--table")
    refused(rounds("explain", run, "--case", 1, "--by", "lemon"), "no explainer 'lemon'")
    refused(rounds("explain", run, "--case", 1, "--table", tmp_path / "no.csv"), "no.csv")
    refused(rounds("explain", run, "--case", 1, "--out", "x.pdf"), "[invalid-file-type]", ".html", ".png")
    refused(rounds("explain", run, "--case", 1, "--out", home / "patients.csv" / "x.html"), "cannot write")
    refused(rounds("explain", tmp_path, "--case", 1), "[not-a-run-folder]")
    shutil.copytree(run, tmp_path / "half")
    (tmp_path / "half" / "summary.json").unlink()
    refused(rounds("explain", tmp_path / "half", "--case", 1), "is not finished", "rounds resume")


@shared_folder
def with_sexes(home: Path) -> None:
    """A run on patients whose sex is known and, to the model, a reason."""
    table = frame(patients([300, 250, 200]))
    table["sex"] = np.where(
        generator(0, purpose="sex").random(len(table)) < 0.3 + 0.4 * table["died"], "male", "female"
    )
    table.to_csv(home / "sexes.csv", index=False)
    settings = {"data": {"table": str(home / "sexes.csv"), "label": "died", "site": "hospital"}}
    gr.run(gr.Experiment.parse({**settings, "method": {"rounds": 6}}), out=home / "missed")


@pytest.fixture(scope="module")
def missed(with_sexes, tmp_path_factory):
    return gr.load_run(copied(with_sexes / "missed", tmp_path_factory.mktemp("home") / "missed"))


def test_near_misses_are_listed_with_and_without_a_number(missed, rounds):
    found = near_misses(missed)
    assert found.near > 2
    code, out, err = rounds("explain", missed.folder, "--near-misses")
    assert (code, err) == (0, "")
    for words in (
        "Near misses: died = 1",
        f"{found.events} had the event",
        str(found.cases[0].case),
        f"{found.cases[0].risk:.1%}",
        f"rounds explain {missed.folder} --case {found.cases[0].case}",
    ):
        assert words in out.replace("\n", " "), words
    page = (missed.folder / "explain" / "near-misses.html").read_text()
    assert f"<td>{found.cases[0].case}</td>" in page
    code, out, _ = rounds("explain", missed.folder, "--near-misses", "1", "--site", "b", "--json")
    said = json.loads(out)
    assert (code, said["kind"], said["schema"], said["site"], len(said["cases"])) == (0, "near_misses", 1, "b", 1)
    assert len(json.loads(rounds("explain", missed.folder, "--near-misses", "--json")[1])["cases"]) == min(
        10, found.near
    )
    refused(rounds("explain", missed.folder, "--near-misses", "0"), "ask for at least one")
    refused(rounds("explain", missed.folder, "--near-misses", "--case", "1"), "[missing-option]")
    refused(rounds("explain", missed.folder, "--near-misses", "--by", "lime"), "[conflicting-options]")
    refused(rounds("explain", missed.folder, "--near-misses", "--out", "x.png"), "has no PNG")
    refused(rounds("explain", missed.folder, "--near-misses", "--for", "a"), "[missing-option]", "--for")


def test_the_record_flags_marks_and_notes_on_screen_and_on_the_page(missed, rounds, tmp_path):
    number = near_misses(missed).cases[0].case
    code, out, _ = rounds("explain", missed.folder, "--case", number)
    assert code == 0
    assert "(near miss)" in out
    assert "non-clinical factor: sex = " in out
    assert "at the mean of all sites' patients the risk would be" in out.replace("\n", " ")
    page = (missed.folder / "explain" / f"case-{number}.html").read_text()
    for words in (
        "Non-clinical factors that affect this risk",
        "Raises the risk",
        "Lowers the risk",
        "odds ratio",
        "prefers-color-scheme: dark",
        "Near miss:",
    ):
        assert words in page, words
    assert "script" not in read(page).elements, "the page is drawn without one"
    pd.DataFrame([{"age": 50.0, "sex": "male", "ward": "medical", "pressure": 300}]).to_csv(
        tmp_path / "n.csv", index=False
    )
    arguments = ("explain", missed.folder, "--case", 1, "--table", tmp_path / "n.csv", "--out", tmp_path, "--allow-missing")
    code, out, _ = rounds(*arguments, "--protected", "age")
    assert "non-clinical factor: age = 50 (named)" in out
    assert "non-clinical factor: sex" not in out
    assert "data: pressure = 300 is above what nearly all training patients have" in out
    assert "data: column 'lactate' is absent" in out
    assert "(imputed)" in out
    assert "<span class='mark'>imputed</span>" in (tmp_path / "case-n-1.html").read_text()
    refused(
        rounds(*arguments, "--protected", "aeg"),
        "--protected aeg: the model sees no such column",
        "did you mean 'age'",
    )
    refused(rounds("explain", missed.folder, "--site", "a", "--protected", "age"), "[missing-option]", "--protected")


def test_the_pages_waterfall_adds_up(missed):
    case = explain_case(missed, 5)
    page = case_page(case, top=1)
    drawn = page.split("class='waterfall'")[1].split("</table>")[0]
    rows = re.findall(r"<td>([+-]?\d+\.\d{3})</td><td>([\d.]+%)</td>", drawn)
    assert rows[0] == (f"{case.base:.3f}", f"{case.baseline:.1%}")
    assert rows[-1] == (f"{case.score:.3f}", f"{case.probability:.1%}")
    assert case.base + sum(float(n) for n, _ in rows[1:-1]) == pytest.approx(case.score, abs=0.003)
    assert "others together" in drawn


@pytest.mark.slow
def test_a_case_becomes_a_png_where_a_browser_draws_it(home, rounds, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("kaleido")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chrome or Chromium on this machine")
    code, _, err = rounds("explain", home / "run", "--case", 12, "--out", tmp_path / "c.png")
    assert (code, err) == (0, ""), err
    assert not (tmp_path / "c.html").exists()
    with image.open(tmp_path / "c.png") as drawn:
        assert drawn.width > 1000
        assert np.asarray(drawn.convert("L")).std() > 5


def test_the_waterfall_goes_from_the_background_to_the_patient(home):
    case = explain_case(gr.load_run(home / "run"), 12)
    drawn = case_figure(case, top=2)
    bars = drawn["data"][0]
    steps = [x for x, measure in zip(bars["x"], bars["measure"], strict=True) if measure == "relative"]
    assert sum(steps) == pytest.approx(case.score - case.base)
    shown = drawn["layout"]["title"]["text"]
    assert f"from a baseline of {case.baseline:.1%} (dotted) to {case.probability:.1%} for this patient" in shown
    assert case.attributions[0].column in bars["y"][0]
    drawn.plotly()


def test_a_sites_bars_stand_beside_the_others(home):
    found = explain_site(gr.load_run(home / "run"), "b")
    drawn = site_figure(found, top=3)
    bars, dots = drawn["data"]
    assert bars["x"] == pytest.approx([c.share for c in found.columns[:3]])
    assert bars["error_x"]["array"] == pytest.approx([c.error for c in found.columns[:3]])
    assert dots["x"] == pytest.approx([c.other_sites for c in found.columns[:3]])
    drawn.plotly()


def test_words_from_data_cannot_become_markup(tmp_path):
    table = frame(patients([80, 60, 50])).rename(columns={"ward": EVIL})
    table["hospital"] = table["hospital"].replace("b", "<i>b</i>")
    experiment = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 2}})
    run = gr.run(experiment, table=table.assign(**{EVIL: EVIL + table[EVIL]}), out=tmp_path / "r")
    held = table.assign(**{EVIL: EVIL + table[EVIL]})
    for page in (
        case_page(explain_case(run, 100, data=held, protected=[EVIL]), top=8),
        case_page(explain_case(run, 1, table=held[:1].assign(**{EVIL: EVIL, "age": 1e6}), data=held), top=1),
        near_misses_page(near_misses(run, data=held)),
        site_page(explain_site(run, "2", data=held), top=8),
    ):
        plain = read(page)
        assert "i" not in plain.elements
        assert EVIL not in page
        assert plain.elements.count("script") == len(re.findall(r"<script[ >]", page)) <= 3
        assert "alert(1)" in page or "Near misses" in page, "the name itself is shown"


def test_pictures_are_drawn_printed_and_saved(home, squares, rounds):
    from PIL import Image

    code, out, err = rounds("explain", squares, "--case", 8)
    assert (code, err) == (0, "")
    for words in (
        "Image 8 of squares at south",
        "Grad-CAM",
        "heat inside the mask",
        "IoU-ratio",
        "the mask covers 11.7%",
    ):
        assert words in out
    with Image.open(squares / "explain" / "case-8.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    case = explain_case(gr.load_run(squares), 8)
    where = pixels.reshape(-1, 3)
    assert (where == picture_grid.HIDDEN).all(axis=1).sum() == 256 * 10 * 10, (
        "inside and outside together cover a picture"
    )
    assert len(np.unique(where, axis=0)) > 200
    page = image_case_page(case)
    assert read(page).fetched == []
    assert "data:image/png;base64," in page
    code, out, _ = rounds("explain", squares, "--site", "west", "--json", "--out", home / "west.png")
    found = json.loads(out)
    assert code == 0
    assert len(found["cases"]) == 6
    with Image.open(home / "west.png") as drawn:
        assert drawn.height > 6 * 160
    refused(rounds("explain", squares, "--case", 8, "--by", "lime"), "'lime' is for tables")


def test_small_pictures_are_enlarged_pixel_by_pixel_and_large_ones_shrunken():
    small = generator(0, purpose="small").integers(0, 256, (28, 28, 1)).astype(np.uint8)
    drawn = picture_grid.to_display(small)
    assert drawn.shape == (168, 168, 3)
    np.testing.assert_array_equal(drawn[::6, ::6, 1], small[..., 0])
    np.testing.assert_array_equal(drawn[5::6, 5::6, 2], small[..., 0])
    assert picture_grid.to_display(np.zeros((600, 300, 3), np.uint8)).shape == (256, 128, 3)
    assert picture_grid.to_display(np.zeros((200, 100, 3), np.uint8)).shape == (200, 100, 3)


def test_the_hottest_place_is_the_brightest_and_no_heat_is_dark():
    heat = np.zeros((20, 20))
    heat[4, 15] = -3.0  # heat against the class is heat
    drawn = picture_grid.overlay_heat(np.zeros((20, 20, 1), np.uint8), heat).astype(int).sum(axis=2)
    times = drawn.shape[0] // 20
    y, x = np.unravel_index(drawn.argmax(), drawn.shape)
    assert (y // times, x // times) == (4, 15)
    assert drawn[:times, :times].max() < 20
    flat = picture_grid.overlay_heat(np.full((20, 20, 1), 200, np.uint8), np.zeros((20, 20)))
    assert np.ptp(flat) < 5
    colours = picture_grid.colour_map(np.linspace(0, 1, 65))
    light = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light) > 0).all(), "more heat is lighter all the way, so that the map can be printed in grey"


def test_a_grid_is_a_png_with_every_panel(tmp_path):
    from PIL import Image

    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    panels = tuple(
        picture_grid.Panel(f"panel {i} with a title far too long for it", np.full((40, 60, 3), c, np.uint8))
        for i, c in enumerate(colours)
    )
    png = picture_grid.draw("three colours", [picture_grid.Strip("heading", panels)], columns=2)
    with Image.open(io.BytesIO(png)) as drawn:
        pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
    for colour in colours:
        assert (pixels == colour).all(axis=1).sum() == 40 * 60
