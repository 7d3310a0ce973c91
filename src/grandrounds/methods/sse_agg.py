"""SSE-AGG: sites whose reasons stand out lose weight, and a stability keeps the others' reasons together."""

from __future__ import annotations

from typing import Any

from grandrounds.methods.fedavg import FedAvg


class SSEAgg(FedAvg):
    """FedAvg weighed by explanations, in cohorts where asked for, over any stability.

    The paper weighs by agreement to lower drift. That does not work: local models differ before anything is weighed. So
    agreement is here what it is good for, a defence against sites whose reasons stand out (weigh.form "outlier"), and
    drift is the stability's business. The paper's own form is weigh.form "inverse" with stability "none".
    """

    name = "sse-agg"
    title = "SSE-AGG: weighs sites by how their reasons agree, and keeps reasons together while they train"


def stability_for(train: Any, *, sent: bool, trees: bool, apart: bool, private: bool = False, preset: str) -> str:
    """Choose the stability of SSE-AGG where none is named; `sent`: there are reference rows that sites may be sent.

    An anchor where rows may be sent, else none: local models stay their own, so that a bad one can be told. With preset
    'drift', and where sites take plain gradient steps, SCAFFOLD's variates: they carry what every site wants, a bad one's
    too, into everybody's steps and hide it. Other optimisers make nothing of variates, and cohorts with models of their own
    (`apart`) have no common one. Trees have no gradient. Under DP-SGD (`private`) variates are mostly the noise of the round
    before, which they add to that of this one: drift rises. The anchor's rows are no patients', so it is added after the noise.
    """
    if trees:
        return "none"
    if preset == "drift" and train.optimizer == "sgd" and not apart and not private:
        return "anchored_scaffold" if sent else "scaffold"
    return "permuted_anchor" if sent else "none"
