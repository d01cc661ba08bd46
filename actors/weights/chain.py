"""Who sends a policy's parts to whom: hosts pass parts on, so the learner sends each byte once and not once per host.

::

    learner --> generator of host a --> of host b --> of host c     in the order in which they asked
                        (lost)
    learner ---------------------------> b --> c                    b reports it, and goes on from where it is

A chain moves at the speed of its slowest link; a tree would halve it, since a host then sends twice what it receives.
Pure.
"""

from __future__ import annotations

from agent_rl.messages import PolicyVersion

LEARNER = ""
"""The source of who asks the learner itself."""
KEPT = 2
"""Policies whose chains are kept. Generators fetch the newest, and may not be done with the one before."""


class Chain:
    """The source of each process that fetches one policy."""

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        """In the order of asking."""
        self._lost: set[str] = set()
        self._failed: dict[str, set[str]] = {}
        """The sources from which a process could not fetch."""

    def source(self, asker: str, failed: str = LEARNER) -> str:
        """From whom ``asker`` fetches; ``failed`` is the source that did not answer, if one did not."""
        self._lost.discard(asker)
        refused = self._failed.setdefault(asker, set())
        if failed != LEARNER:
            refused.add(failed)
        present = self._sources.get(asker)
        if present is None or present in refused or present in self._lost:
            self._sources[asker] = self._choose(asker, refused)
        return self._sources[asker]

    def lost(self, process: str) -> None:
        """A process has ended, or is not heard."""
        self._lost.add(process)

    def _choose(self, asker: str, refused: set[str]) -> str:
        """The process with the fewest to send to, of these the last in the chain. The learner is the last resort."""
        behind = self._behind(asker)
        others = [each for each in self._sources if each not in behind and each not in self._lost | refused]
        load = dict.fromkeys((LEARNER, *others), 0)
        for each, source in self._sources.items():
            if source in load and each != asker and each not in self._lost:
                load[source] += 1
        return min(reversed(load), key=lambda each: load[each])

    def _behind(self, asker: str) -> set[str]:
        """The process and all that fetch from it, directly or not: a source among them would be a circle."""
        found, new = {asker}, {asker}
        while new := {each for each, source in self._sources.items() if source in new} - found:
            found |= new
        return found


class Chains:
    """A chain for each of the newest policies."""

    def __init__(self) -> None:
        self._chains: dict[PolicyVersion, Chain] = {}

    def source(self, policy: PolicyVersion, asker: str, failed: str = LEARNER) -> str:
        """From whom ``asker`` fetches the policy; empty: from the learner."""
        chain = self._chains.setdefault(policy, Chain())
        for old in sorted(self._chains)[:-KEPT]:
            del self._chains[old]
        return chain.source(asker, failed)

    def lost(self, process: str) -> None:
        """A process has ended, or is not heard."""
        for chain in self._chains.values():
            chain.lost(process)
