"""Maths with boxed answers: problems from files, judged by what an answer means."""

from agent_rl.environments.maths.environment import Maths

__all__ = ["Maths"]
