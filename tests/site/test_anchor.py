"""Reference anchors: by hand, against a loop of autograd, on both kernels, and what a site does with lent rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.references import which
from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.methods.exchanges import share_reference
from grandrounds.models.dense import Dense
from grandrounds.protocol.messages import Ask
from grandrounds.site.anchor import ReferenceDraws, SharedReference, distinct
from grandrounds.site.batches import BatchPlan
from grandrounds.site.numpy_train import train as numpy_train
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.site.test_numpy_train import alone, part
from tests.support import ready, refused, rounds, stack

SIZES, NAMES = [17, 5, 30, 1], ("a", "b", "c", "d")
COLUMNS = Features.from_columns(["age", "ward", "ward", "pulse"])
WIDTHS = [(4, 1), (4, 6, 3)]
KINDS = {
    "anchor": {"anchor": 1.3},
    "permuted": {"anchor": 1.3, "permuted": True},
    "alignment": {"alignment": 0.7},
}


def lent_rows(count: int = 11, *, dtype=np.float64) -> SharedReference:
    return SharedReference(generator(5, purpose="lent").normal(size=(count, 4)).astype(dtype), COLUMNS)


def work_of(kind: str, **changes) -> TrainConfig:
    return TrainConfig(**{"seed": 1, "round": 2, "lr": 0.1, "epochs": 2, "batch": 8, **KINDS[kind], **changes})


def taken_by(lent, held, members, work, names=NAMES):
    plan = BatchPlan.draw(held, members, names=names, config=work)
    return plan, ReferenceDraws.draw(lent, plan, members, names=names, config=work)


def borrowing(lent, taken, work) -> dict:
    """What a kernel is given: rows that each step takes, or all of them for a sketch."""
    return {"reference_draws": taken} if work.anchor else {"reference": lent}


# By hand


def test_two_steps_by_hand():
    """One row x = 1 of class 1 and one lent row r = 2, from zero with lr = 1 and w = 2.

    Step 1: p(1) = 1/2, so w and b rise by 1/2; at the start the anchor has no slope. Step 2: the row pulls by
    p(1) - 1 = s(1) - 1; the start said 1/2 of r and the model now says s(3/2), which pulls w by 2 * 2 and b by 2 times
    their difference.
    """
    held = Part(np.ones((1, 1)), np.ones(1, int), np.ones((1, 1)), np.zeros(1, int), np.array([0, 1]))
    lent = SharedReference(np.full((1, 1), 2.0), Features.from_inputs(["age"]))
    work = TrainConfig(seed=0, round=1, lr=1.0, steps=2, batch=0, anchor=2.0)
    plan, taken = taken_by(lent, held, np.zeros(1, int), work, ("a",))
    got = numpy_train(TrainJob(Dense((1, 1)), held, np.zeros(1, int), np.zeros(2), work, reference_draws=taken), plan)
    s1, s32 = (1 / (1 + np.exp(-z)) for z in (1.0, 1.5))
    expected = [0.5 - (s1 - 1) - 2 * (s32 - 0.5) * 2, 0.5 - (s1 - 1) - 2 * (s32 - 0.5)]
    np.testing.assert_allclose(got.theta, [expected], rtol=1e-12)


# Against autograd, and both kernels


class Reference:
    """One site's training as anyone would write it with torch's autograd; draws are made anew from (seed, round, site)."""

    def __init__(self, widths, lent: SharedReference, work: TrainConfig) -> None:
        self.widths, self.lent, self.work = widths, lent, work

    def logits(self, theta, x):
        at = 0
        for i, (a, b) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True)):
            x = x @ theta[at : at + a * b].reshape(a, b) + theta[at + a * b : at + a * b + b]
            x = x.relu() if i < len(self.widths) - 2 else x
            at += (a + 1) * b
        return x

    def losses(self, logits, target):
        import torch.nn.functional as F  # noqa: N812

        if self.widths[-1] == 1:
            return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
        return -(target * logits.log_softmax(-1)).sum(-1)

    def sketch(self, theta, x, label):
        import torch

        x = x.clone().requires_grad_()
        loss = self.losses(self.logits(theta, x), label).sum()
        product = x * torch.autograd.grad(loss, x, create_graph=True)[0]
        use = torch.stack([product[:, torch.as_tensor(g)].sum(1).abs().sum() for g in self.lent.features.groups])
        return use / use.sum()

    def classes(self, logits):
        import torch

        if self.widths[-1] == 1:
            return (logits > 0).to(logits.dtype)
        return torch.nn.functional.one_hot(logits.argmax(-1), self.widths[-1]).to(logits.dtype)

    def train(self, start, x, target, own_weight, batches, name, consensus=None):
        """`batches`: the row numbers of each step; what lent rows a step takes is drawn here."""
        import torch

        w, lent = self.work, torch.as_tensor(self.lent.x)
        start = torch.as_tensor(start)
        width = min(w.batch, len(lent))
        rng = generator(w.seed, purpose="anchor", round=w.round, site=name)
        n = len(batches) * width
        rows = np.concatenate([rng.permutation(len(lent)) for _ in range(-(-n // len(lent)))])[:n].reshape(-1, width)
        feature = rng.integers(len(self.lent.features), size=rows.shape) if w.permuted else None
        other = (rows + rng.integers(1, len(lent), size=rows.shape)) % len(lent) if w.permuted else None
        labels = self.classes(self.logits(start, lent))
        towards = self.sketch(start, lent, labels).detach() if consensus is None else torch.as_tensor(consensus)
        theta = start.clone().requires_grad_()
        x, target, own_weight = (torch.as_tensor(a) for a in (x, target, own_weight))
        for s, mine in enumerate(batches):
            loss = (self.losses(self.logits(theta, x[mine]), target[mine]) * own_weight[mine]).sum() / len(mine)
            r = lent[rows[s]].clone()
            if w.permuted:
                for i in range(width):
                    inputs = self.lent.features.groups[feature[s, i]]
                    r[i, inputs] = lent[other[s, i], inputs]
            if w.anchor:
                logits = self.logits(start, r)
                said = logits.sigmoid() if self.widths[-1] == 1 else logits.softmax(-1)
                loss = loss + w.anchor * self.losses(self.logits(theta, r), said).mean()
            else:
                apart, even = (self.sketch(theta, lent, labels) - towards).abs(), 0.01 / len(self.lent.features)
                loss = loss + w.alignment * torch.where(apart < even, apart**2 / (2 * even), apart - even / 2).sum()
            theta = (theta - w.lr * torch.autograd.grad(loss, theta)[0]).detach().requires_grad_()
        reasons = self.sketch(theta, lent, labels)
        return theta.detach().numpy(), reasons.detach().numpy()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("starts", ["one", "each"])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_a_plain_loop_on_either_kernel(kind, widths, starts):
    """Sites of different sizes in another order, with class weights, which must not touch the lent rows."""
    pytest.importorskip("torch")
    from grandrounds.models.torch_build import torch_dense
    from grandrounds.site.torch_train import train as torch_train

    dense, held, lent, work = Dense(widths), part(SIZES, outputs=widths[-1]), lent_rows(), work_of(kind)
    members, class_weight = np.array([2, 0, 3]), np.linspace(0.5, 1.5, max(2, widths[-1]))
    start = generator(0, purpose="start").normal(size=(3, dense.layout.size))
    start = start[0] if starts == "one" else start[[0, 1, 0]]
    consensus = np.array([0.2, 0.5, 0.3]) if kind == "alignment" and starts == "one" else None
    plan, taken = taken_by(lent, held, members, work)
    more = {"class_weight": class_weight, "consensus": consensus, **borrowing(lent, taken, work)}
    mine = numpy_train(TrainJob(dense, held, members, start, work, **more), plan)
    model = torch_dense(dense, device="cpu", precision="float64")
    theirs = torch_train(TrainJob(model, held, members, start, work, **more), plan)
    np.testing.assert_allclose(theirs.theta, mine.theta, atol=1e-9)
    plain = Reference(widths, lent, work)
    for j, k in enumerate(members):
        own = np.flatnonzero(plan.order == j)[0]
        batches = [plan.batch(s, own)[0] for s in range(plan.steps[j])]
        first = start if starts == "one" else start[j]
        theta, reasons = plain.train(
            first, held.x, held.target, class_weight[held.y], batches, NAMES[k], consensus=consensus
        )
        np.testing.assert_allclose(mine.theta[j], theta, atol=1e-9)
        if kind == "alignment":
            np.testing.assert_allclose(mine.reasons[j], reasons, atol=1e-9)
            np.testing.assert_allclose(theirs.reasons[j], reasons, atol=1e-9)
    without = numpy_train(TrainJob(dense, held, members, start, work, class_weight=class_weight), plan)
    assert np.abs(without.theta - mine.theta).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_net_gives_the_same_gradient_alone_and_in_a_stack(kind):
    """Pictures, with tiles for features: what a CPU does site by site is what a GPU's stack does."""
    torch = pytest.importorskip("torch")
    from grandrounds.models import build_model
    from grandrounds.site import torch_job, torch_train

    spec = {"name": "small-cnn", "inputs": [1, 16, 16], "classes": 3, "norm": "group", "stem": "small", "weights": None}
    model = build_model(spec, kernel="torch", device="cpu", precision="float64")
    rng = generator(0, purpose="pictures")
    y = rng.integers(0, 3, 12)
    held = Part(rng.normal(size=(12, 1, 16, 16)), y, np.eye(3)[y], np.zeros(12, int), np.array([0, 6, 12]))
    lent = SharedReference(rng.normal(size=(5, 1, 16, 16)), Features.from_tiles(16, 16, (3, 3)))
    work, members = work_of(kind, batch=4, epochs=1), np.arange(2)
    plan, taken = taken_by(lent, held, members, work, ("a", "b"))
    start = model.init(0, np.float64)
    asked = TrainJob(model, held, members, start, work)
    if work.anchor:
        borrowed = torch_train.anchor_reference(asked, taken, plan.order)
    else:
        borrowed = torch_train._alignment_reference(asked, lent, plan.order)
    job = torch_job.TorchJob.build(asked).with_reference(borrowed)
    theta = torch.as_tensor(start + rng.normal(size=(2, len(start))) / 50)
    rows, weight = torch.as_tensor(plan.rows[1]), torch.as_tensor(plan.weight[1])
    each = [borrowed.for_step(1, j) for j in range(2)]
    params = tuple(theta[:, at].reshape(2, *shape) for _, at, shape in model.layout.slices)
    together = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    stacked = torch_job.stacked_gradients(job)(params, job.batch(rows, weight, None, together))
    stacked = torch.cat([g.reshape(2, -1) for g in stacked], dim=1)
    bare = replace(job, reference=None)
    for k in range(2):
        own = model.point_at(theta[k].clone())
        single, plain = (
            torch.cat([g.reshape(-1) for g in torch_job.single_gradients(j, own, j.batch(rows[k], weight[k], None, t))])
            for j, t in ((job, each[k]), (bare, None))
        )
        np.testing.assert_allclose(stacked[k].numpy(), single.numpy(), atol=1e-9)
        assert (single - plain).abs().max() > 1e-4
    done = torch_train.train(TrainJob(model, held, members, start, work, **borrowing(lent, taken, work)), plan)
    assert np.isfinite(done.theta).all()
    assert not np.allclose(done.theta, torch_train.train(TrainJob(model, held, members, start, work), plan).theta)


