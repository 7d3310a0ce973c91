"""Warnings about a table before and after training: leaks, follow-up times, few events, odd spellings.

Each function gives sentences. None of them changes a number, and none is raised where a column's name alone is innocent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.names import list_case_variants
from grandrounds.core.outcome import AUTO, CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Scores
from grandrounds.data.dataset import Dataset
from grandrounds.data.formats import find_unreadable, list_columns
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.schema import Column
from grandrounds.data.split import Rows
from grandrounds.data.table import Table, missing_mask, to_text

FEW_EVENTS = 10  # fewer in a test set, and its figures are chance
TOO_GOOD = 0.98  # AUROC that patients' data rarely allow
MOST_LEVELS = 30  # a categorical column with more is not looked at for spellings
_SEVERAL = 5  # so many different whole numbers may be a score or a count
_HARDLY = 0.02  # share of rows that is hardly anybody
_UNLIKELY = 0.01  # rows with a patient's values that chance would give; several such copies are no accident
_CERTAIN = 1e-6  # the same, for a single copy
_COPIES = 0.01  # share of rows that is several

_TIME = re.compile(
    r"(?:follow[ _.-]?up|fu|survival|surv|os|pfs|dfs|efs|event|death|censor(?:ing)?)?[ _.-]?"
    r"(?:d[ _.-])?(?:time|days?|months?|years?|weeks?|duration)|fu[ _.-]?time|futime|d\.time|tte|time[ _.-]to[ _.-].+"
    r"|follow[ _.-]?up|t|(?:os|pfs|dfs|efs)[ _.-](?:m|d|y|mo|months?|days?|years?)|ueberlebenszeit|überlebenszeit"
)
_OUTCOME = {
    "death", "dead", "died", "deceased", "mortality", "survived", "survival", "alive", "outcome", "discharge", "discharged",
    "disposition", "dnr", "hospice", "autopsy", "expired", "los", "exitus", "tod", "verstorben", "entlassung",
    "entlassart", "deces", "décès", "sortie", "muerte", "alta", "overleden", "ontslag", "readmitted", "readmission",
}  # fmt: skip
_SITE = re.compile(
    r"(?:hospital|site|cent(?:re|er)|clinic|klinik|klinikum|krankenhaus|spital|h[oô]pital|ziekenhuis|institution|facility"
    r"|trust|practice|ward|silo|standort|haus)(?:[ _.-]?(?:id|name|code|no|nr|number))?"
)
_PATIENT = re.compile(
    r"(?:patient|pat|subject|person|pid|mrn|case|participant|individual|fall)s?"
    r"(?:[ _.-]?(?:id|nbr|no|nr|num|number|key|code|name))?|unique_?pid|nhs[ _.-]?(?:no|number)"
)
_SAME = (
    {"m", "male", "man", "männlich", "maennlich", "masculin", "hombre", "mann"},
    {"f", "female", "woman", "w", "weiblich", "féminin", "feminin", "mujer", "frau"},
    {"y", "yes", "true", "ja", "j", "oui", "si", "sí"},
    {"n", "no", "false", "nein", "non", "nee"},
)


def event_class(classes: Sequence[str]) -> str:
    """Find the class that counts as the event: the last of the two, in the order of tallies (`order_by_event`)."""
    return classes[-1]


def column_warnings(data: Dataset, *, plan: Plan) -> list[str]:
    """Warn of columns of the user's own table by their names, kinds and spellings."""
    features = data.schema.features
    return [
        *_warn_numbered_classes(data, plan),
        *_warn_follow_up(features, data),
        *_warn_outcomes(features, data),
        *_warn_no_site(data, plan),
        *_warn_spellings(data),
    ]


def row_warnings(data: Dataset, rows: Sequence[Rows], *, plan: Plan) -> list[str]:
    """Warn of rows by counting them: copies, and patients on two sides of the split."""
    return [
        *_warn_copies(data.table, is_tested=any(len(r.test) or len(r.val) for r in rows)),
        *survival_warnings(data),
        *_warn_shared_patients(data, rows, unit=plan.split.by),
        *_warn_mostly_numbers(data),
    ]


def own_table_warnings(data: Holdings, names: Sequence[str], rows: Sequence[Rows], *, plan: Plan) -> list[str]:
    """Collect all warnings about a user's own table before training; none for sets of the catalog or images.

    With an epsilon only those that follow from names: counts of rows would be released beside what was charged.
    """
    if not isinstance(data, Dataset) or plan.data.name is not None:
        return []
    counted = row_warnings(data, rows, plan=plan) if plan.privacy.epsilon is None else []
    alone = [one_site_sentence(plan)] if len(names) == 1 else []
    return [*column_warnings(data, plan=plan), *alone, *alike_sites_warnings(names), *counted]


