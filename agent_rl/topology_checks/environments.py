"""Whether the environments of a topology can be made, have enough problems, keep their promises, and leave room for a
response behind their prompts.
"""

from __future__ import annotations

import random
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from pydantic import ValidationError

from agent_rl.config.load import invalid_values
from agent_rl.config.plugins import ContractError
from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Finding
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import EvaluateStage, RlStage, SftStage, Topology
from agent_rl.data.conversations import (
    called_tools,
    conversation,
    first_rows,
    spells_out,
    tool_turn_without_call,
    try_conversations,
    unread_fields,
)
from agent_rl.data.layouts import NoConversation
from agent_rl.environments.base import BlockedError, Environment, TaskError, TaskSource
from agent_rl.environments.judging import OUTPUTS, fault_of, made_up_transcripts, sound_judgement, tried_judge
from agent_rl.environments.load import Environments, asked, for_each, found_class, settings_model, sound_prompt
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.environments.maths.rewards import is_read
from agent_rl.environments.tasks import ListedTasks, MixedTasks
from agent_rl.learning.tiny import CHAT_TEMPLATE, END, character_tokenizer
from agent_rl.messages import Judgement, Problem
from agent_rl.models.hub import HubError, described_model
from agent_rl.models.model_files import Unreadable
from agent_rl.models.plain_tokenizer import PlainTokenizer
from agent_rl.models.untrained import untrained
from agent_rl.observe.words import count_of
from agent_rl.rollout.prompts import ChatFormat, PromptError
from agent_rl.rollout.supervised import sequences
from agent_rl.topology_checks.contracts import chat_format
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.files import fetching
from agent_rl.topology_checks.model import named_template

_METHOD = "one of its methods"
AT_ONCE_SECONDS = 3.0
"""How long ``judge_at_once`` and ``judge`` may hold the process, as in a run."""
CONVERSATIONS, RENDERED, DEMONSTRATIONS = 1000, 50, 64
"""How many of a supervised stage's are read before anything starts."""
TRIED = 16
"""Problems of each kind that are put into prompts: the shortest texts of lists, else the first ones drawn."""

Limit: TypeAlias = tuple[PlainTokenizer | None, int | None, KeyPath, str]
"""The tokenizer, the tokens of a sequence, the key that says how many, and the remedy."""


def class_findings(topology: Topology, _: Facts) -> Iterator[Finding]:
    """Classes that cannot be imported, and settings that they do not accept."""
    for index, entry in enumerate(topology.environments):
        place: KeyPath = ("environments", index)
        try:
            model = settings_model(found_class(entry))
            model.model_validate(entry.settings)
        except ContractError as error:
            yield Finding((*place, "class"), str(error))
        except ValidationError as error:
            yield from invalid_values(error, model, entry.settings, (*place, "settings"), secrets=True)


def environment_findings(topology: Topology, facts: Facts, noted: list[Finding]) -> Iterator[Finding]:
    """Faults of environments with valid classes and settings, found by calling them as the actors do.

    What is only probably a mistake is added to ``noted``.
    """
    base = facts.base.absolute()
    try:
        environments = Environments(topology, base)
        _ = environments.toolboxes
        tasks = environments.tasks()
        made, sources = environments, tasks.sources
        for_each(made, lambda name: asked(name, _METHOD, partial(_try, topology, made[name], sources[name])))
        prompts = list(_prompts(topology, base, environments, tasks, noted))
        noted += _list_notes(topology, environments, tasks)
        noted += _call_notes(topology, base, environments)
    except TaskError as error:
        yield from (_of_environment(part, topology, base) for part in error.parts)
        return
    yield from prompts
    known = tasks.evaluation_count
    for index, stage in enumerate(topology.stages):
        place: KeyPath = ("stages", index)
        wanted, key = 0, (*place, "problems")
        match stage:
            case SftStage(data=()):
                try:
                    for _ in islice(tasks.demonstrations(random.Random(0)), DEMONSTRATIONS):
                        pass
                except TaskError as error:
                    yield _of_environment(error, topology, base) if error.environment else Finding(place, str(error))
            case SftStage(data=data):
                yield from _raised((*place, "data"), partial(try_conversations, data, base, CONVERSATIONS))
            case EvaluateStage():
                wanted = stage.problems
            case SelectStage():
                yield from _raised(place, partial(tasks.listed, index))
            case RlStage() if stage.evaluate is not None:
                wanted, key = stage.evaluate.problems, (*place, "evaluate", "problems")
        if known is not None and known < wanted:
            remedy = f"write at most {known}" if known else "give an environment some, as `evaluation_files` of maths"
            yield Finding(key, f"asks for {wanted} held-out problems, and there are {known}", remedy)


