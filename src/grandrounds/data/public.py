"""Public encoding, known beforehand: usual ranges and lists of levels in place of the sites' summaries.

The fitted encoding rests on every training row (means, quantiles, who has which category), and no
epsilon covers that. This one rests on what a handbook says, so no site is asked and nothing is
spent: a number is centred on the middle of its usual range and scaled so that the range is two
deviations either way. Nothing is known beforehand of what is missing at the sites, so there are no
missing-value indicators: a missing number reads as the middle of the range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, COUNT, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.core.toml import key
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Categorical, Encoding, EncodingRules, Numeric, order_classes
from grandrounds.data.image_encoding import ImageEncoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import AnyEncoding, Holdings
from grandrounds.data.outcome import Outcome
from grandrounds.data.schema import Column
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.data.subgroups import known_groupings

BEYOND = 1.0
"""Values are clipped to this many widths of the range beyond either end: six deviations from the middle."""

_GREY = 0.5, 0.25  # of pixels on 0..1, by the same rule


@dataclass(frozen=True)
class PublicFacts:
    """Ranges and levels known before anybody looks at rows; `levels` holds categories and the label's classes."""

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def make_public_encoding(plan: Plan, data: Holdings, *, complete: bool = False) -> AnyEncoding:
    """Make the encoding of a plan with data.encoding = "public"; the catalog may know what its settings leave out.

    Args:
        plan: The plan.
        data: The rows, or the columns that are agreed.
        complete: Any range and levels do where none are known, because no model reads the inputs.

    Raises:
        BadInput: A range or levels are not known, or a setting needs counts of the sites.
    """
    if plan.train.class_weights == "balanced":
        raise BadInput(
            "train.class_weights = 'balanced' needs the sites' class counts, which data.encoding = 'public' does not "
            "ask for: give the weights themselves, such as { yes = 5.0, no = 1.0 }",
            code="conflicting-settings",
        )
    if plan.tasks.plain():
        raise BadInput(
            "[tasks] make classes that data.encoding = 'public' does not know beforehand: use data.encoding = 'fitted'",
            code="conflicting-settings",
        )
    task = data.schema.task if isinstance(data, Dataset) else CLASSIFICATION
    rules = replace(EncodingRules.from_plan(plan), task=task)
    if rules.coding == "reference":
        raise BadInput(
            "data.coding = 'reference' leaves out the most frequent level, and data.encoding = 'public' does not ask sites for "
            "it: use data.encoding = 'fitted', or data.coding = 'levels'",
            code="conflicting-settings",
        )
    d = plan.data
    entry = CATALOG.get(data.name)  # the name stays with rows that travel with their plan
    facts = PublicFacts(
        ranges={**(entry.ranges if entry else {}), **d.ranges.plain()},
        levels={**(entry.levels if entry else {}), **d.levels.plain()},
    )
    facts = _complete(facts, data) if complete else facts
    return public_encoding(data, facts, label=d.label, rules=rules, subgroup=plan.evaluation.subgroup)


def _complete(facts: PublicFacts, data: Holdings) -> PublicFacts:
    """Add a range to numbers and levels to categories that have none."""
    if not isinstance(data, Dataset):
        return facts
    names = [*(c.name for c in data.schema.numeric_like), data.schema.label]
    ranges = dict.fromkeys(names, (0.0, 1.0)) | dict(facts.ranges)
    known = {name: levels for name, levels in facts.levels.items() if len(levels) > 1}
    return PublicFacts(ranges, {c.name: ("0", "1") for c in data.schema.categorical} | known)


def public_encoding(
    data: Holdings, facts: PublicFacts, *, label: str | None, rules: EncodingRules, subgroup: str | None = None
) -> AnyEncoding:
    """Encode by public facts; only names, kinds and the shape of images are taken from the data."""
    outcome = _public_outcome(facts, label or "label", rules.task)
    counted = outcome is None or outcome.task == SURVIVAL
    levels = _class_levels(facts, label or "label") if counted else ()
    words = order_classes(dict.fromkeys(levels, 1), rules.positive)  # nobody counted
    groups = _group_levels(data, facts, subgroup)
    orders = {c.name: c.order for c in data.schema.columns if c.order} if isinstance(data, Dataset) else {}
    subgroups = known_groupings(rules.subgroups, rules.bands, {**orders, **facts.levels})
    if isinstance(data, ImageSet):
        mean, std = ((part,) * data.shape[0] for part in _GREY)
        return ImageEncoding(mean, std, data.shape, **words, groups=groups, subgroups=subgroups)
    return Encoding(
        numeric=tuple(_numeric_rule(column, facts, rules) for column in data.schema.numeric_like),
        categorical=tuple(_categorical_rule(column.name, facts) for column in data.schema.categorical),
        **words,
        groups=groups,
        public=True,
        outcome=outcome,
        subgroups=subgroups,
        products=rules.products,
        by_column=rules.by_column,
    )


