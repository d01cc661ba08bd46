"""The environments that a topology names, made: by scheduler, filter, generators, executors and learner alike."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agent_rl.config.hidden import redacted, with_environment
from agent_rl.config.plugins import ContractError, called, defined_at, described, place_of, resolve
from agent_rl.config.processes import Written
from agent_rl.config.selection import SelectStage
from agent_rl.config.topology import EnvironmentEntry, RlStage, Topology
from agent_rl.environments.base import Environment, TaskError, TaskSource, Tool, joined
from agent_rl.environments.mcp import mcp_tools
from agent_rl.environments.schemas import ToolError
from agent_rl.environments.tasks import MixedTasks, Restriction, restricted
from agent_rl.environments.tools import by_name, tool
from agent_rl.messages import Problem

T = TypeVar("T")

Toolboxes: TypeAlias = Mapping[str, Mapping[str, Tool]]
"""By the name of an environment: its tools by their names."""
GIVEN = ("seed", "base")
"""Arguments of every constructor beside its settings."""
FORMS = {
    "problems": "def problems(self)",
    "prompt": "def prompt(self, problem)",
    "judge_at_once": "def judge_at_once(self, problem, transcript)",
    "judge": "async def judge(self, problem, transcript, context)",
    "observe": "async def observe(self, problem, transcript, state, context)",
    "control": "def control(self)",
}
"""The methods of an environment, as they are called."""
LOOP = "async def rollout(problem, model, tools)"
NEEDED = (*FORMS, "tools", "lists_tools", "observes")


class Environments(Mapping[str, Environment]):
    """The environments of a run by name, in the order of its topology."""

    def __init__(self, topology: Topology, base: Path) -> None:
        """``base`` is the topology file's folder. Raises TaskError or ContractError when one cannot be made."""
        self._topology, self._base = topology, base
        self._made = all_made(topology.environments, seed=topology.run.seed, base=base)

    def __getitem__(self, name: str) -> Environment:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    @cached_property
    def toolboxes(self) -> Toolboxes:
        """The tools that the model may call in each environment: its own and those of its entry.

        Raises TaskError for what is no tool, and for two tools of one name with different schemas, in whichever
        environments.
        """
        entries = {entry.name: entry for entry in self._topology.environments}
        toolboxes = {
            name: asked(name, "tools", partial(_tools, entries[name], self[name], self._base)) for name in self
        }
        seen: list[Tool] = []
        for name, tools in toolboxes.items():
            seen += tools.values()
            asked(name, "tools", partial(by_name, seen, "tools of all environments"))
        return toolboxes

    @property
    def schemas(self) -> dict[str, list[Mapping[str, Any]]]:
        """The JSON schemas of these tools."""
        return {name: [tool.schema for tool in tools.values()] for name, tools in self.toolboxes.items()}

    def tasks(self) -> MixedTasks:
        """The problems of all, mixed by weight and restricted as the stages say. Raises TaskError."""
        filters = {
            at: Restriction(stage.filter, self._base)
            for at, stage in enumerate(self._topology.stages)
            if isinstance(stage, RlStage | SelectStage)
        }
        return _mixture(self._made, self._topology.environments, filters)


def _tools(entry: EnvironmentEntry, environment: Environment, base: Path) -> dict[str, Tool]:
    if not isinstance(environment.tools, Sequence):
        raise ToolError(f"tools is {environment.tools!r:.100}; write a tuple of tools, as in `tools = (search,)`")
    named = [resolve("tool", name) for name in entry.tools]
    own = [*environment.tools, *(tool(each) if inspect.isfunction(each) else each for each in named)]
    return by_name([*own, *mcp_tools(entry, base)], "tools")


def mixed_tasks(entries: Sequence[EnvironmentEntry], *, seed: int, base: Path) -> MixedTasks:
    """The problems of these environments alone. Raises TaskError or ContractError."""
    return _mixture(all_made(entries, seed=seed, base=base), entries, {})


