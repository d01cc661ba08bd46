"""A dry run of a changed topology, in a process of its own: ``python -m actors.runtime.dry_run --topology FILE ...``.

User code that a swap names is imported and tried here first, so that it cannot harm the supervisor. Exit status 3 means
that the change is refused; the message then has the reasons, one a line.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import trio

from actors.runtime.children import leave_message, start_child
from actors.runtime.reconcile import USER_MISTAKE
from actors.weights.transfer import way_of
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import resolve
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.config.user_modules import look_beside
from agent_rl.files.leftovers import Janitor
from agent_rl.topology_checks.contracts import declaration
from agent_rl.topology_checks.topology import check_topology

DRY_RUN = "actors.runtime.dry_run"
DRY_RUN_SECONDS = 300.0
"""How long a dry run may take: it imports torch and what users name, and tries it on made-up input."""


NAME = Path("the topology of the run")
"""What messages call it: it is in no file."""


def reasons_against(path: Path, beside: Path, overrides: Sequence[str]) -> list[str]:
    """Why a run of the topology at ``path`` cannot go on with these overrides, as lines; none: it can.

    Relative paths start from the folder of the file ``beside``.
    """
    look_beside(beside)
    try:
        former, topology = load_topology(path), load_topology(path, overrides)
        faults = check_topology(topology, path, overrides, beside=beside)
    except TopologyError as error:
        faults = error.faults
    if faults:
        return [fault.render(NAME) for fault in faults]
    return shared_faults(former, topology)


def shared_faults(former: Topology, topology: Topology) -> list[str]:
    """Settings that several roles read at their start, and that therefore cannot change for one of them."""
    faults = []
    for role, entry in topology.actors.items():
        before, after = (
            declaration(resolve("actor", each.class_path), each.settings) for each in (former.actors[role], entry)
        )
        if before is not after:
            faults.append(f"actors.{role}: episodes would have another format than those that the learner has read")
    if way_of(former) != way_of(topology):
        faults.append("weights_in: generators and learner must begin with the same way in which weights go")
    return [f"{fault}; stop the run, change the file, and run it again" for fault in faults]


async def faults_of(text: str, beside: Path, keys: Sequence[str], stderr: Path, janitor: Janitor) -> list[str]:
    """Why a run of the topology in ``text`` cannot go on with these keys, as lines; none: it can.

    ``beside``: the file from whose folder relative paths start. ``stderr``: the file that gets the dry run's output.
    """
    arguments = ["--beside", str(beside), *(f"--set={key}" for key in keys)]
    child = start_child(DRY_RUN, arguments, environment=os.environ, stderr=stderr, topology=text)
    janitor.started(child.pid)
    status = None
    try:
        with trio.move_on_after(DRY_RUN_SECONDS):
            status = await child.wait()
    finally:
        if not child.ended:
            child.reap()
        janitor.ended(child.pid)
    if status is None:
        late = f"the dry run of the change did not end in {DRY_RUN_SECONDS:g} s: a module, `check` or `probe` blocks"
        return [late, *child.last_words(), f"more in {stderr}"]
    if status == USER_MISTAKE:
        return child.message.splitlines() or ["the dry run gave no reason"]
    if status:
        return [f"the dry run {child.ending(status)}", *child.last_words(), f"more in {stderr}"]
    return []


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="actors.runtime.dry_run", description="Try a change of a running topology.")
    parser.add_argument("--topology", type=Path, required=True)
    parser.add_argument("--beside", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--lifeline", type=int)
    arguments = parser.parse_args()
    faults = reasons_against(arguments.topology, arguments.beside, arguments.set)
    if faults:
        leave_message("\n".join(faults))
        raise SystemExit(USER_MISTAKE)


if __name__ == "__main__":
    main()
