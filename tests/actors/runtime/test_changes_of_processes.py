"""Changes of a run under way, with real processes: what they do is held in virtual time by test_changes."""

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from actors.runtime import control, dry_run, processes
from actors.runtime.control import ask_run
from actors.runtime.run import run_topology
from agent_rl.config.addresses import control_addresses, runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.messages import Changed, DrainWanted, ScaleWanted
from agent_rl.records.document import Document
from agent_rl.records.history import write_resolved
from agent_rl.records.run_directory import RESTARTS, RunRefused
from tests.actors.runtime.virtual_run import swap as wanted
from tests.end_to_end.processes import port_blocks
from transport import CurveKeys

ENTRY = "tests.actors.runtime.swap_entry"
PLAIN, OTHER = f"{ENTRY}:Plain", f"{ENTRY}:Other"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "DRY_RUN", "tests.actors.runtime.swap_dry_run")
    return tmp_path


def write(folder, settings="", more=""):
    path = folder / "topology.toml"
    text = f'[run]\nname = "demo"\ndirectory = "{folder / "run"}"\n[model]\npath = "x"\n'
    text += '[[environments]]\nclass = "maths"\nsettings.files = ["x"]\n[[stages]]\nkind = "sft"\nsteps = 1\n'
    text += f'[actors.first]\nclass = "{PLAIN}"\n'
    text += f'[actors.second]\nclass = "{PLAIN}"\n{more}\nsettings = {{ {settings} }}\n'
    path.write_text(text)
    return path


def events(folder):
    file = folder / "events"
    return file.read_text().splitlines() if file.exists() else []


async def until_events(folder, count):
    while len(events(folder)) < count:  # noqa: ASYNC110 - other processes write the file
        await trio.sleep(0.05)


@asynccontextmanager
async def running(path, count, host=None):
    """The run of the file, whose processes have sent so many events; it is stopped in order at the end."""
    codes = []
    with trio.fail_after(600):  # the machine may be busy; a deadlock alone lasts so long
        async with trio.open_nursery() as nursery:

            async def run():
                codes.append(await run_topology(load_topology(path), path, host=host, entry_module=ENTRY))

            nursery.start_soon(run)
            await until_events(path.parent, count)
            yield
            signal.raise_signal(signal.SIGTERM)
    assert codes == [0]


async def swap(path, asked):
    """Ask until the supervisor has heard of every actor that it is ready."""
    while True:
        answer = await ask_run(path.parent / "run", asked)
        if not any("has not started yet" in line for line in answer.refused):
            return answer
        await trio.sleep(0.1)


@pytest.mark.real_time
async def test_a_swap_that_fails_leaves_all_as_it_was_and_another_replaces_the_process(folder, monkeypatch):
    path = write(folder, settings="number = 1")
    async with running(path, 2):
        assert await swap(path, wanted("second", "refused:Class")) == Changed(
            ("there is no module 'refused'", "mend it"), ()
        )
        topology = load_topology(path)
        with ExitStack() as others:
            for address in control_addresses(topology, runtime_directory(topology)).values():
                other = others.enter_context(socket.socket(socket.AF_UNIX))
                other.bind(address.removeprefix("ipc://"))
                other.listen()
            with pytest.raises(RunRefused, match="other commands change this run; ask again when"):
                await ask_run(path.parent / "run", wanted("second", OTHER))
        assert len(events(folder)) == 2
        dies = wanted("second", OTHER, "dies=true")
        [fault] = (await swap(path, dies)).refused
        assert fault.startswith("the new second.0 exited with status 7 before it was ready: no such device")
        assert len(events(folder)) == 2, "the former process never stopped"
        with monkeypatch.context() as patch:
            patch.setattr(processes, "available_bytes", lambda: 0)
            [fault] = (await swap(path, dies)).refused
            assert fault.startswith("second.0 exited with status 7 before it was ready: no such device")
        await until_events(folder, 4)
        assert events(folder)[2:] == [f"left second.0 {PLAIN} 1", f"up second.0 {PLAIN} 1"]
        first, *_ = (await swap(path, wanted("second", OTHER, "number=5"))).done
        assert first.startswith(f"second.0 is now {OTHER}; it was away for ")
        assert first.endswith("s (beside)")
        assert events(folder)[4:] == [
            f"ready second.0 {OTHER} 5", f"left second.0 {PLAIN} 1", f"up second.0 {OTHER} 5",
        ]  # fmt: skip
    assert Document.read(folder / "run").ended
    assert not runtime_directory(topology).exists()


async def test_a_dry_run_that_never_ends_is_ended_and_refuses_the_change(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "DRY_RUN_SECONDS", 0.0)
    janitor = SimpleNamespace(started=lambda _: None, ended=lambda _: None)
    late, *_ = await dry_run.faults_of("[run]", tmp_path, (), tmp_path / "stderr", janitor)
    assert late.startswith("the dry run of the change did not end in 0 s")


