"""Figures: Plotly accepts them, they hold the numbers they are about, and names from data stay names."""

from __future__ import annotations

import base64
import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import BadInput
from grandrounds.core.records import Decision
from grandrounds.report import figures
from grandrounds.report.figure import MIME, Figure
from tests.report import EVIL, RULE, explanations, many, records, summary, trusting, typed
from tests.support import refused

BINS = {
    "of": "positive class",
    "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
    "count": [40, 0, 10, 3],
    "confidence": [0.1, None, 0.6, 0.9],
    "outcome": [0.05, None, 0.7, 1.0],
}
CURVE = {"thresholds": [0.1, 0.3, 0.5], "model": [0.3, 0.2, 0.1], "treat_all": [0.28, 0.04, -0.4]}


def weighed(name: str = "c") -> list[dict]:
    """Three rounds weighed by reasons in cohorts; the second asked for no reasons, in the third `name` is alone."""
    away = [{"a": 0.1, "b": 0.2, name: 0.9}, {}, {"a": 0.3, "b": 0.0, name: 0.0}]
    of = [{"a": 1, "b": 1, name: 1}, {"a": 1, "b": 2, name: 2}, {"a": 1, "b": 1, name: 2}]
    return [
        {
            "round": r + 1,
            "decision": {
                "round": r + 1,
                "weights": {"a": 0.5, "b": 0.4, name: 0.1},
                "signals": {"disagreement": away[r]} if away[r] else {},
                "cohorts": {"of": of[r], "count": max(of[r].values()), "consistency": (None, 0.0, -0.5)[r]},
            },
        }
        for r in range(3)
    ]


def attended(name: str = "c") -> list[dict]:
    """Two rounds of three sites: all are there; then `name` is missing, by its own words, and b is not asked."""
    cost = [{"bytes_down": 3e6, "bytes_up": 1e6, "seconds": 2.0}, {"bytes_down": 2e6, "bytes_up": 5e5, "seconds": 4.0}]
    asked, missing = [["a", "b", name], ["a", name]], [{}, {name: name}]
    return [
        {"round": r + 1, "decision": {"round": r + 1, "asked": asked[r], "missing": missing[r], "cost": cost[r]}}
        for r in range(2)
    ]


def scored_locally(name: str = "c") -> list[dict]:
    """Two evaluated rounds of three; the model of `name` knows its own rows and no others, and in the second it is away."""
    told = [
        {
            "train_accuracy": {"a": 0.8, name: 1.0},
            "others_train": {"a": 0.7, name: 0.3},
            "external": {"a": 0.6, name: 0.2},
        },
        {"train_accuracy": {"a": 0.9}, "others_train": {"a": None}, "external": {"a": 0.5}},
    ]
    rounds = records(("a", name))
    return [{**rounds[0], "local": told[0]}, rounds[1], {**rounds[2], "local": told[1]}]


def mapped() -> list[dict]:
    """Heat maps after two rounds of three; of the first there is nothing to compare with."""
    since = {f"{whose}_{how}": None for whose in ("local", "common") for how in ("ssim", "rank")}
    first = {
        "local": {"concentration": 0.1},
        "common": {"concentration": 0.2},
        "alike": {"ssim": 0.5, "rank": 0.4},
        "since": since,
    }
    last = {**first, "since": dict.fromkeys(since, 0.9)}
    told = [{"maps": {"means": {"grad_cam": own, "normgrad": own}}} for own in (first, last)]
    return [{"round": 1, **told[0]}, {"round": 2}, {"round": 3, **told[1]}]


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
        "cohorts_over_rounds": figures.cohorts_over_rounds(typed(weighed(name))),
        "setting_curves": figures.setting_curves(
            {name: {0.05: (0.4, 0.3, 0.5), 1.0: (0.2, 0.1, 0.3)}}, name, x=name, title=name
        ),
        "curves": figures.curves(typed(rounds)),
        "decision_curve": figures.decision_curve(CURVE),
        "disagreement_over_rounds": figures.disagreement_over_rounds(typed(weighed(name))),
        "distance_to_consensus": figures.distance_to_consensus(told),
        "drift_over_rounds": figures.drift_over_rounds(told),
        "epsilon_over_rounds": figures.epsilon_over_rounds(
            [1, 2], [0.5, 0.8], {name: [0.3, 0.6], "b": [0.3, 0.3]}, 1.0
        ),
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
        "seconds_over_rounds": figures.seconds_over_rounds(typed(attended(name))),
        "site_curves": figures.site_curves(typed(rounds)),
        "spurious_masses": figures.spurious_masses({"training": {"a": 0.1}, "deployed": {"a": 0.3, name: 0.2}}, 1 / 16),
        "trade_off": figures.trade_off({name: [{"label": name, "drift": 0.1, "accuracy": 0.9}]}),
        "trust_over_rounds": figures.trust_over_rounds(typed(trusting(("a", "b", name)))),
        "trust_parts": figures.trust_parts(Decision.from_dict(trusting(("a", "b", name))[-1]["decision"]), RULE),
        "waterfall": figures.waterfall([name, "b"], [1.0, -0.5], 0.0, 0.5, [name, 3.5]),
        "weights": figures.weights(typed(rounds)),
        "weights_by_signal": figures.weights_by_signal(Decision.from_dict(signals)),
    }


