"""Check that a class can be an actor: its declarations, its asynchronous methods, and a trial on made-up input.

Only the class is inspected; no actor is started. Each fault names the error and the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from agent_rl import messages
from agent_rl.config.plugins import ContractError, PluginError, described, resolve

Finding = tuple[str, str]
"""What is wrong, and the remedy."""

REQUIRED = (
    *("receives", "links", "Settings", "handle", "start", "stop", "status", "waiting_for", "busy_seconds"),
    *("cpu_seconds", "link_options", "concurrency"),
)
"""The attributes that an actor's process uses; ``actors.base.Actor`` defines all of them."""
ASYNCHRONOUS = ("handle", "start", "stop")
SYNCHRONOUS = ("status", "waiting_for", "busy_seconds", "cpu_seconds", "link_options")
OPTIONS = {"push": {"window"}, "call": {"outstanding", "timeout"}, "announce": set[str]()}
"""What ``link_options`` may say of each kind of link."""
DERIVE = "derive it from actors.base.Actor, or from the actor it takes the place of"


def declaration(cls: Any, settings: Mapping[str, Any]) -> Any:
    """The format of episodes that an actor's settings name, else the one its class declares.

    None where it samples no rollouts, and so has no say in it. Raises PluginError when the format cannot be had.
    """
    if not any(messages.RolloutRequest in received.messages for received in cls.receives):
        return None
    named = settings.get("chat_format")
    return resolve("chat_format", named) if isinstance(named, str) and named else getattr(cls, "chat_format", None)


def class_findings(cls: Any, name: str) -> Iterator[Finding]:
    """Why a class cannot be an actor. Other checks need a class without these faults."""
    lacking = [each for each in REQUIRED if not hasattr(cls, each)]
    actor: Any = cls
    if not isinstance(cls, type) or lacking:
        lacks = f", it lacks {', '.join(lacking)}" if lacking else ""
        yield f"{name} is no actor class{lacks}", DERIVE
        return
    if inspect.isabstract(cls):
        abstract = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        yield f"{name} is abstract: it does not define {abstract}", "define it"
    settings = actor.Settings
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        yield f"{name}.Settings is {_kind(settings)}, no pydantic model", "derive it from actors.base.Settings"
    concurrency = actor.concurrency
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        yield f"{name}.concurrency is {concurrency!r}", "write how many messages it handles at once, 1 or more"
    yield from _declared(cls, name)
    yield from _methods(cls, name)


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


def _methods(cls: Any, name: str) -> Iterator[Finding]:
    """Whether methods are asynchronous where they are awaited."""
    for method in ASYNCHRONOUS:
        if not inspect.iscoroutinefunction(getattr(cls, method)):
            yield f"{name}.{method} is not asynchronous, and it is awaited", f"write async def {method}"
    for method in SYNCHRONOUS:
        if inspect.iscoroutinefunction(getattr(cls, method)):
            yield f"{name}.{method} is asynchronous, and it is not awaited", f"write def {method}"
    try:
        inspect.signature(cls).bind(object())
    except (TypeError, ValueError):
        yield f"{name} cannot be made with a context alone", "write def __init__(self, context)"


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]


def option_findings(cls: Any, name: str, settings: BaseModel) -> Iterator[Finding]:
    """What is wrong with the options a class gives its links."""
    for link, declared in cls.links.items():
        try:
            options = cls.link_options(link, settings)
        except Exception as error:  # noqa: BLE001 - the class is the user's; whatever it raises is the finding
            yield f"{name}.link_options({link!r}, ...) fails with {described(error)}", ""
            continue
        known = OPTIONS[declared.kind]
        if not isinstance(options, dict) or not set(options) <= known:
            allowed = f"{{{', '.join(sorted(known))}}}" if known else "nothing"
            yield (
                f"{name}.link_options({link!r}, ...) returned {options!r}",
                f"of a {declared.kind} link it may say {allowed}",
            )


def objections(cls: Any, trial: str, topology: Any, settings: BaseModel) -> list[tuple[str, tuple[str, ...]]]:
    """The faults that a class's own ``check`` reports, or its failures on made-up input (``probe``).

    Beside each stands the key of the topology that the fault is about, or ``()``.
    """
    try:
        return [(fault, ()) for fault in getattr(cls, trial)(topology, settings)] if hasattr(cls, trial) else []
    except PluginError:
        return []  # what cannot be had is named where the topology names it
    except ContractError as error:
        return [(str(error), error.key)]
    except Exception as error:  # noqa: BLE001 - a faulty check of one actor must not hide the other faults
        return [(f"its {trial} fails with {described(error)}", ())]
