"""`agent-rl chat` shows an answer as it comes, and keeps the conversation as the model has it."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.cli.chat import Answer, NoAnswer, Server, Talk
from actors.cli.serving import Served
from agent_rl.messages import ToolCall, ToolResult
from tests.actors.gateway.stand import Stand, stand
from tests.actors.gateway.test_gateway import CALL, TOOLS

pytestmark = pytest.mark.real_time


def talk(at: Stand, key: str) -> Talk:
    server = Server(None, int(at.url.rpartition(":")[2]), key, Path())  # type: ignore[arg-type]
    return Talk(server, Served(), "Be kind.")


async def say(to: Talk, line: str) -> bool:
    return await trio.to_thread.run_sync(partial(to.take, line))


class Screen(io.StringIO):
    """A standard output that tells when a text is on it; written to in a thread of trio's."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shown = trio.Event()
        self._text = text

    def write(self, written: str) -> int:
        count = super().write(written)
        if self._text in self.getvalue() and not self.shown.is_set():
            trio.from_thread.run_sync(self.shown.set)
        return count


async def test_calls_and_results_are_shown_as_they_happen_and_the_next_question_continues_the_very_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "I look.\n  look\n  > where: here\n  > deep: false\n"
    screen = Screen(call)

    async def ran(call: ToolCall) -> ToolResult:
        await screen.shown.wait()
        return ToolResult(call.call, "success", f"saw {call.arguments['where']}\n", "", "", 0.0, 0.0)

    script = {1: CALL, 2: "All is well.", 3: "Bye."}
    async with (
        stand(tmp_path, lambda number, _: script[number]) as at,
        at.rollout(tools=json.dumps(TOOLS)) as (key, episode),
    ):
        at.stage["tool_executor"].reply = ran
        to = talk(at, key)
        monkeypatch.setattr(sys, "stdout", screen)
        with trio.fail_after(20):
            assert await say(to, "Go.")
        assert await say(to, "And now?")
        assert screen.getvalue() == f"{call}  | saw here\nAll is well.\nBye.\n"
        assert (episode.turns, len(episode.strands)) == (3, 1)
        assert await say(to, "/help")
        assert await say(to, "/what")
        assert "there is no command /what" in screen.getvalue()
        assert not await say(to, "/quit")


async def test_a_question_without_an_answer_is_told_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stand(tmp_path, lambda *_: "Hello.") as at, at.rollout(turns=2) as (key, episode):
        with pytest.raises(NoAnswer, match="no rollout has this key"):
            await say(talk(at, "another"), "Go.")
        to = talk(at, key)
        with pytest.raises(NoAnswer, match="leave no room"):
            await say(to, "word " * 200_000)
        assert await say(to, "Hi.")
        assert await say(to, "/reset")
        assert await say(to, "Hi again.")
        with pytest.raises(NoAnswer, match="rollout concluded"):
            await say(to, "Once more.")
    with pytest.raises(NoAnswer, match="does not answer"):
        await say(to, "Is anybody there?")
    assert capsys.readouterr().out.count("Hello.\n") == 2
    assert len(episode.strands) == 2


def test_calls_that_nothing_runs_are_kept_and_a_last_line_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer()
    answer.add({"reasoning_content": "Hm."})
    answer.add({"content": "I call \x1b[2J"})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    answer.add({"tool_calls": [{"index": 0, **call}]})
    assert capsys.readouterr().out == "Hm.\nI call \u241b[2J\n  f\n  > : {\n"
    kept = {"role": "assistant", "content": "I call \x1b[2J", "reasoning_content": "Hm.", "tool_calls": [call]}
    assert answer.messages() == [kept]
