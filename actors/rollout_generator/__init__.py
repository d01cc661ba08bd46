"""The rollout generator: ``generator.py`` is the actor, the other files are its parts."""

from actors.rollout_generator.generator import RolloutGenerator
from actors.rollout_generator.starting import RolloutGeneratorSettings
from actors.rollout_generator.tool_calls import ToolsUnavailableError

__all__ = ["RolloutGenerator", "RolloutGeneratorSettings", "ToolsUnavailableError"]
