"""The contract of executors: each call is answered once, in time, and what is wrong with it is an outcome.

These tests run in real time, since an executor's sandbox has real processes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import trio

from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.environments.python_tools import NOTEBOOK_TOOL, PYTHON_TOOL
from agent_rl.messages import JudgementReply, JudgementWanted, Problem, ToolResult, Transcript
from agent_rl_contract.base import SUMS, RoleContract, trio_test
from agent_rl_contract.builders import tool_call
from agent_rl_contract.stage import Stage, stand_ins

EXECUTOR = "tool_executor.0"
PATIENCE = 30.0
"""Seconds for whatever is not held to a deadline: a busy machine takes a while to fork."""

EQUAL = (("4", "4"), ("4", "4.0"), ("1/2", "0.5"), ("x^2-1", "(x-1)(x+1)"))
UNEQUAL = (("4", "5"), ("4", "\\sqrt{15}"), ("1/2", "0.51"), ("4", "no idea \\frac{"))
"""Ground truths and predictions that no checker may get wrong."""


class ExecutorContract(RoleContract):
    """Derive and set ``actor``; with other tools, also ``examples`` and ``endless``."""

    role: ClassVar[str] = "tool_executor"
    examples: ClassVar[Sequence[tuple[str, dict[str, Any], str]]] = (
        (PYTHON_TOOL, {"code": "print(6 * 7)"}, "42"),
        (PYTHON_TOOL, {"code": "print(input()[::-1])", "input": "abc"}, "cba"),
        (PYTHON_TOOL, {"code": "sum(range(5))"}, "10"),
    )
    """Tool, arguments, and what must stand in stdout or value."""
    endless: ClassVar[tuple[str, dict[str, Any]] | None] = (PYTHON_TOOL, {"code": "while True: pass"})
    """A call that would never end; None where no tool can be kept busy, and the test of its deadline is skipped."""
    settings: ClassVar[dict[str, Any]] = {"wall_seconds": 8.0, "cpu_seconds": 2.0}
    deadline_seconds: ClassVar[float] = 2.0
    """An endless call is over after so much processor time. A busy machine is given ten times as much wall time."""

    def make_clock(self) -> None:
        """Real time."""

    @asynccontextmanager
    async def among_peers(self, folder: Path) -> AsyncIterator[Stage]:
        """The executor has started; generator and filter may call it."""
        topology = self.topology(folder)
        async with stand_ins(topology, self.role) as stage, self.running(topology, stage):
            await stage.started(EXECUTOR)
            yield stage

    async def call(self, stage: Stage, number: int, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """The generator calls a tool."""
        message = tool_call(arguments, tool, rollout=f"s0-g000000/{number}/0")
        link = stage["rollout_generator"].call("tools", EXECUTOR, timeout=PATIENCE)
        answer: ToolResult = await link(message)
        assert isinstance(answer, ToolResult), f"a tool call was answered with {type(answer).__name__}"
        assert answer.call == message.call, f"the call {message.call} was answered under the name {answer.call}"
        return answer

    async def call_all(self, stage: Stage, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ToolResult]:
        """Many calls at once."""
        results: dict[int, ToolResult] = {}

        async def one(number: int) -> None:
            results[number] = await self.call(stage, number, *calls[number])

        async with trio.open_nursery() as nursery:
            for number in range(len(calls)):
                nursery.start_soon(one, number)
        return [results[number] for number in range(len(calls))]

    def topology(self, folder: Path, **changes: Any) -> Topology:
        """The suite's, whose environment has a notebook too."""
        environments = [{**SUMS, "tools": ["notebook"]}]
        return super().topology(folder, **{"environments": environments, **changes})

    # The promises ----------------------------------------------------------------------------------------------------

    @trio_test
    async def test_calls_are_answered_with_what_the_tool_returned(self, tmp_path: Path) -> None:
        """Many at once, each under its own name with its own result."""
        async with self.among_peers(tmp_path) as stage:
            calls = [self.examples[number % len(self.examples)] for number in range(24)]
            results = await self.call_all(stage, [(tool, arguments) for tool, arguments, _ in calls])
            for (tool, arguments, wanted), answer in zip(calls, results, strict=True):
                said = f"{tool} {json.dumps(arguments)}: {answer.outcome} {answer.stderr}"
                assert answer.outcome == "success", said
                assert wanted in answer.stdout + answer.value, f"{said}: {wanted} is not in {answer}"

    @trio_test
    async def test_a_tool_with_state_goes_on_from_the_snapshot_that_comes_with_the_call(self, tmp_path: Path) -> None:
        """Whichever executor ran the calls before: what is known of a rollout is what its calls say."""
        async with self.among_peers(tmp_path) as stage:
            link = stage["rollout_generator"].call("tools", EXECUTOR, timeout=PATIENCE)
            first: ToolResult = await link(tool_call({"code": "x = 20"}, NOTEBOOK_TOOL, rollout="seen/0/0"))
            assert first.state, f"a cell of a notebook left no snapshot: {first}"
            again = tool_call({"code": "print(x + 1)"}, NOTEBOOK_TOOL, rollout="unseen/0/0", state=first.state)
            second: ToolResult = await link(again)
            assert second.stdout == "21\n", f"a rollout that was never seen does not go on from its snapshot: {second}"

    @trio_test
    async def test_what_is_wrong_with_a_call_is_an_outcome(self, tmp_path: Path) -> None:
        """An unknown tool, arguments that do not fit: the model reads the reason, and the executor lives on."""
        async with self.among_peers(tmp_path) as stage:
            answer = await self.call(stage, 0, "no_such_tool", {"code": "print(1)"})
            assert answer.outcome == "unknown_tool", f"an unknown tool has the outcome {answer.outcome}"
            assert answer.stderr, "the model is not told what is wrong with its call"
            for tool in sorted({tool for tool, _, _ in self.examples}):
                for wrong in ({}, {"code": 7, "expression": [1]}, {"": None}):
                    answer = await self.call(stage, 1, tool, wrong)
                    assert answer.outcome in {"malformed", "error"}, f"{tool} {wrong}: {answer.outcome}"
                    assert answer.stderr, f"{tool} {wrong}: the model is not told what is wrong"
            tool, arguments, wanted = self.examples[0]
            answer = await self.call(stage, 2, tool, arguments)
            assert wanted in answer.stdout + answer.value, "after wrong calls, right ones fail"

    @trio_test
    async def test_it_runs_the_tools_of_the_environments(self, tmp_path: Path) -> None:
        """The tools named in the prompt are there, and the examples are of tools it is told of."""
        declared = {name for box in Environments(self.topology(tmp_path), tmp_path).toolboxes.values() for name in box}
        used = {tool for tool, _, _ in self.examples}
        assert used <= declared, f"no environment of the topology has {sorted(used - declared)}"
        async with self.among_peers(tmp_path) as stage:
            for number, tool in enumerate(sorted(declared)):
                answer = await self.call(stage, number, tool, {})
                assert answer.outcome != "unknown_tool", f"{tool} is declared and unknown"

    @trio_test
    async def test_an_endless_call_is_over_at_its_deadline_and_holds_up_nobody(self, tmp_path: Path) -> None:
        """Its outcome is a timeout; a call made after it is answered before it."""
        if self.endless is None:
            raise SkipTest("`endless` is None: no tool of this executor can be kept busy")
        ended: list[str] = []
        async with self.among_peers(tmp_path) as stage, trio.open_nursery() as nursery:
            assert self.endless is not None
            began = trio.current_time()
            answers: list[ToolResult] = []
            answered = trio.Event()

            async def endless() -> None:
                assert self.endless is not None
                answers.append(await self.call(stage, 0, *self.endless))
                ended.append("endless")
                answered.set()

            nursery.start_soon(endless)
            await trio.sleep(0.2 * self.deadline_seconds)
            await self.call(stage, 1, *self.examples[0][:2])
            ended.append("quick")
            with trio.move_on_after(10 * self.deadline_seconds) as patience:
                await answered.wait()
            assert not patience.cancelled_caught, f"an endless call still ran after {trio.current_time() - began:.1f} s"
            assert answers[0].outcome == "timeout", f"an endless call ended with {answers[0].outcome}"
        assert ended == ["quick", "endless"], "a quick call waited for an endless one"

    @trio_test
    async def test_answers_are_judged_rightly(self, tmp_path: Path) -> None:
        """Equal is equal however it is written; what cannot be read is not equal, and no failure of the checker."""
        pairs = [(pair, True) for pair in EQUAL] + [(pair, False) for pair in UNEQUAL]
        verdicts: dict[str, JudgementReply] = {}
        async with self.among_peers(tmp_path) as stage, trio.open_nursery() as nursery:

            async def judge(number: int, gold: str, prediction: str) -> None:
                link = stage["roc_filter"].call("checks", EXECUTOR, timeout=PATIENCE)
                transcript = Transcript((f"<answer>\\boxed{{{prediction}}}</answer>",))
                problem = Problem(f"p{number}", "?", gold, "arithmetic")
                verdict: JudgementReply = await link(JudgementWanted(f"check-{number}", problem, transcript))
                assert verdict.rollout == f"check-{number}", f"check-{number} was answered as {verdict.rollout}"
                verdicts[verdict.rollout] = verdict

            for number, (pair, _) in enumerate(pairs):
                nursery.start_soon(judge, number, *pair)
        for number, ((gold, prediction), equal) in enumerate(pairs):
            verdict = verdicts[f"check-{number}"]
            assert verdict.judgement is not None, f"{prediction!r} held against {gold!r}: {verdict}"
            judged = verdict.judgement.success
            assert judged == equal, f"{prediction!r} held against {gold!r} was judged {judged}"