# What steps take


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([0, 3, 8]),
    st.sampled_from([0, 5]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_each_pass_takes_every_row_once(sizes, count, batch, steps, permuted):
    held, lent = part(sizes), lent_rows(count)
    work = TrainConfig(seed=1, round=2, lr=0.1, batch=batch, steps=steps, anchor=1.0, permuted=permuted)
    members = np.arange(len(sizes))
    plan, taken = taken_by(lent, held, members, work)
    width = min(batch, count) if batch else count
    assert taken.rows.shape == (len(plan.rows), len(sizes), width)
    for j, s in enumerate(plan.steps_in_order):
        flat = taken.rows[:s, j].ravel()
        for at in range(0, len(flat), count):
            one = flat[at : at + count]
            assert len(set(one.tolist())) == len(one)
        assert (flat < count).all()
        assert not taken.rows[s:, j].any()
        if permuted and count > 1:
            assert (taken.other[:s, j] != taken.rows[:s, j]).all()
            assert (taken.feature[:s, j] < len(COLUMNS)).all()
    for k in range(len(sizes)):  # a site alone draws the same
        one, only = taken_by(lent, alone(held, k), np.zeros(1, int), work, (NAMES[k],))
        j = int(np.flatnonzero(plan.order == k)[0])
        s = min(len(one.rows), int(plan.steps[k]))
        np.testing.assert_array_equal(only.rows[:s, 0], taken.rows[:s, j])


def test_rounds_and_sites_take_different_rows():
    held, lent, members = part([20, 20]), lent_rows(), np.arange(2)
    draws = [taken_by(lent, held, members, work_of("anchor", round=r))[1].rows for r in (1, 2)]
    assert not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0][:, 0], draws[0][:, 1])


