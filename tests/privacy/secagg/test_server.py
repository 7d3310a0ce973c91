"""What sites may send the server: anything. Whoever can be told is out by name, or the sum halts; it is never wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.privacy.secagg import STEPS, Context, Halted, Scale, Secret, SecureSum
from grandrounds.privacy.secagg.keys import OwnKeys
from grandrounds.protocol.identity import Identity
from tests.privacy.secagg.play import Play
from tests.privacy.secagg.rehearsal import rehearse
from tests.support import refused

SCALE = Scale(32, 1.0, 6)
VALUES = {f"s{k}": np.linspace(-1, 1, 40) * (k + 1) / 6 for k in range(6)}


def spoiling(step: str, site: str, spoil):
    return lambda at, who, said: spoil(said) if (at, who) == (step, site) else said


def right(found) -> None:
    plain = sum(VALUES[s] for s in found.sites)
    np.testing.assert_allclose(found.total, plain, rtol=0, atol=SCALE.error + 1e-14)


def noise(like: np.ndarray) -> np.ndarray:
    return np.frombuffer(generator(0, purpose="garbage").bytes(like.nbytes), like.dtype).reshape(like.shape)


GARBAGE = {
    "nothing": lambda said: None,
    "bytes": lambda said: b"\x00\xff" * 50,
    "a list": lambda said: [1, 2, 3],
    "an empty message": lambda said: {},
    "words": lambda said: dict.fromkeys(said, "word"),
    "numbers": lambda said: dict.fromkeys(said, 7),
    "floats": lambda said: {name: value.astype(np.float32) for name, value in said.items()},
    "too long": lambda said: {name: np.concatenate([value, value]) for name, value in said.items()},
    "too short": lambda said: {**said, next(iter(said)): next(iter(said.values()))[:-1]},
    "another shape": lambda said: {name: value[None] for name, value in said.items()},
    "objects": lambda said: {name: np.array([None, {}], object) for name in said},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("step", STEPS)
def test_garbage_of_every_kind_at_every_step_puts_its_sender_out(step, kind):
    found = rehearse(VALUES, scale=SCALE, tamper=spoiling(step, "s2", GARBAGE[kind]))
    out = found.missing if step in ("keys", "shares", "masked") else found.faults
    assert list(out) == ["s2"]
    assert out["s2"].startswith(f"{step}: sent an invalid '")
    assert ("s2" in found.sites) == (step in ("sign", "unmask"))
    right(found)


@given(
    st.sampled_from(["keys", "shares", "sign", "unmask"]),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_flipped_bits_never_give_a_wrong_sum_but_in_ones_own_vector(step, who, seed, flips):
    """A masked vector is its sender's to choose; all else that is altered is found, worked around, or halts the sum."""
    rng = np.random.default_rng(seed)

    def flip(said):
        said = {name: value.copy() for name, value in said.items()}
        for _ in range(flips):
            name = list(said)[rng.integers(len(said))]
            flat = said[name].reshape(-1).view(np.uint8)
            if len(flat):
                flat[rng.integers(len(flat))] ^= np.uint8(1 << rng.integers(8))
        return said

    try:
        found = rehearse(VALUES, scale=SCALE, tamper=spoiling(step, f"s{who}", flip))
    except Halted:
        return
    right(found)


def test_keys_signed_by_somebody_else():
    context = Context("rehearsal", 1, "sum")
    forged = OwnKeys(Secret.own(), context, "s2").announce(Identity.new()).pack()
    found = rehearse(
        VALUES, scale=SCALE, tamper=spoiling("keys", "s2", lambda said: {"keys": np.frombuffer(forged, np.uint8)})
    )
    assert found.missing == {"s2": "keys: its keys are not signed by it"}
    right(found)


def test_keys_of_another_round_are_not_taken():
    other = {}
    keep = spoiling("keys", "s2", lambda said: other.update(said) or said)
    rehearse(VALUES, scale=SCALE, tamper=keep, context=Context("rehearsal", 0, "sum"))
    found = rehearse(VALUES, scale=SCALE, tamper=spoiling("keys", "s2", lambda said: other))
    assert found.missing == {"s2": "keys: its keys are not signed by it"}


def test_a_signature_of_the_survivors_that_is_not_good():
    found = rehearse(VALUES, scale=SCALE, tamper=spoiling("sign", "s2", lambda s: {"signature": noise(s["signature"])}))
    assert found.faults == {"s2": "sign: its signature of the survivors is invalid"}
    right(found)


def test_shares_that_nobody_can_read_halt_the_sum_and_name_their_sender():
    with refused("secure-sum-halted", match=r"of s2 needs 4 shares, but 1 arrived \(5 could not read theirs\)", kind=Halted):
        rehearse(VALUES, scale=SCALE, tamper=spoiling("shares", "s2", lambda s: {"sealed": noise(s["sealed"])}))


def test_one_unreadable_share_does_no_harm():
    def spoil(said):
        sealed = said["sealed"].copy()
        sealed[0] ^= 1
        return {"sealed": sealed}

    right(rehearse(VALUES, scale=SCALE, tamper=spoiling("shares", "s2", spoil)))
    right(rehearse(VALUES, scale=SCALE, tamper=spoiling("shares", "s2", spoil), drops={"masked": ["s2"]}))


@pytest.mark.parametrize("dropped", [(), ("s5",)])
def test_false_shares_at_the_end_are_worked_around_and_named(dropped):
    lie = spoiling("unmask", "s0", lambda said: {**said, "shares": noise(said["shares"])})
    found = rehearse(VALUES, scale=SCALE, tamper=lie, drops={"masked": dropped})
    assert found.faults == {"s0": "sent, or was dealt, a share that does not fit"}
    assert set(found.missing) == set(dropped)
    right(found)


