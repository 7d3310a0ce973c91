"""The figures of VEIL's studies, drawn from hand-made numbers: what beats what, and lines that can be told apart."""

from __future__ import annotations

from grandrounds_studies.results import Reading, Results
from grandrounds_studies.study import FOLDS, Arm, Cell, Measure, Point, Quick, Study
from grandrounds_studies.veil import drawing
from grandrounds_studies.veil.measures import ALL
from grandrounds_studies.veil.setting import FEDAVG, NO_EPSILON, label

ONE, FIVE = label(1), label(5)


def found(numbers: dict[tuple[str, str], dict[str, float]]) -> Results:
    """(point, arm) -> measure -> its figure, the same in two folds; a point's epsilon is in its name."""
    of: dict[str, list[str]] = {}
    for point, arm in numbers:
        of.setdefault(point, []).append(arm)
    points = tuple(
        Point(p, {}, arms=tuple(arms))
        if p == NO_EPSILON
        else Point(p, {}, x=float(p.split()[1]), group="epsilon", arms=tuple(arms))
        for p, arms in of.items()
    )
    made = Study(
        name="test/one", title="One", source="a paper", base={}, points=points, claims=(), quick=Quick(), repeats=FOLDS,
        arms=tuple(Arm(a, {}) for a in dict.fromkeys(arm for _, arm in numbers)),
        measures=tuple(Measure(m.name, m.words, lambda run: 0.0, m.lower, m.digits, m.shown) for m in ALL),
    )  # fmt: skip
    readings = {
        Cell(*place, i): Reading(figures, {"epsilon": None}) for place, figures in numbers.items() for i in (0, 1)
    }
    return Results(made, readings, 2)


def judged(auroc: float, payload: float = 1.0) -> dict[str, float]:
    return {"auroc": auroc, "auprc": auroc / 2, "recall_at_90_specificity": 0.5, "ece": 0.01, "payload": payload}


def test_less_payload_is_better_and_a_heavier_arm_that_is_no_better_is_off_the_front():
    numbers = {
        (FIVE, "light"): judged(0.80, 1.2),
        (FIVE, "good"): judged(0.83, 500.0),
        (FIVE, "heavy"): judged(0.81, 1e5),
    }
    ((title, (figure,)),) = drawing.fronts(found(numbers))
    assert title == "AUROC against payload: epsilon 5"
    assert [t["name"] for t in figure["data"][1:]] == ["light (Pareto-optimal)", "good (Pareto-optimal)", "heavy"]
    assert figure["layout"]["xaxis"]["type"] == "log"


def test_a_radar_has_one_colour_for_an_arm_and_other_dashes_for_its_other_budget():
    places = [(ONE, "a"), (ONE, "b"), (FIVE, "a"), (FIVE, "b"), (NO_EPSILON, "c")]
    numbers = {place: judged(0.7 + k / 100, 1.0 + k) for k, place in enumerate(places)}
    (_, (claimed,)), (_, (kept,)) = drawing.radars(found(numbers), places)
    lines = {t["name"]: (t["line"]["color"], t["line"]["dash"]) for t in claimed["data"]}
    assert list(lines) == ["a, epsilon 1", "a, epsilon 5", "b, epsilon 1", "b, epsilon 5", "c"]
    assert lines["a, epsilon 1"][0] == lines["a, epsilon 5"][0] != lines["b, epsilon 1"][0]
    assert len(set(lines.values())) == 5
    axis = claimed["data"][0]["theta"].index("1 / epsilon")
    assert [t["r"][axis] for t in claimed["data"]] == [1.0, 0.2, 1.0, 0.2, 0.0]
    assert [t["customdata"][axis] for t in kept["data"]] == ["0.0000"] * 5, "no epsilon holds"


def test_fedavg_is_a_level_line_over_the_budgets():
    numbers = {(ONE, "a"): judged(0.80), (FIVE, "a"): judged(0.82), (NO_EPSILON, FEDAVG.label): judged(0.83)}
    ((_, (auroc, _)),) = drawing.curves(found(numbers))
    assert auroc.title == "AUROC over epsilon"
    assert (auroc["data"][0]["x"], auroc["data"][0]["y"]) == ([1.0, 5.0], [0.80, 0.82])
    assert (auroc["data"][1]["x"], auroc["data"][1]["y"]) == ([1.0, 5.0], [0.83, 0.83])
    assert [
        t["name"]
        for t in drawing.curves(found({k: v for k, v in numbers.items() if k[0] != NO_EPSILON}))[0][1][0]["data"]
    ] == ["a"]
