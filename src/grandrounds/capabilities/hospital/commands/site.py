"""`rounds site`: commands for a hospital: check its data and policy, start it, and accept files from the operator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.capabilities.hospital.commands.site_network import check_connection, start_node
from grandrounds.capabilities.hospital.commands.site_worker import check_data, work
from grandrounds.cli.audit import FAILED
from grandrounds.cli.options import (
    Censored,
    Decimal,
    Reading,
    Separator,
    SheetName,
    TextEncoding,
    Vocabulary,
    expand_options,
    show_reading,
)
from grandrounds.cli.terminal import echo, show_fingerprints, show_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
    from grandrounds.protocol.peers import Changes


app = typer.Typer(help="Run a hospital: check its data and policy, start it, manage its keys.", no_args_is_help=True)
app.command("check-connection")(check_connection)
app.command("node")(start_node)
app.command("work")(work)

UNFIT = 1
"""Exit code if the data do not fit, or a plan would be refused."""


@app.command()
def check(
    data: Annotated[
        str, typer.Option(help="The site's table (.csv, .parquet, .xlsx, .dta, .sav, SQL URL), or images: .npz, or a folder.")
    ],
    schema: Annotated[Path, typer.Option(help="schema.json of the site's folder, or consortium.toml.")] = Path(
        "schema.json"
    ),
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    censored: Censored = None,
    sheet: SheetName = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows that the export should have; fewer mean that its end is absent.")
    ] = None,
    vocabulary: Vocabulary = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page for the site's staff, such as data-check.html; it stays here."),
    ] = None,
    totals: Annotated[
        Path | None,
        typer.Option("--totals", metavar="FILE", help="Compare with totals of the consortium (`rounds quality RUN --json`)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; it may name patients' values.")] = False,
) -> None:
    """Check data against the schema of the consortium: columns, types, values, units; for images size, labels, masks.

    If the schema has quantiles and shares (`rounds site schema --quantiles`), faults are named before training: other units,
    exchanged columns, shifted dates, copied patients, recoded categories, columns that give the label away. A text file is
    also checked for a cut end and for two encodings.

    The output may contain values of patients and is for the site's staff. Nothing is sent anywhere.
    Exit code 0: the data fit. 1: they do not. 2: the data or the schema cannot be read.

    Example: `rounds site check --data patients.csv --schema schema.json`
    """
    from grandrounds.capabilities.quality.assessment.assess import read_and_assess
    from grandrounds.capabilities.quality.site_report import compare_at_home, write_check
    from grandrounds.data.agreement import check as fit
    from grandrounds.data.agreement.schema_file import read_schema

    agreed = read_schema(schema)
    form = Reading(decimal, text_encoding, separator, None, censored, sheet).text_format()
    with show_progress():
        examined, table = read_and_assess(
            agreed, data, query=query, form=form, expected_rows=rows, vocabulary=vocabulary
        )
    findings = examined.findings
    differences = [] if totals is None else compare_at_home(totals, agreed, table)
    if html is not None:
        write_check(html, examined, agreed, table, differences)
    if as_json:
        result = {
            "rows": examined.rows,
            "assumed": examined.assumptions,
            "fits": fit.has_no_errors(findings),
            "findings": fit.findings_to_json(findings),
            **({} if totals is None else {"differences": differences}),
        }
        echo(json.dumps({**result, "leaves": fit.shareable_codes(findings, agreed)}))
    else:
        for note in examined.assumptions:
            typer.echo(f"assumed: {note}")
        for finding in findings:
            echo(str(finding))
        for found in differences:
            echo(f"differs: {found['column'] + ': ' if found['column'] else ''}{found['text']}")
        if html is not None:
            echo(f"report for the site's staff, which stays here: {html}")
        errors = sum(f.level == "error" for f in findings)
        echo(f"{agreed.describe(examined.rows)}: {'fits' if not errors else f'does not fit ({errors} to fix)'}")
    if not fit.has_no_errors(findings):
        raise typer.Exit(UNFIT)


@app.command("schema")
@expand_options
def schema_(
    table: Annotated[
        str, typer.Argument(help="A table that has the columns (.csv, .parquet, .xlsx, .dta, .sav, SQL URL), or images (.npz).")
    ],
    label: Annotated[
        str | None, typer.Option(help="Column to predict; for images the array (default: `labels`).")
    ] = None,
    site: Annotated[str | None, typer.Option(help="Column that names the hospital; it is left out.")] = None,
    patient: Annotated[str | None, typer.Option(help="Column that names the patient.")] = None,
    time: Annotated[str | None, typer.Option(help="Column that rows can be ordered by.")] = None,
    task: Annotated[
        str, typer.Option(help="Type of the outcome: classification, regression, count, survival; auto: inferred from the label.")
    ] = "auto",
    duration: Annotated[str | None, typer.Option(help="Column with the follow-up time, for survival.")] = None,
    drop: Annotated[str | None, typer.Option(help="Columns to leave out, separated by commas.")] = None,
    categories: Annotated[
        str | None, typer.Option(help="Columns that are categories though they look like numbers, separated by commas.")
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    reading: Reading = Reading(),
    quantiles: Annotated[
        bool,
        typer.Option(
            "--quantiles",
            help="Also write the reference of checks (quantiles, shares, dates, correlations), computed from these patients.",
        ),
    ] = False,
) -> None:
    """Write a draft of section [data] of consortium.toml from a table or images; edit it afterwards.

    A table does not contain units: add `unit = "mg/dL"`. Units are checked only if there are quantiles or ranges, the
    brightness of images only if there are quantiles.

    Example: `rounds site schema patients.csv --label died --site hospital --quantiles`
    """
    from dataclasses import replace

    from grandrounds.core.errors import BadInput
    from grandrounds.core.toml import dumps
    from grandrounds.data.agreement.draft import draft_image_schema, draft_schema
    from grandrounds.data.agreement.schema import AgreedSchema
    from grandrounds.data.formats import DEFAULT_MISSING
    from grandrounds.data.image_files import read_npz
    from grandrounds.data.readers import read_table

    drafted: AgreedSchema
    if table.lower().endswith(".npz"):
        pictures = read_npz(table, label=label, site=site, patient=patient)
        drafted = draft_image_schema(pictures, label=label, patient=patient, quantiles=quantiles)
    elif label is None:
        raise BadInput("no column to predict is set: name it with --label COLUMN", code="label-not-set")
    else:
        left_out, words = (named.split(",") if named else () for named in (drop, categories))
        form = reading.text_format()
        marks = tuple(reading.merge(DEFAULT_MISSING).get("missing", DEFAULT_MISSING))
        keep = [name for name in (label, site, patient) if name is not None]
        levels = dict.fromkeys(words, "categorical")
        rows = read_table(table, query=query, missing=marks, form=form, kinds=levels, keep=keep)
        show_reading(rows)
        draft = draft_schema(
            rows,
            label=label,
            site=site,
            patient=patient,
            time=time,
            task=task,
            duration=duration,
            drop=left_out,
            categories=words,
            quantiles=quantiles,
        )
        drafted = replace(draft, missing=marks)
    plain = {name: value for name, value in drafted.to_dict().items() if name != "schema"}
    echo(dumps({"data": plain}), nl=False)


@app.command()
def policy(
    file: Annotated[Path | None, typer.Argument(metavar="POLICY", help="policy.toml of the site's folder.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="A plan from `rounds plan`: list the parts that the policy refuses.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print a template of policy.toml instead: strict, standard or research."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The site's folder, whose budget and open runs a new policy is compared with; by default that of POLICY.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the meaning of a site's policy, its effect on site budget and open runs, and the parts of a plan that it refuses.

    Nothing is changed. The digest of the plan is printed; `rounds site approve` adds it to policy.toml.
    Exit code 0: nothing is refused. 1: a part of the plan, or the limit of the site budget, is refused.

    Examples: `rounds site policy policy.toml --plan plan.json`; `rounds site policy strict.toml --folder hospital`;
    `rounds site policy --template strict`
    """
    from grandrounds.capabilities.hospital.keeper.policy.describe import describe_policy, explain_refusal, foresee_ratio
    from grandrounds.capabilities.hospital.keeper.policy.rules import Policy, plan_digest
    from grandrounds.capabilities.hospital.keeper.policy.templates import policy_template
    from grandrounds.core.errors import BadInput

    if (file is None) == (template is None) or (template is not None and plan is not None):
        raise BadInput("give either POLICY, a site's policy.toml, or --template NAME", code="conflicting-options")
    if file is None:
        echo(policy_template(str(template)), nl=False)
        return
    site_policy = Policy.load(file)
    sentences = describe_policy(site_policy)
    facts, effects, unfit = _foresee(site_policy, folder, file)
    if plan is None:
        echo(json.dumps({"allows": sentences, **facts}) if as_json else "\n".join([*sentences, *effects]))
        if unfit:
            raise typer.Exit(UNFIT)
        return
    from grandrounds.capabilities.hospital.keeper.policy.questions import refused_requests

    plan_values = _read_plan(plan)
    digest, no = plan_digest(plan_values), refused_requests(site_policy, plan_values)
    if as_json:
        refusals = [{"code": code, "task": task, "reports": reports} for code, task, reports in no]
        echo(json.dumps({"allows": sentences, **facts, "plan": digest, "refused": refusals}))
    else:
        lines = [*sentences, *effects, f"plan {plan_values.get('name')}, digest {digest}"]
        lines += [sentence] if (sentence := foresee_ratio(site_policy, plan_values)) else []
        for code, task, reports in no:
            why = explain_refusal(site_policy, plan_values, code, task, reports)
            lines.append(f"refused: {task}{f' ({reports})' if reports else ''}: {why}")
        echo("\n".join([*lines, *([] if no else ["nothing of this plan is refused"])]))
    if no or unfit:
        raise typer.Exit(UNFIT)


