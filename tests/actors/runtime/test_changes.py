"""Changes of a run under way: what is refused, and that a process is replaced by one of another class or settings."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from actors.runtime import changes, control, dry_run
from actors.runtime.change_rules import changed_keys, differences, in_place, why_not
from actors.runtime.changes import Changes, available_bytes, group_bytes
from actors.runtime.control import ask_run
from actors.runtime.dry_run import shared_faults
from actors.runtime.ledger import RESTART_SECONDS, Ledger
from actors.runtime.processes import has_left
from actors.runtime.run import run_topology
from agent_rl import messages
from agent_rl.config.addresses import CONTROL, actor_nodes, control_address, runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.config.processes import ActorEntry
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus, Changed, DrainWanted, ReplicasWanted, ScaleWanted, StopWanted, SwapWanted
from agent_rl.observe.report.graph import read_wanted
from agent_rl.records.continuing import write_resolved
from agent_rl.records.document import FILE as STATE
from agent_rl.records.document import Document, Host
from agent_rl.records.run_directory import RESTARTS, RunRefused
from tests.end_to_end.processes import port_blocks
from tests.end_to_end.topologies import write_micro, write_two_hosts
from transport import CallRefused, CurveKeys, MemoryNetwork, Node, PeerLeft, Registry

ENTRY = "tests.actors.runtime.swap_entry"
PLAIN, OTHER = f"{ENTRY}:Plain", f"{ENTRY}:Other"


def wanted(role, class_path="", *settings, fresh=False):
    return SwapWanted(role, class_path, settings, fresh=fresh, only_check=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "DRY_RUN", "tests.actors.runtime.swap_dry_run")
    return tmp_path


def write(folder, settings="", replicas=1, start=""):
    path = folder / "topology.toml"
    text = f'[run]\nname = "demo"\ndirectory = "{folder / "run"}"\n[model]\npath = "x"\n'
    text += '[[environments]]\nclass = "maths"\nsettings.files = ["x"]\n[[stages]]\nkind = "sft"\nsteps = 1\n'
    text += f'[actors.first]\nclass = "{PLAIN}"\n'
    text += f'[actors.second]\nclass = "{PLAIN}"\nreplicas = {replicas}\n{start}\nsettings = {{ {settings} }}\n'
    path.write_text(text)
    return path


def events(folder):
    file = folder / "events"
    return file.read_text().splitlines() if file.exists() else []


async def until_events(folder, count):
    while len(events(folder)) < count:  # noqa: ASYNC110 - other processes write the file
        await trio.sleep(0.05)


async def until_event(folder, event, after=0):
    while event not in events(folder)[after:]:  # noqa: ASYNC110 - other processes write the file
        await trio.sleep(0.05)


async def settled(directory, what, refused=()):
    """The document of a run, once all is as it is wanted and this is the last edit. It is on disk within a second."""
    with trio.fail_after(10):
        while True:
            document = Document.read(directory)
            last = document.edits[-1:]
            if not document.others and [(edit.what, edit.refused) for edit in last] == [(what, [*refused])]:
                return document
            await trio.sleep(0.1)


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
            os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [0]


async def swap(path, asked):
    """Ask until the supervisor has heard of every actor that it is ready."""
    while True:
        answer = await ask_run(path.parent / "run", asked)
        if not any("has not started yet" in line for line in answer.refused):
            return answer
        await trio.sleep(0.1)


def test_a_swap_replaces_the_processes_of_a_role_one_after_the_other(folder, capsys):
    path = write(folder, settings="number = 1", replicas=2)

    async def main():
        async with running(path, 3):
            before = events(folder)
            answer = await swap(path, wanted("second", OTHER, "number=5"))
            assert not answer.refused
            *done, of_class, of_setting = answer.done
            assert [line.split(";")[0] for line in done] == [f"second.{number} is now {OTHER}" for number in range(2)]
            assert all(line.endswith("s (beside)") for line in done)
            assert (of_class, of_setting) == (f"second.class: {OTHER}, was {PLAIN}", "second.settings.number: 5, was 1")
            assert events(folder)[len(before) :] == [
                f"ready second.0 {OTHER} 5",
                f"left second.0 {PLAIN} 1",
                f"up second.0 {OTHER} 5",
                f"ready second.1 {OTHER} 5",
                f"left second.1 {PLAIN} 1",
                f"up second.1 {OTHER} 5",
            ]
            again = await swap(path, wanted("second", fresh=True))
            assert not again.refused
            assert f"up second.0 {OTHER} 0" in events(folder)
            return (folder / "run" / STATE).read_text()

    in_force = trio.run(main)
    (folder / "events").unlink()

    async def next_start():
        async with running(path, 3):
            assert f"up second.0 {PLAIN} 1" in events(folder)

    capsys.readouterr()
    trio.run(next_start)
    output = " ".join(capsys.readouterr().out.split())
    assert f"second was swapped in the last start, and now is what the file says: class {PLAIN}" in output
    (folder / "run" / STATE).write_text(in_force)  # as after a SIGKILL of the supervisor
    (folder / "events").unlink()

    async def next_start_after_a_kill():
        async with running(path, 3):
            assert f"up second.0 {OTHER} 0" in events(folder)
            assert f"up first.0 {PLAIN} 0" in events(folder)

    trio.run(next_start_after_a_kill)
    output = " ".join(capsys.readouterr().out.split())
    assert f"second stays what it was swapped for before this supervisor was killed: class {OTHER}" in output
    assert Document.read(folder / "run").ended
    assert not list(runtime_directory(load_topology(path)).parent.glob(runtime_directory(load_topology(path)).name))


@pytest.mark.real_time
async def test_a_process_that_does_not_start_leaves_its_place_to_the_former_one(folder, monkeypatch):
    path = write(folder, settings="number = 1", replicas=2)
    async with running(path, 3):
        before = events(folder)
        answer = await swap(path, wanted("second", OTHER, "dies=true"))
        assert not answer.done
        assert "the new second.0 exited with status 7 before it was ready: no such device" in answer.refused[0]
        assert events(folder) == before  # the former processes never stopped
        assert load_topology(path.parent / "run" / "topology.local.toml").actors["second"].settings == {"number": 1}
        monkeypatch.setattr(changes, "available_bytes", lambda: 0)
        answer = await swap(path, wanted("second", OTHER, "dies=true"))
        assert not answer.done
        assert "second.0 exited with status 7 before it was ready: no such device" in answer.refused[0]
        assert "the former class and settings hold again" in answer.refused[0]
        await until_events(folder, len(before) + 2)
        assert events(folder)[len(before) :] == [
            f"left second.0 {PLAIN} 1",
            f"up second.0 {PLAIN} 1",
        ]
        assert load_topology(path.parent / "run" / "topology.local.toml").actors["second"].settings == {"number": 1}
    assert Document.read(folder / "run").ended


@pytest.mark.real_time
async def test_a_process_that_never_starts_leaves_its_place_to_the_former_one(folder):
    """Its `prepare` or its `start` does not return: the change has a deadline, and says which it was."""
    path = write(folder, settings="number = 1")
    path.write_text(path.read_text().replace("[actors.second]", "[actors.second]\nstart_seconds = 6.0"))
    async with running(path, 2):
        for setting in ("blocks=true", "waits=true"):
            answer = await swap(path, wanted("second", OTHER, setting))
            assert not answer.done
            late = "second.0 was not ready after 6 s (actors.second.start_seconds) and is killed"
            assert late in answer.refused[0], answer
            assert "the former class and settings hold again" in answer.refused[0]
        await until_events(folder, 7)
        assert events(folder)[2:] == [
            f"ready second.0 {OTHER} 1",
            f"ready second.0 {OTHER} 1",
            f"left second.0 {PLAIN} 1",
            f"up second.0 {OTHER} 1",
            f"up second.0 {PLAIN} 1",
        ]
        assert not (await swap(path, wanted("second", OTHER))).refused  # the run can be changed again


async def until_plain(folder):
    """Both processes of the second actor have been started twice with the class of the file."""
    while sum(event.startswith("up") and event.endswith(f"{PLAIN} 1") for event in events(folder)) < 4:  # noqa: ASYNC110
        await trio.sleep(0.05)


@pytest.mark.real_time
async def test_a_class_that_keeps_dying_after_its_swap_is_taken_back(folder, capsys):
    """Before it ends the run: also where its other process lives, which follows."""
    path = write(folder, settings="number = 1", replicas=2)
    path.write_text(path.read_text().replace("[actors.second]", "[actors.second]\nrestarts = 1"))
    async with running(path, 3):
        answer = await swap(path, wanted("second", OTHER, "lives=3.0"))
        assert [line.partition(" ")[0] for line in answer.done[:2]] == ["second.0", "second.1"]
        await until_plain(folder)
        await trio.sleep(1.5)
        assert [event for event in events(folder) if event.startswith("up second")][-1].endswith(f"{PLAIN} 1")
        stored = load_topology(path.parent / "run" / "topology.local.toml").actors["second"]
        assert (stored.class_path, stored.settings) == (PLAIN, {"number": 1})
    output = " ".join(capsys.readouterr().out.split())
    assert "1 restarts in 60 s are spent" in output
    assert "the class and settings that second had before it was swapped come back" in output


@pytest.mark.real_time
@pytest.mark.slow
async def test_a_class_that_keeps_dying_on_another_host_is_taken_back_on_all_hosts(folder):
    """The supervisor of the other host asks that of the main host, which swaps the role back as it swapped it."""
    path = write_hosts(folder, 'hosts = ["a", "b"]\nrestarts = 1')
    other = start_b(path)
    try:
        async with running(path, 3, host="a"):
            assert not (await swap(path, wanted("second", OTHER, "lives=3.0"))).refused
            await until_plain(folder)
            while not (await swap(path, DrainWanted("b"))).done:  # noqa: ASYNC110 - the swap back is under way
                await trio.sleep(0.1)
            assert await trio.to_thread.run_sync(other.wait, 60) == 0
            for host in "ab":
                stored = load_topology(folder / "run" / f"topology.{host}.toml").actors["second"]
                assert (stored.class_path, stored.settings) == (PLAIN, {"number": 1})
    finally:
        other.kill()
        other.wait()


async def test_a_dry_run_that_never_ends_is_ended_and_refuses_the_change(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "DRY_RUN_SECONDS", 0.0)
    janitor = SimpleNamespace(started=lambda _: None, ended=lambda _: None)
    late, *_ = await dry_run.faults_of(tmp_path, tmp_path, (), tmp_path / "stderr", janitor)
    assert late.startswith("the dry run of the change did not end in 0 s")


@pytest.mark.real_time
async def test_a_swap_that_is_refused_stops_nothing(folder):
    path = write(folder)
    async with running(path, 2):
        before = events(folder)
        answer = await swap(path, wanted("second", "refused:Class"))
        assert answer == Changed(("there is no module 'refused'", "mend it"), ())
        answer = await swap(path, wanted("third", OTHER))
        assert answer.refused == ("the run has no actor 'third'; there are first, second",)
        topology = load_topology(path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(control_address(topology, runtime_directory(topology))[CONTROL].removeprefix("ipc://"))
            other.listen()
            with pytest.raises(RunRefused, match="another command changes this run; ask again when"):
                await ask_run(path.parent / "run", wanted("second", OTHER))
        assert events(folder) == before


def write_hosts(folder, second):
    """Two hosts; ``second`` says where the second actor runs."""
    path = write(folder, settings="number = 1")
    CurveKeys.generate().save(folder / "key")
    ports = port_blocks(2)
    hosts = "".join(f"[hosts.{name}]\nbase_port = {port}\n" for name, port in zip("ab", ports, strict=True))
    text = path.read_text().replace(
        "[actors.first]", f'{hosts}[security]\nkey_file = "key"\n[actors.first]\nhost = "a"'
    )
    path.write_text(text.replace("[actors.second]", f"[actors.second]\n{second}").replace("replicas = 1", ""))
    return path


def start_b(path):
    command = [sys.executable, "-m", "tests.actors.runtime.swap_host", str(path)]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.real_time
async def test_a_host_is_drained_and_the_run_goes_on(folder):
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    other = start_b(path)

    try:
        async with running(path, 3, host="a"):
            answer = await swap(path, DrainWanted("b"))
            assert answer == Changed((), ("host b leaves: its actors stop in order",))
            assert await trio.to_thread.run_sync(other.wait, 60) == 0
            assert events(folder)[3:] == [f"left second.1 {PLAIN} 1"]
            answer = await swap(path, wanted("second", "", "number=2"))
            assert [line.split(";")[0] for line in answer.done] == [
                f"second.0 is now {PLAIN}", "second.settings.number: 2, was 1",
            ]  # fmt: skip
            answer = await swap(path, DrainWanted("b"))
            assert answer.refused == ("host b has left already",)
            document = await settled(folder / "run", "drain of b", ["host b has left already"])
            assert [edit.what for edit in document.edits if edit.done] == ["drain of b", "swap of second"]
            assert not {"second.1"} & document.processes.keys()
    finally:
        other.kill()
        other.wait()
    document.write(folder / "run")  # as after a SIGKILL of the supervisor
    before = len(events(folder))
    async with running(path, before + 2, host="a"):
        assert sorted(events(folder)[before:]) == [f"up first.0 {PLAIN} 0", f"up second.0 {PLAIN} 2"]
        assert (await swap(path, DrainWanted("b"))).refused == ("host b has left already",)
        assert (await swap(path, wanted("second", "", "number=3"))).done, "nothing waits for the drained host"


@pytest.mark.real_time
async def test_a_host_of_the_same_process_is_drained(folder):
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    async with running(path, 3):
        answer = await swap(path, DrainWanted("b"))
        assert answer == Changed((), ("host b has left: second.1",))
        assert events(folder)[3:] == [f"left second.1 {PLAIN} 1"]


@pytest.mark.real_time
@pytest.mark.slow
async def test_replicas_on_another_host_are_swapped_by_its_supervisor(folder):
    """The hosts have run directories of their own, as on two machines."""
    path = write_hosts(folder, 'host = "b"')
    elsewhere = path.with_name("elsewhere.toml")
    elsewhere.write_text(path.read_text().replace(str(folder / "run"), str(folder / "run_of_b")))
    other = start_b(elsewhere)

    try:
        async with running(path, 2, host="a"):
            answer = await swap(path, wanted("second", "refused:Class"))
            assert answer.refused == ("there is no module 'refused'", "mend it")
            answer = await swap(path, wanted("second", OTHER, "number=2"))
            assert not answer.refused
            assert [line.split(";")[0] for line in answer.done[:1]] == [f"second.0 is now {OTHER}"]
            assert events(folder)[3:] == [f"left second.0 {PLAIN} 1", f"up second.0 {OTHER} 2"]
            # From the other host's directory too, with the key.
            answer = await ask_run(folder / "run_of_b", wanted("first", "", "number=3"))
            assert not answer.refused
            assert events(folder)[-1] == f"up first.0 {PLAIN} 3"
            answer = await swap(path, DrainWanted("b"))
            assert "no other host runs second" in answer.refused[0]
        assert other.wait(30) == 0
    finally:
        other.kill()
        other.wait()
    for host, directory in (("a", "run"), ("b", "run_of_b")):
        resolved = load_topology(folder / directory / f"topology.{host}.toml")
        assert resolved.actors["second"].class_path == OTHER
        assert resolved.actors["first"].settings == {"number": 3}


@pytest.mark.real_time
async def test_a_supervisor_that_is_killed_and_started_again_takes_up_the_swaps_that_it_missed(folder):
    path = write_hosts(folder, 'host = "b"')
    path.write_text(path.read_text().replace("[hosts.b]", "[hosts.b]\noptional = true"))
    elsewhere = path.with_name("elsewhere.toml")
    elsewhere.write_text(path.read_text().replace(str(folder / "run"), str(folder / "run_of_b")))
    other = start_b(elsewhere)
    try:
        async with running(path, 2, host="a"):
            assert (await swap(path, wanted("second", OTHER, "number=2"))).done
            await until_event(folder, f"up second.0 {OTHER} 2")
            other.kill()
            other.wait(60)
            before = len(events(folder))
            other = start_b(elsewhere)
            await until_event(folder, f"up second.0 {OTHER} 2", before)
            document = await settled(folder / "run", "swap of second")
            assert document.processes["second.0"].incarnation >= 2 * RESTARTS
    finally:
        other.terminate()
        other.wait(60)


@pytest.mark.real_time
async def test_a_role_gets_another_number_of_processes(folder, capsys):
    path = write(folder, settings="number = 1", replicas=3, start="start = 1")
    async with running(path, 2):
        answer = await swap(path, ScaleWanted("second", 3))
        assert answer == Changed((), ("second.1 runs", "second.2 runs", "second has 3 processes"))
        assert sorted(events(folder)[2:]) == [f"up second.{number} {PLAIN} 1" for number in (1, 2)]
        answer = await swap(path, wanted("second", OTHER))
        assert len(answer.done) == 3 + 1
        answer = await swap(path, ScaleWanted("second", 2))
        assert answer == Changed((), ("second.2 has left", "second has 2 processes"))
        assert events(folder)[-1] == f"left second.2 {OTHER} 1"
        answer = await swap(path, ScaleWanted("second", 3))
        assert answer.done[0] == "second.2 runs"
        assert events(folder)[-1] == f"up second.2 {OTHER} 1"
    (folder / "events").unlink()
    capsys.readouterr()
    async with running(path, 2):
        assert sorted(events(folder)) == [f"up first.0 {PLAIN} 0", f"up second.0 {PLAIN} 1"]
    output = " ".join(capsys.readouterr().out.split())
    assert "second was scaled in the last start, and now has as many processes as the file says: 1; it had 3" in output


@pytest.mark.real_time
async def test_replicas_that_do_not_start_are_none(folder):
    path = write(folder, replicas=2, start="start = 1")
    async with running(path, 2):
        (folder / "dies").touch()
        answer = await swap(path, ScaleWanted("second", 2))
        assert "second.1 exited with status 7 before it was ready: no such device" in answer.refused[0]
        assert answer.refused[-1] == "second keeps the processes that it had"
        (folder / "dies").unlink()
        answer = await swap(path, ScaleWanted("second", 2))
        assert answer.done[0] == "second.1 runs"


@pytest.mark.slow
def test_replicas_come_and_go_on_other_hosts(folder):
    """The hosts have run directories of their own. The main host's supervisor is killed, and still knows the number."""
    path = write_hosts(folder, 'hosts = ["b", "a"]\nreplicas = 4\nstart = 2')
    elsewhere = path.with_name("elsewhere.toml")
    elsewhere.write_text(path.read_text().replace(str(folder / "run"), str(folder / "run_of_b")))
    other = start_b(elsewhere)

    async def main():
        async with running(path, 3, host="a"):
            answer = await swap(path, ScaleWanted("second", 4))
            assert not answer.refused
            assert answer.done[-1] == "second has 4 processes"
            assert sorted(events(folder)[3:]) == [f"up second.{number} {PLAIN} 1" for number in (2, 3)]
            document = await settled(folder / "run", "scaling of second")
            assert [(name, host.wanted, host.state) for name, host in document.hosts.items()] == [
                ("a", True, "up"),
                ("b", True, "up"),
            ]
            assert {name: each.host for name, each in document.processes.items() if each.role == "second"} == {
                "second.0": "b", "second.1": "a", "second.2": "b", "second.3": "a",
            }  # fmt: skip
            assert [(edit.what, edit.done[-1]) for edit in document.edits[-1:]] == [
                ("scaling of second", "second has 4 processes")
            ]
            kept = (folder / "run" / STATE).read_text()
            answer = await swap(path, ScaleWanted("second", 2))
            assert set(answer.done) == {"second.2 has left", "second.3 has left", "second has 2 processes"}
            assert sorted(events(folder)[5:]) == [f"left second.{number} {PLAIN} 1" for number in (2, 3)]
            return kept

    try:
        kept = trio.run(main)
        assert other.wait(60) == 0
    finally:
        other.kill()
        other.wait()
    (folder / "run" / STATE).write_text(kept)  # as after a SIGKILL
    assert Document.read(folder / "run").applied(load_topology(path)).wanted("second") == {
        0: "b",
        1: "a",
        2: "b",
        3: "a",
    }


