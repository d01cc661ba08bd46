"""The supervisor's side of a trial (`actors.runtime.trial`), which tries a changed topology in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from actors.runtime.actor_process import USER_MISTAKE
from actors.runtime.children import start_child
from actors.runtime.lifecycle import describe_exit
from agent_rl.files.leftovers import Janitor

TRIAL = "actors.runtime.trial"


async def faults_of(path: Path, beside: Path, keys: Sequence[str], stderr: Path, janitor: Janitor) -> list[str]:
    """Why a run of the topology at ``path`` cannot go on with these keys, as lines; none: it can.

    ``beside``: the file from whose folder relative paths start. ``stderr``: the file that gets the trial's output.
    """
    arguments = ["--topology", str(path), "--beside", str(beside), *(f"--set={key}" for key in keys)]
    child = start_child(TRIAL, arguments, environment=os.environ, stderr=stderr)
    janitor.started(child.pid)
    try:
        status = await child.wait()
    finally:
        if not child.ended:
            child.reap()
        janitor.ended(child.pid)
    if status == USER_MISTAKE:
        return child.message.splitlines() or ["the trial gave no reason"]
    if status:
        return [f"the trial {describe_exit(status)}", *child.last_words(), f"more in {stderr}"]
    return []
