"""The quickstart: its topology, and its task, which lies beside the topology as a task of a user's own does."""

from agent_rl.config.examples import EXAMPLES
from agent_rl.config.user_modules import look_beside

EXAMPLE = EXAMPLES / "quickstart" / "quickstart.toml"
TASK = {"class": "arithmetic:Arithmetic", "name": "arithmetic"}
"""The task as an entry of ``environments``."""

look_beside(EXAMPLE)