def _foresee(policy: Policy, folder: Path | None, file: Path) -> tuple[dict[str, object], list[str], bool]:
    """Foresee the effect of a policy on the site budget and on open runs: as JSON, in lines, and whether a limit is refused.

    Without a folder, that of the policy file is used, if it is a site's.
    """
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.policy.describe import explain_code
    from grandrounds.capabilities.hospital.keeper.policy.questions import refused_requests

    if folder is None and not (file.parent / "site.toml").is_file():
        return {}, [], False
    site = SiteFolder(folder or file.parent)
    change = site.foresee_limits(policy)
    facts: dict[str, object] = {}
    lines = []
    if change is not None:
        facts["budget"] = {"epsilon": change.before, "limit": change.after, "spent": change.spent, "refused": change.refusal}
        lines.append(f"site budget: {change.describe()}")
    refused: dict[str, tuple[str, str]] = {}
    for plan in site.open_plans():
        for code, task, _ in refused_requests(policy, plan):
            refused.setdefault(str(plan["name"]), (code, task))
    lines += [f"open run {name}: {task} is refused: {explain_code(code)}" for name, (code, task) in refused.items()]
    if change is not None or refused:
        facts["open_runs_refused"] = {name: code for name, (code, _) in refused.items()}
    return facts, lines, change is not None and bool(change.refusal)


