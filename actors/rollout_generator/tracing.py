"""Sends each rollout of a generator to an OpenTelemetry collector, as a trace (`agent_rl.observe.spans`).

::

    AgentLoop: turn, call --> spans of the episode
    rollout ends ----------> ended --> at most `WAITING` rollouts --> a batch, in a thread --> OTLP over HTTP

Nothing waits for the collector. While it takes nothing, rollouts are dropped; the log says so once, and once that it
is back. A rollout that moves leaves the turns of its former generator out of the trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import trio

from agent_rl.observe.spans import Span, call, request, rollout, turn

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.messages import ToolCallRecord, Trajectory
    from agent_rl.rollout.episode import Episode

WAITING, BATCH = 1024, 256
"""Rollouts that wait at most, and that are sent at once."""
GATHER_SECONDS = 2.0
"""How long rollouts are gathered, so that a request carries several."""
SEND_SECONDS = 5.0
"""The most that the collector may take for each part of an answer."""
FINISH_SECONDS = 3.0
"""How long an ending generator waits for its last rollouts to be sent."""


def headers(environment: Mapping[str, str]) -> dict[str, str]:
    """The further headers that OpenTelemetry's variable asks for, such as a key: ``name=value,name=value``."""
    given = environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (part.partition("=") for part in given.split(",") if "=" in part)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


_Ended = tuple[str, Span, list[Span]]


class Tracing:
    """The traces of one generator."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        run = context.topology.run
        self._address = urlsplit(run.otel or "")
        self._path = f"{self._address.path.rstrip('/')}/v1/traces"
        self._headers = {"Content-Type": "application/x-protobuf", **headers(os.environ)}
        self._run = f"{run.name} {context.directory.absolute()}"
        self._resource = {"service.name": "agent_rl", "service.instance.id": context.name, "agent_rl.run": self._run}
        model = context.topology.model.path
        self._model = run.name if model is None else model.rstrip("/").rpartition("/")[2]
        self._spans: WeakKeyDictionary[Episode, list[Span]] = WeakKeyDictionary()
        self._queue, self._items = trio.open_memory_channel[_Ended](WAITING)
        self._done = trio.Event()
        self.dropped = 0
        """Rollouts that the collector did not get."""
        self.sent = 0
        self.cpu_seconds = 0.0
        """Processor time of all that is done here."""
        self._down = False

    def turn(self, episode: Episode, began: float, tokens: int, written: int, *, stopped: bool) -> None:
        """The engine has written a turn since ``began`` on the context's clock."""
        at = time.thread_time()
        self._of(episode).append(turn(self._model, *self._since(began), tokens, written, stopped=stopped))
        self.cpu_seconds += time.thread_time() - at

    def call(self, episode: Episode, began: float, record: ToolCallRecord) -> None:
        """A call has been answered."""
        at = time.thread_time()
        self._of(episode).append(call(record.tool, *self._since(began), record.outcome, record.turn))
        self.cpu_seconds += time.thread_time() - at

    def ended(self, episode: Episode, trajectory: Trajectory, began: float) -> None:
        """The rollout is over: its trace waits to be sent, or is dropped where too many wait."""
        at = time.thread_time()
        problem = episode.request.problem
        root = rollout(problem.environment, problem.id, trajectory, *self._since(began))
        try:
            self._queue.send_nowait((trajectory.rollout, root, self._spans.pop(episode, [])))
        except trio.WouldBlock:
            self.dropped += 1
        self.cpu_seconds += time.thread_time() - at

    async def run(self) -> None:
        """Send until `finish`."""
        async for first in self._items:
            batch = [first]
            with trio.move_on_after(GATHER_SECONDS), suppress(trio.EndOfChannel):
                while len(batch) < BATCH:
                    batch.append(await self._items.receive())
            fault = await self._context.in_thread(partial(self._send, batch), abandon_on_cancel=True)
            self._told(len(batch), fault)
        self._done.set()

    async def finish(self) -> None:
        """Send what waits, if the collector takes it in time."""
        self._queue.close()
        with trio.move_on_after(FINISH_SECONDS):
            await self._done.wait()

    def _of(self, episode: Episode) -> list[Span]:
        return self._spans.setdefault(episode, [])

    def _since(self, began: float) -> tuple[float, float]:
        wall = self._context.wall()
        return wall - (self._context.now() - began), wall

    def _told(self, count: int, fault: str) -> None:
        """Count a batch, and log where the collector has gone or come back."""
        if fault:
            self.dropped += count
        else:
            self.sent += count
        log, url = self._context.log, self._address.geturl()
        if fault and not self._down:
            hint = "the run goes on; rollouts are dropped until the collector takes them; see run.otel"
            log.warning("the OpenTelemetry collector takes nothing", url=url, fault=fault, hint=hint)
        elif self._down and not fault:
            log.info("the OpenTelemetry collector is back", url=url, rollouts_dropped=self.dropped)
        self._down = bool(fault)

    def _send(self, batch: list[_Ended]) -> str:
        """In a thread: deliver a batch; returns why the collector did not take it, or nothing."""
        at = time.thread_time()
        connect = HTTPSConnection if self._address.scheme == "https" else HTTPConnection
        connection = connect(self._address.hostname or "", self._address.port, timeout=SEND_SECONDS)
        traces = ((f"{self._run}/{rollout_id}", root, parts) for rollout_id, root, parts in batch)
        try:
            connection.request("POST", self._path, request(self._resource, traces), self._headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__
        else:
            return "" if answer.status < 300 else f"it answers {answer.status} {answer.reason}"
        finally:
            connection.close()
            self.cpu_seconds += time.thread_time() - at
