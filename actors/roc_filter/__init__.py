"""The RoC filter: ``filter.py`` is the actor, the other files are its parts."""

from actors.roc_filter.filter import RoCFilter

__all__ = ["RoCFilter"]
