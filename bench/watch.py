"""Shifts that a watch finds, and its false alarms: 60 cases on eicu-demo, diabetes-130 and icu-cohort, fixed beforehand.

    python bench/watch.py [--jobs 2] [--scratch FOLDER]     # everything; status 1 if a bar is missed
    python bench/watch.py --part cases                      # shifts only
    python bench/watch.py --part alarms                     # false alarms only
    python bench/watch.py --tune                            # other sites, columns and seeds: for choosing constants
    python bench/watch.py --part figure                     # docs/images/watch-late-labels.svg
    python bench/watch.py --part cases --seed 34            # another draw of columns and patients

Needs GRANDROUNDS_DATA. Each recipe is run once with seed 0 (icu-cohort with split.scheme = "within") into the scratch folder.

Cases, 10 of each kind; case i is of data set i mod 3. Sites: at least 40 validation and 40 test patients; of those, by name, the
first three of each data set; for prevalence of those with an event in at least 8% of patients, since a doubled 4% holds 3 nats in
200 patients, less than the rate of false alarms asks for. The column is drawn from those that have under 10% missing values at
the site and, if numeric, at least 10 different values and not more than half zeros. New patients are drawn with replacement: 200
as they are, then 200 with the shift. A patient's rows stay together. Every case runs twice: with validation patients of the site,
for whom the rate of false alarms is stated and the bars count, and with its test patients. A site of eicu-demo has 57 to 78 test
patients, so each comes about six times, and chance differences between them and the reference are found as well.

- unit: values times 1.5 or divided by 1.5, alternately
- coding: 20% of the rows of a categorical column have a word that training did not know
- case mix: patients drawn with weight exp(t z) by a numeric column, t such that the column separates them from before at AUC 0.7
- prevalence: drawn by label so that the event is twice as frequent as in validation patients or in validation and training
  patients, whichever have more (the check takes both for usual); counted in labelled patients
- drift: values rise (fall, alternately) over 50 patients by 1 SD of the site's training rows, and stay there; counted from the
  start of the rise
- missing: 20% of the rows of a column lose their value

Streams have no labels, except those of prevalence. Found: the first alarm after the shift comes within 200 patients. Named right:
that alarm names the column; for prevalence it is the check of prevalence or calibration. False alarms: 20 streams of 5,000
patients drawn from validation rows at each site, all checks, a fresh start after each alarm; and test patients once each in
random order, which are new to the reference.

Figure: at each site the unit of the numeric column with the largest mean attribution changes by 1.5, and labels come 300 patients
late. The figure shows the first alarm of the checks of explanations alone that names the column, and the first alarm of
calibration, discrimination and net benefit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.capabilities.watch.statistics import Detector, Reference, Rows, Signal, calibrate
from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.dataset import Dataset
from grandrounds.models.dense import class_probabilities
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.run_rows import RunRows
from grandrounds.site.evaluate import score
from smoke import SMOKE, pick

SETS: dict[str, dict[str, Any]] = pick(
    {"eicu-demo": {}, "diabetes-130": {}, "icu-cohort": {"split.scheme": "within"}},
    {"heart": {"method.rounds": 2}},
)
KINDS = ("unit", "coding", "case mix", "prevalence", "drift", "missing")
EACH, CLEAN, WITHIN, RAMP = pick(10, 1), 200, 200, 50
FACTOR, SHARE, AUC, DEVIATIONS, TIMES = 1.5, 0.2, 0.7, 1.0, 2.0
LEAST_PATIENTS, SITES, LEAST_PREVALENCE = pick(40, 15), pick(3, 1), 0.08
MOST_MISSING, LEAST_VALUES, MOST_ZEROS = 0.1, 10, 0.5
STREAMS, LENGTH, MOST_ALARMS = pick(20, 1), pick(5000, 500), 1.0
LEAST_FOUND, LEAST_NAMED = 0.95, 0.9
SEED, TUNING_SEED = 33, 133
VALIDATION, TEST = "validation", "test"
LATE, LONG = 300, 600
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "watch-late-labels.svg"


@dataclass(frozen=True, eq=False)
class Site:
    """A site of a run with its rows and its reference."""

    name: str
    data: str
    model: TrainedModel
    train: Dataset
    val: Dataset
    test: Dataset
    words: Mapping[str, frozenset[str]]

    def rows(self, data: Dataset, patient: Array | None = None) -> Rows:
        """Read rows as the watch does: values, risk, attributions of the linear model by column, labels."""
        return read_rows(self.model, data, self.words, patient)

    @property
    def prevalence(self) -> float:
        """Share of events, mean over patients: the larger of validation patients and of validation and training patients."""
        assert self.model.event is not None
        training, validation = (event_shares(part, self.model.event.word) for part in (self.train, self.val))
        return float(max(validation.mean(), np.concatenate([training, validation]).mean()))


@dataclass(frozen=True)
class Case:
    """One shift: its kind, site, column and direction."""

    kind: str
    number: int
    data: str
    site: str
    column: str
    sign: int


@dataclass(frozen=True)
class Result:
    """The first alarm after a shift."""

    case: Case
    delay: int | None
    named: str
    since: int | None
    early: int


def event_shares(data: Dataset, word: str) -> Array:
    """Return the share of rows with the event of each patient."""
    place = np.unique(np.array(patients_of(data)), return_inverse=True)[1]
    return np.asarray(np.bincount(place, weights=data.label == word) / np.bincount(place))


def read_rows(model: TrainedModel, data: Dataset, words: Mapping[str, frozenset[str]], patient: Array | None) -> Rows:
    """Turn a data set into the arrays of the watch; attributions of a linear model are its terms, less their usual value."""
    encoding: Any = model.encoding
    inputs = encoding.encode(data, model.theta.dtype)
    logits = score(model.net, model.theta, inputs)
    event = model.event
    assert event is not None
    place = encoding.classes.index(event.word)
    weight = model.net.layout.views(model.theta)
    matrix = next(w for w in weight.values() if w.ndim == 2)
    matrix = matrix if matrix.shape[0] == inputs.shape[1] else matrix.T
    slope = matrix[:, 0] * (1 if place else -1) if matrix.shape[1] == 1 else matrix[:, place] - matrix[:, 1 - place]
    terms = inputs.astype(np.float64) * slope
    sources = np.array(encoding.sources)
    levels = {
        r.name: {w: i for i, w in enumerate(names)}
        for r, names in zip(encoding.categorical, encoding.level_names(), strict=True)
    }
    categories = {}
    for j, name in enumerate(data.categorical_names):
        rest = levels[name].get("other", -2)
        table = [levels[name].get(w, rest if w in words[name] else -2) for w in data.vocabulary[j]]
        categories[name] = np.array([*table, -1])[data.codes[:, j]]
    return Rows(
        numbers={name: data.numeric[:, j] for j, name in enumerate(data.numeric_names)},
        categories=categories,
        score=class_probabilities(logits.astype(float))[:, place],
        attributions={name: terms[:, sources == name].sum(axis=1) for name in dict.fromkeys(encoding.sources)},
        label=(data.label == event.word).astype(float),
        patient=data.patient if patient is None else patient,
    )


@cache
def sites_of(name: str, scratch: Path) -> dict[str, Site]:
    """Return the sites of a recipe's run that have enough validation and test patients, by name."""
    run = gr.load_run(scratch / name)
    rows = RunRows.read(run)
    stack, data = rows.consortium.stack, rows.consortium.data
    assert isinstance(data, Dataset)
    seen = np.unique(rows.training)
    words = {}
    for j, column in enumerate(data.categorical_names):
        codes = np.unique(data.codes[seen, j])
        words[column] = frozenset(data.vocabulary[j][c] for c in codes if c >= 0)
    out = {}
    for site, parts in sorted(zip(stack.names, stack.rows, strict=True), key=lambda pair: pair[0]):
        if min(len(set(patients_of(data.take(r)))) if len(r) else 0 for r in (parts.val, parts.test)) >= LEAST_PATIENTS:
            taken = (data.take(r) for r in (parts.train, parts.val, parts.test))
            out[site] = Site(site, name, run.model_for(site), *taken, words)
    return out


