"""The generator's promises about rollouts that go on elsewhere: what it sends for keeping, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from actors.contract.base import trio_test
from actors.contract.generator_bench import GENERATOR, Bench, GeneratorBench, result
from agent_rl.messages import CompletedTurn, GroupsUnwanted, Sampling, ToolCall, ToolResult, TurnsCompleted

ROOM = Sampling(1.0, 400, 4)


class HandOverContract(GeneratorBench):
    """A part of the generator's suite."""

    def three_turns(self, number: int, _: Any) -> str:
        """A script: two calls, then an answer."""
        return self.call_text(f"print({number}+1)") if number < 3 else self.answer_text("4")

    @trio_test
    async def test_a_rollout_goes_on_from_the_turns_that_its_request_brings(self, tmp_path: Path) -> None:
        """Each turn that is answered goes to the scheduler; with them, another process makes the same trajectory."""
        async with self.bench(tmp_path / "first", self.three_turns) as bench:
            await bench.ask(sampling=ROOM)
            whole = await bench.trajectory()
            await self.settled()
            turns = self.turns(bench)
            assert [turn.number for turn in turns] == [1, 2], "not each turn that was answered was sent, once, in order"
        for kept in (1, 2):

            def rest(number: int, turn: Any, *, kept: int = kept) -> str:
                return self.three_turns(number + kept, turn)

            async with self.bench(tmp_path / str(kept), rest) as bench:
                await bench.ask(sampling=ROOM, turns=tuple(turns[:kept]))
                made = await bench.trajectory()
                assert len(bench.engine.requests) == 3 - kept, "turns that the request brings were written again"
                assert made.body == whole.body, "other tokens"
                assert made.transcript.texts == whole.transcript.texts, "the transcript lacks turns"
                calls = [(call.turn, call.outcome, call.response) for call in made.transcript.calls]
                wanted = [(call.turn, call.outcome, call.response) for call in whole.transcript.calls]
                assert calls == wanted, f"the transcript has the calls {calls}"
                assert made.seconds >= turns[kept - 1].seconds, "the time at the other process is not counted"
                await self.settled()
                numbers = [turn.number for turn in self.turns(bench)]
                assert numbers == [1, 2][kept:], f"turns {numbers} were sent; the scheduler has those it gave"

    @trio_test
    async def test_a_rollout_of_one_turn_sends_nothing_for_keeping(self, tmp_path: Path) -> None:
        """Its only turn is in its trajectory."""
        async with self.bench(tmp_path, lambda *_: self.answer_text("4")) as bench:
            await bench.ask(sampling=ROOM)
            await bench.trajectory()
            await self.settled()
            assert not self.turns(bench), "a turn that nothing follows was sent"

    @trio_test
    async def test_turns_of_another_prompt_are_not_gone_on_from(self, tmp_path: Path) -> None:
        """The rollout then starts from its beginning, and ends as any other."""
        async with self.bench(tmp_path / "first", self.three_turns) as bench:
            await bench.ask(sampling=ROOM)
            await bench.trajectory()
            await self.settled()
            (first, second) = self.turns(bench)
        async with self.bench(tmp_path / "second", self.three_turns) as bench:
            await bench.ask(sampling=ROOM, turns=(second, first))
            made = await bench.trajectory()
            assert (made.status, made.turns, len(bench.engine.requests)) == ("finished", 3, 3), f"{made.status}"

    @trio_test
    async def test_a_rollout_that_is_held_is_let_go_of_when_a_turn_is_complete(self, tmp_path: Path) -> None:
        """Its turns go to the scheduler, its KV cache is freed, no trajectory is made, and it may come back."""
        async with self.bench(tmp_path / "first", self.three_turns) as bench:
            await bench.ask(sampling=ROOM)
            whole = await bench.trajectory()
        async with self.bench(tmp_path / "second", self.three_turns) as bench:
            held = bench.stage["kv_scheduler"].announce("unwanted", GENERATOR)
            held.set(GroupsUnwanted((), held={whole.rollout: 0}))
            await self.settled()
            await bench.ask(sampling=ROOM)
            await self.settled()
            sent = [each for each in bench.stage["kv_scheduler"].log if isinstance(each, TurnsCompleted)]
            assert [each.then for each in sent][-1:] == ["left"], "the scheduler was not told that the rollout has left"
            assert [turn.number for turn in self.turns(bench)] == [1], "it was not let go of after its first turn"
            assert not bench.trajectories, "a rollout that goes on elsewhere has no trajectory"
            assert bench.engine.released == [whole.rollout], "its KV cache was not freed"
            assert bench.acknowledged == [whole.rollout], "its request was not acknowledged"
            await bench.ask(sampling=ROOM, turns=tuple(self.turns(bench)), move=1)
            made = await bench.trajectory()
            assert made.body == whole.body, "other tokens"
            assert len(bench.engine.requests) == 3, "turns that the request brings were written again"

    @trio_test
    async def test_a_rollout_whose_tools_run_is_freed_when_the_scheduler_says_so(self, tmp_path: Path) -> None:
        """The scheduler hears when tools run, and how long a rollout was at its end. The KV cache is freed once."""
        freed, waits = trio.Event(), trio.Event()

        async def reply(call: ToolCall) -> ToolResult:
            if call.rollout == "again":
                waits.set()
                await freed.wait()
            return result(call)

        async with self.bench(tmp_path, self.three_turns, reply=reply) as bench:
            await bench.ask(sampling=ROOM)
            whole = await bench.trajectory()
            await self.settled()
            sent = [each for each in bench.stage["kv_scheduler"].log if isinstance(each, TurnsCompleted)]
            assert [each.then for each in sent if each.then != "writes"][:2] == ["waits", "waits"], "tools ran unheard"
            assert sent[-1].then == "ended", "the scheduler was not told of the end"
            assert sent[-1].tokens == whole.prompt_length + whole.response_length, "not the tokens of the rollout"
            at = next(each.tokens for each in sent if each.then == "waits")
            unwanted = bench.stage["kv_scheduler"].announce("unwanted", GENERATOR)
            await bench.ask(rollout="again", sampling=ROOM)
            await waits.wait()
            for tokens in (at + 1, at, at):
                unwanted.set(GroupsUnwanted((), freed={"again": tokens, whole.rollout: at}))
                await self.settled()
            freed.set()
            await bench.trajectory()
            await self.settled()
            assert bench.engine.set_aside_rollouts == ["again"], "not the rollout that waits, or not once"

    def turns(self, bench: Bench) -> list[CompletedTurn]:
        """The turns that the scheduler was sent."""
        sent = [each for each in bench.stage["kv_scheduler"].log if isinstance(each, TurnsCompleted)]
        return [turn for message in sent for turn in message.turns]
