"""`rounds site check | schema | policy`: a hospital's own view of its data and its policy, before it joins anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from grandrounds.cli.reading import (
    Censored,
    Decimal,
    Missing,
    Separator,
    TextEncoding,
    merge_reading,
    reading_settings,
    show_reading,
)
from grandrounds.cli.terminal import echo

site_app = typer.Typer(
    help="At a hospital: check its data against the consortium's schema, read its policy.", no_args_is_help=True
)

UNFIT = 1
"""Exit code where the data do not fit, or a plan would be refused."""


@site_app.command()
def check(
    data: Annotated[
        str, typer.Option(help="The site's table (.csv, .tsv, .parquet, SQL URL), or pictures: .npz, or a folder.")
    ],
    schema: Annotated[Path, typer.Option(help="schema.json of the site's folder, or consortium.toml.")] = Path(
        "schema.json"
    ),
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    censored: Censored = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; it may name patients' values.")] = False,
) -> None:
    """Check a table or pictures against what the consortium agreed on: columns, kinds, values, units; size, labels, masks.

    What is printed may name values of patients and is for the site's own people; nothing is sent anywhere.
    Exit code 0: the data fit. 1: they do not. 2: the data or the schema cannot be read.

    Example: `rounds site check --data patients.csv --schema schema.json`
    """
    from grandrounds.data.agreement import check as fit
    from grandrounds.data.agreement.check import examine_data
    from grandrounds.data.agreement.schema import read_schema
    from grandrounds.data.formats import Format

    agreed = read_schema(schema)
    form = Format(**reading_settings(decimal, text_encoding, separator, None, censored))
    found = examine_data(agreed, data, query=query, form=form)
    findings = found.findings
    if as_json:
        told = {
            "rows": found.rows,
            "assumed": found.assumed,
            "fits": fit.fits(findings),
            "findings": fit.to_json(findings),
        }
        echo(json.dumps({**told, "leaves": fit.codes(findings, agreed)}))
    else:
        for note in found.assumed:
            typer.echo(f"assumed: {note}")
        for finding in findings:
            echo(str(finding))
        errors = sum(f.level == "error" for f in findings)
        echo(f"{agreed.described(found.rows)}: {'fits' if not errors else f'does not fit ({errors} to mend)'}")
    if not fit.fits(findings):
        raise typer.Exit(UNFIT)


@site_app.command("schema")
def schema_(
    table: Annotated[
        str, typer.Argument(help="A table that has the columns (.csv, .tsv, .parquet, SQL URL), or pictures (.npz).")
    ],
    label: Annotated[
        str | None, typer.Option(help="Column to predict; of pictures the array, if not `labels`.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="Column that names the hospital; it is left out.")] = None,
    patient: Annotated[str | None, typer.Option(help="Column that names the patient.")] = None,
    time: Annotated[str | None, typer.Option(help="Column that rows can be ordered by.")] = None,
    drop: Annotated[str | None, typer.Option(help="Columns to leave out, with commas between.")] = None,
    categories: Annotated[
        str | None, typer.Option(help="Columns that are categories though they look like numbers, with commas between.")
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    missing: Missing = None,
    censored: Censored = None,
    quantiles: Annotated[
        bool, typer.Option("--quantiles", help="Write quantiles and ranges too: they are of these patients.")
    ] = False,
) -> None:
    """Write a first [data] section for consortium.toml from a table or pictures, to be read and changed by people.

    Units are not in a table: add `unit = "mg/dL"` where there is one. Without quantiles or ranges no unit is checked, and
    without quantiles no brightness.

    Example: `rounds site schema patients.csv --label died --site hospital --quantiles`
    """
    from dataclasses import replace

    from grandrounds.core.errors import BadInput
    from grandrounds.core.toml import dumps
    from grandrounds.data.agreement.draft import draft_image_schema, draft_schema
    from grandrounds.data.agreement.schema import Agreed
    from grandrounds.data.formats import Format
    from grandrounds.data.image_files import read_npz
    from grandrounds.data.readers import DEFAULT_MISSING, read_table

    found: Agreed
    if table.lower().endswith(".npz"):
        pictures = read_npz(table, label=label, site=site, patient=patient)
        found = draft_image_schema(pictures, label=label, patient=patient, quantiles=quantiles)
    elif label is None:
        raise BadInput("which column is to be predicted? (use --label)")
    else:
        left_out, words = (named.split(",") if named else () for named in (drop, categories))
        parts = {"site": site, "patient": patient, "time": time}
        reading = merge_reading(reading_settings(decimal, text_encoding, separator, missing, censored), DEFAULT_MISSING)
        marks = reading.pop("missing", DEFAULT_MISSING)
        keep = [name for name in (label, site, patient) if name is not None]
        levels = dict.fromkeys(words, "categorical")
        held = read_table(table, query=query, missing=marks, form=Format(**reading), kinds=levels, keep=keep)
        show_reading(held)
        draft = draft_schema(held, label=label, **parts, drop=left_out, categories=words, quantiles=quantiles)
        found = replace(draft, missing=tuple(marks))
    plain = {name: value for name, value in found.to_dict().items() if name != "schema"}
    echo(dumps({"data": plain}), nl=False)


@site_app.command()
def policy(
    file: Annotated[Path, typer.Argument(metavar="POLICY", help="policy.toml of the site's folder.")],
    plan: Annotated[Path | None, typer.Option(help="A plan as `rounds plan` writes it: what of it is refused.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say in words what a site's policy allows, and what of a plan it would refuse.

    A plan's digest is printed with it: list it under runs.plans to approve that plan and no other.
    Exit code 0: nothing is refused. 1: something of the plan is.

    Example: `rounds site policy policy.toml --plan plan.json`
    """
    from grandrounds.keeper.policy import Policy, plan_digest
    from grandrounds.keeper.policy_words import MEANS, in_words

    held = Policy.load(file)
    said = in_words(held)
    if plan is None:
        echo(json.dumps({"allows": said}) if as_json else "\n".join(said))
        return
    from grandrounds.keeper.questions import refused

    asked = _plan(plan)
    digest, no = plan_digest(asked), refused(held, asked)
    if as_json:
        told = [{"code": code, "task": task, "reports": reports} for code, task, reports in no]
        echo(json.dumps({"allows": said, "plan": digest, "refused": told}))
    else:
        lines = [*said, f"plan {asked.get('name')}, digest {digest}"]
        lines += [f"refused: {task}{f' ({reports})' if reports else ''}: {MEANS[code]}" for code, task, reports in no]
        echo("\n".join([*lines, *([] if no else ["nothing of this plan is refused"])]))
    if no:
        raise typer.Exit(UNFIT)


def _plan(path: Path) -> dict[str, Any]:
    """A plan's JSON."""
    from grandrounds.core.errors import BadInput

    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as e:
        raise BadInput(f"the plan {path} cannot be read: {e.strerror or e}; write it with `rounds plan`") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or "method" not in found:
        raise BadInput(f"{path} is no plan: write it with `rounds plan RECIPE`")
    return found