def write_hosts(folder, second):
    """Two hosts; ``second`` says where the second actor runs."""
    path = write(folder, settings="number = 1")
    CurveKeys.generate().save(folder / "key")
    ports = port_blocks(2)
    hosts = "".join(f"[hosts.{name}]\nbase_port = {port}\n" for name, port in zip("ab", ports, strict=True))
    text = path.read_text().replace(
        "[actors.first]", f'{hosts}[security]\nkey_file = "key"\n[actors.first]\nhost = "a"'
    )
    path.write_text(text.replace("[actors.second]", f"[actors.second]\n{second}"))
    return path


def start_b(path):
    command = [sys.executable, "-m", "tests.actors.runtime.swap_host", ENTRY, str(path), "b"]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.real_time
async def test_a_role_is_scaled_and_a_host_is_drained_by_who_has_the_key(folder, monkeypatch):
    """The hosts have run directories of their own, as on two machines."""
    monkeypatch.setattr(control, "KEY_SECONDS", 0.5)
    path = write_hosts(folder, 'hosts = ["a", "b"]\nreplicas = 3\nstart = 2')
    elsewhere = path.with_name("elsewhere.toml")
    elsewhere.write_text(path.read_text().replace(str(folder / "run"), str(folder / "run_of_b")))
    other = start_b(elsewhere)
    try:
        async with running(path, 3, host="a"):
            answer = await swap(path, ScaleWanted("second", 3))
            assert answer == Changed((), ("second.2 runs", "second has 3 processes"))
            assert events(folder)[3:] == [f"up second.2 {PLAIN} 1"]
            answer = await ask_run(folder / "run_of_b", ScaleWanted("second", 2))
            assert answer == Changed((), ("second.2 has left", "second has 2 processes"))
            key = (folder / "key").read_bytes()
            (folder / "key").unlink()  # the run has read it
            with pytest.raises(RunRefused, match=r"there is no file .*key; copy the key of the run there"):
                await ask_run(folder / "run", DrainWanted("b"))
            CurveKeys.generate().save(folder / "key")
            with pytest.raises(RunRefused, match=r"supervisor\.a refuses the key of this command: .*key is not"):
                await ask_run(folder / "run", DrainWanted("b"))
            assert events(folder)[4:] == [f"left second.2 {PLAIN} 1"]
            (folder / "key").write_bytes(key)
            assert (await swap(path, DrainWanted("b"))).done == ("host b leaves: its actors stop in order",)
            assert await trio.to_thread.run_sync(other.wait, 60) == 0
            assert events(folder)[5:] == [f"left second.1 {PLAIN} 1"]
    finally:
        other.kill()
        other.wait()


@pytest.mark.real_time
async def test_a_supervisor_that_is_killed_within_a_swap_takes_it_up_when_it_is_started_again(folder):
    path = write_hosts(folder, 'host = "b"')
    path.write_text(path.read_text().replace("[hosts.b]", "[hosts.b]\noptional = true"))
    other = start_b(path)
    try:
        async with running(path, 2, host="a"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(swap, path, wanted("second", OTHER, "number=2"))
                await until_events(folder, 3)
                assert events(folder)[2] == f"ready second.0 {OTHER} 2"
                other.kill()
                await trio.to_thread.run_sync(other.wait, 60)
            before = len(events(folder))
            other = start_b(path)
            while f"up second.0 {OTHER} 2" not in events(folder)[before:]:  # noqa: ASYNC110 - processes write the file
                await trio.sleep(0.05)
            while Document.read(folder / "run").others:  # noqa: ASYNC110 - it is on disk within a second
                await trio.sleep(0.1)
            assert Document.read(folder / "run").processes["second.0"].incarnation >= 2 * RESTARTS
    finally:
        other.terminate()
        other.wait(60)


def test_a_command_that_comes_as_the_run_ends_leaves_no_folder_of_sockets(tmp_path, monkeypatch):
    path = write(tmp_path)
    (tmp_path / "run").mkdir()
    topology = load_topology(path)
    write_resolved(topology, tmp_path / "run", "local", "")
    monkeypatch.setattr(control, "is_supervised", lambda *_: True)
    monkeypatch.setattr(control, "SILENT_SECONDS", 0.2)
    with pytest.raises(RunRefused, match=r"supervisor\.local does not answer"):
        trio.run(ask_run, tmp_path / "run", wanted("first", OTHER))
    assert not runtime_directory(topology).exists()


def test_without_a_run_the_command_says_so(tmp_path):
    with pytest.raises(RunRefused, match="no run is under way"):
        trio.run(ask_run, tmp_path, wanted("learner", "x:Y"))
