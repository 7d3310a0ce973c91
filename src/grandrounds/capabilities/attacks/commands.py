"""`rounds attack`: membership inference, attribute inference and reconstruction attacks on a finished run."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.analysis.membership.attack import Membership
    from grandrounds.capabilities.attacks.attribute import AttributeInference
    from grandrounds.capabilities.attacks.evidence import Evidence
    from grandrounds.capabilities.attacks.reconstruction import Reconstruction
    from grandrounds.runs.run import Run


_SITES = 12
_COLUMNS = 5


def register(app: typer.Typer) -> None:
    app.command()(reads_run(attack))


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    shadows: Annotated[
        int,
        typer.Option(min=0, help="Shadow models to train on random halves of the rows, for LiRA (16 is usual)."),
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Shadow runs in parallel.")] = max(1, (os.cpu_count() or 1)),
    only: Annotated[
        str, typer.Option(help="Attacks to make: membership, attribute, reconstruction; several with commas. Default: all.")
    ] = "",
    sensitive: Annotated[
        str, typer.Option(help="Columns that attribute inference guesses: sex,age. Default: all columns of the model.")
    ] = "",
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print attacks.json and nothing else.")] = False,
) -> None:
    """Attack a finished run: membership inference, attribute inference, and reconstruction of what it disclosed.

    Membership: does the model reveal which patients were trained on? The loss-threshold attack compares the model's loss on
    training rows and on test rows. With --shadows, LiRA compares it with shadow models that were trained with or without a row.
    Attribute: does the model reveal a hidden column of training patients better than of others? Reconstruction: for each
    statistic that left the sites, what of a patient can be read from it; those without an attack are listed by name.

    Run it where the data are; of a run at hospitals, attacks that need no rows are made. It writes RUN/attacks.json
    and updates the report. If it is interrupted, run the same command again: finished shadow runs are not repeated.
    Without --shadows, LiRA results of an earlier attack are kept. Of a run that `rounds withdraw` made, the rows of the site
    that withdrew are attacked as well, if the earlier run lies beside it.

    Example: `rounds attack runs/breast-cancer-fedavg-seed0 --shadows 16`
    """
    from grandrounds.analysis.membership.attack import write_attacks
    from grandrounds.cli.report import report_run
    from grandrounds.runs.run import Run

    finished_run = Run(run, trust_code=trust_code, withdrawn=True)  # an attack uses the model on nobody
    chosen, columns = (tuple(word.strip() for word in text.split(",") if word.strip()) for text in (only, sensitive))
    evidence = _run_attacks(finished_run, shadows, jobs, chosen, columns, quiet=as_json)
    values = evidence.to_dict()
    path = write_attacks(finished_run.folder, values)
    report_run(finished_run.folder)
    if as_json:
        echo(json.dumps(values))
        return
    _show(evidence)
    for sentence in _attack_withdrawn(finished_run):
        echo(sentence)
    echo(f"saved: {path}")


def _attack_withdrawn(run: Run) -> list[str]:
    """Attack the rows of a site that withdrew from the earlier run, where that lies beside this run and can be read."""
    from grandrounds.analysis.membership.withdrawal import prove_withdrawal
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run as _Run

    withdrawal = run.summary.withdrawal
    earlier = run.folder.absolute().with_name(Path(str(withdrawal.get("repeats", {}).get("folder", ""))).name or "none")
    if not withdrawal or not (earlier / "checkpoint").is_dir():
        return []
    try:
        before = _Run(earlier, trust_code=run.trust_code, withdrawn=True)
        return prove_withdrawal(before, run, str(withdrawal["site"])).sentences()
    except BadInput as e:
        return [f"the rows of {withdrawal['site']} were not attacked: {e}"]


def _run_attacks(
    run: Run, shadows: int, jobs: int, only: tuple[str, ...], sensitive: tuple[str, ...], *, quiet: bool
) -> Evidence:
    """Make the attacks; a bar counts shadow runs, and a line names the attack that runs."""
    from rich.text import Text

    from grandrounds.capabilities.attacks.evidence import collect_evidence
    from grandrounds.cli.screen import runs_bar
    from grandrounds.cli.terminal import Terminal

    make = partial(collect_evidence, run, only=only, sensitive=sensitive)
    if shadows:
        with runs_bar(quiet=quiet) as bar:
            task = bar.add_task("", total=shadows)
            return make(
                shadows=shadows,
                jobs=jobs,
                ended=lambda name: bar.update(task, advance=1, description=name),
                progress=lambda attack, part: bar.update(task, description=f"{attack} {part}"[:60].strip()),
            )
    if quiet:
        return make()
    with Terminal(stderr=True).status("attacks") as status:
        return make(progress=lambda attack, part: status.update(Text(f"{attack} {part}"[:80].strip())))


def _show(evidence: Evidence) -> None:
    from grandrounds.cli.terminal import Terminal

    console = Terminal()
    console = Terminal(width=max(console.width, 96))
    if evidence.membership is not None:
        _show_membership(evidence.membership, console)
    if evidence.attribute is not None:
        _show_attributes(evidence.attribute, console)
    if evidence.reconstruction is not None:
        _show_reconstruction(evidence.reconstruction, console)
    console.print("not tried:", highlight=False)
    for sentence in evidence.not_tried():
        console.print(f"  {sentence}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _show_membership(membership: Membership, console: Console) -> None:
    from rich.table import Table

    table = Table(title="membership inference", title_justify="left")
    for column in ("attack", "members", "non-members", "AUC", "95% CI", "TPR at 1% FPR"):
        table.add_column(column, justify="left" if column == "attack" else "right")
    shown = {a.attack: a for a in membership.attacks}
    worst = sorted(membership.sites, key=lambda s: -membership.sites[s].auc)[:_SITES] if membership.separate else []
    shown |= {f"  {site}'s own model": membership.sites[site] for site in worst}
    for name, a in shown.items():
        interval = f"{a.low:.3f} to {a.high:.3f}" if a.low == a.low else "-"
        table.add_row(name, str(a.members), str(a.nonmembers), f"{a.auc:.3f}", interval, f"{a.tpr:.3f}")
    console.print(table, markup=False)
    if membership.separate and len(membership.sites) > len(worst):
        console.print(
            f"and {len(membership.sites) - len(worst)} more sites: attacks.json", style="dim", highlight=False
        )
    for sentence in membership.sentences():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    for note in membership.notes:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _show_attributes(attribute: AttributeInference, console: Console) -> None:
    from rich.table import Table

    table = Table(title="attribute inference: share of right guesses", title_justify="left")
    for column in ("column", "members", "non-members", "advantage", "95% CI", "over all columns"):
        table.add_column(column, justify="left" if column == "column" else "right")
    for a in attribute.columns[:_COLUMNS]:
        each, together = (f"{low:+.3f} to {high:+.3f}" for low, high in ((a.low, a.high), (a.low_all, a.high_all)))
        accuracy = f"{a.accuracy_members:.3f}", f"{a.accuracy_nonmembers:.3f}"
        table.add_row(a.column, *accuracy, f"{a.advantage:+.3f}", each, together)
    if attribute.columns:
        console.print(table, markup=False)
    if len(attribute.columns) > _COLUMNS:
        console.print(
            f"and {len(attribute.columns) - _COLUMNS} more columns: attacks.json", style="dim", highlight=False
        )
    for sentence in attribute.sentences():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    for note in attribute.notes:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _show_reconstruction(reconstruction: Reconstruction, console: Console) -> None:
    from rich.table import Table

    table = Table(title="reconstruction, by disclosed statistic", title_justify="left")
    for column in ("statistic", "attack", "exposed", "share", "95% CI"):
        table.add_column(column, justify="left" if column in ("statistic", "attack") else "right")
    for s in reconstruction.statistics:
        counts = ("-", "-", "-")
        if s.share is not None and s.low is not None and s.high is not None:
            counts = (f"{s.exposed:,} of {s.total:,} {s.unit}", f"{s.share:.1%}", f"{s.low:.1%} to {s.high:.1%}")
        table.add_row(s.kind, s.attack or "not attacked", *counts)
    console.print(table, markup=False)
    for sentence in reconstruction.attacked_sentences():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
