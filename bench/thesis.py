"""The FL-XAI thesis's cost table (4.10): its job as ours, against a sequential PyTorch loop on the same pictures.

    GRANDROUNDS_DATA=... python bench/thesis.py [--device cuda] [--epochs 1] [--seeds 3] [--full FILE] [--json FILE]
    python bench/thesis.py --write plan.json                    # on a machine with pydantic, for one without:
    GRANDROUNDS_DATA=... python bench/thesis.py --plan plan.json --device cuda

Ten sites, ten rounds, FedAvg, its CNN (two convolutions, three dense layers: 62,006 parameters), CIFAR-10 dealt equally, Adam
with lr 1e-3, batches of 32. There it took 7,780.61 s, 339,018,640 bytes and 200 messages; how many local epochs, and on what
machine, it does not say. The catalog has two fifths of CIFAR-10 (20,000 + 4,000 pictures); `--full` takes all of it.

Ours is a whole run: ten rounds of training at all sites, after each the test pictures of every site, the Decision, the ledger
and the checkpoint on disk, then the last evaluation and all files of the run folder. The loop trains the same batches with
torch.optim.Adam, one site after another, averages the models and tests after each round; it writes nothing.

Start-up is not counted, on either side: imports (torch's lazy ones among them), the start of the device and its libraries by
one step of each kind, reading the pictures, dealing them to sites and encoding them. All that follows is: moving pictures to
the device and, of ours, recording the graph in round 1. Ours goes first. On a CPU there are few pictures: a try, not a result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import grandrounds  # noqa: F401  (pins one thread before NumPy loads)
from grandrounds.core.plan import Settings
from grandrounds.data.images import ImageSet
from grandrounds.data.loading import read_data
from grandrounds.data.sets.images import cifar10_full
from grandrounds.engine.resources import Gauge
from grandrounds.models import build_model
from grandrounds.runs.federation import assemble
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.runner import execute_plan
from grandrounds.runs.setup import set_up_run
from grandrounds.site.batches import BatchPlan
from grandrounds.site.torch_job import row_losses
from grandrounds.site.train_job import TrainConfig
from smoke import SMOKE, need_data, pick

ROUNDS, SITES, BATCH, LR = pick(10, 2), pick(10, 2), 32, 1e-3
PUBLISHED = {"seconds": 7780.61, "bytes": 339_018_640, "messages": 200, "accuracy": 0.7181}
BAR = {"seconds": 5.0, "accuracy": 0.01}
FEW = {"train": pick(2000, 64), "test": pick(500, 16)}
"""Pictures that a try on a CPU takes."""

EXPERIMENT = {
    "name": "thesis-cost",
    "data": {"name": "cifar-10"},
    "split": {"partition": "equal", "sites": SITES, "val": 0.0},
    "model": {"name": "small-cnn"},
    "method": {"name": "fedavg", "rounds": ROUNDS},
    "train": {"epochs": 1, "batch": BATCH, "lr": LR, "optimizer": "adam"},
    "explain": {"sketch": "none"},
}


def resolved() -> dict[str, Any]:
    """The experiment with every default in it, which takes pydantic."""
    try:
        from grandrounds.experiment.experiment import Experiment
    except ImportError:
        raise SystemExit(
            "pydantic is not on this machine: bring a plan (--write on another one, --plan here)"
        ) from None
    return Experiment.parse(EXPERIMENT).plan()


def pictures(plan: Mapping[str, Any], *, full: Path | None, few: bool) -> ImageSet:
    data = read_data(Settings(plan["data"])) if full is None else cifar10_full(full)
    assert isinstance(data, ImageSet)
    if not few:
        return data
    part = data.columns["part"]
    return data.take(np.concatenate([np.flatnonzero(part == name)[:n] for name, n in FEW.items()]))


def warm(device: str) -> None:
    """What the first use of torch and of the device takes, once: a step of an optimiser, and a stacked gradient."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 5), torch.nn.Flatten(), torch.nn.Linear(4704, 10)).to(device)
    x, optimizer = torch.zeros(2, 3, 32, 32, device=device), torch.optim.Adam(net.parameters())
    net(x).sum().backward()
    optimizer.step()
    weight = torch.zeros(2, 10, 10, device=device)
    torch.func.vmap(torch.func.grad(lambda w: (w @ w).sum()))(weight).cpu()


def ours(plan: dict[str, Any], data: ImageSet) -> dict[str, Any]:
    """The product's own run, from the moment it announces itself (rows are encoded by then) to its last file."""
    marks: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.create()
        execute_plan(plan, folder, progress=lambda e: marks.append((e["event"], time.perf_counter())), table=data)
        summary = json.loads(folder.summary.read_text())
    at, cost = dict(marks), summary["cost"]
    rounds = [at["start"], *(when for event, when in marks if event == "round")]
    each = np.diff(rounds).tolist()
    return {
        "seconds": at["done"] - at["start"],
        "rounds": each,
        "first_round": each[0],
        "other_rounds": statistics.median(each[1:]),
        "accuracy": summary["final"]["accuracy"],
        "parameters": summary["parameters"],
        "bytes": cost["bytes_down"] + cost["bytes_up"],
        "evaluation_bytes": cost["evaluation_bytes"],
        "payload": cost["payload_down"] + cost["payload_up"],
        "messages": cost["messages"],
        "cpu_seconds": cost["cpu_seconds"],
        "cpu_share": cost["cpu_share"],
        "peak_memory": cost["peak_memory"],
        "memory_share": cost["memory_share"],
    }


