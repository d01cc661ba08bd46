"""The supervisor with real processes: restarts, draining, signals, and that no process is ever left behind."""

import contextlib
import errno
import fcntl
import os
import select
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

# An actor's process without torch and without an actor: it does what its settings say, and tells the test by datagram.
ENTRY = """\
import argparse, ctypes, os, select, signal, socket, subprocess, sys, time, tomllib
from pathlib import Path
from pydantic import BaseModel, ConfigDict


class Plain:
    class Settings(BaseModel):
        behaviour: str = "run"
        after: str = ""
        threads: int | None = None

    receives = ()
    links = {}
    drain_seconds = 0.3

    async def handle(self, message):
        pass


class First(Plain):
    drain_order = 10


def announce_finished(options, path, state):
    from functools import partial
    import trio
    from agent_rl import messages
    from agent_rl.figures import ActorFigures
    from agent_rl.config.addresses import addresses, runtime_directory, supervisor_node
    from agent_rl.config.load import load_topology
    from transport import CurveKeys, Node, Registry, ZmqNetwork

    async def run():
        topology = load_topology(path)
        keys = topology.security.key_file
        table = addresses(topology, runtime_directory(topology))
        network = ZmqNetwork(table, curve=None if keys is None else CurveKeys.load(Path(options.base) / keys))
        node = Node(options.actor, network, Registry.of(messages), incarnation=options.incarnation)
        link = node.announce("status", [supervisor_node(topology.main_host)])

        async def ignore(delivery):
            pass

        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM) as received:
                await nursery.start(partial(node.run, ignore))

                async def report():
                    figures = ActorFigures(extra={"step": 7.0})
                    while True:
                        link.set(messages.ActorStatus(options.actor, "x", state, "for a reason", figures, "", 0, 0))
                        await trio.sleep(0.2)

                nursery.start_soon(report)
                async for _ in received:
                    nursery.cancel_scope.cancel()

    trio.run(run)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--topology", "--base", "--actor", "--started-at", "--epoch"):
        parser.add_argument(name, required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--restarted", action="store_true")
    options = parser.parse_args()
    path = Path(options.topology)
    role = options.actor.rsplit(".", 1)[0]
    topology = tomllib.loads(path.read_text())
    settings = topology["actors"][role].get("settings", {})
    behaviour = settings.get("behaviour", "run")

    def tell(event, detail=""):
        (Path(options.base) / f"{options.actor}.{event}").touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
            text = f"{event} {options.actor} {os.getpid()} {options.incarnation} {detail}"
            news.sendto(text.encode(), str(Path(options.base) / "news"))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if behaviour == "run":
        tell("up", " ".join([os.environ["OMP_NUM_THREADS"], str(os.getpgid(0) == os.getpid()), str(topology["run"]["seed"])]))
        signal.sigwait({signal.SIGTERM})
        tell("stopped")
    elif behaviour == "stubborn":
        child = subprocess.Popen(["sleep", "600"])
        tell("up", str(child.pid))
        signal.sigwait({signal.SIGUSR1})
    elif behaviour == "lifeline":
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # live on when the parent dies, so that the lifeline alone tells
        tell("up")
        while os.read(options.lifeline, 4096):
            pass
        tell("lifeline")
    elif behaviour == "talkative":
        tell("up")
        number = 0
        while not signal.sigtimedwait({signal.SIGTERM}, 0.001):
            print("line", number, file=sys.stderr, flush=True)
            number += 1
        print("last", file=sys.stderr)
    elif behaviour == "crash_once":
        tell("up")
        marker = Path(options.base) / "crashed"
        if not marker.exists():
            marker.touch()
            print("a library says something", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.sigwait({signal.SIGTERM})
        tell("stopped")
    elif behaviour == "full_disk":
        from actors.runtime.children import leave_message
        os.close(2)
        os.open("/dev/full", os.O_WRONLY)  # what is written to stderr is refused
        try:
            print("noise that stays in a buffer", file=sys.stderr)
        except OSError:
            pass
        leave_message("/run/journal.sqlite cannot be written: make room")
        sys.exit(3)
    elif behaviour in {"finished", "running"}:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        tell("up")
        while "after" in settings and not (Path(options.base) / (settings["after"] + ".up")).exists():
            time.sleep(0.05)
        announce_finished(options, path, behaviour)
        tell("stopped")


if __name__ == "__main__":
    main()
"""

