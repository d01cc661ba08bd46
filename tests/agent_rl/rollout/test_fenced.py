"""The fenced format: what is a call, how demonstrations look, and that a turn ends where its call does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.agent_loop import Ending
from agent_rl.environments.base import Demonstration
from agent_rl.environments.maths import Maths
from agent_rl.environments.python_tools import NOTEBOOK_TOOL, PYTHON_TOOL
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import PolicyVersion
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.fenced import FencedFormat
from agent_rl.rollout.parsing import MalformedCall, ParsedCall
from agent_rl.rollout.prompts import PromptError
from agent_rl.rollout.supervised import demonstrated
from agent_rl_contract import GeneratorContract, builders

CALL = f'<tool_call>{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "print(6*7)", "input": "%s"}}}}</tool_call>'
BLOCK = "```python\nprint(6*7)\n```"


class Fenced(RolloutGenerator):
    """The generator as it is, with this format."""

    chat_format = FencedFormat


class TestFenced(GeneratorContract):
    actor = Fenced
    malformed = "```python\nprint(1)"

    def call_text(self, code: str) -> str:
        return f"```python\n{code}\n```"


def test_the_format_translates_demonstrations_and_tells_the_model_of_it() -> None:
    chat = FencedFormat(build_tokenizer(), {"arithmetic": Maths(seed=0, base=Path(), files=("a",), prompt="rstar2")})
    told = chat.decode(chat.prompt_tokens(builders.problem()))
    assert "```python\n...\n``` Run Python code" in told
    assert "<tool_call>" not in told
    messages = [
        {"role": "user", "content": "What is 6 * 7?"},
        {"role": "assistant", "content": f"I multiply.\n{CALL % ''}"},
        {"role": "user", "content": "<tool_response>42</tool_response>"},
        {"role": "assistant", "content": "<answer>\\boxed{42}</answer>"},
    ]
    [(tokens, mask)] = demonstrated(chat, Demonstration(builders.problem(), tuple(messages)))
    trained = chat.decode([token for token, kept in zip(tokens, mask, strict=True) if kept])
    assert trained == f"I multiply.\n{BLOCK}<|end|><answer>\\boxed{{42}}</answer><|end|>"
    assert "```output\n42\n```" in chat.decode(tokens)


def test_a_call_that_no_fence_can_say_is_refused() -> None:
    with pytest.raises(PromptError, match=f"no fence of FencedFormat says this call: {PYTHON_TOOL} with code, input"):
        FencedFormat.turn_of(CALL % "7")
    with pytest.raises(PromptError, match=f"has no fence for the tool '{NOTEBOOK_TOOL}'.*one in `fences`"):
        FencedFormat(build_tokenizer(), {"arithmetic": Maths(seed=0, base=Path(), files=("a",), notebook=True)})


@pytest.mark.parametrize(
    ("turn", "calls"),
    [
        ("So be it.", []),
        (BLOCK, ["print(6*7)\n"]),
        ("First\n```python\na = 1\n```\nthen\n```python\nprint(a)", ["a = 1\n", None]),
        ("```output\n42\n```", []),
        ("```text\n```python\n```" + BLOCK, ["print(6*7)\n"]),
        ("```\nprint(1)\n```", []),
        ("<think>\n" + BLOCK + "\n</think>\n\n```python \n1```", ["1"]),
        ("<think>\n" + BLOCK, []),
    ],
)
def test_blocks_of_known_labels_are_calls(turn: str, calls: list[str | None]) -> None:
    found = FencedFormat.calls(turn)
    assert [None if isinstance(call, MalformedCall) else call.arguments["code"] for call in found] == calls
    assert FencedFormat.complete(turn) == any(calls)


def test_each_label_calls_its_tool() -> None:
    assert FencedFormat.calls("```sql\nSELECT 1\n```") == (ParsedCall("sql", {"query": "SELECT 1\n"}),)
    assert FencedFormat.turn_of('<tool_call>{"name": "sql", "arguments": {"query": "SELECT 1"}}</tool_call>') == (
        "```sql\nSELECT 1\n```"
    )


@pytest.mark.parametrize("at_once", [1, 3, 1000])
@pytest.mark.parametrize("told", [True, False])
def test_a_turn_ends_with_its_first_call_and_what_an_engine_wrote_after_it_is_dropped(told: bool, at_once: int) -> None:
    chat = FencedFormat(build_tokenizer())
    tokens = np.array(chat.encode(f"I add.\n{BLOCK}\n```output\n41\n```"), np.int32)
    turn = tokens, -np.arange(len(tokens), dtype=np.float32), np.zeros((len(tokens), 2), np.int32)
    watch = Ending(chat)
    for start in range(0, len(tokens) if told else 0, at_once):
        watch.wrote(*(each[start : start + at_once] for each in turn))
    watch.ended(*turn)
    kept, logprobs, policies = watch.turn
    assert chat.decode(kept.tolist()) == f"I add.\n{BLOCK}"
    assert watch.cut_at
    assert (len(policies), logprobs.tolist()) == (len(kept), [-float(place) for place in range(len(kept))])


def test_a_turn_that_was_ended_is_followed_by_the_token_that_ends_turns() -> None:
    chat = FencedFormat(build_tokenizer(), builders.environments())
    episode = Episode(builders.request(), chat)
    tokens = np.array(chat.encode(BLOCK), np.int32)
    episode.strands[0].limited = True  # as the agent loop says of a turn that it ended
    [call] = episode.begin_calls(
        episode.append_turn(
            tokens, np.zeros(len(tokens), np.float32), np.zeros((len(tokens), 2), np.int32), stopped=False
        )
    )
    assert isinstance(call, ParsedCall)
    episode.append_tool_results(["42"], [], PolicyVersion(1, 0))
    said = [("assistant", BLOCK), ("user", "```output\n42\n```")]
    whole = [*chat.messages(episode.request.problem), *({"role": role, "content": text} for role, text in said)]
    assert chat.decode(episode.tokens) == chat.render(whole, generate=True)


def test_no_output_passes_for_the_end_of_its_block() -> None:
    assert FencedFormat(build_tokenizer()).responses([BLOCK]).count("```") == 2


PIECES = st.lists(st.sampled_from(["```", "```python\n", "```output\n", "x", "\n", "`", "<think>", "</think>"]))


@given(PIECES)
def test_what_is_told_of_a_turn_that_is_being_written_stays_when_it_goes_on(pieces: list[str]) -> None:
    whole = "".join(pieces)
    beside = FencedFormat.without_calls(whole)
    for count in range(len(whole) + 1):
        begun = whole[:count]
        assert beside.startswith(begun[: FencedFormat.certain(begun)])


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="`<"), min_size=1))
def test_code_comes_back_as_it_was_written(code: str) -> None:
    """But for a line break at its end."""
    turn = f"```python\n{code}\n```"
    [call] = FencedFormat.calls(turn)
    assert isinstance(call, ParsedCall)
    assert call.arguments["code"].rstrip("\n") == code.rstrip("\n")
    assert FencedFormat.without_calls(turn) == ""