def _of_environment(error: TaskError, topology: Topology, base: Path) -> Finding:
    names = [entry.name for entry in topology.environments]
    index = names.index(error.environment or names[0])
    key: KeyPath = ("settings", *error.key) if error.key else ("class",)
    missing = topology.environments[index].base / error.missing
    remedy = fetching(topology, str(missing), base) if error.missing else ""
    return Finding(("environments", index, *key), str(error), remedy)


def _raised(place: KeyPath, call: Callable[[], object]) -> Iterator[Finding]:
    try:
        call()
    except TaskError as error:
        yield Finding(place, str(error))


def _try(topology: Topology, environment: Environment, problems: TaskSource) -> None:
    """Put a problem of each kind that the stages ask for. Raises whatever the environment raises."""
    trained = [index for index, stage in enumerate(topology.stages) if isinstance(stage, RlStage | SelectStage)]
    found = [problems.problem(stage, 0) for stage in trained]
    if problems.evaluation_count != 0:
        found.append(problems.evaluation(0))
    if not found:
        raise TaskError("there are no problems")
    for problem in found:
        if not isinstance(problem, Problem):
            raise TaskError(f"it gave {problem!r:.100} as a problem; make it an agent_rl.messages.Problem")
        if not _is_json(problem.payload):
            raise TaskError(
                f"the payload of problem {problem.id!r} is {problem.payload!r:.80}, which is no JSON; make it of "
                "dictionaries with texts as keys, lists (no tuples), texts, numbers, booleans and None"
            )
        sound_prompt(environment, problem)
        for transcript in made_up_transcripts():
            judge = partial(environment.judge_at_once, problem, transcript)
            judgement = _judged(environment, "judge_at_once", judge, transcript)
            for output in OUTPUTS if judgement is None else ():
                judge = partial(tried_judge, environment, problem, transcript, output)
                _judged(environment, "judge", judge, transcript, output)


def _judged(environment: Environment, method: str, judge: Callable[[], Judgement | None], *given: object) -> object:
    """What the method returns. Raises TaskError for what it raises, or is no sound judgement."""
    longer = "leave to `judge`" if method == "judge_at_once" else "hand to `context.in_thread`"
    try:
        with _interrupted(longer):
            judgement = judge()
        return None if judgement is None else sound_judgement(judgement)
    except (Exception, BlockedError) as error:
        where = " and ".join(f"{each!r:.120}" for each in given)
        raise TaskError(f"{fault_of(environment, method, error)}, tried with {where}") from error


@contextmanager
def _interrupted(longer: str) -> Iterator[None]:
    """Raise BlockedError in the block after ``AT_ONCE_SECONDS``. Python delivers signals to its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise BlockedError(f"it did not return within {AT_ONCE_SECONDS:g} s; {longer} what takes long")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, AT_ONCE_SECONDS, AT_ONCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _is_json(value: object) -> bool:
    """Whether a value travels as it is."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return isfinite(value)
        case list():
            return all(map(_is_json, value))
        case dict():
            return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return False


