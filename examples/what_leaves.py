"""What one site sends in a run, message by message: names, shapes, bytes. And what a reader could make of it.

    python examples/what_leaves.py [RECIPE] [SITE]

Default: breast-cancer and its first site. One round of training, driven by a twenty-line engine of our own
(methods are generators, so anything can drive them).
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import numpy as np

from grandrounds.consortium import assemble
from grandrounds.data.encoding import EncodingRules
from grandrounds.data.quantiles import grid_value
from grandrounds.messages import Answers, Ask, AskId
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import agree, evaluate, fit_temperature, prepare
from grandrounds.models import build_model
from grandrounds.recipes import load_recipe
from grandrounds.settings import Settings
from grandrounds.site.host import SiteHost
from grandrounds.wire import answer_size


class Listener:
    """Drives a generator with one host a site, and prints what the listened-to site answers."""

    def __init__(self, stack: Any, listen_to: str) -> None:
        self.hosts = {name: SiteHost(stack.alone(k)) for k, name in enumerate(stack.names)}
        self.site, self.step, self.heard = listen_to, 0, {}

    def drive(self, work: Generator[Ask, Answers, Any]) -> Any:
        reply: Any = None
        while True:
            try:
                ask = work.send(reply)
            except StopIteration as end:
                return end.value
            self.step += 1
            rows = [(site, self.answer(ask, site)) for site in (ask.to or self.hosts)]
            reply = Answers.from_rows(rows)

    def answer(self, ask: Ask, site: str) -> dict[str, Any]:
        host, one = self.hosts[site], np.zeros(1, np.int64)
        asked = ask.numbered(AskId("look", 0, self.step), (site,))
        values = {name: column[0] for name, column in host.answer(asked, one).items()}
        if site == self.site:
            self.heard[ask.task] = values
            layout = host.model.layout if host.model else None
            print(f"\n{ask.task}: {answer_size(asked.id, values, layout):,} bytes")
            for name, value in values.items():
                kind = f"{len(value)} characters" if isinstance(value, str) else f"numbers {np.shape(value)}"
                print(f"  {name:<22} {kind}")
        return values


def main(recipe: str = "breast-cancer", site: str = "") -> None:
    plan = Settings(load_recipe(recipe).plan())
    held = assemble(plan)
    k = held.stack.names.index(site) if site else 0
    listener = Listener(held.stack, held.stack.names[k])
    rows = held.stack.rows[k]
    print(f"{listener.site}: {len(rows.train)} training, {len(rows.val)} validation, {len(rows.test)} test rows")

    data, d = held.data, plan.data
    rules = EncodingRules(d.scale, d.impute, d.clip, d.max_categories, d.positive)
    names = {"numeric": data.numeric_names, "categorical": data.categorical_names}
    encoding, _ = listener.drive(agree(**names, rules=rules, to=held.training))
    listener.drive(prepare(encoding, model=plan.model.name, hidden=plan.model.hidden))
    shape = {"features": len(encoding.features), "classes": len(encoding.classes), "hidden": plan.model.hidden}
    start = build_model(plan.model.name, **shape).init(plan.seed)
    server = Server(1, start, held.training, plan.seed)
    model = listener.drive(build_method(plan.method, plan.train).round(server)).model
    listener.drive(evaluate(model, ("val", "test")))
    listener.drive(fit_temperature(model))

    print("\nWhat can be read from them:")
    said, own = listener.heard["summarise"], data.take(rows.train).numeric
    for j, name in enumerate(data.numeric_names[:3]):
        mine = said["cell_column"] == j
        rebuilt = np.sort(np.repeat(grid_value(said["cell"][mine]), said["cell_count"][mine]))
        true = np.sort(own[~np.isnan(own[:, j]), j])
        worst = float(np.max(np.abs(rebuilt - true) / np.maximum(np.abs(true), 1e-9), initial=0))
        print(f"  {name}: all {len(true)} values of the training rows, to {worst:.2%} (not whose they are)")
    shown = int(listener.heard["evaluate"]["test.histogram"].sum())
    cells = int((listener.heard["evaluate"]["test.histogram"] > 0).sum())
    print(f"  evaluate: {shown} scores of test rows with their true class, in {cells} of the histogram's cells")


if __name__ == "__main__":
    main(*sys.argv[1:3])
