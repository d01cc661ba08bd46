"""Weights over links: one policy from the learner to many hosts that pass its parts on.

    agent-rl bench weights
    agent-rl bench weights --hosts 1 16 --mbyte 128 --mbit 100 --rounds 3

Hosts are namespaces of this machine with networks of their own, and each sends at most --mbit (root is needed). The
learner's side and the generators' are the shipped ones, over ZeroMQ with CURVE; there is no model and no engine. Time
is from the announcement to the last host that has the whole file; processor time is that of the learner's process.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import structlog
import trio

from actors.rollout_generator.policy_updates import ServedPolicy
from actors.weights.files import PublishedWeights
from agent_rl import messages
from agent_rl.messages import PolicyPublished, PolicyVersion, WeightsPart, WeightsWanted
from benchmarks.command import Hidden, WrongOptions
from benchmarks.machines import Machine, machines, unavailable
from benchmarks.reporting import print_figures, print_table
from transport import CurveKeys, Delivery, Node, Registry, ZmqNetwork

LEARNER = "learner.0"
PORT = 7711
POLICY = PolicyVersion(1, 1)
READY, GO, DONE = "ready", "go", "done"


@dataclass
class Options:
    """The options."""

    hosts: tuple[int, ...] = (1, 16)
    """Numbers of hosts to send to; the first one is what the others are compared with."""
    mbyte: int = 128
    """Size of the policy's file."""
    mbit: float = 100.0
    """Rate at which each host can send, in Mbit/s."""
    rounds: int = 1
    """Measurements of each number; the figures are medians."""
    part: Hidden = ()


def main(options: Options) -> int:
    """Measure, or be one of the processes."""
    if options.part:
        name, place, content = options.part
        trio.run(_learner if name == LEARNER else _host, name, Path(place), Path(content))
        return 0
    print_figures(measured(options))
    return 0


def _fill(path: Path, mbyte: int) -> None:
    """Random bytes, which no link can compress."""
    rng = random.Random(0)
    with path.open("wb") as file:
        for _ in range(mbyte):
            file.write(rng.randbytes(1 << 20))


def measured(options: Options) -> dict[str, float]:
    """Seconds and the learner's processor seconds for each number of hosts, and their ratios to the first."""
    if why := unavailable("tc"):
        raise WrongOptions(f"hosts are namespaces: {why}")
    found: dict[int, tuple[float, float, float]] = {}
    for hosts in options.hosts:
        rounds = [transfer(hosts, options.mbyte, options.mbit) for _ in range(options.rounds)]
        wall, processor, sent = (statistics.median(each) for each in zip(*rounds, strict=True))
        found[hosts] = wall, processor, sent
    header = ("hosts", "s", "learner, processor s", "learner sends, times the file")
    print_table(
        f"{options.mbyte} MB, {options.mbit:g} Mbit/s", header, [(hosts, *each) for hosts, each in found.items()]
    )
    first, *rest = found
    figures: dict[str, float] = {}
    for hosts, (wall, processor, sent) in found.items():
        figures |= {f"weights_s_{hosts}": wall, f"weights_cpu_s_{hosts}": processor, f"weights_sent_{hosts}": sent}
    for hosts in rest:
        figures[f"weights_{hosts}_over_{first}"] = found[hosts][0] / found[first][0]
        figures[f"weights_cpu_{hosts}_over_{first}"] = found[hosts][1] / found[first][1]
    return figures


def transfer(hosts: int, mbyte: int, mbit: float) -> tuple[float, float, float]:
    """Seconds, the learner's processor seconds, and what it sent by the size of the file."""
    names = ["learner", *(f"h{number}" for number in range(hosts))]
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        content = folder / "content"
        _fill(content, mbyte)
        CurveKeys.generate().save(folder / "key")
        made = stack.enter_context(machines(["switch", *names], folder))[1:]
        for machine in made:
            limit = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
            machine.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
        nodes = [LEARNER, *(f"rollout_generator.{number}" for number in range(hosts))]
        addresses = {node: f"tcp://{machine.address}:{PORT}" for node, machine in zip(nodes, made, strict=True)}
        (folder / "addresses.json").write_text(json.dumps(addresses))
        learner, *others = [
            stack.enter_context(_process(machine, node, folder, content))
            for node, machine in zip(nodes, made, strict=True)
        ]
        for process in (*others, learner):
            _expect(process, READY)
        before, began = _sent(made[0]), time.monotonic()
        _tell(learner, GO)
        for process in others:
            _expect(process, DONE)
        wall = time.monotonic() - began
        _tell(learner, DONE)
        assert learner.stdout is not None
        processor = float(learner.stdout.readline())
        return wall, processor, (_sent(made[0]) - before) / (mbyte << 20)


