"""Which links of an actor lead to nobody, because all their targets are lost or have left, and when to give up.

::

    PeerGone, PeerLeft, PeerBack --> UnreachableLinks.look --> a link leads to nobody: logged, shown, counted
                                                        `--(run.give_up_minutes)--> NobodyLeftError
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from transport import LinkEvent, Node, PeerBack, PeerGone, PeerLeft

if TYPE_CHECKING:
    import structlog


class NobodyLeftError(Exception):
    """A link has led to nobody for ``run.give_up_minutes``. The message says what to do."""


SHOWN_SECONDS = 5.0
"""A link that leads to nobody for a shorter time is not worth a line: most processes are back by then."""


class UnreachableLinks:
    """Watches the links over which an actor needs an answer or an acknowledgement: push links and call links."""

    def __init__(
        self, node: Node, links: Mapping[str, Any], minutes: float | None, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        """``minutes``: after which to give up; None: never."""
        self._node, self._links, self._minutes, self._log = node, links, minutes, log
        self._since: dict[str, float] = {}
        self._changed = trio.Event()

    def look(self, event: LinkEvent) -> None:
        """A peer is gone, or back: note which links lead to nobody from now on."""
        if not isinstance(event, PeerGone | PeerLeft | PeerBack):
            return
        for name, link in self._links.items():
            unreachable = bool(link.targets) and link.targets.keys() <= self._node.gone
            if unreachable and name not in self._since:
                self._since[name] = trio.current_time()
                self._log.warning("a link leads to nobody", link=name, gone=sorted(link.targets))
            elif not unreachable and self._since.pop(name, None) is not None:
                self._log.warning("a link leads to somebody again", link=name)
        self._changed.set()
        self._changed = trio.Event()

    @property
    def text(self) -> str:
        """The peers of which none is there for a while, in words; empty when each link leads to somebody."""
        shown = trio.current_time() - SHOWN_SECONDS
        unreachable = [name for name, since in self._since.items() if since <= shown]
        missing = {target: None for name in unreachable for target in sorted(self._links[name].targets)}
        return f"none of {', '.join(missing)} is heard" if missing else ""

    async def run(self) -> None:
        """Wait until cancelled. Raises NobodyLeftError."""
        while True:
            changed, began = self._changed, min(self._since.values(), default=math.inf)
            with trio.move_on_at(math.inf if self._minutes is None else began + 60.0 * self._minutes):
                await changed.wait()
                continue
            raise NobodyLeftError(
                f"{self.text} for {self._minutes:g} minutes (run.give_up_minutes); start one of them, "
                "and run again: the run goes on where it stopped"
            )
