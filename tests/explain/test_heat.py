"""Heat maps against Captum, against values worked out by hand, and on every net the package has."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.explain.explainers.heat import HEATS, heat
from grandrounds.models.dense import Dense

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from grandrounds.explain.explainers import layers  # noqa: E402
from grandrounds.models import build_model  # noqa: E402
from grandrounds.models.torch_model import TorchModel  # noqa: E402
from tests.support import refused, thinned  # noqa: E402

LAST = {"small-cnn": "relu", "deep-cnn": "features.19", "resnet18": "layer4", "mobilenet-v2": "features",
        "mobilenet-v3-small": "features", "mobilenet-v3-large": "features", "shufflenet-v2": "conv5"}  # fmt: skip
QUICK = {"steps": 1, "samples": 1}


@cache
def net(name="small-cnn", *, shape=(3, 32, 32), classes=10, norm="group", precision="float64", device="cpu"):
    spec = {"name": name, "inputs": shape, "classes": classes, "norm": norm, "stem": "small", "weights": None}
    return build_model(spec, kernel="torch", device=device, precision=precision)


def own(module: nn.Module, *, outputs: int) -> tuple[TorchModel, np.ndarray]:
    """A user's module behind the protocol, and its own parameters."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held = {n: p.detach().double().numpy().copy() for n, p in named.items() if p.is_floating_point()}
    model = TorchModel(module, outputs=outputs, initial=lambda seed: held, device="cpu", precision="float64")
    return model, model.init(0, np.float64)


def pictures(n=3, shape=(3, 32, 32), classes=10):
    rng = generator(0, purpose="pictures")
    return rng.standard_normal((n, *shape)), 3 * np.arange(1, n + 1) % classes


def pointed(model: TorchModel, theta: np.ndarray) -> nn.Module:
    model.point_at(model.tensor(theta))
    return model.net.eval()


def attr():
    return pytest.importorskip("captum.attr", reason="captum is not installed: no parity with it")


def close(found, expected, tolerance=1e-9):
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=tolerance * np.abs(expected).max())


def unrolled(module: nn.Module) -> nn.Sequential:
    """The small CNN with an activation of its own after each layer, as Captum wants it."""
    n = module
    layers = [n.conv1, nn.ReLU(), nn.MaxPool2d(2), n.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, n.fc1, nn.ReLU(), n.fc2, nn.ReLU(), n.fc3)


def scored(module: nn.Module):
    """One score for each class, from which Captum picks its target."""

    def scores(x):
        logits = module(x)
        return torch.cat([-logits, logits], 1) if logits.shape[1] == 1 else logits

    return scores


@pytest.mark.parametrize("classes", [2, 10])
def test_saliency_and_gradient_are_captums(classes):
    model = net(classes=classes)
    theta = model.init(1, np.float64)
    x, y = pictures(classes=classes)
    pointed(model, theta)
    seen = attr().Saliency(scored(model.net)).attribute(torch.as_tensor(x).requires_grad_(), torch.as_tensor(y)).sum(1)
    close(heat("saliency", model, theta, x, y), seen)

    def loss(x):
        if classes == 2:
            return nn.functional.binary_cross_entropy_with_logits(
                model.net(x)[:, 0], torch.as_tensor(y * 1.0), reduction="none"
            )
        return nn.functional.cross_entropy(model.net(x), torch.as_tensor(y), reduction="none")

    moved = attr().InputXGradient(loss).attribute(torch.as_tensor(x).requires_grad_()).abs().sum(1)
    close(heat("gradient", model, theta, x, y), moved)


