"""The sites' half of method 'quality': count rows in the agreed bins of a plan.

All rows of a site are counted, whatever part of a split they are in. Without noise and without secure aggregation counts of few
patients are hidden before the answer leaves. With a noise in the Ask every count has noise, and of a patient with several rows
one row counts, so that a patient changes each block by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np

from grandrounds.capabilities.quality.method.task import QUALITY, count_blocks
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.bins import PATIENTS, AgreedBins
from grandrounds.data.agreement.counts import Roles, RowCounts, count_rows
from grandrounds.data.dataset import Dataset
from grandrounds.protocol.messages import Ask
from grandrounds.site.plugin import Columns, SitePlugin, Task
from grandrounds.site.stack import Patients

UNIT = 1024
"""Noise is drawn in whole numbers of 1/1024 rows."""


class QualitySite(SitePlugin):
    """Counts of a site's rows in agreed bins."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {QUALITY: self._answer}

    def _answer(self, ask: Ask, members: Array) -> Columns:
        """Count the rows of these sites: one vector each."""
        bins = AgreedBins.from_dict(json.loads(str(ask.shared["bins"])))
        if int(ask.shared["blocks"]) != count_blocks(bins):
            raise BadInput("the request names another number of blocks than its bins have", code="malformed-ask")
        return {"counts": np.array([self._count(ask, int(k), bins) for k in members])}

    def _count(self, ask: Ask, k: int, bins: AgreedBins) -> Array:
        noise = float(ask.shared.get("noise", 0.0))
        counts = self.count(k, bins, private=bool(noise))
        if noise:
            return counts.pack(bins) + self._noise(ask, k, noise, bins.size)
        if "counts" in ask.withheld:
            return counts.pack(bins)
        return counts.hide_small(bins, least=int(ask.shared["least"]))

    def count(self, k: int, bins: AgreedBins, *, private: bool = False) -> RowCounts:
        """Count all rows of one site.

        Args:
            k: Number of the site.
            bins: The agreed bins.
            private: Noise is added: of each patient one row counts. Where a row is the unit of privacy, patients are not counted,
                because one row more changes two of their counts.
        """
        stack = self.site.stack
        data, rows = stack.data, stack.rows[k]
        if not isinstance(data, Dataset):
            raise BadInput("method 'quality' counts the rows of a table, and the data are images", code="needs-table")
        roles = Roles(data.schema.label, data.schema.time, data.schema.patient)
        mine = data.take(np.sort(np.concatenate([rows.train, rows.val, rows.test])))
        counts = count_rows(bins, mine.table, roles)
        if not private:
            return counts
        if not stack.by_patient or mine.patient is None:
            return RowCounts({**counts.rows, PATIENTS: np.zeros(2, np.int64)}, counts.patients)
        single = count_rows(bins, mine.table.take(np.sort(Patients.of(mine.patient).chosen)), roles)
        return RowCounts({**single.rows, **{n: c for n, c in counts.rows.items() if n == PATIENTS}}, single.patients)

    def _noise(self, ask: Ask, k: int, sigma: float, size: int) -> Array:
        """Draw noise of this standard deviation, rounded up, in steps of 1/1024 from the site's secret."""
        from grandrounds.privacy.discrete import discrete_gaussian

        key = np.frombuffer(self.site.secret(self.site.stack.names[k]).bytes(f"{ask.id}: {ask.task}", 16), "<u8")
        return discrete_gaussian(math.ceil(sigma * UNIT), size, rng=np.random.Generator(np.random.Philox(key=key))) / UNIT
