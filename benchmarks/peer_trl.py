"""TRL's GRPOTrainer on the tasks, tools and rewards of ours; run by `agent-rl bench end_to_end`.

    python -m benchmarks.peer_trl SPEC.json

The environment has TRL and this package. SPEC.json holds a `Spec`; its file ``rows`` gets a JSON object a line: one
when training begins, one after each step.

`CANDIDATES` and `PRETRAINED` are settings of TRL 1.16 that change its speed on a CPU, and not what it trains (but for
weights that are kept in bfloat16, which train worse). They were read in its
source and in that of transformers 5.23: `GRPOConfig` has no field for training without padding, and Liger's kernels
need Triton, so every candidate trains padded batches. `generate` or transformers' continuous batching samples; with the
latter a turn does not wait for the longest turn of its batch. TRL's client of a vLLM server refuses devices other than
CUDA; vLLM in TRL's own process was not tried.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import trio

from actors.sandbox.owner.client import Sandbox
from actors.sandbox.owner.functions import FunctionSandbox
from actors.tool_executor import ToolExecutorSettings
from agent_rl.environments.base import CheckError, ToolOutput
from agent_rl.environments.maths.environment import CHECK
from agent_rl.environments.maths.rewards import answers_equal, final_answer
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.environments.tools import rendered
from agent_rl.rollout.parsing import cut_middle, harmless
from benchmarks.command import WrongOptions
from benchmarks.in_process_tools import Ran, run_python
from transport import keep_freed_memory

Tools = Literal["in_process", "isolated"]


CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' -%}{{- opening -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- before + 'assistant' + after -}}"
    "{%- generation -%}{{- message['content'] -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '<tool_call>' -}}{{- call['function'] | tojson -}}{{- '</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- end -}}{%- endgeneration -%}"
    "{%- elif message['role'] == 'tool' -%}"
    "{%- if loop.previtem is not defined or loop.previtem['role'] != 'tool' -%}"
    "{{- before + 'user' + after -}}"
    "{%- endif -%}"
    "{{- '<tool_response>' + message['content'] + '</tool_response>' -}}"
    "{%- if loop.nextitem is not defined or loop.nextitem['role'] != 'tool' -%}{{- end -}}{%- endif -%}"
    "{%- else -%}"
    "{{- before + message['role'] + after + message['content'] + end -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- before + 'assistant' + after -}}{%- endif -%}"
)
"""For the values of a `Frame`."""


@dataclass(frozen=True)
class Frame:
    """What a chat template puts around a turn: before a role, after it, and behind the content."""

    before: str
    after: str
    end: str
    opening: str = ""
    """What it puts before a conversation that has no system message."""

    @classmethod
    def of(cls, tokenizer: Any) -> Frame:
        """Of the quickstart's model, or of one with ChatML. Raises ValueError for others."""
        user = [{"role": "user", "content": "question"}]
        text = tokenizer.apply_chat_template(user, tokenize=False)
        for frame in (cls("<|", "|>", "<|end|>"), cls("<|im_start|>", "\n", "<|im_end|>\n")):
            turn = f"{frame.before}user{frame.after}question{frame.end}"
            if text.endswith(turn):
                return replace(frame, opening=text.removesuffix(turn))
        raise ValueError("the chat template frames turns neither as the quickstart's nor as ChatML")

    @property
    def chat_template(self) -> str:
        """The model's template with the roles TRL needs: the same tokens, and prefix-preserving."""
        values = asdict(self).items()
        return "".join(f"{{%- set {name} = {json.dumps(text)} -%}}" for name, text in values) + CHAT_TEMPLATE

    @property
    def response_template(self) -> dict[str, Any]:
        """How transformers reads a turn: as TRL's own for Qwen3, which writes calls alike, with this frame."""
        return {
            "defaults": {"role": "assistant"},
            "start_anchor": f"{self.before}assistant{self.after}",
            "fields": {
                "tool_calls": {
                    "open": "<tool_call>",
                    "close_pattern": r"</tool_call>\s*",
                    "repeats": True,
                    "content": "json",
                    "transform": {"type": "function", "function": "{content}"},
                },
                "content": {"close_pattern": re.escape(self.end.strip()) + r"\s*", "content": "text"},
            },
        }


