"""Real supervisors of two hosts on loopback: a mistake of one host is on the main host's terminal within 10 s."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.cli import topologies
from actors.cli.output import Mistake
from actors.runtime.refusal import tell_main_host
from actors.runtime.run import run_topology
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from tests.actors.runtime.test_supervise import ENTRY, Stage, press, stage, two_hosts
from tests.end_to_end.processes import port_blocks
from tests.end_to_end.topologies import write_two_hosts
from transport import CurveKeys

__all__ = ["stage"]  # the fixture
NAMED_WITHIN = 10.0
RUNNING = 'settings = { behaviour = "running" }'


def running(stage: Stage) -> Path:
    """The file of two hosts whose actors run until they are stopped."""
    two_hosts(stage, x=f'host = "b"\n{RUNNING}', learner=f'host = "a"\n{RUNNING}')
    return stage.path


def main_host(stage: Stage, read: Callable[[], str], expected: str, other: Callable[[], object]) -> tuple[Any, str]:
    """Run the main host while ``other`` runs in a thread; the result of ``other`` and all that the main host printed.

    The main host is stopped when it has printed ``expected`` and ``other`` has ended.
    """
    results: list[object] = []
    said = ""

    async def main() -> None:
        nonlocal said
        async with trio.open_nursery() as nursery:
            start = partial(run_topology, load_topology(stage.path), stage.path, host="a", entry_module=ENTRY)
            nursery.start_soon(start)
            await stage.await_news(1)

            done = trio.Event()

            async def elsewhere() -> None:
                results.append(await trio.to_thread.run_sync(other))
                done.set()

            nursery.start_soon(elsewhere)
            with trio.fail_after(60):
                while expected not in said:
                    await trio.sleep(0.05)
                    said += read()
            with trio.fail_after(60):
                await done.wait()
            press(signal.SIGTERM)

    trio.run(main)
    return results[0], said + read()


def seconds_between(stage: Stage, words: str) -> float:
    """How long after host b, by their logs, the main host first said a line with these words."""
    at = []
    for host in "ab":
        log = stage.folder / "run" / "logs" / f"supervisor.{host}.jsonl"
        notices = [row for line in log.read_text().splitlines() if (row := json.loads(line))["event"] == "notice"]
        at.append(next(row["timestamp"] for row in notices if words in row["text"]))
    main, other = map(datetime.fromisoformat, at)
    return (main - other).total_seconds()


def host_b(stage: Stage, path: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    return partial(
        subprocess.run, stage.command("b", path=path), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_another_key_is_named_on_both_hosts_and_the_other_host_ends(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    path = running(stage)
    other = stage.folder / "b.toml"
    other.write_text(path.read_text().replace("cluster.key", "other.key"))
    CurveKeys.generate().save(stage.folder / "other.key")
    named = "host b at tcp://127.0.0.1"
    b, said = main_host(stage, lambda: capsys.readouterr().out, "another key or none", host_b(stage, other))
    assert seconds_between(stage, "key") < NAMED_WITHIN
    assert named in said or "a process at 127.0.0.1, the address of host b, has another key" in said
    assert "at the end: " in said
    assert b.returncode == 2, b.stderr
    assert "host a at tcp://127.0.0.1" in b.stdout
    assert "refuses the key of this host" in b.stdout
    assert "Traceback" not in b.stdout + b.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "reason", "told"),
    [
        (
            [],
            "another process listens at 127.0.0.1:5800",
            "host b does not start: another process listens at 127.0.0.1",
        ),
        (["security.key_file=missing.key"], "there is no file missing.key", "another key or none"),
    ],
)
def test_why_a_host_does_not_start_is_on_the_main_host(
    stage: Stage, capsys: pytest.CaptureFixture[str], overrides: list[str], reason: str, told: str
) -> None:
    path = running(stage)
    tell = partial(tell_main_host, load_topology(path, overrides), stage.folder, "b", reason)
    _, said = main_host(stage, lambda: capsys.readouterr().out, told, tell)
    assert "host b at tcp://127.0.0.1" in said if overrides else f"host b does not start: {reason}" in said


@pytest.mark.slow
def test_a_host_at_whose_address_nothing_listens_is_named(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    running(stage)
    _, said = main_host(stage, lambda: capsys.readouterr().out, "nothing listens at tcp://127.0.0.1", lambda: True)
    assert "supervisor.b has been silent for " in said
    assert "start the host, or correct hosts.b.address" in said


def test_the_command_tells_the_main_host_of_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [base] = port_blocks(1)
    path, _ = write_two_hosts(tmp_path, (base, base + 4))
    told: list[tuple[Topology, Path, str | None, str]] = []
    monkeypatch.setattr("actors.runtime.refusal.tell_main_host", lambda *arguments: told.append(arguments))
    with socket.create_server(("127.0.0.1", base + 4)), pytest.raises(Mistake):
        topologies.sound_topology(path, (), "b")
    ((_, folder, host, reason),) = told
    assert (folder, host) == (tmp_path, "b")
    assert f"another process listens at 127.0.0.1:{base + 4}" in reason


@pytest.mark.parametrize("host", ["a", None, "nobody"])
def test_the_main_host_itself_tells_nobody(tmp_path: Path, host: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write_two_hosts(tmp_path, (5700, 5800))
    monkeypatch.setattr(trio, "run", pytest.fail)
    tell_main_host(load_topology(path), tmp_path, host, "whatever")