@app.command()
def approve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    plan: Annotated[Path, typer.Argument(metavar="plan.json", help="The plan, from `rounds server submit --plan plan.json`.")],
    by: Annotated[str, typer.Option(metavar="PERSON", help="The person who approves, for the comment in policy.toml.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a question: a person has read what leaves.")] = False,
) -> None:
    """Approve a plan: check it against the policy, show what would leave, and add its digest to policy.toml.

    A running site reads the changed file before its next answer; it needs no restart. To withdraw an approval, delete the line
    with the digest from policy.toml.
    Exit code 1: the policy refuses a part of the plan, or the answer was no. Nothing was approved then.

    Example: `rounds site approve hospital plan.json --by "A. Smith"`
    """
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.policy.approval import Review
    from grandrounds.capabilities.hospital.keeper.policy.approval import approve as add_digest
    from grandrounds.capabilities.hospital.keeper.policy.rules import cohort_digest
    from grandrounds.core.errors import BadInput

    site, plan_values = SiteFolder(folder), _read_plan(plan)
    policy, cohort = site.policy(), site.cohort()
    review = Review.of(policy, plan_values)
    for line in review.lines(policy):
        echo(line)
    refusals = list(review.refusals)
    if cohort_digest(plan_values) != ("" if cohort is None else cohort.digest()):
        refusals.append("open: the plan has another cohort than this folder: accept the operator's folder (rounds site accept)")
    for line in refusals:
        echo(f"refused: {line}")
    if refusals:
        echo("nothing was approved")
        raise typer.Exit(UNFIT)
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(
                "the approval needs a person: let the one who approves the use of data read the lines above, then add --yes",
                code="unconfirmed-plan",
            )
        if not typer.confirm("Does this hospital approve this plan?"):
            echo("nothing was approved")
            raise typer.Exit(UNFIT)
    file = folder / "policy.toml"
    added = add_digest(file, plan_values, by=by)
    echo(f"{file}: {'approved' if added else 'this plan was approved before'}; a running site needs no restart")
    if added and not policy.runs.plans and policy.approves_plan(plan_values):
        echo("note: so far any plan was opened; from now on only those in runs.plans are")


