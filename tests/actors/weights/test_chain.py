"""Who sends a policy to whom: whatever fails, everyone is led to the learner, and the learner sends little."""

from __future__ import annotations

import random
import re

import pytest

from actors.weights.chain import LEARNER, Chain, Chains
from agent_rl.messages import PolicyVersion

# A story: `b>a` b asks and is to fetch from a; `b>` from the learner; `b!c>a` c did not answer b; `-a` a is lost.


@pytest.mark.parametrize(
    "story",
    [
        pytest.param("a> b>a c>b d>c", id="each fetches from the last"),
        pytest.param("a> b>a c>b b>a c>b a>", id="who asks again keeps its source"),
        pytest.param("a> b>a c!b>a d>c", id="of those that send as much the last, and not the learner"),
        pytest.param("a> b>a c>b c!b>a c!a> c>", id="a source that did not answer is not named again"),
        pytest.param("a> b>a c>b d>c b!a>", id="no source is behind the asker, however far"),
        pytest.param("a> b>a -a b> c>b", id="a source that is known to be lost is replaced before it fails"),
        pytest.param("a> b>a -b c>a", id="a lost one is no source"),
        pytest.param("a> -a a> b>a", id="one that was lost and asks again is"),
        pytest.param("a> b>a -b c!a> d>c e>d f!d>e f!e>a", id="a lost one counts for nobody"),
    ],
)
def test_story(story: str) -> None:
    chain = Chain()
    for number, word in enumerate(story.split(), 1):
        if word[0] == "-":
            chain.lost(word[1])
        elif told := re.fullmatch(r"(\w)(?:!(\w))?>(\w?)", word):
            at = " ".join(story.split()[:number])
            assert chain.source(told[1], told[2] or LEARNER) == told[3], at


def test_a_chain_has_no_circle_whatever_fails() -> None:
    """Random failures, losses and returns: whoever asks is led to the learner in the end."""
    for seed in range(30):
        rng, chain, names = random.Random(seed), Chain(), [f"g{number}" for number in range(8)]
        sources: dict[str, str] = {}
        for _ in range(200):
            asker = rng.choice(names)
            if rng.random() < 0.2:
                chain.lost(rng.choice(names))
            failed = sources.get(asker, LEARNER) if rng.random() < 0.3 else LEARNER
            sources[asker] = chain.source(asker, failed)
            assert failed == LEARNER or sources[asker] != failed
            each = asker
            for _ in names:
                each = sources.get(each, LEARNER)
            assert each == LEARNER


def test_chains_of_older_policies_are_forgotten() -> None:
    chains = Chains()
    assert chains.source(PolicyVersion(1, 1), "a") == LEARNER
    assert chains.source(PolicyVersion(1, 1), "b") == "a"
    for version in (2, 3):
        assert chains.source(PolicyVersion(1, version), "b") == LEARNER
        assert chains.source(PolicyVersion(1, version), "a") == "b"
    assert chains.source(PolicyVersion(1, 2), "c") == "a"
    for name in "ac":
        chains.lost(name)
    assert chains.source(PolicyVersion(1, 3), "d") == "b"
