"""The document of a run: what is wanted, what is seen, and what of it the next start holds."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records.document import EDITS, FILE, Document
from tests.end_to_end.topologies import write_micro, write_two_hosts


@pytest.fixture
def micro(tmp_path: Path) -> Path:
    return write_micro(tmp_path)[0]


def begun(topology: Topology, former: Document | None = None) -> Document:
    document = Document.begun(topology, [topology.main_host], former)
    document.follow(topology)
    return document


def seen(document: Document) -> dict[str, str]:
    return {name: document.seen(process) for name, process in document.processes.items()}


KEYS = tuple(f"actors.kv_scheduler.settings.{key}" for key in ("request_window=2000", "keep_turns=false"))


def swapped(micro: Path) -> Document:
    document = begun(load_topology(micro))
    for since, key in enumerate(KEYS, 1):
        document.change("kv_scheduler", keys=[key], since=since)
    document.follow(load_topology(micro, KEYS))
    return document


def test_a_start_after_an_end_says_what_the_last_one_had_changed(micro: Path, tmp_path: Path) -> None:
    topology, document = load_topology(micro), swapped(micro)
    assert list(document.differences(topology)) == [], "it is in force"
    document.change("learner", runs=[0])
    document.end()
    document.write(tmp_path)
    read = Document.read(tmp_path)
    assert read == document
    [line] = read.differences(topology)
    assert line.startswith("kv_scheduler was swapped in the last start, and now is what the file says")
    assert '"request_window": 2000' in line
    assert list(read.differences(load_topology(micro, KEYS))) == []
    assert (read.swapped, begun(topology, read).swaps) == ([], {})
    assert begun(topology, read).roles["kv_scheduler"].since == 0


def test_a_start_after_a_kill_holds_what_was_changed_and_the_file_else(micro: Path, tmp_path: Path) -> None:
    document = swapped(micro)
    document.write(tmp_path)
    read = Document.read(tmp_path)
    assert (read.swaps, read.roles["kv_scheduler"].since) == ({"kv_scheduler": KEYS}, 2)
    more = ["actors.tool_executor.replicas=3", "actors.tool_executor.start=2"]
    again = begun(load_topology(micro, more), read)
    assert again.swaps == {"kv_scheduler": KEYS}
    assert again.roles["tool_executor"].runs == [0, 1], "the file was edited meanwhile"
    again.change("tool_executor", runs=[0, 2])
    assert begun(load_topology(micro, more[:1]), again).roles["tool_executor"].runs == [0, 2]
    assert begun(load_topology(micro), again).roles["tool_executor"].runs == [0], "those that it allows"
    topology = load_topology(micro)
    gone = topology.model_copy(update={"actors": {"learner": topology.actors["learner"]}})
    assert begun(gone, read).roles.keys() == {"learner"}


def test_a_change_that_is_taken_back_leaves_those_before_it(micro: Path) -> None:
    document = swapped(micro)
    former = document.change("kv_scheduler", keys=["another"], since=3)
    assert document.swaps == {"kv_scheduler": (*KEYS, "another")}
    document.roles["kv_scheduler"] = former
    assert (document.swaps, former.since) == ({"kv_scheduler": KEYS}, 2)


@pytest.mark.parametrize("text", [None, "[", "[]", '{"roles": 1}', '{"processes": {"a": {"state": "odd"}}}'])
def test_a_document_that_cannot_be_read_is_none(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    assert Document.read(tmp_path) is None


def test_processes_go_from_wanted_to_gone(micro: Path) -> None:
    more = load_topology(micro, ["actors.tool_executor.replicas=2", "actors.tool_executor.start=1"])
    document = begun(more)
    assert set(seen(document).values()) == {"wanted"}
    for word, state in (
        ("starting", "starting"), ("running", "up"), ("failed", "gone"), ("restarting", "starting"), ("idle", "up"),
        ("stopping", "draining"), ("stopped", "gone"),
    ):  # fmt: skip
        assert document.process("tool_executor.0", word, "why")
        assert not document.process("tool_executor.0", word, "why")
        process = document.processes["tool_executor.0"]
        assert (process.state, process.detail) == (state, "" if state == "up" else "why")
        assert ("tool_executor.0" in document.others) == (state != "up")
    assert not document.process("tool_executor.1", "running"), "it is not wanted"
    document.change("tool_executor", runs=[0, 1])
    document.follow(more)
    document.process("tool_executor.1", "running")
    assert "tool_executor.1" not in document.others
    document.change("tool_executor", runs=[0])
    document.follow(more)
    assert "tool_executor.1" in document.others
    document.process("tool_executor.1", "stopped")
    assert "tool_executor.1" not in document.processes


def test_a_host_that_leaves_takes_its_processes_along_and_may_come_back(tmp_path: Path) -> None:
    path, _ = write_two_hosts(tmp_path, (7000, 7100))
    topology = load_topology(path)
    main = topology.main_host
    [other] = {*topology.hosts_in_use} - {main}
    document = begun(topology)
    there = [name for name, process in document.processes.items() if process.host == other]
    assert {name: host.state for name, host in document.hosts.items()} == {main: "up", other: "wanted"}
    assert document.host(other, "up", topology)
    assert not document.host(other, "up", topology)
    for actor in there:
        document.process(actor, "running")
    document.host(other, "gone", topology)
    assert {*there} <= document.others.keys()
    assert {seen(document)[actor] for actor in there} == {"gone"}
    document.host(other, "up", topology)
    assert not {*there} & document.others.keys(), "an actor whose status does not change does not tell it again"
    document.drain(other, 7, topology)
    assert not document.host(other, "up", topology), "it is heard as long as it drains"
    assert seen(document)[there[0]] == "up"
    document.host(other, "gone", topology)
    assert not {*there} & document.processes.keys()
    again = begun(topology, document)
    assert not again.hosts[other].wanted, "a supervisor that is started again does not wait for it"
    again.host(other, "up", topology)
    assert {*there} <= again.processes.keys()


@pytest.mark.parametrize("first", ["gone", "drain"])
def test_a_host_that_left_before_it_was_said_to_drain_may_come_back(tmp_path: Path, first: str) -> None:
    path, _ = write_two_hosts(tmp_path, (7000, 7100))
    topology = load_topology(path)
    document = begun(topology)
    if first == "gone":
        document.host("b", "gone", topology)
    document.drain("b", 7, topology)
    document.host("b", "gone", topology)
    left = document.hosts["b"]
    assert (left.wanted, left.state, left.left) == (False, "gone", 7)
    assert document.host("b", "up", topology)
    assert (left.wanted, left.state, left.left) == (True, "up", 0)


EVENTS = st.one_of(
    st.tuples(st.just("process"), st.integers(0, 3), st.sampled_from(["starting", "running", "stopping", "stopped"])),
    st.tuples(st.just("scale"), st.integers(1, 4), st.none()),
)


@settings(max_examples=50)
@given(events=st.lists(EVENTS, max_size=30))
def test_those_that_are_wanted_are_listed_and_others_until_they_are_gone(
    events: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, _ = write_micro(tmp_path_factory.getbasetemp())
    topology = load_topology(path, ["actors.tool_executor.replicas=4", "actors.tool_executor.start=1"])
    document, runs = begun(topology), [0]
    for event, number, word in events:
        match event:
            case "process":
                document.process(f"tool_executor.{number}", word)
            case "scale":
                runs = list(range(number))
                document.change("tool_executor", runs=runs)
                document.follow(topology)
    wanted = {f"tool_executor.{number}" for number in runs}
    listed = {name: each for name, each in document.processes.items() if each.role == "tool_executor"}
    assert wanted <= listed.keys()
    assert all(each.state not in {"wanted", "gone"} for name, each in listed.items() if name not in wanted)
    assert all(each.wanted == (name in wanted) for name, each in listed.items())


def test_the_newest_edits_are_kept() -> None:
    document = Document()
    for number in range(EDITS + 2):
        document.edited(float(number), "scaling", ["done"], ["refused"])
    assert [edit.at for edit in document.edits] == [float(number) for number in range(2, EDITS + 2)]
    assert (document.edits[0].done, document.edits[0].refused) == (["done"], ["refused"])
