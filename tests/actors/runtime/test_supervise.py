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
import urllib.error
import urllib.request
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel
from prometheus_client.parser import text_string_to_metric_families

from actors.exits import describe_exit
from actors.runtime import control, dry_run
from actors.runtime.control import ask_run
from actors.runtime.run import run_topology
from agent_rl.config.addresses import control_addresses, runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.files.disk import DiskError, whole
from agent_rl.messages import Changed, DrainWanted, ScaleWanted
from agent_rl.records.continuing import write_resolved
from agent_rl.records.document import Document
from agent_rl.records.run_directory import (
    RunRefused,
    is_supervised,
    read_memory_kills,
    read_summary,
    run_lock,
    socket_directory,
    summary_file,
)
from tests.actors.runtime.virtual_run import swap as wanted
from tests.actors.runtime.virtual_run import write_topology
from tests.end_to_end.processes import port_blocks
from tests.full_disk import fill, small_disk
from transport import CurveKeys

pytestmark = pytest.mark.real_time

ENTRY = "tests.actors.runtime.fake_entry"
PLAIN, OTHER = f"{ENTRY}:Plain", f"{ENTRY}:Other"
RUNNING = 'settings = { behaviour = "running", number = 1 }'


class Stage:
    """A folder with a topology of fake actors, and the news they send."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "topology.toml"
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.news.bind(str(folder / "news"))
        self.news.settimeout(300)  # the machine may be busy
        self.told = []

    def command(self, *words, path=None):
        """A supervisor of the topology, in a process of its own."""
        return [sys.executable, "-m", "tests.actors.runtime.swap_host", ENTRY, str(path or self.path), *words]

    def topology(self, tables="", **actors):
        write_topology(self.path, PLAIN, tables, actors)
        return load_topology(self.path)

    def heard(self):
        """The next news as (event, actor, pid, incarnation, details...)."""
        event, actor, pid, incarnation, *details = self.news.recv(4096).decode().split()
        self.told.append(" ".join((event, actor, *details)))
        return event, actor, int(pid), int(incarnation), *details

    async def await_news(self, count):
        return [await trio.to_thread.run_sync(self.heard) for _ in range(count)]

    def events(self):
        """All that was told so far."""
        while select.select([self.news], [], [], 0)[0]:
            self.heard()
        return self.told

    async def until(self, count):
        """So many events were told."""
        while len(self.events()) < count:  # noqa: ASYNC110 - other processes tell
            await trio.sleep(0.05)

    @asynccontextmanager
    async def running(self, topology=None, code=0, stop=signal.SIGTERM, **options):
        """A run of the topology, which ends with this code; ``stop`` is the signal at the end of the block, if any."""
        codes = []

        async def run():
            given = topology or load_topology(self.path)
            codes.append(await run_topology(given, self.path, entry_module=ENTRY, **options))

        with trio.fail_after(600):  # the machine may be busy; a deadlock alone lasts so long
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                yield
                if stop is not None:
                    press(stop)
        assert codes == [code]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    folder = tmp_path / "s"
    folder.mkdir()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(dry_run, "DRY_RUN", ENTRY)
    made = Stage(folder)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which ignores it
    yield made
    signal.signal(signal.SIGHUP, hung_up)
    made.news.close()


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


async def test_a_signal_drains_and_says_how_to_continue(stage, capsys):
    stage.topology(a="replicas = 2", b=f'class = "{ENTRY}:First"\nsettings = {{ threads = 3 }}')
    topology = load_topology(stage.path, ["run.seed=4"])
    secret = "environments.0.settings.api_key=hush"
    async with stage.running(topology, stop=signal.SIGINT, overrides=["run.seed=4", secret]):
        heard = await stage.await_news(3)
    heard += [stage.heard() for _ in range(3)]
    ups = {actor: details for event, actor, _, _, *details in heard if event == "up"}
    assert ups == {"a.0": ["1", "True", "4"], "a.1": ["1", "True", "4"], "b.0": ["3", "True", "4"]}
    # b is first by its class' drain_order, though it stands last in the file
    assert next(actor for event, actor, *_ in heard if event == "stopped") == "b.0"
    output = capsys.readouterr().out
    assert f"stopped; continue with: agent-rl run {stage.path} --set run.seed=4 --set" in output
    assert "hush" not in output
    assert_gone(pid for _, _, pid, *_ in heard)
    assert not runtime_directory(topology).exists()


async def test_a_process_that_the_kernel_killed_for_lack_of_memory_is_named_and_recorded(stage, capsys, monkeypatch):
    topology = stage.topology(a='settings = { behaviour = "crash_once" }')
    crashed = stage.folder / "crashed"
    monkeypatch.setattr("actors.exits.memory_kills", lambda: 5 + crashed.exists())
    async with stage.running():
        first, second = await stage.await_news(2)
    assert second[3] == first[3] + 1
    assert stage.heard()[0] == "stopped"
    output = capsys.readouterr().out
    assert "a.0 was killed by the kernel for lack of memory" in output
    assert "starting it again (" not in output, "what it wrote before is no reason"
    assert read_memory_kills(topology.run.directory) == {"a.0": 1}


async def test_a_message_reaches_the_user_though_the_disk_takes_nothing(stage, capsys):
    topology = stage.topology(a='settings = { behaviour = "full_disk" }')
    assert await run_topology(topology, stage.path, entry_module=ENTRY) == 2
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
async def test_a_log_that_is_removed_costs_lines_and_a_run_directory_the_run(stage, capsys, lost):
    directory = stage.topology(a="").run.directory
    end = {} if lost.startswith("log") else {"code": 2, "stop": None}
    async with stage.running(**end):
        ((_, _, pid, *_),) = await stage.await_news(1)
        if lost == "moved":
            directory.rename(stage.folder / "elsewhere")
        elif lost == "removed":
            shutil.rmtree(directory)
        elif lost == "logs":
            shutil.rmtree(directory / "logs")
        else:
            (directory / "logs" / "a.0.stderr").unlink()
        if not end:
            os.kill(pid, signal.SIGKILL)
            assert (await stage.await_news(1))[0][0] == "up"
    said = capsys.readouterr().out
    if end:
        assert f"{directory} was moved or removed under the run; put it back, and start the run again" in said
    assert "Traceback" not in said


async def test_what_ignores_sigterm_is_killed_with_all_it_started(stage, capsys):
    stage.topology(a=f'class = "{ENTRY}:Hasty"\nsettings = {{ behaviour = "stubborn" }}')
    async with stage.running():
        ((_, _, pid, _, grandchild),) = await stage.await_news(1)
    assert "a.0 did not stop in time and is killed" in capsys.readouterr().out
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


async def test_what_an_actor_writes_to_stderr_is_bounded(stage):
    stage.topology(a='settings = { behaviour = "talkative" }')
    kept = stage.folder / "run" / "logs" / "a.0.stderr.1"
    async with stage.running(load_topology(stage.path, ["run.log_mib=0.01"])):
        while not kept.exists():  # noqa: ASYNC110 - a file has no event
            await trio.sleep(0.05)
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
    assert_gone(int(each[4]) for each in heard if behaviour == "stubborn")
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


async def test_metrics_of_all_actors_can_be_scraped_while_the_run_goes_on(stage):
    [port] = port_blocks(1)
    stage.topology(f"metrics_port = {port}\n", **dict.fromkeys("ab", RUNNING))

    def scrape(path="/metrics", **options):
        """Status, content type and body, as a client from the standard library reads them."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", **options)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    async with stage.running():
        await stage.await_news(2)
        found = {}
        while found != {"a.0": 7.0, "b.0": 7.0}:  # heard within moments of being said
            status, kind, text = await trio.to_thread.run_sync(scrape)
            assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
            families = {family.name: family for family in text_string_to_metric_families(text)}
            steps = families["agent_rl_step"].samples if "agent_rl_step" in families else ()
            found = {sample.labels["actor"]: sample.value for sample in steps}
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(20)]  # they hold nobody up
        await idle[0].send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        for path, method, status in (
            ("/metrics?name[]=x", "GET", 200),
            ("/metrics", "HEAD", 200),
            ("/", "GET", 404),
            ("/metrics", "DELETE", 405),
            ("/metrics", "POST", 405),
        ):
            found = await trio.to_thread.run_sync(partial(scrape, path, method=method))
            assert (found[0], method == "HEAD" and found[2]) == (status, method == "HEAD" and "")
        for stream in idle:
            await stream.aclose()