def test_gradient_norm_of_a_linear_net_is_its_weights():
    """Eq. 3.6 by hand: pixels of two channels with weights (3, 4), (0, 2), (0, 1), (5, 12) have norms 5, 2, 1, 13."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 1))
    weights = torch.tensor([[[3.0, 0], [0, 5]], [[4, 2], [1, 12]]])
    with torch.no_grad():
        module[1].weight.copy_(weights.reshape(1, 8))
    model, theta = own(module, outputs=1)
    x, y = pictures(2, (2, 2, 2), 2)
    found = heat("gradient_norm", model, theta, x, y)
    np.testing.assert_allclose(found, np.broadcast_to(np.array([[4, 1], [0, 12]]) / 12, (2, 2, 2)))


def test_a_picture_without_gradient_is_dark():
    model = net()
    x, y = pictures()
    for name in HEATS:
        assert not heat(name, model, np.zeros(model.layout.size), x, y).any()


@pytest.mark.parametrize("name", thinned(LAST, 2))
def test_grad_cam_is_captums_and_normgrad_the_product_of_lengths_on_every_net(name):
    model = net(name, shape=(3, 16, 16))
    theta = model.init(2, np.float64)
    x, y = pictures(2, (3, 16, 16))
    seen = layers.trace_net(model, theta, x[0])
    assert seen.map is not None
    assert seen.map.layer == LAST[name]

    module = pointed(model, theta)
    if name == "small-cnn":
        module = unrolled(module)
    layer = module[4] if name == "small-cnn" else module.get_submodule(LAST[name])
    captum = attr().LayerGradCam(scored(module), layer)
    cam = captum.attribute(torch.as_tensor(x), torch.as_tensor(y), relu_attributions=True)
    cam = attr().LayerAttribution.interpolate(cam, (16, 16), "bilinear")[:, 0]
    close(heat("grad_cam", model, theta, x, y), cam)

    kept = []
    hook = layer.register_forward_hook(lambda _, __, out: kept.append(out))
    total = module(torch.as_tensor(x))[torch.arange(2), torch.as_tensor(y)].sum()
    hook.remove()
    gradient = torch.autograd.grad(total, kept[0])[0]
    outer = torch.linalg.matrix_norm(kept[0].movedim(1, -1)[..., :, None] * gradient.movedim(1, -1)[..., None, :])
    outer = nn.functional.interpolate(outer[:, None], (16, 16), mode="bilinear")[:, 0]
    close(heat("normgrad", model, theta, x, y), outer)


def test_grad_cam_of_a_binary_net_turns_with_the_class():
    model = net(classes=2)
    theta = model.init(0, np.float64)
    x, _ = pictures(6)
    against, in_favour = (heat("grad_cam", model, theta, x, np.full(6, c)) for c in (0, 1))
    assert against.any()
    assert in_favour.any()
    module = unrolled(pointed(model, theta))
    signed = attr().LayerGradCam(lambda x: module(x)[:, 0], module[4]).attribute(torch.as_tensor(x))
    for found, side in ((against, -signed), (in_favour, signed)):
        close(found, nn.functional.interpolate(side.clamp(min=0), (32, 32), mode="bilinear")[:, 0])


class Awkward(nn.Module):
    """One activation for all layers, in place, and a 1x1 convolution as the classifier of what is pooled."""

    def __init__(self, outputs=4):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Conv2d(5, outputs, 1)

    def forward(self, x):
        x = self.act(self.second(self.act(self.first(x))))
        return self.act(self.last(x.mean((2, 3), keepdim=True)) + 1).flatten(1)


def test_the_map_of_a_users_net_is_the_last_one_with_places_in_it():
    torch.manual_seed(0)
    model, theta = own(Awkward(), outputs=4)
    x, y = pictures(3, (1, 9, 11), 4)
    assert layers.trace_net(model, theta, x[0]).map == layers.MapLayer("act", 2, (5, 9 - 2, 11 - 2))

    module = model.net
    mapped = torch.relu(module.second(torch.relu(module.first(torch.as_tensor(x))))).detach().requires_grad_()
    out = torch.relu(module.last(mapped.mean((2, 3), keepdim=True)) + 1).flatten(1)
    gradient = torch.autograd.grad(out[torch.arange(3), torch.as_tensor(y)].sum(), mapped)[0]
    cam = (gradient.mean((2, 3), keepdim=True) * mapped).sum(1).clamp(min=0)
    close(heat("grad_cam", model, theta, x, y), nn.functional.interpolate(cam[:, None], (9, 11), mode="bilinear")[:, 0])


def test_a_net_without_a_map_is_refused_where_one_is_needed():
    torch.manual_seed(0)
    model, theta = own(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), outputs=3)
    x, y = pictures(2, (1, 8, 8), 3)
    for name in ("grad_cam", "normgrad"):
        with refused("no-convolution"):
            heat(name, model, theta, x, y)
    close(heat("saliency", model, theta, x, y), model.net[1].weight.abs()[torch.as_tensor(y)].reshape(2, 8, 8))


def test_integrated_gradients_are_captums():
    model = net()
    theta = model.init(3, np.float64)
    x, y = pictures()
    pointed(model, theta)
    captum = attr().IntegratedGradients(scored(model.net))
    plain = captum.attribute(torch.as_tensor(x), target=torch.as_tensor(y), n_steps=5).abs().sum(1)
    close(heat("integrated_gradients", model, theta, x, y, sigma=0), plain)

    noise = 0.4 * generator(7, purpose="smoothgrad").standard_normal((5, 3, 32, 32))
    each = [captum.attribute(torch.as_tensor(x + one), target=torch.as_tensor(y), n_steps=5) for one in noise]
    mean = torch.stack(each).mean(0).abs().sum(1)
    close(heat("integrated_gradients", model, theta, x, y, sigma=0.4, seed=7), mean)


def test_smoothing_is_that_of_captums_noise_tunnel():
    model = net(shape=(1, 28, 28), precision="float32")
    theta = model.init(3)
    x, y = pictures(2, (1, 28, 28))
    x = x.astype(np.float32)
    pointed(model, theta)
    tunnel = attr().NoiseTunnel(attr().IntegratedGradients(scored(model.net)))
    how = {"nt_type": "smoothgrad", "nt_samples": 100, "stdevs": 0.5, "n_steps": 5}
    torch.manual_seed(0)
    theirs, again = (
        tunnel.attribute(torch.as_tensor(x), target=torch.as_tensor(y), **how).abs().sum(1).numpy() for _ in range(2)
    )
    ours = heat("integrated_gradients", model, theta, x, y, samples=100, sigma=0.5)
    plain = heat("integrated_gradients", model, theta, x, y, sigma=0)

    def apart(a, b):
        return np.abs(a - b).mean() / np.abs(b).mean()

    assert apart(ours, theirs) < 1.2 * apart(again, theirs)
    assert apart(plain, theirs) > 2 * apart(again, theirs)


def test_noise_is_the_seeds_and_shared_by_pictures():
    model = net(precision="float32")
    theta = model.init(0)
    x, y = pictures(4)
    x = x.astype(np.float32)

    def found(rows, **options):
        return heat("integrated_gradients", model, theta, x[rows], y[rows], **options)

    whole = found(slice(0, 4))
    assert (whole == found(slice(0, 4))).all()
    np.testing.assert_allclose(found(slice(2, 3))[0], whole[2], rtol=1e-3, atol=1e-3 * whole.max())
    assert np.abs(found(slice(0, 4), seed=1) - whole).max() > 0.01 * whole.max()
    assert (found(slice(0, 4), sigma=0, seed=1) == found(slice(0, 4), sigma=0, samples=1)).all()


@pytest.mark.parametrize("name", thinned(HEATS, 2))
def test_a_stack_of_models_gives_what_each_gives_alone(name, monkeypatch):
    model = net("deep-cnn", shape=(1, 12, 12), classes=3)
    thetas = np.stack([model.init(seed, np.float64) for seed in range(3)])
    x, y = pictures(3, (1, 12, 12), 3)
    alone = np.stack([heat(name, model, theta, x, y, steps=2, samples=2) for theta in thetas])
    assert alone.shape == (3, 3, 12, 12)
    assert (heat(name, model, thetas, x, y, steps=2, samples=2) == alone).all()
    monkeypatch.setattr(layers, "side_by_side", lambda model, shape: "groups")
    close(heat(name, model, thetas, x, y, steps=2, samples=2), alone)
    close(heat(name, model, thetas, x, y, steps=2, samples=2, rows_per_batch=5), alone)


def test_a_stack_is_looked_at_as_it_is_used_though_the_net_was_trained_since(monkeypatch):
    """Training switches dropout on; what a picture showed of the net is remembered, and the switch is not."""
    torch.manual_seed(0)
    model, theta = own(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3)), outputs=3)
    x, y = pictures(2, (1, 4, 4), 3)
    monkeypatch.setattr(layers, "side_by_side", lambda model, shape: "groups")
    before = heat("gradient", model, np.stack([theta, 2 * theta]), x, y)
    model.net.train()
    assert (heat("gradient", model, np.stack([theta, 2 * theta]), x, y) == before).all()


@pytest.mark.parametrize("rows", [1, 4, 13])
def test_the_size_of_a_pass_does_not_matter(rows):
    model = net()
    theta = model.init(0, np.float64)
    x, y = pictures(4)
    for name in HEATS:
        close(
            heat(name, model, theta, x, y, steps=3, samples=2, rows_per_batch=rows),
            heat(name, model, theta, x, y, steps=3, samples=2),
        )


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "norm"), [*((name, "group") for name in LAST), ("resnet18", "batch")])
def test_every_heat_map_is_of_every_net(name, norm):
    shape = (3, 28, 28) if name in ("small-cnn", "deep-cnn") else (1, 28, 28)
    model = net(name, norm=norm, shape=shape, classes=2, precision="float32")
    theta = model.init(0)
    x, y = pictures(1, shape, 2)
    for heat_name in HEATS:
        found = heat(heat_name, model, theta, x.astype(np.float32), y, **QUICK)
        assert found.shape == (1, 28, 28)
        assert found.dtype == np.float32
        assert np.isfinite(found).all()
        assert found.min() >= 0
        assert found.any() or heat_name == "grad_cam"  # which may find nothing that speaks for the class


def test_batch_norm_is_used_with_the_vectors_statistics_and_not_changed():
    model = net("deep-cnn", norm="batch", shape=(1, 16, 16))
    theta = model.init(0, np.float64)
    theta[model.learnt :] *= 1 + generator(0, purpose="statistics").random(model.statistics_size)
    x, y = pictures(3, (1, 16, 16))
    before = theta.copy()
    model.net.train()
    whole = heat("normgrad", model, theta, x, y)
    assert (theta == before).all()
    close(heat("normgrad", model, theta, x[:1], y[:1]), whole[:1])
    assert np.abs(heat("normgrad", model, model.init(0, np.float64), x, y) - whole).max() > 1e-3 * whole.max()


class Saturated(nn.Module):
    """Counts bright pixels: where it is sure of one, a change of that pixel changes nothing."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh())
        self.head = nn.Linear(4, 1)
        nn.init.constant_(self.body[0].weight, 0.3)
        nn.init.zeros_(self.body[0].bias)
        nn.init.constant_(self.head.weight, 1.0)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def test_normgrad_is_on_the_object_where_the_gradient_norm_is_not():
    """What the thesis prints as NormGrad (eq. 3.6) is dark where the net has made up its mind; the published one is not."""
    rng = generator(0, purpose="objects")
    x = 0.1 * rng.standard_normal((20, 1, 24, 24))
    inside = np.zeros((20, 24, 24), bool)
    for i, (r, c) in enumerate(rng.integers(0, 16, (20, 2))):
        inside[i, r : r + 8, c : c + 8] = True
    x[:, 0][inside] += 2
    model, theta = own(Saturated(), outputs=1)

    def on_object(name):
        found = heat(name, model, theta, x, np.ones(20, int)).reshape(20, -1)
        top = np.argsort(-found, axis=1)[:, :64]
        return np.take_along_axis(inside.reshape(20, -1), top, axis=1).mean()

    assert on_object("normgrad") > 0.9
    assert on_object("gradient_norm") < 0.05


