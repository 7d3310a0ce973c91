"""Convolutions as products of matrices are convolutions: alone, under vmap, and in what is learnt through them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from grandrounds.models.nets.build import build_net  # noqa: E402
from grandrounds.models.nets.layers import (  # noqa: E402
    Conv2d,
    GroupNorm,
    patch_numbers,
)
from grandrounds.models.nets.products import (  # noqa: E402
    MAX_PATCH_NUMBERS,
    as_products,
    convolve,
    group_norm,
    is_using_products,
)
from tests.support import slow  # noqa: E402


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def net(**how: object) -> torch.nn.Module:
    return build_net("resnet18", shape=(3, 32, 32), outputs=4, stem="imagenet", **how).double()  # type: ignore[arg-type]


def sites(net: torch.nn.Module, count: int) -> dict[str, torch.Tensor]:
    """Parameters of some sites, each a little apart from the start."""
    named = net.named_parameters()
    return {n: p.detach() + 0.02 * drawn(count, *p.shape, seed=k) for k, (n, p) in enumerate(named)}


@given(
    channels=st.sampled_from([1, 3, 17]),
    side=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    bias=st.booleans(),
)
def test_a_product_is_the_convolution(channels, side, kernel, stride, padding, bias):
    assume(all(s + 2 * padding >= k > padding for s, k in zip(side, kernel, strict=True)))
    x, weight = drawn(2, channels, *side).requires_grad_(), drawn(5, channels, *kernel, seed=1)
    shift = drawn(5, seed=2) if bias else None
    ours = convolve(x, weight, shift, stride=(stride, stride), padding=(padding, padding))
    theirs = F.conv2d(x, weight, shift, stride, padding)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    slopes = [torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-10)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm_is_torchs(groups):
    x, weight, bias = 3 + drawn(2, 8, 5, 4), drawn(8, seed=1), drawn(8, seed=2)
    ours = group_norm(x, groups, weight, bias, 1e-5)
    torch.testing.assert_close(ours, F.group_norm(x, groups, weight, bias, 1e-5), rtol=0, atol=1e-12)


def test_in_half_precision_the_norm_stays_within_its_rounding():
    x, weight, bias = 1 + drawn(4, 64, 8, 8).float(), drawn(64, seed=1).float(), drawn(64, seed=2).float()
    low = group_norm(x.bfloat16(), 32, weight.bfloat16(), bias.bfloat16(), 1e-5)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), F.group_norm(x, 32, weight, bias, 1e-5), rtol=0.03, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, slow(2)])
def test_first_and_second_derivatives_are_the_convolutions(stride):
    x, weight = drawn(2, 3, 6, 6).requires_grad_(), drawn(4, 3, 3, 3, seed=1).requires_grad_()
    how = {"stride": (stride, stride), "padding": (1, 1)}
    assert torch.autograd.gradcheck(lambda a, w: convolve(a, w, None, **how), (x, weight))
    assert torch.autograd.gradgradcheck(lambda a, w: convolve(a, w, None, **how), (x, weight))


@pytest.mark.slow
def test_sites_side_by_side_learn_what_each_learns_alone():
    model, x = net(), drawn(2, 2, 3, 32, 32, seed=9)
    params = sites(model, 2)

    def loss(own, pictures):
        return functional_call(model, own, (pictures,)).square().sum()

    with as_products():
        assert is_using_products()
        stacked = vmap(grad(loss))(params, x)
    assert not is_using_products()
    for k in range(2):
        alone = grad(loss)({n: p[k] for n, p in params.items()}, x[k])
        for name, slope in alone.items():
            torch.testing.assert_close(stacked[name][k], slope, rtol=0, atol=1e-10 * (1 + slope.abs().max().item()))


def test_slopes_at_shared_pictures_are_those_of_each_model():
    model, x = net(), drawn(2, 3, 32, 32, seed=9)
    params = sites(model, 2)

    def slope(own, pictures):
        return grad(lambda p: functional_call(model, own, (p,))[:, 1].sum())(pictures)

    with as_products():
        stacked = vmap(slope, in_dims=(0, None))(params, x)
    for k in range(2):
        torch.testing.assert_close(stacked[k], slope({n: p[k] for n, p in params.items()}, x), rtol=0, atol=1e-10)


def test_what_reasons_teach_is_the_same_side_by_side():
    """As alignment has it: parameters learn from the slope at the pictures, a derivative within a derivative."""
    model = torch.nn.Sequential(
        Conv2d(2, 8, 3, 1, 1), GroupNorm(2, 8), torch.nn.Softplus(), Conv2d(8, 3, 3, 2, 1), torch.nn.Flatten()
    ).double()
    x = drawn(2, 3, 2, 6, 6, seed=9)
    params = sites(model, 2)

    def loss(own, pictures):
        slope = grad(lambda p: functional_call(model, own, (p,)).square().sum())(pictures)
        return (slope * pictures).abs().sum()

    with as_products():
        stacked = vmap(grad(loss))(params, x)
    for k in range(2):
        alone = grad(loss)({n: p[k] for n, p in params.items()}, x[k])
        for name, slope in alone.items():
            torch.testing.assert_close(stacked[name][k], slope, rtol=0, atol=1e-9 * (1 + slope.abs().max().item()))


def test_only_nets_whose_patches_are_few_are_products():
    """By hand: the stem has 16 x 16 places that see 7 x 7 pixels of 3 channels, 37,632 numbers."""
    assert patch_numbers(net(), (3, 32, 32)) == 299_776 < MAX_PATCH_NUMBERS
    assert patch_numbers(net(), (3, 64, 64)) > MAX_PATCH_NUMBERS
    assert patch_numbers(build_net("mobilenet-v2", shape=(3, 32, 32), outputs=4), (3, 32, 32)) is None
    assert patch_numbers(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), (3, 32, 32)) is None