def one_site_sentence(plan: Plan) -> str:
    """Say that there is nobody to federate with, and what to do."""
    site, dealt = plan.data.site, plan.split.partition != "column"
    if plan.split.without:
        return f"one site is left without {', '.join(plan.split.without)}: nothing is federated"
    if dealt or site is None:
        return (
            "one site: nothing is federated; set split.sites to 2 or more, name the hospitals with --site COLUMN, or fit all "
            "rows in one place with --method pooled"
        )
    return (
        f"one site: '{site}' has the same value in all rows, so nothing is federated; name another column with --site, leave "
        "--site out to deal the rows to simulated hospitals, or fit all rows in one place with --method pooled"
    )


def alike_sites_warnings(names: Sequence[str]) -> list[str]:
    """Warn of sites whose names differ in upper and lower case alone."""
    groups = list_case_variants(names)
    if not groups:
        return []
    listed = "; ".join(" and ".join(f"'{name}'" for name in group[:5]) for group in groups[:3])
    return [f"sites that differ in upper and lower case alone ({listed}): write each site one way if they are one"]


def few_events_warnings(counts: Mapping[str, int], classes: Sequence[str]) -> list[str]:
    """Warn where the test rows hold too few events for their figures to mean anything; of two classes."""
    if len(classes) != 2:
        return []
    event = event_class(classes)
    count, total = counts.get(event, 0), sum(counts.values())
    if not total or count >= FEW_EVENTS:
        return []
    return [
        f"{count} {'event' if count == 1 else 'events'} ('{event}') among {total} test rows: "
        f"with fewer than {FEW_EVENTS} the test figures are mostly chance; use more rows, or a larger split.test"
    ]


def few_outcomes_warnings(final: Scores) -> list[str]:
    """Warn where the test rows of survival data hold too few events for their figures to mean anything."""
    events, count = final.get("events"), final.get("count")
    if events is None or not count or not events < FEW_EVENTS:
        return []
    return [
        f"{events:.0f} {'event' if events == 1 else 'events'} among {count:.0f} test rows: with fewer than {FEW_EVENTS} the "
        "C-index is mostly chance; use more rows, or a larger split.test"
    ]


def threshold_warnings(final: Scores, threshold: float, event_share: float) -> list[str]:
    """Warn where the threshold flags hardly anybody or nearly everybody."""
    caught, spared = final.get("sensitivity"), final.get("specificity")
    if caught is None or spared is None or not (np.isfinite(caught) and np.isfinite(spared)):
        return []
    flagged = caught * event_share + (1 - spared) * (1 - event_share)
    if _HARDLY < flagged < 1 - _HARDLY:
        return []
    whom = ("nobody" if flagged == 0 else "hardly anybody") if flagged <= _HARDLY else "everybody"
    whom = "nearly everybody" if whom == "everybody" and flagged < 1 else whom
    return [
        f"at threshold {threshold:.3g} the model flags {whom} ({flagged:.1%} of test rows; {event_share:.1%} have the "
        "event): choose a threshold by the validation rows with --set evaluation.threshold=youden"
    ]


def too_good_warnings(final: Scores) -> list[str]:
    """Warn where a table's AUROC is so high that a column may know the outcome."""
    auroc = final.get("auroc")
    if auroc is None or not auroc >= TOO_GOOD:
        return []
    return [
        f"AUROC {auroc:.3f} is rarely possible before an outcome: look for columns that were written down after it "
        "(rounds show RUN --schema), and leave them out with --drop"
    ]


def training_overlap_warnings(table: Table | ImageSet, trained: Table | None, *, same: bool) -> list[str]:
    """Warn where rows to evaluate on were trained on. `same`: the table is the run's; `trained`: its rows."""
    if same:
        return ["this is the table that the run was trained on: its figures say nothing about new patients"]
    if trained is None or isinstance(table, ImageSet):
        return []
    shared = [name for name in table.names if name in trained.columns]
    training_rows = set(zip(*(to_text(trained.columns[n]).tolist() for n in shared), strict=True))
    hits = sum(row in training_rows for row in zip(*(to_text(table.columns[n]).tolist() for n in shared), strict=True))
    if len(shared) < 3 or hits < 0.1 * len(table):
        return []
    return [
        f"{hits} of {len(table)} rows were trained on: leave them out, or the figures say nothing about new patients"
    ]


