"""``agent-rl join``: what is wrong with the command or the file is one clear message, and the exit code is 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.topologies import write_micro, write_three_hosts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_three_hosts(tmp_path, (5700, 5800, 5900), steps=1)[0]


def refused(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    """What the command says: one line on stderr."""
    assert main(["join", str(path), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line.removeprefix("agent-rl: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "b"), "host b cannot join: the file names the host b; start it with agent-rl run FILE --host b"),
        (("--host", "d", "--role", "learner=1"), "host d cannot join: there is exactly one learner, since it keeps"),
        (("--host", "d", "--role", "lerner=1"), "--role lerner=1: no role is named 'lerner'; there are kv_scheduler"),
        (("--host", "d", "--role", "tool_executor"), "--role tool_executor: write ROLE=N with a number from 1 on"),
        (("--host", "d", "--role", "tool_executor=0"), "--role tool_executor=0: write ROLE=N with a number from 1 on"),
        (("--host", "d e"), "--host 'd e': a name has letters, digits, - and _ alone"),
        (("--host", "d", "--base-port", "5801"), "host d cannot join: host b has the ports 5800 to 5802 at 127.0.0.1"),
        (("--host", "d", "--set", "actors.learner.class=no:Class"), "there is no module 'no'"),
    ],
)
def test_a_mistake_of_the_command_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, path, *arguments, "--address", "127.0.0.1")


def test_a_role_that_is_named_twice_and_an_unknown_address(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ("--role", "tool_executor=1", "--role", "tool_executor=2")
    said = refused(capsys, path, "--host", "d", "--address", "127.0.0.1", *twice)
    assert said.endswith("tool_executor is given twice; give it once")
    said = refused(capsys, path, "--host", "d", "--address", "no address")
    assert said.startswith("--address no address: this machine does not know it")


def test_without_the_key_no_host_joins(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parent / "cluster.key").unlink()
    said = refused(capsys, path, "--host", "d", "--address", "127.0.0.1", "--base-port", "6000")
    assert said.startswith(f"{path}:")
    assert "security.key_file: there is no file" in said


def test_a_run_on_unix_sockets_takes_no_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = write_micro(tmp_path)
    said = refused(capsys, path, "--host", "d", "--address", "10.0.0.4")
    assert said.startswith("host d cannot join: the run listens on Unix sockets alone")
