"""explain.maps: heat maps of local and common models on each site's own pictures, after chosen rounds, with any method."""

from __future__ import annotations

import json
from math import prod
from shutil import copytree

import numpy as np
import pytest
from rich.console import Console

import grandrounds as gr
from grandrounds.capabilities.cases.commands.images import show_all
from grandrounds.capabilities.cases.heat_maps import map_sheet
from grandrounds.core.records import Decision, RoundRecord
from grandrounds.core.rng import generator
from grandrounds.explain.map_metrics import (
    MAP_NUMBERS,
    NUMBERS,
    SIMILARITY_NUMBERS,
    SIZE,
    MapRule,
    compare_maps,
    measure_maps,
)
from grandrounds.report.figures import map_concentration, map_similarity
from grandrounds.runs.run_rows import RunRows
from grandrounds.site.host import SiteHost
from grandrounds.site.map_files import read_maps
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.runs.test_run import frame, own
from tests.support import bright_squares, patients, refused

torch = pytest.importorskip("torch")

SITES = ("north", "south", "west")
MAPS = ("grad_cam", "saliency")
ROWS = 4
REFERENCE = {"rows": {"rows": 9}}
ONE = {"maps": ["saliency"], "maps_rows": 2}


def flat(*, inputs, outputs):
    """A net without a convolution."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(prod(inputs), outputs))


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    return bright_squares(tmp_path_factory.mktemp("npz") / "squares.npz", 90, SITES, purpose="maps")


def experiment(path, *, explain=None, **changes) -> gr.Experiment:
    base = {
        "data": {"table": str(path), "masks": "strokes"},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 3},
        "train": {"lr": 0.05, "batch": 16, "epochs": 1},
        "engine": {"device": "cpu", "workers": 1},
        "explain": {"maps": MAPS, "maps_at": [1, 3], "maps_rows": ROWS} | (explain or {}),
    }
    return gr.Experiment.parse(base | changes)


@pytest.fixture(scope="module")
def done(squares, tmp_path_factory) -> gr.Run:
    return gr.run(experiment(squares, reference=REFERENCE), out=tmp_path_factory.mktemp("runs") / "squares-maps")


def maps(run: gr.Run) -> dict[int, dict]:
    return {r["round"]: r["maps"] for r in run.rounds if "maps" in r}


def numbers(record: dict) -> np.ndarray:
    """Of a record's sites all numbers, (K, maps, SIZE); null is NaN."""
    found = [
        [[v for part in one.values() for v in part.values()] for one in site.values()]
        for site in record["sites"].values()
    ]
    return np.array(found, float)


def who_trained(record: dict) -> set[str]:
    return {s for s, own in record["sites"].items() if own["saliency"]["local"]["concentration"] is not None}


def test_due_rounds_have_numbers_of_every_site(done):
    found = maps(done)
    assert list(found) == [1, 3]
    for record in found.values():
        assert list(record["sites"]) == list(SITES)
        for one in record["sites"].values():
            assert list(one) == list(MAPS)
            assert {block: tuple(values) for block, values in one["saliency"].items()} == NUMBERS
    first, last = numbers(found[1]), numbers(found[3])
    assert np.isnan(first[..., -4:]).all(), "there is no earlier map to compare the first with"
    assert np.isfinite(last[:, MAPS.index("saliency")]).all()
    shares = last[..., : 2 * len(MAP_NUMBERS)]
    assert ((shares[np.isfinite(shares)] >= 0) & (shares[np.isfinite(shares)] <= 1)).all()


def test_means_are_over_sites_and_the_summary_has_the_last(done):
    last = maps(done)[3]
    means = numbers({"sites": {"": last["means"]}})[0]
    np.testing.assert_allclose(means[1], numbers(last)[:, 1].mean(axis=0))
    told = done.summary["maps"]
    assert (told["pictures"], told["rounds"]) == (ROWS, [1, 3])
    assert told["last"] == last["means"] and told["between"] == last["between"]
    assert set(last["between"]) == set(MAPS) and set(last["between"]["saliency"]) == set(SIMILARITY_NUMBERS)
    assert -1 <= last["between"]["saliency"]["rank"] <= 1


