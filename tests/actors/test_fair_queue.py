"""Who gets a place, and when: turns between names, and places that a name alone does not take."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.fair_queue import FairQueue
from actors.processor_time import seconds_of_children, seconds_with_children


class Holders:
    """Tasks that hold a place until they are told to end."""

    def __init__(self, places: int, nursery: trio.Nursery) -> None:
        self.queue, self.nursery = FairQueue(places), nursery
        self.holding: list[str] = []
        self.ends: list[tuple[str, trio.CancelScope]] = []

    async def ask(self, *names: str) -> list[str]:
        """More tasks, in this order; who holds a place then."""
        for name in names:
            self.nursery.start_soon(self._hold, name)
            await wait_all_tasks_blocked()
        return self.holding

    async def end(self, name: str) -> list[str]:
        """One holder of that name ends; who holds a place then."""
        next(scope for other, scope in self.ends if other == name and not scope.cancel_called).cancel()
        await wait_all_tasks_blocked()
        return self.holding

    async def _hold(self, name: str) -> None:
        async with self.queue.place(name):
            self.holding.append(name)
            with trio.CancelScope() as scope:
                self.ends.append((name, scope))
                await trio.sleep_forever()
        self.holding.remove(name)


@asynccontextmanager
async def holders_of(places: int) -> AsyncIterator[Holders]:
    """Nobody holds a place yet."""
    async with trio.open_nursery() as nursery:
        yield Holders(places, nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("places", "alone"), [(1, 1), (2, 1), (8, 4), (16, 8)])
async def test_a_name_alone_leaves_as_many_places_as_it_holds(places: int, alone: int) -> None:
    async with holders_of(places) as holders:
        assert await holders.ask(*["storm"] * 2 * places) == ["storm"] * alone
        if places > 1:
            assert (await holders.ask("other"))[-1] == "other"


async def test_storms_of_many_names_leave_a_place_to_who_comes_then() -> None:
    async with holders_of(16) as holders:
        for storm in "abc":
            await holders.ask(*[storm] * 16)
        assert [holders.holding.count(storm) for storm in "abc"] == [8, 4, 2]
        assert (await holders.ask("late"))[-1] == "late"


async def test_who_has_no_name_may_have_all_places() -> None:
    async with holders_of(16) as holders:
        assert await holders.ask(*[""] * 20) == [""] * 16


async def test_names_take_turns_and_a_place_goes_to_who_may_have_it() -> None:
    async with holders_of(4) as holders:
        await holders.ask("a", "a", "a", "b", "b", "c")
        assert holders.holding == ["a", "a", "b", "c"]
        assert holders.queue.waiting == 2
        assert await holders.end("c") == ["a", "a", "b"]  # a place is free; both hold one already
        assert await holders.end("a") == ["a", "b", "a"]
        assert await holders.end("b") == ["a", "a", "b"]


async def test_who_gives_up_waiting_is_not_given_a_place() -> None:
    async with holders_of(1) as holders:
        await holders.ask("a")
        with trio.move_on_after(0.01):
            async with holders.queue.place("b"):
                raise AssertionError("there is one place only")
        await holders.ask("c")
        assert holders.queue.waiting == 1
        assert await holders.end("a") == ["c"]


async def test_a_place_that_ends_costs_no_look_at_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    may_take = FairQueue._may_take

    def counted(queue: FairQueue, name: str) -> bool:
        looks.append(name)
        return may_take(queue, name)

    monkeypatch.setattr(FairQueue, "_may_take", counted)
    async with holders_of(1) as holders:
        await holders.ask(*map(str, range(200)))
        assert holders.queue.waiting == 199
        looks.clear()
        assert await holders.end("0") == ["1"]
        assert len(looks) < 10


BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"


def test_children_count_while_they_live() -> None:
    before = seconds_of_children(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        burnt = seconds_with_children(child.pid)
        assert burnt >= 0.19
        assert seconds_of_children(os.getpid()) - before >= burnt - 0.011
        child.communicate(b"\n")
    assert seconds_with_children(child.pid) == 0.0