def _read_plan(path: Path) -> dict[str, object]:
    """Read the JSON of a plan."""
    from grandrounds.core.errors import BadInput

    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as e:
        raise BadInput(
            f"the plan {path} cannot be read: {e.strerror or e}; write it with `rounds plan`", code="cannot-read"
        ) from None
    except ValueError:
        values = None
    if not isinstance(values, dict) or "method" not in values:
        raise BadInput(f"{path} is not a plan: write one with `rounds plan RECIPE`", code="not-a-plan")
    return values


ASK = "did you compare these fingerprints with the other hospitals, by telephone for instance?"


@app.command()
def unseal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.sealed, as the operator sent it.")],
    passphrase_file: Annotated[Path, typer.Option(metavar="P", help="A file whose first line is the passphrase.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
) -> None:
    """Open an encrypted folder that `rounds provision --seal` wrote."""
    from grandrounds.capabilities.hospital.deploy.seal import read_passphrase, unseal

    names = unseal(file, read_passphrase(passphrase_file), out)
    echo(f"{out}: {len(names)} files; rounds provision verify {out}")


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder from the operator, with the invitation.")],
    key: Annotated[
        Path | None, typer.Option(metavar="server.pub", help="The server's public key, from a source you trust.")
    ] = None,
) -> None:
    """Join a consortium: check the folder, make this site's keys in FOLDER/keys, and write a request to the operator.

    The private keys are made here and never leave this machine. request.json has the public keys and the proof that this site
    was invited: send it to the operator. Repeated, the command keeps the keys.

    Example: `rounds site join hospital --key server.pub`
    """
    from grandrounds.capabilities.hospital.deploy.key_requests import join
    from grandrounds.protocol.identity import load_public
    from grandrounds.protocol.peers import fingerprint

    server = None if key is None else load_public(key)
    repeated = (folder / "keys").exists()
    request = join(folder, server=server)
    echo(f"{folder / 'keys'}: " + ("keys of this site are kept" if repeated else "keys made here; never send them to anybody"))
    echo(f"{folder / 'request.json'}: send it to the operator of {request.consortium}, then compare by telephone")
    server_mark = fingerprint(load_public(folder / "server.pub"))
    show_fingerprints({f"you read out {request.site}'s": request.fingerprint, "they read out the server's": server_mark})
    if server is None:
        echo("note: the server's key is the folder's own: continue only if the operator reads out the same fingerprint")
    echo(f"the operator approves and sends the folder again: rounds site accept {folder} HANDED")


@app.command()
def rekey(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    confirmed: Annotated[
        bool, typer.Option("--done", help="The operator has approved the request: use the new keys from now on.")
    ] = False,
) -> None:
    """Replace this site's keys: make new ones here, and a request to the operator to register them.

    Repeated, the command keeps the new keys: delete FOLDER/keys.next to make others.
    """
    from grandrounds.capabilities.hospital.deploy.key_requests import rekey, take_new_keys

    if confirmed:
        take_new_keys(folder)
        echo(f"{folder / 'keys'}: new keys in use; delete keys.void, then start the site again")
        return
    request = rekey(folder)
    echo(f"{folder / 'request.json'}: send it to the operator, who runs: rounds provision approve OUT request.json")
    show_fingerprints({f"you read out {request.site}'s": request.fingerprint})


@app.command()
def accept(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    handed: Annotated[Path, typer.Argument(metavar="HANDED", help="The new folder from the operator.")],
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Accept a changed list of sites and changed data without a question: fingerprints and changes were compared.",
        ),
    ] = False,
) -> None:
    """Accept files that the server signed: renewed files, a new server key signed by the old one, keys of other sites.

    If the agreed data changed, such as the cohort, the command prints each change and asks. If sites were added or removed, or
    have another key, it prints that and asks. Compare fingerprints with the
    hospitals themselves first: the list protects against a dishonest server. Exit code 1: the answer was no, and nothing
    was accepted.

    Example: `rounds site accept hospital handed`
    """
    from grandrounds.capabilities.hospital.deploy.handover import accept

    other = accept(
        folder,
        handed,
        lambda changes: _confirm_changes(changes, yes=yes),
        lambda lines: _confirm_data(lines, yes=yes),
    )
    if other is None:
        echo("nothing was accepted")
        raise typer.Exit(1)
    outcome = "the new server key is accepted" if other else "accepted; the server key is the same"
    echo(f"{folder}: {outcome}; restart a running site to use it")


