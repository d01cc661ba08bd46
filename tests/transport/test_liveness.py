"""Peers that are silent, lost, back, and gone on purpose."""

from transport.link import Liveness


def test_silence_is_reported_once_and_this_process_own_stall_is_no_silence():
    liveness = Liveness(5.0)
    liveness.expect("peer", 0.0)
    now = 0.0
    for _ in range(3):
        now += 1.0
        assert liveness.tick(now, 1.0) == ([], [])
    now += 60.0  # the loop stood still
    assert liveness.tick(now, 1.0) == ([], [])
    assert liveness.tick(now + 2.0, 2.0) == ([("peer", 6.0)], [])
    assert liveness.tick(now + 3.0, 1.0) == ([], [])
    assert liveness.back("peer", now + 3.0) == 7.0
    liveness.forget("peer")
    assert liveness.tick(now + 30.0, 1.0) == ([], [])


def test_a_silent_peer_is_lost_once_and_may_come_back():
    liveness = Liveness(5.0, 20.0)
    liveness.expect("peer", 0.0)
    seen = [liveness.tick(float(now), 1.0) for now in range(1, 40)]
    assert [silent for silent, _ in seen if silent] == [[("peer", 6.0)]]
    assert [lost for _, lost in seen if lost] == [[("peer", 21.0)]]
    assert liveness.gone == {"peer"}
    assert liveness.back("peer", 40.0) == 40.0
    assert not liveness.gone
    assert liveness.tick(41.0, 1.0) == ([], [])


def test_a_process_that_left_is_gone_at_once_and_only_a_new_one_comes_back():
    liveness = Liveness(5.0, 20.0)
    liveness.expect("peer", 0.0)
    assert liveness.leaves("peer", 7, 1.0)
    assert not liveness.leaves("peer", 7, 2.0)  # it says so over each connection
    assert liveness.silent == liveness.gone == {"peer"}
    assert liveness.has_left("peer", 7)
    assert not liveness.has_left("peer", 8)
    assert all(liveness.tick(float(now), 1.0) == ([], []) for now in range(2, 60))
    liveness.back("peer", 60.0)
    assert not liveness.gone
    assert liveness.has_left("peer", 7)


def test_a_process_that_ended_is_lost_at_the_next_tick_unless_its_successor_is_heard_before():
    liveness = Liveness(5.0, 20.0)
    for peer in ("dead", "replaced"):
        liveness.expect(peer, 0.0)
        liveness.heard(peer)  # just before it ended
        liveness.ended(peer, 7)
        assert liveness.has_left(peer, 7)
    liveness.heard("replaced")
    assert liveness.tick(1.0, 1.0) == ([], [("dead", 1.0)])
    assert liveness.silent == liveness.gone == {"dead"}
    assert liveness.tick(2.0, 1.0) == ([], [])
    assert liveness.back("dead", 3.0) == 3.0
    liveness.ended("dead", 7)
    liveness.ended("unknown", 7)
    assert liveness.tick(4.0, 1.0) == ([], [])


def test_a_peer_in_doubt_is_lost_once_it_is_silent_and_one_that_is_heard_never():
    liveness = Liveness(5.0, 20.0)
    for peer in ("dark", "heard", "paused"):
        liveness.expect(peer, 0.0)
        liveness.heard(peer)
    seen = [liveness.tick(0.0, 1.0)]
    for now in range(1, 8):
        liveness.heard("heard")
        seen.append(liveness.tick(float(now), 1.0))
    assert [sorted(silent) for silent, _ in seen if silent] == [[("dark", 6.0), ("paused", 6.0)]]
    assert not liveness.gone
    assert liveness.doubt(["dark", "heard"], 7.0) == [("dark", 7.0)]
    assert liveness.gone == {"dark"}
    assert liveness.doubt(["dark", "heard"], 7.0) == []
    assert liveness.tick(8.0, 1.0) == ([], [])  # "heard" was heard up to now, and "paused" may only be slow
    assert [liveness.tick(float(now), 1.0) for now in range(9, 14)][-1] == ([("heard", 6.0)], [("heard", 6.0)])


def test_a_peer_in_doubt_that_was_never_heard_is_lost_at_once():
    liveness = Liveness(5.0, 20.0)
    assert liveness.doubt(["absent", "there"], 0.0) == []  # told before the first link is made
    for peer in ("absent", "there", "later"):
        liveness.expect(peer, 0.0)
    liveness.heard("there")
    assert liveness.tick(0.0, 1.0) == ([], [("absent", 0.0)])
    assert liveness.doubt(["absent", "there", "later"], 0.5) == [("later", 0.5)]
    assert liveness.gone == {"absent", "later"}
    assert liveness.doubt([], 1.0) == []
    assert liveness.gone == {"absent", "later"}  # until they are heard
    assert liveness.back("later", 2.0) == 2.0
    assert liveness.gone == {"absent"}


def test_a_peer_that_came_back_is_waited_for_again_when_its_host_is_heard():
    liveness = Liveness(5.0, 20.0)
    liveness.expect("peer", 0.0)
    for now in range(1, 8):
        liveness.tick(float(now), 1.0)
    assert liveness.doubt(["peer"], 7.0)
    assert liveness.back("peer", 8.0) == 8.0
    assert liveness.doubt([], 8.0) == []
    seen = [liveness.tick(float(now), 1.0) for now in range(9, 40)]
    assert [lost for _, lost in seen if lost] == [[("peer", 21.0)]]
