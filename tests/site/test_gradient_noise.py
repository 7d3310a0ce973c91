"""train.noise: Gaussian noise on every step's gradient, a site's own in any company, on either kernel; and no promise."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.models import build_model
from grandrounds.models.dense import Dense, targets
from grandrounds.site.kernels import trainer
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult
from tests.command import rounds
from tests.site.test_numpy_train import alone, part
from tests.support import patients

SIZES = [17, 5, 30, 1]
NAMES = ("a", "b", "c", "d")
NET = {"name": "deep-cnn", "inputs": [1, 16, 16], "classes": 3, "hidden": [], "trees": 1, "depth": 1, "norm": "batch",
       "stem": "small", "weights": None, "statistics": "averaged", "options": {}}  # fmt: skip


def trained(model, held: Part, start, *, members=(0, 1, 2, 3), names=NAMES, noise=0.5, more=None, **work) -> TrainResult:
    values = {"seed": 1, "round": 2, "lr": 0.1, "epochs": 2, "batch": 8, **work}
    told = TrainConfig(**values, gradient_noise=noise)
    kept = {"class_weight": None, **(more or {})}
    return trainer(model)(TrainJob(model, held, np.array(members), start, told, names=names, **kept))


def squares(sizes: list[int], dtype=np.float32) -> Part:
    rng = generator(0, purpose="squares")
    y = rng.integers(0, 3, sum(sizes))
    x = rng.standard_normal((len(y), 1, 16, 16)).astype(dtype)
    return Part(x, y, targets(y, 3, dtype), np.zeros(len(y), np.int64), np.cumsum([0, *sizes]))


def test_one_plain_step_moves_by_lr_times_noise_of_the_deviation_asked_for():
    """theta' = theta - lr (g + sigma z), so (theta' - noiseless) / lr is -sigma z: 4 x 10,100 draws of deviation 0.3.

    Their mean has a standard error of 0.3 / sqrt(40400) = 0.0015, their deviation one of 0.0011: four of each.
    """
    model, held = Dense((100, 100)), part(SIZES, features=100, outputs=100)
    start = np.zeros(model.layout.size)
    plain, noisy = (trained(model, held, start, steps=1, noise=sigma).theta for sigma in (0.0, 0.3))
    drawn = (noisy - plain) / 0.1
    assert abs(drawn.mean()) < 0.006
    assert abs(drawn.std() - 0.3) < 0.0045
    assert abs(np.corrcoef(drawn)[np.triu_indices(4, 1)]).max() < 0.05, "sites do not share their noise"


def test_each_steps_draw_is_the_next_of_the_sites_own_stream():
    """Without a gradient to follow (no weight on any row's class) two plain steps are -lr sigma (z1 + z2)."""
    model, held, start = Dense((4, 1)), part(SIZES), np.zeros(5)
    nothing = {"class_weight": np.zeros(2)}
    found = trained(model, held, start, steps=2, noise=0.5, more=nothing).theta
    for k, name in enumerate(NAMES):
        z = generator(1, purpose="gradient noise", round=2, site=name).standard_normal((2, 5))
        np.testing.assert_allclose(found[k], -0.1 * 0.5 * z.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_sites_noise_does_not_depend_on_who_is_beside_it(optimizer):
    model, held = Dense((4, 6, 3)), part(SIZES, outputs=3)
    start = generator(0, purpose="start").normal(size=model.layout.size)
    together = trained(model, held, start, optimizer=optimizer).theta
    some = trained(model, held, start, members=(3, 1), optimizer=optimizer).theta
    np.testing.assert_array_equal(some, together[[3, 1]])
    only = trained(model, alone(held, 2), start, members=(0,), names=("c",), optimizer=optimizer).theta
    np.testing.assert_allclose(only[0], together[2], rtol=1e-12, atol=1e-12)
    other = trained(model, held, start, round=3, optimizer=optimizer).theta
    assert np.abs(other - together).max() > 0.01, "another round, other noise"


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("widths", [(4, 1), (4, 6, 3)])
def test_both_kernels_draw_the_same(optimizer, widths):
    pytest.importorskip("torch")
    from grandrounds.models.torch_build import torch_dense

    dense, held = Dense(widths), part(SIZES, outputs=widths[-1])
    net = torch_dense(dense, device="cpu", precision="float64")
    start = generator(0, purpose="start").normal(size=dense.layout.size)
    one, other = (trained(m, held, start, optimizer=optimizer, l2=0.1).theta for m in (dense, net))
    np.testing.assert_allclose(other, one, atol=1e-6)
    assert np.abs(one - trained(dense, held, start, optimizer=optimizer, l2=0.1, noise=0.0).theta).max() > 0.01


def test_statistics_of_batch_norm_are_measured_and_get_no_noise():
    """The first step's statistics come of the start alone, so noise on the learnt parameters leaves them as they are."""
    pytest.importorskip("torch")
    net, held = build_model(NET, device="cpu"), squares([16, 16])
    assert net.statistics_size > 0
    plain, noisy = (
        trained(net, held, net.init(0), members=(0, 1), names=("a", "b"), steps=1, noise=s).theta for s in (0.0, 0.5)
    )
    np.testing.assert_array_equal(noisy[:, net.learnt :], plain[:, net.learnt :])
    assert (noisy != plain)[:, : net.learnt].mean() > 0.99


def test_several_processes_draw_what_one_does():
    pytest.importorskip("torch")
    net, held = build_model({**NET, "name": "small-cnn"}, device="cpu"), squares([21, 5, 40, 13])
    one, many = (trained(net, held, net.init(0), epochs=1, more={"workers": w}).theta for w in (1, 3))
    np.testing.assert_array_equal(many, one)


def test_a_gpu_takes_the_same_noise():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use on this machine")
    held, spec = squares([21, 5, 40, 13]), {**NET, "name": "small-cnn"}
    here, there = (
        trained(net, held, net.init(0), noise=0.05, epochs=1).theta
        for net in (build_model(spec, device=d) for d in ("cpu", "cuda"))
    )
    np.testing.assert_allclose(there, here, atol=1e-4)


# Whole runs


def experiment(**changes) -> gr.Experiment:
    values = {
        "name": "noise",
        "data": {"label": "died", "site": "hospital"},
        "method": {"rounds": 3},
        "train": {"lr": 0.1},
        "explain": {"sketch": "none"},
    }
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    return gr.Experiment.parse(values)


def test_no_noise_asks_what_was_always_asked_and_ends_with_the_same_bits(tmp_path):
    """What sites are told does not speak of noise where there is none, so no byte more is sent."""
    table = patients([40, 30, 50])
    plain = gr.run(experiment(), table=table, out=tmp_path / "plain")
    zero = gr.run(experiment(train={"noise": 0.0}), table=table, out=tmp_path / "zero")
    noisy = gr.run(experiment(train={"noise": 0.1}), table=table, out=tmp_path / "noisy")
    wired = gr.run(experiment(train={"noise": 0.1}, engine={"wire": True}), table=table, out=tmp_path / "wired")
    assert (zero.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()
    assert zero.summary["cost"]["bytes_down"] == plain.summary["cost"]["bytes_down"]
    assert noisy.summary["cost"]["bytes_down"] > plain.summary["cost"]["bytes_down"]
    assert np.abs(noisy.model.theta - plain.model.theta).max() > 1e-3
    np.testing.assert_allclose(wired.model.theta, noisy.model.theta, atol=1e-6)


def test_the_summary_says_that_the_noise_promises_nothing(tmp_path):
    table = patients([40, 30, 50])
    plain = gr.run(experiment(), table=table, out=tmp_path / "plain").summary["privacy"]
    noisy = gr.run(experiment(train={"noise": 0.25}), table=table, out=tmp_path / "noisy").summary["privacy"]
    assert noisy["mechanism"] == "none" and noisy["epsilon"] is None and noisy["gradient_noise"] == 0.25
    assert noisy["statement"].startswith(plain["statement"])
    assert "deviation 0.25 was added" in noisy["statement"] and "no privacy guarantee" in noisy["statement"]
    assert "gradient_noise" not in plain
    masked = gr.run(
        experiment(train={"noise": 0.25}, privacy={"secure": True}), table=table, out=tmp_path / "masked"
    ).summary["privacy"]
    assert "Secure aggregation" in masked["statement"] and "no privacy guarantee" in masked["statement"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"name": "forest", "trees": 3}}, r"model\.name"),
        ({"model": {"name": "lightgbm"}, "method": {"name": "pooled"}}, r"model\.name"),
        ({"method": {"name": "veil"}, "privacy": {"epsilon": 1.0}}, "'veil'"),
        (
            {"privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "min_rows": 1}},
            r"train\.noise",
        ),
    ],
)
def test_what_has_no_gradient_or_noise_of_its_own_refuses(tmp_path, changes, why):
    with pytest.raises(BadInput, match=why) as refused:
        gr.run(experiment(train={"noise": 0.1}, **changes), table=patients([40, 30, 50]), out=tmp_path / "r")
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_on_the_command_line_a_refusal_is_exit_code_2(tmp_path):
    wrong = ["--set", "train.noise=0.1", "--set", "privacy.mechanism=dp-sgd", "--set", "privacy.epsilon=8"]
    done = rounds("run", "breast-cancer", *wrong, "--out", tmp_path / "r", cwd=tmp_path)
    assert done.returncode == 2 and "set train.noise = 0" in " ".join(done.stderr.split())
    done = rounds("run", "breast-cancer", "--set", "train.noise=-1", "--out", tmp_path / "r", cwd=tmp_path)
    assert done.returncode == 2 and "train.noise" in done.stderr
