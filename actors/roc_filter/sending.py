"""The filter's messages to the learner, in order, each after the commit that holds its content."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio

from actors.roc_filter.replay import decided_from, training_group
from agent_rl.messages import EvaluationReady, StepReady
from agent_rl.records.journal import Journal


class ToLearner:
    """A queue of groups, steps and results of evaluations. A group is read from the journal when its turn comes."""

    def __init__(self, link: Any, journal: Journal, commit: Callable[[], None]) -> None:
        self._link, self._journal, self._commit = link, journal, commit
        self._queue, self._items = trio.open_memory_channel[str | StepReady | EvaluationReady](math.inf)

    def send(self, item: str | StepReady | EvaluationReady) -> None:
        """Send a group, by its id, or another message."""
        self._queue.send_nowait(item)

    def send_again(self, stage: int, version: int) -> None:
        """Send what the stage decided from ``version`` on: the learner or the filter is a new process."""
        for item in decided_from(self._journal, stage, version):
            self.send(item)

    async def run(self) -> None:
        """Send until cancelled."""
        async for item in self._items:
            if self._journal.dirty:
                self._commit()
            message = training_group(self._journal, item) if isinstance(item, str) else item
            if message is not None:
                await self._link.send(message)
