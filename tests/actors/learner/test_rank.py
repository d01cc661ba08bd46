"""Ranks of a learner: orders of rank 0, when a rank begins and ends, what is said of one that is lost. Nothing is trained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
import trio

from actors.learner.orders import ORDERS, LeadTrainer, Writing, follow
from actors.learner.other_ranks import OTHER_SECONDS, OtherRanks, RankLostError
from actors.learner.rank import Rank
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.full import toml_text
from agent_rl.config.load import load_topology
from agent_rl.config.standard import RANKS
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.files.disk import DiskError
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import RanksState, RanksWanted, TrainingGroup
from agent_rl.records.checkpoint_files import Position
from agent_rl_contract import builders
from agent_rl_contract.stage import running, stand_ins
from transport import Node, PeerGone

SILENT = 30.0
RANK = "learner_ranks.0"


class TogetherError(Exception):
    """The process of the rank ends, and starts again."""


def topology_of(*, hosts: tuple[str, ...] = ("a",), ranks: int = 3) -> Topology:
    tables = ", ".join(f'{name}={{address="10.0.0.{number}"}}' for number, name in enumerate(("local", *"ab"), 1))
    overrides = [f"hosts={{{tables}}}", f"actors.learner.hosts={list(hosts)}", f"actors.learner.ranks={ranks}"]
    return load_topology(Path("examples/quickstart/quickstart.toml"), overrides)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait for rank 0 all the time, and whose process ends by an exception."""

    async def follow(self: Rank, wanted: RanksWanted, entry: object) -> None:
        del self, wanted, entry
        await trio.sleep_forever()

    def end() -> None:
        raise TogetherError

    monkeypatch.setattr(Rank, "_follow", follow)
    monkeypatch.setattr("actors.learner.rank.end_together", end)


@asynccontextmanager
async def one_rank(topology: Topology, directory: Path) -> AsyncIterator[tuple[Rank, Callable[..., Any]]]:
    """A rank of its own process, and rank 0's call to it."""
    async with (
        stand_ins(topology, "learner_ranks") as stage,
        running(Rank, topology, "learner_ranks", directory, stage, kill=True) as actor,
    ):
        assert isinstance(actor, Rank)
        entry = toml_text(topology.actors["learner"].model_dump(by_alias=True))
        link = stage["learner"].call(RANKS, RANK)

        async def ask(meeting: str, *, begin: bool, folders: tuple[str, ...] = ()) -> RanksState:
            state: RanksState = await link(RanksWanted(meeting, begin, 0.0, entry, str(directory), folders, 1))
            return state

        yield actor, ask


async def test_a_rank_begins_once_and_ends_with_another_meeting(waiting: None, tmp_path: Path) -> None:
    with pytest.RaisesGroup(TogetherError, flatten_subgroups=True, allow_unwrapped=True):
        async with one_rank(topology_of(), tmp_path) as (_, ask):
            before = RanksState("", os.getpid(), ended=False)
            assert await ask("first", begin=False) == before
            assert await ask("second", begin=False) == before  # rank 0 has started again
            assert await ask("second", begin=True) == replace(before, meeting="second")
            assert await ask("second", begin=True) == replace(before, meeting="second")
            await ask("third", begin=False)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_rank_that_has_begun_ends_with_rank_0(waiting: None, tmp_path: Path, begun: bool) -> None:
    async with one_rank(topology_of(), tmp_path) as (rank, ask):
        await ask("first", begin=begun)
        rank.peer_changed(PeerGone("learner_ranks.1", 1.0))
        with pytest.raises(TogetherError) if begun else nullcontext():
            rank.peer_changed(PeerGone("learner.0", 1.0))


async def test_a_rank_that_does_not_see_a_folder_of_rank_0_says_so(tmp_path: Path) -> None:
    topology = topology_of(hosts=("a", "b"), ranks=2)
    async with one_rank(topology, tmp_path) as (_, ask):
        (tmp_path / "weights").mkdir()
        (tmp_path / "weights" / ".ranks-first").write_text("first")
        state = await ask("first", begin=True, folders=("weights", "checkpoints"))
        assert (state.kind, state.ended) == ("mistake", True)
        assert state.fault.startswith(f"host b does not see {tmp_path}/checkpoints of host a: .ranks-first, which")


