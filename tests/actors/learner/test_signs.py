"""Signs of life through a pipe: silence has a deadline, last words come whole, an end is no silence."""

from __future__ import annotations

import contextlib
import os

import pytest
import trio
import trio.testing

from actors.learner.signs import SIGNS, LastWords, SignGiver, Signs, SilentError

FOREVER = 3600.0
"""Seconds within which no sign falls due: such tests write the signs themselves."""


def test_a_rank_is_silent_so_long_after_its_last_sign() -> None:
    async def main() -> None:
        reading, writing = os.pipe()

        async def give() -> None:
            for _ in range(9):
                await trio.sleep(25.0)
                os.write(writing, b"\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give)
            with pytest.raises(SilentError):
                await Signs(reading, 30.0).watch()
        assert trio.current_time() == pytest.approx(9 * 25.0 + 30.0)
        os.close(writing)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_machine_that_stood_still_does_not_make_a_rank_silent() -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        reading, writing = os.pipe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Signs(reading, 30.0).watch)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(1000.0)
            await trio.testing.wait_all_tasks_blocked()
            os.close(writing)  # `watch` has not raised, and sees the end

    trio.run(main, clock=clock)


@pytest.mark.parametrize("kind", ["mistake", "error", "torch"])
def test_last_words_come_whole(kind: str) -> None:
    words = LastWords('"é\n' * 100_000, kind)  # type: ignore[arg-type]
    reading, writing = os.pipe()
    giver = SignGiver(writing, FOREVER)
    giver.last_words(words)
    heard = trio.run(Signs(reading, 30.0).watch)
    giver.close()
    assert heard is not None
    assert heard.kind == kind
    assert len(heard.fault) > 300
    assert words.fault.replace("\n", " ").startswith(heard.fault)


def test_the_end_of_the_process_is_no_silence() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert trio.run(Signs(reading, 30.0).watch) is None


def test_signs_come_by_themselves_and_do_not_wait_for_a_reader() -> None:
    reading, writing = os.pipe()
    giver = SignGiver(writing, SIGNS * 0.001)
    assert os.read(reading, 1) == b"\n"
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"\n" * 4096):  # until the pipe is full
            pass
    giver.last_words(LastWords("lost, since nobody reads"))
    os.close(reading)
    giver.close()
