"""Signs of life that a rank gives to rank 0 through a pipe, and its last words when it cannot go on.

::

    a thread of rank i --Alive, every few seconds---> rank 0: `Signs`
    rank i fails -------LastWords-------------------> rank 0 says why, and ends all ranks
    nothing comes for rank_silent_seconds ----------> rank 0 names the rank, and ends all ranks

A process that is stopped, or whose machine stands still, gives no signs; its connections stay open, so torch alone
would wait for it until ``rank_timeout_seconds``. The pipe's end is the end of the process.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

import trio

from agent_rl.messages import pipes
from agent_rl.messages.pipes import Alive, LastWords
from transport import DecodeError, Registry
from transport.stream import PipeReader, packed

SIGNS = 10
"""So many signs are given within the seconds after which a rank counts as silent."""
SLICES = 5
"""The silence is measured in so many parts, each by a new timer: a machine that was suspended counts one of them."""
LAST_WORDS_BYTES = select.PIPE_BUF - 256
"""The most bytes of a fault's text. The message is shorter than `PIPE_BUF`, so it is written whole or not at all."""


class SilentError(Exception):
    """A process has given no sign for as long as it may be silent."""


class SignGiver:
    """The side of the rank. One thread gives signs until the process ends."""

    def __init__(self, pipe: int, silent_seconds: float) -> None:
        """``pipe`` is the writing end."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._ended = threading.Event()
        self._seconds = silent_seconds / SIGNS
        self._thread = threading.Thread(target=self._give, daemon=True, name="signs of life")
        self._thread.start()

    def _give(self) -> None:
        while not self._ended.wait(self._seconds):
            self._write(Alive())

    def last_words(self, words: LastWords) -> None:
        """Tell rank 0 why this rank cannot go on."""
        text = " ".join(words.fault.split()).encode()[:LAST_WORDS_BYTES].decode(errors="ignore")
        self._write(LastWords(text, words.kind))

    def close(self) -> None:
        """Give no more signs, and close the pipe."""
        self._ended.set()
        self._thread.join()
        os.close(self._pipe)

    def _write(self, message: Alive | LastWords) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # rank 0 does not read, or has ended: we soon end
            os.write(self._pipe, packed(message))


class Signs:
    """Rank 0's side of one rank's pipe."""

    def __init__(self, pipe: int, silent_seconds: float) -> None:
        """``pipe`` is the reading end."""
        self._pipe = pipe
        self._slice = silent_seconds / SLICES

    async def watch(self) -> LastWords | None:
        """Wait until the rank has ended or cannot go on: its last words, or None for a rank that left none.

        Raises SilentError.
        """
        reader, missed = PipeReader(self._pipe, Registry.of(pipes)), 0
        try:
            while missed < SLICES:
                with trio.move_on_after(self._slice) as limit:
                    message = await reader.receive()
                if limit.cancelled_caught:
                    missed += 1
                    continue
                missed = 0
                if not isinstance(message, Alive):
                    return message if isinstance(message, LastWords) else None
        except DecodeError as error:
            return LastWords(f"what it says cannot be read: {error}")
        finally:
            os.close(self._pipe)
        raise SilentError
