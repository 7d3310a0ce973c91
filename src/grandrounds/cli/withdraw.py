"""`rounds withdraw`: repeat a run without a site that withdrew, and close the earlier run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Quiet, TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.analysis.membership.withdrawal import WithdrawalProof
    from grandrounds.runs.withdraw import Withdrawal


def register(app: typer.Typer) -> None:
    app.command()(reads_run(withdraw))


def withdraw(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    site: Annotated[str, typer.Option(help="The site that withdraws; 3 is site-03.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the repeated run (default: RUN-without-SITE).")] = None,
    keep_setup: Annotated[
        bool,
        typer.Option(
            "--keep-setup",
            help="Repeat only the rounds since the site first counted. Its influence remains in the set-up statistics, and "
            "the record says so.",
        ),
    ] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Attack both models by membership inference, with held-back rows of the site as non-members.",
        ),
    ] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the withdrawal as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Withdraw a hospital from a finished run: repeat the run without it, and close the earlier run.

    Without --keep-setup the model is bit for bit that of a run that never had the hospital. The earlier run's ledger says who
    withdrew and which run is valid now; `rounds predict`, `evaluate`, `export`, `card`, `explain` and `report` refuse its
    model. If the command is interrupted, run it again: finished rounds are not repeated.

    A run in the folder of a consortium's server is submitted to the other hospitals, and closed when they are done.

    Example: `rounds withdraw runs/heart-fedavg-seed0 --site va --prove`
    """
    from grandrounds.analysis.membership.withdrawal import check_provable
    from grandrounds.cli.screen import Watch
    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.capability import find
    from grandrounds.core.sources import AT_SITES
    from grandrounds.runs.run import Run
    from grandrounds.runs.withdraw import check_withdrawal
    from grandrounds.runs.withdraw import withdraw as repeat_without

    if Run(run).plan["data"]["table"] == AT_SITES:
        unused = {"--keep-setup": keep_setup, "--prove": prove, "--out": out is not None}
        find("at_sites", "withdraw", what=f"the rows of {run} are at hospitals")(run, site, unused=unused)
        return
    finished_run = Run(run, trust_code=trust_code, withdrawn=True)
    if prove:
        check_provable(finished_run, check_withdrawal(finished_run, site))
    with Watch(Terminal(stderr=True), quiet=quiet or as_json) as progress:
        done = repeat_without(finished_run, site, keep_setup=keep_setup, out=out, progress=progress)
    proof = _prove(done) if prove else None
    if as_json:
        values = {**done.mark.to_dict(), "facts": done.facts.to_dict(), "cost": done.cost()}
        echo(json.dumps(values if proof is None else {**values, "attack": proof.to_dict()}))
    elif quiet:
        echo(str(done.run.folder))
    else:
        for line in _lines(done):
            echo(line)
        for line in [] if proof is None else proof.sentences():
            echo(line)


def _prove(done: Withdrawal) -> WithdrawalProof:
    from grandrounds.analysis.membership.withdrawal import prove_withdrawal

    return prove_withdrawal(done.earlier, done.run, done.site)


def _lines(done: Withdrawal) -> list[str]:
    """Describe a withdrawal, one line for each subject."""
    from grandrounds.methods import is_exact
    from grandrounds.runs.withdrawal import KEPT, SUBTRACTED

    costs = done.cost()

    def cost(name: str) -> str:
        c = costs[name]
        return f"{c['rounds']:.0f} rounds, {c['bytes'] / 1e6:.2f} MB, {c['seconds']:.1f} s"

    lines = [f"{done.site} withdrew from {done.earlier.folder}", f"valid now: {done.run.folder}"]
    lines.append(f"model: sha256 {done.mark.valid.model or 'not recorded, because the run has no ledger'}")
    if done.facts.setup == KEPT or (done.facts.remains and done.facts.setup != SUBTRACTED):
        lines += [f"warning: {sentence}" for sentence in done.facts.remains]
    elif done.facts.setup == SUBTRACTED:
        lines.append(f"influence: none; the sums of {done.site} were subtracted, and no site was asked for the fit")
        lines += [f"note: {sentence}" for sentence in done.facts.remains]
    else:
        lines.append(
            f"influence: none; every scale, category, reference row and round was made again without {done.site}"
        )
    full = f"a full re-run has {done.run.summary['rounds']} rounds"
    lines.append(f"cost: {cost('repetition')} ({full}); the earlier run with all sites: {cost('earlier run')}")
    if (privacy := done.privacy_sentence()) is not None:
        lines.append(f"privacy: {privacy}")
    verify = " and ".join(f"`rounds audit verify {r.folder}`" for r in (done.earlier, done.run))
    lines.append(f"ledgers: each names the other run; check them with {verify}")
    if is_exact(done.run.plan["method"]["name"]):
        lines.append(f"note: {done.facts.differencing}")
    for card in sorted(done.earlier.folder.parent.glob(f"{done.earlier.folder.name}-card-*")):
        lines.append(f"note: {card} is a run of its own with {done.site}: withdraw it there, too")
    lines.append("note: copies of the earlier model that left this folder are not recalled")
    return lines