async def test_a_port_for_metrics_that_is_taken_refuses_the_run(stage):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        topology = stage.topology(f"metrics_port = {port}\n", a="")
        with pytest.raises(RunRefused, match=f"run.metrics_port: cannot listen at 127.0.0.1 port {port}"):
            await run_topology(topology, stage.path, entry_module=ENTRY)


def two_hosts(stage, **actors):
    """Hosts a and b, with a key."""
    ports = port_blocks(2)
    CurveKeys.generate().save(stage.folder / "cluster.key")
    hosts = "".join(f"[hosts.{name}]\nbase_port = {port}\n" for name, port in zip("ab", ports, strict=True))
    return stage.topology(f'{hosts}[security]\nkey_file = "cluster.key"\n', **actors)


# Changes of a run under way: what they do is held in virtual time by test_changes.


async def swap(stage, asked):
    """Ask until the supervisor has heard of every actor that it is ready."""
    while True:
        answer = await ask_run(stage.folder / "run", asked)
        if not any("has not started yet" in line for line in answer.refused):
            return answer
        await trio.sleep(0.1)


async def test_a_swap_that_fails_leaves_all_as_it_was_and_another_replaces_the_process(stage):
    topology = stage.topology(first=RUNNING, second=RUNNING)
    async with stage.running():
        await stage.until(2)
        assert await swap(stage, wanted("second", "refused:Class")) == Changed(
            ("there is no module 'refused'", "mend it"), ()
        )
        with ExitStack() as others:
            for address in control_addresses(topology, runtime_directory(topology)).values():
                other = others.enter_context(socket.socket(socket.AF_UNIX))
                other.bind(address.removeprefix("ipc://"))
                other.listen()
            with pytest.raises(RunRefused, match="other commands change this run; ask again when"):
                await ask_run(stage.folder / "run", wanted("second", OTHER))
        [fault] = (await swap(stage, wanted("second", OTHER, 'behaviour="dies"'))).refused
        assert fault.startswith("the new second.0 exited with status 7 before it was ready: no such device")
        assert len(stage.events()) == 2, "the former process never stopped"
        first, *_ = (await swap(stage, wanted("second", OTHER, "number=5"))).done
        assert first.startswith(f"second.0 is now {ENTRY}:Other; it was away for ")
        assert first.endswith("s (beside)")
        await stage.until(5)
        assert stage.events()[2:] == ["ready second.0 Other 5", "left second.0 Plain 1", "up second.0 Other 5"]
    assert Document.read(stage.folder / "run").ended
    assert not runtime_directory(topology).exists()


