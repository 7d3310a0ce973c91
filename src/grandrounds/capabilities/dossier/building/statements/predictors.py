"""Statements about predictors: columns, their preparation, missing values, and inputs of poor quality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import CHARACTERISTICS, PLAN, SCHEMA, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, cite_page, say
from grandrounds.capabilities.dossier.building.statements.data import list_names
from grandrounds.capabilities.dossier.building.statements.run_kind import reads_images, under_budget
from grandrounds.data.encoding import INDICATOR_SHARE
from grandrounds.metrics.fairness import is_defined

PREDICTORS = ("numeric", "categorical", "ordinal")
"""Kinds of columns that a model reads."""
_MOST_COLUMNS = 400
_MOST_NOTES = 30
_MANY_GAPS = 0.2
"""Share of missing values from which a column is named."""
NO_SCHEMA = "the run reads images, which have no columns"


def read_columns(facts: Facts) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the columns of the schema with their positions.

    Raises:
        MissingFact: The run has no schema.
    """
    if reads_images(facts):
        raise MissingFact(NO_SCHEMA)
    return list(enumerate(facts.raw(SCHEMA, "columns")))


def state_columns(facts: Facts) -> Iterator[Statement]:
    """Count the predictors by kind, and the columns that were left out."""
    if reads_images(facts):
        yield state_image(facts)
        return
    columns, source = read_columns(facts), facts.value(SCHEMA, "columns")
    chosen = [c for _, c in columns if c["kind"] in PREDICTORS]
    number = facts.derive(len(chosen), "columns of kind numeric, ordinal or categorical", source)
    kinds = {kind: sum(c["kind"] == kind for c in chosen) for kind in PREDICTORS}
    text = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items() if n)
    yield say(
        "The predictors are {number} columns: {kinds}.",
        number=number,
        kinds=facts.derive(kinds, "columns by kind", source, text=text),
    )
    left = [str(c["name"]) for _, c in columns if c["kind"] not in PREDICTORS]
    if left:
        amount = facts.derive(len(left), "columns of other kinds", source)
        names = list_names(facts, left, "columns of other kinds", source)
        yield say("{amount} columns of the table are no predictors: {names}.", amount=amount, names=names)
    if facts.get(PLAN, "data", "features"):
        yield say("The plan allows only these predictors: {names}.", names=facts.value(PLAN, "data", "features"))


def state_choice(facts: Facts) -> Statement:
    """State which predictors were chosen before the model was built."""
    if reads_images(facts):
        return say("No predictor was chosen: the model reads all pixels.", facts.source(SUMMARY, "inputs"))
    if facts.get(PLAN, "data", "features"):
        return say("The plan names the predictors; no other column was used.", facts.source(PLAN, "data", "features"))
    if facts.get(PLAN, "data", "drop"):
        return say(
            "All columns were predictors, except identifiers, dates, constant columns and those that the plan drops: {drop}.",
            drop=facts.value(PLAN, "data", "drop"),
        )
    return say(
        "All available columns were predictors, except identifiers, dates and constant columns.",
        facts.source(PLAN, "data", "drop"),
    )


def state_image(facts: Facts) -> Statement:
    """State the size of an image."""
    if not reads_images(facts):
        raise MissingFact("the run reads no images")
    inputs = facts.value(SUMMARY, "inputs")
    channels, height, width = inputs.value
    size = facts.derive(inputs.value, "channels x height x width", inputs, text=f"{height} x {width} pixels")
    colours = facts.derive(channels, "first of inputs", inputs)
    return say("The input is an image of {size}; number of colour channels: {channels}.", size=size, channels=colours)


def tabulate_columns(facts: Facts) -> Table:
    """Tabulate the predictors with their kind, the reason for it, and mean, quartiles or levels of training rows."""
    columns = [(k, c) for k, c in read_columns(facts) if c["kind"] in PREDICTORS]
    if len(columns) > _MOST_COLUMNS:
        raise MissingFact(
            f"a table of {len(columns):,} predictors is too long for this document; schema.json lists them"
        )
    body: list[tuple[str | Value, ...]] = []
    for k, column in columns:
        name = facts.value(SCHEMA, "columns", k, "name")
        body.append(
            (
                name,
                facts.value(SCHEMA, "columns", k, "kind"),
                _describe(facts, column),
                _missing(facts, column["name"]),
            )
        )
    heads = ("predictor", "kind", "training rows: median (quartiles), or shares of levels", "missing")
    return Table("Predictors", heads, tuple(body), (facts.source(SCHEMA, "columns"),))


def define_predictors(facts: Facts) -> Statement | Table:
    """Define the predictors: a table of columns, or the size of an image."""
    return state_image(facts) if reads_images(facts) else tabulate_columns(facts)


