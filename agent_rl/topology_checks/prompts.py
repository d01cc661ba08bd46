"""Whether the prompts of each environment leave room for a response in a sequence of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import TypeAlias

from agent_rl.config.source import Fault, Source
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.data.conversations import first_rows, spells_out
from agent_rl.environments.base import TaskError, TaskSource
from agent_rl.environments.load import Environments, asked
from agent_rl.environments.tasks import ListedTasks, MixedTasks
from agent_rl.learning.tiny import CHAT_TEMPLATE, END, character_tokenizer
from agent_rl.messages import Problem
from agent_rl.models.hub import is_hub_name, metadata
from agent_rl.models.model_files import ModelFiles
from agent_rl.models.plain_tokenizer import PlainTokenizer
from agent_rl.observe.words import count_of
from agent_rl.rollout.prompts import ChatFormat, PromptError
from agent_rl.topology_checks.declared import chat_format
from agent_rl.topology_checks.model import named_template

CONVERSATIONS = 1000
"""How many of a supervised stage's are read before anything starts."""
TRIED = 16
"""Problems of each kind that are put into prompts: the shortest texts of lists, else the first ones drawn."""

Limit: TypeAlias = tuple[PlainTokenizer | None, int | None, KeyPath, str]
"""The tokenizer, the tokens of a sequence, the key that says how many, and the remedy."""


def prompt_faults(
    topology: Topology, base: Path, source: Source, environments: Environments, tasks: MixedTasks, noted: list[Fault]
) -> Iterator[Fault]:
    """One fault for all environments whose prompts leave no room for a response. Raises TaskError.

    Data with the text of control tokens is added to ``noted``.
    """
    response = max(
        (stage.max_response_tokens for stage in topology.stages if not isinstance(stage, SftStage)), default=0
    )
    try:
        tokenizer, length, key, remedy = _limit(topology, base)
        if tokenizer is None:
            return
        chat = chat_format(topology, tokenizer, environments)
    except PromptError as error:
        asking = [at for at, each in enumerate(environments.values()) if each.lists_tools == "template"]
        place: KeyPath = ("environments", asking[0]) if asking else ("model",)
        yield source.fault(place, str(error), "name another model, or a template as chat_template in [model]")
        return
    except Exception:  # noqa: BLE001 - one of them needs transformers: the generator's start shows the fault
        return
    noted += _control_notes(topology, base, source, chat, tasks)
    if length is None or not response:
        return
    long: dict[str, list[int]] = {}
    for name, problems in tasks.sources.items():
        if environments[name].rollout is not None:
            continue  # a loop of the user's own makes its prompts itself
        for tried in _tried(topology, problems):
            named = [replace(problem, environment=name) for problem in tried]
            sizes = asked(name, "its prompt", partial(_sizes, chat, named))
            if sizes and sizes[0] >= length:
                long[name] = sorted([*long.get(name, ()), *sizes])
    if long:
        found = ", ".join(f"{sizes[0]} to {sizes[-1]} tokens in {name}" for name, sizes in long.items())
        message = f"a sequence has {length} tokens, and prompts with the descriptions of their tools need more: {found}"
        yield source.fault(key, message, remedy.format(needed=max(max(sizes) for sizes in long.values()) + response))


def _control_notes(
    topology: Topology, base: Path, source: Source, chat: ChatFormat, tasks: MixedTasks
) -> Iterator[Fault]:
    """What holds the text of control tokens: of all listed problems, and of the first conversations of each stage."""
    names = [entry.name for entry in topology.environments]
    looked: dict[KeyPath, tuple[str, list[str], int]] = {}
    for name, problems in tasks.sources.items():
        if isinstance(problems, ListedTasks):
            listed = (*problems.trained, *problems.held_out)
            found = [each.id for each in listed if chat.spells_out([{"role": "user", "content": each.text}])]
            looked["environments", names.index(name)] = "problem", found, len(listed)
    for index, stage in enumerate(topology.stages):
        if isinstance(stage, SftStage) and stage.data:
            with suppress(TaskError):  # try_conversations says it
                rows = list(first_rows(stage.data, base, CONVERSATIONS))
                found = [where for where, row in rows if spells_out(chat, row)]
                looked["stages", index, "data"] = "conversation", found, len(rows)
    for place, (what, found, count) in looked.items():
        if found:
            message = f"{len(found)} of {count_of(count, what)} hold the text of a control token, as {found[0]!r:.80}"
            remedy = (
                "it is spelt out, as in &lt;|im_end|>; `agent-rl data convert --model M --drop` leaves such rows out"
            )
            yield source.fault(place, message, remedy)


def _sizes(chat: ChatFormat, problems: Sequence[Problem]) -> list[int]:
    """The tokens of each prompt, in order of size."""
    return sorted(len(chat.prompt_tokens(problem)) for problem in problems)


def _limit(topology: Topology, base: Path) -> Limit:
    model, template = topology.model, named_template(topology, base)
    if model.initialise is not None:
        backend = character_tokenizer(byte_fallback=model.initialise.byte_fallback)
        tokenizer = PlainTokenizer(backend, template or CHAT_TEMPLATE, {"eos_token": END})
        remedy = "write {needed} or more, so that a response has room too, or list fewer tools"
        return tokenizer, model.initialise.max_length, ("model", "initialise", "max_length"), remedy
    assert model.path is not None
    files = ModelFiles.read(metadata(model.path) if is_hub_name(model.path) else Path(model.path).expanduser())
    remedy = "take a model whose sequences have {needed} tokens or more (max_position_embeddings), or list fewer tools"
    return PlainTokenizer.read(files, template), files.length, ("model", "path"), remedy


def _tried(topology: Topology, problems: TaskSource) -> Iterator[Sequence[Problem]]:
    """Some training and some held-out problems."""
    if isinstance(problems, ListedTasks):
        for listed in (problems.trained, problems.held_out):
            yield nsmallest(TRIED, listed, key=lambda problem: len(problem.text))
        return
    stage = next((index for index, stage in enumerate(topology.stages) if isinstance(stage, RlStage)), None)
    if stage is not None:
        yield [problems.problem(stage, number) for number in range(TRIED)]
    count = problems.evaluation_count
    yield [problems.evaluation(number) for number in range(TRIED if count is None else min(TRIED, count))]
