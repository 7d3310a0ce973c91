"""Target of a log, `mlflow` or `mlflow:URI`, and its result, without the secrets of a URI."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from grandrounds.core.errors import BadInput, GrandRoundsError, install_extra, nearest
from grandrounds.core.redact import HIDDEN, hide

Figures = Literal["json", "html", "png"]
FORMS: tuple[Figures, ...] = get_args(Figures)

_KNOWN = ("mlflow",)
_URI = "MLFLOW_TRACKING_URI"
_SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


class NotLogged(GrandRoundsError):
    """The tracker refused or failed; the run is unchanged."""


@dataclass(frozen=True)
class LoggedRun:
    """A run in a tracker.

    Attributes:
        id: The tracker's id of the run.
        experiment: The experiment there.
        where: The location, without secrets.
        again: It was logged before.
        unchanged: Parameters that differ now, but that the tracker keeps as first logged.
    """

    id: str
    experiment: str
    where: str
    again: bool
    unchanged: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "updated" if self.again else "logged"
        line = f"{verb} as run {self.id} of experiment '{self.experiment}' in MLflow at {self.where}"
        if self.unchanged:
            line += f"; MLflow keeps parameters as first logged, and these have changed: {', '.join(self.unchanged)}"
        return line


@dataclass(frozen=True)
class Target:
    """A tracker.

    Attributes:
        uri: The URI; None for MLflow's own default.
        named: The user gave the URI, not the environment.
    """

    uri: str | None = None
    named: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse `mlflow` (MLFLOW_TRACKING_URI, or MLflow's own default) or `mlflow:URI`.

        Raises:
            BadInput: The tracker is unknown, or MLflow is not installed.
        """
        name, _, uri = text.partition(":")
        if name not in _KNOWN:
            raise BadInput(
                f"unknown tracker '{hide(text)}'; {nearest(name, _KNOWN)} (or mlflow:URI)", code="unknown-tracker"
            )
        if find_spec("mlflow") is None:
            raise BadInput(f"logging a run needs MLflow; {install_extra('tracking')}", code="missing-package")
        return cls(uri or os.environ.get(_URI) or None, named=bool(uri))

    def __str__(self) -> str:
        """Return the given text without secrets."""
        return f"mlflow:{hide_credentials(self.uri)}" if self.named and self.uri else "mlflow"

    def without_secrets(self, text: str) -> str:
        """Hide this target's secrets in a text: those of the URI, and those that MLflow reads from the environment."""
        secrets = {value for name in _SECRET_VARIABLES if (value := os.environ.get(name))}
        if self.uri is not None and "://" in self.uri:
            text = text.replace(self.uri, hide_credentials(self.uri))
            secrets |= _secrets_of(self.uri)
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return hide(text)


def hide_credentials(uri: str) -> str:
    """Remove user, password and query from a URI, so that it can be printed."""
    return re.sub(r"(://)[^/?#]*@", rf"\1{HIDDEN}@", uri).partition("?")[0]


def _secrets_of(uri: str) -> set[str]:
    user = re.match(r"[^/]*://([^/?#]*)@", uri)
    parts = [user[1], *user[1].partition(":")[::2]] if user else []
    parts += [pair.partition("=")[2] for pair in urlsplit(uri).query.split("&")]
    return {p for part in parts for p in (part, unquote(part)) if p}
