"""The supervisor of host b of the topology that is named."""

import sys
from functools import partial
from pathlib import Path

import trio

from actors.runtime import dry_run
from actors.runtime.run import run_topology
from agent_rl.config.load import load_topology

dry_run.DRY_RUN = "tests.actors.runtime.swap_dry_run"
path = Path(sys.argv[1])
sys.exit(
    trio.run(partial(run_topology, load_topology(path), path, host="b", entry_module="tests.actors.runtime.swap_entry"))
)