GALLERY = gallery("plain")
NAMELESS = (
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
    "seconds_over_rounds",
)
"""Figures in which no name from data occurs."""


def strings(value) -> list[str]:
    if isinstance(value, dict):
        return [s for v in value.values() for s in strings(v)]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


def trace(figure: Figure, name: str) -> dict:
    return next(t for t in figure["data"] if t.get("name", "").startswith(name))


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


def test_local_models_are_drawn_beside_the_common_one():
    """Means weigh a by 30 training rows and c by 10; a site that was away leaves a gap."""
    each = figures.local_curves(typed(scored_locally()))
    assert trace(each, "a")["y"] == [0.8, 0.9] and trace(each, "c")["y"] == [1.0, None]
    common = trace(each, "common model")
    assert common["x"] == [1, 3] and common["y"] == pytest.approx([0.81, 0.83])
    lent = figures.crossed_curves(typed(scored_locally()), {"a": {"train": 30}, "c": {"train": 10}})
    assert trace(lent, "own training rows")["y"] == pytest.approx([0.85, 0.9])
    assert trace(lent, "other sites' training rows")["y"] == [pytest.approx(0.6), None]
    assert trace(lent, "test rows of all sites")["y"] == pytest.approx([0.5, 0.5])
    with refused("nothing-to-draw"):
        figures.local_curves(typed(records()))
    own = [{**r, "local": {"train_accuracy": {"a": 0.5}}} for r in records()]
    with refused("nothing-to-draw"):
        figures.crossed_curves(typed(own), {"a": {"train": 1}})


def test_records_that_a_study_keeps_have_no_decisions_and_are_drawn_the_same():
    whole = scored_locally()
    short = [{key: r[key] for key in ("round", "test", "local")} for r in whole if "local" in r]
    assert figures.local_curves(typed(short)) == figures.local_curves(typed(whole))


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


def test_training_and_deployed_are_lines_of_their_own():
    figure = figures.drift_over_rounds(explanations())
    training, deployed = trace(figure, "training drift (own"), trace(figure, "deployed divergence (one")
    # round 1: a and b agree, c is |.6| + |.1| + |.7| = 1.4 from either; round 3: |.4| + 0 + |.4|
    assert (training["x"], training["y"]) == ([1, 3], pytest.approx([2.8 / 3, 0.8]))
    assert (deployed["x"], deployed["y"]) == ([3], pytest.approx([(0.2 + 0.4 + 0.2) / 3]))
    assert trace(figure, "consensus drift (training")["y"] == [None, pytest.approx(0.1 + 1 / 30 + 1 / 15)]
    chance = trace(figure, "deployed divergence by sampling")
    assert (chance["y"], chance["line"]) == ([0.05], {"color": "#D55E00", "dash": "dot", "width": 2})
    assert not any(line["name"].startswith("training drift by sampling") for line in figure["data"]), "rows are shared"


def test_overlap_is_drawn_for_the_top_k_that_was_measured():
    line = trace(figures.jaccard_over_rounds(explanations()), "Jaccard of the top 2, training")
    # round 1: c's top two share one of three with a's and b's, a and b share both; round 3: {age, lactate}, {ward, lactate}
    assert line["y"] == pytest.approx([(1 + 1 / 3 + 1 / 3) / 3, 1 / 3])


def test_pairs_are_shown_round_by_round():
    figure = figures.pairwise_drift(explanations())
    heat = figure["data"][0]
    assert heat["x"] == heat["y"] == ["a", "b", "c"]
    assert heat["z"] == [[0.0, None, 0.8], [None, None, None], [0.8, None, 0.0]], "b was not there in round 3"
    steps = figure["layout"]["sliders"][0]["steps"]
    assert [s["label"] for s in steps] == ["1", "3"]
    assert steps[0]["args"] == [{"z": [[[0.0, 0.0, 1.4], [0.0, 0.0, 1.4], [1.4, 1.4, 0.0]]]}, [0]]
    assert (heat["zmin"], heat["zmax"]) == (0, 1.4), "one scale for all rounds"
    assert figures.pairwise_drift(explanations(), "deployed")["layout"]["sliders"] == []


def test_of_many_sites_the_farthest_are_shown_and_it_is_said():
    told = many(40, rounds=100, pairs=True)
    figure = figures.pairwise_drift(told)
    assert len(figure["data"][0]["z"]) == 30
    assert "site-1" in figure["data"][0]["x"]
    assert "site-20" not in figure["data"][0]["x"], "the one nearest to the consensus"
    assert "30 of 40 sites" in figure["layout"]["title"]["text"]
    labels = [s["label"] for s in figure["layout"]["sliders"][0]["steps"]]
    assert (len(labels), labels[0], labels[-1]) == (60, "1", "100")
    with refused("nothing-to-draw"):
        figures.pairwise_drift(many(40, pairs=False))
    heat = figures.distance_to_consensus(many(1000, pairs=False))["data"][0]
    assert (heat["y"][0], len(heat["z"])) == ("site-1", 30)
    assert heat["z"][0][0] == pytest.approx(2 - 2 / 1000, abs=1e-4)