def test_a_permuted_row_has_one_whole_feature_of_another():
    held, lent, work = part([40]), lent_rows(), work_of("permuted")
    _, taken = taken_by(lent, held, np.zeros(1, int), work, ("a",))
    x = taken.inputs(slice(None), slice(None))
    seen = set()
    for at in np.ndindex(*taken.rows.shape):
        inputs = COLUMNS.groups[taken.feature[at]]
        seen.add(int(taken.feature[at]))
        rest = np.setdiff1d(np.arange(4), inputs)
        np.testing.assert_array_equal(x[at][inputs], lent.x[taken.other[at]][inputs])
        np.testing.assert_array_equal(x[at][rest], lent.x[taken.rows[at]][rest])
    assert seen == {0, 1, 2}


def test_a_hidden_tile_is_zero_and_the_rest_is_as_it_was():
    torch = pytest.importorskip("torch")
    from grandrounds.models import build_model
    from grandrounds.site.torch_job import DeviceReference

    spec = {"name": "small-cnn", "inputs": [2, 16, 16], "classes": 3, "norm": "group", "stem": "small", "weights": None}
    model = build_model(spec, kernel="torch", device="cpu", precision="float64")
    tiles = Features.from_tiles(16, 16, (2, 3))
    lent = SharedReference(generator(0, purpose="pictures").normal(size=(7, 2, 16, 16)), tiles)
    _, taken = taken_by(lent, part([40]), np.zeros(1, int), work_of("permuted"), ("a",))
    borrowed = DeviceReference.build(model, lent, weight=1.0)
    borrowed = borrowed.with_steps(rows=taken.rows, other=taken.other, feature=taken.feature)
    for at in ((0, 0), (1, 0)):
        got = borrowed.inputs({name: t[at] for name, t in borrowed.steps.items()})
        for x, row, f in zip(got.numpy(), taken.rows[at], taken.feature[at], strict=True):
            hidden = (tiles.feature_index == f).reshape(16, 16)
            assert not x[:, hidden].any()
            np.testing.assert_array_equal(x[:, ~hidden], lent.x[row][:, ~hidden])
    assert torch.equal(borrowed.inputs({"rows": torch.tensor([3])})[0], torch.as_tensor(lent.x[3]))


