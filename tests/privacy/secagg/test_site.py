"""What a site refuses, each tried for real by a server that plays false."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grandrounds.privacy.secagg import Context, Refused, Secret, SecureSite
from grandrounds.privacy.secagg.keys import OwnKeys
from grandrounds.privacy.secagg.roster import Roster
from grandrounds.privacy.secagg.terms import REASONS
from grandrounds.protocol.identity import Identity
from tests.privacy.secagg.play import CONTEXT, Play


def refused(code, call, *args):
    with pytest.raises(Refused) as e:
        call(*args)
    assert e.value.code == code
    assert str(e.value) == f"refused ({code}): {REASONS[code]}"


def at(step: str, n: int = 5, **more):
    """A play at the question of a step, its first site, and what that one was asked."""
    play = Play(n, **more).until(step)
    return play, play.sites["s00"], play.questions[step]["s00"]


def roster(play: Play, names: list[str], **more) -> dict:
    """A roster of what these sites really announced."""
    announced = {name: play.sites[name].keys()["keys"].tobytes() for name in names}
    return Roster.of(CONTEXT, announced, **more).message()


def signed(play: Play, survivors: list[int], signers: list[int]) -> dict:
    """A list with true signatures of these sites, who are asked for them behind the others' backs."""
    listed = np.array(survivors, np.uint32)
    rows = [play.sites[f"s{k:02d}"].sign({"survivors": listed})["signature"] for k in signers]
    return {"survivors": listed, "signers": np.array(signers, np.uint32), "signatures": np.stack(rows)}


def test_fewer_than_three_sites():
    play, site, _ = at("shares", 3)
    refused("too-few-sites", site.shares, roster(play, ["s00", "s01"], threshold=2))


def test_a_roster_without_this_site():
    play, site, _ = at("shares")
    refused("own-keys", site.shares, roster(play, ["s01", "s02", "s03", "s04"]))


def test_own_keys_altered():
    """With keys of the server's making, and even with a true signature: another sum's keys of this very site."""
    play, site, asked = at("shares")
    asked["keys"] = asked["keys"].copy()
    other = SecureSite(
        "s00", CONTEXT, identity=play.who["s00"], peers=play.peers, secret=Secret.simulated(9, "s00")
    ).keys()["keys"]
    asked["keys"][0] = other
    refused("own-keys", site.shares, asked)


@pytest.mark.parametrize("byte", [0, 40, 70, 100, 159])
def test_a_peers_keys_altered(byte):
    _, site, asked = at("shares")
    asked["keys"] = asked["keys"].copy()
    asked["keys"][3, byte] ^= 1
    refused("peer-signature", site.shares, asked)


@pytest.mark.parametrize(
    "context", [Context("run", 8, "model"), Context("run", 7, "shap"), Context("other", 7, "model")]
)
def test_a_peers_keys_of_another_sum(context):
    _, site, asked = at("shares")
    asked["keys"] = asked["keys"].copy()
    asked["keys"][2] = Play(5, context=context).sites["s02"].keys()["keys"]
    refused("peer-signature", site.shares, asked)


def test_a_peers_keys_under_another_name():
    _, site, asked = at("shares")
    asked["keys"] = asked["keys"][[0, 2, 1, 3, 4]]
    refused("peer-signature", site.shares, asked)


def test_a_site_that_is_not_known():
    """The server adds a site of its own making, to be alone with this one among its puppets."""
    play, site, asked = at("shares")
    puppet = OwnKeys(Secret.own(), CONTEXT, "s05").announce(Identity.new()).pack()
    asked = {**asked, "names": json.dumps([*play.names, "s05"])}
    asked |= {"keys": np.vstack([asked["keys"], np.frombuffer(puppet, np.uint8)]), "weights": np.empty((6, 0))}
    refused("unknown-site", site.shares, asked)


def test_one_site_under_two_names():
    play, _, _ = at("shares")
    peers = {**play.peers, "s04": play.peers["s03"]}
    site = SecureSite("s00", CONTEXT, identity=play.who["s00"], peers=peers, secret=Secret.simulated(1, "s00"))
    site.keys()
    refused("same-identity", site.shares, roster(play, play.names))


def test_one_name_twice_or_names_out_of_order():
    play, site, asked = at("shares")
    names = play.names
    for wrong in ([*names[:4], "s03"], [names[0], names[2], names[1], *names[3:]]):
        k = [names.index(name) for name in wrong]
        refused("malformed", site.shares, {**asked, "names": json.dumps(wrong), "keys": asked["keys"][k]})


