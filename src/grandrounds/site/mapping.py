"""Heat maps at a site: of its local model and of the common model, on its own images. It reports numbers, never a map.

A training Ask may request that a site stores its model. The Ask `maps` after the round sends the common model, and the site
computes maps of both on the same images. Earlier maps are read from the site's own file, so a resumed run gives the same numbers
(`map_files`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.explain.map_metrics import (
    COMMON,
    KEEP,
    LOCAL,
    NUMBERS,
    REPORT,
    SIZE,
    MapRule,
    ModelMaps,
    compare_maps,
    measure_maps,
)
from grandrounds.protocol.messages import Ask
from grandrounds.site.map_files import MapFiles, with_names
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task, TrainRequest
from grandrounds.site.stack import PARTS, Stack


class SiteMaps(SitePlugin):
    """Heat maps of the sites of one host, on images of their own."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.files = MapFiles()
        self.kept: dict[int, tuple[str, Array]] = {}  # site -> the Ask of its stored model, and the model

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {REPORT: self._maps}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Store the models that members answer with until maps are requested, if the Ask says so."""
        if request.ask.shared.get(KEEP):
            models = zip(request.members.tolist(), columns["model"], strict=True)
            self.kept |= {k: (str(request.ask.id), np.array(model)) for k, model in models}
        return {}

    def _maps(self, ask: Ask, members: Array) -> Columns:
        """Compute the numbers of each member's maps, (m, maps, numbers), and store its maps in its file."""
        rule = MapRule.from_json(str(ask.shared[REPORT]))
        theta = np.asarray(self.site.in_use(ask, members))  # one for all, or one per site
        common = np.broadcast_to(theta, (len(members), theta.shape[-1]))
        numbers = [self._one(ask, rule, k, model) for k, model in zip(members.tolist(), common, strict=True)]
        for k in members.tolist():
            self.kept.pop(k, None)
        return {REPORT: np.stack(numbers)}

    def _one(self, ask: Ask, rule: MapRule, k: int, common: Array) -> Array:
        stack, nothing = self.site.stack, np.full((len(rule.names), SIZE), np.nan)
        site = stack.names[k]
        ask_id, mine = self.kept.get(k, ("", common))
        local = mine if ask_id and ask_id == str(ask.for_site(site).get("trained", "")) else None
        part, places = own_pictures(stack, k, rule)
        models = {kind: theta for kind, theta in ((LOCAL, local), (COMMON, common)) if theta is not None}
        models = {kind: theta for kind, theta in models.items() if np.isfinite(theta).all()}
        if not len(places) or not models:
            return nothing
        rows = stack.parts[part]
        row_numbers = rows.offsets[k] + places
        masks = getattr(stack.data, "masks", None)
        if masks is not None:
            masks = masks[getattr(stack.rows[k], part)[places]]
        maps = measure_maps(
            rule,
            self.site.prepared_model(),
            np.stack(list(models.values())),
            rows.x[row_numbers],
            rows.y[row_numbers],
            masks,
        )
        now = {"part": np.array(part), "places": places}
        for j, kind in enumerate(models):
            now |= with_names({name: h[j] for name, h in maps.heat.items()}, kind)
            now[f"{kind}.said"] = maps.probabilities[j].astype(np.float32)
        before = self.files.read(site, int(ask.shared["before"]))
        self.files.write(site, ask.round, now)
        return np.stack([_numbers(name, maps, tuple(models), now, before) for name in rule.names])


def own_pictures(stack: Stack, k: int, rule: MapRule) -> tuple[str, Array]:
    """Select a site's images: the part (test, else validation, else training rows), and their positions in it.

    They are the same in every round.
    """
    part = next((name for name in reversed(PARTS) if len(getattr(stack.rows[k], name))), PARTS[0])
    count = len(getattr(stack.rows[k], part))
    rng = generator(rule.seed, purpose="mapped pictures", site=stack.names[k])
    return part, np.sort(rng.choice(count, min(count, rule.rows), replace=False))


def _numbers(
    name: str, maps: ModelMaps, models: tuple[str, ...], now: dict[str, Array], before: dict[str, Array]
) -> Array:
    """Compute one map's numbers in the order of NUMBERS; NaN if undefined."""
    by_kind = {kind: maps.numbers[name][j] for j, kind in enumerate(models)}
    out = [by_kind.get(kind, np.full(len(NUMBERS[kind]), np.nan)) for kind in (LOCAL, COMMON)]
    none = np.full(2, np.nan)
    out.append(compare_maps(*maps.heat[name]) if len(models) > 1 else none)
    for kind in (LOCAL, COMMON):
        key = f"{kind}.{name}"
        same = key in now and key in before and now[key].shape == before[key].shape
        out.append(compare_maps(now[key].astype(float), before[key].astype(float)) if same else none)
    return np.concatenate(out)
