"""DP-SGD on a GPU: the same secret gives the rows, the noise and the model of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU that torch can use on this machine", allow_module_level=True)

from grandrounds.core.rng import generator  # noqa: E402
from grandrounds.explain.features import Features  # noqa: E402
from grandrounds.models import build_model  # noqa: E402
from grandrounds.site import torch_dp_sgd  # noqa: E402
from grandrounds.site.anchor import ReferenceDraws, SharedReference  # noqa: E402
from grandrounds.site.stack import Part  # noqa: E402
from grandrounds.site.train_job import TrainJob  # noqa: E402
from tests.site.test_dp_sgd import draws, work  # noqa: E402

SIZES = [70, 9, 160]
NET = {"classes": 3, "trees": 1, "depth": 1, "norm": "group", "stem": "small", "weights": None, "statistics": "averaged",
       "options": {}, "tasks": [], "keeps": "none"}  # fmt: skip
SPECS = {
    "mlp": {**NET, "name": "mlp", "inputs": [12], "hidden": [8]},
    "small-cnn": {**NET, "name": "small-cnn", "inputs": [3, 16, 16], "hidden": []},
}
CASES = {
    "sgd": {},
    "adam": {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True},
    "l2, proximal": {"l2": 0.1, "proximal": 0.2},
    "anchor": {"anchor": 2.0},
    "permuted anchor": {"anchor": 2.0, "permuted": True},
}


def trained(spec: dict, changes: dict, device: str) -> np.ndarray:
    model = build_model(spec, kernel="torch", device=device, precision="float64")
    shape, n, rng = spec["inputs"], sum(SIZES), generator(0, purpose="rows")
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, *shape)) + y.reshape(n, *[1] * len(shape))
    held = Part(x, y, np.eye(3)[y], np.zeros(n, int), np.cumsum([0, *SIZES]))
    tiles = len(shape) == 3
    features = Features.from_tiles(16, 16, (4, 4)) if tiles else Features.from_inputs([str(k) for k in range(shape[0])])
    todo = work(steps=5, batch=8, fewest=10, **{"lr": 0.1, **changes})
    members, start = np.arange(3), model.init(1, np.float64)
    made = draws(held, members, todo, size=len(start))
    lent = SharedReference(rng.normal(size=(20, *shape)), features)
    taken = ReferenceDraws.draw(lent, made, members, names=("a", "b", "c"), config=todo) if todo.anchor else None
    done = torch_dp_sgd.train(TrainJob(model, held, members, start, todo, reference_draws=taken), made)
    moved = np.abs(np.asarray(done.theta) - start).max(axis=1) > 0
    assert moved.tolist() == [True, False, True], "nine rows are too few"
    return np.asarray(done.theta)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SPECS)
def test_private_steps_are_the_same_on_either(name, case):
    on_gpu, on_cpu = (trained(SPECS[name], CASES[case], device) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-6, atol=1e-7)