def test_a_key_of_low_order():
    play, site, asked = at("shares")
    keys = OwnKeys(Secret.own(), CONTEXT, "s03").announce(play.who["s03"])
    weak = type(keys)(bytes(32), keys.seal, keys.commitment, b"")
    weak = type(keys)(weak.mask, weak.seal, weak.commitment, play.who["s03"].sign(weak.statement(CONTEXT, "s03")))
    asked["keys"] = asked["keys"].copy()
    asked["keys"][3] = np.frombuffer(weak.pack(), np.uint8)
    refused("weak-key", site.shares, asked)


@pytest.mark.parametrize(("n", "threshold"), [(3, 2), (5, 3), (5, 1), (5, 0), (5, -4), (5, 6), (9, 5)])
def test_a_threshold_too_low_or_not_to_be_met(n, threshold):
    _, site, asked = at("shares", n)
    refused("threshold", site.shares, {**asked, "threshold": threshold})


def test_a_higher_threshold_is_welcome():
    _, site, asked = at("shares")
    assert site.shares({**asked, "threshold": 5})["sealed"].shape == (4, 82)


TABLE = [0.2, 0.2, 0.2, 0.2, 0.2]


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 0.0, 0.0, 0.0, 0.0],  # the sum would be one site's values
        [0.5, 0.5, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [0.3, 0.3, 0.3, 0.3, 0.3],  # more than the ring has room for
        [-0.2, 0.4, 0.2, 0.2, 0.2],
        [np.nan, 0.2, 0.2, 0.2, 0.2],
        [np.inf, 0.2, 0.2, 0.2, 0.2],
    ],
)
def test_weights_that_are_no_shares_or_single_a_site_out(weights):
    _, site, asked = at("shares", weights=TABLE)
    refused("weight", site.shares, {**asked, "weights": np.array(weights)[:, None]})
    both = np.array([TABLE, weights]).T  # every part of the vector is looked at
    refused("weight", site.shares, {**asked, "weights": both})


def test_a_share_beyond_what_the_site_allows():
    _, site, asked = at("shares", weights=TABLE, largest=0.5)
    refused("weight", site.shares, {**asked, "weights": np.array([0.6, 0.1, 0.1, 0.1, 0.1])[:, None]})
    site.shares({**asked, "weights": np.array([0.4, 0.15, 0.15, 0.15, 0.15])[:, None]})
    assert site.weights == (0.4,)


def test_survivors_of_whom_too_few_have_weight():
    play = Play(9, weights=[0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0, 0]).until("sign")
    left = np.array([0, 3, 4, 5, 6, 7, 8], np.uint32)  # enough sites, but two with weight
    refused("weight", play.sites["s00"].sign, {"survivors": left})


def test_survivors_among_whom_one_site_is_nearly_the_sum():
    play = Play(6, weights=[0.4, 0.4, 0.05, 0.05, 0.05, 0.05], largest=0.5).until("sign")
    refused("weight", play.sites["s00"].sign, {"survivors": np.array([0, 2, 3, 4, 5], np.uint32)})


def test_sites_told_different_weights_cannot_read_one_anothers_shares():
    """Each is told that it alone counts for nothing less than a fair share, the others that they count for little."""
    play = Play(5, weights=TABLE).until("shares")
    for k, name in enumerate(play.names):
        told = np.full((5, 1), 0.1)
        told[k] = 0.5
        asked = {**play.questions["shares"][name], "weights": told}
        play.server.take(name, play.sites[name].shares(asked))
    question = play.server.ask()
    for name in play.names:
        refused("shares", play.sites[name].masked, np.zeros(4, np.uint32), question.each[name])


@pytest.mark.parametrize(
    "spoilt",
    [
        {"weights": np.zeros((4, 1))},
        {"weights": np.zeros(5)},
        {"weights": np.zeros((5, 1), np.float32)},
        {"names": "[]"},
        {"names": "nonsense"},
        {"names": 5},
        {"names": '["a", "b", "c", "d", 5]'},
        {"keys": np.zeros((5, 159), np.uint8)},
        {"keys": np.zeros((5, 160), np.float32)},
        {"keys": "keys"},
        {"threshold": "4"},
        {"threshold": True},
        {"threshold": 4.0},
    ],
)
def test_a_roster_that_is_none(spoilt):
    _, site, asked = at("shares")
    refused("malformed", site.shares, {**asked, **spoilt})


@pytest.mark.parametrize("nothing", [None, b"", [], "roster", {}])
def test_a_question_that_is_none(nothing):
    for step in ("shares", "sign", "unmask"):
        play, site, _ = at(step)
        refused("malformed", getattr(site, step), nothing)
    play, site, _ = at("masked")
    refused("malformed", site.masked, play.scale.to_ring(play.values["s00"]), nothing)


