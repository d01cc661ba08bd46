"""Any topology: rollouts, tokens and tool calls a second, how busy each actor is, and what limits them.

    agent-rl bench throughput FILE --seconds 60

The topology runs as `agent-rl run` would run it, in a directory of its own. Once the stage to be measured (the first of
kind rl, or else evaluate; or --stage NAME) has done --warm-steps steps, what the actors do is measured for --seconds;
then the run is interrupted. A file with several hosts is started as by `agent-rl up`, from its main host; bytes between
hosts are those at their network interfaces, and what a link can carry is what ssh carries in a second. Stages before
the measured one run first: name a trained model by --set to skip them.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import trio

from actors.cluster.places import is_here
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Stage, Topology
from agent_rl.topology_checks.topology import check_topology
from benchmarks.command import Overrides, WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import (
    LOOK_SECONDS,
    Counters,
    Run,
    RunFailed,
    Traffic,
    Window,
    command_of,
    stage_rows,
    started,
    window,
)

SATURATED = 0.9
"""A share of the time, of the cores or of what a link carries, from which on something is held to be the limit."""
SATURATED_LINK = 0.75
"""A link is used in bursts: while it carries nothing, the run waits for what it has carried."""
BUDGET_SPENT = "the staleness budget is spent"
"""How the scheduler says that it waits for the next policy."""
PROBE_SECONDS = 1.0
"""How long each host sends, to see what it can send."""
BLOCK = bytes(1 << 16)


@dataclass
class Options:
    """The options."""

    file: str
    """The topology file, or the name of an example."""
    _: KW_ONLY
    seconds: float = 60.0
    """How long to measure."""
    stage: str | None = None
    """The stage's name."""
    warm_steps: int = 2
    """Steps of the stage that come before."""
    ssh: str = "ssh"
    """How other machines are reached, as for agent-rl up."""
    overrides: Overrides = ()
    """As for agent-rl run."""


# Hosts ---------------------------------------------------------------------------------------------------------------


class Hosts:
    """The hosts of a topology, the main host first, which is this machine; the others are reached by ssh."""

    def __init__(self, topology: Topology, ssh: str) -> None:
        """Raises WrongOptions when the main host is another machine."""
        main = topology.main_host
        self.names = (main, *sorted(name for name in topology.hosts_in_use if name != main))
        self._ssh = ssh
        self._reach: dict[str, tuple[str, ...]] = {main: ()}
        for name in self.names if len(self.names) > 1 else ():
            address = topology.hosts[name].address
            self._reach[name] = () if is_here(address) else (*shlex.split(ssh), address)
        if self._reach[main]:
            raise WrongOptions(f"the main host {main} ({self._reach[main][-1]}) is another machine: measure there")

    def command(self, host: str, *words: str) -> list[str]:
        """The words that run a command on a host; ssh hands one text to a shell there."""
        reach = self._reach[host]
        return [*reach, shlex.join(words)] if reach else list(words)

    async def counters(self) -> dict[str, Counters]:
        """The counters of each host. Raises RunFailed."""
        read = ("cat", "/proc/net/dev", "/proc/stat")
        return {host: Counters.read(await _output(self.command(host, *read))) for host in self.names}

    async def capacities(self) -> dict[str, float]:
        """The bytes per second that ssh carries from each host, and from the main host to the first other one."""
        others = [host for host in self.names if self._reach[host]]
        in_thread = trio.to_thread.run_sync
        found = {host: await in_thread(_received, self.command(host, "cat", "/dev/zero")) for host in others}
        for host in others[:1]:
            found[self.names[0]] = await in_thread(_sent, self.command(host, "sh", "-c", "cat >/dev/null"))
        return found

    @asynccontextmanager
    async def running(self, file: Path, folder: Path, overrides: Sequence[str]) -> AsyncIterator[Run]:
        """The run, in ``folder``. None of its processes outlives the block; its files on other hosts are removed."""
        others = [host for host in self.names if self._reach[host]]
        up = ("up", ("--ssh", self._ssh)) if len(self.names) > 1 else ("run", ())
        try:
            async with started([*command_of(up[0], file, folder / "run", overrides), *up[1]], folder) as run:
                yield run
        finally:
            with trio.CancelScope(shield=True):
                for host in others:
                    await _output(self.command(host, "rm", "-rf", str(folder)))


