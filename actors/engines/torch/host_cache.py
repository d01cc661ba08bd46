"""Keys and values that left the KV cache, kept in host memory until their rollout goes on.

::

    KV cache --(evicted, preempted, dropped)--> host memory --(the next turn)--> KV cache
                                                     `-(no room: the least recently used)--> computed again
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class Kept(NamedTuple):
    """A sequence: its tokens [n] int64, and in host memory their keys and values [layers, 2, kv_heads, n, head_dim]."""

    tokens: NDArray[np.int64]
    data: Tensor


class HostCache:
    """At most ``capacity`` tokens; 0: nothing is kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        """Tokens that are kept."""
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens can be kept, if others leave for it."""
        return 0 < tokens <= self.capacity

    def keep(self, rollout: str, kept: Kept) -> None:
        """Keep a rollout's tokens, which must fit; those that were used least recently leave for them."""
        self.forget(rollout)
        while self.used + len(kept.tokens) > self.capacity:
            self.forget(next(iter(self._kept)))
        self._kept[rollout] = kept
        self.used += len(kept.tokens)

    def take(self, rollout: str) -> Kept | None:
        """What is kept of the rollout, which is not kept any more."""
        kept = self._kept.pop(rollout, None)
        self.used -= 0 if kept is None else len(kept.tokens)
        return kept

    def forget(self, rollout: str) -> None:
        """The rollout does not go on here. Unknown names are ignored."""
        self.take(rollout)

    def clear(self) -> None:
        """All that is kept is worth nothing."""
        self._kept.clear()
        self.used = 0