@pytest.mark.real_time
async def test_replicas_of_an_optional_host_that_is_away_run_once_it_comes(folder):
    path = write_hosts(folder, 'hosts = ["a", "b"]\nreplicas = 4\nstart = 2')
    path.write_text(path.read_text().replace("[hosts.b]", "[hosts.b]\noptional = true"))
    async with running(path, 2, host="a"):
        answer = await swap(path, ScaleWanted("second", 4))
        away = "second.3 runs as soon as its host b does"
        assert answer == Changed((), ("second.2 runs", away, "second has 4 processes"))
        other = start_b(path)
        try:
            await until_events(folder, 5)
            assert sorted(events(folder)[3:]) == [f"up second.{number} {PLAIN} 1" for number in (1, 3)]
            while (answer := await swap(path, DrainWanted("b"))).refused:
                assert "not" in answer.refused[0]  # not heard yet, or not started yet
                await trio.sleep(0.1)
            with trio.fail_after(60):
                assert await trio.to_thread.run_sync(other.wait) == 0
        finally:
            other.kill()
        answer = await swap(path, wanted("second", OTHER))
        assert len(answer.done) == 2 + 1, "the host that left keeps nothing from being changed"


@pytest.mark.real_time
async def test_no_change_is_taken_from_who_has_another_key(folder, monkeypatch):
    monkeypatch.setattr(control, "KEY_SECONDS", 0.5)
    path = write_hosts(folder, 'hosts = ["a", "b"]')
    async with running(path, 3):
        before = events(folder)
        (folder / "key").unlink()  # the run has read it
        changes = (wanted("second", OTHER), ScaleWanted("second", 3), DrainWanted("b"))
        for asked in changes:
            with pytest.raises(RunRefused, match=r"there is no file .*key; copy the key of the run there"):
                await ask_run(folder / "run", asked)
        CurveKeys.generate().save(folder / "key")
        for asked in changes:
            with pytest.raises(RunRefused, match=r"supervisor\.a refuses the key of this command: .*key is not"):
                await ask_run(folder / "run", asked)
        assert events(folder) == before