def patients_of(data: Dataset) -> list[str]:
    """Return the patient of each row; a row without one is a patient."""
    return [str(p) for p in data.patient] if data.patient is not None else [str(i) for i in range(len(data))]


@cache
def reference_of(name: str, site: str, scratch: Path) -> Reference:
    """Build the reference of a site from its validation rows, with inputs and labels of its training rows."""
    own = sites_of(name, scratch)[site]
    encoding: Any = own.model.encoding
    validation = own.rows(own.val)
    reference = Reference.build(
        validation,
        training=own.rows(own.train),
        ranges={r.name: (r.low, r.high) for r in encoding.numeric},
        levels={r.name: len(names) for r, names in zip(encoding.categorical, encoding.level_names(), strict=True)},
        threshold=own.model.threshold,
    )
    return calibrate(reference, reference.evidence(validation), seed=0, site=site)


def choose_sites(name: str, scratch: Path, *, tune: bool, events: bool = False) -> list[str]:
    """Choose the sites of a data set: the first three by name, or the next three for tuning, if there are so many."""
    every = [s.name for s in sites_of(name, scratch).values() if not events or s.prevalence >= LEAST_PREVALENCE]
    return (every[SITES : 2 * SITES] if tune and len(every) > SITES else every[:SITES]) or every