def test_the_heat_map_has_the_consensus_on_top_and_the_farthest_site_next():
    figure = figures.importance_heatmap(explanations(), round=1)
    heat = figure["data"][0]
    assert heat["y"] == ["consensus", "c", "a", "b"]
    assert heat["x"] == ["age", "ward", "lactate"], "by their share in the consensus: 0.4, 1/3, 0.8/3"
    assert heat["z"] == [pytest.approx([0.4, 0.3333, 0.2667]), [0.0, 0.8, 0.2], [0.6, 0.1, 0.3], [0.6, 0.1, 0.3]]
    assert figures.importance_heatmap(explanations(), "deployed")["data"][0]["y"][-1] == "b (flat)"
    few = figures.importance_heatmap(explanations(), round=1, top=1)
    assert few["data"][0]["x"] == ["age"] and "2 less important" in few["layout"]["title"]["text"]
    with refused("unknown-round", match="round 2 has no sketches of kind 'training'; rounds that have: 1, 3"):
        figures.importance_heatmap(explanations(), round=2)
    with refused("unknown-kind", match="kind is 'both'"):
        figures.importance_heatmap(explanations(), "both")


def test_sketches_that_were_not_kept_leave_the_consensus():
    told = many(40, pairs=False)
    told["rounds"][0]["training"] |= {"sketches": {}, "error": {}}
    figure = figures.importance_heatmap(told)
    assert figure["data"][0]["y"] == ["consensus"]
    assert "not kept" in figure["layout"]["title"]["text"]


def test_curves_hold_what_the_rounds_say():
    figure = figures.curves(typed(records()))
    assert trace(figure, "accuracy")["y"] == pytest.approx([0.81, 0.82, 0.83])
    assert trace(figure, "lowest accuracy of a site")["y"] == pytest.approx([0.501, 0.502, 0.503])
    assert trace(figure, "log loss, test")["y"] == pytest.approx([1, 1 / 2, 1 / 3])
    with refused("nothing-to-draw"):
        figures.curves(typed([{"round": 1}]))


def test_the_consortium_is_bold_and_the_worst_sites_are_named():
    figure = figures.site_curves(typed(records()))
    widths = {t["name"]: t["line"]["width"] for t in figure["data"]}
    assert max(widths, key=widths.get) == "all sites together"
    assert trace(figure, "b")["y"] == pytest.approx([0.511, 0.512, 0.513])
    worst = [t["name"] for t in sorted(figure["data"], key=lambda t: t["legendrank"]) if t.get("showlegend")]
    assert worst == ["a", "b", "c"]
    loss = figures.site_curves(typed(records()), "log_loss")
    worst = [t["name"] for t in sorted(loss["data"], key=lambda t: t["legendrank"]) if t.get("showlegend")]
    assert worst == ["c", "b", "a"], "the highest loss is the worst"
    with refused("unknown-metric", match="no metric 'harm' is recorded of each site; recorded are: accuracy, log_loss"):
        figures.site_curves(typed(records()), "harm")


def test_a_thousand_sites_stay_readable():
    rounds = records(tuple(f"h{k:04d}" for k in range(1000)), rounds=300)
    curves, bars = figures.site_curves(typed(rounds)), figures.weights(typed(rounds))
    assert len(curves["data"]) == 31
    assert {t["name"] for t in curves["data"]} == {"all sites together", *(f"h{k:04d}" for k in range(30))}
    assert "30 of 1000 sites" in curves["layout"]["title"]["text"]
    assert len(bars["data"]) == 13
    assert bars["data"][-1]["name"] == "988 other sites"
    assert [bars["data"][0]["x"][at] for at in (0, -1)] == [1, 300]
    assert len(bars["data"][0]["x"]) == 200
    for at in range(200):
        assert sum(t["y"][at] for t in bars["data"]) == pytest.approx(1, abs=1e-4)
    assert {t["name"] for t in bars["data"][:12]} == {f"h{k:04d}" for k in range(988, 1000)}, "the heaviest"


def test_weights_need_weights():
    with refused("nothing-to-draw"):
        figures.weights(typed([{"round": 1, "decision": {"weights": {}}}]))


def test_signals_of_both_signs_are_shown_as_they_are_and_no_two_in_one_colour():
    sites = ("a", "b", "c")
    signals = {f"signal_{k}": dict.fromkeys(sites, float(k)) for k in range(8)}
    signals["reward"] = {"a": 0.02, "b": -0.021, "c": 0.0012}
    decision = {"round": 1, "weights": dict.fromkeys(sites, 1 / 3), "signals": signals}
    figure = figures.weights_by_signal(Decision.from_dict(decision))
    assert trace(figure, "reward")["y"] == [0.02, -0.021, 0.0012]
    assert len({t["marker"]["color"] for t in figure["data"]}) == len(figure["data"]) == 10


def test_a_site_has_one_colour_in_every_figure_of_a_page():
    rounds = records(("va", "cleveland", "swiss", "hungarian"))
    rounds[-1]["sites"]["log_loss"] = {"va": 0.9, "cleveland": 0.1, "swiss": 0.5, "hungarian": 0.3}
    drawn = [
        figures.site_curves(typed(rounds), "accuracy"),
        figures.site_curves(typed(rounds), "log_loss"),
        figures.weights(typed(rounds)),
    ]
    seen: dict[str, set[str]] = {}
    for figure in drawn:
        for t in figure["data"]:
            colour = (t.get("marker") or {}).get("color") or t["line"]["color"]
            if t["name"] != "all sites together" and t.get("showlegend", True):
                seen.setdefault(t["name"], set()).add(colour)
    assert all(len(colours) == 1 for colours in seen.values()) and len(set.union(*seen.values())) == 4


