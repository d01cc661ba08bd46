"""Turns that environments answer, users' own loops and the prompts of templates, in the generator: what is refused,
whose fault it is, what goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.engines.base import EngineError, EngineRefusedError
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.messages import Branch, Sampling, ToolCall, ToolResult, Trajectory
from agent_rl_contract import builders
from agent_rl_contract.generator_bench import TALKATIVE
from tests.actors.test_rollout_generator import CALL, generator, model, rollout

__all__ = ["model"]  # the fixture

TOOL = "python_code_with_standard_io"
GAME = builders.problem(environment="game")


def game(loop: Callable[..., Any] | None = None) -> EnvironmentEntry:
    path = None if loop is None else f"{__name__}:{loop.__name__}"
    tools = ("agent_rl.environments.python_tools:python",)
    return EnvironmentEntry(**{"class": TALKATIVE, "name": "game", "rollout": path, "tools": tools})


async def sampled(
    folder: Path, model: Path, loop: Callable[..., Any], script: Any = None, tokens: int = 400, **options: Any
) -> Trajectory:
    """The trajectory of one rollout of this loop."""
    texts = script or (lambda number, _: f"turn {number}")
    async with generator(folder, model, texts, tasks=game(loop), **options) as (stage, _):
        return await rollout(stage, problem=GAME, sampling=Sampling(1.0, tokens, 4))


def refused(said: str) -> Any:
    """The generator does not start, and says so."""
    return pytest.RaisesGroup(pytest.RaisesExc(EngineRefusedError, match=said), flatten_subgroups=True)


def start(problem: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem.text}]


# Loops that the parametrized tests run --------------------------------------------------------------------------------


async def raises(problem: Any, model: Any, tools: Any) -> None:
    await model(start(problem))
    raise KeyError("answer")


async def never_asks(problem: Any, model: Any, tools: Any) -> None:
    return


async def hangs(problem: Any, model: Any, tools: Any) -> None:
    await model(start(problem))
    await trio.sleep_forever()


async def asks_for_nothing(problem: Any, model: Any, tools: Any) -> None:
    await model(start(problem), max_tokens=0)


async def asks_at_once(problem: Any, model: Any, tools: Any) -> None:
    async with trio.open_nursery() as nursery:
        for limit in (None, 9, 9):
            nursery.start_soon(partial(model, start(problem), max_tokens=limit))
            await trio.sleep(0.0001)  # less than a token takes


async def has_a_helper(problem: Any, model: Any, tools: Any) -> None:
    messages = start(problem)
    said = await model(messages)
    helper = model.branch()
    seen = [{"role": "user", "content": f"Look at {said}."}]
    found = await helper(seen)
    await helper([*seen, {"role": "assistant", "content": found}, {"role": "user", "content": "Sure?"}])
    await model([*messages, {"role": "assistant", "content": said}, {"role": "user", "content": found}])


async def calls_what_is_not_there(problem: Any, model: Any, tools: Any) -> None:
    assert "search" not in tools
    await tools["search"](query="4")


async def gives_what_is_no_json(problem: Any, model: Any, tools: Any) -> None:
    await tools[TOOL](code=object())


async def swallows(problem: Any, model: Any, tools: Any) -> None:
    while True:
        try:
            await model(start(problem))
        except Exception:  # noqa: BLE001
            await trio.lowlevel.checkpoint()


async def uses_its_tool(problem: Any, model: Any, tools: Any) -> None:
    messages = start(problem)
    said = await model(messages)
    shown = await tools[TOOL](code=f"print({said!r})")
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": shown}]
    await model(messages)


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (raises, "fails with KeyError: 'answer' (test_turns.py, line "),
        (never_asks, "has returned without a turn of the model; await model(messages)"),
        (hangs, "has taken more than 5 s of its own time"),
        (asks_for_nothing, "max_tokens is 0; give a number of at least 1, or None"),
        (calls_what_is_not_there, "KeyError: 'search'"),
        (gives_what_is_no_json, "ToolCall.arguments"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_loop_at_fault_loses_its_rollout_with_the_place(
    loop: Callable[..., Any], reason: str, tmp_path: Path, model: Path
) -> None:
    made = await sampled(tmp_path, model, loop, loop_seconds=5.0)
    assert made.status == "environment_failed"
    assert made.reason.startswith("environment 'game': its own rollout: ")
    assert reason in made.reason
    assert "(test_turns.py, line " in made.reason


def wordy(*_: Any) -> str:
    return "y" * 60


def not_there(*_: Any) -> EngineError:
    return EngineError("900 tokens do not fit 256")


@pytest.mark.parametrize(
    ("loop", "script", "tokens", "status", "turns", "branches"),
    [
        (asks_at_once, None, 400, "finished", 3, [("again", (2,)), ("again", (3,))]),
        (has_a_helper, None, 400, "finished", 4, [("sub_agent", (2, 3))]),
        (uses_its_tool, wordy, 50, "truncated", 1, []),
        (uses_its_tool, not_there, 400, "failed", 0, []),
        (swallows, not_there, 400, "failed", 0, []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_a_loop_asks_for_is_a_tree_and_what_fails_never_passes_through_it(
    loop: Any, script: Any, tokens: int, status: str, turns: int, branches: list[Any], tmp_path: Path, model: Path
) -> None:
    made = await sampled(tmp_path, model, loop, script, tokens)
    assert (made.status, made.turns) == (status, turns)
    assert set(made.branches) == {Branch(*each) for each in branches}  # of two at once trio draws the first
    assert made.reason == ("900 tokens do not fit 256" if status == "failed" else "")
    assert made.written == made.unpack().loss_mask.sum()


async def test_waiting_for_model_and_tools_is_no_time_of_the_loops_own(tmp_path: Path, model: Path) -> None:
    async def reply(call: ToolCall) -> ToolResult:
        await trio.sleep(20)
        return ToolResult(call.call, "success", "4\n", "", "", 0.0, 0.001)

    made = await sampled(tmp_path, model, uses_its_tool, reply=reply, loop_seconds=5.0)
    assert (made.status, made.turns) == ("finished", 2)
    (record,) = made.transcript.calls
    assert (record.turn, record.tool, record.arguments, record.response) == (1, TOOL, {"code": "print('turn 1')"}, "4")
    assert [reply.content for reply in made.transcript.replies] == ["4"]


async def test_tools_that_no_executor_runs_fail_the_rollout(tmp_path: Path, model: Path) -> None:
    def reply(call: ToolCall) -> ToolResult:
        return ToolResult(call.call, "unavailable", "", "the MCP server 's' is gone", "", 0.0, 0.0)

    made = await sampled(tmp_path, model, uses_its_tool, reply=reply, tool_attempts=1)
    assert (made.status, made.reason[:18]) == ("failed", "tools unavailable:")
    assert made.reason.endswith("; the last: the MCP server 's' is gone")


async def test_calls_in_a_loops_turns_are_text(tmp_path: Path, model: Path) -> None:
    made = await sampled(tmp_path, model, uses_its_tool, lambda *_: CALL)
    assert [record.arguments["code"] for record in made.transcript.calls] == [f"print({CALL!r})"]


@pytest.mark.parametrize("loop", [None, uses_its_tool], ids=["observes", "loop"])
async def test_a_template_that_changes_earlier_turns_is_refused_where_turns_are_answered(
    loop: Any, tmp_path: Path, model: Path
) -> None:
    forgets = (
        "{% for m in messages %}<|{{ m['role'] }}|>"
        "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' and not loop.last else m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (tmp_path / "forgets.jinja").write_text(forgets)
    with refused("environment 'game' answers turns, and the chat template then changes earlier turns: thinking before"):
        async with generator(tmp_path, model, str, tasks=game(loop), template="forgets.jinja"):
            await trio.sleep_forever()


# A prompt that is the model's chat template: refused, or run with the template's tool role -------------------------------


def maths(folder: Path) -> EnvironmentEntry:
    (folder / "problems.jsonl").write_text(json.dumps({"id": "p", "problem": "What is 2 + 2?", "answer": "4"}) + "\n")
    settings = {"files": ["problems.jsonl"], "prompt": "template"}
    return EnvironmentEntry(**{"class": "maths", "name": "arithmetic", "settings": settings})


async def test_tools_calls_and_results_are_the_templates(tmp_path: Path, model: Path) -> None:
    turns = [3 * CALL, "\\boxed{4}"]
    shutil.copy(Path(__file__).with_name("tools.jinja"), tmp_path)
    options: dict[str, Any] = {"tasks": maths(tmp_path), "template": "tools.jinja", "tool_calls_per_turn": 2}
    async with generator(tmp_path, model, lambda number, _: turns[number - 1], **options) as (stage, actor):
        made = await rollout(stage, sampling=Sampling(1.0, 2000, 3))
        body = made.unpack()
        prompt, given = (
            actor._chat.decode(each.tolist()) for each in (body.prompt_tokens, body.tokens[body.loss_mask == 0])
        )
        assert (made.status, made.turns) == ("finished", 2)
        assert prompt.startswith('<|user|>{"type": "function", "function": {"name": "python_code')
        assert prompt.endswith("<|end|><|user|>What is 2 + 2?<|end|><|assistant|>")
        assert given.count(f"<|user|>{TOOL}: 4") == 2
        assert f"<|user|>{TOOL}: Error: a turn may make 2 tool calls, and this turn made 3" in given
        assert "<tool_response>" not in given
        assert [call.outcome for call in made.transcript.calls] == ["success", "success", "malformed"]


async def test_a_template_without_tools_is_refused_at_the_start(tmp_path: Path, model: Path) -> None:
    with refused(f"the chat template of {tmp_path}.*: .* does not list tools"):
        async with generator(tmp_path, model, str, tasks=maths(tmp_path)):
            pass