@pytest.mark.real_time
async def test_a_swap_during_a_start_is_refused(folder):
    path = write(folder, settings="waits = true", replicas=2)
    async with running(path, 3):
        answer = await ask_run(path.parent / "run", wanted("first", OTHER))
        assert "second.0" in answer.refused[0]
        assert "has not started yet" in answer.refused[0]
        answer = await ask_run(path.parent / "run", ScaleWanted("second", 1))
        assert "has not started yet" in answer.refused[0]
        assert len(events(folder)) == 3


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


@pytest.mark.parametrize(
    ("sender", "asked"),
    [
        ("rollout_generator.0", wanted("learner", "x:Y")),
        ("rollout_generator.0", ScaleWanted("tool_executor", 2)),
        ("rollout_generator.0", DrainWanted("local")),
        ("supervisor.other", ScaleWanted("tool_executor", 2)),
        ("rollout_generator.0", StopWanted()),
        ("supervisor.other", StopWanted()),
        ("control", ReplicasWanted("tool_executor", 8, ("tool_executor.7",), ())),
    ],
)
def test_only_a_command_may_ask_for_a_change(tmp_path, sender, asked):
    path, _ = write_micro(tmp_path)
    reports = SimpleNamespace(say=print)
    run = Changes(
        load_topology(path),
        path,
        path,
        ["local"],
        SimpleNamespace(actors={}),
        Ledger(load_topology(path), ["local"], None, print),
        again="",
        reports=reports,
        ending=trio.Event(),
        leave=print,
        numbered=lambda _: None,
    )
    with pytest.raises(CallRefused, match="may not change the run"):
        trio.run(run.asked, sender, asked)


