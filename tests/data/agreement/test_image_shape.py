"""Pictures that hospitals agreed on, at keepers: the server knows their shape before any site has answered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.deploy.site_plan import plan_at_sites
from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.core.errors import RunFailed
from grandrounds.core.rng import generator
from grandrounds.data.agreement.draft import draft_image_schema
from grandrounds.data.images import ImageSet
from tests.engine.hospitals import Hospitals, final_model
from tests.support import refused

pytest.importorskip("torch")

NET = {
    "model": {"name": "small-cnn"}, "method": {"name": "fedavg", "rounds": 2}, "train": {"batch": 16, "steps": 2},
    "explain": {"sketch": "none"}, "engine": {"device": "cpu"},
}  # fmt: skip
DATA = {"table": "data frame", "label": "label", "site": "site"}


def bars(sites: int, each: int) -> ImageSet:
    """Pictures with a bright bar whose place says the class; two of each patient."""
    rng = generator(0, purpose="agreed bars")
    n = sites * each
    y = rng.integers(0, 3, n)
    x = rng.integers(0, 60, (n, 28, 28, 1))
    x[np.arange(n), 4 + 8 * y] += 150
    site = np.array([f"s{k}" for k in np.repeat(np.arange(sites), each)], object)
    patient = np.array([f"p{i // 2}" for i in range(n)], object)
    return ImageSet("bars", x.astype(np.uint8), np.array([f"{c}" for c in y], object), site, patient)


def hospitals(pictures: ImageSet, **data) -> tuple[Hospitals, dict]:
    """A simulation, and the plan that a consortium with this agreement makes of what was submitted."""
    images = Hospitals.of(pictures, name="agreed", data={**DATA, "patient": "patient", **data}, **NET)
    submitted = {**images.plan, "split": {**images.plan["split"], "by": "auto"}}
    images.at_sites = plan_at_sites(submitted, draft_image_schema(pictures).to_dict())
    return images, images.at_sites


def test_no_site_is_asked_where_the_encoding_is_known_beforehand(tmp_path):
    """Classes and shape are the agreed ones, so that no summary leaves a site (data.encoding = 'public')."""
    pictures = bars(2, 24)
    images, plan = hospitals(pictures, encoding="public", levels={"label": ["0", "1", "2"]})
    assert (plan["data"]["pictures"], plan["split"]["by"]) == ("at the sites: 28x28, 1 channel", "patient")
    present, remote = images.simulated(tmp_path / "here", pictures), images.deployed(tmp_path / "there")
    np.testing.assert_allclose(final_model(remote), final_model(present), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fault", ["size", "label"])
def test_a_site_whose_pictures_do_not_fit_says_so_when_a_run_is_opened(tmp_path, fault):
    data, _ = hospitals(bars(2, 24))
    local = data.rows["s1"]
    assert isinstance(local, ImageSet)
    wrong = {"size": {"pixels": local.pixels[:, ::2]}, "label": {"label": np.array(["7", "8"] * 12, object)}}
    data.rows["s1"] = replace(local, **wrong[fault])
    with refused("setup-incomplete", match=rf"s1: .*\b{codes.SCHEMA}\b", kind=RunFailed):
        data.deployed(tmp_path)


def scoring(path, size: int = 28):
    """Pictures of the server's own, with masks where their bars are."""
    shown = bars(1, 12)
    masks = (shown.pixels[..., 0] > 100)[:, :size, :size]
    np.savez(path, images=shown.pixels[:, :size, :size], labels=shown.label.astype(str), masks=masks)
    return str(path)


def test_a_server_may_score_reasons_on_pictures_of_its_own(tmp_path):
    pictures = bars(2, 24)
    settings = {
        "method": {"name": "xfed", "rounds": 2, "xfed": {"steps": 1, "samples": 1}},
        "reference": {"scoring": {"sent": True, "source": scoring(tmp_path / "own.npz")}},
    }
    images = Hospitals.of(pictures, name="own", data={**DATA, "patient": "patient"}, **{**NET, **settings})
    submitted = {**images.plan, "split": {**images.plan["split"], "by": "auto"}}
    images.at_sites = plan_at_sites(submitted, draft_image_schema(pictures).to_dict())
    present, remote = images.simulated(tmp_path / "here", pictures), images.deployed(tmp_path / "there")
    np.testing.assert_allclose(final_model(remote), final_model(present), atol=1e-5, rtol=1e-5)
    assert remote.rounds[0]["decision"]["signals"] == present.rounds[0]["decision"]["signals"]
    small = {"scoring": {**images.at_sites["reference"]["scoring"], "source": scoring(tmp_path / "small.npz", size=20)}}
    images.at_sites = {**images.at_sites, "reference": small}
    with refused("image-size-mismatch"):
        images.deployed(tmp_path / "other")
