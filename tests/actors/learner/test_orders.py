"""Orders of rank 0: every method reaches the other ranks with equal arguments, in order, and without pickle."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from actors.learner.orders import LeadTrainer, Writing, follow
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.files.disk import DiskError
from agent_rl.learning.finite import NotFiniteError
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import Position
from tests import builders

SFT = SftStage(kind="sft", steps=5, learning_rate=1e-3)
RL = RlStage(kind="rl", steps=5, max_response_tokens=10, max_turns=2)
METHODS = (
    "sft_step",
    "rl_step",
    "enter",
    "reset_optimizer",
    "give_memory_back",
    "keep_reference",
    "load_reference",
    "share_weights",
    "write_weights",
    "stage",
    "restore",
)


class Wire(Ranks):
    """Hands messages from rank 0 to the other rank."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()

    def broadcast(self, message: bytes) -> bytes:
        if message:
            self.messages.append(message)
            return message
        return self.messages.popleft()


class Staged:
    """A checkpoint without content, that takes down when it is written."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]], error: Exception | None = None) -> None:
        self._calls, self._error = calls, error

    def write(self) -> None:
        self._calls.append(("write", ()))
        if self._error is not None:
            raise self._error


class Kept:
    """Shares of this rank, that are never sent."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._calls = calls

    def keep(self, version: int, shares: Any) -> None:
        self._calls.append(("keep", (version, shares)))

    def finish(self) -> None:
        self._calls.append(("finish", ()))


class Called:
    """A trainer without a model, that takes down what is called."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)

        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, (*given, *named.values())))
            if name == "rl_step":
                raise NotFiniteError("of all ranks")
            if name == "share_weights":
                return f"shares of {named['version']}"
            return Staged(self.calls) if name == "stage" else None

        return call


def fails(error: Exception) -> None:
    pytest.fail(f"nothing fails here, and {error!r} did")


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> LeadTrainer:
    def made(self: Any, ranks: Ranks) -> None:
        self.ranks = ranks

    monkeypatch.setattr(Trainer, "__init__", made)
    for method in METHODS:
        monkeypatch.setattr(Trainer, method, lambda *given, **named: None)
    return LeadTrainer(Wire())  # type: ignore[arg-type]


def group() -> TrainingGroup:
    opened = builders.opened(3)
    trajectory = builders.trajectory(opened, 0, tokens=7)
    return TrainingGroup(opened.group, 0, opened.policy, (trajectory,), np.array([1.0], dtype=np.float32))


def test_the_other_ranks_do_what_rank_0_does(lead: LeadTrainer) -> None:
    algorithm, position = Algorithm(clip_low=0.125), Position(1, 2, 3, 4)
    given = group()
    lead.restore(Path("/run/a"))
    lead.enter(algorithm)
    lead.reset_optimizer()
    assert len(lead.ranks.messages) == 1  # type: ignore[attr-defined]  # no message for what each does alone
    lead.sft_step([([1, 2], [0, 1])], SFT, 2)
    lead.stay_in_touch()
    lead.give_memory_back()
    lead.keep_reference(Path("/run/r"))
    lead.load_reference(Path("/run/r"))
    lead.rl_step(
        [replace(given, group="before"), given], RL, 4
    )  # on the other rank it raises what rank 0 decides about
    lead.share_weights(7, on_device=True)
    lead.write_weights(8, Path("/run/w"))
    lead.stage(Path("/run/b"), position, {"only": "rank 0 needs it"})
    lead.dismiss()
    other: Any = Called(lead.ranks)
    follow(other, Writing(fails), Kept(other.calls))  # type: ignore[arg-type]
    assert other.calls.pop() == ("finish", ())
    assert [name for name, _ in other.calls] == [
        "restore",
        "enter",
        "reset_optimizer",
        "sft_step",
        "give_memory_back",
        "keep_reference",
        "load_reference",
        "rl_step",
        "share_weights",
        "keep",
        "write_weights",
        "stage",
        "write",
    ]
    arguments = dict(other.calls)
    assert arguments["enter"] == (algorithm,)
    assert arguments["sft_step"] == ([([1, 2], [0, 1])], SFT, 2)
    assert arguments["share_weights"] == (7, True)
    assert arguments["keep"] == (7, "shares of 7")
    assert arguments["write_weights"] == (8, Path("/run/w"))
    assert arguments["stage"] == (Path("/run/b"), position)
    ((before, found), stage, step) = arguments["rl_step"]
    assert before.group == "before"
    assert (stage, step) == (RL, 4)
    assert (found.group, found.policy) == (given.group, given.policy)
    assert found.trajectories == given.trajectories


def test_what_is_no_order_is_refused(lead: LeadTrainer) -> None:
    lead.ranks.broadcast(msgpack.packb([["rm", {"path": "/"}]]))
    with pytest.raises(ValueError, match="no order is named 'rm'"):
        follow(Called(lead.ranks), Writing(fails), Kept([]))  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "told"), [(DiskError(Path("/run/b"), 28), 0), (ValueError("of this rank"), 1)])
def test_rank_0_hears_of_an_error_in_writing_that_it_does_not_have(error: Exception, told: int) -> None:
    failures: list[Exception] = []
    writing = Writing(failures.append)
    writing.start(Staged([], error))  # type: ignore[arg-type]
    writing.finish()
    writing.finish()  # nothing is being written
    assert failures == [error] * told
