"""Ranks of a learner: when one begins and ends, and what rank 0 says of one that is lost. Nothing is trained here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from actors.learner.other_ranks import OTHER_SECONDS, OtherRanks, RankLostError
from actors.learner.rank import Rank
from agent_rl.config.full import toml_text
from agent_rl.config.load import load_topology
from agent_rl.config.standard import RANKS
from agent_rl.config.topology import Topology
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import RanksState, RanksWanted
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
