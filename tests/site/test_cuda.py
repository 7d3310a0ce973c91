"""What a GPU alone can show: the graph gives the CPU's numbers, and a full device falls back to smaller chunks."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use on this machine")

from grandrounds.core.plan import Settings  # noqa: E402
from grandrounds.core.rng import generator  # noqa: E402
from grandrounds.data.images import ImageSet  # noqa: E402
from grandrounds.models.torch_model import TorchModel  # noqa: E402

MODEL = {"name": "small-cnn", "hidden": [], "trees": 1, "depth": 1, "norm": "group", "stem": "small", "weights": None,
         "statistics": "averaged", "options": {}}  # fmt: skip


def pictures(sites: int, each: int) -> ImageSet:
    rng = generator(0, purpose="cuda")
    n = sites * each
    y = rng.integers(0, 3, n)
    x = rng.integers(0, 60, (n, 32, 32, 3))
    x[np.arange(n), 4 + 8 * y] += 150
    site = np.array([f"s{k:03d}" for k in np.repeat(np.arange(sites), each)], object)
    return ImageSet("bars", x.astype(np.uint8), np.array([f"c{c}" for c in y], object), site)


def prepared(data: ImageSet, device: str, *, model: dict = MODEL, **engine):
    """An engine whose sites have prepared their images."""
    from grandrounds.data.encoding import EncodingRules
    from grandrounds.data.split import Rows
    from grandrounds.engine.local import EngineSettings, LocalEngine
    from grandrounds.methods.exchanges import agree_on_encoding, prepare_sites
    from grandrounds.models import model_spec
    from grandrounds.site.stack import Stack

    names = tuple(dict.fromkeys(data.site.tolist()))
    nothing = np.empty(0, np.int64)
    rows = tuple(Rows(np.flatnonzero(data.site == n), nothing, nothing) for n in names)
    held = LocalEngine(Stack(names, data, rows), EngineSettings(run="t", seed=0, device=device, **engine))
    encoding, _ = held.drive(agree_on_encoding(numeric=(), categorical=(), rules=EncodingRules(), sites=names), round=0)
    spec = model_spec(Settings(model), inputs=encoding.inputs, classes=3)
    held.drive(prepare_sites(encoding, {**spec, "keeps": "none"}), round=0)
    return held


def run(
    data: ImageSet,
    device: str,
    *,
    name: str = "fedavg",
    stability: str = "none",
    optimizer: str = "adam",
    model: dict = MODEL,
    fraction: float = 1.0,
    **engine,
):
    """Three rounds of a method through the engine; the model and the notes of the last round."""
    from grandrounds.experiment.method_sections import Method
    from grandrounds.experiment.sections import Train
    from grandrounds.explain.features import build_features
    from grandrounds.methods import build_method
    from grandrounds.methods.base import Server
    from grandrounds.methods.exchanges import share_reference

    held = prepared(data, device, model=model, **engine)
    names, encoding, rows = held.sites, held.hosts[0].encoding, held.hosts[0].stack.rows
    if stability != "none":
        x = encoding.encode(data.take(np.arange(0, len(data.label), 9)), np.float64)
        held.drive(share_reference("anchor", x, build_features(encoding, grid=4), None, names), round=0)
    chosen = {
        "name": name,
        "rounds": 3,
        "mu": 0.1,
        "moon_mu": 2.0,
        "weigh": "data_size",
        "select": {"rule": "all" if fraction == 1 else "random", "fraction": fraction},
        "stability": stability,
        "anchor": 2.0,
        "alignment": 1.0,
    }
    method = Method(**chosen).model_dump()
    train = Train(epochs=1, batch=16, lr=0.05, optimizer=optimizer, momentum=0.0, keep_optimizer=optimizer == "adam").model_dump()
    made = build_method(Settings(method), Settings(train))
    theta, notes = held.hosts[0].model.init(0, np.float64), []
    state, served, counts = {}, None, {n: len(r.train) for n, r in zip(names, rows, strict=True)}
    for r in (1, 2, 3):
        outcome = held.drive(made.round(Server(r, theta, names, 0, state, rows=counts, assignment=served)), round=r)
        theta, state, served = outcome.model, outcome.state, outcome.assignment
        held.commit()
        notes += held.notes
    return theta, notes


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("name", "stability"), [("fedavg", "alignment"), ("fedprox", "none"), ("scaffold", "none"), ("moon", "none")]
)
def test_what_the_others_compare_runs_on_a_cpu(name, stability):
    """So that a new setting does not break the tests below unseen where there is no GPU."""
    theta, notes = run(pictures(3, 20), "cpu", name=name, stability=stability, optimizer="sgd", precision="float64")
    assert np.isfinite(theta).all()
    assert not notes


@gpu
def test_the_graph_gives_the_numbers_of_the_cpu():
    data = pictures(5, 40)
    on_gpu, _ = run(data, "cuda", precision="float64")
    on_cpu, _ = run(data, "cpu", precision="float64")
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)


@gpu
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "moon", "local"])
def test_terms_of_a_methods_own_are_the_same_on_either(name):
    """A pull to the start, control variates, features drawn and pushed, and starts that differ between sites."""
    data = pictures(5, 40)
    on_gpu, _ = run(data, "cuda", name=name, optimizer="sgd", precision="float64")
    on_cpu, _ = run(data, "cpu", name=name, optimizer="sgd", precision="float64")
    plain, _ = run(data, "cuda", optimizer="sgd", precision="float64")
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)
    assert np.abs(on_gpu - plain).max() > 1e-4, "the method does something"


def train_layers(data: ImageSet, device: str, part: str, optimizer: str) -> tuple:
    """Models of five sites trained twice with a part of their entries fixed: these models, the start, the fixed entries."""
    from grandrounds.site.train_job import TrainConfig

    host = prepared(data, device, precision="float64").hosts[0]
    model, members = host.prepared_model(), np.arange(5)
    head, start = model.site_entries("head"), model.init(0, np.float64)
    frozen = head if part == "body" else np.setdiff1d(np.arange(len(start)), head)
    theta = start
    for r in (1, 2):
        config = TrainConfig(seed=0, round=r, lr=0.05, batch=16, optimizer=optimizer, weight_decay=0.1, proximal=0.1)
        correction = np.full((5, len(start)), 1e-3)
        theta = np.asarray(host.train_apart(members, theta, config, frozen=frozen, correction=correction).theta)
    return theta, start, frozen


@gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("part", ["head", "body"])
def test_layers_that_are_fixed_stay_and_others_are_the_same_on_either(part, optimizer):
    data = pictures(5, 40)
    data = data.take(np.flatnonzero((data.site != "s001") | (np.arange(len(data.site)) % 3 == 0)))  # one finishes first
    on_gpu, start, frozen = train_layers(data, "cuda", part, optimizer)
    on_cpu, _, _ = train_layers(data, "cpu", part, optimizer)
    assert np.array_equal(on_gpu[:, frozen], np.broadcast_to(start[frozen], on_gpu[:, frozen].shape))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)
    assert np.abs(on_gpu - start).max() > 1e-3


@gpu
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("stability", ["anchor", "permuted_anchor", "alignment"])
def test_lent_rows_hold_sites_alike_on_either(stability, optimizer):
    """Sites of two sizes, so that some finish first and are not to be pulled on; three rounds replay one graph."""
    data = pictures(5, 40)
    data = data.take(np.flatnonzero((data.site != "s001") | (np.arange(len(data.site)) % 3 == 0)))
    on_gpu, _ = run(data, "cuda", stability=stability, optimizer=optimizer, precision="float64")
    on_cpu, _ = run(data, "cpu", stability=stability, optimizer=optimizer, precision="float64")
    plain, _ = run(data, "cuda", optimizer=optimizer, precision="float64")
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)
    assert np.abs(on_gpu - plain).max() > 1e-4


@gpu
def test_large_nets_are_anchored_one_by_one_as_in_a_stack(monkeypatch):
    data = pictures(3, 20)
    for stability in ("permuted_anchor", "alignment"):
        stacked, _ = run(data, "cuda", stability=stability, optimizer="sgd", precision="float64")
        with monkeypatch.context() as m:
            m.setattr(TorchModel, "side_by_side", lambda self, shape: None)
            alone, _ = run(data, "cuda", stability=stability, optimizer="sgd", precision="float64")
        np.testing.assert_allclose(alone, stacked, atol=1e-8)


@gpu
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_large_nets_on_small_maps_are_products_of_matrices(optimizer, monkeypatch):
    """Sites of three sizes, so that some finish first and nothing may move them after that."""
    data = pictures(5, 40)
    few = (data.site == "s001") & (np.arange(len(data.site)) % 3 > 0) | (data.site == "s003") & (data.label == "c0")
    data = data.take(np.flatnonzero(~few))
    large = {**MODEL, "name": "resnet18", "stem": "imagenet"}
    how = {"optimizer": optimizer, "model": large, "precision": "float64"}
    stacked, _ = run(data, "cuda", **how)
    on_cpu, _ = run(data, "cpu", **how)
    with monkeypatch.context() as m:
        m.setattr(TorchModel, "side_by_side", lambda self, shape: None)
        alone, _ = run(data, "cuda", **how)
    np.testing.assert_allclose(stacked, alone, atol=1e-6)
    np.testing.assert_allclose(stacked, on_cpu, atol=1e-6)


@gpu
def test_a_stack_says_what_each_of_its_models_says():
    from grandrounds.models import build_model

    x = generator(0, purpose="stack").standard_normal((7, 3, 32, 32))
    for name, stem in (("small-cnn", "small"), ("resnet18", "imagenet"), ("resnet18", "small")):
        spec = {**MODEL, "name": name, "stem": stem, "inputs": [3, 32, 32], "classes": 4}
        model = build_model(spec, kernel="torch", device="cuda", precision="float64")
        models = np.stack([model.init(seed, np.float64) for seed in range(3)])
        np.testing.assert_allclose(model.stack_logits(models, x), [model.logits(m, x) for m in models], atol=1e-9)


@gpu
def test_rounds_of_other_sites_are_other_graphs():
    """Drawn anew each round, sites of different sizes make rounds of different lengths, and graphs that are made anew."""
    data = pictures(6, 80)
    number = np.array([int(s[1:]) for s in data.site])
    data = data.take(np.flatnonzero(np.arange(len(number)) % 80 < 16 * (number + 1) - 8 * (number > 3)))
    how = {"optimizer": "momentum", "fraction": 0.5, "precision": "float64"}
    on_gpu, _ = run(data, "cuda", **how)
    on_cpu, _ = run(data, "cpu", **how)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)


ROOM = 300e6
"""Bytes that half of the sites below fit into, and all of them do not."""


@gpu
def test_a_full_device_falls_back_to_smaller_chunks_and_says_so():
    data = pictures(192, 32)
    whole, quiet = run(data, "cuda")
    assert not quiet
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_allocated()  # streams that have multiplied matrices keep a workspace for good
    torch.cuda.set_per_process_memory_fraction((kept + ROOM) / total)
    try:
        parts, notes = run(data, "cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("ran out of memory" in n for n in notes)
    np.testing.assert_allclose(parts, whole, atol=5e-2)
