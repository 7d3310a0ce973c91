"""A federated run of pictures on a GPU, whole rounds: Grand Rounds against a sequential PyTorch loop on the same rows.

    GRANDROUNDS_DATA=... rounds plan cifar-10 --set engine.device=cuda --out plan.json
    GRANDROUNDS_DATA=... python bench/gpu_rounds.py plan.json

Seconds of all rounds after start-up (imports, torch's own lazy ones among them, and reading the data): moving the data,
recording the graph in round 1, local training, averaging and evaluation at every site. The loop trains the same
batches with torch.optim.SGD, one site after another.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grandrounds.core.plan import Settings
from grandrounds.engine.local import LocalEngine
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.metrics import scores
from grandrounds.runs.evaluation import round_scores, site_metrics
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from grandrounds.site.batches import BatchPlan
from grandrounds.site.torch_job import row_losses
from grandrounds.site.train_job import TrainConfig
from smoke import pick
from workloads import experiment, write_all


def smallest_plan() -> dict[str, Any]:
    """Write a few random images, and return the plan of two rounds on a CPU."""
    folder = Path(tempfile.mkdtemp())
    write_all(folder, ["W4"])
    return Experiment.parse({**experiment("W4", folder), "split": {"min_rows": 1}}).plan()


def ready(plan: Settings) -> LocalEngine:
    engine = set_up_run(plan, assemble(plan), None).engine
    torch.func.vmap(torch.func.grad(lambda v: v.sum()))(torch.zeros(1, 1))  # the first vmap imports torch's compiler
    return engine


def accuracy(engine: LocalEngine, theta: np.ndarray) -> float:
    scored = engine.drive(evaluate(ModelAssignment(theta), ("test",)), round=10**6)
    return float(scores(scored.totals["test"].sum(axis=0), only=("accuracy",))["accuracy"])


def ours(plan: Settings, engine: LocalEngine) -> tuple[float, np.ndarray]:
    method = build_method(plan.method, plan.train)
    model = engine.hosts[0].model
    theta = model.init(plan.seed)
    began, marks = time.perf_counter(), []
    for r in range(1, plan.method.rounds + 1):
        outcome = engine.drive(method.round(Server(r, theta, engine.sites, plan.seed)), round=r)
        theta = outcome.model
        round_scores(engine.drive(evaluate(outcome.assignment, ("val", "test"), figures=site_metrics()), round=r), {})
        marks.append(time.perf_counter() - began)
    print(f"our rounds: first {marks[0]:.2f} s (records the graph), then {np.median(np.diff(marks)):.3f} s each")
    return marks[-1], theta


def loop(plan: Settings, engine: LocalEngine) -> tuple[float, np.ndarray]:
    model, part = engine.hosts[0].model, engine.hosts[0].stack.parts["train"]
    names, members = engine.sites, np.arange(len(engine.sites))
    theta = model.init(plan.seed)
    x, target = model.tensor(part.x), model.tensor(part.target)
    weights = part.counts / part.counts.sum()
    began = time.perf_counter()
    for r in range(1, plan.method.rounds + 1):
        work = TrainConfig(seed=plan.seed, round=r, lr=plan.train.lr, epochs=plan.train.epochs, batch=plan.train.batch)
        batches = BatchPlan.draw(part, members, names=names, config=work)
        total = np.zeros(len(theta))
        for j, k in enumerate(batches.order):
            local = model.tensor(theta).clone()
            model.point_at(local)
            model.net.train()
            optimizer = torch.optim.SGD(model.net.parameters(), lr=plan.train.lr)
            for s in range(int(batches.steps_in_order[j])):
                i = torch.from_numpy(batches.batch(s, j)[0]).to(x.device)
                optimizer.zero_grad(set_to_none=True)
                row_losses(model.net(x[i]), target[i]).mean().backward()
                optimizer.step()
            total += weights[k] * local.cpu().numpy()
        theta = total.astype(np.float32)
        accuracy(engine, theta)
    return time.perf_counter() - began, theta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, nargs=pick(None, "?"))
    args = parser.parse_args()
    plan = Settings(smallest_plan() if args.plan is None else json.loads(args.plan.read_text()))
    engine = ready(plan)
    mine, a = ours(plan, engine)
    theirs, b = loop(plan, engine)
    print("| sites | rounds | training pictures | loop s | ours s | times faster | accuracy loop / ours |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    rows = engine.hosts[0].stack.parts["train"].counts.sum()
    print(
        f"| {len(engine.sites)} | {plan.method.rounds} | {rows} | {theirs:.2f} | {mine:.2f} | {theirs / mine:.1f} | "
        f"{accuracy(engine, b):.4f} / {accuracy(engine, a):.4f} |"
    )


if __name__ == "__main__":
    main()
