"""Tails of distributions equal those of scipy."""

from __future__ import annotations

import pytest
from scipy import special

from grandrounds.metrics.tails import chi_squared_tail, normal_p, t_quantile

FREEDOMS = [1, 2, 3, 4, 5, 9, 10, 29, 150, 999]


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantile_of_student(freedom):
    assert t_quantile(freedom) == pytest.approx(float(special.stdtrit(freedom, 0.975)), rel=1e-9)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("times", [0.0, 0.01, 0.5, 1.0, 1.3, 3.0])
def test_tail_of_chi_squared(freedom, times):
    expected = float(special.chdtrc(freedom, times * freedom))
    assert chi_squared_tail(times * freedom, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("z", [-3.1, 0.0, 0.4, 1.96, 9.0])
def test_p_of_a_normal_variable(z):
    assert normal_p(z) == pytest.approx(float(2 * special.ndtr(-abs(z))), rel=1e-9)