def all_made(entries: Sequence[EnvironmentEntry], *, seed: int, base: Path) -> dict[str, Environment]:
    """The environments by name. Raises TaskError or ContractError when one cannot be made."""
    named = {entry.name: entry for entry in entries}
    return for_each(named, lambda name: _made(named[name], seed=seed, base=base / named[name].base))


def for_each(names: Iterable[str], call: Callable[[str], T]) -> dict[str, T]:
    """The result of ``call`` for each name. Raises TaskError for all names for which it does."""
    results, errors = {}, []
    for name in names:
        try:
            results[name] = call(name)
        except TaskError as error:
            errors.append(error)
    if errors:
        raise joined(errors)
    return results


def _mixture(
    environments: Mapping[str, Environment], entries: Sequence[EnvironmentEntry], filters: Mapping[int, Restriction]
) -> MixedTasks:
    sources = for_each(
        environments,
        lambda name: asked(name, "problems", lambda: restricted(_source(environments[name]), filters)),
    )
    return MixedTasks(sources, [Fraction(str(entry.weight)) for entry in entries])


def _source(environment: Environment) -> TaskSource:
    source = environment.problems()
    if lacking := [
        name for name in ("problem", "evaluation", "evaluation_count", "demonstrations") if not hasattr(source, name)
    ]:
        raise TaskError(
            f"{_placed('problems', environment.problems)} returned {source!r:.100}, which has no {', '.join(lacking)}; "
            "return a ListedTasks or DrawnTasks of agent_rl.environments.tasks"
        )
    return source


def found_class(entry: EnvironmentEntry) -> type[Environment]:
    """The class that an entry names. Raises ContractError (PluginError) when it cannot be had, or is no environment."""
    named = resolve("environment", entry.class_path)
    lacking = [name for name in NEEDED if not hasattr(named, name)]
    if not isinstance(named, type) or lacking:
        lacks = f": it has no {', '.join(lacking)}" if lacking else ""
        raise ContractError(
            f"{entry.class_path} is no environment{lacks}; derive it from agent_rl.environments.base.Environment"
        )
    return named


class SettingsOf(Written):
    """Base of the settings of an environment."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


class AnySettings(SettingsOf):
    """The same for a constructor that takes any keywords."""

    model_config = ConfigDict(extra="allow")


def settings_model(cls: type[Environment]) -> type[BaseModel]:
    """The settings that a class takes, by the signature of its constructor; annotations say of which types they are."""
    parameters = list(inspect.signature(cls).parameters.values())
    try:
        types = typing.get_type_hints(cls.__init__, include_extras=True)
    except NameError:  # imported for type checkers alone
        types = {}
    base = SettingsOf
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            base = AnySettings
        elif parameter.name not in GIVEN and parameter.kind is not parameter.VAR_POSITIONAL:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (types.get(parameter.name, Any), default)
    return create_model(f"{cls.__name__}Settings", __base__=base, **fields)


def shown_settings(entry: EnvironmentEntry) -> Any:
    """The settings of an entry for people: without secrets, by name or by the types SecretStr and SecretBytes."""
    try:
        return redacted(entry.settings, settings_model(found_class(entry)))
    except ContractError:  # whoever needs the class says so
        return redacted(entry.settings)


def _made(entry: EnvironmentEntry, *, seed: int, base: Path) -> Environment:
    """The environment of an entry. Raises TaskError or ContractError when it cannot be made."""
    cls = found_class(entry)
    try:
        model = settings_model(cls).model_validate(with_environment(entry.settings))
    except LookupError as error:
        message = f"environment {entry.name!r}: settings: {error.args[0]}"
        raise TaskError(message, ("settings",), environment=entry.name) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("settings", *first["loc"]))
        message = f"environment {entry.name!r}: {where}: {first['msg']}"
        raise TaskError(message, tuple(first["loc"]), environment=entry.name) from error
    settings = {name: getattr(model, name) for name in model.model_fields_set}
    made = partial(cls, seed=seed, base=base, **settings)  # type: ignore[call-arg]
    environment = asked(entry.name, "the constructor", made, cls.__init__)
    if entry.rollout is not None:
        environment.rollout = resolve("rollout", entry.rollout)
    environment.harness = entry.harness
    if fault := methods_fault(environment):
        raise TaskError(f"environment {entry.name!r}: {fault}", environment=entry.name)
    return environment


def methods_fault(environment: Environment) -> str:
    """The fault in the form of the environment's methods or of its own loop; empty without a fault."""
    if environment.rollout is not None and (fault := _form_fault("its rollout", environment.rollout, LOOP)):
        return fault
    kind = type(environment)
    if kind.judge is Environment.judge and kind.judge_at_once is Environment.judge_at_once:
        return f"nothing judges its rollouts; write `{FORMS['judge_at_once']}` or `{FORMS['judge']}`"
    faults = (_form_fault(name, getattr(environment, name), form) for name, form in FORMS.items())
    return next(filter(None, faults), "")