def test_a_command_stops_a_run_whose_actors_start_still_and_once(tmp_path):
    path, _ = write_micro(tmp_path)
    ending, left = trio.Event(), []

    def leave(code, reason):
        left.append((code, reason))
        ending.set()

    run = Changes(
        load_topology(path), path, path, ["local"], SimpleNamespace(actors={}),
        Ledger(load_topology(path), ["local"], None, print), again="agent-rl run it",
        reports=SimpleNamespace(say=print), ending=ending, leave=leave, numbered=print,
    )  # fmt: skip
    assert trio.run(run.asked, CONTROL, StopWanted()).done == (
        "the run stops in order; continue with: agent-rl run it",
    )
    assert "the run is ending" in trio.run(run.asked, CONTROL, StopWanted()).refused[0]
    assert left == [(0, "stopping, as a command asks; continue with: agent-rl run it")]


async def test_a_change_of_a_host_that_is_not_heard_is_refused_by_its_name_at_once_and_not_waited_for(tmp_path):
    path, _ = write_two_hosts(tmp_path, (7000, 7100))
    text = path.read_text()
    for role in ("rollout_generator", "tool_executor"):
        start = text.index('host = "b"', text.index(f"[actors.{role}]"))
        text = f'{text[:start]}hosts = ["a", "b"]{text[start + len("host = ") + 3 :]}'
    path.write_text(text)
    topology = load_topology(path)
    heard = [name for host in ("a", "b") for name, _ in actor_nodes(topology, host)]
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        node = Node("supervisor.a", network, Registry.of(messages), incarnation=1)
        reports = SimpleNamespace(say=print)
        none, ledger = SimpleNamespace(actors={}, follow=print), Ledger(topology, ["a"], None, print)
        run = Changes(
            topology,
            path,
            path,
            ["a"],
            none,
            ledger,
            again="",
            reports=reports,
            ending=trio.Event(),
            leave=print,
            numbered=print,
        )
        run.begin(nursery, None)
        run.link(node)
        for name in heard:
            ledger.observe(ActorStatus(name, name, "running", "", ActorFigures(), "", 0.0, 0.0))
        await nursery.start(node.run, lambda _: None)
        await trio.sleep(10)
        with trio.fail_after(1):
            answer = await run.asked(CONTROL, DrainWanted("b"))
        assert not answer.done
        assert "supervisor.b is not heard" in answer.refused[0]
        nursery.cancel_scope.cancel()


