"""`rounds models`: the register of models, with the people who approve them and the hospitals that use them."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.terminal import Terminal, echo, reads_run, show_fingerprints, styled, warn

if TYPE_CHECKING:
    from grandrounds.capabilities.dossier.register import ModelStatus, RegisterView
    from grandrounds.capabilities.dossier.register.register import Register

FAILED = 3
"""Exit code of a verification that found a fault."""
RUNS = Path("runs")
_COLOURS = {"candidate": "yellow", "approved": "cyan", "in use": "green", "withdrawn": "red", "not valid": "red"}

app = typer.Typer(
    help=(
        "Keep a register of models: candidate, approved, in use, withdrawn.\n\n"
        "A model is approved when a signatory of each required role signed it. Every step is a signed entry of the register's "
        'own ledger. Start with `rounds models init --role "medical director"`.'
    ),
    no_args_is_help=True,
)
signatory_app = typer.Typer(
    help="Manage the people who sign: name, role, and a key under a passphrase.", no_args_is_help=True
)
app.add_typer(signatory_app, name="signatory")

Runs = Annotated[Path, typer.Option("--runs", help="The folder of runs; the register is its folder `register`.")]
AnyRuns = Annotated[
    Path | None,
    typer.Option("--runs", help="The folder of runs that has the register. Default: the nearest one above RUN."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="The signatory who signs; asked for the passphrase.")]
Signers = Annotated[
    list[str],
    typer.Option("--by", metavar="NAME", help="A signatory who agrees (repeatable); asked for the passphrase."),
]
Note = Annotated[str, typer.Option(help="A remark for the record.")]
PassphraseFiles = Annotated[
    list[Path],
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="Read a passphrase from the first line of a private file (mode 0600) instead of asking; repeat it in the order "
        "in which they are asked.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def init(
    role: Annotated[list[str], typer.Option("--role", help="A role that must approve every model (repeatable).")],
    runs: Runs = RUNS,
    note: Note = "",
) -> None:
    """Create the register of a folder of runs, and name the roles that must approve a model.

    Example: `rounds models init --role "medical director" --role "data protection officer"`
    """
    from grandrounds.capabilities.dossier.register.register import Register
    from grandrounds.protocol.identity import load_public

    register = Register.create(runs, roles=role, note=note)
    echo(f"register: {register.folder.path}")
    echo(f"a model is approved when each of these roles signed it: {', '.join(role)}")
    show_fingerprints({"register's public key": load_public(register.folder.public_key).hex()})
    echo(f"next: `rounds models signatory add NAME --role {_quoted(role[0])}`, and one for each further role")


@app.command("list")
def list_models(
    runs: Runs = RUNS,
    site: Annotated[str, typer.Option(help="Only models in use at this hospital.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the models of the register: state, purpose, hospitals, signatures."""
    from rich.table import Table

    view = _read(runs)
    models = [m for m in view.models if not site or site in m.record.in_use]
    if as_json:
        echo(json.dumps({"fault": view.fault, "roles": view.roles, "models": [_values(m) for m in models]}))
        return
    terminal = Terminal()
    if view.fault:
        terminal.print(warn(view.fault, "NOT VALID:"))
    if view.open_roles:
        terminal.print(warn(f"no signatory yet for: {', '.join(view.open_roles)}"))
    if not models:
        echo(
            "no model"
            + (f" is in use at {site}" if site else ": `rounds models propose RUN --purpose TEXT` enters one")
        )
        return
    table = Table()
    for name in ("model", "state", "purpose", "hospitals", "signed by", "missing"):
        table.add_column(name, overflow="fold")
    for model in models:
        record = model.record
        hospitals = record.in_use if record.in_use else record.hospitals
        signed = "\n".join(f"{e.by}, {e.date[:10]}" for e in record.approvals)
        state = styled((model.label, _COLOURS[model.label]))
        table.add_row(model.run, state, record.purpose, _short(hospitals), signed, "\n".join(record.missing))
    terminal.print(table)
    for model in models:
        if model.banner:
            terminal.print(warn(f"{model.run}: {model.banner}"))


