"""The nets against published counts and torchvision's names, and what the engine asks of them: vmap and seeds."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from functools import cache

import numpy as np
import pytest

from grandrounds.core import arrays

torch = pytest.importorskip("torch")

from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from grandrounds.core.rng import generator  # noqa: E402
from grandrounds.models.nets import (  # noqa: E402
    NETS,
    SmallCNN,
    build_net,
    init_net,
    load_weights,
)
from grandrounds.models.nets.layers import group_count  # noqa: E402
from grandrounds.models.nets.mobilenet import SqueezeExcitation  # noqa: E402
from grandrounds.models.nets.shufflenet import ShuffleUnit  # noqa: E402
from grandrounds_studies.xfed.count import multiply_adds, parameter_count, ptflops_count  # noqa: E402
from tests.support import refused, thinned  # noqa: E402

DEEP = ["resnet18", "mobilenet-v2", "mobilenet-v3-small", "mobilenet-v3-large", "shufflenet-v2"]
SIDE = (3, 32, 32)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def published(name: str):
    """The net as its paper and torchvision have it; to look at, not to change."""
    return build_net(name, shape=(3, 224, 224), outputs=1000, norm="batch", stem="imagenet")


def pictures(*shape: int, seed: int = 0):
    return torch.from_numpy(generator(seed, purpose="test").normal(size=shape))


def state(net) -> dict[str, np.ndarray]:
    return {name: t.numpy().copy() for name, t in net.state_dict().items()}


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(state(a).values(), state(b).values(), strict=True))


# Counts and names.


@pytest.mark.parametrize(
    ("name", "parameters", "madds", "arrays_held"),
    [
        ("resnet18", 11_689_512, 1_814_073_344, 122),
        ("mobilenet-v2", 3_504_872, 300_774_272, 314),
        ("mobilenet-v3-small", 2_542_856, 56_510_400, 244),
        ("mobilenet-v3-large", 5_483_032, 216_589_760, 312),
        ("shufflenet-v2", 2_278_604, 144_907_992, 338),
    ],
)
def test_published_counts(name, parameters, madds, arrays_held):
    net = published(name)
    assert parameter_count(net) == parameters
    assert multiply_adds(net, (3, 224, 224)) == madds
    assert len(net.state_dict()) == arrays_held


@pytest.mark.parametrize(("name", "parameters"), [("small-cnn", 62_006), ("deep-cnn", 814_570)])
def test_counts_of_the_plain_nets(name, parameters):
    assert parameter_count(build_net(name, shape=(3, 32, 32), outputs=10)) == parameters


@pytest.mark.parametrize(
    ("name", "printed"),
    [("mobilenet-v2", 7.79), ("mobilenet-v3-large", 8.60), ("resnet18", 37.69), ("shufflenet-v2", 4.08)],
)
def test_nets_on_small_pictures_cost_what_the_xfed_paper_prints(name, printed):
    assert round(ptflops_count(published(name), SIDE) / 1e6, 2) == printed


@pytest.mark.slow
def test_a_large_picture_costs_what_the_xfed_paper_prints():
    net = deepcopy(published("mobilenet-v2")).to("meta")
    assert round(ptflops_count(net, (3, 720, 1280)) / 1e9, 2) == 5.89
    assert ptflops_count(net, (3, 1280, 720)) == ptflops_count(net, (3, 720, 1280))


def test_ptflops_count_of_resnet18_by_hand():
    net = published("resnet18")
    counted = multiply_adds(net, SIDE)
    assert counted == 37_523_456
    # It adds biases, two per normalised number, and one per number that enters ReLU or a pool.
    maps = [(64, 256)] + 4 * [(64, 64)] + 5 * [(128, 16)] + 5 * [(256, 4)] + 5 * [(512, 1)]
    normed = sum(c * n for c, n in maps)
    relu = normed - 128 * 16 - 256 * 4 - 512  # no ReLU after a projected shortcut
    assert ptflops_count(net, SIDE) == counted + 1000 + 2 * normed + relu + 64 * 256 + 512


def test_squeeze_and_excitation_is_counted_by_hand():
    net = SqueezeExcitation(16)  # squeezed to 8
    pooled, relu, biases, products = 16 * 6, 8, 8 + 16, 2 * 16 * 8
    assert ptflops_count(net, (16, 2, 3)) == products + biases + relu + pooled
    assert multiply_adds(net, (16, 2, 3)) == products


@pytest.mark.slow
@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", DEEP)
def test_the_gradient_at_the_picture_costs_as_much_as_the_forward(name):
    net = build_net(name, shape=SIDE, outputs=1000, stem="imagenet").eval().requires_grad_(False)
    x = torch.zeros(1, *SIDE, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = net(x)[:, 0].sum()
        forward = counter.get_total_flops()
        out.backward()
    assert forward == 2 * multiply_adds(net, SIDE)  # torch counts a multiply-add as two operations
    assert counter.get_total_flops() == 2 * forward


def test_the_xfed_papers_memory_is_five_times_torchsummarys_estimate():
    """82.6 MB: input, outputs of all layers and blocks twice (for gradients) and weights, of one picture, times nt_samples."""
    net, numbers = deepcopy(published("mobilenet-v2")).eval(), []
    for module in net.modules():
        if module is not net and not isinstance(module, torch.nn.Sequential):
            module.register_forward_hook(lambda _, __, out: numbers.append(out.numel()))
    with torch.no_grad():
        net(torch.zeros(1, *SIDE))
    one = 4 * (3 * 32 * 32 + 2 * sum(numbers) + parameter_count(net)) / 2**20
    assert 5 * one == pytest.approx(82.6, abs=0.05)


def test_counting_leaves_the_net_as_it_was():
    net = build_net("mobilenet-v2", shape=(3, 32, 32), outputs=2, norm="batch")
    net.features[0].eval()
    before, modes = state(net), [m.training for m in net.modules()]
    ptflops_count(net, SIDE)
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks for m in net.modules())
    assert all(np.array_equal(before[k], v) for k, v in state(net).items())


def batch_norm(owner: str) -> list[str]:
    return [f"{owner}.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def test_resnet18_has_torchvisions_names_in_its_order():
    names = ["conv1.weight", *batch_norm("bn1")]
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{layer}.{block}"
            names += [f"{at}.conv1.weight", *batch_norm(f"{at}.bn1"), f"{at}.conv2.weight", *batch_norm(f"{at}.bn2")]
            if layer > 1 and block == 0:
                names += [f"{at}.downsample.0.weight", *batch_norm(f"{at}.downsample.1")]
    assert list(published("resnet18").state_dict()) == [*names, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "mobilenet-v2",
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.0.1.num_batches_tracked": (),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.1.conv.2.running_var": (16,),
                "features.2.conv.0.0.weight": (96, 16, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.2.conv.2.weight": (24, 96, 1, 1),
                "features.2.conv.3.num_batches_tracked": (),
                "features.17.conv.2.weight": (320, 960, 1, 1),
                "features.18.0.weight": (1280, 320, 1, 1),
                "features.18.1.running_mean": (1280,),
                "classifier.1.weight": (1000, 1280),
                "classifier.1.bias": (1000,),
            },
        ),
        (
            "mobilenet-v3-small",
            {
                "features.0.0.weight": (16, 3, 3, 3),
                "features.0.1.num_batches_tracked": (),
                "features.1.block.0.0.weight": (16, 1, 3, 3),
                "features.1.block.1.fc1.weight": (8, 16, 1, 1),
                "features.1.block.1.fc1.bias": (8,),
                "features.1.block.1.fc2.weight": (16, 8, 1, 1),
                "features.1.block.2.0.weight": (16, 16, 1, 1),
                "features.2.block.0.0.weight": (72, 16, 1, 1),
                "features.2.block.2.0.weight": (24, 72, 1, 1),
                "features.4.block.1.0.weight": (96, 1, 5, 5),
                "features.4.block.2.fc1.weight": (24, 96, 1, 1),
                "features.4.block.3.1.running_var": (40,),
                "features.11.block.2.fc1.weight": (144, 576, 1, 1),
                "features.12.0.weight": (576, 96, 1, 1),
                "classifier.0.weight": (1024, 576),
                "classifier.3.weight": (1000, 1024),
            },
        ),
        (
            "mobilenet-v3-large",
            {
                "features.0.0.weight": (16, 3, 3, 3),
                "features.1.block.0.0.weight": (16, 1, 3, 3),
                "features.1.block.1.0.weight": (16, 16, 1, 1),
                "features.2.block.0.0.weight": (64, 16, 1, 1),
                "features.2.block.1.1.num_batches_tracked": (),
                "features.4.block.1.0.weight": (72, 1, 5, 5),
                "features.4.block.2.fc1.weight": (24, 72, 1, 1),
                "features.4.block.2.fc2.bias": (72,),
                "features.7.block.1.0.weight": (240, 1, 3, 3),
                "features.7.block.2.0.weight": (80, 240, 1, 1),
                "features.8.block.0.0.weight": (200, 80, 1, 1),
                "features.11.block.2.fc1.weight": (120, 480, 1, 1),
                "features.12.block.2.fc1.weight": (168, 672, 1, 1),
                "features.13.block.1.0.weight": (672, 1, 5, 5),
                "features.15.block.2.fc1.weight": (240, 960, 1, 1),
                "features.15.block.3.1.running_var": (160,),
                "features.16.0.weight": (960, 160, 1, 1),
                "classifier.0.weight": (1280, 960),
                "classifier.3.weight": (1000, 1280),
            },
        ),
        (
            "shufflenet-v2",
            {
                "conv1.0.weight": (24, 3, 3, 3),
                "conv1.1.num_batches_tracked": (),
                "stage2.0.branch1.0.weight": (24, 1, 3, 3),
                "stage2.0.branch1.1.running_mean": (24,),
                "stage2.0.branch1.2.weight": (58, 24, 1, 1),
                "stage2.0.branch1.3.bias": (58,),
                "stage2.0.branch2.0.weight": (58, 24, 1, 1),
                "stage2.0.branch2.3.weight": (58, 1, 3, 3),
                "stage2.0.branch2.5.weight": (58, 58, 1, 1),
                "stage2.0.branch2.6.num_batches_tracked": (),
                "stage2.3.branch2.0.weight": (58, 58, 1, 1),
                "stage3.7.branch2.6.weight": (116,),
                "stage4.3.branch2.5.weight": (232, 232, 1, 1),
                "conv5.0.weight": (1024, 464, 1, 1),
                "conv5.1.running_var": (1024,),
                "fc.weight": (1000, 1024),
            },
        ),
    ],
)
def test_names_and_shapes_are_torchvisions(name, shapes):
    held = {key: tuple(t.shape) for key, t in published(name).state_dict().items()}
    assert {key: held.get(key) for key in shapes} == shapes
    small = build_net(name, shape=(3, 32, 32), outputs=1000, norm="batch")
    assert held == {key: tuple(t.shape) for key, t in small.state_dict().items()}


def test_shuffling_interleaves_the_halves():
    unit = ShuffleUnit(8, 8, 1, "group")
    unit.branch2 = torch.nn.Identity()
    x = torch.arange(8.0).reshape(1, 8, 1, 1)
    assert unit(x).flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (2, 1), (16, 8), (24, 12), (58, 29), (64, 32), (72, 24), (116, 29), (512, 32)]
)
def test_groups_divide_the_channels_and_hold_two_or_more(channels, groups):
    assert group_count(channels) == groups


# What the engine asks of them.


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("shape", "outputs", "norm"), [((1, 28, 28), 1, "group"), ((3, 28, 28), 7, "batch"), ((3, 32, 32), 10, "group")]
)
@pytest.mark.parametrize("name", NETS)
def test_forward(name, shape, outputs, norm):
    net = build_net(name, shape=shape, outputs=outputs, norm=norm)
    with torch.no_grad():
        out = net(pictures(2, *shape).float())
    assert out.shape == (2, outputs)
    assert torch.isfinite(out).all()
    assert (out[0] != out[1]).any()


def test_forward_on_an_oblong_picture():
    net = build_net("resnet18", shape=(3, 200, 150), outputs=3, stem="imagenet")
    with torch.no_grad():
        assert net(pictures(1, 3, 200, 150).float()).shape == (1, 3)


@pytest.mark.parametrize("name", thinned([*NETS, "deep-cnn without norm"], 3))
def test_gradients_over_a_stack_of_sites_equal_each_sites_own(name):
    options = {"norm": "none"} if " " in name else {}
    nets = [build_net(name.split()[0], shape=(3, 32, 32), outputs=3, seed=seed, **options).double() for seed in (1, 2)]
    rows = 1 if name == "resnet18" else 2
    x, y = pictures(2, rows, 3, 32, 32), torch.tensor([[0, 1], [2, 0]])[:, :rows]

    def loss(parameters, images, labels):
        return torch.nn.functional.cross_entropy(functional_call(nets[0], parameters, (images,)), labels)

    each = [dict(net.named_parameters()) for net in nets]
    stack = {key: torch.stack([p[key].detach() for p in each]) for key in each[0]}
    got = vmap(grad(loss))(stack, x, y)
    for k, parameters in enumerate(each):
        own = torch.autograd.grad(loss(parameters, x[k], y[k]), list(parameters.values()))
        assert max(float(g.abs().max()) for g in own) > 1e-3
        for key, expected in zip(parameters, own, strict=True):
            torch.testing.assert_close(
                got[key][k], expected, rtol=1e-5, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
            )


# Starting weights.


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NETS)
def test_starting_weights_come_from_the_seed_and_from_nothing_else(name):
    before, legacy = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = state(build_net(name, shape=(3, 32, 32), outputs=5, norm="batch", seed=3))
    net = build_net(name, shape=(3, 32, 32), outputs=9, norm="batch", seed=4)
    head = list(first)[-1].rpartition(".")[0]
    weights = [key for key, value in first.items() if value.ndim > 1 and not key.startswith(head)]
    assert not any(np.array_equal(first[key], net.state_dict()[key]) for key in weights)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean += 1
    init_net(net, 3)
    second = state(net)
    changed = {key.rpartition(".")[0] for key in first if not np.array_equal(first[key], second[key])}
    assert changed <= {head}  # its size differs; all else is the same to the bit
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_starting_weights_are_the_same_in_any_precision():
    net, double = (build_net("mobilenet-v3-small", shape=(1, 28, 28), outputs=1) for _ in range(2))
    init_net(double.double(), 5)
    init_net(net, 5)
    assert all(torch.equal(a.double(), b) for a, b in zip(net.parameters(), double.parameters(), strict=True))


def test_a_net_of_ones_own_making_waits_at_zero():
    before = torch.random.get_rng_state()
    net = SmallCNN((3, 32, 32), 2)
    assert not any(p.any() for p in net.parameters())
    assert torch.equal(torch.random.get_rng_state(), before)


def spread(tensor) -> tuple[float, float]:
    """Standard deviation, and the largest value in units of it: 1.73 for a uniform, 4 or more for a normal."""
    t = tensor.detach().double()
    return float(t.std()), float(t.abs().max() / t.std())


def test_starting_distributions_are_torchs_and_torchvisions():
    resnet, mobile, shuffle = (published(n) for n in ("resnet18", "mobilenet-v3-small", "shufflenet-v2"))
    conv, reach = spread(resnet.layer4[1].conv2.weight)  # He normal: variance 2 / fan out
    assert conv == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert reach > 4
    dense, reach = spread(resnet.fc.weight)  # uniform in +-1/sqrt(512)
    assert dense == pytest.approx(512**-0.5 / 3**0.5, rel=0.01)
    assert reach < 1.74
    assert float(resnet.fc.bias.detach().abs().max()) == pytest.approx(512**-0.5, rel=0.01)
    assert spread(mobile.classifier[3].weight)[0] == pytest.approx(0.01, rel=0.01)
    assert spread(mobile.features[11].block[1][0].weight)[0] == pytest.approx((2 / (576 * 25)) ** 0.5, rel=0.02)
    assert not mobile.classifier[3].bias.any()
    assert not mobile.features[4].block[2].fc1.bias.any()
    assert spread(shuffle.conv5[0].weight) == pytest.approx((464**-0.5 / 3**0.5, 3**0.5), rel=0.01)
    assert all((m.weight == 1).all() and not m.bias.any() for m in resnet.modules() if hasattr(m, "running_var"))


def test_first_weights_of_a_seed_are_these():
    net = build_net("resnet18", shape=(1, 28, 28), outputs=1, seed=7)
    drawn = generator(7, purpose="init").standard_normal((64, 1, 3, 3), np.float32)
    expected = drawn * np.float32((2 / (64 * 9)) ** 0.5)
    assert np.array_equal(net.conv1.weight.detach().numpy(), expected)
    assert net.conv1.weight[0, 0, 0].tolist() == pytest.approx([-0.12618271, 0.11174250, 0.05767640], rel=1e-6)


# Weights from files.


def shifted(net):
    """The same net with every number moved, as if it had been trained."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor += 1
    return net


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NETS)
def test_weights_go_through_a_file(name, tmp_path):
    net = shifted(build_net(name, shape=(3, 32, 32), outputs=4, norm="batch", seed=1))
    arrays.save(tmp_path / "w.safetensors", state(net), durable=False)
    other = build_net(name, shape=(3, 32, 32), outputs=4, norm="batch", seed=2)
    assert load_weights(other, tmp_path / "w.safetensors") == []
    assert same(net, other)


