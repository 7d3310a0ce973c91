"""Reconstruction attacks on a finished run: every statistic that it disclosed, with its attack or the words "not attacked"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.analysis.privacy import disclosures as kinds
from grandrounds.analysis.privacy.disclosures import Disclosure, find_disclosures
from grandrounds.capabilities.attacks.counts import (
    CELLS,
    attack_glass_box,
    attack_percentiles,
    attack_published_metrics,
    attack_row_counts,
    attack_scores,
    attack_summary,
    attack_table,
)
from grandrounds.capabilities.attacks.findings import (
    EXPLANATIONS_FILE,
    MODEL_FILE,
    RANGES,
    RELEASE,
    UNCOVERED,
    AttackedRun,
    StatisticAttack,
)
from grandrounds.capabilities.attacks.prototypes import NAME, Prototypes, invert_model
from grandrounds.capabilities.attacks.queries import encode_rows
from grandrounds.capabilities.attacks.sums import attack_sums, describe_links, describe_sums
from grandrounds.capabilities.attacks.updates import UpdateAttack, UpdateProtection, attack_updates
from grandrounds.core.arrays import Array
from grandrounds.core.plugins import is_path
from grandrounds.data.dataset import Dataset
from grandrounds.data.summary import grid_index
from grandrounds.models.dense import Dense
from grandrounds.privacy.attacks.reconstruction import alone_in_cell
from grandrounds.privacy.in_words import uncovered
from grandrounds.protocol.task_spec import PREPARATION, ROW_COUNTS, TEST_ROWS
from grandrounds.site.prepare import encode_targets

INVERSION = "inversion of updates"
_WIDE = 1e299
"""A range as wide as this clips nothing."""

_BOUNDED = "It has the noise of the run; epsilon bounds every attack on it, and membership attacks test the model that follows."
_NOT_ATTACKED = {
    kinds.SIGNALS: "Single figures of a model on many patients; no attack on them is offered.",
    kinds.ATTRIBUTIONS: "Mean shares of columns over up to 200 patients; no attack on them is offered.",
    kinds.HEAT_MAPS: "Single figures of heat maps; no attack on them is offered.",
    kinds.CALIBRATION: "Sums over validation rows for two numbers; no attack on them is offered.",
    kinds.ACCURACY: "Single figures of a model on many patients; no attack on them is offered.",
    kinds.PERSONAL: "Sums over a site's rows, and figures of its deployed model; no attack on them is offered.",
}
"""Kinds of statistics without an attack, and why."""


@dataclass(frozen=True)
class Reconstruction:
    """Every disclosed statistic with its attack, and the figures of single attacks."""

    statistics: tuple[StatisticAttack, ...]
    updates: tuple[UpdateAttack, ...] = ()
    protection: str = ""
    prototypes: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def not_attacked(self) -> tuple[StatisticAttack, ...]:
        return tuple(s for s in self.statistics if not s.attacked)

    def sentences(self) -> list[str]:
        """Explain the results in sentences: the attacked statistics, then those that were not attacked by name."""
        return [*self.attacked_sentences(), *self.skipped_sentences()]

    def attacked_sentences(self) -> list[str]:
        """Explain the attacks on statistics that were attacked."""
        tried = [s for s in self.statistics if s.attacked]
        lines = [f"Reconstruction: {len(tried)} of {len(self.statistics)} disclosed statistics were attacked."]
        return [*lines, *(f"{_capital(s.statistic) if s.is_of_run else s.statistic}: {s.finding}" for s in tried)]

    def skipped_sentences(self) -> list[str]:
        """Name the statistics that were not attacked, with the reason."""
        return [f"Not attacked: {s.statistic}. {s.finding}" for s in self.not_attacked]

    def to_dict(self) -> dict[str, Any]:
        """Return the section `reconstruction` of attacks.json."""
        return {
            "statistics": [s.to_dict() for s in self.statistics],
            "updates": [u.to_dict() for u in self.updates],
            "protection": self.protection,
            "prototypes": self.prototypes,
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reconstruction:
        """Read what `to_dict` wrote."""
        return cls(
            tuple(StatisticAttack.from_dict(s) for s in values["statistics"]),
            tuple(UpdateAttack(**u) for u in values["updates"]),
            str(values["protection"]),
            values["prototypes"],
            tuple(values["notes"]),
        )


def list_statistics(attacked: AttackedRun) -> list[Disclosure]:
    """List the statistics that left the sites of a run.

    Args:
        attacked: The run.

    Returns:
        All data that left; of a run with a guarantee its noisy releases, and the data that the guarantee does not cover.
    """
    if not attacked.is_promised:
        return find_disclosures(attacked.plan, attacked.summary)
    privacy = attacked.summary["privacy"]
    released = dict.fromkeys(str(e["what"]) for e in privacy.get("events", ()))
    gaps = uncovered(privacy) if "not_covered" in privacy else []
    return [*(Disclosure(RELEASE, name) for name in released), *(Disclosure(UNCOVERED, line) for line in gaps)]


def rebuild_rows(attacked: AttackedRun, progress: Callable[[str], None] = lambda name: None) -> Reconstruction:
    """Attack every statistic that a run disclosed, and the files of its folder.

    Args:
        attacked: The run, with rows or without.
        progress: Called with the name of each statistic before it is attacked.

    Returns:
        A line for each statistic.
    """
    work = _Work(attacked)
    found = []
    for statistic in list_statistics(attacked):
        progress(statistic.text)
        found.append(work.attack(statistic))
    progress("files of the run folder")
    found += work.attack_files()
    prototypes = None if work.prototypes is None else work.prototypes.to_dict()
    seen = "" if not work.updates else work.protection.describe()
    return Reconstruction(tuple(found), tuple(work.updates), seen, prototypes, tuple(work.notes))


class _Work:
    """The attacks of one run; those that several statistics share are made once."""

    def __init__(self, attacked: AttackedRun) -> None:
        self.attacked = attacked
        self.updates: list[UpdateAttack] = []
        self.notes: list[str] = []
        self.prototypes: Prototypes | None = None
        self.protection = UpdateProtection.read(
            attacked.plan, attacked.summary["privacy"], max(1, len(attacked.training_sites))
        )
        self._sums: Any = None

    def attack(self, statistic: Disclosure) -> StatisticAttack:
        """Attack one statistic, or say why it is not attacked."""
        kind, text = statistic.kind, statistic.text
        if kind == kinds.SUMMARY or (kind == UNCOVERED and text.startswith(PREPARATION)):
            return attack_summary(self.attacked, kind, text)
        if kind == kinds.ROW_COUNTS or (kind == UNCOVERED and text.startswith(ROW_COUNTS)):
            return attack_row_counts(self.attacked, kind, text)
        if kind == kinds.SCORES or (kind == UNCOVERED and text.startswith(TEST_ROWS)):
            return attack_scores(self.attacked, kind, text)
        if kind == kinds.MODEL or (kind == RELEASE and text in ("models of the sites", "mean update")):
            return self._attack_model(kind, text)
        if kind in (kinds.SUMS, kinds.HISTOGRAMS, kinds.SUMS_BY_DAY):
            return self._attack_sums(kind, text)
        if kind in (kinds.ROWS, kinds.REFERENCE_ROWS):
            return StatisticAttack(kind, text, True, "reading them", "These rows leave as they are: nothing is to be rebuilt.")
        if kind == kinds.SITE_MODELS:
            return StatisticAttack.skip(
                kind, text, "Membership and attribute inference use each site's own model; its updates were not inverted."
            )
        if kind == RELEASE:
            return StatisticAttack.skip(kind, text, _BOUNDED)
        if kind == UNCOVERED:
            return StatisticAttack.skip(kind, text, "This is a limit of the guarantee; no attack on it is offered.")
        return StatisticAttack.skip(kind, text, _NOT_ATTACKED.get(kind, "No attack on it is offered."))

    def _attack_model(self, kind: str, text: str) -> StatisticAttack:
        attacked = self.attacked
        if self.updates or text.startswith("with it "):
            return StatisticAttack.skip(kind, text, "Its own attack is not offered; it comes with the model, which was attacked.")
        if is_path(attacked.plan.method.name):
            return StatisticAttack.skip(kind, text, "The method is own code; its messages are not repeated here.")
        if attacked.run_rows is None:
            return StatisticAttack.skip(kind, text, "The rows are not on this machine, so no update can be repeated.")
        net = attacked.run.model.net
        if not isinstance(net, Dense):
            what = "a convolutional net" if net.kernel == "torch" else f"a model of kind '{net.kernel}'"
            return StatisticAttack.skip(
                kind, text, f"Updates of {what} are not inverted: gradient matching and reading of trees are not offered."
            )
        x, target = self._training_inputs()
        self.updates = attack_updates(
            attacked.run, attacked.plan, x, target, smallest=max(1, attacked.smallest), protection=self.protection
        )
        one, own = self.updates[0], self.updates[-1]
        alone = "" if one.rows != 1 or one is own else (
            f"A site with one row would have it rebuilt in {one.rebuilt:.0%} of cases "
            f"(95% CI {one.low:.0%} to {one.high:.0%}, median error {one.error:.2g}). "
        )
        finding = (
            f"{alone}The run's smallest site has {own.rows} training rows: {own.rebuilt:.0%} of the rows of such sites were "
            f"rebuilt (95% CI {own.low:.0%} to {own.high:.0%}), and the median error is {own.error:.2f} of guessing the mean. "
            f"The server sees {self.protection.describe()}. One update of round 1 was inverted, not all rounds together."
        )
        found = StatisticAttack(kind, text, True, INVERSION, finding)
        return replace(found.count(round(own.rebuilt * own.tested), own.tested, "rows"), low=own.low, high=own.high)

    def _training_inputs(self) -> tuple[Array, Array]:
        """Return encoded training rows and their targets."""
        attacked = self.attacked
        assert attacked.run_rows is not None
        model, data = attacked.run.model, attacked.run_rows.consortium.data
        rows = np.concatenate(list(attacked.site_rows("train").values()))
        part: Any = data.take(rows)
        encoding: Any = model.encoding
        target, _ = encode_targets(encoding, part, encoding.labels(part), np.float64)
        return encode_rows(model, part), target

    def _attack_sums(self, kind: str, text: str) -> StatisticAttack:
        attacked = self.attacked
        if attacked.run_rows is None:
            return StatisticAttack.skip(kind, text, "The rows are not on this machine, so no sum can be repeated.")
        if not attacked.has_model:
            return StatisticAttack.skip(
                kind, text, "Sums of single sites are not repeated for this method; the published counts were searched instead."
            )
        if self._sums is None:
            self._sums = attack_sums(attacked)
        if kind == kinds.HISTOGRAMS:
            return describe_links(self._sums, kind, text)
        return describe_sums(attacked, self._sums, kind, text)

    def attack_files(self) -> Iterator[StatisticAttack]:
        """Attack the files of the run folder, which are shared more widely than messages."""
        attacked = self.attacked
        if attacked.has_model:
            yield self._invert_model()
            yield from self._read_ranges()
        yield from attack_glass_box(attacked)
        for found in (attack_percentiles(attacked), attack_table(attacked)):
            if found is not None:
                yield found
        if attacked.has_model:
            yield attack_published_metrics(attacked)
        if (attacked.run.folder / "explanations.json").exists():
            yield StatisticAttack.skip(
                EXPLANATIONS_FILE,
                "explanations.json: feature attributions by site and round",
                "Mean shares of columns over up to 200 patients; no attack on them is offered.",
            )

    def _invert_model(self) -> StatisticAttack:
        """Invert the final model."""
        self.prototypes = invert_model(self.attacked)
        statistic = "model.safetensors: the final model"
        if self.prototypes is None:
            return StatisticAttack.skip(
                MODEL_FILE, statistic, "Model inversion is offered for models of classes that read a table or run in torch."
            )
        return StatisticAttack(MODEL_FILE, statistic, True, NAME, " ".join(self.prototypes.sentences()))

    def _read_ranges(self) -> Iterator[StatisticAttack]:
        """Find ends of ranges in the model file that are one training patient's value alone."""
        attacked = self.attacked
        encoding: Any = attacked.run.model.encoding
        ranges = {r.name: (r.low, r.high) for r in getattr(encoding, "numeric", ()) if abs(r.high) < _WIDE}
        if not ranges or getattr(encoding, "public", False):
            return
        statistic = "model.safetensors: ranges of columns, beyond which values are clipped"
        data = None if attacked.run_rows is None else attacked.run_rows.consortium.data
        if not isinstance(data, Dataset):
            yield StatisticAttack.skip(RANGES, statistic, "The rows are not on this machine, so values cannot be compared.")
            return
        training = np.concatenate([np.empty(0, np.int64), *attacked.site_rows("train").values()])
        single = 0
        for name, ends in ranges.items():
            x = data.numeric[training, data.numeric_names.index(name)] if name in data.numeric_names else np.empty(0)
            cells = grid_index(x[np.isfinite(x)].copy())
            alone = cells[alone_in_cell(cells - cells.min(initial=0))]
            single += int(np.isin(grid_index(np.array(ends)), alone).sum())
        finding = (
            f"{single} of {2 * len(ranges)} ends of ranges are the value of one training patient, to 0.1%, without saying whose."
        )
        yield StatisticAttack(RANGES, statistic, True, CELLS, finding).count(single, 2 * len(ranges), "ends of ranges")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]



