"""A fast path for most messages: generated source for each dataclass, which checks each field in place.

The functions handle only values of exactly the annotated types, which need no conversion. For other values they call
the careful functions of ``compiler.py``, which convert the value or raise the error that names the field. Tests check
that both accept and refuse the same values. For a class Point(x: int, label: str) the source is, except for the names::

    def encode(value, frames):
        if type(value) is cls:
            v0 = value.x
            v1 = value.label
            if type(v0) is int and MIN <= v0 <= MAX and type(v1) is str:
                return [v0, v1]
        return careful(value, frames)

    def decode(value, cursor):
        if type(value) is list and len(value) == 2:
            v0, v1 = value
            if type(v0) is int and MIN <= v0 <= MAX and type(v1) is str:
                made = blank()
                made.x = v0
                made.label = v1
                made.__class__ = cls
                return made
        return careful(value, cursor)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transport.schema import Decoder, Encoder, Invalid, Plan


def shortcuts(cls: type, plans: Mapping[str, Plan], careful: tuple[Encoder, Decoder]) -> tuple[Encoder, Decoder]:
    """An encoder and a decoder with the results of the careful ones, but faster."""
    every = list(enumerate(plans.values()))
    tests = [plan.unchanged.format(v=f"v{i}") for i, plan in every if plan.unchanged is not None]
    condition = f"  if {' and '.join(tests) or 'True'}:"
    converted = {f"step{i}": plan for i, plan in every if plan.unchanged is None}

    def values(state: str) -> list[str]:
        return [f"step{i}(v{i}, {state})" if f"step{i}" in converted else f"v{i}" for i, _ in every]

    lines = [
        "def encode(value, frames):",
        " if type(value) is cls:",
        *(f"  v{i} = value.{name}" for i, name in enumerate(plans)),
        condition,
        *_attempt(
            [f"return [{', '.join(values('frames'))}]"],
            "count = len(frames)",
            "Invalid",
            "del frames[count:]",
            needed=bool(converted),
        ),
        " return careful(value, frames)",
    ]
    names: dict[str, Any] = {"cls": cls, "Invalid": Invalid, "careful": careful[0]}
    encode = _function("encode", lines, names | {step: plan.encode for step, plan in converted.items()})

    blank = _blank(cls, tuple(plans))
    fields = list(zip(plans, values("cursor"), strict=True))
    if blank is not None:
        fill = [f"made.{name} = {value}" for name, value in fields]
        make = ["made = blank()", *fill, "made.__class__ = cls", "return made"]
    else:
        make = [f"return cls({', '.join(f'{name}={value}' for name, value in fields)})"]
    lines = [
        "def decode(value, cursor):",
        f" if type(value) is list and len(value) == {len(plans)}:",
        f"  [{', '.join(f'v{i}' for i, _ in every)}] = value",
        condition,
        *_attempt(
            make,
            "position = cursor.position",
            "(Invalid, ValueError, TypeError)",  # the latter two from the type's own __post_init__
            "cursor.position = position",
            needed=bool(converted) or blank is None,
        ),
        " return careful(value, cursor)",
    ]
    names = {"cls": cls, "Invalid": Invalid, "careful": careful[1], "blank": blank}
    return encode, _function("decode", lines, names | {step: plan.decode for step, plan in converted.items()})


def _attempt(lines: list[str], before: str, errors: str, restore: str, *, needed: bool) -> list[str]:
    """Indent the lines. If a line may fail, undo the begun work before the call of the careful function."""
    if not needed:
        return [f"   {line}" for line in lines]
    return [f"   {before}", "   try:", *(f"    {line}" for line in lines), f"   except {errors}:", f"    {restore}"]


def _function(name: str, lines: list[str], namespace: dict[str, Any]) -> Any:
    """The function that the lines define. The lines contain only field names, which are identifiers, and constants."""
    exec("\n".join(lines), namespace)  # noqa: S102 - as dataclasses makes __init__; the source contains no input
    return namespace[name]


def _blank(cls: type, names: tuple[str, ...]) -> Callable[[], Any] | None:
    """A class like ``cls`` whose instances can be filled and then become ``cls``; None where that would skip code.

    A frozen dataclass sets each field with a function call; filling a blank instance costs a fifth. Possible only for
    classes that consist of their slots and have the dataclass constructor.
    """
    constructor = getattr(cls.__dict__.get("__init__"), "__code__", None)
    own = "__post_init__" in cls.__dict__ or "__new__" in cls.__dict__
    if own or constructor is None or cls.__bases__ != (object,) or cls.__dict__.get("__slots__") != names:
        return None
    if "__dataclass_builtins_object__" not in (*constructor.co_freevars, *constructor.co_names):
        return None  # not frozen, so not slow, or with another constructor
    blank: Any = type(cls.__name__, (), {"__slots__": names})
    try:
        blank().__class__ = cls
    except TypeError:
        return None
    made: Callable[[], Any] = blank
    return made
