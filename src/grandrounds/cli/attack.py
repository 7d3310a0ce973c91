"""`rounds attack`: membership inference attacks on a finished run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.analysis.membership.attack import Membership
    from grandrounds.runs.run import Run


_SITES = 12


def register(app: typer.Typer) -> None:
    app.command()(reads_run(attack))


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    shadows: Annotated[
        int,
        typer.Option(min=0, help="Shadow models to train on random halves of the rows, for LiRA (16 is usual)."),
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Shadow runs in parallel.")] = max(1, (os.cpu_count() or 1)),
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print attacks.json and nothing else.")] = False,
) -> None:
    """Attack a finished run by membership inference: does its model reveal which patients were trained on?

    The loss-threshold attack compares the model's loss on training rows and on test rows. With --shadows, LiRA compares
    it with shadow models that were trained with or without a row. Run it where the data are. It writes RUN/attacks.json
    and updates the report. If it is interrupted, run the same command again: finished shadow runs are not repeated.
    Without --shadows, LiRA results of an earlier attack are kept. Of a run that `rounds withdraw` made, the rows of the site
    that withdrew are attacked as well, if the earlier run lies beside it.

    Example: `rounds attack runs/breast-cancer-fedavg-seed0 --shadows 16`
    """
    from grandrounds.analysis.membership.attack import write_attacks
    from grandrounds.cli.report import report_run
    from grandrounds.runs.run import Run

    finished_run = Run(run, trust_code=trust_code, withdrawn=True)  # an attack uses the model on nobody
    membership = _run_attack(finished_run, shadows, jobs, quiet=as_json).merge_earlier(finished_run)
    values = membership.to_dict()
    path = write_attacks(finished_run.folder, values)
    report_run(finished_run.folder)
    if as_json:
        echo(json.dumps(values))
        return
    _show(membership)
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


def _run_attack(run: Run, shadows: int, jobs: int, *, quiet: bool) -> Membership:
    from grandrounds.analysis.membership.attack import attack_run
    from grandrounds.cli.screen import runs_bar

    if not shadows:
        return attack_run(run)
    with runs_bar(quiet=quiet) as bar:
        task = bar.add_task("", total=shadows)
        return attack_run(
            run, shadows=shadows, jobs=jobs, ended=lambda name: bar.update(task, advance=1, description=name)
        )


def _show(membership: Membership) -> None:
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal

    console = Terminal()
    console = Terminal(width=max(console.width, 96))
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
    if not membership.shadows:
        console.print("LiRA, the stronger attack, trains shadow models: --shadows 16", style="dim", highlight=False)
    for note in membership.notes:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False, soft_wrap=True)
