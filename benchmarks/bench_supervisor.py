"""The main host's supervisor in a run of many hosts: what the statuses of all actors take of a core.

    agent-rl bench supervisor
    agent-rl bench supervisor --actors 1200 --seconds 60

The main host runs as in any run, with a learner that does nothing. The supervisors of the other hosts, of 16 actors
each, are in one process: each has a node of its own over TCP with the run's key, and greets, announces and passes on
statuses by the parts of a real one. Their actors' figures change from one status to the next.
`supervisor_core_share_N` is the processor time of the main host's supervisor over --seconds, with N actors heard.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import trio

from actors.base import Actor
from actors.processor_time import seconds_of
from actors.runtime.handshake import Handshake, Reports
from actors.runtime.host_links import STATUSES_PASSED_ON
from actors.runtime.networks import supervisor_network
from actors.runtime.run import run_topology
from agent_rl import messages
from agent_rl.config.addresses import supervisor_node, wanted_nodes
from agent_rl.config.agreement import settings_to_agree
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from agent_rl.figures import ActorFigures, ExecutorFigures, GeneratorFigures
from agent_rl.messages import ActorReport, ActorStatus, HostHello, Observed
from agent_rl.records.document import Document
from benchmarks.command import Failure, Hidden, WrongOptions
from benchmarks.reporting import print_figures, print_table
from transport import CurveKeys, Delivery, Limits, Node, Registry

ROLES = ("rollout_generator", "tool_executor")
PER_HOST = 8
"""Replicas of each role on a host."""
PORTS = 64
"""From one host's first port to the next one's."""
START_SECONDS = 120.0
"""All actors are heard within so long."""
SETTLED_SECONDS = 10.0
"""Between that and the measurement."""
FIRST_PORTS = 10_000, 20_000
"""Between which the first port of all is, below those that the kernel gives to whoever connects somewhere."""


@dataclass(frozen=True)
class Options:
    """``actors``: of the other hosts. ``seconds``: measured."""

    actors: int = 600
    seconds: float = 30.0
    role: Hidden = ()


class Idle(Actor):
    """The learner of such a run."""


def written(folder: Path, actors: int) -> Topology:
    """The topology of so many actors, and one learner."""
    hosts = [f"h{number}" for number in range(-(-actors // (PER_HOST * len(ROLES))))]
    CurveKeys.generate().save(folder / "key")
    lines = ['[run]\nname = "supervisor"\ndirectory = "run"\nlog_mib = 1', '[security]\nkey_file = "key"']
    lines += ['[model]\npath = "model"', '[[environments]]\nclass = "maths"\nsettings.files = ["problems"]']
    lines += ['[[stages]]\nkind = "sft"\nsteps = 1']
    first = random.randrange(*FIRST_PORTS)
    for number, host in enumerate(["main", *hosts]):
        lines.append(f'[hosts.{host}]\naddress = "127.0.0.1"\nbase_port = {first + PORTS * number}')
    lines.append(f'[actors.learner]\nclass = "{__name__}:Idle"\nhost = "main"\nsilent_seconds = 3600')
    for role in ROLES:
        lines.append(f'[actors.{role}]\nclass = "{__name__}:Idle"\nhosts = {hosts}\nreplicas = {actors // len(ROLES)}')
    (folder / "topology.toml").write_text("\n".join(lines) + "\n")
    return load_topology(folder / "topology.toml")


def status(actor: str, seconds: float) -> ActorStatus:
    """What an actor says after so long."""
    role, _, number = actor.rpartition(".")
    count = int(50 * seconds) + int(number)
    figures = (
        ActorFigures(
            generator=GeneratorFigures(
                tokens_per_s=1000.0 + count,
                rollouts_per_s=10.0 + seconds,
                kv_used=count,
                kv_total=1_000_000,
                running=count % 64,
                waiting=count % 5,
                preempted=0,
                generated_tokens=count * 100,
                rollouts=count,
                rollouts_truncated=count // 10,
                rollouts_failed=0,
                rollouts_cancelled=0,
                prompts_too_long=0,
                calls_malformed=count // 20,
                calls_unknown_tool=0,
                calls_failed=0,
                responses_cut=0,
                calls_waiting=count % 3,
                policy_version=int(seconds),
            )
        )
        if role == ROLES[0]
        else ActorFigures(
            executor=ExecutorFigures(
                calls_per_s=50.0 + seconds,
                checks_per_s=5.0,
                children_busy=2.0,
                queue=count % 4,
                calls=count,
                checks=count // 10,
                children=4,
                checks_failed=0,
                checks_timed_out=0,
            )
        )
    )
    waiting_for = f"tool_executor: {count % 7} tool results" if role == ROLES[0] else ""
    return ActorStatus(actor, role, "running", "", figures, waiting_for, seconds / 2, seconds / 2)


async def other_host(topology: Topology, folder: Path, host: str, agreed: dict[str, str]) -> None:
    """The supervisor of a host, with actors that report."""
    node = Node(
        supervisor_node(host),
        supervisor_network(topology, folder),
        Registry.of(messages),
        incarnation=time.time_ns() // 1000,
        limits=Limits(lost_after=topology.run.host_lost_after_seconds),
        on_event=lambda _: None,
    )
    link = node.announce("run", [supervisor_node(topology.main_host)])
    handshake = Handshake(topology, [host], agreed, Reports(print, print, lambda *_: None))

    async def handle(delivery: Delivery) -> object:
        is_hello = isinstance(delivery.message, HostHello)
        return handshake.heard(delivery.sender, delivery.message) if is_hello else None

    names = list(wanted_nodes(topology, host))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(node.run, handle, concurrency=4))
        nursery.start_soon(handshake.run, node)
        began = trio.current_time()
        for number in count():
            seconds = trio.current_time() - began
            reports = tuple(ActorReport(status(actor, seconds), 1, number) for actor in names)
            states = dict.fromkeys(names, "running")
            link.set(Observed(0, (), (), dict.fromkeys(names, 1), states, reports, {}, "running", ""))
            await trio.sleep(STATUSES_PASSED_ON * topology.run.status_seconds)


async def other_hosts(folder: Path) -> None:
    """All hosts but the main one."""
    topology = load_topology(folder / "topology.toml")
    agreed = settings_to_agree(topology, shown_settings)
    async with trio.open_nursery() as nursery:
        for host in topology.hosts_in_use:
            if host != topology.main_host:
                nursery.start_soon(other_host, topology, folder, host, agreed)


async def main_host(folder: Path) -> None:
    """The main host, as `agent-rl run` starts it."""
    path = folder / "topology.toml"
    await run_topology(load_topology(path), path, host="main")


@contextmanager
def process(role: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this module that ends with the block."""
    command = [sys.executable, "-m", "benchmarks.command", "supervisor", "--role", role, str(folder)]
    with (
        (folder / f"{role}.log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ) as child,
    ):
        try:
            yield child
        finally:
            child.terminate()


def until_heard(folder: Path, actors: int) -> float:
    """Wait until the document has so many actors up. Returns the seconds that it took."""
    began = time.monotonic()
    while time.monotonic() - began < START_SECONDS:
        document = Document.read(folder / "run")
        if document is not None and sum(each.state == "up" for each in document.processes.values()) > actors:
            return time.monotonic() - began
        time.sleep(0.5)
    raise Failure(f"not all actors are heard within {START_SECONDS:g} s: {(folder / 'main.log').read_text()[-2000:]}")


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    if options.role:
        trio.run({"main": main_host, "others": other_hosts}[options.role[0]], Path(options.role[1]))
        return 0
    if options.actors < len(ROLES) or options.actors % len(ROLES):
        raise WrongOptions("--actors: give an even number, half of them generate, and half run tools")
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name)
        written(folder, options.actors)
        with process("main", folder) as supervisor, process("others", folder):
            heard = until_heard(folder, options.actors)
            time.sleep(SETTLED_SECONDS)
            began, spent = time.monotonic(), seconds_of([supervisor.pid])
            time.sleep(options.seconds)
            share = (seconds_of([supervisor.pid]) - spent) / (time.monotonic() - began)
    rows = [(options.actors, heard, 100 * share)]
    print_table("The main host's supervisor", ("actors", "s until all are heard", "% of a core"), rows)
    print_figures({f"supervisor_core_share_{options.actors}": share})
    return 0
