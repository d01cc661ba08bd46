"""Hosts of a large run in virtual time: real nodes that report as actors do, and what their main host gets of them.

::

    actors --> supervisors of their hosts --> record: frames at their times --> Replay --> supervisor of the main host

Each simulated actor is a node of its own, driven by `actors.runtime.process.serve` as in an actor's process, and each
host has a node that passes the statuses on as a supervisor does (`actors.runtime.reports`). So statuses, heartbeats and
their intervals are the shipped ones. What the main host's supervisor gets is recorded first and replayed afterwards, so
that all processor time of the replay is the supervisor's.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
import trio
from trio.testing import MockClock

from actors.base import Actor, ActorContext
from actors.runtime.process import STATUS_LINK, serve
from actors.runtime.reports import StatusReports
from actors.runtime.roster import Roster
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures, ExecutorFigures, GeneratorFigures
from agent_rl.messages import ActorStatus, Metric
from agent_rl.observe.metrics import Histogram, counter, gauge
from agent_rl.records.incarnations import RESTARTS
from transport import Delivery, Limits, MemoryNetwork, Node, Registry
from transport.network import MemoryPort, Port
from transport.plans import Buffer

ROLES = ("rollout_generator", "tool_executor")
PER_HOST = 4
"""Replicas of each role on a simulated host."""
START = 1
"""The number of the run's start, from which the incarnations follow."""
CALL_KINDS = 8
"""Outcomes of calls, and ways of judging, that an executor counts."""

TOPOLOGY = """\
[run]
name = "capacity"
directory = "{directory}"
{further}
[security]
key_file = "key"
[model]
path = "model"
[[environments]]
class = "maths"
settings.files = ["problems"]
[[stages]]
kind = "sft"
steps = 1
{hosts}
[actors.learner]
class = "benchmarks.simulated_hosts:Simulated"
host = "main"
{roles}
"""


class Simulated(Actor):
    """An actor that does nothing and reports much: busy, with figures that change from one status to the next."""

    async def start(self) -> None:
        """Begin to count."""
        self._began = self.context.now()
        self._histogram = Histogram()

    def status(self) -> tuple[str, ActorFigures]:
        """The figures of the role."""
        seconds = self.context.now() - self._began
        if self.context.role == "rollout_generator":
            return "running", ActorFigures(generator=generator_figures(seconds, self.context.replica))
        return "running", ActorFigures(executor=executor_figures(seconds, self.context.replica))

    def metrics(self) -> tuple[Metric, ...]:
        """As many as an executor has."""
        if self.context.role != "tool_executor":
            return ()
        total = self.context.now() - self._began
        self._histogram.observe(total % 1.0)
        counters = [("tool_calls_total", "outcome"), ("answer_checks_total", "method")]
        return (
            *(
                counter(name, total, "Calls or checks by how they ended.", **{label: f"kind {kind}"})
                for name, label in counters
                for kind in range(CALL_KINDS)
            ),
            *(self._histogram.metric(f"{name}_seconds", "Seconds of it.") for name in ("queue", "run", "check")),
            *(gauge(f"gauge_{number}", total, "What there is of it.") for number in range(CALL_KINDS)),
        )

    def waiting_for(self) -> str:
        """Generators wait for tool results, as in a run."""
        if self.context.role == "rollout_generator":
            return f"tool_executor: {int(self.context.now()) % 7} tool results"
        return "rollout_generator: tool calls" if int(self.context.now()) % 3 else ""

    def busy_seconds(self) -> float:
        """Half of the time."""
        return 0.5 * (self.context.now() - self._began)

    def cpu_seconds(self) -> float:
        """The same, by this actor's clock rather than that of the process, which is all actors'."""
        return self.busy_seconds()


def generator_figures(seconds: float, replica: int) -> GeneratorFigures:
    """Figures that change all the time and differ from one replica to the next."""
    rollouts = int(10 * seconds) + replica
    return GeneratorFigures(
        tokens_per_s=1000.0 + seconds + replica,
        rollouts_per_s=10.0 + seconds,
        kv_used=rollouts,
        kv_total=1_000_000,
        running=rollouts % 64,
        waiting=rollouts % 5,
        preempted=0,
        generated_tokens=rollouts * 100,
        rollouts=rollouts,
        rollouts_truncated=rollouts // 10,
        rollouts_failed=0,
        rollouts_cancelled=0,
        prompts_too_long=0,
        calls_malformed=rollouts // 20,
        calls_unknown_tool=0,
        calls_failed=0,
        responses_cut=0,
        calls_waiting=rollouts % 3,
        policy_version=int(seconds),
    )


def executor_figures(seconds: float, replica: int) -> ExecutorFigures:
    """As for generators."""
    calls = int(50 * seconds) + replica
    return ExecutorFigures(
        calls_per_s=50.0 + seconds,
        checks_per_s=5.0,
        children_busy=2.0,
        queue=calls % 4,
        calls=calls,
        checks=calls // 10,
        children=4,
        checks_failed=0,
        checks_timed_out=0,
    )


