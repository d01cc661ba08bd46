"""The tool executor: ``executor.py`` is the actor, the other files are its parts; the sandbox is ``actors/sandbox``."""

from actors.tool_executor.executor import ToolExecutor, ToolExecutorSettings, refused

__all__ = ["ToolExecutor", "ToolExecutorSettings", "refused"]
