"""An executor whose first process tells the filter of steps that nobody trained."""

from __future__ import annotations

from actors.tool_executor import ToolExecutor
from agent_rl.figures import TrainingFigures
from agent_rl.messages import StepTrained
from transport import CallFailed, CallTimeout, PeerLost


class Forger(ToolExecutor):
    """It calls over a link of the learner's."""

    async def start(self) -> None:
        """Begin to misbehave."""
        await super().start()
        if self.context.first:
            self.context.nursery.start_soon(self._forge)

    async def _forge(self) -> None:
        link = self.context.node.call("steps", ["roc_filter.0"], outstanding=1, timeout=5.0)
        try:
            await link(StepTrained(2, 1, (), TrainingFigures()))
        except (CallFailed, CallTimeout, PeerLost):
            self.log.info("nobody listens")
