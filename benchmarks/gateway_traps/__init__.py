"""Traps for gateways between agents and a model under training, as checks of any gateway that is given as a URL."""

from benchmarks.gateway_traps.client import Failed, NotApplicable
from benchmarks.gateway_traps.kit import KitError, Result, run, table

__all__ = ["Failed", "KitError", "NotApplicable", "Result", "run", "table"]
