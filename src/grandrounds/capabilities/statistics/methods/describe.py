"""Exact descriptions of a consortium's patients, without a model: method 'table1' (Table 1) and method 'survival'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from grandrounds.capabilities.sources.cohort.plan_cohort import read_agreed
from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier, fit_kaplan_meier
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.capabilities.statistics.table_one import fit_table_one
from grandrounds.capabilities.statistics.table_result import TableOne
from grandrounds.capabilities.statistics.table_terms import CategoricalColumn, NumericColumn, TableTerms
from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Server
from grandrounds.methods.sums import read_result


class _Description(ExactMethod):
    """Parts that descriptions share: no model, and the result under a key of summary.json."""

    has_model: ClassVar[bool] = False
    key: ClassVar[str] = ""

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        if record is None:
            return {}
        facts = {name: record[name] for name in ("exchanges", "sites", "rows")}
        return {cls.key: record["result"], "statistic": facts}


class TableOneMethod(_Description):
    """Table 1: counts, means, quartiles, missing values and tests, equal to those of the pooled rows."""

    name = "table1"
    title = "Table 1 of all hospitals: counts, means, quartiles, tests"
    key = "table1"
    kinds: ClassVar[tuple[str, ...]] = ("table1",)

    def fit(self, server: Server) -> Fit[TableOne]:
        e, encoding = self.settings.exact, server.encoding
        assert isinstance(encoding, Encoding), "refused before the first round"
        categorical = zip(encoding.categorical, encoding.level_names(), strict=True)
        return fit_table_one(
            TableTerms(
                numeric=tuple(NumericColumn(r.name, nonnormal=r.name in e.nonnormal) for r in encoding.numeric),
                categorical=tuple(CategoricalColumn(r.name, levels) for r, levels in categorical),
                group=str(e.group or ""),
                groups=encoding.groups if e.group else (),
                order=tuple(e.columns),
                least=int(e.least),
                tests=bool(e.tests),
            )
        )


    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        """Return the table and the number of exchanges; numbers of a cohort have its units."""
        record = super().summarize(plan, state, encoding)
        agreed, result = plan.data.cohort, record.get(cls.key)
        if agreed is None or not isinstance(result, Mapping):
            return record
        units = {c.name: c.unit for c in read_agreed(agreed.plain()).schema().columns}
        variables = [{**v, "unit": units.get(v["name"], "")} for v in result["variables"]]
        return {**record, cls.key: {**result, "variables": variables}}


class SurvivalMethod(_Description):
    """Kaplan-Meier curves and log-rank tests of all hospitals' patients."""

    name = "survival"
    title = "Kaplan-Meier curves of all hospitals, with a log-rank test"
    key = "survival"
    kinds: ClassVar[tuple[str, ...]] = ("counts.time", "range.time", "logrank.sites")

    def fit(self, server: Server) -> Fit[KaplanMeier]:
        e, encoding = self.settings.exact, server.encoding
        assert isinstance(encoding, Encoding), "refused before the first round"
        return fit_kaplan_meier(
            encoding.groups if e.group else (),
            grid="days" if e.baseline == "days" else "bins",
            least=int(e.least),
            horizon=None if e.horizon is None else float(e.horizon),
        )

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.data.duration is None:
            yield "method 'survival' needs times to an event: name the column of follow-up times (data.duration, --time COLUMN)"
