"""What a tracker is told of a run: parameters, metrics by round and final ones, tags, files. Plain values, no tracker.

Files are named here one by one. What is not named is not sent: no patient's page (explain/), no heat map (at_sites/), no
summaries of columns (percentiles.json), no state of sites (checkpoint/), no key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.head import SignedHead
from grandrounds.core.errors import BadInput
from grandrounds.metrics import HIGHER_IS_BETTER, Place, shown_in
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.report.figure import Figure
from grandrounds.runs.run import Run

FILES = {
    "experiment.toml": "",
    "report.html": "",
    "ledger.head.json": "",
    "model.safetensors": "model",
    "schema.json": "model",
}
"""Files of a run folder, and the folder of the tracker that each goes to."""

LONGEST_VALUE, LONGEST_TAG, LONGEST_NAME = 6000, 5000, 250
"""What MLflow takes, in characters: values of parameters and tags, names of anything."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_CUT = " ..."


@dataclass(frozen=True)
class Measured:
    """A number of a round. `ends`: seconds from the round's end to the run's."""

    name: str
    value: float
    round: int
    ends: float


def params(plan: Mapping[str, Any]) -> dict[str, str]:
    """The plan in flat names, `method.rounds`; lists, and dicts by names of somebody's columns, as JSON. No nulls."""
    return {name: cut(_text(value), LONGEST_VALUE) for name, value in _flat(plan) if value not in (None, [], {})}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value and all(_fits(f"{name}.{k}", k) for k in value):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _fits(name: str, key: str) -> bool:
    return _PLAIN.fullmatch(key) is not None and len(name) <= LONGEST_NAME // 2


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def metrics(run: Run) -> list[Measured]:
    """Numbers by round, and the final ones at the last round."""
    records = run.rounds
    seconds = [float(r["decision"]["cost"].get("seconds", 0.0)) for r in records]
    out = []
    for at, record in enumerate(records):
        ends = sum(seconds[at + 1 :])
        out += [Measured(_name(n), v, int(record["round"]), ends) for n, v in _numbers(_of_round(record))]
    last = int(records[-1]["round"]) if records else 0
    final = {"final": _of_summary(run.summary)}
    return out + [Measured(_name(n), v, last, 0.0) for n, v in _numbers(final)]


def _of_round(record: Mapping[str, Any]) -> dict[str, Any]:
    decision = record["decision"]
    return {
        "test": record.get("test"),
        "val": record.get("val"),
        "worst_site": _worst(record.get("sites") or {}),
        **_drift(record.get("explanation") or {}),
        "reasons": record.get("reasons"),
        "privacy": {"epsilon": decision["privacy"].get("epsilon_spent")},
        "cost": decision["cost"],
        "sites": {"asked": len(decision["asked"]), "missing": len(decision["missing"])},
    }


def _of_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **summary["final"],
        "worst_site": summary["worst_site"],
        "gap": summary["generalisation_gap"],
        **_drift(summary["explanation"]),
        "privacy": {"epsilon": summary["privacy"].get("epsilon")},
        "parameters": summary["parameters"],
        "bytes": summary["cost"]["bytes_down"] + summary["cost"]["bytes_up"],
    }