def test_highlighted_sites_that_share_a_colour_differ_in_their_dash():
    rounds = records(tuple(f"h{k:02d}" for k in range(40)))
    lines = [
        t for t in figures.site_curves(typed(rounds))["data"] if t.get("showlegend") and "all sites" not in t["name"]
    ]
    assert len({(t["line"]["color"], t["line"]["dash"]) for t in lines}) == 3


def test_an_arm_keeps_its_colour_where_others_have_no_point():
    arms = ["a", "b", "c"]
    points = [{"label": "c", "drift": 0.1, "accuracy": 0.8}, {"label": "b", "drift": 0.2, "accuracy": 0.9}]
    drawn = figures.pareto(points, arms=arms)["data"][1:]
    assert [t["marker"]["line"]["color"] for t in drawn] == [
        figures.comparison.arm_colour(2),
        figures.comparison.arm_colour(1),
    ]


def test_curves_say_why_their_ends_are_not_the_final_figures():
    title = lambda told: figures.curves(typed(records()), told)["layout"]["title"]["text"]  # noqa: E731
    assert "final figures differ" not in title(summary(threshold=0.5))
    said = title(summary(threshold=0.087, platt=[1.2, 0.0]))
    assert "before calibration" in said and "not at 0.087" in said


def test_signals_with_shares_stack_up_to_the_weight():
    decision = {
        "round": 2,
        "weights": {"a": 0.44, "b": 0.56},
        "signals": {"data_size": {"a": 60, "b": 40}, "agreement": {"a": 0.2, "b": 0.8}},
    }
    apart = figures.weights_by_signal(Decision.from_dict(decision))
    assert apart["data"][0]["x"] == ["b", "a"]
    assert [t["y"] for t in apart["data"]] == [[0.56, 0.44], [40, 60], [0.8, 0.2]], "as they were told"
    assert len({t["yaxis"] for t in apart["data"]}) == 3, "each on a scale of its own"
    signals = {
        "data_size": {"a": 60, "b": 40, "late": 9},
        "disagreement": {"a": 0.5, "b": 0.125},
        "val_loss": {"a": 2, "b": None},
    }
    parts = {"data": {"a": 0.3, "b": 0.2}, "agreement": {"a": 0.04, "b": 0.16}, "worst_site": {"a": 0.1, "b": 0.2}}
    stacked = figures.weights_by_signal(Decision.from_dict({**decision, "signals": signals, "shares": parts}))
    assert stacked["layout"]["barmode"] == "stack"
    *bars, rows, marks = stacked["data"]
    assert [t["name"] for t in bars] == ["data size", "agreement of explanations", "worst site"]
    assert np.sum([t["y"] for t in bars], axis=0) == pytest.approx(marks["y"]) and marks["y"] == [0.56, 0.44]
    assert bars[0]["customdata"] == ["data size 40", "data size 60"], "the numbers behind each part"
    assert bars[1]["customdata"] == ["disagreement 0.125", "disagreement 0.5"]
    assert bars[2]["customdata"] == ["val loss unknown", "val loss 2"]
    assert (rows["name"], rows["y"]) == ("by rows alone", [0.4, 0.6]), "of the sites that have a weight"
    signals["in_line"] = {"a": 0.1, "b": 1.0}
    outlier = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert outlier["data"][0]["name"] == "rows, as far as explanations are in line"
    assert outlier["data"][0]["customdata"][1] == "disagreement 0.5, in line 0.1"
    signals["standing"] = {"a": 1.78, "b": 0.5}
    minded = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert minded["data"][0]["customdata"][1] == "disagreement 0.5, standing 1.78, in line 0.1"
    assert minded["data"][0]["y"] == outlier["data"][0]["y"]
    signals["standing"] = {"a": None, "b": 0.5}
    told = figures.weights_by_signal(
        Decision.from_dict({**decision, "signals": signals, "shares": {"agreement": decision["weights"]}})
    )
    assert told["data"][0]["customdata"][1] == "disagreement 0.5, standing unknown, in line 0.1"
    beside = figures.weights_by_signal(Decision.from_dict({**decision, "signals": {"standing": signals["standing"]}}))
    assert (beside["data"][1]["y"], beside["data"][1]["customdata"]) == ([0.5, None], ["0.5", "unknown"])


