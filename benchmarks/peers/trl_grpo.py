"""TRL's GRPOTrainer on the tasks, tools and rewards of ours; run by `agent-rl bench end_to_end`.

    python -m benchmarks.peers.trl_grpo SPEC.json

The environment has TRL and this package. SPEC.json holds a `Spec`; its file ``rows`` gets a JSON object a line: one
when training begins, one after each step.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import trio

from actors.sandbox.owner.client import Sandbox
from actors.sandbox.owner.functions import FunctionSandbox
from actors.tool_executor import ToolExecutorSettings
from agent_rl.environments.arithmetic import ArithmeticTasks
from agent_rl.environments.base import CheckError, ToolOutput
from agent_rl.environments.maths.environment import CHECK
from agent_rl.environments.maths.rewards import answers_equal, final_answer
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.environments.tools import rendered
from agent_rl.rollout.parsing import cut_middle, harmless
from benchmarks.in_process_tools import Ran, run_python
from transport import keep_freed_memory

Tools = Literal["in_process", "isolated"]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' -}}"
    "{%- generation -%}{{- message['content'] -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '<tool_call>' -}}{{- call['function'] | tojson -}}{{- '</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|end|>' -}}{%- endgeneration -%}"
    "{%- elif message['role'] == 'tool' -%}"
    "{%- if loop.previtem is not defined or loop.previtem['role'] != 'tool' -%}{{- '<|user|>' -}}{%- endif -%}"
    "{{- '<tool_response>' + message['content'] + '</tool_response>' -}}"
    "{%- if loop.nextitem is not defined or loop.nextitem['role'] != 'tool' -%}{{- '<|end|>' -}}{%- endif -%}"
    "{%- else -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""The quickstart's template, with the roles TRL needs: the same tokens, and prefix-preserving."""
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}
"""How transformers reads a turn: as TRL's own for Qwen3, which writes calls alike, with this tokenizer's frame."""


@dataclass(frozen=True)
class Spec:
    """What both sides are told."""

    model: str
    rows: str
    output: str
    """A folder TRL may write to."""
    seed: int
    steps: int
    groups: int
    """Prompts a step."""
    samples: int
    """Completions of each."""
    max_tokens: int
    """Of a completion, tool responses included."""
    max_turns: int
    learning_rate: float
    warmup_steps: int
    tools: Tools
    tool_response_chars: int
    micro_batch: int
    threads: int
    attention: str
    keep_memory: bool
    """Of the allocator: as in our processes."""
    config: dict[str, Any]
    """Further fields of GRPOConfig."""

    def write(self, path: Path) -> None:
        """For the peer's process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Spec:
        """What `write` wrote."""
        return cls(**json.loads(path.read_text()))


class InProcess:
    """Code and answers run and judged where they are asked."""

    def run(self, code: str, stdin: str) -> Ran:
        """One call."""
        return run_python(code, stdin)

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each prediction (second) equals its gold answer."""
        return [answers_equal(gold, prediction) for gold, prediction in pairs]