def test_steps_out_of_order():
    play, _, roster_asked = at("shares")
    fresh = SecureSite("s00", CONTEXT, identity=play.who["s00"], peers=play.peers, secret=Secret.simulated(1, "s00"))
    refused("out-of-order", fresh.shares, roster_asked)
    fresh.keys()
    refused("out-of-order", fresh.sign, {"survivors": np.arange(5, dtype=np.uint32)})
    refused("out-of-order", fresh.unmask, {"survivors": np.arange(5, dtype=np.uint32)})
    refused("out-of-order", fresh.masked, np.zeros(4, np.uint32), {})
    play, site, _ = at("sign")
    refused("out-of-order", site.unmask, {"survivors": np.arange(5, dtype=np.uint32)})


def test_the_same_question_gets_the_same_answer_another_is_refused():
    play = Play(5).until("unmask")
    site, asked = play.sites["s00"], {step: sites["s00"] for step, sites in play.questions.items()}
    for step in ("keys", "shares", "masked", "sign", "unmask"):
        first, second = (play.say("s00", step, asked[step]) for _ in range(2))
        assert first.keys() == second.keys()
        assert all((first[name] == second[name]).all() for name in first)
    ring = play.scale.to_ring(play.values["s00"])
    refused("replayed", site.shares, {**asked["shares"], "threshold": 5})
    refused("replayed", site.shares, roster(play, play.names[:4]))
    refused("replayed", site.masked, ring + np.uint32(1), asked["masked"])
    fewer = {name: part[:-1] for name, part in asked["masked"].items()}
    refused("replayed", site.masked, ring, fewer)
    refused("replayed", site.sign, {"survivors": np.arange(4, dtype=np.uint32)})
    without = {**asked["unmask"], "survivors": np.arange(4, dtype=np.uint32)}
    refused("replayed", site.unmask, without)


def test_sites_told_different_rosters_cannot_read_one_anothers_shares():
    """A split view: half are told of a threshold of four, half of five."""
    play = Play(6).until("shares")
    asked = play.questions["shares"]["s00"]
    sealed = {}
    for k, name in enumerate(play.names):
        sealed[name] = play.sites[name].shares({**asked, "threshold": 4 if k < 3 else 5})["sealed"]
    for name in play.names[1:]:
        play.server.take(name, {"sealed": sealed[name]})
    play.server.take("s00", {"sealed": sealed["s00"]})
    question = play.server.ask()
    for name in play.names:
        refused("shares", play.sites[name].masked, np.zeros(4, np.uint32), question.each[name])


@pytest.mark.parametrize(
    "spoilt",
    [
        {"senders": np.array([0, 1, 2, 3], np.uint32)},  # itself
        {"senders": np.array([1, 1, 2, 3], np.uint32)},
        {"senders": np.array([4, 3, 2, 1], np.uint32)},
        {"senders": np.array([1, 2, 3, 5], np.uint32)},
        {"senders": np.array([1, 2, 3, 4], np.int64)},
        {"senders": np.array([1, 2, 3], np.uint32)},
        {"sealed": np.zeros((4, 81), np.uint8)},
        {"sealed": np.zeros((4, 82), np.uint16)},
    ],
)
def test_shares_that_are_not_of_the_agreed_form(spoilt):
    _, site, asked = at("masked")
    refused("malformed", site.masked, np.zeros(4, np.uint32), {**asked, **spoilt})


def test_shares_of_too_few():
    _, site, asked = at("masked")
    few = {name: part[:2] for name, part in asked.items()}
    refused("shares", site.masked, np.zeros(4, np.uint32), few)
    none = {name: part[:0] for name, part in asked.items()}
    refused("shares", site.masked, np.zeros(4, np.uint32), none)


def test_shares_that_were_sealed_for_another_or_altered():
    play, site, asked = at("masked")
    swapped = {**asked, "sealed": asked["sealed"][[1, 0, 2, 3]]}
    refused("shares", site.masked, np.zeros(4, np.uint32), swapped)
    others = {**asked, "sealed": play.questions["masked"]["s01"]["sealed"]}
    refused("shares", site.masked, np.zeros(4, np.uint32), others)


def test_one_unreadable_share_is_told_of_and_survived():
    _, site, asked = at("masked")
    asked["sealed"] = asked["sealed"].copy()
    asked["sealed"][2, 5] ^= 1
    assert site.masked(np.zeros(4, np.uint32), asked)["unreadable"].tolist() == [3]


@pytest.mark.parametrize("values", [np.zeros(4), np.zeros((2, 2), np.uint32), np.zeros(4, np.int32)])
def test_only_ring_elements_are_masked(values):
    _, site, asked = at("masked")
    with pytest.raises(TypeError, match="Scale.to_ring"):
        site.masked(values, asked)


