"""Sites that keep an account: real hosts on the heart data (another set where it is not at hand), each with a purse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.accounting.account import Account, Paid
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.models import model_spec
from grandrounds.privacy.secagg import Secret
from grandrounds.privacy.site_budget import SiteBudget
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.federation import assemble
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Stack
from tests.support import agreed, all_site_plugins

DELTA = 1e-5
NOBODY = np.zeros(1, np.int64)
STRICT = Terms(withheld_splits=("train", "val"), unprotected=("test",))


def sections() -> dict:
    """The heart data of four hospitals."""
    return {"data": {"name": "heart"}, "split": {"val": 0.2, "test": 0.2}}


def consortium() -> Stack:
    """Four hospitals."""
    return assemble(Settings(gr.Experiment.parse(sections()).plan())).stack


class Site:
    """One hospital: its host, its account and its purse; `ask` pays first, as a keeper does."""

    def __init__(self, folder, *, epsilon: float = 1.0, terms: Terms = STRICT, which: int = 0) -> None:
        self.stack = consortium().alone(which)
        self.name = self.stack.names[0]
        self.host = SiteHost(
            self.stack,
            plugins=all_site_plugins(),
            identify=lambda site: Identity.simulated(0, site),
            secret=lambda site: Secret.own(),
            withheld_splits=terms.withheld_splits,
        )
        self.account = Account(self.host, terms)
        self.purse = SiteBudget.open(folder / "purse.json", epsilon=epsilon, delta=DELTA)
        self._steps = 0

    def pay(self, ask: Ask, **how) -> Paid:
        return self.account.pay(ask, self.purse, **{"required": True, **how})

    def ask(self, ask: Ask) -> dict:
        """Paid for and answered; a refusal is BadInput with its code."""
        paid = self.pay(ask)
        if paid.code:
            raise BadInput(paid.code)
        columns = self.host.answer(ask, NOBODY)
        self.account.record(ask, columns)
        return columns

    def numbered(self, ask: Ask, *, round: int = 1, run: str = "run") -> Ask:
        """With an id of its own."""
        self._steps += 1
        return ask.numbered(AskId(run, round, self._steps), (self.name,))

    def prepared(self) -> Site:
        """With rows ready for a logistic model; the encoding is the site's own, as if agreed."""
        self.encoding, _, _ = agreed([self.stack.data.take(self.stack.rows[0].train)])
        options = {**gr.Experiment().model.model_dump(), "name": "logistic"}
        self.spec = model_spec(Settings(options), inputs=self.encoding.inputs, classes=len(self.encoding.classes))
        self.spec |= {"keeps": "none", "groups": 1}
        self.ask(self.preparing(self.encoding.to_dict()))
        return self

    def preparing(self, encoding: dict, *more: str) -> Ask:
        told = {"encoding": json.dumps(encoding), "spec": json.dumps(self.spec)}
        rows = ("train_rows", "val_rows", "test_rows")
        return self.numbered(Ask("prepare", shared=told, report=(*rows, *more)), round=0)

    @property
    def model(self) -> np.ndarray:
        assert self.host.model is not None
        return self.host.model.init(0)

    def training(self, *report: str, held: tuple[str, ...] = (), run: str = "run", round: int = 1, **work) -> Ask:
        """DP-SGD unless said otherwise: five steps, noise 2, rate 0.1."""
        usual = {"seed": 0, "round": round, "lr": 0.1, "steps": 5, "clip": 1.0, "noise": 2.0, "rate": 0.1}
        shared = {"model": self.model, **usual, **work}
        wanted = report or ("model", "count", "steps", "error")
        return self.numbered(Ask("train", shared=shared, report=wanted, withheld=held), round=round, run=run)


class Guarded:
    """Every host of a simulation, made to keep an account; `tampered` is what the server makes of an Ask to one site."""

    def __init__(
        self,
        monkeypatch,
        folder,
        terms: Terms,
        *,
        epsilon: float = 1e6,
        tampered: Callable[[Ask], Ask] = lambda ask: ask,
    ):
        self.refused: list[tuple[str, str]] = []
        self.accounts: dict[str, Account] = {}
        self.purses: dict[str, SiteBudget] = {}
        self.events: dict[str, list] = {}
        answer = SiteHost.answer

        def guarded(host: SiteHost, ask: Ask, members: np.ndarray):
            ask, site = tampered(ask), host.stack.names[0]
            if site not in self.accounts:
                self.accounts[site] = Account(host, terms)
                self.purses[site] = SiteBudget.open(folder / f"{site}.json", epsilon=epsilon, delta=DELTA)
            paid = self.accounts[site].pay(ask, self.purses[site], required=True)
            if paid.code:
                self.refused.append((ask.task, paid.code))
                raise BadInput(paid.code)
            self.events.setdefault(site, []).extend(paid.events)
            columns = answer(host, ask, members)
            self.accounts[site].record(ask, columns)
            return columns

        monkeypatch.setattr(SiteHost, "answer", guarded)


def experiment(**changes) -> gr.Experiment:
    """A run over the wire on the four hospitals, with nothing asked of rows before they are paid for."""
    own = sections()
    values = {
        "name": "charged",
        "data": {**own["data"], "encoding": "public"},
        "split": own["split"],
        "method": {"name": "fedavg", "rounds": 3},
        "train": {"steps": 5, "lr": 0.1},
        "explain": {"sketch": "none"},
        "engine": {"wire": True},
        "privacy": {"epsilon": 2.0, "min_rows": 20},
    }
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    return gr.Experiment.parse(values)


def told(ask: Ask, **changes) -> Ask:
    """The same with other numbers."""
    return replace(ask, shared={**ask.shared, **changes})
