"""Learns how fast each engine writes, from the turns that end there.

A decode step of an engine takes longer the more KV cache it reads: t = T (1 + (FULL - 1) s), where s is the share of
the KV cache that is used and T the seconds a token on the empty engine. T is learnt for each engine, as the seconds of
its latest turns over their tokens, at the share they had; so only the change of t with s is assumed. Before its first
turn ends, an engine counts as fast as the mean of the others.

A token of prefill takes P times the seconds T. P is learnt for all engines together, from the turns that had much to
prefill; the others tell T, less the seconds of what they had to prefill.
"""

from __future__ import annotations

FULL = 5.0
"""A full engine takes so many times the seconds a token of an empty one."""
PREFILL = 0.004
"""P before anything is known."""
MUCH = 20
"""Turns that prefill so many times the tokens that they write tell P."""
REMEMBERED = 20_000.0
"""Tokens after which the weight of an observation has fallen to a third."""


class Speeds:
    """Seconds a token, of each engine and share of used KV cache."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._tokens: dict[str, float] = {}
        self._all_seconds = 0.0
        self._all_tokens = 0.0
        self._prefill_seconds = PREFILL * REMEMBERED
        self._prefill_tokens = REMEMBERED
        """In units of T."""

    def wrote(self, engine: str, tokens: int, prefilled: int, seconds: float, share: float) -> None:
        """A turn prefilled and wrote so many tokens in so many seconds, queueing included."""
        if tokens < 1 or not seconds > 0:
            return
        if prefilled > MUCH * tokens:
            rest = max(0.0, seconds - tokens * self.seconds(engine, share)) / self.empty(engine)
            keep = REMEMBERED / (REMEMBERED + prefilled)
            self._prefill_seconds = (self._prefill_seconds + rest) * keep
            self._prefill_tokens = (self._prefill_tokens + prefilled) * keep
            return
        seconds = max(seconds / 10, seconds - self.prefill(engine, prefilled))
        weighted = tokens * (1 + (FULL - 1) * share)
        keep = max(0.0, 1 - tokens / REMEMBERED)
        self._seconds[engine] = self._seconds.get(engine, 0.0) * keep + seconds
        self._tokens[engine] = self._tokens.get(engine, 0.0) * keep + weighted
        self._all_seconds = self._all_seconds * keep + seconds
        self._all_tokens = self._all_tokens * keep + weighted

    def gone(self, engine: str) -> None:
        """Forget the engine."""
        self._seconds.pop(engine, None)
        self._tokens.pop(engine, None)

    def prefill(self, engine: str, tokens: float) -> float:
        """Seconds that the prefill of so many tokens takes."""
        return tokens * self.empty(engine) * self._prefill_seconds / self._prefill_tokens

    def empty(self, engine: str) -> float:
        """Seconds a token when nothing else runs; 1 before anything is known."""
        if engine in self._tokens:
            return self._seconds[engine] / self._tokens[engine]
        return self._all_seconds / self._all_tokens if self._all_tokens else 1.0

    def seconds(self, engine: str, share: float) -> float:
        """Seconds a token at this share of used KV cache."""
        return self.empty(engine) * (1 + (FULL - 1) * share)
