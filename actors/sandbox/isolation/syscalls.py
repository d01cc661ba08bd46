"""The seccomp filters of sandboxed calls, assembled as classic BPF programs. They refuse every call that is not listed.

The only binding on PyPI that is not tied to a distribution (pyseccomp) needs a system library, and its last release was
in 2021. The programs are short enough to assemble here, and tests run them on every system call. ``syscall_table``
lists the permitted calls.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

from actors.sandbox.isolation import syscall_table as table
from actors.sandbox.isolation.syscall_checks import AtLeast, Check, MaskedOneOf, Null, OneOf, Pretended, When, Without

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
"""Numbers from here on belong to x86-64's 32-bit interface, which a filter that compares numbers would miss."""
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


_PASS = _instruction(_RETURN, _ALLOW)


def _argument(index: int, *, high: bool = False) -> bytes:
    """Load the low half of an argument. The arguments compared here are 32 bits wide in the kernel, except pointers."""
    return _instruction(_LOAD, 16 + 8 * index + 4 * high)


def _is_one_of(values: dict[str, int], refusal: int) -> bytes:
    """Continue after these instructions if the loaded value is one of ``values``."""
    beyond = range(len(values), 0, -1)
    compared = (_instruction(_EQUAL, value, steps) for value, steps in zip(values.values(), beyond, strict=True))
    return b"".join(compared) + _refuse(refusal)


def _check(check: Check) -> bytes:
    """Instructions that refuse the call, or continue after themselves."""
    load = _argument(check.argument)
    match check:
        case OneOf():
            return load + _is_one_of(check.values, check.refusal)
        case Without():
            bits = sum(check.bits.values())
            return load + _instruction(_ANY_BIT, bits, 0, 1) + _refuse(check.refusal)
        case MaskedOneOf():
            kept = _instruction(_AND, ~sum(check.ignored.values()) % (1 << 32))
            return load + kept + _is_one_of(check.values, check.refusal)
        case Pretended():
            done = (_instruction(_EQUAL, value, 0, 1) + _refuse(0) for value in check.values.values())
            return load + b"".join(done)
        case AtLeast():
            return load + _instruction(_AT_LEAST, check.value, 1) + _refuse(check.refusal)
        case Null():
            no = _refuse(check.refusal)
            halves = (_argument(check.argument, high=high) + _instruction(_EQUAL, 0, 1) + no for high in (False, True))
            return b"".join(halves)
        case When():
            then = _check(check.then)
            return load + _instruction(_EQUAL, check.value, 0, len(then) // 8) + then


def numbers(calls: str, machine: str) -> dict[str, int]:
    """The numbers of the system calls of ``machine``, by name."""
    column = list(ARCHITECTURES).index(machine) + 1
    rows = (entry.split(":") for entry in calls.split())
    return {row[0]: int(row[column]) for row in rows if row[column]}


def _bodies(*, strong: bool, may_continue: bool) -> Iterator[tuple[str, bytes]]:
    """Tables of system calls and their checks, those with checked arguments first: the kernel caches the others."""
    for checked in (*table.CHECKED, *([table.ENTERING] if strong else [])):
        yield checked.calls, b"".join(map(_check, checked.checks)) + _PASS
    for calls, argument in table.SIGNALLING:
        compared = _argument(argument) + _instruction(_EQUAL, table.SIGCONT, 0, 1) + _refuse(errno.EPERM)
        yield calls, (b"" if may_continue else compared) + _PASS
    for group in (*table.UNDER_ANY_ARGUMENTS, table.LEADING):
        yield group.calls, _PASS
    yield table.MARKING.calls, _PASS if strong or may_continue else _refuse(0)
    yield table.SHORTENING.calls, _PASS if strong or may_continue else _refuse(errno.EPERM)
    yield table.IGNORED.calls, _refuse(0)
    yield table.NOT_THERE, _refuse(errno.ENOSYS)
    yield table.REFUSED, _refuse(errno.EPERM)
    if not strong:
        yield table.ENTERING.calls, _refuse(errno.EPERM)


def _head(machine: str) -> list[bytes]:
    """Kill calls of another interface; load the number of the system call. Raises KeyError for an unknown machine."""
    parts = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        parts += [_instruction(_AT_LEAST, X32, 0, 1), _instruction(_RETURN, _KILL)]
    return parts


def program(machine: str, *, strong: bool, may_continue: bool = False) -> bytes:
    """The filter for ``machine`` (x86_64, aarch64). Raises KeyError for others.

    A session is stopped between two cells. Only the process with ``may_continue`` can send the signal that continues
    the session. Otherwise threads or timers of the session could undo the stop.

    The warm interpreter installs the filter and its children inherit it, because installing takes 0.1 ms. At level
    ``strong`` the interpreter itself needs setns. The descriptors it enters are numbered from FIRST_SLOT_FD on; no
    child may open as many.
    """
    parts = _head(machine)
    for calls, body in _bodies(strong=strong, may_continue=may_continue):
        for number in numbers(calls, machine).values():
            parts += [_instruction(_EQUAL, number, 0, len(body) // 8), body]
    return b"".join([*parts, _refuse(errno.ENOSYS)])


def sealing_program(machine: str) -> bytes:
    """The filter that a child adds as the last step of its isolation, without the calls of these steps (see SEALED).

    The filter is short: when a filter is added, the kernel evaluates it for every system call number.
    """
    known = {**numbers(table.LEADING.calls, machine), **numbers(table.ENTERING.calls, machine)}
    [prctl] = (
        numbers(checked.calls, machine)["prctl"] for checked in table.CHECKED if checked.calls.startswith("prctl:")
    )
    options = tuple(table.SEALED_PRCTLS.values())
    parts = [_instruction(_LOAD, _NUMBER)]
    for number in (known["setsid"], known["setns"]):
        parts += [_instruction(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    parts += [_instruction(_EQUAL, prctl, 1), _PASS, _argument(0)]
    for option in options:
        parts += [_instruction(_EQUAL, option, 0, 1), _refuse(errno.EPERM)]
    return b"".join([*parts, _PASS])