def _warn_follow_up(features: Sequence[Column], data: Dataset) -> list[str]:
    """Find follow-up times among the features beside an event: the time ends with the event, so it tells the label."""
    if data.schema.task != CLASSIFICATION or len(set(data.label.tolist())) != 2:
        return []
    names = [c.name for c in features if c.kind == "numeric" and _TIME.fullmatch(c.name.strip().lower())]
    return [
        f"column '{name}' looks like a follow-up time beside '{data.schema.label}', and is not known beforehand: for survival "
        f"add --time {_quote_for_shell(name)}, otherwise leave it out with --drop {_quote_for_shell(name)}"
        for name in names
    ]


def _warn_numbered_classes(data: Dataset, plan: Plan) -> list[str]:
    """Find a label of several whole numbers that is read as classes because nobody stated its task."""
    values = data.table.columns.get(data.schema.label)
    if data.schema.task != CLASSIFICATION or plan.data.task != AUTO or values is None:
        return []
    count = len(np.unique(values)) if values.dtype == np.float64 else 0
    if count < _SEVERAL:
        return []
    return [
        f"label '{data.schema.label}' has {count} different whole numbers, which are read as classes: for a number say --task "
        "regression, for a count --task count, and --task classification to leave this warning out"
    ]


def survival_warnings(data: Dataset) -> list[str]:
    """Warn of survival data by counting rows: times of 0, and patients with several rows and different events."""
    if data.duration is None or not len(data):
        return []
    out = []
    none = int((data.duration == 0).sum())
    if none:
        rows = "1 row has" if none == 1 else f"{none} rows have"
        out.append(f"{rows} a follow-up time '{data.schema.duration}' of 0: they count as at risk at the first event only")
    if data.patient is not None:
        events: dict[tuple[str, str], set[str]] = {}
        own_numbers = data.table.reading is not None and bool(data.table.reading.selection)  # each hospital numbers its patients
        sites = data.site.tolist() if own_numbers and data.site is not None else [""] * len(data)
        for site, patient, event in zip(sites, data.patient.tolist(), data.label.tolist(), strict=True):
            events.setdefault((site, patient), set()).add(event)
        mixed = sum(len(e) > 1 for e in events.values())
        several = len(data) - len(events)
        if mixed:
            who = "1 patient has" if mixed == 1 else f"{mixed} patients have"
            out.append(
                f"{who} rows with different values of '{data.schema.label}': each row counts as its own follow-up; "
                "keep one row per patient unless these are separate admissions"
            )
        elif several:
            rows = "1 row is" if several == 1 else f"{several} rows are"
            out.append(f"{rows} of a patient with an earlier row: each row counts as its own follow-up")
    return out


def _warn_outcomes(features: Sequence[Column], data: Dataset) -> list[str]:
    names = [c.name for c in features if _OUTCOME & set(re.split(r"[^a-zà-ÿ0-9]+", _split_camel_case(c.name)))]
    if not names:
        return []
    named = ", ".join(f"'{name}'" for name in names[:8])
    be = "is" if len(names) == 1 else "are"
    them = "leave it" if len(names) == 1 else "leave them"
    return [
        f"{'column' if len(names) == 1 else 'columns'} {named} {be} named like an outcome: known before "
        f"'{data.schema.label}' is? If not, {them} out with --drop {_quote_for_shell(','.join(names[:8]))}"
    ]


def _warn_no_site(data: Dataset, plan: Plan) -> list[str]:
    if plan.data.site is not None or plan.split.partition == "column" or not len(data):  # no rows here: sites are real
        return []
    notice = f"no --site: rows are dealt to {plan.split.sites} simulated sites"
    for column in data.schema.columns:
        if column.kind in ("categorical", "numeric", "id") and _SITE.fullmatch(column.name.strip().lower()):
            values = data.table.columns[column.name]
            count = len(set(to_text(values).tolist()) - {None})
            if 2 <= count <= len(data) / plan.split.min_rows:
                return [
                    f"{notice}, and '{column.name}' ({count} values) is a column like any other; "
                    f"if it names the hospital, add --site {_quote_for_shell(column.name)}"
                ]
    return [notice]


