"""Count harmed sites of the default recipes, and compare what hospitals deploy with what they would have alone.

    python bench/harm.py heart                      # bar of heart too: mean over sites, and no site below its majority class
    python bench/harm.py heart eicu-demo --seeds 0-4
    python bench/harm.py diabetes-130               # sites by admission source
    python bench/harm.py icu-cohort --no-references # 152 hospitals, all of which train and are tested
    python bench/harm.py ham10000 --seeds 0-1       # four sources of images
    python bench/harm.py specification              # N3 and N4: exact logistic regression with the guard

All but heart and icu-cohort need GRANDROUNDS_DATA. For each seed the recipe runs three times: as it is, with method 'local' and
with method 'pooled', on the same rows. A site is harmed where the deployed model is clearly worse on its test rows than the
better of its own model and its majority class (paired bootstrap over patients, 5% level, Holm's rule over sites). Sites with
too few test rows are not tested.

Client means weigh every site with test rows alike; AUROC is over sites with five test rows of each class. "All rows" is the log
loss of all test rows together. Majority: every patient gets the shares of the classes in the site's training rows.
The command exits with status 1 if a site is harmed, or a bar of heart or of the specification is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.encoding import class_numbers
from grandrounds.data.sets import diabetes
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.table import Table
from grandrounds.metrics import paired_t
from grandrounds.runs.run import Run
from grandrounds.runs.run_rows import RunRows
from grandrounds.site.evaluate import score
from smoke import SMOKE, pick

Settings = dict[str, Any]
CASES: dict[str, Settings] = {
    "heart": pick({}, {"method.rounds": 2}),
    "eicu-demo": {},
    "diabetes-130": {"data.site": "admission_source_id", "split.min_rows": 1},
    "icu-cohort": {"split.scheme": "within"},
    "ham10000": {},
}
"""The recipe of each data set, and the settings that divide it into the sites of the bar."""

SSE_AGG: Settings = {"method.name": "sse-agg", "reference.rows.rows": 100, "explain.reference": "rows"}
"""Heart alone: this method compares local models on 100 reference rows, which are then neither trained on nor tested."""

ALONE: Settings = {"personal.guard": False, "personal.part": "none"}
FIGURES = ("log_loss", "accuracy", "auroc")
ARMS = ("common", "deployed", "local", "pooled", "majority")
WITH_SSE_AGG = (*ARMS, "SSE-AGG, common", "SSE-AGG, deployed")
RESAMPLES = 2000
MOST_LISTED = 20
"""Sites up to which figures are printed by site."""

SPECIFICATION = "specification"


@dataclass
class Tally:
    """Results of one data set over its seeds.

    Attributes:
        arms: Names of the lines of its table.
        means: Client means of each figure, by arm, one for each seed.
        totals: Log loss of all test rows, by arm, one for each seed.
        choices: How often each candidate was deployed.
        harmed: Harmed sites with seed and figures.
        tested: Site-runs tested for harm.
        sites: Number of sites.
        below: Sites whose deployed model is clearly below the majority class, with seed.
        seconds: Of each run of the recipe.
        by_site: Log loss of each site with test rows, by site and arm, one for each seed.
    """

    arms: tuple[str, ...] = ARMS
    means: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    totals: dict[str, list[float]] = field(default_factory=dict)
    choices: Counter[str] = field(default_factory=Counter)
    harmed: list[str] = field(default_factory=list)
    tested: int = 0
    sites: int = 0
    below: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by_site: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def mean(self, arm: str, figure: str) -> float:
        """Return the mean over seeds."""
        return float(np.mean(self.means[arm][figure]))


def run_once(recipe: str, seed: int, settings: Settings, *, out: Path) -> Run:
    """Run a recipe without a progress bar."""
    return gr.run(recipe, seed=seed, settings=settings, out=out, progress=False)


def client_mean(per_site: Mapping[str, Mapping[str, Any]], figure: str) -> float:
    """Return the mean over sites that have test rows and this figure."""
    values = [s[figure] for s in per_site.values() if s["count"] and s.get(figure) is not None]
    return float(np.mean(values))


def total_loss(per_site: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the log loss of all test rows."""
    rows = {name: s for name, s in per_site.items() if s["count"]}
    return float(sum(s["log_loss"] * s["count"] for s in rows.values()) / sum(s["count"] for s in rows.values()))