class Isolated:
    """The tool executor's two sandboxes with its default settings, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        """Returns when the interpreters are warm."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="sandbox", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def run(self, code: str, stdin: str) -> Ran:
        """One call; waits for its end, as TRL does."""
        done = trio.from_thread.run(self._tools.execute, code, stdin, trio_token=self._token)
        return Ran(done.outcome, done.stdout, done.stderr, done.value, done.run_seconds)

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """All at once, as many at a time as the checker has places."""
        return trio.from_thread.run(self._judge, pairs, trio_token=self._token)

    def close(self) -> None:
        """End the interpreters."""
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        equal = [False] * len(pairs)

        async def one(index: int, gold: str, prediction: str) -> None:
            with suppress(CheckError):  # it died of the answer, which counts as wrong
                equal[index] = await self._checks.check(CHECK, gold, prediction) == "equal"

        async with trio.open_nursery() as nursery:
            for index, (gold, prediction) in enumerate(pairs):
                nursery.start_soon(one, index, gold, prediction)
        return equal

    def _serve(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as error:  # noqa: BLE001  told to the thread that waits
            self._failure = error
            self._ready.set()

    async def _hold(self) -> None:
        settings = ToolExecutorSettings()
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            self._tools = Sandbox(
                interpreters=settings.interpreters,
                children=settings.children,
                warm_modules=settings.warm_modules,
                isolation=settings.isolation,
                sessions=0,
            )
            await nursery.start(self._tools.run)
            assert self._tools.level is not None
            self._checks = FunctionSandbox(
                [CHECK],
                interpreters=settings.checkers,
                children=settings.children,
                isolation=self._tools.level,
            )
            await nursery.start(self._checks.run)
            self._ready.set()
            await trio.sleep_forever()


def shown(ran: Ran, max_chars: int) -> str:
    """What the model reads of a call, as our generator tells it with ``error_detail = "last_line"``."""
    stderr = ran.stderr.rstrip().rpartition("\n")[2] if ran.outcome == "error" else ran.stderr
    output = ToolOutput(ran.outcome, ran.stdout, stderr, ran.value, run_seconds=ran.seconds)
    return cut_middle(harmless(rendered(output)), max_chars)


def python_tool(tools: InProcess | Isolated, max_chars: int) -> Callable[..., str]:
    """The tool as TRL wants it: a typed function with a docstring, by the name the model knows."""

    def run(code: str, input: str = "") -> str:  # noqa: A002  the model's name for it
        """
        Run Python code and return what it prints, or the value of its last expression.

        Args:
            code: The Python code to run.
            input: What the code reads from standard input.

        Returns:
            What it printed.

        """
        return shown(tools.run(code, input), max_chars)

    run.__name__ = PYTHON_TOOL
    return run


class Rewards:
    """1 for a right answer, else 0; the success of the completions that were sampled last."""

    def __init__(self, tools: InProcess | Isolated) -> None:
        self._tools = tools
        self.__name__ = "right_answer"
        self.success = 0.0

    def __call__(self, completions: list[list[dict[str, Any]]], gold: list[str], **rest: Any) -> list[float]:
        """Of each completion, a list of messages."""
        del rest
        turns = [[message["content"] for message in each if message["role"] == "assistant"] for each in completions]
        answers = [final_answer(*each) for each in turns]
        asked = [index for index, answer in enumerate(answers) if answer is not None]
        equal = self._tools.judge([(gold[index], answers[index] or "") for index in asked])
        rewards = [0.0] * len(completions)
        for index, right in zip(asked, equal, strict=True):
            rewards[index] = float(right)
        self.success = sum(rewards) / len(rewards)
        return rewards


def train(spec: Spec, rows: TextIO) -> None:
    """All steps."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    if spec.keep_memory:
        keep_freed_memory()
    torch.set_num_threads(spec.threads)
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    source = ArithmeticTasks(seed=spec.seed)
    problems = [source.problem(0, number) for number in range(spec.steps * spec.groups)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": each.text}], "gold": each.answer} for each in problems]
    )
    completions = spec.groups * spec.samples
    config = GRPOConfig(
        output_dir=spec.output,
        max_steps=spec.steps,
        per_device_train_batch_size=spec.micro_batch,
        gradient_accumulation_steps=completions // spec.micro_batch,
        num_generations=spec.samples,
        num_iterations=1,
        shuffle_dataset=False,
        max_completion_length=spec.max_tokens,
        max_tool_calling_iterations=spec.max_turns - 1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        scale_rewards="group",
        learning_rate=spec.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=spec.warmup_steps,
        max_grad_norm=1.0,
        weight_decay=0.0,
        optim="adamw_torch_fused",
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": spec.attention},
        use_cpu=True,
        seed=spec.seed,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **spec.config,
    )
    tools = InProcess() if spec.tools == "in_process" else Isolated()
    rewards = Rewards(tools)

    def tell(**row: Any) -> None:
        rows.write(json.dumps({**row, "wall": time.time()}) + "\n")
        rows.flush()

    class Tell(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            del args, state, control, rest
            tell(kind="begin", threads=torch.get_num_threads())

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            del args, control, rest
            counted = {"success": rewards.success, "rollouts": completions, "trained": completions}
            tell(kind="step", step=state.global_step, **counted)

    trainer = GRPOTrainer(
        model=spec.model,
        reward_funcs=rewards,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        tools=[python_tool(tools, spec.tool_response_chars)],
        callbacks=[Tell()],
    )
    trainer.train()
    if isinstance(tools, Isolated):
        tools.close()


def main(arguments: Sequence[str]) -> int:
    """Train as the file says."""
    (path,) = arguments
    spec = Spec.read(Path(path))
    with Path(spec.rows).open("w") as rows:
        train(spec, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
