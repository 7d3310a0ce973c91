"""How long an exchange with two sites takes over Flower: TLS, node keys, gateway, state on disk, all on this machine.

`python bench/flower.py` starts a SuperLink, nginx and two SuperNodes, once as Flower ships them and once with their sleeps
capped (`--fast` of `rounds site start`), and sends letters of 1,000 float32 to an echoing worker. The first exchange of a run
is left out. Bars: a mean under 4.5 s with stock SuperNodes, under 2 s with capped sleeps. What else the machine does counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.deploy.flower_support import Consortium, Site, until

from grandrounds.deploy.control import Control

PARTS = ("upload", "asleep", "pull", "handler", "push", "return")
ABOUT = {
    "upload": "server to SuperLink",
    "asleep": "until the worker has the task: the SuperNode's sleep, then the header",
    "pull": "letter to SuperNode and worker",
    "handler": "echo",
    "push": "answer to the SuperNode",
    "return": "SuperNode notices and sends, server polls and fetches",
}
BARS = {"stock": 4.5, "fast": 2.0}


class Timed:
    """When each site took a letter, began and ended with it, and had handed the answer over. One clock: all in one process."""

    def __init__(self, site: Site) -> None:
        self.at: dict[str, float] = {}
        said = site.note
        site.handler, site.note = self.handle, lambda word: (self._noted(word), said(word))  # type: ignore[method-assign]

    def _noted(self, word: str) -> None:
        if word in ("taken", "answered"):
            self.at[word] = time.monotonic()

    def handle(self, letter: bytes) -> bytes:
        self.at["begin"] = time.monotonic()
        self.at["end"] = time.monotonic()
        return letter


def measured(folder: Path, *, fast: bool, exchanges: int, size: int) -> dict[str, object]:
    """Seconds of an exchange, which waits for the slower site, and the mean of its parts over sites."""
    consortium = Consortium(folder, "north", "south", through_gateway=True, fast=fast)
    if consortium.gateway is None:
        raise SystemExit("nginx is not installed: the gateway is part of what is measured")
    timed = {site.name: Timed(site) for site in consortium.sites}
    try:
        consortium.start()
        until(lambda: len(consortium.online()) == 2, seconds=120)
        run = consortium.run()
        who = run.addresses(2)
        with Control.local(consortium.link) as control:
            names = {str(node.id): node.name for node in control.nodes()}
        whole: list[float] = []
        parts: list[list[float]] = []
        for _ in range(exchanges + 1):
            letter = os.urandom(size)
            began = time.monotonic()
            tickets = run.post.send([(node, letter) for node in who])
            sent, left, got = time.monotonic(), set(tickets), {}
            while left:
                for reply in run.post.collect(left, wait=1.0):
                    assert reply.data == letter, reply.error
                    left.discard(reply.ticket)
                    got[reply.ticket] = time.monotonic()
            seconds = time.monotonic() - began
            until(lambda: all("answered" in one.at for one in timed.values()))
            for ticket, node in zip(tickets, who, strict=True):
                t = timed[names[node]].at
                handed = min(t["answered"], got[ticket])
                edges = (began, min(sent, t["taken"]), t["taken"], t["begin"], t["end"], handed, got[ticket])
                parts.append([b - a for a, b in pairwise(edges)])
                t.clear()
            whole.append(seconds)
        run.finish()
    finally:
        consortium.close()
    whole, parts = whole[1:], parts[2:]  # the first exchange of a run is another thing: nodes fetch the run itself
    means = [statistics.mean(column) for column in zip(*parts, strict=True)]
    return {
        "exchanges": len(whole),
        "mean": statistics.mean(whole),
        "median": statistics.median(whole),
        "least": min(whole),
        "most": max(whole),
        "parts": dict(zip(PARTS, means, strict=True)),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=20)
    parser.add_argument("--floats", type=int, default=1000)
    parser.add_argument("--only", choices=tuple(BARS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {}
    for kind, bar in BARS.items():
        if args.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder:
            one = measured(Path(folder), fast=kind == "fast", exchanges=args.exchanges, size=4 * args.floats)
        found[kind] = one
        print(
            f"{kind}: mean {one['mean']:.2f} s of {one['exchanges']} (median {one['median']:.2f}, "
            f"{one['least']:.2f} to {one['most']:.2f}); bar {bar} s; load average {one['load']:.1f}"
        )
        for part, seconds in one["parts"].items():  # type: ignore[attr-defined]
            print(f"  {part:8} {seconds:6.3f} s  {ABOUT[part]}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
