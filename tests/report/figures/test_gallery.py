"""Every figure: accepted by Plotly, harmless, made without heavy packages, written to files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier
from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision
from grandrounds.report import figures
from grandrounds.report.deployed import Deployed, DeployedSite
from grandrounds.report.figure import MIME, Figure
from grandrounds.report.risk_card import read_card
from grandrounds.report.shapes import read_shapes
from grandrounds.report.style import COLOURS, MORE_COLOURS, ON_DARK
from tests.report import EVIL, RULE, explanations, records, trusting, typed
from tests.report.estimates import logistic
from tests.report.figures import BINS, CURVE, attended, mapped, scored_locally, selected, weighed
from tests.report.figures.test_forest import analysis
from tests.report.shapes import card, category, shapes
from tests.report.survival import BY_DAY, SCORES
from tests.support import refused

CARD = read_card({"card": card(), "data": "table"})


def _deployed(name: str) -> Deployed:
    low, high = {"log_loss": 0.4}, {"log_loss": 0.6}
    sites = tuple(DeployedSite(site, "own", name, high, low, site == name) for site in ("a", name))
    return Deployed("classification", {"stays": False}, low, sites)


def _shown(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def gallery(name: str) -> dict[str, Figure]:
    """Every figure there is, with `name` wherever data give names."""
    told, rounds = explanations(name, name), records(("a", "b", name))
    arms = [
        {"arm": a, "metric": m, "mean": 0.5, "low": 0.4, "high": 0.7, "n": 3}
        for a in ("x", name)
        for m in ("auroc", name)
    ]
    signals = {
        "round": 3,
        "weights": {"a": 0.7, name: 0.3},
        "signals": {name: {"a": 6, name: 4}, "trust": {"a": 1, name: 0}},
    }
    points = [{"label": name, "drift": (0.2, 0.1, 0.3), name: 0.9}, {"label": "y", "drift": 0.1, name: None}]
    return {
        "arm_curves": figures.arm_curves({name: [{1: 0.5, 2: 0.6}, {1: 0.6, 2: 0.7}]}, "accuracy"),
        "beeswarm": figures.beeswarm([name, "b"], np.array([[1.0, 0], [2, 0]]), np.array([[1.0, np.nan], [2, 3]])),
        "bytes_over_rounds": figures.bytes_over_rounds(typed(attended(name))),
        "coefficients": figures.coefficients(*logistic(name=name)),
        "cohorts_over_rounds": figures.cohorts_over_rounds(typed(weighed(name))),
        "setting_curves": figures.setting_curves(
            {name: {0.05: (0.4, 0.3, 0.5), 1.0: (0.2, 0.1, 0.3)}}, name, x=name, title=name
        ),
        "curves": figures.curves(typed(rounds)),
        "decision_curve": figures.decision_curve(CURVE),
        "deployed_losses": _shown(figures.deployed_losses(_deployed(name))),
        "disagreement_over_rounds": figures.disagreement_over_rounds(typed(weighed(name))),
        "distance_to_consensus": figures.distance_to_consensus(told),
        "drift_over_rounds": figures.drift_over_rounds(told),
        "epsilon_over_rounds": figures.epsilon_over_rounds(
            [1, 2], [0.5, 0.8], {name: [0.3, 0.6], "b": [0.3, 0.3]}, 1.0
        ),
        "forest": figures.forest(analysis(name, name), name),
        "image_grid": figures.image_grid([(name, np.zeros((2, 3, 3))), ("b", np.eye(3) - 0.5)], title=name),
        "importance_heatmap": figures.importance_heatmap(told, "deployed"),
        "importances": figures.importances([name, "b"], [0.2, 0.8], [0.01, 0.02]),
        "intervals": figures.intervals(arms),
        "jaccard_over_rounds": figures.jaccard_over_rounds(told),
        "crossed_curves": figures.crossed_curves(
            typed(scored_locally(name)), {"a": {"train": 30}, name: {"train": 10}}
        ),
        "local_curves": figures.local_curves(typed(scored_locally(name))),
        "map_similarity": figures.map_similarity(typed(mapped())),
        "map_concentration": figures.map_concentration(typed(mapped())),
        "nsds_over_rounds": figures.nsds_over_rounds(typed(trusting(("a", "b", name))), 1.0),
        "outcome_curves": figures.outcome_curves(typed(rounds), "log_loss"),
        "pairwise_drift": figures.pairwise_drift(told),
        "pareto": figures.pareto(points, y=name),
        "presence_over_rounds": figures.presence_over_rounds(typed(attended(name))),
        "radar": figures.radar(["accuracy", "auroc", name], {name: {"accuracy": 0.5, "auroc": 0.6, name: None}}),
        "rationale_over_rounds": figures.rationale_over_rounds(
            typed([{"round": r, "reasons": {"accuracy": 0.5, "xai": 0.6, "grid": None}} for r in (1, 2)]),
            {"shuffled weights": {"accuracy": 0.1, "xai": None}},
        ),
        "reliability": figures.reliability(BINS),
        "rewards_over_rounds": figures.rewards_over_rounds(typed(trusting(("a", "b", name)))),
        "brier_over_time": figures.brier_over_time(SCORES),
        "survival_calibration": figures.survival_calibration(SCORES),
        "survival_curves": figures.survival_curves(KaplanMeier(BY_DAY, (replace(BY_DAY, group=name),))),
        "seconds_over_rounds": figures.seconds_over_rounds(typed(attended(name))),
        "selection_over_rounds": figures.selection_over_rounds(typed(selected(name)), 0.9),
        "site_curves": figures.site_curves(typed(rounds)),
        "spurious_masses": figures.spurious_masses({"training": {"a": 0.1}, "deployed": {"a": 0.3, name: 0.2}}, 1 / 16),
        "trade_off": figures.trade_off({name: [{"label": name, "drift": 0.1, "accuracy": 0.9}]}),
        "trust_over_rounds": figures.trust_over_rounds(typed(trusting(("a", "b", name)))),
        "trust_parts": figures.trust_parts(Decision.from_dict(trusting(("a", "b", name))[-1]["decision"]), RULE),
        "risk_by_total": figures.risk_by_total(replace(CARD, outcome=name)),
        "shape": figures.shape(read_shapes({"shapes": shapes(category(name, values=[name, "b", "c"]))}), name),
        "validation_curve": figures.validation_curve([0.7, 0.5, 0.6]),
        "waterfall": figures.waterfall([name, "b"], [1.0, -0.5], 0.0, 0.5, [name, 3.5]),
        "weights": figures.weights(typed(rounds)),
        "weights_by_signal": figures.weights_by_signal(Decision.from_dict(signals)),
    }


GALLERY = gallery("plain")

NAMELESS = (
    "brier_over_time",
    "survival_calibration",
    "bytes_over_rounds",
    "curves",
    "decision_curve",
    "rationale_over_rounds",
    "reliability",
    "drift_over_rounds",
    "jaccard_over_rounds",
    "crossed_curves",
    "map_similarity",
    "map_concentration",
    "outcome_curves",
    "seconds_over_rounds",
    "validation_curve",
)
"""Figures in which no name from data occurs."""


def strings(value) -> list[str]:
    if isinstance(value, dict):
        return [s for v in value.values() for s in strings(v)]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", figures.__all__)
def test_plotly_accepts_every_figure(name):
    figure = GALLERY[name]
    drawn = figure.plotly()
    assert len(drawn.data) == len(figure["data"])
    assert drawn.layout.title.text == figure["layout"]["title"]["text"]
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure


@pytest.mark.parametrize("name", figures.__all__)
def test_a_name_from_data_cannot_become_markup(name):
    evil = gallery(EVIL)[name]
    assert not [s for s in strings(dict(evil)) if "<script" in s or "<i>" in s]
    shown = [s for s in strings(dict(evil)) if "&lt;script&gt;" in s]
    assert bool(shown) != (name in NAMELESS), "and is still there, letter by letter"
    text = evil.html("here")
    assert text.count("</script>") == 1, "only the figure's own script element ends"
    start, end = text.index('data-figure="here">') + len('data-figure="here">'), text.rindex("</script>")
    assert json.loads(text[start:end]) == evil


def test_no_text_in_a_figure_ends_the_script_that_holds_it():
    raw = Figure(
        [{"type": "scatter", "text": ["</script><!-- &"]}], {"height": 100, "title": {"text": '<b>"x" &lt;</b>'}}
    )
    text = raw.html("a")
    assert text.count("</script>") == 1 and "<!--" not in text
    assert 'aria-label="&quot;x&quot; &lt;"' in text
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == raw


def test_figures_are_made_without_plotly_and_other_heavy_things():
    code = (
        "import sys; from grandrounds.report import figures; from grandrounds.report.page import report_page\n"
        "from tests.report import explanations; figures.drift_over_rounds(explanations())\n"
        "print([m for m in ('plotly', 'torch', 'shap', 'captum', 'pandas', 'sklearn', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_long_names_are_cut_only_where_they_stay_apart():
    long = ["a hospital with quite a long name, east", "a hospital with quite a long name, west"]
    assert figures.importances(long, [1, 2])["data"][0]["y"] == [long[1], long[0]]
    assert figures.importances([long[0], "b"], [2, 1])["data"][0]["y"] == [long[0][:33] + "…", "b"]


def test_notebooks_get_the_figure():
    figure = GALLERY["weights"]
    bundle = figure._repr_mimebundle_()
    assert bundle[MIME]["data"] == figure["data"]
    assert bundle["text/plain"] == "Figure: Aggregation weights"


@pytest.mark.slow
def test_a_png_is_drawn_by_a_browser(tmp_path):
    pytest.importorskip("kaleido")
    image = pytest.importorskip("PIL.Image")
    try:
        GALLERY["importances"].write_png(tmp_path / "x.png", width=300, height=200)
    except BadInput as e:
        pytest.skip(str(e))
    drawn = image.open(tmp_path / "x.png").convert("RGB")
    assert drawn.size == (600, 400)
    assert (0, 114, 178) in {colour for _, colour in drawn.getcolors(10**6)}, "a bar in the palette's blue"


def test_what_is_missing_is_said_with_the_way_out(tmp_path, monkeypatch):
    with refused("cannot-write", match="cannot write .*no/x.html: No such file or directory; choose another place"):
        GALLERY["weights"].write_html(tmp_path / "no" / "x.html")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with refused("missing-package"):
        GALLERY["weights"].write_png(tmp_path / "x.png")


def luminance(colour: str) -> float:
    channels = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("paper", ["#14181d", "#161b22"], ids=["report", "console"])
def test_every_series_stands_out_from_dark_paper(paper):
    """WCAG 1.4.11 asks for 3:1."""
    for colour in (*COLOURS, *MORE_COLOURS, "#c3c9cf"):
        shown = luminance(ON_DARK.get(colour, colour))
        assert (shown + 0.05) / (luminance(paper) + 0.05) >= 3, colour


def test_console_and_report_use_the_same_colours_on_dark_paper():
    console = (files("grandrounds.capabilities.console") / "static" / "figures.js").read_text()
    report = (files("grandrounds.report") / "document.py").read_text()
    for before, after in ON_DARK.items():
        assert f'["{before}", "{after}"]' in console and f'["{before}", "{after}"]' in report
