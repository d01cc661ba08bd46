"""The fixtures of a run in virtual time."""

from tests.actors.runtime.virtual_run import world

__all__ = ["world"]
