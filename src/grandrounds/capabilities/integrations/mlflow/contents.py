"""Content of a run for a tracker as plain values: parameters, metrics by round, final metrics, tags, files.

Files are listed one by one. Other files are not sent: no patient's page (explain/), no heat map (at_sites/), no summaries
of columns (percentiles.json), no state of sites (checkpoint/), no key.
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
from grandrounds.core.records import RoundRecord, RunSummary, Scores
from grandrounds.metrics import HEADLINE, HIGHER_IS_BETTER, Place, shown_in
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
"""Files of a run folder, and the folder of each at the tracker."""

LONGEST_VALUE, LONGEST_TAG, LONGEST_NAME = 6000, 5000, 250
"""Limits of MLflow in characters: values of parameters and tags, and names."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_ELLIPSIS = " ..."


@dataclass(frozen=True)
class Metric:
    """A metric of one round.

    Attributes:
        name: The name.
        value: The value.
        round: The round.
        ends: Seconds from the round's end to the run's.
    """

    name: str
    value: float
    round: int
    ends: float


def flatten_plan(plan: Mapping[str, object]) -> dict[str, str]:
    """Flatten the plan to names such as `method.rounds`.

    Lists, and dicts with the user's column names, become JSON. Nulls and empty values are left out.
    """
    return {
        name: cut(_as_text(value), LONGEST_VALUE) for name, value in _flat_settings(plan) if value not in (None, [], {})
    }


