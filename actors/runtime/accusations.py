"""What becomes of a process that peers have cut off: it is named once, and its supervisor replaces it.

::

    a node cuts a process off --ActorStatus.accuses--> supervisor --(own actor)-----> said, killed, started again
                                     `--HostReport--> main host --> said --RunState.cut_off--> its supervisor: killed

The next process has another incarnation, so that all nodes take the former one as ended. Each restart spends the
actor's budget: an actor that misbehaves again and again ends the run with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from actors.runtime.actor_process import ActorProcess
from agent_rl.messages import Accusation

if TYPE_CHECKING:
    from transport import Node

MOST_SAID = 1024
"""Processes that are named. Beyond them they are only replaced, so that accusers cannot fill memory."""


def accusations(node: Node) -> tuple[Accusation, ...]:
    """The processes that the node has cut off and whose next process it does not expect yet."""
    return tuple(
        Accusation(each.peer, each.incarnation, f"{each.rule}: {each.evidence}") for each in node.cut_off.values()
    )


class Accusations:
    """Those that one supervisor has heard. ``others`` gets the processes of other hosts that must be replaced."""

    def __init__(
        self, actors: Mapping[str, ActorProcess], say: Callable[[str], None], others: Callable[[dict[str, int]], None]
    ) -> None:
        self._actors = actors
        self._say = say
        self._others = others
        self._said: set[tuple[str, int]] = set()
        self._replace: dict[str, int] = {}

    def heard(self, accuser: str, accused: Sequence[Accusation]) -> None:
        """A node tells whom it has cut off."""
        for each in accused:
            process = (each.node, each.incarnation)
            if process in self._said or len(self._said) >= MOST_SAID:
                continue
            self._said.add(process)
            text = f"{each.node} misbehaved and is cut off by {accuser} ({each.what})"
            if each.node in self._actors:
                self.replace({each.node: each.incarnation}, text)
            else:
                self._say(text)
                self._replace[each.node] = each.incarnation
                self._others(self._replace)

    def replace(self, processes: Mapping[str, int], reason: str) -> None:
        """Kill those of these processes that run here; they are started again within their budget."""
        for name, incarnation in processes.items():
            actor = self._actors.get(name)
            if actor is not None and actor.incarnation == incarnation and not actor.stopping:
                actor.kill(reason)
