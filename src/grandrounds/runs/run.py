"""Run experiments, and read run folders."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import PlanValues
from grandrounds.core.plugins import last_word
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.core.sources import DATA_FRAME, STROKES
from grandrounds.data.event import Event
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods.guard.candidates import HEAD
from grandrounds.report.explanations import Explanations, importances
from grandrounds.runs.context import Progress
from grandrounds.runs.ending import CHANGEABLE
from grandrounds.runs.explanations import written
from grandrounds.runs.folder import InUse, RunFolder
from grandrounds.runs.model import TrainedModel
from grandrounds.runs.personal_models import PersonalFile, find_deployed, find_personal_file
from grandrounds.runs.runner import execute_plan, new_folder
from grandrounds.runs.withdrawal import Withdrawn, read_withdrawn, refuse_withdrawn

if TYPE_CHECKING:
    from pandas import DataFrame

    from grandrounds.audit.ledger import Ledger
    from grandrounds.core.method_facts import MethodFact
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.report.figure import Figure
    from grandrounds.report.risk_card import CardRecord


class Run:
    """A run folder, read on demand."""

    def __init__(self, folder: Path, *, trust_code: bool | None = False, withdrawn: bool = False) -> None:
        """Open a run folder.

        Args:
            folder: The folder.
            trust_code: Run code of the run's author (a model or method of their own) also where the run was made elsewhere,
                from modules whose hash its plan lists. None: run no such code, not even of a run that was made here.
            withdrawn: Use the model also where a site withdrew from the run, so that it is not valid any more.

        Raises:
            BadInput: The folder is not a run folder, or its run needs a capability that is not installed.
        """
        self.trust_code, self._use_withdrawn = trust_code, withdrawn
        self._personal_files: dict[str, Path] = {}  # files, or folders of files, of hospitals outside the run folder, by site
        self._files = RunFolder(Path(folder))
        if self._files.checkpoint.is_symlink() or not self._files.checkpoint.is_dir():
            raise BadInput(
                f"{folder} is not a run folder: it has no checkpoint/ (give the path that `rounds run` printed)",
                code="not-a-run-folder",
            )
        self._files.refuse_without_capability()

    @property
    def folder(self) -> Path:
        return self._files.path

    @property
    def finished(self) -> bool:
        return self._files.summary.exists()

    @cached_property
    def summary(self) -> RunSummary:
        """The summary of a finished run (summary.json): final scores, scores of each site, cost, privacy.

        Raises:
            BadInput: The run is not finished, or the file is damaged.
        """
        if not self.finished:
            raise BadInput(
                f"{self.folder} is not finished: `rounds resume {self.folder}` continues it", code="run-not-finished"
            )
        return RunSummary.from_dict(self._files.read(self._files.summary), where=str(self._files.summary))

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        """The record of each round: scores, and the Decision with the sites asked, their weights and the rule."""
        if self.finished:
            records = list(self._files.read(self._files.rounds)["rounds"])
        else:
            records = written(Checkpoint(self._files.checkpoint).records())
        return [RoundRecord.from_dict(record, where=str(self._files.rounds)) for record in records]

    @cached_property
    def explanations(self) -> Explanations:
        """Sketches and drift of each explained round, and of the final model (explanations.json)."""
        if not self._files.explanations.exists():
            raise BadInput(
                f"{self.folder} has no explanations: run it with explain.sketch = 'permutation'", code="no-explanations"
            )
        values = self._files.read(self._files.explanations)
        if not (isinstance(values, dict) and {"sketch", "features", "rounds"} <= set(values)):
            raise BadInput(
                f"{self._files.explanations} is damaged: it lacks its sketches; run the experiment again",
                code="damaged-file",
            )
        return cast(Explanations, values)

    @cached_property
    def importances(self) -> dict[str, float]:
        """The share of each feature in what the final model relies on, of a risk card in its points; empty where none is stored.

        Raises:
            BadInput: The file is damaged.
        """
        if self.summary.get("card"):
            points = [(term.column, abs(term.points)) for term in self.card.card.terms]
            total = sum(p for _, p in points) or 1
            return {name: sum(p for column, p in points if column == name) / total for name, _ in points}
        if not self._files.explanations.exists():
            return {}
        try:
            shares = {str(name): float(share) for name, share in importances(self.explanations).items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            shares = {"": math.nan}
        if not all(0 <= share <= 1 for share in shares.values()):
            raise BadInput(
                f"{self._files.explanations} is damaged: a feature has no share of the importance; run the experiment again",
                code="damaged-file",
            )
        return shares

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The resolved experiment. Reading it decides whether the code that it names may be imported."""
        plan = Checkpoint(self._files.checkpoint).plan()
        try:
            from grandrounds.experiment.experiment import Experiment
        except ImportError:  # without pydantic its sections are all that is checked
            pass
        else:
            Experiment.check_plan(plan, where=str(self._files.checkpoint / "plan.json"))
        plugins.admit(self.folder, plan, trust_code=self.trust_code)
        return plan

    def refuse_code(self) -> None:
        """Raise where the plan names code that may not be run, or files, addresses or a query that may not be opened.

        A run that takes its settings from this one's plan calls it first: the user names the run, and not what its plan names.
        """
        plugins.admit(self.folder, self.plan, trust_code=self.trust_code)
        plugins.refuse(self.plan)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The kind of each column, with the reason (schema.json)."""
        return dict(self._files.read(self.folder / "schema.json"))

    @cached_property
    def model(self) -> TrainedModel:
        """The final model with its preparation of data: `run.model.predict(table)`."""
        if not self.finished:
            raise BadInput(
                f"{self.folder} has no final model yet: `rounds resume {self.folder}`", code="run-not-finished"
            )
        if "statistic" in self.summary:
            raise BadInput(
                f"{self.folder} is a run of method '{self.summary['method']}', which describes patients and has no model: use a "
                "run of another method",
                code="no-model",
            )
        return self.model_at(self._files.model.name)

    @cached_property
    def withdrawn(self) -> Withdrawn | None:
        """The withdrawal of a site from this run; None where its model is valid."""
        return read_withdrawn(self.folder)

    def refuse_withdrawn(self) -> None:
        """Raise where a site withdrew from the run, unless it was opened with `withdrawn=True`.

        Raises:
            BadInput: The model is not valid any more.
        """
        if not self._use_withdrawn:
            refuse_withdrawn(self.folder)

    def model_at(self, name: str) -> TrainedModel:
        """Load a model file of the run.

        Args:
            name: The file, as `summary["models"]` names it.

        Returns:
            The model with its encoding.

        Raises:
            BadInput: The name points outside the folder, the file is damaged, or a site withdrew from the run.
        """
        self.refuse_withdrawn()
        return TrainedModel.load(self.model_file(name), trust_code=self.trust_code)

    def model_file(self, name: str) -> Path:
        """Return the path of a model file.

        Args:
            name: The file, as `summary["models"]` names it.

        Raises:
            BadInput: The name points outside the folder.
        """
        if name != self._files.model.name and not re.fullmatch(r"models/\d{1,9}\.safetensors", str(name)):
            raise BadInput(
                f"{self._files.summary} is damaged: '{str(name)[:80]}' is not the name of a model file",
                code="damaged-file",
            )
        path = self.folder / name
        if path.parent.is_symlink() and path.parent != self.folder:
            raise BadInput(
                f"{path.parent} is a link, which is not followed in a run folder: put a folder there",
                code="link-not-followed",
            )
        return path

    @cached_property
    def event(self) -> Event | None:
        """The class of two whose probability is the risk."""
        return Event.from_dict(self.summary.event) if self.summary.event else None

    def model_for(self, site: str | None) -> TrainedModel:
        """Return the model that a site uses.

        Args:
            site: The site's name, or the number that its name ends with; None is the global model.

        Returns:
            The site's own model where sites have different, fine-tuned, personal or recalibrated models, else the global model.

        Raises:
            BadInput: The run is not finished, or has no such site; or it is the global model of a run whose sites keep their own
                last layer.
        """
        from grandrounds.core.names import site_named

        if site is None:
            self._refuse_untrained_head()
            return self.model
        name = site_named(site, list(self.summary["per_site"]), where=self.folder)
        model, own = self._common_model(name), self.personal_file(name)
        if own is None:
            self._refuse_untrained_head()
        if own is None:
            return model
        threshold = float(self.summary.personal.get("threshold") or model.threshold) if own.is_model else 0.5
        return replace(own.apply(model), is_deployed=True, threshold=threshold)

    def _refuse_untrained_head(self) -> None:
        """Refuse predictions by the common model of a run in which only sites' own last layers are trained."""
        if self.summary.personal and self.summary.personal.get("part") == HEAD:
            raise BadInput(
                "the last layer of the common model is not trained, because each site has its own (personal.part = 'head'): "
                "choose the model of a site with --for SITE, at a hospital with --personal FOLDER",
                code="untrained-head",
            )

    def personal_file(self, site: str | None) -> PersonalFile | None:
        """Return the file of the model that a site deploys.

        Args:
            site: The site's name.

        Returns:
            The file; None where the site has no personal or recalibrated model, or its file is at the hospital.
        """
        if site is None:
            return None
        used = self._personal_files.get(site)
        path = used if used is not None and used.is_file() else find_deployed(self.site_folder(site))
        inside = path is not None and (used is not None or path.resolve().is_relative_to(self.folder.resolve()))
        return PersonalFile.read(path) if inside and path is not None else None

    def site_folder(self, site: str) -> Path:
        """Return the folder of a site's own files: in the run folder, or where `use_personal` or `use_site_folder` set it.

        Args:
            site: The site's name.
        """
        used = self._personal_files.get(site, self._files.at_sites / site)
        return used.parent if used.is_file() else used

    def use_site_folder(self, site: str, folder: Path) -> None:
        """Use a hospital's own folder for its models of this run; without a model in it, the hospital uses the common one.

        Args:
            site: The site's name.
            folder: The folder.
        """
        self._personal_files[site] = folder

    def deployed_path(self, site: str | None) -> Path:
        """Return the file of the model that `model_for` returns.

        Args:
            site: The site's name; None for the global model.
        """
        own = self.personal_file(site)
        return self.model_file(self.summary["models"].get(site or "", self._files.model.name)) if own is None else own.path

    def use_personal(self, path: str | Path) -> str:
        """Use a hospital's own file for the model of its site.

        Args:
            path: The hospital's personal.safetensors, or a folder that has it, such as the folder of the site.

        Returns:
            The site's name; `model_for` returns its personal model from now on.

        Raises:
            BadInput: There is no file of this run.
        """
        models = [self.model, *(self.model_at(name) for name in sorted(set(self.summary["models"].values())))]
        file = find_personal_file(Path(path), models, personal=bool(self.summary.personal))
        file.apply(self._common_model(file.site))
        self._personal_files[file.site] = file.path.parent if Path(path).is_dir() else file.path
        return file.site

    def _common_model(self, site: str) -> TrainedModel:
        files = self.summary["models"]
        return self.model_at(files[site]) if site in files else self.model

    @property
    def card(self) -> CardRecord:
        """The risk card of a run of model 'card': terms with points, and the risk of every total.

        Raises:
            BadInput: The run is not finished, or is one of another model.
        """
        from grandrounds.report.risk_card import read_card

        record = read_card(self.summary)
        if record is None:
            raise BadInput(
                f"{self.folder} is a run of model '{self.plan['model']['name']}', which has no risk card: fit one with "
                f"`rounds card {self.folder}`",
                code="no-card",
            )
        return record

    @property
    def method_facts(self) -> tuple[MethodFact, ...]:
        """The numbers of the method's own paper about this run: drift, trust, traffic. Each has a label, a value and a note."""
        from grandrounds.report.method_facts import method_facts

        return method_facts(self.summary)

    @property
    def ledger(self) -> Ledger:
        """The run's ledger, for reading: `run.ledger.verify()` returns the problems found."""
        from grandrounds.audit.ledger import ledger_at

        return ledger_at(self.folder)

    @property
    def site_names(self) -> tuple[str, ...]:
        """The sites in their order: all sites of a finished run, else those that were asked so far."""
        judged = self.summary["per_site"] if self.finished else ()
        return tuple(dict.fromkeys([*judged, *(s for r in self.rounds for s in r["decision"]["asked"])]))

    def record(self, round: int) -> RoundRecord:
        """Return the record of one round.

        Args:
            round: The round, from 1.

        Raises:
            BadInput: The run has no such round.
        """
        for record in self.rounds:
            if record["round"] == round:
                return record
        rounds_text = f"it has rounds 1 to {len(self.rounds)}" if self.rounds else "none is done yet"
        raise BadInput(f"{self.folder} has no round {round}; {rounds_text}", code="unknown-round")

    def why(self, round: int, site: str | int) -> str:
        """Explain a site's weight in a round, in sentences.

        Args:
            round: The round, from 1.
            site: The site's name, or the number that its name ends with.

        Returns:
            Sentences, one on each line.

        Raises:
            BadInput: The run has no such round or site.
        """
        from grandrounds.core.names import site_named
        from grandrounds.report.weights.sentences import weight_sentences

        name = site_named(site, self.site_names, where=self.folder)
        explanations = self.explanations if self._files.explanations.exists() else None
        return "\n".join(weight_sentences(self.record(round), name, explanations=explanations, plan=self.plan))

    @cached_property
    def history(self) -> DataFrame:
        """The rounds as a data frame, one line per round: scores, sites asked and missing, drift, cost."""
        from grandrounds.runs.frames import history_frame

        return history_frame(self.rounds)

    @cached_property
    def sites(self) -> DataFrame:
        """The sites as a data frame, one line per site: rows, weight, attendance, test scores.

        Raises:
            BadInput: The run is not finished.
        """
        from grandrounds.runs.frames import sites_frame

        return sites_frame(self.summary, self.rounds)

    @cached_property
    def weights(self) -> DataFrame:
        """The aggregation weights as a data frame, one line per round and one column per site."""
        from grandrounds.runs.frames import weights_frame

        return weights_frame(self.rounds, self.site_names)

    def plot(self, name: str = "curves") -> Figure:
        """Draw a figure of the run.

        Args:
            name: "curves", "sites", "weights", "drift", "importance", "reliability", "decision_curve", "attendance", "cost"
                or "coefficients".

        Returns:
            The figure. A notebook draws it; `show()` opens it in a browser; `plotly()` returns Plotly's own object.

        Raises:
            BadInput: There is no such figure, or the run did not record its values.
        """
        from grandrounds.runs.frames import draw_plot

        return draw_plot(self, name)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from grandrounds.runs.frames import summary_html

        return summary_html(self)


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    table: Any = None,
    progress: Progress = lambda event: None,
) -> Run:
    """Run an experiment.

    Args:
        experiment: The experiment.
        out: The run folder; None makes one below runs/.
        table: Rows in memory that replace those of data.table: a pandas DataFrame, Table or ImageSet.
        progress: Called with each event.

    Returns:
        The finished run.

    Raises:
        BadInput: The experiment or its data are wrong.
        RunFailed: The run stopped; finished rounds are on disk.
    """
    from grandrounds.core.plan_types import DataSettings
    from grandrounds.data.readers import read_plan_table

    if table is not None and experiment.data.name is None and experiment.data.table is None:
        named = experiment.data.model_copy(update={"table": DATA_FRAME})
        experiment = experiment.model_copy(update={"data": named})
    plan = experiment.plan()
    where = experiment.data.table
    if table is None and where is not None and where != plan["data"]["table"]:  # the plan lacks the password
        table = read_plan_table(DataSettings({**plan["data"], "table": where}))
    for key in ("table", "pictures", "masks"):  # so that the run can be repeated from anywhere
        path = plan["data"][key]
        if path is not None and path not in (DATA_FRAME, STROKES) and "://" not in path:
            plan["data"][key] = str(Path(path).resolve())
    return run_plan(plan, out=out, table=as_rows(table), progress=progress)


