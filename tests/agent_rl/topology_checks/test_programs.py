"""What environments start is looked for before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.source import Finding
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.programs import program_findings
from tests.end_to_end.topologies import write_micro


def findings(folder: Path, *overrides: str, started: str | None = None) -> list[Finding]:
    path, _ = write_micro(folder)
    topology = load_topology(path, [f"environments.0.{each}" for each in overrides])
    return list(program_findings(topology, Facts(folder, started)))


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ('harness={command=["no-agent"]}', "command", "environment 'arithmetic': there is no 'no-agent', its harness"),
        ('harness={command=["{base}/no/agent"]}', "command", "no/agent', its harness"),
        ('mcp={s={command=["./no-server"]}}', "command", "there is no './no-server', its MCP server 's'"),
        ('mcp={s={command=["no-server"]}}', "command", "there is no 'no-server', its MCP server 's'"),
    ],
)
def test_a_missing_program_is_named(tmp_path: Path, given: str, key: str, said: str) -> None:
    ((place, message, remedy),) = findings(tmp_path, given)
    assert (place[:2], place[-1], remedy) == (("environments", 0), key, "install it, or correct the path")
    assert said in message


@pytest.mark.parametrize(
    "given",
    [
        'harness={command=["sh", "{prompt}"]}',
        'harness={command=["{base}/agent"]}',
        'harness={command=["./of-the-task"]}',
        'harness={command=["no-agent"], environment={PATH="/somewhere"}}',
        'harness={source="live"}',
        'mcp={s={command=["./agent"]}}',
        'mcp={s={url="http://127.0.0.1:1"}}',
        'harness={command=["of-the-image"], container={image="i"}}',
    ],
)
def test_what_is_here_or_is_not_this_hosts_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    for name, text in (("agent", ""), ("docker", "echo 28")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert findings(tmp_path, given) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "there is no `docker`"),
        ("echo Is the docker daemon running? >&2; exit 1", "Is the docker daemon running?"),
        ("echo no; exit 1", "says: no"),
        ("exit 1", "says: nothing"),
    ],
)
def test_containers_that_cannot_be_made_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    if command:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = 'harness={command=["a"], container={image="i"}}'
    ((place, message, remedy),) = findings(tmp_path, given)
    assert place == ("environments", 0, "harness", "container")
    assert message.startswith("environment 'arithmetic': no container can be made: ")
    assert said in message
    assert "leave out `container`" in remedy
    assert findings(tmp_path, given, started="another") == []
