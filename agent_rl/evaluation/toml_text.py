"""Values as TOML text: the standard library reads TOML and does not write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def toml_text(tables: Mapping[str, Any]) -> str:
    """A TOML document: tables under their headings one level deep, and what they hold inline. None is left out."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    parts = [_pairs(plain)] if plain else []
    for name, table in tables.items():
        if isinstance(table, Mapping):
            parts.append(f"[{_key(name)}]\n{_pairs(table)}")
    return "\n".join(parts)


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _key(name: str) -> str:
    return name if _BARE.match(name) else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = (f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return "{ " + ", ".join(inside) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, int | float):
        return repr(value)
    return _string(str(value))


def _string(text: str) -> str:
    # JSON's escapes are TOML's too, as long as characters stand for themselves; TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
