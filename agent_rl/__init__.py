"""The RL domain of agent_rl: synchronous and pure wherever it decides something."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_rl.calls import evaluate as evaluate
    from agent_rl.calls import train as train
    from agent_rl.records.run_data import load_run as load_run

__all__ = ["evaluate", "load_run", "train"]


def __getattr__(name: str) -> Any:
    """What is imported when it is first used: most processes never need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("agent_rl.records.run_data" if name == "load_run" else "agent_rl.calls"), name)
