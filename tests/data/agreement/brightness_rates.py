"""How often brightness is suspected that is right, and told that is wrong: each part of three real sets against its others.

`python -m tests.data.agreement.brightness_rates` prints the table of docs/site.md. HAM10000 is parted by its four sources;
MNIST and CIFAR-10 have none and are parted by class, ten sites that are as unlike as one set can make them. The thresholds are
those of units. That they do for brightness too was decided after a look at these same sets, so this is no independent test.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import check_brightness, mean_brightness
from grandrounds.data.agreement.schema import LEVELS
from grandrounds.data.images import ImageSet
from grandrounds.data.row_files import split_images
from grandrounds.data.sets.catalog import find_entry

CHANGES = {
    "as they are": lambda light: light,
    "negatives": lambda light: 255 - light,
    "half as bright": lambda light: light / 2,
    "a quarter as bright": lambda light: light / 4,
}


def parts(name: str) -> dict[str, Array]:
    """The mean brightness of each picture, by source or by class."""
    data = find_entry(name).load()
    assert isinstance(data, ImageSet)
    data = data if data.site is not None else replace(data, site=data.label)
    return {site: mean_brightness(local.pixels)[0] for site, local in split_images(data, None).items()}


def rates(light: dict[str, Array]) -> dict[str, tuple[int, int]]:
    """By change: how many parts were told, and how many of them as errors."""
    out = {change: [0, 0] for change in CHANGES}
    for name, mine in light.items():
        quantiles = tuple(np.quantile(np.concatenate([v for n, v in light.items() if n != name]), LEVELS))
        for change, built in CHANGES.items():
            levels = [f.level for f in check_brightness(built(mine), quantiles)]
            out[change][0] += len(levels)
            out[change][1] += levels.count("error")
    return {change: (reported, errors) for change, (reported, errors) in out.items()}


if __name__ == "__main__":
    print("| set | parts |", " | ".join(f"{change}: told (as errors)" for change in CHANGES), "|")
    for name in ("ham10000", "mnist", "cifar-10"):
        light = parts(name)
        found = rates(light)
        print(f"| {name} | {len(light)} |", " | ".join(f"{told} ({errors})" for told, errors in found.values()), "|")