class Alone:
    """Changes of the main host ``a`` of a run with the hosts ``a`` and ``b``, and ``d``, which is optional. No processes."""

    def __init__(self, folder, monkeypatch):
        def table(role, settings="", where='host = "a"'):
            return f'[actors.{role}]\nclass = "{PLAIN}"\n{where}\nsettings = {{ {settings} }}\n'

        path = write(folder)
        head = path.read_text().partition("[actors.first]")[0].replace('"x"', '"."', 1)
        head += '[hosts.a]\naddress = "10.0.0.1"\n[hosts.b]\naddress = "10.0.0.2"\n'
        head += '[hosts.d]\naddress = "10.0.0.9"\noptional = true\n[security]\nkey_file = "key"\n'
        path.write_text(
            head + table("first") + table("second", where='hosts = ["a", "b", "d"]\nreplicas = 9\nstart = 6')
        )
        self.topology = load_topology(path)
        self.back = ()
        """Optional hosts that are heard before anything is asked."""
        self.during = lambda: None
        self.afterwards = trio.lowlevel.checkpoint
        monkeypatch.setattr(changes, "faults_of", self.faults_of)
        self.actor = SimpleNamespace(
            name="first.0",
            role="first",
            ended=trio.Event(),
            child=None,
            life=SimpleNamespace(plan=SimpleNamespace(entry=self.topology.actors["first"]), state="up"),
        )
        self.classes, self.failed = [], []
        self.lines = []
        self.actor.replaced, self.actor.tell = self.replaced, self.lines.append
        replicas = SimpleNamespace(
            actors={"first.0": self.actor},
            follow=lambda _: None,
            carry_out=self.carry_out,
        )
        self.ledger = Ledger(self.topology, ["a"], None, print)
        self.changes = Changes(
            self.topology,
            path,
            path,
            ["a"],
            replicas,
            self.ledger,
            again="",
            reports=SimpleNamespace(say=print, fail=lambda reason, _: self.failed.append(reason)),
            ending=trio.Event(),
            leave=print,
            numbered=lambda: None,
        )

    async def faults_of(self, *_):
        self.during()
        return []

    async def replaced(self, plan, *, beside):
        self.classes.append(plan.entry.class_path)
        self.actor.life.plan, self.actor.life.state = plan, "up"
        self.during()
        await trio.sleep(0.1)
        return "", 0.0, False

    def dies_for_good(self):
        """The restarts of the actor are spent."""
        if self.changes.swapped_lately("first"):
            self.actor.life.state = "waiting"
            self.changes.take_back(self.actor, "it died")

    async def carry_out(self, starts, stops, topology):
        return [], [*(f"{name} runs" for name in starts), *(has_left(name) for name in stops)]

    def ask(self, asked, *absent, starting=(), after=0.0, dead="", back=0.0):
        """The answer to what is asked, of a run whose actor ``dead`` has died and is ready again ``back`` s later."""

        def hear(name, state):
            role = name.partition(".")[0]
            self.ledger.observe(ActorStatus(name, role, state, "", ActorFigures(), "", 0.0, 0.0))

        async def come_back():
            await trio.sleep(back)
            hear(dead, "running")

        async def main():
            async with trio.open_nursery() as nursery:
                network = MemoryNetwork()
                node = Node("supervisor.a", network, Registry.of(messages), incarnation=1)
                self.changes.begin(nursery, SimpleNamespace())
                self.changes.link(node)
                for host in self.topology.hosts_in_use:
                    for name, _ in actor_nodes(self.topology, host):
                        hear(name, "starting" if name in starting else "running")
                for name in self.back:
                    self.ledger.heard(name)
                for name in absent:
                    self.ledger.link_event(PeerLeft(name))
                await nursery.start(node.run, lambda _: None)
                await trio.sleep(after)
                if dead:
                    self.ledger.process(dead, "restarting")
                    nursery.start_soon(come_back)
                answer = await self.changes.asked(CONTROL, asked)
                await self.afterwards()
                nursery.cancel_scope.cancel()
            return answer

        return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_an_optional_host_that_is_not_heard_is_done_without_when_it_is_drained(tmp_path, monkeypatch):
    """Its machine may be gone for good, and no role could be swapped as long as it counts."""
    assert "host d has left already" in Alone(tmp_path, monkeypatch).ask(DrainWanted("d"), after=10.0).refused[0]
    alone = Alone(tmp_path, monkeypatch)
    alone.back = ["supervisor.d"]
    assert "it may come back" in alone.ask(DrainWanted("d"), after=10.0).done[0]
    assert alone.ledger.absent == {"d"}
    assert alone.ledger.document.hosts["d"] == Host(wanted=False, state="gone")
    assert Alone(tmp_path, monkeypatch).ask(DrainWanted("b"), after=10.0).refused, "it is not optional"


