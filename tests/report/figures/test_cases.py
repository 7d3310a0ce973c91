"""Figures of single cases, and images."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.report import figures
from tests.support import refused


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
    assert bars["y"] == ["lactate = 4.25", "age = 63", "2 others", "not explained", "prediction"]
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
    with refused("mismatched-shapes", match=r"attributions \(200, 3\) and values \(3, 200\)"):
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
    with refused("invalid-image-shape", match=r"image 'x' has shape \(2,\)"):
        figures.image_grid([("x", np.zeros(2))])
