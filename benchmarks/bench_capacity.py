"""What a large run costs its main host: processor time of the supervisor, with hundreds of actors.

    agent-rl bench capacity
    agent-rl bench capacity --actors 600 --seconds 10

Simulated hosts (benchmarks/simulated_hosts.py) report at the shipped intervals in virtual time. What reaches the main
host's supervisor is recorded, and replayed to a real supervisor with its status handling, silence detection, timeline
and table on a terminal of 80 columns. The processor time of the replay, divided by its virtual seconds, is the share of
a core. The links' frames are unpacked and answered as in a run; what sockets and encryption cost is not in the share.
Each number of actors is measured twice: with all actors heard, and with half of them silent.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio
from rich.console import Console
from trio.testing import MockClock

from actors.runtime.supervise import Supervisor
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.messages import ActorStatus
from agent_rl.observe.live import Display, LiveView
from agent_rl.observe.silence import NAMED_SECONDS
from agent_rl.records.incarnations import read_epoch
from agent_rl.records.timeline import TimelineFile
from benchmarks.bench_members import quietly
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.simulated_hosts import START, Frames, Replay, record, simulated_topology

WARM_UP = 5.0
"""Virtual seconds before anything is measured."""
WIDTH, HEIGHT = 80, 24


@dataclass(kw_only=True)
class Options:
    """The options."""

    actors: tuple[int, ...] = (300, 600, 1200)
    """Numbers of actors, one measurement each; even."""
    seconds: float = 10.0
    """Virtual seconds of a measurement."""
    metrics: bool = False
    """With `run.metrics_port`: the actors report their counters and histograms too."""


@dataclass(frozen=True)
class Cost:
    """Over some virtual seconds: the supervisor's share of a core, and the statuses that it took in a second."""

    core_share: float
    statuses_per_s: float


class CountingView(LiveView):
    """Counts the statuses that reach the table."""

    statuses = 0

    def observe(self, status: ActorStatus, now: float) -> None:
        """Take in a status."""
        self.statuses += 1
        super().observe(status, now)


async def _silence() -> AsyncIterator[int]:
    """No signals."""
    await trio.sleep_forever()
    yield 0


async def replay(topology: Topology, frames: Frames, folder: Path, windows: list[tuple[float, float]]) -> list[Cost]:
    """Run the main host's supervisor over the recorded frames; measure the windows of virtual time."""
    main = topology.main_host
    network = Replay(supervisor_node(main), frames)
    view = CountingView("capacity", ["learner.0"], ["sft"], trio.current_time())
    console = Console(file=io.StringIO(), force_terminal=True, width=WIDTH, height=HEIGHT)
    found = []
    (folder / "run" / "logs").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        timeline = TimelineFile(folder / "run", trio.current_time(), time.time)
        stack.enter_context(closing(timeline))
        supervisor = Supervisor(
            topology,
            folder / "capacity.toml",
            folder,
            (main,),
            view=view,
            timeline=timeline,
            display=stack.enter_context(Display(view, console)),
            log=structlog.get_logger(),
            entry_module="benchmarks.simulated_hosts",
            start=START,
            epoch=read_epoch(),
            again="",
            agreed={},
            stopped_exit_code=0,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, network, _silence())
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            nursery.start_soon(network.run)
            for start, end in windows:
                await trio.sleep_until(began + start)
                statuses, cpu = view.statuses, time.process_time()
                await trio.sleep_until(began + end)
                seconds = end - start
                share = (time.process_time() - cpu) / seconds
                found.append(Cost(share, (view.statuses - statuses) / seconds))
            nursery.cancel_scope.cancel()
    return found


def measure(actors: int, seconds: float, *, metrics: bool) -> list[Cost]:
    """With all actors heard, and with half of them silent."""
    heard = WARM_UP, WARM_UP + seconds
    named = heard[1] + NAMED_SECONDS + WARM_UP
    windows = [heard, (named, named + seconds)]
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder, quietly():
        topology = simulated_topology(Path(folder), actors, metrics=metrics)
        frames = record(topology, windows[-1][1], silent_from=heard[1])
        return trio.run(partial(replay, topology, frames, Path(folder), windows), clock=MockClock(autojump_threshold=0))


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    if any(actors < 2 or actors % 2 for actors in options.actors):
        raise WrongOptions("--actors: give even numbers, since half of the actors are silent in one measurement")
    rows, figures = [], dict[str, float]()
    for actors in options.actors:
        for name, cost in zip(
            ("", "half silent"), measure(actors, options.seconds, metrics=options.metrics), strict=True
        ):
            rows.append((actors, name, cost.statuses_per_s, 100 * cost.core_share))
            end = "_half_silent" if name else ""
            figures[f"supervisor_core_share_{actors}{end}"] = cost.core_share
            figures[f"statuses_per_s_{actors}{end}"] = cost.statuses_per_s
    print_table("The main host's supervisor", ("actors", "", "statuses/s", "% of a core"), rows)
    print_figures(figures)
    return 0
