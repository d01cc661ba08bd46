"""The selection ``resampling = "release"`` beside the authors' public code, run as it is, on random groups.

    git clone https://github.com/microsoft/rStar
    agent-rl bench release --checkout rStar
    agent-rl bench release --checkout rStar --groups 20000 --seed 1

Random rollouts are built turn by turn by the agent loop, in two chat formats: texts, tool calls, responses with and
without errors, answer tags that pair up or not, rollouts that were cut. The group book decides each group; the
checkout's ``rstar2_agent/down_sample`` decides the same group by the decoded text of its responses. That code draws
nothing at random, so the rollouts kept must be the same. It fails for some odd numbers of rollouts to keep, and such
groups are counted apart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from agent_rl.environments.maths import Maths
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Ready
from agent_rl.groups.resampling import named_selection
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import GroupOpened, Judgement, Policy, Sampling, StageEntered, Trajectory
from agent_rl.rollout.chat_templates import CHATML
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.testing import algorithm, call, opened, request, rl_stage
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table

PACKAGE = Path("rstar2_agent/down_sample")
CALL = '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(2)", "input": ""}}</tool_call>'
THOUGHTS = (
    "So be it.",
    "<reason> I count. </reason>",
    "An error, perhaps.",
    "It comes as <tool_response>error</tool_response>.",
    "Write <answer> last.",
    "Ünicode, 漢字.",
)
RESPONSES = (
    "4",
    "",
    "two\nlines",
    "NameError: name 'x' is not defined",
    "no ERRORS were found",
    "Traceback (most recent call last)",
    "timed out after 10 s",
    "<tool_response>nested</tool_response> error",
)
ANSWERS = (
    "<answer>\\boxed{4}</answer>",
    "<answer>4</answer>",
    "<answer>",
    "</answer>",
    "<answer>a<answer>b</answer>",
    "",
)
KEEP = (4, 5, 7, 8, 8, 16)

Format = tuple[ChatFormat, Callable[[str], list[int]]]
"""A chat format, and how its tokenizer encodes a text."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    checkout: Path
    """A clone of github.com/microsoft/rStar."""
    groups: int = 4000
    """How many random groups are decided."""
    seed: int = 0
    """Of the groups."""


@dataclass(frozen=True)
class Group:
    """A group as our run has it: its trajectories with their judgements, the responses' texts, the places."""

    opened: GroupOpened
    trajectories: tuple[Trajectory, ...]
    texts: tuple[str, ...]
    keep: int


def formats() -> list[Format]:
    """ChatML with the paper's prompt, and the small model's own format."""
    chatml = build_tokenizer(4096, byte_fallback=True)
    chatml.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    chatml.chat_template = CHATML
    plain = build_tokenizer(4096, byte_fallback=True)
    maths = {chatml: Maths(seed=0, base=Path(), prompt="rstar2"), plain: Maths(seed=0, base=Path())}
    return [
        (ChatFormat(tokenizer, {"arithmetic": environment}), partial(tokenizer.encode, add_special_tokens=False))
        for tokenizer, environment in maths.items()
    ]


def random_group(rng: random.Random, chats: Sequence[Format], number: int) -> Group:
    """A group of rollouts, some of which share penalty and reward, so that ties occur."""
    chat, encode = rng.choice(chats)
    keep = rng.choice(KEEP)
    size = rng.choice((keep - 1, keep, keep + 1, rng.randint(keep + 1, 2 * keep), 2 * keep, 2 * keep))
    success = rng.choice((0.1, 0.3, 0.5, 0.5, 0.8))
    group = opened(number, samples=size)
    made = []
    for sample in range(size):
        reward = float(rng.random() < success)
        rollout = random_rollout(rng, (chat, encode), group, sample)
        made.append(replace(rollout, judgement=Judgement(reward, success=reward > 0)))
    texts = tuple(chat.decode(each.unpack().tokens.tolist()) for each in made)
    return Group(group, tuple(made), texts, keep)


def random_rollout(rng: random.Random, form: Format, group: GroupOpened, sample: int) -> Trajectory:
    """A rollout of a few turns."""
    chat, encode = form
    made = request(
        rollout=f"{group.group}/{sample}/0",
        group=group.group,
        sample=sample,
        problem=group.problem,
        sampling=Sampling(1.0, 100_000, rng.randint(1, 6)),
    )
    episode = Episode(made, chat)
    calls = rng.choice((0, 0, 1, 1, 2, 3, 5))
    while episode.ended is None:
        thoughts = rng.sample(THOUGHTS, rng.choice((0, 1, 1, 2)))
        calling = episode.turns < calls
        last = [CALL] * rng.choice((1, 1, 1, 2)) if calling else rng.choices(ANSWERS, k=rng.choice((0, 1, 1, 1, 2)))
        if calling and rng.random() < 0.1:
            last.append(rng.choice(ANSWERS))
        tokens = encode("\n".join((*thoughts, *last)) or "Hm.")
        stopped = rng.random() < 0.95
        count = len(tokens) + stopped
        found = episode.wrote(
            np.array([*tokens, chat.end_of_turn][:count], dtype=np.int32),
            np.full(count, -0.5, dtype=np.float32),
            np.tile(np.array([[1, 0]], dtype=np.int32), (count, 1)),
            stopped=stopped,
        )
        if episode.ended is None:
            responses = rng.choices(RESPONSES, k=len(found))
            records = [call("success", episode.turns) for _ in found]
            episode.responded(responses, records, Policy(1, 0))
    return episode.trajectory(generator="rollout_generator.0", seconds=1.0)


