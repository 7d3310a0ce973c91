"""consortium.toml: what is read of it, and the one sentence for each mistake in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.capabilities.hospital.deploy.consortium import LONGEST, check_name, parse
from grandrounds.core.errors import BadInput
from grandrounds.core.names import folder_name
from tests.capabilities.hospital.deploy.consortia import DATA, consortium_text


def test_all_that_a_file_says():
    found = parse(
        consortium_text("cleveland", "St. Mary", address="FL.Example.org", port=443) + "[certificates]\ndays = 90\n"
    )
    assert (found.name, found.days) == ("heart", 90)
    assert (found.server.address, found.server.port, found.server.superlink_port) == ("fl.example.org", 443, 9092)
    assert [s.name for s in found.sites] == ["cleveland", "St. Mary"]
    assert found.data["label"] == "disease"


def test_what_is_not_said_has_a_default():
    found = parse('name = "x"\n[server]\naddress = "10.0.0.7"\n[[sites]]\nname = "a"\n')
    assert (found.server.port, found.server.superlink_port, found.days, found.data) == (9443, 9092, 365, {})


def test_an_ipv6_server_is_dialled_in_brackets():
    found = parse('name = "x"\n[server]\naddress = "2001:db8::7"\n[[sites]]\nname = "a"\n')
    assert found.server.endpoint == "[2001:db8::7]:9443"


GOOD = consortium_text("cleveland", data="")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not valid TOML"),
        (GOOD.replace('name = "heart"', ""), "the consortium needs a name"),
        (GOOD.replace('address = "127.0.0.1"', ""), "[server] has no address"),
        (GOOD.replace("127.0.0.1", "https://fl.example.org"), "neither a DNS name nor an IP address"),
        (GOOD.replace("127.0.0.1", "300.1.1.1"), "neither a DNS name nor an IP address"),
        (GOOD.replace("127.0.0.1", "a; } evil {"), "neither a DNS name nor an IP address"),
        (GOOD.replace("9443", "0"), "[server] port must be an integer from 1 to 65535, not 0"),
        (GOOD.replace("9443", "65536"), "from 1 to 65535, not 65536"),
        (GOOD.replace("9443", '"9443"'), "not '9443'"),
        (GOOD.replace("9443", "true"), "not True"),
        (GOOD.replace("9443", "9092"), "choose different ports"),
        (GOOD.replace("port = 9443", "prot = 9443"), "unknown key 'prot' in [server]: did you mean 'port'?"),
        (GOOD + "[certificate]\ndays = 3\n", "unknown key 'certificate' in the file: did you mean 'certificates'?"),
        (GOOD + "[certificates]\ndays = 5000\n", "days must be an integer from 1 to 825"),
        (GOOD + '[[sites]]\nname = "cleveland"\n', "two sites are both called 'cleveland'"),
        (GOOD + '[[sites]]\nname = "Cleveland"\n', "called 'cleveland' and 'Cleveland'"),
        (GOOD + '[[sites]]\nname = ""\n', "[[sites]] number 2 needs a name"),
        (GOOD + '[[sites]]\ncontact = "x"\n', "[[sites]] number 2 needs a name"),
        (GOOD + '[[sites]]\nname = "a/b"\n', "has '/' in its name"),
        (GOOD + '[[sites]]\nname = "a\\nb"\n', "in its name: only letters, digits"),
        (GOOD + '[[sites]]\nname = " a"\n', "spaces at an end"),
        (GOOD + '[[sites]]\nname = ".."\n', "neither a letter nor a digit"),
        (GOOD + f'[[sites]]\nname = "{"a" * 65}"\n', "at most 64"),
        (GOOD + '[[sites]]\nname = "b"\nmail = "x"\n', "unknown key 'mail' in [[sites]] number 2"),
        ('name = "x"\n[server]\naddress = "a"\n', "there are no sites"),
        ('name = "x"\nsites = 3\n[server]\naddress = "a"\n', "there are no sites"),
        (GOOD + DATA.replace('label = "disease"', ""), "names no label"),
        (GOOD + "data = 3\n", "unknown key 'data' in [[sites]] number 1"),
    ],
)
def test_each_mistake_has_its_sentence(text, said):
    with pytest.raises(BadInput) as e:
        parse(text, where="c.toml")
    message = str(e.value)
    assert message.startswith("c.toml") and said in message and "\n" not in message.replace(text, "")


names = st.text(min_size=1, max_size=80)


@given(names)
def test_a_name_is_refused_or_makes_a_plain_file_name(name):
    """Whatever text is given as a name: what is let through is printable, and its slug is one ASCII word inside a folder."""
    try:
        found = check_name(name, "a site")
    except BadInput:
        return
    assert found == name and found.isprintable() and len(found.encode()) <= LONGEST
    word = folder_name(found)
    assert word.isascii() and set(word) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert word[0] not in ".-" and len(word) <= LONGEST * 2


plain = st.from_regex(r"[a-cA-C0-1é._ -]{1,6}", fullmatch=True)


@given(st.lists(plain, min_size=2, max_size=8, unique=True))
def test_two_names_never_share_a_file(found):
    assert len({folder_name(name) for name in found}) == len(found)


def test_a_name_that_looks_like_anothers_slug_gets_one_of_its_own():
    taken = folder_name("St. Mary")
    assert taken != "St. Mary" and folder_name(taken) != taken