def test_nothing_waits_for_the_start_of_actors_whose_host_has_left(tmp_path, monkeypatch):
    alone = Alone(tmp_path, monkeypatch)
    asked = wanted("first", OTHER)
    assert not alone.ask(asked, "supervisor.b", "supervisor.d", starting=["second.1"]).refused


def test_a_change_waits_for_actors_that_are_started_again(tmp_path, monkeypatch):
    """One that died just then made a role that spans hosts lose the replicas that had started on other hosts."""
    more = ScaleWanted("second", 8)
    assert not Alone(tmp_path, monkeypatch).ask(more, dead="first.0", back=0.9 * RESTART_SECONDS).refused
    never = Alone(tmp_path, monkeypatch).ask(more, dead="first.0", back=2 * RESTART_SECONDS)
    assert "first.0 has not started yet" in never.refused[0]
    alone = Alone(tmp_path, monkeypatch)
    first_start = alone.ask(more, starting=["second.0"], dead="first.0", back=1.0)
    assert "first.0, second.0 has not started yet" in first_start.refused[0]


def test_a_process_that_dies_for_good_during_the_swap_of_its_role_waits_for_the_end_of_the_swap(tmp_path, monkeypatch):
    """Else the file that processes read and the class in force would be those of two changes."""
    alone = Alone(tmp_path, monkeypatch)
    file = tmp_path / "run" / "topology.a.toml"
    file.parent.mkdir()

    def during():
        if alone.classes == [OTHER]:
            alone.dies_for_good()
            assert alone.actor.life.state == "waiting"
            assert load_topology(file).actors["first"].class_path == OTHER, "the swap goes on"

    async def afterwards():
        refused = await alone.changes.asked(CONTROL, wanted("first", "", "number=2"))
        assert "another change is under way (return of first to its former class)" in refused.refused[0]
        await trio.sleep(1)
        for now in (alone.changes.topology, load_topology(file)):
            assert now.actors["first"].class_path == PLAIN
        assert (alone.classes, alone.failed) == ([OTHER, PLAIN], [])
        alone.dies_for_good()
        assert alone.actor.life.state != "waiting", "there is no class left to come back"

    alone.during, alone.afterwards = during, afterwards
    assert not alone.ask(wanted("first", OTHER), "supervisor.b", "supervisor.d").refused