@app.command()
@partial(reads_run, verified=False)
def show(run: RunFolder, runs: AnyRuns = None, as_json: AsJson = False) -> None:
    """Show a model of the register: its state, hashes, signatures and history."""
    register = _register(run, runs)
    status = _status(register, run)
    if as_json:
        echo(json.dumps(_values(status)))
    else:
        _show(status)


@app.command()
@partial(reads_run, verified=False)
def propose(
    run: RunFolder,
    purpose: Annotated[str, typer.Option(help="The intended use: outcome, patients, setting.")],
    hospital: Annotated[
        list[str], typer.Option(help="A hospital at which it may be used (repeatable; default: all sites of the run).")
    ] = [],  # noqa: B006
    by: Annotated[str, typer.Option(help="Person who proposes it (default: your login name).")] = "",
    note: Note = "",
    runs: AnyRuns = None,
) -> None:
    """Enter the model of a run as a candidate. Its ledger must verify, and no site may have withdrawn.

    Example: `rounds models propose runs/heart-fedavg-seed0 --purpose "heart disease, adults with chest pain"`
    """
    register = _register(run, runs)
    record = register.propose(run, purpose=purpose, hospitals=hospital, by=by or _login_name(), note=note)
    echo(f"{record.folder} is a candidate: {record.purpose}")
    echo(f"model: sha256 {record.model['model']}")
    echo(f"hospitals: {_short(record.hospitals)}")
    echo(f"missing: {', '.join(record.missing)}; each signs with `rounds models approve {run} --by NAME`")


