"""Check that a class can be an actor: its declarations, a trial without a start, and its format of episodes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from agent_rl import messages
from agent_rl.config.plugins import ContractError, PluginError, called, described, needs_start, resolve
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.template import made_format

Finding = tuple[str, str]
"""What is wrong, and the remedy."""

CALLED = ("status", "detail", "metrics", "waiting_for", "busy_seconds", "cpu_seconds")
"""Methods that an actor's process calls without arguments, and does not await."""
AWAITED = ("handle", "start", "stop")
REQUIRED = ("receives", "links", "Settings", *AWAITED, *CALLED, "peer_changed", "link_options", "concurrency")
"""The attributes that an actor's process uses; ``actors.base.Actor`` defines all of them."""
OPTIONS = {"push": {"window"}, "call": {"outstanding", "timeout"}, "announce": set[str]()}
"""What ``link_options`` may say of each kind of link."""
DERIVE = "derive it from actors.base.Actor, or from the actor it takes the place of"


def declaration(cls: Any, settings: Mapping[str, Any]) -> Any:
    """The format of episodes that an actor's settings name, else the one its class declares.

    All code that writes or reads conversations, also the learner's demonstrations, uses this format. None where the
    actor samples no rollouts. Raises PluginError when the format cannot be had.
    """
    if not any(messages.RolloutRequest in received.messages for received in cls.receives):
        return None
    named = settings.get("chat_format")
    return resolve("chat_format", named) if isinstance(named, str) and named else getattr(cls, "chat_format", None)


def declared_format(topology: Topology) -> type[ChatFormat]:
    """The format that the topology's generator speaks; `agent-rl check` has seen that all generators speak the same."""
    found = (declaration(resolve("actor", entry.class_path), entry.settings) for entry in topology.actors.values())
    return next((value for value in found if value is not None), ChatFormat)


def chat_format(topology: Topology, tokenizer: Any, environments: Environments) -> ChatFormat:
    """The topology's chat format with this tokenizer. Raises PromptError when the tokenizer does not suit."""
    return made_format(declared_format(topology), tokenizer, environments, environments.schemas)


def class_findings(cls: Any, name: str) -> Iterator[Finding]:
    """Why a class cannot be an actor. Other checks need a class without these faults."""
    lacking = [each for each in REQUIRED if not hasattr(cls, each)]
    actor: Any = cls
    if not isinstance(cls, type) or lacking:
        lacks = f", it lacks {', '.join(lacking)}" if lacking else ""
        yield f"{name} is no actor class{lacks}", DERIVE
        return
    settings = actor.Settings
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        yield f"{name}.Settings is {_kind(settings)}, no pydantic model", "derive it from actors.base.Settings"
    concurrency = actor.concurrency
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        yield f"{name}.concurrency is {concurrency!r}", "write how many messages it handles at once, 1 or more"
    for method in AWAITED:
        if not inspect.iscoroutinefunction(getattr(cls, method)):
            yield f"{name}.{method} is not asynchronous, and it is awaited", f"write async def {method}"
    yield from _declared(cls, name)


def _declared(cls: Any, name: str) -> Iterator[Finding]:
    """Check the types of ``receives`` and ``links``."""
    if not isinstance(cls.links, Mapping):
        yield f"{name}.links is {_kind(cls.links)}", "write a dictionary, as in {'progress': Announce(GroupsProgress)}"
        return
    if isinstance(cls.receives, str) or not hasattr(cls.receives, "__iter__"):
        yield f"{name}.receives is {_kind(cls.receives)}", "write a tuple, as in (Push(Trajectory),)"
        return
    named = [("receives", each) for each in cls.receives] + [(f"links[{link!r}]", it) for link, it in cls.links.items()]
    for where, declared in named:
        if getattr(declared, "kind", None) not in OPTIONS:
            remedy = "write Push(...), Call(...) or Announce(...) with message types"
            yield f"{name}.{where} is {declared!r}, no kind of link", remedy
            continue
        types = (*declared.messages, *(each for each in (getattr(declared, "reply", None),) if each is not None))
        for each in types:
            if getattr(messages, getattr(each, "__name__", ""), None) is not each:
                shown = getattr(each, "__name__", repr(each))
                remedy = "links carry the messages of agent_rl.messages alone, which every process knows"
                yield f"{name}.{where} carries {shown}, which is no message", remedy


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]


def option_findings(cls: Any, name: str, settings: BaseModel) -> Iterator[Finding]:
    """What is wrong with the options a class gives its links."""
    for link, declared in cls.links.items():
        try:
            options = cls.link_options(link, settings)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the class is the user's; whatever it raises is the finding
            yield f"{name}.link_options({link!r}, ...) fails with {described(error)}", ""
            continue
        known = OPTIONS[declared.kind]
        if not isinstance(options, dict) or not set(options) <= known:
            allowed = f"{{{', '.join(sorted(known))}}}" if known else "nothing"
            yield (
                f"{name}.link_options({link!r}, ...) returned {options!r}",
                f"of a {declared.kind} link it may say {allowed}",
            )


def objections(role: str, cls: Any, topology: Any, settings: BaseModel) -> Iterator[tuple[KeyPath, str]]:
    """What a class objects to in its settings, and what its trial on made-up input shows: the key at fault, and why."""
    for key, what, call in (
        ("settings", "check", lambda: getattr(cls, "check", _nothing)(topology, settings)),
        ("class", "trial", lambda: _trial(cls, topology, settings)),
        ("class", "probe", lambda: getattr(cls, "probe", _nothing)(topology, settings)),
    ):
        place: KeyPath = ("actors", role, key)
        try:
            faults = list(call())
        except PluginError:
            continue  # the check of the name reports it
        except ContractError as error:
            place, faults = error.key or place, [str(error)]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a faulty check of one actor must not hide the other faults
            faults = [f"its {what} fails with {described(error)}"]
        yield from ((place, fault) for fault in faults)
        if faults and what == "trial":
            return  # the probe would fail in the same way


def _nothing(*_: object) -> list[str]:
    return []


def _trial(cls: Any, topology: Any, settings: BaseModel) -> Iterator[str]:
    """What fails when the actor is made and called, unless an attribute is missing that ``start`` makes."""
    if not hasattr(cls, "on_trial"):
        return
    actor = called(cls.__name__, lambda: cls.on_trial(topology, settings), "with a context", cls)
    for method in CALLED:
        try:
            called(f"{cls.__name__}.{method}", getattr(actor, method), "before the start", getattr(cls, method))
        except ContractError as error:
            if not needs_start(error, actor):
                yield str(error)


TURNS = (
    *("", "So be it.", "<tool_call>", "<tool_call>{}</tool_call>"),
    *("```python", "```python\n1/0\n```", "\x00<|end|>\u2028" * 9),
)
"""Texts a model may write in a turn, for trying a format on."""


def format_faults(found: Any) -> list[str]:
    """What is wrong with a generator's ``chat_format``, found by reading a few turns with it."""
    if not (isinstance(found, type) and issubclass(found, ChatFormat)):
        return [f"chat_format is {found!r}; it must be a class derived from agent_rl.rollout.prompts.ChatFormat"]
    try:
        for turn in TURNS:
            found.sound_calls(turn)
    except ContractError as error:
        return [str(error)]
    if found.calls("So be it."):
        return [f"{found.__name__}.calls finds calls in a turn that has none; an episode would never end"]
    return []