def test_a_file_of_the_safetensors_library_loads(tmp_path):
    from safetensors.torch import save_file

    net = shifted(build_net("shufflenet-v2", shape=(3, 32, 32), outputs=4, norm="batch"))
    save_file(net.state_dict(), tmp_path / "w.safetensors", metadata={"format": "pt"})
    other = build_net("shufflenet-v2", shape=(3, 32, 32), outputs=4, norm="batch", seed=2)
    assert load_weights(other, str(tmp_path / "w.safetensors")) == []
    assert same(net, other)


@pytest.fixture(scope="module")
def imagenet_file(tmp_path_factory):
    """Stands in for weights saved from torchvision: batch norm, 7x7 stem, 1000 classes."""
    net = shifted(deepcopy(published("resnet18")))
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    arrays.save(path, state(net), durable=False)
    return net, path


def test_published_weights_go_into_a_grey_group_norm_net_of_other_classes(imagenet_file):
    source, path = imagenet_file
    net = build_net("resnet18", shape=(1, 64, 64), outputs=1, stem="imagenet", seed=5)
    head = net.fc.weight.detach().clone()
    notes = load_weights(net, path)
    assert notes[:2] == [
        "conv1.weight: the 3 input channels of the file were summed into 1",
        "the classifier fc starts fresh: 1000x512 in the file, 1x512 here",
    ]
    assert notes[2].startswith("the running statistics of 20 batch norms in the file are not used")
    assert len(notes) == 3
    torch.testing.assert_close(net.conv1.weight, source.conv1.weight.sum(1, keepdim=True))
    assert torch.equal(net.layer4[1].bn2.weight, source.layer4[1].bn2.weight)
    assert torch.equal(net.fc.weight, head)


