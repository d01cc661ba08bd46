"""The RL domain of agent_rl: synchronous and pure wherever it decides something."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_rl.records.run_data import load_run as load_run

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    """``load_run``, imported when it is first used: most processes never need it."""
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent_rl.records.run_data import load_run

    return load_run