def loop(plan: Settings, data: ImageSet) -> dict[str, Any]:
    """One site after another, as anyone would write it, on the same rows in the same batches."""
    opening = set_up_run(plan, assemble(plan, data), None)
    stack = opening.engine.hosts[0].stack
    part, test, members = stack.parts["train"], stack.parts["test"], np.arange(len(stack.names))
    model = build_model(opening.spec, kernel="torch", device=plan.engine.device)
    theta, net, weights = model.init(plan.seed), model.net, part.counts / part.counts.sum()
    gauge, right = Gauge(), 0.0
    gauge.begin()
    began = time.perf_counter()
    x, target = model.tensor(part.x), model.tensor(part.target)
    test_x, test_y = model.tensor(test.x), torch.as_tensor(test.y).to(model.device)
    for r in range(1, plan.method.rounds + 1):
        work = TrainConfig(seed=plan.seed, round=r, lr=plan.train.lr, epochs=plan.train.epochs, batch=plan.train.batch)
        batches = BatchPlan.draw(part, members, names=stack.names, config=work)
        total = np.zeros(len(theta))
        for j, k in enumerate(batches.order):
            local = model.tensor(theta).clone()
            model.point_at(local)
            net.train()
            optimizer = torch.optim.Adam(net.parameters(), lr=plan.train.lr)
            for s in range(int(batches.steps_in_order[j])):
                i = torch.from_numpy(batches.batch(s, j)[0]).to(model.device)
                optimizer.zero_grad(set_to_none=True)
                row_losses(net(x[i]), target[i]).mean().backward()
                optimizer.step()
            total += weights[k] * local.cpu().numpy()
        theta = total.astype(np.float32)
        model.point_at(model.tensor(theta))
        net.eval()
        with torch.no_grad():
            said = torch.cat([net(block).argmax(1) for block in torch.split(test_x, 1000)])
        right = float((said == test_y).float().mean())
    seconds = time.perf_counter() - began
    gauge.end()
    rows = {"train": len(part.x), "test": len(test.x)}
    return {"seconds": seconds, "accuracy": right, "cpu_seconds": gauge.cpu_seconds, "rows": rows}


def mean(found: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(one[key] for one in found)


def show(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], *, device: str, epochs: int) -> None:
    one, rows = mine[0], theirs[0]["rows"]
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{SITES} sites; rounds: {len(one['rounds'])}, local epochs: {epochs}; {rows['train']} training and {rows['test']} test "
        f"pictures, {one['parameters']} parameters, {where}; means over seeds: {len(mine)}"
    )
    print("| | seconds | accuracy | CPU s |")
    print("|---|---:|---:|---:|")
    for name, found in (("loop", theirs), ("ours", mine)):
        told = (mean(found, key) for key in ("seconds", "accuracy", "cpu_seconds"))
        print("| {} | {:.2f} | {:.4f} | {:.2f} |".format(name, *told))
    print(f"| thesis | {PUBLISHED['seconds']:.2f} | {PUBLISHED['accuracy']:.4f} | |")
    print(
        f"times faster than the loop: {mean(theirs, 'seconds') / mean(mine, 'seconds'):.1f}; our rounds: first "
        f"{mean(mine, 'first_round'):.2f} s, the others {mean(mine, 'other_rounds'):.3f} s each"
    )
    print(
        f"sent: {one['bytes']:.0f} bytes in {one['messages']:.0f} messages, {one['evaluation_bytes']:.0f} of them evaluation, "
        f"{one['payload']:.0f} the models themselves (thesis: {PUBLISHED['bytes']} in {PUBLISHED['messages']})"
    )
    print(
        f"ours: {one['cpu_share']:.0%} of the cores, at most {one['peak_memory'] / 1e6:.0f} MB in memory "
        f"({one['memory_share']:.1%} of the machine's), pictures and libraries among it"
    )
    if device != "cuda":
        print("few pictures on a CPU: a try, not a result")
        return
    gap = abs(mean(mine, "accuracy") - mean(theirs, "accuracy"))
    quick, close = ("yes" if held else "no" for held in (mean(mine, "seconds") < BAR["seconds"], gap < BAR["accuracy"]))
    print(f"under {BAR['seconds']:g} s: {quick}; accuracies {gap:.4f} apart, within {BAR['accuracy']:g}: {close}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() and not SMOKE else "cpu")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=pick(3, 1))
    parser.add_argument("--full", type=Path, help="all of CIFAR-10: the .npz file that `rounds data get cifar-10-full` makes")
    parser.add_argument("--plan", type=Path, help="the plan, as --write writes it")
    parser.add_argument("--write", type=Path, help="write the plan and end")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.full is None and args.write is None:
        need_data("cifar10")
    plan = resolved() if args.plan is None else json.loads(args.plan.read_text())
    if args.write is not None:
        args.write.write_text(json.dumps(plan, indent=1))
        return
    plan["train"]["epochs"], plan["engine"]["device"] = args.epochs, args.device
    data = pictures(plan, full=args.full, few=args.device == "cpu")
    warm(args.device)
    mine, theirs = [], []
    for seed in range(args.seeds):
        plan["seed"] = seed
        mine.append(ours(plan, data))
        theirs.append(loop(Settings(plan), data))
    show(mine, theirs, device=args.device, epochs=args.epochs)
    if args.json is not None:
        args.json.write_text(json.dumps({"device": args.device, "ours": mine, "loop": theirs}, indent=1))


if __name__ == "__main__":
    main()