@app.command()
@partial(reads_run, verified=False)
def approve(
    run: RunFolder,
    by: By,
    note: Note = "",
    runs: AnyRuns = None,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """Sign a candidate. It is approved when a signatory of each required role signed it."""
    _decide("approve", run, runs, by=by, note=note, files=passphrase_file)


@app.command()
@partial(reads_run, verified=False)
def use(
    run: RunFolder,
    by: By,
    hospital: Annotated[
        list[str],
        typer.Option(help="A hospital that uses it from now on (repeatable; default: all approved hospitals)."),
    ] = [],  # noqa: B006
    nowhere: Annotated[
        bool, typer.Option("--nowhere", help="Take it out of use everywhere; it stays approved.")
    ] = False,
    note: Note = "",
    runs: AnyRuns = None,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """Put an approved model in use at hospitals. It replaces the model that they used for the same purpose.

    Example: `rounds models use runs/heart-fedavg-seed0 --hospital va --by ada`
    """
    from grandrounds.core.errors import BadInput

    if nowhere and hospital:
        raise BadInput("--nowhere and --hospital contradict each other: give one of them", code="conflicting-options")
    hospitals = hospital
    if not hospital and not nowhere:
        hospitals = list(_status(_register(run, runs), run).record.hospitals)
    _decide("use", run, runs, by=by, note=note, hospitals=hospitals, files=passphrase_file)


@app.command()
@partial(reads_run, verified=False)
def withdraw(
    run: RunFolder,
    by: By,
    reason: Annotated[str, typer.Option(help="Why the model must not be used any more.")],
    runs: AnyRuns = None,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """Withdraw a model: no hospital may use it any more. One signatory of a required role is enough.

    A hospital that withdraws its data from a run is another matter: `rounds withdraw`.
    """
    _decide("withdraw-model", run, runs, by=by, note=reason, files=passphrase_file)


@app.command()
def verify(
    runs: Runs = RUNS,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="register.pub",
            help="The register's public key, from a source you trust. Default: the one in the folder.",
        ),
    ] = None,
    heads: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="A stored head of the register, a copy of its ledger.head.json (repeatable)."
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Verify the register: entries, links, heads, every person's signature, the rules; and each model's files and ledger.

    Exit codes: 0 verified; 2 bad input; 3 the register does not verify, or a model that is not withdrawn is not valid.
    """
    from grandrounds.audit.head import SignedHead
    from grandrounds.audit.register_state import State
    from grandrounds.capabilities.dossier.register.folder import load_register, register_of
    from grandrounds.capabilities.dossier.register.status import check_record
    from grandrounds.protocol.identity import load_public

    _read(runs)
    known = None if key is None else load_public(key)
    checked = load_register(register_of(runs), key=known, heads=tuple(SignedHead.read(path) for path in heads))
    records = [r for r in checked.state.records.values() if r.state is not State.WITHDRAWN]
    faults = {record.folder: fault for record in records if (fault := check_record(runs, record))}
    entries = 0 if checked.book is None else len(checked.book.entries)
    failed = bool(checked.findings or faults)
    if as_json:
        findings = [asdict(finding) for finding in checked.findings]
        echo(json.dumps({"verifies": not failed, "entries": entries, "findings": findings, "models": faults}))
    else:
        for finding in checked.findings:
            echo(f"FOUND  {finding}")
        for model, fault in faults.items():
            echo(f"FOUND  {model}: {fault}")
        if key is None:
            echo(
                "note: the key was taken from beside the ledger: anyone who can change the ledger can change this key "
                "(give --key)"
            )
        line = "does NOT verify" if failed else f"verifies, with {len(records)} model{'s' * (len(records) != 1)}"
        echo(f"{register_of(runs).path}: {line} ({entries} entries)")
    if failed:
        raise typer.Exit(FAILED)


@app.command()
def roles(
    role: Annotated[
        list[str], typer.Option("--role", help="A role that must approve every model from now on (repeatable).")
    ],
    by: Signers,
    note: Note = "",
    runs: Runs = RUNS,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """Change the roles that must approve a model. A signatory of each present role must agree."""
    from grandrounds.capabilities.dossier.register.register import Register

    register = Register(runs)
    register.load()
    register.change_roles(role, by=_Passphrases(passphrase_file).ask_all(by), note=note)
    echo(f"roles that must approve a model: {', '.join(role)}")


@signatory_app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The person; the name with which they sign in to the console.")],
    role: Annotated[str, typer.Option(help="The role that the person signs for.")],
    by: Signers = [],  # noqa: B006
    note: Note = "",
    runs: Runs = RUNS,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """Add a person who signs for a role, and create their key. The command asks for their new passphrase.

    While the register is being set up, that is until each role has a signatory, nobody has to agree. Afterwards a signatory of
    each role must: `--by NAME` for each.
    """
    from grandrounds.capabilities.dossier.register.register import Register

    register, passphrases = Register(runs), _Passphrases(passphrase_file)
    register.load()
    own = passphrases.ask(f"new signing passphrase of {name}", new=True)
    identity = register.add_signatory(name, role=role, passphrase=own, by=passphrases.ask_all(by), note=note)
    echo(f"{name} signs as {role}")
    show_fingerprints({f"public key of {name}": identity.public.hex()})


@signatory_app.command("end")
def end(
    name: Annotated[str, typer.Argument(help="The person.")],
    by: Signers,
    note: Annotated[str, typer.Option(help="The reason, for the record.")],
    runs: Runs = RUNS,
    passphrase_file: PassphraseFiles = [],  # noqa: B006
) -> None:
    """End a person's right to sign, such as when they leave. Earlier signatures stay valid. One signatory is enough."""
    from grandrounds.capabilities.dossier.register.register import Register

    register = Register(runs)
    register.load()
    register.end_signatory(name, by=_Passphrases(passphrase_file).ask_all(by), note=note)
    echo(f"{name} can no longer sign")


@signatory_app.command("list")
def list_signatories(runs: Runs = RUNS) -> None:
    """List the people who sign: name, role, key, since when."""
    view = _read(runs)
    for signatory in view.signatories:
        until = f" until {signatory.ended[:10]}" if signatory.ended else ""
        echo(f"{signatory.name}: {signatory.role}, since {signatory.since[:10]}{until}, key {signatory.key.hex()}")
    for role in view.open_roles:
        echo(f"(nobody): {role}")


class _Passphrases:
    """Passphrases from files, in the order given; asked for at the terminal where there are no more files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files)

    def ask(self, what: str, *, new: bool = False) -> str:
        if self._files:
            return _read_passphrase(self._files.pop(0))
        if not sys.stdin.isatty():
            from grandrounds.core.errors import BadInput

            raise BadInput(
                f"the {what} is asked at a terminal, and this is none: give --passphrase-file FILE", code="no-terminal"
            )
        return str(typer.prompt(what, hide_input=True, confirmation_prompt=new))

    def ask_all(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self.ask(f"signing passphrase of {name}") for name in dict.fromkeys(names)}


def _read_passphrase(file: Path) -> str:
    from grandrounds.core.errors import BadInput

    try:
        if file.stat().st_mode & 0o077:
            raise BadInput(f"{file} can be read by others: `chmod 600 {file}`", code="file-not-private")
        return file.read_text().split("\n", 1)[0]
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(f"cannot read the passphrase in {file}: {e}", code="cannot-read") from None


def _decide(
    kind: str,
    run: Path,
    runs: Path | None,
    *,
    by: str,
    note: str,
    files: Sequence[Path],
    hospitals: Sequence[str] | None = None,
) -> None:
    """Show what is signed, ask for the passphrase, and sign."""
    register = _register(run, runs)
    status = _status(register, run)
    if status.fault and kind != "withdraw-model":
        from grandrounds.core.errors import BadInput

        raise BadInput(f"{status.run} cannot be approved or used: {status.fault}", code="model-not-valid")
    echo(f"{status.run} ({status.label}): {status.record.purpose}")
    echo(f"model: sha256 {status.record.model['model']}")
    passphrase = _Passphrases(files).ask_all([by])[by]
    record = register.decide(
        kind, status.run, by=by, passphrase=passphrase, note=note, hospitals=hospitals, seen=status.record.version
    )
    event = record.history[-1]
    echo(f"{event.action} by {event.by} ({event.role}), entry {event.number}")
    missing = f"; missing: {', '.join(record.missing)}" if record.missing else ""
    echo(f"{record.folder} is now: {record.state.value}{missing}")


def _register(run: Path, runs: Path | None) -> Register:
    """Find the register of a run."""
    from grandrounds.capabilities.dossier.register.folder import find_root
    from grandrounds.capabilities.dossier.register.register import Register

    found = runs or find_root(run) or run.resolve().parent
    register = Register(found)
    register.load()
    return register


def _status(register: Register, run: Path) -> ModelStatus:
    from grandrounds.capabilities.dossier.register import read_register
    from grandrounds.core.errors import BadInput

    view = read_register(register.runs)
    status = None if view is None else view.find(register.relative(run))
    if status is None:
        raise BadInput(
            f"{run} is not in the register: `rounds models propose {run} --purpose TEXT` enters it",
            code="not-registered",
        )
    return status


def _read(runs: Path) -> RegisterView:
    from grandrounds.capabilities.dossier.register import read_register
    from grandrounds.core.errors import BadInput

    view = read_register(runs)
    if view is None:
        raise BadInput(
            f"{runs} has no register of models: `rounds models init --role ROLE` creates one", code="no-register"
        )
    return view


def _values(status: ModelStatus) -> dict[str, Any]:
    """Return a model as JSON values."""
    return {"label": status.label, "fault": status.fault, "sentence": status.sentence, **asdict(status.record)}


def _show(status: ModelStatus) -> None:
    record, terminal = status.record, Terminal()
    terminal.print(styled(f"{status.run}: ", (status.label, _COLOURS[status.label])))
    if status.banner:
        terminal.print(warn(status.banner))
    echo(f"purpose: {record.purpose}")
    echo(f"hospitals: {', '.join(record.hospitals)}")
    if record.in_use:
        echo(f"in use at: {', '.join(record.in_use)}")
    if record.missing:
        echo(f"missing signatures: {', '.join(record.missing)}")
    model = record.model
    echo(f"model: sha256 {model['model']}")
    echo(f"summary: sha256 {model['summary']}")
    echo(f"run's ledger: {model['entries']} entries, root {model['root']}")
    echo("history:")
    for event in record.history:
        who = f"{event.by} ({event.role})" if event.role else event.by
        note = f": {event.note}" if event.note else ""
        echo(f"  {event.date[:16].replace('T', ' ')} UTC  {event.action} by {who}{note}  [entry {event.number}]")


def _short(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
