"""Tools made of typed Python functions, what the model reads of a tool's result, and the tools that a topology has.

::

    @tool
    def distance(start: str, end: str, unit: Literal["km", "miles"] = "km") -> float:
        \"\"\"The distance between two cities.

        start: Where the journey begins.
        \"\"\"

The model is told the function's name, its docstring and a JSON schema of its parameters. A line ``parameter: text`` of
the docstring describes a parameter. Three keyword-only parameters are not the model's: ``context`` gets the `Context`
of the call, ``problem`` the problem's payload, and ``state`` the state of the rollout, as a value of its annotated
type. That is empty at first, is changed in place, and travels as JSON with the rollout.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agent_rl.config.plugins import defined_at, place_of
from agent_rl.environments.base import SNAPSHOT_BYTES, BadArgumentError, Context, Tool, ToolOutput
from agent_rl.environments.schemas import ToolError, arguments_fault, arguments_of, described, schema_fault, schema_of
from agent_rl.messages import ToolOutcome

MARGIN = 1024
"""Characters beyond the limit that a text may have: marks where it was cut, and reasons."""


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str = ...,
    schema: Mapping[str, Any] | None = ...,
    runs: Literal["sandbox", "host"] = ...,
    seconds: float | None = ...,
    render: Callable[[ToolOutput], str] = ...,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function, or with options a decorator that does; see `FunctionTool` for the options."""
    return partial(FunctionTool, **options) if function is None else FunctionTool(function)