def test_the_common_models_numbers_are_those_of_the_model_on_the_sites_own_test_pictures(done):
    """Scored again from model.safetensors and the site's test rows, drawn as the docstring says."""
    held = RunRows.read(done)
    data, model = held.consortium.data, done.model
    for site in SITES:
        tested = held.test_rows(site)
        drawn = generator(0, purpose="mapped pictures", site=site).choice(len(tested), ROWS, replace=False)
        rows = tested[np.sort(drawn)]
        assert set(data.site[rows]) == {site}
        y = np.array([model.encoding.classes.index(word) for word in data.label[rows]])
        x = model.encoding.encode(data.take(rows), np.float32)
        again = measure_maps(MapRule(MAPS, ROWS, 0), model.net, model.theta[None], x, y, data.masks[rows])
        told = maps(done)[3]["sites"][site]
        for name in MAPS:
            common = np.array(list(told[name]["common"].values()), float)
            np.testing.assert_allclose(common, again.numbers[name][0], atol=1e-6)
        kept = read_maps(done.folder / "at_sites" / site / "maps-3.npz")
        np.testing.assert_array_equal(tested[kept["places"]], rows)
        np.testing.assert_allclose(kept["common.said"], again.probabilities[0], atol=1e-6)


def test_a_file_at_a_site_holds_maps_and_no_picture(done):
    before, now = (read_maps(done.folder / "at_sites" / "south" / f"maps-{r}.npz") for r in (1, 3))
    heats = {f"{whose}.{name}" for whose in ("local", "common") for name in MAPS}
    assert set(now) == {"part", "places", "local.said", "common.said"} | heats
    assert all(now[key].dtype == np.float16 and now[key].shape == (ROWS, 16, 16) for key in heats)
    since = maps(done)[3]["sites"]["south"]["saliency"]["since"]
    found = compare_maps(*(kept["common.saliency"].astype(float) for kept in (now, before)))
    np.testing.assert_allclose([since["common_ssim"], since["common_rank"]], found)


def test_nothing_but_numbers_is_in_the_answers(squares, tmp_path, monkeypatch):
    """Of four pictures and two maps a site sends 36 numbers; and training Asks are answered as without maps."""
    heard: dict[str, dict[str, tuple]] = {}
    answer = SiteHost.answer

    def spy(self, ask, members):
        columns = answer(self, ask, members)
        heard.setdefault(ask.task, {name: np.shape(c)[1:] for name, c in columns.items()})
        return columns

    monkeypatch.setattr(SiteHost, "answer", spy)
    gr.run(experiment(squares, method={"rounds": 1}, explain={"maps_at": [1]}), out=tmp_path / "with")
    assert heard["maps"] == {"maps": (len(MAPS), SIZE)}
    trained = heard["train"]
    heard.clear()
    gr.run(experiment(squares, method={"rounds": 1}, explain={"maps": [], "maps_at": []}), out=tmp_path / "without")
    assert "maps" not in heard and heard["train"] == trained
    assert not (tmp_path / "without" / "at_sites").exists()


@pytest.mark.slow
def test_maps_change_nothing_and_bytes_change_no_number(done, squares, tmp_path):
    plain = gr.run(
        experiment(squares, explain={"maps": [], "maps_at": []}, reference=REFERENCE), out=tmp_path / "plain"
    )
    np.testing.assert_array_equal(plain.model.theta, done.model.theta)
    assert "maps" not in plain.summary
    wire = {"device": "cpu", "wire": True}
    wired = gr.run(experiment(squares, engine=wire, reference=REFERENCE), out=tmp_path / "wired")
    for r, record in maps(done).items():
        np.testing.assert_allclose(numbers(maps(wired)[r]), numbers(record), atol=1e-3)
    there, here = (read_maps(run.folder / "at_sites" / "west" / "maps-3.npz") for run in (wired, done))
    np.testing.assert_array_equal(there["places"], here["places"])


def test_of_one_site_the_local_and_the_common_model_are_one(tmp_path):
    path = bright_squares(tmp_path / "one.npz", 40, ["only"], purpose="one site")
    run = gr.run(experiment(path, method={"rounds": 2}, explain=ONE | {"maps_at": [1, 2]}), out=tmp_path / "r")
    for record in maps(run).values():
        one = record["sites"]["only"]["saliency"]
        assert one["alike"] == pytest.approx({"ssim": 1, "rank": 1})
        assert one["local"] == one["common"]
    assert one["since"]["local_ssim"] == one["since"]["common_ssim"] < 1
    assert "between" not in record


def test_a_site_that_did_not_train_has_no_local_map(squares, tmp_path):
    method = {"rounds": 2, "select": {"rule": "random", "fraction": 0.34}}
    run = gr.run(experiment(squares, method=method, explain=ONE | {"maps_at": [1, 2]}), out=tmp_path / "r")
    for record in run.rounds:
        asked = set(record["decision"]["asked"])
        assert who_trained(record["maps"]) == asked and len(asked) < len(SITES)
        for site, own_ in record["maps"]["sites"].items():
            assert own_["saliency"]["common"]["gini"] is not None
            assert (own_["saliency"]["alike"]["ssim"] is None) == (site not in asked)
    other = next(s for s in SITES if s not in asked)
    assert "local.saliency" not in read_maps(run.folder / "at_sites" / other / "maps-2.npz")
    sheet = tmp_path / "m.png"
    assert rounds("explain", "maps", "show", run.folder, "--site", other, "--out", sheet).returncode == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}], ids=lambda m: m["name"])
