"""The supervisor with real processes: restarts, draining, signals, and that no process is ever left behind."""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from prometheus_client.parser import text_string_to_metric_families

from actors.exits import describe_exit
from actors.runtime.run import run_topology
from agent_rl.config.addresses import runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.files.disk import DiskError, whole
from agent_rl.records.run_directory import (
    RunRefused,
    is_supervised,
    read_memory_kills,
    read_summary,
    run_lock,
    socket_directory,
    summary_file,
)
from tests.end_to_end.processes import port_blocks
from tests.full_disk import fill, small_disk
from transport import CurveKeys

pytestmark = pytest.mark.real_time

ENTRY = "tests.actors.runtime.fake_entry"


class Stage:
    """A folder with a topology of fake actors, and the news they send."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "topology.toml"
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.news.bind(str(folder / "news"))
        self.news.settimeout(60)

    def command(self, *words, path=None):
        """A supervisor of the topology, in a process of its own."""
        return [sys.executable, "-m", "tests.actors.runtime.swap_host", ENTRY, str(path or self.path), *words]

    def topology(self, *, hosts="", **actors):
        text = f'[run]\nname = "demo"\ndirectory = "{self.folder / "run"}"\n[model]\npath = "x"\n[[environments]]\nclass = "maths"\nsettings.files = ["x"]\n'
        text += '[[stages]]\nkind = "sft"\nsteps = 1\n' + hosts
        for role, keys in actors.items():
            text += f"[actors.{role}]\n" + (f'class = "{ENTRY}:Plain"\n' if "class" not in keys else "") + keys + "\n"
        self.path.write_text(text, encoding="utf-8")
        return load_topology(self.path)

    def heard(self):
        """The next news as (event, actor, pid, incarnation, details...)."""
        event, actor, pid, incarnation, *details = self.news.recv(4096).decode().split()
        return event, actor, int(pid), int(incarnation), *details

    async def await_news(self, count):
        return [await trio.to_thread.run_sync(self.heard) for _ in range(count)]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    folder = tmp_path / "s"
    folder.mkdir()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = Stage(folder)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which ignores it
    yield made
    signal.signal(signal.SIGHUP, hung_up)
    made.news.close()


def supervise(stage, topology, during=None, **options):
    """Run to the end, with ``during`` beside it; the exit code."""

    async def main():
        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                if during is not None:
                    nursery.start_soon(during)
                return await run_topology(topology, stage.path, entry_module=ENTRY, **options)

    return trio.run(main)


def assert_gone(pids, within=5.0):
    """All processes have ended, or end in time."""
    descriptors = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))
    for descriptor in descriptors:
        ended, _, _ = select.select([descriptor], [], [], within)
        os.close(descriptor)
        assert ended, "a process was left behind"


def press(number):
    signal.raise_signal(number)  # in this thread: virtual time does not wait for another


def test_exit_statuses_in_words():
    assert describe_exit(1) == "exited with status 1"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-250) == "was killed by signal 250"
    assert describe_exit(-9, lacked_memory=True).startswith("was killed by the kernel for lack of memory")


def test_a_signal_drains_and_says_how_to_continue(stage, capsys):
    stage.topology(a="replicas = 2", b=f'class = "{ENTRY}:First"\nsettings = {{ threads = 3 }}')
    topology = load_topology(stage.path, ["run.seed=4"])
    heard = []

    async def during():
        heard.extend(await stage.await_news(3))
        press(signal.SIGINT)
        heard.extend(await stage.await_news(3))

    secret = "environments.0.settings.api_key=hush"
    assert supervise(stage, topology, during, overrides=["run.seed=4", secret]) == 0
    ups = {actor: details for event, actor, _, _, *details in heard if event == "up"}
    assert ups == {"a.0": ["1", "True", "4"], "a.1": ["1", "True", "4"], "b.0": ["3", "True", "4"]}
    # b is first by its class' drain_order, though it stands last in the file
    assert next(actor for event, actor, *_ in heard if event == "stopped") == "b.0"
    output = capsys.readouterr().out
    assert f"stopped; continue with: agent-rl run {stage.path} --set run.seed=4 --set" in output
    assert "hush" not in output
    assert_gone(pid for _, _, pid, *_ in heard)
    assert not runtime_directory(topology).exists()


def test_a_process_that_the_kernel_killed_for_lack_of_memory_is_named_and_recorded(stage, capsys, monkeypatch):
    topology = stage.topology(a='settings = { behaviour = "crash_once" }')
    crashed = stage.folder / "crashed"
    monkeypatch.setattr("actors.exits.memory_kills", lambda: 5 + crashed.exists())
    heard = []

    async def during():
        heard.extend(await stage.await_news(2))
        press(signal.SIGTERM)
        heard.extend(await stage.await_news(1))

    assert supervise(stage, topology, during) == 0
    first, second, stopped = heard
    assert second[3] == first[3] + 1
    assert stopped[0] == "stopped"
    output = capsys.readouterr().out
    assert "a.0 was killed by the kernel for lack of memory" in output
    assert "starting it again (" not in output, "what it wrote before is no reason"
    assert read_memory_kills(topology.run.directory) == {"a.0": 1}


def test_a_message_reaches_the_user_though_the_disk_takes_nothing(stage, capsys):
    topology = stage.topology(a='settings = { behaviour = "full_disk" }')
    assert supervise(stage, topology) == 2
    assert "stopping the run: a.0: /run/journal.sqlite cannot be written: make room" in capsys.readouterr().out


def test_a_full_disk_before_the_first_actor_is_one_clear_line(stage, tmp_path, capsys):
    topology = stage.topology(a="")
    with small_disk(tmp_path / "small", "8k") as disk:
        (disk / "run").mkdir()
        fill(disk)
        topology = topology.model_copy(update={"run": topology.run.model_copy(update={"directory": disk / "run"})})
        with pytest.raises(DiskError, match="cannot be written: No space left on device; make room"):
            trio.run(partial(run_topology, topology, stage.path, entry_module=ENTRY))


@pytest.mark.parametrize("lost", ["log", "logs", "moved", "removed"])
def test_a_log_that_is_removed_costs_lines_and_a_run_directory_the_run(stage, capsys, lost):
    topology = stage.topology(a="")
    directory, heard = topology.run.directory, []

    async def during():
        heard.extend(await stage.await_news(1))
        if lost == "moved":
            directory.rename(stage.folder / "elsewhere")
        elif lost == "removed":
            shutil.rmtree(directory)
        elif lost == "logs":
            shutil.rmtree(directory / "logs")
        else:
            (directory / "logs" / "a.0.stderr").unlink()
        if lost.startswith("log"):
            os.kill(heard[0][2], signal.SIGKILL)
            heard.extend(await stage.await_news(1))
            press(signal.SIGTERM)

    code = supervise(stage, topology, during)
    said = capsys.readouterr().out
    if lost.startswith("log"):
        assert (code, [event for event, *_ in heard]) == (0, ["up", "up"])
    else:
        assert code == 2
        assert f"{directory} was moved or removed under the run; put it back, and start the run again" in said
    assert "Traceback" not in said


def test_what_ignores_sigterm_is_killed_with_all_it_started(stage, capsys):
    topology = stage.topology(a='settings = { behaviour = "stubborn" }')
    heard = []

    async def during():
        heard.extend(await stage.await_news(1))
        press(signal.SIGTERM)

    assert supervise(stage, topology, during) == 0
    assert "a.0 did not stop in time and is killed" in capsys.readouterr().out
    ((_, _, pid, _, grandchild),) = heard
    assert_gone([pid, int(grandchild)])


def test_where_sighup_is_ignored_it_stays_so(stage):
    """As nohup starts a command."""
    stage.topology(a="")
    with subprocess.Popen(
        ["nohup", *stage.command()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as supervisor:
        assert stage.heard()[0] == "up"
        supervisor.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.wait(0.3)
        supervisor.send_signal(signal.SIGTERM)
        assert stage.heard()[0] == "stopped"
        assert supervisor.wait(10) == 0
    assert "SIGHUP" not in (stage.folder / "run" / "logs" / "supervisor.local.jsonl").read_text()


def test_what_an_actor_writes_to_stderr_is_bounded(stage):
    topology = stage.topology(a='settings = { behaviour = "talkative" }')
    topology = load_topology(stage.path, ["run.log_mib=0.01"])
    kept = stage.folder / "run" / "logs" / "a.0.stderr.1"

    async def during():
        await stage.await_news(1)
        while not kept.exists():  # noqa: ASYNC110 - a file has no event
            await trio.sleep(0.05)
        press(signal.SIGTERM)

    assert supervise(stage, topology, during) == 0
    now = kept.with_name("a.0.stderr").read_text()
    assert kept.read_text().startswith("line 0\nline 1\n")
    assert "\0" not in now  # it goes on at the beginning of the emptied file
    assert now.endswith("last\n")


@pytest.mark.parametrize("output", ["a full disk", "a closed pipe"])
def test_output_that_fails_ends_no_run(stage, output):
    """Nothing can be shown; the supervisor goes on, restarts what dies, and ends as it is told."""
    stage.topology(a='settings = { behaviour = "crash_once" }')
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("w") as full, os.fdopen(write, "w") as closed:
        out = full if output == "a full disk" else closed
        with subprocess.Popen(stage.command(), stdout=out, stderr=subprocess.PIPE) as supervisor:
            heard = [stage.heard(), stage.heard()]
            supervisor.send_signal(signal.SIGTERM)
            heard.append(stage.heard())
            supervisor.communicate(timeout=20)
    assert [event for event, *_ in heard] == ["up", "up", "stopped"]
    log = (stage.folder / "run" / "logs" / "supervisor.local.jsonl").read_text()
    assert log.count("the display falls silent") == 1
    assert "SIGTERM: stopping" in log


async def test_cancelling_the_supervisor_leaves_no_process(stage):
    topology = stage.topology(a='replicas = 2\nsettings = { behaviour = "stubborn" }')
    heard = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_topology, topology, stage.path, entry_module=ENTRY))
        heard.extend(await stage.await_news(2))
        nursery.cancel_scope.cancel()
    assert_gone(number for _, _, pid, _, grandchild in heard for number in (pid, int(grandchild)))


@pytest.mark.parametrize("behaviour", ["stubborn", "lifeline"])
def test_killing_the_supervisor_leaves_no_actor(stage, behaviour):
    topology = stage.topology(a=f'replicas = 2\nsettings = {{ behaviour = "{behaviour}" }}')
    with subprocess.Popen(stage.command(*({behaviour} & {"lifeline"})), stdout=subprocess.DEVNULL) as supervisor:
        heard = [stage.heard(), stage.heard()]
        supervisor.kill()
    if behaviour == "lifeline":
        assert {stage.heard()[:2] for _ in heard} == {("lifeline", "a.0"), ("lifeline", "a.1")}
    assert_gone(pid for _, _, pid, *_ in heard)
    assert_gone(int(grandchild[0]) for _, _, _, _, *grandchild in heard if grandchild)
    deadline = time.monotonic() + 10
    while runtime_directory(topology).exists():  # the janitor removes it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_directory_has_one_supervisor(tmp_path):
    with run_lock(tmp_path / "run", ["a"]):
        refused = pytest.raises(RunRefused, match=rf"in use by another supervisor \(process {os.getpid()}\)")
        with refused, run_lock(tmp_path / "run", ["a"]):
            pytest.fail("got in")
        with run_lock(tmp_path / "run", ["b"]):
            pass
    with run_lock(tmp_path / "run", ["a", "b"]):
        pass
    with run_lock(tmp_path / "run", ["a"], "a"):
        with run_lock(tmp_path / "run", ["b"], "a"):
            pass
        refused = pytest.raises(RunRefused, match="in use by another run, whose main host is 'a'; stop it")
        with refused, run_lock(tmp_path / "run", ["c"], "c"):
            pytest.fail("got in")
    with run_lock(tmp_path / "run", ["c"], "c"):
        pass
    with (tmp_path / "run" / "supervisor.c.lock").open("wb", buffering=0) as held:
        held.write(b"\xff")
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunRefused, match="in use by another supervisor"), run_lock(tmp_path / "run", ["c"], "c"):
            pytest.fail("got in")


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(file, kind):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    refused = pytest.raises(RunRefused, match=r"supervisor\.a\.lock cannot be locked \(Function not implemented\)")
    with refused, run_lock(tmp_path / "run", ["a"]):
        pytest.fail("got in")


def test_asking_whether_a_run_is_supervised_never_refuses_its_supervisor(tmp_path):
    with run_lock(tmp_path / "run", ["a"]):
        assert is_supervised(tmp_path / "run", "a")
    assert not is_supervised(tmp_path / "run", "a")
    asked = (tmp_path / "run" / "supervisor.a.lock").open("rb")
    fcntl.flock(asked, fcntl.LOCK_SH)  # as is_supervised does
    timer = threading.Timer(0.3, asked.close)
    timer.start()
    with run_lock(tmp_path / "run", ["a"]):
        assert asked.closed
    timer.join()


def test_sockets_have_a_directory_of_their_own(tmp_path):
    folder = tmp_path / "sockets"
    address = f"ipc://{folder / 'a.0'}"
    with socket_directory(folder, [address, "tcp://127.0.0.1:5700"]):
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a.0").touch()
        with socket_directory(folder, [f"ipc://{folder / 'b.0'}"]):
            (folder / "b.0").touch()
        assert [file.name for file in folder.iterdir()] == ["a.0"]
    assert not folder.exists()
    folder.mkdir(mode=0o755)
    with pytest.raises(RunRefused, match="not a directory of yours alone"), socket_directory(folder, [address]):
        pytest.fail("got in")


def test_a_socket_with_a_living_listener_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short paths, as sockets need
    folder = Path("sockets")
    with socket_directory(folder, ["ipc://sockets/a.0"]), socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sockets/a.0")
        listening.listen()
        monkeypatch.setattr("agent_rl.records.run_directory.DYING_SECONDS", 0.1)
        with pytest.raises(RunRefused, match=r"a living process listens at sockets/a\.0"):
            with socket_directory(folder, ["ipc://sockets/a.0"]):
                pytest.fail("got in")
        assert (folder / "a.0").is_socket()


def test_a_listener_that_is_dying_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sockets").mkdir(mode=0o700)
    code = (
        "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('sockets/a.0'); s.listen(); print(flush=True); "
    )
    command = [sys.executable, "-c", code + "c, _ = s.accept(); c.send(b'hello'); time.sleep(0.3)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
        listener.stdout.readline()
        with socket_directory(Path("sockets"), ["ipc://sockets/a.0"]):
            assert not Path("sockets/a.0").exists()


def test_only_a_summary_of_this_run_counts(tmp_path):
    assert read_summary(tmp_path, None) is None
    with whole(tmp_path / "summary.json") as file:
        file.write_text('{"steps": 3}')
    assert read_summary(tmp_path, None) == {"steps": 3}
    before = summary_file(tmp_path)
    assert read_summary(tmp_path, before) is None
    with whole(tmp_path / "summary.json") as file:
        file.write_text('{"steps": 4}')
    os.utime(tmp_path / "summary.json", (1000.0, 1000.0))  # whatever the clock says
    assert read_summary(tmp_path, before) == {"steps": 4}


def test_metrics_of_all_actors_can_be_scraped_while_the_run_goes_on(stage):
    topology = stage.topology(a='settings = { behaviour = "running" }', b='settings = { behaviour = "running" }')
    [port] = port_blocks(1)
    topology = topology.model_copy(update={"run": topology.run.model_copy(update={"metrics_port": port})})
    found = []

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        return {
            sample.labels["actor"]: sample.value for f in families if f.name == "agent_rl_step" for sample in f.samples
        }

    async def during():
        await stage.await_news(2)
        while found[-1:] != [{"a.0": 7.0, "b.0": 7.0}]:  # heard within moments of being said
            found.append(await trio.to_thread.run_sync(scrape))
        press(signal.SIGTERM)

    assert supervise(stage, topology, during) == 0


def test_a_port_for_metrics_that_is_taken_refuses_the_run(stage):
    topology = stage.topology(a="")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        topology = topology.model_copy(update={"run": topology.run.model_copy(update={"metrics_port": port})})
        with pytest.raises(RunRefused, match=f"run.metrics_port: cannot listen at 127.0.0.1 port {port}"):
            trio.run(partial(run_topology, topology, stage.path, entry_module=ENTRY))


def two_hosts(stage, learner):
    [base] = port_blocks(1)
    CurveKeys.generate().save(stage.folder / "cluster.key")
    hosts = f"[hosts.b]\nbase_port = {base}\n[hosts.a]\nbase_port = {base + 4}\n"
    hosts += '[security]\nkey_file = "cluster.key"\n'
    return stage.topology(hosts=hosts, x='host = "b"', learner=f'host = "a"\n{learner}')


def run_both_hosts(stage, topology, **options):
    codes = {}

    async def one(host):
        codes[host] = await run_topology(topology, stage.path, host=host, entry_module=ENTRY, **options)

    async def main():
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, "a")
                nursery.start_soon(one, "b")

    trio.run(main)
    return codes


def test_the_other_hosts_end_with_the_learners(stage, capsys):
    topology = two_hosts(stage, 'settings = { behaviour = "finished", after = "x.0" }')
    assert run_both_hosts(stage, topology) == {"a": 0, "b": 0}
    assert {stage.heard()[:2] for _ in range(4)} >= {("stopped", "x.0"), ("stopped", "learner.0")}
    assert "look at these hosts" not in capsys.readouterr().out
