"""The conformance kit against our own gateway, for each chat format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from actors.engines.base import TurnRequest, TurnResult
from agent_rl.rollout.prompts import CHATML, ChatFormat
from agent_rl.rollout.template import made_format
from agent_rl_contract import builders
from agent_rl_contract.scripted import LOGPROB, ScriptedEngine
from benchmarks.gateway_traps import run, table
from benchmarks.gateway_traps.say import told, written
from tests.actors.gateway.stand import stand
from tests.agent_rl.rollout.templates import CONTROLS, HERMES, THINKING

LONGEST = 20_000
SCHEMAS = {"arithmetic": [tool.schema for tool in builders.environments()["arithmetic"].tools]}


def chat_of(template: str, prompt: Any) -> ChatFormat:
    """A format whose tokenizer has a token for each byte, so that it writes every text."""
    core = Tokenizer(BPE({letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROLS})
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])  # as Qwen3 has them
    tokenizer.chat_template = template
    return made_format(ChatFormat, tokenizer, builders.environments(prompt), SCHEMAS)


class Obedient(ScriptedEngine):
    """An engine that writes what the newest directive in its prompt says."""

    def __init__(self, *arguments: Any, chat: ChatFormat, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._chat = chat

    async def generate(self, request: TurnRequest) -> TurnResult:
        chat = self._chat
        what = told(chat.decode(list(request.tokens)))
        assert what is not None
        tokens = written(what, chat.encode, chat.decode, chat.end_of_turn, request.max_tokens)
        for token in tokens:
            await trio.sleep(what.pace / 1000)
            if request.wrote is not None:
                request.wrote(*self._arrays([token]))
        made = self._arrays(tokens)
        stopped = tokens[-1] == chat.end_of_turn
        return TurnResult(tokens=made[0], logprobs=made[1], policies=made[2], finish="stop" if stopped else "length")

    def _arrays(self, tokens: list[int]) -> tuple[Any, Any, Any]:
        count = len(tokens)
        policies = np.tile(np.array([[self.policy.epoch, self.policy.version]], dtype=np.int32), (count, 1))
        return np.array(tokens, dtype=np.int32), np.full(count, LOGPROB, dtype=np.float32), policies


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        pytest.param(CHATML, "plain", id="tags"),
        pytest.param(HERMES, "template", marks=pytest.mark.slow, id="hermes"),
        pytest.param(THINKING, "template", marks=pytest.mark.slow, id="thinking"),
    ],
)
async def test_our_gateway_passes_every_trap(tmp_path: Path, template: str, prompt: str) -> None:
    chat = chat_of(template, prompt)
    token = trio.lowlevel.current_trio_token()

    async with (
        stand(
            tmp_path,
            None,
            longest=LONGEST,
            chat=chat,
            engine=lambda *arguments, **options: Obedient(*arguments, chat=chat, **options),
            keepalive_seconds=0.3,
        ) as at,
        trio.open_nursery() as nursery,
    ):
        over: dict[str, trio.Event] = {}

        async def rollout(*, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
            async with at.rollout(tokens=10_000_000, turns=10_000) as (key, _):
                over[key] = trio.Event()
                task_status.started(key)
                await over[key].wait()

        async def end(key: str) -> None:
            over[key].set()
            await trio.testing.wait_all_tasks_blocked()

        def checks(only: Any = ()) -> Any:
            return run(
                at.url,
                new_key=lambda: trio.from_thread.run(nursery.start, rollout, trio_token=token),
                end=lambda key: trio.from_thread.run(end, key, trio_token=token),
                silence=2.0,
                context=LONGEST,
                only=only,
            )

        results = await trio.to_thread.run_sync(checks)
        if late := {each.check for each in results if each.outcome == "failed" and each.trap == 23}:
            again = await trio.to_thread.run_sync(checks, late)  # it is about time: a stall looks like a fault
            results = [each for each in results if each.check not in late] + again
        nursery.cancel_scope.cancel()
    passed = sum(each.outcome == "passed" for each in results)
    wrong = [each for each in results if each.outcome == "failed"]
    assert not wrong, table(wrong)
    assert passed > 100