def _warn_spellings(data: Dataset) -> list[str]:
    """Find levels of a category that differ in spelling only, or mean the same sex or answer."""
    out = []
    for column, levels in zip(data.schema.categorical, data.vocabulary, strict=True):
        if len(levels) > MOST_LEVELS:
            continue
        groups: dict[str, list[str]] = {}
        for level in levels:
            plain = re.sub(r"[\W_]+", "", level.casefold()) or level
            same = next((sorted(group)[0] for group in _SAME if plain in group), plain)
            groups.setdefault(same, []).append(level)
        alike = [group for group in groups.values() if len(group) > 1]
        if alike:
            named = "; ".join(", ".join(f"'{word}'" for word in group[:5]) for group in alike[:3])
            out.append(f"column '{column.name}' has levels that may mean the same ({named}): write each one way")
    return out


def _warn_copies(table: Table, *, is_tested: bool) -> list[str]:
    """Find rows that are the same in every column, where their values are rare enough to tell patients apart.

    A row counts as a copy by chance as often as its values are frequent, if columns had no relation; gaps tell nothing.

    Args:
        table: The table.
        is_tested: The run holds rows back for a test; a regression is fitted to all.
    """
    codes = [_number_values(values) for values in table.columns.values()]
    rows_as_bytes = np.ascontiguousarray(np.stack(codes, axis=1)).view([("", np.int32)] * len(codes)).ravel()
    _, first, place = np.unique(rows_as_bytes, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[place.ravel()] != np.arange(len(table)))
    if not len(copies):
        return []
    chance = np.full(len(copies), float(len(table)))
    for values, column in zip(table.columns.values(), codes, strict=True):
        share = np.bincount(column) / len(table)
        chance *= np.where(missing_mask(values)[copies], 1.0, share[column[copies]])
    if not (chance < _CERTAIN).any() and (chance < _UNLIKELY).sum() < max(3, _COPIES * len(table)):
        return []
    rows = "1 row is a copy" if len(copies) == 1 else f"{len(copies)} rows are copies"
    harm = "land in training and in test and flatter the figures" if is_tested else "count twice and make intervals too short"
    return [f"{rows} of another row: copies {harm}; remove them"]


def _number_values(values: Array) -> Array:
    """Number the distinct values of a column, (n,); missing values have a number of their own."""
    if values.dtype == np.object_:
        place: dict[object, int] = {}
        return np.fromiter((place.setdefault(v, len(place)) for v in values.tolist()), np.int32, len(values))
    return np.unique(values, return_inverse=True, equal_nan=True)[1].ravel().astype(np.int32)


def _warn_shared_patients(data: Dataset, rows: Sequence[Rows], *, unit: str) -> list[str]:
    if unit != "row":
        return []
    train = np.concatenate([r.train for r in rows])
    test = np.concatenate([r.test for r in rows])
    for column in data.schema.columns:
        name = column.name
        if name in (data.schema.label, data.schema.site) or not _PATIENT.fullmatch(name.strip().lower()):
            continue
        words = to_text(data.table.columns[name])
        both = (set(words[train].tolist()) & set(words[test].tolist())) - {None}
        distinct = len(set(words.tolist()))
        if both and distinct > len(words) / 10:
            count = "1 patient has" if len(both) == 1 else f"{len(both)} patients have"
            return [
                f"column '{name}' looks like a patient's number, and {count} rows in training and in test: "
                f"keep a patient's rows together with --patient {_quote_for_shell(name)}"
            ]
    return []


def _warn_mostly_numbers(data: Dataset) -> list[str]:
    """Find categories that are mostly numbers: a measurement with words for missing in it."""
    word_by_column: dict[str, str] = {}
    for column in data.schema.categorical:
        words = to_text(data.table.columns[column.name])
        counts = Counter(words[~missing_mask(words)].tolist())
        if len(counts) <= MOST_LEVELS or column.why.startswith("set in"):
            continue
        odd = find_unreadable(counts)
        if odd and sum(counts[w] for w in odd) < 0.5 * sum(counts.values()):
            word_by_column[column.name] = max(odd, key=lambda w: (counts[w], w))
    return [
        f"{list_columns([name])} is read as categories, but most of its cells are numbers; "
        f"if '{word[:20]}' means missing, add --missing {_quote_for_shell(word[:20])}"
        for name, word in word_by_column.items()
    ]


def _split_camel_case(name: str) -> str:
    """Write a name in lower case with camelCase cut into words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _quote_for_shell(word: str) -> str:
    """Quote a word for a shell."""
    return word if re.fullmatch(r"[\w.,-]+", word) else "'" + word.replace("'", "'\\''") + "'"