async def test_a_dry_run_that_never_ends_is_ended_and_refuses_the_change(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "DRY_RUN_SECONDS", 0.0)
    janitor = SimpleNamespace(started=lambda _: None, ended=lambda _: None)
    late, *_ = await dry_run.faults_of("[run]", tmp_path, (), tmp_path / "stderr", janitor)
    assert late.startswith("the dry run of the change did not end in 0 s")


async def test_a_role_is_scaled_and_a_host_is_drained_by_who_has_the_key(stage, monkeypatch):
    """The hosts have run directories of their own, as on two machines."""
    monkeypatch.setattr(control, "KEY_SECONDS", 0.5)
    second = f'hosts = ["a", "b"]\nreplicas = 3\nstart = 2\n{RUNNING}'
    two_hosts(stage, first=f'host = "a"\n{RUNNING}', second=second)
    elsewhere, key_file = stage.path.with_name("elsewhere.toml"), stage.folder / "cluster.key"
    elsewhere.write_text(stage.path.read_text().replace(str(stage.folder / "run"), str(stage.folder / "run_of_b")))
    other = subprocess.Popen(stage.command("b", path=elsewhere), start_new_session=True)  # noqa: ASYNC220
    try:
        async with stage.running(host="a"):
            await stage.until(3)
            answer = await swap(stage, ScaleWanted("second", 3))
            assert answer == Changed((), ("second.2 runs", "second has 3 processes"))
            await stage.until(4)
            assert stage.events()[3:] == ["up second.2 Plain 1"]
            answer = await ask_run(stage.folder / "run_of_b", ScaleWanted("second", 2))
            assert answer == Changed((), ("second.2 has left", "second has 2 processes"))
            key = key_file.read_bytes()
            key_file.unlink()  # the run has read it
            with pytest.raises(RunRefused, match=r"there is no file .*key; copy the key of the run there"):
                await ask_run(stage.folder / "run", DrainWanted("b"))
            CurveKeys.generate().save(key_file)
            with pytest.raises(RunRefused, match=r"supervisor\.a refuses the key of this command: .*key is not"):
                await ask_run(stage.folder / "run", DrainWanted("b"))
            assert stage.events()[4:] == ["left second.2 Plain 1"]
            key_file.write_bytes(key)
            assert (await swap(stage, DrainWanted("b"))).done == ("host b leaves: its actors stop in order",)
            assert await trio.to_thread.run_sync(other.wait, 60) == 0
            assert stage.events()[5:] == ["left second.1 Plain 1"]
    finally:
        other.kill()
        other.wait()


def test_a_command_that_comes_as_the_run_ends_leaves_no_folder_of_sockets(stage, monkeypatch):
    topology, directory = stage.topology(first=""), stage.folder / "run"
    directory.mkdir()
    write_resolved(topology, directory, "local", "")
    monkeypatch.setattr(control, "is_supervised", lambda *_: True)
    monkeypatch.setattr(control, "SILENT_SECONDS", 0.2)
    with pytest.raises(RunRefused, match=r"supervisor\.local does not answer"):
        trio.run(ask_run, directory, wanted("first", OTHER))
    assert not runtime_directory(topology).exists()


def test_without_a_run_the_command_says_so(tmp_path):
    with pytest.raises(RunRefused, match="no run is under way"):
        trio.run(ask_run, tmp_path, wanted("learner", "x:Y"))
