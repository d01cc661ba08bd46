"""The learner: ``learner.py`` is the actor, the other files are its parts."""

from actors.learner.learner import Learner

__all__ = ["Learner"]
