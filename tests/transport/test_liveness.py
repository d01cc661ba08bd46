"""Peers that are silent, lost, back, and gone on purpose."""

import re

import pytest

from transport.link import Liveness

# Peers are letters. `+a` a is watched; `a7` something arrives of its process 7; `a*` something arrives each second from
# now on, `a/` nothing more; `12` time goes on to 12, a tick each second; `z63` this process stands still until 63;
# `a~7` its process 7 says goodbye, `a!7` has ended; `?ab` a and b are in doubt; `a-` a is watched no longer. Then what is
# told: who is silent, gone, left or back, each after so many seconds; and who is gone at the end.
STORIES = [
    ("+a 3 z63 64 66 a1 a- 99", "silent a6, back a7", "", "the stall of this process is no silence of its peers"),
    ("+a 40 a1 41", "silent a6, gone a21, back a40", "", "a silent peer is lost once and may come back"),
    ("+a 40", "silent a6, gone a21", "a", "or may not"),
    ("+a a* 40 a/ 46", "silent a6", "", "who is heard is not silent"),
    ("+a 7 a1 14", "silent a6, back a7, silent a6", "", "silence begins anew"),
    ("+a 7 a- +a 13", "silent a6, silent a6", "", "a peer that was forgotten is another one"),
    ("+a a7 1 a~7 a7 a~7 60", "left a", "a", "a process that left is gone at once, and never silent"),
    ("+a a7 1 a~7 60 a8 61 a~7 66", "left a, back a59", "", "only a new process of it comes back"),
    ("+d +r d7 r7 d!7 r!7 d7 r8 1 2 d8 d!7 x!7 4", "gone d1, back d2", "", "who has ended is lost at the next tick"),
    ("+a 5 a!7 6", "gone a6", "a", "who has ended is not silent first"),
    ("+d +h +p d1 p1 h* 8 ?dh ?dh h/ 14", "silent d6, silent p6, gone d7, silent h6, gone h6", "dh", "doubt needs silence"),
    ("?at +a +t +l t1 1 ?atl ?", "gone a1, gone l1", "al", "who was never heard is lost at once in doubt"),
    ("?at +a +t +l t1 1 ?atl ? l1", "gone a1, gone l1, back l1", "a", "until it is heard"),
    ("+a 7 ?a a1 ? 40", "silent a6, gone a7, back a7, silent a6, gone a21", "a", "who is in doubt no longer is waited for"),
    ("+a a1 1 a- ?a +a 2", "gone a1", "a", "who was heard before it was forgotten was never heard"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "told", "gone"), [pytest.param(*each[:3], id=each[3]) for each in STORIES])
def test_story(story, told, gone):
    liveness, now, heard, steady = Liveness(5.0, 20.0), 0, [], set()
    for peer, sign, process in (re.fullmatch(r"([a-z?]*)(\W?)(\w*)", word).groups() for word in story.split()):
        if peer.startswith("?"):
            heard += [f"gone {name}{seconds:g}" for name, seconds in liveness.doubt(peer[1:], now)]
        elif peer in {"", "z"} and process.isdigit():
            ticks = [int(process)] if peer else range(now + 1, int(process) + 1)
            for now in ticks:
                for each in steady:
                    liveness.heard(each)
                silent, lost = liveness.tick(float(now), 1.0)
                heard += [f"silent {name}{seconds:g}" for name, seconds in silent]
                heard += [f"gone {name}{seconds:g}" for name, seconds in lost]
        elif sign == "+":
            liveness.expect(process, float(now))
        elif sign == "-":
            liveness.forget(peer)
        elif sign == "!":
            liveness.ended(peer, int(process))
        elif sign == "~":
            heard += [f"left {peer}"] * liveness.leaves(peer, int(process), float(now))
        elif sign in {"*", "/"}:
            steady = {peer} if sign == "*" else set()
        elif not liveness.has_left(peer, int(process)):
            liveness.heard(peer)
            if peer in liveness.silent:
                heard.append(f"back {peer}{liveness.back(peer, float(now)):g}")
    assert ", ".join(heard) == told
    assert liveness.gone == set(gone) <= liveness.silent
