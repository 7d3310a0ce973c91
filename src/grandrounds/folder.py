"""The run folder: what a run leaves behind, and how it is read back. JSON, TOML and arrays only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds import toml
from grandrounds.arrays import Array, save, write_atomic
from grandrounds.data.encoding import Encoding
from grandrounds.data.schema import Schema
from grandrounds.environment import environment
from grandrounds.errors import BadInput
from grandrounds.models.dense import Dense
from grandrounds.report.page import report_page

SCHEMA = 1


class RunFolder:
    """Paths and writers of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def rounds(self) -> Path:
        return self.path / "round_logs.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.toml"

    def create(self) -> None:
        """Make the folder; one that already holds something is never written over."""
        try:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise BadInput(
                    f"{self.path} exists and is not empty: choose another --out, or `rounds resume {self.path}`"
                )
            self.checkpoint.mkdir(parents=True)
        except OSError as e:
            raise BadInput(f"cannot make the run folder {self.path}: {e.strerror or e}; choose another --out") from None

    def write_experiment(self, values: Mapping[str, Any], schema: Schema) -> None:
        head = "# The whole experiment as it was run. `rounds run experiment.toml` repeats it to the bit."
        write_atomic(self.experiment, toml.dumps(values, head=head).encode())
        write_atomic(self.path / "environment.json", _json(environment()), durable=False)
        write_atomic(self.path / "schema.json", _json({"schema": SCHEMA, **schema.to_dict()}), durable=False)

    def write_model(
        self,
        model: Dense,
        theta: Array,
        encoding: Encoding,
        schema: Schema,
        temperature: float | None,
        threshold: float,
    ) -> None:
        """The final model with all that is needed to score a patient."""
        meta = {
            "schema": SCHEMA,
            "widths": list(model.widths),
            "encoding": encoding.to_dict(),
            "columns": replace(schema, columns=tuple(replace(c, why="") for c in schema.columns)).to_dict(),
            "temperature": temperature,
            "threshold": threshold,
        }
        save(self.model, {n: np.ascontiguousarray(a) for n, a in model.layout.views(theta).items()}, meta)

    def write_rounds(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_atomic(self.rounds, _json({"schema": SCHEMA, "rounds": records}), durable=False)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json, and the report beside it; the summary comes last, because it says the run is finished."""
        where = environment()
        rounds = self.read(self.rounds)["rounds"]
        write_atomic(self.report, report_page(summary, rounds, where).encode(), durable=False)
        write_atomic(self.summary, _json({"schema": SCHEMA, **summary, "environment": where}))

    def read(self, path: Path) -> Any:
        """A JSON file of this folder."""
        try:
            return json.loads(path.read_text())
        except OSError as e:
            raise BadInput(f"cannot read {path}: {e.strerror or e}") from None
        except ValueError:
            raise BadInput(f"{path} is damaged: it is not JSON") from None


def _json(values: Any) -> bytes:
    return json.dumps(values, indent=1, allow_nan=False).encode()
