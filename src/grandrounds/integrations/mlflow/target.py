"""Where a run is logged: `mlflow`, or `mlflow:URI`; and what came of it, without the secrets that a URI can hold."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds.core.redact import HIDDEN, hide
from grandrounds.runs.run import Run

Figures = Literal["json", "html", "png"]
FORMS: tuple[Figures, ...] = get_args(Figures)

_KNOWN = ("mlflow",)
_URI = "MLFLOW_TRACKING_URI"
_SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


class NotLogged(GrandRoundsError):
    """The tracker did not take it; the run is as it was."""


@dataclass(frozen=True)
class Logged:
    """A run in a tracker. `kept`: parameters that the tracker holds as they were first logged, and that differ now."""

    id: str
    experiment: str
    where: str
    again: bool
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "brought up to date" if self.again else "logged"
        line = f"{verb} as run {self.id} of experiment '{self.experiment}' in MLflow at {self.where}"
        if self.kept:
            line += f"; MLflow keeps parameters as first logged, and these differ now: {', '.join(self.kept)}"
        return line


@dataclass(frozen=True)
class Target:
    """A tracker. `uri`: None for what MLflow itself falls back on; `named`: whether the URI was given on the spot."""

    uri: str | None = None
    named: bool = False

    @classmethod
    def parse(cls, said: str) -> Target:
        """From `mlflow` (MLFLOW_TRACKING_URI, or MLflow's own default) or `mlflow:URI`; refused where MLflow is missing."""
        name, _, uri = said.partition(":")
        if name not in _KNOWN:
            raise BadInput(
                f"unknown tracker '{hide(said)}'; {nearest(name, _KNOWN)} (or mlflow:URI)", code="unknown-tracker"
            )
        if find_spec("mlflow") is None:
            raise BadInput("logging a run needs MLflow: `pip install 'grandrounds[tracking]'`", code="mlflow-missing")
        return cls(uri or os.environ.get(_URI) or None, named=bool(uri))

    def __str__(self) -> str:
        """As it was said, but for secrets."""
        return f"mlflow:{shown(self.uri)}" if self.named and self.uri else "mlflow"

    def without_secrets(self, text: str) -> str:
        """A text in which no secret of this target stands: not the URI's, and not those that MLflow reads for it."""
        secrets = {value for name in _SECRET_VARIABLES if (value := os.environ.get(name))}
        if self.uri is not None and "://" in self.uri:
            text = text.replace(self.uri, shown(self.uri))
            secrets |= _secrets_of(self.uri)
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return hide(text)


def shown(uri: str) -> str:
    """A URI as it may be printed: nobody's name or password, no query."""
    return re.sub(r"(://)[^/?#]*@", rf"\1{HIDDEN}@", uri).partition("?")[0]


def _secrets_of(uri: str) -> set[str]:
    user = re.match(r"[^/]*://([^/?#]*)@", uri)
    parts = [user[1], *user[1].partition(":")[::2]] if user else []
    parts += [pair.partition("=")[2] for pair in urlsplit(uri).query.split("&")]
    return {p for part in parts for p in (part, unquote(part)) if p}


def track(run: Run, to: str | Target = "mlflow", *, figures: Figures = "json") -> Logged:
    """Log a finished run, or bring what was logged of it up to date.

    `figures`: "json" as Plotly reads it, "html" for a page each (2 MB), "png" where kaleido and a browser are there.
    """
    target = to if isinstance(to, Target) else Target.parse(to)
    if figures not in FORMS:
        raise BadInput(f"unknown form of figures '{figures}'; {nearest(figures, FORMS)}", code="unknown-figure-format")
    from grandrounds.integrations.mlflow.contents import contents
    from grandrounds.integrations.mlflow.in_mlflow import log

    return log(contents(run), target, figures=figures)