def _flat_settings(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value and all(_is_plain_name(f"{name}.{k}", k) for k in value):
            yield from _flat_settings(value, f"{name}.")
        else:
            yield name, value


def _is_plain_name(name: str, key: str) -> bool:
    return _PLAIN.fullmatch(key) is not None and len(name) <= LONGEST_NAME // 2


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(text: str, most: int) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else text[: most - len(_ELLIPSIS)] + _ELLIPSIS


def list_metrics(run: Run) -> list[Metric]:
    """List the metrics of each round, and the final ones at the last round."""
    records = run.rounds
    seconds = [float(r.decision.cost.get("seconds", 0.0)) for r in records]
    out = []
    for position, record in enumerate(records):
        ends = sum(seconds[position + 1 :])
        out += [Metric(_metric_name(n), v, record.round, ends) for n, v in _flatten_numbers(_round_metrics(record))]
    last = records[-1].round if records else 0
    final = {"final": _final_metrics(run.summary)}
    return out + [Metric(_metric_name(n), v, last, 0.0) for n, v in _flatten_numbers(final)]


def _round_metrics(record: RoundRecord) -> dict[str, object]:
    decision = record.decision
    return {
        "test": record.test,
        "val": record.val,
        "worst_site": _worst_scores(record.sites),
        **_drift_metrics(record.explanation),
        "reasons": record.reasons,
        "privacy": {"epsilon": decision.privacy.get("epsilon_spent")},
        "cost": decision.cost,
        "sites": {"asked": len(decision.asked), "missing": len(decision.missing)},
    }


def _final_metrics(summary: RunSummary) -> dict[str, object]:
    return {
        **summary.final,
        "worst_site": summary.worst_site,
        "gap": summary.generalisation_gap,
        **_drift_metrics(summary.explanation),
        "privacy": {"epsilon": summary.privacy.get("epsilon")},
        "parameters": summary.parameters,
        "bytes": summary.cost["bytes_down"] + summary.cost["bytes_up"],
    }


def _worst_scores(sites: Mapping[str, Scores]) -> dict[str, float]:
    """Return each metric at its worst site, which can differ between metrics."""
    out = {}
    names = (*shown_in(Place.ROUND_SITES), *(m for m in HEADLINE.values() if m in sites))
    for name in dict.fromkeys(names):
        values = [v for v in sites.get(name, {}).values() if v is not None]
        if values and HIGHER_IS_BETTER[name] is not None:
            out[name] = min(values) if HIGHER_IS_BETTER[name] else max(values)
    return out


def _drift_metrics(explanation: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds = {kind: explanation[kind] for kind in ("training", "deployed") if explanation.get(kind)}
    return {
        "drift": {kind: block["drift"] for kind, block in kinds.items()},
        "jaccard": {kind: block["jaccard"] for kind, block in kinds.items()},
    }


def _flatten_numbers(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers among nested values, as `test/auroc`; text and undefined values are left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten_numbers(value, f"{above}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{above}{key}", float(value)


def _metric_name(name: str) -> str:
    """Replace characters that MLflow refuses; a user's own metric may have any name."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)[:LONGEST_NAME]


@dataclass(frozen=True)
class Identity:
    """Identity of a run.

    Attributes:
        name: Name of its folder.
        began: A hash that does not change when a run continues for more rounds.
    """

    name: str
    began: str

    @property
    def digest(self) -> str:
        """Return one hash of both, to look a run up in a tracker."""
        return hashlib.sha256(f"{self.name}\n{self.began}".encode()).hexdigest()


@dataclass(frozen=True)
class Contents:
    """The content of a run for a tracker; `ended` is in seconds since 1970."""

    experiment: str
    identity: Identity
    params: Mapping[str, str]
    metrics: Sequence[Metric]
    tags: Mapping[str, str]
    files: Sequence[tuple[Path, str]]
    figures: Mapping[str, Figure]
    ended: float


def read_contents(run: Run) -> Contents:
    """Read a finished run.

    Raises:
        BadInput: The run is not finished, or its files are damaged.
    """
    _ = run.summary  # an unfinished run raises its own error
    try:
        identity = identify(run)
        return Contents(
            experiment=str(run.plan["name"]),
            identity=identity,
            params=flatten_plan(run.plan),
            metrics=list_metrics(run),
            tags=build_tags(run, identity),
            files=list(list_files(run)),
            figures=dict(draw_figures(run)),
            ended=(run.folder / "summary.json").stat().st_mtime,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as e:
        raise BadInput(
            f"{run.folder} is damaged and was not logged: {type(e).__name__} {e}", code="damaged-run"
        ) from None


def identify(run: Run) -> Identity:
    """Identify a run by its folder's name and the hash of its ledger's first entry, or of its seed and data without a
    ledger.

    The ledger's root is not used: it changes with every round, so a resumed run would be another one.
    """
    name = run.folder.resolve().name
    if (run.folder / "ledger.db").exists():
        with run.ledger as ledger:
            first = next(ledger.entries(), None)
        if first is not None:
            return Identity(name, _digest(first))
    return Identity(name, _digest({"seed": run.plan["seed"], "data": run.plan["data"].get("sha256")}))


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def build_tags(run: Run, identity: Identity) -> dict[str, str]:
    """Build the tags that identify a run, and those that must be read with its scores."""
    from grandrounds.core.version import __version__

    summary = run.summary
    tags = {
        "grandrounds.version": __version__,
        "grandrounds.run": identity.name,
        "grandrounds.identity": identity.digest,
        "grandrounds.method": str(summary.method),
        "grandrounds.data": str(summary.data),
        "grandrounds.privacy": str(summary.privacy["statement"]),
    }
    head = run.folder / "ledger.head.json"
    if head.exists():
        signed = SignedHead.read(head).head
        tags |= {"grandrounds.ledger.root": signed.root.hex(), "grandrounds.ledger.size": str(signed.size)}
    return {name: cut(value, LONGEST_TAG) for name, value in tags.items()}


def list_files(run: Run) -> Iterator[tuple[Path, str]]:
    """Yield the files of the folder, each with its folder at the tracker; separate models too."""
    for name, destination in FILES.items():
        if (run.folder / name).exists():
            yield run.folder / name, destination
    for name in sorted(set(_model_files(run.summary.models))):
        yield run.folder / name, "model/models"


def _model_files(named: Mapping[str, str]) -> Sequence[str]:
    """Return the files of separate models that the summary names; names outside models/ are left out."""
    return [n for n in named.values() if isinstance(n, str) and re.fullmatch(r"models/[0-9]+\.safetensors", n)]


def draw_figures(run: Run) -> Iterator[tuple[str, Figure]]:
    """Yield the figures that the console and the report show of this run, by name."""
    has = (run.folder / "explanations.json").exists()
    run_record = RunRecord(run.rounds, run.summary, run.explanations if has else None)
    for name, entry in list_figures(run_record).items():
        figure = entry.make(run_record)
        if figure is not None:
            yield name, figure
