"""Published figures of FLamby: their means and deviations over seeds, and the C-indices of Fed-TCGA-BRCA.

From the files `tcga_seed42.csv` to `tcga_seed46.csv` of FLamby's repository (flamby/results and flamby/new_results), rounded
to four digits. The paper's figure (du Terrail et al., NeurIPS 2022) shows their means over five seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

SEEDS = (42, 43, 44, 45, 46)

Row = tuple[float, float, float, float, float, float, float]
"""C-index of centres 0 to 5, then of all test rows together."""

BY_SEED: Mapping[str, tuple[Row, ...]] = {
    "FedAvg": (
        (0.7570, 0.7500, 0.7593, 0.6250, 0.9787, 1.0, 0.8026),
        (0.5754, 0.2273, 0.3519, 0.8333, 0.1277, 0.3333, 0.4227),
        (0.7737, 0.7727, 0.7593, 0.5833, 1.0, 1.0, 0.8081),
        (0.8352, 0.6591, 0.8056, 0.7708, 0.8511, 1.0, 0.8289),
        (0.7821, 0.7273, 0.7778, 0.5625, 0.9787, 1.0, 0.8143),
    ),
    "FedProx": (
        (0.7039, 0.7955, 0.7315, 0.6042, 0.9574, 1.0, 0.7758),
        (0.5726, 0.2500, 0.3333, 0.8542, 0.2340, 0.3333, 0.4278),
        (0.7598, 0.7727, 0.7500, 0.5625, 1.0, 1.0, 0.7963),
        (0.8268, 0.7955, 0.7685, 0.7917, 0.7872, 1.0, 0.8084),
        (0.7095, 0.7273, 0.7500, 0.5208, 0.9787, 1.0, 0.7751),
    ),
    "Scaffold": (
        (0.5838, 0.7727, 0.6389, 0.5625, 0.9149, 0.6667, 0.6971),
        (0.5642, 0.7273, 0.6204, 0.5417, 0.8085, 1.0, 0.6579),
        (0.6620, 0.6136, 0.7130, 0.3125, 0.9787, 0.6667, 0.7513),
        (0.5615, 0.9318, 0.7315, 0.5625, 0.9362, 0.6667, 0.7092),
        (0.5922, 0.7273, 0.6759, 0.2917, 0.9149, 0.6667, 0.6821),
    ),
    "Cyclic": (
        (0.5670, 0.8182, 0.7222, 0.4167, 1.0, 0.6667, 0.6923),
        (0.5559, 0.8182, 0.7315, 0.3333, 0.9362, 0.6667, 0.6853),
        (0.6145, 0.7727, 0.7222, 0.2917, 0.9787, 0.6667, 0.7190),
        (0.3547, 0.9091, 0.6574, 0.7708, 0.4894, 0.3333, 0.5297),
        (0.5587, 0.7727, 0.6852, 0.3125, 0.9574, 0.6667, 0.6773),
    ),
    "FedAdagrad": (
        (0.8184, 0.7273, 0.8519, 0.5833, 0.9362, 1.0, 0.8311),
        (0.8464, 0.5909, 0.8796, 0.7083, 0.8723, 1.0, 0.8370),
        (0.8575, 0.5682, 0.8889, 0.7083, 0.8298, 1.0, 0.8242),
        (0.8464, 0.6136, 0.8981, 0.7083, 0.7872, 1.0, 0.8322),
        (0.8715, 0.6136, 0.8426, 0.6875, 0.8511, 1.0, 0.8443),
    ),
    "FedAdam": (
        (0.8520, 0.6136, 0.8796, 0.5625, 0.9362, 1.0, 0.8381),
        (0.8547, 0.6818, 0.8148, 0.4375, 0.8723, 1.0, 0.8209),
        (0.8380, 0.6364, 0.9259, 0.7083, 0.9362, 1.0, 0.8560),
        (0.8827, 0.6136, 0.8981, 0.7292, 0.8936, 1.0, 0.8619),
        (0.8156, 0.7273, 0.8889, 0.5833, 0.8723, 1.0, 0.8337),
    ),
    "FedYogi": (
        (0.8520, 0.6136, 0.8796, 0.5625, 0.9362, 1.0, 0.8385),
        (0.8547, 0.6818, 0.8148, 0.4375, 0.8723, 1.0, 0.8209),
        (0.8380, 0.6364, 0.9259, 0.7083, 0.9362, 1.0, 0.8560),
        (0.8827, 0.6136, 0.8981, 0.7292, 0.8936, 1.0, 0.8615),
        (0.8156, 0.7273, 0.8889, 0.5833, 0.8723, 1.0, 0.8337),
    ),
    "pooled training": (
        (0.8017, 0.5227, 0.8333, 0.5208, 1.0, 1.0, 0.7963),
        (0.7011, 0.8182, 0.8426, 0.4375, 0.9787, 0.6667, 0.7799),
        (0.7933, 0.3864, 0.4907, 0.7500, 0.6170, 0.6667, 0.6095),
        (0.8575, 0.7045, 0.7685, 0.6458, 0.8723, 0.3333, 0.7824),
        (0.7123, 0.4773, 0.5926, 0.7917, 0.3617, 0.3333, 0.5524),
    ),
    "local training": (
        (0.6453, 0.4773, 0.8796, 0.5625, 0.9149, 0.6667, float("nan")),
        (0.6592, 0.4318, 0.8333, 0.6250, 0.8936, 0.6667, float("nan")),
        (0.6732, 0.5000, 0.8796, 0.5625, 0.8298, 0.6667, float("nan")),
        (0.5782, 0.5455, 0.7963, 0.6458, 0.8511, 0.6667, float("nan")),
        (0.6648, 0.6818, 0.8611, 0.5833, 0.7660, 0.6667, float("nan")),
    ),
}
"""Strategy -> a row for each seed. "local training" has each centre's own model on its own test rows, and no pooled figure."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float
    count: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / sqrt(self.count)


def spread(values: list[float] | tuple[float, ...]) -> Spread:
    """Return mean and standard deviation (n - 1) of figures over seeds."""
    mean = sum(values) / len(values)
    sd = sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return Spread(mean, sd, len(values))


def published(strategy: str, measure: str, table: Mapping[str, Sequence[Sequence[float]]] = BY_SEED) -> Spread:
    """Return a published figure over five seeds.

    Args:
        strategy: A key of the table.
        measure: "client_mean", "pooled", or "centre_0", "centre_1" ...
        table: Strategy -> a row for each seed: the figure of each centre, then of all test rows together.
    """
    rows = table[strategy]
    if measure == "client_mean":
        return spread([sum(row[:-1]) / (len(row) - 1) for row in rows])
    return spread([row[-1 if measure == "pooled" else int(measure.removeprefix("centre_"))] for row in rows])