def test_a_process_of_a_rank_has_no_torch_before_it_begins() -> None:
    code = "import sys, actors.learner.rank; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def watched(answers: dict[str, Callable[[RanksWanted], Any]], *, leaving: bool = False) -> float:
    """Rank 0 begins, and watches ranks that answer so; the seconds that it took. Raises as `OtherRanks.watch`."""
    topology = topology_of()
    async with stand_ins(topology, "learner", concurrency={"learner_ranks": 4}) as stage:
        for actor, answer in answers.items():
            stage[actor].reply = answer
        node = Node("learner.0", stage.network, stage.registry, incarnation=1)
        context: Any = SimpleNamespace(
            node=node,
            topology=topology,
            role="learner",
            settings=SimpleNamespace(rank_silent_seconds=SILENT, weights_in="run_directory"),
            links={RANKS: node.call(RANKS, list(answers), outstanding=1, timeout=1.0)},
            directory=Path(),
            now=trio.current_time,
        )
        others = OtherRanks(context, 1)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run, lambda _: None)
            await others.begin()
            assert others.lacking == ""
            began = trio.current_time()
            if leaving:
                others.leaving()
            await others.watch()
            await others.ended()
            nursery.cancel_scope.cancel()
        return trio.current_time() - began


def well(wanted: RanksWanted) -> Any:
    """A rank that trains until the end of the test."""

    async def answer() -> RanksState:
        if not wanted.begin:
            await trio.sleep(wanted.seconds)
        return RanksState(wanted.meeting, 77, ended=False)

    return answer()


def then(state: RanksState) -> Callable[[RanksWanted], Any]:
    """A rank that begins, and then is so."""
    begun = False

    def answer(wanted: RanksWanted) -> Any:
        nonlocal begun
        now, begun = begun, begun or wanted.begin
        return replace(state, meeting=state.meeting and wanted.meeting) if now else well(wanted)

    return answer


def ended(kind: Any, fault: str = "as it is") -> RanksState:
    return RanksState("its own", 77, True, fault, kind)


NAME = "rank 1 of the learner (learner_ranks.0, process 77)"


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (ended("mistake"), TrainingStoppedError, f"{NAME} cannot go on: as it is"),
        (ended("error"), RankLostError, f"{NAME} cannot go on: as it is"),
        (ended("torch"), RankLostError, f"{NAME} cannot go on: as it is"),
        (RanksState("", 78, ended=False), RankLostError, f"{NAME} has ended"),  # another process
    ],
)
async def test_rank_0_names_a_rank_that_cannot_go_on(state: RanksState, error: type[Exception], text: str) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(error, check=lambda raised: str(raised) == text), flatten_subgroups=True):
        await watched({RANK: then(state), "learner_ranks.1": well})


async def test_an_error_of_torch_gives_way_to_the_rank_that_has_caused_it() -> None:
    def slow(wanted: RanksWanted) -> Any:
        answer = well(wanted) if wanted.begin or not wanted.seconds else None

        async def later() -> RanksState:
            await trio.sleep(OTHER_SECONDS - 1.0)
            return RanksState("", 78, ended=False)

        return answer or later()

    with pytest.RaisesGroup(
        pytest.RaisesExc(RankLostError, match="rank 2 of the learner .* has ended"), flatten_subgroups=True
    ):
        await watched({RANK: then(ended("torch")), "learner_ranks.1": slow})


async def test_a_rank_that_answers_nothing_is_silent() -> None:
    async def mute(wanted: RanksWanted) -> RanksState:
        await trio.sleep(0.0 if wanted.begin or not wanted.seconds else 10 * SILENT)
        return RanksState(wanted.meeting, 77, ended=False)

    silent = r"rank 1 of the learner .* has given no sign of life for rank_silent_seconds \(30 s\)$"
    with pytest.RaisesGroup(pytest.RaisesExc(RankLostError, match=silent), flatten_subgroups=True):
        await watched({RANK: mute, "learner_ranks.1": well})