def test_a_process_that_dies_for_good_during_the_next_swap_of_its_role_gets_the_class_of_that(tmp_path, monkeypatch):
    alone = Alone(tmp_path, monkeypatch)
    third = "tests.actors.runtime.swap_entry:Plain"
    (tmp_path / "run").mkdir()

    async def afterwards():
        alone.during = lambda: None if alone.classes[1:] else alone.dies_for_good()
        assert not (await alone.changes.asked(CONTROL, wanted("first", third, "number=2"))).refused
        await trio.sleep(1)
        assert (alone.classes, alone.failed) == ([OTHER, third], [])
        assert alone.changes.topology.actors["first"].settings == {"number": 2}

    alone.afterwards = afterwards
    assert not alone.ask(wanted("first", OTHER), "supervisor.b", "supervisor.d").refused


def test_where_no_swap_back_reaches_a_process_that_died_for_good_the_run_fails_and_says_why(tmp_path, monkeypatch):
    alone = Alone(tmp_path, monkeypatch)
    (tmp_path / "run").mkdir()

    async def afterwards():
        alone.dies_for_good()
        alone.changes._before.clear()  # as on a main host whose supervisor was killed meanwhile
        await trio.sleep(1)
        assert alone.failed == ["it died"]

    alone.afterwards = afterwards
    assert not alone.ask(wanted("first", OTHER), "supervisor.b", "supervisor.d").refused


def test_what_is_refused_before_anything_is_tried(tmp_path):
    topology = load_topology(
        write_micro(tmp_path)[0], ["actors.tool_executor.replicas=3", "actors.tool_executor.start=1"]
    )

    def refusal(asked, *, starting=(), ending=False, busy=""):
        return why_not(asked, topology, starting, ending=ending, busy=busy)

    sound = wanted("learner", "x:Y")
    assert refusal(sound) == ""
    assert "the run is ending" in refusal(sound, ending=True)
    assert "learner.0 has not started yet" in refusal(sound, starting=["learner.0"])
    assert "another change is under way (swap of learner)" in refusal(sound, busy="swap of learner")
    assert "there are kv_scheduler, rollout_generator" in refusal(wanted("lerner", "x:Y"))
    assert "name rollout_generator" in refusal(wanted("rollout_generator.0", "x:Y"))
    assert "nothing would change" in refusal(wanted("learner"))
    assert "the run has no host 'nowhere'" in refusal(DrainWanted("nowhere"))
    assert "the run has no role 'nobody'" in refusal(ScaleWanted("nobody", 2))
    more = ScaleWanted("tool_executor", 3)
    assert refusal(more) == ""
    assert "the run is ending" in refusal(more, ending=True)
    assert "learner.0 has not started yet" in refusal(more, starting=["learner.0"])
    assert "another change is under way (scaling of tool_executor)" in refusal(more, busy="scaling of tool_executor")
    assert "a run has exactly one learner, which keeps its state" in refusal(ScaleWanted("learner", 2))
    assert "has at most 3 processes, as the file says; stop the run, and write" in refusal(
        ScaleWanted("tool_executor", 9)
    )
    assert "at least one process" in refusal(ScaleWanted("tool_executor", 0))
    assert "has 1 process already" in refusal(ScaleWanted("tool_executor", 1))
    asked_by_main = ReplicasWanted("tool_executor", 2, ("tool_executor.1",), ())
    assert refusal(asked_by_main, starting=["tool_executor.1"]) == ""  # the announcement came before the call
    assert "learner.0 has not started yet" in refusal(asked_by_main, starting=["tool_executor.1", "learner.0"])