def test_equal_starts_are_answered_once():
    a, b = np.zeros(3), np.ones(3)
    models, of = distinct(np.stack([a, b, a]), np.array([1, 0, 2]))
    np.testing.assert_array_equal(models, [b, a])
    np.testing.assert_array_equal(of, [0, 1, 1])
    models, of = distinct(a, np.array([1, 0, 2]))
    np.testing.assert_array_equal(models, [a])
    np.testing.assert_array_equal(of, [0, 0, 0])


# At a site

ANCHORS = {
    "anchor": {"stability": "anchor"},
    "permuted": {"stability": "permuted_anchor"},
    "alignment": {"stability": "alignment", "alignment": 0.5},
}
BIG = [40, 32, 61, 24, 33]


def lending(engine, encoding, *, name="anchor", count=20, seed=9, **changes):
    """Twenty rows that no site holds, encoded, lent to all sites of the engine."""
    extra = stack([count + 2], seed=seed)
    x = encoding.encode(extra.data, np.float32)[:count]
    engine.drive(share_reference(name, changes.get("x", x), Features.from_columns(encoding.sources), None, engine.sites), round=0)
    return engine


def lent_engine(*, model="mlp", lent=True, sizes=BIG, classes=2, **settings):
    engine, encoding = ready(stack(sizes, classes=classes), model=model, **settings)
    return lending(engine, encoding) if lent else engine