def _public_outcome(facts: PublicFacts, label: str, task: str) -> Outcome | None:
    """Make the units of an outcome from its usual range: the middle, and a quarter of the width; of counts the middle."""
    if task == CLASSIFICATION:
        return None
    if task == SURVIVAL:
        return Outcome(task)
    if label not in facts.ranges:
        raise BadInput(
            f"no usual range is known for the label '{label}', and data.encoding = 'public' asks no site for one: "
            f"set data.ranges.{key(label)} = [low, high]",
            code="range-not-known",
        )
    low, high = (float(end) for end in facts.ranges[label])
    if not low < high or (task == COUNT and low + high <= 0):
        raise BadInput(
            f"data.ranges.{key(label)} is [{low:g}, {high:g}]: write the lower end first, then the higher",
            code="unordered-range",
        )
    middle = (low + high) / 2
    return Outcome(task, scale=middle) if task == COUNT else Outcome(task, centre=middle, scale=(high - low) / 4)


def _numeric_rule(column: Column, facts: PublicFacts, rules: EncodingRules) -> Numeric:
    name = column.name
    if column.kind == "ordinal":
        low, high = 0.0, float(len(column.order) - 1)
    elif name in facts.ranges:
        low, high = (float(end) for end in facts.ranges[name])
    else:
        raise BadInput(
            f"no usual range is known for column '{name}', and data.encoding = 'public' asks no site for one: "
            f'set data.ranges.{key(name)} = [low, high], or leave the column out with --drop "{name}"',
            code="range-not-known",
        )
    if not low < high:
        raise BadInput(
            f"data.ranges.{key(name)} is [{low:g}, {high:g}]: write the lower end first, then the higher",
            code="unordered-range",
        )
    middle, width = (low + high) / 2, high - low
    if rules.by_column:
        return Numeric(name, fill=middle, low=low, high=high, centre=0.0, scale=1.0, indicator=True)
    return Numeric(
        name,
        fill=middle,
        low=low - BEYOND * width if rules.clip else -1e300,
        high=high + BEYOND * width if rules.clip else 1e300,
        centre=0.0 if rules.scale == "none" else middle,
        scale=1.0 if rules.scale == "none" else width / 4,
        indicator=False,
    )


def _categorical_rule(name: str, facts: PublicFacts) -> Categorical:
    """Make an input for every listed level, and "other" for all that is not listed."""
    if name not in facts.levels:
        raise BadInput(
            f"the levels of column '{name}' are not known, and data.encoding = 'public' asks no site for them: "
            f'set data.levels.{key(name)} = ["...", "..."], or leave the column out with --drop "{name}"',
            code="levels-not-known",
        )
    return Categorical(name, _check_distinct(name, facts.levels[name]), other=True)


def _class_levels(facts: PublicFacts, label: str) -> tuple[str, ...]:
    if label not in facts.levels:
        raise BadInput(
            f"the classes of '{label}' are not known, and data.encoding = 'public' asks no site for them: "
            f'list all of them, data.levels.{key(label)} = ["0", "1"] or as they are written (data.event names one)',
            code="levels-not-known",
        )
    return _check_distinct(label, facts.levels[label])


def _check_distinct(name: str, levels: Sequence[str]) -> tuple[str, ...]:
    if len(levels) < 2 or len(set(levels)) < len(levels):
        raise BadInput(f"data.levels.{key(name)} must list two or more levels, each once", code="invalid-levels")
    return tuple(sorted(levels))


def _group_levels(data: Holdings, facts: PublicFacts, subgroup: str | None) -> tuple[str, ...]:
    """List the subgroups that are scored alone; the rest is scored together."""
    if subgroup is None:
        return ()
    columns = data.schema.columns if isinstance(data, Dataset) else ()
    levels = tuple(facts.levels.get(subgroup) or next((c.order for c in columns if c.name == subgroup), ()))
    if not levels:
        raise BadInput(
            f"evaluation.subgroup is '{subgroup}', whose groups are not known, and data.encoding = 'public' asks no "
            f'site for them: set data.levels.{key(subgroup)} = ["...", "..."], or name a column of categories',
            code="levels-not-known",
        )
    return tuple(sorted(levels))
