"""Who may send what follows from the topology's links; who is accused is named once and replaced by its supervisor."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.base import passing_link
from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from actors.runtime.accusations import CLAIM_STANDS_SECONDS, Accusations
from actors.runtime.links import SenderPermits
from agent_rl.messages import Accusation, GroupOpened, StepTrained, Trajectory, WeightsWanted
from tests.actors.topologies import micro


def names(permits: Any) -> dict[tuple[str, str], list[str]]:
    return {key: sorted(cls.__name__ for cls in permit.receives) for key, permit in permits.items()}


def test_a_peer_may_send_what_the_links_of_its_role_lead_here(tmp_path: Path) -> None:
    permits = SenderPermits(micro(tmp_path), "roc_filter.0", RoCFilter)
    assert permits("tool_executor.0") == {}
    assert names(permits("rollout_generator.7")) == {("push", "trajectories"): [Trajectory.__name__]}
    assert permits("rollout_generator.0")["push", "trajectories"].bound == 256
    assert names(permits("kv_scheduler.0"))["push", "groups"] == [GroupOpened.__name__]
    assert StepTrained.__name__ in names(permits("learner.0"))["call", "steps"]
    assert permits("supervisor.local") is None


def test_a_role_that_was_swapped_may_send_all_that_the_receiver_takes_over_its_links(tmp_path: Path) -> None:
    permits = SenderPermits(micro(tmp_path), "kv_scheduler.0", KVScheduler)
    before = names(permits("roc_filter.0"))
    permits.swapped("roc_filter")
    after = names(permits("roc_filter.0"))
    assert set(before) < set(after)
    assert {link for _, link in after} == {link for _, link in before}


def test_generators_that_fetch_weights_may_ask_each_other_for_them(tmp_path: Path) -> None:
    """The learner names a generator of another host as the source, and the link to it is in no topology."""
    topology = micro(tmp_path)
    permits = SenderPermits(topology, "rollout_generator.3", RolloutGenerator)
    assert permits("rollout_generator.0") == {}, "they have the learner's files"
    entry = topology.actors["rollout_generator"]
    entry = entry.model_copy(update={"links": entry.links | {"weights": "learner"}})
    topology = topology.model_copy(update={"actors": topology.actors | {"rollout_generator": entry}})
    permits = SenderPermits(topology, "rollout_generator.3", RolloutGenerator)
    link = passing_link("weights", "rollout_generator.3")
    assert names(permits("rollout_generator.0")) == {("call", link): [WeightsWanted.__name__]}
    assert ("call", link) not in (permits("learner.0") or {})
    permits.swapped("rollout_generator")
    assert WeightsWanted.__name__ in names(permits("rollout_generator.0"))["call", link]


class Heard:
    def __init__(self) -> None:
        self.killed: list[str] = []
        self.said: list[str] = []
        self.others: list[dict[str, int]] = []
        self.actor = self.process("tool_executor.0", 17)
        self.unsettled = False
        self.seconds = 0.0
        actors: Any = {"tool_executor.0": self.actor, "learner.0": self.process("learner.0", 18)}
        self.accusations = Accusations(
            actors,
            self.said.append,
            lambda who: self.others.append(dict(who)),
            lambda _: self.unsettled,
            lambda: self.seconds,
        )

    def process(self, name: str, pid: int) -> SimpleNamespace:
        kill = partial(self.kill, name)
        return SimpleNamespace(name=name, incarnation=5, stopping=False, kill=kill, child=SimpleNamespace(pid=pid))

    def kill(self, name: str, reason: str) -> None:
        self.killed.append(f"{name}: {reason}")


def test_the_supervisor_of_the_accused_kills_that_process_once_and_says_what_it_did() -> None:
    heard = Heard()
    accused = [Accusation("tool_executor.0", 5, "replay: much")]
    for accuser in ("roc_filter.0", "roc_filter.0", "kv_scheduler.0"):
        heard.accusations.heard(accuser, accused)
    text = "tool_executor.0 misbehaved and is cut off by roc_filter.0 (replay: much)"
    assert heard.said == [text]
    assert [text.partition(":")[0] for text in heard.killed] == ["tool_executor.0"]
    heard.actor.incarnation = 6
    heard.accusations.replace({"tool_executor.0": 5})
    assert len(heard.killed) == 1, "its next process did nothing"


def test_an_actor_of_another_host_is_named_here_and_its_supervisor_is_told() -> None:
    heard = Heard()
    for node in ("tool_executor.1", "tool_executor.2"):
        heard.accusations.heard("roc_filter.0", [Accusation(node, 9, "flood: much")])
    assert [text.partition(" ")[0] for text in heard.said] == ["tool_executor.1", "tool_executor.2"]
    assert heard.others[-1] == {"tool_executor.1": 9, "tool_executor.2": 9}
    assert heard.killed == []


def test_who_poses_as_another_is_named_by_its_process_and_replaced() -> None:
    heard = Heard()
    claim = Accusation("learner.0", 9, "forged incarnation: process 17 claims incarnation 9, the peer has 5")
    heard.unsettled = True
    heard.accusations.heard("roc_filter.0", [claim])
    assert heard.said == heard.killed == [], "its supervisor may have given it out"
    heard.unsettled = False
    heard.accusations.heard("roc_filter.0", [claim])
    assert [text.startswith("somebody poses as learner.0: noticed by roc_filter.0") for text in heard.said] == [True]
    assert heard.said[0].endswith("that is tool_executor.0")
    assert [text.partition(":")[0] for text in heard.killed] == ["tool_executor.0"]


def test_who_is_accused_after_many_others_is_replaced_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.runtime.accusations.MOST_SAID", 2)
    heard = Heard()
    for node in ("made up", "made up too", "made up as well"):
        heard.accusations.heard("roc_filter.0", [Accusation(node, 5, "flood: much")])
    heard.accusations.heard("roc_filter.0", [Accusation("tool_executor.0", 5, "flood: much")])
    assert len(heard.said) == 2
    assert len(heard.others[-1]) == 2
    assert [text.partition(":")[0] for text in heard.killed] == ["tool_executor.0"]


def test_news_that_a_suspended_supervisor_has_not_read_make_nobody_an_impostor() -> None:
    """An actor of another host was started again meanwhile, and the accuser's status is read before the news."""
    heard = Heard()
    claim = Accusation("tool_executor.1", 9, "forged incarnation: a process claims incarnation 9, the peer has 5")
    heard.accusations.heard("roc_filter.0", [claim])
    assert heard.said == heard.others == []
    heard.seconds += CLAIM_STANDS_SECONDS
    heard.unsettled = True
    heard.accusations.heard("kv_scheduler.0", [claim])
    assert heard.said == heard.others == [], "the news have come"
    heard.unsettled = False
    heard.accusations.heard("roc_filter.0", [claim])
    assert [text.startswith("somebody poses as tool_executor.1") for text in heard.said] == [True]
