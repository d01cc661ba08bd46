"""Messages that arrive while a node stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from transport.inbound import Dispatcher
from transport.limits import Limits


@pytest.mark.real_time
async def test_a_call_that_arrives_after_the_handlers_have_stopped_is_left_unanswered() -> None:
    """The node's sockets are read until its last task has ended, in no fixed order."""
    handled: list[Any] = []
    delivery: Any = SimpleNamespace(kind="call", withdrawn=False, taken=lambda: handled.append("taken"))

    async def handle(message: object) -> None:
        handled.append(message)

    dispatcher = Dispatcher(lambda *_: None, Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run, handle, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    dispatcher.put(delivery)
    assert dispatcher.queued == 1
    assert handled == []
