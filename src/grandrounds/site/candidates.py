"""XFed at a site: it scores the model it trained on pictures it was sent, keeps it, and sends it once it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.rationale import REPORT, RationaleRule, rationale
from grandrounds.models import Model
from grandrounds.protocol.messages import KEEP, UPLOAD, Ask
from grandrounds.site.anchor import Lent
from grandrounds.site.attacks import told
from grandrounds.site.stack import Stack

Columns = dict[str, Any]


class Candidates:
    """The sites of one host that may be asked for the models they trained."""

    def __init__(self, *, stack: Callable[[], Stack], model: Callable[[], Model], lent: Mapping[str, Lent]) -> None:
        self._stack, self._model, self._lent = stack, model, lent
        self.kept: tuple[str, dict[int, Array]] = ("", {})  # an Ask, and the models of it that stay until asked for
        self.tasks: dict[str, Callable[[Ask, Array], Columns]] = {UPLOAD: self._upload}

    def says(self, ask: Ask, models: Any, members: Array) -> Columns:
        """What the members report of the models they trained, as asked; where they are told to, they keep these."""
        found = self._scored(ask, models, members) if REPORT in ask.shared else {}
        if ask.shared.get(KEEP):
            self._keep(ask, members, models)
        return found

    def _scored(self, ask: Ask, models: Any, members: Array) -> Columns:
        """How right the members' models are on the scoring pictures they were sent, and for which reasons."""
        held = self._lent.get(str(ask.shared[f"{REPORT}_on"]))
        y = None if held is None else held.classes
        if held is None or y is None:
            raise BadInput("a site is to score its reasons on labelled pictures that it was not sent: ask 'lend' first")
        rule = RationaleRule.from_json(str(ask.shared[REPORT]))
        found = rationale(rule, self._model(), models, held.x, y, held.masks)
        return told(found, attacks=self._stack().attacks_of(members), round=ask.round)

    def _keep(self, ask: Ask, members: Array, models: Any) -> None:
        """Hold the members' models until they are asked for; an Ask may come in parts, and a later one takes its place."""
        of, kept = self.kept
        before = kept if of == str(ask.id) else {}
        self.kept = (str(ask.id), before | dict(zip(members.tolist(), models, strict=True)))

    def _upload(self, ask: Ask, members: Array) -> Columns:
        """The models that the members kept when they were asked to train."""
        of, kept = self.kept
        if of != str(ask.shared["of"]) or any(k not in kept for k in members.tolist()):
            raise BadInput("a model is asked for that this site does not keep: it keeps the last one it was told to")
        models = [kept[k] for k in members.tolist()]
        return {"model": np.stack(models) if len({m.shape for m in models}) == 1 else models}
