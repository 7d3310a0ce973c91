"""Define the declarative description of a federated experiment: one pydantic model, one TOML file.

Every setting has a default and a description (`rounds init` writes them out). An unknown setting raises
an error that names the nearest known one, so that a misspelt setting is never silently ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from grandrounds.core import plugins, redact
from grandrounds.core.arrays import read_file
from grandrounds.core.errors import BadInput, nearest, visible
from grandrounds.core.outcome import AUTO, SURVIVAL
from grandrounds.core.section import SEEDS, Section, describe_error, error_code, quote_value
from grandrounds.data.image_files import has_part
from grandrounds.data.partition import KINDS
from grandrounds.data.readers import find_reader
from grandrounds.data.sets.catalog import find_entry
from grandrounds.experiment.engine_sections import AttackSettings, Engine
from grandrounds.experiment.method_sections import Method
from grandrounds.experiment.sections import (
    Data,
    Evaluation,
    Explain,
    Model,
    Privacy,
    ReferenceSet,
    Split,
    Task,
    Train,
)
from grandrounds.experiment.tune_section import Tune
from grandrounds.methods import METHODS, is_exact, is_variant_of, method_class
from grandrounds.methods.anchors import ADAPTIVE_STRENGTH, DEFAULT_STRENGTH
from grandrounds.methods.dp import DP_SGD
from grandrounds.methods.fedxchain.options import TrustOptions
from grandrounds.methods.fedxchain.server import TRUST
from grandrounds.methods.guard.options import PersonalOptions
from grandrounds.methods.sse_agg.harm import DEFAULT_LEAST_SHARE
from grandrounds.methods.sse_agg.method import choose_regularizer
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.models import COLUMN_MODELS, MODELS, READS_COLUMNS
from grandrounds.models.protocol import TABLE_MODELS

ONE_PLACE = ("pooled", "local")
"""Methods that fit a model to the rows of one place."""

_WIDEST, _LAYERS, _WEIGHTS = 100_000, 100, 200_000_000
_DEEP = re.compile(r"^[ \t]*\[*[ \t]*(?:[\w-]+[ \t]*\.[ \t]*){30}", re.MULTILINE)  # a key of more than thirty parts
_LARGEST = 16 * 2**20  # bytes of an experiment file
PARTITIONS = ("auto", "column", *KINDS)


class Experiment(Section):
    """Complete description of an experiment: data, split, model, method, training, privacy, evaluation and seed."""

    name: str = Field("experiment", description="name shown in tables and reports")
    seed: int = Field(0, ge=0, le=SEEDS, description="seed of all random choices")
    data: Data = Data()
    split: Split = Split()
    reference: dict[str, ReferenceSet] = Field(default_factory=dict)
    tasks: dict[str, Task] = Field(default_factory=dict)
    model: Model = Model()
    method: Method = Method()
    train: Train = Train()
    explain: Explain = Explain()
    privacy: Privacy = Privacy()
    engine: Engine = Engine()
    evaluation: Evaluation = Evaluation()
    personal: PersonalOptions = PersonalOptions()
    attacks: tuple[AttackSettings, ...] = ()
    code: dict[str, str] = Field(
        default_factory=dict,
        description="SHA-256 of your own modules, written by a run; a changed file is refused",
    )
    tune: Tune = Field(Tune(), exclude=True)  # a search space is not part of a run's plan

    @model_validator(mode="after")
    def _known_names(self) -> Experiment:
        for key, value, choices in (
            ("method.name", self.method.name, METHODS),
            ("model.name", self.model.name, MODELS),
            ("split.partition", self.split.partition, PARTITIONS),
        ):
            if value not in choices and not plugins.is_path(value):
                own = f"write your own as module:{'function' if key == 'split.partition' else 'Class'}; " if "." in value else ""
                raise ValueError(f"{key} is '{value}'; {own}{nearest(value, choices)}")
        for value in self.evaluation.metrics:
            if not plugins.is_path(value):
                raise ValueError(f"evaluation.metrics is '{value}'; write your own metric as 'package.module:function'")
        if self.train.objective is not None and not plugins.is_path(self.train.objective):
            raise ValueError(f"train.objective is '{self.train.objective}'; write a local objective as module:Class")
        if self.split.val + self.split.test >= 1:
            raise ValueError("split.val + split.test is 1 or more, which leaves no training rows: lower one of them")
        widths = self.model.hidden
        if any(not 1 <= w <= _WIDEST for w in widths):
            raise ValueError(f"model.hidden has a width outside 1 to {_WIDEST:,}: use for example [64, 32]")
        if len(widths) > _LAYERS or sum(a * b for a, b in pairwise(widths)) > _WEIGHTS:
            raise ValueError(f"model.hidden has more than {_LAYERS} layers or {_WEIGHTS:,} weights: use fewer or narrower layers")
        if self.split.scheme == "holdout" and not self.split.holdout:
            raise ValueError("split.scheme is 'holdout' but split.holdout is empty: name the sites to hold out")
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "experiment") -> Experiment:
        """Validate a plain dict.

        Args:
            values: Sections and settings, as in a TOML file.
            where: Name of the source, for the error message.

        Returns:
            The validated experiment.

        Raises:
            BadInput: A setting is unknown or invalid; the message names the first one.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as e:
            raise BadInput(f"{where}: {describe_error(cls, e)}", code=error_code(e)) from None
        except RecursionError:
            raise BadInput(f"{where}: the settings are nested too deeply", code="nested-too-deeply") from None

    @classmethod
    def check_plan(cls, plan: Mapping[str, Any], *, where: str) -> None:
        """Check the types and limits of values in a run's plan. Unknown keys of other versions are accepted.

        Args:
            plan: The plan, as read from JSON.
            where: The file or place of the plan, for the error.

        Raises:
            BadInput: A value has a wrong type or is out of range; the message names the first one.
        """
        data = plan.get("data")
        if isinstance(data, Mapping) and isinstance(data.get("cohort"), str):  # a plan has the definition, and no file to open
            raise BadInput(f"{where} is damaged: data.cohort names a file", code="damaged-plan")
        try:
            cls.model_validate(plan)
        except ValidationError as e:
            for error in e.errors():
                of_another_version = error["type"] == "literal_error" and isinstance(error["input"], str)
                if error["type"] not in ("extra_forbidden", "missing", "value_error") and not of_another_version:
                    key = ".".join(str(p) for p in error["loc"])
                    raise BadInput(
                        f"{where} is damaged: {key} is {quote_value(error['input'])}, which is not valid", code="damaged-plan"
                    ) from None

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read an experiment from a TOML file.

        Args:
            path: The file. Relative paths in it (data.table, data.cohort, data.pictures, data.masks) start at its folder.

        Returns:
            The validated experiment.

        Raises:
            BadInput: The file cannot be read, is not TOML, or has an unknown or invalid setting.
        """
        try:
            text = read_file(path, largest=_LARGEST, links=True).decode("utf-8")
            if _DEEP.search(text):  # tomllib takes minutes to parse such keys
                raise BadInput(f"{path} is not an experiment: its keys are nested too deeply", code="nested-too-deeply")
            values = tomllib.loads(text)
        except RecursionError:
            raise BadInput(f"{path} is not an experiment: its keys are nested too deeply", code="nested-too-deeply") from None
        except ValueError as e:
            raise BadInput(f"{path} is not TOML: {visible(' '.join(str(e).split()))[:200]}", code="not-toml") from None
        data = values.get("data", {})
        for key in ("table", "pictures", "masks", "cohort") if isinstance(data, dict) else ():
            given = data.get(key)
            if isinstance(given, str) and "://" not in given and given not in ("data frame", "strokes"):
                try:
                    data[key] = str((path.parent / given).resolve())
                except (OSError, ValueError, RuntimeError):
                    raise BadInput(
                        f"{path}: data.{key} is {quote_value(given)}, which is not a valid file name", code="bad-setting"
                    ) from None
        return cls.parse(values, where=str(path))

    def with_settings(self, settings: Sequence[str]) -> Experiment:
        """Return a copy with changed settings.

        Args:
            settings: `section.key=value` texts. Values are TOML; bare words are strings.

        Returns:
            The changed experiment.

        Raises:
            BadInput: A text is not `section.key=value`, or a setting is unknown or invalid.
        """
        values = self.model_dump(mode="json", exclude_unset=True)
        if self.tune.model_fields_set:
            values["tune"] = self.tune.model_dump(mode="json", exclude_unset=True)
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals:
                raise BadInput(
                    f"--set {setting} has no '=': write section.key=value, e.g. method.rounds=50", code="bad-setting-flag"
                )
            *sections, last = key.strip().split(".")
            table = values
            for name in sections:
                table = table.setdefault(name, {})
                if not isinstance(table, dict):
                    raise BadInput(f"--set {setting}: '{name}' is a value, not a section", code="bad-setting-flag")
            table[last] = _value(text.strip())
        make_room(values, {setting.partition("=")[0].strip() for setting in settings})
        return type(self).parse(values, where="settings")

    def resolved(self) -> Experiment:
        """Replace `auto` and unset values by those that the data set and the method imply.

        Returns:
            The experiment with every setting resolved.

        Raises:
            BadInput: Settings are missing or contradict each other.
        """
        paired = self._paired()
        if paired is not self:
            return paired.resolved()
        plugins.allow(self.model_dump(include={"data", "split", "model", "method", "train", "evaluation", "code"}))
        data, split = self.data, self.split
        if data.shortcut.p and not data.shortcut.classes:
            raise BadInput("data.shortcut.p is set but data.shortcut.classes is empty: name a class", code="missing-setting")
        if data.name is None and data.table is None:
            raise BadInput(
                "the experiment has no data: set data.name (see `rounds list data`) or data.table",
                code="no-data-named",
            )
        if data.name is not None and data.table is not None:
            raise BadInput(
                f"the experiment has two data sources, data.name '{data.name}' and data.table: remove one of them",
                code="two-data-sources",
            )
        if data.cohort is not None and data.name is not None:
            raise BadInput(
                f"data.cohort makes a table from clinical records, and data.name is '{data.name}': name the records with "
                "data.table (--table FOLDER)",
                code="two-data-sources",
            )
        subgroup = self.evaluation.subgroup
        is_own_code = data.name is not None and plugins.is_path(data.name)
        if data.name is not None and not is_own_code:
            catalog_entry = find_entry(data.name)
            same = data.label in (None, catalog_entry.label) and data.positive is None
            fill = {"label": catalog_entry.label, "site": catalog_entry.site, "patient": catalog_entry.patient}
            fill |= {"event": catalog_entry.event if same else None, "part": catalog_entry.part}
            if same and data.task in (AUTO, SURVIVAL):
                fill |= {"duration": catalog_entry.duration}
            fill = {k: v for k, v in fill.items() if getattr(data, k) is None and v is not None}
            data = data.model_copy(
                update={
                    **fill,
                    "drop": tuple(
                        dict.fromkeys([*(c for c in catalog_entry.drop if c not in data.features), *data.drop])
                    ),
                    "kinds": {
                        **{k: v if isinstance(v, str) else tuple(v) for k, v in catalog_entry.schema.items()},
                        **data.kinds,
                    },
                }
            )
            if not self.evaluation.subgroups:  # those show small groups, which this one does not hide
                subgroup = subgroup or catalog_entry.subgroup
        if data.cohort is not None:
            data = data.model_copy(update=find_reader("data.cohort settings")(data.model_dump()))
        if split.partition == "auto":
            from_catalog = find_entry(data.name).partition if data.name and not is_own_code else {}
            default_partition = from_catalog.get("partition", "equal")
            named = data.site is not None or (_is_npz(data.table) and has_part(data.table, "site"))
            split = split.model_copy(update={"partition": "column" if named else default_partition})
        loaded = is_own_code or _is_npz(data.table)  # image files can contain labels and sites
        if data.label is None and not loaded:
            raise BadInput("data.label is not set: name the column to predict (--label COLUMN)", code="label-not-set")
        if split.partition == "column" and data.site is None and not loaded:
            raise BadInput(
                "split.partition is 'column' but data.site is not set: use --site COLUMN, or another partition",
                code="no-site-column",
            )
        patients = data.patient is not None or (_is_npz(data.table) and has_part(data.table, "patient"))
        if split.by == "auto":
            split = split.model_copy(update={"by": "patient" if patients else "row"})
        if split.by == "patient" and not patients:
            raise BadInput(
                "split.by is 'patient' but data.patient is not set: name the patient column, or use split.by = 'row'",
                code="no-patient-column",
            )
        if split.by == "time" and data.time is None:
            raise BadInput(
                "split.by is 'time' but data.time is not set: name the time column, or use split.by = 'row'",
                code="no-time-column",
            )
        if is_exact(self.method.name):
            subgroup = method_class(self.method.name).group_column(self.method, subgroup)
        evaluation = self.evaluation.model_copy(update={"subgroup": subgroup})
        settled = {"data": data, "split": split, "evaluation": evaluation, "method": self._method()}
        settled |= {"privacy": self._privacy(patients=patients), "engine": self._engine()}
        return self.model_copy(update=settled)

    def _paired(self) -> Experiment:
        """Return the experiment with model and method of the same name, and their coding, where one implies the other.

        Raises:
            BadInput: data.coding or data.encoding does not fit a model that reads whole columns.
        """
        model, method, data = self.model, self.method, self.data
        if method.name in METHODS and not METHODS[method.name].has_model and _needs_public(method.name, data):
            return self.model_copy(update={"data": data.model_copy(update={"encoding": "public"})})
        wanted = next((name for name, m in TABLE_MODELS.items() if m.private_method == method.name), method.name)
        if wanted in COLUMN_MODELS and model.name != wanted and "name" not in model.model_fields_set:
            model = model.model_copy(update={"name": wanted})
        if model.name not in READS_COLUMNS:
            return self
        if model.name in COLUMN_MODELS and wanted != model.name and "name" not in method.model_fields_set:
            method = method.model_copy(update={"name": model.name})
        private = TABLE_MODELS[method.name].private_method if method.name in TABLE_MODELS else ""
        if private and self.privacy.epsilon is not None:
            method = method.model_copy(update={"name": private})
        if method.name in METHODS and _needs_public(method.name, data):
            data = data.model_copy(update={"encoding": "public"})
        if data.coding != "columns":
            if "coding" in data.model_fields_set:
                raise BadInput(
                    f"data.coding is '{data.coding}', and model '{model.name}' reads whole columns: remove data.coding",
                    code="conflicting-settings",
                )
            data = data.model_copy(update={"coding": "columns"})
        if (model, method, data) == (self.model, self.method, self.data):
            return self
        return self.model_copy(update={"model": model, "method": method, "data": data})

    def _engine(self) -> Engine:
        """Return [engine] with double precision for exact methods and their models, unless another precision is set."""
        e = self.engine
        exact = is_exact(self.method.name) or self.model.name in READS_COLUMNS
        return e.model_copy(update={"precision": "float64"}) if exact and "precision" not in e.model_fields_set else e

    def _privacy(self, *, patients: bool) -> Privacy:
        """Return [privacy] with the unit of privacy resolved, where it protects patients."""
        p = self.privacy
        if p.unit == "patient" and not patients:
            raise BadInput(
                "privacy.unit is 'patient' but data.patient is not set: name the patient column, or set privacy.unit = 'row'",
                code="no-patient-column",
            )
        promised = p.mechanism == "dp-sgd" or (p.mechanism == "none" and p.epsilon is not None)
        unit = "patient" if patients and p.unit != "row" else "row"
        return p.model_copy(update={"unit": unit}) if promised else p

    def _method(self) -> Method:
        """Return [method] with `auto` resolved: the weighting and regularization of SSE-AGG, else those of FedAvg.

        An exact method has as many rounds as its fit needs.
        """
        m = self.method
        explains = is_variant_of(m.name, "sse-agg")
        if explains and m.weigh.rule not in ("auto", EXPLANATIONS):
            raise BadInput(
                f"method.weigh is '{m.weigh.rule}', but method 'sse-agg' weights sites by explanations: remove method.weigh, or "
                "set method.name = 'fedavg'",
                code="method-does-not-fit",
            )
        alike = self.privacy.mechanism == "client" and not self.privacy.public_counts
        usual = EXPLANATIONS if explains else "uniform" if alike else "data_size"
        if is_variant_of(m.name, "fedxchain"):
            usual = TRUST
        rule = usual if m.weigh.rule == "auto" else m.weigh.rule
        stability: str = m.stability
        if stability == "auto":
            watched = self.evaluation.rationale_set if self.evaluation.rationale_set != m.anchor_rows else None
            sent = any(settings.sent for name, settings in self.reference.items() if name != watched)
            trees = self.model.name in ("forest", "lightgbm")
            apart = m.cohorts.count != 1 and m.cohorts.models == "separate"
            private = self.privacy.mechanism == DP_SGD
            chosen = choose_regularizer(self.train, sent=sent, trees=trees, apart=apart, private=private, preset=m.preset)
            stability = chosen if explains else "none"
        strength = ADAPTIVE_STRENGTH if self.train.optimizer in ("adam", "adamw") else DEFAULT_STRENGTH
        anchor = strength if m.anchor is None else m.anchor
        least = m.weigh.least_share
        if least is None:
            least = 0.0 if explains and m.preset == "defence" else DEFAULT_LEAST_SHARE
        halves = m.weigh.own_halves
        if halves is None:
            p = self.privacy
            halves = rule == EXPLANATIONS and p.mechanism == "none" and p.epsilon is None and not p.secure
        weigh = m.weigh.model_copy(update={"rule": rule, "least_share": least, "own_halves": halves})
        update = {"weigh": weigh, "stability": stability, "anchor": anchor, "trust": self._trust()}
        if self.model.name in READS_COLUMNS and not is_exact(m.name) and "rounds" not in m.model_fields_set:
            update |= {"rounds": 1}  # 'pooled', 'local' and 'private-gam' fit it once
        if is_exact(m.name) and "rounds" not in m.model_fields_set:
            update["rounds"] = method_class(m.name).default_rounds(m)
        elif m.name in ONE_PLACE and self.model.name in COLUMN_MODELS and "rounds" not in m.model_fields_set:
            update["rounds"] = 1  # the whole fit
        return m.model_copy(update=update)

    def _trust(self) -> TrustOptions:
        """Return [method.trust] with its preset and `auto` resolved."""
        t = self.method.trust.resolved()
        names = [self.method.reference] if self.method.reference else list(self.reference)
        rows = self.reference.get(names[0]) if len(names) == 1 else None
        judged = rows is not None and rows.labelled and (rows.sent or not self.privacy.secure)
        meant = {
            "accuracy_at": "reference" if judged else "site",
            "explained": "own" if self.privacy.epsilon is None else "reference",
        }
        return t.model_copy(update={n: v for n, v in meant.items() if getattr(t, n) == "auto"})

    def plan(self) -> dict[str, Any]:
        """Return the resolved experiment as plain JSON values, without passwords."""
        values = self.resolved().model_dump(mode="json")
        if values["data"]["table"] is not None:
            values["data"]["table"] = redact.hide(values["data"]["table"])
        if not values["code"]:  # filled in by a run with user code
            del values["code"]
        return values


def _needs_public(name: str, data: Data) -> bool:
    """Check that a built-in method needs data.encoding = 'public', and the plan does not have it yet.

    Raises:
        BadInput: The plan sets another encoding.
    """
    why = METHODS[name].needs_public
    if not why or data.encoding == "public":
        return False
    if "encoding" in data.model_fields_set:
        raise BadInput(f"data.encoding is 'fitted', {why}", code="conflicting-settings")
    return True


def make_room(values: dict[str, Any], changed: Collection[str]) -> None:
    """Remove the method, the model and the rounds of a recipe that do not fit a model of sums over hospitals, in place.

    `rounds run heart --model gam` names the model alone: it is fitted by the method of the same name, in as many exchanges as
    it needs, whatever method and number of rounds the recipe has for other models.

    Args:
        values: Settings of the experiment by section, with the changes.
        changed: Dotted names of the settings that the user changed.
    """
    sections = {name: part for name in ("model", "method") if isinstance(part := values.get(name), dict)}
    names = [sections[n]["name"] for n in sections if f"{n}.name" in changed and sections[n].get("name") in COLUMN_MODELS]
    in_one_place = "method.name" in changed and sections["method"]["name"] in ONE_PLACE
    if in_one_place and sections.get("model", {}).get("name") in COLUMN_MODELS and "method.rounds" not in changed:
        sections["method"].pop("rounds", None)
    if not names or ("method.name" in changed and sections["method"]["name"] not in COLUMN_MODELS):
        return
    for section, key in (("model", "name"), ("method", "name"), ("method", "rounds")):
        if f"{section}.{key}" not in changed and section in sections and sections[section].get(key) != names[0]:
            sections[section].pop(key, None)


def _is_npz(table: str | None) -> bool:
    return table is not None and table.lower().endswith(".npz")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except RecursionError:
        raise BadInput(f"--set: {quote_value(text)} is nested too deeply", code="nested-too-deeply") from None
    except ValueError:
        return text
