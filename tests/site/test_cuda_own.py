"""A module of one's own on a GPU: side by side where torch can, else one site after another; the CPU's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.site import test_cuda as gpu

pytestmark = gpu.gpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def model(monkeypatch, **options):
    from grandrounds.core import plugins
    from grandrounds.core.plan import Settings
    from grandrounds.models import build_model, model_spec

    monkeypatch.syspath_prepend(EXAMPLES)
    plugins.allow({"model": {"name": "own_model:Residual"}})  # as an experiment that names it does
    monkeypatch.setattr(gpu, "MODEL", {**gpu.MODEL, "name": "own_model:Residual", "options": options})
    spec = model_spec(Settings(gpu.MODEL), inputs=(3, 32, 32), classes=3)
    return build_model(spec, device="cuda", own_code=True)


def test_a_module_without_chance_is_trained_side_by_side(monkeypatch):
    assert model(monkeypatch, dropout=0.0).stacks
    data = gpu.pictures(5, 12)
    on_gpu, _ = gpu.run(data, "cuda", precision="float64")
    on_cpu, _ = gpu.run(data, "cpu", precision="float64")
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-8)


@pytest.mark.parametrize("chunk", [0, 2])
def test_dropout_repeats_on_a_gpu(monkeypatch, chunk):
    assert not model(monkeypatch, dropout=0.3).stacks
    data = gpu.pictures(5, 12)
    first, _ = gpu.run(data, "cuda", precision="float64")
    again, _ = gpu.run(data, "cuda", precision="float64", chunk=chunk)
    np.testing.assert_allclose(first, again, atol=1e-8)
