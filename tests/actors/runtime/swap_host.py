"""A supervisor: ``python -m tests.actors.runtime.swap_host ENTRY TOPOLOGY [HOST] [lifeline]``."""

import sys
from functools import partial
from pathlib import Path

import trio

from actors.runtime import dry_run
from actors.runtime.run import run_topology
from agent_rl.config.load import load_topology
from agent_rl.files.leftovers import Janitor

entry, path, *more = sys.argv[1:]
dry_run.DRY_RUN = entry
if "lifeline" in more:  # what the actors themselves do is to be seen
    Janitor.started = lambda janitor, group: None
host = next((word for word in more if word != "lifeline"), None)
sys.exit(trio.run(partial(run_topology, load_topology(Path(path)), Path(path), host=host, entry_module=entry)))
