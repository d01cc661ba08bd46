"""The contract of generators: one trajectory for each request, exact tokens, and for each token who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from actors.engines.base import EngineError
from agent_rl.messages import (
    CompletedTurn,
    EngineLoad,
    EnvironmentMessage,
    GroupsUnwanted,
    ObserveTurn,
    PolicyVersion,
    Sampling,
    ToolCall,
    ToolResult,
    Trajectory,
    TurnObserved,
    TurnsCompleted,
)
from agent_rl.rollout.episode import tag_counts
from agent_rl_contract.base import trio_test
from agent_rl_contract.builders import problem, published
from agent_rl_contract.generator_bench import GENERATOR, OWN_LOOP, TALKATIVE, Bench, GeneratorBench, result, sample
from agent_rl_contract.stage import stand_ins

if TYPE_CHECKING:
    from agent_rl_contract.scripted import ScriptedEngine

ROOM = Sampling(1.0, 400, 4)


class GeneratorContract(GeneratorBench):
    """Derive and set ``actor``. With another chat format, also override `call_text`, `answer_text` and `malformed`."""

    @trio_test
    async def test_each_request_is_answered_by_one_trajectory_and_acknowledged_with_it(self, tmp_path: Path) -> None:
        """Many run at once. A request is acknowledged after its trajectory was, never before."""
        others = trio.Event()

        async def reply(call: ToolCall) -> ToolResult:
            if call.rollout == sample(0)["rollout"]:
                await others.wait()
            return result(call)

        async with self.bench(tmp_path, reply=reply) as bench:
            durable = trio.Event()
            bench.stage["roc_filter"].reply = lambda _: durable.wait()
            requests = [await bench.ask(**sample(number)) for number in range(12)]
            await self.settled()
            assert len(bench.trajectories) == 11, "a rollout waits for another one's tool"
            others.set()
            await self.settled()
            names = sorted(made.rollout for made in bench.trajectories)
            assert names == sorted(each.rollout for each in requests), f"the trajectories are of {names}"
            assert not bench.acknowledged, "a request was acknowledged before its trajectory was"
            durable.set()
            await self.settled()
            assert sorted(bench.acknowledged) == names, f"only {len(bench.acknowledged)} of 12 were acknowledged"
            by_name = {each.rollout: each for each in requests}
            for made in bench.trajectories:
                wanted = by_name[made.rollout]
                for field in ("group", "stage", "sample", "attempt", "purpose"):
                    assert getattr(made, field) == getattr(wanted, field), f"{made.rollout}: another {field}"
                assert (made.status, made.turns) == ("finished", 2), f"{made.rollout}: {made.status} {made.reason}"

    @trio_test
    async def test_every_token_says_who_wrote_it_and_how_likely_it_was(self, tmp_path: Path) -> None:
        """Tokens of the model have mask 1 and the engine's log-probability; tokens of tools have mask 0 and 0.

        The trajectory has the counts of the response's tags, by which ``resampling = "release"`` selects.
        """
        async with self.bench(tmp_path) as bench:
            await bench.ask()
            self.check_tokens(await bench.trajectory(), bench.engine)

    def check_tokens(self, made: Trajectory, engine: ScriptedEngine) -> None:
        """Compare a trajectory with what its engine wrote."""
        from agent_rl_contract.scripted import LOGPROB

        count = made.response_length
        body = made.unpack()
        shapes = {name: getattr(body, name).shape for name in ("tokens", "loss_mask", "logprobs", "policies")}
        wanted = {"tokens": (count,), "loss_mask": (count,), "logprobs": (count,), "policies": (count, 2)}
        assert shapes == wanted, f"arrays of different lengths: {shapes}"
        assert made.prompt_length, "the prompt is missing"
        written = [token for turn in engine.written[made.rollout] for token in turn]
        mask = body.loss_mask == 1
        assert body.tokens[mask].tolist() == written, "the loss mask is not 1 exactly on what the model wrote"
        assert 0 < mask.sum() < count, "a tool's tokens are in between, with mask 0"
        assert np.all(body.logprobs[mask] == LOGPROB), "log-probabilities are not the engine's"
        assert not body.logprobs[~mask].any(), "log-probabilities of tools' tokens must be 0"
        assert set(map(tuple, body.policies.tolist())) == {(1, 3)}, "every token carries the policy that was served"
        tags = tag_counts(engine.decode(body.tokens.tolist()))
        assert made.tags == tags, f"the response has {tags}, by tag_counts, and the trajectory says {made.tags}"

    @trio_test
    async def test_tokens_go_in_as_they_came_out(self, tmp_path: Path) -> None:
        """The engine continues the exact tokens of prompt, turns and responses; nothing is encoded again."""
        async with self.bench(tmp_path) as bench:
            request = await bench.ask()
            made = await bench.trajectory()
            first, second = bench.engine.requests
            prompt, response = (array.tolist() for array in made.unpack()[:2])
            assert list(first.tokens) == prompt, "the first turn does not continue the prompt"
            before = made.response_length - len(bench.engine.written[made.rollout][1])
            so_far = prompt + response[:before]
            assert list(second.tokens) == so_far, "the second turn does not continue the trajectory's own tokens"
            assert {turn.seed for turn in bench.engine.requests} == {request.seed}, "the engine got another seed"
            temperatures = {turn.temperature for turn in bench.engine.requests}
            assert temperatures == {request.sampling.temperature}, f"the engine got the temperatures {temperatures}"
            assert bench.engine.released == [request.rollout], "the engine was not told that the rollout is over"

    @trio_test
    async def test_the_same_request_gives_the_same_trajectory(self, tmp_path: Path) -> None:
        """Only the seed decides what is sampled."""
        written: list[list[int]] = []

        def by_seed(number: int, turn: Any) -> str:
            return self.call_text(f"print({turn.seed}+{number})") if number == 1 else self.answer_text(str(turn.seed))

        for number in range(2):
            async with self.bench(tmp_path / str(number), by_seed) as bench:
                await bench.ask(seed=7)
                written.append((await bench.trajectory()).unpack().tokens.tolist())
        assert written[0] == written[1], "the same request gave two different trajectories"

    @trio_test
    async def test_calls_of_a_turn_run_at_once_and_come_back_in_order(self, tmp_path: Path) -> None:
        """Each call is answered, and the second call starts before the first has ended.

        In a format that ends a turn at its first call, the model never writes the second, and the first is answered.
        """
        ends, both = bool(self.actor.chat_format.closing), trio.Event()  # type: ignore[attr-defined]
        calls: list[ToolCall] = []

        async def reply(call: ToolCall) -> ToolResult:
            calls.append(call)
            if ends or len(calls) == 2:
                both.set()
            with trio.move_on_after(30) as patience:
                await both.wait()
            assert not patience.cancelled_caught, "the second call of a turn waits for the first"
            return result(call, stdout="one" if "11" in str(call.arguments) else "two")

        def script(number: int, _: Any) -> str:
            several = self.call_text("print(11)") + "\n" + self.call_text("print(22)")
            return several if number == 1 else self.answer_text("4")

        async with self.bench(tmp_path, script, reply=reply) as bench:
            await bench.ask(sampling=Sampling(1.0, 400, 3))
            made = await bench.trajectory()
            outcomes = [record.outcome for record in made.transcript.calls]
            assert outcomes == ["success"] * (1 if ends else 2), f"calls: {made.transcript.calls}"
            assert len({call.call for call in calls}) == len(outcomes), "two calls have one name"
            assert {call.rollout for call in calls} == {made.rollout}, "a call does not say its rollout"
            text = self.tool_text(bench, made)
            assert "one" in text, f"the first result is missing in {text!r}"
            assert ends or text.index("one") < text.index("two"), (
                f"results are not in the order of their calls: {text!r}"
            )

    def tool_text(self, bench: Bench, made: Trajectory) -> str:
        """The text of a trajectory's tokens with mask 0."""
        return bench.engine.decode((body := made.unpack()).tokens[body.loss_mask == 0].tolist())

    @trio_test
    async def test_turns_without_a_call_are_answered_by_the_environment(self, tmp_path: Path) -> None:
        """An executor answers, given the snapshot of the last answer. The answer is in the sequence, with mask 0."""

        def reply(question: ObserveTurn) -> TurnObserved:
            turn = len(question.transcript.texts)
            messages = (EnvironmentMessage(turn, "user", f"higher than {turn}"),)
            return TurnObserved(messages, question.state + b"%d" % turn, done=turn == 3)

        environments = [{"class": TALKATIVE, "name": "game"}]
        async with self.bench(tmp_path, self.guesses, reply=reply, environments=environments) as bench:
            request = await bench.ask(problem=problem(environment="game"), sampling=Sampling(1.0, 400, 5))
            made = await bench.trajectory()
            assert (made.status, made.turns) == ("finished", 3), f"{made.status} {made.reason}: {made.turns} turns"
            answers = bench.stage["tool_executor"].log
            assert [each.state for each in answers] == [b"", b"1", b"12"], "a snapshot was lost"
            about = [(each.rollout, each.problem, each.seed) for each in answers]
            assert about == [(request.rollout, request.problem, request.seed)] * 3, (
                f"the executor was asked about {about}"
            )
            assert [len(each.transcript.texts) for each in answers] == [1, 2, 3], "the executor lacks turns"
            said = self.tool_text(bench, made)
            assert said.index("higher than 1") < said.index("higher than 2"), f"the model read {said!r}"
            assert "higher than 3" not in said, "tokens follow the last turn"
            assert [reply.content[-1] for reply in made.transcript.replies] == ["1", "2", "3"]
            self.check_tokens(made, bench.engine)

    @trio_test
    async def test_an_environment_that_fails_loses_its_rollout_alone(self, tmp_path: Path) -> None:
        """The status is environment_failed with the fault; it is failed when no executor answers."""

        async def reply(question: ObserveTurn) -> TurnObserved:
            if question.rollout.endswith("/0/0"):
                return TurnObserved(fault="environment 'game': observe fails with ValueError: no (game.py, line 3)")
            if question.rollout.endswith("/1/0"):
                await trio.sleep_forever()
            return TurnObserved(done=True)

        environments = [{"class": TALKATIVE, "name": "game"}]
        async with self.bench(tmp_path, self.guesses, reply=reply, environments=environments) as bench:
            for number in range(3):
                await bench.ask(problem=problem(environment="game"), **sample(number))
            await self.settled(1200)
            made = {each.sample: each for each in bench.trajectories}
            status = {number: each.status for number, each in sorted(made.items())}
            assert status == {0: "environment_failed", 1: "failed", 2: "finished"}, f"by sample: {status}"
            assert "game.py, line 3" in made[0].reason, f"the reason is {made[0].reason}"

    @trio_test
    async def test_a_loop_of_its_own_writes_one_sequence(self, tmp_path: Path) -> None:
        """``async def rollout(problem, model, tools)``: its messages have mask 0; the model's tokens do not change."""
        environments = [{"class": TALKATIVE, "name": "game", "rollout": OWN_LOOP}]
        async with self.bench(tmp_path, self.guesses, environments=environments) as bench:
            await bench.ask(problem=problem(environment="game"), sampling=Sampling(1.0, 400, 5))
            made = await bench.trajectory()
            assert (made.status, made.turns) == ("finished", 3), f"{made.status} {made.reason}: {made.turns} turns"
            assert "Are you sure?" in self.tool_text(bench, made), "the model was not asked"
            self.check_tokens(made, bench.engine)
            for turn in bench.engine.requests:
                said = [*made.unpack().prompt_tokens.tolist(), *made.unpack().tokens.tolist()]
                assert list(turn.tokens) == said[: len(turn.tokens)], (
                    "a turn continues other tokens than the trajectory's"
                )
            limited = {"sampling": Sampling(1.0, 400, 2), **sample(1)}
            await bench.ask(problem=problem(environment="game"), **limited)
            assert (await bench.trajectory()).status == "turn_limit", "a loop may go on beyond max_turns"

    def guesses(self, number: int, _: Any) -> str:
        """A script: turns without calls."""
        return self.answer_text(str(10 * number))

    @trio_test
    async def test_what_goes_wrong_in_a_call_is_told_to_the_model(self, tmp_path: Path) -> None:
        """After an error or a malformed call the rollout goes on, and the record names the outcome."""
        turns = [self.call_text("1/0"), *([self.malformed] if self.malformed else []), self.answer_text("4")]

        def reply(call: ToolCall) -> ToolResult:
            return result(call, "error", "", "ZeroDivisionError: division by zero")

        async with self.bench(tmp_path, lambda number, _: turns[number - 1], reply=reply) as bench:
            await bench.ask(sampling=Sampling(1.0, 400, 4))
            made = await bench.trajectory()
            assert made.status == "finished", f"{made.status}: {made.reason}"
            outcomes = [record.outcome for record in made.transcript.calls]
            assert outcomes == ["error", "malformed"][: len(turns) - 1], f"the records say {outcomes}"
            assert "ZeroDivisionError" in self.tool_text(bench, made), "the model was not told of the error"

    @trio_test
    async def test_infrastructure_that_fails_is_no_fault_of_the_model(self, tmp_path: Path) -> None:
        """A rollout that executors or engine cannot serve has status failed, with the reason. Other rollouts go on."""

        def reply(call: ToolCall) -> ToolResult:
            return result(call, "unavailable" if call.rollout.endswith("/0/0") else "success")

        def script(number: int, turn: Any) -> Any:
            return EngineError("it does not fit") if turn.rollout.endswith("/1/0") else self.two_turns(number, turn)

        async with self.bench(tmp_path, script, reply=reply) as bench:
            for number in range(3):
                await bench.ask(**sample(number))
            await self.settled(300)
            status = {made.sample: made.status for made in bench.trajectories}
            assert status == {0: "failed", 1: "failed", 2: "finished"}, f"by sample: {status}"
            assert all(made.reason for made in bench.trajectories if made.status == "failed"), "without a reason"
            assert len(bench.acknowledged) == 3, f"{len(bench.acknowledged)} of 3 requests were acknowledged"

    @trio_test
    async def test_a_rollout_asked_for_twice_is_sampled_once_and_answers_both(self, tmp_path: Path) -> None:
        """A restarted scheduler sends the requests of running rollouts again."""
        async with self.bench(tmp_path) as bench:
            await bench.ask()
            await bench.ask()
            await self.settled()
            assert len(bench.trajectories) == 1, f"{len(bench.trajectories)} trajectories of one rollout"
            assert len(bench.acknowledged) == 2, f"{len(bench.acknowledged)} of the 2 requests were acknowledged"

    @trio_test
    async def test_rollouts_nobody_wants_are_cancelled_and_others_go_on(self, tmp_path: Path) -> None:
        """The trajectory's status is cancelled. Its request is acknowledged, and the engine's memory is freed."""
        hold = trio.Event()

        async def reply(call: ToolCall) -> ToolResult:
            await hold.wait()
            return result(call)

        async with self.bench(tmp_path, reply=reply) as bench:
            for number in (0, 1):
                await bench.ask(rollout=f"s0-g{number:06d}/0/0", group=f"s0-g{number:06d}")
            await bench.stage["tool_executor"].receive(ToolCall)
            bench.stage["kv_scheduler"].announce("unwanted", GENERATOR).set(GroupsUnwanted(("s0-g000001",)))
            made = await bench.trajectory()
            assert (made.group, made.status) == ("s0-g000001", "cancelled"), f"{made.group}: {made.status}"
            assert bench.engine.released == ["s0-g000001/0/0"], "the engine still holds the cancelled rollout"
            hold.set()
            other = await bench.trajectory()
            assert (other.group, other.status) == ("s0-g000000", "finished"), f"{other.group}: {other.status}"

    @trio_test
    async def test_a_policy_published_in_flight_shows_on_every_later_token(self, tmp_path: Path) -> None:
        """Generation does not stop for a new policy. The load announced to scheduler and learner names the policy."""

        async def reply(call: ToolCall) -> ToolResult:
            bench.stage["learner"].announce("policy", GENERATOR).set(published(4))
            with trio.move_on_after(30) as patience:
                await bench.engine.swapped.wait()
            assert not patience.cancelled_caught, "the new policy waits for the rollout in flight"
            return result(call)

        async with self.bench(tmp_path, reply=reply) as bench:
            await bench.ask()
            made = await bench.trajectory()
            versions = (body := made.unpack()).policies[body.loss_mask > 0, 1].tolist()
            assert versions == sorted(versions), "an older policy follows a newer one"
            assert set(versions) == {3, 4}, f"tokens carry the versions {sorted(set(versions))}, served were 3 and 4"
            await self.settled()
            for role in ("kv_scheduler", "learner"):
                load = [message for message in bench.stage[role].log if isinstance(message, EngineLoad)][-1]
                assert load.policy == PolicyVersion(1, 4), f"the load announced to {role} names {load.policy}"
                assert load.generator == GENERATOR, f"the load is of {load.generator}"

    @trio_test
    async def test_nothing_is_sampled_before_a_policy_is_published(self, tmp_path: Path) -> None:
        """The weights that an engine starts with belong to no policy."""
        async with self.bench(tmp_path, version=None) as bench:
            await bench.ask()
            await self.settled()
            assert not bench.engine.requests, "a rollout was sampled from a policy nobody published"
            bench.stage["learner"].announce("policy", GENERATOR).set(published(0))
            made = await bench.trajectory()
            assert made.status == "finished", f"{made.status}: {made.reason}"

    @trio_test
    async def test_a_rollout_ends_at_its_limits(self, tmp_path: Path) -> None:
        """The status is truncated at max_response_tokens, which include tool responses, and turn_limit at max_turns."""

        def reply(call: ToolCall) -> ToolResult:
            return result(call, stdout="x" * 300 if "8" in str(call.arguments) else "4")

        def script(_: int, turn: Any) -> str:
            texts: Sequence[str] = (self.call_text("print(1)"), "y" * 500, self.call_text("print(8)"))
            return texts[int(turn.rollout.split("/")[1])]

        async with self.bench(tmp_path, script, reply=reply) as bench:
            for number, turns in enumerate((2, 3, 3)):
                await bench.ask(**sample(number), sampling=Sampling(1.0, 200, turns))
            await self.settled()
            ended = {made.sample: made.status for made in bench.trajectories}
            assert ended == {0: "turn_limit", 1: "truncated", 2: "truncated"}, f"by sample: {ended}"
            longest = max(made.response_length for made in bench.trajectories)
            assert longest <= 200, f"a response has {longest} tokens of 200"

    @trio_test
    async def test_killed_in_the_middle_it_answers_every_request_after_its_restart(self, tmp_path: Path) -> None:
        """The link sends requests again that were not acknowledged."""
        self._engines = []
        topology = self.topology(tmp_path)
        async with stand_ins(topology, self.role, concurrency={"tool_executor": 64}) as stage:
            never = trio.Event()
            stage["tool_executor"].reply = lambda _: never.wait()
            stage["learner"].announce("policy", GENERATOR).set(published(3))
            async with self.started(topology, stage, kill=True) as actor:
                bench = Bench(stage, actor, self._engines[-1])
                for number in range(4):
                    await bench.ask(**sample(number))
                await stage["tool_executor"].receive(ToolCall)
            stage["tool_executor"].reply = result
            async with self.started(topology, stage, incarnation=2):
                await self.settled(60)
                samples = sorted(made.sample for made in bench.trajectories)
                assert samples == [0, 1, 2, 3], f"trajectories came of the samples {samples}"
                assert len(bench.acknowledged) == 4, f"{len(bench.acknowledged)} of 4 requests were acknowledged"

    # Rollouts that go on elsewhere ------------------------------------------------------------------------------------

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
    async def test_turns_that_cannot_be_gone_on_from_are_left(self, tmp_path: Path) -> None:
        """The rollout then starts from its beginning, and ends as any other."""
        async with self.bench(tmp_path / "first", self.three_turns) as bench:
            await bench.ask(sampling=ROOM)
            await bench.trajectory()
            await self.settled()
            (first, second) = self.turns(bench)
        for turns, most, status in ((second, first), 3, "finished"), ((first, second), 2, "turn_limit"):
            async with self.bench(tmp_path / status, self.three_turns) as bench:
                await bench.ask(sampling=replace(ROOM, max_turns=most), turns=turns)
                made = await bench.trajectory()
                assert (made.status, made.turns, len(bench.engine.requests)) == (status, most, most), made.status

    @trio_test
    async def test_the_scheduler_hears_how_long_a_rollout_was_at_its_end(self, tmp_path: Path) -> None:
        """So it learns how much KV cache rollouts need."""
        async with self.bench(tmp_path, self.three_turns) as bench:
            await bench.ask(sampling=ROOM)
            whole = await bench.trajectory()
            await self.settled()
            sent = [each for each in bench.stage["kv_scheduler"].log if isinstance(each, TurnsCompleted)]
            assert sent[-1].then == "ended", "the scheduler was not told of the end"
            assert sent[-1].tokens == whole.prompt_length + whole.response_length, "not the tokens of the rollout"

    def turns(self, bench: Bench) -> list[CompletedTurn]:
        """The turns that the scheduler was sent."""
        sent = [each for each in bench.stage["kv_scheduler"].log if isinstance(each, TurnsCompleted)]
        return [turn for message in sent for turn in message.turns]
