"""Who was trained on? Membership inference on every method: the loss threshold, and LiRA with shadow runs.

    python bench/membership.py [--data heart] [--shadows 8] [--seed 0] [--out runs/membership] [--jobs 2] [--json FILE]

Heart: four real hospitals, 40% of the rows as test, so that there are non-members. Methods that can have it train an MLP with
64 hidden units for long enough to learn rows by heart; FedBN the same net with BatchNorm, pooling also LightGBM, VEIL its linear
model. It is what `rounds run` and `rounds attack RUN --shadows 8` do. `--data breast-cancer` needs no file: four equal sites.
Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.membership.attack import OFFLINE, ONLINE, THRESHOLD, Membership, attack_run, write_attacks
from grandrounds.experiment.experiment import Experiment
from grandrounds.runs.batch import run_all
from grandrounds.runs.run import Run
from smoke import pick

if TYPE_CHECKING:
    from torch import nn

Sections = dict[str, Any]

MLP: Sections = {"model": {"name": "mlp", "hidden": [64]}, "train": {"epochs": pick(20, 1), "lr": 0.3, "batch": 32}}
LINEAR: Sections = {"data": {"encoding": "public"}, "model": {"name": "logistic"}, "evaluation": {"calibrate": "platt"}}
REFERENCE: Sections = {"rows": {"rows": 40}, "anchor": {"rows": 40, "labelled": False, "sent": True}}


def method(name: str, **settings: Any) -> Sections:
    return {"method": {"name": name, **settings, "rounds": pick(settings.get("rounds", 10), 1)}}


def brief(epsilon: float | None) -> Sections:
    """FedAvg in a tenth of the epochs, which is what such a budget pays for, under DP-SGD; None: without its noise."""
    private = {} if epsilon is None else {"privacy": {"mechanism": "dp-sgd", "epsilon": epsilon}}
    return {**MLP, **method("fedavg"), "train": {"epochs": 2, "lr": 0.1}, **private}


def veil(selection: str, *, epsilon: float | None, rounds: int, **settings: Any) -> Sections:
    private = {} if epsilon is None else {"privacy": {"epsilon": epsilon}}
    return {**LINEAR, **method("veil", rounds=rounds, veil={"selection": selection, **settings}), **private}


ARMS: dict[str, Sections] = {
    "FedAvg": {**MLP, **method("fedavg")},
    "FedProx": {**MLP, **method("fedprox", mu=0.01)},
    "SCAFFOLD": {**MLP, **method("scaffold")},
    "MOON": {**MLP, **method("moon")},
    "FedAdam": {**MLP, **method("fedadam")},
    "SSE-AGG": {**MLP, **method("sse-agg"), "reference": REFERENCE, "explain": {"reference": "rows"}},
    "FedBN": {**MLP, **method("fedbn"), "model": {"name": "membership:normed"}},
    "local": {**MLP, **method("local")},
    "pooled": {**MLP, **method("pooled")},
    "pooled, LightGBM": {**method("pooled"), "model": {"name": "lightgbm", "trees": 20}},
    "VEIL as printed": veil("paper", epsilon=None, rounds=10, claimed_epsilon=5.0, k=5, votes="quorum", quorum=0.05, step=0.1),
    "VEIL, scores": veil("score", epsilon=5.0, rounds=10),
    "VEIL, moments": veil("moments", epsilon=5.0, rounds=1, features=10),
    "FedAvg, as brief as DP-SGD": brief(None),
    "DP-SGD, epsilon 8": brief(8.0),
    "DP-SGD, epsilon 1": brief(1.0),
    "DP of sites, epsilon 8": {**MLP, **method("fedavg"), "privacy": {"mechanism": "client", "epsilon": 8.0}},
}


def normed(*, inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The MLP of the other methods, with BatchNorm: what FedBN is for."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs[0], 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, outputs))


def plan(arm: str, data: str, seed: int) -> dict[str, Any]:
    """One run; explanations change no model but SSE-AGG's, so others do without."""
    values = {"explain": {"sketch": "none"}, **ARMS[arm], "seed": seed}
    values["data"] = {"name": data, **values.get("data", {})}
    values["split"] = {"val": 0.1, "test": 0.4}
    if data != "heart":
        values["split"] |= {"partition": "equal", "sites": 4}
    return Experiment.parse(values).plan()


@dataclass(frozen=True)
class Row:
    """What was found of one method."""

    arm: str
    test: float
    train: float | None  # not told under a budget
    found: Membership
    epsilon: float | None
    claims: str

    @classmethod
    def of(cls, arm: str, run: Run, found: Membership) -> Row:
        told, printed = run.summary["privacy"], run.plan["method"]["veil"]["claimed_epsilon"]
        claims = "none" if told.get("epsilon") is None else f"{told['epsilon']:.3g} a {told['unit']}"
        claims = f"{printed:g}, and keeps none" if printed else claims
        train = run.summary["training"].get("auroc")
        return cls(arm, run.summary["final"]["auroc"], train, found, told.get("epsilon"), claims)

    def words(self) -> list[str]:
        by = {a.attack: a for a in self.found.attacks}
        areas = [f"{a.auc:.3f} ({a.low:.3f} to {a.high:.3f})" for a in (by[THRESHOLD], by[OFFLINE], by[ONLINE])]
        promise = self.found.promise
        most = "-" if promise is None else f"{promise.max_auc:.3f}"
        train = "-" if self.train is None else f"{self.train:.3f}"
        return [self.arm, train, f"{self.test:.3f}", *areas, f"{by[ONLINE].tpr:.1%}", self.claims, most]

    def plain(self) -> dict[str, Any]:
        rest = {k: v for k, v in asdict(self).items() if k != "found"}
        return {**rest, **self.found.to_dict()}


HEAD = (
    *("method", "AUROC, training rows", "AUROC, test rows", "loss threshold", "LiRA, offline", "LiRA, online"),
    *("TPR at 1% FPR (online)", "epsilon claimed", "largest AUC it allows"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("heart", "breast-cancer"), default="heart")
    parser.add_argument("--shadows", type=int, default=pick(8, 4))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/membership"))
    parser.add_argument("--jobs", type=int, default=pick(os.cpu_count() or 1, 1))
    parser.add_argument("--json", type=Path, help="also write all that was found to this file")
    args = parser.parse_args()
    here = str(Path(__file__).resolve().parent)  # runs are processes of their own, and FedBN's net is in this file
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    names = {arm: arm.replace(", ", "-").replace(" ", "-").lower() for arm in pick(tuple(ARMS), ("FedBN",))}
    plans = {name: plan(arm, args.data, args.seed) for arm, name in names.items()}
    runs = run_all(plans, args.out / args.data, jobs=args.jobs, progress=lambda name, run: None)
    rows = []
    for arm, run in zip(names, runs, strict=True):
        found = attack_run(run, shadows=args.shadows, jobs=args.jobs)
        write_attacks(run.folder, found.to_dict())
        rows.append(Row.of(arm, run, found))
    print(f"| {' | '.join(HEAD)} |")
    print("|---|" + "---:|" * (len(HEAD) - 1))
    for row in rows:
        print(f"| {' | '.join(row.words())} |")
    if args.json:
        args.json.write_text(
            json.dumps({"data": args.data, "seed": args.seed, "arms": [r.plain() for r in rows]}, indent=1)
        )


if __name__ == "__main__":
    main()