def _worst(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Each metric where it is worst; which site that is can differ from metric to metric."""
    out = {}
    for name in shown_in(Place.ROUND_SITES):
        held = [v for v in sites.get(name, {}).values() if v is not None]
        if held and HIGHER_IS_BETTER[name] is not None:
            out[name] = min(held) if HIGHER_IS_BETTER[name] else max(held)
    return out


def _drift(explanation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    kinds = {kind: explanation[kind] for kind in ("training", "deployed") if explanation.get(kind)}
    return {
        "drift": {kind: block["drift"] for kind, block in kinds.items()},
        "jaccard": {kind: block["jaccard"] for kind, block in kinds.items()},
    }


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among nested values, as `test/auroc`; words, and what is not defined, are left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{above}{key}", float(value)


def _name(name: str) -> str:
    """A name that MLflow takes; a metric of one's own may be called anything."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)[:LONGEST_NAME]


@dataclass(frozen=True)
class Identity:
    """Which run this is. `name`: its folder's; `began`: a hash that stays when a run goes on for more rounds."""

    name: str
    began: str

    @property
    def digest(self) -> str:
        """One word for both: what is looked for in a tracker."""
        return hashlib.sha256(f"{self.name}\n{self.began}".encode()).hexdigest()


@dataclass(frozen=True)
class Contents:
    """All that is told of a run. `ended`: when it was done, in seconds since 1970."""

    experiment: str
    identity: Identity
    params: Mapping[str, str]
    metrics: Sequence[Measured]
    tags: Mapping[str, str]
    files: Sequence[tuple[Path, str]]
    figures: Mapping[str, Figure]
    ended: float


def contents(run: Run) -> Contents:
    """Read a finished run. One whose files do not fit together is said to be damaged."""
    _ = run.summary  # one that is not finished says so itself
    try:
        who = identity(run)
        return Contents(
            experiment=str(run.plan["name"]),
            identity=who,
            params=params(run.plan),
            metrics=metrics(run),
            tags=tags(run, who),
            files=list(files(run)),
            figures=dict(drawn(run)),
            ended=(run.folder / "summary.json").stat().st_mtime,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as e:
        raise BadInput(
            f"{run.folder} is damaged and was not logged: {type(e).__name__} {e}", code="damaged-run"
        ) from None


def identity(run: Run) -> Identity:
    """The folder's name with the hash of the ledger's first entry, or of the seed and the data where there is no ledger.

    The ledger's root will not do: it grows with every round, and a run that was resumed for more would be another one.
    """
    name = run.folder.resolve().name
    if (run.folder / "ledger.db").exists():
        with run.ledger as ledger:
            first = next(ledger.entries(), None)
        if first is not None:
            return Identity(name, _digest(first))
    return Identity(name, _digest({"seed": run.plan["seed"], "data": run.plan["data"].get("sha256")}))


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def tags(run: Run, who: Identity) -> dict[str, str]:
    """What a run can be found by, and what must be read with its figures."""
    from grandrounds import __version__

    summary = run.summary
    said = {
        "grandrounds.version": __version__,
        "grandrounds.run": who.name,
        "grandrounds.identity": who.digest,
        "grandrounds.method": str(summary["method"]),
        "grandrounds.data": str(summary["data"]),
        "grandrounds.privacy": str(summary["privacy"]["statement"]),
    }
    head = run.folder / "ledger.head.json"
    if head.exists():
        kept = SignedHead.read(head).head
        said |= {"grandrounds.ledger.root": kept.root.hex(), "grandrounds.ledger.size": str(kept.size)}
    return {name: cut(value, LONGEST_TAG) for name, value in said.items()}


def files(run: Run) -> Iterator[tuple[Path, str]]:
    """Files of the folder that are there, each with where it goes; models that stay separate too."""
    for name, to in FILES.items():
        if (run.folder / name).exists():
            yield run.folder / name, to
    for name in sorted(set(_models(run.summary.get("models") or {}))):
        yield run.folder / name, "model/models"


def _models(named: Mapping[str, Any]) -> Sequence[str]:
    """The separate models' files as the summary names them; a name that leads out of models/ is none."""
    return [n for n in named.values() if isinstance(n, str) and re.fullmatch(r"models/[0-9]+\.safetensors", n)]


def drawn(run: Run) -> Iterator[tuple[str, Figure]]:
    """The figures that the console and the report show of this run, by name."""
    has = (run.folder / "explanations.json").exists()
    told = RunRecord(run.rounds, run.summary, run.explanations if has else None)
    for name, entry in list_figures(told).items():
        figure = entry.make(told)
        if figure is not None:
            yield name, figure
