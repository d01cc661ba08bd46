"""What becomes of a process that peers have cut off: it is named once, and its supervisor replaces it.

::

    a node cuts a process off --ActorStatus.accuses--> supervisor --(own actor)-----> said, killed, started again
                                     `--HostReport--> main host --> said --RunState.cut_off--> its supervisor: killed

The next process has another incarnation, so that all nodes take the former one as ended. Each restart spends the
actor's budget: an actor that misbehaves again and again ends the run with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from actors.runtime.actor_process import ActorProcess
from agent_rl.messages import Accusation

if TYPE_CHECKING:
    from transport import Node

MOST_SAID = 1024
"""Processes that are named. Beyond them those of this host are only replaced, so that accusers cannot fill memory."""

CLAIM_STANDS_SECONDS = 2.0
"""An incarnation of another host's actor is taken for a claim that nobody gave out when an accuser says so for so long.
Before, this supervisor may have been suspended: the news wait unread, and its actors have had them from nobody."""


def accusations(node: Node) -> tuple[Accusation, ...]:
    """The processes that the node has cut off and whose next process it does not expect yet."""
    return tuple(
        Accusation(each.peer, each.incarnation, f"{each.rule}: {each.evidence}") for each in node.cut_off.values()
    )


class Accusations:
    """Those that one supervisor has heard. ``others`` gets the processes of other hosts that must be replaced."""

    def __init__(
        self,
        actors: Mapping[str, ActorProcess],
        say: Callable[[str], None],
        others: Callable[[dict[str, int]], None],
        unsettled: Callable[[Accusation], bool],
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        """``unsettled``: whether a claimed incarnation may be one that its supervisor gave out."""
        self._now = now
        self._claimed: dict[tuple[str, int], float] = {}
        """When an incarnation of another host's actor was first said to be given out by nobody."""
        self._actors = actors
        self._say = say
        self._others = others
        self._unsettled = unsettled
        self._said: set[tuple[str, int]] = set()
        self._replace: dict[str, int] = {}

    def heard(self, accuser: str, accused: Sequence[Accusation]) -> None:
        """A node tells whom it has cut off."""
        for each in accused:
            process = (each.node, each.incarnation)
            if process in self._said:
                continue
            posed = each.what.startswith("forged")
            if posed and (self._unsettled(each) or not self._stands(each)):
                continue
            if len(self._said) >= MOST_SAID:
                self.replace({each.node: each.incarnation})
                continue
            self._said.add(process)
            what = f"somebody poses as {each.node}: noticed" if posed else f"{each.node} misbehaved and is cut off"
            text = f"{what} by {accuser} ({each.what})"
            posers = [actor for actor in self._named(each.what) if actor.name != each.node]
            if posers:
                text = f"{text}: that is {', '.join(actor.name for actor in posers)}"
            self._say(text)
            self.replace({each.node: each.incarnation} | {actor.name: actor.incarnation for actor in posers})
            if each.node not in self._actors:
                self._replace[each.node] = each.incarnation
                self._others(self._replace)

    def _stands(self, claim: Accusation) -> bool:
        """Whether the accusation has been heard for long enough. This host's own incarnations are known at once."""
        if claim.node in self._actors or not claim.what.startswith("forged incarnation"):
            return True
        if len(self._claimed) >= MOST_SAID:
            self._claimed.clear()
        since = self._claimed.setdefault((claim.node, claim.incarnation), self._now())
        return self._now() - since >= CLAIM_STANDS_SECONDS

    def _named(self, what: str) -> list[ActorProcess]:
        """The actors of this host whose processes a text names by number."""
        numbers = {int(number) for number in re.findall(r"\bprocess (\d+)", what)}
        return [each for each in self._actors.values() if each.child is not None and each.child.pid in numbers]

    def replace(self, processes: Mapping[str, int]) -> None:
        """Kill those of these processes that run here; they are started again within their budget."""
        for name, incarnation in processes.items():
            actor = self._actors.get(name)
            if actor is not None and actor.incarnation == incarnation and not actor.stopping:
                actor.kill(f"{name} was killed, since its peers take nothing of this process any more")
