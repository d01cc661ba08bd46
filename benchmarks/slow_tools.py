"""A tool executor whose calls take longer: every piece of code sleeps first, inside the sandbox."""

from __future__ import annotations

from dataclasses import replace

from pydantic import PositiveFloat

from actors.tool_executor import ToolExecutor, ToolExecutorSettings
from agent_rl.messages import JudgementReply, JudgementWanted, ToolCall, ToolResult, TurnObserved


class SlowToolSettings(ToolExecutorSettings):
    """The executor's, and how long a call sleeps."""

    sleep_seconds: PositiveFloat = 0.3


class SlowToolExecutor(ToolExecutor):
    """Stands for tools that wait for something else: a search engine, a compiler, a database."""

    Settings = SlowToolSettings

    async def handle(self, message: ToolCall | JudgementWanted) -> ToolResult | TurnObserved | JudgementReply:
        """Calls sleep before they do what they are for; checks are as ever."""
        if isinstance(message, ToolCall) and isinstance(message.arguments.get("code"), str):
            sleep = f"import time; time.sleep({self.context.settings.sleep_seconds})\n"
            message = replace(message, arguments={**message.arguments, "code": sleep + message.arguments["code"]})
        return await super().handle(message)
