"""``agent-rl join`` on a host whose actors do nothing. The arguments are those of the command."""

import sys
from functools import partial

from actors.cli import topologies
from actors.cli.main import main
from actors.runtime import trying
from agent_rl.checks import topology

trying.TRIAL = "tests.actors.runtime.swap_trial"
topology.check_topology = lambda *_, **__: []  # these classes keep no role's contract
topologies.fetch_models = lambda _: None
topologies.supervise = partial(topologies.supervise, entry_module="tests.actors.runtime.swap_entry")
sys.exit(main(["join", *sys.argv[1:]]))