RESPONSE_CHARS = 4096
"""The same on both sides."""
PROBE_SECONDS = 300.0
"""How long an import of TRL may take."""


@dataclass(frozen=True)
class Setting:
    """One way to run TRL."""

    attention: str = "sdpa"
    """``attn_implementation``."""
    dtype: str = "float32"
    """Type that weights are kept in."""
    micro_batch: int | None = None
    """``per_device_train_batch_size``; None: all completions of a step."""
    threads: int = 2
    """Torch's threads."""
    keep_memory: bool = True
    """The allocator keeps freed memory, as in processes of agent_rl."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``GRPOConfig``."""


def continuous(requests: int, tokens: int = 256) -> dict[str, Any]:
    """Continuous batching of so many requests at a time; the cache has room for so many tokens of each.

    The defaults allot half of the memory to the cache, and size masks for it.
    """
    page = 16
    blocks = {"page_size": page, "num_blocks": requests * tokens // page, "max_batch_tokens": max(256, requests)}
    return {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {**blocks, "max_requests_per_batch": requests},
    }


CANDIDATES: Mapping[str, Setting] = {
    "sdpa": Setting(),
    "eager": Setting(attention="eager"),
    "sdpa, allocator as glibc has it": Setting(keep_memory=False),
    "sdpa, one thread": Setting(threads=1),
    "sdpa, micro-batches of 64": Setting(micro_batch=64),
    "sdpa, two steps sampled at once": Setting(config={"steps_per_generation": 2}),
    "sdpa, continuous batching, 32": Setting(config=continuous(32)),
    "sdpa, continuous batching, 32, one thread": Setting(threads=1, config=continuous(32)),
    "sdpa, continuous batching, 256": Setting(config=continuous(256)),
    "sdpa, micro-batches of 32": Setting(micro_batch=32),
    "sdpa, micro-batches of 16": Setting(micro_batch=16),
    "eager, micro-batches of 32": Setting(attention="eager", micro_batch=32),
    "two steps at once, micro-batches of 32": Setting(micro_batch=32, config={"steps_per_generation": 2 * 8}),
    "continuous batching, 256, micro-batches of 32": Setting(micro_batch=32, config=continuous(256)),
    "continuous batching, 256, micro-batches of 64": Setting(micro_batch=64, config=continuous(256)),
}
"""For models whose steps are short beside what each call costs."""
_HALF = {"bf16": True}
PRETRAINED: Mapping[str, Setting] = {
    "float32, micro-batches of 8": Setting(micro_batch=8),
    "bfloat16 products, micro-batches of 8": Setting(micro_batch=8, config=_HALF),
    "bfloat16 products, micro-batches of 32": Setting(micro_batch=32, config=_HALF),
    "bfloat16 products, continuous batching, 32, micro-batches of 8": Setting(
        micro_batch=8, config={**_HALF, **continuous(32, 512)}
    ),
    "bfloat16 weights, micro-batches of 8": Setting(dtype="bfloat16", micro_batch=8),
    "bfloat16 weights, micro-batches of 16": Setting(dtype="bfloat16", micro_batch=16),
    "bfloat16 weights, continuous batching, 32, micro-batches of 8": Setting(
        dtype="bfloat16", micro_batch=8, config=continuous(32, 512)
    ),
    "bfloat16 weights, two steps sampled at once, micro-batches of 8": Setting(
        dtype="bfloat16", micro_batch=8, config={"steps_per_generation": 2 * 4}
    ),
}
"""For models of which matrix products decide."""


def setting_of(given: str) -> Setting:
    """The named candidate, or what a JSON object says. Raises WrongOptions."""
    known = {**CANDIDATES, **PRETRAINED}
    if given in known:
        return known[given]
    try:
        return Setting(**json.loads(given))
    except (ValueError, TypeError) as error:
        names = ", ".join(f'"{name}"' for name in known)
        raise WrongOptions(
            f"--setting {given}: neither a candidate ({names}) nor a JSON object of a setting's fields ({error})"
        ) from error


def require_peer(python: Path) -> None:
    """Raise WrongOptions unless the peer's environment has what it needs."""
    remedy = (
        "build it with `make bench-trl`, or by hand: `python3 -m venv .venv-trl`, then `.venv-trl/bin/pip install "
        "torch==2.13.0 trl==1.16.0` and `.venv-trl/bin/pip install -e .`; or name another with --python"
    )
    if not python.exists():
        raise WrongOptions(f"no environment with TRL: there is no {python}; {remedy}")
    probe = [str(python), "-c", "import trl, agent_rl"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    if tried.returncode:
        reason = tried.stderr.strip().rpartition("\n")[2]
        raise WrongOptions(f"the environment of {python} lacks TRL or agent_rl ({reason}); {remedy}")


@dataclass(frozen=True)
class Spec:
    """The task of both sides."""

    model: str
    rows: str
    problems: str
    """A file of the steps' problems in order, a JSON object a line: ``prompt`` (messages), ``gold``."""
    output: str
    """A folder TRL may write to."""
    seed: int
    steps: int
    groups: int
    """Prompts a step."""
    samples: int
    """Completions of each."""
    max_tokens: int
    """Most tokens of a completion, tool responses included."""
    max_turns: int
    learning_rate: float
    warmup_steps: int
    tools: Tools
    setting: Setting = field(default_factory=Setting)

    def write(self, path: Path) -> None:
        """For the peer's process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Read a file of `write`."""
        read = json.loads(path.read_text())
        return cls(**{**read, "setting": Setting(**read["setting"])})


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
    """The text of a call for the model, as our generator writes it with ``error_detail = "last_line"``."""
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
    """1 for a right answer, else 0. Of the completions that were sampled last: success, and share with a gradient."""

    def __init__(self, tools: InProcess | Isolated, samples: int) -> None:
        """``samples`` of a prompt stand side by side."""
        self._tools, self._samples = tools, samples
        self.__name__ = "right_answer"
        self.success = 0.0
        self.signal = 0.0

    def __call__(self, completions: list[list[dict[str, Any]]], gold: list[str], **rest: Any) -> list[float]:
        """Judge completions, each a list of messages."""
        del rest
        turns = [[message["content"] for message in each if message["role"] == "assistant"] for each in completions]
        answers = [final_answer(*each) for each in turns]
        asked = [index for index, answer in enumerate(answers) if answer is not None]
        equal = self._tools.judge([(gold[index], answers[index] or "") for index in asked])
        rewards = [0.0] * len(completions)
        for index, right in zip(asked, equal, strict=True):
            rewards[index] = float(right)
        self.success = sum(rewards) / len(rewards)
        groups = [rewards[at : at + self._samples] for at in range(0, len(rewards), self._samples)]
        self.signal = sum(len(group) for group in groups if len(set(group)) > 1) / len(rewards)
        return rewards


def train(spec: Spec, rows: TextIO) -> None:
    """All steps."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    setting = spec.setting
    if setting.keep_memory:
        keep_freed_memory()
    torch.set_num_threads(setting.threads)
    tokenizer = AutoTokenizer.from_pretrained(spec.model, trust_remote_code=False)
    frame = Frame.of(tokenizer)
    tokenizer.chat_template, tokenizer.response_template = frame.chat_template, frame.response_template
    dataset = Dataset.from_list([json.loads(line) for line in Path(spec.problems).read_text().splitlines()])
    completions = spec.groups * spec.samples
    micro_batch = setting.micro_batch or completions
    config = GRPOConfig(
        output_dir=spec.output,
        max_steps=spec.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=completions // micro_batch,
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
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": setting.dtype, "attn_implementation": setting.attention},
        use_cpu=True,
        seed=spec.seed,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **{"bf16": False, **setting.config},
    )
    tools = InProcess() if spec.tools == "in_process" else Isolated()
    rewards = Rewards(tools, spec.samples)

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
            counted["signal"] = rewards.signal * completions
            tell(kind="step", step=state.global_step, **counted)

    trainer = GRPOTrainer(
        model=spec.model,
        reward_funcs=rewards,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        tools=[python_tool(tools, RESPONSE_CHARS)],
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