def run_plan(
    plan: PlanValues,
    *,
    out: str | Path | None = None,
    table: Any = None,
    progress: Progress = lambda event: None,
) -> Run:
    """Run a resolved plan (see `Experiment.plan`)."""
    folder = _new(plan) if out is None else RunFolder(Path(out))
    if out is not None:
        folder.create()
    execute_plan(plan, folder, progress=progress, table=table)
    return Run(folder.path)


def _new(plan: PlanValues) -> RunFolder:
    """Make a new folder below runs/, with a name that no other process uses."""
    while True:
        folder = RunFolder(new_folder(Path("runs"), folder_name(plan)))
        try:
            folder.create()
        except InUse:
            continue
        return folder


def resume(
    folder: str | Path,
    *,
    settings: Sequence[str] = (),
    table: Any = None,
    progress: Progress = lambda event: None,
    trust_code: bool = False,
) -> Run:
    """Continue an interrupted run; a finished one is returned unchanged.

    Args:
        folder: The run folder.
        settings: Settings that may change: method.rounds, engine.*, evaluation.*.
        table: The rows again, where the run was made from a data frame.
        progress: Called with each event.
        trust_code: Run code of the run's author also where the run was made elsewhere (see `Run`).

    Returns:
        The run.

    Raises:
        BadInput: The folder is not a run folder, a setting may not change, or the code is not trusted.
    """
    existing = Run(Path(folder), trust_code=trust_code)
    plan = existing.plan
    if settings or not existing.finished:
        existing.refuse_code()
    if settings:
        from grandrounds.experiment.experiment import Experiment

        for setting in settings:
            if not setting.startswith(CHANGEABLE):
                raise BadInput(
                    f"--set {setting}: a resumed run may change method.rounds, engine.* and evaluation.* only",
                    code="setting-is-fixed",
                )
        plan = Experiment.parse(plan, where="plan.json").with_settings(settings).plan()
    if plan["engine"]["wire"] != existing.plan["engine"]["wire"]:
        raise BadInput(
            "--set engine.wire: a resumed run must keep engine.wire, because the state of sites depends on it",
            code="setting-is-fixed",
        )
    if existing.finished and not settings:
        return existing
    if existing.withdrawn is not None:
        raise BadInput(
            f"{existing.folder} cannot be resumed: {existing.withdrawn.sentence}; resume that run", code="withdrawn-run"
        )
    if plan["method"]["rounds"] < len(existing.rounds):
        raise BadInput(
            f"{existing.folder} has done {len(existing.rounds)} rounds already: method.rounds cannot go below that",
            code="setting-is-fixed",
        )
    execute_plan(plan, RunFolder(existing.folder), progress=progress, table=as_rows(table), resume=True)
    return Run(existing.folder, trust_code=trust_code)


def as_rows(table: Any) -> Any:
    """Convert a data frame to a Table; a Table or ImageSet stays unchanged.

    Args:
        table: A data frame, a Table, an ImageSet, or None.

    Returns:
        The rows.
    """
    from grandrounds.data.images import ImageSet
    from grandrounds.data.table import Table

    return table if table is None or isinstance(table, (Table, ImageSet)) else Table.from_pandas(table)


def load_run(folder: str | Path, *, trust_code: bool | None = False, withdrawn: bool = False) -> Run:
    """Open a run folder.

    Args:
        folder: The folder.
        trust_code: As in `Run`.
        withdrawn: As in `Run`.

    Returns:
        The run.

    Raises:
        BadInput: The folder is not a run folder.
    """
    return Run(Path(folder), trust_code=trust_code, withdrawn=withdrawn)


def folder_name(plan: PlanValues) -> str:
    """Return a readable name of a run: data, method, seed."""
    table = Path(str(plan["data"]["table"]).split("://")[-1]).name.split(".")[0]
    data, method = (last_word(name) for name in (plan["data"]["name"] or table, plan["method"]["name"]))
    return f"{data}-{method}-seed{plan['seed']}"