def test_disagreement_is_drawn_for_the_rounds_that_looked_at_it():
    figure = figures.disagreement_over_rounds(typed(weighed()))
    heat = figure["data"][0]
    assert (heat["x"], heat["y"]) == (["1", "3"], ["c", "a", "b"]), "the farthest first"
    assert heat["z"] == [[0.9, None], [0.1, 0.3], [0.2, 0.0]], "nobody was there to compare c with in round 3"
    assert heat["customdata"][0] == [0.1, 0.1] and (heat["zmin"], heat["zmax"]) == (0, 0.9)
    assert "blank: alone in its cohort" in figure["layout"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.disagreement_over_rounds(typed(records()))


def test_cohorts_have_a_colour_each_and_their_consistency():
    figure = figures.cohorts_over_rounds(typed(weighed()))
    heat = figure["data"][0]
    assert (heat["x"], heat["y"]) == (["1", "2", "3"], ["a", "b", "c"])
    assert heat["z"] == [[1, 1, 1], [1, 2, 1], [1, 2, 2]]
    scale = [[0, "#0072B2"], [0.5, "#0072B2"], [0.5, "#D55E00"], [1, "#D55E00"]]
    assert (heat["zmin"], heat["zmax"], heat["colorscale"]) == (0.5, 2.5, scale)
    assert (
        "consistency (adjusted Rand index to the round before) -0.25, at least -0.50"
        in figure["layout"]["title"]["text"]
    )
    with refused("nothing-to-draw"):
        figures.cohorts_over_rounds(typed(records()))


def test_of_many_sites_those_that_change_cohorts_are_shown():
    sites = [f"s{k:02d}" for k in range(40)]
    made = weighed()
    for r, record in enumerate(made):
        record["decision"]["cohorts"]["of"] = {s: 1 + (s == "s39" and r == 1) for s in sites}
        record["decision"]["signals"] = {"disagreement": {s: 0.01 * k for k, s in enumerate(sites)}}
    drawn, away = figures.cohorts_over_rounds(typed(made)), figures.disagreement_over_rounds(typed(made))
    assert len(drawn["data"][0]["y"]) == 30 and drawn["data"][0]["y"][-1] == "s39"
    assert away["data"][0]["y"][:2] == ["s39", "s38"]
    for figure in (drawn, away):
        assert "30 of 40 sites" in figure["layout"]["title"]["text"]


POINTS = [("A", 0.2, 0.8), ("B", 0.1, 0.7), ("C", 0.3, 0.79), ("D", 0.2, 0.75), ("E", 0.1, 0.7)]


def test_the_front_is_made_of_arms_that_none_beats():
    figure = figures.pareto([{"label": n, "drift": x, "accuracy": (y, y - 0.1, y + 0.2)} for n, x, y in POINTS])
    front = {t["name"].removesuffix(" (on the front)") for t in figure["data"][1:] if t["name"].endswith("front)")}
    assert front == {"A", "B", "E"}, "less drift, more accuracy; twins stand side by side"
    assert figure["data"][0]["x"] == [0.1, 0.1, 0.2]
    bars = trace(figure, "C")["error_y"]
    assert (bars["array"], bars["arrayminus"]) == (pytest.approx([0.2]), pytest.approx([0.1]))
    turned = figures.pareto(
        [{"label": n, "jaccard": x, "log_loss": y} for n, x, y in POINTS], x="jaccard", y="log_loss"
    )
    front = {t["name"][0] for t in turned["data"][1:] if t["name"].endswith("front)")}
    assert front == {"B", "D", "C", "E"}, "more overlap, less loss"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_whoever_is_off_the_front_is_beaten_by_someone_on_it(values):
    points = [{"label": str(i), "drift": x, "accuracy": y} for i, (x, y) in enumerate(values)]
    names = [t["name"] for t in figures.pareto(points)["data"][1:]]
    front = [v for v, name in zip(values, names, strict=True) if name.endswith("(on the front)")]
    beaten = [v for v, name in zip(values, names, strict=True) if not name.endswith("(on the front)")]
    assert front
    assert all(any(x <= v[0] and y >= v[1] and (x, y) != v for x, y in front) for v in beaten)
    assert not any(x <= v[0] and y >= v[1] and (x, y) != v for v in front for x, y in values)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    st.floats(-4, 4),
    st.floats(-1, 1),
    st.integers(1, 12),
)
@settings(max_examples=60)
def test_the_bars_of_a_case_lead_from_the_base_to_its_prediction(contributions, base, error, top):
    prediction = base + sum(contributions) + error
    bars = figures.waterfall([f"f{i}" for i in range(len(contributions))], contributions, base, prediction, top=top)[
        "data"
    ][0]
    assert bars["base"] == base
    steps = [x for x, kind in zip(bars["x"], bars["measure"], strict=True) if kind == "relative"]
    assert sum(steps) == pytest.approx(prediction - base, abs=1e-4)
    assert bars["measure"][-1] == "total" and bars["x"][-1] == pytest.approx(prediction - base)
    for log_odds, probability in bars["customdata"]:
        assert probability == pytest.approx(1 / (1 + math.exp(-log_odds)), abs=1e-6)
    assert bars["customdata"][-2][0] == pytest.approx(prediction, abs=1e-4)


def test_small_contributions_stand_together_and_what_is_left_over_is_said():
    names = ["age", "lactate", "ward", "sex"]
    bars = figures.waterfall(names, [0.2, -1.5, 0.1, 0.05], 1.0, 0.35, [63.0, 4.25, "cardiac", 1], top=2)["data"][0]
    assert bars["y"] == ["lactate = 4.25", "age = 63", "2 others", "not accounted for", "prediction"]
    assert bars["x"] == pytest.approx([-1.5, 0.2, 0.15, 0.5, -0.65])
    exact = figures.waterfall(names, [0.2, -1.5, 0.1, 0.05], 1.0, -0.15)["data"][0]
    assert exact["y"] == ["lactate", "age", "ward", "sex", "prediction"]
    with refused("length-mismatch", match="4 names, 1 contributions"):
        figures.waterfall(names, [1.0], 0.0, 1.0)


