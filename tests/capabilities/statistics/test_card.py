"""Risk cards from sums: the same card for any division of the rows, the printed arithmetic, planted steps, bad input."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.card import CardResult, card_options, card_terms, fit_card
from grandrounds.capabilities.statistics.methods.options import CardOptions, GAMOptions
from grandrounds.capabilities.statistics.models.card import CardModel, card_arrays, meet_terms
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.ring import fit_in_ring

COLUMNS = (
    Column("age", place=0),
    Column("lactate", place=1, missing=3),
    Column("sodium", place=2),
    Column("ward", levels=(4, 5, 6), words=("medical", "other", "surgical")),
)
ROUTES = ("distilled", "direct")


@cache
def patients() -> Rows:
    """Return 900 patients whose risk rises with age above 65, lactate above 3 and on the surgical ward; sodium does nothing."""
    rng = np.random.default_rng(1)
    n = 900
    age, lactate, sodium = rng.uniform(20, 95, n), rng.gamma(4, 0.6, n), rng.normal(140, 4, n)
    gap, ward = rng.random(n) < 0.3, rng.integers(0, 3, n)
    score = -2.5 + 1.8 * (age > 65) + 1.5 * ((lactate > 3) & ~gap) + 1.0 * (ward == 2)
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(float)
    x = np.column_stack([age, np.where(gap, 2.0, lactate), sodium, gap, np.eye(3)[ward]])
    return Rows(x, y)


def deal(rows: Rows, sites: int) -> dict[str, Rows]:
    order = np.random.default_rng(sites).permutation(len(rows))
    return {f"site{k}": Rows(rows.x[p], rows.y[p]) for k, p in enumerate(np.array_split(order, sites))}


def model(
    *, columns: tuple[Column, ...] = COLUMNS, terms: int = 4, route: str = "distilled", **more: object
) -> CardModel:
    options = {"card": {**CardOptions().model_dump(), "terms": terms, "route": route}, "gam": GAMOptions().model_dump()}
    return CardModel(7, columns, options=card_options(options), **more)  # type: ignore[arg-type]


@cache
def fitted(route: str, sites: int) -> tuple[CardResult, Record]:
    record = Record()
    fit = fit_card(card_terms(model(route=route), 5))
    return fit_in_memory(fit, deal(patients(), sites), ANSWERS, record), record


@pytest.mark.parametrize("route", ROUTES)
def test_planted_steps_are_found_and_noise_is_not(route: str):
    card = fitted(route, 4)[0].card
    assert {"age", "lactate", "ward"} <= {t.column for t in card.terms}
    points = {t.column: abs(t.points) for t in reversed(card.terms)}
    assert points.get("sodium", 0) < points["age"]
    age = next(t for t in card.terms if t.column == "age")
    assert age.kind == "above" and age.points > 0  # a column without gaps has positive points


@pytest.mark.parametrize("route", ROUTES)
def test_the_printed_risk_is_the_programs_risk_for_every_row(route: str):
    result, rows, built = fitted(route, 4)[0], patients(), model(route=route)
    risk = 1 / (1 + np.exp(-built.logits(built.pack(result.arrays), rows.x)[:, 0]))
    values = built.values(rows.x)
    for row, given in zip(values, risk, strict=True):
        total = 0
        for term in result.card.terms:  # by the words of the card alone
            column = next(k for k, c in enumerate(COLUMNS) if c.name == term.column)
            v = row[column]
            met = {
                "missing": np.isnan(v),
                "at most": term.kind == "at most" and v <= float(term.value or 0),
                "above": term.kind == "above" and v > float(term.value or 0),
                "level": term.kind == "level" and not np.isnan(v) and COLUMNS[column].words[int(v)] == term.value,
            }[term.kind]
            total += term.points if met else 0
        assert given == pytest.approx(result.card.risk(total), abs=1e-15)
    assert sum(t.rows for t in result.card.totals) == len(rows)
    assert sum(t.events for t in result.card.totals) == rows.y.sum()


@pytest.mark.parametrize("route", ROUTES)
def test_the_card_is_the_same_for_any_division_into_sites_and_in_the_ring(route: str):
    card = fitted(route, 4)[0].card
    assert fitted(route, 1)[0].card == card
    assert fitted(route, 30)[0].card == card
    assert fit_in_ring(fit_card(card_terms(model(route=route), 5)), deal(patients(), 4)).card == card


def test_a_distilled_card_takes_three_exchanges_more_than_its_additive_model():
    result, record = fitted("distilled", 4)
    assert result.additive is not None and record.exchanges == result.additive.exchanges + 3
    assert [q.kind for q in record.questions[-3:]] == ["card.steps", "card.pairs", "card.totals"]


def test_a_result_survives_json():
    result = fitted("distilled", 4)[0]
    again = CardResult.from_dict(result.to_dict())
    assert again.card == result.card and again.notes == result.notes and again.additive is not None
    assert all(np.array_equal(again.arrays[k], v) for k, v in result.arrays.items())


def test_scale_and_base_give_the_log_odds_of_the_fit():
    result, rows, built = fitted("direct", 4)[0], patients(), model()
    draft = card_arrays(result.card, COLUMNS)
    total = meet_terms(built.values(rows.x), draft["column"], draft["kind"], draft["value"]) @ draft["points"]
    mean = 1 / (1 + np.exp(-(result.base + total / result.scale)))
    assert mean.mean() == pytest.approx(rows.y.mean(), abs=0.05)


def test_more_terms_than_steps_are_refused():
    with pytest.raises(BadInput, match=r"15 terms, and the columns offer \d+ different steps"):
        fit_in_memory(fit_card(card_terms(model(columns=COLUMNS[:1], terms=15), 5)), deal(patients(), 3), ANSWERS)


def test_rows_of_one_class_are_refused():
    rows = Rows(patients().x, np.zeros(len(patients())))
    with pytest.raises(BadInput, match="same outcome|one class|with and without"):
        fit_in_memory(fit_card(card_terms(model(route="direct"), 5)), deal(rows, 3), ANSWERS)


@pytest.mark.parametrize("more", [{"classes": 3}, {"task": "regression", "classes": 0}])
def test_other_outcomes_than_two_classes_are_refused(more: dict[str, object]):
    with pytest.raises(BadInput, match="the risk of one event"):
        card_terms(model(**more), 5)  # type: ignore[arg-type]
