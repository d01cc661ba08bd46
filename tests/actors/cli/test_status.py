"""``agent-rl status``: what is wanted beside what is there."""

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.records.document import Document
from agent_rl.records.run_directory import run_lock
from tests.end_to_end.topologies import write_micro


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Document]:
    path, directory = write_micro(tmp_path)
    directory.mkdir()
    document = Document.begun(load_topology(path), ["local"], None)
    document.follow(load_topology(path))
    for actor in document.processes:
        document.process(actor, "running")
    document.write(directory)
    return directory, document


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_run_under_way_in_which_all_is_as_it_is_wanted(
    run: tuple[Path, Document], capsys: pytest.CaptureFixture[str]
) -> None:
    with run_lock(run[0], ["local"]):
        assert main(["status", str(run[0])]) == 0
    lines = printed(capsys)
    assert lines[:3] == ["under way", "host wanted seen", "local up up"]
    assert "tool_executor actors.tool_executor:ToolExecutor 1 1 up" in lines
    assert not any(line.startswith("not as wanted") for line in lines)


def test_what_is_not_as_it_is_wanted_is_named_with_its_reason_and_who_asked_for_what(
    run: tuple[Path, Document], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, document = run
    document.process("tool_executor.0", "failed", "no [bold]room\x1b[31m left")
    document.edited(0.0, "scaling of [bold]", [], ["there is no room"])
    document.write(directory)
    with run_lock(directory, ["local"]):
        assert main(["status", str(directory)]) == 1
        lines = printed(capsys)
        assert main(["status", str(directory), "--json"]) == 1
    assert "tool_executor.0 local up gone no [bold]room␛[31m left" in lines
    assert lines[-1].endswith("scaling of [bold] refused: there is no room")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["under_way"], shown["processes"]["tool_executor.0"]["state"]) == (True, "gone")
    assert "settings" not in shown["roles"]["learner"], "settings may hold secrets"


def test_a_run_that_ended_and_one_whose_supervisor_was_killed(
    run: tuple[Path, Document], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, document = run
    assert main(["status", str(directory)]) == 1
    lines = printed(capsys)
    assert lines[0].startswith("not under way: its supervisor was killed")
    assert lines[1:3] == ["host wanted seen last", "local up up"]
    document.end()
    document.write(directory)
    assert main(["status", str(directory)]) == 1
    lines = printed(capsys)
    assert lines[:3] == ["not under way: it has ended", "host wanted seen last", "local up gone"]
    assert "learner actors.learner:Learner 1 1 gone" in lines


def test_a_directory_without_a_document_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "state.json cannot be read, or is not there; name the run directory" in capsys.readouterr().err