def test_every_point_of_the_swarm_is_a_cases_attribution():
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(200, 3)) * [1, 3, 2], rng.normal(size=(200, 3))
    v[:7, 1] = np.nan
    figure = figures.beeswarm(["x", "y", "z"], a, v)
    assert figure["layout"]["yaxis"]["ticktext"] == ["y", "z", "x"], "by mean absolute attribution"
    known, missing = figure["data"]
    got = {name: sorted(x for x, t in zip(known["x"], known["text"], strict=True) if t == name) for name in "xz"}
    assert got["x"] == pytest.approx(sorted(a[:, 0]), abs=1e-4)
    assert got["z"] == pytest.approx(sorted(a[:, 2]), abs=1e-4)
    assert sorted(missing["x"]) == pytest.approx(sorted(a[:7, 1]), abs=1e-4)
    assert set(missing["text"]) == {"y"} and set(missing["marker"]["color"]) != set(known["marker"]["color"])
    lane = {"y": 0, "z": 1, "x": 2}
    assert max(abs(y - lane[t]) for y, t in zip(known["y"], known["text"], strict=True)) < 0.5
    colour = np.array(known["marker"]["color"])
    values = np.array([float(c) for c in known["customdata"]])
    one = np.array(known["text"]) == "x"
    assert np.corrcoef(colour[one], values[one].argsort().argsort())[0, 1] > 0.999, "low to high"
    with refused("shape-mismatch", match=r"attributions \(200, 3\) and values \(3, 200\)"):
        figures.beeswarm(["x", "y", "z"], a, v.T)


def test_of_many_cases_some_are_drawn_and_it_is_said():
    a = np.tile(np.linspace(-1, 1, 5000)[:, None], 2)
    figure = figures.beeswarm(["x", "y"], a, a)
    assert len(figure["data"][0]["x"]) == 600
    assert "300 of 5000 cases" in figure["layout"]["title"]["text"]
    assert (min(figure["data"][0]["x"]), max(figure["data"][0]["x"])) == (-1, 1)


def test_pictures_keep_their_pixels_and_heat_its_sign():
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    colour, grey = rng.integers(0, 256, (5, 7, 3), np.uint8), rng.integers(0, 256, (4, 3), np.uint8)
    heat = np.array([[0.5, -2.0], [0.0, 1.0]])
    figure = figures.image_grid([("c", colour), ("g", grey), ("f", colour / 255), ("h", heat), ("i", np.abs(heat))])
    for given_, shown in zip((colour, grey, colour), figure["data"], strict=False):
        data = base64.b64decode(shown["source"].removeprefix("data:image/png;base64,"))
        assert (np.asarray(image.open(io.BytesIO(data))) == given_).all()
    signed, amount = figure["data"][3:]
    assert signed["z"] == heat.tolist()
    assert (signed["zmin"], signed["zmax"], amount["zmin"], amount["zmax"]) == (-2, 2, 0, 2)
    assert figure["layout"]["yaxis2"]["range"] == [3.5, -0.5], "the first row is on top"
    with refused("bad-image-shape", match=r"image 'x' has shape \(2,\)"):
        figures.image_grid([("x", np.zeros(2))])


def test_reliability_has_wilsons_interval_and_the_rows_of_each_bin():
    from scipy.stats import binomtest

    figure = figures.reliability(BINS)
    points = trace(figure, "the model")
    assert points["x"] == [0.1, 0.6, 0.9] and points["y"] == [0.05, 0.7, 1.0], "an empty bin has no point"
    for (rows, low, high), hits in zip(points["customdata"], (2, 7, 3), strict=True):
        ci = binomtest(hits, rows).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((ci.low, ci.high), abs=1e-6)
    assert figure["data"][-1]["y"] == [40, 0, 10, 3]
    assert figure["layout"]["xaxis"]["title"]["text"] == "predicted risk of the event"
    assert figures.reliability({**BINS, "of": "top class"})["layout"]["yaxis"]["title"]["text"] == "share right"
    with refused("nothing-to-draw"):
        figures.reliability({**BINS, "count": [0, 0, 0, 0]})


def test_treating_everyone_leaves_the_chart_where_it_does_harm():
    figure = figures.decision_curve(CURVE)
    assert trace(figure, "treat everyone")["y"] == [0.28, 0.04, None]
    assert trace(figure, "the model")["y"] == [0.3, 0.2, 0.1]


def test_the_radar_runs_from_the_worst_to_the_best():
    values = {
        "fedavg": {"accuracy": 0.8, "log_loss": 0.5, "training_drift": 1.2},
        "scaffold": {"accuracy": 0.9, "log_loss": 0.3, "training_drift": 0.2},
        "local": {"accuracy": 0.6, "log_loss": 0.4, "training_drift": None},
    }
    figure = figures.radar(["accuracy", "log_loss", "training_drift"], values)
    r = {t["name"]: t["r"] for t in figure["data"]}
    assert r["fedavg"] == pytest.approx([2 / 3, 0, 0, 2 / 3]), "less loss and less drift are better"
    assert r["scaffold"] == [1, 1, 1, 1]
    assert r["local"] == [0, pytest.approx(0.5), None, 0]
    assert trace(figure, "local")["customdata"][:3] == ["0.6000", "0.4000", "–"]
    same = figures.radar(["a", "b", "c"], {"x": dict.fromkeys("abc", 3.0), "y": dict.fromkeys("abc", 3.0)})
    assert same["data"][0]["r"] == [1, 1, 1, 1]
    with refused("too-few-axes", match="three axes or more, not 2"):
        figures.radar(["a", "b"], {})


