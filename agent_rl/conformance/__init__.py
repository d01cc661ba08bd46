"""Traps for gateways between agents and a model under training, as checks of any gateway that is given as a URL."""

from agent_rl.conformance.client import Failed, NotApplicable
from agent_rl.conformance.kit import KitError, Result, run, table

__all__ = ["Failed", "KitError", "NotApplicable", "Result", "run", "table"]
