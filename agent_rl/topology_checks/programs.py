"""Whether this machine has the programs that environments start, and can make the containers that they name."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_rl.config.source import Finding
from agent_rl.config.topology import Topology
from agent_rl.topology_checks.facts import Facts

ANSWER_SECONDS = 20.0
"""How long docker may take to answer."""


def program_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """Programs of harnesses and of MCP servers that are missing, and a docker that does not answer.

    Nothing is looked for where some host of the run is another machine: an actor's start says it there.
    """
    if not all(facts.is_here(topology, host) for host in topology.hosts_in_use):
        return
    base = facts.base.absolute()
    for index, entry in enumerate(topology.environments):
        remedy = "install it, or correct the path"
        for name, server in entry.mcp.items():
            if server.command and _missing(server.command[0], base / entry.base, server.environment):
                message = f"environment {entry.name!r}: there is no {server.command[0]!r}, its MCP server {name!r}"
                yield Finding(("environments", index, "mcp", name, "command"), message, remedy)
        if entry.harness is None:
            continue
        if entry.harness.container is not None:
            if fault := _container_fault():
                message = f"environment {entry.name!r}: no container can be made: {fault}"
                remedy = "install or start it, give your user the right to it, or leave out `container`"
                yield Finding(("environments", index, "harness", "container"), message, remedy)
        elif entry.harness.command:
            program = entry.harness.command[0].replace("{base}", str(base))
            if (program.startswith("/") or "/" not in program) and _missing(program, base, entry.harness.environment):
                message = f"environment {entry.name!r}: there is no {program!r}, its harness"
                yield Finding(("environments", index, "harness", "command"), message, remedy)


def _missing(program: str, folder: Path, variables: Mapping[str, str]) -> bool:
    """Whether there is no such program; relative paths start at ``folder``. A PATH of its own is not looked through."""
    if "/" in program:
        return shutil.which(folder / program) is None
    return "PATH" not in variables and shutil.which(program) is None


def _container_fault() -> str:
    """Why no container can be made; empty where docker answers."""
    words = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except FileNotFoundError:
        return f"there is no `{words[0]}`"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return "" if done.returncode == 0 else f"`{' '.join(words)}` says: {said[-1] if said else 'nothing'}"