@pytest.mark.parametrize("survivors", [[1, 2, 3, 4], [0, 1, 2], [0], [], [0, 1, 2, 3, 4][::2]])
def test_survivors_without_itself_or_too_few(survivors):
    _, site, _ = at("sign")
    refused("survivors", site.sign, {"survivors": np.array(survivors, np.uint32)})


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3, 5], [0, 0, 1, 2, 3], [0, 2, 1, 3, 4]])
def test_survivors_that_cannot_be(survivors):
    _, site, _ = at("sign")
    refused("malformed", site.sign, {"survivors": np.array(survivors, np.uint32)})


def test_survivors_who_never_shared():
    play = Play(5).until("shares")
    play.answer_all(without=("s04",))
    play.answer_all()
    refused("survivors", play.sites["s00"].sign, {"survivors": np.arange(5, dtype=np.uint32)})


def test_survivors_too_few_in_all_though_enough_around():
    play = Play(30, degree=4).until("sign")
    graph = play.server._roster.graph
    near = sorted((0, *graph.neighbours(0)))
    refused("survivors", play.sites["s00"].sign, {"survivors": np.array(near, np.uint32)})


def test_unmasking_by_a_list_that_it_did_not_sign():
    play, site, _ = at("sign")
    site.sign({"survivors": np.arange(5, dtype=np.uint32)})
    refused("survivors", site.unmask, signed(play, [0, 1, 2, 3], [1, 2, 3]))


def test_the_list_changed_between_sites():
    """Two lists go round: with five sites and a threshold of four neither gets the signatures that would open a mask."""
    play = Play(5).until("sign")
    every, some = [0, 1, 2, 3, 4], [0, 1, 2, 3]
    first = signed(play, every, [2, 3, 4])
    second = signed(play, some, [0, 1])
    for name in ("s02", "s03", "s04"):
        refused("signatures", play.sites[name].unmask, first)
    for name in ("s00", "s01"):
        refused("signatures", play.sites[name].unmask, second)
        mixed = {
            "survivors": second["survivors"],
            "signers": np.arange(5, dtype=np.uint32),
            "signatures": np.vstack([second["signatures"], first["signatures"]]),
        }
        refused("signatures", play.sites[name].unmask, mixed)


def test_too_few_signatures_one_twice_or_forged():
    play = Play(5).until("unmask")
    site, asked = play.sites["s00"], play.questions["unmask"]["s00"]
    few = {**asked, "signers": asked["signers"][:3], "signatures": asked["signatures"][:3]}
    refused("signatures", site.unmask, few)
    refused("signatures", site.unmask, {**asked, "signatures": np.repeat(asked["signatures"][:1], 5, axis=0)})
    refused("malformed", site.unmask, {**asked, "signers": np.array([0, 1, 2, 2, 3], np.uint32)})
    forged = asked["signatures"].copy()
    forged[:2, 0] ^= 1
    refused("signatures", site.unmask, {**asked, "signatures": forged})
    assert len(site.unmask(asked)["owners"]) == 5  # none of this spoilt the true question


def test_signatures_from_far_away_do_not_count():
    """On a sparse graph those who hold the owner's shares must have signed, not just anybody."""
    play = Play(30, degree=4).until("unmask")
    graph, asked = play.server._roster.graph, play.questions["unmask"]["s00"]
    near = {0, *graph.neighbours(0)}
    keep = [k for k, signer in enumerate(asked["signers"]) if signer not in sorted(near)[:2]]
    assert len(keep) >= 5  # more than the threshold, but not where they count
    refused("signatures", play.sites["s00"].unmask, {**asked, **{p: asked[p][keep] for p in ("signers", "signatures")}})


def test_of_each_peer_one_share_leaves_which_the_list_says():
    """Site 4 drops out after sharing: what leaves is its mask key's share and the others' self-masks', never both."""
    play = Play(5).until("masked")
    play.answer_all(without=("s04",))
    play.answer_all()
    site = play.sites["s00"]
    said = site.unmask(play.questions["unmask"]["s00"])
    assert said["owners"].tolist() == [0, 1, 2, 3, 4]
    held = site._held
    for k, share in zip(said["owners"].tolist(), said["shares"], strict=True):
        assert share.tobytes() == held[k][0 if k == 4 else 1]


def test_secrets_are_in_no_repr_and_no_error():
    play = Play(5).until("unmask")
    site = play.sites["s00"]
    private = [site._keys.mask_private, site._keys.seal_private, site._keys.seed]
    shown = " ".join([repr(site), repr(site._keys), repr(play.server), repr(site._secret), repr(play.who["s00"])])
    for secret in private:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
        assert str(int.from_bytes(secret, "big")) not in shown
    assert repr(Secret.own()) == "Secret(own)"


@pytest.mark.parametrize("bits", [32, 64])
def test_zeros_leave_a_site_as_noise(bits):
    play, site, asked = at("masked", bits=bits, size=64)
    masked = site.masked(play.scale.to_ring(np.zeros(64)), asked)["masked"]
    assert len(set(masked.tolist())) == 64