SCRIPT = """\
import sys
import threading
import time
from functools import partial
from pathlib import Path
import trio
from agent_rl.config.load import load_topology
from agent_rl.files.leftovers import Janitor
from actors.runtime.run import run_topology
path = Path(sys.argv[1])
if sys.argv[2] == "lifeline":  # what the actors themselves do is to be seen
    Janitor.started = lambda janitor, group: None
host = sys.argv[3] if len(sys.argv) > 3 else None
sys.exit(trio.run(partial(run_topology, load_topology(path), path, host=host, entry_module="fake_entry")))
"""


class Stage:
    """A folder with a topology of fake actors, and the news they send."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "topology.toml"
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.news.bind(str(folder / "news"))
        self.news.settimeout(60)

    def topology(self, *, hosts="", **actors):
        text = f'[run]\nname = "demo"\ndirectory = "{self.folder / "run"}"\n[model]\npath = "x"\n[[environments]]\nclass = "maths"\nsettings.files = ["x"]\n'
        text += '[[stages]]\nkind = "sft"\nsteps = 1\n' + hosts
        for role, keys in actors.items():
            text += f"[actors.{role}]\n" + ('class = "fake_entry:Plain"\n' if "class" not in keys else "") + keys + "\n"
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
    (folder / "fake_entry.py").write_text(ENTRY, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "fake_entry", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = Stage(folder)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which ignores it
    yield made
    signal.signal(signal.SIGHUP, hung_up)
    made.news.close()
    monkeypatch.delitem(sys.modules, "fake_entry", raising=False)


def supervise(stage, topology, during=None, **options):
    """Run to the end, with ``during`` beside it; the exit code."""

    async def main():
        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                if during is not None:
                    nursery.start_soon(during)
                return await run_topology(topology, stage.path, entry_module="fake_entry", **options)

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
    os.kill(os.getpid(), number)


def test_exit_statuses_in_words():
    assert describe_exit(1) == "exited with status 1"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-250) == "was killed by signal 250"
    assert describe_exit(-9, lacked_memory=True).startswith("was killed by the kernel for lack of memory")


def test_a_signal_drains_and_says_how_to_continue(stage, capsys):
    stage.topology(a="replicas = 2", b='class = "fake_entry:First"\nsettings = { threads = 3 }')
    topology = load_topology(stage.path, ["run.seed=4"])
    heard = []

    async def during():
        heard.extend(await stage.await_news(3))
        press(signal.SIGINT)
        heard.extend(await stage.await_news(3))

    secret = "environments.0.settings.api_key=hush"
    assert supervise(stage, topology, during, overrides=["run.seed=4", secret]) == 0
    ups = {actor: details for event, actor, _, _, *details in heard if event == "up"}
    assert ups == {
        "a.0": ["1", "True", "4"],
        "a.1": ["1", "True", "4"],
        "b.0": ["3", "True", "4"],
    }
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
            trio.run(partial(run_topology, topology, stage.path, entry_module="fake_entry"))


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
    script = stage.folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = ["nohup", sys.executable, str(script), str(stage.path), "run"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as supervisor:
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
    script = stage.folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(script), str(stage.path), "run"]
    with Path("/dev/full").open("w") as full, os.fdopen(write, "w") as closed:
        out = full if output == "a full disk" else closed
        with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as supervisor:
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
        nursery.start_soon(partial(run_topology, topology, stage.path, entry_module="fake_entry"))
        heard.extend(await stage.await_news(2))
        nursery.cancel_scope.cancel()
    assert_gone(number for _, _, pid, _, grandchild in heard for number in (pid, int(grandchild)))


@pytest.mark.parametrize("behaviour", ["stubborn", "lifeline"])
def test_killing_the_supervisor_leaves_no_actor(stage, behaviour):
    topology = stage.topology(a=f'replicas = 2\nsettings = {{ behaviour = "{behaviour}" }}')
    script = stage.folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), str(stage.path), behaviour]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as supervisor:
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
            trio.run(partial(run_topology, topology, stage.path, entry_module="fake_entry"))


def two_hosts(stage, learner):
    [base] = port_blocks(1)
    CurveKeys.generate().save(stage.folder / "cluster.key")
    hosts = f"[hosts.b]\nbase_port = {base}\n[hosts.a]\nbase_port = {base + 4}\n"
    hosts += '[security]\nkey_file = "cluster.key"\n'
    return stage.topology(hosts=hosts, x='host = "b"', learner=f'host = "a"\n{learner}')


def run_both_hosts(stage, topology, **options):
    codes = {}

    async def one(host):
        codes[host] = await run_topology(topology, stage.path, host=host, entry_module="fake_entry", **options)

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