class FunctionTool:
    """A typed Python function as a `Tool`. Arguments that its annotations do not allow are refused before it is called.

    ``schema`` replaces the JSON schema that the model is told, not what is checked. ``runs``: on the ``host``, in the
    executor (a function that is not asynchronous has a thread of its own), or in the ``sandbox``, in a child that has
    the function's module and nothing else of the host. ``seconds`` is the deadline of a call on the host, by default
    the executor's. ``render`` writes what the model reads.

    The function returns a text, another value that is written as JSON, or a `ToolOutput`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        schema: Mapping[str, Any] | None = None,
        runs: Literal["sandbox", "host"] = "host",
        seconds: float | None = None,
        render: Callable[[ToolOutput], str] | None = None,
    ) -> None:
        """Raises ToolError for a function without annotations or not to be found by the sandbox, and a wrong schema."""
        self.function = function
        self.name = name or function.__name__
        self.runs: Literal["sandbox", "host"] = runs
        self.seconds = seconds
        self.render = render or rendered
        self._arguments, self._own = arguments_of(function, self.name)
        self.stateful = "state" in self._own
        if schema and (fault := arguments_fault(schema, self._arguments) or schema_fault(schema, self.name)):
            raise ToolError(f"the tool {self.name}: {fault} ({described(function)})")
        self.schema = schema or schema_of(self.name, function, self._arguments)
        if runs == "sandbox" and ("." in function.__qualname__ or "context" in self._own):
            raise ToolError(
                f"the tool {self.name} runs in the sandbox, where {described(function)} cannot be called: "
                'write it at the top level of a module and without `context`, or with runs = "host"'
            )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function as it is, as in the code and the tests of its author."""
        return self.function(*arguments, **named)

    async def call(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput:
        """Run one call. Raises BadArgumentError, and what the function raises."""
        if self.runs == "sandbox":
            return await self._call_apart(arguments, state, context)
        given, kept = self._given(arguments, state, self._payload(context))
        if "context" in self._own:
            given["context"] = context
        if inspect.iscoroutinefunction(self.function):
            return self._output(await self.function(**given), kept, state)
        return self._output(await context.in_thread(partial(self.function, **given)), kept, state)

    def call_here(
        self, arguments: Mapping[str, Any], state: bytes, problem: Mapping[str, Any] = MappingProxyType({})
    ) -> ToolOutput:
        """The same, for who has nothing else to do meanwhile: a child of the sandbox."""
        given, kept = self._given(arguments, state, problem)
        returned = self.function(**given)
        return self._output(asyncio.run(returned) if inspect.iscoroutine(returned) else returned, kept, state)

    async def _call_apart(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput:
        module, name = self.function.__module__, self.function.__qualname__
        text = json.dumps([arguments, base64.b64encode(state).decode(), self._payload(context)])
        output = await context.call(f"{__name__}:call_apart", f"{module}:{name}", text)
        if output.outcome != "success":
            return output
        answer = json.loads(output.value)
        if "malformed" in answer:
            raise BadArgumentError(answer["malformed"])
        if "raised" in answer:
            context.log.warning("a tool raised an error", tool=self.name, error=answer["raised"], where=answer["place"])
            return dataclasses.replace(output, outcome="error", value="", stderr=output.stderr + answer["raised"])
        fields = answer["output"]
        kept = None if fields["state"] is None else base64.b64decode(fields["state"])
        printed = {name: getattr(output, name) + fields[name] for name in ("stdout", "stderr")}
        return ToolOutput(**{**fields, **printed, "state": kept, "run_seconds": output.run_seconds})

    def _payload(self, context: Context) -> dict[str, Any]:
        return context.problem.payload if "problem" in self._own else {}

    def _given(
        self, arguments: Mapping[str, Any], state: bytes, problem: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """The function's keyword arguments, and the value of its state."""
        try:
            checked = self._arguments.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            raise BadArgumentError(_misfit(error)) from None
        given = {name: getattr(checked, name) for name in checked.model_fields_set}
        if "problem" in self._own:
            given["problem"] = copy.deepcopy(dict(problem))  # of all rollouts
        kept = None
        if self.stateful:
            kept = given["state"] = self._state.validate_json(state) if state else self._empty()
        return given, kept

    def _output(self, returned: Any, kept: Any, before: bytes) -> ToolOutput:
        output = as_output(returned)
        if not self.stateful or output.state is not None:
            return output
        after = _json(kept, "the state of the tool").encode()
        return output if after == before else dataclasses.replace(output, state=after)

    @cached_property
    def _state(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._own["state"])

    def _empty(self) -> Any:
        kind = self._own["state"]
        return (typing.get_origin(kind) or kind)()


def _misfit(error: ValidationError) -> str:
    """The fault in the arguments, in words for the model."""
    faults = [
        f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
        for fault in error.errors(include_url=False)
    ]
    return f"the arguments do not fit: {'; '.join(faults)}"[:MARGIN]


def call_apart(target: str, text: str) -> str:
    """In a child of the sandbox: call the tool ``module:name``; how it ended, as JSON."""
    module, _, name = target.partition(":")
    called = getattr(importlib.import_module(module), name)
    arguments, state, problem = json.loads(text)
    try:
        output = called.call_here(arguments, base64.b64decode(state), problem)
    except BadArgumentError as error:
        return json.dumps({"malformed": str(error)})
    except Exception as error:  # noqa: BLE001  whatever the tool raises is the call's outcome
        return json.dumps({"raised": f"{type(error).__name__}: {error}\n", "place": place_of(error)})
    fields = dataclasses.asdict(output)
    fields["state"] = None if output.state is None else base64.b64encode(output.state).decode()
    return json.dumps({"output": fields})


# What a tool returns --------------------------------------------------------------------------------------------------


def as_output(returned: Any) -> ToolOutput:
    """The result of a tool, as a `ToolOutput`. Raises TypeError or ValueError when it cannot be used."""
    if isinstance(returned, ToolOutput):
        return returned
    if returned is None:
        raise TypeError("the tool returned None; it must return a text, or a value that JSON can say")
    if isinstance(returned, str):
        return ToolOutput("success", value=returned)
    return ToolOutput("success", value=_json(returned, "what the tool returned"))


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise ValueError(f"{what} cannot be written as JSON: {error}") from None


def bounded(output: ToolOutput, output_bytes: int, *, stateful: bool) -> ToolOutput:
    """``output`` as it can travel: texts of at most ``output_bytes`` bytes (and a margin), a state within its limit.

    Longer texts are cut, and the outcome is ``output_limit``; with too large a state it is ``error``, and the state
    stays as it was. Raises TypeError when a field is not what it has to be.
    """
    changes: dict[str, Any] = {}
    for field in ("stdout", "stderr", "value", "note"):
        text = getattr(output, field)
        if not isinstance(text, str):
            raise TypeError(f"the tool returned a ToolOutput whose {field} is {text!r:.100}; it must be a text")
        data = text.encode("utf-8", "replace")
        if len(data) > output_bytes + MARGIN:
            changes["outcome"] = "output_limit"
            changes[field] = f"{data[:output_bytes].decode('utf-8', 'ignore')}\n[cut after {output_bytes} bytes]\n"
        elif (plain := data.decode()) != text:  # it holds half a pair of surrogates
            changes[field] = plain
    if output.outcome not in typing.get_args(ToolOutcome):
        raise TypeError(f"the tool returned the outcome {output.outcome!r:.100}; it must be one of ToolOutcome")
    if output.state is not None and not (stateful and isinstance(output.state, bytes)):
        wanted = "bytes" if stateful else "None, since it is not stateful"
        raise TypeError(f"the tool returned a state of type {type(output.state).__name__}; it must be {wanted}")
    if output.state is not None and len(output.state) > SNAPSHOT_BYTES:
        changes["state"] = None
        changes["outcome"] = "error"
        changes["stderr"] = (
            f"The state of the tool would take {len(output.state)} bytes, and may take {SNAPSHOT_BYTES}: "
            "the call has had no effect on it.\n"
        )
    return dataclasses.replace(output, **changes) if changes else output


def rendered(output: ToolOutput) -> str:
    """An output as the model reads it, unless its tool renders it otherwise.

    A ``note`` comes first, whatever else there is. Success gives stdout alone, or without any the value (as IPython
    does), or else stderr. Other outcomes give what was printed so far, then the traceback or a sentence that names the
    outcome.
    """
    printed = output.stdout if output.stdout.strip() else ""
    if output.outcome == "success":
        parts = [printed or output.value or output.stderr or "The call succeeded and returned nothing."]
    else:
        parts = [printed, output.stderr, _sentence(output)]
    return "\n".join(part.rstrip() for part in (output.note, *parts) if part.strip())


def _sentence(output: ToolOutput) -> str:
    """The meaning of an outcome, for the model; empty for errors whose explanation stands in stderr."""
    after = f" after {output.run_seconds:.1f} seconds" if output.run_seconds else ""
    if output.stderr.strip() and output.outcome in ("error", "malformed", "unknown_tool"):
        return ""
    return {
        "success": "",
        "error": "Error: the code failed without a message.",
        "timeout": f"Timeout: the code was stopped{after}.",
        "memory_limit": "Memory limit exceeded: the code was stopped.",
        "output_limit": "Output limit exceeded: the code printed too much and was stopped.",
        "killed": "Killed: the process that ran the code was ended by a signal.",
        "malformed": "Error: the tool call is malformed.",
        "unknown_tool": "Error: there is no tool of this name.",
        "unavailable": "Error: the tool is unavailable.",
    }[output.outcome]


# Several tools --------------------------------------------------------------------------------------------------------


def by_name(tools: Iterable[Tool], where: str) -> dict[str, Tool]:
    """Tools by their names. Raises ToolError, which begins with ``where``, for no tool and two schemas of one name."""
    named: dict[str, Tool] = {}
    for each in tools:
        if fault := _fault(each):
            raise ToolError(f"{where}: {fault}")
        first = named.setdefault(each.name, each)
        if first.schema != each.schema:
            both = f"{_place(first)} and {_place(each)}"
            raise ToolError(
                f"{where}: two tools are named {each.name!r} and have different schemas: {both}; rename one"
            )
    return named


def _place(each: object) -> str:
    """Where a tool, or the class of one, is written: file and line where they are the user's, else ``module:name``."""
    written = getattr(each, "function", each if hasattr(each, "__qualname__") else type(each))
    return defined_at(written) or f"{written.__module__}:{written.__qualname__}"


def _fault(each: Any) -> str:
    """The fault of a value that has to be a tool; empty for a sound one."""
    lacking = [
        name for name in ("name", "schema", "runs", "stateful", "seconds", "call", "render") if not hasattr(each, name)
    ]
    if lacking:
        name = getattr(each, "__qualname__", f"{each!r:.100}")
        return f"{name} ({_place(each)}) is no tool, it lacks {', '.join(lacking)}; write a function with @tool"
    fault = schema_fault(each.schema, each.name)
    if not fault and each.runs not in {"sandbox", "host"}:
        fault = f'it runs in {each.runs!r}; write "sandbox" or "host"'
    return f"the tool {each.name!r} ({_place(each)}): {fault}" if fault else ""
