"""evaluation.local_models with nets: XFed's sites that send nothing, and sites that keep a part of the model to themselves."""

from __future__ import annotations

import grandrounds as gr
from tests.e2e.test_xfed import experiment as picture_run
from tests.e2e.test_xfed import squares  # noqa: F401
from tests.methods.test_fedbn import experiment as batch_norm_net
from tests.methods.test_fedbn import pictures  # noqa: F401
from tests.support import refused


def test_of_xfed_the_models_that_are_sent_are_scored_by_all(squares, tmp_path):  # noqa: F811
    done = gr.run(picture_run(squares, evaluation={"local_models": "crossed"}), out=tmp_path / "r")
    plain = gr.run(picture_run(squares), out=tmp_path / "none")
    assert done.model.theta.tobytes() == plain.model.theta.tobytes()
    for r in done.rounds:
        assert set(r["local"]["train_accuracy"]) == set("abcde")
        assert set(r["local"]["external"]) == set(r["decision"]["weights"]) < set("abcde")


def test_sites_that_keep_batch_norm_tell_of_their_own_model_and_cannot_lend_it(pictures, tmp_path):  # noqa: F811
    done = gr.run(batch_norm_net(pictures, evaluation={"local_models": "own"}), out=tmp_path / "r")
    plain = gr.run(batch_norm_net(pictures), out=tmp_path / "none")
    assert done.model.theta.tobytes() == plain.model.theta.tobytes()
    assert set(done.rounds[-1]["local"]["train_accuracy"]) == {"north", "south", "west"}
    with refused("method-does-not-fit", match="BatchNorm entries stay at their site, .* set it to 'own'"):
        gr.run(batch_norm_net(pictures, evaluation={"local_models": "crossed"}), out=tmp_path / "x")