def test_more_false_shares_than_can_be_spared_halt_the_sum():
    def lie(step, site, said):
        return {**said, "shares": noise(said["shares"])} if step == "unmask" and site in ("s0", "s1", "s2") else said

    with refused("secure-sum-halted", match="cannot be reconstructed from 6 shares", kind=Halted):
        rehearse(VALUES, scale=SCALE, tamper=lie)


def test_shares_of_sites_that_are_not_its_neighbours():
    values = {f"s{k:02d}": np.zeros(3) for k in range(30)}
    owners = {"owners": np.arange(30, dtype=np.uint32), "shares": np.zeros((30, 33), np.uint8)}
    found = rehearse(values, scale=Scale(32, 1.0, 30), degree=8, tamper=spoiling("unmask", "s07", lambda said: owners))
    assert found.faults == {"s07": "unmask: sent an invalid 'owners'"}


def test_noise_in_place_of_a_masked_vector_is_told_by_the_guard():
    with refused("secure-sum-halted", kind=Halted):
        rehearse(VALUES, scale=SCALE, tamper=spoiling("masked", "s2", lambda s: {**s, "masked": noise(s["masked"])}))


def test_an_unmasked_vector_is_told_by_the_guard():
    plain = SCALE.to_ring(VALUES["s2"])
    with refused("secure-sum-halted", kind=Halted):
        rehearse(VALUES, scale=SCALE, tamper=spoiling("masked", "s2", lambda s: {**s, "masked": plain}))


def test_strangers_and_second_answers_change_nothing():
    play = Play(4).until("shares")
    first = play.sites["s00"].shares(play.questions["shares"]["s00"])
    play.server.take("s00", first)
    play.server.take("s00", {"sealed": np.zeros((3, 82), np.uint8)})
    play.server.take("nobody", first)
    play.server.lost("s00", "too late to be lost")
    for name in play.names[1:]:
        play.server.take(name, play.sites[name].shares(play.questions["shares"][name]))
    question = play.server.ask()
    assert question.step == "masked"
    assert not play.server.missing
    assert question.each["s01"]["sealed"][0].tobytes() == first["sealed"][0].tobytes()


@pytest.mark.parametrize(("step", "left", "need"), [("keys", 2, 3), ("shares", 3, 4), ("masked", 3, 4), ("sign", 3, 4)])
def test_a_halt_says_how_many_and_how_many_are_needed(step, left, need):
    names = list(VALUES)
    with refused("secure-sum-halted", match=f"after step '{step}' {left} of 6 sites are left, but {need} are", kind=Halted) as e:
        rehearse(VALUES, scale=SCALE, drops={step: names[left:]})
    assert set({**e.value.missing, **e.value.faults}) == set(names[left:])
    assert e.value.exit_code == 1


def test_a_halt_at_the_last_step_says_which_secret_is_short_of_shares():
    with refused("secure-sum-halted", match="the self-mask of s0 needs 4 shares, but 3 arrived", kind=Halted) as e:
        rehearse(VALUES, scale=SCALE, drops={"unmask": ["s3", "s4", "s5"]})
    assert set(e.value.faults) == {"s3", "s4", "s5"}


def test_a_sparse_graph_halts_where_one_neighbourhood_is_short():
    play = Play(30, degree=4).until("masked")
    around = play.server._roster.graph.neighbours(0)
    with refused("secure-sum-halted", match=r"\d of the 5 sites around s\d\d are left, but 4 are needed", kind=Halted):
        play.answer_all(without=tuple(f"s{k:02d}" for k in around[:2]))


def test_a_site_that_refuses_is_named_with_its_code():
    values = {**VALUES, "s3": VALUES["s3"] * 100}
    found = rehearse(values, scale=SCALE)
    assert found.missing == {"s3": "masked: refused (beyond-bound)"}
    right(found)


def test_a_sum_in_which_too_few_have_weight_halts():
    weights = {"s0": 0.5, "s1": 0.3, "s2": 0.2, "s3": 0.0, "s4": 0.0, "s5": 0.0}
    scale = Scale(32, 1.0, 6, weighted=True)
    assert rehearse(VALUES, scale=scale, weights=weights).sites == tuple(VALUES)
    with refused("secure-sum-halted", match="fewer than 3 of the remaining sites have any weight", kind=Halted):
        rehearse(VALUES, scale=scale, weights=weights, drops={"masked": ["s1"]})


def test_the_total_can_be_asked_for_twice():
    play = Play(4).until("unmask")
    for name, asked in play.questions["unmask"].items():
        play.server.take(name, play.say(name, "unmask", asked))
    np.testing.assert_array_equal(play.server.total(), play.server.total())


def test_more_sites_than_the_scale_has_room_for():
    peers = {f"s{k}": Identity.new().public for k in range(4)}
    with refused("too-many-sites", match="room for 3 sites, but 4 are asked"):
        SecureSum(Context("r", 1, "t"), peers=peers, scale=Scale(32, 1.0, 3), size=2)


def test_errors_carry_no_values():
    with refused("secure-sum-halted", kind=Halted) as e:
        rehearse({s: v + 0.123456 for s, v in VALUES.items()}, scale=SCALE, drops={"sign": ["s0", "s1", "s2"]})
    assert not re.search(r"\d\.\d", str(e.value))