def tally_seed(case: str, seed: int, tally: Tally, *, references: bool) -> None:
    """Run one seed and add its results; methods 'local' and 'pooled' only if references are wanted."""
    settings = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run = run_once(case, seed, settings, out=Path(folder) / "guard")
        tally.seconds.append(time.perf_counter() - begun)
        personal = run.summary.personal
        shown: dict[str, Mapping[str, Mapping[str, Any]]] = {
            "common": run.summary["per_site"],
            "deployed": personal["per_site"],
            "majority": rate_majority(run, seed, tally),
        }
        if "SSE-AGG, common" in tally.arms:
            summary = run_once(case, seed, {**settings, **SSE_AGG}, out=Path(folder) / "sse-agg").summary
            shown |= {"SSE-AGG, common": summary["per_site"], "SSE-AGG, deployed": summary.personal["per_site"]}
        for method in ("local", "pooled") if references else ():
            done = run_once(case, seed, {**settings, **ALONE, "method.name": method}, out=Path(folder) / method)
            shown[method] = done.summary["per_site"]
    for arm, per_site in shown.items():
        for figure in FIGURES:
            tally.means.setdefault(arm, {}).setdefault(figure, []).append(client_mean(per_site, figure))
        tally.totals.setdefault(arm, []).append(total_loss(per_site))
        for site in (name for name, figures in per_site.items() if figures["count"] and arm in ARMS):
            tally.by_site.setdefault(site, {}).setdefault(arm, []).append(per_site[site]["log_loss"])
    tally.choices.update(personal["choices"].values())
    tally.tested += len(personal["tested"])
    tally.sites = len(personal["choices"])
    for site in personal["harmed"] or ():
        losses = ", ".join(f"{arm} {shown[arm][site]['log_loss']:.3f}" for arm in tally.arms if site in shown[arm])
        count = int(shown["common"][site]["count"])
        tally.harmed.append(f"{site}, seed {seed}: {personal['choices'][site]}; log loss on {count} test rows: {losses}")


def rate_majority(run: Run, seed: int, tally: Tally, table: Table | None = None) -> dict[str, dict[str, Any]]:
    """Evaluate the majority class of each site on its test rows; note sites where the deployed model is clearly below it."""
    rows = RunRows.read(run, table)
    stack, data = rows.consortium.stack, rows.consortium.data
    out: dict[str, dict[str, Any]] = {}
    for name, parts in zip(stack.names, stack.rows, strict=True):
        if not len(parts.train) or not len(parts.test):
            continue
        model = run.model_for(name)
        classes = list(model.encoding.classes)
        train = class_numbers(data.label[parts.train], classes, where=name)
        test_rows = data.take(parts.test)
        test = class_numbers(test_rows.label, classes, where=name)
        counts = np.bincount(train, minlength=len(classes))
        shares = (counts + 0.5) / (counts.sum() + 0.5 * len(classes))
        usual = test == int(np.argmax(counts))
        loss, both = float(-np.log(shares[test]).mean()), len(np.unique(test)) > 1
        out[name] = {"count": len(test), "log_loss": loss, "accuracy": usual.mean(), "auroc": 0.5 if both else None}
        inputs: Any = model.encoding.encode(test_rows, model.theta.dtype)  # type: ignore[arg-type]
        logits = score(model.net, model.theta, inputs)
        guess = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else np.argmax(logits, axis=1)
        units = np.arange(len(test)) if data.patient is None else data.patient[parts.test].astype(str)
        low, high = bootstrap((guess == test) * 1.0 - usual, units, seed=seed, site=name)
        if high < 0:
            tally.below.append(f"{name}, seed {seed}: accuracy less majority {low:+.3f} to {high:+.3f}")
    return out


