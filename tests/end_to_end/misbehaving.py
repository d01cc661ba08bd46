"""Executors whose first process tells the filter of steps that nobody trained, or poses as the learner."""

from __future__ import annotations

import zmq

from actors.tool_executor import ToolExecutor
from agent_rl.config.addresses import addresses, runtime_directory
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


class Poser(ToolExecutor):
    """It connects to the filter by the name and incarnation of the learner."""

    async def start(self) -> None:
        """Begin to misbehave."""
        await super().start()
        if self.context.first:
            self._socket = zmq.Context.instance().socket(zmq.DEALER)
            self._socket.setsockopt(zmq.ROUTING_ID, f"learner.0#{self.context.incarnation}".encode())
            topology = self.context.topology
            self._socket.connect(addresses(topology, runtime_directory(topology))["roc_filter.0"])
            self._socket.send(b"")
