"""A second host of generators and executors is killed, stopped for a while, or ended in order: the run goes on."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.processes import (
    balanced,
    family,
    finish,
    kill,
    more_steps,
    port_blocks,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import MICRO
from transport import CurveKeys


def write_spread(folder: Path) -> tuple[Path, Path]:
    """Generators and executors on both of two hosts, over loopback TCP with a key; all else on the first."""
    hosts = "".join(
        f'[hosts.{name}]\naddress = "127.0.0.1"\nbase_port = {port}\n'
        for name, port in zip("ab", port_blocks(2), strict=True)
    )
    CurveKeys.generate().save(folder / "cluster.key")
    hosts += '[security]\nkey_file = "cluster.key"\n'
    text = MICRO.format(directory=folder / "run", steps=100_000, hosts=hosts, a="a", b="BOTH")
    text = text.replace('host = "BOTH"', 'hosts = ["a", "b"]')
    text = text.replace(
        "[run]\n", "[run]\nlost_after_seconds = 3600\n", 1
    )  # so only the silence of the whole host counts
    path = folder / "spread.toml"
    path.write_text(text)
    return path, folder / "run"


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped for a while", "ended in order"])
def test_a_run_goes_on_without_a_host_and_takes_it_back(tmp_path: Path, how: str) -> None:
    path, directory = write_spread(tmp_path)
    main, other = start(path, host="a"), start(path, host="b")
    again = None
    log = directory / "logs" / "kv_scheduler.0.jsonl"

    def policies() -> int:
        """How often generators of the second host took a policy up."""
        taken = directory / "logs" / "rollout_generator.1.jsonl"
        return sum(row["event"] == "policy taken up" for row in rows(taken)) if taken.exists() else 0

    try:
        wait_for(lambda: steps_trained(directory) >= 3 and policies() >= 2, "steps with both hosts")
        everyone = family(other.pid)
        match how:
            case "killed":
                signal_all(everyone, signal.SIGKILL)
            case "stopped for a while":
                signal_all(everyone, signal.SIGSTOP)
            case _:
                other.send_signal(signal.SIGINT)
        more_steps(directory, 5)
        before = policies()
        if how == "stopped for a while":
            signal_all(everyone, signal.SIGCONT)
        else:
            other.communicate(timeout=60)
            again = start(path, host="b")
        wait_for(lambda: policies() > before, "the second host to serve again")
        more_steps(directory, 3)
        main.send_signal(signal.SIGINT)
        finish(main)
        balanced(directory)
        if how == "killed":
            assert any(row["event"] == "the rollouts of a generator move" for row in rows(log))
        finish(again or other)
    finally:
        signal_all(family(other.pid), signal.SIGCONT)
        kill(main, other, *([again] if again else []))