def _form_fault(what: str, method: Any, form: str) -> str:
    awaited = form.startswith("async ")
    arguments = [name for name in form.partition("(")[2].rstrip(")").split(", ") if name not in {"self", ""}]
    if awaited and not inspect.iscoroutinefunction(method) and not inspect.iscoroutinefunction(inspect.unwrap(method)):
        return f"{_placed(what, method)} is no asynchronous function; write it as `{form}`"
    if not awaited and inspect.iscoroutinefunction(method):
        return f"{_placed(what, method)} is asynchronous, and it is not awaited; write it as `{form}`"
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError as error:
        return f"{_placed(what, method)} cannot be called with {', '.join(arguments)}: {error}; write it as `{form}`"
    return ""


def _placed(what: str, code: object) -> str:
    place = defined_at(code)
    return what + (f" ({place})" if place else "")


def asked(name: str, what: str, call: Callable[[], T], code: object = None) -> T:
    """The result of a call of an environment. Raises TaskError with the environment, and file and line of the user's
    code.

    ``code`` is the function called; where it cannot be called so, the message says where it is defined.
    """
    try:
        return call()
    except TaskError as error:
        parts = [
            TaskError(f"environment {name!r}: {part}", part.key, missing=part.missing, environment=name)
            for part in error.parts
        ]
        raise joined(parts) from error
    except (ContractError, ToolError) as error:
        raise TaskError(f"environment {name!r}: {error}", environment=name) from error
    except (Exception, SystemExit) as error:
        where = what if place_of(error) else _placed(what, code)
        raise TaskError(f"environment {name!r}: {where} fails with {described(error)}", environment=name) from error


def sound_files(environment: Environment, problem: Problem, which: str = "files") -> dict[str, str]:
    """The files of a harness's folder, or its ``check_files``.

    Raises ContractError for what is none, and for a path that leaves the folder.
    """
    name = f"{type(environment).__name__}.{which}"
    files = called(name, lambda: getattr(environment, which)(problem), f"for the problem {problem.id!r}")
    for path, content in dict(files).items() if isinstance(files, Mapping) else [(files, "")]:
        sound = isinstance(path, str) and isinstance(content, str) and path
        if not sound or Path(path).is_absolute() or ".." in Path(path).parts:
            raise ContractError(
                f"{name} returned {files!r:.200} for the problem {problem.id!r}; it must return texts by relative path"
            )
    return dict(files)


def sound_prompt(environment: Environment, problem: Problem) -> list[dict[str, str]]:
    """The conversation that puts the problem to the model. Raises ContractError for what is no conversation."""
    name = f"{type(environment).__name__}.prompt"
    prompt = called(name, lambda: environment.prompt(problem), f"for the problem {problem.id!r}")
    messages = [dict(message) for message in prompt] if isinstance(prompt, list | tuple) else []
    sound = all(
        message.keys() == {"role", "content"} and all(isinstance(text, str) for text in message.values())
        for message in messages
    )
    if not messages or not sound or messages[-1]["role"] != "user":
        raise ContractError(
            f"{name} returned {prompt!r:.200} for the problem {problem.id!r}; "
            "it must return messages of role and content, the last one of the user's"
        )
    return messages
