"""Personal parts that are trained at hospitals: the same models as in a simulation, and no number of them on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.capabilities.hospital.keeper.test_personal_models import DATA, QUICKLY, SIZES, personal_files, wire
from tests.engine.hospitals import Hospitals
from tests.support import patients, slow

NET = {"method": {"rounds": 2}, "model": {"name": "mlp", "hidden": [4]}}
OTHERS = [slow("head", True), *(slow(part, secure) for part in ("ditto", "apfl", "finetune") for secure in (False, True))]


@pytest.mark.parametrize(("part", "secure"), [("head", False), *OTHERS])
def test_hospitals_train_the_parts_of_a_simulation_and_send_none(
    part: str, secure: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    personal = {"part": part, "epochs": 2, "differences": False}
    settings: dict[str, Any] = {**QUICKLY, **NET, "personal": personal, "privacy": {"secure": secure}}
    held = Hospitals.of(patients(SIZES), name="own", data=DATA, **settings)
    here = held.simulated(tmp_path / "here", patients(SIZES))
    seen = wire(monkeypatch)
    there = held.deployed(tmp_path)
    assert there.summary.personal["choices"] == here.summary.personal["choices"] == dict.fromkeys("abcd", part)
    ours, theirs = personal_files(tmp_path / "here"), personal_files(tmp_path / "state")
    everything, net = b"".join(seen), here.model.net
    assert theirs.keys() == set("abcd")
    for site, arrays in theirs.items():
        np.testing.assert_allclose(arrays["deployed"], ours[site]["deployed"], atol=1e-4)
        entries = net.site_entries("head") if part == "head" else np.arange(len(arrays["deployed"]))
        own, common = arrays["deployed"][entries], arrays["common"][entries]
        pieces = [own[i : i + 4] for i in range(len(own) - 3) if (own[i : i + 4] != common[i : i + 4]).all()]
        assert pieces
        assert not any(piece.astype(kind).tobytes() in everything for piece in pieces for kind in (np.float32, np.float64))
