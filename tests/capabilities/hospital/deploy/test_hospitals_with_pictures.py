"""Hospitals with pictures on real processes, from the agreement to the model: MNIST's digits at two sites.

`make test-slow`, or `python -m pytest -m slow tests/capabilities/hospital/deploy/test_hospitals_with_pictures.py`;
minutes on busy cores.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.sets.images import IMAGE_SETS
from tests.capabilities.hospital.deploy.real import Real, rounds
from tests.capabilities.hospital.deploy.test_hospitals_for_real import QUIET, gateway, same_model

pytestmark = [pytest.mark.slow, pytest.mark.data("mnist", "xfed_masks"), gateway]

EACH = 120
NET = {"model": {"name": "small-cnn"}, "train": {"batch": 16, "steps": 3}, "engine": {"device": "cpu"}, **QUIET}


def digits() -> ImageSet:
    """The first digits of MNIST at two sites, with a mask of each one's strokes."""
    held = IMAGE_SETS["mnist"]["load"]()
    own = held.take(np.arange(2 * EACH))
    site = np.repeat(np.array(["north", "south"], object), EACH)
    return ImageSet("digits", own.pixels, own.label, site, masks=stroke_masks(own.pixels))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with Real(tmp_path_factory.mktemp("pictures"), digits()).at_work() as made:
        yield made


def test_each_site_is_told_that_its_pictures_fit(real):
    for name in real.names:
        schema = str(real.site_folder(name) / "schema.json")
        said = rounds("site", "check", "--data", str(real.dealt.files[name]), "--schema", schema)
        assert said.endswith(f"{EACH} images, agreed as 28x28, 1 channel: fits\n")


def test_xfed_with_masks(real):
    """Sites are sent XFed's digits with hand-drawn masks, and score where their nets look."""
    settings = {
        "method": {"name": "xfed", "rounds": 2, "xfed": {"steps": 1, "samples": 1}},
        "reference": {"scoring": {"sent": True, "source": "xfed-mnist"}},
        **NET,
    }
    there, here = real.run("xfed", settings), real.simulated("xfed", settings)
    same_model(there, here)
    assert [len(round["decision"]["weights"]) for round in there.rounds] == [1, 1], "one of two is left out"


def test_fedbn_whose_norm_layers_stay_at_the_sites(real):
    settings = {"method": {"name": "fedbn", "rounds": 1}, **NET, "model": {"name": "deep-cnn", "norm": "batch"}}
    same_model(real.run("fedbn", settings), real.simulated("fedbn", settings))


def test_a_site_with_other_pictures_opens_no_run(real):
    """Started all the same (--unfit), it answers `schema`; the run fails before its first round and says who."""
    real.stop_site("south")
    file = real.dealt.files["south"]
    arrays = dict(np.load(file))
    np.savez(file, **{**arrays, "images": arrays["images"][:, ::2, ::2], "masks": arrays["masks"][:, ::2, ::2]})
    real.start_site("south", "--unfit")
    real.all_there()
    with pytest.raises(AssertionError, match=rf"south: .*{codes.SCHEMA}"):
        real.run("unfit", {"method": {"name": "fedavg", "rounds": 1}, **NET})