def _confirm_data(lines: Sequence[str], *, yes: bool) -> bool:
    """Show how the agreed data changed, and ask whether the hospital approves."""
    from grandrounds.core.errors import BadInput

    for line in lines:
        echo(f"agreed data: {line}")
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput(
            "the agreed data have changed: let the person who approves the use of data read the changes above, then add --yes",
            code="unconfirmed-data",
        )
    return typer.confirm("Does this hospital approve these data?")


def _confirm_changes(changes: Changes, *, yes: bool) -> bool:
    """Show what changed, and ask whether its fingerprints were compared."""
    from grandrounds.core.errors import BadInput

    for line in changes.lines():
        echo(line)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput(
            "the list of sites has changed: compare the fingerprints above by telephone or "
            "another channel, then add --yes",
            code="unconfirmed-peers",
        )
    return typer.confirm(ASK)


@app.command()
def peers(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the sites of secure aggregation, each with the fingerprint of its key.

    Compare the fingerprints with the other hospitals by telephone or another channel. Two hospitals whose last line is
    the same have the same list. Sites that this one rejected follow. Exit code 3: the list was changed after it was
    handed over, or has a wrong key for this site.

    Example: `rounds site peers hospital`
    """
    from dataclasses import asdict

    from grandrounds.capabilities.hospital.deploy.handover import inspect_peers

    report = inspect_peers(folder)
    if as_json:
        echo(json.dumps(asdict(report)))
    else:
        for line in report.lines():
            echo(line)
    if report.faults:
        raise typer.Exit(FAILED)


@app.command()
def start(
    folder: Annotated[Path, typer.Argument(help="The site's folder, as `rounds provision` wrote it.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="The site's table (.csv, .parquet, .xlsx, .dta, .sav, SQL URL), or images: .npz, or a folder. "
            "Left out if `rounds site work` reads it on another machine."
        ),
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    device: Annotated[str, typer.Option(help="Device for networks: auto, cpu or cuda.")] = "auto",
    node: Annotated[
        bool, typer.Option("--node/--no-node", help="Also start the SuperNode, unless one is running.")
    ] = True,
    unfit: Annotated[
        bool,
        typer.Option("--unfit", help="Start although the data do not fit the schema; runs that need them are refused."),
    ] = False,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", help="json: one JSON object a line on standard error, for services (default: text)."),
    ] = None,
) -> None:
    """Start a site: check its data, then answer the requests that its policy allows, until Ctrl-C.

    Data stay at the site. Every message that leaves it is logged to state/log.jsonl of the folder. Without --data the worker
    runs elsewhere, for example on a node of a cluster (`rounds site work`), and messages reach it through a folder.

    Example: `rounds site start sites/cleveland --data cleveland.csv`
    """
    import logging
    import signal
    import threading

    from grandrounds.capabilities.hospital.deploy.handover import refuse_changed_cohort
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.runtime.site import Site
    from grandrounds.core.errors import BadInput
    from grandrounds.core.event_log import choose_form, log_event, start_logging

    start_logging(choose_form(log_format or "text"), level=logging.INFO if log_format == "json" else logging.WARNING)
    logger = logging.getLogger("grandrounds.site")
    site_folder = SiteFolder(folder)
    site_folder.identity()  # refused before the data are read
    refuse_changed_cohort(folder)
    amount = "its worker reads the data" if data is None else check_data(site_folder, data, query=query, unfit=unfit)
    site_folder.accepted_peers()  # warns where secure sums will be refused
    limits = site_folder.foresee_limits(site_folder.policy())
    if limits is not None and limits.refusal:
        raise BadInput(limits.refusal, code="changed-budget-limit")
    site = Site(site_folder, data=data, query=query, device=device, node=node)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    echo(f"{site_folder.name}: {amount}; waiting for its SuperNode on 127.0.0.1:{site.port}")
    site.run(stop, (lambda sentence: log_event(logger, "site", sentence)) if log_format == "json" else typer.echo)
    echo(f"{site_folder.name} has stopped")