@pytest.mark.parametrize("wire", [False, True])
def test_lent_rows_are_held_by_every_site(wire):
    engine, encoding = ready(stack(BIG), wire=wire)
    x = encoding.encode(stack([9], seed=9).data, np.float32)
    features = Features.from_columns(encoding.sources)

    def asked():
        return (
            yield Ask(
                "lend", shared={"name": "some", "x": x, "features": features.feature_index}, to=engine.sites, report=("held",)
            )
        )

    answers = engine.drive(asked(), round=0)
    assert answers.sites == engine.sites
    np.testing.assert_array_equal(answers["held"], [9] * 5)
    assert set(answers.columns) == {"held"}
    for host in engine.hosts:
        kept = host.references["some"]
        np.testing.assert_array_equal(kept.x, x)
        np.testing.assert_array_equal(kept.features.feature_index, features.feature_index)
        assert len(kept.features) == len(features)
        assert kept.target is None


def test_lent_pictures_keep_their_grid_and_labels():
    tiles = Features.from_tiles(8, 6, (2, 3))
    target = np.eye(3)[[0, 2]]
    sent = {"x": np.ones((2, 1, 8, 6)), "features": tiles.feature_index, "grid": np.array([2, 3]), "size": np.array([8, 6])}
    held = SharedReference.from_payload({**sent, "target": target}, np.float32)
    assert (held.features.grid, held.features.size, len(held.features)) == ((2, 3), (8, 6), 6)
    assert held.x.dtype == np.float32
    np.testing.assert_array_equal(held.target, target)


@pytest.mark.parametrize("kind", ANCHORS)
def test_chunks_and_bytes_change_no_bit(kind):
    whole, *others = (
        rounds(lent_engine(**settings), count=3, method=ANCHORS[kind])[0]
        for settings in ({}, {"chunk": 2}, {"wire": True})
    )
    for other in others:
        np.testing.assert_array_equal(other, whole)
    assert not np.array_equal(whole, rounds(lent_engine(), count=3)[0])


@pytest.mark.parametrize("kind", ANCHORS)
def test_weight_zero_is_fedavg_to_the_bit(kind):
    zero = {**ANCHORS[kind], "anchor": 0.0, "alignment": 0.0}
    np.testing.assert_array_equal(*(rounds(lent_engine(lent=False), method=m)[0] for m in ({}, zero)))


@pytest.mark.parametrize("kind", ANCHORS)
def test_a_site_without_the_rows_refuses(kind):
    with refused("missing-reference-rows"):
        rounds(lent_engine(lent=False), method=ANCHORS[kind])
    with refused("missing-reference-rows", match="'other'"):
        rounds(lent_engine(), method={**ANCHORS[kind], "anchor_rows": "other"})


def test_which_of_several_sets_is_meant():
    assert which((), "") is None
    assert which(("some",), "") == "some"
    assert which(("some", "others"), "") is None
    assert which(("some", "anchor"), "") == "anchor"
    assert which(("some", "anchor"), "some") == "some"
    engine, encoding = ready(stack(BIG), model="mlp")
    lending(engine, encoding, name="first", seed=9)
    lending(engine, encoding, name="second", seed=10)
    got = {
        name: rounds(engine, count=2, method={**ANCHORS["anchor"], "anchor_rows": name})[0]
        for name in ("first", "second")
    }
    assert not np.array_equal(got["first"], got["second"])
    engine, encoding = ready(stack(BIG), model="mlp")
    lending(engine, encoding, name="only", seed=10)
    np.testing.assert_array_equal(rounds(engine, count=2, method=ANCHORS["anchor"])[0], got["second"])


def test_rows_that_do_not_fit_are_refused_in_words():
    engine, encoding = ready(stack(BIG))
    with refused("wrong-shape", match=r"\(2,\)"):
        lending(engine, encoding, x=np.ones((3, 2)))
    with refused("wrong-shape", match=r"\(5,\)"):
        SharedReference.from_payload({"x": np.ones((3, 2)), "features": np.zeros(5, int)}, np.float32)
    with refused("wrong-shape", match="0 reference rows"):
        SharedReference.from_payload({"x": np.ones((0, 2)), "features": np.zeros(2, int)}, np.float32)
    with refused("protocol-mismatch", match="'features'"):
        SharedReference.from_payload({"x": np.ones((3, 2))}, np.float32)