def ours(group: Group) -> tuple[int, ...]:
    """The samples that the group book keeps."""
    book = GroupBook(
        algorithm_of=lambda _: algorithm(samples=group.opened.samples, keep=group.keep, minimum_samples=2),
        stages=[rl_stage()],
        seed=0,
        select=named_selection("release", group.keep),
    )
    book.enter(StageEntered(0, 0, 0, restored=True), next_version=0)
    book.group_opened(group.opened)
    instructions = [each for rollout in group.trajectories for each in book.trajectory(rollout)]
    return tuple(sample for each in instructions if isinstance(each, Ready) for sample, _ in each.kept)


class Batch:
    """A batch with the interface that the checkout's code needs of ``verl.protocol.DataProto``."""

    def __init__(self, tensors: dict[str, torch.Tensor], others: dict[str, np.ndarray[Any, Any]]) -> None:
        self.batch, self.non_tensor_batch = tensors, others

    def __len__(self) -> int:
        return len(self.batch["input_ids"])

    def __getitem__(self, mask: torch.Tensor) -> Batch:
        tensors = {name: values[mask] for name, values in self.batch.items()}
        return Batch(tensors, {name: values[mask.numpy()] for name, values in self.non_tensor_batch.items()})

    def __iter__(self) -> Iterator[SimpleNamespace]:
        for index in range(len(self)):
            row = {name: values[index] for name, values in self.non_tensor_batch.items()}
            yield SimpleNamespace(
                batch={name: values[index] for name, values in self.batch.items()}, non_tensor_batch=row
            )


def public_code(checkout: Path) -> ModuleType:
    """The checkout's package ``down_sample``. Raises FileNotFoundError when it is not there."""
    source = checkout / PACKAGE / "__init__.py"
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not there; clone https://github.com/microsoft/rStar and name the clone")
    protocol = ModuleType("verl.protocol")
    protocol.DataProto = protocol.DataProtoItem = Batch  # type: ignore[attr-defined]
    sys.modules |= {"verl": ModuleType("verl"), "verl.protocol": protocol}
    name = "public_down_sample"
    spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=[str(source.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        for loaded in [each for each in sys.modules if each.partition(".")[0] in {name, "verl"}]:
            del sys.modules[loaded]
    return module


def public(code: ModuleType, group: Group) -> tuple[int, ...]:
    """The samples that the public code keeps, by its example's settings. Raises AssertionError where that code does."""
    count = len(group.texts)
    rewards = [each.judgement.reward if each.judgement else 0.0 for each in group.trajectories]
    others: dict[str, list[Any]] = {
        "uid": [group.opened.group] * count,
        "prompt_text": [group.opened.problem.text] * count,
        "response_text": list(group.texts),
        "sample": list(range(count)),
    }
    batch = Batch(
        {"input_ids": torch.zeros(count, 1), "token_level_scores": torch.tensor([[0.0, each] for each in rewards])},
        {name: np.array(values, dtype=object) for name, values in others.items()},
    )
    config = {
        "roc_error_ratio": True,
        "roc_answer_format": True,
        "min_zero_reward_trace_num": 2,
        "min_non_zero_reward_trace_num": 2,
        "down_sample_to_n": group.keep,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        kept, _ = code.reject_equal_reward(batch, True, 1)
        if kept is not None:
            kept, _ = code.resample_of_correct(kept, None, config, True, world_size=1)
    return () if kept is None else tuple(int(sample) for sample in kept.non_tensor_batch["sample"])


def compare(code: ModuleType, groups: int, seed: int) -> Counter[str]:
    """How the groups were decided: equal or not, and whether the public code kept rollouts, none, or failed."""
    rng, chats = random.Random(seed), formats()
    found: Counter[str] = Counter()
    for number in range(groups):
        group = random_group(rng, chats, number)
        try:
            theirs = public(code, group)
        except AssertionError:
            found["failed"] += 1
            continue
        same = theirs == ours(group)
        found["equal" if same else "different"] += 1
        found["kept" if theirs else "dropped"] += 1
        if not same and found["different"] <= 3:
            print(
                f"{group.opened.group}: the public code keeps {theirs}, agent_rl {ours(group)}, of {len(group.texts)}"
            )
    return found


def main(options: Options) -> int:
    """Compare, and print the figures."""
    try:
        code = public_code(options.checkout)
    except FileNotFoundError as error:
        raise WrongOptions(str(error)) from error
    found = compare(code, options.groups, options.seed)
    decided = found["equal"] + found["different"]
    print_table(
        "The public code and agent_rl on the same random groups",
        ["groups", "kept by the public code", "dropped by it", "it fails", "decided alike", "otherwise"],
        [[options.groups, found["kept"], found["dropped"], found["failed"], found["equal"], found["different"]]],
    )
    print_figures(
        {
            "release_agreement": found["equal"] / decided if decided else float("nan"),
            "release_groups": float(decided),
            "release_failed": float(found["failed"]),
        }
    )
    return 0
