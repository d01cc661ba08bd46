"""Processor time: processes and sessions do not enlarge a call's share, and calls have a share beside actors."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from actors.sandbox.inside.shares import FIRST_LOOK_SECONDS, MOST_TASKS, CpuShare, Shares, TaskThrottle
from actors.sandbox.isolation.control_groups import ControlGroup, ControlGroups, in_units
from actors.sandbox.owner.client import ExecutionLimits
from actors.sandbox.wire import NO_VERDICT
from agent_rl.files.cgroups import Hierarchy
from tests.actors.sandbox.running import eventually, interpreter_pid, named, pids, sandboxed

COUNTED = """
import os, resource, time
until = time.perf_counter() + 1
def work():
    while time.perf_counter() < until: pass
children = []
for _ in range({others}):
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
        except OSError:
            pass
        work()
        os._exit(0)
    children.append(pid)
work()
for pid in children: os.waitpid(pid, 0)
print(sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""
"""Uses all the processor time that it gets, in so many sessions beside its own, and prints how much that was."""


def cpu_group(pid: int) -> str:
    """The group of a process that its processor time is counted in: below the sandbox's own."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    places = [line.split(":", 2) for line in lines]
    found = next((place for _, names, place in places if "cpu" in names.split(",")), places[-1][2])
    return found.rpartition("/")[2]


def test_weights_in_the_units_of_each_version():
    assert [in_units(weight, 2) for weight in (1, 100, 10000)] == [1, 100, 10000]
    assert [in_units(weight, 1) for weight in (0, 1, 100, 10000)] == [2, 10, 1024, 102400]


def test_version_2_divides_the_processor_alone(tmp_path):
    top, links = tmp_path / "groups", tmp_path / "ours"
    own = top / "agent-rl.rest"
    own.mkdir(parents=True)
    links.mkdir()
    groups, hierarchy = ControlGroups(), Hierarchy(2, (), own, top)
    for controller, limit in (("memory", 1 << 30), ("pids", 700), ("cpu", 250)):
        groups._make_one(hierarchy, controller, limit, links)
    made = top / "ours"
    assert (top / "cgroup.subtree_control").read_text() == "+cpu"
    texts = {str(path.relative_to(made)): path.read_text() for path in made.rglob("*") if path.is_file()}
    assert texts == {
        "memory.max": str(1 << 30),
        "pids.max": "700",
        "cpu.weight": "250",
        "cgroup.subtree_control": "+cpu",
        "interpreters/cgroup.type": "threaded",
        "interpreters/cpu.weight": "800",
        "calls/cgroup.type": "threaded",
        "calls/cgroup.subtree_control": "+cpu",
        "calls/call-0/cgroup.type": "threaded",
    }
    assert groups.limits == {"memory": "1024 MiB", "pids": "700 tasks", "cpu": "weight 250"}
    assert groups.to_join == [f"{made}/cgroup.procs", f"{made}/interpreters/cgroup.threads"]
    assert [path.name for path in groups.take_calls(3)] == ["call-0", "call-1", "call-2"]
    assert (made / "calls" / "call-2" / "cgroup.type").read_text() == "threaded"
    assert groups.alone == "cgroup.threads"


def test_groups_of_an_interpreter_that_has_ended_are_used_again(tmp_path):
    groups = ControlGroups()
    assert groups.take_calls(5) == []  # there are none
    groups._divide(ControlGroup("cpu", 1, tmp_path, 100))
    first = groups.take_calls(2)
    second = groups.take_calls(2)
    assert not {*first} & {*second}
    groups.give_back(first)
    assert groups.take_calls(2) == first
    assert groups.to_join == [f"{tmp_path}/interpreters/tasks"]


def test_the_share_that_was_used_last_is_given_out_last(tmp_path):
    shares = Shares([str(group_like(tmp_path / name)) for name in "ab"], "tasks")
    a, b = shares.get(), shares.get()
    shares.put_back(a)
    shares.put_back(b)
    assert [shares.get(), shares.get()] == [a, b]
    without = Shares([], "")
    assert os.fstat(without.get().members).st_rdev == Path(os.devnull).stat().st_rdev


def group_like(directory: Path, tasks: int = 0, *, idle: bool = True) -> Path:
    """A directory with the files of a version 1 group that a share uses."""
    directory.mkdir()
    (directory / "tasks").write_text("".join(f"{pid}\n" for pid in range(1000, 1000 + tasks)))
    (directory / "cpu.shares").write_text("1024")
    if idle:
        (directory / "cpu.idle").write_text("0")
    return directory


@pytest.mark.parametrize("idle", [True, False])
def test_a_call_with_many_tasks_yields_after_a_moment_and_the_next_one_there_does_not(tmp_path, *, idle):
    def weights() -> list[str]:
        return [(tmp_path / name / ("cpu.idle" if idle else "cpu.shares")).read_text() for name in ("few", "many")]

    usual, least = ("0", "1") if idle else ("1024", "2024")  # a file keeps the rest of its text
    looks, children = TaskThrottle(), []
    for number, (name, tasks) in enumerate({"few": MOST_TASKS, "many": MOST_TASKS + 1}.items()):
        share = CpuShare(str(group_like(tmp_path / name, tasks, idle=idle)), "tasks")
        call = SimpleNamespace(started=10.0, id=number, verdict=NO_VERDICT)
        children.append(SimpleNamespace(place=SimpleNamespace(share=share), call=call))
        looks.begin(children[-1], call)
    assert looks.seconds(10.0) == pytest.approx(FIRST_LOOK_SECONDS)
    looks.look(10.04)
    assert weights() == [usual, usual]
    looks.look(10.0 + FIRST_LOOK_SECONDS)
    assert weights() == [usual, least]
    assert looks.seconds(10.0 + FIRST_LOOK_SECONDS) == pytest.approx(FIRST_LOOK_SECONDS)  # the one with few
    (tmp_path / "few" / "tasks").write_text("1\n2\n3\n")
    looks.look(11.0)
    assert weights() == [least, least]
    assert looks.seconds(11.0) is None
    for child in children:
        child.place.share.restore()
    assert {text[:4] for text in weights()} == {usual}


def test_a_call_that_has_ended_is_not_looked_at(tmp_path):
    looks, share = TaskThrottle(), CpuShare(str(group_like(tmp_path / "a", 30)), "tasks")
    call = SimpleNamespace(started=10.0, id=1, verdict=NO_VERDICT)
    child = SimpleNamespace(place=SimpleNamespace(share=share), call=call)
    looks.begin(child, call)
    child.call = None
    looks.look(12.0)
    assert looks.seconds(12.0) is None
    assert (tmp_path / "a" / "cpu.idle").read_text() == "0"


@pytest.mark.real_time
@pytest.mark.parametrize("level", ["strong", "filtered"])
async def test_each_call_is_in_a_group_of_its_own_with_all_that_it_starts(level):
    code = "import os, time\nif os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\ntime.sleep(60)"
    async with sandboxed(level, groups=["cpu"]) as sandbox, trio.open_nursery() as nursery:
        for name in ("share-one", "share-two"):
            nursery.start_soon(sandbox.execute, named(name) + code)
        assert await eventually(lambda: len(pids("share-one")) == len(pids("share-two")) == 2)
        [one], [two] = ({cpu_group(pid) for pid in pids(name)} for name in ("share-one", "share-two"))
        assert one != two
        assert {each.rpartition("-")[0] for each in (one, two)} == {"call"}
        assert cpu_group(interpreter_pid(sandbox)) == "interpreters"
        nursery.cancel_scope.cancel()


@pytest.mark.real_time
async def test_a_call_with_many_sessions_gets_no_more_than_one_without(one_processor):
    used: dict[int, float] = {}
    async with sandboxed(groups=["cpu"], limits=ExecutionLimits(wall_seconds=20)) as sandbox:

        async def call(others: int) -> None:
            used[others] = float((await sandbox.execute(COUNTED.format(others=others))).stdout)

        async with trio.open_nursery() as nursery:
            for others in (0, 12):
                nursery.start_soon(call, others)
    assert used[12] < 3 * used[0]  # 13 times as much, were it sessions, or processes, that get the same


@pytest.fixture
def one_processor():
    """For this process, and so for interpreters: with a processor for each there is nothing to share."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)
