"""The quickstart's task: arithmetic that a tiny model can only solve with its tool."""

from agent_rl.environments.arithmetic.environment import Arithmetic

__all__ = ["Arithmetic"]