async def _output(words: Sequence[str]) -> str:
    done = await trio.run_process(words, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        raise RunFailed(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def _received(words: Sequence[str]) -> float:
    """Bytes per second that a command writes."""
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        size, began = len(process.stdout.read(1)), time.monotonic()
        while (seconds := time.monotonic() - began) < PROBE_SECONDS and (data := process.stdout.read(len(BLOCK))):
            size += len(data)
        process.kill()
    return size / seconds


def _sent(words: Sequence[str]) -> float:
    """Bytes per second that a command reads."""
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        size, began = 0, time.monotonic()
        while time.monotonic() - began < PROBE_SECONDS:
            size += process.stdin.write(BLOCK)
        process.stdin.close()
        process.wait()  # what pipe and connection still held is sent
        return size / (time.monotonic() - began)


# What limits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Work of the actors of a run, and load of its hosts meanwhile."""

    actors: Window
    hosts: Mapping[str, Traffic]


def limit(measured: Measured, cores: int) -> str:
    """Name what keeps the topology from being faster, from the shares that were measured.

    An actor or a link that is in use all the time; else the cores; else the staleness budget, when the scheduler waits
    for the next policy most of the time, and what takes most of the time from one policy to the next.
    """
    actors = measured.actors
    shares = {_busy(actor): share / SATURATED for actor, share in actors.busy.items()}
    if not shares:
        return "nothing was heard of any actor"
    shares |= {_sends(host, each): each.used / SATURATED_LINK for host, each in measured.hosts.items() if each.capacity}
    most = max(shares, key=lambda name: shares[name])
    if shares[most] >= 1:
        return most
    full = [host for host, each in measured.hosts.items() if each.cores_busy >= SATURATED]
    if full or sum(actors.cpu.values()) >= SATURATED * cores:
        hungriest = max(actors.cpu, key=lambda actor: actors.cpu[actor])
        return f"cores{' of ' + ', '.join(full) if len(measured.hosts) > 1 else ''} (most: {hungriest})"
    waits = [each for actor, each in actors.waits.items() if actor.startswith("kv_scheduler.")]
    spent = sum(share for each in waits for what, share in each.items() if BUDGET_SPENT in what)
    if spent >= 0.5:
        return f"staleness budget (spent {100 * spent:.0f} % of the time; from policy to policy mostly {most})"
    return f"{most} (and waiting)"


def _busy(actor: str) -> str:
    return f"the engine of {actor}" if actor.startswith("rollout_generator.") else actor


def _sends(host: str, traffic: Traffic) -> str:
    return f"the link of {host}, which sends {traffic.sent / 1e6:.2f} of {(traffic.capacity or 0.0) / 1e6:.2f} MB/s"


# Measuring -----------------------------------------------------------------------------------------------------------


def stage_to_measure(stages: Sequence[Stage], name: str | None) -> int:
    """The index of the stage of that name, or of the first that makes rollouts. Raises WrongOptions."""
    wanted = [[stage.name == name for stage in stages]] if name else []
    wanted = wanted or [[stage.kind == kind for stage in stages] for kind in ("rl", "evaluate")]
    for found in wanted:
        if any(found):
            return found.index(True)
    names = ", ".join(stage.name for stage in stages)
    raise WrongOptions(f"the file has no stage to measure among {names}: name one of kind rl or evaluate with --stage")


async def measure(options: Options, hosts: Hosts, file: Path, folder: Path, stage: int, warm_steps: int) -> Measured:
    """Run the topology until the stage was measured for so long, or has ended."""
    capacities = await hosts.capacities()
    async with hosts.running(file, folder, options.overrides) as run:
        await run.until(lambda rows: bool(stage_rows(rows, stage, after_step=warm_steps)))
        before, began = await hosts.counters(), trio.current_time()
        with trio.move_on_after(options.seconds + 1):
            await run.process.wait()
        after, seconds = await hosts.counters(), trio.current_time() - began
        await run.stop()
        rows = stage_rows(run.rows(), stage, after_step=warm_steps)
    if len(rows) < 2:
        raise RunFailed(
            f"the stage was over before {warm_steps} steps were done and a second had passed: nothing to measure"
        )
    actors = window([row for row in rows if row["wall"] - rows[0]["wall"] <= options.seconds + LOOK_SECONDS])
    names = hosts.names
    traffic = {host: Traffic.between(before[host], after[host], seconds, capacities.get(host)) for host in names}
    return Measured(actors, traffic)


def main(options: Options) -> int:
    """Measure one topology."""
    file = topology_file(options.file)
    try:
        topology = load_topology(file, options.overrides)
        faults = check_topology(topology, file, options.overrides)
    except TopologyError as error:
        faults = error.faults
    if faults:
        print("\n".join(fault.render(file) for fault in faults), file=sys.stderr)
        return 2
    number = stage_to_measure(topology.stages, options.stage)
    stage = topology.stages[number]
    warm_steps = options.warm_steps if stage.kind == "rl" else 0
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        hosts = Hosts(topology, options.ssh)
        measured = trio.run(measure, options, hosts, file, Path(folder), number, warm_steps)
    report(measured, stage.name)
    return 0


def report(measured: Measured, stage: str) -> None:
    """Print tables and figures."""
    actors, limited_by = measured.actors, limit(measured, len(os.sched_getaffinity(0)))
    names = ("rollouts", "generated_tokens", "trained_tokens", "tool_calls", "steps")
    rates: dict[str, float] = {f"{name}_per_s": getattr(actors, f"{name}_per_s") for name in names}
    print_table(f"stage {stage}, {actors.seconds:.0f} s", ("figure", "value"), list(rates.items()))
    rows = []
    for actor in sorted(actors.busy, key=lambda name: -actors.busy[name]):
        waits = sorted(actors.waits.get(actor, {}).items(), key=lambda item: -item[1])
        waited = "; ".join(f"{what} {100 * share:.0f} %" for what, share in waits[:2] if share >= 0.01)
        rows.append((actor, 100 * actors.busy[actor], 100 * actors.cpu[actor], waited or "-"))
    print_table("actors", ("actor", "busy %", "cpu % of a core", "waited for (share of the time)"), rows)
    figures: dict[str, float | str | None] = {
        "seconds": actors.seconds,
        **rates,
        **{f"busy_{actor}": share for actor, share in sorted(actors.busy.items())},
        **{f"cpu_{actor}": share for actor, share in sorted(actors.cpu.items())},
        "limited_by": limited_by,
    }
    if len(measured.hosts) > 1:
        header = ("host", "sends MB/s", "receives MB/s", "can send MB/s", "in use %", "cores busy %")
        links: list[list[object]] = []
        for host, each in measured.hosts.items():
            can = math.nan if each.capacity is None else each.capacity / 1e6
            links.append([host, each.sent / 1e6, each.received / 1e6, can, 100 * each.used, 100 * each.cores_busy])
            figures |= {f"sent_per_s_{host}": each.sent, f"received_per_s_{host}": each.received}
            figures |= {f"can_send_per_s_{host}": each.capacity, f"cores_busy_{host}": each.cores_busy}
        figures["bytes_between_hosts_per_s"] = sum(each.sent for each in measured.hosts.values())
        print_table("hosts", header, links)
    print(f"limited by: {limited_by}; {sum(actors.cpu.values()):.2f} cores in use by the actors")
    print_figures(figures)
