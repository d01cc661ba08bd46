"""Runs over several hosts, each with a supervisor of its own, over loopback TCP with one key: a host comes late, leaves,
is killed or stopped for a while; connections of others stay half open.
"""

import contextlib
import os
import resource
import shlex
import signal
import socket
import sys

import pytest

from tests.end_to_end.processes import Run, family, in_background, port_blocks, rows
from tests.end_to_end.topologies import MICRO, hosts_on, write_three_hosts, write_two_hosts


def generated(run: Run, generator: str) -> int:
    """Rollouts that ended at a generator, by the newest figures of its status."""
    path = run.directory / "timeline.jsonl"
    told = [row["actors"].get(generator, {}).get("figures", {}) for row in (rows(path) if path.exists() else ())]
    return max((int(figures.get("rollouts", 0)) for figures in told), default=0)


@pytest.mark.slow
def test_a_host_that_starts_late_takes_part_and_the_run_finishes(tmp_path):
    run = Run(*write_three_hosts(tmp_path, port_blocks(3), steps=30))
    run.start(host="a").start(host="b").more(1)  # with host b alone
    run.start(host="c")
    said, *_ = [run.finish(host=name) for name in "abc"]
    run.finished(said, steps=30)


@pytest.mark.slow
def test_an_optional_host_comes_generates_and_leaves(tmp_path):
    run = Run(*write_three_hosts(tmp_path, port_blocks(3), steps=50_000))
    run.path.write_text(run.path.read_text().replace("[hosts.c]", "[hosts.c]\noptional = true"))
    run.start(host="a").start(host="b").more(1)
    run.start(host="c").wait(lambda: generated(run, "rollout_generator.1") >= 8, "rollouts of the optional host")
    assert "continue with: agent-rl run" in run.interrupt("c").all
    run.more(2)  # without the host that left
    assert "supervisor.c has stopped in order" in run.interrupt("a").all
    run.finish(host="b")
    run.balanced()
    assert run.processes == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped for a while", "ended in order"])
def test_a_run_goes_on_without_a_host_and_takes_it_back(tmp_path, how):
    """Generators and executors are on both hosts, all else is on the first."""
    hosts = hosts_on(port_blocks(2), tmp_path)
    text = MICRO.format(directory=tmp_path / "run", steps=100_000, hosts=hosts, a="a", b="BOTH")
    text = text.replace('host = "BOTH"', 'hosts = ["a", "b"]')
    # Only the silence of the whole host counts.
    (tmp_path / "spread.toml").write_text(text.replace("[run]\n", "[run]\nlost_after_seconds = 3600\n", 1))
    run = Run(tmp_path / "spread.toml", tmp_path / "run").start(host="a").start(host="b")

    def policies() -> int:
        """How often generators of the second host took a policy up."""
        return len(run.logged("rollout_generator.1", "policy taken up"))

    def signal_all(number: int) -> None:
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    run.wait(lambda: run.trained >= 3 and policies() >= 2, "steps with both hosts")
    everyone = family(run.hosts["b"].pid)
    match how:
        case "killed":
            signal_all(signal.SIGKILL)
        case "stopped for a while":
            signal_all(signal.SIGSTOP)
        case _:
            run.hosts["b"].send_signal(signal.SIGINT)
    try:
        run.more(5)
    finally:
        signal_all(signal.SIGCONT)
    before = policies()
    if how != "stopped for a while":
        run.hosts["b"].communicate(timeout=60)
        run.start(host="b")
    run.wait(lambda: policies() > before, "the second host to serve again")
    run.more(3).interrupt("a")
    run.balanced()
    assert how != "killed" or run.logged("kv_scheduler.0", "the rollouts of a generator move")
    run.finish(host="b")


CONNECTIONS = 1200
"""To each port."""


def attack(ports: list[int], held: contextlib.ExitStack) -> None:
    for port in ports:
        for _ in range(CONNECTIONS):
            made = held.enter_context(socket.socket())
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                made.connect(("127.0.0.1", port))


@pytest.fixture
def many_files():
    """As many files as may be open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
def test_half_open_connections_to_every_port_stop_no_run_that_may_have_1024_files_open(tmp_path):
    first, second = port_blocks(2)
    run = Run(*write_two_hosts(tmp_path, (first, second), steps=60))
    for host in "ab":
        command = shlex.join([sys.executable, "-m", "actors.cli", "run", str(run.path), "--host", host])
        run.hosts[host] = in_background(["bash", "-c", f"ulimit -n 1024 && exec {command}"])
    run.until(2)
    for _ in range(2):
        with contextlib.ExitStack() as held:
            attack([*range(first, first + 4), *range(second, second + 3)], held)
            run.more(2)
    said, other = run.finish(host="a"), run.finish(host="b")
    run.finished(said, steps=60)
    assert "starting it again" not in said.out + other.out