def columns_for(kind: str, site: Site) -> list[str]:
    """Return the columns that a shift of this kind may have at a site."""
    out = []
    both = [site.train, site.val]
    for j, name in enumerate(site.train.numeric_names):
        values = np.concatenate([d.numeric[:, j] for d in both])
        known = values[~np.isnan(values)]
        many = len(np.unique(known)) >= LEAST_VALUES and np.mean(known == 0) <= MOST_ZEROS
        if len(known) > (1 - MOST_MISSING) * len(values) and (many or kind == "missing") and kind != "coding":
            out.append(name)
    for j, name in enumerate(site.train.categorical_names):
        codes = np.concatenate([d.codes[:, j] for d in both])
        if np.mean(codes < 0) < MOST_MISSING and kind in ("coding", "missing"):
            out.append(name)
    return out


def make_cases(scratch: Path, seed: int, *, tune: bool) -> list[Case]:
    """Return the 60 cases."""
    out = []
    for kind in KINDS:
        for i in range(EACH):
            name = list(SETS)[i % len(SETS)]
            sites = choose_sites(name, scratch, tune=tune, events=kind == "prevalence")
            site = sites[i // len(SETS) % len(sites)]
            columns = [""] if kind == "prevalence" else columns_for(kind, sites_of(name, scratch)[site])
            drawn = generator(seed, purpose=f"bench of watch, {kind}", round=i)
            out.append(Case(kind, i, name, site, str(drawn.choice(columns)), 1 if i % 2 == 0 else -1))
    return out


def draw_patients(
    data: Dataset, count: int, drawn: np.random.Generator, weights: Array | None = None
) -> tuple[Array, Array]:
    """Draw patients with replacement; return their rows, and the number of the draw of each row."""
    words, place = np.unique(np.array(patients_of(data)), return_inverse=True)
    rows = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    if weights is None:
        chosen = drawn.integers(len(words), size=count)
    else:
        mass = np.bincount(place, weights=weights) / np.bincount(place)
        chosen = drawn.choice(len(words), size=count, p=mass / mass.sum())
    return np.concatenate([rows[c] for c in chosen]), np.concatenate(
        [np.full(len(rows[c]), d) for d, c in enumerate(chosen)]
    )


def mix_weights(values: Array) -> Array:
    """Return weights exp(t z) of rows, with t such that weighted and plain rows are separable at the AUC of the bench."""
    filled = np.where(np.isnan(values), np.nanmedian(values), values)
    ranks = np.argsort(np.argsort(filled, kind="stable"), kind="stable")
    z = (ranks + 0.5) / len(ranks) - 0.5
    order = np.unique(filled, return_inverse=True)[1]
    share = np.bincount(order) / len(order)
    below = (np.cumsum(share) - share / 2)[order]
    low, high = 0.0, 50.0
    for _ in range(50):
        t = (low + high) / 2
        weight = np.exp(t * z)
        low, high = (t, high) if weight @ below / weight.sum() < AUC else (low, t)
    return np.exp(high * z)


def event_weights(data: Dataset, labels: Array, target: float) -> Array:
    """Return weights of rows with which the mean over drawn patients of their share of events is the target."""
    place = np.unique(np.array(patients_of(data)), return_inverse=True)[1]
    share = np.bincount(place, weights=labels) / np.bincount(place)
    tilt = (target * len(share) - share.sum()) / ((share**2).sum() - target * share.sum())
    return np.asarray(np.maximum(1 + tilt * share, 0)[place])


def shift(case: Case, site: Site, data: Dataset, draw: Array, drawn: np.random.Generator) -> Dataset:
    """Apply a shift to rows of new patients; `draw` is the number of the patient of each row, from 0."""
    if case.column in data.numeric_names:
        j = data.numeric_names.index(case.column)
        numeric = data.numeric.copy()
        if case.kind == "unit":
            numeric[:, j] *= FACTOR**case.sign
        elif case.kind == "drift":
            size = DEVIATIONS * float(np.nanstd(site.train.numeric[:, j]))
            numeric[:, j] += case.sign * size * np.minimum((draw + 1) / RAMP, 1)
        elif case.kind == "missing":
            numeric[drawn.random(len(data)) < SHARE, j] = np.nan
        return replace(data, numeric=numeric)
    if case.column in data.categorical_names:
        j = data.categorical_names.index(case.column)
        codes, vocabulary = data.codes.copy(), list(data.vocabulary)
        vocabulary[j] = (*vocabulary[j], "code 7041")
        codes[drawn.random(len(data)) < SHARE, j] = -1 if case.kind == "missing" else len(vocabulary[j]) - 1
        return replace(data, codes=codes, vocabulary=tuple(vocabulary))
    return data


def stream(case: Case, site: Site, people: Dataset, drawn: np.random.Generator) -> tuple[Rows, Rows]:
    """Return the patients before and after the shift of a case, drawn from these rows of the site."""
    weights = None
    if case.kind == "case mix":
        values = people.numeric[:, people.numeric_names.index(case.column)]
        weights = mix_weights(case.sign * values)
    elif case.kind == "prevalence":
        assert site.model.event is not None
        happened = (people.label == site.model.event.word).astype(float)
        weights = event_weights(people, happened, TIMES * site.prevalence)
    before, first = draw_patients(people, CLEAN, drawn)
    after, second = draw_patients(people, WITHIN, drawn, weights)
    moved = shift(case, site, people.take(after), second, drawn)
    parts = site.rows(people.take(before), first), site.rows(moved, second)
    return parts if case.kind == "prevalence" else (without_labels(parts[0]), without_labels(parts[1]))


def without_labels(rows: Rows) -> Rows:
    """Return rows whose labels are not known yet."""
    return Rows(rows.numbers, rows.categories, rows.score, rows.attributions, patient=rows.patient)


def run_case(case: Case, scratch: Path, seed: int, part: str) -> Result:
    """Watch one stream and return the first alarm after the shift."""
    site = sites_of(case.data, scratch)[case.site]
    reference = reference_of(case.data, case.site, scratch)
    drawn = generator(seed, purpose=f"bench of watch, {case.kind} patients", round=case.number)
    before, after = stream(case, site, site.val if part == VALIDATION else site.test, drawn)
    detector = Detector(reference)

    def fits(signal: Signal) -> bool:
        return signal.check.labelled == (case.kind == "prevalence")

    early = [s for s in detector.watch(before) if fits(s)]
    late = [s for s in detector.watch(after) if fits(s)]
    if not late:
        return Result(case, None, "", None, len(early))
    first = late[0]
    return Result(case, first.patient - CLEAN, first.check.name, first.since - CLEAN, len(early))


def named_right(result: Result) -> bool:
    """Say that the alarm names the column, or prevalence or calibration."""
    if result.case.kind == "prevalence":
        return result.named.startswith(("prevalence", "calibration"))
    return result.named.split(": ", 1)[-1].split("[")[0] == result.case.column


def count_alarms(name: str, site: str, scratch: Path, seed: int) -> tuple[list[int], int, int, int]:
    """Count false alarms: of each stream of validation patients; of test patients once each, and how many these are."""
    own, reference = sites_of(name, scratch)[site], reference_of(name, site, scratch)
    evidence = reference.evidence(own.rows(own.val))
    drawn = generator(seed, purpose="bench of watch, alarms", site=site)
    counts = []
    for _ in range(STREAMS):
        detector, found = Detector(reference, hold=False), 0
        for chosen in np.array_split(drawn.integers(len(evidence), size=LENGTH), LENGTH // 500):
            found += len(detector.update(evidence.take(chosen)))
        counts.append(found)
    fresh = reference.evidence(own.rows(own.test))
    signals = Detector(reference, hold=False).update(fresh.take(drawn.permutation(len(fresh))))
    return counts, len(signals), len(fresh), len(evidence)


def watch_late(name: str, site: str, scratch: Path, seed: int) -> tuple[str, int | None, str, int | None]:
    """Change a unit while labels are late; return the column, patients until explanations alarm, and the same of labels."""
    own, reference = sites_of(name, scratch)[site], reference_of(name, site, scratch)
    relied = own.rows(own.val).attributions
    column = max(columns_for("unit", own), key=lambda c: float(np.abs(relied[c]).mean()))
    drawn = generator(seed, purpose="bench of watch, late labels", site=site)
    before, first = draw_patients(own.test, CLEAN, drawn)
    after, second = draw_patients(own.test, LONG, drawn)
    case = Case("unit", 0, name, site, column, 1)
    parts = (
        own.rows(own.test.take(before), first),
        own.rows(shift(case, own, own.test.take(after), second, drawn), second),
    )
    detector = Detector(reference)
    detector.silence(check.name for check in reference.checks if check.kind != "explanation")
    detector.watch(without_labels(parts[0]))
    explained = [s.patient - CLEAN for s in detector.watch(without_labels(parts[1])) if s.check.column == column]
    labels = Detector(reference)
    early, late = (Rows(score=rows.score, label=rows.label, patient=rows.patient) for rows in parts)
    labels.silence(check.name for check in reference.checks if check.kind == "prevalence")
    labels.watch(early)
    found = labels.watch(late)
    until = found[0].patient - CLEAN + LATE if found else None
    return column, explained[0] if explained else None, found[0].check.kind if found else "", until


def draw_figure(lines: list[tuple[str, int | None, int | None]]) -> str:
    """Draw the first alarms of explanations and of labels that come late, one line for each site, as SVG."""
    left, width, step, top = 250, 430, 26, 70
    most = LATE + LONG
    right, height = left + width + 40, top + step * len(lines) + 40

    def x(patients: float) -> float:
        return round(left + width * patients / most, 1)

    bottom = top + step * len(lines)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{right}" height="{height}" fill="white"/>',
        '<circle cx="20" cy="18" r="5" fill="#0072b2"/><text x="32" y="22">first alarm by explanations, without labels</text>',
        '<circle cx="320" cy="18" r="5" fill="#d55e00"/><text x="332" y="22">first alarm by labels (open: none)</text>',
        f'<line x1="{x(LATE)}" y1="{top - 20}" x2="{x(LATE)}" y2="{bottom}" stroke="#888" stroke-dasharray="4 3"/>',
        f'<text x="{x(LATE) + 5}" y="{top - 12}" fill="#555">first label after the shift arrives</text>',
        f'<text x="{x(0)}" y="{bottom + 34}" fill="#555">patients since the unit of a column changed by 1.5</text>',
    ]
    for tick in range(0, most + 1, 100):
        out.append(f'<line x1="{x(tick)}" y1="{bottom}" x2="{x(tick)}" y2="{bottom + 5}" stroke="#555"/>')
        out.append(f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle" fill="#555">{tick}</text>')
    for i, (text, explained, labelled) in enumerate(lines):
        y = top + step * i + step / 2
        out.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{text}</text>')
        out.append(f'<line x1="{x(0)}" y1="{y}" x2="{x(most)}" y2="{y}" stroke="#ddd"/>')
        fill, place = ("#d55e00", labelled) if labelled is not None else ("white", most)
        out.append(f'<circle cx="{x(place):.1f}" cy="{y}" r="5" fill="{fill}" stroke="#d55e00"/>')
        if explained is not None:
            out.append(f'<circle cx="{x(explained):.1f}" cy="{y}" r="5" fill="#0072b2"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def report_late(pool: ProcessPoolExecutor, scratch: Path, seed: int, *, tune: bool) -> bool:
    """Print alarms by explanations and by late labels, write the figure, and return that explanations were first somewhere."""
    pairs = [(name, site) for name in SETS for site in choose_sites(name, scratch, tune=tune)]
    names, sites = zip(*pairs, strict=True)
    found = list(pool.map(watch_late, names, sites, [scratch] * len(pairs), [seed] * len(pairs)))
    print("| data | site | column | patients until explanations alarm | until labels alarm | by |")
    print("|---|---|---|---:|---:|---|")
    for (name, site), (column, explained, check, until) in zip(pairs, found, strict=True):
        print(f"| {name} | {site} | {column} | {explained or 'none'} | {until or 'none'} | {check or '-'} |")
    lines = [
        (f"{site}, {column}", explained, until)
        for (_, site), (column, explained, _, until) in zip(pairs, found, strict=True)
    ]
    if not tune and not SMOKE:
        FIGURE.write_text(draw_figure(lines))
    before = sum(explained is not None and explained < LATE for _, explained, _, _ in found)
    return bar("sites where explanations alarm before the first label arrives", before, 1, least=True)


def train(scratch: Path) -> None:
    """Run each recipe once, unless its run is there."""
    for name, settings in SETS.items():
        if not (scratch / name / "summary.json").exists():
            begun = time.perf_counter()
            gr.run(name, seed=0, settings=settings, out=scratch / name, progress=False)
            print(f"{name}: trained in {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


def report_cases(results: list[Result]) -> Iterator[str]:
    """Yield the table of cases by kind, and each case that was missed or named otherwise."""
    yield "| shift | cases | found within 200 patients | column named right | median delay | longest | alarms before |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for kind in KINDS:
        own = [r for r in results if r.case.kind == kind]
        delays = [r.delay for r in own if r.delay is not None]
        right = sum(named_right(r) for r in own if r.delay is not None)
        span = f"{np.median(delays):.0f} | {max(delays)}" if delays else "- | -"
        yield f"| {kind} | {len(own)} | {len(delays)} | {right} | {span} | {sum(r.early for r in own)} |"
    yield ""
    for r in results:
        if r.delay is None or not named_right(r):
            place = f"{r.case.kind} {r.case.number}, {r.case.data}, {r.case.site}, {r.case.column or 'labels'}"
            yield f"{place}: {'not found' if r.delay is None else f'after {r.delay} patients, {r.named}'}"


def bar(text: str, value: float, limit: float, *, least: bool) -> bool:
    """Print a bar and return that it is met."""
    met = value >= limit if least else value <= limit
    print(
        f"{text}: {value:.3g} (bar: at {'least' if least else 'most'} {limit:.3g}): {'met' if met else 'MISSED'}",
        flush=True,
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("all", "cases", "alarms", "figure"), default="all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "grandrounds-bench-watch")
    parser.add_argument("--tune", action="store_true", help="other sites, columns and seeds")
    parser.add_argument("--seed", type=int, default=SEED, help="another draw of columns and patients")
    given = parser.parse_args()
    train(given.scratch)
    seed, met = TUNING_SEED if given.tune else given.seed, True
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.part in ("all", "cases"):
            cases = make_cases(given.scratch, seed, tune=given.tune)
            cases.sort(key=lambda c: (c.data, c.site))
            for part in (VALIDATION, TEST):
                met &= report_shifts(pool, cases, given.scratch, seed, part)
        if given.part in ("all", "alarms"):
            met &= report_alarms(pool, given.scratch, seed, tune=given.tune)
        if given.part in ("all", "figure"):
            met &= report_late(pool, given.scratch, seed, tune=given.tune)
    sys.exit(0 if met or SMOKE else 1)


def report_shifts(pool: ProcessPoolExecutor, cases: list[Case], scratch: Path, seed: int, part: str) -> bool:
    """Print the cases with new patients from one part of the rows; return that the bars are met, which count validation rows."""
    more = ([scratch] * len(cases), [seed] * len(cases), [part] * len(cases))
    results = sorted(
        pool.map(run_case, cases, *more, chunksize=15), key=lambda r: (KINDS.index(r.case.kind), r.case.number)
    )
    print(f"new patients drawn from {part} rows\n")
    print("\n".join(report_cases(results)), flush=True)
    found = [r for r in results if r.delay is not None]
    met = bar("shifts found within 200 patients", len(found) / len(results), LEAST_FOUND, least=True)
    met &= bar("named right", sum(map(named_right, found)) / max(len(found), 1), LEAST_NAMED, least=True)
    return met or part == TEST


def report_alarms(pool: ProcessPoolExecutor, scratch: Path, seed: int, *, tune: bool) -> bool:
    """Print false alarms by site and return that the bar is met."""
    pairs = [
        (name, site)
        for name in SETS
        for site in dict.fromkeys(
            [*choose_sites(name, scratch, tune=tune), *choose_sites(name, scratch, tune=tune, events=True)]
        )
    ]
    names, sites = zip(*pairs, strict=True)
    counted = list(pool.map(count_alarms, names, sites, [scratch] * len(pairs), [seed] * len(pairs)))
    print(
        "| data | site | validation patients | alarms in 5,000, mean of 20 streams | test patients | alarms in them |"
    )
    print("|---|---|---:|---:|---:|---:|")
    for (name, site), (counts, fresh, patients, reference) in zip(pairs, counted, strict=True):
        print(f"| {name} | {site} | {reference} | {np.mean(counts):.2f} | {patients} | {fresh} |")
    fresh, patients = sum(c[1] for c in counted), sum(c[2] for c in counted)
    print(f"new test patients: {fresh} alarms in {patients}, {5000 * fresh / patients:.1f} in 5,000")
    return bar(
        "false alarms in 5,000 patients, site with most", max(np.mean(c[0]) for c in counted), MOST_ALARMS, least=False
    )


if __name__ == "__main__":
    main()