def test_importances_are_ordered_and_cut():
    figure = figures.importances(["a", "b", "c"], [0.1, -0.7, 0.3], [0.01, 0.02, 0.03], top=2)
    bars = figure["data"][0]
    assert (bars["y"], bars["x"], bars["error_x"]["array"]) == (["b", "c"], [-0.7, 0.3], [0.02, 0.03])
    assert "1 less important" in figure["layout"]["title"]["text"]
    with refused("length-mismatch", match="2 names, 3 importances"):
        figures.importances(["a", "b"], [1, 2, 3])


def test_intervals_have_a_panel_for_each_metric():
    rows = [
        {"arm": "x", "metric": "auroc", "mean": 0.9, "low": 0.8, "high": 0.95, "n": 5},
        {"arm": "y", "metric": "auroc", "mean": None, "low": None, "high": None, "n": 5},
        {"arm": "y", "metric": "ece", "mean": 0.1, "low": None, "high": None, "n": 1},
    ]
    auroc, ece = figures.intervals(rows)["data"]
    assert (auroc["y"], auroc["x"]) == (["x"], [0.9]), "an undefined mean has no mark"
    assert auroc["error_x"]["array"] == pytest.approx([0.05])
    assert auroc["error_x"]["arrayminus"] == pytest.approx([0.1])
    assert (ece["y"], ece["error_x"]["array"], ece["xaxis"]) == (["y"], [0], "x2")


def test_an_arms_curve_is_the_mean_of_its_runs_with_students_interval():
    runs = [{1: 0.5, 2: 0.6, 3: 0.9}, {1: 0.7, 2: None}, {1: 0.9, 2: 0.8}]
    three = [{1: 0.4, 2: 0.6}, {1: 0.5, 2: 0.7}, {1: 0.6, 2: 0.8}]
    band, line = figures.arm_curves({"x": three}, "accuracy")["data"]
    assert (line["x"], line["y"]) == ([1, 2], pytest.approx([0.5, 0.7]))
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert band["y"] == pytest.approx([0.5 + half, 0.7 + half, 0.7 - half, 0.5 - half])
    wild = figures.arm_curves({"x": [{1: 0.2, 2: 0.1}, {1: 0.9, 2: 1.0}, {1: 1.0, 2: 1.0}]}, "accuracy")["data"][0]
    assert max(wild["y"]) == 1.0 and min(wild["y"]) == 0.0, "an interval stays within what accuracy can be"
    assert len(figures.arm_curves({"x": three[:2]}, "accuracy")["data"]) == 1, "two runs have no interval"
    assert figures.arm_curves({"x": runs}, "accuracy")["data"][0]["x"] == [1], "rounds that every run has"
    with refused("nothing-to-draw", match="no arm has accuracy by round"):
        figures.arm_curves({"x": []}, "accuracy")


def test_long_names_are_cut_only_where_they_stay_apart():
    long = ["a hospital with quite a long name, east", "a hospital with quite a long name, west"]
    assert figures.importances(long, [1, 2])["data"][0]["y"] == [long[1], long[0]]
    assert figures.importances([long[0], "b"], [2, 1])["data"][0]["y"] == [long[0][:33] + "…", "b"]


def test_notebooks_get_the_figure():
    figure = GALLERY["weights"]
    bundle = figure._repr_mimebundle_()
    assert bundle[MIME]["data"] == figure["data"]
    assert bundle["text/plain"] == "Figure: Weights in the common model"


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
    with refused("kaleido-missing"):
        GALLERY["weights"].write_png(tmp_path / "x.png")


