"""The processes that a supervisor keeps while its hosts are scaled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from actors.runtime.replicas import Replicas, has_left
from agent_rl.config.placement import gpus_of_actor
from agent_rl.config.scaling import with_replicas, without_replicas
from tests.agent_rl.config.test_joining import topology


def make(name: str, role: str, now: Any) -> Any:
    return SimpleNamespace(
        name=name, entry=now.actors[role], gpus=gpus_of_actor(now, name), ended=trio.Event(), stopping=False
    )


def test_a_new_process_gets_no_gpu_that_a_running_one_has() -> None:
    """The topology deals GPUs in the order of roles, and the running executor keeps the one that it has."""
    before = topology()
    on_gpus = {
        role: before.actors[role].model_copy(update={"gpus_per_replica": 1, "settings": {"device": "cuda"}})
        for role in ("rollout_generator", "tool_executor")
    }
    before = before.model_copy(update={"actors": before.actors | on_gpus})
    kept: Any = Replicas(before, ["a"], make, SimpleNamespace(), trio.Event())  # type: ignore[arg-type]
    assert [actor.gpus for actor in kept.actors.values()] == [None, (0,), (1,)]
    more_executors = with_replicas(before, {"tool_executor.2": "a"})
    assert kept.taken_gpus(more_executors) == ""
    more_generators = with_replicas(before, {"rollout_generator.1": "a"})
    assert kept.taken_gpus(more_generators).startswith("rollout_generator.1 would get GPU 1, which tool_executor.0 has")
    kept.actors["tool_executor.0"].ended.set()
    assert kept.taken_gpus(more_generators) == ""


def test_a_run_that_ends_while_it_is_scaled_says_so() -> None:
    """The end came while it was tried whether the new process can start."""
    ending = trio.Event()
    kept: Any = Replicas(topology(), ["a"], make, SimpleNamespace(), ending)  # type: ignore[arg-type]
    ending.set()
    more = with_replicas(topology(), {"tool_executor.2": "a"})
    kept.follow(more)
    faults, done = trio.run(kept.carry_out, ["tool_executor.2"], [], more)
    assert faults == ["tool_executor.2 does not start: the run is ending"]
    assert has_left("tool_executor.2") not in done


def test_what_was_removed_before_the_first_process_starts_is_never_started() -> None:
    """The main host's news may come while a supervisor that was started again opens its nodes."""
    before = topology()
    kept: Any = Replicas(before, ["a"], make, SimpleNamespace(), trio.Event())  # type: ignore[arg-type]
    names = list(kept.actors)
    kept.follow(without_replicas(before, {names[-1]: "a"}))
    assert list(kept.actors) == names[:-1]