def test_a_stem_of_another_size_starts_fresh(imagenet_file):
    source, path = imagenet_file
    net = build_net("resnet18", shape=(3, 32, 32), outputs=1000, norm="batch")
    assert load_weights(net, path, strict_head=True) == [
        "fresh, because the file has another shape or type: conv1.weight (64x3x7x7 in the file, 64x3x3x3 here)"
    ]
    assert torch.equal(net.fc.weight, source.fc.weight)


def test_a_file_without_running_statistics_says_so(tmp_path):
    held = state(build_net("shufflenet-v2", shape=(3, 32, 32), outputs=2)) | {"extra": np.zeros(3, np.float32)}
    arrays.save(tmp_path / "w.safetensors", held, durable=False)
    net = build_net("shufflenet-v2", shape=(3, 32, 32), outputs=2, norm="batch")
    assert load_weights(net, tmp_path / "w.safetensors") == [
        "fresh, because the file does not have it: conv1.1.running_mean, conv1.1.running_var, "
        "stage2.0.branch1.1.running_mean and 109 more",
        "in the file, but with no place in this net: extra",
    ]


def test_strict_head_refuses_another_number_of_classes(imagenet_file):
    net = build_net("resnet18", shape=(3, 32, 32), outputs=2)
    before = state(net)
    with refused("mismatched-weights", match="1000x512 in the file, 2x512 here"):
        load_weights(net, imagenet_file[1], strict_head=True)
    assert all(np.array_equal(before[k], v) for k, v in state(net).items())