@contextmanager
def _process(machine: Machine, node: str, folder: Path, content: Path) -> Iterator[Any]:
    words = [sys.executable, "-m", "benchmarks.command", "weights", "--part", node, str(folder), str(content)]
    with machine.start(*words, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _expect(process: Any, word: str) -> None:
    line = cast("IO[str]", process.stdout).readline().strip()
    if line != word:
        raise RuntimeError(f"a process of the benchmark said {line!r} in place of {word!r}")


def _tell(process: Any, word: str) -> None:
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def _sent(machine: Machine) -> int:
    """Bytes that the machine's network interface has sent."""
    lines = machine.run("cat", "/proc/net/dev").stdout.splitlines()
    return int(next(line for line in lines if "eth0:" in line).partition(":")[2].split()[8])


def _node(name: str, folder: Path) -> tuple[Node, list[str]]:
    addresses = json.loads((folder / "addresses.json").read_text())
    network = ZmqNetwork(addresses, curve=CurveKeys.load(folder / "key"))
    others = [node for node in addresses if node != LEARNER]
    return Node(name, network, Registry.of(messages), incarnation=1), others


async def _learner(name: str, folder: Path, content: Path) -> None:
    """The learner's side, without a model: the published file is ``content``."""
    node, others = _node(name, folder)
    store = PublishedWeights(folder / "published", lambda _, path: _copied(content, path), fetched=True)
    policy = node.announce("policy", others)

    async def handle(delivery: Delivery) -> WeightsPart:
        assert isinstance(delivery.message, WeightsWanted)
        return await store.hand_out(delivery.message, delivery.sender, trio.to_thread.run_sync)

    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, handle)
        kept = store.keep(POLICY, {})
        print(READY, flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        began = time.process_time()
        policy.set(PolicyPublished(POLICY, kept[0], 0, 0, *kept[1:]))
        await trio.to_thread.run_sync(sys.stdin.readline)
        print(time.process_time() - began, flush=True)
        nursery.cancel_scope.cancel()


def _copied(content: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    os.link(content, path)


class _Engine:
    """Loads nothing."""

    ranks = 1
    policy = PolicyVersion(0, 0)

    async def load_weights(self, source: Path, policy: PolicyVersion) -> None:
        assert source.stat().st_size  # noqa: ASYNC240 - in memory
        self.policy = policy


async def _host(name: str, folder: Path, content: Path) -> None:
    """A generator's side, without an engine."""
    del content
    node, _ = _node(name, folder)
    link = node.call("weights", [LEARNER], outstanding=64, timeout=60.0, reply=WeightsPart)
    links = {"weights": link}
    context: Any = SimpleNamespace(
        node=node,
        links=links,
        link=links.__getitem__,
        in_thread=trio.to_thread.run_sync,
        topology=SimpleNamespace(run=SimpleNamespace(directory=folder)),
        first=True,
        wait=lambda message, thing: f"{message.__name__}: {thing}",
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    served = ServedPolicy(context, cast("Any", _Engine()), structlog.get_logger())

    async def handle(delivery: Delivery) -> WeightsPart | None:
        match delivery.message:
            case PolicyPublished() as published:
                served.published(published)
            case WeightsWanted() as wanted:
                return await served.part(wanted)
        return None

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda **given: node.run(handle, concurrency=4096, **given))
        await link.until_reachable()
        nursery.start_soon(served.run, lambda: None)
        print(READY, flush=True)
        await served.ready.wait()
        print(DONE, flush=True)
        await trio.sleep_forever()