def _describe(facts: Facts, described: Mapping[str, Any]) -> str | Value:
    """Describe a column of the training rows; "-" where the run has no percentiles."""
    name, order = str(described["name"]), list(described.get("order") or ())
    column = facts.get(CHARACTERISTICS, "columns", name, default={})
    source = facts.source(CHARACTERISTICS, "columns", name) if column else None
    if column.get("quartiles") and source is not None:
        low, middle, high = (_show_quantile(q, order) for q in column["quartiles"])
        text = f"{middle} ({low} to {high})"
        return facts.derive(column["quartiles"], "quartiles of training rows, to 0.1%", source, text=text)
    if column.get("levels") and source is not None:
        largest = sorted(column["levels"].items(), key=lambda item: -item[1])
        text = ", ".join(f"{level} {share:.0%}" for level, share in largest[:4])
        text += f", {len(largest) - 4} more" if len(largest) > 4 else ""
        return facts.derive(column["levels"], "shares of levels with 5 patients or more", source, text=text)
    if is_defined(column.get("mean")) and source is not None:
        return facts.derive(column["mean"], "mean of training rows", source, text=f"mean {column['mean']:.4g}")
    return "-"


def _show_quantile(value: float, order: Sequence[str]) -> str:
    """Show a quantile, which is accurate to 0.1%: the level of an ordered column, or a number."""
    nearest = round(value)
    if order and 0 <= nearest < len(order):
        return str(order[nearest])
    return f"{nearest:,}" if abs(value - nearest) <= 0.0015 * max(1.0, abs(value)) else f"{value:.3g}"


def _missing(facts: Facts, name: str) -> str | Value:
    share = facts.get(CHARACTERISTICS, "columns", name, "missing")
    return facts.value(CHARACTERISTICS, "columns", name, "missing", show=".1%") if is_defined(share) else "-"


def require_characteristics(facts: Facts) -> Iterator[Statement]:
    """State the rows that means and quartiles were taken of.

    Raises:
        MissingFact: The run has no percentiles, with the cause.
    """
    if reads_images(facts):
        raise MissingFact("the run reads images: there are no means or quartiles of predictors")
    if not facts.has(CHARACTERISTICS, "rows"):
        if under_budget(facts):
            raise MissingFact(
                "under a privacy budget the run folder has no means, quartiles or missing shares of predictors"
            )
        if facts.get(PLAN, "data", "encoding") == "public":
            raise MissingFact(
                "with a public encoding the run folder has no means, quartiles or missing shares of predictors"
            )
        raise MissingFact("the run has no percentiles.json, so means, quartiles and missing values are not known")
    noised = str(facts.get(CHARACTERISTICS, "noised", default=""))
    yield say(
        "Quartiles and shares of predictors are of {rows} training rows.", rows=facts.value(CHARACTERISTICS, "rows")
    )
    if noised:
        yield say("They carry noise: {noised}.", noised=facts.value(CHARACTERISTICS, "noised"))


def state_missing(facts: Facts) -> Iterator[Statement]:
    """State how missing values were handled, and how many columns have them."""
    if reads_images(facts):
        raise MissingFact("the run reads images: no rule for missing values applies to pixels")
    if facts.get(PLAN, "data", "complete"):
        yield say("Rows in which a predictor has no value were left out.", facts.source(PLAN, "data", "complete"))
    elif facts.get(PLAN, "data", "encoding") == "public":
        yield say("A missing number becomes the middle of its public range.", facts.source(PLAN, "data", "encoding"))
    elif facts.get(PLAN, "data", "coding") == "columns":
        yield say(
            "A missing value is a value of its own: the model learns its effect.", facts.source(PLAN, "data", "coding")
        )
    else:
        impute = facts.value(PLAN, "data", "impute")
        yield say("A missing number becomes the {impute} of all training rows.", impute=impute)
        share = facts.derive(
            INDICATOR_SHARE, "rule of the encoding", facts.source(PLAN, "data", "encoding"), show=".0%"
        )
        yield say("An input marks missing numbers where at least {share} of rows lack the value.", share=share)
        yield say("A missing category sets all inputs of its column to zero.", facts.source(PLAN, "data", "coding"))
    if facts.get(PLAN, "data", "drop_unlabelled"):
        yield say("Rows without an outcome were left out.", facts.source(PLAN, "data", "drop_unlabelled"))
    else:
        yield say(
            "Rows without an outcome are refused, so every row has one.", facts.source(PLAN, "data", "drop_unlabelled")
        )


def state_gaps(facts: Facts) -> Iterator[Statement]:
    """State how many predictors have missing values among training rows, and name those with many."""
    for _ in require_characteristics(facts):
        pass
    columns, source = facts.raw(CHARACTERISTICS, "columns"), facts.value(CHARACTERISTICS, "columns")
    shares = {name: c["missing"] for name, c in columns.items() if is_defined(c.get("missing"))}
    some = sorted((name for name, share in shares.items() if share > 0), key=lambda name: -shares[name])
    yield say(
        "{some} of {all} predictors have missing values in training rows.",
        some=facts.derive(len(some), "columns with a share of missing values above 0", source),
        all=facts.derive(len(shares), "columns with a known share of missing values", source),
    )
    many = [name for name in some if shares[name] >= _MANY_GAPS]
    if many:
        limit = facts.derive(_MANY_GAPS, "limit of this document", source, show=".0%")
        names = list_names(facts, many, "columns from that share on", source)
        yield say("At least {limit} of values are missing in: {names}.", limit=limit, names=names)