def test_a_file_of_another_net_is_refused(imagenet_file, tmp_path):
    net = build_net("mobilenet-v2", shape=(3, 32, 32), outputs=2)
    with refused("mismatched-weights", match="features.0.0.weight"):
        load_weights(net, imagenet_file[1])
    with refused("cannot-read"):
        load_weights(net, tmp_path / "absent.safetensors")
    with refused("not-safetensors", match=r"model\.pth"):
        load_weights(net, tmp_path / "model.pth")


@pytest.mark.parametrize("bad", [np.nan, 1e300])
def test_a_damaged_file_changes_nothing(bad, tmp_path):
    net = build_net("small-cnn", shape=(3, 32, 32), outputs=2)
    before = state(net)
    held = {name: array.astype(float) + 1 for name, array in before.items()}
    held["fc2.bias"][3] = bad
    held["conv1.weight"] = np.zeros(5)
    arrays.save(tmp_path / "w.safetensors", held, durable=False)
    with refused("not-finite", match="fc2.bias"):
        load_weights(net, tmp_path / "w.safetensors")
    assert all(np.array_equal(before[k], v) for k, v in state(net).items())


# What is refused.


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"name": "resnet-18"}, "unknown-model", "did you mean 'resnet18'"),
        ({"norm": "groups"}, "unknown-choice", "did you mean 'group'"),
        ({"norm": "none"}, "unknown-choice", "group, batch$"),
        ({"stem": "imagnet"}, "unknown-choice", "did you mean 'imagenet'"),
        ({"shape": (28, 28)}, "invalid-image-shape", "28, 28"),
        ({"outputs": 0}, "bad-output-count", "0"),
        ({"dropout": 0.5}, "unknown-option", "resnet18 has no option 'dropout'"),
        ({"name": "mobilenet-v2", "drop": 0.5}, "unknown-option", "did you mean 'dropout'"),
        ({"name": "mobilenet-v2", "dropout": 1.0}, "share-out-of-range", "1.0"),
        ({"name": "deep-cnn", "widths": ()}, "bad-widths", "256"),
        ({"shape": (3, 4, 32)}, "image-too-small", "5x5 .* 4x32"),
        ({"shape": (3, 16, 16), "stem": "imagenet"}, "image-too-small", "17x17 .* stem = 'small'"),
        ({"name": "small-cnn", "shape": (3, 15, 32)}, "image-too-small", "16x16"),
        ({"name": "deep-cnn", "shape": (3, 7, 7)}, "image-too-small", "8x8"),
        ({"shape": (0, 32, 32)}, "image-too-small", "32x32 and 0"),
    ],
)
def test_what_cannot_be_built_is_refused(change, code, value):
    settings = {"name": "resnet18", "shape": (3, 32, 32), "outputs": 2} | change
    with refused(code, match=value):
        build_net(settings.pop("name"), **settings)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "stem"), [(n, s) for n in DEEP for s in ("small", "imagenet")])
def test_the_smallest_pictures_still_go_through(name, stem):
    side = 5 if stem == "small" else 17
    net = build_net(name, shape=(1, side, side), outputs=1, stem=stem)
    x = pictures(2, 1, side, side).float()
    with torch.no_grad():
        assert (net(x)[0] != net(x)[1]).all()


def test_listing_nets_does_not_import_torch():
    code = "import sys; from grandrounds.models.nets import NETS; assert len(NETS) == 7 and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
