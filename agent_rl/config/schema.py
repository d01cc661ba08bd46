"""What the schema says of a place in a topology: its type, and which keys it may have."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from agent_rl.config.standard import STANDARD
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import PER_STAGE, Topology


def plain(annotation: Any) -> Any:
    """An annotation without Annotated and without None."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return plain(members[0])
    return annotation


def model_of(annotation: Any, data: Any) -> type[BaseModel] | None:
    """The model a table is read with; of several, the one its ``kind`` names."""
    annotation = plain(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    kind = data.get("kind") if isinstance(data, dict) else None
    for member in get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else ():
        field = getattr(member, "model_fields", {}).get("kind")
        if field is not None and kind in get_args(field.annotation):
            return member  # type: ignore[no-any-return]
    return None


def inner(annotation: Any, part: str | int, data: Any) -> Any:
    """The annotation of one key or entry; Any where the schema says nothing."""
    model = model_of(annotation, data)
    if model is not None:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        return fields[str(part)].annotation if str(part) in fields else Any
    annotation = plain(annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return _tagged(arguments[0], data, part)
    if get_origin(annotation) is dict:
        return arguments[1]
    return Any


def _tagged(annotation: Any, data: Any, part: str | int) -> Any:
    """Settle a union of an array's entries by the entry's own ``kind``."""
    entry = data[part] if isinstance(data, list) and isinstance(part, int) and part < len(data) else None
    return model_of(annotation, entry) or annotation


def names_of(annotation: Any, data: Mapping[str, Any], path: KeyPath) -> list[str] | None:
    """The keys a table may have: a model's fields, or the entries of a table of tables; None: any."""
    model = model_of(annotation, data)
    if model is not None:
        return [field.alias or name for name, field in model.model_fields.items()]
    annotation = plain(annotation)
    if get_origin(annotation) is dict and model_of(get_args(annotation)[1], {}) is not None:
        standing = STANDARD if path == ("actors",) else () if data else Topology.model_fields[str(path[0])].default
        return list(dict.fromkeys([*data, *standing]))
    return None


def stage_key(path: KeyPath) -> tuple[str, str] | None:
    """Message and remedy for a key of a stage that belongs elsewhere; None for any other key."""
    if len(path) != 3 or path[0] != "stages":
        return None
    if path[2] in PER_STAGE:
        return "is no key of this kind of stage", "an rl stage may have it, in place of that of [algorithm]"
    for table in ("algorithm", "run", "model"):
        model = model_of(Topology.model_fields[table].annotation, {})
        if model is not None and path[2] in model.model_fields:
            own = f"; an rl stage may override {', '.join(PER_STAGE)}" if table == "algorithm" else ""
            return "only the run may set this key", f"write it in [{table}]{own}"
    return None