def test_answers_that_are_not_waited_for_are_mapped_in_the_round_they_come_in(method, squares, tmp_path):
    """Two of these rounds' answers were asked for in earlier rounds, in which no map was due."""
    slow = {"device": "cpu", "workers": 1, "faults": {"slow": {"north": 1.0, "south": 1.6, "west": 2.3}}}
    made = experiment(squares, method={**method, "rounds": 4}, explain=ONE | {"maps_at": [2, 4]}, engine=slow)
    run = gr.run(made, out=tmp_path / "r")
    late = 0
    for r, record in maps(run).items():
        decision = run.record(r)["decision"]
        assert who_trained(record) == set(decision["weights"])
        late += sum(age > 0 for age in decision["signals"]["staleness"].values())
    assert late
    if method["name"] == "fedasync":
        return
    short = experiment(squares, method={**method, "rounds": 2}, explain=ONE | {"maps_at": []}, engine=slow)
    gone_on = gr.resume(gr.run(short, out=tmp_path / "short").folder, settings=["method.rounds=4"])
    assert maps(gone_on) == maps(run)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_resumed_run_goes_on_from_what_its_sites_kept(lost, done, squares, tmp_path):
    """Where a site has lost its file, what it would be compared with is unknown, and only that."""
    changes = {"method": {"rounds": 1}, "explain": {"maps_at": []}, "reference": REFERENCE}
    short = gr.run(experiment(squares, **changes), out=tmp_path / "short")
    assert maps(short) == {1: maps(done)[1]}
    if lost:
        (short.folder / "at_sites" / "north" / "maps-1.npz").unlink()
    gone_on = gr.resume(short.folder, settings=["method.rounds=3"])
    after, expected = numbers(maps(gone_on)[3]), numbers(maps(done)[3])
    if lost:
        expected[0, :, -4:] = np.nan
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "local", "rounds": 3}}, "'local'"),
        ({"method": {"name": "pooled", "rounds": 3}}, "'pooled'"),
        ({"method": {"rounds": 2}}, r"explain\.maps_at"),
        ({"privacy": {"secure": True}}, r"privacy\.secure"),
        ({"privacy": {"epsilon": 3.0, "mechanism": "dp-sgd", "min_rows": 1}}, r"explain\.maps"),
        ({"explain": {"maps_at": []}, "train": {"early_stop": 2}}, r"train\.early_stop"),
        ({"tasks": {"other": {"classes": {"x": ["benign"], "y": ["malignant"]}}}}, r"explain\.maps"),
        ({"model": {"name": "tests.e2e.test_heat_maps:flat"}}, r"explain\.maps"),
    ],
)
def test_what_maps_do_not_go_with_is_refused_before_a_round(changes, words, squares, tmp_path):
    with refused("heat-maps-do-not-fit", match=words):
        gr.run(experiment(squares, **changes), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_net_without_a_convolution_has_the_other_maps(squares, tmp_path):
    explain = {"maps": ["gradient_norm", "integrated_gradients"], "maps_at": []}
    model = {"name": "tests.e2e.test_heat_maps:flat"}
    run = gr.run(experiment(squares, model=model, method={"rounds": 1}, explain=explain), out=tmp_path / "r")
    assert set(run.summary["maps"]["last"]) == {"gradient_norm", "integrated_gradients"}


def test_tables_and_unknown_maps_are_refused(squares, tmp_path):
    with refused("heat-maps-do-not-fit", match=r"explain\.maps"):
        own(frame(patients([40, 40])), tmp_path / "a", explain={"maps": ["saliency"]})
    with refused("unknown-choice", match=r"explain\.maps"):
        experiment(squares, explain={"maps": ["lime"]})
    with refused("bad-setting", match=r"explain\.maps_at"):
        experiment(squares, explain={"maps_at": [0]})
    late = ("run", "--table", squares, "--set", "model.name=small-cnn", "--set", 'explain.maps=["saliency"]')
    command_refused(rounds(*late, "--set", "explain.maps_at=[99]", "--out", tmp_path / "b"), "round 99")


def test_the_sheet_and_its_numbers(done, tmp_path):
    image = pytest.importorskip("PIL.Image")
    shown = rounds("explain", "maps", "show", done.folder, "--site", "south", "--pictures", 2, "--out", tmp_path / "south.png")
    assert shown.returncode == 0, shown.stderr
    panels, side = (
        2 + len(MAPS) * 2 * 2,
        160,
    )  # picture, mask, two models after two rounds; 16 pixels ten times as large
    size = (2 * 16 + panels * (side + 10) - 10, 2 * 16 + 34 + 2 * (26 + 20 + side + 10) + 22)
    drawn = image.open(tmp_path / "south.png")
    assert drawn.size == size
    one = maps(done)[3]["sites"]["south"]["grad_cam"]
    assert f"{one['local']['insertion']:.3f} / {one['common']['insertion']:.3f}" in shown.stdout
    assert "round 1" in shown.stdout and "Grad-CAM" in shown.stdout
    everyone = rounds("explain", "maps", "show", done.folder).stdout
    assert all(site in everyone for site in (*SITES, "all sites")) and "between sites" in everyone
    told = json.loads(rounds("explain", "maps", "show", done.folder, "--site", "south", "--rounds", "3", "--json").stdout)
    assert told == {"site": "south", "rounds": {"3": maps(done)[3]["sites"]["south"]}}


def test_what_cannot_be_shown_is_refused(done, squares, tmp_path):
    command_refused(rounds("explain", "maps", "show", done.folder, "--rounds", "2"), "round 2 has no heat maps", "1, 3")
    command_refused(rounds("explain", "maps", "show", done.folder, "--rounds", "one"), "give round numbers")
    command_refused(rounds("explain", "maps", "show", done.folder, "--site", "east"), "no site 'east'")
    command_refused(rounds("explain", "maps", "show", done.folder, "--out", tmp_path / "x.png"), "name it with --site")
    plain = gr.run(experiment(squares, explain={"maps": [], "maps_at": []}, method={"rounds": 1}), out=tmp_path / "p")
    command_refused(rounds("explain", "maps", "show", plain.folder), "has no heat maps", "explain.maps")


def test_sites_of_two_groups_have_sheets_of_their_own(tmp_path):
    path = bright_squares(tmp_path / "groups.npz", 40, ["a/west", "b/west"], purpose="groups")
    run = gr.run(experiment(path, method={"rounds": 1}, explain=ONE | {"maps_at": []}), out=tmp_path / "r")
    (tmp_path / "sheets").mkdir()
    for site in ("a/west", "b/west"):
        shown = rounds("explain", "maps", "show", run.folder, "--site", site, "--out", tmp_path / "sheets")
        assert shown.returncode == 0, shown.stderr
    assert sorted(p.name for p in (tmp_path / "sheets").iterdir()) == ["maps-a-west.png", "maps-b-west.png"]


def test_a_file_at_a_site_that_lacks_something_is_refused(done, tmp_path):
    copied = gr.load_run(copytree(done.folder, tmp_path / "copied"))
    file = copied.folder / "at_sites" / "south" / "maps-3.npz"
    whole = read_maps(file)
    shorter = {**whole, "common.saliency": whole["common.saliency"][:1]}
    for held in ({}, {k: v for k, v in whole.items() if k != "places"}, shorter):
        np.savez(file, **held)
        with refused("damaged-file"):
            map_sheet(copied, "south")


def test_the_report_and_the_screen_tell_of_them(done):
    page = (done.folder / "report.html").read_text()
    assert "<h3>Heat maps</h3>" in page and "Concentration of heat maps" in page and "Similarity of heat maps" in page
    lines = {line["name"]: line for line in map_similarity(done.rounds)["data"]}
    told = [maps(done)[r]["means"]["saliency"]["alike"]["ssim"] for r in (1, 3)]
    assert (lines["saliency, own and common"]["x"], lines["saliency, own and common"]["y"]) == ([1, 3], told)
    assert lines["saliency, own and its last"]["y"][0] is None
    with refused("nothing-to-draw", match=r"explain\.maps"):
        map_concentration([RoundRecord(1, Decision())])
    line = next(text for text in rounds("show", done.folder).stdout.splitlines() if "saliency heat maps, concentration" in text)
    assert f"{done.summary['maps']['last']['saliency']['common']['concentration']:.3f} (common)" in line


def test_what_left_a_site_names_them(done):
    assert "numbers of heat maps of its own" in rounds("privacy", done.folder).stdout


def test_what_is_unknown_is_a_dash_on_the_screen(capsys):
    """Where every map of a round was dark there is nothing to say between sites."""
    nothing = {block: dict.fromkeys(keys) for block, keys in NUMBERS.items()}
    maps_ = {"sites": {"north": {"saliency": nothing}}, "means": {"saliency": nothing}}
    show_all(Console(width=80), 2, {**maps_, "between": {"saliency": dict.fromkeys(SIMILARITY_NUMBERS)}})
    assert "between sites, on reference images: SSIM -, rank -" in capsys.readouterr().out