def _prompts(
    topology: Topology, base: Path, environments: Environments, tasks: MixedTasks, noted: list[Finding]
) -> Iterator[Finding]:
    """One fault for all environments whose prompts leave no room for a response. Raises TaskError.

    Data with the text of control tokens is added to ``noted``.
    """
    responses = (stage.max_response_tokens for stage in topology.stages if not isinstance(stage, SftStage))
    response = max(responses, default=0)
    try:
        tokenizer, length, key, remedy = _limit(topology, base)
        if tokenizer is None:
            return
        chat = chat_format(topology, tokenizer, environments)
    except PromptError as error:
        asking = [at for at, each in enumerate(environments.values()) if each.lists_tools == "template"]
        place: KeyPath = ("environments", asking[0]) if asking else ("model",)
        yield Finding(place, str(error), "name another model, or a template as chat_template in [model]")
        return
    except Exception:  # noqa: BLE001 - one of them needs transformers: the generator's start shows the fault
        return
    noted += _control_notes(topology, base, chat, tasks)
    noted += _untrained_notes(topology, chat, environments)
    yield from _rendered_rows(topology, base, chat)
    if length is None or not response:
        return
    long: dict[str, list[int]] = {}
    for name, problems in tasks.sources.items():
        if (harness := environments[name].harness) is not None and harness.source == "live" and harness.tools:
            shortest = partial(chat.asked_tokens, [("user", "")], environments.schemas[name])
            if (size := len(asked(name, "its tools", shortest))) >= length:
                long[name] = [size]
                remedy += "; of agent-rl serve and chat: --tools none"
        if environments[name].own_loop:
            continue  # a loop of the user's own, or a harness, makes its prompts itself
        for tried in _tried(topology, problems):
            named = [replace(problem, environment=name) for problem in tried]
            sizes = asked(name, "its prompt", partial(_sizes, chat, named))
            if sizes and sizes[0] >= length:
                long[name] = sorted([*long.get(name, ()), *sizes])
    if long:
        found = ", ".join(f"{sizes[0]} to {sizes[-1]} tokens in {name}" for name, sizes in long.items())
        message = f"a sequence has {length} tokens, and prompts with the descriptions of their tools need more: {found}"
        yield Finding(key, message, remedy.format(needed=max(max(sizes) for sizes in long.values()) + response))


def _rendered_rows(topology: Topology, base: Path, chat: ChatFormat) -> Iterator[Finding]:
    """The first row of each stage that the template renders in another way than it says."""
    for place, rows in _rows_of_stages(topology, base, RENDERED):
        for where, row in rows:
            try:
                with suppress(NoConversation):
                    sequences(chat, *conversation(row))
            except PromptError as error:
                yield Finding(place, f"{where}: {error}")
                break


def _rows_of_stages(topology: Topology, base: Path, number: int) -> Iterator[tuple[KeyPath, list[tuple[str, Any]]]]:
    """The first rows, each with its place, of each stage that reads conversations, with the key of the stage's data."""
    for index, stage in enumerate(topology.stages):
        if isinstance(stage, SftStage) and stage.data:
            rows: list[tuple[str, Any]] = []
            with suppress(TaskError):  # try_conversations says it
                rows.extend(first_rows(stage.data, base, number))
            yield ("stages", index, "data"), rows


def _untrained_notes(topology: Topology, chat: ChatFormat, environments: Environments) -> Iterator[Finding]:
    """The tokens that a turn, with a call where there are tools, is made of and that the model never learned."""
    if topology.model.path is None:
        return
    written: set[int] = set()
    for box in environments.toolboxes.values():
        call = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in islice(box, 1))
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": call or "b"}]
        with suppress(PromptError):  # supervised stages say it
            for tokens, mask in sequences(chat, turns, [tool.schema for tool in box.values()]):
                written |= {token for token, trained in zip(tokens, mask, strict=True) if trained}
    with suppress(Unreadable, HubError):  # model_findings says it
        if found := untrained(described_model(topology.model.path).directory, written):
            texts = [chat.decode([token]) for token in found]
            rows = f"their rows are those of {max(found.values()):,} other tokens"
            remedy = 'give the generators a chat_format in plain text, as "fenced", or the tokens rows of their own: '
            remedy += f"agent-rl model spell {topology.model.path} --out DIR {shlex.join(texts)}"
            yield Finding(("model", "path"), f"it never learned {', '.join(texts)}: {rows}", remedy)