async def test_rank_0_waits_until_ranks_have_ended_that_it_told_to_end() -> None:
    ranks = {f"learner_ranks.{number}": then(ended("", fault="")) for number in range(2)}
    assert await watched(ranks, leaving=True) < SILENT


# Orders of rank 0: every method reaches the other ranks with equal arguments, in order, and without pickle.

SFT = SftStage(kind="sft", steps=5, learning_rate=1e-3)
RL = RlStage(kind="rl", steps=5, max_response_tokens=10, max_turns=2)


class Wire(Ranks):
    """Hands messages from rank 0 to the other rank."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()

    def broadcast(self, message: bytes) -> bytes:
        if message:
            self.messages.append(message)
            return message
        return self.messages.popleft()


class Called:
    """The trainer of the other rank, what it stages and what it shares, without a model: takes down what is called."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, *named.values()))
            if name == "rl_step":
                raise NotFiniteError("of all ranks")
            return self if name == "stage" else f"result of {name}"

        return call


def fails(error: Exception) -> None:
    pytest.fail(f"nothing fails here, and {error!r} did")


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> LeadTrainer:
    def made(self: Any, ranks: Ranks) -> None:
        self.ranks = ranks

    monkeypatch.setattr(Trainer, "__init__", made)
    for method in ORDERS.keys() & vars(Trainer).keys():
        monkeypatch.setattr(Trainer, method, lambda *given, **named: None)
    return LeadTrainer(Wire())  # type: ignore[arg-type]


def test_the_other_ranks_do_what_rank_0_does(lead: LeadTrainer) -> None:
    algorithm, position, opened = Algorithm(clip_low=0.125), Position(1, 2, 3, 4), builders.opened(3)
    trajectory = builders.trajectory(opened, 0, tokens=7)
    given = TrainingGroup(opened.group, 0, opened.policy, (trajectory,), np.array([1.0], dtype=np.float32))
    groups = [replace(given, group="before"), given]
    lead.restore(Path("/run/a"))
    lead.enter(algorithm)
    lead.reset_optimizer()
    assert len(lead.ranks.messages) == 1  # type: ignore[attr-defined]  # no message for what each does alone
    lead.sft_step([([1, 2], [0, 1])], SFT, 2)
    lead.stay_in_touch()
    lead.give_memory_back()
    lead.keep_reference(Path("/run/r"))
    lead.load_reference(Path("/run/q"))
    lead.rl_step(groups, RL, 4)  # on the other rank it raises what rank 0 decides about
    lead.share_weights(7, on_device=True)
    lead.write_weights(8, Path("/run/w"))
    lead.stage(Path("/run/b"), position, {"only": "rank 0 needs it"})
    lead.dismiss()
    other: Any = Called(lead.ranks)
    follow(other, Writing(fails), other)
    assert other.calls == [
        ("restore", Path("/run/a")),
        ("enter", algorithm),
        ("reset_optimizer",),
        ("sft_step", [([1, 2], [0, 1])], SFT, 2),
        ("give_memory_back",),
        ("keep_reference", Path("/run/r")),
        ("load_reference", Path("/run/q")),
        ("rl_step", groups, RL, 4),
        ("share_weights", 7, True),
        ("keep", 7, "result of share_weights"),
        ("write_weights", 8, Path("/run/w")),
        ("stage", Path("/run/b"), position),
        ("write",),
        ("finish",),
    ]


def test_what_is_no_order_is_refused(lead: LeadTrainer) -> None:
    lead.ranks.broadcast(msgpack.packb([["rm", {"path": "/"}]]))
    other: Any = Called(lead.ranks)
    with pytest.raises(ValueError, match="no order is named 'rm'"):
        follow(other, Writing(fails), other)
    assert other.calls == []


@pytest.mark.parametrize(("error", "told"), [(DiskError(Path("/run/b"), 28), 0), (ValueError("of this rank"), 1)])
def test_rank_0_hears_of_an_error_in_writing_that_it_does_not_have(error: Exception, told: int) -> None:
    def write() -> None:
        raise error

    failures: list[Exception] = []
    writing = Writing(failures.append)
    writing.start(SimpleNamespace(write=write))  # type: ignore[arg-type]
    writing.finish()
    writing.finish()  # nothing is being written
    assert failures == [error] * told
