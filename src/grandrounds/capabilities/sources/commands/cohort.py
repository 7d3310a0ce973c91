"""`rounds cohort draft | check | build`: the cohort file, which says what every hospital extracts from its records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Vocabulary
from grandrounds.cli.terminal import Terminal, echo, warn

if TYPE_CHECKING:
    from grandrounds.capabilities.sources.cohort.counts import Coverage
    from grandrounds.capabilities.sources.cohort.extract import CohortTable

app = typer.Typer(
    help="Define a cohort on OMOP or FHIR records: draft it, check it, build its table.", no_args_is_help=True
)

CohortFile = Annotated[Path, typer.Argument(metavar="COHORT", help="The cohort file (cohort.toml).")]
_RECORDS = "Records: an OMOP database (SQL URL), a folder or zip of OMOP tables, or a folder of FHIR .ndjson files."


@app.command()
def draft(
    data: Annotated[str, typer.Argument(metavar="RECORDS", help=_RECORDS)],
    out: Annotated[Path, typer.Option("--out", help="The file to write; an existing file is not overwritten.")] = Path(
        "cohort.toml"
    ),
    measurements: Annotated[int, typer.Option(min=0, help="Number of measurements.")] = 12,
    conditions: Annotated[int, typer.Option(min=0, help="Number of conditions.")] = 6,
    drugs: Annotated[int, typer.Option(min=0, help="Number of drugs.")] = 3,
    fewest: Annotated[int, typer.Option(min=5, help="Fewest patients of a concept that is named in the file.")] = 10,
    vocabulary: Vocabulary = None,
) -> None:
    """Write a cohort file from the concepts that an OMOP database has most often; edit it afterwards.

    The file names concepts and no counts, since it goes to all hospitals. The counts are printed for you.

    Example: `rounds cohort draft omop/ --out cohort.toml`
    """
    from grandrounds.capabilities.sources.api import draft_cohort_file
    from grandrounds.capabilities.sources.cohort.draft import DraftLimits
    from grandrounds.core.errors import BadInput

    if out.exists():
        raise BadInput(f"{out} exists and is not overwritten; give another --out", code="file-exists")
    limits = DraftLimits(measurements, conditions, drugs, fewest)
    text, counts = draft_cohort_file(data, limits=limits, name=out.stem, vocabulary=vocabulary)
    out.write_text(text, "utf-8")
    used = [c for c in counts if json.dumps(c.code) in text]
    for c in sorted(used, key=lambda c: (c.domain, -c.patients)):
        echo(f"{c.domain:<12} {c.patients:>7,} patients {c.records:>9,} records  {c.code:<22} {c.name}")
    echo(f"{out} written; edit the outcome and the features, then: rounds cohort check {out} --data {data}")


@app.command()
def check(
    cohort: CohortFile,
    data: Annotated[str | None, typer.Option("--data", help=_RECORDS)] = None,
    vocabulary: Vocabulary = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --data it has counts of patients.")] = False,
) -> None:
    """Print the meaning of a cohort file and its digest; with --data also the patients that each step leaves.

    The digest is the same for the same definition, whatever its comments and layout: hospitals compare it, and a policy can
    list it to approve this cohort and no other. Counts of patients are for the hospital. Nothing is sent anywhere.

    Example: `rounds cohort check cohort.toml --data omop/`
    """
    from grandrounds.capabilities.sources.api import check_cohort
    from grandrounds.capabilities.sources.cohort.cohort_file import read_cohort
    from grandrounds.capabilities.sources.cohort.draft import describe_cohort

    definition = read_cohort(cohort)
    checked = None if data is None else check_cohort(cohort, data, vocabulary=vocabulary)
    if as_json:
        result: dict[str, object] = {
            "name": definition.name,
            "digest": definition.digest(),
            "cohort": definition.to_dict(),
        }
        if checked is not None:
            built, coverage = checked
            result |= {
                "steps": [list(step) for step in built.steps],
                "notes": list(built.notes),
                "columns": _columns(built),
                "coverage": [asdict(one) for one in coverage],
            }
        echo(json.dumps(result))
        return
    for line in describe_cohort(definition):
        echo(line)
    echo(f"digest: {definition.digest()}")
    if checked is not None:
        _show(*checked)


@app.command()
def build(
    cohort: CohortFile,
    data: Annotated[str, typer.Option("--data", help=_RECORDS)],
    out: Annotated[
        Path, typer.Option("--out", help="The table to write, .csv or .parquet; an existing file is not overwritten.")
    ],
    vocabulary: Vocabulary = None,
) -> None:
    """Write the table of a cohort from a hospital's records. It has patients' values and stays at the hospital.

    Example: `rounds cohort build cohort.toml --data omop/ --out patients.csv`
    """
    import os

    from grandrounds.capabilities.sources.api import check_cohort
    from grandrounds.core.errors import BadInput
    from grandrounds.data.row_files import to_csv, to_parquet

    if out.exists():
        raise BadInput(f"{out} exists and is not overwritten; give another --out", code="file-exists")
    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"file type of {out} is not known; name it .csv or .parquet", code="unknown-file-type")
    built, coverage = check_cohort(cohort, data, vocabulary=vocabulary)
    content = to_csv(built.table) if out.suffix == ".csv" else to_parquet(built.table)
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(content)
    _show(built, coverage)
    echo(f"{out}: {len(built.table)} rows, {len(built.table.names)} columns")


def _columns(built: CohortTable) -> dict[str, dict[str, float]]:
    """Summarise each column of a cohort's table: the share of rows without a value."""
    from grandrounds.data.table import missing_mask

    return {name: {"missing": float(missing_mask(values).mean())} for name, values in built.table.columns.items()}


def _show(built: CohortTable, coverage: list[Coverage]) -> None:
    """Print the steps of the selection, the notes, codes that the hospital does not use, and missing values."""
    terminal = Terminal()
    for step, left in built.steps:
        echo(f"{left:>9,} {step}")
    for note in built.notes:
        terminal.print(warn(note, "note:"))
    none = [one.name for one in coverage if not one.records]
    if none:
        terminal.print(
            warn(f"no record at all of {', '.join(none)}; check the codes, or whether this hospital records them")
        )
    gaps = {name: facts["missing"] for name, facts in _columns(built).items() if facts["missing"]}
    empty = [name for name, share in gaps.items() if share == 1 and name not in none]
    if empty:
        terminal.print(
            warn(f"no value in any row: {', '.join(empty)}; check the window and the unit of these features")
        )
    some = sorted(((share, name) for name, share in gaps.items() if share < 1), reverse=True)
    if some:
        echo("missing: " + ", ".join(f"{name} {share:.0%}" for share, name in some))