def test_spurious_mass_is_drawn_beside_chance_for_the_sites_that_have_most():
    deployed = {f"s{k}": k / 100 for k in range(40)}
    figure = figures.spurious_masses({"training": {"s39": 0.9}, "deployed": deployed}, 0.0625)
    own, used = figure["data"]
    assert used["x"] == own["x"] == [f"s{k}" for k in range(10, 40)]
    assert used["y"] == [k / 100 for k in range(10, 40)] and own["y"] == [None] * 29 + [0.9]
    assert figure["layout"]["shapes"][0]["y0"] == 0.0625
    assert "the 30 largest of 40 sites" in figure["layout"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.spurious_masses({"training": {}}, 0.0625)


def test_a_line_over_a_setting_has_its_intervals_and_leaves_out_what_is_undefined():
    told = {"fedavg": {1.0: (0.2, 0.1, 0.4), 0.05: (0.5, math.nan, math.nan)}, "other": {1.0: (math.nan, 0, 1)}}
    figure = figures.setting_curves(told, "training_drift", x="alpha", title="digits")
    line, empty = figure["data"]
    assert (line["x"], line["y"]) == ([0.05, 1.0], [0.5, 0.2]) and empty["x"] == []
    assert line["error_y"]["array"] == pytest.approx([0, 0.2])
    assert line["error_y"]["arrayminus"] == pytest.approx([0, 0.1])
    assert figure["layout"]["xaxis"]["ticktext"] == ["0.05", "1"] and figure.title == "Training drift: digits"
    assert "less is better" in figure["layout"]["yaxis"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.setting_curves({}, "accuracy", x="alpha")


def test_a_trade_off_is_a_line_through_its_strengths():
    told = {
        "anchor": [{"label": "1", "drift": 0.2, "accuracy": 0.9}, {"label": "<b>3", "drift": 0.1, "accuracy": 0.8}],
        "none": [{"label": "", "drift": 0.3, "accuracy": 0.95}],
    }
    figure = figures.trade_off(told)
    figure.plotly()
    line, alone = figure["data"]
    assert (line["x"], line["y"], line["text"]) == ([0.2, 0.1], [0.9, 0.8], ["1", "&lt;b&gt;3"])
    assert (alone["x"], alone["name"]) == ([0.3], "none")


def test_the_parts_of_trust_add_up_to_it():
    decision = trusting()[-1]["decision"]
    drawn = figures.trust_parts(Decision.from_dict(decision), RULE)
    sites = drawn["data"][0]["x"]
    assert sites[0] == "c", "the least trusted comes first"
    total = np.sum([t["y"] for t in drawn["data"]], axis=0)
    assert total == pytest.approx([decision["signals"]["trust"][s] for s in sites], abs=1e-5)
    assert trace(drawn, "agreement")["y"][0] == pytest.approx(0.3 * math.exp(-1.2), abs=1e-6)
    decision["signals"]["alignment"] = {"a": 1.0, "b": 0.5, "c": -0.9}
    signed = figures.trust_parts(Decision.from_dict(decision), {**RULE, "signed": True})
    assert trace(signed, "agreement")["y"][0] == 0, "reasons that point the other way are no agreement"


def test_trust_and_divergence_have_the_numbers_and_the_alarm():
    rounds = trusting()
    trust = figures.trust_over_rounds(typed(rounds))
    known = rounds[0]["decision"]["signals"]["trust"]
    assert trace(trust, "c")["y"] == pytest.approx([known["c"]] * 3, rel=1e-4)
    assert trace(trust, "mean")["y"] == pytest.approx([sum(known.values()) / 3] * 3, rel=1e-4)
    rounds[1]["decision"]["signals"]["nsds"]["a"] = 0.0
    away = figures.nsds_over_rounds(typed(rounds), 1.0)
    assert trace(away, "alarm")["y"] == [1.0, 1.0] and trace(away, "c")["y"] == [1.2] * 3
    assert min(trace(away, "a")["y"]) > 0, "a logarithm has no zero"
    low, high = away["layout"]["yaxis"]["range"]
    assert low < math.log10(1e-4) and high > math.log10(1.2), "all values and the alarm lie within"


def test_rewards_are_summed_and_a_site_that_was_away_keeps_what_it_had():
    rounds = trusting()
    own = rounds[0]["decision"]["signals"]["reward"]["b"]
    rounds[1]["decision"]["signals"]["reward"].pop("b")
    drawn = figures.rewards_over_rounds(typed(rounds))
    assert trace(drawn, "b")["y"] == pytest.approx([own, own, 2 * own], rel=1e-4)


def test_of_many_sites_those_that_matter_are_drawn():
    sites = tuple(f"site-{k:03}" for k in range(150))
    rounds = trusting(sites)
    for drawn in (figures.trust_over_rounds(typed(rounds)), figures.nsds_over_rounds(typed(rounds), 1.0)):
        names = [t["name"] for t in drawn["data"]]
        assert len(names) == 31 and "site-149" in names
        assert sum(t.get("showlegend", True) for t in drawn["data"]) == 4
        assert "of 150 sites" in drawn["layout"]["title"]["text"]
    assert len(figures.rewards_over_rounds(typed(rounds))["data"]) == 30
    assert len(figures.trust_parts(Decision.from_dict(rounds[-1]["decision"]), RULE)["data"][0]["x"]) == 30


def test_a_run_without_trust_has_none_to_draw():
    robust = records()
    for record in robust:  # FLTrust has a number of that name, and no NSDS
        record["decision"]["signals"]["trust"] = {"a": 0.1, "b": 0.2, "c": 0.3}
    for drawn in (figures.trust_over_rounds, figures.rewards_over_rounds, lambda r: figures.nsds_over_rounds(r, 1.0)):
        with refused("nothing-to-draw"):
            drawn(typed(robust))
    with refused("nothing-to-draw"):
        figures.trust_parts(Decision.from_dict(robust[0]["decision"]), RULE)


def test_who_took_part_and_what_rounds_cost():
    presence = figures.presence_over_rounds(typed(attended()))
    heat = presence["data"][0]
    assert heat["y"] == ["c", "a", "b"]  # most often missing first
    assert heat["z"] == [[2, 1], [2, 2], [2, 0]] and heat["text"][0] == ["took part", "missing (c)"]
    down, up = figures.bytes_over_rounds(typed(attended()))["data"]
    assert (down["y"], up["y"]) == ([3.0, 2.0], [1.0, 0.5])
    assert figures.seconds_over_rounds(typed(attended()))["data"][0]["y"] == [2.0, 4.0]
    many = [{"round": 1, "decision": {**attended()[0]["decision"], "asked": [f"s{k:03d}" for k in range(40)]}}]
    shown = figures.presence_over_rounds(typed(many))
    assert len(shown["data"][0]["y"]) == 30 and "30 of 40 sites" in shown["layout"]["title"]["text"]
