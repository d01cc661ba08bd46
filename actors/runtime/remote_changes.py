"""The main host's supervisor has the supervisors of other hosts check or carry out a change of the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from actors.runtime.change_rules import Wanted
from agent_rl.config.addresses import supervisor_node
from agent_rl.messages import Changed

if TYPE_CHECKING:
    from transport import CallLink, Node

CHANGE_SECONDS = 3600.0
"""How long a change may take: the former processes drain, and the new ones start, with their models."""


class RemoteChanges:
    """The links to the supervisors of other hosts, from the main host's node; none at other hosts."""

    def __init__(self) -> None:
        self._links: dict[str, CallLink] = {}

    def open(self, node: Node, supervisors: Sequence[str]) -> None:
        """Ask these supervisors from this node."""
        for name in supervisors:
            link = f"changes of {name}"
            self._links[name] = node.call(link, [name], outstanding=1, timeout=CHANGE_SECONDS, reply=Changed)

    def hears(self, host: str) -> bool:
        """Whether the supervisor of another host can be asked."""
        link = self._links.get(supervisor_node(host))
        return link is not None and link.reachable

    async def ask(self, wanted: Wanted, hosts: Collection[str]) -> tuple[list[str], list[str]]:
        """Ask the supervisors of these hosts, one after the other, until one refuses.

        Returns the lines of the refusal, and what was done.
        """
        from transport import CallFailed, CallTimeout, PeerLost

        done: list[str] = []
        for name in list(self._links):
            if name.removeprefix(supervisor_node("")) not in hosts:
                continue
            if not self._links[name].reachable:  # the call would wait for it; a host that is lost later fails the call
                return [f"{name} is not heard; ask again when it is back, or start its host again"], done
            try:
                answer: Changed = await self._links[name](wanted)
            except (CallFailed, CallTimeout, PeerLost) as error:
                return [f"{name} did not answer: {error}"], done
            done += answer.done
            if answer.refused:
                return [f"{name}: {line}" for line in answer.refused], done
        return [], done
