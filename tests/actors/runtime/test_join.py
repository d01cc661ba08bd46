"""A host joins a run under way: what refuses it, and that swaps and drains reach it. The actors do nothing."""

import subprocess
import sys

import trio

from actors.runtime import join as joining
from actors.runtime.join import join
from agent_rl.config.joining import joined_hosts, next_numbers, with_changed
from agent_rl.config.load import load_topology
from agent_rl.config.processes import Host
from agent_rl.messages import Changed, DrainWanted
from agent_rl.records.run_directory import RunRefused
from tests.actors.runtime.test_changes import (  # noqa: F401 - the fixture too
    OTHER,
    PLAIN,
    events,
    folder,
    running,
    swap,
    until_events,
    wanted,
    write_hosts,
)
from tests.end_to_end.processes import port_blocks
from transport import CurveKeys

WANTED = {"second": 1}


async def ask(path, overrides=(), name="d"):
    """Ask as the command does. Returns why the host may not join, or nothing."""
    topology = load_topology(path, overrides)
    host = Host(base_port=port_blocks(1)[0], joined=next_numbers(topology, {}, WANTED))
    try:
        await join(with_changed(topology, {name: host}), name, WANTED, path.parent)
    except RunRefused as refusal:
        return str(refusal)
    return ""


def test_a_host_with_another_key_or_during_the_start_is_refused(folder):  # noqa: F811
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    path.write_text(path.read_text().replace("number = 1", "waits = true"))
    CurveKeys.generate().save(folder / "other.key")

    async def main():
        async with running(path, 3):
            refusal = await ask(path)
            assert refusal.startswith("host d cannot join: ")
            assert "second.0" in refusal
            assert refusal.endswith("has not started yet; ask again when all actors run")
            refusal = await ask(path, ['security.key_file="other.key"'])
            assert refusal.startswith("host d cannot join: the supervisor of the main host a at tcp://127.0.0.1:")
            assert refusal.endswith(" refuses the key of this host: copy its key to other.key of this host")
            assert not joined_hosts(load_topology(folder / "run" / "topology.a.toml"))

    trio.run(main)


def test_a_run_that_is_not_up_does_not_answer(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 0.2)
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    refusal = trio.run(ask, path)
    assert refusal.endswith("does not answer: is the run up, and does a firewall let this host through?")


def start_host(*arguments):
    return subprocess.Popen([sys.executable, "-m", "tests.actors.runtime.join_host", *arguments])


def test_swaps_and_drains_reach_a_host_that_joined(folder, capfd):  # noqa: F811
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    place = ["--host", "d", "--address", "127.0.0.1", "--base-port", str(port_blocks(1)[0])]
    command = [str(path), *place]

    async def main():
        async with running(path, 3):
            assert not (await swap(path, wanted("second", OTHER, "number=2"))).refused
            before = len(events(folder))
            host = start_host(*command, "--role", "second=2")
            try:
                await until_events(folder, before + 2)  # the swap holds for the host that joins
                assert sorted(events(folder)[before:]) == [f"up second.2 {OTHER} 2", f"up second.3 {OTHER} 2"]
                assert "a host d has joined already" in await ask(path)
                answer = await swap(path, wanted("second", PLAIN))
                assert not answer.refused
                assert [line.split(";")[0] for line in answer.done] == [
                    f"second.{number} is now {PLAIN}" for number in range(4)
                ]
                assert "there are a, b, d" in (await swap(path, DrainWanted("c"))).refused[0]
                answer = await swap(path, DrainWanted("d"))
                assert answer == Changed((), ("host d leaves: its actors stop in order",))
                assert await trio.to_thread.run_sync(host.wait, 60) == 0
                left = await swap(path, DrainWanted("d"))  # at the latest when its goodbye has come
                assert "the run has no host 'd'" in left.refused[0]
                answer = await swap(path, wanted("second", OTHER))
                assert len(answer.done) == 2
            finally:
                host.kill()
                host.wait()

    trio.run(main)
    said = " ".join(capfd.readouterr().out.split())
    for text in ("host d joins at 127.0.0.1: second.2, second.3", "host d has joined", "host d has left"):
        assert text in said
