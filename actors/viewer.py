"""Serves the page of one or several run directories: the page, its events, and trajectories on demand. Read-only.

::

    run directories --Watched.look--> parts of the page --events--> every viewer
                                                       <--key----- /trajectory

The directories are looked at while there is a viewer, once for all viewers. No file system tells of a change by another
host, so that their times of change are compared every `LOOK_SECONDS`. Parts of the page that are costly to make are
made more seldom than others: making them takes at most `SHARE` of the time.
"""

from __future__ import annotations

import hmac
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import trio

from actors.http import Reply, Request, Server, foreign
from agent_rl.observe.report import ReportError, Watched
from agent_rl.observe.report.catalogue import columns, listed
from agent_rl.observe.report.page import live_html, page_json
from agent_rl.records.journal import JournalError

LOOK_SECONDS = 0.5
SHARE = 0.01
"""The most of a core that the costly parts of a page take."""
KEEPALIVE_SECONDS = 15.0
MOST_CONNECTIONS = 64
MOST_CHUNKS = 200
"""Messages with rows that are kept for viewers that fall behind; later ones get all rows again."""


class _Run:
    """One run, and the newest text of each part of its page, with the number of its change."""

    def __init__(self, watched: Watched, place: int) -> None:
        self.watched, self.place = watched, place
        self.parts: dict[str, tuple[int, str]] = {}
        self.chunks: list[tuple[int, str]] = []
        self.begun_chunks = 0
        """The number of the last change whose rows have left ``chunks``."""
        self._seen: tuple[object, ...] = ()
        self._more = True
        self._stale = True
        self._next_page = -math.inf
        self._order: list[str] = []
        """The sections of the page."""

    def look(self, number: int) -> bool:
        """Read what has changed, and make the parts that differ under this number. Called in a thread."""
        seen = self.watched.signature()
        now = time.monotonic()
        if seen == self._seen and not self._more and not (self._stale and now >= self._next_page):
            return False
        changed = False
        if seen != self._seen or self._more:
            changes = self.watched.look()
            self._seen, self._more, self._stale = seen, changes.more, True
            if changes.rows or changes.groups:
                self.chunks.append((number, self._message({"rows": listed(changes)})))
                changed = True
            if len(self.chunks) > MOST_CHUNKS:
                self.begun_chunks = self.chunks[len(self.chunks) // 2][0]
                self.chunks = [each for each in self.chunks if each[0] > self.begun_chunks]
            changed |= self._put(number, "topology", self._section("topology", "Topology", self.watched.now()))
        if now >= self._next_page or not self.parts.get("head"):
            began = time.thread_time()
            changed |= self._whole_page(number)
            self._stale = self._more
            self._next_page = now + (time.thread_time() - began) / SHARE
        return changed

    def _whole_page(self, number: int) -> bool:
        page = self.watched.page()
        sections = page.pop("sections")
        order = [each["id"] for each in sections]
        changed = self._put(number, "head", {**page, "sections": [], "order": order})
        for each in sections:
            changed |= self._put(number, each["id"], {"sections": [each], "order": order})
        self._order = order
        return changed

    def _section(self, name: str, title: str, graph: dict[str, Any]) -> dict[str, Any] | None:
        if name not in self._order:
            return None
        return {"sections": [{"id": name, "title": title, "blocks": [{"graph": graph}]}], "order": self._order}

    def _put(self, number: int, name: str, content: dict[str, Any] | None) -> bool:
        if content is None:
            return False
        text = self._message(content)
        if self.parts.get(name, (0, ""))[1] == text:
            return False
        self.parts[name] = number, text
        return True

    def _message(self, content: dict[str, Any]) -> str:
        return page_json({"run": self.place, **content})

    def news(self, since: int) -> list[str]:
        """What a viewer needs that has all up to this number."""
        found = [text for number, text in self.parts.values() if number > since]
        if since < self.begun_chunks or not since:
            rows = listed(self.watched.catalogue.everything())
            return [*found, self._message({"rows": {**columns(), **rows}})]
        return found + [text for number, text in self.chunks if number > since]


class Viewer:
    """The server. ``token``: what a viewer has to name; empty: none, and only names of this host are served."""

    def __init__(self, runs: Sequence[Watched], token: str = "") -> None:
        self._runs = [_Run(watched, place) for place, watched in enumerate(runs)]
        self._token = token
        self._http = Server(self._respond, 1024, MOST_CONNECTIONS)
        self._number = 0
        self._changed = trio.Event()
        self._viewed = trio.Event()
        self._viewers = 0
        self._reading = trio.Lock()
        """Held while a thread reads a run: what it has of the run changes then."""
        self._page = live_html().encode()

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self._http.serve(listeners)

    async def _watch(self) -> None:
        while True:
            await self._viewed.wait()
            found = False
            for each in self._runs:
                with suppress(ReportError):  # the directory has gone: what was read stays on the page
                    async with self._reading:
                        found |= await trio.to_thread.run_sync(each.look, self._number + 1)
            if found:
                self._number += 1
                self._changed.set()
                self._changed = trio.Event()
            await trio.sleep(LOOK_SECONDS if not any(each._more for each in self._runs) else 0)  # noqa: SLF001

    async def _respond(self, request: Request, reply: Reply) -> None:
        path, _, query = request.path.partition("?")
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        if refusal := self._refusal(request, asked):
            return await reply.send(403, refusal.encode(), "text/plain; charset=utf-8")
        if request.method not in {"GET", "HEAD"}:
            return await reply.send(405, b"this page is read-only\n", "text/plain")
        reply.headers |= {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        match path:
            case "/":
                await reply.send(200, self._page, "text/html; charset=utf-8")
            case "/events":
                await self._events(reply)
            case "/trajectory":
                await self._trajectory(asked, reply)
            case _:
                await reply.send(404, b"there is no such page; the page is at /\n", "text/plain")
        return None

    def _refusal(self, request: Request, asked: dict[str, str]) -> str:
        if self._token:
            given = asked.get("token", "")
            right = hmac.compare_digest(given.encode(), self._token.encode())
            return "" if right else "add ?token=TOKEN to the address, as agent-rl view printed it\n"
        if why := foreign({"host": request.headers.get("host", "")}, local=True):
            return f"{why}; open the page there, or start agent-rl view with --address\n"
        return ""

    async def _trajectory(self, asked: dict[str, str], reply: Reply) -> None:
        group, _, place = asked.get("key", "").partition(".")
        sample, _, attempt = place.partition(".")
        number = asked.get("run", "0")
        if not all(part.isascii() and part.isdigit() for part in (number, sample, attempt)) or len(place) > 20:
            return await reply.send(400, b'{"error": "name a trajectory as GROUP.SAMPLE.ATTEMPT"}')
        if len(number) > 9 or int(number) >= len(self._runs):
            return await reply.send(404, b'{"error": "there is no such run"}')
        watched = self._runs[int(number)].watched
        try:
            async with self._reading:
                body = await trio.to_thread.run_sync(watched.body, (group, int(sample), int(attempt)))
        except (ValueError, JournalError, OSError) as error:
            return await reply.send(409, json.dumps({"error": str(error)}).encode())
        return await reply.send(200, page_json(body).encode("utf-8", "replace"))

    async def _events(self, reply: Reply) -> None:
        await reply.begin("text/event-stream")
        if reply.bodiless:
            return await reply.end()
        await reply.piece(b"retry: 2000\n\n")
        seen = 0
        self._viewers += 1
        self._viewed.set()
        try:
            while True:
                async with self._reading:
                    changed, number = self._changed, self._number
                    news = [text for each in self._runs for text in each.news(seen)] if number > seen else []
                if number > seen:
                    for text in news:
                        await reply.piece(b"data: " + text.encode("utf-8", "replace") + b"\n\n")
                    seen = number
                with trio.move_on_after(KEEPALIVE_SECONDS) as scope:
                    await changed.wait()
                if scope.cancelled_caught:
                    await reply.piece(b": still here\n\n")
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._viewed = trio.Event()
