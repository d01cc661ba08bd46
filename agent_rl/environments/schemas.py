"""The JSON schema of a tool: made of a typed function, or written by hand and checked against the function."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, create_model

OWN = ("context", "state", "problem")
"""Keyword-only parameters that the model does not give."""
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


class ToolError(Exception):
    """A function or a schema makes no tool; the message says why, and what to write."""


def arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], dict[str, Any]]:
    """A model of the parameters that the model gives, and the annotations of the others."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ToolError(f"{described(function)} makes no tool: {error}") from error
    fields, descriptions = {}, _descriptions(function)
    own = {}
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.name in OWN:
            own[each.name] = hints.get(each.name, Any)
            continue
        if each.name not in hints or each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD):
            wrong = "has no type" if each.name not in hints else "cannot be given by name"
            raise ToolError(f"the tool {name}: its parameter {each.name!r} {wrong} ({described(function)})")
        default = ... if each.default is each.empty else each.default
        fields[each.name] = (hints[each.name], Field(default, description=descriptions.get(each.name)))
    if own.get("state", dict) in (Any, bytes):
        raise ToolError(
            f"the tool {name}: give `state` the type of its value, as in dict[str, int] ({described(function)})"
        )
    try:
        config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=False)
        model: type[BaseModel] = create_model(name, __config__=config, **fields)  # type: ignore[call-overload]
    except PydanticUserError as error:
        raise ToolError(f"the tool {name}: {error.message} ({described(function)})") from error
    return model, own


def schema_of(name: str, function: Callable[..., Any], arguments: type[BaseModel]) -> dict[str, Any]:
    """The schema of a function, for the model."""
    docstring = inspect.getdoc(function) or ""
    names = "|".join(map(re.escape, arguments.model_fields)) or r"(?!)"
    text = re.sub(
        rf"^\s*(?:{names}):.*(?:\n\s+.*)*$|^\s*(?:Args|Arguments|Parameters):\s*$", "", docstring, flags=re.MULTILINE
    )
    description = re.sub(r"\n\s*\n+", "\n\n", text).strip()
    if not description:
        raise ToolError(f"the tool {name} has no description: write a docstring ({described(function)})")
    parameters = _without_titles(arguments.model_json_schema())
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """The description of each parameter in a docstring: the lines ``name: text``, and those below that are indented
    further.
    """
    lines = re.findall(r"^(\s*)(\w+): *(.*(?:\n\1\s+\S.*)*)", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for _, name, text in lines}


def _without_titles(schema: Any) -> Any:
    """A JSON schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return {key: _without_titles(value) for key, value in kept.items()}


def described(function: Callable[..., Any]) -> str:
    """Where a function is written."""
    code = inspect.unwrap(function).__code__ if inspect.isfunction(inspect.unwrap(function)) else None
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    return f"{getattr(function, '__qualname__', repr(function))}{where}"


# Schemas written by hand ----------------------------------------------------------------------------------------------


def schema_fault(schema: Any, name: str) -> str:
    """The fault in the schema of the tool ``name``; empty for an object with named properties."""
    function = schema.get("function") if isinstance(schema, Mapping) else None
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(parameters, Mapping):
        form = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
        return f"its schema is {schema!r:.100}; write it as {form}"
    if function.get("name") != name:
        return f"its schema is for {function.get('name')!r}; give both one name"
    if parameters.get("type") != "object" or "properties" not in parameters:
        return (
            f'the parameters of its schema are {parameters!r:.100}; write {{"type": "object", "properties": {{...}}}}'
        )
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"its schema cannot be written as JSON: {error}"
    return _value_fault(parameters, "parameters")


def _value_fault(schema: Any, at: str) -> str:
    """The fault in the JSON schema of a value, which stands ``at``."""
    if not isinstance(schema, Mapping):
        return f'its schema has {schema!r:.60} at {at}; write a JSON schema there, as {{"type": "string"}}'
    types = schema.get("type", [])
    for each in types if isinstance(types, list) else [types]:
        if each not in TYPES:
            return f"its schema has the type {each!r:.60} at {at}; write one of {', '.join(TYPES)}"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping):
        return f"its schema has the properties {properties!r:.60} at {at}; write a schema for each name"
    unknown = [each for each in required if each not in list(properties)] if isinstance(required, list) else [required]
    if unknown:
        return f"its schema requires {unknown[0]!r:.60} at {at}, which is none of its properties; name it there"
    inside = {name: properties[name] for name in properties} | {key: schema[key] for key in ("items",) if key in schema}
    return next(filter(None, (_value_fault(each, f"{at}.{name}") for name, each in inside.items())), "")


def arguments_fault(schema: Any, arguments: type[BaseModel]) -> str:
    """Where a schema does not fit the function whose ``arguments`` it describes; empty where it fits."""
    try:
        properties = set(schema["function"]["parameters"]["properties"])
    except (KeyError, TypeError):
        return ""  # `schema_fault` says what is wrong
    fields = arguments.model_fields
    if unknown := sorted(properties - set(fields)):
        return f"its schema has the property {unknown[0]!r}, which the function does not take"
    lacking = [name for name, field in fields.items() if field.is_required() and name not in properties]
    return f"its schema lacks the parameter {lacking[0]!r} of the function" if lacking else ""