def simulated_topology(folder: Path, actors: int, *, metrics: bool) -> Topology:
    """Half of the actors generate, and half run tools; the main host has a learner alone."""
    hosts = -(-actors // (PER_HOST * len(ROLES)))
    names = [f"h{number}" for number in range(hosts)]
    path = folder / "capacity.toml"
    path.write_text(
        TOPOLOGY.format(
            directory=folder / "run",
            further="metrics_port = 65535" if metrics else "",
            hosts="\n".join(f'[hosts.{name}]\naddress = "127.0.0.1"' for name in ("main", *names)),
            roles="\n".join(
                f'[actors.{role}]\nclass = "{__name__}:Simulated"\nhosts = {names}\nreplicas = {actors // len(ROLES)}'
                for role in ROLES
            ),
        )
    )
    return load_topology(path)


class Recording(MemoryNetwork):
    """Notes what reaches one node, and loses what the nodes in ``cut`` send."""

    def __init__(self, recorded: str) -> None:
        super().__init__()
        self.cut: set[str] = set()
        self.frames: list[tuple[float, bytes, Sequence[Buffer]]] = []
        self._recorded = recorded

    def to_inbox(self, source: MemoryPort, peer: str, frames: Sequence[Buffer]) -> None:
        """Carry frames to a node's inbox."""
        if source.name in self.cut:
            return
        if peer == self._recorded:
            self.frames.append((trio.current_time(), source.identity, frames))
        super().to_inbox(source, peer, frames)


Frames = list[tuple[float, bytes, Sequence[Buffer]]]


def record(topology: Topology, seconds: float, silent_from: float) -> Frames:
    """What the main host's supervisor gets in so many virtual seconds, with the times from their beginning on.

    From ``silent_from`` on every second actor is not heard.
    """
    return trio.run(_record, topology, seconds, silent_from, clock=MockClock(autojump_threshold=0))


async def _record(topology: Topology, seconds: float, silent_from: float) -> Frames:
    main = supervisor_node(topology.main_host)
    network = Recording(main)
    began = trio.current_time()
    hosts = [host for host in topology.hosts_in_use if host != topology.main_host]

    async def ignore(delivery: Delivery) -> None:
        del delivery

    async with trio.open_nursery() as nursery:
        stand_in = Node(main, network, Registry.of(messages), incarnation=START * RESTARTS)
        await nursery.start(partial(stand_in.run, ignore))
        for host in hosts:
            nursery.start_soon(_pass_on, topology, network, host)
            for name, role in actor_nodes(topology, host):
                nursery.start_soon(_simulate, topology, network, host, name, role)
        await trio.sleep(silent_from)
        network.cut |= set([name for host in hosts for name, _ in actor_nodes(topology, host)][::2])
        await trio.sleep_until(began + seconds)
        nursery.cancel_scope.cancel()
    return [(when - began, identity, frames) for when, identity, frames in network.frames]


async def _pass_on(topology: Topology, network: Recording, host: str) -> None:
    """The supervisor of a host, as far as it concerns the main host: hosts do not start at the same instant."""
    await trio.sleep(random.Random(host).random())
    roster = Roster(topology, [host], START * RESTARTS)
    reports = StatusReports(topology, [host], roster)
    node = Node(supervisor_node(host), network, Registry.of(messages), incarnation=START * RESTARTS)
    reports.link(node)
    roster.link(node)

    async def hear(delivery: Delivery) -> None:
        if isinstance(delivery.message, ActorStatus):
            reports.observe(delivery.message, delivery.inbound.incarnation)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(node.run, hear))
        await reports.run()


async def _simulate(topology: Topology, network: Recording, host: str, name: str, role: str) -> None:
    """One actor, from its start on; actors of a run do not start at the same instant."""
    rng = random.Random(name)
    await trio.sleep(rng.random())
    node = Node(name, network, Registry.of(messages), incarnation=START * RESTARTS)
    status_link = node.announce(STATUS_LINK, [supervisor_node(host)])
    async with trio.open_nursery() as nursery:
        context = ActorContext(
            name=name,
            role=role,
            replica=int(name.rpartition(".")[2]),
            incarnation=START * RESTARTS,
            topology=topology,
            settings=None,
            directory=topology.run.directory,
            base=Path(),
            node=node,
            nursery=nursery,
            rng=rng,
            log=structlog.get_logger(),
            links={},
            open_journal=cast("Callable[[], Any]", None),
            started_at=0.0,
        )
        await serve(Simulated(context), node=node, status_link=status_link, stopping=trio.Event(), nursery=nursery)


class Replay(MemoryNetwork):
    """Carries recorded frames to one node at their times. What that node sends to other nodes than itself is lost."""

    def __init__(self, to: str, frames: Frames) -> None:
        super().__init__()
        self._to = to
        self._frames = frames
        self._port: Any = None
        self.carried = 0

    def attach(self, name: str, incarnation: int, limits: Limits) -> Port:
        """The port of a node."""
        port = super().attach(name, incarnation, limits)
        if name == self._to:
            self._port = port
        return port

    def to_inbox(self, source: MemoryPort, peer: str, frames: Sequence[Buffer]) -> None:
        """Nobody is there."""

    async def run(self) -> None:
        """Carry all frames, in virtual time from now on."""
        began = trio.current_time()
        for when, identity, frames in self._frames:
            if began + when > trio.current_time():
                await trio.sleep_until(began + when)
            self._port.arrived(lambda receiver, who=identity, what=frames: receiver.on_inbox(who, what))
            self.carried += 1


def main() -> None:
    """The process of an actor of the main host: it does nothing until it is asked to end."""
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
