"""Figures of training: curves, local models, participation and cost."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from tests.report import records, summary, typed
from tests.report.figures import attended, scored_locally, trace
from tests.support import refused


def test_local_models_are_drawn_beside_the_common_one():
    """Means weigh a by 30 training rows and c by 10; a site that was away leaves a gap."""
    each = figures.local_curves(typed(scored_locally()))
    assert "worst" not in each["layout"]["title"]["text"]
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


def test_curves_hold_what_the_rounds_say():
    figure = figures.curves(typed(records()))
    assert trace(figure, "accuracy")["y"] == pytest.approx([0.81, 0.82, 0.83])
    assert not [t for t in figure["data"] if "lowest" in t["name"]], "no site has an AUROC, and accuracy ranks none"
    known = [{**r, "sites": {**r["sites"], "auroc": {"a": 0.9, "b": 0.7, "c": None}}} for r in records()]
    assert trace(figures.curves(typed(known)), "lowest AUROC of a site")["y"] == [0.7, 0.7, 0.7]
    few = [{**r, "sites": {**r["sites"], "count": {"a": 30, "b": 19, "c": 30}}} for r in known]
    assert trace(figures.curves(typed(few)), "lowest AUROC of a site")["y"] == [0.9, 0.9, 0.9], "19 rows rank no site"
    assert trace(figure, "log loss, test")["y"] == pytest.approx([1, 1 / 2, 1 / 3])
    with refused("nothing-to-draw"):
        figures.curves(typed([{"round": 1}]))


def in_legend(figure) -> list[str]:
    """Names of the series in the legend of a figure of sites, the sites in their order."""
    return [t["name"] for t in sorted(figure["data"], key=lambda t: t["legendrank"]) if t.get("showlegend", True)]


def test_the_consortium_is_bold_and_the_sites_with_the_highest_log_loss_are_named():
    figure = figures.site_curves(typed(records()))
    assert figure.title == "Log loss at each site" and in_legend(figure) == ["all sites together", "c", "b", "a"]
    widths = {t["name"]: t["line"]["width"] for t in figure["data"]}
    assert max(widths, key=widths.get) == "all sites together"
    assert trace(figure, "b")["y"] == pytest.approx([0.511, 0.512, 0.513])
    assert "the 3 with the highest log loss in colour" in figure["layout"]["title"]["text"]
    with refused("unknown-metric", match="no metric 'harm' is recorded by site; recorded metrics: accuracy, log_loss"):
        figures.site_curves(typed(records()), "harm")


def test_sites_are_never_ordered_by_accuracy():
    """Site a has the lowest accuracy and the best AUROC, as a hospital whose patients die less often can have."""
    auroc = {"a": 0.97, "b": 0.64, "c": 0.8}
    rounds = typed([{**r, "sites": {**r["sites"], "auroc": auroc}} for r in records()])
    figure = figures.site_curves(rounds)
    assert figure.title == "AUROC at each site" and in_legend(figure)[1:] == ["b", "c", "a"]
    told = summary(threshold=0.087)
    accuracy = figures.site_curves(rounds, "accuracy", told)
    assert in_legend(accuracy)[1:] == ["b", "c", "a"], "in colour by AUROC, also where accuracy is drawn"
    note = accuracy["layout"]["title"]["text"]
    assert "decided at 0.5, not at 0.087" in note and "with the lowest AUROC in colour" in note and "worst" not in note
    assert "not at 0.087" not in figures.site_curves(rounds, "auroc", told)["layout"]["title"]["text"]
    alone = typed([{**r, "sites": {"accuracy": r["sites"]["accuracy"]}} for r in records(("b", "a", "c"))])
    assert in_legend(figures.site_curves(alone))[1:] == ["a", "b", "c"], "by name"


def test_sites_with_too_few_rows_to_be_ranked_come_last():
    """A summary tells more than the rounds: c has 40 test rows, but only two of them have the event."""
    sites = {"auroc": {"a": 0.9, "b": 0.1, "c": 0.2}, "count": {"a": 40, "b": 9, "c": 40}}
    rounds = typed([{**r, "sites": sites} for r in records()])
    assert in_legend(figures.site_curves(rounds))[1:] == ["c", "a", "b"]
    rows = {"a": (40, 0.5), "b": (9, 0.5), "c": (40, 0.95)}
    per_site = {s: {"auroc": sites["auroc"][s], "count": n, "majority": m} for s, (n, m) in rows.items()}
    assert in_legend(figures.site_curves(rounds, summary=summary(per_site=per_site)))[1:] == ["a", "b", "c"]


def test_a_thousand_sites_stay_readable():
    rounds = records(tuple(f"h{k:04d}" for k in range(1000)), rounds=300)
    curves, bars = figures.site_curves(typed(rounds)), figures.weights(typed(rounds))
    assert len(curves["data"]) == 31
    assert {t["name"] for t in curves["data"]} == {"all sites together", *(f"h{k:04d}" for k in range(970, 1000))}
    assert (
        "30 of 1000 sites with the highest log loss; the 3 first of them in colour" in curves["layout"]["title"]["text"]
    )
    assert len(bars["data"]) == 13
    assert bars["data"][-1]["name"] == "988 other sites"
    assert [bars["data"][0]["x"][at] for at in (0, -1)] == [1, 300]
    assert len(bars["data"][0]["x"]) == 200
    for at in range(200):
        assert sum(t["y"][at] for t in bars["data"]) == pytest.approx(1, abs=1e-4)
    assert {t["name"] for t in bars["data"][:12]} == {f"h{k:04d}" for k in range(988, 1000)}, "the heaviest"


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


def test_curves_say_why_their_ends_are_not_the_final_figures():
    title = lambda told: figures.curves(typed(records()), told)["layout"]["title"]["text"]  # noqa: E731
    assert "final figures differ" not in title(summary(threshold=0.5))
    said = title(summary(threshold=0.087, platt=[1.2, 0.0]))
    assert "before calibration" in said and "not at 0.087" in said


def test_who_took_part_and_what_rounds_cost():
    presence = figures.presence_over_rounds(typed(attended()))
    heat = presence["data"][0]
    assert heat["y"] == ["c", "a", "b"]  # most often missing first
    assert heat["z"] == [[2, 1], [2, 2], [2, 0]] and heat["text"][0] == ["took part", "missing (c)"]
    down, up = figures.bytes_over_rounds(typed(attended()))["data"]
    assert (down["y"], up["y"]) == ([3.0, 2.0], [1.0, 0.5])
    assert figures.seconds_over_rounds(typed(attended()))["data"][0]["y"] == [2.0, 4.0]
    axes = [
        draw(typed(attended()))["layout"]["yaxis"]["title"]["text"]
        for draw in (figures.bytes_over_rounds, figures.seconds_over_rounds)
    ]
    assert axes == ["MB per round", "seconds per round"]
    many = [{"round": 1, "decision": {**attended()[0]["decision"], "asked": [f"s{k:03d}" for k in range(40)]}}]
    shown = figures.presence_over_rounds(typed(many))
    assert len(shown["data"][0]["y"]) == 30 and "30 of 40 sites" in shown["layout"]["title"]["text"]
