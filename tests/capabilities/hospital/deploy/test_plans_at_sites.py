"""What a submitted experiment becomes once the consortium's own columns or pictures are known."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.hospital.deploy.site_plan import plan_at_sites
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.capabilities.hospital.deployment import empty
from grandrounds.capabilities.hospital.keeper.runtime.run import build_stack
from grandrounds.core.plan import Settings
from grandrounds.core.sources import AT_SITES, STROKES
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.images import ImageSet
from tests.support import refused

PICTURES = {
    "pictures": True, "size": [12, 10], "channels": 3, "label": "dx", "classes": ["benign", "malignant"], "patient": "lesion",
}  # fmt: skip
TABLE = {"label": "died", "patient": "pid", "time": "at", "columns": {"age": {"kind": "number"}}}


def submitted(path, agreed, text="", *settings, model="small-cnn"):
    file = path / "e.toml"
    file.write_text(f'name = "x"\n[model]\nname = "{model}"\n{text}')
    return plan_at_sites(deployed_plan(file, list(settings)), agreed)


def test_pictures_are_the_consortiums(tmp_path):
    said = '[data]\ntable = "mine.csv"\npictures = "scans"\nsize = 64\nfile = "name"\nmasks = "drawn"\nlabel = "y"\n'
    plan = submitted(tmp_path, PICTURES, said)
    data = plan["data"]
    assert (data["table"], data["pictures"]) == (AT_SITES, "at the sites: 12x10, 3 channels")
    assert (data["label"], data["patient"], data["size"], data["masks"], data["kinds"]) == ("dx", "lesion", None, None, {})
    assert data["levels"] == {"dx": ["benign", "malignant"]}
    assert parse_image_shape(Settings(plan).data) == (3, 12, 10)
    held = empty(Settings(plan))
    assert isinstance(held, ImageSet)
    assert (held.shape, len(held)) == ((3, 12, 10), 0)


def test_scans_are_read_as_the_consortium_agreed(tmp_path):
    scan = {"window": [40, 400], "spacing": 1.0, "slices": "every 4", "series": {"Modality": "CT"}}
    asked = '[data.scan]\nwindow = "bone"\nplane = "sagittal"\n'
    data = submitted(tmp_path, {**PICTURES, "scan": scan}, asked)["data"]
    assert data["scan"] == {
        "window": [40.0, 400.0], "spacing": [1.0, 1.0], "slices": "every 4", "plane": "acquired", "fit": "auto", "volume": 1,
        "series": {"Modality": "CT"},
    }  # fmt: skip
    assert submitted(tmp_path, PICTURES, asked)["data"]["scan"]["window"] == "tags"


def test_masks_are_the_sites_own_or_made_of_strokes(tmp_path):
    assert submitted(tmp_path, {**PICTURES, "masks": True})["data"]["masks"] == AT_SITES
    assert submitted(tmp_path, PICTURES, '[data]\nmasks = "strokes"\n')["data"]["masks"] == STROKES
    assert submitted(tmp_path, TABLE, '[data]\nmasks = "strokes"\n')["data"]["masks"] is None


@pytest.mark.parametrize("agreed", [PICTURES, TABLE])
def test_one_patient_is_on_one_side_of_a_split_wherever_patients_are_agreed_on(tmp_path, agreed):
    assert submitted(tmp_path, agreed)["split"]["by"] == "patient"
    assert submitted(tmp_path, agreed, '[split]\nby = "row"\n')["split"]["by"] == "row"
    unnamed = {name: value for name, value in agreed.items() if name != "patient"}
    assert submitted(tmp_path, unnamed)["split"]["by"] == "row"
    with refused("no-agreed-column", match="'patient'"):
        submitted(tmp_path, unnamed, "", "split.by=patient")


def test_rows_go_by_time_where_a_time_is_agreed_on(tmp_path):
    assert submitted(tmp_path, TABLE, "", "split.by=time")["split"]["by"] == "time"
    with refused("no-agreed-column", match="time"):
        submitted(tmp_path, PICTURES, "", "split.by=time")


def test_a_model_for_the_other_kind_is_refused(tmp_path):
    with refused("model-does-not-fit", match="'logistic'"):
        empty(Settings(submitted(tmp_path, PICTURES, model="logistic")))
    with refused("model-does-not-fit", match="'small-cnn'"):
        empty(Settings(submitted(tmp_path, TABLE)))


def pictures(**changes) -> ImageSet:
    n = 20
    label = np.array(["benign", "malignant"] * 10, object)
    patient = np.array([f"p{i // 4}" for i in range(n)], object)
    pixels = np.arange(n * 360, dtype=np.int64).reshape(n, 12, 10, 3) % 251
    return ImageSet(**{"name": "own", "pixels": pixels.astype(np.uint8), "label": label, "patient": patient, **changes})


def test_a_site_deals_its_pictures_by_patient(tmp_path):
    stack = build_stack(Settings(submitted(tmp_path, PICTURES)), pictures(), name="s", role="train", task="")
    (rows,) = stack.rows
    sides = [set(stack.data.patient[side].tolist()) for side in (rows.train, rows.val, rows.test)]
    assert all(sides)
    assert len(set.union(*sides)) == sum(map(len, sides)) == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"pixels": np.ones((20, 10, 12, 3), np.uint8)}, "image-size-mismatch"),
        ({"pixels": np.ones((20, 12, 10, 1), np.uint8)}, "image-size-mismatch"),
        ({"label": np.array(["benign", "melanoma"] * 10, object)}, "unknown-class"),
        ({"patient": None}, "column-not-set"),
        ({"masks": None}, "no-truth-masks"),
    ],
)
def test_pictures_that_are_not_as_agreed_open_no_run(tmp_path, changes, code):
    plan = Settings(submitted(tmp_path, {**PICTURES, "masks": True}))
    masks = np.ones(changes.get("pixels", pictures().pixels).shape[:3], bool)
    with refused(code):
        build_stack(plan, pictures(**{"masks": masks, **changes}), name="s", role="train", task="")