def bootstrap(difference: Array, units: Array, *, seed: int, site: str) -> tuple[float, float]:
    """Return the 95% interval of a mean by resampling patients."""
    words, place = np.unique(units, return_inverse=True)
    sums = np.bincount(place.ravel(), weights=difference)
    sizes = np.bincount(place.ravel())
    drawn = generator(seed, purpose="bench of harm", site=site).integers(len(words), size=(RESAMPLES, len(words)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def describe(case: str, seeds: list[int], tally: Tally) -> Iterator[str]:
    """Yield the lines of one data set."""
    choices = ", ".join(f"{name} {n}" for name, n in tally.choices.most_common())
    yield f"{case}: {tally.sites} sites, seeds {seeds[0]} to {seeds[-1]}, {np.mean(tally.seconds):.1f} s a run"
    yield f"deployed: {choices}"
    yield f"harmed sites: {len(tally.harmed)} of {tally.tested} site-runs tested"
    yield from (f"  {line}" for line in tally.harmed)
    yield f"clearly below their majority class (accuracy, 95%, each site by itself): {len(tally.below)} site-runs"
    yield from (f"  {line}" for line in tally.below[:10])
    yield ""
    yield "| arm | log loss | accuracy | AUROC | log loss, all rows |"
    yield "|---|---:|---:|---:|---:|"
    for arm in tally.arms:
        cells = " | ".join(f"{tally.mean(arm, f):.3f}" for f in FIGURES)
        yield f"| {arm} | {cells} | {np.mean(tally.totals[arm]):.4f} |"
    yield ""
    if len(tally.by_site) <= MOST_LISTED and "local" in tally.arms:
        yield f"| log loss by site | {' | '.join(ARMS)} | deployed less local, by seed |"
        yield f"|---|{'---:|' * len(ARMS)}---|"
        for site, arms in tally.by_site.items():
            gaps = ", ".join(f"{d - own:+.3f}" for d, own in zip(arms["deployed"], arms["local"], strict=True))
            yield f"| {site} | {' | '.join(f'{np.mean(arms[arm]):.3f}' for arm in ARMS)} | {gaps} |"
        yield ""


def heart_bar(tally: Tally) -> bool:
    """Print the mean over sites less the best of the others; return False if it is clearly below, or a site is."""
    met = not tally.below
    for figure, sign in (("accuracy", 1), ("log_loss", -1), ("auroc", 1)):
        others = {arm: sign * tally.mean(arm, figure) for arm in ("local", "common", "pooled")}
        best = max(others, key=lambda arm: others[arm])
        pair = paired_t(tally.means["deployed"][figure], tally.means[best][figure])
        clear = max(sign * pair.low, sign * pair.high) < 0
        word = "met" if sign * pair.difference >= 0 else "MISSED" if clear else "below, within chance"
        met &= word != "MISSED" or figure == "auroc"
        span = f"{pair.difference:+.4f} (95% over seeds: {pair.low:+.4f} to {pair.high:+.4f})"
        print(f"{figure}: deployed less {best}, the best of the three: {span}: {word}")
    return met


def check_specification(seeds: list[int]) -> bool:
    """Print N3 and N4 of the specification: exact logistic regression, all test rows, with and without own intercepts."""
    exact: Settings = {"method.name": "glm", "personal.guard": True}
    met = True
    print("| bar | seed | common | deployed | majority | spread | deployed | harmed |")
    print("|---|---:|---:|---:|---:|---:|---|---:|")
    for name, ridge, slack in (("N3: eICU, 5 regions", 100, 0.002), ("N4: diabetes-130, 18 payers", 1, 0.0)):
        differences = []
        for seed in seeds:
            settings, tally = {**exact, "method.exact.ridge": ridge}, Tally()
            with tempfile.TemporaryDirectory() as folder:
                if name.startswith("N3"):
                    run = gr.run("eicu-demo", seed=seed, settings=settings, out=Path(folder) / "run", progress=False)
                    usual = rate_majority(run, seed, tally)
                else:
                    table, experiment = load_payers(settings, seed)
                    run = gr.run(experiment, table=table, out=Path(folder) / "run", progress=False)
                    usual = rate_majority(run, seed, tally, table)
                personal, common = run.summary.personal, run.summary["per_site"]
            losses = [total_loss(common), total_loss(personal["per_site"]), total_loss(usual)]
            differences.append(losses[1] - losses[0])
            choices = ", ".join(f"{c} {n}" for c, n in Counter(personal["choices"].values()).most_common())
            harmed = f"{len(personal['harmed'] or ())} of {len(personal['tested'])}"
            cells = " | ".join([*(f"{v:.4f}" for v in losses), f"{personal['spread']:.3f}", choices, harmed])
            print(f"| {name} | {seed} | {cells} |", flush=True)
        held = float(np.mean(differences)) <= slack
        met &= held
        print(f"{name}: deployed less common {np.mean(differences):+.5f}, bar {slack:+.3f}: {'met' if held else 'MISSED'}")
    return met


def load_payers(settings: Settings, seed: int) -> tuple[Table, gr.Experiment]:
    """Load the stays of every fifth patient of diabetes-130 with the payer as site; stays without a payer are a site too."""
    entry, table = find_entry("diabetes-130"), diabetes.load()
    payer = table.column("payer_code").copy()
    payer[[p is None for p in payer]] = "unknown"
    columns = {name: table.column(name) for name in table.names if name not in entry.drop}
    mine = np.flatnonzero(columns["patient_nbr"].astype(np.int64) % 5 == 0)
    chosen = Table({**columns, "payer_code": payer}, "diabetes-130 by payer").take(mine)
    values: dict[str, Any] = {
        "seed": seed,
        "data": {"label": entry.label, "event": entry.event, "site": "payer_code", "patient": entry.patient},
        "split": {"min_rows": 1},
    }
    values["data"]["kinds"] = {name: kind for name, kind in entry.schema.items() if name in columns}
    for name, value in settings.items():
        *path, last = name.split(".")
        section = values
        for word in path:
            section = section.setdefault(word, {})
        section[last] = value
    return chosen, gr.Experiment.parse(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["heart"], help=f"{', '.join(CASES)} or {SPECIFICATION}")
    parser.add_argument("--seeds", default=pick("0-4", "0-1"), help="first and last")
    text = "methods 'local' and 'pooled' too, and SSE-AGG on heart"
    parser.add_argument("--references", action=argparse.BooleanOptionalAction, default=True, help=text)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split("-"))
    seeds, met = list(range(first, last + 1)), True
    for case in given.cases:
        if case == SPECIFICATION:
            met &= check_specification(seeds)
            continue
        bare = ("common", "deployed", "majority")
        tally = Tally(arms=bare if not given.references else WITH_SSE_AGG if case == "heart" else ARMS)
        for seed in seeds:
            tally_seed(case, seed, tally, references=given.references)
            print(f"{case}, seed {seed}: harmed {tally.harmed or 'none'} so far", file=sys.stderr, flush=True)
        for line in describe(case, seeds, tally):
            print(line, flush=True)
        met &= not tally.harmed
        if case == "heart" and given.references:
            met &= heart_bar(tally)
    sys.exit(0 if met or SMOKE else 1)


if __name__ == "__main__":
    main()
