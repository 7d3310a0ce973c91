"""Losses of numbers, counts and hazards: gradients against finite differences, torch and lifelines."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.models.dense import Dense
from grandrounds.models.losses import COX, POISSON, SQUARED, cox_gradient, cumulative_hazard, rank_times, row_losses

RNG = np.random.default_rng(3)
LOSSES = (SQUARED, POISSON, COX)


def batch(loss: str, rows: int = 12, sites: int = 2):
    """Inputs, targets with ties, and weights whose last rows pad the batch."""
    x = RNG.normal(size=(sites, rows, 3))
    target = RNG.integers(0, 4, (sites, rows, 1)).astype(float)
    if loss == COX:
        target = np.concatenate([(target > 1).astype(float), RNG.integers(0, 5, (sites, rows, 1)).astype(float)], axis=2)
    weight = np.full((sites, rows), 1 / (rows - 2))
    weight[:, -2:] = 0
    return x, target, weight


def total_loss(loss: str, model: Dense, theta, x, target, weight) -> float:
    """The weighted loss of all sites, row by row; padded rows are left out."""
    out = 0.0
    for k in range(len(x)):
        real = weight[k] > 0
        z = model.logits(theta[k], x[k][real])
        out += float((row_losses(loss, z, target[k][real]) * weight[k][real]).sum())
    return out


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("widths", [(3, 1), (3, 4, 1)])
def test_a_gradient_is_the_slope_of_the_loss(loss, widths):
    model = Dense(widths, loss)
    x, target, weight = batch(loss)
    theta = RNG.normal(size=(2, model.layout.size)) / 2
    out = np.empty_like(theta)
    model.gradient(theta, x, target, weight, out)
    step = 1e-6
    for k in range(2):
        for j in range(model.layout.size):
            up, down = theta.copy(), theta.copy()
            up[k, j] += step
            down[k, j] -= step
            above, below = (total_loss(loss, model, at, x, target, weight) for at in (up, down))
            assert out[k, j] == pytest.approx((above - below) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_torch_has_the_same_gradient(loss):
    torch = pytest.importorskip("torch")
    from grandrounds.site.torch_job import cox_terms
    from grandrounds.site.torch_job import row_losses as torch_losses

    x, target, weight = batch(loss, sites=1)
    model = Dense((3, 1), loss)
    theta = RNG.normal(size=(1, 4))
    out = np.empty_like(theta)
    model.gradient(theta, x, target, weight, out)
    w = torch.tensor(theta[0], requires_grad=True)
    z = torch.tensor(x[0]) @ w[:3, None] + w[3]
    goal, each = torch.tensor(target[0]), torch.tensor(weight[0])
    terms = cox_terms(z[:, 0], goal, each) if loss == COX else torch_losses(z, goal, loss)
    (terms * each).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), out[0], atol=1e-12)


def test_the_cox_gradient_of_all_rows_is_the_score_of_lifelines():
    fitters = pytest.importorskip("lifelines.fitters.coxph_fitter")
    pd = pytest.importorskip("pandas")
    from lifelines.datasets import load_lung

    data = load_lung()[["time", "status", "age", "sex"]].dropna().sort_values("time", kind="stable")
    time = data["time"].to_numpy(float) + 1e-3 * np.arange(len(data))  # without ties, where Efron's rule is Breslow's
    event, x = data["status"].to_numpy(float), data[["age", "sex"]].to_numpy(float)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    beta, ones = np.array([0.2, -0.3]), pd.Series(np.ones(len(data)))
    fitter = fitters.SemiParametricPHFitter()
    arguments = pd.DataFrame(x), pd.Series(time), pd.Series(event.astype(bool)), ones, None, beta
    _, score, _ = fitter._get_efron_values_single(*arguments)
    gradient = cox_gradient(x @ beta, event, rank_times(time), np.ones(len(time)))
    np.testing.assert_allclose(-gradient @ x, score, rtol=1e-9)


def test_rows_of_equal_time_are_in_each_others_risk_set():
    """Two events at time 1 and one row censored at 2: Breslow's gradient by hand."""
    z, event, time = np.log([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0])
    gradient = cox_gradient(z, event, time, np.ones(3))
    np.testing.assert_allclose(gradient, [2 * 1 / 6 - 1, 2 * 2 / 6 - 1, 2 * 3 / 6])


def test_the_baseline_hazard_is_breslows():
    z, target = np.log([1.0, 2.0, 3.0]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(cumulative_hazard(z, target), [1 / 6, 1 / 6, 1 / 6 + 1 / 3])


def test_single_precision_holds_ranks_of_times_that_differ_by_seconds():
    time = 1.7e9 + np.arange(5.0)[::-1]
    assert len(np.unique(time.astype(np.float32))) < 5
    np.testing.assert_array_equal(rank_times(time).astype(np.float32), [4, 3, 2, 1, 0])


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_an_event_that_nobody_outlives_has_no_gradient(scale):
    """Exactly none: Adam divides a gradient by its size, and would take full steps along rounding errors."""
    torch = pytest.importorskip("torch")
    from grandrounds.site.torch_job import cox_terms

    x = scale * torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    beta = torch.linspace(-1, 1, 5).requires_grad_()
    target = torch.stack([torch.tensor([1.0] + [0.0] * 7), torch.arange(8.0).flip(0)], dim=-1)  # the event is the last of all
    weight = torch.full((8,), 1 / 8)
    (cox_terms(x @ beta, target, weight) * weight).sum().backward()
    assert beta.grad is not None and not beta.grad.any()
