"""Who of the calls gets how much of the processors, from the side of the interpreter that runs them. Standard library only.

Each place for a call has a group of its own there (``control_groups``). Whatever a call has of processes, threads and sessions shares what one group gets.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque

from actors.sandbox.kernel import Step, direct

MYSELF = b"0"


def joining(members: ctypes.c_int) -> Step:
    """The step by which a child with a single thread moves to the group that the descriptor is of."""
    return direct.write, (members, MYSELF, len(MYSELF))


class Share:
    """The group of one place. ``members``: where a child writes itself down; /dev/null where there are no groups."""

    __slots__ = ("members",)

    def __init__(self, members: int) -> None:
        self.members = members


class Shares:
    """The groups of an interpreter's places. Those used last are given out last, since processes that are killed take a while to leave."""

    def __init__(self, directories: list[str], alone: str) -> None:
        """Open them, while the host's files can be seen."""
        self._none = Share(os.open(os.devnull, os.O_WRONLY))
        self._free = deque(Share(os.open(f"{directory}/{alone}", os.O_WRONLY)) for directory in directories)

    def get(self) -> Share:
        """A group for one more place."""
        return self._free.popleft() if self._free else self._none

    def put_back(self, share: Share) -> None:
        """The place is no more."""
        if share is not self._none:
            self._free.append(share)