def test_no_pictures_give_no_maps():
    model = net()
    theta = model.init(0)
    assert heat("grad_cam", model, theta, np.empty((0, 3, 32, 32)), np.empty(0, int)).shape == (0, 32, 32)
    assert heat("saliency", model, theta[None], np.empty((0, 3, 32, 32)), np.empty(0, int)).shape == (1, 0, 32, 32)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "gradcam"}, "unknown-explainer"),
        ({"y": np.array([0, 10, 1])}, "class-out-of-range"),
        ({"y": np.array([0, 1])}, "class-out-of-range"),
        ({"steps": 0}, "bad-smoothing"),
        ({"sigma": float("nan")}, "bad-smoothing"),
        ({"rows_per_batch": 0}, "bad-batch-size"),
        ({"model": Dense((5, 2)), "x": np.zeros((3, 5))}, "needs-images"),
    ],
)
def test_bad_input_is_refused(change, code):
    model = net()
    x, _ = pictures()
    given = {"name": "saliency", "model": model, "theta": model.init(0), "x": x, "y": np.zeros(3, int), **change}
    with refused(code):
        heat(**given)


def test_names_of_heat_maps_are_known_without_torch():
    code = "import sys; from grandrounds.explain.explainers import heat, occlusion; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use on this machine")
@pytest.mark.parametrize("name", HEATS)
def test_a_gpus_maps_are_a_cpus(name):
    x, y = pictures()
    nets = [("small-cnn", "group", "groups"), ("deep-cnn", "group", "groups"), ("deep-cnn", "batch", None)]
    for kind, norm, how in (*nets, ("resnet18", "group", None)):  # the patches of ResNet-18 are too many for products
        here, there = (net(kind, norm=norm, device=device) for device in ("cpu", "cuda"))
        assert layers.side_by_side(there, x.shape[1:]) == how
        thetas = np.stack([here.init(seed, np.float64) for seed in range(2)])
        close(heat(name, there, thetas, x, y, **QUICK), heat(name, here, thetas, x, y, **QUICK), 1e-7)