def _control_notes(topology: Topology, base: Path, chat: ChatFormat, tasks: MixedTasks) -> Iterator[Finding]:
    """What holds the text of control tokens: of all listed problems, and of the first conversations of each stage."""
    names = [entry.name for entry in topology.environments]
    looked: dict[KeyPath, tuple[str, list[str], int]] = {}
    for name, problems in tasks.sources.items():
        if isinstance(problems, ListedTasks):
            listed = (*problems.trained, *problems.held_out)
            found = [each.id for each in listed if chat.spells_out([{"role": "user", "content": each.text}])]
            looked["environments", names.index(name)] = "problem", found, len(listed)
    for place, rows in _rows_of_stages(topology, base, CONVERSATIONS):
        looked[place] = "conversation", [where for where, row in rows if spells_out(chat, row)], len(rows)
    for place, (what, found, count) in looked.items():
        if found:
            message = f"{len(found)} of {count_of(count, what)} hold the text of a control token, as {found[0]!r:.80}"
            yield Finding(place, message, "it is spelt out, as in &lt;|im_end|>; or leave such rows out")


def _call_notes(topology: Topology, base: Path, environments: Environments) -> Iterator[Finding]:
    """Which of the first conversations of each stage teach calls that rollouts cannot make."""
    offered = {name for box in environments.toolboxes.values() for name in box}
    for place, rows in _rows_of_stages(topology, base, CONVERSATIONS):
        no_parser: list[str] = []
        unknown: dict[str, str] = {}
        beside: dict[str, tuple[str, str]] = {}
        for where, row in rows:
            with suppress(NoConversation):
                messages, tools = conversation(row)
                beside |= {name: (where, text) for name, text in unread_fields(row).items()}
                no_parser += [where] if tool_turn_without_call(messages) else []
                if not tools and messages[0]["role"] != "system":  # which may list tools of its own
                    unknown |= dict.fromkeys(called_tools(messages) - offered, where)
        if no_parser:
            message = f"{count_of(len(no_parser), 'conversation')} with calls that no parser reads, as {no_parser[0]!r}"
            yield Finding(place, message, "rollouts would not run them; `agent-rl data sft` leaves such rows out")
        for name, (where, text) in beside.items():
            message = f"the text of the field {name} is not trained, as {text[:60]!r} at {where}"
            yield Finding(place, message, "put it into the conversation, or leave the field out")
        if unknown:
            name, where = next(iter(unknown.items()))
            message = f"calls of tools that no environment offers: {', '.join(sorted(unknown))}, as {where!r} of {name}"
            remedy = f"rename them, or offer the tools; there are {', '.join(sorted(offered)) or 'none'}"
            yield Finding(place, message, remedy)


def _list_notes(topology: Topology, environments: Environments, tasks: MixedTasks) -> Iterator[Finding]:
    """Which listed problems repeat others, and which have answers that the checker cannot read."""
    for index, name in enumerate(entry.name for entry in topology.environments):
        problems = tasks.sources[name]
        if not isinstance(problems, ListedTasks):
            continue
        for what, listed, so in (
            ("training", tuple(problems.trained), "they are trained as often as they stand there"),
            ("held-out", problems.held_out, "intervals count them once"),
        ):
            first: dict[tuple[str, str], str] = {}
            if copies := [one.id for one in listed if first.setdefault((one.text, one.answer), one.id) != one.id]:
                of = f"{len(copies):,} of {count_of(len(listed), f'{what} problem')}"
                message = f"{of} repeat others, as {copies[0]!r:.80}"
                yield Finding(("environments", index), message, f"{so}; or leave them out")
            said = [one for one in listed if one.payload.get("system")]
            if said and not asked(name, "its prompt", partial(_shown, environments[name], said[0])):
                its = "its" if len(said) == 1 else "their"
                message = f"{count_of(len(said), 'problem')} with a system message of {its} own, which is not put"
                instead = "the prompt has another in its place; `plain` and `template` of maths put the file's"
                yield Finding(("environments", index), message, instead)
        if isinstance(environments[name], BoxedAnswers):
            listed = (*problems.trained, *problems.held_out)
            if found := [each.id for each in listed if not is_read(each.answer)]:
                message = f"{len(found)} of {count_of(len(listed), 'problem')} have an answer that cannot be read"
                remedy = "only the same text equals it: write its value, or leave the problem out"
                yield Finding(("environments", index), f"{message}, as {found[0]!r:.80}", remedy)


def _shown(environment: Environment, problem: Problem) -> bool:
    """Whether the prompt holds the system message that stands beside the problem in its file."""
    return any(problem.payload["system"] in message["content"] for message in sound_prompt(environment, problem))


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
    files = described_model(model.path)
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
