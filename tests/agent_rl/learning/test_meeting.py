"""Ranks that do not meet: each of them says so at its deadline, and the message names who is missing."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_rl.config.parallel import MeshSizes
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.ranks import (
    LOOPBACK,
    JoinedRanks,
    MeetingPoint,
    RanksApartError,
    _talk_over,
    interface_of,
    joined,
    meeting_place,
)


def join(
    rank: int, size: int, place: socket.socket | MeetingPoint, *, version: str = "2.9", seconds: float = 30.0
) -> JoinedRanks:
    sizes = MeshSizes(shard=size)
    return joined(rank, sizes, place=place, device="cpu", seconds=seconds, meeting_seconds=seconds, version=version)


def test_a_rank_that_does_not_come_is_named():
    with meeting_place() as place, ThreadPoolExecutor() as threads:
        second = threads.submit(join, 1, 4, place.getsockname(), seconds=0.5)
        with pytest.raises(RanksApartError, match=r"^ranks 2, 3 of the learner did not reach rank 0 at .* 0.5 s$"):
            join(0, 4, place, seconds=0.5)
        with pytest.raises(RanksApartError, match=r"^rank 1 of the learner heard no verdict of rank 0"):
            second.result()


def test_a_rank_that_cannot_reach_rank_0_says_so():
    with socket.create_server((LOOPBACK, 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(RanksApartError, match=f"^rank 1 of the learner did not reach rank 0 at {LOOPBACK}:{port}"):
        join(1, 2, (LOOPBACK, port), seconds=0.5)


def test_ranks_with_other_versions_of_torch_are_named_to_all():
    with meeting_place() as place, ThreadPoolExecutor() as threads:
        there = place.getsockname()
        others = [threads.submit(join, rank, 3, there, version=version) for rank, version in ((1, "2.9"), (2, "2.8"))]
        text = "^rank 0 of the learner has torch 2.9, and rank 2 has 2.8; install one version for all$"
        with pytest.raises(TrainingStoppedError, match=text):
            join(0, 3, place)
        for other in others:
            with pytest.raises(TrainingStoppedError, match=text):
                other.result()


def test_the_interface_of_an_address_is_found():
    assert interface_of(LOOPBACK) == interface_of("localhost") == "lo"
    assert interface_of("192.0.2.1") == ""  # of documentation: no host has it


def test_ranks_of_several_hosts_talk_over_the_interface_of_their_address(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    _talk_over(LOOPBACK)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")