def test_a_new_process_starts_beside_the_former_one_where_there_is_room_for_both():
    def reason(needed, available, former=None, entry=None):
        plain, *entries = (
            ActorEntry.model_validate({"class": "x:Y", "settings": each or {}}) for each in (None, former, entry)
        )
        assert not plain.settings
        return in_place(*entries, needed, available)

    assert reason(4 << 30, 5 << 30) == ""
    assert reason(4 << 30, 4 << 30) == "4.0 GiB are needed, and 4.0 are free"
    assert reason(None, 5 << 30) == reason(1, None) == "memory is not known"
    assert reason(1, 5 << 30, {"device": "cuda:1"}) == "cuda:1 has no room for two"
    assert reason(1, 5 << 30, {}, {"device": "cuda"}) == "cuda has no room for two"
    share = {"device": "cuda", "engine_settings": {"gpu_memory_utilization": 0.4}}
    assert reason(1, 5 << 30, share, share) == ""
    assert reason(1, 5 << 30, share, {"device": "cuda"}) == "cuda has no room for two"


def test_the_page_wants_of_a_role_what_it_was_scaled_to(tmp_path):
    path, directory = write_micro(tmp_path)
    topology = load_topology(path, ["actors.tool_executor.replicas=3", "actors.tool_executor.start=1"])
    directory.mkdir()
    write_resolved(topology, directory, "local", "agent-rl run it")
    assert read_wanted(directory)["tool_executor"].processes == 1
    document = Document.begun(topology, ["local"], None)
    document.changed("tool_executor", topology.scaled({"tool_executor": 3}))
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 3
    document.processes["tool_executor.2"].wanted = False  # its host was drained
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 2
    document.end()
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 1


def test_what_memory_there_is_and_what_a_session_has(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3 kB\n")
    assert available_bytes(tmp_path / "meminfo") == 3 << 10
    assert available_bytes(tmp_path / "none") is None
    for number, session, pages in ((1, 7, 2), (7, 7, 3), (8, 9, 5)):
        fields = ["S", "1", "1", str(session), *["0"] * 17, str(pages)]
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a name) {' '.join(fields)}")
    assert group_bytes(7, tmp_path) == 5 * os.sysconf("SC_PAGE_SIZE")
    assert group_bytes(6, tmp_path) is None


def test_what_host_may_be_drained(tmp_path):
    path, _ = write_two_hosts(tmp_path, (7000, 7100))
    entry = 'hosts = ["a", "b"]'
    text = path.read_text()
    for role in ("rollout_generator", "tool_executor"):
        start = text.index('host = "b"', text.index(f"[actors.{role}]"))
        text = text[:start] + entry + text[start + len('host = "b"') :]
    path.write_text(text)
    topology = load_topology(path)

    def refusal(host, *, starting=(), left=()):
        return why_not(DrainWanted(host), topology, starting, ending=False, busy="", left=left)

    assert refusal("b") == ""
    assert "the run has no host 'c'; there are a, b" in refusal("c")
    assert "host b has left already" in refusal("b", left=["b"])
    assert "host a runs the learner" in refusal("a")
    assert "has not started yet" in refusal("b", starting=["tool_executor.1"])
    one = load_topology(path, ['actors.rollout_generator.hosts=["b"]'])
    assert "no other host runs rollout_generator" in why_not(DrainWanted("b"), one, (), ending=False, busy="")


def test_a_swap_is_a_change_of_keys_and_no_other_key_can_be_reached():
    assert changed_keys(wanted("a", "x:Y", "k=1", "table.k=2", fresh=True)) == [
        'actors.a.class="x:Y"',
        "actors.a.settings={}",
        "actors.a.settings.k=1",
        "actors.a.settings.table.k=2",
    ]
    assert changed_keys(wanted("a", "", "k=1")) == ["actors.a.settings.k=1"]


def test_a_swap_says_what_it_changes(tmp_path):
    path, _ = write_micro(tmp_path)
    before, key = load_topology(path), "actors.rollout_generator.settings"
    now = load_topology(path, [f"{key}.max_rollouts=4", f"{key}={{max_rollouts=4, max_tool_calls=3}}"])
    assert differences("rollout_generator", before, now) == [
        "rollout_generator.settings.max_rollouts: 4, was 8",
        'rollout_generator.settings.error_detail: left out, was "last_line"',
        "rollout_generator.settings.max_tool_calls: 3, was left out",
    ]
    assert differences("learner", before, now) == [
        "learner has the class and the settings that it had; its processes are new"
    ]


def test_settings_that_several_roles_read_are_not_swapped_for_one(tmp_path):
    path, _ = write_micro(tmp_path)
    former = load_topology(path)
    assert shared_faults(former, load_topology(path, ["actors.kv_scheduler.settings.request_window=2000"])) == []
    [fault] = shared_faults(former, load_topology(path, ['actors.learner.settings.weights_in="gloo"']))
    assert "generators and learner must begin with the same way" in fault


def test_a_swap_whose_class_is_gone_after_a_kill_is_named_with_the_remedy(tmp_path):
    path = write(tmp_path)
    topology = load_topology(path)
    other = load_topology(path, ['actors.second.class="a_module_that_is_gone:Other"'])
    (tmp_path / "run").mkdir()
    document = Document.begun(topology, ["local"], None)
    document.changed("second", other, ["a key"])
    document.write(tmp_path / "run")
    with pytest.raises(RunRefused, match=r"second was swapped.*a_module_that_is_gone.*state\.json to go by the file"):
        trio.run(run_topology, topology, path)
