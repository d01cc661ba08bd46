"""How a test sees that an actor ends its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
