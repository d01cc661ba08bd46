"""How a test sees that an actor ends its run, and how it runs an actor among the peers of its contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from actors.runtime.process import user_mistake


@contextmanager
def told_at_the_end() -> Iterator[list[str]]:
    """What the user is told of what ends the run, once it has ended; what is no mistake of the user is raised."""
    told: list[str] = []
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - a group or not, as it comes
        yield told
    message = user_mistake(caught.value)
    if message is None:
        raise caught.value
    told.append(message)


def bench_of(suite: type, actor: type, **attributes: Any) -> Any:
    """The contract's suite of this actor, of which a test uses the peers."""
    return type("Bench", (suite,), {"actor": actor, **attributes})()
