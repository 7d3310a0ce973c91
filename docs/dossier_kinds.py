"""The table in docs/dossier.md of TRIPOD+AI sub-items by kind of run, from runs that this command makes.

python docs/dossier_kinds.py            make one small run of each kind, and print the table
python docs/dossier_kinds.py --write    put it between the two marks in docs/dossier.md
python docs/dossier_kinds.py --check    exit 1 where the page differs
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # rows and an in-process consortium come from tests/

import numpy as np  # noqa: E402
from tests.support import patients  # noqa: E402

import grandrounds as gr  # noqa: E402
from grandrounds.capabilities.dossier.building.document import BEGUN, FILLED, Document, Item  # noqa: E402
from grandrounds.capabilities.dossier.building.documents.tripod import build  # noqa: E402
from grandrounds.capabilities.dossier.building.evidence import Evidence  # noqa: E402
from grandrounds.capabilities.dossier.building.facts import Facts  # noqa: E402
from grandrounds.core.rng import generator  # noqa: E402

PAGE = Path(__file__).with_name("dossier.md")
BEGIN, END = "<!-- kinds: begin -->", "<!-- kinds: end -->"
TABLE, IMAGES, DP, SECURE, DEPLOYED = (
    "table",
    "images",
    "table, DP-SGD with epsilon 5",
    "table, secure aggregation",
    "table, deployed (rows at sites)",
)
SIZES = [120, 110, 100, 90]
_PLAN: Mapping[str, Any] = {
    "name": "study",
    "data": {"table": "patients.csv", "label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 2},
    "evaluation": {"subgroups": ["ward"]},
}


def make_runs(folder: Path) -> dict[str, Path]:
    """Make a run of each kind.

    Args:
        folder: An empty folder.

    Returns:
        The run folders by kind.
    """
    changes: dict[str, Mapping[str, Any]] = {
        TABLE: {},
        DP: {"privacy": {"mechanism": "dp-sgd", "epsilon": 5.0}},
        SECURE: {"privacy": {"secure": True}},
    }
    runs = {}
    for number, (kind, settings) in enumerate(changes.items()):
        runs[kind] = folder / f"run-{number}"
        gr.run(gr.Experiment.parse({**_PLAN, **settings}), out=runs[kind], table=patients(SIZES))
    images = {
        "data": {"table": str(_write_images(folder / "images.npz"))},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 1},
        "split": {"partition": "column"},
    }
    runs[IMAGES] = folder / "run-images"
    gr.run(gr.Experiment.parse(images), out=runs[IMAGES])
    runs[DEPLOYED] = _deploy(folder)
    return runs


def _write_images(path: Path) -> Path:
    """Write noisy images of 16 x 16 pixels, a little brighter on the left or on the right, at three sites."""
    rng = generator(0, purpose="images of the dossier's page")
    label = rng.integers(0, 2, 360)
    pixels = rng.integers(0, 200, (360, 16, 16, 1))
    for image, side in zip(pixels, label, strict=True):
        image[:, 8 * side : 8 * side + 8] += 12
    site = np.array(["north", "south", "west"])[np.arange(360) % 3]
    np.savez(path, images=pixels.astype(np.uint8), labels=np.array(["benign", "malignant"])[label], site=site)
    return path


def _deploy(folder: Path) -> Path:
    """Make a run over Flower messages, with a keeper and a file of rows at each of four sites."""
    from tests.capabilities.hospital.deploy.real import write_csv
    from tests.engine.grid import keeper_grid

    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.provision import provision
    from grandrounds.capabilities.hospital.deploy.run_worker import _run_at_sites
    from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.core.toml import dumps
    from grandrounds.data.agreement.draft import draft_schema
    from grandrounds.engine.transport import FlowerTransport

    table, names = patients(SIZES), "abcd"
    site = np.asarray(table.columns["hospital"]).astype(str)
    for name in names:
        write_csv(folder / f"{name}.csv", table.take(np.flatnonzero(site == name)), without="hospital")
    agreed = draft_schema(table, label="died", site="hospital").to_dict()
    consortium = {
        "name": "study",
        "server": {"address": "127.0.0.1"},
        "sites": [{"name": name} for name in names],
        "data": {key: value for key, value in agreed.items() if key != "schema"},
    }
    (folder / "consortium.toml").write_text(dumps(consortium))
    settings = {key: _PLAN[key] for key in ("name", "method", "evaluation")}
    (folder / "study.toml").write_text(dumps(settings))
    provision(folder / "consortium.toml", folder / "out", make_keys=True)
    out = Folders(folder / "out")
    keepers = [SiteFolder(out.site(name)).keeper(str(folder / f"{name}.csv")) for name in names]
    run = out.server / "runs" / "study"
    transport = FlowerTransport(keeper_grid(keepers), interval=20.0)
    _run_at_sites(deployed_plan(folder / "study.toml", []), run, transport, out.server, False)
    return run


def build_checklists(runs: Mapping[str, Path]) -> dict[str, Document]:
    """Build the checklist of each run."""
    return {kind: build(Facts(Evidence.collect(gr.load_run(run), date="2026-01-31"))) for kind, run in runs.items()}


def is_begun(item: Item) -> bool:
    """Tell whether the run fills or begins an item."""
    return item.state in (FILLED, BEGUN)


def find_losses(table: Document, other: Document) -> tuple[list[str], list[str]]:
    """Compare a checklist with that of a table run.

    Returns:
        Sub-items that the table run fills or begins and the other does not; sub-items of which a part falls away.
    """
    lost, less = [], []
    for before, after in zip(table.items, other.items, strict=True):
        if is_begun(before) and not is_begun(after):
            lost.append(before.id)
        elif is_begun(before) and set(after.gaps) - set(before.gaps):
            less.append(before.id)
    return lost, less


def write_table(documents: Mapping[str, Document]) -> str:
    """Write the table."""
    lines = ["| run | filled | begun | of 52 | falls away | a part falls away |", "|---|---:|---:|---:|---|---|"]
    for kind in (TABLE, IMAGES, DP, SECURE, DEPLOYED):
        states = documents[kind].count_states()
        lost, less = find_losses(documents[TABLE], documents[kind])
        cells = [kind, states[FILLED], states[BEGUN], states[FILLED] + states[BEGUN]]
        cells += [", ".join(lost) or "nothing", ", ".join(less) or "nothing"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Causes, as the checklists state them:", ""]
    for kind in (IMAGES, DP, SECURE, DEPLOYED):
        before = {gap for item in documents[TABLE].items for gap in item.gaps}
        gaps = dict.fromkeys(gap for item in documents[kind].items for gap in item.gaps if gap not in before)
        if gaps:
            lines.append(f"- {kind}: {'; '.join(gaps)}.")
    return "\n".join(lines)


def insert(text: str, table: str) -> str:
    """Return the page's text with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Print, write or check the table."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(build_checklists(make_runs(Path(folder))))
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        PAGE.write_text(insert(text, table), encoding="utf-8")
    elif "--check" in sys.argv:
        return int(insert(text, table) != text)
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