def state_encoding(facts: Facts) -> Iterator[Statement]:
    """State how columns become inputs of the model."""
    if reads_images(facts):
        yield state_image(facts)
        if facts.has(PLAN, "data", "size"):
            yield say("Images were resized to a side of {size} pixels.", size=facts.value(PLAN, "data", "size"))
        augment = facts.get(PLAN, "train", "augment", default="none")
        if augment != "none":
            yield say("Training images were augmented by '{augment}'.", augment=facts.value(PLAN, "train", "augment"))
        return
    if facts.get(PLAN, "data", "coding") == "columns":
        yield say(
            "Numbers are used in their original units, and each level of a category has an input.",
            facts.source(PLAN, "data", "coding"),
        )
    elif facts.get(PLAN, "data", "encoding") == "public":
        yield say(
            "Numbers are scaled by ranges that were known beforehand; no site was asked for summaries.",
            facts.source(PLAN, "data", "encoding"),
        )
    else:
        yield from _state_scaling(facts)
    if facts.get(PLAN, "data", "products"):
        yield say("Products of columns are inputs as well: {names}.", names=facts.value(PLAN, "data", "products"))
    inputs = facts.get(SUMMARY, "inputs", default=())
    if len(inputs) == 1:
        yield say("The model has {inputs} inputs.", inputs=facts.value(SUMMARY, "inputs", 0))


def _state_scaling(facts: Facts) -> Iterator[Statement]:
    clip = facts.get(PLAN, "data", "clip", default=0)
    if clip:
        low = facts.value(PLAN, "data", "clip", show=".1%")
        high = facts.derive(1 - clip, "1 - data.clip", low, show=".1%")
        yield say(
            "Numbers beyond the {low} and {high} quantiles of all training rows are set to them.", low=low, high=high
        )
    scale = facts.get(PLAN, "data", "scale", default="standard")
    means = {
        "standard": "Numbers are centred at their mean and divided by their standard deviation.",
        "robust": "Numbers are centred at their median and divided by the distance of their quartiles.",
        "none": "Numbers are used in their original units.",
    }
    yield say(means.get(scale, "Numbers are scaled by a rule of the plan."), facts.source(PLAN, "data", "scale"))
    yield say(
        "Each category has an input for its {most} most frequent levels; the others share one input.",
        most=facts.value(PLAN, "data", "max_categories"),
    )
    yield say(
        "The same numbers prepare the rows of every site and every group of patients.",
        facts.source(PLAN, "data", "encoding"),
    )


def state_quality(facts: Facts) -> Iterator[Statement]:
    """State assumptions and replacements that were made when tables were read."""
    if facts.get(SUMMARY, "assumed"):
        yield say("Assumptions were made to read the table: {assumed}.", assumed=facts.value(SUMMARY, "assumed"))
    notes = facts.get(SUMMARY, "notes", default={})
    if notes:
        number = facts.derive(sum(map(len, notes.values())), "notes of all sites", facts.value(SUMMARY, "notes"))
        sites = list_names(facts, list(notes), "sites with notes", facts.value(SUMMARY, "notes"))
        yield say("{number} replacements of values were noted, at: {sites}.", number=number, sites=sites)
    elif facts.get(PLAN, "privacy", "epsilon") is None:
        yield say("No site noted a replacement of values.", facts.source(SUMMARY, "notes"))


def tabulate_notes(facts: Facts) -> Iterator[Table]:
    """Tabulate the replacements of values, site by site; nothing where there are none."""
    notes = facts.get(SUMMARY, "notes", default={})
    pairs = [(site, k) for site, lines in notes.items() for k in range(len(lines))]
    if 0 < len(pairs) <= _MOST_NOTES:
        rows = tuple((site, facts.value(SUMMARY, "notes", site, k)) for site, k in pairs)
        yield Table("Replacements of values", ("site", "note"), rows)


def state_poor_inputs(facts: Facts) -> Iterator[Statement]:
    """State how the model handles inputs of poor quality when it is used."""
    if reads_images(facts):
        raise MissingFact("the run reads images, and its folder has no rule for images of poor quality")
    page, columns = cite_page("own-data.md"), read_columns(facts)
    yield say("`rounds predict` treats a missing value as in training.", facts.source(PLAN, "data", "impute"), page)
    yield say(
        "A column that is missing is reported, and all its values count as missing.",
        facts.source(SCHEMA, "columns"),
        page,
    )
    if any(c["kind"] == "categorical" for _, c in columns):
        yield say(
            "A category that training did not see is reported and counts as none of the known levels.",
            facts.source(SCHEMA, "columns"),
            page,
        )
    clip = facts.get(PLAN, "data", "clip", default=0)
    if clip and facts.get(PLAN, "data", "encoding") == "fitted" and facts.get(PLAN, "data", "coding") != "columns":
        yield say(
            "A number outside the range of training rows is set to the end of the range.",
            facts.source(PLAN, "data", "clip"),
            page,
        )
