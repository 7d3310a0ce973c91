"""What a site's policy says of those whom it adds up with."""

from __future__ import annotations

import pytest

from grandrounds.capabilities.hospital.keeper.policy.describe import describe_policy
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from tests.support import refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fewest = 2", "fewest is 2; give 3 or more: in a sum of two each site learns the other's values"),
        ('peers = "anybody"', 'is \'anybody\'; give "listed" or "told"'),
        ('peers = ["listed"]', 'give "listed" or "told"'),
    ],
)
def test_a_policy_that_would_hide_nobody_is_refused(text, words):
    with refused("bad-policy-value", match=words):
        Policy.parse(f"[secure]\n{text}")


def test_a_policy_says_in_words_whom_the_site_adds_up_with():
    assert "joins secure sums with sites that peers.json lists, of at least 3 sites" in describe_policy(Policy())
    told = describe_policy(Policy.parse('[secure]\npeers = "told"\nfewest = 7'))
    assert "joins secure sums with any site that the server names (secure.peers), of at least 7 sites" in told
